"""Writes a sheet with rows of pictures and a line of text under each picture."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

from tfcap.files import replacing
from tfcap.images import upright

TILE = 240  # side of the square for a picture, in pixels
EDGE = 12
FONT = 18
LINE = 28
MOST_PIXELS = 50_000_000  # limit of a sheet


def write(path: str, rows: Sequence[tuple[str, Sequence[tuple[str | None, str]]]]) -> None:
    """Writes a PNG: for each row a title and below it the pictures, with a text under each.

    Args:
      path: the file; it appears only when it is complete.
      rows: (title, [(picture file, text), ...]); None leaves the place of a picture empty.

    Raises:
      ValueError: a picture cannot be read, or there are too many pictures for a sheet.
    """
    columns = max(len(tiles) for _, tiles in rows)
    size = (EDGE + columns * (TILE + EDGE), EDGE + len(rows) * (2 * LINE + TILE + EDGE))
    if size[0] * size[1] > MOST_PIXELS:
        raise ValueError(
            f"{columns} by {len(rows)} pictures are too many for a sheet. Ask for fewer."
        )
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT)
    top = EDGE
    for title, tiles in rows:
        draw.text((EDGE, top), _shorten(title, font, size[0] - 2 * EDGE), "black", font)
        for column, (file, text) in enumerate(tiles):
            left = EDGE + column * (TILE + EDGE)
            picture = _picture(file) if file else Image.new("RGB", (TILE, TILE), "lightgrey")
            middle = (TILE - picture.width) // 2, (TILE - picture.height) // 2
            sheet.paste(picture, (left + middle[0], top + LINE + middle[1]))
            draw.text((left, top + LINE + TILE), _shorten(text, font, TILE), "black", font)
        top += 2 * LINE + TILE + EDGE
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG")


def _picture(file: str) -> Image.Image:
    try:
        with Image.open(file) as opened:
            opened.draft("RGB", (TILE, TILE))  # lets JPEG decode a smaller picture
            picture = upright(opened).convert("RGB")
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        reason = getattr(error, "strerror", None) or "not a picture that can be decoded"
        raise ValueError(f"{file}: {reason}") from error
    return ImageOps.contain(picture, (TILE, TILE))


def _shorten(text: str, font, width: int) -> str:
    """Returns `text`, shortened with "..." if it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text} ...") > width:
        text = text[:-1]
    return f"{text} ..."
