"""Captions picture files with the captioner that an export serves."""

from collections.abc import Iterator

import tensorflow as tf

from tfcap import decoding, visualize
from tfcap.data import pictures
from tfcap.picture_files import refusal
from tfcap.reranking.consensus import Consensus
from tfcap.runs import CaptionServer


def caption(
    served: CaptionServer,
    paths: list[str],
    batch_size: int = 16,
    seed: int = 1,
    reranker: Consensus | None = None,
) -> Iterator[tuple[str, list[str] | str, list[float] | None]]:
    """Yields (path, captions [K], scores [K]) for each picture file, in order.

    A picture that cannot be read yields (path, reason, None) instead; the others are captioned.

    Args:
      served: the captioner with its backbone.
      paths: the picture files.
      batch_size: pictures captioned together.
      seed: random seed for sampling; each picture derives its own from it and its place in `paths`.
      reranker: reorders the captions and replaces their scores; None keeps them.
    """
    extract, describe = (
        tf.function(function, autograph=False)
        for function in (served.backbone.extract, served.from_features)
    )
    for start in range(0, len(paths), batch_size):
        found: list[tuple[str, str | None]] = []
        images, seeds = [], []
        for place, path in enumerate(paths[start : start + batch_size], start):
            try:
                content = tf.io.read_file(path)
                images.append(served.backbone.decode(content))
                found.append((path, None))
                seeds.append(place)
            except tf.errors.InvalidArgumentError:
                found.append((path, refusal(content.numpy())))
            except tf.errors.NotFoundError:
                found.append((path, "there is no such file"))
            except (tf.errors.OpError, ValueError) as error:
                found.append((path, str(error).splitlines()[0]))
        if images:
            # Every batch is filled up to one size, so that the functions are traced once.
            missing = batch_size - len(images)
            stack = tf.stack(images + images[-1:] * missing)
            numbers = decoding.image_seeds(seed, tf.constant(seeds + [0] * missing, tf.int64))
            features = extract(stack)[:, : served.max_regions or None]
            counts = tf.fill([batch_size], tf.shape(features)[1])
            results = describe(features, counts, numbers)
            captions = [[text.decode() for text in row] for row in results["captions"].numpy()]
            scores = results["scores"].numpy()
            if reranker is not None:
                ranked = reranker.rerank(reranker.vectors(features), captions)
                captions, scores = zip(*((r.captions, r.scores) for r in ranked), strict=True)
            rows = iter(zip(captions, scores, strict=True))
        for path, reason in found:
            if reason:
                yield path, reason, None
            else:
                best, values = next(rows)
                yield path, best, values.tolist()


def draw(target: str, served: CaptionServer, path: str, text: str, kind: str) -> None:
    """Writes the figure of a picture and its caption.

    Args:
      target: the PNG file to write.
      served: the captioner with its backbone.
      path: the picture file.
      text: its caption.
      kind: `attention`, `contribution` or `details`.
    """
    content = tf.io.read_file(path)
    features = served.backbone.extract(served.backbone.decode(content)[None])
    features, boxes = (
        x[:, : served.max_regions or None] for x in (features, served.backbone.boxes[None])
    )
    inputs = {"features": features, "mask": tf.ones(features.shape[:2], tf.bool)}
    arguments = (served.model, served.vocab, inputs, boxes, [text])
    seen: visualize.Attended | visualize.Details
    if kind == "details":
        (seen,) = visualize.details(*arguments)
    else:
        (seen,) = visualize.attended(*arguments, kind)
    visualize.write_picture(target, pictures.decode(content).numpy(), seen)
