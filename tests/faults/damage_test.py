"""Damaged files end with an error in words: no other exception, no hang, no gigabytes.

The suite tries a sample. `TFCAP_DAMAGED=300 pytest tests/faults/damage_test.py` tries 300 of each.
"""

import json
import os
import random
import resource
import shutil
import signal

import pytest
from helpers.damage import damaged

import tfcap
from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.metrics.hypotheses import load_results_or_hypotheses
from tfcap.metrics.results import load_references, load_results
from tfcap.scoring.score_files import ScoreFiles

TRIES = int(os.environ.get("TFCAP_DAMAGED", 8))
SECONDS = 60
GIGABYTES = 4


def use_data(folder):
    data = PreparedData.load(folder)
    for split in data.fingerprint["splits"]:
        data.references(split)
        data.file_names(split)
        data.read(split, data.index(split).id[:4])
    if data.has_document_frequencies:
        data.document_frequencies()


def use_run(folder):
    run = runs.load(str(folder))
    runs.read_best(runs.best_directory(str(folder), run.params))


def use_captions(folder):
    if (folder / "results.json").exists():
        load_results(folder / "results.json")
        load_results_or_hypotheses(folder / "hypotheses.json")
        load_references(folder / "references.json")


def use_recipe(folder):
    configs.resolve("xlan", [str(folder / "recipe.yaml")])


def use_scores(folder):
    ScoreFiles(str(folder), {"images": 3}, {}).rows("scores", (3, 4))


def use_export(folder):
    tfcap.load(str(folder))


def make_captions(folder):
    folder.mkdir()
    found = [{"image_id": i, "caption": f"a dog {i}"} for i in range(3)]
    several = [{"image_id": i, "captions": ["a", "b"], "scores": [-1.0, -2.0]} for i in range(3)]
    annotations = [{"id": i, **one} for i, one in enumerate(found)]
    truth = {"images": [{"id": i} for i in range(3)], "annotations": annotations}
    contents = {"results": found, "hypotheses": several, "references": truth}
    for name, value in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


def make_recipe(folder):
    folder.mkdir()
    text = "task:\n  seed: 3\n  metrics: [CIDEr, BLEU]\n  model: {xlan: {width: 16}}\n"
    (folder / "recipe.yaml").write_text(f"{text}trainer:\n  train_steps: 5\n")


def make_scores(folder):
    ScoreFiles(str(folder), {"images": 3}, {}).rows("scores", (3, 4))


def cases(shapes, trained, exported):
    return {
        "data": (lambda folder: shutil.copytree(shapes, folder), use_data),
        "run": (lambda folder: shutil.copytree(trained, folder), use_run),
        "captions": (make_captions, use_captions),
        "recipe": (make_recipe, use_recipe),
        "scores": (make_scores, use_scores),
        "export": (lambda folder: shutil.copytree(exported, folder), use_export),
    }


def peak():
    """The most memory of this process, in kilobytes; other tests have run in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def give_up(number, frame):
    raise TimeoutError(f"still at work after {SECONDS} s")


# A damaged graph may end the process inside TensorFlow, so the suite itself leaves it out.
NAMES = ["data", "run", "captions", "recipe", "scores"]
NAMES += ["export"] if "TFCAP_DAMAGED" in os.environ else []


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_end_with_an_error_in_words(name, shapes, trained, exported, tmp_path):
    make, use = cases(shapes, trained, exported)[name]
    folder = tmp_path / name
    make(folder)
    use(folder)
    parts = ("train", "images") if name != "data" else ("images",)  # nobody reads these again
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    whole = {f: f.read_bytes() for f in files if f.relative_to(folder).parts[0] not in parts}
    rng, refused, memory = random.Random(name), 0, peak()
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        for number in range(TRIES):
            file = rng.choice(list(whole))
            bad = damaged(file, whole[file], rng)
            file.write_bytes(bad)
            signal.alarm(SECONDS)
            try:
                use(folder)
            except (ValueError, OSError) as error:
                assert str(error) and not isinstance(error, TimeoutError), file
                refused += 1
            except Exception as error:
                raise AssertionError(f"try {number}: {file} holds {bad[:200]!r}") from error
            signal.alarm(0)
            file.write_bytes(whole[file])
    finally:
        signal.signal(signal.SIGALRM, before)
    print(f"{name}: {TRIES} damaged files, {refused} refused")
    assert refused
    assert peak() < memory + (GIGABYTES << 20)
