"""Turns requests for captions into answers, in the form of TF Serving's REST interface.

A request has `instances`, a list of `{"image_bytes": {"b64": ...}, "seed": ...}` or of
`{"b64": ...}`; or, by columns, `inputs`: `{"image_bytes": [{"b64": ...}], "seed": [...]}` or a list
of `{"b64": ...}`. It may have the keys `decoding`, as the flag `--decoding`, and `attention`. An
answer has `predictions`, in the order of the instances, or `outputs` by columns, and `notes`.

Letters: K captions of a picture, T' words of a caption, R regions.
"""

import base64
import binascii
import collections
import contextlib
import dataclasses
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tfcap import cli
from tfcap.captioning import Caption, Failure, ImageCaptioner
from tfcap.decoding import options
from tfcap.report import pictures
from tfcap.webpage.refused import Refused

KINDS = ("attention", "contribution")
MOST_BYTES = 20_000_000  # of one picture
_MOST_INSTANCES = 16
_MOST_SEEN = 10  # captions of a picture whose attention is computed
_KEPT = 8  # searches whose graphs are kept


class Model:
    """A captioner of the page.

    Args:
      name: its name on the page.
      captioner: what captions the pictures.
      directories: what it was loaded from: directories of runs, or of an export.
      given_decoding: the changes to its decoding that it was loaded with, as of `--decoding`.
      flags: further flags that it was loaded with.
    """

    def __init__(
        self,
        name: str,
        captioner: ImageCaptioner,
        directories: Sequence[str],
        given_decoding: str = "",
        flags: Sequence[str] = (),
    ):
        self.name, self.captioner, self.directories = name, captioner, list(directories)
        self.given_decoding, self.flags = given_decoding, list(flags)
        self._decoded: collections.OrderedDict[str, ImageCaptioner] = collections.OrderedDict()

    @property
    def exported(self) -> bool:
        """Whether it is an exported SavedModel, which gives captions and scores only."""
        return self.captioner.engine.exported

    def about(self) -> dict[str, Any]:
        """Returns the description of the model that the page shows."""
        return {
            "name": self.name,
            "about": str(self.captioner.engine),
            "directories": self.directories,
            "exported": self.exported,
            "clips": bool(self.captioner.engine.reads_clips),
            # Of an exported model; the options of a run are in `decoding`.
            "samples": bool(getattr(self.captioner.engine, "samples", False)),
            "decoding": self.captioner.decoding,
            "given_decoding": self.given_decoding,
            "flags": self.flags,
        }

    def predict(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Captions the pictures of a request.

        Args:
          request: see the top of this module.

        Returns:
          `predictions`, or `outputs` for `inputs`, and `notes`. A prediction has `captions`, best
          first, and `scores`, K each; `words`, `log_probs` and, if they were asked for, `attention`
          have a list per caption.

        Raises:
          Refused: the request is bad (400), a picture is too large (413), or it is no picture that
            can be read (422), or there is not enough memory (503).
        """
        given = [(picture_of(one), _seed_of(one)) for one in _instances(request)]
        kind = _text(request, "attention") or None
        if kind not in (None, *KINDS):
            raise Refused(400, f"attention must be {' or '.join(KINDS)}. Received: {kind!r:.100}.")
        if self.exported:
            kind = None
        captioner = self._decoding(_text(request, "decoding"))
        predictions = []
        with noted() as notes:
            for content, seed in given:
                [result] = _stream(captioner, content, kind, seed)
                if isinstance(result, Failure):
                    raise Refused(422, f"{result.reason[0].upper()}{result.reason[1:]}")
                predictions.append(_prediction(result, bool(captioner.engine.reads_clips)))
        if "inputs" in request:
            columns = {key: [one[key] for one in predictions] for key in predictions[0]}
            return {"outputs": columns, "notes": notes}
        return {"predictions": predictions, "notes": notes}

    def _decoding(self, changes: str) -> ImageCaptioner:
        """Returns the captioner with another decoding; the last few are kept."""
        if not changes:
            return self.captioner
        if changes in self._decoded:
            self._decoded.move_to_end(changes)
            return self._decoded[changes]
        try:
            captioner = self.captioner.with_decoding(changes)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        self._decoded[changes] = captioner
        if len(self._decoded) > _KEPT:
            self._decoded.popitem(last=False)
        return captioner


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """Collects the warnings of the block as sentences. Only one request may run at a time."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    found = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    notes += list(dict.fromkeys(found))


def described_options() -> list[dict[str, Any]]:
    """Returns the decoding options that the page offers.

    Each has its `name`, its `kind` (`choice`, `flag`, `integer`, `number` or `text`), the `choices`
    of a choice, and the only `search` that reads it, empty if both do.
    """
    kinds = {bool: "flag", int: "integer", float: "number", str: "text"}
    read_by = dict.fromkeys(("beam", "finished", "groups", "diversity"), "beam")
    read_by |= dict.fromkeys(("samples", "top_k", "top_p", "order"), "sample")
    described = []
    for field in dataclasses.fields(options.Options):
        choices = list(options.CHOICES.get(field.name, ()))
        described.append(
            {
                "name": field.name,
                "kind": "choice" if choices else kinds[type(field.default)],
                "choices": choices,
                "search": read_by.get(field.name, ""),
            }
        )
    return described


def picture_of(instance: Any) -> bytes:
    """Returns the picture file of an instance.

    Raises:
      Refused: it is not in base64 (400), or too large (413).
    """
    coded = instance.get("image_bytes", instance) if isinstance(instance, dict) else None
    text = coded.get("b64") if isinstance(coded, dict) else None
    if not isinstance(text, str):
        raise Refused(
            400,
            'An instance must be {"image_bytes": {"b64": "..."}}. Received: '
            f"{str(instance):.60}.",
        )
    try:
        content = _decoded(text)
    except (binascii.Error, ValueError):
        raise Refused(
            400, f"image_bytes must be in base64. Received: {text[:40]!r}. Encode the file."
        ) from None
    if len(content) > MOST_BYTES:
        raise too_large()
    return content


def _decoded(text: str) -> bytes:
    """Decodes base64 in its common forms: a data URL, with - and _, with line ends, unpadded."""
    text = re.sub(r"\Adata:[^,]*;base64,", "", text)
    text = "".join(text.split()).translate(str.maketrans("-_", "+/")).rstrip("=")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def too_large() -> Refused:
    """Returns the error for a picture above the limit."""
    return Refused(
        413, f"A picture must have at most {MOST_BYTES // 1_000_000} MB. Make it smaller."
    )


def _instances(request: Mapping[str, Any]) -> list[Any]:
    given = request.get("instances")
    if "inputs" in request:
        given = _rows(request["inputs"]) if given is None else None
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST_INSTANCES:
        other = "both" if {"instances", "inputs"} <= {*request} else "no list"
        number = len(given) if isinstance(given, list) else other
        raise Refused(
            400,
            f"instances or inputs must hold 1 to {_MOST_INSTANCES} pictures. Received: {number}.",
        )
    return given


def _rows(inputs: Any) -> Any:
    """Returns the instances of `inputs`; a single value is that of every instance."""
    if not isinstance(inputs, dict) or "b64" in inputs:
        return inputs if isinstance(inputs, list) else [inputs]
    counts = {len(column) for column in inputs.values() if isinstance(column, list)}
    if len(counts) > 1:
        raise Refused(
            400,
            "The lists of inputs must have the same length. "
            f"Received: {' and '.join(map(str, sorted(counts)))}.",
        )
    count = max(counts, default=min(len(inputs), 1))
    columns = [v if isinstance(v, list) else [v] * count for v in inputs.values()]
    return [dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=True)]


def _seed_of(instance: Mapping[str, Any]) -> int:
    seed = instance.get("seed", 1)
    if type(seed) is not int or not 0 <= seed <= options.LARGEST_SEED:
        raise Refused(
            400, f"seed must be from 0 to {options.LARGEST_SEED}. Received: {str(seed):.40}."
        )
    return seed


def _text(request: Mapping[str, Any], key: str) -> str:
    value = request.get(key, "")
    if not isinstance(value, str):
        raise Refused(400, f"{key} must be text. Received: {str(value):.60}.")
    return value


def _stream(captioner: ImageCaptioner, content: bytes, kind: str | None, seed: int):
    try:
        return list(
            captioner.stream([content], attention=kind, attention_captions=_MOST_SEEN, seed=seed)
        )
    except Exception as error:
        if not (line := cli.exhausted(error)):
            raise
        raise Refused(503, line) from error


def _prediction(caption: Caption, clip: bool) -> dict[str, Any]:
    """Returns the captions of a picture, with what is known of their words."""
    every = (caption, *caption.alternatives)
    found: dict[str, Any] = {
        "status": "ok",  # as an export has it; another picture is an error of the whole request
        "captions": [one.text for one in every],
        "scores": [_number(one.score) for one in every],
        "words": [list(one.words) for one in every],
        "log_probs": [one.log_probs and [_number(p) for p in one.log_probs] for one in every],
    }
    if caption.seen is None or caption.picture is None:
        return found
    found["attention"] = [_attention(one) for one in every if one.seen is not None]
    found["boxes"] = pictures.packed_boxes(caption.boxes)
    found["tiles"] = pictures.tiles(caption.boxes)
    if clip:  # the boxes are places on a sheet of frames, which a browser does not have
        sheet = io.BytesIO()
        Image.fromarray(caption.picture).save(sheet, "PNG")
        small = pictures.thumbnail(sheet.getvalue(), 960)
        found["picture"] = "data:image/jpeg;base64," + base64.b64encode(small).decode()
    return found


def _attention(caption: Caption) -> dict[str, Any]:
    """Returns the weights of the regions for the words of a caption, as the report packs them."""
    weights = np.asarray(caption.weights)
    packed, peaks = pictures.packed_weights(weights)
    return {"weights": packed, "peaks": peaks, "kind": getattr(caption.seen, "kind", "")}


def _number(value: float) -> float | None:
    return round(float(value), 5) if math.isfinite(value) else None
