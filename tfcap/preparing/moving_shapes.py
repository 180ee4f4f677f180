"""Makes the built-in clips: one or two coloured shapes move, grow, shrink, appear or disappear.

The seed determines everything. A clip has one or two steps, one after the other, and a step is one
action of one shape. Every clip played backwards is also a possible clip, with another caption:
"moves left" becomes "moves right", and "appears before" becomes "disappears after". So a model that
does not know the order of the frames can only guess.

A clip is a GIF file of 8 to 12 frames, with five captions. The caption file has the layout of
Karpathy's splits.
"""

import functools
import random
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from tfcap.preparing import built_in
from tfcap.preparing.shapes import IMAGE_SIZE, SUPERSAMPLING, ground, paint, tint

CAPTIONS_PER_CLIP = 5
FRAMES = (8, 12)  # fewest and most of a clip
KINDS = ("circle", "star")  # two, because a small picture hardly tells more of them apart
COLOURS = ("red", "green", "blue", "yellow", "purple", "black")
# Each action with the ways to say it.
ACTIONS = {
    "left": ("moves left", "moves to the left", "slides left"),
    "right": ("moves right", "moves to the right", "slides right"),
    "up": ("moves up", "moves upwards", "slides up"),
    "down": ("moves down", "moves downwards", "slides down"),
    "grow": ("grows", "gets bigger", "becomes larger"),
    "shrink": ("shrinks", "gets smaller", "becomes smaller"),
    "appear": ("appears", "shows up", "comes into view"),
    "disappear": ("disappears", "vanishes", "goes away"),
}
_PAIRS = (("left", "right"), ("up", "down"), ("grow", "shrink"), ("appear", "disappear"))
BACKWARDS = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}  # when played backwards
_SHIFTS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
_RADIUS = 12.0  # pixels, halfway between the smallest and the largest
_GROWTH = 1.9  # from the smallest radius to the largest
_SHIFT = 38.0  # pixels of a move, of a shape that is alone; of two it is shorter
_LANES = (25.0, 71.0)  # middles of the two shapes, across the direction of their moves
_PAUSE = 0.06  # share of the time at the ends of a step in which nothing happens


class _Actor(NamedTuple):
    """One shape of a clip."""

    kind: str
    colour: str
    offset: int  # 0 to 8, a cell of 3 x 3: where around the middle of its lane its path lies


class _Step(NamedTuple):
    """What happens in one part of a clip."""

    actor: int  # position among the actors
    action: str  # a key of `ACTIONS`


class _Clip(NamedTuple):
    """What a clip shows.

    Attributes:
      actors: one or two shapes; two shapes move in separate lanes.
      steps: one or two movements, in the order of time.
      lanes: "rows" if two shapes move left and right, one above the other; "columns" if they move
        up and down, side by side; "none" for one shape.
      frames: number of frames.
    """

    actors: tuple[_Actor, ...]
    steps: tuple[_Step, ...]
    lanes: str
    frames: int


def _draw_clip(rng: random.Random) -> _Clip:
    """Draws a random clip: one step, two steps of a shape, or a step of each of two shapes."""
    kind = rng.choice(("one", "two steps", "two steps", "two actors", "two actors"))
    number = 2 if kind == "two actors" else 1
    colours = rng.sample(COLOURS, number)
    actors = tuple(_Actor(rng.choice(KINDS), colour, rng.randrange(9)) for colour in colours)
    lanes = rng.choice(("rows", "columns")) if number == 2 else "none"
    outside = {"rows": ("up", "down"), "columns": ("left", "right"), "none": ()}[lanes]
    allowed = [action for action in ACTIONS if action not in outside]  # others leave a lane
    first = rng.choice(allowed)
    second = rng.choice(allowed)
    if kind == "two steps":
        first, second = _pair(rng)
    steps = [_Step(0, first)]
    if kind != "one":
        steps.append(_Step(number - 1, second))
    return _Clip(actors, tuple(steps), lanes, rng.randint(*FRAMES))


def _pair(rng: random.Random) -> tuple[str, str]:
    """Draws two actions of one shape; the second does not undo the first.

    Nothing happens before it appears or after it disappears.
    """
    while True:
        first, second = rng.sample(list(ACTIONS), 2)
        if first != "disappear" and second != "appear" and second != BACKWARDS[first]:
            return first, second


def _caption(clip: _Clip, rng: random.Random) -> str:
    names = [_phrase(actor) for actor in clip.actors]
    does = [rng.choice(ACTIONS[step.action]) for step in clip.steps]
    if len(does) == 1:
        text = f"{names[0]} {does[0]}"
    elif len(names) == 1:
        name = names[0]
        first, second = does
        then = f"{name} {first}, then it {second}"
        ways = [f"{name} {first} and then {second}", then, f"first {then}"]
        ways += [f"{name} {first} before it {second}", f"{name} {second} after it {first}"]
        text = rng.choice(ways)
    else:
        first, second = (f"{name} {what}" for name, what in zip(names, does, strict=True))
        then = f"{first}, then {second}"
        text = rng.choice(
            (then, f"first {then}", f"{first} before {second}", f"{second} after {first}")
        )
    return f"{text[0].upper()}{text[1:]}."


def _phrase(actor: _Actor) -> str:
    return f"a {actor.colour} {actor.kind}"


def _render(clip: _Clip, rng: random.Random) -> list[Image.Image]:
    """Draws the frames of a clip, RGB images of 96 x 96 pixels, with a random background."""
    back = ground(rng)
    fills = [tint(actor.colour, rng) for actor in clip.actors]
    jitter = [(rng.uniform(-2, 2), rng.uniform(-2, 2)) for _ in clip.actors]
    drawn = []
    for number in range(clip.frames):
        frame = back.copy()
        draw = ImageDraw.Draw(frame)
        for index, actor in enumerate(clip.actors):
            x, y, radius = _state(clip, index, number / (clip.frames - 1))
            if radius:
                middle = (x + jitter[index][0], y + jitter[index][1])
                paint(draw, actor.kind, middle, radius, fills[index])
        drawn.append(frame.reduce(SUPERSAMPLING))
    return drawn


def _state(clip: _Clip, actor: int, time: float) -> tuple[float, float, float]:
    """Returns the middle and the radius of an actor at a time from 0 to 1; radius 0 hides it."""
    x, y = _middle(clip, actor)
    size = 0.0
    visible = True
    shift = _SHIFT if clip.lanes == "none" else 0.8 * _SHIFT
    for number, step in enumerate(clip.steps):
        if step.actor != actor:
            continue
        begin = number / len(clip.steps)
        end = (number + 1) / len(clip.steps)
        share = (time - begin - _PAUSE) / (end - begin - 2 * _PAUSE)
        share = min(max(share, 0.0), 1.0)
        across, down = _SHIFTS.get(step.action, (0, 0))
        # From -1/2 to 1/2, so that the frames without their order do not tell the direction.
        x += across * shift * (share - 0.5)
        y += down * shift * (share - 0.5)
        size += {"grow": 1, "shrink": -1}.get(step.action, 0) * (share - 0.5)
        visible &= not (step.action == "appear" and share < 0.5)
        visible &= not (step.action == "disappear" and share >= 0.5)
    return x, y, _RADIUS * _GROWTH**size if visible else 0.0


def _middle(clip: _Clip, actor: int) -> tuple[float, float]:
    """Returns the middle of the path of an actor, in pixels."""
    across, along = ((part - 1) * 5.0 for part in divmod(clip.actors[actor].offset, 3))
    half = IMAGE_SIZE / 2
    if clip.lanes == "none":
        return half + across, half + along
    lane = _LANES[actor] + across / 5
    middle = half + along
    return (middle, lane) if clip.lanes == "rows" else (lane, middle)


def _save(frames: Sequence[Image.Image], path: str) -> None:
    """Writes frames as a GIF file, with at most 255 colours in all frames together."""
    width, height = frames[0].size
    whole = Image.new("RGB", (width, height * len(frames)))
    for number, frame in enumerate(frames):
        whole.paste(frame, (0, number * height))
    whole = whole.quantize(255, dither=Image.Dither.NONE)
    # Pillow joins equal frames to one. A pixel in the corner keeps them apart: it has the colour
    # of one corner of the background, then that of another.
    corners = [whole.crop((x, y, x + 1, y + 1)).tobytes()[0]
               for x in (0, width - 1) for y in (0, height - 1)]  # fmt: skip
    other = next((colour for colour in corners if colour != corners[0]), corners[0])
    parts = []
    for number in range(len(frames)):
        part = whole.crop((0, number * height, width, (number + 1) * height))
        part.putpixel((0, 0), (corners[0], other)[number % 2])
        parts.append(part)
    parts[0].save(path, format="GIF", save_all=True, append_images=parts[1:], duration=120, loop=0)


def _rendered(clip: _Clip, rng: random.Random) -> built_in.Rendered:
    """Returns the drawn clip, its captions, and the action and the shape of each step, in order."""
    frames = _render(clip, rng)
    steps = [
        {"action": step.action, "shape": _phrase(clip.actors[step.actor])[2:]}
        for step in clip.steps
    ]
    captions = [_caption(clip, rng) for _ in range(CAPTIONS_PER_CLIP)]
    return built_in.Rendered(functools.partial(_save, frames), captions, {"steps": steps})


DATA = built_in.BuiltIn(
    name="moving_shapes",
    folder="clips",
    ending="gif",
    seed="clips",
    counts={"train": 2400, "val": 200, "test": 200},
    draw=_draw_clip,
    render=_rendered,
)
