"""Captions picture files: `python -m tfcap.caption --model_dir runs/xtransformer IMAGE...`.

If a folder is given, its pictures are captioned; `-` reads a picture from standard input.
`--model_dir` can also be the directory of an export, or the name of a pretrained model; without it
the pretrained model flickr8k captions the pictures. With `--attention out.png` the command also
draws the attention of each word. A run that was trained on clips captions GIF files, and folders of
frames, as clips. `--write` writes the captions into files, as for whole folders of pictures.
"""

import collections
import errno
import os
import sys

from absl import flags

from tfcap import captioning, cli, visualize
from tfcap.captioning import caption_files, inputs
from tfcap.files import json_text

_LOCKED = (errno.EACCES, errno.EPERM, errno.EROFS)  # one folder of many may be read-only
_WRITE_OPTIONS = "out skip_existing overwrite before after max_characters min_score".split()


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
    flags.DEFINE_bool("recursive", False, "Caption the pictures in the folders of a folder, too.")
    flags.DEFINE_enum(
        "write",
        None,
        ["txt", "csv", "jsonl"],
        "Write the captions into files: a text beside each picture, or one table.",
    )
    flags.DEFINE_string(
        "out", None, "The table of --write; by default captions.csv or .jsonl in the folder."
    )
    flags.DEFINE_bool("skip_existing", False, "Leave out pictures whose caption is written.")
    flags.DEFINE_bool("overwrite", False, "Replace captions that are written.")
    flags.DEFINE_string("before", "", "Text that --write puts before every caption.")
    flags.DEFINE_string("after", "", "Text that --write puts after every caption.")
    flags.DEFINE_integer(
        "max_characters",
        0,
        "Longest text that --write writes; a caption is cut after a word. 0 is any length.",
        lower_bound=0,
    )
    flags.DEFINE_float("min_score", None, "--write leaves out captions with a lower score.")
    flags.DEFINE_string(
        "attention", None, "File to write, .png, .pdf or .svg: the attention of each word."
    )
    flags.DEFINE_enum(
        "attention_kind",
        "attention",
        list(visualize.KINDS),
        "What --attention draws. attention: the attention weights; contribution: how much each "
        "region contributed, by gradients.",
    )
    flags.DEFINE_bool(
        "json", False, "Print a JSON object per picture, with all captions and scores."
    )


def _run(argv: list[str]) -> None:
    given = flags.FLAGS
    if not argv[1:]:
        raise cli.UsageError("Give at least one picture file.")
    if given.attention and not given.attention.lower().endswith(visualize.FIGURES):
        endings = ", ".join(visualize.FIGURES)
        raise cli.UsageError(f"--attention={given.attention} does not end with {endings}.")
    if given.rerank == "oracle":
        raise cli.UsageError("--rerank=oracle needs references. Use tfcap.evaluate.")
    _check_write(given, argv[1:])
    options = (given.checkpoint, given.decoding, given.beam, given.data_dir, given.dtype)
    captioner = captioning.load(given.model_dir or None, *options)
    clips, others = captioner.engine.reads_clips, list[str]()
    paths = inputs.expand(argv[1:], clips, given.recursive, others)
    for note in inputs.left_out(others, clips):
        cli.say(f"note: {note}", sys.stderr)
    if not (given.recursive or clips):
        _note_folders(argv[1:])
    _check_attention(given, paths)
    if given.rerank:
        _set_reranker(captioner, given)
    output: caption_files.Output | None = None
    if given.write == "txt":
        output = caption_files.Texts(paths, given.overwrite, given.skip_existing)
    elif given.write:
        output = caption_files.Table(given.out, given.overwrite, given.skip_existing)
    wanted = [path for path in paths if not (output and output.has(path))]
    done, reasons = _caption(captioner, wanted, given, output)
    failed = sum(reasons.values())
    if output:
        where = output.finish()
        print(f"{output.count} captions are written: {where}")
        if left := len(paths) - len(wanted):
            print(f"{left} pictures had a caption")
        if low := done - failed - output.count:
            print(f"{low} captions are left out: their score is below {given.min_score:g}")
    if failed:
        listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(5))
        cli.fail(f"{failed} of {done} pictures could not be captioned ({listed})", 3)


def _set_reranker(captioner: captioning.ImageCaptioner, given) -> None:
    if captioner.engine.exported:
        raise cli.UsageError(
            "--rerank needs a run, and --model_dir is an export. Give the directory of the run."
        )
    from tfcap import runs
    from tfcap.scoring import rerank

    run, options = captioner.engine.run, cli.rerank_options(given.flag_values_dict())
    data = runs.load_data(run, given.data_dir)
    captioner.engine.reranker = rerank.load(run, data, given.rerank, **options)


def _caption(
    captioner: captioning.ImageCaptioner,
    paths: list[str],
    given,
    output: caption_files.Output | None,
) -> tuple[int, collections.Counter[str]]:
    """Captions the pictures; returns their number, and how often each reason made one fail."""
    found = captioner.stream(
        [sys.stdin.buffer if path == "-" else path for path in paths],
        attention=given.attention_kind if given.attention else None,
        batch_size=given.batch_size,
        seed=given.seed,
    )
    results = (result for result in found)  # a generator can be closed
    if output or not sys.stdout.isatty():  # printed captions are progress on a terminal
        results = cli.progress(results, len(paths), "captions", "picture")
    done, reasons = 0, collections.Counter[str]()
    try:
        for result in results:
            done += 1
            if isinstance(result, captioning.Caption):
                try:
                    _take(result, given, output, len(paths) > 1)
                    continue
                except OSError as error:
                    if error.errno not in _LOCKED:  # a full disk stays full
                        raise
                    reason = f"its caption cannot be written: {error.strerror}"
                    result = captioning.Failure(result.source, result.position, reason)
            reasons[result.reason] += 1
            cli.say(f"error: {cli.escaped(result)}", sys.stderr)
    except KeyboardInterrupt:
        results.close()
        raise cli.Interrupted(f"Interrupted after {done} of {len(paths)} pictures.", 130) from None
    return done, reasons


def _take(
    caption: captioning.Caption, given, output: caption_files.Output | None, several: bool
) -> None:
    if output:
        if given.min_score is None or caption.score >= given.min_score:
            wording = given.before, given.after, given.max_characters
            output.write(caption, caption_files.shorten(caption.text, *wording))
    elif given.json:
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


def _note_folders(paths: list[str]) -> None:
    for path in filter(os.path.isdir, paths):
        if folders := sum(entry.is_dir() and entry.name[0] != "." for entry in os.scandir(path)):
            cli.say(
                f"note: {folders} folders in {cli.escaped(path)} are left out; --recursive reads "
                "them",
                sys.stderr,
            )


def _check_write(given, arguments: list[str]) -> None:
    """Raises UsageError for options that need --write, and if --out is missing or wrong."""
    if not given.write:
        for name in _WRITE_OPTIONS:
            if given[name].present:
                raise cli.UsageError(f"--{name} needs --write=txt, csv or jsonl.")
    elif 0 < given.max_characters <= len(given.before + given.after):
        raise cli.UsageError("--max_characters leaves no room between --before and --after.")
    elif given.write == "txt" and given.out:
        raise cli.UsageError("--out needs --write=csv or --write=jsonl.")
    elif given.json:
        raise cli.UsageError("--json prints the captions. Give --write=jsonl for a file.")
    elif given.write != "txt" and not given.out:
        if len(arguments) != 1 or not os.path.isdir(arguments[0]):
            raise cli.UsageError(f"--out is missing, such as --out captions.{given.write}.")
        given.out = os.path.join(arguments[0], f"captions.{given.write}")
    elif given.out and not given.out.endswith(f".{given.write}"):
        raise cli.UsageError(f"--out={given.out} does not end with .{given.write}.")


def _check_attention(given, paths: list[str]) -> None:
    """Raises UsageError if the figures cannot be written."""
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
    os.makedirs(os.path.dirname(given.attention) or ".", exist_ok=True)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
