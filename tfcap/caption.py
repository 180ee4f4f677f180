"""Captions picture files: `python -m tfcap.caption --model_dir runs/xtransformer IMAGE...`.

With `--attention out.png` it also draws the attention of each word.
"""

import json
import os
import sys

from absl import flags

from tfcap import console, visualize
from tfcap import flags as run_flags


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    run_flags.define_run_flags()
    run_flags.define_decoding_flags()
    run_flags.define_rerank_flags()
    flags.DEFINE_string(
        "data_dir",
        None,
        "Prepared data for --rerank and order=consensus; by default that of the run.",
    )
    run_flags.define_seed_flag()
    flags.DEFINE_integer("batch_size", 16, "Number of pictures captioned together.", lower_bound=1)
    flags.DEFINE_string("attention", None, "File to write: a PNG with the attention of each word.")
    flags.DEFINE_enum(
        "attention_kind",
        "attention",
        [*visualize.KINDS, "details"],
        "What --attention draws. attention: the attention weights; contribution: how much each "
        "region contributed, by gradients; details: layers, heads, channels and expansions.",
    )
    flags.DEFINE_bool(
        "json", False, "Print a JSON object per picture, with all captions and scores."
    )


def _run(argv: list[str]) -> None:
    given = flags.FLAGS
    paths = argv[1:]
    if not given.model_dir or not paths:
        raise console.UsageError(
            "--model_dir and at least one picture file must be given. Received: "
            f"--model_dir={','.join(given.model_dir)} and {len(paths)} files."
        )
    _check_attention(given, paths)
    from tfcap import runs
    from tfcap.captioning import caption, draw

    run = runs.load_together(given.model_dir, given.checkpoint)
    served = runs.server(run, given.decoding, given.beam, given.data_dir)
    if served.backbone is None:
        raise ValueError(
            f"{run.directory} cannot read pictures, because it was trained on ready-made features. "
            "Use tfcap.evaluate on prepared features."
        )
    reranker = None
    if given.rerank:
        reranker = run_flags.consensus(run, run_flags.load_data(run, given.data_dir))
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
            draw(target, served, path, captions[0], given.attention_kind)
    if failed:
        console.fail(f"{failed} of {len(paths)} pictures could not be captioned", 3)


def _check_attention(given, paths):
    """Raises UsageError, before any work, if the figures cannot be written."""
    if given.rerank == "oracle":
        raise console.UsageError(
            "--rerank=oracle needs references. Received: none. Use tfcap.evaluate."
        )
    if not given.attention:
        return
    targets = [visualize.picture_path(given.attention, path, len(paths) > 1) for path in paths]
    if len(set(targets)) < len(targets):
        raise console.UsageError(
            "--attention cannot be used for several pictures of the same name: their figures would "
            "be one file. Caption them one by one."
        )
    folder = os.path.dirname(given.attention) or "."
    if not given.attention.lower().endswith(".png") or not os.path.isdir(folder):
        raise console.UsageError(
            "--attention must name a .png file in a directory that exists. "
            f"Received: {given.attention}."
        )


def main() -> None:
    """Runs the command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
