"""Bottom-up attention: 10 to 100 regions of a photograph by a Faster R-CNN of Visual Genome.

The source is Anderson et al., "Bottom-up and top-down attention for image captioning and visual
question answering", CVPR 2018. Where the paper is silent, the code follows the released Caffe code
(peteanderson80/bottom-up-attention). The detector works in these steps:

* The stages up to res4 of a ResNet-101 read the picture.
* A region proposal network proposes boxes.
* RoI pooling takes the largest values in 14 x 14 bins of each proposal.
* The stage res5 reads the pooled values, and its mean is the feature vector.
* Two heads predict a class and an attribute.

A region is a proposal: no box is refined by regression. All operations are stock TensorFlow
operations, which run in `tf.function`, on a GPU and in a SavedModel. If the size of the picture is
static, they also run under XLA.

`form="milvlg"` follows MILVLG/bottom-up-attention.pytorch, which differs in three points: a clamp
of the regressed sides, a strict limit of the smallest side, and a float32 threshold in suppression.

Letters: H and W height and width of the picture in pixels; H' and W' of the picture that the
network reads; f = H'/H the scale; h and w cells of the map, of 16 pixels; A = 12 anchors; P
proposals; C classes and K attributes, without the background; R regions, F feature width.
"""

import dataclasses
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.backbones import DETECTOR
from tfcap.backbones.boxes import (
    ANCHORS,
    anchors,
    choose,
    confidences,
    decoded,
    roi_pool,
    running_maxima,
    suppressed,
)
from tfcap.backbones.saved import Digest
from tfcap.data import pictures, record

WEIGHTS = "detector.npz"
CARD = "card.json"
_REMEDY = "Give the directory of a detector that tfcap.convert has written."

_MEAN = np.array([102.9801, 115.9465, 122.7717])  # of blue, green and red, 0 to 255
_LEAST = 16  # pixels of the picture along a side of a proposal
_CHUNK = 50  # proposals that res5 reads at once; 50 x 14 x 14 x 1024 numbers take 40 MB
_SMALLEST = 3  # pixels of H' and W': the pooling of fewer has no result
EPSILON = 1e-5  # of batch normalisation
_RPN = "proposal_generator.rpn_head"  # of the names of weights
_HEAD = "roi_heads.box_predictor"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a detector; the defaults are those of the released weights.

    The detector is a ResNet-101 with stages res2 to res5. A proposal network finds boxes in the
    output of res4, and res5 computes the features of each box.

    Attributes:
      stem: number of channels of the first convolution.
      widths: number of channels of res2 to res5; the last is the width of a feature vector. The
        inner convolutions of a block have a quarter as many.
      blocks: number of blocks of res2 to res5.
      rpn: number of channels of the convolution of the proposal network.
      classes: number of classes without the background.
      attributes: number of attributes without the background; 0 for a detector without attributes.
      embedding: width of the learned vector of a class. The attribute head reads the vector of the
        most probable class.
      hidden: width of the hidden layer of the attribute head.
      candidates: number of boxes, those with the best scores, that enter the suppression of
        overlapping boxes.
      proposals: largest number of boxes that are kept by this suppression.
      boxes: the smallest and the largest number of regions of a picture; (36, 36) gives 36 regions.
        A picture with fewer proposals than the smallest number has fewer regions.
      short: pixels along the shorter side of the resized picture, which the network reads.
      long: largest number of pixels along the longer side of the resized picture.
      form: "caffe", or "milvlg" for MILVLG/bottom-up-attention.pytorch, which chooses proposals
        slightly differently. There a side of an anchor grows at most 62.5-fold; a box with a side
        of exactly 16 pixels is dropped, not only one with a smaller side; and an overlap of exactly
        0.7 suppresses.
      dtype: the dtype in which res5 is computed, "float32" or "bfloat16". All else, also the
        features, is float32.
    """

    stem: int = 64
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    blocks: tuple[int, ...] = (3, 4, 23, 3)
    rpn: int = 512
    classes: int = 1600
    attributes: int = 400
    embedding: int = 256
    hidden: int = 512
    candidates: int = 6000
    proposals: int = 300
    boxes: tuple[int, int] = (10, 100)
    short: int = 600
    long: int = 1000
    form: str = "caffe"
    dtype: str = "float32"


# ---- weights ------------------------------------------------------------------------------------


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Returns the name and shape of every array of weights of a detector.

    The names are those of the state dict of MILVLG/bottom-up-attention.pytorch. The arrays of
    `bbox_pred` and of batch normalisation are left out; `fold` folds batch normalisation into the
    convolution before it.

    * Kernels of convolutions are [rows, columns, in, out], matrices [in, out].
    * `cls_embed`, the vectors of the classes, is [classes + 1, embedding].
    * Class 0 and attribute 0 are the background.
    * The 24 outputs of `objectness_logits` are the scores of the background for the 12 anchors,
      then the scores of an object for them.
    * The 48 outputs of `anchor_deltas` are the four deltas of the first anchor, then those of the
      next, see `boxes.decoded`.
    """
    result: dict[str, tuple[int, ...]] = {}

    def add(name: str, *shape: int) -> None:
        result[f"{name}.weight"] = shape
        result[f"{name}.bias"] = shape[-1:]

    add("backbone.stem.conv1", 7, 7, 3, sizes.stem)
    channels = sizes.stem
    for number, (width, blocks) in enumerate(zip(sizes.widths, sizes.blocks, strict=True), 2):
        stage = f"{'roi_heads' if number == 5 else 'backbone'}.res{number}"
        inner = width // 4
        add(f"{stage}.0.shortcut", 1, 1, channels, width)
        for block in range(blocks):
            add(f"{stage}.{block}.conv1", 1, 1, channels, inner)
            add(f"{stage}.{block}.conv2", 3, 3, inner, inner)
            add(f"{stage}.{block}.conv3", 1, 1, inner, width)
            channels = width
    add(f"{_RPN}.conv", 3, 3, sizes.widths[2], sizes.rpn)
    add(f"{_RPN}.objectness_logits", 1, 1, sizes.rpn, 2 * len(ANCHORS))
    add(f"{_RPN}.anchor_deltas", 1, 1, sizes.rpn, 4 * len(ANCHORS))
    add(f"{_HEAD}.cls_score", sizes.widths[3], sizes.classes + 1)
    if sizes.attributes:
        result[f"{_HEAD}.cls_embed.weight"] = sizes.classes + 1, sizes.embedding
        add(f"{_HEAD}.attr_linear1", sizes.widths[3] + sizes.embedding, sizes.hidden)
        add(f"{_HEAD}.attr_linear2", sizes.hidden, sizes.attributes + 1)
    return result


def fold(
    kernel: np.ndarray, mean: np.ndarray, var: np.ndarray, gamma: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Folds the batch normalisation after a convolution without bias into the convolution.

    With f = gamma / sqrt(var + 1e-5), the new kernel is f * kernel and the new bias is
    beta - f * mean. Both are computed in float64. If the convolution has a bias, subtract the bias
    from `mean` first.

    Args:
      kernel: the kernel of the convolution, [..., out].
      mean, var: mean and variance of the normalisation, [out]. In Caffe the first two blobs of the
        layer BatchNorm have these numbers, multiplied by the number in the third blob. If the
        number in the third blob is 0, pass zeros.
      gamma, beta: scale and shift, [out]. In Caffe they are the two blobs of the layer Scale.

    Returns:
      The new kernel, of the shape of `kernel`, and the new bias [out], float32.
    """
    factor = gamma.astype(np.float64) / np.sqrt(var.astype(np.float64) + EPSILON)
    bias = beta - mean * factor
    return (kernel * factor).astype(np.float32), bias.astype(np.float32)


def write(
    directory: str | os.PathLike, arrays: Mapping[str, np.ndarray], card: Mapping[str, Any]
) -> None:
    """Writes a detector into a directory, for `load`: detector.npz and card.json.

    Args:
      directory: the directory to write; it need not exist. Earlier files are replaced.
      arrays: the weights with the names and shapes of `shapes`; they are written as float32.
      card: a dict about the detector, in which each key may be missing. `sizes` is a dict of the
        fields of `Sizes` that differ from the defaults. `classes` and `attributes` are lists of the
        names of classes and attributes, without the background. If a name has commas, only the part
        before the first comma is used. The other keys are only information: `source` and `licence`
        of the released weights, and `sha256` of the released file that was converted (not of
        detector.npz).

    Raises:
      ValueError: the arrays do not have the names and shapes of `shapes`.
    """
    _check(arrays, _sizes(card))
    files.make_directory(directory)
    ordered = {name: np.asarray(arrays[name], np.float32) for name in sorted(arrays)}
    files.write_npz(os.path.join(directory, WEIGHTS), **ordered)
    files.write_json(os.path.join(directory, CARD), dict(card))


def load(directory: str | os.PathLike) -> "Detector":
    """Reads a detector from a directory that `write` or tfcap.convert has written.

    Raises:
      ValueError: a file is missing or damaged, or the weights do not fit the sizes in the card.
    """
    card = files.read_json(os.path.join(directory, CARD), _REMEDY)
    names = list(shapes(_sizes(card)))
    return Detector(files.load_npz(os.path.join(directory, WEIGHTS), names, _REMEDY), card)


def _sizes(card: Mapping[str, Any]) -> Sizes:
    """Returns the sizes that a card states."""
    fields: dict[str, Any] = dict(card.get("sizes", {}))
    for key, value in fields.items():
        fields[key] = tuple(value) if isinstance(value, list) else value
    return Sizes(**fields)


def _check(arrays: Mapping[str, np.ndarray], sizes: Sizes) -> None:
    """Raises ValueError if the weights are not those of a detector of these sizes."""
    expected = shapes(sizes)
    for name in sorted({*expected, *arrays}):
        shape = tuple(arrays[name].shape) if name in arrays else None
        if shape != expected.get(name):
            fault = f"has the shape {shape}, but must have {expected.get(name)}"
            if shape is None:
                fault = "is missing"
            elif name not in expected:
                fault = "is not one of its weights"
            raise ValueError(
                f"The weights do not fit the detector: {name} {fault}. Convert the released file "
                f'again with tfcap.convert, or correct the entry "sizes" of {CARD} in the '
                "directory of the detector."
            )


# ---- the network --------------------------------------------------------------------------------


class Regions(NamedTuple):
    """The regions of a picture.

    R is the largest number of regions. Of the R rows of an array the first `count` are regions; the
    other rows are zeros. For B pictures each array has a further first axis of length B.

    Attributes:
      features: for each region a feature vector of F numbers, float32 [R, F], all at least 0.
      boxes: corners x1, y1, x2, y2 in pixels of the original picture, float32 [R, 4].
      count: number of regions, int32 []; 0 if the detector finds no box.
      classes: index of the most probable class in the list of classes, which has no background,
        int32 [R].
      class_scores: probability of this class, float32 [R].
      attributes: index of the most probable attribute in the list of attributes, which has no
        background, int32 [R]; 0 for a detector without attributes.
      attribute_scores: probability of this attribute, float32 [R].
    """

    features: tf.Tensor
    boxes: tf.Tensor
    count: tf.Tensor
    classes: tf.Tensor
    class_scores: tf.Tensor
    attributes: tf.Tensor
    attribute_scores: tf.Tensor


class Detector(tf.Module):
    """Finds regions in pictures and computes their features, with a Faster R-CNN.

    A detector has the methods of a `Backbone`, with two differences: `regions` takes the place of
    `extract`, and `boxes_in` returns divisors instead of boxes.

    Args:
      arrays: the weights, float32 arrays with the names and shapes of `shapes`.
      card: a dict about the detector, see `write`.

    Attributes:
      sizes: the sizes of the detector.
      feature_dim: width of a feature vector, F.
      num_regions: the largest number of regions, R.
      rounds: whether `regions` rounds the features to float16, the precision of stored features.

    Raises:
      ValueError: the arrays do not have the names and shapes of `shapes`.
    """

    # What is read of a backbone and of its network.
    backbone_name = DETECTOR
    crops = 1
    grid = None
    is_preset = True  # the weights are saved as a directory
    batch = 1  # pictures that are read at once

    def __init__(self, arrays: Mapping[str, np.ndarray], card: Mapping[str, Any]):
        super().__init__(name=DETECTOR)
        sizes = _sizes(card)
        _check(arrays, sizes)
        self.sizes = sizes
        # tf.Module would wrap a dict, and json of Python 3.13 refuses the wrapper.
        self.card = types.MappingProxyType(dict(card))
        self.weights = {
            name: tf.Variable(array, trainable=False, dtype=tf.float32, name=name)
            for name, array in arrays.items()
        }
        self.feature_dim = sizes.widths[-1]
        self.num_regions = min(sizes.boxes[1], sizes.proposals)
        self.image_size = sizes.short
        self.decoded_shape = [sizes.long, sizes.long, 4]
        self.model = self
        self.network = self
        self.rounds = True

    def save(self, path: str | os.PathLike) -> None:
        """Writes the detector into a directory, for `load`.

        The weights are written as they are now. The card is written as it was given. So its key
        `sha256` is still the SHA-256 of the released file.

        Args:
          path: the directory to write; it need not exist.
        """
        write(path, {name: v.numpy() for name, v in self.weights.items()}, self.card)

    def made_by(self, weights: str, digest: Digest) -> dict[str, Any]:
        """Returns the entry `backbone` of dataset.json, which `Backbone.from_fingerprint` reads.

        Args:
          weights: name of the directory to which `saved.save` wrote the detector.
          digest: the digest that `saved.save` returned when it wrote that directory.
        """
        made = {"name": DETECTOR, "grid": None, "image_size": self.image_size, "weights": weights}
        return made | {"weights_sha256": digest.sha256, "files": digest.files}

    def boxes_in(self, height: int, width: int) -> np.ndarray:
        """Returns what a box is divided by to turn pixels into fractions (0..1) of the picture.

        A detector finds other boxes in each picture, so that it cannot return the boxes themselves,
        as `Backbone.boxes_in` does for the cells of a grid.

        Args:
          height: height of the picture in pixels.
          width: width of the picture in pixels.

        Returns:
          float32 [4]: width, height, width and height, for the corners x1, y1, x2 and y2.
        """
        return np.array([width, height] * 2, np.float32)

    def decode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Decodes a picture file and resizes the picture for `regions`.

        Args:
          image_bytes: the bytes of the file, string [].

        Returns:
          float32 [long, long, 4], where `long` is that of `Sizes`; see `resize`.

        Raises:
          tf.errors.InvalidArgumentError: the file is damaged.
        """
        return self.resize(pictures.decode(image_bytes))

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes a picture for `regions`, and pads it so that pictures of all sizes form a batch.

        Args:
          image: an upright picture, uint8 [height, width, 3], RGB.

        Returns:
          float32 [long, long, 4], where `long` is that of `Sizes`. The first three channels are the
          pixels as `resized` returns them. The fourth channel is the factor by which the picture
          was resized, the same at every pixel. All four channels are 0 in the padding, which is
          below and to the right.
        """
        pixels, scale = resized(image, self.sizes.short, self.sizes.long)
        scales = tf.fill(tf.concat([tf.shape(pixels)[:2], [1]], 0), tf.cast(scale, tf.float32))
        missing = self.sizes.long - tf.shape(pixels)[:2]
        pads = tf.stack([[0, missing[0]], [0, missing[1]], [0, 0]])
        padded = tf.pad(tf.concat([pixels, scales], -1), pads)
        return tf.ensure_shape(padded, self.decoded_shape)

    def regions(self, images: tf.Tensor) -> Regions:
        """Finds the regions of B pictures.

        The pictures are computed one after the other, each without its padding, because
        convolutions would mix the padding into the cells at the border.

        Args:
          images: the pictures as `resize` returns them, float32 [B, long, long, 4], where `long` is
            that of `Sizes`. A picture of zeros alone has no regions.

        Returns:
          The regions; each array has a further first axis of length B.
        """

        def detected(image: tf.Tensor) -> Regions:
            height = tf.math.count_nonzero(image[:, 0, 3], dtype=tf.int32)
            width = tf.math.count_nonzero(image[0, :, 3], dtype=tf.int32)
            # A file that a server could not decode has no pixel, and gets no proposal.
            scale = tf.where(height > 0, image[0, 0, 3], 1e6)
            height, width = (tf.maximum(side, _SMALLEST) for side in (height, width))
            return self.detect(image[:height, :width, :3], scale)

        rows = self.num_regions
        signature = Regions(
            features=tf.TensorSpec([rows, self.feature_dim]),
            boxes=tf.TensorSpec([rows, 4]),
            count=tf.TensorSpec([], tf.int32),
            classes=tf.TensorSpec([rows], tf.int32),
            class_scores=tf.TensorSpec([rows]),
            attributes=tf.TensorSpec([rows], tf.int32),
            attribute_scores=tf.TensorSpec([rows]),
        )
        regions = tf.map_fn(detected, images, parallel_iterations=1, fn_output_signature=signature)
        if not self.rounds:
            return regions
        return regions._replace(features=record.rounded(regions.features))

    def fractions(self, images: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
        """Turns boxes that `regions` found into fractions (0..1) of their pictures.

        Args:
          images: the pictures that `regions` read, float32 [B, long, long, 4].
          boxes: boxes in pixels, float32 [B, R, 4].

        Returns:
          float32 [B, R, 4]. `resize` rounds the sides of a picture to whole pixels. If it makes the
          picture smaller, the sides may therefore be a pixel longer or shorter here than they were.
        """
        shown = images[..., 3]  # the scale where the picture is, 0 beside it
        sides = [tf.math.count_nonzero(shown[:, 0], 1), tf.math.count_nonzero(shown[:, :, 0], 1)]
        sides = tf.cast(tf.stack(sides * 2, 1), tf.float32)
        sides = tf.maximum(tf.round(sides / tf.maximum(shown[:, 0, :1], 1e-6)), 1.0)
        return tf.clip_by_value(boxes / sides[:, None], 0.0, 1.0)

    def bulk_extractor(self) -> tf.types.experimental.PolymorphicFunction:
        """Returns a compiled function that does what `regions` does."""
        signature = [tf.TensorSpec([None, *self.decoded_shape])]
        return tf.function(self.regions, input_signature=signature, autograph=False)

    def mask(self, features: tf.Tensor) -> tf.Tensor:
        """Returns which rows of features are regions and not padding.

        The rows of padding are zeros. A region does not have only zeros, because each of its
        features is the mean of 14 x 14 numbers after a ReLU.

        Args:
          features: float32 [B, R, F], R rows of F numbers for each of B pictures.

        Returns:
          bool [B, R], True for a region.
        """
        return tf.reduce_any(features > 0, -1)

    def objects(self, regions: Regions, row: int, size: Sequence[int]) -> dict[str, list]:
        """Returns the classes and attributes of the regions of one picture, for its record.

        Args:
          regions: the result of `regions` for several pictures.
          row: index of the picture among them.
          size: width and height of the picture in pixels.

        Returns:
          A dict with the key `image/size`, whose value is `size` as a list. If the detector's
          card.json has the names of classes, the dict also has `objects/classes` and
          `objects/classes/scores`: a name and a probability for each region. If card.json has the
          names of attributes, the dict has `objects/attributes` and `objects/attributes/scores`,
          too.
        """
        count = int(regions.count[row])
        result: dict[str, list] = {"image/size": list(size)}
        kinds = {
            "classes": (regions.classes, regions.class_scores),
            "attributes": (regions.attributes, regions.attribute_scores),
        }
        for kind, (ids, scores) in kinds.items():
            if names := self.card.get(kind):  # synonyms have commas between them
                first = [names[i].split(",")[0] for i in ids[row, :count].numpy()]
                result[f"objects/{kind}"] = first
                result[f"objects/{kind}/scores"] = scores[row, :count].numpy().tolist()
        return result

    def detect(self, pixels: tf.Tensor, scale: tf.Tensor) -> Regions:
        """Finds the regions of one picture.

        Args:
          pixels: the picture as `resized` returns it, float32 [height, width, 3].
          scale: the factor by which the picture was resized, float32 [].

        Returns:
          The regions; boxes are in pixels of the original picture.
        """
        cells = self._trunk(pixels[tf.newaxis])
        rois, number = self._proposals(cells, tf.shape(pixels)[:2], scale)
        features = self._features(cells, rois, number)
        probabilities, attributes = self._heads(features)
        boxes = rois / scale  # float32, and not clipped again
        confidence = confidences(boxes, probabilities[:, 1:], number)
        least, most = self.sizes.boxes
        chosen, count = choose(confidence, number, least, most)
        real = tf.range(self.num_regions) < count

        def rows(values: tf.Tensor) -> tf.Tensor:
            mask = tf.reshape(real, [-1, *[1] * (values.shape.rank - 1)])
            return tf.where(mask, tf.gather(values, chosen), tf.zeros([], values.dtype))

        def best(scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            scores = scores[:, 1:]  # without the background
            return rows(tf.argmax(scores, 1, tf.int32)), rows(tf.reduce_max(scores, 1))

        classes, class_scores = best(probabilities)
        best_attributes, attribute_scores = best(attributes)
        return Regions(
            rows(features),
            rows(boxes),
            count,
            classes,
            class_scores,
            best_attributes,
            attribute_scores,
        )

    def _layer(self, name: str, x: tf.Tensor, stride: int = 1, dilation: int = 1) -> tf.Tensor:
        """Applies a convolution or an affine map; the sides of the output are ceil(n / stride)."""
        weight, bias = (tf.cast(self.weights[f"{name}.{n}"], x.dtype) for n in ("weight", "bias"))
        if len(weight.shape) == 2:
            return tf.matmul(x, weight) + bias
        return tf.nn.conv2d(x, weight, stride, "SAME", dilations=dilation) + bias

    def _block(self, name: str, x: tf.Tensor, stride: int, dilation: int) -> tf.Tensor:
        """A bottleneck block. Its stride is in the 1 x 1 convolutions, as in Caffe's ResNet."""
        y = tf.nn.relu(self._layer(f"{name}.conv1", x, stride))
        y = tf.nn.relu(self._layer(f"{name}.conv2", y, dilation=dilation))
        y = self._layer(f"{name}.conv3", y)
        if f"{name}.shortcut.weight" in self.weights:
            x = self._layer(f"{name}.shortcut", x, stride)
        return tf.nn.relu(x + y)

    def _trunk(self, x: tf.Tensor) -> tf.Tensor:
        """Computes res4 of pictures [1, H', W', 3]: [1, h, w, widths[2]]."""
        name = "backbone.stem.conv1"
        # "SAME" would pad 2 and 3 pixels where Caffe pads 3 and 3.
        x = tf.pad(x, [[0, 0], [3, 3], [3, 3], [0, 0]])
        x = tf.nn.conv2d(x, self.weights[f"{name}.weight"], 2, "VALID")
        x = tf.nn.relu(x + self.weights[f"{name}.bias"])
        # Caffe's pooling has no padding, and its last window may reach one cell beyond the map.
        beyond = (tf.shape(x)[1:3] + 1) % 2
        x = tf.pad(x, tf.stack([[0, 0], [0, beyond[0]], [0, beyond[1]], [0, 0]]))
        x = tf.nn.max_pool2d(x, 3, 2, "VALID")
        for stage in (2, 3, 4):
            for block in range(self.sizes.blocks[stage - 2]):
                stride = 2 if stage > 2 and block == 0 else 1
                x = self._block(f"backbone.res{stage}.{block}", x, stride, 1)
        return x

    def _proposals(
        self, cells: tf.Tensor, size: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the proposals [P, 4] in pixels of H' and W', best first, and their number []."""
        milvlg = self.sizes.form == "milvlg"
        x = tf.nn.relu(self._layer(f"{_RPN}.conv", cells))
        logits = tf.reshape(self._layer(f"{_RPN}.objectness_logits", x), [-1, 2, len(ANCHORS)])
        scores = tf.reshape(tf.nn.softmax(logits, 1)[:, 1], [-1])
        deltas = tf.reshape(self._layer(f"{_RPN}.anchor_deltas", x), [-1, 4])
        boxes = decoded(anchors(cells), deltas, np.log(1000 / 16) if milvlg else None)
        limit = tf.cast(tf.stack([size[1], size[0]] * 2) - 1, tf.float32)
        boxes = tf.clip_by_value(boxes, 0.0, limit)
        sides = boxes[:, 2:] - boxes[:, :2] + 1.0
        least = _LEAST * scale
        large = tf.reduce_all(sides > least if milvlg else sides >= least, 1)
        # The order of equal scores is open in Caffe; here it is that of the anchors.
        scores = tf.where(large, scores, -1.0)
        scores, order = tf.math.top_k(scores, tf.minimum(self.sizes.candidates, tf.size(scores)))
        boxes = tf.gather(boxes, order)
        kept, number = suppressed(boxes, scores, self.sizes.proposals, milvlg)
        return tf.gather(boxes, kept), number

    def _features(self, cells: tf.Tensor, rois: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Pools proposals [P, 4] and runs res5 on chunks of them: float32 [P, F].

        Only the first `number` [] proposals are real; chunks without a real one are zeros.
        """
        maxima = running_maxima(cells[0])
        size = tf.shape(cells)[1:3]
        proposals = self.sizes.proposals
        chunk = min(_CHUNK, proposals)
        chunks = -(-proposals // chunk)
        padded = tf.pad(rois, [[0, chunks * chunk - proposals], [0, 0]])

        def step(index: tf.Tensor, done: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            some = tf.reshape(padded, [chunks, chunk, 4])[index]
            x = tf.cast(roi_pool(maxima, size, some, self.sizes.long), self.sizes.dtype)
            for block in range(self.sizes.blocks[3]):
                x = self._block(f"roi_heads.res5.{block}", x, 1, 2)
            return index + 1, done.write(index, tf.reduce_mean(tf.cast(x, tf.float32), [1, 2]))

        features = tf.TensorArray(tf.float32, chunks, element_shape=[chunk, self.feature_dim])
        _, features = tf.while_loop(
            lambda index, _: index * chunk < number, step, (0, features), parallel_iterations=1
        )
        return tf.reshape(features.stack(), [chunks * chunk, self.feature_dim])[:proposals]

    def _heads(self, features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the probabilities of classes [P, 1 + C] and of attributes [P, 1 + K]."""
        classes = tf.nn.softmax(self._layer(f"{_HEAD}.cls_score", features))
        if not self.sizes.attributes:
            return classes, tf.zeros([self.sizes.proposals, 2])
        # The class whose vector the head reads may be the background.
        vectors = tf.gather(self.weights[f"{_HEAD}.cls_embed.weight"], tf.argmax(classes, 1))
        x = tf.nn.relu(self._layer(f"{_HEAD}.attr_linear1", tf.concat([features, vectors], 1)))
        return classes, tf.nn.softmax(self._layer(f"{_HEAD}.attr_linear2", x))


# ---- picture ------------------------------------------------------------------------------------


def resized(image: tf.Tensor, short: int, long: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Resizes a picture as py-faster-rcnn does with OpenCV: bilinear, without antialiasing.

    Positions along both sides are scaled by the same factor, even though the new sides are rounded
    to whole pixels. `tf.image.resize` instead scales each side by its rounded size divided by its
    old size. Positions are computed in float64: with float32 a pixel value in 0..255 would be off
    by up to 0.02.

    Args:
      image: uint8 [height, width, 3], RGB.
      short: pixels along the shorter side of the result. It has fewer if otherwise the longer side
        would have more than `long`.
      long: largest number of pixels along the longer side.

    Returns:
      The picture, float32 [new height, new width, 3], and the factor by which it was resized,
      float64 []. The channels are blue, green and red in 0..255, minus the constants 102.9801,
      115.9465 and 122.7717.
    """
    size = tf.cast(tf.shape(image)[:2], tf.float64)
    scale = short / tf.reduce_min(size)
    largest = tf.reduce_max(size)
    scale = tf.where(tf.round(scale * largest) > long, long / largest, scale)
    target = tf.maximum(tf.cast(tf.round(size * scale), tf.int32), _SMALLEST)

    def neighbours(axis: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        position = (tf.cast(tf.range(target[axis]), tf.float64) + 0.5) / scale - 0.5
        first = tf.floor(position)
        last = tf.shape(image)[axis] - 1
        low, high = (tf.clip_by_value(tf.cast(first, tf.int32) + i, 0, last) for i in (0, 1))
        return low, high, tf.cast(position - first, tf.float32)

    top, bottom, down = neighbours(0)
    left, right, along = neighbours(1)
    rows = tf.gather(image, tf.concat([top, bottom], 0))  # uint8, so that large pictures fit
    sides = [
        tf.cast(
            tf.cast(tf.gather(rows, columns, axis=1)[..., ::-1], tf.float64) - _MEAN, tf.float32
        )
        for columns in (left, right)
    ]
    mixed = sides[0] * (1 - along[:, None]) + sides[1] * along[:, None]
    upper = mixed[: target[0]]
    lower = mixed[target[0] :]
    return upper * (1 - down[:, None, None]) + lower * down[:, None, None], scale
