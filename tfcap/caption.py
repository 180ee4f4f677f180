"""Captions picture files: `python -m tfcap.caption --model_dir runs/xtransformer IMAGE...`.

With `--attention out.png` also a figure of what the model looked at for each word.
"""

import json
import os
import sys
from collections.abc import Iterator

import tensorflow as tf
from absl import flags

from tfcap import commands, console, decoding, runs, visualize
from tfcap.reranking.consensus import Consensus
from tfcap.runs.server import CaptionServer


def caption(
    served: CaptionServer,
    paths: list[str],
    batch_size: int = 16,
    seed: int = 1,
    reranker: Consensus | None = None,
) -> Iterator[tuple[str, list[str] | str, list[float] | None]]:
    """Yields (path, captions [K], scores [K]) for picture files, in order.

    A picture that cannot be read yields (path, reason, None) instead; the others go on. Samples
    of a picture depend on `seed` and its place among the paths. A `reranker` puts the captions in
    its own order and gives its own scores.
    """
    extract, describe = tf.function(served.backbone.extract), tf.function(served.from_features)
    for start in range(0, len(paths), batch_size):
        found, images, seeds = [], [], []
        for place, path in enumerate(paths[start : start + batch_size], start):
            try:
                images.append(served.backbone.decode(tf.io.read_file(path)))
                found.append((path, None))
                seeds.append(place)
            except (tf.errors.OpError, ValueError) as error:
                found.append((path, _reason(error)))
        if images:
            # A full batch every time: one trace, whatever the last batch holds.
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


def _reason(error: Exception) -> str:
    if isinstance(error, tf.errors.NotFoundError):
        return "there is no such file"
    if isinstance(error, tf.errors.InvalidArgumentError | ValueError):
        return "not a picture that can be decoded (JPEG or PNG), or cut off"
    return str(error).splitlines()[0]


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    commands.define_run_flags()
    commands.define_decoding_flags()
    commands.define_rerank_flags()
    flags.DEFINE_string(
        "data_dir", None, "Prepared data of --rerank and order=consensus; that of the run if not."
    )
    commands.define_seed_flag()
    flags.DEFINE_integer("batch_size", 16, "Pictures at a time.", lower_bound=1)
    flags.DEFINE_string("attention", None, "PNG file for what each word of the caption looked at.")
    flags.DEFINE_enum(
        "attention_kind",
        "attention",
        [*visualize.KINDS, "details"],
        "The attention; the contribution of regions by gradients; details: the layers that look at "
        "regions, heads and channels of the last one, the last expansion.",
    )
    flags.DEFINE_bool("json", False, "One JSON object per picture, with all beams and scores.")


def _run(argv: list[str]) -> None:
    given = flags.FLAGS
    paths = argv[1:]
    if not given.model_dir or not paths:
        raise console.UsageError("give --model_dir and one picture file or more")
    _check_attention(given, paths)
    run = runs.load_together(given.model_dir, given.checkpoint)
    served = runs.server(run, given.decoding, given.beam, given.data_dir)
    if served.backbone is None:
        raise ValueError(
            f"{run.directory} was trained on ready-made features, so that it cannot read "
            "pictures: use tfcap.evaluate on prepared features"
        )
    reranker = None
    if given.rerank:
        reranker = commands.consensus(run, commands.load_data(run, given.data_dir))
    batch_size = min(given.batch_size, len(paths))
    failed = 0
    for path, captions, scores in caption(served, paths, batch_size, given.seed, reranker):
        if scores is None:
            failed += 1
            print(f"error: {path}: {captions}", file=sys.stderr, flush=True)
        elif given.json:
            best = {"image": path, "caption": captions[0], "captions": captions, "scores": scores}
            print(json.dumps(best, ensure_ascii=False), flush=True)
        else:
            print(f"{path}\t{captions[0]}", flush=True)
        if given.attention and scores is not None:
            target = visualize.picture_path(given.attention, path, len(paths) > 1)
            _draw(target, served, path, captions[0], given.attention_kind)
    if failed:
        console.fail(f"{failed} of {len(paths)} pictures could not be captioned", 3)


def _check_attention(given, paths):
    """Raises UsageError, before any work, if the figures cannot be written."""
    if given.rerank == "oracle":
        raise console.UsageError("--rerank=oracle needs the references of evaluate")
    if not given.attention:
        return
    targets = [visualize.picture_path(given.attention, path, len(paths) > 1) for path in paths]
    if len(set(targets)) < len(targets):
        raise console.UsageError(
            "the figures of pictures with the same name would be one file: call it for each"
        )
    folder = os.path.dirname(given.attention) or "."
    if not given.attention.lower().endswith(".png") or not os.path.isdir(folder):
        raise console.UsageError(
            "--attention must name a .png file in a directory that exists. "
            f"Received: {given.attention}"
        )


def _draw(target, served, path, text, kind):
    """Writes the figure of one picture and its caption."""
    content = tf.io.read_file(path)
    features = served.backbone.extract(served.backbone.decode(content)[None])
    features, boxes = (
        x[:, : served.max_regions or None] for x in (features, served.backbone.boxes[None])
    )
    inputs = {"features": features, "mask": tf.ones(features.shape[:2], tf.bool)}
    arguments = (served.model, served.vocab, inputs, boxes, [text])
    if kind == "details":
        (seen,) = visualize.details(*arguments)
    else:
        (seen,) = visualize.attended(*arguments, kind)
    picture = tf.io.decode_image(content, channels=3, expand_animations=False)
    visualize.write_picture(target, picture.numpy(), seen)


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
