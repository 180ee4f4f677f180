"""Console output that all commands share."""

import io

import pytest

from tfcap import console


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (59.9, "59 s"), (65, "1 min 05 s"), (3599, "59 min 59 s"), (3725, "1 h 02 min")],
)
def test_durations_are_written_with_two_units(seconds, text):
    assert console.duration(seconds) == text


def test_an_error_is_one_line_with_its_exit_code(capsys):
    with pytest.raises(SystemExit) as caught:
        console.fail("first line\n  second line", 3)
    assert caught.value.code == 3
    assert capsys.readouterr() == ("", "error: first line second line\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_on_a_terminal_is_overwritten_completely():
    stream = Terminal()
    line = console.Line(stream)
    line.show("a long text")
    line.show("short")
    line.clear()
    line.clear()
    assert stream.getvalue() == "\ra long text\rshort      \r     \r"


def test_progress_passes_all_items_on_and_is_silent_without_a_terminal(capsys):
    assert list(console.progress(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
