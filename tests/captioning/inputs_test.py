"""Everything that is a picture is read; everything else is refused with a sentence."""

import base64
import http.server
import io
import os
import pathlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfcap.captioning import inputs

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
CODED = base64.b64encode(bytes(range(256)) * 40).decode()


def _png():
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file.getvalue()


def _cut():
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)).save(
        file, "JPEG"
    )
    return Image.open(io.BytesIO(file.getvalue()[:2000]))


def _one(images):
    (picture,) = inputs.read(images)
    return picture


@pytest.mark.parametrize(
    ("image", "word"),
    [
        (PIXELS / 255, "float64 [4, 6, 3]"),
        (PIXELS[..., 0], "uint8 [4, 6]"),
        (PIXELS[:0], "uint8 [0, 6, 3]"),
        (Image.new("RGB", (0, 5)), "uint8 [5, 0, 3]"),
        (_cut(), "Pillow cannot read the picture"),
        ((PIXELS, 1), "tuple"),
        (None, "NoneType"),
        ({"a.jpg": PIXELS}, "not of the type dict"),
        ("missing.png", "there is no such file"),
        (CODED, "there is no such file"),
        ("http://[" + "a" * 1000, "the download failed"),
    ],
)
def test_what_is_no_picture_has_a_reason_and_does_not_stop_the_others(image, word):
    bad, good = inputs.read([image, PIXELS])
    assert bad.content is None and word in bad.reason
    assert len(f"{bad.source}: {bad.reason}") < 500  # a picture in base64 is not repeated
    np.testing.assert_array_equal(good.content, PIXELS)


def test_bytes_and_open_files_are_pictures(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(_png())
    with open(path, "rb") as file:
        assert _one(file).content == _png()
    for image in (io.BytesIO(_png()), np.array(_png()), tf.constant(_png())):
        assert _one(image).content == _png()


def test_paths_may_begin_with_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(_png())
    for image in ("~/photos/a.png", "~/photos", ["~/photos"], pathlib.Path("~/photos/a.png")):
        picture = _one(image)
        assert (picture.source, picture.content) == (str(tmp_path / "photos/a.png"), _png())


def test_a_tensor_may_hold_a_path(tmp_path):
    """The names of screenshots on macOS have a narrow space, which is not printable."""
    path = tmp_path / "Screenshot 10.15\u202fPM.png"
    path.write_bytes(_png())
    for image in (np.array(os.fspath(path)), np.array(os.fspath(path).encode())):
        assert (_one(image).source, _one(image).content) == (os.fspath(path), _png())


def test_pillow_images_become_upright_rgb():
    np.testing.assert_array_equal(_one(Image.fromarray(PIXELS)).content, PIXELS)
    assert _one(Image.fromarray(PIXELS[..., 0])).content.shape == (4, 6, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG", exif=exif)
    turned = _one(Image.open(file)).content
    np.testing.assert_array_equal(turned, np.rot90(PIXELS, -1))


def test_folders_give_their_pictures_in_the_order_of_their_names(tmp_path):
    for name in ("b.PNG", "a.jpeg", "notes.txt", "c.webp", "._a.jpeg", ".hidden.png"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "more").mkdir()
    paths = [str(tmp_path / name) for name in ("a.jpeg", "b.PNG", "c.webp")]
    assert [picture.source for picture in inputs.read(tmp_path)] == paths
    assert [p.source for p in inputs.read(["x.png", str(tmp_path)])] == ["x.png", *paths]
    assert inputs.expand(["x.png", str(tmp_path)]) == ["x.png", *paths]
    assert "holds no pictures" in _one(str(tmp_path / "more")).reason


def test_a_pipe_and_a_device_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    os.symlink("/dev/zero", tmp_path / "endless.png")
    for picture in inputs.read(str(tmp_path)):
        assert picture.content is None and "no such file" in picture.reason


class _Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.requestline.split()[1]  # `path` has lost a slash
        result = asked in ("/a.png", "//b/c.png", "/my%20ph%C3%B6to%20.png?size=1%202")
        self.send_response(200 if result else 404)
        self.end_headers()
        if result:
            self.wfile.write(_png())

    def log_message(self, *_):
        pass


def test_urls_are_downloaded_up_to_a_size(monkeypatch, tmp_path):
    server = http.server.HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        base = f"http://127.0.0.1:{server.server_port}"
        picture = _one(f"{base}/a.png")
        assert picture.content == _png() and picture.source == f"{base}/a.png"
        reason = _one(f"{base}/b.png").reason
        assert reason == "the download failed: HTTP Error 404: Not Found. Check the URL."
        assert _one(f"{base}//b/c.png").content == _png()
        assert _one(f"{base}/my phöto%20.png?size=1 2").content == _png()
        monkeypatch.setattr(inputs, "MOST_BYTES", 10)
        path = tmp_path / "large.png"
        path.write_bytes(_png())
        for image in (f"{base}/a.png", path, _png(), io.BytesIO(_png())):
            assert "at most 10 bytes" in _one(image).reason
    finally:
        server.shutdown()
        server.server_close()
    assert _one(f"{base}/a.png").reason.startswith("the download failed: ")


def test_a_server_that_is_silent_ends_the_download(monkeypatch):
    monkeypatch.setattr(inputs, "_SECONDS", 0.2)
    with http.server.HTTPServer(("127.0.0.1", 0), _Server) as silent:  # it answers nobody
        assert "timed out" in _one(f"http://127.0.0.1:{silent.server_port}/a.png").reason


def _folder(tmp_path):
    """Photographs of several cameras, a film, a text and a hidden file, and a folder below."""
    for name in ("b.JFIF", "a.png", "download", "below/c.jpe"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(_png())
    for name in (
        "1.HEIC",
        "2.heic",
        "4.avif",
        "3.jp2",
        "5.mov",
        "6.txt",
        "._7.heic",
        "below/8.heic",
    ):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic")
    return str(tmp_path)


def test_pictures_and_films_of_a_folder_that_are_left_out_are_counted(tmp_path):
    folder, others = _folder(tmp_path), []
    names = [os.path.basename(path) for path in inputs.expand([folder], others=others)]
    assert names == ["a.png", "b.JFIF", "download"]
    pictures, films = inputs.left_out(others)
    assert pictures.startswith("4 pictures are left out (2 .heic, 1 .jp2, 1 .avif)")
    assert films == "films are left out (1 .mov): a model of clips reads them"
    others = []
    assert len(inputs.expand([folder], recursive=True, others=others)) == 4
    assert inputs.left_out(others)[0].startswith("5 pictures are left out (3 .heic")
    assert inputs.left_out(["a.txt", "b", "c.csv"]) == []
    with pytest.warns(UserWarning, match="4 pictures are left out") as told:
        assert len(list(inputs.read(folder))) == 3
    assert len(told) == 2


def test_a_folder_of_views_is_one_input_unless_folders_of_pictures_are_in_it(tmp_path):
    names = ["s1/0.png", "s1/1.gif", "s2/0.png", "s2/notes/a.txt", "loose.png", "s3/film.mp4"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    others = []
    found = inputs.expand([str(tmp_path)], "views", others=others)
    assert [os.path.relpath(path, tmp_path) for path in found] == ["loose.png", "s1", "s2"]
    assert not inputs.is_single(tmp_path, "views") and inputs.left_out(others, "views") == []
    for folder in ("s1", "s2"):
        assert inputs.is_single(tmp_path / folder, "views")
        (picture,) = inputs.read(tmp_path / folder, "views")
        assert picture.content == inputs.ClipPath(str(tmp_path / folder))
    assert inputs.views_of(picture.content, 2) == [b""]
    with pytest.raises(ValueError, match="an image of 2 pictures, .* A file is an image of one"):
        inputs.views_of(inputs.ClipPath(str(tmp_path / "s1")), 1)


def test_still_pictures_beside_clips_are_counted(tmp_path):
    for name in ("a.gif", "b.png", "c.heic"):
        (tmp_path / name).write_bytes(_png())
    others = []
    assert inputs.expand([str(tmp_path)], "clips", others=others) == [str(tmp_path / "a.gif")]
    pictures, stills = inputs.left_out(others, "clips")
    assert pictures.startswith("1 picture is left out (1 .heic)")
    assert stills == "still pictures are left out (1 .png): the model reads clips"
