"""Ready features are read in whatever layout they have; bad ones are skipped with a reason."""

import io
import re

import h5py
import numpy as np
import pytest
from helpers import features
from PIL import Image

from tfcap.preparing.ready import ReadyFeatures
from tfcap.preparing.sources.entry import Entry

IMAGES = {number: features.image(number, regions=3) for number in (391895, 9, 30)}
VINVL = {number: features.vinvl_image(number) for number in IMAGES}


def entries(*ids, name="COCO_val2014_{:012d}.jpg"):
    return [Entry(number, name.format(number), "train", ("A dog.",), has_id=True) for number in ids]


ENTRIES = entries(*IMAGES)


def python_3_tsv(path, images):
    """With a header and b'...' around base64."""
    lines = [b"image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures"]
    for key, one in images.items():
        fields = features.bottom_up_line(key, one, b"").split(b"\t")
        lines.append(b"\t".join([*fields[:4], *(b"b'%s'" % field for field in fields[4:])]))
    path.write_bytes(b"\r\n".join(lines))
    return path


def tsv_parts(path, images):
    path.mkdir()
    for part, (key, one) in enumerate(images.items()):
        features.bottom_up(path / f"karpathy_train.tsv.{part}", {key: one})
    return path


def group_hdf5(path, images):
    with h5py.File(path, "w") as file:
        for key, one in images.items():
            group = file.create_group(str(key))
            group["x"], group["bbox"], group["image"] = one.features, one.boxes, one.vector
            group["image_w"], group["image_h"] = one.size
    return path


def dlct(path, images):
    """As image-captioning-DLCT writes them: the size is height and width."""
    features.hdf5(path, images)
    with h5py.File(path, "a") as file:
        for key, one in images.items():
            file[f"{key}_size"] = np.array([one.size[::-1]])
            file[f"{key}_grids"] = np.zeros([49, features.WIDTH], "f4")
            file[f"{key}_mask"] = np.zeros([len(one.boxes), 49], "f4")
    return path


def sized_hdf5(path, images):
    features.hdf5(path, images)
    with h5py.File(path, "a") as file:
        for key, one in images.items():
            file[f"{key}_image_w"], file[f"{key}_image_h"] = one.size
            file[f"{key}_num_boxes"] = len(one.boxes)
    return path


def sized(*names, of=lambda size: (size,)):
    """Writes npz files that have the size under other names; `of` gives their values."""

    def write(path, images):
        path.mkdir()
        for key, one in images.items():
            sizes = dict(zip(names, of(one.size), strict=True))
            np.savez(path / f"{key}.npz", feat=one.features, boxes=one.boxes, **sizes)
        return path

    return write


def sized_lmdb(path, images):
    import lmdb

    with lmdb.open(str(path), map_size=1 << 24) as store, store.begin(write=True) as transaction:
        for key, one in images.items():
            content = io.BytesIO()
            np.savez(content, feat=one.features, bbox=one.boxes, img_size=one.size[::-1])
            transaction.put(str(key).encode(), content.getvalue())
    return path


def other_columns(path, images):
    """A tsv whose header has another order than the published files."""
    names = ["image_id", "image_height", "image_width", "boxes", "features", "num_boxes", "note"]
    lines = ["\t".join(names).encode()]
    for key, one in images.items():
        width, height, count, boxes, values = features.bottom_up_line(key, one, b"").split(b"\t")[
            1:
        ]
        lines.append(b"\t".join([b"%d" % key, height, width, boxes, values, count, b"-"]))
    path.write_bytes(b"\n".join(lines))
    return path


def scan_ids_per_caption(path, images):
    features.matrix(path, images)
    (path / "train_ids.txt").write_text("".join(f"{key}\n" * 5 for key in images))
    return path


def transposed(path, images):
    """MCAN and OpenVQA write [width, regions]."""
    path.mkdir()
    for key, one in images.items():
        np.savez(path / f"{key}.npz", x=one.features.T, bbox=one.unit)
    return path


# Title, what writes it, its images, whether it has boxes and vectors of whole images.
GOLDEN = {
    "bottom-up": ("tsv of regions", features.bottom_up, IMAGES, True, False),
    "python 3": ("tsv of regions", python_3_tsv, IMAGES, True, False),
    "parts": ("tsv of regions", tsv_parts, IMAGES, True, False),
    "LXMERT": ("tsv of regions", features.lxmert, IMAGES, True, False),
    "VinVL": ("tsv of regions", features.vinvl, VINVL, True, False),
    "M2": ("HDF5", features.hdf5, IMAGES, True, False),
    "DLCT": ("HDF5", dlct, IMAGES, True, False),
    "sizes in HDF5": ("HDF5", sized_hdf5, IMAGES, True, False),
    "sizes in LMDB": ("LMDB", sized_lmdb, IMAGES, True, False),
    "columns": ("tsv of regions", other_columns, IMAGES, True, False),
    "height, width": (
        "one file per image",
        sized("image_size", of=lambda size: (size[::-1],)),
        IMAGES,
        True,
        False,
    ),
    "image_width": (
        "one file per image",
        sized("image_width", "image_height", of=tuple),
        IMAGES,
        True,
        False,
    ),
    "w": ("one file per image", sized("w", "h", of=tuple), IMAGES, True, False),
    "HDF5 of ruotianluo": ("HDF5", lambda p, i: features.hdf5(p, i, False), IMAGES, False, False),
    "groups": ("HDF5", group_hdf5, IMAGES, True, True),
    "LMDB": ("LMDB", features.lmdb_store, IMAGES, False, False),
    "SCAN": ("ids + matrix", features.matrix, IMAGES, False, False),
    "SCAN, id per caption": ("ids + matrix", scan_ids_per_caption, IMAGES, False, False),
    "X-modaler": ("one file per image", features.folder, IMAGES, True, False),
    "MILVLG": ("one file per image", features.milvlg, IMAGES, True, False),
    "MCAN": ("one file per image", transposed, IMAGES, True, False),
    "ruotianluo": ("one file per image", features.ruotianluo, IMAGES, True, True),
}


def pictures(folder):
    folder.mkdir()
    for entry in ENTRIES:
        Image.new("RGB", IMAGES[entry.id].size).save(folder / entry.file_name)
    return folder


@pytest.mark.parametrize("name", GOLDEN)
def test_each_layout_gives_the_features_that_were_written(tmp_path, name):
    title, write, images, boxes, vectors = GOLDEN[name]
    path = write(tmp_path / {"tsv of regions": "a.tsv", "HDF5": "a.h5"}.get(title, "a"), images)
    # Only the M2 files and ruotianluo's folders need the pictures for the size of an image.
    needs_pictures = name in ("M2", "ruotianluo")
    images_dir = pictures(tmp_path / "images") if needs_pictures else None
    reader = ReadyFeatures([path], ENTRIES, images_dir)
    assert reader.about().startswith(title) and reader.named_by == "image id"
    assert (reader.regions, reader.image_dim) == (3, 5 if vectors else None)
    *result, missing = reader.read(ENTRIES + entries(77))
    for one in result:
        wanted = images[one.entry.id]
        np.testing.assert_array_equal(one.features, wanted.features)
        assert one.features.dtype == np.float32 and (one.boxes is not None) == boxes
        if boxes:
            np.testing.assert_allclose(one.boxes, wanted.unit, atol=1e-6)
        if vectors:
            np.testing.assert_array_equal(one.image, wanted.vector)
    assert missing.features is None and "77" in missing.reason


@pytest.mark.parametrize(
    ("write", "unread"),
    [
        (lambda p: dlct(p / "a.h5", IMAGES), "cls_prob, grids, mask"),
        (lambda p: features.milvlg(p / "a", IMAGES), "info"),
        (lambda p: features.folder(p / "a", IMAGES), None),
        (lambda p: features.lxmert(p / "a.tsv", IMAGES), None),
    ],
)
def test_the_arrays_that_are_not_read_are_named(tmp_path, write, unread):
    _, said, names = ReadyFeatures([write(tmp_path)], ENTRIES).about().partition("; not read: ")
    assert (names if said else None) == unread


def test_a_size_that_is_width_and_height_is_refused_where_boxes_show_it(tmp_path):
    small, wide = (np.array([[0, 0, right, 40]] * 3, np.float32) for right in (40, 60))
    images = {key: one._replace(size=(64, 48), boxes=small) for key, one in IMAGES.items()}
    images[9] = images[9]._replace(boxes=wide)
    path = sized("size")(tmp_path / "a", images)
    reasons = {one.entry.id: one.reason for one in ReadyFeatures([path], ENTRIES).read(ENTRIES)}
    assert "of 48 x 64 pixels (width x height)" in reasons[9]


def test_a_whole_line_behind_a_cut_one_is_read(tmp_path):
    """Three images of the published features of test2014 have a cut line and a whole one."""
    path = features.bottom_up(tmp_path / "a.tsv", IMAGES)
    line = features.bottom_up_line(9, IMAGES[9])
    path.write_bytes(line[: len(line) // 2] + b"\n" + path.read_bytes())
    (result,) = ReadyFeatures([path], ENTRIES).read(entries(9))
    np.testing.assert_array_equal(result.features, IMAGES[9].features)


def test_the_index_of_a_tsv_is_kept_until_the_file_changes(tmp_path, capsys):
    path, cache = features.bottom_up(tmp_path / "a.tsv", IMAGES), tmp_path / "out"
    cache.mkdir()
    for change in (None, None, {9: IMAGES[30], 30: IMAGES[9], 391895: IMAGES[391895]}):
        if change:
            features.bottom_up(path, change)
        result = list(ReadyFeatures([path], ENTRIES, cache=cache).read(ENTRIES))
        images = change or IMAGES
        for entry, one in zip(ENTRIES, result, strict=True):
            np.testing.assert_array_equal(one.features, images[entry.id].features)
    assert capsys.readouterr().out.count("index of features: 3 images") == 2


class _Harmful:
    def __reduce__(self):
        return exec, ("raise SystemExit('code from a feature file was run')",)


def bad_npz(path, **arrays):
    folder = features.folder(path / "a", IMAGES)
    np.savez(folder / "9.npz", **arrays)
    return folder


def pickled(path):
    """A released scene graph: a dictionary in an npy file."""
    folder = features.folder(path / "a", IMAGES)
    (folder / "9.npz").unlink()
    np.save(folder / "9.npy", np.array({"rela_matrix": _Harmful()}, object), allow_pickle=True)
    return folder


def bad_line(path, number, value):
    fields = features.bottom_up_line(9, IMAGES[9], b"").split(b"\t")
    fields[number] = value(fields[number])
    whole = {key: one for key, one in IMAGES.items() if key != 9}
    features.bottom_up(path / "a.tsv", whole)
    with open(path / "a.tsv", "ab") as file:
        file.write(b"\t".join(fields))
    return path / "a.tsv"


def without_fc(path):
    folder = features.ruotianluo(path / "a", IMAGES)
    (folder / "cocobu_fc" / "9.npy").unlink()
    return folder


GOOD = IMAGES[9].features
OUTSIDE = IMAGES[9].boxes + 50


@pytest.mark.parametrize(
    "write, reason",
    [
        (lambda p: bad_npz(p, feat=GOOD[:, :2]), "features of the width 2 "),
        (lambda p: bad_npz(p, feat=GOOD.astype(int)), "floating-point"),
        (lambda p: bad_npz(p, a=GOOD, b=GOOD), "the file has: a, b"),
        (lambda p: bad_npz(p, feat=GOOD, boxes=OUTSIDE, image_w=9, image_h=9), "inside the image"),
        (lambda p: bad_npz(p, feat=GOOD, num_boxes=4), "states 4 regions, but"),
        (lambda p: bad_npz(p, feat=np.array([_Harmful()])), "allow_pickle=False"),
        (pickled, "a pickle, .* plain arrays into an npz file"),
        (
            lambda p: bad_npz(p, feat=GOOD, graph=np.array([[0, 99, 5]])),
            "rows of objects from",
        ),
        (lambda p: bad_line(p, 5, lambda text: text[:20]), "cut"),
        (without_fc, "cocobu_fc/9.npy"),
    ],
)
def test_an_image_that_cannot_be_used_says_why(tmp_path, write, reason):
    reader = ReadyFeatures([write(tmp_path)], ENTRIES)
    result = {one.entry.id: one for one in reader.read(ENTRIES)}
    assert result[30].reason is None and result[9].features is None
    assert re.search(f"9 in .*{reason}", result[9].reason)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def wrong_ids(path, content):
    folder = features.matrix(path / "scan", IMAGES)
    (folder / "train_ids.txt").write_text(content)
    return folder


@pytest.mark.parametrize(
    "write, reason",
    [
        (lambda p: p / "no.tsv", "no file or directory .*no.tsv"),
        (lambda p: cut(features.hdf5(p / "a.h5", IMAGES)), "a.h5 cannot be opened"),
        (lambda p: wrong_ids(p, "9\n30\n"), "2 ids for the 3 rows"),
        (lambda p: features.folder(p / "a", {5: IMAGES[9]}), "looked for .*, 9, "),
        (lambda p: features.bottom_up(p / "a.tsv", {5: IMAGES[9]}), "no COCO.*9 in .*another is 5"),
        (lambda p: p, "none of the layouts"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, write, reason):
    with pytest.raises(ValueError, match=reason):
        ReadyFeatures([write(tmp_path)], entries(9, 30, 391895))
