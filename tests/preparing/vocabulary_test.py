"""A given vocabulary, its document frequencies, and data without training images."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from helpers import commands
from helpers.photos import examples, make_features, run

from tfcap import configs, evaluate
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import Vocab
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings
from tfcap.training.stages import train

pytestmark = pytest.mark.slow  # nearly every test prepares a directory

photos = pytest.fixture(make_features)


@pytest.fixture
def prepared(photos):
    """A prepared directory with a train split; afterwards all images are in the split test."""
    data = run(photos)
    for entry in photos[1]:
        entry["split"] = "test"
    return data


def test_a_test_split_alone_needs_the_vocabulary(photos, prepared, capsys):
    folder = photos[0]
    with pytest.raises(ValueError, match="No image of the split 'train' has a caption.*`vocab`"):
        run(photos, out=str(folder / "b"))
    assert not list((folder / "b").glob("*.tfrecord"))  # before any feature is extracted
    data = run(photos, out=str(folder / "b"), vocab=str(folder / "out" / "vocab.txt"))
    assert list(data.fingerprint["splits"]) == ["test"] and data.split("test")["images"] == 12
    assert data.vocab.sha256 == prepared.vocab.sha256
    values = np.concatenate(list(examples(data, "test").values())).astype(np.float64)
    assert data.fingerprint["features"]["mean"] == pytest.approx(values.mean(), rel=1e-5)
    said = capsys.readouterr().out
    assert "vocab.txt has 100.0 % of the words of the captions" in said
    assert said.count("note: no document frequencies") == 1


def test_the_share_of_unknown_words_is_printed_before_the_work(photos, capsys):
    for number, entry in enumerate(photos[1]):
        entry["sentences"].append({"raw": f"a dog and word{number}"})
    run(photos, min_count=3)
    _, first, second = capsys.readouterr().out.splitlines()[:3]
    assert first.startswith("vocabulary: 5 of 14 different words occur at least 3 times. The oth")
    assert first.endswith("become <unk>: 11.1 % of the words of the training captions")
    assert "warning: 11.1 % is much" in second and "lower `min_count`" in second
    run(photos, min_count=1, overwrite=True)
    said = capsys.readouterr().out
    assert "all 14 different words; none becomes <unk>" in said and "warning" not in said
    with pytest.raises(ValueError, match="No word occurs 500 times or more"):
        run(photos, min_count=500, out=str(photos[0] / "none"))
    assert not list((photos[0] / "none").glob("*.tfrecord"))


def test_document_frequencies_of_other_words_are_refused(photos, prepared):
    folder = photos[0]
    other = folder / "other"
    other.mkdir()
    shutil.copy(folder / "out" / DOCUMENT_FREQUENCY, other)
    words = prepared.vocab.words
    values = {"vocab": str(folder / "v.txt"), "document_frequency": str(other / DOCUMENT_FREQUENCY)}
    values["out"] = str(folder / "b")

    Vocab(words).save(folder / "v.txt")
    Vocab([*words[:4], *words[:3:-1]]).save(other / "vocab.txt")  # the same words, another order
    with pytest.raises(ValueError, match="whose words differ from `vocab`"):
        run(photos, **values)
    (other / "vocab.txt").unlink()
    Vocab(words[:-1]).save(folder / "v.txt")
    with pytest.raises(ValueError, match="but `vocab` has 7 words"):
        run(photos, **values)
    Vocab(words).save(folder / "v.txt")
    assert run(photos, **values).fingerprint["document_frequency"] == "file"


def test_images_without_captions_are_kept_unless_they_are_trained_on(photos, capsys):
    for number in (0, 9, 10):  # one of train, two of val
        photos[1][number]["sentences"] = [] if number != 10 else [{"raw": "..."}]
    data = run(photos)
    assert [item["id"] for item in data.fingerprint["skipped"]] == [10]
    assert data.fingerprint["dropped_captions"] == 1
    assert {image: len(texts) for image, texts in data.references("val").items()} == {
        19: 0,
        20: 0,
        21: 2,
    }
    entry = data.split("val")
    assert (entry["images"], entry["captions"]) == (3, 2)
    assert list(examples(data, "val")) == [19, 20, 21]


@pytest.mark.usefixtures("no_java")
def test_validation_and_evaluation_leave_out_images_without_captions(
    shapes, small, tmp_path, capsys
):
    source = json.loads(open(f"{shapes}/dataset_shapes.json").read())["images"]
    images = [image for image in source if image["split"] != "train"]
    for image in [image for image in images if image["split"] == "val"][::3]:
        image["sentences"] = []
    (tmp_path / "captions.json").write_text(json.dumps({"images": images}))
    part = str(tmp_path / "out")
    settings = Settings(part, str(tmp_path / "captions.json"), images=f"{shapes}/images")
    more = {"vocab": f"{shapes}/vocab.txt", "backbone": "pixels", "weights": None}
    prepare(dataclasses.replace(settings, **more))
    captions = PreparedData.load(part).references("val")
    assert (len(captions), sum(not texts for texts in captions.values())) == (12, 4)
    changes = {"task": {"data_dir": part, "train_data": {"split": "test"}}}
    changes["trainer"] = {"train_steps": 1, "validation_interval": 1, "checkpoint_interval": 1}
    changes["trainer"] |= {"steps_per_loop": 1, "summary_interval": 1}
    # One step and one validation take less time than their graphs.
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    changes["trainer"] |= dict.fromkeys(graphs, False)
    params = configs.resolve("attention_lstm", changes=small, override=json.dumps(changes))
    directory = str(tmp_path / "run")
    train(params, "attention_lstm", directory)
    said = capsys.readouterr().out
    assert "greedy_CIDEr-D is left out:" in said and "has no document frequencies" in said
    best = json.loads((tmp_path / "run" / "best_ckpt" / "info.json").read_text())
    assert "greedy_CIDEr-D" not in best
    metrics, output = tmp_path / "m.json", tmp_path / "results.json"
    arguments = ["--model_dir", directory, "--output", output, "--metrics", metrics]
    commands.run_here(evaluate, *arguments, "--perplexity", "--diversity")
    assert "note: 4 images have no captions and are not scored" in capsys.readouterr().out
    assert len(json.loads(output.read_text())) == 12
    scores = json.loads(metrics.read_text())
    assert scores["CIDEr"] == pytest.approx(best["CIDEr"], rel=1e-9)


def test_words_of_all_splits_are_counted_on_request(photos, capsys):
    for entry in photos[1][9:]:
        entry["sentences"] = [{"raw": "a zebra"}] * 2
    data = run(photos, count_splits="all", min_count=6)
    assert "zebra" in data.vocab.words and data.fingerprint["count_splits"] == "all"
    assert data.document_frequencies().images == 9  # those of the training captions
    run(photos, min_count=6, out=str(photos[0] / "b"))
    assert "zebra" not in PreparedData.load(photos[0] / "b").vocab.words
    run(photos, count_splits="all", min_count=7, out=str(photos[0] / "c"))
    said = capsys.readouterr().out
    assert "vocabulary: all 5 different words" in said
    assert "vocabulary: 4 of 5 different words occur at least 7 times. The" in said
    assert "% of the words of the captions of all splits" in said


def test_sentences_without_spaces_give_a_warning_before_the_error(photos, capsys):
    for entry in photos[1]:
        entry["sentences"] = [{"raw": "一只狗在草地上奔跑"}]
    with pytest.raises(ValueError, match="No word occurs 500 times"):
        run(photos, out=str(photos[0] / "c"), min_count=500)
    assert "warning: a caption has 1.0 words on average" in capsys.readouterr().out
