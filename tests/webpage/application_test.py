"""Over real HTTP: what is answered, to whom, and what is refused with a sentence."""

import contextlib
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.webpages import instance, serving
from PIL import Image

from tfcap.webpage import Application, Model
from tfcap.webpage import application as application_module

pytestmark = pytest.mark.slow


def test_the_page_and_its_files_have_types_and_a_policy(site):
    kinds = {"/": "text/html", "/page.css": "text/css", "/theme.css": "text/css"}
    kinds |= dict.fromkeys(("/page.js", "/options.js", "/attention.js"), "text/javascript")
    for path, kind in kinds.items():
        status, content, headers = site.ask(path)
        assert status == 200 and content and headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b"").replace(
            b"http://localhost:8501", b""
        )
    page = site.ask("/")[1].decode()
    assert "style=" not in page and "onclick" not in page and page.count("<script src=") == 3


def test_about_says_what_there_is(site):
    status, about, _ = site.ask("/about")
    assert status == 200
    assert [(one["path"], one["exported"]) for one in about["models"]] == [
        ("captions", False),
        ("beside", True),
    ]
    assert about["models"][0]["decoding"]["beam"] == 2 and about["most_bytes"] == 20_000_000
    assert about["nearest"] == "64 training pictures" and about["search"].endswith("holiday")
    assert set(about["presets"]) >= {"released", "mrnn"}


def test_a_picture_is_captioned_in_the_form_of_tfserving(site, captioner, pictures):
    first, second = site.predict(*pictures[:2])
    assert [first["captions"][0], second["captions"][0]] == [
        str(caption) for caption in captioner(pictures[:2])
    ]


@pytest.mark.parametrize("part", ["", "/versions/1", "/versions/20240101", "/labels/stable"])
def test_the_addresses_of_tfserving_are_answered(site, captioner, pictures, part):
    request = {"instances": [instance(pictures[0])]}
    status, found, _ = site.ask(f"/v1/models/captions{part}:predict", request)
    assert status == 200
    assert found["predictions"][0]["captions"][0] == str(captioner(pictures[0]))
    status, found, _ = site.ask(f"/v1/models/captions{part}")
    assert status == 200 and found["model_version_status"][0]["state"] == "AVAILABLE"
    status, found, _ = site.ask(f"/v1/models/captions{part}/metadata")
    assert status == 200 and found["model_spec"]["name"] == "captions"
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["image_bytes"]["dtype"] == "DT_STRING"
    for path in ("/v1/models/others", "/v1/models/captions/x", "/v1/models/captions:classify"):
        assert site.ask(path)[0] == 404 and site.ask(path, request)[0] == 404
    assert site.ask(f"/v1/models/captions{part}/metadata", request)[0] == 404
    assert site.ask(f"/v1/models/captions{part}:predict")[0] == 404


def test_found_pictures_are_shown(site, pictures):
    status, near, _ = site.ask("/nearest", instance(pictures[0]))
    assert status == 200
    for path in (near["found"][0]["picture"], near["found"][0]["picture"] + "/file"):
        status, content, headers = site.ask(path)
        assert status == 200 and headers["X-Content-Type-Options"] == "nosniff"
        with Image.open(io.BytesIO(content)) as picture:
            assert picture.format == ("PNG" if path.endswith("file") else "JPEG")
    status, found, _ = site.ask("/search", {"text": "a circle"})
    assert status == 200 and len(found["found"]) == 3
    assert site.ask(found["found"][0]["picture"])[0] == 200


def raw(site, request: bytes) -> bytes:
    """Sends bytes that no client library would send."""
    with socket.create_connection((site.server.host, site.server.port), timeout=20) as link:
        link.sendall(request)
        parts = []
        while part := link.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "path",
    [
        "/pictures/train/../../../../etc/passwd",
        "/../../etc/passwd",
        "//etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/pictures/train/%2e%2e",
        "/pictures/folder/99999",
        "/pictures/folder/-1",
        "/pictures/other/0",
        "/pictures/train/0/passwd",
        "/page.py",
        "/application.py",
        "/v1/models/captions/",
        "/%00",
    ],
)
def test_no_other_file_is_reached(site, path):
    answer = raw(site, f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    assert answer.split(b"\r\n")[0].endswith(b"404 NOT FOUND") and b"root:" not in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith("There is no such p")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
def test_another_host_is_refused(site, host):
    for content in (None, {"text": "a circle"}):
        status, found, headers = site.ask("/search" if content else "/", content, Host=host)
        assert status == 403 and "this machine only" in found["error"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"403 FORBIDDEN" in raw(site, b"GET / HTTP/1.0\r\n\r\n")  # no host
    for own in (f"localhost:{site.server.port}", "127.0.0.1", "LOCALHOST:9000", "[::1]:80"):
        assert site.ask("/", Host=own)[0] == 200


def test_another_page_cannot_post(site):
    text, port = {"text": "a circle"}, site.server.port
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Origin": f"https://127.0.0.1:{port}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        status, found, _ = site.ask("/search", text, **headers)
        assert status == 403 and "not from another one" in found["error"], headers
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    assert site.ask("/search", text, **own)[0] == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "NONSENSE"])
def test_other_methods_are_refused(site, method):
    status, found, headers = site.ask("/", method=method)
    assert status == 405 and found["error"].startswith("The method must be GET or POST")
    assert headers["Allow"] == "GET, POST"


def test_a_body_above_the_limit_is_refused_before_it_is_read(site, pictures):
    path = "/v1/models/captions:predict"
    begun = time.monotonic()
    status, found, _ = site.ask(path, bytes(30_000_000))
    assert status == 413 and found["error"].startswith("A picture must have at most 20 MB")
    announced = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {10**12}\r\n\r\n"
    with socket.create_connection((site.server.host, site.server.port), timeout=20) as link:
        link.sendall(announced.encode())
        assert b"413 REQUEST ENTITY TOO LARGE" in link.recv(4000)
    assert time.monotonic() - begun < 20


def test_a_body_of_unknown_length_is_read_up_to_the_limit(site, monkeypatch):
    monkeypatch.setattr(application_module, "_MOST_BODY", 1000)
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for size, status in ((900, b"400 BAD REQUEST"), (1100, b"413 REQUEST ENTITY TOO LARGE")):
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)
        assert status in raw(site, head + body).split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("path", "content", "status", "part"),
    [
        ("/v1/models/captions:predict", b"", 400, "The body must be a JSON object"),
        ("/v1/models/captions:predict", b"[1]", 400, "The body must be a JSON object"),
        ("/v1/models/captions:predict", b"\xff\xfe", 400, "The body must be a JSON object"),
        ("/v1/models/captions:predict", b"[" * 90_000, 400, "The body must be a JSON object"),
        ("/v1/models/captions:predict", b'{"a": 1' + b"0" * 9000 + b"}", 400, "JSON object"),
        ("/v1/models/captions:predict", {"instances": [instance(b"text")]}, 422, "A picture must"),
        ("/v1/models/others:predict", {}, 404, "no such address for POST"),
        ("/nearest", {}, 400, "An instance must be"),
        ("/nearest", instance(b"text"), 422, "must be JPEG"),
        ("/search", {"text": 1}, 400, "text must be a sentence"),
        ("/", {}, 404, "no such address for POST"),
    ],
)
def test_bad_requests_have_a_sentence(site, capfd, path, content, status, part):
    found = site.ask(path, content)
    assert found[0] == status and part in found[1]["error"] and "Traceback" not in str(found)
    assert capfd.readouterr() == ("", "")


@contextlib.contextmanager
def held(application):
    with application._turn.take():
        yield


def test_one_request_at_a_time_reaches_the_model(site, pictures, monkeypatch):
    application = site.application
    site.predict(pictures[0])  # the graphs exist from here on
    assert site.ask("/busy")[1] == {"requests": 0}
    with ThreadPoolExecutor(1) as pool:
        with held(application):
            waiting = pool.submit(site.predict, pictures[0])
            end = time.monotonic() + 20
            while site.ask("/busy")[1]["requests"] < 2 and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.7)  # many times what a caption takes
            assert site.ask("/busy")[1] == {"requests": 2} and not waiting.done()
            monkeypatch.setattr(application_module, "_MOST_WAITING", 2)
            status, found, _ = site.ask("/search", {"text": "a circle"})
            assert status == 503 and "2 requests wait for the model" in found["error"]
        assert waiting.result(60)
    assert site.ask("/busy")[1] == {"requests": 0}


def test_a_fault_of_the_program_is_a_sentence(capfd, pictures):
    """A model without a captioner is such a fault."""
    broken = Application({"captions": Model("broken", None, [])}, debug=True)
    with serving(broken) as site:
        status, found, headers = site.ask(
            "/v1/models/captions:predict", {"instances": [instance(pictures[0])]}
        )
    assert status == 500 and found["error"].startswith("The program has failed.")
    assert "AttributeError" not in str(found) and headers["X-Content-Type-Options"] == "nosniff"
    shown = capfd.readouterr().err
    assert shown.startswith("error: AttributeError: ") and "Traceback" in shown  # with --debug
    broken.debug = False
    broken.warm_up()
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_without_data_there_is_nothing_to_find(models):
    application = Application(models)
    with serving(application) as site:
        assert site.ask("/about")[1]["nearest"] is site.ask("/about")[1]["search"] is None
        assert site.ask("/nearest", {})[0] == site.ask("/search", {})[0] == 404
        assert site.ask("/pictures/train/0")[0] == 404
        application.warm_up()
        assert site.ask("/busy")[1] == {"requests": 0}
