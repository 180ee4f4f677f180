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

from tfcap import captioning, cli, errors, pretrained, progress, visualize
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
    flags.DEFINE_list(
        "write",
        [],
        "Write the captions into files: txt (beside each picture), csv or jsonl (a table), html (a "
        "page with small pictures), or several, as in txt,html.",
    )
    flags.DEFINE_string(
        "out", None, "The table or page of --write; by default captions.csv, ... in the folder."
    )
    flags.DEFINE_bool("skip_existing", False, "Leave out pictures whose caption is written.")
    flags.DEFINE_bool("overwrite", False, "Replace captions that are written.")
    flags.DEFINE_string("before", "", "Text that --write puts before every caption.")
    flags.DEFINE_string("after", "", "Text that --write puts after every caption.")
    flags.DEFINE_integer(
        "max_characters",
        0,
        "Longest text that --write writes: the best hypothesis that fits, or a caption that is cut "
        "after a phrase. 0 is any length.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "sentence", False, "Begin captions with a capital; end them with a full stop."
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
        raise errors.UsageError("Give at least one picture file.")
    if given.attention and not given.attention.lower().endswith(visualize.FIGURES):
        endings = ", ".join(visualize.FIGURES)
        raise errors.UsageError(f"--attention={given.attention} does not end with {endings}.")
    if given.rerank == "oracle":
        raise errors.UsageError("--rerank=oracle needs references. Use tfcap.evaluate.")
    _check_write(given, argv[1:])
    options = (given.checkpoint, given.decoding, given.beam, given.data_dir, given.dtype)
    cli.say_loading(given.model_dir or [pretrained.DEFAULT])
    captioner = captioning.load(given.model_dir or None, *options)
    clips, others = captioner.engine.reads_clips, list[str]()
    paths = inputs.expand(argv[1:], clips, given.recursive, others)
    for note in inputs.left_out(others, clips):
        progress.say(f"note: {note}", sys.stderr)
    if not (given.recursive or clips):
        _note_folders(argv[1:])
    _check_attention(given, paths)
    if given.rerank:
        _set_reranker(captioner, given)
    output = None
    if given.write:
        tables = _tables(given, argv[1:])
        options = given.write, paths, tables, given.overwrite, given.skip_existing
        output = caption_files.open_output(*options)
    wanted = [path for path in paths if not (output and output.has(path))]
    reasons, left_out = _caption(captioner, wanted, given, output)
    if output:
        written = output.count
        print(f"{written} captions are written: {output.finish()}")
        if left := len(paths) - len(wanted):
            print(f"{left} pictures had a caption")
        for reason, count in left_out.items():
            print(f"{count} captions are left out: {reason}")
    if failed := reasons.total():
        listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(5))
        cli.fail(f"{failed} of {len(wanted)} pictures could not be captioned ({listed})", 3)


def _set_reranker(captioner: captioning.ImageCaptioner, given) -> None:
    if captioner.engine.exported:
        raise errors.UsageError(
            "--rerank needs a run, and --model_dir is an export. Give the directory of the run."
        )
    from tfcap import runs
    from tfcap.inference.rerank import reranker_of
    from tfcap.inference.rerank_arguments import RerankArguments

    run, values = captioner.engine.run, given.flag_values_dict()
    args = RerankArguments(**{n: v for n, v in values.items() if n.startswith("rerank")})
    data = runs.load_data(run, given.data_dir)
    captioner.engine.reranker = reranker_of(args, run, data)


def _caption(
    captioner: captioning.ImageCaptioner,
    paths: list[str],
    given,
    output: caption_files.Several | None,
) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Captions the pictures.

    Returns how often each reason made a picture fail, and a caption be left out of the files.
    """
    found = captioner.stream(
        [sys.stdin.buffer if path == "-" else path for path in paths],
        attention=given.attention_kind if given.attention else None,
        batch_size=given.batch_size,
        seed=given.seed,
    )
    results = (result for result in found)  # a generator can be closed
    if output or not sys.stdout.isatty():  # printed captions are progress on a terminal
        results = progress.progress(results, len(paths), "captions", "picture")
    done, reasons, left_out = 0, collections.Counter[str](), collections.Counter[str]()
    try:
        for result in results:
            done += 1
            if isinstance(result, captioning.Caption):
                try:
                    if reason := _take(result, given, output, len(paths) > 1):
                        left_out[reason] += 1
                    continue
                except OSError as error:
                    if error.errno not in _LOCKED:  # a full disk stays full
                        raise
                    reason = f"its caption cannot be written: {error.strerror}"
                    result = captioning.Failure(result.source, result.position, reason)
            reasons[result.reason] += 1
            progress.say(f"error: {errors.escaped(result)}", sys.stderr)
    except KeyboardInterrupt:
        results.close()
        raise errors.Interrupted(
            f"Interrupted after {done} of {len(paths)} pictures.", 130
        ) from None
    return reasons, left_out


def _take(
    caption: captioning.Caption, given, output: caption_files.Several | None, several: bool
) -> str:
    """Writes or prints a caption; returns why it is left out of the files, or ""."""
    wording = caption_files.Wording(given.before, given.after, given.max_characters, given.sentence)
    reason = ""
    if output:
        best = wording.first(caption)
        text = wording.text(best.text)
        if given.min_score is not None and best.score < given.min_score:
            reason = f"their score is below {given.min_score:g}"
        elif not text:
            limit = given.max_characters
            reason = "no phrase of them fits into --max_characters" if limit else "they are empty"
        else:
            output.write(best, text)
    elif given.json:
        every = (caption, *caption.alternatives)
        content = {
            "image": caption.source or "-",
            "caption": wording.text(caption.text),
            "captions": [wording.text(one.text) for one in every],
            "scores": [one.score for one in every],
        }
        print(json_text(content), flush=True)
    else:
        print(f"{errors.escaped(caption.source or '-')}\t{wording.text(caption.text)}", flush=True)
    if given.attention:
        caption.draw(visualize.picture_path(given.attention, str(caption.source or "-"), several))
    return reason


def _note_folders(paths: list[str]) -> None:
    for path in filter(os.path.isdir, paths):
        if folders := sum(entry.is_dir() and entry.name[0] != "." for entry in os.scandir(path)):
            progress.say(
                f"note: {folders} folders in {errors.escaped(path)} are left out; --recursive "
                "reads them",
                sys.stderr,
            )


def _check_write(given, arguments: list[str]) -> None:
    """Raises UsageError for options that need --write, and if --out is missing or wrong."""
    kinds = f"{', '.join(caption_files.KINDS[:-1])} or {caption_files.KINDS[-1]}"
    if not given.write:
        for name in _WRITE_OPTIONS:
            if given[name].present:
                raise errors.UsageError(f"--{name} needs --write={kinds}.")
    elif unknown := [kind for kind in given.write if kind not in caption_files.KINDS]:
        raise errors.UsageError(f"--write must be {kinds}, and not {unknown[0]!r}.")
    elif 0 < given.max_characters <= len(given.before + given.after) + given.sentence:
        raise errors.UsageError("--max_characters leaves no room between --before and --after.")
    elif given.json:
        raise errors.UsageError("--json prints the captions. Give --write=jsonl for a file.")
    else:
        _tables(given, arguments)


def _tables(given, arguments: list[str]) -> list[str]:
    """Returns the paths of the tables and of the page; raises UsageError as `_check_write`."""
    kinds = [kind for kind in dict.fromkeys(given.write) if kind != "txt"]
    if given.out:
        if len(kinds) != 1:
            raise errors.UsageError("--out needs --write=csv, jsonl or html: one of them.")
        if not given.out.endswith(f".{kinds[0]}"):
            raise errors.UsageError(f"--out={given.out} does not end with .{kinds[0]}.")
        return [given.out]
    if kinds and (len(arguments) != 1 or not os.path.isdir(arguments[0])):
        raise errors.UsageError(f"--out is missing, such as --out captions.{kinds[0]}.")
    return [os.path.join(arguments[0], f"captions.{kind}") for kind in kinds]


def _check_attention(given, paths: list[str]) -> None:
    """Raises UsageError if the figures cannot be written."""
    if not given.attention:
        return
    targets = [visualize.picture_path(given.attention, path, len(paths) > 1) for path in paths]
    if len(set(targets)) < len(targets):
        raise errors.UsageError(
            "--attention would write one file for several pictures of the same name. Caption them "
            "one by one."
        )
    if {os.path.realpath(path) for path in paths} & {os.path.realpath(path) for path in targets}:
        raise errors.UsageError(f"--attention={given.attention} would overwrite a picture.")
    os.makedirs(os.path.dirname(given.attention) or ".", exist_ok=True)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
