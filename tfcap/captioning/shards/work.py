"""Captions the pictures of a shard, and says which shards are done."""

import dataclasses
import functools
import importlib
import itertools
import json
import logging
import os
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tfcap import captioning, files, pretrained
from tfcap.captioning.caption_files import Wording
from tfcap.captioning.image_captioner import Prepared, caption_batch, prepare
from tfcap.captioning.inputs import Picture
from tfcap.captioning.results import Caption, Failure
from tfcap.captioning.shards.reading import Row, Shard
from tfcap.captioning.shards.writing import ENDINGS, opened
from tfcap.decoding.options import first_seed
from tfcap.errors import UsageError
from tfcap.serving.standalone.caption import CARD

_log = logging.getLogger(__name__)
STATISTICS = "_stats.json"  # as img2dataset names the file beside a shard
_REMEDY = "Delete it; its shard is then captioned again."


@dataclasses.dataclass(frozen=True)
class Model:
    """What to load; the arguments of `tfcap.captioning.load`."""

    path: tuple[str, ...] | None
    checkpoint: str = "best"
    decoding: str = ""
    beam: int = 0
    data_dir: str | None = None
    dtype: str = "float32"

    def load(self) -> captioning.ImageCaptioner:
        return captioning.load(**dataclasses.asdict(self))


class Work:
    """Captions a shard when it is called with one. A copy in another process loads its own model.

    Args:
      model: what to load.
      kind: a kind of `writing.ENDINGS`.
      out: the folder of the files.
      wording: how the text in the column `caption` looks.
      batch_size: number of pictures captioned together.
      seed: for sampled captions; the captions of a shard depend on it and on the shard alone.

    Attributes:
      batch_size: as above.
      settings: what the captions depend on; stands in the statistics of each shard.
    """

    def __init__(
        self, model: Model, kind: str, out: str, wording: Wording, batch_size: int, seed: int
    ):
        self._model = model
        self._kind = kind
        self._out = out
        self._wording = wording
        self.batch_size = batch_size
        self._seed = seed
        self._captioner: captioning.ImageCaptioner | None = None
        self._loading = threading.Lock()
        self.settings: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_captioner": None, "_loading": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _loading=threading.Lock())

    def load(self) -> captioning.ImageCaptioner:
        """Loads the model, if that was not done, and returns the captioner."""
        with self._loading:
            if self._captioner is None:
                self._captioner = self._model.load()
        return self._captioner

    def describe(self) -> None:
        """Sets `settings`, and captions a first picture with LiteRT.

        Processes that are copied later share what is in memory then: LiteRT makes its copy of the
        weights for the first picture, and pyarrow takes 60 MB.
        """
        if self._kind == "parquet":
            importlib.import_module("pyarrow.parquet")
        runtime = self.load().runtime
        if runtime.threads > 1:
            black = np.zeros([8, 8, 3], np.uint8)
            runtime.caption([runtime.prepare(black)], [0])
        paths = self._model.path or (pretrained.DEFAULT,)
        exports = [export for path in paths if (export := captioning.portable_directory(path))]
        cards = [files.read_json(os.path.join(export, CARD), "Export again.") for export in exports]
        settings = {
            "model": str(runtime),
            "file": [card["sha256"] for card in cards],
            "decoding": runtime.decoding,
            "dtype": self._model.dtype,
            "write": self._kind,
            "seed": self._seed,
            "wording": dataclasses.asdict(self._wording),
        }
        self.settings = json.loads(files.json_text(settings))  # as a file has them

    def left(self, shards: Sequence[Shard]) -> list[Shard]:
        """Returns the shards that are not yet captioned, or that have changed since.

        Raises:
          UsageError: a shard was captioned with other settings.
        """
        return [shard for shard in shards if not self._is_done(shard)]

    def statistics(self, shard: Shard) -> dict[str, Any] | None:
        """Returns what is known of a captioned shard; None if it was not captioned."""
        path = self._path(shard, STATISTICS)
        return files.read_json(path, _REMEDY) if os.path.exists(path) else None

    def __call__(self, shard: Shard) -> None:
        """Captions a shard, and writes its file and then its statistics.

        If the file of the shard is damaged, a message says so, and nothing is written.
        """
        try:
            self._caption(shard)
        except ValueError as error:
            _log.warning("error: %s", error)

    def _caption(self, shard: Shard) -> None:
        failed: list[dict[str, str]] = []
        state, count = shard.state(), 0
        rows = enumerate(shard.rows())
        with opened(self._kind, self._path(shard, f".{ENDINGS[self._kind]}")) as file:
            while part := list(itertools.islice(rows, self.batch_size)):
                count += len(part)
                for row, outcome in zip(
                    (row for _, row in part), self._captions(shard, part), strict=True
                ):
                    if isinstance(outcome, Failure):
                        failed.append({"key": row.key, "reason": outcome.reason})
                    else:
                        file.add(row, self._values(row, outcome))
        statistics = {
            "pictures": count,
            "captions": count - len(failed),
            "failed": failed,
            "settings": self.settings,
            "input": state,
        }
        files.write_json(self._path(shard, STATISTICS), statistics)

    def _captions(self, shard: Shard, part: Sequence[tuple[int, Row]]) -> list[Caption | Failure]:
        """Captions some rows of a shard, each with its number in it."""
        runtime = self.load().runtime
        pictures = [Picture(number, row.key, row.content, row.reason) for number, row in part]
        if len(pictures) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                items = list(pool.map(functools.partial(prepare, runtime), pictures))
        else:  # a thread would have memory of its own
            items = [prepare(runtime, pictures[0])]
        good = [item for item in items if isinstance(item, Prepared)]
        first = first_seed(self._seed) + (zlib.crc32(shard.name.encode()) << 20)
        seeds = [first + picture.position for picture, _ in good]
        captions = iter(caption_batch(runtime, good, seeds))
        return [item if isinstance(item, Failure) else next(captions) for item in items]

    def _values(self, row: Row, caption: Caption) -> dict[str, Any]:
        """Returns the columns of a picture."""
        all_of_it = [caption, *caption.alternatives]
        values: dict[str, Any] = {
            "key": row.key,
            "caption": self._wording.of(self._wording.first(caption)),
            "captions": [one.text for one in all_of_it],
            "scores": [round(one.score, 6) for one in all_of_it],
        }
        if caption.confidence is not None:
            confidences = [one.confidence for one in all_of_it]
            values["confidences"] = [round(value or 0.0, 6) for value in confidences]
        return values | {"given": list(row.given)}

    def _path(self, shard: Shard, ending: str) -> str:
        return os.path.join(self._out, shard.name + ending)

    def _is_done(self, shard: Shard) -> bool:
        found = self.statistics(shard)
        if found is None or not os.path.exists(self._path(shard, f".{ENDINGS[self._kind]}")):
            return False
        old = found.get("settings", {})
        if changed := [name for name, value in self.settings.items() if old.get(name) != value]:
            name = changed[0]
            raise UsageError(
                f"{self._path(shard, STATISTICS)} is of captions with another {name}: "
                f"{old.get(name)!r}, not {self.settings[name]!r}. Give another `out`, or repeat "
                "the command that wrote it."
            )
        try:
            return found["input"] == shard.state()
        except ValueError:  # it is gone
            return False
