"""The built-in clips: what moves in them, and captions that tell the truth."""

import io
import json
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from tfcap.data import clips
from tfcap.preparing import moving_shapes, shapes
from tfcap.preparing.sources import Source
from tfcap.preparing.sources.json_files import karpathy


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving_shapes")
    path = pathlib.Path(moving_shapes.write(folder, train=24, val=3, test=2, seed=3))
    return folder, json.loads(path.read_text())["images"]


def test_no_clip_is_in_two_splits_or_twice():
    splits = moving_shapes.clips(train=2000, val=200, test=200, seed=1)
    assert {split: len(members) for split, members in splits.items()} == {
        "train": 2000,
        "val": 200,
        "test": 200,
    }
    assert len({clip for members in splits.values() for clip in members}) == 2400


def backwards(clip):
    """What a clip shows when it is played backwards."""
    steps = [
        moving_shapes.Step(step.actor, moving_shapes.BACKWARDS[step.action])
        for step in reversed(clip.steps)
    ]
    actors = clip.actors
    if len(actors) == 2:  # the first actor is the one that acts first
        actors = actors[::-1]
        steps = [step._replace(actor=1 - step.actor) for step in steps]
    return clip._replace(actors=actors, steps=tuple(steps))


def form(clip):
    return clip.lanes, tuple(step.action for step in clip.steps), len(clip.actors)


def test_every_clip_played_backwards_could_have_been_drawn_and_has_another_caption():
    every = moving_shapes.clips(train=3000, val=0, test=0, seed=1)["train"]
    forms = {form(clip) for clip in every}
    for clip in every:
        other = backwards(clip)
        assert form(other) in forms
        assert other.steps != clip.steps or other.actors != clip.actors


def test_files_are_karpathy_layout_with_gif_files_that_move(written):
    folder, images = written
    entries = karpathy(Source((folder / moving_shapes.CAPTION_FILE,)))
    assert [entry.split for entry in entries].count("train") == 24
    assert all(len(entry.captions) == 5 for entry in entries)
    counts = set()
    for image in images:
        with Image.open(folder / "clips" / image["filename"]) as clip:
            assert clip.size == (96, 96)
            counts.add(clip.n_frames)
    assert counts == {8, 9, 10, 11, 12}


def seen(folder, image, colour):
    """Per frame the middle and the number of the pixels that have the colour: [n, 3] x, y, area."""
    content = (folder / "clips" / image["filename"]).read_bytes()
    with Image.open(io.BytesIO(content)) as clip:
        frames = clip.n_frames
    pixels = clips.read(content, frames).astype(int)
    near = np.abs(pixels - shapes.COLOURS[colour]).max(-1) <= 24
    found = []
    for mask in near:
        y, x = np.nonzero(mask)
        found.append([x.mean() if len(x) else np.nan, y.mean() if len(y) else np.nan, len(x)])
    return np.array(found)


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


def test_same_seed_same_bytes_and_a_second_call_changes_nothing(written, tmp_path):
    folder, images = written
    again = pathlib.Path(moving_shapes.write(tmp_path, train=24, val=3, test=2, seed=3))
    assert again.read_bytes() == (folder / moving_shapes.CAPTION_FILE).read_bytes()
    for image in images[::10]:
        name = image["filename"]
        assert (tmp_path / "clips" / name).read_bytes() == (folder / "clips" / name).read_bytes()
    before = again.stat().st_mtime_ns
    moving_shapes.write(tmp_path, train=24, val=3, test=2, seed=3)
    assert again.stat().st_mtime_ns == before
