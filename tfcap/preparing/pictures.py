"""Reads pictures or clips of a data set and extracts their features, for `prepare`.

Letters: N frames of a clip, R regions, F feature width, H and W pixels of a picture.

`Pictures` here and `ready.ReadyFeatures` have the same interface: `dim` (F), `image_dim` (width F2
of the vector of a whole image, or None without such vectors), `regions` (R of a typical image), and
`read`, which yields an `Extracted` per image, in order. An unusable image gives an `Extracted` with
a reason, not an exception, because large data sets have a few unusable images.
"""

import collections
import concurrent.futures
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.detector import Detector
from tfcap.data import clips, pictures
from tfcap.images import has_pages, is_animated, readable, refusal
from tfcap.preparing import spelling
from tfcap.preparing.sources.entry import Entry, check_size

_FRAMES = 64  # frames of clips that the network reads at once
_MOST_THREADS = 4  # that decode clips: the pixels of one GIF file may take a gigabyte
# Of a picture that is stored in its record.
_MOST_KEPT = 2**17  # bytes of a file that is kept as it is
_MARGIN = 8 / 7  # a backbone that crops reads 256 pixels for its 224
_LONGEST = 4  # times the shorter side
_QUALITY = 95  # of JPEG
_PNG = b"\x89PNG\r\n\x1a\n"  # how a file begins; byte 24 is the number of bits
_DARK = 64  # of 256; what 14 of 16 bits reach


class Extracted(NamedTuple):
    """The features of one image, or the reason why it cannot be used.

    R is the number of regions, F the width of the feature vector of a region, F2 the width of the
    vector of the whole image.

    Attributes:
      entry: the image.
      features: float32 [R, F]; None if the image cannot be used.
      boxes: float32 [R, 4], the corners x1, y1, x2, y2 of the regions, as shares 0..1 of the width
        and the height of the picture; None if they are unknown.
      reason: why the image cannot be used; None if it can be used.
      boxes_dropped: whether boxes were left out, because they are in pixels and the size of the
        image is unknown.
      notes: what is said of such picture files at the end, with their number.
      image: one feature vector of the whole image, float32 [F2]; None if the source has no such
        vectors.
      picture: bytes of the picture file to store in the record; None if it is not stored.
      objects: what a detector saw, as key of the record -> list. `image/size` has width and height
        of the image in pixels; other keys have the names and scores of the classes and attributes
        of the regions. None if nothing of this is stored.
    """

    entry: Entry
    features: np.ndarray | None
    boxes: np.ndarray | None
    reason: str | None
    boxes_dropped: bool = False
    notes: tuple[str, ...] = ()
    image: np.ndarray | None = None
    picture: bytes | None = None
    objects: Mapping[str, list] | None = None


class Pictures:
    """Extracts features from picture files with a backbone.

    Args:
      directory: the directory of the picture files; None if the pictures are the `content` of the
        entries.
      backbone: the network.
      keep: whether to return each picture as `Extracted.picture`, so that it is stored in the
        record. Large pictures are made smaller, see `shorter_side`.

    Attributes:
      dim: width of a feature vector.
      image_dim: None, because a backbone gives no further vector of the whole image.
      regions: number of regions of an image.
    """

    def __init__(
        self,
        directory: str | os.PathLike | None,
        backbone: Backbone | Detector,
        keep: bool = False,
    ):
        self.directory = None if directory is None else os.fspath(directory)
        if self.directory is not None and not files.is_directory(self.directory):
            raise ValueError(f"`images={directory}` is not a directory. Correct the path.")
        self.backbone = backbone
        self.keep = keep
        self.dim = backbone.feature_dim
        self.image_dim: int | None = None
        self.regions = backbone.num_regions
        self._batch = max(1, backbone.network.batch // backbone.crops)
        self._threads = os.cpu_count() or 1  # that read and decode
        self._extract = backbone.bulk_extractor()
        signature = [tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.bool)]
        read = tf.function(self._resized, input_signature=signature, autograph=False)
        self._read = read.get_concrete_function()  # a sixth faster to call

    def read(self, entries: Sequence[Entry]) -> Iterator[Extracted]:
        """Reads pictures and computes their features, in batches.

        A batch has only entries of one call. So a shard gets the same bytes when it is written
        again.

        Args:
          entries: the images.

        Yields:
          An `Extracted` for each entry, in order. For a picture that cannot be used, the
          `Extracted` has a reason and no features.
        """
        waiting: list[tuple[Extracted, np.ndarray | None]] = []
        usable = 0
        for extracted, pixels in self._decoded(entries):
            waiting.append((extracted, pixels))
            usable += 0 if pixels is None else len(extracted.entry.pictures)
            if usable >= self._batch:
                yield from self._with_features(waiting)
                waiting = []
                usable = 0
        yield from self._with_features(waiting)

    def _decoded(self, entries: Sequence[Entry]) -> Iterator[tuple[Extracted, np.ndarray | None]]:
        """Decodes in threads, at most one batch ahead of the network."""
        coming: collections.deque[concurrent.futures.Future] = collections.deque()
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            for entry in entries:
                coming.append(pool.submit(self._decode, entry))
                if len(coming) > self._batch:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def _with_features(
        self, decoded: Sequence[tuple[Extracted, np.ndarray | None]]
    ) -> Iterator[Extracted]:
        batch = [pixels for _, pixels in decoded if pixels is not None]
        features: Iterator[np.ndarray] = iter(())
        if batch:
            arrays = self._extract(np.concatenate(batch)).numpy()
            ends = np.cumsum([len(pixels) for pixels in batch])
            features = iter(np.split(arrays, ends[:-1]))
        for extracted, pixels in decoded:
            if pixels is not None:
                extracted = extracted._replace(features=next(features).reshape(-1, self.dim))
            yield extracted

    def _decode(self, entry: Entry) -> tuple[Extracted, np.ndarray | None]:
        """Returns the pictures float32 [V, *decoded_shape] with their boxes, or a reason.

        V is the number of pictures of the image, or of frames of a clip.
        """
        try:
            return self._load(entry)
        except (tf.errors.OpError, OSError, ValueError) as error:
            return Extracted(entry, None, None, " ".join(str(error).split())[:200]), None

    def _load(self, entry: Entry) -> tuple[Extracted, np.ndarray]:
        if not entry.further:
            return self._load_one(entry)
        parts = []
        for name in entry.pictures:
            try:
                parts.append(self._load_one(entry._replace(file_name=name)))
            except (OSError, ValueError) as error:
                raise ValueError(f"{os.path.join(self.directory or '', name)}: {error}") from None
        whole = Extracted(
            entry,
            None,
            self._on_sheet([np.asarray(part.boxes) for part, _ in parts]),
            None,
            notes=tuple(note for part, _ in parts for note in part.notes),
        )
        return whole, np.concatenate([pixels for _, pixels in parts])

    def _on_sheet(self, boxes: Sequence[np.ndarray]) -> np.ndarray:
        """Joins what `boxes_in` returned for each picture of an image."""
        return clips.on_sheet(boxes)

    def _load_one(self, entry: Entry) -> tuple[Extracted, np.ndarray]:
        """Reads the picture of an entry, or the first of several."""
        stored_file = self._bytes(entry)
        content = readable(stored_file)
        try:
            parts = self._read(tf.constant(content), tf.constant(entry.mirrored))
            resized, size, stored = (part.numpy() for part in parts)
        except tf.errors.InvalidArgumentError:
            raise ValueError(refusal(content)) from None
        boxes = self.backbone.boxes_in(*size.tolist())
        notes = () if entry.mirrored else _notes(stored_file, content, resized)
        picture = stored if self.keep else None
        return Extracted(entry, None, boxes, None, notes=notes, picture=picture), resized[None]

    def _resized(
        self, content: tf.Tensor, mirrored: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the resized picture, its height and width before, and the file to store."""
        picture = pictures.decode(content)
        picture = tf.cond(mirrored, lambda: tf.reverse(picture, [1]), lambda: picture)
        stored = tf.constant("")
        if self.keep:
            stored = _kept(content, picture, self.backbone.image_size, mirrored)
        return self.backbone.resize(picture), tf.shape(picture)[:2], stored

    def _bytes(self, entry: Entry) -> bytes:
        """Returns the bytes of a picture; raises OSError or ValueError."""
        if entry.content is not None:
            return entry.content.read()
        path = os.path.join(self.directory or "", entry.file_name)
        if files.is_remote(path):  # one request: questions would take longer than reading
            try:
                return tf.io.read_file(path).numpy()
            except tf.errors.NotFoundError:
                text = "the picture file does not exist. Add it, or correct its name"
                raise ValueError(text) from None
        if not os.path.isfile(path):
            if os.path.exists(path):
                raise ValueError("the path is a directory or a device. Name a picture file")
            hint = spelling.near(*os.path.split(path)) or ". Add it, or correct its name"
            raise ValueError(f"the picture file does not exist{hint}")
        check_size(os.path.getsize(path))
        with open(path, "rb") as file:
            return file.read()


class DetectedRegions(Pictures):
    """Extracts regions and their boxes from pictures with a detector, one picture at a time.

    Args:
      directory: the directory of the picture files; None if the pictures are the `content` of the
        entries.
      detector: the detector.
      objects: whether to return the names and scores of classes and attributes, as
        `Extracted.objects`.
    """

    def __init__(
        self, directory: str | os.PathLike | None, detector: Detector, objects: bool = False
    ):
        super().__init__(directory, detector)
        if objects and not detector.card.get("classes"):
            raise ValueError(
                "`objects` needs the names of the classes, but the detector has none. Convert the "
                "detector again with `objects_vocab` of tfcap.convert and `attributes_vocab` of "
                "tfcap.convert, the files of the names, or leave out `objects`."
            )
        self._detector = detector
        self._objects = objects

    def _with_features(
        self, decoded: Sequence[tuple[Extracted, np.ndarray | None]]
    ) -> Iterator[Extracted]:
        for extracted, pixels in decoded:
            if pixels is None:
                yield extracted
                continue
            # One picture at a time: of each, the regions are other ones.
            found = [self._extract(picture[None]) for picture in pixels]
            counts = [int(regions.count[0]) for regions in found]
            if not all(counts):
                reason = "no region is found: all are below 16 pixels along a side"
                yield Extracted(extracted.entry, None, None, reason)
                continue
            sides = np.asarray(extracted.boxes).reshape(-1, 4)
            objects = None
            if self._objects:
                objects = self._detector.objects(found[0], 0, sides[0, :2].astype(int).tolist())
            parts = list(zip(found, counts, sides, strict=True))
            yield extracted._replace(
                features=np.concatenate([one.features[0, :n].numpy() for one, n, _ in parts]),
                boxes=clips.on_sheet(
                    [np.clip(one.boxes[0, :n].numpy() / size, 0, 1) for one, n, size in parts]
                ),
                objects=objects,
            )

    def _on_sheet(self, boxes: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(boxes)  # the sides of each picture, for boxes in pixels


class ClipFeatures(Pictures):
    """Reads clips and extracts the features of their frames: each frame is one region.

    A clip is a GIF file, a film such as an MP4 file, a directory of frames, or a picture, which is
    a clip of one frame.

    Args:
      directory: the directory of the clips; None if the clips are the `content` of the entries.
      backbone: the network; it must give one vector per picture.
      frames: number of frames to use of each clip, evenly spaced. Of a shorter clip the last frame
        is repeated.
    """

    def __init__(self, directory: str | os.PathLike | None, backbone: Backbone, frames: int):
        super().__init__(directory, backbone)
        self.regions = frames
        self._batch = max(1, _FRAMES // frames)
        self._threads = min(_MOST_THREADS, self._threads)
        self._resize = tf.function(
            backbone.resize,
            input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)],
            autograph=False,
        )

    def _load(self, entry: Entry) -> tuple[Extracted, np.ndarray]:
        pixels: clips.Frames
        if entry.content is not None:
            pixels = clips.read_clip_bytes(entry.content.read(), self.regions)
        else:
            path = os.path.join(self.directory or "", entry.file_name)
            pixels = clips.read_clip(path, self.regions)
        step = -1 if entry.mirrored else 1
        resized = np.stack([self._resize(frame[:, ::step]).numpy() for frame in pixels])
        return Extracted(entry, None, clips.sheet_boxes(self.regions), None), resized


def _notes(file: bytes, content: bytes, resized: np.ndarray) -> tuple[str, ...]:
    """Returns the notes about a picture.

    Args:
      file: the bytes of the file.
      content: what the graph decodes of it.
      resized: the picture as the network reads it, in 0..255, or less a mean for a detector.
    """
    notes = []
    if file.startswith(b"GIF8") and is_animated(file):
        notes.append("animated GIF files: only their first frame is used")
    if has_pages(file):
        notes.append("TIFF files with several pages: only the first is used")
    may_be_dark = content.startswith(_PNG) and content[24] == 16 and resized.max() < _DARK
    if may_be_dark and pictures.read(content).max() < _DARK:
        notes.append(
            "pictures of 16 bits are nearly black, because they use at most 14 of these: multiply "
            "their values, those of 12 bits by 16 (ImageMagick: mogrify -evaluate multiply 16 FILE)"
        )
    return tuple(notes)


def shorter_side(image_size: int) -> int:
    """Returns the limit, in pixels, for the shorter side of pictures that are stored in records.

    Larger pictures are made smaller before they are stored. The limit is 8/7 of `image_size`,
    because some backbones crop the margins of a picture.

    Args:
      image_size: pixels along a side of the square that the backbone reads.
    """
    return round(image_size * _MARGIN)


def _kept(
    content: tf.Tensor, image: tf.Tensor, image_size: int, mirrored: tf.Tensor | bool = False
) -> tf.Tensor:
    """Returns the file to store: the file itself if it is small, else an upright JPEG.

    A small file is stored byte for byte, so that training decodes what a server decodes. A large
    file would be decoded and resized in every epoch: a photograph takes ten times as long and a
    hundred times the space. So its shorter side is resized to `shorter_side`, a little more than
    the backbone reads. The aspect ratio does not change, because a backbone may crop. The loss of
    JPEG at quality 95 without chroma subsampling is hardly visible after the backbone has resized
    the picture again. A mirrored picture has no file, so it is such a JPEG of any size.

    Args:
      content: the bytes of the file, string [].
      image: the decoded file, as `data.pictures.decode` returns it, or mirrored.
      image_size: pixels along a side of the square that the backbone reads.
      mirrored: whether `image` is mirrored, bool [].
    """
    sides = tf.shape(image)[:2]
    short = shorter_side(image_size)
    fits = (tf.reduce_min(sides) <= short) & (tf.reduce_max(sides) <= _LONGEST * short)

    def smaller() -> tf.Tensor:
        scale = tf.minimum(1.0, short / tf.cast(tf.reduce_min(sides), tf.float32))
        size = tf.cast(tf.round(tf.cast(sides, tf.float32) * scale), tf.int32)
        size = tf.clip_by_value(size, 1, _LONGEST * short)
        resized = tf.image.resize(image, size, method="bilinear", antialias=True)
        resized = tf.saturate_cast(tf.round(resized), tf.uint8)
        return tf.io.encode_jpeg(resized, quality=_QUALITY, chroma_downsampling=False)

    is_small = fits & (tf.strings.length(content) <= _MOST_KEPT)
    return tf.cond(is_small & tf.logical_not(mirrored), lambda: content, smaller)
