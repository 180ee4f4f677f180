"""Console output that all commands share."""

import io
import itertools
import re
import sys
import time

import pytest
from absl import flags

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


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("--out=~/x", "--out=/home/a/x"),
        ("~/x", "/home/a/x"),
        ("--out=~", "--out=/home/a"),
        ("--captions=a.csv,~/b.csv", "--captions=a.csv,/home/a/b.csv"),
        ("--beside=NAME=~/x", "--beside=NAME=/home/a/x"),
        ("--then=xlan:~/a.yaml,~/b.yaml", "--then=xlan:/home/a/a.yaml,/home/a/b.yaml"),
        ("--params_override=task.data_dir=~/x", "--params_override=task.data_dir=/home/a/x"),
        ("--out=gs://a/~/x", "--out=gs://a/~/x"),
        ("--out=a~/x", "--out=a~/x"),
        ("--query=a dog ~ 5 kg", "--query=a dog ~ 5 kg"),
        ("--out=~nobody-has-this-name/x", "--out=~nobody-has-this-name/x"),
    ],
)
def test_the_home_directory_is_written_out(monkeypatch, tmp_path, word, written):
    monkeypatch.setenv("HOME", "/home/a")
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    for name in ("out", "captions", "beside", "then", "params_override", "query"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    name, _, value = written.removeprefix("--").partition("=")
    lines = tmp_path / "flags"
    lines.write_text(word)
    for argv in ([word], [f"--flagfile={lines}"], word.split("=", 1)):
        rest = console._parse(["command", *argv])
        assert rest[1:] == [written] if word[0] == "~" else values[name].value == value


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb\tc\r.jpg", r"a\nb\tc\r.jpg"),
        ("\x1b[31m\x85\u2028\x00", r"\x1b[31m\x85\u2028\x00"),
        ("caf\xe9 \u202f\U0001f415 \udce9 \\", "caf\xe9 \u202f\U0001f415 \udce9 \\"),
    ],
)
def test_a_name_is_shown_in_one_line(name, shown):
    assert console.escaped(name) == shown


def test_captions_and_names_that_are_not_utf8_are_printed(monkeypatch):
    """Half an emoji becomes an escape; a name keeps its own bytes."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8"))
    console._write_any_name()
    print("a dog \ud83d, é, caf\udce9\ud83d")
    sys.stdout.flush()
    assert written.getvalue() == b"a dog \\ud83d, \xc3\xa9, caf\xe9\\ud83d\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """Seconds that a test sets."""

    now = 5.0

    def __call__(self):
        return self.now


def test_a_line_on_a_terminal_is_overwritten_completely():
    stream, clock = Terminal(), Clock()
    line = console.Line(stream, clock)
    line.show("a long text")
    clock.now += 0.15
    line.show("too early")
    clock.now += 0.15
    line.show("short")
    line.clear()
    line.clear()
    assert stream.getvalue() == "\ra long text\rshort      \r     \r"


def test_a_line_in_a_log_file_comes_every_30_seconds():
    stream, clock = io.StringIO(), Clock()
    line = console.Line(stream, clock)
    for _ in range(70):
        line.show(f"at {clock.now:g}")
        clock.now += 1
    line.clear()
    assert stream.getvalue() == "at 35\nat 65\n"


def test_ordinary_output_does_not_stand_behind_the_line(capsys):
    stream = Terminal()
    line = console.Line(stream)
    line.show("busy")
    line.print("step 5: done")
    assert stream.getvalue() == "\rbusy\r    \r"
    assert capsys.readouterr().out == "step 5: done\n"


def test_the_pace_is_a_rate_and_the_time_left():
    assert console.pace(0, 10, 5.0) == ""
    assert console.pace(4, 10, 8.0) == "0.50/s, 12 s left"
    assert console.pace(200, 1000, 10.0, "steps") == "20.00 steps/s, 40 s left"
    assert console.pace(4, None, 2.0, "images") == "2.00 images/s"


def test_progress_passes_all_items_on_and_shows_rate_and_time_left():
    stream, clock = Terminal(), Clock()
    seen = []
    for item in console.progress("abcd", 4, "letters", console.Line(stream, clock), clock):
        seen.append(item)
        clock.now += 2
    assert "".join(seen) == "abcd"
    shown = stream.getvalue().split("\r")
    assert shown[1:3] == ["letters: 0 of 4", "letters: 1 of 4, 0.50/s, 6 s left"]
    assert shown[4] == "letters: 3 of 4, 0.50/s, 2 s left" and shown[-1] == ""


def test_a_short_work_is_silent_in_a_log_file(capsys):
    assert list(console.progress(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_the_line_is_cleared_when_the_work_fails():
    stream = Terminal()
    with pytest.raises(KeyError):
        for _ in console.progress("ab", 2, "letters", console.Line(stream)):
            raise KeyError
    assert stream.getvalue().endswith("\r")


def test_a_ticker_shows_the_text_while_the_program_waits():
    stream, texts = Terminal(), itertools.count()
    with console.Ticker(lambda: f"busy {next(texts)}", console.Line(stream)):
        deadline = time.monotonic() + 20
        while "busy 1" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert stream.getvalue().startswith("\rbusy 0\rbusy 1")
    shown = stream.getvalue()
    time.sleep(2 * console.REFRESH)
    assert stream.getvalue() == shown  # its thread has ended


def test_waiting_shows_the_seconds_until_the_work_is_over(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with console.waiting(lambda: "scoring"):
        deadline = time.monotonic() + 20
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert re.fullmatch(r"\rscoring: \d+ s(.*\r)?\s*\r", stream.getvalue(), re.S)


def test_an_interruption_has_its_own_exit_code(capsys):
    with pytest.raises(SystemExit) as caught:
        console.guard(_interrupt, [])
    assert caught.value.code == 75
    assert capsys.readouterr().err == "error: Step 5 is saved.\n"


def _interrupt():
    raise console.Interrupted("Step 5 is saved.", 75)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (54_321, "54 kB"), (2_500_000, "2.5 MB"),
     (23e9, "23 GB"), (4e12, "4000 GB")],
)  # fmt: skip
def test_bytes_have_a_unit(number, text):
    assert console.size(number) == text
