"""The captioner behind `tfcap serve`, with its limits and its measurements."""

import asyncio
import contextlib
import dataclasses
import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import prometheus_client
from PIL import Image
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tfcap.captioning import inputs
from tfcap.captioning.caption_files import Wording
from tfcap.captioning.image_captioner import ImageCaptioner, Prepared, prepare
from tfcap.captioning.results import Caption, Failure
from tfcap.captioning.server import web
from tfcap.captioning.server.batches import Batches
from tfcap.decoding.options import LARGEST_SEED, first_seed
from tfcap.files import json_text
from tfcap.images import SERVED_PIXELS, require_readable

_DECODERS = 4  # pictures that are decoded at the same time; one of 50 million pixels takes 0.5 GB
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `tfcap serve` is told by its flags.

    Attributes:
      name: the name of the model in requests.
      batch_size: the largest number of pictures that are captioned together.
      most_requests: number of requests that are read or wait at the same time; others are refused.
      seconds: how long a request may wait for its captions.
      wording: how the text of a caption looks.
      debug: True writes the traceback of an unexpected error to the log.
    """

    name: str
    batch_size: int = 8
    most_requests: int = 32
    seconds: int = 60
    wording: Wording = Wording()
    debug: bool = False


class Choice(NamedTuple):
    """One answer about the pictures of a request.

    Attributes:
      text: the caption; of several pictures one a line.
      is_cut: whether a caption was cut to a number of words.
      words: number of words in the text.
      captions: for each picture `caption`, `score` and, if the model is calibrated, `confidence`.
    """

    text: str
    is_cut: bool
    words: int
    captions: list[dict[str, Any]]

    def content(self, is_json: bool) -> str:
        """Returns the text, or a JSON object with `captions`."""
        return json_text({"captions": self.captions}) if is_json else self.text


class Service:
    """Captions the pictures of requests.

    Args:
      captioner: the captioner.
      settings: the settings.

    Attributes:
      captioner, settings: the arguments.
      started: the time of the start in seconds since 1970.
    """

    def __init__(self, captioner: ImageCaptioner, settings: Settings):
        self.captioner = captioner
        self.settings = settings
        self.started = time.time()
        self.metrics = _Metrics(self)
        self._inside = 0
        self._decoders = ThreadPoolExecutor(_DECODERS)
        runtime = captioner.runtime
        alone = runtime.threads > 1  # LiteRT captions one picture on one thread
        self._batches = Batches(
            runtime,
            1 if alone else settings.batch_size,
            runtime.threads,
            self.metrics.batches.observe,
        )

    def warm_up(self) -> None:
        """Captions black pictures, so that the first request need not wait.

        TensorFlow traces the graphs of a model at the first file that it decodes, at the
        first caption, and again at the first batch.
        """
        file = io.BytesIO()
        Image.new("RGB", (32, 32)).save(file, "JPEG")
        for number in (1, 2):
            list(self.captioner.stream([file.getvalue()] * number))

    @property
    def inside(self) -> int:
        """Number of requests that are read or wait."""
        return self._inside

    @contextlib.contextmanager
    def room(self, status: int) -> Iterator[None]:
        """A place for a request inside the block.

        Args:
          status: the status of the answer if there is none, 429 or 503.

        Raises:
          RequestError: as many requests as may be are read or wait.
        """
        if self._inside >= self.settings.most_requests:
            raise web.RequestError(
                status,
                f"{self._inside} requests wait, which is the limit. Try again in a second.",
                {"Retry-After": "1"},
            )
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Calls a function that takes long beside the loop of the server."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoders, function, *args)

    async def read(self, request: Request) -> dict[str, Any]:
        """Reads the body of a request, a JSON object."""
        return await self.run(web.json_object, await web.body(request))

    def check_model(self, name: Any) -> None:
        """Raises RequestError if a request is for another model; without a name it is for this."""
        own = self.settings.name
        if name and (not isinstance(name, str) or name.removesuffix(":latest") != own):
            raise web.RequestError(
                404, f"There is no model {str(name)[:100]!r}. This server has {own!r}."
            )

    async def captions(
        self,
        request: Request,
        images: Sequence[inputs.Content],
        seeds: Sequence[int],
    ) -> list[Caption]:
        """Captions the pictures of a request.

        Args:
          request: the request, whose body was read. If its client leaves, pictures that wait are
            not captioned.
          images: for each image the bytes of its file; of several files for a model that reads
            several pictures of an image.
          seeds: a random seed for each image, as `Runtime.caption` takes it.

        Returns:
          The captions of each image.

        Raises:
          RequestError: a picture cannot be read, or waited too long.
          ClientDisconnect: the client has left.
        """
        work = asyncio.create_task(self._captions(images, seeds))
        gone = asyncio.create_task(_left(request))
        try:
            await asyncio.wait(
                {work, gone},
                timeout=self.settings.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work.done():
                return work.result()
            if gone.done():
                raise ClientDisconnect
        finally:
            work.cancel()
            gone.cancel()
        raise web.RequestError(
            503,
            f"The captions are not ready after {self.settings.seconds} seconds. Try again later.",
            {"Retry-After": "10"},
        )

    async def _captions(
        self, images: Sequence[inputs.Content], seeds: Sequence[int]
    ) -> list[Caption]:
        prepared = await asyncio.gather(
            *(self.run(self._prepare, number, image) for number, image in enumerate(images))
        )
        _require(prepared, len(images))
        results = await asyncio.gather(
            *(
                asyncio.wrap_future(self._batches.submit(picture, seed))
                for picture, seed in zip(prepared, seeds, strict=False)
                if isinstance(picture, Prepared)
            )
        )
        _require(results, len(images))
        self.metrics.pictures.inc(len(results))
        return [result for result in results if isinstance(result, Caption)]

    def _prepare(self, number: int, content: inputs.Content) -> Prepared | Failure:
        try:
            for view in content if isinstance(content, tuple) else [content]:
                if isinstance(view, bytes):
                    require_readable(view, SERVED_PIXELS)
        except ValueError as error:
            return Failure(None, number, str(error))
        return prepare(self.captioner.runtime, inputs.Picture(number, None, content))

    async def captions_of(
        self, request: Request, contents: Sequence[bytes], seed: Any
    ) -> list[Caption]:
        """Captions the pictures of a message, see `captions`.

        Args:
          request: the request.
          contents: the bytes of the picture files. If the model reads several pictures of an image,
            they are one image.
          seed: the random seed, a whole number of any size; None is 1.
        """
        if seed is not None and type(seed) is not int:
            raise web.RequestError(400, "`seed` must be a whole number.")
        first = first_seed(1 if seed is None else seed % (LARGEST_SEED + 1))
        is_one = self.captioner.runtime.views > 1
        images: Sequence[inputs.Content] = [tuple(contents)] if is_one else contents
        return await self.captions(request, images, range(first, first + len(images)))

    def choices(
        self, captions: Sequence[Caption], number: int = 1, most_words: int | None = None
    ) -> list[Choice]:
        """Returns answers about the pictures of a request, best first.

        Args:
          captions: the captions of each picture.
          number: the largest number of answers. There are no more than a picture has captions.
          most_words: captions are cut after so many words; None does not cut them.
        """
        columns = [(one, *one.alternatives)[:number] for one in captions]
        choices = []
        for row in zip(*columns, strict=False):
            kept = [self._cut(one, most_words) for one in row]
            texts = list(map(self.settings.wording.of, kept))
            details = [
                {"caption": text, "score": web.number(one.score)}
                | ({} if one.confidence is None else {"confidence": web.number(one.confidence)})
                for text, one in zip(texts, row, strict=True)
            ]
            words = [len(one.words) for one in kept]
            is_cut = sum(words) < sum(len(one.words) for one in row)
            choices.append(Choice("\n".join(texts), is_cut, sum(words), details))
        return choices

    def _cut(self, caption: Caption, most_words: int | None) -> Caption:
        words = caption.words[:most_words]
        if words == caption.words:
            return caption
        text = self.captioner.runtime.shown(" ".join(words))
        return dataclasses.replace(caption, text=text, words=words)

    def about(self) -> dict[str, Any]:
        """Returns the model as OpenAI tells of it."""
        return {
            "id": self.settings.name,
            "object": "model",
            "created": int(self.started),
            "owned_by": "tfcap",
        }


def _require(results: Sequence[Any], images: int) -> None:
    """Raises RequestError if one of the results is a failure."""
    for failure in results:
        if isinstance(failure, Failure):
            which = f"Picture {failure.position + 1}: " if images > 1 else ""
            reason = which + failure.reason
            raise web.RequestError(400, f"{reason[0].upper()}{reason[1:]}")


async def _left(request: Request) -> None:
    """Returns when the client of a request, whose body was read, has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Metrics:
    """The measurements of a service in Prometheus' form.

    Attributes:
      pictures: counts the pictures that got captions.
      batches: a histogram of the number of pictures in a batch.
    """

    def __init__(self, service: Service):
        self._registry = registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        inside = prometheus_client.Gauge(
            "tfcap_requests_inside", "Requests that are read or wait.", registry=registry
        )
        inside.set_function(lambda: service.inside)
        self._requests = prometheus_client.Counter(
            "tfcap_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            "tfcap_request_seconds", "Time of a request.", ["path"], registry=registry
        )
        self.pictures = prometheus_client.Counter(
            "tfcap_pictures", "Pictures captioned.", registry=registry
        )
        self.batches = prometheus_client.Histogram(
            "tfcap_batch_pictures",
            "Pictures in a batch.",
            buckets=[1, 2, 4, 8, 16, 32, 64],
            registry=registry,
        )

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    async def page(self, request: Request) -> Response:
        """Answers with the measurements."""
        text = prometheus_client.generate_latest(self._registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)
