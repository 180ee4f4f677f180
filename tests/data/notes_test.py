"""Notes on captions that are cut, and on references of other words."""

import dataclasses

from tfcap.data.notes import cut_note, unknown_words_note
from tfcap.data.prepared import PreparedData, write_references


def test_captions_that_are_cut_are_counted_and_a_length_is_named():
    """A caption of 19 words and its end mark fill max_length=20; one of 20 words has no place."""
    lengths = [0] * 19 + [99, 1]  # 99 captions of 19 words, one of 20
    assert cut_note(lengths, 20) == "" == cut_note([], 20)  # 1 % at most
    note = cut_note([0] * 19 + [98, 1, 1], 20)
    assert note.startswith("2 of 100 training captions have 20 words or more")
    assert "task.max_length=21 keeps 99 %" in note
    assert "task.max_length=58 keeps" in cut_note([0] * 57 + [30], 20)


def test_references_of_other_words_are_told(shapes, tmp_path):
    data = PreparedData.load(shapes)
    assert unknown_words_note(data, "val") == ""
    texts = {image: ["一只狗在草地上奔跑", "A circle"] for image in data.references("val")}
    write_references(tmp_path, "val", [(i, "a.png", rows[:1]) for i, rows in texts.items()])
    splits = {"val": {**data.split("val"), "references_sha256": None}}
    other = dataclasses.replace(
        data, folder=str(tmp_path), fingerprint={**data.fingerprint, "splits": splits}
    )
    assert "100 % of the words of the references of val are not in vocab.txt" in unknown_words_note(
        other, "val"
    )
