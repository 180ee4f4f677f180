"""What to prepare, and from what: the flags of `tfcap.prepare` as one object."""

import dataclasses
import os
from typing import Any

from tfcap.data import tokens
from tfcap.files import file_sha256


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to prepare; the flags of `tfcap.prepare` under the same names.

    Attributes:
      captions: caption file in Karpathy's layout.
      out: directory to write, made if need be.
      images: directory of the image files; needed unless `features` is given.
      backbone: one of `features.BACKBONES`.
      weights: "imagenet", a file, or None for the backbone "pixels".
      grid: cells along a side of the feature grid; None takes the backbone's own.
      crops: 10 makes one vector of ten crops of a picture.
      features: directory of ready features, one npz per image, instead of a backbone.
      min_count: a word of the training captions enters the vocabulary if it occurs so often.
      vocab: a vocab.txt to take instead, for example of a model that is to be trained further.
      name: of the data set; None takes the name of the caption file.
      max_skipped: how many bad images are skipped before prepare stops, "100" or "1%".
      images_per_shard: images per TFRecord file.
      overwrite: replace what a prepare with other settings left in `out`.
    """

    captions: str
    out: str
    images: str | None = None
    backbone: str = "mobilenet_v2"
    weights: str | None = "imagenet"
    grid: int | None = None
    crops: int = 1
    features: str | None = None
    min_count: int = 5
    vocab: str | None = None
    name: str | None = None
    max_skipped: str = "100"
    images_per_shard: int = 512
    overwrite: bool = False

    def identity(self) -> dict[str, Any]:
        """What the shards depend on. Work goes on only in a directory that has the same."""
        weights = self.weights
        if weights not in (None, "imagenet"):
            if not os.path.isfile(weights):
                raise ValueError(f"no file of weights {weights}; see --weights")
            weights = file_sha256(weights)
        made = {"backbone": self.backbone, "weights": weights, "grid": self.grid}
        if self.crops != 1:  # named only then: see the vocabulary below
            made["crops"] = self.crops
        return {
            "captions": file_sha256(self.captions),
            "images": self._place(self.images),
            "features": self._place(self.features),
            **(dict.fromkeys(made) if self.features else made),
            "min_count": self.min_count,
            # Named only if given: directories prepared without one stay what they are.
            **({"vocab": tokens.Vocab.load(self.vocab).sha256} if self.vocab else {}),
            "images_per_shard": self.images_per_shard,
            "tokenizer": tokens.TOKENIZER,
        }

    def _place(self, directory: str | None) -> str | None:
        """Relative if it lies inside `out`, so that the whole may be moved."""
        if directory is None:
            return None
        path, out = os.path.realpath(directory), os.path.realpath(self.out)
        return os.path.relpath(path, out) if path.startswith(out + os.sep) else path
