"""tools/serve_load.py counts what is right, wrong, refused and failed, and measures memory."""

import json
import os
import pathlib
import random
import runpy
import shutil
import subprocess
import sys

import pytest
from helpers.client import FOLDER
from helpers.rest_service import RestService

from tfcap.decoding.options import first_seed

TOOL = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "tools" / "serve_load.py"))


@pytest.fixture
def service(versions):
    service = RestService(versions)
    yield service
    service.close()


@pytest.fixture
def captions(pictures, expected, tmp_path):
    """What `tfcap.caption --json` prints about the pictures."""
    path = tmp_path / "captions.jsonl"
    rows = [
        {"image": picture, "captions": texts, "scores": list(map(float, scores))}
        for picture, (texts, scores) in zip(pictures, expected, strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _run(service, captions, tmp_path, *more):
    output = tmp_path / "figures.json"
    given = ["--client", str(FOLDER), "--url", service.url, "--expected", str(captions)]
    code = TOOL["main"]([*given, "--output", str(output), "--minutes", "0.5", *more])
    return code, json.loads(output.read_text())


def test_all_answers_of_many_clients_are_checked(service, captions, tmp_path, capsys):
    load = ("--requests", "60", "--clients", "4", "--bad", "0.2", "--pid", str(os.getpid()))
    code, found = _run(service, captions, tmp_path, *load)
    assert code == 0, capsys.readouterr().err
    assert found["wrong"] == found["failed"] == 0
    assert found["requests"] + found["bad_requests_refused"] == 60
    assert found["bad_requests_refused"] > 0 and found["bad_pictures_refused"] > 5
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["longest_ms"]
    sizes = {len(body["instances"]) for body in service.bodies}
    assert {1, 2, 4, 8} <= sizes
    assert found["memory_mb"][0][1] > 100
    assert "requests/s" in capsys.readouterr().out


def test_a_wrong_caption_and_a_failed_request_end_with_an_error(
    service, captions, tmp_path, capsys
):
    rows = [json.loads(line) for line in captions.read_text().splitlines()]
    rows[0]["captions"][0] = "something else"
    captions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    service.failures = [(500, {})]
    one = ("--requests", "12", "--clients", "1", "--bad", "0")
    code, found = _run(service, captions, tmp_path, *one)
    assert code == 1 and found["failed"] == 1 and found["wrong"] > 0
    errors = capsys.readouterr().err
    assert "failed: HTTP 500" in errors and "expected [('something else'" in errors


def test_either_version_is_right_while_versions_change(service, captions, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(captions.read_text().replace('"captions": ["', '"captions": ["other '))
    both = ("--expected", str(other), "--requests", "6", "--clients", "1", "--bad", "0")
    assert _run(service, captions, tmp_path, *both)[0] == 0
    assert _run(service, other, tmp_path, *both[2:])[0] == 1


def test_pictures_have_the_seeds_that_the_command_gave_them(captions):
    load = TOOL["Load"](None, None, [str(captions)], [3], 0, 1, seed=2)
    every, places = list(load.right), set()
    for number in range(20):
        paths, seed = load._draw(random.Random(number), 3)
        places.add(seed - first_seed(2))
        assert paths == every[seed - first_seed(2) :][:3]
    assert places == {0, 1, 2}


def test_memory_counts_a_process_and_those_below_it():
    holds = "print(flush=True); input(); held = bytes([1]) * (64 << 20); print(flush=True); input()"
    # The shell waits for Python because another command follows.
    command = [shutil.which("sh"), "-c", f"'{sys.executable}' -S -c '{holds}'; true"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as shell:
        shell.stdout.readline()
        before = TOOL["memory"](shell.pid)
        print(file=shell.stdin, flush=True)
        shell.stdout.readline()
        assert 50 < TOOL["memory"](shell.pid) - before < 80
        print(file=shell.stdin, flush=True)
    assert TOOL["memory"](2**22 + 1) == 0
