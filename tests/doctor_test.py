"""The command: one line per check, a count, an exit code, JSON, and nothing else on the screen."""

import json
import re

import pytest
from helpers import commands
from helpers.findings import cut, flip
from helpers.prepared import write_directory

from tfcap import doctor

LINE = re.compile(r"(ok|warning|problem) +(machine|data|run|export) +\S.*")


@pytest.fixture
def folder(tmp_path):
    write_directory(str(tmp_path))
    return tmp_path


def lines(capsys):
    """The lines of findings, and the last line."""
    *found, last = capsys.readouterr().out.splitlines()
    assert found and all(LINE.fullmatch(line) for line in found), found
    return found, last


@pytest.mark.slow
def test_every_check_is_one_line_and_the_last_line_counts_them(folder, capsys):
    commands.run_here(doctor, "--data_dir", folder)
    found, last = lines(capsys)
    assert [line.split()[1] for line in found] == ["machine"] * 9 + ["data"] * (len(found) - 9)
    counts = [sum(line.startswith(status) for line in found) for status in ("ok", "warning")]
    warnings = "1 warning" if counts[1] == 1 else f"{counts[1]} warnings"
    assert last == f"{len(found)} checks: {counts[0]} ok, {warnings}, 0 problems"


def test_a_problem_gives_exit_code_3_and_the_other_checks_are_made(folder, capsys):
    flip(folder / "train-00000-of-00002.tfrecord", 80)
    with pytest.raises(SystemExit) as ended:
        commands.run_here(doctor, "--data_dir", folder, "--model_dir", folder / "none")
    assert ended.value.code == 3
    found, last = lines(capsys)
    assert any(
        "Image 10 is damaged" in line and "Remedy: Delete the shards" in line for line in found
    )
    assert any(re.match("problem +run +directory .*is not a directory", line) for line in found)
    assert re.search(r"[^0] problems$", last) and any(" frequencies " in line for line in found)


def test_json_holds_the_same_findings(folder, capsys):
    cut(folder / "train-00001-of-00002.tfrecord")
    with pytest.raises(SystemExit) as ended:
        commands.run_here(doctor, "--data_dir", folder, "--json")
    assert ended.value.code == 3
    value = json.loads(capsys.readouterr().out)
    assert set(value) == {"findings", "counts"}
    assert sum(value["counts"].values()) == len(value["findings"])
    (files,) = [f for f in value["findings"] if f["check"] == "files train"]
    assert files.keys() == {"area", "check", "status", "text", "remedy"}
    assert files["status"] == "problem" and "it was cut or changed" in files["text"]


@pytest.mark.slow
def test_a_sick_run_is_reported_by_the_command_without_other_output(trained, shapes, tmp_path):
    done = commands.forked("tfcap.doctor", "--model_dir", trained, "--data_dir", shapes)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith(" 0 problems\n")
    assert all(LINE.fullmatch(line) for line in done.stdout.splitlines()[:-1])
    done = commands.forked("tfcap.doctor", "--export_dir", tmp_path)
    assert (done.returncode, done.stderr) == (3, "") and done.stdout.endswith(" 1 problem\n")
