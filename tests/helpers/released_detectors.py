"""Weights of bottom-up attention in the layouts of the released files, with random numbers.

A .caffemodel is written as bytes, by the rules of protobuf and the numbers of fields in
caffe.proto, and not by code that could share a fault with the reader.
"""

import collections

import numpy as np

LETTERS = {2: ["a", "b", "c"], 5: ["a", "b", "c"]}
LETTERS[3] = ["a", *(f"b{n}" for n in range(1, 4))]
LETTERS[4] = ["a", *(f"b{n}" for n in range(1, 23))]
BRANCHES = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}
HEADS = {
    "proposal_generator.rpn_head.conv": "rpn_conv/3x3",
    "proposal_generator.rpn_head.objectness_logits": "rpn_cls_score",
    "proposal_generator.rpn_head.anchor_deltas": "rpn_bbox_pred",
    "roi_heads.box_predictor.cls_score": "cls_score",
    "roi_heads.box_predictor.bbox_pred": "bbox_pred",
    "roi_heads.box_predictor.attr_linear1": "fc_attr",
    "roi_heads.box_predictor.attr_linear2": "attr_score",
}
EMBEDDING = "roi_heads.box_predictor.cls_embed.weight"
RELEASED = dict(
    **dict(stem=64, widths=(256, 512, 1024, 2048), blocks=(3, 4, 23, 3), rpn=512),
    **dict(classes=1600, attributes=400, embedding=256, hidden=512),
)


def convolutions(sizes):
    """Yields MILVLG's name, Caffe's names of convolution, normalisation and scale, and a shape."""
    yield "backbone.stem.conv1", ("conv1", "bn_conv1", "scale_conv1"), (sizes["stem"], 3, 7, 7)
    before = sizes["stem"]
    for stage, width, blocks in zip((2, 3, 4, 5), sizes["widths"], sizes["blocks"], strict=True):
        top = "roi_heads" if stage == 5 else "backbone"
        for block in range(blocks):
            inner = width // 4
            shapes = dict(conv1=(inner, before, 1, 1), conv2=(inner, inner, 3, 3))
            shapes["conv3"] = width, inner, 1, 1
            if block == 0:
                shapes["shortcut"] = width, before, 1, 1
            for name, shape in shapes.items():
                place = f"{stage}{LETTERS[stage][block]}_branch{BRANCHES[name]}"
                layers = f"res{place}", f"bn{place}", f"scale{place}"
                yield f"{top}.res{stage}.{block}.{name}", layers, shape
            before = width


def milvlg(sizes, seed=1):
    """The tensors of MILVLG's .pth by name."""
    rng = np.random.default_rng(seed)

    def numbers(*shape):
        return rng.standard_normal(shape, np.float32) * np.float32(np.prod(shape[1:]) ** -0.5)

    result = collections.OrderedDict()
    for name, _, shape in convolutions(sizes):
        result[f"{name}.weight"] = numbers(*shape)
        result[f"{name}.norm.weight"] = rng.uniform(0.2, 0.6, shape[0]).astype(np.float32)
        result[f"{name}.norm.bias"] = numbers(shape[0])
        result[f"{name}.norm.running_mean"] = numbers(shape[0])
        result[f"{name}.norm.running_var"] = rng.uniform(0.1, 3, shape[0]).astype(np.float32)
        if ".res4." in name or ".res5." in name:
            result[f"{name}.norm.num_batches_tracked"] = np.array(0, np.int64)
    _, _, cells, width = sizes["widths"]
    classes = sizes["classes"] + 1
    shapes = [(sizes["rpn"], cells, 3, 3), (24, sizes["rpn"], 1, 1), (48, sizes["rpn"], 1, 1)]
    shapes += [(classes, width), (4 * classes, width)]
    shapes += [(sizes["hidden"], width + sizes["embedding"])]
    shapes += [(sizes["attributes"] + 1, sizes["hidden"])]
    for name, shape in zip(HEADS, shapes, strict=True):
        result[f"{name}.weight"], result[f"{name}.bias"] = numbers(*shape), numbers(shape[0])
    result[EMBEDDING] = numbers(classes, sizes["embedding"])
    return result


def caffe(sizes, tensors, factor=999.982):
    """The same weights by the names of Caffe's layers, with the sums of its moving averages."""
    layers = {"input-data": []}
    for name, (convolution, norm, scale), _ in convolutions(sizes):
        layers[convolution] = [tensors[f"{name}.weight"]]
        sums = [
            tensors[f"{name}.norm.running_{key}"] * np.float32(factor) for key in ("mean", "var")
        ]
        layers[norm] = [*sums, np.array([factor], np.float32)]
        layers[scale] = [tensors[f"{name}.norm.{key}"] for key in ("weight", "bias")]
    for name, layer in HEADS.items():
        layers[layer] = [tensors[f"{name}.weight"], tensors[f"{name}.bias"]]
    layers["cls_embedding"] = [tensors[EMBEDDING]]
    return layers


def _varint(number):
    number %= 1 << 64  # a negative number is written in 64 bits
    result = b""
    while number > 127:
        result += bytes([number % 128 + 128])
        number //= 128
    return result + bytes([number])


def field(number, content):
    """A field of bytes, a text or a message."""
    return _varint(number * 8 + 2) + _varint(len(content)) + content


def blob(shape, *data):
    """A BlobProto; each part of `data` is a chunk of packed floats."""
    dims = field(1, b"".join(map(_varint, shape)))
    return b"".join(field(5, part) for part in data) + field(7, dims)


def layer(name, *blobs):
    """A LayerParameter in field 100 of a NetParameter."""
    content = field(1, name.encode()) + field(2, b"Convolution") + field(3, b"data")
    return field(100, content + b"".join(field(7, content) for content in blobs))


def write_caffe(path, layers):
    """Writes a .caffemodel with the blobs of each layer."""
    with open(path, "wb") as file:
        file.write(field(1, b"ResNet-101"))
        for name, arrays in layers.items():
            blobs = [blob(a.shape, a.astype("<f4").tobytes()) for a in arrays]
            file.write(layer(name, *blobs))
