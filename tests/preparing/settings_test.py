"""Settings of prepare: impossible ones are refused, and those that matter identify the files."""

import dataclasses
import inspect
import os

import pytest
from helpers import sources

from tfcap import errors, segmentation
from tfcap.prepare import prepare
from tfcap.preparing.inputs import read
from tfcap.preparing.settings import Settings, allowed_skips


def test_the_number_of_bad_images_is_a_number_or_a_percentage():
    assert allowed_skips("100", 7) == allowed_skips(100, 7) == 100
    assert allowed_skips("1%", 7000) == 70
    for text in ("-1", "many", "nan%"):
        with pytest.raises(errors.UsageError, match="`max_skipped` must be a number"):
            allowed_skips(text, 10)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"splits": "half"}, "`splits` must be one of source, random, mrnn"),
        ({"splits": "random:70,15"}, "which sum to 100, as in random:70,15,15; not 'random:70,15'"),
        ({"splits": "random:70,15,10"}, "`splits` must be .* which sum to 100"),
        ({"splits": "random:0,50,50"}, "`splits` must be .* which sum to 100"),
        ({"splits": "random:110,-5,-5"}, "`splits` must be .* which sum to 100"),
        ({"splits": "random:0.7,0.15,0.15"}, "`splits` must be .* which sum to 100"),
        ({"splits": "random:nan,5,5"}, "`splits` must be .* which sum to 100"),
        ({"splits": "random:most,few,few"}, "`splits` must be .* which sum to 100"),
        ({"splits": "source:70,15,15"}, "`splits` must be .* which sum to 100"),
        ({"split_ids": "i", "splits": "random"}, "`split_ids` and `splits` both"),
        ({"min_count": 0}, "`min_count` must be at least 1"),
        ({"document_frequency": "d.npz"}, "`document_frequency` needs `vocab`"),
        ({"keep_pictures": True, "frames": 4}, "`keep_pictures` cannot be used"),
        ({"flip": True, "features": "f"}, "`flip` mirrors pictures .* Leave out one of them"),
        ({"further_features": "g"}, "`further_features` needs `features`"),
        ({"max_skipped": "abc"}, "`max_skipped` must be a number"),
        ({"source": "shapes"}, "`source=shapes` makes its own captions and images"),
        ({"source": "table"}, "`source=table` must be one of auto, csv, "),
        ({"train": 5}, "`train`, `val` and `test` are for `source=shapes`"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    Settings("out", "c.json", images="i", splits="random:70,15,15").checked()
    with pytest.raises(errors.UsageError, match=message):
        Settings(**{"captions": "c.json", "out": "out", "images": "i", **changes}).checked()


@pytest.mark.parametrize(
    ("source", "defaults"),
    [
        ("auto", ("mobilenet_v2", "imagenet", None)),
        ("shapes", ("pixels", None, None)),
        ("moving_shapes", ("pixels", None, 8)),
    ],
)
def test_some_defaults_depend_on_the_source(source, defaults):
    settings = Settings("~/out", source=source).checked()
    assert (settings.backbone, settings.weights, settings.frames) == defaults
    assert settings.out == os.path.expanduser("~/out") and settings.checked() == settings
    other = Settings("out", source=source, backbone="vgg16", weights="w.h5", frames=5).checked()
    assert (other.backbone, other.weights, other.frames) == ("vgg16", "w.h5", 5)


def test_every_setting_is_an_argument_of_prepare():
    arguments = inspect.signature(prepare).parameters
    assert list(arguments) == [field.name for field in dataclasses.fields(Settings)]
    named = [n for n, one in arguments.items() if one.kind is inspect.Parameter.KEYWORD_ONLY]
    assert list(arguments)[:2] == ["out", "captions"] and named == list(arguments)[2:]
    assert all(f"  {name}: " in inspect.getdoc(prepare) for name in arguments)


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "w.h5").write_bytes(b"weights")
    (tmp_path / "vocab.txt").write_text("<pad>\n<bos>\n<eos>\n<unk>\na\n")
    (tmp_path / "d.npz").write_bytes(b"table")
    return Settings(str(tmp_path / "out"), str(tmp_path / "c.json"), images=str(tmp_path / "i"))


def test_each_setting_that_changes_files_changes_the_identity(settings, tmp_path):
    vocab = {"vocab": str(tmp_path / "vocab.txt")}
    same = [{"name": "x"}, {"max_skipped": "1"}, {"overwrite": True}, {"source": "karpathy"}]
    other = [
        {"source": "another"},
        {"backbone": "vgg16"},
        {"weights": str(tmp_path / "w.h5")},
        {"grid": 4},
        {"crops": 10},
        {"features": "f"},
        {"features": "f,g"},
        {"features": "f", "further_features": "g"},
        {"min_count": 6},
        vocab,
        {**vocab, "document_frequency": str(tmp_path / "d.npz")},
        {"images_per_shard": 100},
        {"tokens": "given"},
        {"tokens": "characters"},
        {"count_splits": "all"},
        {"flip": True},
    ]
    identities = [
        dataclasses.replace(settings, **changes).identity() for changes in ({}, *same, *other)
    ]
    assert all(identity == identities[0] for identity in identities[: 1 + len(same)])
    different = {str(identity) for identity in identities}
    assert len(different) == 1 + len(other)


def test_a_segmenter_is_told_with_its_version(tmp_path):
    pytest.importorskip("jieba")
    captions = tmp_path / "captions.csv"
    captions.write_text("image,caption\n")
    settings = Settings(str(tmp_path / "out"), [str(captions)], images="i")
    assert "segmenter" not in settings.identity()
    identity = dataclasses.replace(settings, tokens="jieba").identity()
    assert identity["segmenter"] == segmentation.version("jieba")


def test_changed_lists_of_flickr8k_are_another_identity(tmp_path):
    made = sources.flickr8k(tmp_path)
    values = Settings(str(tmp_path / "out"), [str(path) for path in made.captions], images="i")

    def identity():
        inputs = read(values)
        return inputs.settings.identity(inputs.entries, inputs.divided.digest)

    before = identity()
    assert before == identity()
    train, val = made.files[1:3]
    texts = train.read_bytes(), val.read_bytes()
    train.write_bytes(texts[1])
    val.write_bytes(texts[0])
    after = identity()
    assert [key for key in before if before[key] != after[key]] == ["captions"]
