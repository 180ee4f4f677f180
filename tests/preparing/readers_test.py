"""Layouts of captions go through prepare."""

import json

import pytest
from helpers import published
from helpers.photos import examples, messages
from helpers.sources import FIXTURES

from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.doctor import PROBLEM, findings
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings

# `sources/layouts_test` reads all layouts; `sources/archives_test` prepares pictures inside of
# other files. Each takes more than a second.
WHOLE = ("gif", "imagefolder", "json")


def settings(made, out, **changes):
    """The settings of a command with paths only, but for a backbone that needs no download."""
    captions = [str(path) for path in made.captions] or None
    images = None if made.images is None else str(made.images)
    values = {"images": images, "backbone": "pixels", "weights": None, "min_count": 1, **changes}
    return Settings(str(out), captions, **values)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_source_is_prepared_with_no_option_but_paths(name, tmp_path, capsys):
    made = FIXTURES[name](tmp_path)
    if name == "imagefolder":  # --images is all that it needs
        made = made._replace(captions=[])
    out = prepare(settings(made, tmp_path / "out"))
    data = PreparedData.load(out)
    said = capsys.readouterr().out
    assert f"source: {name} (" in said
    assert sum(split["images"] for split in data.fingerprint["splits"].values()) == made.count
    assert len(data.fingerprint.get("skipped_rows", [])) == made.skipped
    assert (out / "splits.json").exists() == (made.splits is None)
    prepare(settings(made, tmp_path / "out"))
    assert "is prepared already" in capsys.readouterr().out


@pytest.mark.slow
def test_a_split_without_captions_keeps_its_name_through_prepare_and_the_doctor(tmp_path):
    """COCO's image_info_test2014.json beside its two caption files, and alone with --vocab."""
    made = FIXTURES["coco"](tmp_path)
    out = prepare(settings(made, tmp_path / "out"))
    data = PreparedData.load(out)
    counts = {n: (s["images"], s["captions"]) for n, s in data.fingerprint["splits"].items()}
    assert counts == {"train": (3, 6), "val": (2, 4), "test2014": (2, 0)}
    assert data.references("test2014") == {1: [], 14: []}
    assert data.file_names("test2014")[14] == "test2014/COCO_test2014_000000000014.jpg"
    assert list(examples(data, "test2014")) == [1, 14] and len(data.picture_paths("test2014")) == 2
    assert not [finding for finding in findings(str(out)) if finding.status == PROBLEM]
    alone = made._replace(captions=made.captions[2:])
    other = prepare(settings(alone, tmp_path / "alone", vocab=str(out / "vocab.txt")))
    assert list(PreparedData.load(other).fingerprint["splits"]) == ["test2014"]
    with pytest.raises(ValueError, match="has no split 'test214'.*mean 'test2014'"):
        data.split("test214")


def test_given_tokens_are_trained_on_and_raw_captions_are_references(tmp_path):
    made = FIXTURES["karpathy"](tmp_path)
    out = prepare(settings(made, tmp_path / "out", tokens="given"))
    data = PreparedData.load(out)
    assert "mans" in data.vocab.words and "man" not in data.vocab.words
    (stored,) = messages(next(iter(data.shard_paths("val"))))
    texts = stored.features.feature["captions"].bytes_list.value
    assert list(texts) == [b"a mans dog 0", b"a mans dog 1"]
    assert list(data.references("val").values()) == [["A man's dog 0.", "A man's dog 1."]]
    assert data.fingerprint["tokens"] == "given"
    assert not [finding for finding in findings(str(out)) if finding.status == PROBLEM]
    with pytest.raises(ValueError, match="other settings .tokens"):
        prepare(settings(made, tmp_path / "out"))


def test_given_tokens_of_stair_captions_come_from_its_own_key(tmp_path, capsys):
    published.stair(tmp_path)
    paths = sorted(tmp_path.glob("stair*.json"))
    content = json.loads(paths[0].read_text())
    values = {"images": str(tmp_path / "coco"), "backbone": "pixels", "min_count": 1}
    whole = [str(path) for path in paths]
    data = PreparedData.load(
        prepare(Settings(str(tmp_path / "out"), whole, tokens="given", **values))
    )
    assert data.vocab.words[4:] == ["凧", "赤い"]
    assert list(stored_captions(data, "val").values()) == [["赤い 凧"]]
    assert data.references("val") == {42: ["赤い 凧"]}  # the scores split references at spaces
    assert data.vocab.shown("赤い 凧") == "赤い凧"
    assert "tokenized_caption" not in capsys.readouterr().out
    del content["annotations"][0]["tokenized_caption"]
    paths[0].write_text(json.dumps(content))
    with pytest.raises(ValueError, match="`tokens=given` needs the words of each caption"):
        prepare(Settings(str(tmp_path / "other"), whole, tokens="given", **values))
