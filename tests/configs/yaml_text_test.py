"""YAML of a person: what is read, and what is refused before it takes memory."""

import pytest
import yaml

from tfcap.configs.yaml_text import parse

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(b)}: &{chr(b)} [{', '.join([f'*{chr(b - 1)}'] * 9)}]\n" for b in range(98, 118)
)


def test_plain_values_are_read():
    text = "{a: 1, b: [0.5, yes, null], c: x, d: 2024-01-01, e: '01', f: 1e-3}"
    value = {"a": 1, "b": [0.5, True, None], "c": "x", "d": "2024-01-01", "e": "01", "f": "1e-3"}
    assert parse(text) == value
    assert parse("") is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (LAUGHS, "aliases"),
        ("task: &t {seed: *t}", "aliases"),
        ("a: " + "[" * 5000, "more than 20"),
        ('{"a":' * 5000, "more than 20"),
        ("{a: 1, a: 2}", "the key 'a' is given twice"),
        ("a: !!binary aGVsbG8=", "binary"),
        ("a: !!set {b}", "set"),
        ("a: !!python/name:os.system", "python"),
        ("9" * 5000, "digits"),
        ("a" * (1 << 21), "characters"),
        ("{", "expected"),
    ],
)
def test_what_no_key_can_hold_is_refused(text, part):
    with pytest.raises(yaml.YAMLError, match=part):
        parse(text)
