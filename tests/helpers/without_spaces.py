"""Small data sets in Chinese and Japanese, with drawn pictures and invented captions."""

import itertools
import json
import pathlib

from PIL import Image, ImageDraw

# Colour -> its words; shape -> its words; which half of the picture -> its words.
CHINESE = (
    {"red": "红色", "green": "绿色", "blue": "蓝色"},
    {"ellipse": "圆形", "rectangle": "方块"},
    {0: "左边", 1: "右边"},
    ("一个{colour}的{shape}，在T恤的{side}。", "{side}有1个{colour}{shape}"),
)
JAPANESE = (
    {"red": "赤い", "green": "緑の", "blue": "青い"},
    {"ellipse": "ボール", "rectangle": "四角"},
    {0: "左", 1: "右"},
    ("{colour}{shape}がTシャツの{side}にある。", "{side}に{colour}{shape}が1つ"),
)


def write(folder, language, copies=2):
    """Writes pictures and captions; returns the arguments of prepare that read them."""
    colours, shapes, sides, sentences = language
    images = pathlib.Path(folder) / "images"
    images.mkdir(parents=True)
    entries = []
    every = itertools.product(range(copies), colours, shapes, sides)
    for number, (copy, colour, shape, side) in enumerate(every):
        picture = Image.new("RGB", (64, 64), "white")
        left = 4 + 32 * side + 2 * copy
        draw = getattr(ImageDraw.Draw(picture), shape)
        draw((left, 20, left + 22, 42), fill=colour)
        picture.save(images / f"{number}.png")
        words = {"colour": colours[colour], "shape": shapes[shape], "side": sides[side]}
        entries.append(
            {
                "filename": f"{number}.png",
                "imgid": number,
                "split": "val" if copy == copies - 1 else "train",
                "sentences": [{"raw": sentence.format(**words)} for sentence in sentences],
            }
        )
    path = images.parent / "captions.json"
    path.write_text(json.dumps({"images": entries}), encoding="utf-8")
    return {"captions": str(path), "images": str(images), "backbone": "pixels", "min_count": 1}
