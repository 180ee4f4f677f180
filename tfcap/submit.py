r"""Captions val2014 and test2014 of COCO and makes the archive for its caption server.

python -m tfcap.submit --model_dir runs/coco --val data/coco_val2014 --test data/coco_test2014 \
    --name my_model

--val and --test say where the captions of each of the two splits come from: a prepared directory
(DIR, or DIR:SPLIT if it has several splits), a split of the data of the run (its name), or a result
file that `tfcap.evaluate --output` wrote. The command writes captions_val2014_NAME_results.json,
captions_test2014_NAME_results.json and captions_NAME_results.zip into --out. Every image of
captions_val2014.json and image_info_test2014.json must have exactly one caption; this is checked
before the captioning begins, and again in the archive.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from tfcap import cli, files
from tfcap.metrics import results, submission
from tfcap.metrics.submission import TEST, VAL

if TYPE_CHECKING:
    from tfcap import decoding
    from tfcap.data.prepared import PreparedData


class Place(NamedTuple):
    """Where the captions of a split come from.

    Attributes:
      file: a result file; then the others are empty.
      folder: a prepared directory; empty for the data of the run.
      split: a split of it; empty for the only one.
    """

    file: str = ""
    folder: str = ""
    split: str = ""


def _define_flags() -> None:
    cli.define_run_flags()
    cli.define_decoding_flags()
    flags.DEFINE_string("val", None, "Captions of val2014: DIR, DIR:SPLIT, SPLIT or FILE.json.")
    flags.DEFINE_string("test", None, "Captions of test2014: DIR, DIR:SPLIT, SPLIT or FILE.json.")
    flags.DEFINE_string("name", None, "Name of the algorithm; it becomes part of the file names.")
    flags.DEFINE_string("out", "submission", "Directory to write.")
    flags.DEFINE_string(
        "val_images",
        None,
        "COCO's captions_val2014.json; by default the file of this name here or in annotations/.",
    )
    flags.DEFINE_string(
        "test_images",
        None,
        "COCO's image_info_test2014.json; by default the file of this name here or in "
        "annotations/.",
    )
    flags.DEFINE_integer("batch_size", 50, "Number of images decoded together.", lower_bound=1)
    cli.define_seed_flag()


def place(text: str, flag: str) -> Place:
    """Reads the value of --val or --test.

    Raises:
      UsageError: `text` is a path, but not of a result file or a prepared directory.
    """
    if os.path.isfile(text):
        return Place(file=text)
    folder, colon, split = text.rpartition(":")
    if colon and os.path.isdir(folder):
        return Place(folder=folder, split=split)
    if os.path.isdir(text):
        return Place(folder=text)
    if os.path.dirname(text) or text.endswith(".json"):
        raise cli.UsageError(
            f"--{flag} must be a prepared directory (DIR or DIR:SPLIT), a split of the data of the "
            f"run, or a result file. Received: {text}, which does not exist. Correct the path."
        )
    return Place(split=text)


def _run() -> None:
    given = flags.FLAGS
    for flag in ("val", "test", "name"):
        if not getattr(given, flag):
            raise cli.UsageError(
                f"--val, --test and --name must be given. Received: no --{flag}. --help explains "
                "them."
            )
    name = submission.algorithm_name(given.name)
    places = {VAL: place(given.val, "val"), TEST: place(given.test, "test")}
    lists = {
        VAL: given.val_images or submission.list_of_images(VAL),
        TEST: given.test_images or submission.list_of_images(TEST),
    }
    wanted = {split: submission.read_image_ids(path) for split, path in lists.items()}
    captions: dict[str, dict[int, str]] = {}
    for split, at in places.items():
        if at.file:
            captions[split] = results.load_results(at.file)
            submission.check_images(captions[split], wanted[split], at.file, lists[split])
    left = {split: at for split, at in places.items() if not at.file}
    for split, texts in _decoded(given, left, wanted, lists):
        captions[split] = texts
        _write(given.out, split, name, texts, wanted[split])
    for split in places:
        if split not in left:
            _write(given.out, split, name, captions[split], wanted[split])
    archive = submission.pack(given.out, name, wanted)
    print(f"{archive}: every image of {lists[VAL]} and of {lists[TEST]} has exactly one caption")


def _decoded(
    given,
    places: Mapping[str, Place],
    wanted: Mapping[str, Sequence[int]],
    lists: Mapping[str, str],
) -> Iterator[tuple[str, dict[int, str]]]:
    """Yields the captions of each split that the model must caption; checks all of them first."""
    if not places:
        return
    if not given.model_dir:
        raise cli.UsageError(
            "--model_dir must be given, unless --val and --test are both result files. Received: "
            "none."
        )
    from tfcap import runs
    from tfcap.scoring.decode import decode_split, finder

    run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
    load = functools.cache(functools.partial(runs.load_data, run))
    opened = {}
    for split, at in places.items():
        data, name = _open(load, at, split[:-4])
        label = f"split {name} of {data.folder}"
        submission.check_images(data.index(name).id.tolist(), wanted[split], label, lists[split])
        opened[split] = data, name, runs.search(run, given.decoding, given.beam, data.folder)
    finders: dict[tuple, Callable] = {}
    for split, (data, name, search) in opened.items():
        print(f"{run.checkpoint} on {data.folder}, split {name}: captions of {split}", flush=True)
        parts = run.model, run.vocab, search
        key = trace_key(data, search)
        if key not in finders:
            finders[key] = finder(*parts, data.input_specs, given.seed)
        decoded = decode_split(
            *(*parts, data, name, given.batch_size, run.max_regions),
            seed=given.seed,
            find=finders[key],
        )
        yield split, decoded.best()


def trace_key(data: "PreparedData", search: "decoding.Search") -> tuple:
    """Returns a key of prepared data; the search is traced once for all data with the same key.

    The key holds the inputs of the model and, for a consensus, the folder with the document
    frequencies.
    """
    return (data.folder if search.consensus is not None else "", *data.input_specs.items())


def _open(
    load: "Callable[[str | None], PreparedData]", at: Place, flag: str
) -> "tuple[PreparedData, str]":
    """Opens the prepared data of a place; returns it with the name of the split.

    Args:
      load: opens a folder, or for None the data of the run.
      at: the place.
      flag: the flag that names it.

    Raises:
      ValueError: the data cannot be read or does not fit the run, or the split is not clear.
    """
    data = load(at.folder or None)
    splits = list(data.fingerprint["splits"])
    if not at.split and len(splits) > 1:
        raise cli.UsageError(
            f"--{flag} must name one of the splits {', '.join(splits)} of {data.folder}. "
            f"Received: {at.folder}. Give it as in --{flag} {at.folder}:{splits[-1]}"
        )
    name = at.split or splits[0]
    data.split(name)  # an unknown name is an error
    return data, name


def _write(
    folder: str, split: str, name: str, captions: Mapping[int, str], images: Sequence[int]
) -> None:
    """Writes the result file of a split, with the images in the order of COCO's list."""
    files.make_directory(folder)
    path = os.path.join(folder, submission.result_name(split, name))
    results.write_results(path, {image: captions[image] for image in images})
    print(f"{path}: captions of {len(images)} images", flush=True)


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
