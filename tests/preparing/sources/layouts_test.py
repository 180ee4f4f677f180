"""Every layout is recognised, and read with its traps."""

import json
import unicodedata

import pytest
from helpers import sources
from helpers.sources import FIXTURES, coco_file, picture

from tfcap.preparing.sources import READERS, recognise
from tfcap.preparing.sources.entry import Entry, Source, accepted, require_unique
from tfcap.preparing.sources.json_files import coco, karpathy

# The first and the last image of each fixture: id, file name, split, captions.
QUOTED = 'A "black" dog{} running'
COCO = "COCO_{}_{:012d}.jpg"
ENTRIES = {
    "karpathy": [
        (100, f"val2014/{COCO.format('val2014', 0)}", "train",
         ("A man's dog 0.", "A man's dog 1.")),
        (103, f"val2014/{COCO.format('val2014', 3)}", "test",
         ("A man's dog 0.", "A man's dog 1.")),
    ],
    "coco": [
        (9, f"train2014/{COCO.format('train2014', 9)}", "train",
         ("A dog 0 on grass.\n", "A dog 1 on grass.\n")),
        (14, f"test2014/{COCO.format('test2014', 14)}", "test2014", ()),
    ],
    "blip": [
        (522418, f"val2014/{COCO.format('val2014', 522418)}", "train",
         ("A dog 0. ", "A dog 1. ", "A dog 2. ")),
        (60623, f"val2014/{COCO.format('val2014', 60623)}", "test", ("A cat.", "The cat sits.")),
    ],
    "csv": [
        (0, "00.jpg", None, (QUOTED.format(","), "Un café.")),
        (19, "19.jpg", None, (QUOTED.format(","), "Un café.")),
    ],
    "tsv": [
        (0, "00.jpg", None, (QUOTED.format("\t"), "Un café.")),
        (19, "19.jpg", None, (QUOTED.format("\t"), "Un café.")),
    ],
    "jsonl": [
        (0, "0.png", "train", ("A dog.", "Two.", "A cat.")),
        (3, "3.png", "test", ("A dog.", "Two.")),
    ],
    "xmodaler": [
        (0, "0.jpg", "train", ("A dog .", "Two dogs !")),
        (5, "5.jpg", "test", ("A dog .", "Two dogs !")),
    ],
    "msrvtt": [
        (0, "video0.gif", "train", ("a car is shown",) * 2),
        (7010, "video7010", "test", ("a car is shown",) * 2),
    ],
    "json": [
        (0, "beach/beach_0.jpg", "train", ("A beach .", "Wet .")),
        (3, "park/park_1.jpg", "val", ("A park .", "Wet .")),
    ],
    "clips": [
        (0, "Qtraining_000010_000020.gif", "train", ("A kite .", "It flies .")),
        (1, "Qvalidation_000010_000020.gif", "val", ("A kite .", "It flies .")),
    ],
    "numbered": [
        (0, "1.png", "train", ("There are 4 kites .", "There are 5 kites .")),
        (2, "3.png", "test", ("There are 4 kites .", "There are 5 kites .")),
    ],
    "parallel": [
        (0, COCO.format("val2014", 30), "test",
         (f"Ein Kran\u2028 , {COCO.format('val2014', 30)} .",)),
        (2, "11.jpg", "train", ("Ein Kran\u2028 , 11.jpg .",)),
    ],
    "gif": [
        (0, "0.gif", None, ("A square goes right.", "It moves.")),
        (2, "dog", None, ("A dog runs.",)),
    ],
    "flickr8k": [
        (0, "0_5f.jpg", "train", ("A dog runs 0 .", "A dog runs 1 .")),
        (5, "5_5f.jpg", "test", ("A dog runs 0 .", "A dog runs 1 .")),
    ],
    "flickr30k": [  # the fifth row lacks a bar
        (0, "000.jpg", None, (*["A man , in blue ."] * 4, "A dog runs across the grass .")),
        (19, "1900.jpg", None, ("A man , in blue .",) * 5),
    ],
    "iaprtc12": [
        (0, "images/00/0.jpg", "train", ("a café in Perú", "two people & a dog")),
        (13, "images/01/13.jpg", "test", ("a café in Perú", "two people & a dog")),
    ],
    "imagefolder": [
        (0, "test/0.jpg", "test", ("A dog , 0.jpg .",)),
        (5, "validation/0.jpg", "val", ("A dog , 0.jpg .",)),
    ],
    "sidecar": [
        (0, "test/4.jpg", "test", ("A dog , test/4.jpg .", "Un café .")),
        (4, "val/3.jpg", "val", ("A dog , val/3.jpg .", "Un café .")),
    ],
    "parquet": [
        (0, "6.jpg", "test", ("A dog .", "Two dogs .")),
        (6, "5.jpg", "val", ("A dog .", "Two dogs .")),
    ],
    "webdataset": [
        (0, "000000.jpg", "train", ("A dog.", "A cat.")),
        (5, "000005.jpg", "test", ("A dog.", "A cat.")),
    ],
    "tfds": [
        (500, COCO.format("val2014", 0), "train", ("A dog.", "Café.")),
        (505, COCO.format("val2014", 5), "val", ("A dog.", "Café.")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_layout_is_recognised_by_it_alone_and_read(name, tmp_path, capsys):
    made = FIXTURES[name](tmp_path)
    paths = made.captions or (made.images,)
    for path in paths:
        assert [other for other, layout in READERS.items() if layout.recognises(path)] == [name]
    source = Source(paths, images=made.images)
    entries = READERS[recognise(paths)].read(source)
    assert [entries[0][:4], entries[-1][:4]] == ENTRIES[name]
    assert (len(entries), len(source.skipped)) == (made.count, made.skipped)
    assert capsys.readouterr().err.count("skipped ") == made.skipped
    if made.splits is not None:
        splits = [entry.split for entry in entries]
        assert tuple(map(splits.count, ("train", "val", "test"))) == made.splits
    for entry in entries:
        if entry.content is None:
            assert (made.images / entry.file_name).exists()


def write(path, value):
    path.write_text(json.dumps(value))
    return path


def test_karpathys_own_words_and_numbers_of_captions(tmp_path):
    made = FIXTURES["karpathy"](tmp_path)
    first = karpathy(Source(made.captions, reads_words=True))[0]
    assert first.words == (("a", "mans", "dog", "0"), ("a", "mans", "dog", "1"))
    assert first.caption_ids == (0, 7) and first.has_id
    images = [
        {"filename": n, "split": "test", "imgid": i} for n, i in (("a.jpg", 9), ("b.jpg", None))
    ]
    path = write(tmp_path / "a.json", {"images": images})
    assert karpathy(Source((path,))) == [
        Entry(9, "a.jpg", "test", (), has_id=True),
        Entry(1, "b.jpg", "test", ()),  # its position
    ]


def test_splits_of_coco_are_in_the_names_of_the_files(tmp_path):
    def splits(*names):
        paths = [coco_file(tmp_path / f"{name}.json", [n]) for n, name in enumerate(names)]
        return [entry.split for entry in coco(Source(tuple(paths)))]

    assert splits("captions_train2014", "captions_val2014") == ["train", "val"]
    assert splits("captions_train2014") == [None]  # they are drawn
    assert splits("captions_train2014", "image_info_test2014") == [None, "test2014"]
    assert splits("mine") == [None]
    entries = coco(Source((coco_file(tmp_path / "captions_val2014.json", [9]),)))
    assert entries[0].caption_ids == (90, 91)


@pytest.mark.parametrize("key", ["split", "subset"])
@pytest.mark.parametrize("items", ["images", "annotations"])
def test_splits_that_images_or_annotations_of_coco_state_count_before_the_name(
    tmp_path, key, items
):
    path = coco_file(tmp_path / "captions_train2014.json", [1, 2, 3])
    content = json.loads(path.read_text())
    for item in content[items]:
        number = item["id"] if items == "images" else item["image_id"]
        item[key] = {1: "train", 2: "validation", 3: "test"}[number]
    write(path, content)
    assert [entry.split for entry in coco(Source((path,)))] == ["train", "val", "test"]
    content["annotations"][0]["split"], content["images"][0]["split"] = "test", "val"
    source = Source((write(path, content),))
    assert len(coco(source)) == 2 and "is in several splits: test" in source.skipped[0].reason


def vizwiz(path):
    """Two images: one has a good, a rejected and a precanned caption, the other no good one."""
    path = coco_file(path, [1, 2], captions=3)
    content = json.loads(path.read_text())
    for note in content["annotations"]:
        note["is_rejected"] = note["image_id"] == 2 or note["id"] % 10 == 1
        note["is_precanned"] = note["id"] == 12
    return write(path, content)


def test_captions_that_coco_files_mark_as_unusable_are_left_out(tmp_path, capsys):
    entries = coco(Source((vizwiz(tmp_path / "mine.json"),)))
    (entry,) = accepted(entries)
    assert (entry.id, entry.captions, entry.caption_ids) == (1, ("A dog 0 on grass.\n",), (10,))
    note = "left out (4 is_rejected, 1 is_precanned), and 1 images that have no other caption\n"
    assert capsys.readouterr().out == f"note: captions with a mark are {note}"
    val = accepted([entry._replace(split="val") for entry in entries])
    assert [len(entry.captions) for entry in val] == [1, 0]  # as in a file without its captions
    with pytest.raises(ValueError, match="All captions are marked as unusable"):
        accepted(entries[1:])


def test_sentences_of_karpathys_layout_may_be_texts(tmp_path):
    images = [{"filename": "a.jpg", "split": "train", "sentences": ["A dog.", {"raw": "Two."}]}]
    (entry,) = karpathy(Source((write(tmp_path / "a.json", {"images": images}),)))
    assert entry.captions == ("A dog.", "Two.")


def test_captions_that_karpathys_layout_marks_are_left_out(tmp_path):
    said = [("A dog.", False), ("spam", True), ("Two.", 0)]
    sentences = [
        {"raw": text, "tokens": [text], "sentid": number, "is_rejected": mark}
        for number, (text, mark) in enumerate(said)
    ]
    images = [{"filename": "a.jpg", "split": "train", "sentences": sentences}]
    (entry,) = karpathy(Source((write(tmp_path / "a.json", {"images": images}),), reads_words=True))
    assert (entry.captions, entry.caption_ids) == (("A dog.", "Two."), (0, 2))
    assert (entry.words, entry.rejected) == ((("A dog.",), ("Two.",)), ("is_rejected",))


def test_two_images_with_one_id_need_other_ids(tmp_path):
    path = tmp_path / "a.json"
    images = [{"filename": f"{n}.jpg", "split": "train", "cocoid": 7} for n in range(2)]
    with pytest.raises(ValueError, match="0.jpg and 1.jpg have the same id 7. Give each image"):
        require_unique(karpathy(Source((write(path, {"images": images}),))), path)


def test_ids_of_coco_and_karpathy_that_are_no_numbers_are_replaced(tmp_path, capsys):
    path = coco_file(tmp_path / "mine.json", [1, 2])
    path.write_text(
        path.read_text().replace('id": 2,', 'id": "b",').replace('id": 2}', 'id": "b"}')
    )
    entries = coco(Source((path, coco_file(tmp_path / "more.json", [1]))))
    assert [(e.id, e.has_id, len(e.captions)) for e in entries] == [(n, False, 2) for n in range(3)]
    assert "the column 'id' is not used" in capsys.readouterr().out
    images = [{"filename": f"{n}.jpg", "split": "test", "imgid": f"CXR{n}"} for n in range(2)]
    entries = karpathy(Source((write(path, {"images": images}),)))
    assert [entry.id for entry in entries] == [0, 1]
    assert "the column 'imgid' is not used" in capsys.readouterr().out


@pytest.mark.parametrize("inside", [True, False])
def test_pictures_of_coco_may_lie_in_the_folders_of_the_download(tmp_path, inside):
    path = coco_file(tmp_path / "image_info_test-dev2015.json", [9], captions=0)
    name = COCO.format("test-dev2015", 9)
    picture(tmp_path / "images" / ("test2015" if inside else ".") / name)
    (entry,) = coco(Source((path,), images=tmp_path / "images"))
    assert entry.file_name == "test2015/" * inside + name


def test_images_of_flickr8k_in_no_list_are_left_out_in_either_form_of_unicode(tmp_path, capsys):
    made = sources.flickr8k(tmp_path)
    text = made.files[0].read_text().replace("1_5f", "é")
    made.files[0].write_text(unicodedata.normalize("NFC", text))
    made.files[1].write_text(unicodedata.normalize("NFD", "é.jpg"))
    source = made.source()
    entries = READERS["flickr8k"].read(source)
    assert [(e.id, e.split) for e in entries] == [(1, "train"), (4, "val"), (5, "test")]
    assert "note: 5 images are in no list" in capsys.readouterr().out
    made.files[1].write_text("é.jpg\nother.jpg")
    READERS["flickr8k"].read(source)
    assert source.skipped[0].reason == "other.jpg has no captions"


def test_validation_images_of_iaprtc12_are_drawn_or_listed(tmp_path):
    made = sources.iaprtc12(tmp_path)

    def val(**changes):
        entries = READERS["iaprtc12"].read(made.source(**changes))
        return [entry.file_name for entry in entries if entry.split == "val"]

    assert val() == ["images/00/2.jpg"] and len(val(seed=4)) == 1
    (tmp_path / "iaprtc12_val_list.txt").write_text("01/14.eng\n")
    assert val() == ["images/01/14.jpg"]
    (tmp_path / "iaprtc12_val_list.txt").rename(made.captions[0] / "iaprtc12_val_list.txt")
    made = made._replace(images=tmp_path / "images")  # the directory itself
    assert val() == ["01/14.jpg"]


def test_files_of_xmodaler_may_be_given_as_their_directory(tmp_path):
    made = sources.xmodaler(tmp_path)
    assert recognise([tmp_path]) == "xmodaler"
    entries = READERS["xmodaler"].read(made.source())
    by_name = {entry.file_name: entry.split for entry in entries}
    entries = READERS["xmodaler"].read(made._replace(captions=[tmp_path]).source())
    assert {entry.file_name: entry.split for entry in entries} == by_name
