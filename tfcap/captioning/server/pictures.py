"""Reads the pictures of a request, and answers requests in the form of TF Serving's REST interface.

A request to TF Serving has `instances`, a list of `{"image_bytes": {"b64": ...}, "seed": ...}`. An
answer has `predictions`, in the order of the instances. A request by columns (`inputs`) is answered
by columns (`outputs`), as TF Serving does.
"""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfcap.captioning.results import Caption
from tfcap.captioning.server.web import MOST_BYTES, RequestError, too_large
from tfcap.decoding import options

MOST_PICTURES = 16  # of one request


class Instances(NamedTuple):
    """The images of a request to TF Serving.

    Attributes:
      images: for each image the bytes of its file, or of several files, and its random seed.
      by_columns: whether the request had `inputs` in place of `instances`.
    """

    images: list[tuple[bytes | tuple[bytes, ...], int]]
    by_columns: bool


def decoded(text: Any, form: str) -> bytes:
    """Decodes the base64 of a picture file, whose lines may be broken.

    Args:
      text: the base64.
      form: where the base64 must stand, for the error.

    Raises:
      RequestError: `text` is no base64, or the file is too large.
    """
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (AttributeError, TypeError, binascii.Error, ValueError):
        raise RequestError(400, f"{form}, with the picture file in base64.") from None
    if len(content) > MOST_BYTES:
        raise too_large()
    return content


def of_url(url: Any) -> bytes:
    """Returns the picture file in a data URL, such as `data:image/jpeg;base64,...`.

    Raises:
      RequestError: it is another URL, no base64, or the file is too large.
    """
    form = "The URL of a picture must be data:image/jpeg;base64,..."
    if not isinstance(url, str) or not url.startswith("data:"):
        raise RequestError(
            400, f"{form}: tfcap loads nothing from other addresses. Send the picture itself."
        )
    head, _, text = url.partition(",")
    if not head.endswith(";base64"):
        raise RequestError(400, f"{form}, with the picture file in base64.")
    return decoded(text, form)


def asked(messages: Any) -> list[dict[str, Any]]:
    """Returns the messages of a conversation that ask for an answer: those after the last answer.

    A last message of the assistant is the beginning of an answer, which is not read.

    Raises:
      RequestError: `messages` is no list of messages.
    """
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise RequestError(400, "`messages` must be a list of messages, which are objects.")
    result: list[dict[str, Any]] = []
    for message in reversed(messages):
        if message.get("role") != "assistant":
            result.insert(0, message)
        elif result:
            break
    return result


def check_number(contents: Sequence[bytes]) -> None:
    """Raises RequestError if there is no picture, or if there are more than `MOST_PICTURES`."""
    if not 1 <= len(contents) <= MOST_PICTURES:
        raise RequestError(
            400,
            f"There are {len(contents)} pictures to caption; there must be 1 to {MOST_PICTURES}. "
            "A captioner answers no questions: send a picture with each request.",
        )


def most_words(name: str, value: Any) -> int | None:
    """Reads the largest number of words of a caption; None and numbers below 0 are no limit.

    Raises:
      RequestError: `value` is no whole number.
    """
    if value is not None and type(value) is not int:
        raise RequestError(400, f"`{name}` must be a whole number.")
    return None if value is None or value < 0 else value


def instances(request: Mapping[str, Any]) -> Instances:
    """Reads the pictures of a request to TF Serving, of which each may have a `seed`.

    Raises:
      RequestError: the request is wrong.
    """
    by_columns = "instances" not in request and "inputs" in request
    rows = _rows(request["inputs"]) if by_columns else request.get("instances")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_PICTURES:
        raise RequestError(
            400, f"A request must have 1 to {MOST_PICTURES} instances, one for each picture."
        )
    return Instances([(_picture(row), _seed(row)) for row in rows], by_columns)


def _rows(inputs: Any) -> list[Any]:
    """Returns the instances of a request by columns, of which each may be a list or one value."""
    columns = inputs if isinstance(inputs, dict) and "b64" not in inputs else {"": inputs}
    lists = [value if isinstance(value, list) else [value] for value in columns.values()]
    if len({*map(len, lists)}) != 1:
        raise RequestError(
            400, "The lists in `inputs` must have the same length: one value for each picture."
        )
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]
    return [row.get("", row) for row in rows]


def _picture(instance: Any) -> bytes | tuple[bytes, ...]:
    """Returns the picture file of an instance, or those of a list; an empty one is missing."""
    form = 'An instance must be {"image_bytes": {"b64": "..."}}'
    try:
        value = instance.get("image_bytes", instance)
        texts = [one["b64"] for one in (value if isinstance(value, list) else [value])]
    except (AttributeError, TypeError, KeyError):
        raise RequestError(400, f"{form}, with the picture file in base64.") from None
    files = [decoded(text, form) for text in texts]
    return tuple(filter(None, files)) if isinstance(value, list) else files[0]


def _seed(instance: Mapping[str, Any]) -> int:
    seed = instance.get("seed", 1)
    if type(seed) is not int or not 0 <= seed <= options.LARGEST_SEED:
        raise RequestError(400, f"`seed` must be a whole number from 0 to {options.LARGEST_SEED}.")
    return seed


def answer(predictions: Sequence[Mapping[str, Any]], by_columns: bool) -> dict[str, Any]:
    """Returns an answer as TF Serving gives it.

    Args:
      predictions: a result of `prediction` for each picture.
      by_columns: whether the request had `inputs` in place of `instances`.
    """
    if by_columns:
        return {"outputs": {k: [one.get(k) for one in predictions] for k in predictions[0]}}
    return {"predictions": predictions}


def prediction(caption: Caption) -> dict[str, Any]:
    """Returns the captions of a picture for an answer as TF Serving gives it, best first.

    Its keys `captions`, `scores`, `words` and `log_probs` each have a list with an entry for each
    caption, and so has `confidences` of a calibrated model.
    """
    captions = (caption, *caption.alternatives)
    result: dict[str, Any] = {
        "captions": [one.text for one in captions],
        "scores": [number(one.score) for one in captions],
        "words": [list(one.words) for one in captions],
        "log_probs": [one.log_probs and [number(p) for p in one.log_probs] for one in captions],
    }
    if caption.confidence is not None:
        result["confidences"] = [number(one.confidence) for one in captions]
    return result


def number(value: float | None) -> float | None:
    """Returns a number for JSON, rounded; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), 5)
