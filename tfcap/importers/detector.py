"""Converts released weights of bottom-up attention to our detector.

Two released files can be converted: the .caffemodel of peteanderson80/bottom-up-attention, and the
.pth of MILVLG/bottom-up-attention.pytorch, which holds the same weights. The names of all tensors
and their shapes must be those of the released network; the files of other projects are refused.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfcap import torch_file
from tfcap.backbones import detector
from tfcap.backbones.detector import Sizes
from tfcap.files import file_sha256
from tfcap.importers import caffe_file

_HEAD = "roi_heads.box_predictor"
# Layers without normalisation: MILVLG's names, which are ours too, and Caffe's.
_CAFFE = {
    "proposal_generator.rpn_head.conv": "rpn_conv/3x3",
    "proposal_generator.rpn_head.objectness_logits": "rpn_cls_score",
    "proposal_generator.rpn_head.anchor_deltas": "rpn_bbox_pred",
    f"{_HEAD}.cls_score": "cls_score",
    f"{_HEAD}.bbox_pred": "bbox_pred",
    f"{_HEAD}.cls_embed": "cls_embedding",
    f"{_HEAD}.attr_linear1": "fc_attr",
    f"{_HEAD}.attr_linear2": "attr_score",
}
# The convolutions of a block: `backbone.res4.1.conv2` is `res4b1_branch2b`, with `bn4b1_branch2b`
# and `scale4b1_branch2b` behind it.
_BRANCHES = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}
# Behind a convolution, in the order of `detector.fold`: MILVLG's names, and Caffe's. The last blob
# of Caffe is the number by which its mean and its variance are divided.
_NORM = ("norm.running_mean", "norm.running_var", "norm.weight", "norm.bias")
_CAFFE_NORM = ("bn{}[0]", "bn{}[1]", "scale{}[0]", "scale{}[1]", "bn{}[2]")
# Of the kernels, to our order of axes and back.
_ORDER = {4: (2, 3, 1, 0), 2: (1, 0)}
_INVERSE = {4: (3, 2, 0, 1), 2: (1, 0)}
_COUNTER = ".norm.num_batches_tracked"
_CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"

_SOURCES = {
    True: {"source": "peteanderson80/bottom-up-attention", "licence": "MIT"},
    False: {"source": "MILVLG/bottom-up-attention.pytorch", "licence": "Apache-2.0"},
}
# What only the names in the files of another network contain, and which network it is.
_OTHERS = {
    b"roi_heads.box_predictor.fc_attr.": "of airsplay/py-bottom-up-attention (or its copy "
    "unc-nlp/frcnn-vg-finetuned), which refines its boxes and has the background last",
    b"roi_heads.box.predictor.": "of maskrcnn-benchmark, such as VinVL's ResNeXt-152, which has "
    "other classes",
    b"roi_heads.res5_bn.": "of MILVLG's ResNet-152, which normalises before its convolutions",
}


def convert(
    path: str,
    out: str,
    objects_vocab: str | None = None,
    attributes_vocab: str | None = None,
    boxes: int | None = None,
    form: str = "caffe",
) -> str:
    """Writes the directory of a detector of regions with the weights of a released file.

    Args:
      path: the released file, a .caffemodel or a .pth.
      out: directory to write.
      objects_vocab: text file with the name of a class on each line. Synonyms may follow after
        commas; only the name before the first comma is taken. With None the classes have no names.
      attributes_vocab: text file with the name of an attribute on each line, in the same layout.
        With None the attributes have no names.
      boxes: number of regions of each picture, such as 36; None takes as many regions as are found,
        but at least 10 and at most 100.
      form: the code whose rules choose the regions: "caffe" for the original code,
        peteanderson80/bottom-up-attention; "milvlg" for MILVLG/bottom-up-attention.pytorch, which
        finds slightly different regions. Choose the code that computed the features a captioner was
        trained on.

    Returns:
      One line that describes the detector.

    Raises:
      ValueError: the released file cannot be read or is that of another network, or a text file
        does not have one name for each class or attribute.
    """
    path, out = map(os.path.expanduser, (path, out))
    arrays = read_weights(path)
    sizes: dict[str, Any] = {} if form == "caffe" else {"form": form}
    if boxes:
        sizes["boxes"] = [boxes, boxes]
    if f"{_HEAD}.attr_linear2.bias" not in arrays:
        sizes["attributes"] = 0
    attributes = sizes.get("attributes", Sizes.attributes)
    card = {
        **_SOURCES[_is_caffe(path)],
        "sha256": file_sha256(path),
        "sizes": sizes,
        "classes": class_names(objects_vocab, Sizes.classes),
        "attributes": class_names(attributes_vocab, attributes),
    }
    detector.write(out, arrays, card)
    total = sum(array.size for array in arrays.values())
    return (
        f"detector of {card['source']}, {total:,} parameters, {Sizes.classes:,} classes, "
        f"{attributes} attributes, {boxes or '10 to 100'} regions of a picture"
    )


def read_weights(path: str, sizes: Sizes | None = None) -> dict[str, np.ndarray]:
    """Reads the weights of a released detector, and converts them to our network.

    Our network has no batch normalisation. The batch normalisation of the released network is
    folded into the kernels and biases of the convolutions, see `backbones.detector.fold`.

    Args:
      path: the released file, a .caffemodel or a .pth. The layers that predict the attributes may
        be missing.
      sizes: sizes of the network; None takes those of the released network.

    Returns:
      Float32 arrays by name, with the names and shapes of `backbones.detector.shapes`.

    Raises:
      ValueError: the file cannot be read, or is that of another network.
    """
    sizes = sizes or Sizes()
    is_caffe = _is_caffe(path)
    try:
        tensors = caffe_file.read_tensors(path) if is_caffe else torch_file.read_tensors(path)
        if f"{_HEAD}.attr_linear2.bias" not in tensors and "attr_score[1]" not in tensors:
            sizes = dataclasses.replace(sizes, attributes=0)
        layers = _layers(sizes, is_caffe)
        _compare(path, tensors, layers)
    except ValueError as error:
        raise ValueError(_known_network(path) or error) from error
    arrays = {}
    for layer, names in layers.items():
        kernel, *rest = (tensors[name] for name in names)
        if layer != f"{_HEAD}.cls_embed":
            kernel = kernel.transpose(_ORDER[kernel.ndim])
        if layer not in _CAFFE:
            mean, var, gamma, beta = rest[:4]
            if is_caffe:
                factor = rest[4][0].astype(np.float64)
                mean, var = (mean / factor, var / factor) if factor else (0 * mean, 0 * var)
            kernel, *rest = detector.fold(kernel, mean, var, gamma, beta)
        for leaf, array in zip(("weight", "bias"), (kernel, *rest), strict=False):
            if not np.isfinite(array).all():
                raise ValueError(
                    f"{path}: {layer}.{leaf} holds NaN or infinity. Copy the file again."
                )
            arrays[f"{layer}.{leaf}"] = array
    # Regions are proposals: no box is refined.
    return {name: array for name, array in arrays.items() if ".bbox_pred." not in name}


def _is_caffe(path: str) -> bool:
    """True unless a file has another known format than that of a .caffemodel."""
    try:
        with open(path, "rb") as file:
            start = file.read(512)
        return not (torch_file.is_weights(start) or torch_file.other_format(start))
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror or error}. Check the path."
        ) from error


def _known_network(path: str) -> str:
    """Says which other network a file has, by the names in it; "" for an unknown one."""
    with open(path, "rb") as file:
        content = file.read()
    for name, network in _OTHERS.items():
        if name in content:
            return (
                f"{path} has the weights {network}. This network does not find the regions of "
                "bottom-up attention. Give the .caffemodel or MILVLG's .pth with ResNet-101."
            )
    return ""


def _layers(sizes: Sizes, is_caffe: bool) -> dict[str, dict[str, tuple[int, ...]]]:
    """Returns, for each of our layers, the released names and shapes of its tensors.

    The kernel is the first; then come its bias, or what `_NORM` or `_CAFFE_NORM` names.
    """
    shapes = detector.shapes(sizes)
    corners = 4 * (sizes.classes + 1)
    shapes[f"{_HEAD}.bbox_pred.weight"] = sizes.widths[-1], corners
    layers = {}
    for name, shape in shapes.items():
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight":
            first, *others = _released(layer, is_caffe)
            is_table = layer == f"{_HEAD}.cls_embed"
            kernel = shape if is_table else tuple(shape[axis] for axis in _INVERSE[len(shape)])
            layers[layer] = {first: kernel} | {other: shape[-1:] for other in others}
            if others[4:]:
                layers[layer][others[4]] = (1,)
    return layers


def _released(layer: str, is_caffe: bool) -> list[str]:
    """Returns the released names of the tensors of a layer."""
    if layer == f"{_HEAD}.cls_embed":
        return ["cls_embedding[0]" if is_caffe else f"{layer}.weight"]
    if not is_caffe:
        rest = ("bias",) if layer in _CAFFE else _NORM
        return [f"{layer}.{leaf}" for leaf in ("weight", *rest)]
    if layer in _CAFFE:
        return [f"{_CAFFE[layer]}[0]", f"{_CAFFE[layer]}[1]"]
    if layer == "backbone.stem.conv1":
        return ["conv1[0]", *(leaf.format("_conv1") for leaf in _CAFFE_NORM)]
    *_, stage, block, branch = layer.replace(".res", ".").split(".")
    letter = f"b{block}" if stage in "34" and block != "0" else "abc"[int(block)]
    name = f"{stage}{letter}_branch{_BRANCHES[branch]}"
    return [f"res{name}[0]", *(leaf.format(name) for leaf in _CAFFE_NORM)]


def _compare(
    path: str,
    tensors: Mapping[str, np.ndarray],
    layers: Mapping[str, Mapping[str, tuple[int, ...]]],
) -> None:
    """Raises ValueError if the names or the shapes in a file are not those of `_layers`."""
    expected = {name: shape for names in layers.values() for name, shape in names.items()}
    faults = [
        f"{name} {list(expected[name])} is missing" for name in expected if name not in tensors
    ]
    for name, tensor in tensors.items():
        if name == _CELL_ANCHORS:
            if tensor.shape != detector.ANCHORS.shape or not (tensor == detector.ANCHORS).all():
                faults.append(f"{name} has other anchors")
        elif name not in expected and not name.endswith(_COUNTER):
            faults.append(f"{name} is not one of its tensors")
        elif name in expected and tensor.shape != expected[name]:
            faults.append(f"{name} is {list(tensor.shape)} and should be {list(expected[name])}")
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(
            f"{path} is not the released ResNet-101 of bottom-up attention: "
            f"{'; '.join(faults[:3])}{more}. Give the .caffemodel or MILVLG's .pth with ResNet-101."
        )


def class_names(path: str | None, count: int) -> list[str]:
    """Reads the first name on each line of a file of classes.

    Args:
      path: the file; commas separate the names on a line. For None the list is empty.
      count: number of classes; the file must have as many lines. For 0 the list is empty.

    Raises:
      ValueError: the file has another number of lines, or a line without a name.
    """
    if path is None or not count:
        return []
    with open(os.path.expanduser(path), encoding="utf-8-sig") as file:
        names = [line.split(",")[0].strip() for line in file.read().splitlines()]
    if len(names) != count or not all(names):
        raise ValueError(
            f"{path} must have a name on each of {count} lines, but has {len(names)} lines, "
            f"{sum(map(bool, names))} of them with a name. Give the file that was released with "
            "the weights."
        )
    return names
