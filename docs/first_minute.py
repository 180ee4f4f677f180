"""Writes what the packaged captioner says of the first photograph: `python docs/first_minute.py`.

README.md and docs/index.md caption `docs/images/street.jpg` in their first minute. Their sentences
about it stand between `<!-- caption -->` and `<!-- end -->`. This script writes them again, and the
figure of the attention, after the packaged captioner has changed. The figure needs the extra
`lite`. Look whether every word of the new caption is true.
"""

import pathlib
import re
import tempfile

from PIL import Image

import tfcap

DOCS = pathlib.Path(__file__).resolve().parent
PAGES = (DOCS.parent / "README.md", DOCS / "index.md")
PHOTO = DOCS / "images" / "street.jpg"
FIGURE = DOCS / "images" / "street_attention.jpg"
WIDTH = 1200  # of the figure, in pixels


def fill(text: str, caption: tfcap.Caption) -> str:
    """A page with the caption and, if the captioner is calibrated, the confidence in it."""
    said = f"`{caption.text}`"
    if caption.confidence is not None:
        said += f", and with `--json` the confidence in it, {caption.confidence:.2f}"
    return re.sub("<!-- caption -->.*?<!-- end -->", f"<!-- caption -->{said}<!-- end -->", text)


def main() -> None:
    """Writes the sentences and the figure."""
    captioner = tfcap.load()
    caption = captioner(PHOTO)
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8"), caption), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        captioner(PHOTO, attention="attention").draw(f"{folder}/figure.png")
        figure = Image.open(f"{folder}/figure.png").convert("RGB")
    figure.thumbnail((WIDTH, figure.height), Image.Resampling.LANCZOS)
    figure.save(FIGURE, quality=80, optimize=True, progressive=True)
    print(caption)


if __name__ == "__main__":
    main()
