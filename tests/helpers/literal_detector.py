"""The bottom-up detector in slow, literal NumPy: loops, and Caffe's arithmetic where it matters.

It follows the released Caffe code file by file (lib/fast_rcnn/test.py, lib/rpn/proposal_layer.py,
generate_anchors.py, cpu_nms.pyx, roi_pooling_layer.cpp, tools/generate_tsv.py) and shares nothing
with the package but the names of the weights.
"""

import dataclasses
import math

import numpy as np
from PIL import Image

from tfcap.backbones.detector import Sizes, shapes

F = np.float32
MEAN = (102.9801, 115.9465, 122.7717)


# ---- lib/fast_rcnn/test.py ----------------------------------------------------------------------


def half_even(x):
    """cvRound: the nearest whole number, halves to even."""
    low = math.floor(x)
    if x - low == 0.5:
        return low + low % 2
    return math.floor(x + 0.5)


def scale_of(height, width, short=600, long=1000):
    f = float(short) / min(height, width)
    if half_even(f * max(height, width)) > long:
        f = float(long) / max(height, width)
    return f


def resize(image, short=600, long=1000):
    """uint8 RGB [H, W, 3] to float32 BGR [H', W', 3] minus the mean, and f."""
    height, width = image.shape[:2]
    f = scale_of(height, width, short, long)
    blob = (image[:, :, ::-1].astype(np.float64) - MEAN).astype(F)
    out = np.zeros((half_even(height * f), half_even(width * f), 3), F)

    def place(i, size):
        source = (i + 0.5) / f - 0.5
        low = math.floor(source)
        return max(low, 0), min(max(low + 1, 0), size - 1), F(source - low)

    columns = [place(x, width) for x in range(out.shape[1])]
    lefts, rights = ([min(c[k], width - 1) for c in columns] for k in (0, 1))
    part = np.array([c[2] for c in columns], F)[:, None]
    for y in range(out.shape[0]):
        top, bottom, down = place(y, height)
        rows = [
            blob[row, lefts] * (F(1) - part) + blob[row, rights] * part
            for row in (min(top, height - 1), bottom)
        ]
        out[y] = rows[0] * (F(1) - down) + rows[1] * down
    return out, f


# ---- the layers of test.prototxt ----------------------------------------------------------------


def conv(x, weights, name, stride=1, pad=0, dilation=1):
    """Convolution of one picture [h, w, C], in float64, output float32."""
    kernel, bias = weights[f"{name}.weight"].astype(np.float64), weights[f"{name}.bias"]
    side = kernel.shape[0]
    x = np.pad(x.astype(np.float64), ((pad, pad), (pad, pad), (0, 0)))
    reach = dilation * (side - 1) + 1
    high = (x.shape[0] - reach) // stride + 1
    wide = (x.shape[1] - reach) // stride + 1
    out = np.zeros((high, wide, kernel.shape[-1]))
    for i in range(side):
        for j in range(side):
            part = x[i * dilation :: stride, j * dilation :: stride][:high, :wide]
            out += part @ kernel[i, j]
    return (out + bias).astype(F)


def relu(x):
    return np.maximum(x, F(0))


def pool(x):
    """3 x 3, stride 2, no padding, size rounded up; the last windows are cut."""
    high, wide = (math.ceil((n - 3) / 2) + 1 for n in x.shape[:2])
    out = np.zeros((high, wide, x.shape[2]), F)
    for i in range(high):
        for j in range(wide):
            out[i, j] = x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1))
    return out


def block(x, weights, name, stride, dilation):
    y = relu(conv(x, weights, f"{name}.conv1", stride))
    y = relu(conv(y, weights, f"{name}.conv2", 1, dilation, dilation))
    y = conv(y, weights, f"{name}.conv3")
    if f"{name}.shortcut.weight" in weights:
        x = conv(x, weights, f"{name}.shortcut", stride)
    return relu(x + y)


def trunk(pixels, weights, blocks):
    x = pool(relu(conv(pixels, weights, "backbone.stem.conv1", 2, 3)))
    for stage, count in zip((2, 3, 4), blocks, strict=False):
        for i in range(count):
            stride = 2 if i == 0 and stage > 2 else 1
            x = block(x, weights, f"backbone.res{stage}.{i}", stride, 1)
    return x


# ---- generate_anchors.py ------------------------------------------------------------------------


def make_anchors():
    """Ratios of a 16 x 16 box, then scales of these; numpy rounds halves to even, as here."""
    made = []
    for ratio in (0.5, 1, 2):
        width = np.round(np.sqrt(16 * 16 / ratio))
        height = np.round(width * ratio)
        for scale in (4, 8, 16, 32):
            w, h, middle = width * scale, height * scale, 0.5 * (16 - 1)
            made.append(
                [
                    middle - 0.5 * (w - 1),
                    middle - 0.5 * (h - 1),
                    middle + 0.5 * (w - 1),
                    middle + 0.5 * (h - 1),
                ]
            )
    return made


# ---- proposal_layer.py, cpu_nms.pyx --------------------------------------------------------------


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def nms(boxes, scores, threshold):
    """Kept rows, best first. Overlaps are float32, the threshold is double."""
    boxes = boxes.astype(F)
    x1, y1, x2, y2 = boxes.T
    areas = (x2 - x1 + F(1)) * (y2 - y1 + F(1))
    order = np.argsort(-scores, kind="stable")
    suppressed, kept = np.zeros(len(boxes), bool), []
    for i in order:
        if suppressed[i]:
            continue
        kept.append(int(i))
        w = np.maximum(F(0), np.minimum(x2[i], x2) - np.maximum(x1[i], x1) + F(1))
        h = np.maximum(F(0), np.minimum(y2[i], y2) - np.maximum(y1[i], y1) + F(1))
        overlap = w * h / (areas[i] + areas - w * h)
        suppressed |= overlap.astype(np.float64) >= threshold
    return kept


def proposals(cells, weights, height, width, f, candidates, most, milvlg=False):
    """The proposals float32 [P', 4] and the scores that ordered them."""
    rpn = "proposal_generator.rpn_head"
    x = relu(conv(cells, weights, f"{rpn}.conv", 1, 1))
    logits = conv(x, weights, f"{rpn}.objectness_logits")
    numbers = conv(x, weights, f"{rpn}.anchor_deltas")
    base, boxes, scores = make_anchors(), [], []
    for i in range(cells.shape[0]):
        for j in range(cells.shape[1]):
            for a in range(12):
                x1, y1, x2, y2 = (F(v + 16 * s) for v, s in zip(base[a], (j, i, j, i), strict=True))
                dx, dy, dw, dh = numbers[i, j, 4 * a : 4 * a + 4]
                if milvlg:
                    dw, dh = (min(d, F(np.log(1000 / 16))) for d in (dw, dh))
                w, h = x2 - x1 + F(1), y2 - y1 + F(1)
                cx, cy = dx * w + (x1 + F(0.5) * w), dy * h + (y1 + F(0.5) * h)
                w, h = np.exp(dw) * w, np.exp(dh) * h
                box = [cx - F(0.5) * w, cy - F(0.5) * h, cx + F(0.5) * w, cy + F(0.5) * h]
                ends = (width - 1, height - 1, width - 1, height - 1)
                box = [max(min(v, F(e)), F(0)) for v, e in zip(box, ends, strict=True)]
                least = F(16) * F(f)
                sides = box[2] - box[0] + F(1), box[3] - box[1] + F(1)
                if min(sides) < least or (milvlg and min(sides) == least):
                    continue
                boxes.append(box)
                scores.append(softmax(logits[i, j, [a, a + 12]])[1])
    boxes, scores = np.array(boxes, F).reshape(-1, 4), np.array(scores, F)
    order = np.argsort(-scores, kind="stable")[:candidates]
    threshold = float(F(0.7)) if milvlg else 0.7
    kept = nms(boxes[order], scores[order], threshold)[:most]
    return boxes[order][kept], scores[order][kept]


# ---- roi_pooling_layer.cpp ----------------------------------------------------------------------


def c_round(x):
    """round() of C for x >= 0: halves away from zero."""
    low = math.floor(x)
    return low + (float(x) - low >= 0.5)


def roi_pool(cells, roi, bins=14):
    high, wide, depth = cells.shape
    x1, y1, x2, y2 = (c_round(F(v) * F(1 / 16)) for v in roi)
    out = np.zeros((bins, bins, depth), F)
    sides = [F(max(b - a + 1, 1)) / F(bins) for a, b in ((y1, y2), (x1, x2))]
    for p in range(bins):
        for q in range(bins):
            start = [math.floor(F(k) * s) for k, s in zip((p, q), sides, strict=True)]
            end = [math.ceil(F(k + 1) * s) for k, s in zip((p, q), sides, strict=True)]
            top, bottom = (min(max(v + y1, 0), high) for v in (start[0], end[0]))
            left, right = (min(max(v + x1, 0), wide) for v in (start[1], end[1]))
            if bottom > top and right > left:
                out[p, q] = cells[top:bottom, left:right].max((0, 1))
    return out


def features(cells, rois, weights, blocks):
    result = []
    for roi in rois:
        x = roi_pool(cells, roi)
        for i in range(blocks):
            x = block(x, weights, f"roi_heads.res5.{i}", 1, 2)
        result.append(x.astype(np.float64).mean((0, 1)).astype(F))
    return np.array(result)


def heads(pooled, weights):
    """Probabilities of the classes and the attributes, both with the background first."""
    head = "roi_heads.box_predictor"

    def linear(name, x):
        return (x.astype(np.float64) @ weights[f"{name}.weight"] + weights[f"{name}.bias"]).astype(
            F
        )

    classes = softmax(linear(f"{head}.cls_score", pooled))
    vectors = weights[f"{head}.cls_embed.weight"][classes.argmax(1)]
    hidden = relu(linear(f"{head}.attr_linear1", np.concatenate([pooled, vectors], 1)))
    return classes, softmax(linear(f"{head}.attr_linear2", hidden))


# ---- generate_tsv.py ----------------------------------------------------------------------------


def confidences(boxes, classes):
    result = np.zeros(len(boxes))
    for c in range(1, classes.shape[1]):
        kept = nms(boxes, classes[:, c], 0.3)
        result[kept] = np.maximum(result[kept], classes[kept, c])
    return result


def choose(confidence, least, most):
    kept = np.where(confidence >= 0.2)[0]
    best_first = np.argsort(-confidence, kind="stable")
    if len(kept) < least:
        kept = best_first[:least]
    elif len(kept) > most:
        kept = best_first[:most]
    return kept


def detect(image, weights, sizes):
    """Everything of a picture uint8 RGB [H, W, 3], by name."""
    pixels, f = resize(image, sizes.short, sizes.long)
    cells = trunk(pixels, weights, sizes.blocks)
    rois, _ = proposals(
        cells,
        weights,
        *pixels.shape[:2],
        f,
        sizes.candidates,
        sizes.proposals,
        sizes.form == "milvlg",
    )
    pooled = features(cells, rois, weights, sizes.blocks[3])
    classes, attributes = heads(pooled, weights)
    boxes = rois / F(f)
    kept = choose(confidences(boxes, classes), *sizes.boxes)
    return {
        "features": pooled[kept],
        "boxes": boxes[kept],
        "classes": classes[kept, 1:].argmax(1),
        "class_scores": classes[kept, 1:].max(1),
        "attributes": attributes[kept, 1:].argmax(1),
        "attribute_scores": attributes[kept, 1:].max(1),
        "pixels": pixels,
        "cells": cells,
        "rois": rois,
    }


# ---- narrow networks ----------------------------------------------------------------------------

NARROW = Sizes(
    stem=4,
    widths=(8, 16, 24, 32),
    blocks=(2, 2, 2, 3),
    rpn=16,
    classes=9,
    attributes=6,
    embedding=5,
    hidden=12,
    candidates=300,
    proposals=60,
    short=240,
    long=400,
)


def random_weights(sizes=NARROW, seed=1):
    """Weights by name, of sizes that keep every layer's numbers near 1 and scores apart."""
    rng, made = np.random.default_rng(seed), {}
    for name, shape in shapes(sizes).items():
        spread = 0.3
        if name.endswith(".weight"):
            spread = math.sqrt(1.6 / np.prod(shape[:-1]))
        if name == "backbone.stem.conv1.weight":
            spread /= 60
        if "cls_score.weight" in name:
            spread *= 20
        if "attr_linear2.weight" in name:
            spread *= 8
        if "anchor_deltas" in name or "objectness" in name:
            spread *= 0.3
        if "cls_embed" in name:
            spread = 1.0
        values = rng.normal(0, spread, shape)
        if "cls_score.weight" in name or "attr_linear" in name:
            values -= values.mean(0)  # the means of features are alike in random networks
        made[name] = values.astype(F)
    return made


def card_of(sizes=NARROW):
    return {
        "sizes": dataclasses.asdict(sizes),
        "source": "random numbers",
        "classes": [f"class {i}" for i in range(sizes.classes)],
        "attributes": [f"attribute {i}" for i in range(sizes.attributes)],
    }


def turned(content):
    """A JPEG file whose EXIF says that its first row is at the right."""
    entry = b"\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00"
    exif = b"Exif\0\0II*\0\x08\x00\x00\x00\x01\x00" + entry + b"\0\0\0\0"
    return content[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + content[2:]


def photograph(height, width, seed=0):
    """uint8 [H, W, 3] with smooth patches and noise."""
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC))
    noisy = smooth.astype(int) + rng.integers(-20, 21, smooth.shape)
    return noisy.clip(0, 255).astype(np.uint8)
