"""Captions picture files: `python -m tfcap.caption --model_dir runs/xtransformer IMAGE...`.

If a folder is given, its pictures are captioned; `-` reads a picture from standard input.
`--model_dir` can also be the directory of an export, or the name of a pretrained model; without it
the pretrained model flickr8k captions the pictures. With `--attention out.png` the command also
draws the attention of each word. A run that was trained on clips captions GIF files, and folders of
frames, as clips. `--write` writes the captions into files, as for whole folders of pictures.
`--images SHARDS --write=parquet --out DIR` captions tar files, Parquet files and large folders in
several processes.
"""

import collections
import errno
import logging
import math
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from tfcap import captioning, cli, errors, pretrained, progress
from tfcap.arguments import argument, arguments
from tfcap.captioning import caption_files, inputs
from tfcap.captioning.image_captioner import reads
from tfcap.captioning.portable_model import cores
from tfcap.captioning.shards import reading, work, writing
from tfcap.files import LEFTOVERS, is_remote, json_text, lock
from tfcap.inference.rerank_arguments import RerankArguments
from tfcap.metadata import MetadataError
from tfcap.preparing import engine_choice, engines
from tfcap.visualize import figures
from tfcap.visualize.attended import KINDS, Kind

_log = logging.getLogger("tfcap.caption")  # as a command, the module has another name
_LOCKED = (errno.EACCES, errno.EPERM, errno.EROFS)  # one folder of many may be read-only
_LANGUAGE = re.compile("[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_WRITE_OPTIONS = (
    "out skip_existing overwrite before after max_characters min_score extension captions language"
).split()
# Options, and the kinds of `write` that they have a meaning for.
_KINDS_OF = {"extension": ("txt",), "captions": ("txt", "kohya"), "language": ("xmp", "embed")}
_NOT_OF_SHARDS = (
    "skip_existing overwrite min_score attention attention_kind json recursive rerank extension "
    "captions language"
).split()
_OF_SHARDS = ("engine", "workers")


@arguments
class _Arguments(
    RerankArguments,
    cli.DecodingArguments,
    cli.SeedArguments,
    cli.WordingArguments,
    cli.RunArguments,
):
    """The arguments of the command."""

    data_dir: str | None = argument(
        "Prepared data for `rerank` and order=consensus; by default that of the run.", default=None
    )
    batch_size: int = argument("Number of pictures captioned together.", default=16, least=1)
    images: str = argument(
        "Shards to caption, with `write` as parquet, jsonl or webdataset and `out` as a folder: "
        "tar files, Parquet files, a folder of them, or a folder of pictures. More can follow the "
        "flags.",
        default="",
    )
    engine: str = argument(
        "What captions the shards of `images`. local: processes of this machine; beam: Apache "
        "Beam, with its own options after --.",
        default="local",
        choices=engines.ENGINES,
    )
    workers: int = argument(
        "Number of processes of `engine=local`; 0 is one for each core with a LiteRT export, and a "
        "single one with other models, which use all cores.",
        default=0,
        least=0,
    )
    recursive: bool = argument(
        "Caption the pictures in the folders of a folder, too.", default=False
    )
    write: Sequence[str] = argument(
        "Write the captions into files: txt or xmp (beside each picture), embed (into the metadata "
        "of each picture), csv or jsonl (a table), html (a page with small pictures), kohya (the "
        "JSON file of its trainers), or several, as in txt,html.",
        default=(),
        many="commas",
    )
    out: str | None = argument(
        "The table or page of `write`; by default captions.csv, ... in the folder.", default=None
    )
    skip_existing: bool = argument("Leave out pictures whose caption is written.", default=False)
    overwrite: bool = argument(
        "Replace captions that are written; of descriptions (xmp, embed) only those that tfcap "
        "wrote.",
        default=False,
    )
    extension: str = argument(
        "Ending of the files of `write=txt`; .caption is the default of kohya's trainers.",
        default=caption_files.EXTENSIONS[0],
        choices=caption_files.EXTENSIONS,
    )
    captions: int = argument(
        "Number of captions of a picture in `write=txt` (one a line) and `write=kohya`: the best "
        "one, and those of the search that share the fewest words.",
        default=1,
        least=1,
    )
    language: str = argument(
        "Language of the captions for `write=xmp` and `write=embed`, such as en or pt-BR.",
        default="",
    )
    before: str = argument("Text that `write` puts before every caption.", default="")
    after: str = argument("Text that `write` puts after every caption.", default="")
    max_characters: int = argument(
        "Longest text that `write` writes: the best hypothesis that fits, or a caption that is cut "
        "after a phrase. 0 is any length.",
        default=0,
        least=0,
    )
    min_score: float | None = argument(
        "`write` leaves out captions with a lower score.", default=None
    )
    attention: str | None = argument(
        "File to write, .png, .pdf or .svg: the attention of each word.", default=None
    )
    attention_kind: Kind = argument(
        "What `attention` draws. attention: the attention weights; contribution: how much each "
        "region contributed, by gradients.",
        default="attention",
        choices=KINDS,
    )
    json: bool = argument(
        "Print a JSON object per picture, with all captions and scores.", default=False
    )

    @property
    def wording(self) -> caption_files.Wording:
        """The `Wording` that the arguments describe: how the text of a caption looks in a file."""
        return caption_files.Wording(
            self.before,
            self.after,
            self.max_characters,
            self.sentence,
            self.min_confidence,
            self.unsure,
        )


def _define_flags() -> None:
    cli.define(_Arguments)


def _run(argv: list[str]) -> None:
    args = _Arguments(**cli.values(_Arguments))
    names = argv[1:]
    if args.images:
        _caption_shards(args, names)
        return
    _check(args, names)
    captioner = _load(args)
    paths = _pictures(args, names, reads(captioner.runtime))
    _check_figures(args, paths)
    if args.rerank:
        _add_reranker(args, captioner)
    output = None
    if args.write:
        output = caption_files.open_output(
            args.write,
            paths,
            _tables(args, names),
            args.overwrite,
            args.skip_existing,
            args.extension,
            args.language,
        )
    remaining = [path for path in paths if not (output and output.has(path))]
    work = _Work(args, output, several=len(remaining) > 1)
    work.caption(captioner, remaining)
    if output:
        print(f"{output.count} captions are written: {output.finish()}")
        if skipped := len(paths) - len(remaining):
            print(f"{skipped} pictures had a caption")
        for reason, count in work.left_out.items():
            print(f"{count} captions are left out: {cli.with_flags(reason)}")
    if failed := work.failures.total():
        reasons = "; ".join(f"{n} x {reason}" for reason, n in work.failures.most_common(5))
        cli.fail(f"{failed} of {len(remaining)} pictures could not be captioned ({reasons})", 3)


# ---- before the first caption --------------------------------------------------------------------


def _check(args: _Arguments, names: Sequence[str]) -> None:
    """Raises UsageError for arguments that are wrong at sight."""
    if not names:
        raise errors.UsageError("Give at least one picture file or directory of pictures.")
    if args.attention and not args.attention.lower().endswith(figures.ENDINGS):
        endings = ", ".join(figures.ENDINGS)
        raise errors.UsageError(
            f"`attention={args.attention}` does not end with {endings}. Give a file that does."
        )
    if args.rerank == "oracle":
        raise errors.UsageError(
            "`rerank=oracle` needs references. Use tfcap.evaluate, or `rerank=consensus`."
        )
    args.check_unsure()
    if alone := [name for name in _OF_SHARDS if name in cli.values(_Arguments, given_only=True)]:
        raise errors.UsageError(f"`{alone[0]}` needs `images`. Add it, or leave out `{alone[0]}`.")
    kinds = f"{', '.join(caption_files.KINDS[:-1])} or {caption_files.KINDS[-1]}"
    on_command_line = cli.values(_Arguments, given_only=True)
    if not args.write:
        for name in _WRITE_OPTIONS:
            if name in on_command_line:
                raise errors.UsageError(f"`{name}` needs `write`. Give `write` as {kinds}.")
    elif unknown := [kind for kind in args.write if kind not in caption_files.KINDS]:
        raise errors.UsageError(f"`write` must be {kinds}, and not {unknown[0]!r}.")
    elif (
        0
        < args.max_characters
        <= len(caption_files.UNSURE * args.unsure + args.before + args.after) + args.sentence
    ):
        raise errors.UsageError(
            "`max_characters` leaves no room for a caption between `before` and `after`. Raise it."
        )
    elif unused := [
        name
        for name, kinds_of in _KINDS_OF.items()
        if name in on_command_line and not {*kinds_of} & {*args.write}
    ]:
        raise errors.UsageError(
            f"`{unused[0]}` needs `write` with {' or '.join(_KINDS_OF[unused[0]])}. Add it, or "
            f"leave out `{unused[0]}`."
        )
    elif args.language and not _LANGUAGE.fullmatch(args.language):
        raise errors.UsageError(
            f"`language={args.language}` is no name of a language. Give one such as en or pt-BR."
        )
    elif args.json:
        raise errors.UsageError(
            "`json` prints captions, but `write` writes files. Leave one of them out; "
            "`write=jsonl` writes JSON."
        )
    else:
        _tables(args, names)


def _tables(args: _Arguments, names: Sequence[str]) -> list[str]:
    """Returns the paths of the tables and of the page; raises UsageError for a wrong `out`."""
    given = [kind for kind in dict.fromkeys(args.write) if kind in caption_files.TABLES]
    endings = [caption_files.TABLES[kind] for kind in given]
    if args.out:
        if len(endings) != 1:
            raise errors.UsageError(
                "`out` is a single file, so it needs `write` with exactly one of "
                f"{', '.join(caption_files.TABLES)}."
            )
        if not args.out.endswith(endings[0]):
            raise errors.UsageError(
                f"`out={args.out}` does not end with {endings[0]}. Rename it, or change `write`."
            )
        return [args.out]
    if endings and (len(names) != 1 or not os.path.isdir(names[0])):
        raise errors.UsageError(
            f"`out` is missing. Give the file to write, such as `out=captions{endings[0]}`."
        )
    return [os.path.join(names[0], f"captions{ending}") for ending in endings]


def _load(args: _Arguments) -> captioning.ImageCaptioner:
    """Loads the captioner."""
    cli.say_loading(args.model_dir or [pretrained.DEFAULT])
    captioner = captioning.load(
        args.model_dir or None,
        args.checkpoint,
        args.decoding,
        args.beam or 0,
        args.data_dir,
        args.dtype,
    )
    if args.rerank and captioner.runtime.exported:
        raise errors.UsageError(
            "`rerank` needs a run, but `model_dir` is an export. Give the directory of the run."
        )
    if args.min_confidence is not None:
        captioner.require_confidence()
    decoding = captioner.runtime.decoding or {}
    found = decoding.get("samples" if decoding.get("search") == "sample" else "beam")
    if found and found < args.captions:
        raise errors.UsageError(
            f"`captions={args.captions}` needs a search that finds so many, but this one finds "
            f"{found}. Add `decoding=beam={2 * args.captions},groups={args.captions}`, which finds "
            "unlike captions."
        )
    if args.rerank:  # a portable export cannot, but its run can
        captioner = captioning.ImageCaptioner(captioner.runtime.trained)
    return captioner


def _add_reranker(args: _Arguments, captioner: captioning.ImageCaptioner) -> None:
    """Opens the images by which captions are ordered again; computing their vectors takes long."""
    from tfcap import runs
    from tfcap.inference.rerank import reranker_of

    runtime = captioner.runtime.trained
    data = runs.load_data(runtime.run, args.data_dir)
    runtime.reranker = reranker_of(args, runtime.run, data)


def _pictures(args: _Arguments, names: Sequence[str], reads: inputs.Reads) -> list[str]:
    """Returns the paths of the pictures or clips, and says which files are left out."""
    others: list[str] = []
    paths = inputs.expand(names, reads, args.recursive, others)
    for note in inputs.left_out(others, reads):
        _log.warning("note: %s", note)
    if not args.recursive and reads == "pictures":
        for path in filter(os.path.isdir, names):
            entries = [entry for entry in os.scandir(path) if entry.name[0] != "."]
            if folders := sum(entry.is_dir() for entry in entries):
                _log.warning(
                    "note: %d folders in %s are left out; `recursive` reads them",
                    folders,
                    errors.escaped(path),
                )
    return paths


def _check_figures(args: _Arguments, paths: Sequence[str]) -> None:
    """Raises UsageError if the figures cannot be written, and makes their directory."""
    if not args.attention:
        return
    targets = [figures.figure_path(args.attention, path, len(paths) > 1) for path in paths]
    if len(set(targets)) < len(targets):
        raise errors.UsageError(
            "`attention` would write the figures of several pictures into one file, because the "
            "pictures have the same name. Caption them one by one."
        )
    if {os.path.realpath(path) for path in paths} & {os.path.realpath(path) for path in targets}:
        raise errors.UsageError(
            f"`attention={args.attention}` would overwrite a picture. Give another name."
        )
    os.makedirs(os.path.dirname(args.attention) or ".", exist_ok=True)


# ---- shards --------------------------------------------------------------------------------------


def _caption_shards(args: _Arguments, names: Sequence[str]) -> None:
    """Captions the shards of `images`; those that are captioned already are left out."""
    options = tuple(name for name in names if name.startswith("-"))
    _check_shards(args, options)
    shards = reading.shards_of([args.images, *(name for name in names if name not in options)])
    out = os.path.expanduser(args.out or "")
    folders = {os.path.realpath(os.path.dirname(shard.path) or ".") for shard in shards}
    if os.path.realpath(out) in folders | {os.path.realpath(shard.path) for shard in shards}:
        raise errors.UsageError(f"`out={args.out}` is the folder of `images`. Give another one.")
    given = [args.model_dir] if isinstance(args.model_dir, str) else args.model_dir
    model = work.Model(
        tuple(given) or None,
        args.checkpoint,
        args.decoding,
        args.beam or 0,
        args.data_dir,
        args.dtype,
    )
    cli.say_loading(args.model_dir or [pretrained.DEFAULT])
    captions = work.Work(model, args.write[0], out, args.wording, args.batch_size, args.seed)
    captioner = captions.load()
    if args.min_confidence is not None:
        captioner.require_confidence()
    if reads(captioner.runtime) != "pictures":
        raise errors.UsageError(
            "`images` needs a model that reads one picture of an image. Leave `images` out."
        )
    captions.describe()
    os.makedirs(out, exist_ok=True)
    with lock(out, "caption", "choose another `out`"):
        for name in os.listdir(out):
            if LEFTOVERS.fullmatch(name):
                os.remove(os.path.join(out, name))
        left = captions.left(shards)
        if done := len(shards) - len(left):
            print(f"{done} of {len(shards)} shards are captioned already")
        # A thread of LiteRT captions a picture, and nothing has further threads yet.
        light = captioner.runtime.threads > 1 and "tensorflow" not in sys.modules
        workers = min(args.workers or (cores() if light else 1), len(left))
        if light and workers > 1:
            captions.batch_size = 1
        fork = light and sys.platform == "linux"
        run_on = engine_choice.choose(args.engine, workers, options, fork)
        bar = progress.progress(run_on(captions, left), len(left), "captions", "shard")
        try:
            collections.deque(bar, 0)
        except KeyboardInterrupt:
            bar.close()
            raise errors.Interrupted(
                "Interrupted. Give the same command again to continue.", code=130
            ) from None
    _say_shards(captions, shards, out)


def _check_shards(args: _Arguments, options: Sequence[str]) -> None:
    """Raises UsageError for arguments that shards do not have."""
    kinds = ", ".join(writing.ENDINGS)
    if len(args.write) != 1 or args.write[0] not in writing.ENDINGS or not args.out:
        raise errors.UsageError(f"`images` needs `write`, one of {kinds}, and `out`, a folder.")
    if is_remote(args.out):
        raise errors.UsageError(
            f"`out={args.out}` is remote, but `images` needs a folder of this machine, or one that "
            "is mounted. Copy the files when they are written."
        )
    on_command_line = cli.values(_Arguments, given_only=True)
    if wrong := [name for name in _NOT_OF_SHARDS if name in on_command_line]:
        raise errors.UsageError(f"`{wrong[0]}` has no effect with `images`. Leave it out.")
    if options and args.engine != "beam":
        raise errors.UsageError(
            f"{options[0]!r} stands behind the shards. Only `engine=beam` takes options there."
        )
    args.check_unsure()


def _say_shards(captions: work.Work, shards: Sequence[reading.Shard], out: str) -> None:
    """Prints how many pictures have captions, and why others have none."""
    unread = captions.left(shards)
    pictures, failures = 0, collections.Counter[str]()
    for shard in shards:
        if shard not in unread and (found := captions.statistics(shard)):
            pictures += found["pictures"]
            failures.update(row["reason"] for row in found["failed"])
    print(f"{pictures - failures.total()} of {pictures} pictures have captions: {out}")
    for reason, count in failures.most_common(5):
        print(f"{count} x {reason}")
    if unread:
        cli.fail(f"{len(unread)} of {len(shards)} shards could not be read", 3)


# ---- the captions --------------------------------------------------------------------------------


class _Work:
    """Captions pictures, and prints or writes the captions.

    Args:
      args: the arguments of the command.
      output: the files for the captions; None prints them.
      several: whether each picture has a figure of its own name.

    Attributes:
      failures: how often each reason made a picture fail.
      left_out: how often each reason made a caption be left out of the files.
    """

    def __init__(self, args: _Arguments, output: caption_files.Several | None, several: bool):
        self._args = args
        self._output = output
        self._several = several
        self.failures = collections.Counter[str]()
        self.left_out = collections.Counter[str]()

    def caption(self, captioner: captioning.ImageCaptioner, paths: Sequence[str]) -> None:
        """Captions the pictures at these paths; `-` is standard input."""
        args = self._args
        stream = captioner.stream(
            [sys.stdin.buffer if path == "-" else path for path in paths],
            attention=args.attention_kind if args.attention else None,
            batch_size=args.batch_size,
            seed=args.seed,
        )
        results = (result for result in stream)  # a generator can be closed
        if self._output or not sys.stdout.isatty():  # printed captions are progress on a terminal
            results = progress.progress(results, len(paths), "captions", "picture")
        done = 0
        try:
            for result in results:
                done += 1
                if failure := self._failure(result):
                    self.failures[failure.reason] += 1
                    _log.warning("error: %s", errors.escaped(failure))
        except KeyboardInterrupt:
            results.close()
            raise errors.Interrupted(
                f"Interrupted after {done} of {len(paths)} pictures.", code=130
            ) from None

    def _failure(
        self, result: captioning.Caption | captioning.Failure
    ) -> captioning.Failure | None:
        """Prints or writes a caption; returns why that failed."""
        if isinstance(result, captioning.Failure):
            return result
        try:
            self._take(result)
        except MetadataError as error:
            reason = str(error)
        except OSError as error:
            if error.errno not in _LOCKED:  # a full disk stays full
                raise
            reason = str(error.strerror)
        else:
            return None
        reason = f"its caption cannot be written: {reason}"
        return captioning.Failure(result.source, result.position, reason)

    def _take(self, caption: captioning.Caption) -> None:
        """Prints or writes a caption, and draws its figure."""
        args, source = self._args, caption.source or "-"
        if self._output:
            self._write(caption, self._output)
        elif args.json:
            print(json_text(_as_dict(caption, args)), flush=True)
        else:
            print(f"{errors.escaped(source)}\t{args.wording.of(caption)}", flush=True)
        if args.attention:
            caption.draw(figures.figure_path(args.attention, source, self._several))

    def _write(self, caption: captioning.Caption, output: caption_files.Several) -> None:
        """Writes the best hypothesis that fits into the files, or counts why not."""
        args = self._args
        best = args.wording.first(caption)
        text = args.wording.of(best)
        if args.min_score is not None and best.score < args.min_score:
            self.left_out[f"their score is below {args.min_score:g}"] += 1
        elif text:
            output.write(best, text, self._further(caption, text))
        elif args.wording.doubts(best) and not args.unsure:
            self.left_out[f"their confidence is below {args.min_confidence:g}"] += 1
            output.write(best, "")
        elif args.max_characters:
            self.left_out["no phrase of them fits into `max_characters`"] += 1
        else:
            self.left_out["they are empty"] += 1

    def _further(self, caption: captioning.Caption, text: str) -> list[str]:
        """Returns the texts of further captions of a picture that are good enough to be written.

        Args:
          caption: the caption with its alternatives.
          text: the text of the best caption.
        """
        args = self._args
        least = -math.inf if args.min_score is None else args.min_score
        others = (one for one in (caption, *caption.alternatives) if one.score >= least)
        texts = [text, *filter(None, map(args.wording.of, others))]
        return caption_files.unlike_first(texts, args.captions)[1:]


def _as_dict(caption: captioning.Caption, args: _Arguments) -> dict[str, Any]:
    """Returns what `--json` prints of a picture."""
    captions, wording = (caption, *caption.alternatives), args.wording
    result = {
        "image": caption.source or "-",
        "caption": args.wording.of(caption),
        "captions": [wording.text(one.text, one.words) for one in captions],
        "scores": [one.score for one in captions],
    }
    if caption.confidence is not None:
        result["confidences"] = [one.confidence for one in captions]
    return result


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
