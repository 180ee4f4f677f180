"""Makes the built-in data set: scenes of one to four coloured shapes, with five captions each.

The seed determines everything. A scene is a set of objects in a grid of 3 x 3 cells. Objects of the
same kind, colour and size are a group, which a caption counts together ("three big red circles"). A
small grammar makes the captions of a scene. All captions are true, but they mention different
things.

The caption file has the layout of Karpathy's splits, so `prepare` reads it like any other data set.
"""

import functools
import math
import random
from typing import NamedTuple

from PIL import Image, ImageDraw

from tfcap.preparing import built_in

IMAGE_SIZE = 96
CAPTIONS_PER_IMAGE = 5

KINDS = ("circle", "square", "triangle", "diamond", "star", "cross")
COLOURS = {
    "red": (215, 35, 40),
    "green": (35, 150, 60),
    "blue": (35, 80, 205),
    "yellow": (245, 205, 25),
    "orange": (245, 130, 20),
    "purple": (125, 45, 160),
    "pink": (250, 120, 190),
    "black": (25, 25, 30),
}
SIZES = {"big": 13.5, "small": 7.5}  # radius in pixels; a cell is 32 pixels wide
_BACKGROUNDS = ((245, 245, 245), (225, 232, 240), (240, 232, 220), (228, 240, 228), (214, 214, 220))
_CELLS = 3  # along a side of a scene
_JITTER = 2.0  # pixels by which an object may be off the middle of its cell
SUPERSAMPLING = 4

_NUMBERS = {2: "two", 3: "three", 4: "four"}
_PLURALS = {"cross": "crosses"}
_WHERE = (
    ("in the top left corner", "at the top", "in the top right corner"),
    ("on the left", "in the middle", "on the right"),
    ("in the bottom left corner", "at the bottom", "in the bottom right corner"),
)
# Sizes of the groups of a scene; a layout that is listed twice is twice as frequent.
_LAYOUTS: list[tuple[int, ...]] = [(1,), (1,), (2,), (3,), (4,), (1, 1), (1, 1), (1, 1)]
_LAYOUTS += [(1, 2), (2, 1), (1, 3), (2, 2), (1, 1, 1), (1, 1, 2)]


class _Shape(NamedTuple):
    """One object of a scene; the objects of a scene are sorted by these fields."""

    row: int
    column: int
    kind: str
    colour: str
    size: str


_Scene = tuple[_Shape, ...]  # sorted: equal scenes are equal tuples


class _Group(NamedTuple):
    """Objects that a caption counts together."""

    kind: str
    colour: str
    size: str
    cells: tuple[tuple[int, int], ...]  # (row, column)


def _draw_scene(rng: random.Random) -> _Scene:
    """Draws a random scene, whose groups differ in kind or colour."""
    layout = rng.choice(_LAYOUTS)
    cells = rng.sample([(r, c) for r in range(_CELLS) for c in range(_CELLS)], sum(layout))
    looks = rng.sample([(k, c) for k in KINDS for c in COLOURS], len(layout))
    shapes = []
    for number, (kind, colour) in zip(layout, looks, strict=True):
        size = rng.choice(tuple(SIZES))
        for _ in range(number):
            row, column = cells.pop()
            shapes.append(_Shape(row, column, kind, colour, size))
    return tuple(sorted(shapes))


def _groups(scene: _Scene) -> list[_Group]:
    """Returns the groups of a scene: big objects first, among equal sizes from left to right."""
    members: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for shape in scene:
        look = (shape.kind, shape.colour, shape.size)
        members.setdefault(look, []).append((shape.row, shape.column))
    unsorted = [
        _Group(kind, colour, size, tuple(cells)) for (kind, colour, size), cells in members.items()
    ]
    return sorted(unsorted, key=lambda g: (g.size, sum(c for _, c in g.cells) / len(g.cells), g))


def _relation(first: _Group, second: _Group) -> str | None:
    """Returns on which side of `second` all of `first` lies, such as "above"; else None."""
    for axis, before, after in ((1, "to the left of", "to the right of"), (0, "above", "below")):
        of_first = [cell[axis] for cell in first.cells]
        of_second = [cell[axis] for cell in second.cells]
        if max(of_first) < min(of_second):
            return before
        if min(of_first) > max(of_second):
            return after
    return None


def _caption(mentioned: list[_Group], rng: random.Random) -> str:
    """Returns a caption: an opening, the groups, sometimes the background."""
    if len(mentioned) == 1:
        text = _phrase(mentioned[0], rng)
        cells = mentioned[0].cells
        if rng.random() < 0.5 and len(cells) == 1:
            row, column = cells[0]
            text = f"{text} {_WHERE[row][column]}"
    elif rng.random() < 0.1:
        mentioned = [rng.choice(mentioned)]  # the caption does not mention the others
        text = _phrase(mentioned[0], rng)
    elif len(mentioned) == 2:
        mentioned = mentioned[::-1] if rng.random() < 0.25 else mentioned
        side = _relation(*mentioned)
        joint = side if side and rng.random() < 0.7 else rng.choice(("and", "and", "with"))
        text = f"{_phrase(mentioned[0], rng)} {joint} {_phrase(mentioned[1], rng)}"
    else:
        phrases = [_phrase(group, rng) for group in mentioned]
        text = f"{', '.join(phrases[:-1])} and {phrases[-1]}"
    verb = "is" if len(mentioned[0].cells) == 1 else "are"
    opening = rng.choices(
        ("", f"there {verb} ", "a picture of ", "an image of ", "we see ", "this picture shows "),
        (7, 3, 3, 2, 2, 2),
    )[0]
    closing = rng.choices(("", " on a light background", " on a plain background"), (8, 1, 1))[0]
    text = f"{opening}{text}{closing}"
    return f"{text[0].upper()}{text[1:]}."


def _phrase(group: _Group, rng: random.Random) -> str:
    """Returns `a big red circle` or `two blue squares`, sometimes without the size."""
    words = [group.colour, group.kind]
    if rng.random() < 0.7:
        common, synonym = {"big": ("big", "large"), "small": ("small", "little")}[group.size]
        words.insert(0, common if rng.random() < 0.7 else synonym)
    if len(group.cells) > 1:
        words[-1] = _PLURALS.get(group.kind, f"{group.kind}s")
        return " ".join((_NUMBERS[len(group.cells)], *words))
    return " ".join(("an" if words[0][0] in "aeiou" else "a", *words))


def _render(scene: _Scene, rng: random.Random) -> tuple[Image.Image, list[list[float]]]:
    """Draws a scene at four times the size and averages it to an RGB image of 96 x 96 pixels.

    Position and colour of each object and the background vary at random.

    Returns:
      The image, and the box [x1, y1, x2, y2] in 0..1 of each object.
    """
    image = ground(rng)
    draw = ImageDraw.Draw(image)
    boxes = []
    for shape in scene:
        pitch = IMAGE_SIZE / _CELLS
        x = (shape.column + 0.5) * pitch + rng.uniform(-_JITTER, _JITTER)
        y = (shape.row + 0.5) * pitch + rng.uniform(-_JITTER, _JITTER)
        radius = SIZES[shape.size] + rng.uniform(-0.5, 0.5)
        box = paint(draw, shape.kind, (x, y), radius, tint(shape.colour, rng))
        boxes.append([round(number / IMAGE_SIZE, 4) for number in box])
    return image.reduce(SUPERSAMPLING), boxes


def ground(rng: random.Random) -> Image.Image:
    """Draws a background: a gradient between two random light colours.

    Returns:
      An RGB image of 384 x 384 pixels, four times the side of the final picture.
    """
    start, end = rng.sample(_BACKGROUNDS, 2)
    return _gradient(start, end, rng.choice((0, 90, 180, 270))).copy()


@functools.cache  # there are 80 of them, 35 MB; to compute one takes half the time of a picture
def _gradient(start: tuple[int, ...], end: tuple[int, ...], turn: int) -> Image.Image:
    """Returns a gradient between two colours, turned by 0, 90, 180 or 270 degrees."""
    side = IMAGE_SIZE * SUPERSAMPLING
    slope = Image.linear_gradient("L").rotate(turn).resize((side, side))
    return Image.composite(
        Image.new("RGB", slope.size, start), Image.new("RGB", slope.size, end), slope
    )


def tint(colour: str, rng: random.Random) -> tuple[int, ...]:
    """Returns a random variation of a colour.

    Args:
      colour: a key of `COLOURS`.
      rng: the generator of random numbers.

    Returns:
      Red, green and blue, each 0 to 255.
    """
    return tuple(min(255, max(0, c + rng.randint(-12, 12))) for c in COLOURS[colour])


def paint(
    draw: ImageDraw.ImageDraw,
    kind: str,
    middle: tuple[float, float],
    radius: float,
    fill: tuple[int, ...],
) -> tuple[float, float, float, float]:
    """Paints a filled shape on a picture that is four times as large as the final picture.

    Args:
      draw: the drawing object of the large picture.
      kind: name of the shape, such as "circle".
      middle: x and y of the middle, in pixels of the final picture.
      radius: radius in pixels of the final picture.
      fill: red, green and blue, each 0 to 255.

    Returns:
      The box x1, y1, x2, y2 of the shape, in pixels of the final picture.
    """
    x, y = middle
    outline = [(x + radius * u, y + radius * v) for u, v in _outline(kind)]
    draw.polygon([(SUPERSAMPLING * px, SUPERSAMPLING * py) for px, py in outline], fill=fill)
    xs, ys = zip(*outline, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _outline(kind: str) -> list[tuple[float, float]]:
    """Returns the corners of a shape of radius 1 around 0; y points down."""

    def on_circle(count: int, radii: tuple[float, ...], turn: float = -math.pi / 2):
        step = 2 * math.pi / count
        return [
            (radii[i % len(radii)] * math.cos(turn + i * step),
             radii[i % len(radii)] * math.sin(turn + i * step))
            for i in range(count)
        ]  # fmt: skip

    if kind == "cross":
        corner = ((0.33, 1.0), (0.33, 0.33), (1.0, 0.33))
        quarters = ((1, 1, 1), (1, -1, -1), (-1, -1, 1), (-1, 1, -1))
        return [(sx * u, sy * v) for sx, sy, order in quarters for u, v in corner[::order]]
    return {
        "circle": lambda: on_circle(64, (1.0,)),
        "square": lambda: [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
        "triangle": lambda: [(0.0, -0.95), (1.0, 0.85), (-1.0, 0.85)],
        "diamond": lambda: [(0.0, -1.0), (0.7, 0.0), (0.0, 1.0), (-0.7, 0.0)],
        "star": lambda: on_circle(10, (1.0, 0.42)),
    }[kind]()


def _rendered(scene: _Scene, rng: random.Random) -> built_in.Rendered:
    """Returns the drawn scene, its captions, and the names and boxes of the objects.

    A box is [x1, y1, x2, y2] in 0..1.
    """
    image, boxes = _render(scene, rng)
    names = [f"{shape.size} {shape.colour} {shape.kind}" for shape in scene]
    captions = [_caption(_groups(scene), rng) for _ in range(CAPTIONS_PER_IMAGE)]
    save = functools.partial(image.save, format="PNG")
    return built_in.Rendered(save, captions, {"objects": names, "boxes": boxes})


DATA = built_in.BuiltIn(
    name="shapes",
    folder="images",
    ending="png",
    seed="scenes",
    counts={"train": 3000, "val": 200, "test": 200},
    draw=_draw_scene,
    render=_rendered,
)
