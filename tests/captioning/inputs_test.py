"""Everything that is a picture is read; everything else is refused with a sentence."""

import base64
import io
import os
import pathlib
import warnings

import numpy as np
import pytest
from PIL import Image

from tfcap.captioning import inputs

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def _png():
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file.getvalue()


def _one(given):
    (picture,) = inputs.read(given)
    return picture


@pytest.mark.parametrize(
    ("pixels", "part"),
    [
        (PIXELS / 255, r"Received: float64 \[4, 6, 3\]. Give pixels from 0 to 255; if they"),
        (PIXELS.astype(np.float32), "float32"),
        (PIXELS.astype(np.int32), "int32"),
        (PIXELS[..., 0], r"uint8 \[4, 6\]. Convert it to RGB"),
        (PIXELS[..., :1], r"uint8 \[4, 6, 1\]"),
        (PIXELS[:0], r"uint8 \[0, 6, 3\]"),
    ],
)
def test_other_arrays_than_rgb_bytes_are_refused(pixels, part):
    picture = _one(pixels)
    assert picture.content is None
    with pytest.raises(ValueError, match=part):
        raise ValueError(picture.reason)


CODED = base64.b64encode(bytes(range(256)) * 40).decode()


@pytest.mark.parametrize("text", [CODED, f"data:image/png;base64,{CODED}", CODED + "\n" + CODED])
@pytest.mark.parametrize("form", [str, lambda text: [text]])
def test_a_picture_given_as_text_is_not_repeated(text, form):
    picture = _one(form(text))
    assert picture.content is None and "base64.b64decode(text)" in picture.reason
    assert len(f"{picture.source}: {picture.reason}") < 300


def test_a_long_path_and_url_are_shortened():
    for source in ("a/" * 500 + "a.jpg", "http://[" + "a" * 1000):
        picture = _one(source)
        assert len(f"{picture.source}: {picture.reason}") < 500


def test_a_dictionary_is_refused():
    for pictures in ({"a.jpg": _png()}, {1: "a.jpg"}):
        with pytest.raises(ValueError, match=r"a list and not a dictionary. .*pictures.values\(\)"):
            list(inputs.read(pictures))
        assert "not a dictionary" in _one([pictures]).reason


def test_paths_may_begin_with_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(_png())
    for given in ("~/photos/a.png", "~/photos", ["~/photos"], pathlib.Path("~/photos/a.png")):
        picture = _one(given)
        assert (picture.source, picture.content) == (str(tmp_path / "photos/a.png"), _png())


def test_a_pillow_image_without_pixels_is_refused():
    assert _one(Image.new("RGB", (0, 5))).reason == (
        "a Pillow image must have at least one pixel. Received: 0 x 5 pixels."
    )


def test_a_tensor_may_hold_a_path_with_any_printed_sign(tmp_path):
    """The names of screenshots on macOS have a narrow space, which is not printable."""
    path = tmp_path / "Screenshot 10.15\u202fPM.png"
    path.write_bytes(_png())
    picture = _one(np.array(os.fspath(path).encode()))
    assert (picture.source, picture.content) == (os.fspath(path), _png())


def test_pillow_images_become_upright_rgb():
    np.testing.assert_array_equal(_one(Image.fromarray(PIXELS)).content, PIXELS)
    assert _one(Image.fromarray(PIXELS[..., 0])).content.shape == (4, 6, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG", exif=exif)
    turned = _one(Image.open(file)).content
    np.testing.assert_array_equal(turned, np.rot90(PIXELS, -1))


def test_folders_give_their_pictures_in_the_order_of_their_names(tmp_path, capsys):
    for name in ("b.PNG", "a.jpeg", "notes.txt", "c.webp", "._a.jpeg", ".hidden.png"):
        (tmp_path / name).write_bytes(b"x")
    names = ["a.jpeg", "b.PNG", "c.webp"]
    paths = [str(tmp_path / name) for name in names]
    assert [picture.source for picture in inputs.read(tmp_path)] == paths
    assert [p.source for p in inputs.read(["x.png", str(tmp_path)])] == ["x.png", *paths]
    assert inputs.expand(["x.png", str(tmp_path)]) == ["x.png", *paths]
    assert "folders in" not in capsys.readouterr().err
    for name in ("more", "still more", ".hidden"):
        (tmp_path / name).mkdir()
    assert inputs.expand([str(tmp_path)]) == paths
    assert f"folders in {tmp_path} that are not read: 2" in capsys.readouterr().err


def test_pairs_and_other_things_are_refused_and_do_not_stop_the_others():
    found = list(inputs.read([(PIXELS, 1), None, PIXELS]))
    assert [picture.content is None for picture in found] == [True, True, False]
    assert "Received: tuple." in found[0].reason and "Received: NoneType." in found[1].reason


def test_an_animated_gif_gives_one_warning(tmp_path):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    paths = [str(tmp_path / f"{name}.gif") for name in ("still", "first", "second")]
    frames[0].save(paths[0])
    for path in paths[1:]:
        frames[0].save(path, save_all=True, append_images=frames[1:])
    with pytest.warns(inputs.AnimationWarning, match="first.gif is an animated GIF file") as found:
        assert [picture.source for picture in inputs.read(paths)] == paths
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(inputs.read(paths[:1]))) == 1


def test_an_open_file_is_one_picture(tmp_path):
    """Its lines would else count as pictures."""
    path = tmp_path / "a.png"
    path.write_bytes(_png())
    with open(path, "rb") as file:
        assert _one(file).content == _png()
    assert _one(io.BytesIO(_png())).content == _png()
    assert _one(memoryview(_png())).content == _png()
    assert [one.content for one in inputs.read([io.BytesIO(_png()), _png()])] == [_png()] * 2
    assert "Open it with the mode 'rb'" in _one(io.StringIO("text")).reason
    with open(path) as file:
        assert "Open it with the mode 'rb'" in _one(file).reason
    first, second = inputs.lasting([io.BytesIO(_png()), "b.png"])
    assert (first, second) == (_png(), "b.png")
    assert inputs.lasting(iter(["a.png"])) == ["a.png"]
    assert inputs.lasting(io.BytesIO(_png())) == _png()


class _Lost(io.RawIOBase):
    def read(self, *_):
        raise OSError(5, "Input/output error")


def test_a_file_that_cannot_be_read_does_not_end_the_others():
    found = list(inputs.read([_Lost(), PIXELS]))
    assert found[0].reason == "Input/output error" and np.array_equal(found[1].content, PIXELS)


def test_an_animated_pillow_image_is_told():
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    with Image.open(io.BytesIO(file.getvalue()[:-40])) as image:  # cut in its second frame
        assert _one(image).content is not None or _one(image).reason
    phone = io.BytesIO()
    frames[0].save(phone, "MPO", save_all=True, append_images=frames[1:])
    with Image.open(phone) as image, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image.is_animated and _one(image).content.shape == (6, 8, 3)
        (clip,) = inputs.read(image, clips=True)
        assert clip.content.shape == (6, 8, 3)
    with Image.open(file) as image:
        with pytest.warns(inputs.AnimationWarning, match="picture 0 is an animated Pillow image"):
            assert _one(image).content.shape == (6, 8, 3)
        (clip,) = inputs.read(image, clips=True)
        assert clip.content is None and "the path or the bytes of a GIF file" in clip.reason


def test_a_truncated_pillow_image_does_not_end_the_others():
    content = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(content, "JPEG")
    cut = Image.open(io.BytesIO(content.getvalue()[:2000]))
    found = list(inputs.read([cut, PIXELS]))
    assert found[0].reason.startswith("Pillow cannot read it: ")
    assert np.array_equal(found[1].content, PIXELS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Image.fromarray(np.full((4, 6), 0.5, np.float32)), "the mode F. Scale its values"),
        (PIXELS.astype(np.int64), "picture.astype('uint8')"),
        (PIXELS > 9, "255 * picture.astype('uint8')"),
        (PIXELS[..., 0], "Convert it to RGB"),
    ],
)
def test_pixels_of_another_type_have_a_remedy(given, words):
    assert words in _one(given).reason


def test_an_array_of_one_path_is_a_path(tmp_path):
    (tmp_path / "a.png").write_bytes(_png())
    assert _one(np.array(str(tmp_path / "a.png"))).content == _png()


def test_a_folder_that_cannot_be_listed_does_not_end_the_others(monkeypatch, tmp_path):
    listed = os.listdir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "listdir", refuse)  # root may list every folder
    for clips in (False, True):
        found = list(inputs.read([str(tmp_path / "closed"), PIXELS], clips))
        assert found[0].source.endswith("closed") and found[0].reason == "Permission denied"
        assert np.array_equal(found[1].content, PIXELS)


def test_a_missing_file_of_a_data_set_does_not_end_the_others(tmp_path):
    import tensorflow as tf

    (tmp_path / "a.png").write_bytes(_png())
    paths = [str(tmp_path / name) for name in ("lost.png", "a.png")]
    data = tf.data.Dataset.from_tensor_slices(paths).map(tf.io.read_file)
    found = list(inputs.read(data))
    assert "lost.png" in found[0].reason and found[1].content == _png()
    with pytest.raises(tf.errors.NotFoundError):  # it repeats its error for ever
        list(inputs.read(tf.data.TFRecordDataset(paths[0])))
