"""Fuzzes the readers with inputs that reach new lines, and reports all that does not end in words.

    pip install atheris
    PYTHONPATH=.:tests python tests/faults/guided.py FOLDER [SECONDS [TARGET ...]]

atheris changes an input, and keeps the change if the reader then runs lines that no input before
has run. A reader may return, or raise a ValueError or OSError with a text, within 60 s and 4 GB. An
input that does something else is kept in FOLDER/TARGET.found. The first inputs are good files.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

SECONDS, GIGABYTES = 60, 4
LONGEST = 4096  # bytes of an input


# Each target returns good contents, and the function that reads the file. Modules are imported
# inside, because atheris can only follow what is imported after it.


def captions(folder):
    from helpers.sources import FIXTURES

    from tfcap.preparing.inputs import read
    from tfcap.preparing.settings import Settings

    made = {}
    for name, make in sorted(FIXTURES.items()):
        place = folder / name
        place.mkdir()
        given = make(place).captions
        if given and given[0].is_file() and given[0].stat().st_size < LONGEST:
            made[name] = given[0]
    names = list(made)

    def use(data):
        name = names[data[0] % len(names)] if data else names[0]
        path = written(folder, made[name].name, data[1:])
        read(Settings([str(path)], str(folder / "out"), name))

    return [bytes([n]) + made[name].read_bytes() for n, name in enumerate(names)], use


def results(folder):
    from tfcap.metrics.hypotheses import load_results_or_hypotheses

    found = [{"image_id": n, "caption": "a dog"} for n in range(2)]
    several = [{"image_id": 1, "captions": ["a", "b"], "scores": [-1.0, -2.0]}]
    seeds = [json.dumps(one).encode() for one in (found, several)]
    return seeds, lambda data: load_results_or_hypotheses(written(folder, "x.json", data))


def references(folder):
    from tfcap.metrics.results import load_references

    notes = [{"id": 1, "image_id": 1, "caption": "a dog"}]
    seeds = [json.dumps({"images": [{"id": 1}], "annotations": notes}).encode()]
    return seeds, lambda data: load_references(written(folder, "x.json", data))


def index(folder):
    from tfcap.data.shards import read_index

    path = folder / "train.index.npz"
    arrays = {"shard": np.zeros(2, np.int32), "offset": np.array([0, 50]), "id": np.arange(2)}
    np.savez(path, **arrays)

    def use(data):
        written(folder, path.name, data)
        read_index(folder, "train", [{"records": 2, "bytes": 100}])

    return [path.read_bytes()], use


def ngrams(folder):
    from tfcap.data.document_frequency import load_document_frequencies

    path = folder / "x.npz"
    table = {"ngrams": np.ones((1, 4), np.int32), "counts": np.ones(1, np.int32)}
    np.savez(path, images=np.array(2), **table)

    def use(data):
        written(folder, path.name, data)
        load_document_frequencies(folder, path.name)

    return [path.read_bytes()], use


def fingerprint(folder):
    from tfcap.data.fingerprint import FINGERPRINT, read_fingerprint
    from tfcap.preparing.run import prepare_shapes

    out = prepare_shapes(folder / "data", train=2, val=1, test=1)
    seeds = [json.dumps(json.loads((out / FINGERPRINT).read_text())).encode()]

    def use(data):
        written(folder, FINGERPRINT, data)
        read_fingerprint(folder)

    return seeds, use


def vocabulary(folder):
    from tfcap.data.tokens import SPECIALS, Vocab

    seeds = ["\n".join([*SPECIALS, "a", "dog", ""]).encode()]
    return seeds, lambda data: Vocab.load(written(folder, "vocab.txt", data))


def yaml(folder):
    """The text of a recipe alone: `recipe` also builds a configuration, which takes long."""
    from yaml import YAMLError

    from tfcap.configs.yaml_text import parse

    def use(data):
        try:
            parse(data.decode(errors="replace"))
        except YAMLError as error:
            raise ValueError(str(error)) from error

    return [b"a: [1, 2.5, {b: 'x'}]\nc: |\n  text\n", b"a: &x 1\nb: *x\n"], use


def recipe(folder):
    from tfcap import configs

    seeds = [b"task:\n  seed: 3\n  metrics: [CIDEr]\n  model: {xlan: {width: 16}}\n", b"a: [&x 1]"]
    return seeds, lambda data: configs.resolve("xlan", [str(written(folder, "x.yaml", data))])


def override(folder):
    from tfcap import configs

    seeds = [b"task.seed=3,trainer.train_steps=5", b'{"task": {"seed": 3}}']
    return seeds, lambda data: configs.resolve("xlan", (), data.decode(errors="replace"))


def decoding(folder):
    from tfcap import configs

    task = configs.resolve("xlan").task
    seeds = [b"beam=5,length_power=1.0", b"search=sample,samples=4,top_k=20,prefix=there"]
    return seeds, lambda data: configs.decoding(task, data.decode(errors="replace"))


def heads(folder):
    from helpers import picture_bytes

    from tfcap import picture_files
    from tfcap.data.picture_heads import claimed_pixels

    def use(data):
        frames, width, height = picture_files.claimed_size(data)
        picture_files.refusal(data)
        picture_files.clip_refusal(data)
        picture_files.upright_size(io.BytesIO(data))
        if picture_files.kind(data) in ("PNG", "WebP"):  # what the server reads inside the graph
            inside = int(claimed_pixels(data))
            assert inside < 0 or inside == frames * min(width, 2**31) * min(height, 2**31)

    forms = ("JPEG", "PNG", "BMP", "GIF", "WebP")
    return [*(picture_bytes.file(form) for form in forms), b"II*\0", b"<svg"], use


def checkpoint(folder):
    from helpers import torch_writer

    from tfcap.released import torch_file

    weights, path = {"a": np.ones((2, 2), np.float32)}, folder / "x.pth"
    torch_writer.write(path, weights)
    return [path.read_bytes()], lambda data: torch_file.load(written(folder, path.name, data))


TARGETS = [captions, results, references, index, ngrams]
TARGETS += [fingerprint, vocabulary, yaml, recipe, override, decoding, heads, checkpoint]
TARGETS = {function.__name__: function for function in TARGETS}


def written(folder, name, data):
    """Writes a file, and returns its path."""
    path = folder / name
    path.write_bytes(data)
    return path


def fuzz(name, corpus, flags):
    """Is the process that fuzzes a target; it does not return."""
    import atheris

    atheris.enabled_hooks.add("str")  # what startswith and endswith compare is tried, too
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as at:
        with atheris.instrument_imports(include=["tfcap", "yaml"]):
            seeds, use = TARGETS[name](pathlib.Path(at))
        for number, seed in enumerate(seeds):
            (corpus / f"seed-{number}").write_bytes(seed)

        def one(data):
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    use(data)
            except (ValueError, OSError) as error:
                if not str(error).strip():
                    raise AssertionError("an error without a text") from error

        atheris.Setup([sys.argv[0], *flags, str(corpus)], one)
        atheris.Fuzz()


def main(folder, seconds, names):
    folder.mkdir(parents=True, exist_ok=True)
    print("| target | inputs | branches | found |\n|---|---|---|---|")
    for name in names:
        corpus, found = folder / name, folder / f"{name}.found"
        for place in (corpus, found):
            place.mkdir(exist_ok=True)
        flags = [f"-max_total_time={seconds}", f"-timeout={SECONDS}", f"-max_len={LONGEST}"]
        flags += [f"-rss_limit_mb={GIGABYTES << 10}", f"-artifact_prefix={found}/"]
        flags += ["-print_final_stats=1", f"-report_slow_units={SECONDS}"]
        command = [sys.executable, __file__, "--target", name, str(corpus), *flags]
        with open(folder / f"{name}.log", "w") as log:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
        text = (folder / f"{name}.log").read_text(errors="replace")
        runs = re.findall(r"number_of_executed_units: (\d+)", text) or ["none: see the log"]
        branches = re.findall(r"cov: (\d+)", text) or ["0"]
        print(
            f"| {name} | {runs[-1]} | {branches[-1]} | {len(list(found.iterdir()))} |", flush=True
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--target"]:
        fuzz(sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4:])
    given = pathlib.Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 150
    main(*given, sys.argv[3:] or TARGETS)
