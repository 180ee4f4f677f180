"""The client of a bundle: batches, bad pictures, retries, and its command line."""

import json
import pathlib
import runpy
import shutil
import subprocess
import sys
import time

import pytest
from helpers.rest_service import RestService

FOLDER = pathlib.Path(__file__).parents[2] / "tfcap" / "serving" / "client"
MODULE = runpy.run_path(str(FOLDER / "captions_client.py"))
Client, ServerError, main = MODULE["Client"], MODULE["ServerError"], MODULE["main"]
pytestmark = pytest.mark.slow


@pytest.fixture
def service(bundle):
    result = RestService(bundle / "1")
    yield result
    result.close()


def same(result, expected):
    texts, scores = expected
    assert result.status == "ok" and result.captions == tuple(texts)
    assert result.scores == pytest.approx(scores, abs=1e-4)
    assert (result.caption, result.score) == (result.captions[0], result.scores[0])


def test_good_pictures_have_the_captions_of_the_command(service, pictures, expected, tmp_path):
    missing = str(tmp_path / "missing.png")
    values = [pictures[0], b"no picture", pictures[1], missing, pathlib.Path(pictures[2])]
    results = list(Client(service.url, batch_size=3).caption(values))
    for number, place in enumerate([0, 2, 4]):
        assert results[place].source == pictures[number]
        same(results[place], expected[number])
    assert results[1].caption == "" and results[1].status.startswith("not a JPEG")
    assert results[3].source == missing and "No such file" in results[3].status
    # A bad picture costs no other request, and a file that cannot be read is not sent.
    assert [len(body["instances"]) for body in service.bodies] == [3, 1]


def test_halves_are_sent_where_the_whole_request_is_refused(service, pictures, expected):
    service.failures = [400, 400]
    for result, wanted in zip(Client(service.url).caption(pictures), expected, strict=True):
        same(result, wanted)
    assert [len(body["instances"]) for body in service.bodies] == [5, 2, 1, 1, 3]


def test_a_busy_server_is_asked_again_until_the_deadline(service, pictures, expected):
    service.failures = [503, 429, 504]
    [result] = Client(service.url).caption(pictures[:1])
    same(result, expected[0])
    service.failures, start = [503] * 1000, time.monotonic()
    with pytest.raises(ServerError, match=r"No answer after 0.6 s \(HTTP 503"):
        list(Client(service.url, deadline=0.6).caption(pictures[:1]))
    assert time.monotonic() - start < 2 and len(service.failures) > 985
    with pytest.raises(ServerError, match="No answer after 0.3 s"):
        list(Client("http://127.0.0.1:9", deadline=0.3).caption(pictures[:1]))


def test_each_picture_gets_its_own_seed(service, pictures):
    results = list(Client(service.url, batch_size=2).caption(pictures[:3], seed=7))
    assert all("input keys" in result.status for result in results)  # it does not sample
    sent = [row["seed"] for body in service.bodies for row in body["instances"]]
    assert sent == [7, 8, 7, 8, 9]  # the first two together, then each alone


def test_the_command_prints_a_line_for_each_picture_with_python_alone(
    service, pictures, expected, tmp_path
):
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    program = [sys.executable, "-S", "-E", FOLDER / "captions_client.py", "--url", service.url]
    done = subprocess.run([*program, *pictures[:2], bad], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[1] == f"{pictures[1]}\t{expected[1][0][0]}\t{expected[1][1][0]:.4f}"
    assert done.returncode == 1 and len(lines) == 2
    assert done.stderr.startswith(f"error: {bad}: not a JPEG")


def test_a_name_that_the_server_does_not_have_is_an_error(service, pictures, capsys):
    assert main(["--url", service.url, "--name", "other", *pictures]) == 1
    assert "HTTP 404" in capsys.readouterr().err and len(service.bodies) == 1


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_script_for_curl_captions_a_picture(service, pictures, expected):
    script = ["sh", FOLDER / "curl.sh", pictures[0], service.url]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"][0]["captions"] == expected[0][0]
    refused = subprocess.run([*script, "other"], capture_output=True, text=True)
    assert refused.returncode and "Servable not found" in refused.stdout
    seeded = subprocess.run([*script, "captions", "7"], capture_output=True, text=True)
    assert seeded.returncode and "input keys" in seeded.stdout  # this export does not sample
