"""Captions of languages without spaces: prepared, trained on, scored, shown and exported."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf
from helpers import commands, events, without_spaces
from helpers.report_world import element

import tfcap
from tfcap import errors, runs, segmentation
from tfcap.compare import compare
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.doctor import PROBLEM, findings
from tfcap.evaluate import evaluate
from tfcap.export import export
from tfcap.inference.likelihood import encode_captions
from tfcap.prepare import prepare

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]

SPACED = "一 个 红 色 的 圆 形 在 t 恤 的 左 边"
JOINED = "一个红色的圆形在t恤的左边"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The arguments of prepare for a data set in Chinese."""
    return without_spaces.write(tmp_path_factory.mktemp("chinese"), without_spaces.CHINESE)


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    """The prepared directory with letters as words."""
    return prepare(str(tmp_path_factory.mktemp("prepared")), tokens="characters", **made)


@pytest.fixture(scope="module")
def run(folder, small, tmp_path_factory):
    """The directory of a run that has learnt what most captions begin with."""
    directory = str(tmp_path_factory.mktemp("run"))
    overrides = events.merged(small, {"task": {"data_dir": str(folder), "max_length": 16}})
    overrides = events.merged(
        overrides, {"trainer": {"train_steps": 60, "validation_interval": 60}}
    )
    events.run(overrides, directory)
    return directory


@pytest.fixture(scope="module")
def picture(made):
    return f"{made['images']}/12.png"


@pytest.fixture(scope="module")
def caption(run, picture):
    return tfcap.load(run)(picture, attention="attention")


def test_records_have_letters_and_references_are_raw(folder):
    data = PreparedData.load(folder)
    assert data.fingerprint["tokens"] == "characters" and "segmenter" not in data.fingerprint
    assert stored_captions(data, "train")[0] == [SPACED, "左 边 有 1 个 红 色 圆 形"]
    assert data.references("train")[0][0] == "一个红色的圆形，在T恤的左边。"
    assert not [one for one in findings(str(folder)) if one.status == PROBLEM]


def test_what_training_reads_is_what_was_cut(folder):
    data = PreparedData.load(folder)
    ids = data.vocab.encode(tf.constant([SPACED]), 20)
    assert data.vocab.detokenize(ids[:, 1:], joined=False).numpy()[0].decode() == SPACED
    assert data.vocab.detokenize(ids[:, 1:]).numpy()[0].decode() == JOINED
    encoded = encode_captions(data.vocab, [JOINED, SPACED, "一个红色的圆形，在T恤的左边。"], 20)
    assert encoded.tokens.tolist() == 3 * ids[:, 1:].numpy().tolist() and not encoded.unknown


def test_a_run_knows_how_its_captions_are_cut(run, folder, made, tmp_path):
    loaded = runs.load(run)
    assert loaded.vocab.tokens == "characters"
    search = loaded.with_decoding("prefix=左边").search()
    assert search.options.prefix == tuple(loaded.vocab.ids(["左", "边"]))
    other = prepare(tmp_path / "raw", vocab=f"{folder}/vocab.txt", **made)
    with pytest.raises(ValueError, match="way of cutting.*raw.*characters.*`tokens=characters`"):
        runs.load_data(loaded, str(other))


def test_a_caption_is_shown_joined(caption, run, picture):
    assert caption.text == "".join(caption.words) and len(caption.words) > 3
    assert len(caption.log_probs) in (len(caption.words), len(caption.words) + 1)
    assert caption.attended.words == list(caption.words)
    assert caption.attended.caption == caption.text
    done = commands.run_command("tfcap.caption", "--model_dir", run, picture)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\t")[1].strip() == caption.text


def test_exports_show_captions_joined(caption, run, picture, tmp_path):
    tfcap.load(run).export(str(tmp_path / "served"))
    exported = tfcap.load(tmp_path / "served")(picture)
    assert exported.text == caption.text
    export(model_dir=run, export_dir=str(tmp_path / "lite"), format="litert", weights="float32")
    portable = tfcap.load(tmp_path / "lite")(picture)
    assert (portable.text, portable.words) == (caption.text, caption.words)
    command = [sys.executable, str(tmp_path / "lite" / "caption.py"), picture]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\t")[1].strip() == caption.text


def test_a_run_and_its_file_of_captions_have_the_same_scores(run, folder, tmp_path):
    paths = {name: str(tmp_path / f"{name}.json") for name in ("output", "metrics_file")}
    page = tmp_path / "report.html"
    scores = evaluate(model_dir=run, diversity=True, perplexity=True, report=str(page), **paths)
    assert set(scores.unavailable) == {"METEOR", "SPICE"} and scores.corpus["BLEU-1"] > 10
    captions = [entry["caption"] for entry in json.loads((tmp_path / "output.json").read_text())]
    assert captions and not any(" " in text for text in captions)
    notes = json.loads((tmp_path / "metrics_file.json").read_text())["notes"]
    assert segmentation.described("characters") in notes
    shown = element(page, "data")["images"][0]["runs"][0]
    assert shown["text"] == "".join(shown["words"]) == captions[0]

    beside = f"{folder}/references_val.json"  # the way is in the dataset.json beside it
    assert evaluate(predictions=paths["output"], references=beside).corpus == scores.corpus
    alone = tmp_path / "references.json"
    alone.write_bytes(open(beside, "rb").read())
    again = evaluate(predictions=paths["output"], references=str(alone), tokens="characters")
    assert again.corpus == scores.corpus
    as_sentences = evaluate(predictions=paths["output"], references=str(alone))
    assert as_sentences.corpus["BLEU-1"] < 1
    spaced = tmp_path / "spaced.json"
    entries = json.loads((tmp_path / "output.json").read_text())
    spaced.write_text(json.dumps([e | {"caption": " ".join(e["caption"])} for e in entries]))
    assert evaluate(predictions=str(spaced), references=beside).corpus == scores.corpus
    compared = compare([run, paths["output"]], scores=["BLEU", "CIDEr"], samples=10)
    first, second = compared.scores.values()
    assert first.corpus == second.corpus == {key: scores.corpus[key] for key in first.corpus}


def test_captions_of_files_are_reranked_by_letters(run, folder, tmp_path):
    data = PreparedData.load(folder)
    (image, texts), *_ = data.references("val").items()
    path = tmp_path / "hypotheses.json"
    path.write_text(
        json.dumps([{"image_id": i, "captions": ["蓝色", JOINED]} for i in data.references("val")])
    )
    out = tmp_path / "out.json"
    evaluate(
        predictions=str(path),
        references=f"{folder}/references_val.json",
        data_dir=str(folder),
        rerank="oracle",
        output=str(out),
    )
    assert (
        next(e for e in json.loads(out.read_text()) if e["image_id"] == image)["caption"] == JOINED
    )


def test_japanese_is_cut_by_a_segmenter(tmp_path):
    pytest.importorskip("unidic_lite")
    made = without_spaces.write(tmp_path / "source", without_spaces.JAPANESE)
    data = PreparedData.load(prepare(tmp_path / "out", tokens="fugashi", **made))
    assert data.fingerprint["segmenter"].startswith("fugashi ")
    words = stored_captions(data, "train")[0][0].split()
    assert words == ["赤い", "ボール", "が", "t", "シャツ", "の", "左", "に", "ある"]
    assert data.vocab.split(["赤いボールがTシャツの左にある。"]) == [words]


def test_a_missing_segmenter_is_told_before_the_work(monkeypatch, made, tmp_path):
    monkeypatch.setitem(sys.modules, "jieba", None)
    segmentation.segmenter.cache_clear()
    with pytest.raises(errors.UsageError, match="pip install jieba"):
        prepare(tmp_path / "out", tokens="jieba", **made)
    assert not (tmp_path / "out").exists()
    segmentation.segmenter.cache_clear()
