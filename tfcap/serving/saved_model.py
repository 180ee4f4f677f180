"""The functions that a server calls (image bytes or features in, captions out), and their export.

A server puts requests of several clients into one batch. An error would fail all of these requests.
So each row has a status, and a bad row does not affect the others.

Letters: B images, K beams, R regions, F feature width, T `max_length`.
"""

import os
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.clips import Clips, from_fingerprint
from tfcap.backbones.detector import Detector
from tfcap.backbones.side_by_side import Backbones
from tfcap.backbones.views import Views
from tfcap.data.pictures import claimed_pixels, refusals
from tfcap.data.tokens import Vocab
from tfcap.decoding.confidence import Confidence
from tfcap.decoding.search import Search
from tfcap.images import SERVED_PIXELS
from tfcap.layers import precision
from tfcap.models.captioner import Captioner
from tfcap.runs.run import Run

OK = "ok"
NO_REGION = "no region is found: the picture is too small"
SIGNATURES = ("serving_default", "features")
_LEAST_INFINITE = 65520.0  # the smallest number that becomes infinite in half precision
AnyBackbone = Backbone | Backbones | Clips | Detector | Views
Signature: TypeAlias = tf.types.experimental.ConcreteFunction  # a function of a SavedModel
_PARALLEL = 4  # files decoded at once: 50 million pixels that are turned upright take 0.5 GB


class CaptionServer(tf.Module):
    """The functions of a server that captions pictures or features, as a module to export.

    `tfcap.caption` calls the functions and `tfcap.export` saves them, so that both give the same
    captions. They use only TensorFlow's own operations, so that a server needs nothing else.

    Args:
      model: the captioner, with restored weights.
      vocab: the vocabulary of the captioner.
      search: the search that finds the captions.
      backbone: the network that turns pictures into features; `Clips` for a model of clips, `Views`
        for one of images with several pictures. None for a model of ready-made features, which
        reads no pictures.
      max_regions: largest number of regions of an image, as in training; further regions are cut
        off. None uses all regions.
      max_pixels: largest number of pixels of a picture; a larger picture gets no caption. Of a GIF
        file the pixels of one frame count.
      confidence: estimates the probability that a caption is usable; None estimates nothing.

    Attributes:
      frames: number of frames of a clip that the model reads, int32 [], a variable so that an
        export contains it; None for a model of still pictures.
    """

    def __init__(
        self,
        model: Captioner,
        vocab: Vocab,
        search: Search,
        backbone: AnyBackbone | None = None,
        max_regions: int | None = None,
        max_pixels: int = SERVED_PIXELS,
        confidence: Confidence | None = None,
    ):
        super().__init__(name="captioner")
        # Of what Keras tracks, a SavedModel gets copies, and TensorFlow's session loader, which TF
        # Serving uses, restores the copies only. Therefore the networks are hidden in a plain
        # object here, and `signatures` tracks the variables that the graphs read.
        self._hidden = types.SimpleNamespace(model=model, backbone=backbone)
        self.model_variables = [variable.value for variable in model.variables]
        self.read_variables: list[tf.Variable] = []
        self.vocab = vocab
        self.search = search
        self.max_regions = max_regions
        self.max_pixels = max_pixels
        self.confidence = confidence
        self.frames: tf.Variable | None = None
        if isinstance(backbone, Clips):
            self.frames = tf.Variable(backbone.frames, trainable=False, name="frames")

    @property
    def model(self) -> Captioner:
        """The captioner, which turns features into captions."""
        return self._hidden.model

    @property
    def backbone(self) -> AnyBackbone | None:
        """The network that turns pictures into features; None if the model reads no pictures."""
        return self._hidden.backbone

    @property
    def views(self) -> int:
        """The largest number of pictures of an image that the model reads, P; usually 1."""
        return self.backbone.most if isinstance(self.backbone, Views) else 1

    def require_backbone(self) -> AnyBackbone:
        """Returns the network that turns pictures into features.

        Raises:
          ValueError: there is none, because the model reads ready-made features.
        """
        if self.backbone is None:
            raise ValueError(
                "This model reads ready-made features, not pictures. Call from_features with them."
            )
        return self.backbone

    def from_features(
        self,
        features: tf.Tensor,
        num_regions: tf.Tensor,
        seed: tf.Tensor | None = None,
        boxes: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Finds the captions of images from their features, as a graph function.

        Args:
          features: float32 [B, R, F], for B images of up to R regions. Images with fewer regions
            are padded with any values.
          num_regions: number of regions of each image without the padding, 1 to R, int32 [B].
          seed: random seed of each image, int64 [B], if the search draws captions at random; else
            None.
          boxes: float32 [B, R, 4], the corners x1, y1, x2, y2 of the regions as fractions (0..1) of
            the picture, which some systems read; zeros, or None, if they are not known.

        Returns:
          A dict. `captions` string [B, K]: the K captions of each image, best first. `scores`
          float32 [B, K]: the sums of natural log-probabilities of the words; divided by a measure
          of length if `length_power` is not 0; with `order=consensus` the mean CIDEr-D against the
          other samples of the image. `tokens` int32 [B, K, T]: the word ids, T for each caption.
          `log_probs` float32 [B, K, T]: the natural log-probability of each id; 0 at padding.
          `confidences` float32 [B, K]: the estimated probability that each caption is
          usable; only of a calibrated run. `status` string [B]: "ok", or why an image has no
          captions; then its captions are empty, and its numbers 0.
        """
        features, num_regions, status = _check_features(features, num_regions)
        mask = tf.sequence_mask(num_regions, tf.shape(features)[1])
        if self.max_regions:
            features = features[:, : self.max_regions]
            mask = mask[:, : self.max_regions]
        inputs = {"features": features, "mask": mask}
        if boxes is not None:
            inputs["boxes"] = boxes[:, : self.max_regions]
        context = self.model.encode(inputs)
        found = self.search(self.model, context, seed)
        captions = self.vocab.detokenize(found.tokens)
        results = {
            "captions": captions,
            "scores": found.scores,
            "tokens": found.tokens,
            "log_probs": found.word_log_probs,
        }
        if self.confidence is not None:
            results["confidences"] = self.confidence(features, mask, found)
        return _blank(results, status)

    def regions(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the features of pictures, and the boxes that a detector found.

        Args:
          images: a batch of pictures that the backbone's `decode` returned.

        Returns:
          The features float32 [B, R, F], for R regions; if a detector finds fewer regions in a
          picture, the others are zeros. The boxes float32 [B, R, 4], x1, y1, x2, y2 as fractions
          (0..1) of the picture; None for a backbone with a fixed grid of regions. For images with
          several pictures see `Views.regions`.
        """
        backbone = self.require_backbone()
        if isinstance(backbone, Views):
            return backbone.regions(images)
        if not isinstance(backbone, Detector):
            return backbone.extract(images), None
        regions = backbone.regions(images)
        return regions.features, backbone.fractions(images, regions.boxes)

    def inputs(self, features: tf.Tensor, boxes: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns what the captioner reads, the argument of `Captioner.encode`.

        Args:
          features: the features that `regions` returns, [B, R, F].
          boxes: the boxes that `regions` returns, or None.
        """
        inputs = {"features": features, "mask": self.mask(features)}
        if boxes is not None and isinstance(self.backbone, Detector):
            inputs["boxes"] = boxes
        return inputs

    def mask(self, features: tf.Tensor) -> tf.Tensor:
        """Tells which regions are real and which are padding: bool [B, R], True for real ones.

        Args:
          features: the features that `regions` returns, [B, R, F].
        """
        if isinstance(self.backbone, Detector | Views):
            return self.backbone.mask(features)
        return tf.ones(tf.shape(features)[:2], tf.bool)

    def from_regions(
        self,
        features: tf.Tensor,
        seed: tf.Tensor | None = None,
        boxes: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Finds the captions of images from the features and the boxes that `regions` returns.

        Args:
          features: the features, float32 [B, R, F].
          seed: as in `from_features`.
          boxes: the boxes, or None.

        Returns:
          The results of `from_features`. An image without regions has a `status` that says so.
        """
        inputs = self.inputs(features, boxes)
        counts = tf.reduce_sum(tf.cast(inputs["mask"], tf.int32), 1)
        results = self.from_features(features, counts, seed, inputs.get("boxes"))
        return results | {"status": tf.where(counts > 0, results["status"], NO_REGION)}

    def from_bytes(
        self, image_bytes: tf.Tensor, seed: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Finds the captions of picture files, as a graph function.

        A model of clips reads frames of the whole GIF file, other models its first frame.

        Args:
          image_bytes: the bytes of the B files, string [B]. For a model of images with up to P
            pictures: string [B, P], with an empty text in the place of a missing picture.
          seed: random seed of each picture, int64 [B], if the search draws captions at random; else
            None.

        Returns:
          The results of `from_features`. A file that cannot be decoded has a `status` that says
          why.
        """
        backbone = self.require_backbone()
        if isinstance(backbone, Views):
            images, status = _decode_views(image_bytes, backbone, self.max_pixels)
        else:
            images, status = decode(
                image_bytes, backbone.decode, backbone.decoded_shape, self.max_pixels
            )
        features, boxes = self.regions(images)
        results = self.from_regions(features, seed, boxes)
        status = tf.where(status == OK, results.pop("status"), status)
        return _blank(results, status)

    def signatures(self) -> dict[str, Signature]:
        """Traces the functions of the SavedModel; returns them by the names that requests use.

        `features` is `from_features`. `serving_default` is `from_bytes`; if the model reads
        ready-made features, it is `from_features`, too. If the search draws captions at random,
        both have the further input `seed` int64 [B]; `features` has `boxes` if the model reads
        them.
        """
        seed = {"seed": tf.TensorSpec([None], tf.int64, "seed")} if self.search.samples else {}
        boxes = {}
        if self.model.reads_boxes:
            boxes["boxes"] = tf.TensorSpec([None, None, 4], tf.float32, "boxes")
        features = tf.function(self.from_features, autograph=False).get_concrete_function(
            features=tf.TensorSpec([None, None, self.model.feature_dim], tf.float32, "features"),
            num_regions=tf.TensorSpec([None], tf.int32, "num_regions"),
            **boxes,
            **seed,
        )
        self.read_variables = list(features.variables)
        if self.backbone is None:
            return {"serving_default": features, "features": features}
        shape = [None, self.views] if self.views > 1 else [None]
        images = tf.function(self.from_bytes, autograph=False).get_concrete_function(
            image_bytes=tf.TensorSpec(shape, tf.string, "image_bytes"), **seed
        )
        variables = (*features.variables, *images.variables)
        self.read_variables = list({id(variable): variable for variable in variables}.values())
        return {"serving_default": images, "features": features}


def server(
    run: Run, *, data_dir: str | None = None, max_pixels: int = SERVED_PIXELS
) -> CaptionServer:
    """Makes the `CaptionServer` of a training run.

    Args:
      run: the run.
      data_dir: directory of prepared data with the document frequencies for the decoding option
        `order=consensus`; None looks in the directory of the run, then in the data that it was
        trained on.
      max_pixels: largest number of pixels of a picture; a larger picture gets no caption.
    """
    backbone: AnyBackbone | None = run.backbone
    if backbone is None and run.fingerprint["backbone"] is not None:
        with precision.using(precision.of_frozen(run.model.dtype_policy)):
            backbone = from_fingerprint(run.fingerprint, run.directory)
    elif (views := run.fingerprint.get("views", 1)) > 1 and isinstance(backbone, Backbones):
        backbone = Views(backbone, views)
    search = run.search(data_dir=data_dir)
    return CaptionServer(
        run.model, run.vocab, search, backbone, run.max_regions, max_pixels, run.confidence
    )


# ---- rows of a batch ----------------------------------------------------------------------------


def decode(
    contents: tf.Tensor,
    decoder: Callable[..., tf.Tensor],
    shape: Sequence[int],
    most_pixels: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes picture files, as a graph function; a file that is bad or too large becomes zeros.

    The files are read as a `tf.data.Dataset` that ignores errors, because no other operation can go
    on after an error.

    Args:
      contents: the bytes of the B files, string [B].
      decoder: a function that decodes one file, such as `Backbone.decode`.
      shape: shape of the picture that `decoder` returns.
      most_pixels: largest number of pixels of a picture.

    Returns:
      The pictures float32 [B, *shape], and the status of each file, string [B]: "ok", or why it was
      not decoded.
    """
    with tf.device("/CPU:0"):
        size = tf.size(contents, tf.int64)
        positive = tf.debugging.assert_positive(size, "a request must hold at least one image")
        with tf.control_dependencies([positive] if positive is not None else []):
            contents = tf.identity(contents)

        def read(number, content):
            pixels = claimed_pixels(content)
            fits = pixels <= most_pixels
            image = tf.cond(fits, lambda: decoder(content), lambda: tf.zeros(shape))
            return number, pixels, tf.ensure_shape(image, shape)

        rows = tf.data.Dataset.from_tensor_slices((tf.range(size), contents))
        rows = rows.map(read, num_parallel_calls=_PARALLEL, deterministic=False).ignore_errors()
        # A further row, so that the batch is not empty if all files are bad.
        last = tf.data.Dataset.from_tensors((size, tf.constant(0, tf.int64), tf.zeros(shape)))
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        rows = rows.concatenate(last).batch(size + 1).with_options(options)
        numbers, pixels, images = rows.get_single_element()
        whole = tf.concat([[size + 1], tf.constant(shape, tf.int64)], 0)
        images = tf.scatter_nd(numbers[:, None], images, whole)[:-1]
        # A file that failed has -1 pixels.
        claimed = tf.scatter_nd(numbers[:, None], pixels + 1, [size + 1])[:-1] - 1
        too_many = tf.strings.join(
            ["too many pixels: ", tf.strings.as_string(claimed), f", at most {most_pixels}"]
        )
        status = tf.where(
            claimed > most_pixels, too_many, tf.where(claimed < 0, refusals(contents), OK)
        )
        return tf.ensure_shape(images, [None, *shape]), status


def _decode_views(
    contents: tf.Tensor, backbone: Views, most_pixels: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes the pictures of images; a bad picture makes the whole row bad.

    Args:
      contents: the bytes of the files, string [B, P].
      backbone: the network, which decodes them.
      most_pixels: largest number of pixels of a picture.

    Returns:
      The images float32 [B, *decoded_shape], and the status of each image, string [B].
    """
    inner = backbone.backbone
    images, status = decode(
        tf.reshape(contents, [-1]), inner.decode, inner.decoded_shape, most_pixels
    )
    images = tf.reshape(images, [-1, *backbone.decoded_shape])
    # The first picture of an image must be there.
    missing = (tf.strings.length(contents) == 0) & (tf.range(backbone.most) > 0)
    status = tf.where(missing, OK, tf.reshape(status, tf.shape(contents)))
    first_bad = tf.argmax(tf.cast(status != OK, tf.int32), 1)
    return backbone.without(images, missing), tf.gather(status, first_bad, batch_dims=1)


def _check_features(
    features: tf.Tensor, num_regions: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sets the padding of features to zero; an image with bad features becomes a region of zeros.

    Args:
      features: float32 [B, R, F].
      num_regions: number of real regions of each image, int32 [B].

    Returns:
      The features, the number of regions, and the status of each image, string [B].
    """
    shape = tf.shape(features)
    num_regions = tf.convert_to_tensor(num_regions)
    checks = [
        tf.debugging.assert_positive(shape[0], "a request must hold at least one image"),
        tf.debugging.assert_positive(shape[1], "features must hold at least one region"),
        tf.debugging.assert_equal(
            tf.shape(num_regions)[0], shape[0], "num_regions must have one count per image"
        ),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        mask = tf.sequence_mask(num_regions, shape[1])
    features = tf.where(mask[..., None], features, 0.0)
    # `prepare` stores half precision, so a model has seen no larger number. NaN is never smaller.
    finite = tf.reduce_all(tf.abs(features) < _LEAST_INFINITE, [1, 2])
    count = tf.strings.as_string(num_regions)
    status = tf.where(finite, OK, "features must be finite, and at most 65504 in size")
    status = tf.where(
        num_regions > shape[1],
        tf.strings.join(["num_regions must be at most the regions given, not ", count]),
        status,
    )
    status = tf.where(
        num_regions < 1,
        tf.strings.join(["num_regions must be at least 1, not ", count]),
        status,
    )
    good = status == OK
    features = tf.where(good[:, None, None], features, 0.0)
    return features, tf.where(good, num_regions, 1), status


def _blank(results: dict[str, tf.Tensor], status: tf.Tensor) -> dict[str, tf.Tensor]:
    """Adds `status` string [B] to the results [B, ...], and clears the bad rows."""
    good = status == OK
    blanked: dict[str, tf.Tensor] = {"status": status}
    for name, value in results.items():
        rows = tf.reshape(good, [-1, *[1] * (value.shape.rank - 1)])
        blanked[name] = tf.where(rows, value, tf.zeros([], value.dtype))
    return blanked


# ---- SavedModel ---------------------------------------------------------------------------------


def export(
    served: CaptionServer,
    export_dir: str,
    complete: Callable[[str, dict[str, Signature]], None] | None = None,
) -> str:
    """Writes the next version of a SavedModel, so that a server never loads an incomplete version.

    TF Serving loads any directory whose name is a number as soon as it appears. Therefore the
    SavedModel is written under another name, loaded and tried, and then renamed.

    Args:
      served: the functions to export.
      export_dir: the directory of all versions.
      complete: a function that is called before the directory is renamed. It gets the path of the
        directory and the loaded functions by the name of their signature, and may add files. None
        adds nothing.

    Returns:
      The path of the version, `export_dir/<number>`.

    Raises:
      ValueError: `export_dir` is not a local path, or the written SavedModel does not caption, see
        `call_signatures`.
      OSError: the files could not be written, for example to a full disk.
    """
    if files.is_remote(export_dir):
        raise ValueError(f"{export_dir} is not a local path. Export to a local one and copy it.")
    os.makedirs(export_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=export_dir) as folder:
        temporary = os.path.join(folder, "version")  # the other one is for its owner alone
        signatures = served.signatures()
        try:
            tf.saved_model.save(served, temporary, signatures=signatures)
        except tf.errors.OpError as error:  # TensorFlow raises several types for a full disk
            raise OSError(
                f"The export could not be written to {export_dir}: {error.message}. Make room on "
                "the disk, or choose another directory."
            ) from error
        loaded = tf.saved_model.load(temporary)
        call_signatures(loaded.signatures)
        if complete is not None:
            complete(temporary, dict(loaded.signatures))
        number = max(files.versions(export_dir), default=0) + 1
        target = os.path.join(export_dir, str(number))
        os.rename(temporary, target)
        return target


def picture() -> bytes:
    """Returns a small JPEG file for tests: a red disc on a blue ground, 64 x 64 pixels."""
    y, x = np.mgrid[:64, :64]
    disc = ((x - 32) ** 2 + (y - 32) ** 2 < 20**2)[..., None]
    pixels = np.where(disc, [220, 40, 40], [40, 60, 200]).astype(np.uint8)
    return tf.io.encode_jpeg(pixels, quality=95).numpy()


def _test_pictures(spec: tf.TensorSpec | None) -> tf.Tensor:
    """Returns the picture of `picture` as a batch of one image; its other pictures are missing."""
    if spec is None or spec.shape.rank < 2:
        return tf.constant([picture()])
    return tf.constant([[picture(), *[b""] * (spec.shape[1] - 1)]])


def call_signatures(signatures: Mapping[str, Signature]) -> dict[str, dict[str, tf.Tensor]]:
    """Calls the functions of a SavedModel once, to see whether they work.

    Functions of pictures get the picture of `picture`, functions of features get zeros.

    Args:
      signatures: the functions by the name of their signature.

    Returns:
      The outputs of each function, by the name of its signature.

    Raises:
      ValueError: a signature is missing, an input gets no caption, or a score is not finite.
    """
    results = {}
    for name in SIGNATURES:
        if name not in signatures:
            raise ValueError(f"The SavedModel has no signature {name}. Export the run again.")
        described = tf.nest.flatten(signatures[name].structured_input_signature)
        specs = {spec.name: spec for spec in described if isinstance(spec, tf.TensorSpec)}
        inputs = {
            "image_bytes": _test_pictures(specs.get("image_bytes")),
            "features": tf.zeros([1, 2, specs["features"].shape[-1] if "features" in specs else 0]),
            "num_regions": tf.constant([2]),
            "boxes": tf.zeros([1, 2, 4]),
            "seed": tf.constant([1], tf.int64),
        }
        result = results[name] = signatures[name](**{key: inputs[key] for key in specs})
        [status] = result.get("status", tf.constant([OK])).numpy()
        if status != OK.encode() or not bool(tf.reduce_all(tf.math.is_finite(result["scores"]))):
            raise ValueError(
                f"The exported model does not caption a test input: {name} gives the scores "
                f"{result['scores'].numpy()} and the status '{status.decode()}'. If scores are "
                "NaN or infinite, the model has such weights, or a layer divides by zero: choose "
                "an earlier one with `checkpoint` of tfcap.export."
            )
    return results
