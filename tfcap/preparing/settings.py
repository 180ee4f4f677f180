"""The settings of prepare: the arguments of `tfcap.prepare.prepare`, which are also its flags.

TensorFlow is imported only where a method needs it, so that a wrong flag is answered at once.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from tfcap import errors, files, segmentation
from tfcap.arguments import argument, arguments, check
from tfcap.backbones import BACKBONES, DETECTOR, HUB, check_name, default_weights, is_hub
from tfcap.preparing import moving_shapes
from tfcap.preparing.engines import ENGINES
from tfcap.preparing.sources import READERS
from tfcap.preparing.sources.entry import SPLITS, Entry
from tfcap.preparing.sources.splits import shares
from tfcap.preparing.sources.tables import PARTS

Paths = str | os.PathLike | Sequence[str | os.PathLike]
BUILT_IN = ("shapes", "moving_shapes")  # sources that draw their own pictures
_LARGEST_HASHED = 1 << 30  # bytes; a larger caption file has pictures, and its entries identify it


@arguments
class Settings:
    """The settings of prepare: the arguments of `tfcap.prepare.prepare`.

    Most are also flags of the command; `python -m tfcap.prepare --help` says what each means.
    `checked` fills in the defaults that depend on other settings.
    """

    out: str | os.PathLike = argument(
        "Directory to write, on a disk or as in gs://bucket/data.", kw_only=False
    )
    captions: Paths | None = argument(
        "Caption file or directory; several with commas or by repeating the flag.",
        default=None,
        many="repeated",
        kw_only=False,
    )
    source: str = argument(
        "Layout of `captions`; auto finds it by the content; shapes and moving_shapes: built-in "
        "drawings and clips.",
        default="auto",
        choices=("auto", *READERS, *BUILT_IN),
    )
    columns: str | None = argument(
        "Columns of a table, or keys of JSON objects, whose names prepare does not know: "
        "image=3,caption=6 by their numbers from 1, or image=photo,caption=words by their names; "
        "also split and id.",
        default=None,
    )
    language: str | None = argument(
        "Language of the captions to read, as the caption files name it, if they have several.",
        default=None,
    )
    images: str | os.PathLike | None = argument("Directory of the image files.", default=None)
    backbone: str | None = argument(
        f"Network that extracts the features: {', '.join(BACKBONES)}, or hub:PRESET of keras-hub; "
        "by default mobilenet_v2, and pixels for the built-in data.",
        default=None,
    )
    weights: str | os.PathLike | None = argument(
        "Weights of the network: 'imagenet', a file, or the directory of a converted detector; by "
        "default 'imagenet' if the network has these. Those of ImageNet are downloaded, except "
        "for efficientnet_lite2: its weights come with the extra 'lite' of the package.",
        default=None,
    )
    grid: int | None = argument(
        "Cells along a side of the feature grid, for example 7 or 4.", default=None
    )
    crops: int = argument(
        "1 reads the whole picture; 10 reads ten crops and makes one feature vector, the mean over "
        "the crops (with vgg16: of the layer fc7).",
        default=1,
    )
    vector: bool = argument(
        "Make one feature vector of the whole picture (with vgg16: of the layer fc7).",
        default=False,
    )
    image_size: int | None = argument(
        "Pixels along a side that pictures are resized to.", default=None
    )
    frames: int | None = argument(
        "If given, images are read as clips, with this many frames each; by default 16 for the "
        "sources gif and msrvtt, and 8 for moving_shapes.",
        default=None,
    )
    keep_pictures: bool = argument(
        "Store the pictures in the records, too, so that training can change the network.",
        default=False,
    )
    objects: bool = argument(
        f"With the backbone {DETECTOR}: store the names of classes and attributes of regions, too.",
        default=False,
    )
    flip: bool = argument(
        "Also prepare each training image mirrored, as a further image whose captions have the "
        "words left and right exchanged.",
        default=False,
    )
    features: Paths | None = argument(
        "Ready-made features instead of a network: a file or directory, or several with commas "
        "between them (npz, npy, bottom-up or VinVL tsv, HDF5, LMDB, a matrix with ids).",
        default=None,
    )
    further_features: Paths | None = argument(
        "Features of the same images by other networks, behind those of `features`: a file or "
        "directory for each network, with commas between them. `rfnet` reads such feature sets.",
        default=None,
    )
    min_count: int = argument(
        "Words that occur less often than this are left out of the vocabulary.", default=5
    )
    vocab: str | os.PathLike | None = argument(
        "A vocab.txt to use instead of counting words, e.g. of a converted model.", default=None
    )
    document_frequency: str | os.PathLike | None = argument(
        "A document_frequency.npz of the words of `vocab` to use instead of counting n-grams.",
        default=None,
    )
    splits: str = argument(
        "How the images are divided. source: the splits of the caption file, or random ones if it "
        "has none; random: 90 % train, 5 % val, 5 % test; random:70,15,15: other shares; mrnn: "
        "random ones of COCO, with the sizes that the paper on m-RNN has.",
        default="source",
    )
    split_ids: str | os.PathLike | None = argument(
        "Directory with a list of ids or file names per split, or a JSON file such as splits.json.",
        default=None,
    )
    seed: int = argument("Random seed of random splits and of the built-in shapes.", default=1)
    tokens: str = argument(
        "Words of the captions. raw: split the captions at spaces and punctuation; given: use the "
        "words in the caption file. Of languages without spaces, characters: each letter is a "
        "word; jieba (Chinese), fugashi (Japanese), pythainlp (Thai): a word segmenter, which "
        "pip installs. Of reports on X-ray pictures, iu_xray, mimic_cxr: the cleaned words of "
        "R2Gen's code.",
        default=segmentation.RAW,
        choices=segmentation.WAYS,
    )
    count_splits: str = argument(
        "Splits whose words are counted for the vocabulary.",
        default="train",
        choices=("train", "all"),
    )
    name: str | None = argument(
        "Name of the data set; by default that of the caption file.", default=None
    )
    max_skipped: str | int = argument(
        "Largest number of bad images to skip, or their largest share, as in 1%.", default="100"
    )
    images_per_shard: int = argument("Images per TFRecord file.", default=512)
    overwrite: bool = argument("Prepare everything in `out` again.", default=False)
    engine: str = argument(
        "What writes the shards. local: processes of this machine; beam: Apache Beam, with its own "
        "options after --.",
        default="local",
        choices=ENGINES,
    )
    workers: int = argument("Number of processes of `engine=local`.", default=1)
    engine_options: Sequence[str] = argument("Options of Apache Beam.", default=(), name="-")
    train: int | None = argument(
        "Number of training pictures or clips of the built-in data.", default=None, name="-"
    )
    val: int | None = argument(
        "Number of validation pictures or clips of the built-in data.", default=None, name="-"
    )
    test: int | None = argument(
        "Number of test pictures or clips of the built-in data.", default=None, name="-"
    )

    @property
    def is_built_in(self) -> bool:
        """Whether `source` is a built-in data set, whose pictures and captions tfcap makes."""
        return self.source in BUILT_IN

    @property
    def backbone_name(self) -> str:
        """The name of the backbone: `backbone`, or its default, which depends on `source`."""
        return self.backbone or ("pixels" if self.is_built_in else "mobilenet_v2")

    @property
    def caption_paths(self) -> tuple[pathlib.Path, ...]:
        """The paths in `captions`; if there are none, the paths in `images`.

        The latter serve layouts that have the captions beside the pictures.
        """
        return _paths(self.captions) or _paths(self.images)

    @property
    def feature_paths(self) -> tuple[pathlib.Path, ...]:
        """The paths in `features`; empty if a backbone extracts the features."""
        return _paths(self.features)

    @property
    def feature_sets(self) -> list[tuple[pathlib.Path, ...]]:
        """The paths of each feature set: those in `features`, then one set for a further path."""
        further = [(path,) for path in _paths(self.further_features)]
        return [self.feature_paths, *further] if self.features else []

    @property
    def chosen_columns(self) -> dict[str, str]:
        """The setting `columns` as part -> number or name, such as "image" -> "3"."""
        parts = (part.partition("=") for part in (self.columns or "").split(",") if part)
        return {name.strip(): column.strip() for name, _, column in parts}

    @property
    def segmenter(self) -> dict[str, str]:
        """The word segmenter with its version, under the key "segmenter"; empty without one."""
        version = segmentation.version(self.tokens)
        return {"segmenter": version} if version else {}

    @property
    def data_name(self) -> str:
        """The name of the data set: `name`, else the first caption file's name without ending."""
        return self.name or self.caption_paths[0].stem

    def checked(self) -> "Settings":
        """Checks the settings, and fills in defaults that depend on other settings.

        Returns:
          A copy with `backbone`, `weights` and `frames` filled in, and with the home directory in
          place of `~` in paths.

        Raises:
          UsageError: the settings cannot work together, or a value is not allowed.
        """
        settings = self._completed()
        settings._check_values()
        settings._check_network()
        settings._check_combinations()
        return settings

    def _completed(self) -> "Settings":
        backbone = self.backbone_name
        weights = default_weights(backbone) if self.weights is None else self.weights
        frames = self.frames
        if frames is None and self.source == "moving_shapes":
            frames = moving_shapes.FRAMES[0]
        paths = {
            key: os.path.expanduser(path)
            for key in ("out", "images", "vocab", "document_frequency", "split_ids")
            if (path := getattr(self, key))
        }
        if weights is not None:
            paths["weights"] = os.path.expanduser(weights)
        return dataclasses.replace(self, backbone=backbone, frames=frames, **paths)

    def _check_values(self) -> None:
        """Checks each setting by itself: an impossible one must not replace prepared data."""
        check(self)
        allowed_skips(self.max_skipped, 1)
        segmentation.require(self.tokens)
        try:
            shares(self.splits)
        except ValueError as error:
            raise errors.UsageError(f"{error}.") from None
        chosen = self.chosen_columns
        if chosen and not ({"image", "caption"} <= chosen.keys() <= PARTS.keys()):
            raise errors.UsageError(
                "`columns` must name the columns of image and caption, and may name those of split "
                f"and id, as in image=3,caption=6; not {self.columns!r}."
            )
        for key in ("frames", "grid", "image_size", "min_count", "images_per_shard", "workers"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise errors.UsageError(f"`{key}` must be at least 1, not {value}.")
        try:
            check_name(self.backbone_name)
        except ValueError as error:
            raise errors.UsageError(str(error)) from None

    def _check_network(self) -> None:
        """Checks that the network can do what the other settings ask for."""
        if self.backbone_name == DETECTOR and not self.features:
            if self.weights is None:
                raise errors.UsageError(
                    f"`weights` of {DETECTOR} is missing: give the directory of a converted "
                    "detector, see docs/prepare.md."
                )
            if self.grid or self.crops != 1 or self.vector or self.image_size or self.frames:
                raise errors.UsageError(
                    f"{DETECTOR} gives regions of whole pictures. Leave out `grid`, `crops`, "
                    "`vector`, `image_size` and `frames`."
                )
            if self.keep_pictures:
                raise errors.UsageError(
                    f"{DETECTOR} cannot be trained, so it needs no stored pictures. Leave out "
                    "`keep_pictures`."
                )
        elif self.objects:
            raise errors.UsageError(
                f"`objects` needs `backbone={DETECTOR}`. Give it, or leave out `objects`."
            )
        is_of_pictures = self.crops != 1 or self.vector or self.keep_pictures
        if self.features and (is_of_pictures or self.image_size or self.grid):
            raise errors.UsageError(
                "`crops`, `vector`, `image_size`, `grid` and `keep_pictures` are settings of a "
                "backbone, but `features` replaces the backbone. Leave them out, or leave out "
                "`features`."
            )
        if self.further_features and not self.features:
            raise errors.UsageError(
                "`further_features` needs `features`, the features of the first network. Give both."
            )
        if self.flip and self.features:
            raise errors.UsageError(
                "`flip` mirrors pictures before a backbone reads them, but `features` replaces the "
                "backbone. Leave out one of them."
            )
        if self.keep_pictures and self.crops != 1:
            raise errors.UsageError(
                "`keep_pictures` cannot be used with `crops`: it stores pictures to train the "
                "network further, and training reads whole pictures. Leave out one of them."
            )
        if self.frames and (self.grid or self.crops != 1 or self.keep_pictures):
            raise errors.UsageError(
                "`grid`, `crops` and `keep_pictures` cannot be used with clips, that is, with "
                "`frames`: each frame gives one vector. Leave them out."
            )

    def _check_combinations(self) -> None:
        """Checks settings of captions, splits and words that exclude or need each other."""
        if self.is_built_in and (self.captions or self.images or self.features):
            raise errors.UsageError(
                f"`source={self.source}` makes its own captions and images. Leave out `captions`, "
                "`images` and `features`."
            )
        if not self.is_built_in and {self.train, self.val, self.test} != {None}:
            raise errors.UsageError(
                f"`train`, `val` and `test` are for `source={BUILT_IN[0]}` or "
                f"`source={BUILT_IN[1]}`. Leave them out."
            )
        if self.split_ids is not None and self.splits != "source":
            raise errors.UsageError(
                "`split_ids` and `splits` both divide the images. Give only one of them."
            )
        if self.document_frequency is not None and self.vocab is None:
            raise errors.UsageError(
                "`document_frequency` needs `vocab`, the vocabulary that it was counted with. Give "
                "both files of one prepared directory."
            )

    def identity(self, entries: Sequence[Entry] = (), splits: str | None = None) -> dict[str, Any]:
        """Returns the settings on which the content of finished shards depends.

        They are compared with the settings stored in `out`: only if they are equal can the work in
        `out` be continued. A setting that earlier versions lacked is left out while it has its
        default, so that the directories of those versions stay valid.

        Args:
          entries: the images. The result has a SHA-256 of their captions, and also of their splits
            if `splits` is None. A single caption file is hashed in place of the captions, unless it
            is very large.
          splits: SHA-256 of the lists of images per split, if the splits were drawn or come from
            `split_ids`; None if they come from the caption files.

        Returns:
          Name of the setting -> its value, which JSON can hold. The value for a file that is read,
          such as `captions` or `vocab`, is a SHA-256.
        """
        from tfcap.data import tokens

        features = [self._relative_to_out(path) for path in self.feature_paths]
        result: dict[str, Any] = {
            "captions": self._captions_sha256(entries, splits is None),
            "images": None if self.images is None else self._relative_to_out(self.images),
            "features": features if len(features) > 1 else next(iter(features), None),
            **self._network_identity(),
            "min_count": self.min_count,
            **self.changed("tokens", "count_splits", "frames", "columns", "language", "flip"),
            **self.segmenter,
            "images_per_shard": self.images_per_shard,
            "tokenizer": tokens.TOKENIZER,
        }
        if self.further_features:
            further = map(self._relative_to_out, _paths(self.further_features))
            result["further_features"] = list(further)
        if self.source not in ("auto", "karpathy"):
            result["source"] = self.source
        if splits is not None:
            result["splits"] = splits
        if self.features is None and (views := most_views(entries)) > 1:
            result["views"] = views  # earlier versions read the first picture alone
        if self.vocab is not None:
            result["vocab"] = tokens.Vocab.load(self.vocab).sha256
        if self.document_frequency is not None:
            result["document_frequency"] = files.file_sha256(self.document_frequency)
        return result

    def _network_identity(self) -> dict[str, Any]:
        """Returns the part of `identity` about the network; its values are None with `features`."""
        from tfcap.backbones.saved import digest

        weights = self.weights
        if weights not in (None, "imagenet"):
            saved = digest(weights)  # of a file, or of the directory of a detector
            if saved is None:
                raise ValueError(f"`weights`: there is no file {weights}. Correct the path.")
            weights = saved.sha256
        result = {"backbone": self.backbone_name, "weights": weights, "grid": self.grid}
        result |= self.changed("crops", "keep_pictures", "vector", "objects", "image_size")
        if is_hub(self.backbone_name) and (preset := digest(self.backbone_name.removeprefix(HUB))):
            result["preset"] = preset.sha256  # of a directory, whose content may change
        return dict.fromkeys(result) if self.features else result

    def changed(self, *names: str) -> dict[str, Any]:
        """Returns the settings among `names` that are not at their defaults, as name -> value."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value != getattr(Settings, name)}

    def _captions_sha256(self, entries: Sequence[Entry], with_splits: bool) -> str:
        """Returns a SHA-256 of the captions, and of the splits if the source has them."""
        paths = self.caption_paths
        digest = hashlib.sha256()
        if len(paths) == 1 and paths[0].is_file() and paths[0].stat().st_size <= _LARGEST_HASHED:
            whole = files.file_sha256(paths[0])
            if self.source in ("auto", "karpathy"):
                return whole  # the file has its splits
            digest.update(whole.encode())
        else:
            for entry in entries:
                further = (entry.further,) if entry.further else ()
                values = (*entry[:2], entry.captions, entry.words or None, *further)
                digest.update(repr(values).encode())
        # Splits may also come from other files, from names of files, or from a draw of the reader.
        for entry in entries:
            if with_splits or entry.split not in SPLITS:
                digest.update(repr((entry.id, entry.split)).encode())
        return digest.hexdigest()

    def _relative_to_out(self, path: str | os.PathLike) -> str:
        """Returns a path, relative if it is inside `out`, so that `out` can be moved."""
        return _real(path).removeprefix(_real(self.out) + os.sep)


def most_views(entries: Sequence[Entry]) -> int:
    """Returns the largest number of pictures of an image."""
    return max((len(entry.pictures) for entry in entries), default=1)


def _real(path: str | os.PathLike) -> str:
    """Returns a path as an absolute one without symbolic links."""
    path = os.fspath(path)
    return files.absolute(path) if files.is_remote(path) else os.path.realpath(path)


def _paths(value: Paths | None) -> tuple[pathlib.Path, ...]:
    """Returns the paths in a setting: a path, several paths, or paths separated by commas.

    A comma in the name of an existing file is not a separator.
    """
    texts = [value] if isinstance(value, str | os.PathLike) else value or []
    paths: list[str] = []
    for text in map(os.path.expanduser, texts):
        paths += [text] if os.path.exists(text) else filter(None, text.split(","))
    return tuple(pathlib.Path(os.path.expanduser(path)) for path in paths)


def allowed_skips(max_skipped: str | int, images: int) -> int:
    """Returns how many images prepare may skip at most.

    Args:
      max_skipped: a number such as 100, or a share of the images such as "1%". The number of images
        that the share stands for is rounded down.
      images: number of images of the data set.

    Raises:
      UsageError: `max_skipped` is neither a number nor a share.
    """
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?) ?%", str(max_skipped))
    if match is None:
        raise errors.UsageError(
            f"`max_skipped` must be a number or a share such as 1%, not {max_skipped!r}."
        )
    return int(match[1]) if match[1] else int(float(match[2]) * images / 100)
