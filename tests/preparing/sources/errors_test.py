"""Files that users have and that cannot be read: one sentence with the name of the file."""

import json

import pytest
from helpers import sources
from helpers.sources import FIXTURES

from tfcap.preparing.sources import READERS, recognise
from tfcap.preparing.sources.entry import Source

KARPATHY = {"images": [{"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A dog."}]}]}


def change(**values):
    """A Karpathy file whose image has other values."""
    return json.dumps({"images": [{**KARPATHY["images"][0], **values}]})


@pytest.mark.parametrize(
    ("layout", "content", "word"),
    [
        # tables
        ("csv", "image,caption\n../a.jpg,x\n", "line 2: the file '../a.jpg'"),
        ("csv", 'image,caption\na.jpg,"A dog.\nb.jpg,Two.\n', "line 2: a cell begins with"),
        (
            "csv",
            "image,caption,split\na.jpg,A.,0\n",
            "line 2: 'split': the split '0' is not a name",
        ),
        ("csv", 'image,caption\na.jpg,"{""en"": ""A.""}"\n', "line 2: the object .* it has: en"),
        (
            "csv",
            'image,captions\na.jpg,"{\'A."\n',
            r"line 2: the value of 'captions' begins with '{' but is not",
        ),
        ("csv", 'image,caption\na.jpg,"{""text"": [""A."\n', "'caption' begins with '{' but is"),
        ("csv", "image,caption,is_rejected\na.jpg,A.,maybe\n", "'is_rejected' must be true or"),
        ("csv", 'image,captions\na.jpg,"[5]"\n', r"'captions' begins with '\[' but is not"),
        ("jsonl", '{"image": ', "line 1: Expecting value"),
        ("parquet", "PAR1", "captions is not a complete Parquet file"),
        # JSON
        ("karpathy", "{", "captions is not valid JSON"),
        ("karpathy", change(split=2), "images 0: the split 2 is not a name. Write names"),
        ("karpathy", change(sentences=[{"tokens": []}]), "no key 'raw'; its keys are: tokens"),
        ("karpathy", change(sentences=[{"raw": "\ud800"}]), "images 0: a caption is not valid"),
        ("coco", '{"annotations": []}', "captions has no list 'images'"),
        ("blip", '[{"image": ', "captions is not valid JSON"),
        (
            "blip",
            '[{"caption": "A.", "x": 1}]',
            "entry 0: the row has no column of pictures.*caption, x",
        ),
        # text
        ("flickr8k", "a.jpg A dog.\n", "line 1: the line must be NAME#NUMBER, a tab and a caption"),
        (
            "flickr30k",
            "image_name| x\na.jpg, A dog.\n",
            "line 2: the line must be a name, ",
        ),
        ("webdataset", "x" * 600, "captions is not a complete, uncompressed tar file"),
    ],
)
def test_a_file_with_nothing_to_read_is_named(tmp_path, layout, content, word):
    path = tmp_path / "captions"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=word) as error:
        READERS[layout].read(Source((path,)))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_truncated_tar_file_and_damaged_records_are_named(tmp_path):
    made = sources.webdataset(tmp_path)
    made.captions[0].write_bytes(made.captions[0].read_bytes()[:2000])
    with pytest.raises(ValueError, match="train-000000.tar is not a complete, .*unexpected end"):
        READERS["webdataset"].read(made.source())
    made = sources.tfds(tmp_path)
    shard = next(path for path in made.files if "-test." in path.name)
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(ValueError, match="-test.tfrecord-00000-of-00001 cannot be read"):
        READERS["tfds"].read(made.source())
    made.files[0].write_text("{}")
    with pytest.raises(ValueError, match="dataset_info.json has no 'splits'"):
        READERS["tfds"].read(made.source())


def test_too_many_bad_rows_end_it(tmp_path, capsys):
    path = tmp_path / "captions.csv"
    path.write_text("image,caption\n" + "../a.jpg,A.\n" * 40 + "a.jpg,A.\n")
    source = Source((path,), most_skipped=40)
    assert len(READERS["csv"].read(source)) == 1 and len(source.skipped) == 40
    assert capsys.readouterr().err.count("\n") == 40
    with pytest.raises(
        ValueError, match="31 rows cannot be used, but `max_skipped` allows 30.*line 32:"
    ):
        READERS["csv"].read(Source((path,), most_skipped=30))


def test_missing_paths_and_two_layouts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no file or directory .*none.csv"):
        recognise([tmp_path / "none.csv"])
    other = tmp_path / "other.csv"
    other.write_text("where,words,more\na.jpg,A dog.,1\n")
    with pytest.raises(ValueError, match="a column of pictures .*it has: where, words, more"):
        recognise([other])
    csv, coco = FIXTURES["csv"](tmp_path), FIXTURES["coco"](tmp_path)
    with pytest.raises(ValueError, match="captions_train2014.json, .* have different layouts"):
        recognise([coco.captions[0], *csv.captions])
    made = sources.imagefolder(tmp_path)
    (made.captions[0] / "shard.tar").write_bytes(
        sources.webdataset(tmp_path).captions[0].read_bytes()
    )
    with pytest.raises(ValueError, match="fits the layouts imagefolder, webdataset. .*`source="):
        recognise(made.captions)
