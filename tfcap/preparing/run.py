"""Prepares a data set: turns captions and images into records, words and references.

An interrupted prepare continues where it stopped when it is called again: `.shards` describes the
finished shards. dataset.json is written last, so its presence means that everything is there.

This process reads the captions, divides the images into shards, and writes what lies beside the
shards. The shards themselves are written by `work.ShardWorker` on an engine of `engines`.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfcap import cli, files, pretrained
from tfcap.data.document_frequency import DocumentFrequencies
from tfcap.data.pictures import DECODER
from tfcap.data.prepared import FINGERPRINT, PreparedData
from tfcap.data.tokens import Vocab
from tfcap.files import read_json, write_json
from tfcap.preparing import counting, shapes, vocabulary
from tfcap.preparing.captions import Kept, comparable, tokenized
from tfcap.preparing.engines import Engine, Inline, engine
from tfcap.preparing.features import default_weights, saved
from tfcap.preparing.features.frames import Reader
from tfcap.preparing.features.pictures import Pictures, shorter_side
from tfcap.preparing.finish import finish
from tfcap.preparing.inputs import (
    Inputs,
    check_directories,
    check_places,
    check_remote,
    read,
    with_local_captions,
)
from tfcap.preparing.notes import print_dropped, print_forecast, print_notes, print_reader
from tfcap.preparing.settings import NEW_KEYS, Settings, allowed_skips
from tfcap.preparing.shards import plan
from tfcap.preparing.state import SPLIT_LISTS, Skips, State, is_whole
from tfcap.preparing.work import (
    PROBES,
    Job,
    ShardWorker,
    Task,
    absolute,
    bare,
    open_reader,
    task_of,
)
from tfcap.preparing.written import Written


def prepare(settings: Settings) -> pathlib.Path | str:
    """Prepares a data set; continues an interrupted one and leaves a finished one as it is.

    Returns:
      `settings.out`; a remote path as text.

    Raises:
      ValueError: bad input, too many images skipped, or `out` holds files of other settings.
    """
    settings.check()
    settings = dataclasses.replace(settings, out=os.fspath(settings.out).rstrip("/") or "/")
    check_places(settings)
    run_on = engine(settings.engine, settings.workers, settings.engine_options)
    with with_local_captions(settings) as local:
        inputs = read(local)
        check_remote(settings, inputs.settings.source)
        _prepare_where_needed(inputs, run_on)
    return settings.out if files.is_remote(settings.out) else pathlib.Path(settings.out)


def _prepare_where_needed(inputs: Inputs, run_on: Engine) -> None:
    """Prepares a directory, unless it is finished already."""
    settings = inputs.settings
    identity = settings.identity(inputs.entries, inputs.divided.digest)
    out = settings.out
    if not files.exists(out):
        check_directories(settings, inputs.entries)  # a wrong path leaves no directory behind
    files.make_directory(out)
    with files.lock(out, "prepare", "choose another --out"):
        state = State(out, identity, settings.overwrite)
        if not state.replaces and is_whole(out) and not _can_be_repaired(inputs, state):
            print(f"{out} is prepared already", flush=True)
            return
        with run_on:
            _prepare(inputs, state, run_on)


def _can_be_repaired(inputs: Inputs, state: State) -> bool:
    """Returns whether a picture that a finished directory lacks was put there or repaired.

    Another version of the decoder would give it other features than the pictures that are there.
    """
    same = inputs.settings.features is not None or state.content.get("decoder") == DECODER
    if not same or not PreparedData.load(state.folder).fingerprint.get("skipped"):
        return False
    shards = plan(inputs.entries, inputs.settings.images_per_shard)
    return bool(Written(shards, state, inputs.settings.images).repaired)


def prepare_shapes(
    out: str | os.PathLike,
    *,
    train: int = 3000,
    val: int = 200,
    test: int = 200,
    seed: int = 1,
    **settings: Any,
) -> pathlib.Path | str:
    """Writes the built-in data set into `out` and prepares it there with the backbone `pixels`.

    Args:
      out: directory to write.
      train, val, test, seed: as in `shapes.write`.
      **settings: further fields of `Settings`.

    Returns:
      `out`.
    """
    given: dict[str, Any] = {"name": "shapes", "backbone": "pixels", "seed": seed, **settings}
    ready = built_in_settings("shapes", "images", out, given)
    shapes.write(out, train, val, test, seed, overwrite=ready.overwrite)
    return prepare(ready)


def built_in_settings(
    name: str, folder: str, out: str | os.PathLike, given: Mapping[str, Any]
) -> Settings:
    """Returns the settings that prepare a built-in data set.

    Call it before the pictures are drawn: an impossible setting must not replace old pictures.

    Args:
      name: the name of the data set.
      folder: where its pictures are, in `out`.
      out: the directory of the pictures and of the prepared data.
      given: further fields of `Settings`.

    Raises:
      UsageError: a setting cannot work.
    """
    weights = given.get("weights") or default_weights(given["backbone"])
    ready = Settings(
        **{
            **given,
            "weights": weights,
            "captions": os.path.join(out, f"dataset_{name}.json"),
            "images": os.path.join(out, folder),
            "out": os.fspath(out),
            "source": "karpathy",
        }
    )
    ready.check()
    engine(ready.engine, ready.workers, ready.engine_options)
    return ready


def _prepare(inputs: Inputs, state: State, run_on: Engine) -> None:
    """Writes the shards that are not finished, and then everything else.

    All that can be wrong with the input is checked before the first file is written.
    """
    settings, entries = inputs.settings, inputs.entries
    shards = plan(entries, settings.images_per_shard)
    written = Written(shards, state, settings.images)
    if written.left and settings.features is None:
        state.require_decoder(DECODER)
    if written.left:
        check_directories(settings, entries)
    kept = list(tokenized(entries, settings.tokens == "given"))
    if settings.tokens == "given":
        kept = comparable(kept)
    images = {image.id: image for image in kept}
    dropped = print_dropped(entries, images)
    vocab, frequencies = vocabulary.load(settings, entries, list(images.values()))
    reader = open_reader(settings, entries)
    print_reader(reader)
    print_forecast(state.folder, list(images.values()), reader, len(shards), written.images_left)
    state.begin()
    for name in written.repaired:
        state.forget(name)
    if inputs.divided.written is not None:
        write_json(os.path.join(state.folder, SPLIT_LISTS), inputs.divided.written)
    backbone = _save_backbone(reader, state)
    job = _job(inputs, state, backbone)
    with cli.Bar(written.images_left, "preparing", "image") as bar:
        _write_shards(job, written, images, reader, bar, run_on)
    state.sweep()
    finished = written.by_split()
    print_notes(finished)
    trained = [shard["file"] for shard in finished.get("train", ()) if shard["records"]]

    def count_ngrams(vocab: Vocab) -> DocumentFrequencies:
        worker = counting.NgramWorker(job.out, job.digest, tuple(vocab.words))
        return counting.count(run_on.map, worker, trained)

    words = vocabulary.choose(
        written.words(settings.count_splits),
        settings.min_count,
        count_ngrams if trained else None,
        vocab,
        frequencies,
    )
    skipped = {item["id"] for item in written.skipped}
    kept = [image for image in images.values() if image.id not in skipped]
    fingerprint = {
        "name": settings.data_name,
        "images": None if settings.images is None else files.absolute(settings.images),
        "backbone": backbone,
        "skipped": written.skipped,
        "dropped_captions": dropped,
        **_newer_keys(inputs, reader),
    }
    finish(state.folder, kept, finished, reader.dim, words, fingerprint, reader.image_dim)
    speed = f", {bar.done / bar.seconds:.0f} images/s" if bar.done else ""
    print(
        f"{state.folder} is prepared: {len(kept)} images, {len(skipped)} skipped,"
        f" vocabulary {len(words.vocab)}; {cli.duration(bar.seconds)}{speed}",
        flush=True,
    )
    if trained and backbone and _is_packaged(backbone):
        name = os.path.basename(os.path.normpath(state.folder))
        print(
            "to train the packaged captioner further on it: python -m tfcap.train "
            f"--experiment=finetune --params_override=task.data_dir={state.folder} "
            f"--model_dir runs/{name}",
            flush=True,
        )


def _is_packaged(backbone: Mapping[str, Any]) -> bool:
    """Returns whether a backbone is that of the packaged captioner."""
    path = os.path.join(pretrained.directory(pretrained.DEFAULT), FINGERPRINT)
    packaged = read_json(path, "Install tfcap again.")["backbone"]
    return all(backbone[key] == packaged[key] for key in ("grid", "image_size", "weights_sha256"))


def _newer_keys(inputs: Inputs, reader: Reader) -> dict[str, Any]:
    """Returns the entries of dataset.json that directories of older versions lack."""
    made: dict[str, Any] = {}
    if inputs.skipped:
        made["skipped_rows"] = [row._asdict() for row in inputs.skipped]
    for key, default in NEW_KEYS:
        if getattr(inputs.settings, key) != default:
            made[key] = getattr(inputs.settings, key)
    if isinstance(reader, Pictures) and reader.keep:
        made["pictures"] = {"shorter_side": shorter_side(reader.backbone.image_size)}
    return made


def _job(inputs: Inputs, state: State, backbone: dict[str, Any] | None) -> Job:
    """Returns what all shards have in common."""
    total = len(inputs.entries)
    return Job(
        settings=absolute(inputs.settings),
        digest=state.digest,
        probes=tuple(bare(inputs.entries[:PROBES])),
        backbone=backbone,
        limit=allowed_skips(inputs.settings.max_skipped, total),
        total=total,
        rows=len(inputs.skipped),
    )


def _write_shards(
    job: Job,
    written: Written,
    images: Mapping[int, Kept],
    reader: Reader,
    bar: cli.Bar,
    run_on: Engine,
) -> None:
    """Writes the shards that are left, on an engine, and reads their descriptions.

    Raises:
      ValueError: more images are skipped than --max_skipped allows.
    """
    skips = Skips(job.limit, job.total, job.rows)
    skips.extend(written.skipped)
    left = dict(written.left)
    inline = isinstance(run_on, Inline)
    worker = ShardWorker(job, reader, bar) if inline else ShardWorker(job)
    if inline and len(left) > 1 and isinstance(reader, Pictures):
        # All shards then share one data set of pictures.
        reader.expect([bare([e for e in own if images[e.id].usable]) for own in left.values()])

    def tasks() -> Iterator[Task]:
        for name, members in left.items():
            yield task_of(name, members, images, len(skips.items))

    for name in run_on.map(worker, tasks()):
        known = written.read(name)
        if known is None:
            raise ValueError(
                f"{os.path.join(job.out, name)} must be written by a worker. Received: no such "
                "file. All workers must see --out under the same path."
            )
        skips.extend(known["skipped"])
        if not inline:
            bar.update(len(left[name]))


def _save_backbone(reader: Reader, state: State) -> dict[str, Any] | None:
    """Saves the weights of the backbone in the first run; returns its entry of dataset.json."""
    backbone = getattr(reader, "backbone", None)
    if backbone is None:
        return None
    if backbone.model is None:
        return backbone.made_by(None, None)
    known = state.content.get("weights_sha256")
    name, digest = saved.save(backbone.network, state.folder, known)
    if digest.sha256 != known:
        state.save(weights_sha256=digest.sha256)
    return backbone.made_by(name, digest)
