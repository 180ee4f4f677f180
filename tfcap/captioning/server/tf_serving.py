"""Answers requests in the form of TF Serving's REST interface.

A request has `instances`, a list of `{"image_bytes": {"b64": ...}, "seed": ...}`. An answer has
`predictions`, in the order of the instances. A request by columns (`inputs`) is answered by columns
(`outputs`), as TF Serving does.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from tfcap.captioning.results import Caption
from tfcap.captioning.server import pictures, web
from tfcap.decoding import options

if TYPE_CHECKING:
    from tfcap.captioning.server.service import Service


class Instances(NamedTuple):
    """The images of a request to TF Serving.

    Attributes:
      images: for each image the bytes of its file, or of several files, and its random seed.
      by_columns: whether the request had `inputs` in place of `instances`.
    """

    images: list[tuple[bytes | tuple[bytes, ...], int]]
    by_columns: bool


def handlers(service: "Service") -> dict[tuple[str, str], web.Handler]:
    """Returns the handlers, see `web.application`."""
    return {
        ("POST", "/v1/models/{name:path}:predict"): functools.partial(_predict, service),
        ("GET", "/v1/models/{name:path}"): functools.partial(_model, service),
    }


async def _predict(service: "Service", request: Request) -> Response:
    with service.room(503):
        content = await service.read(request)
        service.check_model(request.path_params["name"])
        requested = await service.run(instances, content)
        images, seeds = zip(*requested.images, strict=True)
        captions = await service.captions(request, images, list(map(options.first_seed, seeds)))
        predictions = [prediction(caption) for caption in captions]
        return web.json_response(answer(predictions, requested.by_columns))


async def _model(service: "Service", request: Request) -> Response:
    """Tells of the model as OpenAI and TF Serving do, which have the same path for it."""
    service.check_model(request.path_params["name"])
    status = {"error_code": "OK", "error_message": ""}
    versions = [{"version": "1", "state": "AVAILABLE", "status": status}]
    return web.json_response(service.about() | {"model_version_status": versions})


def instances(request: Mapping[str, Any]) -> Instances:
    """Reads the pictures of a request to TF Serving, of which each may have a `seed`.

    Raises:
      RequestError: the request is wrong.
    """
    by_columns = "instances" not in request and "inputs" in request
    rows = _rows(request["inputs"]) if by_columns else request.get("instances")
    if not isinstance(rows, list) or not 1 <= len(rows) <= pictures.MOST_PICTURES:
        raise web.RequestError(
            400,
            f"A request must have 1 to {pictures.MOST_PICTURES} instances, one for each picture.",
        )
    return Instances([(_picture(row), _seed(row)) for row in rows], by_columns)


def _rows(inputs: Any) -> list[Any]:
    """Returns the instances of a request by columns, of which each may be a list or one value."""
    columns = inputs if isinstance(inputs, dict) and "b64" not in inputs else {"": inputs}
    lists = [value if isinstance(value, list) else [value] for value in columns.values()]
    if len({*map(len, lists)}) != 1:
        raise web.RequestError(
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
        raise web.RequestError(400, f"{form}, with the picture file in base64.") from None
    files = [pictures.decoded(text, form) for text in texts]
    return tuple(filter(None, files)) if isinstance(value, list) else files[0]


def _seed(instance: Mapping[str, Any]) -> int:
    seed = instance.get("seed", 1)
    if type(seed) is not int or not 0 <= seed <= options.LARGEST_SEED:
        raise web.RequestError(
            400, f"`seed` must be a whole number from 0 to {options.LARGEST_SEED}."
        )
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
        "scores": [web.number(one.score) for one in captions],
        "words": [list(one.words) for one in captions],
        "log_probs": [one.log_probs and [web.number(p) for p in one.log_probs] for one in captions],
    }
    if caption.confidence is not None:
        result["confidences"] = [web.number(one.confidence) for one in captions]
    return result
