"""The command ranks in both directions, and finds images and sentences by query."""

import json

import numpy as np
import pytest
from helpers import commands
from helpers.prepared import with_other_vocabulary, without_training_images

from tfcap import errors, retrieve
from tfcap.inference.nearest import Candidates
from tfcap.inference.retrieval import Pairs, find, rank

pytestmark = pytest.mark.slow


def test_the_command_prints_and_writes_the_ranks(trained, run, data, tmp_path):
    flags = ["--split=val", "--marginal_images=9", "--seed=5", "--batch_size=2"]
    path = tmp_path / "new" / "metrics.json"
    done = commands.run_command(
        "tfcap.retrieve", f"--model_dir={trained}", *flags, f"--metrics={path}"
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    result, metrics = rank(Pairs(run, data, "val", 0, 5), 9, 5)[0], json.loads(path.read_text())
    rows = {row.split("  ")[0]: row.split() for row in done.stdout.splitlines()}
    for name, summary in result.items():
        assert metrics[name] == summary.as_dict()
        numbers = [*summary.recall.values(), summary.median]
        np.testing.assert_allclose([float(n) for n in rows[name][-4:]], numbers, atol=0.06)
    assert metrics["marginal"] == {"images": 9, "seed": 5}
    assert metrics["signature"] == "cross-entropy"
    assert f"{(12 + 9) * 60} pairs in " in done.stdout


def test_queries_find_their_images(trained, run, data, tmp_path, capsys):
    queries = ["a red circle above a zebra", "two small blue squares"]
    picture = next(iter(data.picture_paths("val").values()))
    values = [f"--model_dir={trained}", *(f"--query={query}" for query in queries), "--top=3"]
    commands.run_here(retrieve, *values, f"--image={picture}", "--marginal_images=2")
    lines = capsys.readouterr().out.splitlines()[1:]
    captions = {text for own in data.references("val").values() for text in own}
    assert lines[-4] == picture and lines[-1].split()[0] == "3"
    assert {line[16:] for line in lines[-3:]} <= captions
    assert lines[0] == queries[0] and lines[4] == queries[1]
    assert any(line.startswith("note: ") and "zebra" in line for line in lines)
    names = list(data.file_names("val").values())
    matches, _ = find(Pairs(run, data, "val", 0, 8), queries, 3)
    for own, first in zip(matches, (1, 5), strict=True):
        for number, (line, (place, score)) in enumerate(zip(lines[first:], own, strict=False), 1):
            assert line.split() == [str(number), f"{score:.2f}", names[place]]
    commands.run_here(retrieve, *values, "--candidates=4", "--index", tmp_path / "index")
    lines = [line for line in capsys.readouterr().out.splitlines()[1:] if line[:5] != "note:"]
    first = Candidates(data, "val", str(tmp_path / "index"))
    near = {names[place] for place in first.nearest(first.sentences(queries), 4)[1]}
    assert len(lines) == 8 and {line.split()[2] for line in lines[5:8]} <= near


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "--model_dir is missing: .* models: flickr8k"),
        ("--model_dir=RUN --candidates=5", "--candidates needs a query"),
        ("--model_dir=RUN --data_dir=OTHER", "has another vocabulary"),
    ],
)
def test_wrong_flags_are_refused(given, message, trained, shapes, tmp_path):
    other = with_other_vocabulary(shapes, tmp_path / "other")
    given = given.replace("RUN", trained).replace("OTHER", str(other))
    with pytest.raises(ValueError, match=message):
        commands.run_here(retrieve, *given.split())


def test_data_without_training_images_is_refused_before_the_scoring(
    trained, shapes, data, tmp_path, capsys
):
    folder = without_training_images(shapes, tmp_path / "val")
    picture = next(iter(data.picture_paths("val").values()))
    values = [f"--model_dir={trained}", f"--data_dir={folder}"]
    for more in ([], [f"--image={picture}"], ["--query=a circle", "--candidates=1"]):
        with pytest.raises(
            errors.UsageError, match="has no split train, only val. Give --marginal_"
        ):
            commands.run_here(retrieve, *values, *more)
        assert "pairs in" not in capsys.readouterr().out
    commands.run_here(retrieve, *values, "--marginal_images=0", "--limit=2")
    assert "image to text" in capsys.readouterr().out
