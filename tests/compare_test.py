"""The command compares result files and refuses files that do not belong together."""

import json
import re

import numpy as np
import pytest
from helpers import commands

from tfcap import compare, errors, evaluate
from tfcap.metrics import bootstrap, coco, results

WORDS = "red blue green big small circle square above below near".split()


@pytest.fixture(scope="module")
def world():
    """References of 40 images, captions with two wrong words of six, and with one wrong word."""
    rng = np.random.default_rng(0)
    references, worse, better = {}, {}, {}
    for image in range(1, 41):
        words = rng.choice(WORDS, 6)
        references[image] = [" ".join(words), " ".join(rng.permutation(words))]
        for captions, wrong in ((worse, 2), (better, 1)):
            caption = words.copy()
            caption[rng.choice(6, wrong, replace=False)] = "thing"
            captions[image] = " ".join(caption)
    return references, worse, better


@pytest.fixture(scope="module")
def files(world, tmp_path_factory):
    """Paths of the references and of the two result files, the second in another order."""
    folder = tmp_path_factory.mktemp("compared")
    references, worse, better = world
    annotations = [
        {"image_id": image, "caption": text}
        for image, group in references.items()
        for text in group
    ]
    images = [{"id": image, "file_name": f"{image}.jpg"} for image in references]
    images += [{"file_name": "without an id.jpg"}, "no object"]
    content = {"images": images, "annotations": annotations}
    (folder / "references.json").write_text(json.dumps(content))
    results.write_results(folder / "worse.json", worse)
    results.write_results(folder / "better.json", dict(reversed(better.items())))
    results.write_results(folder / "short.json", {1: "a"})
    return folder


@pytest.mark.slow
def test_the_command_prints_and_writes_the_difference(files, world):
    done = commands.run_command(
        *("tfcap.compare", files / "worse.json", files / "better.json", "--references"),
        *(files / "references.json", "--samples", "200", "--seed", "5"),
        *("--scores", "BLEU,CIDEr", "--metrics", files / "metrics.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "40 images" in done.stdout and "200 resamples, 95 % intervals" in done.stdout
    assert "better minus worse" in done.stdout and "better gains most, by CIDEr" in done.stdout
    assert re.search(r"\n  (\d+)\.jpg, image \1\n", done.stdout)
    content = json.loads((files / "metrics.json").read_text())
    assert content["images"] == 40 and content["against"] == "worse"
    change = content["differences"]["better"]["CIDEr"]
    assert change["verdict"] == "higher" and 0 < change["low"] < change["value"] < change["high"]
    references, worse, better = world
    with coco.CocoScorer(("CIDEr", "BLEU")) as scorer:
        result = bootstrap.compare(
            {"worse": worse, "better": better},
            references,
            scorer,
            samples=200,
            seed=5,
        )
    assert change["value"] == pytest.approx(result.differences["better"]["CIDEr"].value)
    assert change["low"] == pytest.approx(result.differences["better"]["CIDEr"].low)
    interval = content["runs"]["worse"]["scores"]["BLEU-4"]
    assert interval["low"] == pytest.approx(result.intervals["worse"]["BLEU-4"].low)
    assert f"{interval['value']:.2f} [{interval['low']:.2f}, " in done.stdout


def test_three_sets_are_compared_with_the_first(world):
    references, worse, better = world
    with coco.CocoScorer(("CIDEr",), java=None) as scorer:
        runs = {"a": better, "b": worse, "same": better}
        result = bootstrap.compare(runs, references, scorer, samples=50)
    assert list(result.differences) == ["b", "same"]
    assert result.differences["b"]["CIDEr"].verdict == "lower"
    assert result.differences["same"]["CIDEr"] == bootstrap.Difference(0.0, 0.0, 0.0, 0.5, 1.0)
    table = compare._format_scores(result)
    assert table.count("plain tokenizer") == 1  # once, not once per set
    text = compare._format_difference(result.differences["same"], "same", "a")
    assert "+0.00 [+0.00, +0.00]" in text and "not significant" in text
    old, new = result.scores["a"].per_image, result.scores["b"].per_image
    worst = min(references, key=lambda image: new[image]["CIDEr"] - old[image]["CIDEr"])
    losses = compare._format_images(result, runs, "b").split("b loses most, by CIDEr\n")[1]
    assert losses.count("  image ") == 3
    assert losses.splitlines()[:3] == [
        f"  image {worst}",
        f"    {old[worst]['CIDEr']:7.1f}  {better[worst]}  (a)",
        f"    {new[worst]['CIDEr']:7.1f}  {worse[worst]}  (b)",
    ]
    assert compare._format_images(result, runs, "same") == ""
    named = compare._format_images(result, runs, "b", {worst: "a\n.jpg"})
    assert f"  a\\n.jpg, image {worst}\n" in named


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_runs_caption_the_split_and_are_compared(trained, shapes, tmp_path, capsys, monkeypatch):
    """A file stands among them, and the captioner of the package reads the pictures."""
    monkeypatch.chdir(tmp_path)
    output, metrics = tmp_path / "results.json", tmp_path / "metrics.json"
    commands.run_here(evaluate, "--model_dir", trained, "--output", output)
    commands.run_here(
        *(compare, "flickr8k", trained, output, "--samples=20", "--scores=CIDEr"),
        *("--metrics", metrics),
    )
    printed = capsys.readouterr().out
    assert f"12 images of {shapes}, split val, " in printed
    assert re.search(r"\n  \w+\.\w+, image \d+\n", printed)
    assert "run minus flickr8k" in printed and "results minus flickr8k" in printed
    content = json.loads(metrics.read_text())
    own, kept = (content["runs"][name]["scores"]["CIDEr"] for name in ("run", "results"))
    assert own == kept  # the run captions as tfcap.evaluate does
    assert content["runs"]["flickr8k"]["scores"]["CIDEr"] != own


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ("worse.json", 2, "two or more runs or files"),
        ("worse.json .", 2, ". is a run, whose data has the references. Leave out --references"),
        ("worse.json worse.json", 2, "worse.json is given twice"),
        ("worse.json better.json --scores B", 3, "metrics must be one or more of BLEU, METEOR"),
        ("worse.json short.json", 3, "short.json: There are no predictions for images 2, 3"),
        ("worse.json nothing.json", 3, "Cannot read nothing.json: No such file"),
    ],
)
def test_bad_flags_and_files_are_refused(files, monkeypatch, given, code, message):
    monkeypatch.chdir(files)
    with pytest.raises(ValueError, match=message) as caught:
        commands.run_here(compare, *given.split(), "--references=references.json")
    assert isinstance(caught.value, errors.UsageError) == (code == 2)


def test_files_need_references(files):
    with pytest.raises(errors.UsageError, match="--references is missing"):
        commands.run_here(compare, files / "worse.json", files / "better.json")
