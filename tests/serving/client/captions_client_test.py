"""The client of a bundle: retries, deadlines, batches, bad pictures, and its command line."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from helpers.client import FOLDER, captions_client, captions_protocols
from helpers.rest_service import RestService

Client = captions_client.Client


@pytest.fixture
def service(versions):
    service = RestService(versions)
    yield service
    service.close()


@pytest.mark.parametrize("protocol", ["rest", "v2"])
def test_good_pictures_have_the_captions_of_the_command(
    service, pictures, broken, same, protocol, tmp_path
):
    client = Client(service.url, protocol=protocol, batch_size=3)
    missing = str(tmp_path / "missing.png")
    given = [pictures[0], broken["text"], pictures[1], missing, broken["cut"], *pictures[2:]]
    results = list(client.caption(given))
    for number, place in enumerate([0, 2, 5, 6, 7]):
        assert results[place].source == pictures[number]
        same(results[place], number)
    for place in (1, 3, 4):
        assert results[place].caption == "" and results[place].score == 0
        assert results[place].status not in ("ok", "")
    assert results[3].source == missing and "No such file" in results[3].status
    assert len(service.bodies) == 3  # a bad picture costs no other request


def test_halves_are_sent_where_an_older_export_refuses_the_whole_request(service, pictures, same):
    service.failures = [(400, {}), (400, {})]
    results = list(Client(service.url).caption(pictures))
    for number, result in enumerate(results):
        same(result, number)
    assert [len(body["instances"]) for body in service.bodies] == [1, 1, 3]


def test_a_request_holds_at_most_batch_size_pictures(service, pictures):
    list(Client(service.url, batch_size=2).caption(pictures))
    assert [len(body["instances"]) for body in service.bodies] == [2, 2, 1]


def test_a_request_must_hold_a_picture(capsys):
    """With a size of 0, the command captioned nothing and ended with 0."""
    assert captions_client.main(["--batch_size=0", "photo.jpg"]) == 1
    assert "The batch size must be at least 1. Received: 0." in capsys.readouterr().err


def test_a_busy_server_is_asked_again(service, pictures, same, capsys):
    service.failures = [(503, {}), (429, {"Retry-After": "0"}), (504, {})]
    (result,) = Client(service.url).caption(pictures[:1])
    same(result, 0)
    assert not service.failures
    (line,) = capsys.readouterr().err.splitlines()  # once
    assert line.startswith("HTTP 503") and line.endswith("; trying again for up to 120 s")


def test_a_model_that_was_there_is_awaited(service, pictures, same):
    """A restarted Triton answers 404 until it has loaded its models."""
    client = Client(service.url)
    list(client.caption(pictures[:1]))
    service.failures = [(404, {}), (404, {})]
    (result,) = client.caption(pictures[1:2])
    same(result, 1)


def test_the_time_that_a_server_asks_for_is_kept(service, pictures):
    service.failures = [(503, {"Retry-After": "1"})]
    start = time.monotonic()
    list(Client(service.url).caption(pictures[:1]))
    assert time.monotonic() - start >= 1


def test_a_deadline_ends_the_tries(service, pictures):
    service.failures = [(503, {})] * 1000
    start = time.monotonic()
    with pytest.raises(captions_client.ServerError, match=r"No answer after 0.6 s: HTTP 503"):
        list(Client(service.url, deadline=0.6).caption(pictures[:1]))
    assert time.monotonic() - start < 2
    assert len(service.failures) > 990  # each wait is longer than the last


def test_a_server_that_starts_again_is_bridged(versions, pictures, same):
    first = RestService(versions)
    client = Client(first.url)
    list(client.caption(pictures[:1]))
    first.close()
    later = threading.Timer(0.7, lambda: started.append(RestService(versions, first.port)))
    started = []
    later.start()
    (result,) = client.caption(pictures[1:2])
    same(result, 1)
    started[0].close()


@pytest.mark.parametrize(
    "options", [{"name": "other"}, {"version": "7"}, {"label": "beta"}], ids=str
)
def test_what_the_server_does_not_have_is_an_error_at_once(service, pictures, options):
    with pytest.raises(captions_client.ServerError, match="HTTP 404"):
        list(Client(service.url, **options).caption(pictures))
    assert len(service.bodies) == 1


def test_versions_and_labels_are_asked_for(service, pictures, same):
    for options in ({"version": "1"}, {"label": "stable"}):
        same(next(Client(service.url, **options).caption(pictures)), 0)
    with pytest.raises(ValueError, match="Give a version or a label"):
        Client(service.url, version="1", label="stable")


@pytest.mark.parametrize("protocol", ["rest", "v2"])
def test_each_picture_gets_its_own_seed(service, pictures, protocol):
    client = Client(service.url, protocol=protocol, batch_size=3)
    results = list(client.caption(pictures[:3], seed=7))
    # This export does not sample, so it knows no seeds.
    assert all("input keys must be ['image_bytes']" in result.status for result in results)
    first = service.bodies[0]
    if protocol == "rest":
        assert [row["seed"] for row in first["instances"]] == [7, 8, 9]
    else:
        assert first["inputs"][1]["name"] == "seed" and first["inputs"][1]["datatype"] == "INT64"


def test_wait_ends_when_the_model_is_loaded(service):
    for protocol in ("rest", "v2"):
        Client(service.url, protocol=protocol).wait(5)
    with pytest.raises(captions_client.ServerError, match="not ready after 0.3 s"):
        Client("http://127.0.0.1:9").wait(0.3)


def test_the_command_prints_a_line_for_each_picture(service, pictures, expected, capsys, tmp_path):
    assert captions_client.main(["--url", service.url, *pictures]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{pictures[1]}\t{expected[1][0][0]}\t{expected[1][1][0]:.4f}"
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    arguments = ["--url", service.url, "--json", pictures[0], str(bad)]
    assert captions_client.main(arguments) == 1
    good, refused = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["captions"] == expected[0][0] and refused["source"] == str(bad)
    assert captions_client.main(["--url", service.url, str(bad)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {bad}: ")
    assert captions_client.main(["--url", service.url, "--name", "other", *pictures]) == 1
    assert "HTTP 404" in capsys.readouterr().err


def test_a_name_that_is_not_utf8_ends_nothing(service, pictures, tmp_path):
    odd = os.fsencode(tmp_path) + b"/caf\xe9.png"
    shutil.copy(pictures[0], odd)
    program = [sys.executable, FOLDER / "captions_client.py", "--url", service.url]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*program, *more, pictures[0], odd, pictures[1]], capture_output=True, env=environment
        )
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 3
    assert json.loads(done.stdout.splitlines()[1])["source"] == os.fsdecode(odd)


def test_the_command_ends_when_its_reader_has_gone(service, pictures):
    program = [sys.executable, FOLDER / "captions_client.py", "--url", service.url]
    with subprocess.Popen(
        [*program, *pictures * 40],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_ctrl_c_ends_the_command_in_a_line(service, pictures, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(captions_client.Client, "caption", interrupted)
    assert captions_client.main(["--url", service.url, pictures[0]]) == 130
    assert capsys.readouterr().err == "error: Interrupted.\n"


def test_rest_needs_python_alone(service, pictures, expected):
    """-S hides all installed packages."""
    program = [sys.executable, "-S", "-E", FOLDER / "captions_client.py"]
    done = subprocess.run(
        [*program, "--url", service.url, pictures[0]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\t")[1] == expected[0][0][0]
    done = subprocess.run(
        [*program, "--protocol=grpc", pictures[0]], capture_output=True, text=True
    )
    assert done.returncode == 1 and "pip install tensorflow-serving-api" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_script_for_curl_captions_a_picture(service, pictures, expected):
    script = [FOLDER / "curl.sh", pictures[0], service.url]
    done = subprocess.run(["sh", *script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"][0]["captions"] == expected[0][0]
    refused = subprocess.run(["sh", *script, "other"], capture_output=True, text=True)
    assert refused.returncode and "Servable not found" in refused.stdout
    seeded = subprocess.run(["sh", *script, "captions", "7"], capture_output=True, text=True)
    assert seeded.returncode and "seed" in seeded.stdout  # this export does not sample
    for seed in ("x", "007", "-1"):
        wrong = subprocess.run(["sh", *script, "captions", seed], capture_output=True, text=True)
        assert wrong.returncode == 1
        assert f"SEED must be a whole number. Received: {seed}" in wrong.stderr


def test_rows_of_an_older_export_have_no_status():
    row = {"captions": ["a dog", "a cat"], "scores": [-1, -2]}
    result = captions_client._result(row)
    assert (result.caption, result.status) == ("a dog", "ok")
    refused = row | {"status": "it is no picture", "captions": ["", ""], "scores": [0, 0]}
    assert captions_client._result(refused).status == "it is no picture"
    assert captions_protocols._rows([row], 1) == [row]
