"""The built-in clips: what moves in them, and captions that tell the truth."""

import functools
import io
import json
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from tfcap.data import clips
from tfcap.preparing import moving_shapes, shapes


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving_shapes")
    path = pathlib.Path(
        moving_shapes.DATA.write(folder, {"train": 24, "val": 3, "test": 2}, seed=3)
    )
    return folder, json.loads(path.read_text())["images"]


@functools.lru_cache(1)
def pixels(path):
    """All frames of a clip [n, H, W, 3], which its captions are held against one after another."""
    content = path.read_bytes()
    with Image.open(io.BytesIO(content)) as clip:
        frames = clip.n_frames
    return clips.read_clip_bytes(content, frames).astype(int)


def seen(folder, image, colour):
    """Per frame the middle and the number of the pixels that have the colour: [n, 3] x, y, area."""
    near = (
        np.abs(pixels(folder / "clips" / image["filename"]) - shapes.COLOURS[colour]).max(-1) <= 24
    )
    result = []
    for mask in near:
        y, x = np.nonzero(mask)
        result.append([x.mean() if len(x) else np.nan, y.mean() if len(y) else np.nan, len(x)])
    return np.array(result)


def happens(action, part):
    """Whether frames [n, 3] of one part of a clip show an action."""
    (x, y, area), there = part.T, part[:, 2] > 20
    first, last = there[0], there[-1]
    if action in ("appear", "disappear"):
        return (not first and last) if action == "appear" else (first and not last)
    if not there.all():
        return False
    change = {"left": x[0] - x[-1], "right": x[-1] - x[0], "up": y[0] - y[-1], "down": y[-1] - y[0]}
    if action in change:
        return change[action] > 15
    return area[-1] > 2 * area[0] if action == "grow" else area[0] > 2 * area[-1]


PHRASES = {phrase: action for action, ways in moving_shapes.ACTIONS.items() for phrase in ways}
_WORDS = re.compile(
    rf"\b(?:a ({'|'.join(shapes.COLOURS)}) (circle|square|triangle|star)|it) "
    rf"({'|'.join(sorted(PHRASES, key=len, reverse=True))})\b"
)
_AGAIN = re.compile(rf"and then ({'|'.join(sorted(PHRASES, key=len, reverse=True))})\b")


def told(text):
    """The colours and actions of a caption in the order in which they happen."""
    text = text.lower()
    parts = [(match[1], PHRASES[match[3]]) for match in _WORDS.finditer(text)]
    parts += [(None, PHRASES[match[1]]) for match in _AGAIN.finditer(text)]
    colour = next(colour for colour, _ in parts if colour)
    parts = [(own or colour, action) for own, action in parts]
    return parts[::-1] if " after " in text else parts


def check_caption(folder, image, text):
    """Holds a caption against the pixels of its clip."""
    parts = told(text)
    assert 1 <= len(parts) <= 2
    for number, (colour, action) in enumerate(parts):
        frames = seen(folder, image, colour)
        begin, end = (round(edge * (len(frames) - 1) / len(parts)) for edge in (number, number + 1))
        assert happens(action, frames[begin : end + 1]), (text, action)


def test_captions_are_true(written):
    folder, images = written
    for image in images[:16]:
        for sentence in image["sentences"]:
            check_caption(folder, image, sentence["raw"])
