"""Captions pictures with the portable model of this folder: `python caption.py photo.jpg ...`.

The script needs NumPy, Pillow, and ai-edge-litert for captioner.tflite or onnxruntime for
captioner.onnx. It reads and resizes pictures as tfcap does.

Letters: B pictures, H and W height and width in pixels, S side of a resized picture, R regions, F
numbers of a region, K captions of a picture, T tokens of a caption.
"""

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageFile

FOLDER = os.path.dirname(os.path.abspath(__file__))
CARD = "captioner.json"
_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")  # of pictures in a folder
_END = 2  # the token that ends a caption; 0 and 1 are no words either
_OUTPUTS = ["tokens", "scores", "log_probs"]


def pixels(content: bytes) -> np.ndarray:
    """Decodes the bytes of a JPEG, PNG, BMP, GIF or WebP file; of an animation the first frame.

    The picture is turned upright by its EXIF orientation. Grey becomes RGB. Transparency is
    dropped; what a GIF leaves transparent is black.

    Returns:
      The picture, uint8 [H, W, 3].

    Raises:
      ValueError: the file is damaged, of another kind, or has more than 178,956,970 pixels.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "BMP", "GIF", "WEBP")) as file:
            if _is_refused(file):
                raise ValueError(f"a {file.format} file of this kind")
            exif = file.info.get("exif", b"")  # in a PNG file, what follows the pixels is ignored
            values = _gif(file) if file.format == "GIF" else _values(file)
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise ValueError(
            "it is damaged, too large, or no JPEG, PNG, BMP, GIF or WebP file. Save it as JPEG."
        ) from error
    orientation = _orientation(exif)
    if orientation in (3, 4, 6, 7):
        values = values[::-1]
    if orientation in (2, 3, 7, 8):
        values = values[:, ::-1]
    return np.ascontiguousarray(values.swapaxes(0, 1) if orientation >= 5 else values)


def _is_refused(file: Image.Image) -> bool:
    """True for the kinds that tfcap's graph does not read: a table of colours, an animated WebP."""
    if file.format == "BMP":
        return file.mode not in ("RGB", "RGBA")
    return file.format == "WEBP" and getattr(file, "is_animated", False)


def _values(file: Image.Image) -> np.ndarray:
    """Returns the pixels of an opened picture as they are stored, uint8 [H, W, 3]."""
    if file.mode == "CMYK":
        inks = 255 - np.asarray(file).astype(np.uint16)  # Pillow inverts those of every file
        if "adobe" not in file.info:
            inks = 255 - inks
        return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
    if file.mode.startswith("I"):  # grey of 16 bits
        return np.repeat((np.asarray(file) >> 8).astype(np.uint8)[..., None], 3, 2)
    # Pillow warns of a conversion that drops the transparency of a palette.
    return np.asarray(file.convert("RGBA" if file.mode == "P" else "RGB"))[..., :3]


def _gif(file: ImageFile.ImageFile) -> np.ndarray:
    """Returns the first frame of a GIF on its screen, uint8 [H, W, 3]; the rest is black."""
    left, top, right, bottom = file.tile[0][1] or (0, 0, *file.size)
    frame = np.asarray(file.convert("RGBA"))[top:bottom, left:right]
    screen = np.zeros([file.height, file.width, 3], np.uint8)
    screen[top:bottom, left:right] = frame[..., :3] * (frame[..., 3:] > 0)
    return screen


def _orientation(exif: bytes) -> int:
    """Reads the orientation from the first directory of EXIF: 1 to 8; 1 if there is none."""
    exif = exif.removeprefix(b"Exif\0\0")
    little = exif[:4] == b"II*\0"
    if not little and exif[:4] != b"MM\0*":
        return 1

    def number(start: int, size: int) -> int:
        return int.from_bytes(exif[start : start + size], "little" if little else "big")

    first = number(4, 4) + 2
    for entry in range(first, min(first + 12 * number(first - 2, 2), len(exif) - 11), 12):
        size = {3: 2, 4: 4}.get(number(entry + 2, 2))  # of the types SHORT and LONG
        if number(entry, 2) == 0x0112 and number(entry + 4, 4) == 1 and size:
            value = number(entry + 8, size)
            return value if 1 <= value <= 8 else 1
    return 1


def _cubic(x: np.ndarray) -> np.ndarray:
    inner, outer = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return np.where(x < 1, inner, outer) * (x < 2)


# Radius of a kernel in pixels, and its weight at a distance.
_KERNELS = {
    "bilinear": (1, lambda x: np.maximum(1 - x, 0)),
    "bicubic": (2, _cubic),
    "lanczos3": (3, lambda x: np.sinc(x) * np.sinc(x / 3) * (x < 3)),
}


def resized(picture: np.ndarray, card: dict[str, Any]) -> np.ndarray:
    """Resizes a picture for the model, as tf.image.resize does.

    Args:
      picture: uint8 [H, W, 3], RGB.
      card: the card. `image_size` is the side S, in pixels, of the square that the model reads, and
        `resize` the kernel: bilinear, bicubic, lanczos3, or pillow, which is bilinear, width first,
        and rounds twice. The others may be missing: `antialias` (true), whether the kernel grows
        where a picture shrinks; `square` (false), whether the aspect ratio is kept, and the longer
        side cut; `uncropped`, the size from which the middle is cut out; `crops`, 10 for ten crops.

    Returns:
      float32 [S, S, 3] in 0..255; [10, S, S, 3] for ten crops.
    """
    side = card["image_size"]
    old = np.array(picture.shape[:2])
    new = size = np.array([side, side])  # of the whole, and of the part that is computed
    corner = np.array([0, 0])  # of the part
    if card.get("crops") == 10:
        short = side * 256 // 224
        new = np.rint(old.astype(np.float32) * (np.float32(short) / np.float32(old.min())))
        new = size = np.clip(new, short, 16 * short).astype(int)
    elif whole := card.get("uncropped"):
        new = whole * old // (old.min() if card.get("square") else old)
        corner = (new - side) // 2
    elif card.get("square"):
        top, left = (old - old.min()) // 2
        picture = picture[top : top + old.min(), left : left + old.min()]
        old = np.array(picture.shape[:2])
    rounds = card["resize"] == "pillow"
    kernel = _KERNELS["bilinear" if rounds else card["resize"]]
    for axis in (1, 0) if rounds else (0, 1):
        scale = np.float32(new[axis]) / np.float32(old[axis])
        rows = np.ascontiguousarray(picture.swapaxes(0, axis))
        first, weights = _spans(
            old[axis], size[axis], scale, corner[axis], card.get("antialias", True), kernel
        )
        result = np.zeros([size[axis], *rows.shape[1:]], np.float32)
        # One row of each sum after the other is added, as TensorFlow does.
        for number, weight in enumerate(weights):
            term = rows.take(np.minimum(first + number, len(rows) - 1), 0).astype(np.float32)
            term *= weight[:, None, None]
            result += term
        picture = result.swapaxes(0, axis)
        if rounds:
            picture = np.floor(picture + 0.5)
    if card.get("uncropped"):
        picture = np.clip(np.rint(picture), 0, 255)
    if card.get("crops") != 10:
        return np.ascontiguousarray(picture)
    bottom, right = size - side
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    crops = np.stack([picture[y : y + side, x : x + side] for y, x in corners])
    return np.concatenate([crops, crops[:, :, ::-1]])


def stacked(pictures: Sequence[np.ndarray], card: dict[str, Any]) -> np.ndarray:
    """Joins the resized pictures of an image, for a model that reads several.

    Args:
      pictures: results of `resized`, at most as many as `views` of the card.
      card: the card.

    Returns:
      The pictures as float32 [views, ...]; -1 in the place of one that the image lacks.
    """
    missing = np.full_like(pictures[0], -1)
    return np.stack([*pictures, *[missing] * (card["views"] - len(pictures))])


def _spans(
    old: int, size: int, scale: np.float32, corner: int, antialias: bool, kernel: tuple[int, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each of `size` new pixels the first of the old ones that it sums, and weights.

    The weights have a row for each summand; they are 0 beyond the last one of a pixel.

    These are the steps of TensorFlow's ScaleAndTranslate, in float32 as there. The first new pixel
    is that at `corner` of `scale` * `old`.
    """
    radius, weight_at = kernel
    half = np.float32(0.5)
    step = np.float32(1 / float(scale))
    stretch = max(step, np.float32(1)) if antialias else np.float32(1)
    middle = (np.arange(size, dtype=np.float32) + half) * step + step * np.float32(corner)
    first = np.clip(np.ceil(middle - radius * stretch - half), 0, old - 1).astype(int)
    last = np.clip(np.floor(middle + radius * stretch - half), 0, old - 1).astype(int)
    places = first + np.arange((last - first).max() + 1)[:, None]
    distance = np.abs(places.astype(np.float32) + half - middle) * (1 / stretch)
    weights = weight_at(distance) * (places <= last)
    weights *= 1 / weights.sum(0)
    return first, weights


class Captioner:
    """A portable model. Several threads may call it at the same time.

    Args:
      folder: the folder of the export.
      threads: number of threads for one picture; None leaves it to the runtime.

    Attributes:
      card: the content of captioner.json.
      words: the words; the position is the token.
    """

    def __init__(self, folder: str | os.PathLike = FOLDER, threads: int | None = None):
        with open(os.path.join(folder, CARD), encoding="utf-8") as file:
            self.card = json.load(file)
        self._outputs = [*_OUTPUTS, *["confidences"] * ("confidence" in self.card)]
        with open(os.path.join(folder, self.card["words"]), encoding="utf-8") as file:
            self.words = file.read().split("\n")
        self._path = os.path.join(folder, self.card["file"])
        self._threads = threads
        self._session: Any = None
        self._idle: list[Any] = []  # a runner of LiteRT serves one call at a time
        if self._path.endswith(".onnx"):
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads or 0
            # Threads that wait actively take half of the processor time.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            providers = ["CPUExecutionProvider"]
            self._session = onnxruntime.InferenceSession(self._path, options, providers)
        else:
            self._idle.append(self._opened())

    def _opened(self) -> Any:
        from ai_edge_litert.interpreter import Interpreter

        return Interpreter(self._path, num_threads=self._threads).get_signature_runner()

    def read(self, *contents: bytes) -> tuple[np.ndarray, int]:
        """Reads the bytes of a picture, or of features: a file .npy with float32 [R, F].

        If the card has `views`, an image may have several pictures: at most so many `contents`.

        Returns:
          One of what `caption` takes, and its number of regions; for a picture that is 0.

        Raises:
          ValueError: the file cannot be read.
        """
        most = self.card.get("views", 1)
        if not 0 < len(contents) <= most:
            raise ValueError(f"an image of {len(contents)} pictures. Give 1 to {most}.")
        if "regions" not in self.card:
            pictures = [resized(pixels(content), self.card) for content in contents]
            return stacked(pictures, self.card) if most > 1 else pictures[0], 0
        [content] = contents
        if not content.startswith(b"\x93NUMPY"):
            raise ValueError("it is no file that numpy.save wrote.")
        features = np.load(io.BytesIO(content), allow_pickle=False).astype(np.float32)
        most, width = self.card["regions"], self.card["width"]
        if features.ndim != 2 or features.shape[1] != width or not 0 < len(features) <= most:
            raise ValueError(
                f"its shape is {list(features.shape)}. Give 1 to {most} regions of {width} numbers."
            )
        if not np.isfinite(features).all():
            raise ValueError("it has numbers that are not finite.")
        missing = self.card["regions"] - len(features)
        return np.pad(features, [(0, missing), (0, 0)]), len(features)

    def run(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs the file, whose inputs and outputs README.md describes.

        A LiteRT file takes one image at a time, an ONNX file any number.
        """
        if self._session:
            outputs = self._session.run(self._outputs, inputs)
            return dict(zip(self._outputs, outputs, strict=True))
        try:
            runner = self._idle.pop()
        except IndexError:  # other threads use all of them
            runner = self._opened()
        try:
            return runner(**inputs)
        finally:
            self._idle.append(runner)

    def caption(
        self,
        images: np.ndarray,
        regions: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[dict[str, list]]:
        """Captions B resized pictures, or features of B images.

        Args:
          images: float32 [B, ...], each as `read` returns it.
          regions: the number of regions of each image; None for pictures.
          seeds: the random seed of each image, for a model that draws samples; None takes 0, 1, ...

        Returns:
          For each image its `captions`, best first, the `words` of each, their `scores`, and their
          `log_probs`: the natural log-probability of each word, and of the end of the caption. If
          the card has `confidence`, also their `confidences`: the estimated probability that each
          caption is usable, which the card defines.
        """
        inputs = {"images" if regions is None else "features": images}
        if regions is not None:
            inputs["num_regions"] = np.array(regions, np.int32)
        if samples := self.card["samples"]:
            shape = samples, self.card["length"]
            draws = map(np.random.default_rng, seeds or range(len(images)))
            inputs["draws"] = np.stack([draw.random(shape, np.float32) for draw in draws])
        one = len(images) if self._session else 1
        results = []
        for i in range(0, len(images), one):
            outputs = self.run(**{name: value[i : i + one] for name, value in inputs.items()})
            rows = zip(*(outputs[name] for name in self._outputs), strict=True)
            results += [self._in_words(*row) for row in rows]
        return results

    def _in_words(
        self,
        tokens: np.ndarray,
        scores: np.ndarray,
        log_probs: np.ndarray,
        *confidences: np.ndarray,
    ) -> dict[str, list]:
        """Puts the outputs [K, T], [K], [K, T] and perhaps [K] of an image in words."""
        result: dict[str, list] = {"words": [], "scores": scores.tolist(), "log_probs": []}
        if confidences:
            result["confidences"] = confidences[0].tolist()
        for row, numbers in zip(tokens.tolist(), log_probs.tolist(), strict=True):
            length = row.index(_END) + 1 if _END in row else len(row)
            kept = [(t, p) for t, p in zip(row[:length], numbers, strict=False) if t >= _END]
            result["words"].append([self.words[t] for t, _ in kept if t > _END])
            result["log_probs"].append([p for _, p in kept])
        return result | {"captions": [*map(self.joined, result["words"])]}

    def joined(self, words: Sequence[str]) -> str:
        """Joins words to a caption, without spaces in languages that have none."""
        caption = " ".join(words)
        for pattern in self.card.get("joining", ()):  # its group stays in place of it
            caption = re.sub(pattern, r"\1", caption)
        return caption


def _by_numbers(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _contents(path: str, has_views: bool) -> list[bytes]:
    """Reads a file; or, if the model reads several, the pictures of one image in a folder.

    Their order is that of the numbers in their names: `2.png` comes before `10.png`.
    """
    names = [""]
    if has_views and os.path.isdir(path):
        names = [name for name in os.listdir(path) if name.lower().endswith(_ENDINGS)]
        names = sorted((name for name in names if name[0] != "."), key=_by_numbers)
    contents = []
    for name in names:
        with open(os.path.join(path, name) if name else path, "rb") as file:
            contents.append(file.read())
    return contents


def main() -> None:
    """Prints a line for each picture: its path, a tab and its caption."""
    parser = argparse.ArgumentParser(description="Captions pictures.")
    parser.add_argument(
        "pictures",
        nargs="+",
        help="files of pictures, or .npy of features; or folders of the pictures of an image",
    )
    parser.add_argument(
        "--min_confidence",
        type=float,
        default=0.0,
        help="captions with a lower confidence, 0 to 1, are left empty",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of a model that draws samples")
    parser.add_argument("--threads", type=int, help="number of threads")
    args = parser.parse_args()
    if args.seed < 0 or (args.threads is not None and args.threads < 1):
        parser.error("--seed must be at least 0, and --threads at least 1")
    if not 0 <= args.min_confidence <= 1:
        parser.error("--min_confidence must be from 0 to 1")
    captioner = Captioner(FOLDER, args.threads)
    if args.min_confidence and "confidence" not in captioner.card:
        parser.error("--min_confidence needs a model that was calibrated before its export")
    failed = 0
    for i, path in enumerate(args.pictures):
        try:
            contents = _contents(path, captioner.card.get("views", 1) > 1)
            image, regions = captioner.read(*contents)
        except (OSError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            print(f"error: {path}: {reason}", file=sys.stderr)
            failed += 1
            continue
        result = captioner.caption(image[None], [regions] if regions else None, [args.seed + i])[0]
        [confidence, *_] = result.get("confidences", [1])
        caption = result["captions"][0] if confidence >= args.min_confidence else ""
        print(f"{path}\t{caption}", flush=True)
    if failed:
        total = len(args.pictures)
        print(f"error: {failed} of {total} pictures could not be captioned", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
