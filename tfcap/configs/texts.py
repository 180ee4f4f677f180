"""Reads the texts of configurations: YAML, JSON, and `a.b=1,c=x,y`.

All values are first read as text. The annotated type of a key then decides what its value becomes:
`2024-11-27` and `007` stay text if the key holds text, such as a directory.
"""

import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import yaml
from official.modeling import hyperparams


class _Loader(yaml.SafeLoader):
    """Leaves numbers, dates and truth values as text: the key decides what they are."""


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0].endswith((":null", ":merge"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# KEY=VALUE up to the end, or up to a comma before another KEY=; in quotes any comma is text.
_PAIR = re.compile(
    r"""\s*([\w.]+)\s*=\s*(".*?"|'.*?'|.*?)\s*(?:,(?=\s*[\w.]+\s*=)|\Z)""", re.DOTALL
)


def parse(
    text: str, source: str, params: hyperparams.Config, comments: bool = False
) -> dict[str, Any]:
    """Parses changes to a configuration into nested dictionaries.

    Args:
      text: YAML, JSON, or text like `a.b=1,c=x,y`. In the last form a comma ends a value only if
        `KEY=` follows, and the value of a key that holds text is taken as it is written.
      source: the name of the text in error messages, such as the path of its file.
      params: the configuration that the changes are for; it says which keys hold text.
      comments: true allows YAML comments, as in a file. False makes `#` after a value an error,
        because the user may have meant it as text.

    Raises:
      ValueError: the text is not YAML, maps no keys to values, or has a forbidden comment.
    """
    if _PAIR.match(text):
        return nested(
            {
                key: _value(value, f"{source}: {key}", _hint(params, key), comments)
                for key, value in _PAIR.findall(text)
            }
        )
    content = _yaml(text, source, comments) or {}
    if not isinstance(content, dict):
        raise ValueError(f"{source} must map keys to values, for example task.max_length=20.")
    return nested(content)


def _value(text: str, source: str, hint: Any, comments: bool) -> Any:
    """Parses VALUE of KEY=VALUE."""
    plain = text and text[0] not in "\"'"
    return text if plain and str in types_of(hint) else _yaml(text, source, comments)


def _yaml(text: str, source: str, comments: bool) -> Any:
    """Parses YAML. Without `comments`, what YAML would drop from a line is an error."""
    try:
        content = yaml.load(text, _Loader)
        ends = (yaml.ScalarToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)
        last = max((t.end_mark.index for t in yaml.scan(text) if isinstance(t, ends)), default=0)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{source} must be YAML: {reason}. Put single quotes around a text, or write a.b=1,c=2."
        ) from None
    rest = text[last:].strip()
    if not comments and "\n" not in text and rest.startswith("#"):
        raise ValueError(
            f"{source}: YAML takes {rest!r} for a comment. Put quotes around the whole text, or "
            "remove the comment."
        )
    return content


def _hint(params: hyperparams.Config, key: str) -> Any:
    """Returns the annotated type of a dotted key; None if it is unknown."""
    *groups, name = key.split(".")
    group: Any = params
    for part in groups:
        group = vars(group).get(part) if isinstance(group, hyperparams.Config) else None
    return typing.get_type_hints(type(group)).get(name)


def nested(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Turns dotted keys into nested dictionaries: `{"a.b": 1}` becomes `{"a": {"b": 1}}`."""
    groups: dict[str, Any] = {}

    def add(changes: Mapping[str, Any], groups: dict[str, Any]) -> None:
        for key, value in changes.items():
            name, _, rest = str(key).partition(".")
            value = {rest: value} if rest else value
            if not isinstance(value, Mapping):
                groups[name] = value
            elif isinstance(groups.setdefault(name, {}), dict):
                add(value, groups[name])
            else:
                raise ValueError(
                    f"The key {name} is set both as a value and as a group of keys. Remove one."
                )

    add(changes, groups)
    return groups


def types_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types that an annotated type allows: `int | None` gives `(int, NoneType)`."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def converted(value: Any, hint: Any) -> Any:
    """Converts the text of a value to the type of its key: None, a truth value or a number.

    Text that cannot be converted to the type stays text; `fits` tells whether it is allowed.

    Args:
      value: the value as it was read. A value that is not text is returned as it is; in a list,
        each item is converted.
      hint: the annotated type of the key. If it allows text, text stays text.
    """
    kinds = types_of(hint)
    if isinstance(value, list) and typing.get_origin(hint) is list:
        return [converted(item, typing.get_args(hint)[0]) for item in value]
    if not isinstance(value, str):
        return value
    if type(None) in kinds and value in ("", "~", "null", "none", "None"):
        return None
    if str in kinds:
        return value
    if bool in kinds:
        return yaml.SafeLoader.bool_values.get(value.lower(), value)
    return _number(value, kinds) if {int, float} & {*kinds} else value


def _number(text: str, kinds: tuple[Any, ...]) -> Any:
    """Reads a number as Python does, or as YAML writes it; other text stays as it is."""
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        number = float(re.sub(r"\.(?=(inf|nan)$)", "", text.lower()))
    except ValueError:
        return text
    whole = float not in kinds and "." not in text and number.is_integer()  # 1e5
    return int(number) if whole else number


def fits(value: Any, hint: Any) -> bool:
    """True if a value has the annotated type; an int is also a float, and a bool is not an int.

    Args:
      value: the value.
      hint: the annotated type, such as `int | None` or `list[str]`.
    """
    origin = typing.get_origin(hint)
    kinds = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, kind) for kind in kinds)
    if origin is list:
        return isinstance(value, list | tuple) and all(fits(item, kinds[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)
