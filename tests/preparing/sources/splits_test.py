"""Images are divided into splits by lists or at random."""

import json
import re

import numpy as np
import pytest

from tfcap.preparing.sources import splits
from tfcap.preparing.sources.entry import Entry
from tfcap.preparing.sources.splits import divide, split_of


def entries(count, split=None):
    return [
        Entry(
            *(n, f"x/{n}.jpg", split, ("a", "b")),
            caption_ids=(10 * n, 10 * n + 1),
            has_id=True,
        )
        for n in range(count)
    ]


def chosen(divided):
    return {entry.file_name: entry.split for entry in divided.entries}


def counts(divided):
    result = [entry.split for entry in divided.entries]
    return [result.count(split) for split in ("train", "val", "test")]


def test_splits_of_the_source_are_kept():
    values = [*entries(2, "train"), Entry(7, "y.jpg", "test", ())]
    assert divide(values) == (values, None) and divide(values).digest is None
    with pytest.raises(ValueError, match="1 of 2 images have no split, .*y.jpg"):
        divide([values[0], values[2]._replace(split=None)])


@pytest.mark.parametrize(("count", "parts"), [(1, [1, 0, 0]), (2, [2, 0, 0]), (3, [1, 1, 1]),
                                              (12, [10, 1, 1]), (200, [180, 10, 10])])  # fmt: skip
def test_random_splits_are_90_5_5_and_never_empty(count, parts, capsys):
    divided = divide(entries(count))
    assert counts(divided) == parts
    assert f"seed 1: {parts[0]} train, {parts[1]} val, {parts[2]} test" in capsys.readouterr().out
    assert [entry.id for entry in divided.entries] == list(range(count))  # the order stays


@pytest.mark.parametrize(
    ("way", "count", "parts"),
    [
        ("random:70,15,15", 200, [140, 30, 30]),
        ("random:33.4,33.3,33.3", 10, [4, 3, 3]),
        ("random:80,20,0", 40, [32, 8, 0]),
        ("random:98,1,1", 12, [10, 1, 1]),
    ],
)
def test_random_splits_have_the_shares_that_are_given(way, count, parts):
    assert counts(divide(entries(count, "train"), way)) == parts
    larger, usual = chosen(divide(entries(200), "random:70,15,15")), chosen(divide(entries(200)))
    assert {name for name, split in usual.items() if split == "val"} < {
        name for name, split in larger.items() if split == "val"
    }
    with pytest.raises(ValueError, match="`splits=random:2,49,49` leaves none of 10 images"):
        divide(entries(10), "random:2,49,49")


@pytest.mark.parametrize(
    ("way", "count", "warning"),
    [
        (
            "source",
            200,
            "10 val and 10 test pictures are too few .* `splits=random:70,15,15` ",
        ),
        ("random", 580, "29 val and 29 test pictures .* `splits=random:88,6,6` draws 30 of each"),
        ("source", 600, None),
        (
            "source",
            50,
            "2 val and 2 test pictures are too few to .* a checkpoint\n",
        ),
        ("random:80,15,5", 200, "note: 10 test pictures are too few"),
        ("random:70,15,15", 200, None),
        ("random:80,20,0", 200, None),
    ],
)
def test_few_pictures_of_val_and_test_are_warned_of(way, count, warning, capsys):
    divide(entries(count), way)
    out = capsys.readouterr().out
    assert re.search(warning, out) if warning else "note" not in out


def test_a_random_split_depends_on_seed_and_names_alone():
    first = divide(entries(200))
    assert chosen(first) == chosen(divide(entries(200)[::-1])) and first.digest is not None
    assert chosen(first) != chosen(divide(entries(200), seed=2))
    assert chosen(first) == chosen(divide(entries(200, "train"), "random"))
    assert chosen(first) == chosen(divide([e._replace(id=e.id + 9) for e in entries(200)]))
    more = chosen(divide(entries(210)))
    assert sum(more[name] != split for name, split in chosen(first).items()) < 20
    # The draw must never change: a directory would then refuse to continue.
    assert [n for n, s in chosen(first).items() if s == "test"][:3] == FIRST_TEST


FIRST_TEST = ["x/23.jpg", "x/44.jpg", "x/58.jpg"]


def test_what_was_drawn_is_written_down_and_can_be_given_again(tmp_path):
    first = divide(entries(40))
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(first.written))
    assert first.written["drawn"] == "random" and first.written["seed"] == 1
    again = divide(entries(40), split_ids=path)
    assert again.entries == first.entries and again.digest == first.digest
    same_names = [entry._replace(file_name="a.jpg") for entry in entries(40)]
    by_id = divide(same_names)
    assert sorted(sum((by_id.written[s] for s in ("train", "val", "test")), [])) == list(range(40))
    path.write_text(json.dumps(by_id.written))
    assert divide(same_names, split_ids=path).entries == by_id.entries


@pytest.mark.parametrize("way", ["source", "random", "lists"])
def test_images_of_further_splits_keep_them(way, tmp_path):
    further = [e._replace(id=e.id + 90, split="test2014") for e in entries(3)]
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(divide(entries(30)).written))
    values = {"split_ids": path} if way == "lists" else {"way": way}
    alone, divided = divide(entries(30), **values), divide([*further, *entries(30)], **values)
    assert divided.entries == [*alone.entries, *further]
    assert divided.written == alone.written and divided.digest == alone.digest
    assert divide(further).entries == further and divide(further).written is None


def test_the_split_of_mrnn_draws_from_the_official_val(monkeypatch):
    monkeypatch.setattr(splits, "_MRNN", {"val": 8, "test": 2})
    official = [*entries(20, "train"), *(e._replace(id=e.id + 50, file_name=f"y/{e.id}.jpg")
                                         for e in entries(15, "val"))]  # fmt: skip
    divided = divide(official, "mrnn")
    assert counts(divided) == [25, 8, 2] and divided.written["drawn"] == "mrnn"
    assert {entry.split for entry in divided.entries[:20]} == {"train"}
    with pytest.raises(ValueError, match="needs the official splits .* 10 images in val, .* 9"):
        divide(official[:29], "mrnn")


def write_lists(folder, **lists):
    folder.mkdir(exist_ok=True)
    for name, keys in lists.items():
        if isinstance(keys, np.ndarray):
            np.save(folder / f"{name}.npy", keys)
        else:
            (folder / f"{name}.txt").write_text("\n".join(map(str, keys)))
    return folder


@pytest.mark.parametrize(
    "lists",
    [
        dict(karpathy_train_images=["0", "1"], karpathy_val_images=["2"], karpathy_test_images=[3]),
        dict(train=["x/0.jpg 0", "x/1.jpg 1"], val=["x/2.jpg 2"], test=["x/3.jpg 3"]),
        dict(x_trainImages=["0.jpg", "1.jpg"], x_devImages=["2.jpg"], x_testImages=["3.jpg"]),
        dict(train_list=["x/0", "x/1"], val_list=["x/2"], test_list=["x/3"]),
        dict(coco_train_ids=np.array([0, 1, 10]), coco_restval_ids=np.array([11]),
             coco_dev_ids=np.array([20, 21]), coco_test_ids=np.array([30])),
    ],
)  # fmt: skip
def test_lists_hold_ids_or_names_of_images_or_ids_of_captions(tmp_path, lists, capsys):
    divided = divide(entries(6), split_ids=write_lists(tmp_path, **lists))
    assert [entry.split for entry in divided.entries] == ["train", "train", "val", "test"]
    assert "2 images are in no list and are left out" in capsys.readouterr().out
    by_caption = "coco_train_ids" in lists
    assert [len(entry.captions) for entry in divided.entries] == [2, 2, 2, 1 if by_caption else 2]
    assert divided.entries[3].caption_ids == ((30,) if by_caption else (30, 31))


def test_names_of_lists_are_read_as_those_of_the_captions(tmp_path):
    """Two folders have pictures of the same names, so names without folders say nothing."""
    folder = tmp_path / "pictures"
    values = [Entry(n, f"{'ab'[n % 2]}/{n // 2}.jpg", None, ("a",)) for n in range(4)]
    (tmp_path / "link").symlink_to(folder)
    folder.mkdir()
    path = tmp_path / "lists.json"
    names = [f"{folder}/a/0.jpg", f"{tmp_path}/link/b/0.jpg", "./a/1.jpg", "b\\1.jpg"]
    path.write_text(json.dumps({"train": names[:2], "val": names[2:3], "test": names[3:]}))
    result = chosen(divide(values, split_ids=path, images=folder))
    assert result == {"a/0.jpg": "train", "b/0.jpg": "train", "a/1.jpg": "val", "b/1.jpg": "test"}


def test_lists_that_do_not_fit_are_refused(tmp_path):
    folder = write_lists(tmp_path, train=["77", "78"], val=["79"])
    with pytest.raises(ValueError, match="lists 3 ids .* none .*it lists '77'"):
        divide(entries(6), split_ids=folder)
    write_lists(tmp_path, train=["1", "2"], val=["2"])
    with pytest.raises(ValueError, match="x/2.jpg in train and in val"):
        divide(entries(6), split_ids=folder)


def test_a_name_counts_before_the_id_beside_it(tmp_path):
    names = sorted(f"img_{number}.png" for number in range(12))  # img_0, img_1, img_10, img_11
    values = [Entry(place, name, None, ("a",), has_id=True) for place, name in enumerate(names)]
    lines = [f"img_{number}.png {number}" for number in range(12)]
    folder = write_lists(tmp_path, train=lines[:8], val=lines[8:10], test=lines[10:])
    result = chosen(divide(values, split_ids=folder))
    assert [name for name in names if result[name] == "test"] == ["img_10.png", "img_11.png"]
    renamed = [entry._replace(file_name=f"{entry.id}.jpg") for entry in values]
    assert chosen(divide(renamed, split_ids=folder))["11.jpg"] == "test"  # by the id


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("captions_train2014", "train"),
        ("coco_restval_ids", "train"),
        ("Flickr_8k.trainImages", "train"),
        ("Flickr_8k.devImages", "val"),
        ("image_info_test-dev2015", "test"),
        ("flickr30k_retrieval_val", "val"),
        ("train_and_test", None),
        ("contest", None),
    ],
)
def test_a_file_name_tells_a_split_by_a_word_of_its_own(name, split):
    assert split_of(name) == split
