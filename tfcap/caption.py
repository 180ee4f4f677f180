"""Captions picture files: `python -m tfcap.caption --model_dir runs/xtransformer IMAGE...`.

If a folder is given, its pictures are captioned; `-` reads a picture from standard input.
`--model_dir` can also be the directory of an export, or the name of a pretrained model; without it
the pretrained model flickr8k captions the pictures. With `--attention out.png` the command also
draws the attention of each word. A run that was trained on clips captions GIF files, and folders of
frames, as clips.
"""

import os
import sys

from absl import flags

from tfcap import captioning, cli, pretrained, visualize
from tfcap.captioning import inputs
from tfcap.files import json_text


def _define_flags() -> None:
    cli.define_run_flags()
    cli.define_decoding_flags()
    cli.define_rerank_flags()
    flags.DEFINE_string(
        "data_dir",
        None,
        "Prepared data for --rerank and order=consensus; by default that of the run.",
    )
    cli.define_seed_flag()
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
    if not given.model_dir:
        given.model_dir = [pretrained.directory(pretrained.DEFAULT)]
    clips = any(map(captioning.reads_clips, given.model_dir))
    paths = inputs.expand(argv[1:], clips)
    if not paths:
        raise cli.UsageError("Give at least one picture file.")
    if given.rerank == "oracle":
        raise cli.UsageError("--rerank=oracle needs references. Use tfcap.evaluate.")
    _check_attention(given, paths)
    done = failed = 0
    pictures = [sys.stdin.buffer if path == "-" else path for path in argv[1:]]
    found = _load(given).stream(
        pictures,
        attention=given.attention_kind if given.attention else None,
        batch_size=given.batch_size,
        seed=given.seed,
    )
    results = (result for result in found)  # a generator can be closed
    # Only a loaded export knows whether a folder is one clip.
    unknown = captioning.exported_model(given.model_dir[0]) and any(map(os.path.isdir, argv))
    total = None if unknown else len(paths)
    if not sys.stdout.isatty():  # on a terminal the captions themselves are the progress
        results = cli.progress(results, total, "captions", "picture")
    try:
        for result in results:
            done += 1
            if isinstance(result, captioning.Failure):
                failed += 1
                cli.say(f"error: {cli.escaped(result)}", sys.stderr)
            else:
                _print(result, given, len(paths) > 1)
    except KeyboardInterrupt:
        results.close()
        of = f"{done} of {total}" if total else done
        raise cli.Interrupted(f"Interrupted after {of} pictures.", 130) from None
    if failed:
        cli.fail(f"{failed} of {done} pictures could not be captioned", 3)


def _print(caption: captioning.Caption, given, several: bool) -> None:
    """Prints a caption, and draws the figure of --attention."""
    if given.json:
        every = (caption, *caption.alternatives)
        content = {
            "image": caption.source or "-",
            "caption": caption.text,
            "captions": [one.text for one in every],
            "scores": [one.score for one in every],
        }
        print(json_text(content), flush=True)
    else:
        print(f"{cli.escaped(caption.source or '-')}\t{caption}", flush=True)
    if given.attention:
        caption.draw(visualize.picture_path(given.attention, str(caption.source or "-"), several))


def _load(given) -> captioning.ImageCaptioner:
    """Loads the captioner of the flags."""
    options = (given.checkpoint, given.decoding, given.beam, given.data_dir, given.dtype)
    captioner = captioning.load(given.model_dir, *options)
    if given.rerank:
        if all(map(captioning.exported_model, given.model_dir)):
            raise cli.UsageError(
                "--rerank needs a run, and --model_dir is an export. Give the directory of the run."
            )
        from tfcap import runs
        from tfcap.scoring import rerank

        run, settings = captioner.engine.run, cli.rerank_options(given.flag_values_dict())
        data = runs.load_data(run, given.data_dir)
        captioner.engine.reranker = rerank.load(run, data, given.rerank, **settings)
    return captioner


def _check_attention(given, paths):
    """Raises UsageError, before any work, if the figures cannot be written."""
    if not given.attention:
        return
    targets = [visualize.picture_path(given.attention, path, len(paths) > 1) for path in paths]
    if len(set(targets)) < len(targets):
        raise cli.UsageError(
            "--attention would write one file for several pictures of the same name. Caption them "
            "one by one."
        )
    if {os.path.realpath(path) for path in paths} & {os.path.realpath(path) for path in targets}:
        raise cli.UsageError(f"--attention={given.attention} would overwrite a picture.")
    if not given.attention.lower().endswith(".png"):
        raise cli.UsageError(f"--attention={given.attention} does not end with .png.")
    os.makedirs(os.path.dirname(given.attention) or ".", exist_ok=True)


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
