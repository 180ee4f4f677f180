"""Reports on X-ray pictures, cleaned as by R2Gen: prepared, scored, shown and exported."""

import json
import logging

import pytest
from helpers import events
from PIL import Image

import tfcap
from tfcap import errors, segmentation
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.evaluate import evaluate
from tfcap.export import export
from tfcap.metrics.coco import CocoScorer
from tfcap.prepare import prepare

REPORT = "1. The heart is normal. 2. No {} opacity (1.5 cm)..  Lungs are clear"
WORDS = "the heart is normal . no {} opacity 15 cm . lungs are clear ."


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The arguments of prepare for the layout of R2Gen, and 16 words a report."""
    folder = tmp_path_factory.mktemp("reports")
    splits = {"train": [], "val": []}
    for number, colour in enumerate(["red", "green"] * 4 + ["violet"] * 2):
        Image.new("RGB", (32, 32), colour).save(folder / f"{number}.png")
        report = {"id": f"CXR{number}", "report": REPORT.format(colour)}
        splits["val" if colour == "violet" else "train"].append(
            report | {"image_path": [f"{number}.png"]}
        )
    (folder / "annotation.json").write_text(json.dumps(splits))
    return dict(
        captions=str(folder / "annotation.json"),
        images=str(folder),
        backbone="pixels",
        min_count=2,
        tokens="iu_xray",
    )


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    return prepare(str(tmp_path_factory.mktemp("prepared")), **made)


@pytest.fixture(scope="module")
def run(folder, small, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("run"))
    changes = {
        "task": {"data_dir": str(folder), "max_length": 9},
        "trainer": {"train_steps": 100, "validation_interval": 100},
    }
    events.run(events.merged(small, changes), directory)
    return directory


def test_records_have_the_words_and_references_are_raw(folder):
    data = PreparedData.load(folder)
    assert stored_captions(data, "train")[0] == [WORDS.format("red")]
    assert data.references("train")[0] == [REPORT.format("red")]
    assert data.vocab.words[4] == "." and "violet" not in data.vocab.words


def test_prepare_says_what_r2gen_would_cut(made, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tfcap"):
        prepare(str(tmp_path / "out"), **made)
    assert "task.max_length=59 cuts the same 0 of 8 training captions" in caplog.text


@pytest.mark.usefixtures("no_java")
def test_the_full_stop_is_a_word_of_scores():
    """Four of five words of the caption are in the reference, a full stop among them."""
    references = {1: ["1. No edema. Clear"], 2: ["No change."]}
    captions = {1: "no edema . clear lungs", 2: "no change ."}
    with CocoScorer(["BLEU"], tokens="iu_xray") as scorer:
        scores = scorer.score(references, captions)
    assert scores.per_image[1]["BLEU-1"] == pytest.approx(80.0)
    assert scores.per_image[2]["BLEU-1"] == pytest.approx(100.0)
    assert scores.notes == [segmentation.described("iu_xray")]


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_a_run_and_its_file_have_the_same_scores(run, folder, tmp_path):
    paths = {name: str(tmp_path / f"{name}.json") for name in ("output", "metrics_file")}
    scores = evaluate(model_dir=run, **paths)
    notes = json.loads((tmp_path / "metrics_file.json").read_text())["notes"]
    assert segmentation.described("iu_xray") in notes
    assert any("references are whole" in note for note in notes)
    captions = [entry["caption"] for entry in json.loads((tmp_path / "output.json").read_text())]
    assert all(" . " in text for text in captions)
    references = f"{folder}/references_val.json"
    assert evaluate(predictions=paths["output"], references=references).corpus == scores.corpus
    with pytest.raises(errors.UsageError, match="`cut_references` needs a run"):
        evaluate(predictions=paths["output"], references=references, cut_references=True)


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_references_are_cut_as_training_reads_them(run):
    """A model of 9 words has learnt all of them by heart, but for the rare word."""
    cut = evaluate(model_dir=run, cut_references=True, decoding="suppress_unk=false")
    assert cut.corpus["BLEU-4"] > evaluate(model_dir=run).corpus["BLEU-4"]
    assert any("cut to 9 words" in note for note in cut.notes)
    assert not any("whole" in note for note in cut.notes)


@pytest.mark.slow
def test_a_report_is_shown_joined(run, made, tmp_path):
    picture = f"{made['images']}/8.png"
    caption = tfcap.load(run)(picture)
    assert "heart is normal. no " in caption.text and "." in caption.words
    tfcap.load(run).export(str(tmp_path / "served"))
    assert tfcap.load(tmp_path / "served")(picture).text == caption.text
    export(model_dir=run, export_dir=str(tmp_path / "lite"), format="litert", weights="float32")
    portable = tfcap.load(tmp_path / "lite")(picture)
    assert (portable.text, portable.words) == (caption.text, caption.words)
