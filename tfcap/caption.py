"""Captions picture files: `python -m tfcap.caption --model_dir runs/xtransformer IMAGE...`."""

import json
import sys
from collections.abc import Iterator

import tensorflow as tf
from absl import flags

from tfcap import console
from tfcap.serving import CaptionServer
from tfcap.tasks import runs


def caption(
    served: CaptionServer, paths: list[str], batch_size: int = 16
) -> Iterator[tuple[str, list[str] | str, list[float] | None]]:
    """Yields (path, captions [K], scores [K]) for picture files, in order.

    A picture that cannot be read yields (path, reason, None) instead; the others go on.
    """
    describe = tf.function(served.from_images)
    for start in range(0, len(paths), batch_size):
        found, images = [], []
        for path in paths[start : start + batch_size]:
            try:
                images.append(served.backbone.decode(tf.io.read_file(path)))
                found.append((path, None))
            except (tf.errors.OpError, ValueError) as error:
                found.append((path, _reason(error)))
        if images:
            # A full batch every time: one trace, whatever the last batch holds.
            stack = tf.stack(images + images[-1:] * (batch_size - len(images)))
            results = describe(stack)
            rows = iter(zip(results["captions"].numpy(), results["scores"].numpy(), strict=True))
        for path, reason in found:
            if reason:
                yield path, reason, None
            else:
                captions, scores = next(rows)
                yield path, [text.decode() for text in captions], scores.tolist()


def _reason(error: Exception) -> str:
    if isinstance(error, tf.errors.NotFoundError):
        return "there is no such file"
    if isinstance(error, tf.errors.InvalidArgumentError | ValueError):
        return "not a picture that can be decoded (JPEG or PNG), or cut off"
    return str(error).splitlines()[0]


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_multi_string(
        "model_dir", [], "Directory of a training run; repeated, their ensemble."
    )
    flags.DEFINE_string("checkpoint", "best", "best, latest, or a checkpoint's path.")
    flags.DEFINE_integer("beam", 0, "Beam width; 0 takes that of the run.", lower_bound=0)
    flags.DEFINE_integer("batch_size", 16, "Pictures at a time.", lower_bound=1)
    flags.DEFINE_bool("json", False, "One JSON object per picture, with all beams and scores.")


def _run(argv: list[str]) -> None:
    given = flags.FLAGS
    paths = argv[1:]
    if not given.model_dir or not paths:
        raise console.UsageError("give --model_dir and one picture file or more")
    run = runs.load_together(given.model_dir, given.checkpoint)
    served = runs.server(run, given.beam)
    if served.backbone is None:
        raise ValueError(
            f"{run.directory} was trained on ready-made features, so that it cannot read "
            "pictures: use tfcap.evaluate on prepared features"
        )
    batch_size = min(given.batch_size, len(paths))
    failed = 0
    for path, captions, scores in caption(served, paths, batch_size):
        if scores is None:
            failed += 1
            print(f"error: {path}: {captions}", file=sys.stderr, flush=True)
        elif given.json:
            best = {"image": path, "caption": captions[0], "captions": captions, "scores": scores}
            print(json.dumps(best, ensure_ascii=False), flush=True)
        else:
            print(f"{path}\t{captions[0]}", flush=True)
    if failed:
        console.fail(f"{failed} of {len(paths)} pictures could not be captioned", 3)


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
