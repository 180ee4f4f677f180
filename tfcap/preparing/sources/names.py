"""What the names and values of a row mean: pictures, clips, captions, ids, splits and marks.

A row is a dict of names and values. It may come from a line of a table, a JSON object or a row of a
Parquet file, see `rows`. Whether a file can be read is the question whether `can_read` knows its
first row.
"""

import ast
import contextlib
import functools
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from tfcap.errors import UsageError
from tfcap.marks import UNUSABLE, mark_of
from tfcap.preparing.sources.entry import Entry, LeftOut, Source, names_in
from tfcap.preparing.sources.splits import split_name, usual_split

# Names as `_plain` gives them; the first that is there counts.
IMAGE_COLUMNS = (
    *("path", "image", "filename", "file_name", "image_path", "image_name", "file", "filepath"),
    *("file_path", "image_file", "image_filename", "img_path", "img_name", "img", "picture"),
    "photo",
)
_CLIP_COLUMNS = ("video", "gif", "videoid")  # the last of VATEX and MSVD
_PAINTING = ("art_style", "painting")  # of ArtEmis: folder and file
_LISTS = ("captions", "sentences")  # cells that begin with a bracket must be lists
CAPTION_COLUMNS = (  # `raw` is that of Flickr30k's table on Hugging Face
    *(*_LISTS, "caption", "text", "sentence", "description", "comment", "raw"),
    *("descriptions", "comments", "annotation", "alt_text", "title", "prompt"),
    *("utterance", "report", "caption_str", "reference_strs", "conversations"),
)
_TURNS = CAPTION_COLUMNS[-1]
_ANSWERS = ("gpt", "assistant")  # who writes the captions in `conversations`
# Columns with the captions of a language: of VATEX and of Visual Genome.
_LANGUAGE = re.compile("(en|ch)cap|(english|hindi|bengali|malayalam)")
_CODE = re.compile("([a-z]{2,3})")  # the same beside `image/locale`, in Crossmodal-3600
_LANGUAGE_COLUMNS = ("language", "lang", "image/locale")  # of the captions or the picture
_REGION = ("x", "y", "width", "height")  # of a picture
_SPLIT_COLUMNS = ("split", "subset")
# Such as `set`, `data_split` or `partition`: only if the value is a usual name of a split.
_OTHER_SPLIT_COLUMN = re.compile("(?:.*_)?(?:split|subset|set|partition)(?:_.*)?")
_UNUSED = "rest"  # the split of the rows of ArtEmis that no split has
_ID_COLUMNS = ("image_id", "imgid", "img_id", "cocoid", "id")
# Where no column names the picture, its name without ending is in one of these.
_STEM_COLUMNS = ("image/key", *_ID_COLUMNS)
_NUMBER = re.compile(r"(\d{1,19})(\.0+)?")
_OBJECT = re.compile(r"""\s*\{\s*(['"])\w+\1\s*:""")  # the beginning of one, as JSON or Python
_STRING = re.compile(  # of Python, and the space before the next
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(\s*(?=['"]))?""", re.S
)
PICTURES = (  # for errors
    f"{', '.join(IMAGE_COLUMNS)}; or without its ending {', '.join(_STEM_COLUMNS)}"
)
CAPTIONS = ", ".join(CAPTION_COLUMNS)
WEB_ADDRESSES = (
    " If its pictures are web addresses, download them with img2dataset, and give the tar files "
    "that it writes with `captions`."
)


# ---- names -----------------------------------------------------------------------------------


class Columns(NamedTuple):
    """The names in a row, or of the columns of a table, that are used; None if one is missing.

    Attributes:
      image: the file name of the picture.
      captions: the columns of captions: the column with a known name, such as `caption`, and those
        with the same name and a number, such as `caption_0` and `caption_1`, in the order of the
        numbers. If several known names occur, only the first in `CAPTION_COLUMNS` counts.
      split: the split.
      id: the id of the image.
      marks: what marks captions as unusable: name in `tfcap.marks` -> column.
      clip: the name of a clip.
      painting: the two columns of `_PAINTING`, or none.
      stem: the name of the picture without its ending; it counts only if no other column tells it.
      languages: columns with the captions of one language: language -> column.
      language: the language of the captions in the row.
      is_region: whether the captions describe a region of the picture, whose place is in the row.
    """

    image: str | None
    captions: list[str]
    split: str | None
    id: str | None
    marks: dict[str, str]
    clip: str | None
    painting: list[str]
    stem: str | None
    languages: dict[str, str]
    language: str | None
    is_region: bool

    @property
    def has_picture(self) -> bool:
        """Whether a column names the picture; False for clips."""
        others = self.clip is None and (self.painting or self.stem is not None)
        return self.image is not None or bool(others)

    @property
    def has_captions(self) -> bool:
        """Whether there are captions, in one language or in several."""
        return bool(self.captions or self.languages)


@functools.lru_cache
def _plain(name: str) -> str:
    """Returns the name of a column in lower case with underscores: `Image Name` -> `image_name`."""
    return re.sub(r"[\s.-]+", "_", name.strip().lower())


@functools.lru_cache
def columns_of(names: tuple[str, ...]) -> Columns:
    """Finds the names that prepare uses among all names in a row, in upper or lower case."""
    plain = {_plain(name): name for name in reversed(names)}

    def first(accepted: Iterable[str]) -> str | None:
        return next((plain[name] for name in accepted if name in plain), None)

    captions: list[str] = []
    for accepted in CAPTION_COLUMNS:
        if not captions:
            pattern = re.compile(rf"{accepted}(?:_?(\d+))?")
            matches = [(pattern.fullmatch(_plain(name)), name) for name in names]
            numbered = [(int(match[1] or -1), name) for match, name in matches if match]
            captions = [name for _, name in sorted(numbered)]
    pattern = _CODE if "image/locale" in plain else _LANGUAGE
    spoken = {name: match for name in reversed(plain) if (match := pattern.fullmatch(name))}
    return Columns(
        first(IMAGE_COLUMNS),
        captions,
        first((*_SPLIT_COLUMNS, *filter(_OTHER_SPLIT_COLUMN.fullmatch, plain))),
        first(_ID_COLUMNS),
        {mark: plain[mark] for mark in UNUSABLE if mark in plain},
        clip=first(_CLIP_COLUMNS),
        painting=[plain[name] for name in _PAINTING] if plain.keys() >= {*_PAINTING} else [],
        stem=first(_STEM_COLUMNS),
        languages={match[match.lastindex or 0]: plain[name] for name, match in spoken.items()},
        language=first(_LANGUAGE_COLUMNS),
        is_region=plain.keys() >= {*_REGION},
    )


def can_read(row: dict[str, Any]) -> bool:
    """True for a row that names a picture and has captions.

    False if web addresses stand in place of the name of a picture.
    """
    columns = columns_of(tuple(row))
    if columns.image is None and any(map(is_web_address, row.values())):
        return False
    return columns.has_picture and columns.has_captions


def is_web_address(value: object) -> bool:
    """True for a text that begins with http:// or https://."""
    return isinstance(value, str) and re.match("https?://", value.strip()) is not None


# ---- values ----------------------------------------------------------------------------------


def entry_of(row: dict[str, Any], source: Source) -> Entry:
    """Makes an entry of a row whose keys are known names: `image`, `caption` and so on.

    If the row is marked as unusable (see `tfcap.marks`), the entry has no captions, and its
    `rejected` has the mark once for each caption of the row.

    Args:
      row: the row.
      source: has the language whose captions are read, and gets the notes about rows.

    Raises:
      LeftOut: the row belongs to the data set, but is not meant to be used.
      UsageError: the captions are in several languages, or not in the language of `source`.
      ValueError: no column has the name of a picture, or a value cannot be used.
    """
    columns = columns_of(tuple(row))
    name, *further = _picture_names(row, columns)
    if not columns.image and columns.painting and row.get(columns.split or "") == _UNUSED:
        raise LeftOut(f"of the split {_UNUSED}")
    used = _in_language(row, columns, source)
    captions = captions_of(row, used)
    if len(captions) > 1 and [*map(_plain, used)] == [_TURNS]:
        raise LeftOut("conversations with several answers")
    if columns.is_region:
        source.notes["captions describe a region of a picture; the whole picture is read"] += 1
    captions, rejected = unmarked(row, captions) if columns.marks else (captions, ())
    numbered = id_fields(columns.id, row[columns.id]) if columns.id else {"id": -1}
    if not columns.image and numbered["id"] < 0:
        numbered = {"id": -1}  # the column has the name of the picture
    return Entry(
        file_name=name,
        further=tuple(further),
        split=split_in(row) if columns.split else None,
        captions=captions,
        rejected=rejected,
        **numbered,
    )


def _picture_names(row: dict[str, Any], columns: Columns) -> list[str]:
    """Returns the names of the pictures of a row, or that of its clip."""
    if columns.image is not None:
        value = row[columns.image]
        names = value if isinstance(value, list) and value else [value]
        if addresses := list(filter(is_web_address, names)):
            raise UsageError(f"The column {columns.image} has {addresses[0]:.200}.{WEB_ADDRESSES}")
        return names
    if columns.clip is not None:
        is_part = _plain(columns.clip) == _CLIP_COLUMNS[-1]
        times = [str(row[name]) for name in row if is_part and _plain(name) in ("start", "end")]
        return ["_".join([str(row[columns.clip]), *times])]
    if columns.painting:
        return ["{}/{}.jpg".format(*(row[name] for name in columns.painting))]
    if columns.stem is not None:
        return ["" if row[columns.stem] is None else str(row[columns.stem])]
    raise ValueError(f"the row has no column of pictures ({PICTURES}){names_in(row)}")


def _in_language(row: dict[str, Any], columns: Columns, source: Source) -> list[str]:
    """Returns the columns whose captions are in the language of `source`."""
    language = source.language.lower()
    if not (language or columns.language) and columns.captions:
        return columns.captions  # of most files
    spoken = "" if columns.language is None else str(row[columns.language])
    if language in columns.languages:
        return [columns.languages[language]]
    if language and columns.captions and columns.language is not None:
        if spoken.lower() != language:
            raise LeftOut(f"in other languages than {source.language}")
        return columns.captions
    if columns.captions and not language:
        source.languages[spoken] += 1
        return columns.captions
    if columns.languages and language:
        there = ", ".join(columns.languages)
        raise LeftOut(f"in other languages than {source.language} ({there})")
    if len(columns.languages) == 1:
        return list(columns.languages.values())
    if columns.languages:
        raise UsageError(
            f"The captions are in several languages. Give as `language` one of "
            f"{', '.join(columns.languages)}."
        )
    if language:
        raise UsageError(
            f"`language={source.language}`: no column tells the language of captions; there are: "
            f"{', '.join(row)[:200]}. Leave out `language`."
        )
    return []


def unmarked(
    row: dict[str, Any], captions: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the usable captions of a row, and the marks of the others (see `tfcap.marks`).

    A row with a mark has no usable captions, and the mark once for each caption.
    """
    columns = columns_of(tuple(row)).marks
    mark = mark_of({mark: row[column] for mark, column in columns.items()}) if columns else ""
    return ((), (mark,) * len(captions)) if mark else (captions, ())


def split_in(row: dict[str, Any]) -> str | None:
    """Returns the split that a row states; None if it states none.

    Raises:
      ValueError: the value is not a name.
    """
    column = columns_of(tuple(row)).split or ""
    value = row.get(column)
    if value is None or value != value or value == "":  # pandas writes NaN for a missing value
        return None
    if _plain(column) not in _SPLIT_COLUMNS:
        return usual_split(value)
    try:
        return split_name(value)
    except ValueError as error:
        raise ValueError(f"{column!r}: {error}") from None


def id_fields(column: str, value: object) -> dict[str, Any]:
    """Returns keyword arguments of `Entry` for the id of an image.

    Args:
      column: name of the column or key that has the id.
      value: its value in the row.

    Returns:
      A dict with `id`, which is -1 if the value is not a whole number. If the value is not empty,
      the dict also has `has_id` and `id_column`.
    """
    if value is None or value != value or value == "":
        return {"id": -1}
    number = _whole_number(value)
    return {
        "id": -1 if number is None else number,
        "has_id": number is not None,
        "id_column": column,
    }


def _whole_number(value: object) -> int | None:
    """Returns an id that a table writes as 7, "7", 7.0 or "7.0"; None for other values."""
    if isinstance(value, float) and value.is_integer() and value < 2**53:  # exact
        value = int(value)
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        value = int(match[1])
    return value if type(value) is int and 0 <= value < 2**63 else None


def captions_of(row: dict[str, Any], columns: Iterable[str]) -> tuple[str, ...]:
    """Returns all captions in some columns of a row; values are texts, lists of texts, or None."""
    values = ((row[key], key) for key in columns if row.get(key) is not None)
    return tuple(text for value, key in values for text in texts(value, key) if text.strip())


def texts(value: object, column: str = "caption") -> list[str]:
    """Returns the captions in the value of a column.

    The value is a text, a JSON object, or a list of these. A text such as `['A dog.', 'A cat.']`,
    as JSON, Python or NumPy write a list, gives two captions. An object, or a text such as
    `{"caption": "A dog."}`, gives the captions under its keys that are names of caption columns.

    Args:
      value: the value.
      column: name of the column, for errors. In the columns `captions` and `sentences` a text that
        begins with a bracket must be a list.

    Raises:
      ValueError: the value has another type, an object has no such key, or a text is no list
        although it must be.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "(", "{"):
        parsed = _parsed(value)
        begin = value.lstrip()[0]
        is_list = _plain(column) in _LISTS and begin != "("
        if parsed is None and (is_list or _OBJECT.match(value)):
            raise ValueError(
                f"the value of {column!r} begins with {begin!r} but is not a list of texts: "
                f"{value:.80}"
            )
        value = value if parsed is None else parsed
    captions: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item.lstrip().startswith("{"):
            item = _parsed(item) or item
        if isinstance(item, dict):
            captions += _texts_in(item, column)
        elif isinstance(item, str):
            captions.append(item)
        else:
            raise ValueError(f"the caption under {column!r} must be text, not {item!r:.80}")
    return captions


def _texts_in(item: dict[str, Any], column: str) -> tuple[str, ...]:
    columns = columns_of(tuple(map(str, item)))
    if "from" in item and "value" in item:  # a turn of a conversation
        return tuple(texts([item["value"]], column)) if item["from"] in _ANSWERS else ()
    if not columns.captions:
        raise ValueError(
            f"the object under {column!r} has no text under a known name (such as text, caption "
            f"or raw){names_in(item)}"
        )
    return captions_of(item, columns.captions)


def _parsed(text: str) -> Any:
    """Returns the list or the object that a text is; None for other texts."""
    # NumPy writes no commas: Python's parser would join `['A dog.' 'A cat.']` to one text.
    commas = _STRING.sub(lambda one: one[1] + ("" if one[2] is None else ", "), text.strip())
    for parse, written in ((json.loads, text), (ast.literal_eval, commas)):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = parse(written)
            if isinstance(value, list | tuple) and {*map(type, value)} <= {str, dict}:
                return list(value)
            if isinstance(value, dict):
                return value
    return None
