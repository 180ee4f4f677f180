"""The captions that a model learns from are those of the records."""

import dataclasses
import json

from helpers.prepared import write_directory

from tfcap.data.captions import cut_note, losses, stored_captions, unlike_references
from tfcap.data.prepared import PreparedData
from tfcap.data.references import write_references


def test_the_words_of_a_caption_file_come_from_the_records(tmp_path):
    made = write_directory(str(tmp_path))
    raw = {record.image_id: ["A dog's.", "One cat!"] for record in made}
    rows = [(image, f"{image}.jpg", texts) for image, texts in raw.items()]
    write_references(tmp_path, "train", rows)
    data = PreparedData.load(tmp_path)
    assert stored_captions(data, "train") == data.references("train") == raw
    fingerprint = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(fingerprint | {"tokens": "given"}))
    data = PreparedData.load(tmp_path)
    assert stored_captions(data, "train") == {image: ["A dog .", "one Cat"] for image in raw}
    assert list(stored_captions(data, "train")) == list(raw)


def test_captions_that_are_cut_are_counted_and_a_length_is_named():
    """A caption of 19 words and its end mark fill max_length=20; one of 20 words has no place."""
    lengths = [0] * 19 + [99, 1]  # 99 captions of 19 words, one of 20
    assert cut_note(lengths, 20) == "" == cut_note([], 20)  # 1 % at most
    note = cut_note([0] * 19 + [98, 1, 1], 20)
    assert note.startswith("2 of 100 training captions have 20 words or more")
    assert "task.max_length=21 keeps 99 %" in note
    assert "task.max_length=58 keeps" in cut_note([0] * 57 + [30], 20)


def test_what_training_does_not_read_is_told(shapes):
    data = PreparedData.load(shapes)
    lengths = data.split("train")["lengths"]
    assert sum(lengths) == data.split("train")["captions"] and lengths[0] == 0
    assert losses(data, "train", 20, 0) == [] == losses(data, "train", 20, data.max_regions)
    cut, regions = losses(data, "train", 6, 10)
    assert f"{sum(lengths[6:])} of {sum(lengths)} training captions have 6 words or more" in cut
    assert "up to 36 regions" in regions and "drops up to 26" in regions
    old = {k: {"images": 1} for k in data.fingerprint["splits"]}
    assert (
        losses(
            dataclasses.replace(data, fingerprint={**data.fingerprint, "splits": old}),
            "train",
            6,
            0,
        )
        == []
    )  # of an older version


def test_references_of_other_words_are_told(shapes, tmp_path):
    data = PreparedData.load(shapes)
    assert unlike_references(data, "val") == ""
    texts = {image: ["一只狗在草地上奔跑", "A circle"] for image in data.references("val")}
    write_references(tmp_path, "val", [(i, "a.png", own[:1]) for i, own in texts.items()])
    splits = {"val": {**data.split("val"), "references_sha256": None}}
    other = dataclasses.replace(
        data, folder=str(tmp_path), fingerprint={**data.fingerprint, "splits": splits}
    )
    assert "100 % of the words of the references of val are not in vocab.txt" in unlike_references(
        other, "val"
    )
