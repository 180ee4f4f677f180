"""Clips: which frames are kept, what a decoder of its own sees in GIF files, folders, sheets."""

import io

import cv2
import numpy as np
import pytest
import tensorflow as tf
from helpers.clips import FRAMES, gif, write_frames
from PIL import Image, ImageSequence

from tfcap.data import clips


@pytest.mark.parametrize(
    ("total", "frames", "expected"),
    [
        (10, 5, [0, 2, 4, 6, 8]),
        (10, 4, [0, 2, 5, 7]),
        (3, 5, [0, 1, 2, 2, 2]),
        (1, 3, [0, 0, 0]),
        (4, 4, [0, 1, 2, 3]),
        (7, 1, [0]),
    ],
)
def test_every_nth_frame_is_kept_and_the_last_one_fills(total, frames, expected):
    assert clips.frame_positions(total, frames).numpy().tolist() == expected


def test_frames_of_a_gif_come_in_their_order():
    content = gif(FRAMES)
    with Image.open(io.BytesIO(content)) as file:
        expected = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(file)]
    result = clips.read_clip_bytes(content, len(expected))
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(
        clips.read_clip_bytes(content, 2), [expected[0], expected[len(expected) // 2]]
    )
    assert np.abs(result[0].astype(int) - result[-1]).max() > 100


def test_a_still_picture_is_a_clip_of_one_frame():
    file = io.BytesIO()
    Image.fromarray(FRAMES[0]).save(file, "PNG")
    result = clips.read_clip_bytes(file.getvalue(), 3)
    np.testing.assert_array_equal(result, [FRAMES[0]] * 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"GIF89a" + bytes(20), "or it is damaged"),
        (b"\0\0\0\x18ftypheic" + bytes(20), "a film, or a HEIC"),
        (b"\0\0\0\x18ftypmp42" + bytes(20), "OpenCV cannot read the film"),
    ],
)
def test_a_file_that_is_no_clip_is_refused_with_its_reason(content, reason):
    with pytest.raises(ValueError, match=reason):
        clips.read_clip_bytes(content, 2)


def test_a_clip_that_would_fill_the_memory_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(tf.io, "decode_gif", None)
    head = b"GIF89a" + (60000).to_bytes(2, "little") * 2 + b"\0\0\0"
    frame = b"," + bytes(4) + (60000).to_bytes(2, "little") * 2 + b"\0\x02\x01\0\0"
    with pytest.raises(ValueError, match="more than 178956970 pixels"):
        clips.read_clip_bytes(head + 2 * frame + b";", 2)


def test_a_folder_gives_its_frames_in_the_order_of_their_numbers(tmp_path):
    write_frames(tmp_path, 12)  # frame0.png to frame11.png
    (tmp_path / "notes.txt").write_text("no frame")
    (tmp_path / "._frame0.png").write_bytes(b"\0\5\x16\7")  # macOS writes it on foreign disks
    assert [frame[0, 0, 0] for frame in clips.read_clip(tmp_path, 12)] == list(range(0, 120, 10))
    assert [frame[0, 0, 0] for frame in clips.read_clip(tmp_path, 4)] == [0, 30, 60, 90]
    for path in tmp_path.glob("[!.]*.png"):
        path.rename(path.with_suffix(".jp2"))
    with pytest.raises(ValueError, match=r"12 pictures are left out \(12 .jp2\): save them as"):
        clips.read_clip(tmp_path, 4)


def test_a_sheet_shows_each_frame_in_its_box():
    frames = [np.full((4, 6, 3), 40 * n, np.uint8) for n in range(5)]
    frames[3] = np.full((8, 8, 3), 120, np.uint8)  # of another size
    sheet, boxes = clips.sheet(frames), clips.sheet_boxes(5)
    assert sheet.shape == (2 * 4, 3 * 6, 3) and boxes.shape == (5, 4)
    for number, box in enumerate(boxes):
        x1, y1, x2, y2 = np.rint(box * [18, 8, 18, 8]).astype(int)
        assert (sheet[y1:y2, x1:x2] == 40 * number).all() and (x2 - x1, y2 - y1) == (6, 4)
    assert (sheet[4:, 12:] == 255).all()  # the place that no frame fills


@pytest.mark.parametrize(
    ("ending", "codec"), [(".avi", "MJPG"), (".mp4", "mp4v"), (".webm", "VP80")]
)
def test_a_film_gives_the_frames_that_a_gif_file_would(tmp_path, ending, codec):
    """Twelve frames that turn from red to blue, also as the bytes of the file."""
    path = str(tmp_path / f"film{ending}")
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*codec), 5, (64, 48))
    for number in range(12):
        writer.write(np.full((48, 64, 3), (20 * number, 0, 255 - 20 * number), np.uint8))  # BGR
    writer.release()
    content = (tmp_path / f"film{ending}").read_bytes()
    for result in (clips.read_clip(path, 5), clips.read_clip_bytes(content, 5)):
        assert len(result) == 5 and result[0].shape == (48, 64, 3)
        for frame, number in zip(result, (0, 2, 4, 7, 9), strict=True):
            np.testing.assert_allclose(frame[20, 30], (255 - 20 * number, 0, 20 * number), atol=8)


def _numbered_film(path, codec, count):
    """Writes a film whose pictures have their numbers in eight bars; returns a reader of them."""
    writer = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*codec), 25, (64, 48)
    )
    for number in range(count):
        bars = [np.full((48, 8, 3), 255 * (number >> bit & 1), np.uint8) for bit in range(8)]
        writer.write(np.concatenate(bars, 1))
    writer.release()
    return lambda frame: sum(int(frame[24, 8 * bit + 4].mean() > 127) << bit for bit in range(8))


@pytest.mark.parametrize(("count", "frames"), [(25, 4), (75, 8), (75, 1)])
@pytest.mark.parametrize(("ending", "codec"), [(".mpg", "MPG2"), (".mkv", "mp4v")])
def test_a_film_is_read_to_its_end_whatever_its_head_estimates(
    tmp_path, ending, codec, count, frames
):
    number = _numbered_film(tmp_path / f"film{ending}", codec, count)
    estimate = cv2.VideoCapture(str(tmp_path / f"film{ending}")).get(cv2.CAP_PROP_FRAME_COUNT)
    assert (estimate < count) == (ending == ".mpg")
    result = [number(frame) for frame in clips.read_clip(tmp_path / f"film{ending}", frames)]
    assert result == [i * count // frames for i in range(frames)]


@pytest.mark.parametrize("claimed", [0, 5, 40, 2**31 - 1])
def test_a_number_of_frames_that_is_stated_wrongly_does_not_count(tmp_path, claimed):
    path = tmp_path / "film.avi"
    number = _numbered_film(path, "MJPG", 20)
    content = bytearray(path.read_bytes())
    main, stream = content.index(b"avih") + 8 + 16, content.index(b"strh") + 8 + 32
    for position in (main, stream):
        assert content[position : position + 4] == (20).to_bytes(4, "little")
        content[position : position + 4] = claimed.to_bytes(4, "little")
    path.write_bytes(content)
    assert [number(frame) for frame in clips.read_clip(path, 4)] == [0, 5, 10, 15]


def test_a_film_that_ends_too_early_gives_the_frames_that_it_has(tmp_path):
    whole, cut = tmp_path / "whole.avi", tmp_path / "cut.avi"
    writer = cv2.VideoWriter(str(whole), cv2.VideoWriter_fourcc(*"MJPG"), 5, (320, 240))
    rng = np.random.default_rng(1)
    for _ in range(12):
        writer.write(rng.integers(0, 255, (240, 320, 3), np.uint8))
    writer.release()
    content = whole.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    first, *_, last = clips.read_clip(cut, 12)
    np.testing.assert_array_equal(first, clips.read_clip(whole, 12)[0])
    assert (last != clips.read_clip(whole, 12)[11]).any()


def test_a_damaged_film_is_one_line_and_prints_none(tmp_path, capfd):
    path = tmp_path / "film.mp4"
    path.write_bytes(b"\0\0\0\x18ftypmp42" + bytes(200))
    with pytest.raises(ValueError, match="OpenCV cannot read the film"):
        clips.read_clip(path, 2)
    assert capfd.readouterr().err == ""


def test_a_playlist_is_no_film(tmp_path):
    (tmp_path / "list.mp4").write_text("#EXTM3U\nhttp://127.0.0.1/secret.ts\n")
    with pytest.raises(ValueError, match="the file is no film"):
        clips.read_clip(tmp_path / "list.mp4", 2)
