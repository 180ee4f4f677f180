"""Ready features are read in whatever layout they have; bad ones are skipped with a reason."""

import random
import shutil
import unicodedata

import numpy as np
import pytest
from helpers import features
from PIL import Image

from tfcap.preparing.features.ready import ReadyFeatures, recognise
from tfcap.preparing.features.ready.layout import LAYOUTS
from tfcap.preparing.sources import ImageEntry

IMAGES = {number: features.image(number, regions=3) for number in (391895, 9, 30)}


def entries(*ids, name="COCO_val2014_{:012d}.jpg"):
    return [
        ImageEntry(number, name.format(number), "train", ("A dog.",), own_id=True) for number in ids
    ]


ENTRIES = entries(*IMAGES)
# What writes a layout, and whether it has boxes.
LAYOUT = {
    "bottom-up tsv": (lambda path: features.bottom_up(path / "a.tsv", IMAGES), True),
    "VinVL tsv": (lambda path: features.vinvl(path / "a.tsv", IMAGES), False),
    "HDF5": (lambda path: features.hdf5(path / "a.h5", IMAGES), True),
    "LMDB": (lambda path: features.lmdb_store(path / "a", IMAGES), False),
    "ids + matrix": (lambda path: features.matrix(path / "a", IMAGES), False),
    "one file per image": (lambda path: features.folder(path / "a", IMAGES), True),
}


def pictures(folder):
    folder.mkdir()
    for entry in ENTRIES:
        Image.new("RGB", IMAGES[entry.id].size).save(folder / entry.file_name)
    return folder


@pytest.fixture(params=sorted(LAYOUT))
def written(request, tmp_path):
    """The title of a layout, and files in it."""
    if request.param == "LMDB":
        pytest.importorskip("lmdb")
    return request.param, LAYOUT[request.param][0](tmp_path)


def test_every_layout_is_in_this_test():
    assert {cls.title for cls in LAYOUTS} == set(LAYOUT)


def test_every_layout_is_recognised_and_gives_the_same_features(written, tmp_path):
    title, path = written
    cls, _ = recognise([path])
    assert cls.title == title
    reader = ReadyFeatures([path], ENTRIES, pictures(tmp_path / "images"))
    assert (reader.dim, reader.regions, reader.image_dim) == (features.WIDTH, 3, None)
    assert reader.named_by == "image id" and title in reader.about()
    found = list(reader.read(ENTRIES + entries(77)))
    assert [one.entry.id for one in found] == [391895, 9, 30, 77]
    for one in found[:3]:
        expected = IMAGES[one.entry.id]
        np.testing.assert_array_equal(one.features, expected.features)
        if LAYOUT[title][1]:
            np.testing.assert_allclose(one.boxes, expected.unit, atol=1e-6)
    assert found[3].features is None and "77" in found[3].reason


def test_sizes_of_pictures_turn_pixels_into_boxes(tmp_path):
    path = features.hdf5(tmp_path / "a.h5", IMAGES)
    (without,) = ReadyFeatures([path], ENTRIES).read(ENTRIES[:1])
    assert without.boxes is None and without.boxes_dropped
    reader = ReadyFeatures([path], ENTRIES, pictures(tmp_path / "images"))
    (found,) = reader.read(ENTRIES[:1])
    np.testing.assert_allclose(found.boxes, IMAGES[391895].unit, atol=1e-6)


@pytest.mark.parametrize(
    "of, named_by",
    [
        (lambda entry: entry.id, "image id"),
        (lambda entry: f"COCO_val2014_{entry.id:012d}", "name of the image file"),
        (lambda entry: f"COCO_val2014_{entry.id:012d}.jpg", "file name"),
        (lambda entry: entry.id, "number in the name"),
    ],
)
def test_files_may_name_an_image_in_several_ways(tmp_path, of, named_by):
    path = features.bottom_up(tmp_path / "a.tsv", {of(e): IMAGES[e.id] for e in ENTRIES})
    known = ENTRIES
    if named_by == "number in the name":  # the source has its own ids
        known = [entry._replace(id=place) for place, entry in enumerate(ENTRIES)]
    reader = ReadyFeatures([path], known)
    assert reader.named_by == named_by
    for entry, one in zip(ENTRIES, reader.read(known), strict=True):
        np.testing.assert_array_equal(one.features, IMAGES[entry.id].features)


def test_the_name_of_the_file_wins_over_an_id_that_is_a_position(tmp_path):
    names = sorted(f"{number}.jpg" for number in range(12))  # 0.jpg, 1.jpg, 10.jpg, 11.jpg, 2.jpg
    known = [ImageEntry(place, name, "train", ("A dog.",)) for place, name in enumerate(names)]
    images = {number: features.image(number, regions=3) for number in range(12)}
    reader = ReadyFeatures([features.folder(tmp_path / "a", images)], known)
    assert reader.named_by == "name of the image file"
    for entry, one in zip(known, reader.read(known), strict=True):
        expected = images[int(entry.file_name.removesuffix(".jpg"))]
        np.testing.assert_array_equal(one.features, expected.features)


def test_a_position_of_an_image_is_not_the_name_of_a_file(tmp_path):
    names = sorted(f"img_{number}.jpg" for number in range(12))  # img_0, img_1, img_10, img_11
    known = [ImageEntry(place, name, "train", ("A dog.",)) for place, name in enumerate(names)]
    images = {number: features.image(number, regions=3) for number in range(12)}
    folder = features.folder(tmp_path / "a", images)
    reader = ReadyFeatures([folder], known)
    assert reader.named_by == "number in the name"
    for entry, one in zip(known, reader.read(known), strict=True):
        expected = images[int(entry.file_name.removeprefix("img_").removesuffix(".jpg"))]
        np.testing.assert_array_equal(one.features, expected.features)
    photos = [entry._replace(file_name=f"{'abcdefghijkl'[entry.id]}.jpg") for entry in known]
    with pytest.raises(ValueError, match="no usable features of the first 12 images"):
        ReadyFeatures([folder], photos)


def test_vectors_of_whole_images_are_read_where_most_images_have_them(tmp_path):
    root = features.ruotianluo(tmp_path / "data", IMAGES)
    reader = ReadyFeatures([root], ENTRIES)
    assert reader.image_dim == 5 and "vectors of whole images 5" in reader.about()
    for entry, one in zip(ENTRIES, reader.read(ENTRIES), strict=True):
        np.testing.assert_array_equal(one.image, IMAGES[entry.id].vector)
    np.save(root / "cocobu_fc" / "9.npy", np.zeros(4, np.float32))
    _, bad, _ = reader.read(ENTRIES)
    assert "vector of the whole image must be 5 wide, as in most" in bad.reason


def test_bad_images_are_skipped_and_say_why(tmp_path):
    folder = features.folder(tmp_path / "a", IMAGES)
    np.savez(folder / "9.npz", feat=np.zeros([2, 3], np.float32))
    np.savez(folder / "30.npz", feat=np.full([2, features.WIDTH], np.nan, np.float32))
    reader = ReadyFeatures([folder], ENTRIES)
    good, narrow, nan = reader.read(ENTRIES)
    assert good.reason is None
    assert "must be 6 wide, as in most of the first images. Received: 3" in narrow.reason
    assert "30.npz: features must be finite. Received: NaN or infinity. Extract" in nan.reason


CUT = {9: IMAGES[9]._replace(features=IMAGES[9].features * np.nan)}


def cut_tsv(path, writer, one):
    """A tsv with a cut line of an image in front of the whole one."""
    line = writer(path / "line.tsv", {9: one}).read_bytes()
    whole = writer(path / "whole.tsv", {30: one, 9: one}).read_bytes()
    for unused in path.iterdir():
        unused.unlink()
    (path / "a.tsv").write_bytes(line[: len(line) * 2 // 3] + b"\n" + whole)
    return [path / "a.tsv"]


def two_folders(path, writer):
    return [writer(path / "a", {**IMAGES, **CUT}), writer(path / "b", IMAGES)]


def cut_npz(path):
    folders = two_folders(path, features.folder)
    (folders[0] / "9.npz").write_bytes((folders[0] / "9.npz").read_bytes()[:100])
    return folders


def cut_npz_and_whole_npy(path):
    folder = features.folder(path / "a", IMAGES)
    (folder / "9.npz").write_bytes(b"")
    np.save(folder / "9.npy", IMAGES[9].features)
    return [folder]


def two_hdf5(path):
    return [
        features.hdf5(path / "a.h5", {**IMAGES, **CUT}),
        features.hdf5(path / "b.h5", IMAGES, boxes=False),
    ]


def cut_lmdb(path):
    lmdb = pytest.importorskip("lmdb")
    stores = [features.lmdb_store(path / name, IMAGES) for name in "ab"]
    with lmdb.open(str(stores[0])) as store, store.begin(write=True) as transaction:
        transaction.put(b"9", transaction.get(b"9")[:100])
    return stores


def narrow_npz(path):
    folders = two_folders(path, features.folder)
    np.savez(folders[0] / "9.npz", feat=IMAGES[9].features[:, :2])
    return folders


@pytest.mark.parametrize(
    "write",
    [
        lambda path: cut_tsv(path, features.bottom_up, IMAGES[9]),
        lambda path: cut_tsv(path, features.vinvl, features.vinvl_image(9)),
        lambda path: two_folders(path, features.matrix),
        cut_npz,
        cut_npz_and_whole_npy,
        narrow_npz,
        two_hdf5,
        cut_lmdb,
    ],
    ids=["tsv", "vinvl", "matrix", "npz", "npy", "narrow", "hdf5", "lmdb"],
)
def test_a_whole_copy_behind_a_damaged_one_is_read(tmp_path, write):
    """Three images of the published features of test2014 have a cut line and a whole one."""
    (tmp_path / "files").mkdir()
    paths = write(tmp_path / "files")
    for _ in range(2):  # the second time with the index that is kept
        reader = ReadyFeatures(paths, entries(30, 9), cache=tmp_path)
        (found,) = reader.read(entries(9))
        assert found.reason is None
        np.testing.assert_array_equal(found.features[:, : features.WIDTH], WHOLE[reader.dim])


WHOLE = {
    features.WIDTH: IMAGES[9].features,
    2054: features.vinvl_image(9).features[:, : features.WIDTH],
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_with_accents_are_found_in_either_form_of_unicode(tmp_path, form):
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    known = [ImageEntry(0, unicodedata.normalize(form, "café.jpg"), "train", ("A dog.",))]
    key = unicodedata.normalize(other, "café")
    path = features.bottom_up(tmp_path / "a.tsv", {key: IMAGES[9]})
    (found,) = ReadyFeatures([path], known).read(known)
    np.testing.assert_array_equal(found.features, IMAGES[9].features)


def test_a_file_in_another_case_is_told(tmp_path):
    folder = features.folder(tmp_path / "a", {"a": IMAGES[30], "B": IMAGES[9]})
    known = [ImageEntry(n, f"{name}.jpg", "train", ("A dog.",)) for n, name in enumerate("ab")]
    _, found = ReadyFeatures([folder], known).read(known)
    assert "B.npz is there" in str(found.reason)


def test_without_a_usable_copy_the_reason_is_that_of_the_first(tmp_path):
    paths = [features.hdf5(tmp_path / f"{name}.h5", {**IMAGES, **CUT}) for name in "ab"]
    (found,) = ReadyFeatures(paths, ENTRIES).read(entries(9))
    assert "a.h5, 9_features: features must be finite" in found.reason


def test_the_remedy_of_wrong_types_and_shapes_is_no_download(tmp_path):
    counts = {
        k: one._replace(features=(one.features * 50).astype("u1")) for k, one in IMAGES.items()
    }
    with pytest.raises(ValueError, match=r"must be floating point .* Write them") as error:
        ReadyFeatures([features.hdf5(tmp_path / "a.h5", counts)], ENTRIES)
    assert "download" not in str(error.value)


def test_files_without_the_first_images_are_refused(written):
    title, path = written
    with pytest.raises(
        ValueError, match="must hold features of .* looked for as COCO_.* or 5 or"
    ) as error:
        ReadyFeatures([path], entries(5, 6))
    told = "a name in the files is 3" in str(error.value)  # 30 or 391895
    assert told == (title not in ("LMDB", "one file per image"))


def test_several_files_must_have_one_layout(tmp_path):
    first = features.bottom_up(tmp_path / "a.tsv", {9: IMAGES[9]})
    second = features.bottom_up(tmp_path / "b.tsv", {30: IMAGES[30], 391895: IMAGES[391895]})
    reader = ReadyFeatures([first, second], ENTRIES)
    assert all(one.reason is None for one in reader.read(ENTRIES))
    with pytest.raises(ValueError, match="existing file or directory. Received: .*c.tsv"):
        recognise([first, tmp_path / "c.tsv"])
    other = features.hdf5(tmp_path / "a.h5", IMAGES)
    with pytest.raises(ValueError, match="must have one layout. Received: .*a.h5, which is not"):
        recognise([first, other])
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(ValueError, match="in one of these layouts: bottom-up tsv, .*readme.txt"):
        recognise([tmp_path / "readme.txt"])


def test_the_index_is_kept_in_the_given_directory(tmp_path, capsys):
    path = features.bottom_up(tmp_path / "a.tsv", IMAGES)
    (tmp_path / "out").mkdir()
    for _ in range(2):
        reader = ReadyFeatures([path], ENTRIES, cache=tmp_path / "out")
        assert sum(one.reason is None for one in reader.read(ENTRIES)) == 3
    assert capsys.readouterr().out.count("index of 1 file: 3 images") == 1
    assert [file.name for file in (tmp_path / "out").iterdir()] == [".features.index.npz"]


def _mutated(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        start = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            del changed[start : start + rng.choice((1, 10, 10_000))]
        elif kind == 1:
            changed[start:start] = rng.randbytes(rng.choice((1, 10)))
        elif kind == 2 and start < len(changed):
            changed[start] = rng.randrange(256)
        else:
            changed[start : start + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\t\n\r "))
    return bytes(changed)


@pytest.mark.slow
def test_mutated_files_give_an_error_or_a_reason(written, tmp_path):
    """Damage never ends with another exception than ValueError."""
    title, path = written
    files = [file for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    files = [file for file in files if file.name != "lock.mdb"]
    whole = {file: file.read_bytes() for file in files}
    rng, read, refused = random.Random(title), 0, 0
    for _ in range(40):
        file = rng.choice(sorted(whole))
        file.write_bytes(_mutated(whole[file], rng))
        try:
            for one in ReadyFeatures([path], ENTRIES).read(ENTRIES):
                read += one.reason is None
                assert one.reason is None or one.features is None
        except ValueError as error:
            assert str(error)
            refused += 1
        file.write_bytes(whole[file])
    assert read > 10 and refused + read < 120
    shutil.rmtree(path, ignore_errors=True)
