"""The server of the demo: what is answered, to whom, and what is refused with a sentence."""

import base64
import pathlib
import socket
import threading

import numpy as np
import pytest
from helpers.webpages import instance, running, serving

from tfcap.captioning import demo_page
from tfcap.captioning.server import web
from tfcap.visualize import report
from tfcap.visualize.figures import full_strength

pytestmark = pytest.mark.slow
PREDICT = "/v1/models/captions:predict"


def test_a_prediction_is_what_the_captioner_says(site, captioner, pictures):
    result = site.predict(*pictures[:2], attention="attention")
    wanted = captioner(pictures[:2], attention="attention", attention_captions=9)
    for one, caption in zip(result, wanted, strict=True):
        every = (caption, *caption.alternatives)
        assert one["captions"] == [each.text for each in every] and len(every) == 2
        assert one["scores"] == pytest.approx([each.score for each in every], abs=1e-4)
        assert one["words"] == [text.split() for text in one["captions"]]
        assert sum(one["log_probs"][0]) == pytest.approx(one["scores"][0], abs=1e-3)
        boxes = np.frombuffer(base64.b64decode(one["boxes"]), "<u2").reshape(-1, 4) / 65535
        np.testing.assert_allclose(boxes, caption.boxes, atol=1e-4)
        assert one["tiles"] is True
        for calls, each in zip(one["attention"], every, strict=True):
            weights = np.frombuffer(base64.b64decode(calls["weights"]), np.uint8).reshape(-1, 36)
            restored = weights * full_strength(each.weights) / 255
            np.testing.assert_allclose(restored, each.weights, atol=0.01)
            assert calls["kind"] == "attention"


def test_decoding_and_seed_are_those_of_the_request(site, captioner, pictures):
    assert len(site.predict(pictures[0], decoding="beam=4")[0]["captions"]) == 4
    caption = captioner.with_decoding("search=sample")(pictures[0], seed=3)
    request = {"instances": [instance(pictures[0], seed=3)], "decoding": "search=sample"}
    _, result = site.ask(PREDICT, request)
    texts = [one.text for one in (caption, *caption.alternatives)]
    assert result["predictions"][0]["captions"] == texts


def test_an_export_gives_captions_without_attention(site, captioner, pictures):
    [result] = site.predict(pictures[0], model="beside", attention="attention")
    assert result["captions"][0] == captioner(pictures[0]).text
    assert len(result["log_probs"]) == 2 and "attention" not in result
    request = {"instances": [instance(pictures[0])], "decoding": "beam=3"}
    status, answer = site.ask("/v1/models/beside:predict", request)
    assert status == 400 and "exported" in answer["error"]


def test_about_describes_models_and_every_decoding_option(site):
    status, about = site.ask("/about")
    assert status == 200
    shown = [(one["path"], one["exported"]) for one in about["models"]]
    assert shown == [("captions", False), ("beside", True)]
    assert about["models"][0]["decoding"]["beam"] == 2 and about["models"][1]["decoding"] is None
    assert set(about["presets"]) >= {"released", "mrnn"}
    described = {one["name"]: one for one in about["options"]}
    assert described["search"]["choices"] == ["beam", "sample"]
    assert described["beam"]["kind"] == "integer" and described["beam"]["search"] == "beam"
    script = pathlib.Path(demo_page.__file__).with_name("demo.js").read_text(encoding="utf-8")
    assert all(f'"{one["kind"]}"' in script for one in described.values())


@pytest.mark.parametrize(
    ("content", "status", "part"),
    [
        (b"[1]", 400, "JSON object"),
        (b"[" * 90_000, 400, "JSON object"),
        ({"instances": [{}] * 17}, 400, "1 to 16 instances"),
        ({"instances": [{"image_bytes": "/etc/passwd"}]}, 400, "An instance must be"),
        ({"instances": [{"image_bytes": {"b64": "no base64!"}}]}, 400, "base64"),
        ({"instances": [instance(b"text")]}, 422, "JPEG"),
        ({"instances": [instance(bytes(20_000_001))]}, 413, "20 MB"),
        (bytes(30_000_000), 413, "20 MB"),
        ({"instances": [instance(b"", seed=-1)]}, 400, "seed"),
        ({"instances": [instance(b"")], "attention": "gaze"}, 400, "attention"),
        ({"instances": [instance(b"")], "decoding": "bream=3"}, 400, "bream"),
    ],
)
def test_bad_requests_have_a_status_and_a_sentence(site, capfd, content, status, part):
    result, answer = site.ask(PREDICT, content)
    assert result == status and part in answer["error"] and capfd.readouterr() == ("", "")


def raw(site, request: bytes) -> bytes:
    """Sends bytes that no client library would send."""
    with socket.create_connection((site.server.host, site.server.port), timeout=20) as link:
        link.sendall(request)
        parts = []
        while part := link.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_a_body_of_unknown_length_is_read_up_to_the_limit(site, monkeypatch):
    monkeypatch.setattr(web, "MOST_BODY", 1000)
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    head += "Connection: close\r\n\r\n"
    for size, status in ((900, b"400 "), (1100, b"413 ")):
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)
        assert status in raw(site, head.encode() + body).split(b"\r\n")[0]


def test_the_page_holds_its_own_styles_and_scripts_and_those_of_all_pages():
    page = "".join(report.page("demo", "a title", "tfcap.captioning"))
    captioning, visualize = (pathlib.Path(m.__file__).parent for m in (demo_page, report))
    files = [captioning / "demo.css", captioning / "demo.js"]
    files += [visualize / "theme.css", visualize / "attention.js"]
    assert all(file.read_text(encoding="utf-8") in page for file in files)


def test_only_this_machine_and_this_page_are_answered(site):
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example"):
        assert site.ask("/", Host=host)[0] == site.ask(PREDICT, {}, Host=host)[0] == 403
    assert b" 403 " in raw(site, b"GET / HTTP/1.0\r\n\r\n")  # no host
    for host in (f"localhost:{site.server.port}", "127.0.0.1", "LOCALHOST:9000", "[::1]:80"):
        assert site.ask("/", Host=host)[0] == 200
    port = site.server.port
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        status, result = site.ask(PREDICT, {}, **headers)
        assert status == 403 and "not from another one" in result["error"], headers
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    assert site.ask(PREDICT, {}, **own)[0] == 400
    assert site.server.socket.getsockname()[0] == "127.0.0.1"


def test_one_request_at_a_time_reaches_the_model(models, pictures):
    application = demo_page.Application(models)
    with running(web.Server(application.asgi, "127.0.0.1", 0)) as site:
        site.predict(pictures[0])  # the graphs exist from here on
        waiting = threading.Thread(target=site.predict, args=pictures[:1], daemon=True)
        with application._lock:
            waiting.start()
            waiting.join(0.7)  # many times what a caption takes
            assert waiting.is_alive()
        waiting.join(60)
        assert not waiting.is_alive()


def test_a_fault_of_the_program_is_a_sentence(capfd, pictures, captioner):
    broken = demo_page.Model("broken", captioner)
    broken.captioner = None
    with serving({"captions": broken}) as site:
        status, result = site.ask(PREDICT, {"instances": [instance(pictures[0])]})
    assert status == 500 and result["error"].startswith("The program has failed.")
    assert capfd.readouterr().err.startswith("error: AttributeError: ")


def test_all_forms_of_a_request_to_tf_serving_are_read(models, pictures):
    row = instance(pictures[0])["image_bytes"]
    lines = {"b64": "\n".join(row["b64"][i : i + 76] for i in range(0, len(row["b64"]), 76))}
    predict = models["captions"].predict
    rows = [predict({"instances": [one]}) for one in ({"image_bytes": row}, row)]
    assert rows[0] == rows[1] and rows[0]["predictions"][0]["captions"]
    [prediction] = rows[0]["predictions"]
    for inputs in ([row], row, {"image_bytes": [lines]}, {"image_bytes": row}):
        assert predict({"inputs": inputs}) == {"outputs": {k: [v] for k, v in prediction.items()}}
    with pytest.raises(web.RequestError, match="one value for each picture"):
        predict({"inputs": {"image_bytes": [row, row], "seed": [1]}})


def test_the_columns_of_a_request_belong_together(models, pictures):
    several = [instance(picture, seed=seed) for seed, picture in enumerate(pictures[:2], 3)]
    columns = {key: [one[key] for one in several] for key in ("image_bytes", "seed")}
    predict, decoding = models["captions"].predict, {"decoding": "search=sample"}
    wanted = [one["captions"] for one in predict({"instances": several} | decoding)["predictions"]]
    assert predict({"inputs": columns} | decoding)["outputs"]["captions"] == wanted
