"""Text of unknown encoding is read line by line."""

import pytest

from tfcap.preparing.sources import text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_the_encoding_is_found_and_line_ends_are_kept(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("é1\r\nä2\n\nü4".encode(encoding))
    assert text.encoding_of(path) == encoding
    assert list(text.lines(path, encoding)) == ["é1\r\n", "ä2\n", "\n", "ü4"]


def test_one_bad_line_of_utf_8_does_not_change_the_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("é\n".encode() + b"caf\xe9\n")
    assert text.encoding_of(path) == "utf-8"
    assert list(text.lines(path, "utf-8")) == ["é\n", "caf\udce9\n"]
    path.write_bytes(b"plain\n")
    assert text.encoding_of(path) == "utf-8"


def test_a_line_without_end_is_refused_within_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MOST_CHARACTERS", 10)
    path = tmp_path / "a.txt"
    path.write_text("short\n" + "x" * 100)
    with pytest.raises(ValueError, match="a.txt: line 2: must have at most 10 characters"):
        list(text.lines(path, "utf-8"))


def test_the_first_lines_skip_empty_ones_and_the_byte_order_mark():
    assert text.first_lines(b"\xef\xbb\xbf\n\na\r\rb\u2028") == ["a", "b\\u2028"]
    assert text.first_lines("a\r\nb".encode("utf-16"), 1) == ["a"] and text.first_lines(b"") == []
