"""`tfcap serve` over the loopback: real clients, what is refused, and what is shared."""

import base64
import contextlib
import importlib.util
import json
import socket
import threading
import time
from http.client import HTTPConnection

import numpy as np
import ollama
import openai
import pytest
from helpers import commands
from helpers.services import data_url, jpeg, message, raw, serving
from helpers.webpages import running

import tfcap
from tfcap import export
from tfcap.captioning import inputs
from tfcap.captioning.caption_files import Wording
from tfcap.captioning.image_captioner import Prepared, prepare
from tfcap.captioning.server import web
from tfcap.captioning.server.application import application
from tfcap.captioning.server.batches import Batches
from tfcap.captioning.server.service import Service, Settings

PICTURES = [jpeg(seed) for seed in range(4)]
CHAT, GENERATE, PREDICT = "/v1/chat/completions", "/api/generate", "/v1/models/small:predict"
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def light():
    """The captioner of the package, which needs no TensorFlow."""
    return tfcap.load()


@pytest.fixture(scope="module")
def wanted(light):
    return light(PICTURES)


@pytest.fixture(scope="module")
def site(light):
    with serving(light) as site:
        yield site


@pytest.fixture
def client(site):
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def chat(*contents, **more):
    return {"model": "small", "messages": [message(*contents)], **more}


def test_openai_reads_captions_best_first(client, wanted):
    answer = client.chat.completions.create(**chat(PICTURES[0], n=2))
    best = (wanted[0], *wanted[0].alternatives)[:2]
    assert [one.message.content for one in answer.choices] == [one.text for one in best]
    assert [one.finish_reason for one in answer.choices] == ["stop", "stop"]
    assert answer.choices[1].captions[0]["score"] == pytest.approx(best[1].score, abs=1e-4)
    assert answer.usage.completion_tokens == sum(len(one.words) for one in best)
    assert answer.model == "small"
    # No more captions are found than the beam is wide.
    assert len(client.chat.completions.create(**chat(PICTURES[0], n=9)).choices) == 3


def test_openai_reads_several_pictures_one_a_line(client, wanted):
    answer = client.chat.completions.create(**chat(*PICTURES[:3]))
    assert answer.choices[0].message.content.splitlines() == [one.text for one in wanted[:3]]


def test_openai_reads_a_stream_to_its_end(client, wanted, site):
    request = chat(PICTURES[1], stream=True, stream_options={"include_usage": True}, n=2)
    chunks = list(client.chat.completions.create(**request))
    texts = ["", ""]
    ends = []
    for chunk in chunks[:-1]:
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        ends.append(choice.finish_reason)
    assert texts == [wanted[1].text, wanted[1].alternatives[0].text]
    assert ends == [None, None, "stop", "stop"] and chunks[-1].usage.completion_tokens > 0
    _, body = site.ask(CHAT, request)
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_caption_is_cut_to_the_number_of_words(client, wanted):
    words = wanted[2].words
    for name in ("max_tokens", "max_completion_tokens"):
        [choice] = client.chat.completions.create(**chat(PICTURES[2], **{name: 2})).choices
        assert choice.message.content.split() == list(words[:2])
        assert choice.finish_reason == "length"
    for most in (100, 0):
        [choice] = client.chat.completions.create(**chat(PICTURES[2], max_tokens=most)).choices
        assert choice.message.content == wanted[2].text and choice.finish_reason == "stop"


def test_openai_lists_the_model_and_tf_serving_its_status(client, site):
    assert [one.id for one in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "tfcap"
    _, answer = site.ask("/v1/models/small")
    assert answer["model_version_status"][0]["state"] == "AVAILABLE"


def test_a_name_may_have_a_slash(light):
    with serving(light, name="mine/small") as site:
        assert site.ask("/v1/models/mine/small")[1]["id"] == "mine/small"
        row = {"b64": base64.b64encode(PICTURES[0]).decode()}
        status, answer = site.ask("/v1/models/mine/small:predict", {"instances": [row]})
        assert status == 200 and answer["predictions"]


def test_openai_asks_for_a_response(client, wanted):
    parts = [
        {"type": "input_text", "text": "Describe."},
        {"type": "input_image", "detail": "low", "image_url": data_url(PICTURES[0])},
    ]
    request = {"model": "small", "input": [{"role": "user", "content": parts}]}
    answer = client.responses.create(**request)
    assert answer.output_text == wanted[0].text and answer.status == "completed"
    cut = client.responses.create(**request, max_output_tokens=1)
    assert cut.output_text == wanted[0].words[0] and cut.status == "incomplete"


def test_ollama_generates_and_chats(site, wanted):
    client = ollama.Client(site.url)
    answer = client.generate("small:latest", "Describe.", images=[PICTURES[0]], keep_alive="5m")
    assert answer.response == wanted[0].text and answer.done_reason == "stop"
    lines = list(client.generate("small", "Describe.", images=[PICTURES[0]], stream=True))
    assert "".join(one.response for one in lines) == wanted[0].text
    assert [one.done for one in lines] == [False, True]
    images = [base64.b64encode(PICTURES[0]).decode()]
    _, body = site.ask(GENERATE, {"images": images})  # as `stream: true`
    assert [json.loads(line)["done"] for line in body.splitlines()] == [False, True]
    said = [{"role": "user", "content": "What?", "images": PICTURES[:2]}]
    answer = client.chat("small", said, options={"num_predict": 3, "temperature": 0.4, "seed": -1})
    assert answer.message.content.splitlines() == [" ".join(one.words[:3]) for one in wanted[:2]]
    assert answer.done_reason == "length"
    parts = client.chat("small", said, stream=True)
    assert "".join(one.message.content for one in parts) == "\n".join(
        one.text for one in wanted[:2]
    )


def test_ollama_asks_for_json_and_for_the_model(site, wanted):
    client = ollama.Client(site.url)
    answer = client.generate("small", "Describe.", images=[PICTURES[0]], format="json")
    assert json.loads(answer.response)["captions"][0]["caption"] == wanted[0].text
    assert client.generate("small").done_reason == "load"
    assert client.generate("small", keep_alive=0).done_reason == "unload"
    assert client.list().models[0].model == client.ps().models[0].model == "small:latest"
    assert client.show("small").capabilities == ["completion", "vision"]
    assert site.ask("/api/version")[1] == {"version": tfcap.__version__}
    with pytest.raises(ollama.ResponseError, match="no model 'llava'") as error:
        client.generate("llava", "Describe.", images=[PICTURES[0]])
    assert error.value.status_code == 404


def test_the_requests_of_photoprism_and_immich_analyze_are_answered(site, wanted):
    """The keys are those of PhotoPrism's internal/ai/vision/api_request.go and openai/transport.go,
    and of src/ollama.rs of immich-analyze.
    """
    prompt = "Create a caption with exactly one sentence in the active voice."
    picture = base64.b64encode(PICTURES[0]).decode()
    request = {
        "id": "b0b8f1f6-7c0e-4b5e-9d2a-000000000000",
        "model": "small:latest",
        "prompt": prompt,
        "suffix": "",
        "options": {"temperature": 0.1},
        "stream": False,
        "images": [picture],
    }
    status, answer = site.ask(GENERATE, request)
    assert status == 200 and answer["response"] == wanted[0].text and answer["done"]
    part = {"type": "input_image", "image_url": data_url(PICTURES[0]), "detail": "low"}
    said = [{"role": "user", "type": "message", "content": [part]}]
    request = {"model": "small", "input": said, "max_output_tokens": 512, "temperature": 0.1}
    status, answer = site.ask("/v1/responses", request)
    [output] = answer["output"]
    assert status == 200 and output["content"][0]["text"] == wanted[0].text
    said = [{"role": "user", "content": prompt, "images": [picture]}]
    request = {"model": "small", "messages": said, "stream": False}
    _, answer = site.ask("/api/chat", request)
    assert answer["message"]["content"] == wanted[0].text
    status, answer = site.ask(GENERATE, {"images": [picture], "format": {"type": "object"}})
    assert status == 400 and "follows no schema" in answer["error"]  # of its labels


def test_the_client_of_a_bundle_captions_and_names_bad_pictures(site, wanted):
    path = commands.ROOT / "tfcap" / "serving" / "client" / "captions_client.py"
    spec = importlib.util.spec_from_file_location("captions_client", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = list(module.Client(site.url, "small").caption([*PICTURES, b"text"]))
    assert [one.caption for one in results[:4]] == [one.text for one in wanted]
    assert "A picture must be JPEG" in results[4].status


def test_only_messages_after_the_last_answer_are_read(site, wanted):
    told = [message(PICTURES[0]), {"role": "assistant", "content": "a dog"}]
    for more in ([], [{"role": "assistant", "content": "The picture shows"}]):
        request = {"messages": [*told, message(PICTURES[1]), *more]}
        _, answer = site.ask(CHAT, request)
        assert answer["choices"][0]["message"]["content"] == wanted[1].text
    status, answer = site.ask(CHAT, {"messages": [*told, {"role": "user", "content": "Colour?"}]})
    assert status == 400 and "answers no questions" in answer["error"]["message"]


def part(**keys):
    return {"messages": [{"role": "user", "content": [keys]}]}


TEXT = base64.b64encode(b"text").decode()


@pytest.mark.parametrize(
    ("path", "content", "status", "reason"),
    [
        (CHAT, b"[1]", 400, "JSON object"),
        (CHAT, b"[" * 90_000, 400, "JSON object"),
        (CHAT, {"messages": "x"}, 400, "list of messages"),
        (CHAT, {"messages": []}, 400, "0 pictures"),
        (CHAT, chat(*PICTURES[:1] * 17), 400, "17 pictures"),
        (CHAT, part(type="image_url", image_url="https://x.org/a.jpg"), 400, "loads nothing"),
        (CHAT, part(type="image_url", image_url={"url": "file:///etc/passwd"}), 400, "loads"),
        (CHAT, part(type="image_url", image_url="data:image/png,x"), 400, "base64"),
        (CHAT, part(type="input_audio"), 400, "not input_audio"),
        (CHAT, chat(b"text"), 400, "must be JPEG"),
        (CHAT, chat(PICTURES[0], b"text"), 400, "Picture 2: "),
        (CHAT, chat(bytes(20_000_001)), 413, "20 MB"),
        (CHAT, bytes(30_000_000), 413, "20 MB"),
        (CHAT, chat(PICTURES[0], n=0), 400, "`n` must be"),
        (CHAT, chat(PICTURES[0], seed="x"), 400, "`seed`"),
        (CHAT, chat(PICTURES[0], max_tokens=1.5), 400, "`max_tokens`"),
        (CHAT, chat(PICTURES[0], response_format={"type": "json_schema"}), 400, "schema"),
        (CHAT, chat(PICTURES[0]) | {"model": "gpt-4o"}, 404, "This server has 'small'"),
        ("/v1/responses", {"input": "Hello", "stream": True}, 400, "`stream`"),
        ("/v1/responses", {"input": "Hello"}, 400, "0 pictures"),
        (GENERATE, {"images": ["no base64!"]}, 400, "in base64"),
        (GENERATE, {"images": ["https://x.org/a.jpg"]}, 400, "loads nothing"),
        (GENERATE, {"images": "x"}, 400, "list of picture files"),
        (GENERATE, {"images": [TEXT], "options": 1}, 400, "`options`"),
        (GENERATE, {"images": [TEXT]}, 400, "must be JPEG"),
        (GENERATE, {"prompt": "Hello"}, 400, "answers no questions"),
        ("/api/chat", {"messages": [{"role": "user", "content": "Hello"}]}, 400, "no questions"),
        (PREDICT, {"instances": [{"b64": TEXT}]}, 400, "must be JPEG"),
        (PREDICT.replace("small", "other"), {"instances": []}, 404, "This server has"),
        ("/api/embed", {}, 404, "docs/applications.md"),
        (f"{GENERATE}/", {}, 404, "docs/applications.md"),
    ],
)
def test_bad_requests_have_a_status_and_a_reason(site, capfd, path, content, status, reason):
    result, answer = site.ask(path, content)
    error = answer["error"]["message"] if path in (CHAT, "/v1/responses") else answer["error"]
    assert result == status and reason in error and capfd.readouterr() == ("", "")


def test_a_picture_with_too_many_pixels_is_not_decoded(site):
    wide = jpeg(0, (20_000, 2_600))
    status, answer = site.ask(GENERATE, {"images": [base64.b64encode(wide).decode()]})
    assert status == 400 and "20000 x 2600 pixels" in answer["error"]


def test_who_must_come_again_is_told_when(light):
    with serving(light, most_requests=1) as site:
        waiting = socket.create_connection((site.server.host, site.server.port))
        waiting.sendall(f"{HEAD}Content-Length: 9\r\n\r\n".encode())
        limited = openai.OpenAI(base_url=f"{site.url}/v1", api_key="any", max_retries=0)
        end = time.monotonic() + 20
        while True:  # until the first request has arrived
            try:
                limited.chat.completions.create(**chat(PICTURES[0]))
            except openai.RateLimitError as error:
                assert error.response.headers["Retry-After"] == "1"
                break
            assert time.monotonic() < end
        with pytest.raises(ollama.ResponseError, match="which is the limit") as error:
            ollama.Client(site.url).generate("small", images=[PICTURES[0]])
        assert error.value.status_code == 503
        waiting.close()
        patient = openai.OpenAI(base_url=f"{site.url}/v1", api_key="any", max_retries=9)
        assert patient.chat.completions.create(**chat(PICTURES[0])).choices


def test_a_request_that_waits_too_long_is_told_so(light):
    with serving(light, seconds=0) as site:
        status, answer = site.ask(CHAT, chat(PICTURES[0]))
    assert status == 503 and "after 0 seconds" in answer["error"]["message"]


def test_clients_that_send_slowly_are_not_waited_for(light, monkeypatch):
    monkeypatch.setattr(web, "_SECONDS", 0.4)
    with serving(light) as site:
        assert raw(site, b"POST / HT") == b""
        with socket.create_connection((site.server.host, site.server.port), timeout=20) as link:
            link.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not link.recv(9999).endswith(b"ok\n"):
                pass
            link.sendall(b"POST / HT")
            assert link.recv(9999) == b""
        answer = raw(site, f"{HEAD}Content-Length: 9\r\n\r\n".encode(), b"{")
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_answers_on_an_open_connection_are_sent_at_once(light):
    with serving(light) as site, contextlib.closing(HTTPConnection(site.url[7:])) as link:
        link.request("GET", "/healthz")
        assert link.getresponse().read() == b"ok\n"
        [connection] = site.server._server.server_state.connections
        socket_of_server = connection.transport.get_extra_info("socket")
        assert socket_of_server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_body_of_unknown_length_is_read_up_to_the_limit(site, monkeypatch):
    monkeypatch.setattr(web, "MOST_BODY", 1000)
    for size, status in ((900, b"400 "), (1100, b"413 ")):
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)
        head = f"{HEAD}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        assert status in raw(site, head.encode(), body).split(b"\r\n")[0]


def test_without_a_token_only_this_machine_is_answered(site):
    assert site.ask(CHAT, {}, Host="evil.example")[0] == 403
    assert site.ask(CHAT, {}, Origin="http://evil.example")[0] == 403


def test_with_a_token_all_but_health_needs_it(light, wanted):
    token = "a-token-of-a-test"
    with serving(light, web.token_check(token)) as site:
        for key in ("", "a-token", token + "x", "ü"):
            status, answer = site.ask(CHAT, chat(PICTURES[0]), Authorization=f"Bearer {key}")
            assert status == 401 and "token" in answer["error"]["message"]
        assert site.ask("/metrics")[0] == site.ask("/api/tags")[0] == 401
        # Nothing tells which paths there are.
        assert site.ask("/nothing")[0] == site.ask("/api/tags/")[0] == 401
        assert site.ask("/healthz") == (200, b"ok\n")
        client = openai.OpenAI(base_url=f"{site.url}/v1", api_key=token)
        answer = client.chat.completions.create(**chat(PICTURES[0]))
        assert answer.choices[0].message.content == wanted[0].text
        header = {"Authorization": f"Bearer {token}"}
        answer = ollama.Client(site.url, headers=header).generate("small", images=[PICTURES[0]])
        assert answer.response == wanted[0].text
        # The token is checked before the body is read.
        head = f"{HEAD}Connection: close\r\nContent-Length: 5\r\n\r\n".encode()
        assert raw(site, head, b"12345").startswith(b"HTTP/1.1 401 ")


def test_captions_are_worded_as_the_command_says(light, wanted):
    with serving(light, wording=Wording(sentence=True)) as site:
        answer = ollama.Client(site.url).generate("small", images=[PICTURES[0]])
    assert answer.response == f"{wanted[0].text.capitalize()}."


def test_requests_are_measured(light):
    with serving(light) as site:
        site.ask(CHAT, chat(*PICTURES[:2]))
        site.ask(CHAT, b"")
        page = site.ask("/metrics")[1].decode()
    assert 'tfcap_requests_total{path="/v1/chat/completions",status="200"} 1.0' in page
    assert 'tfcap_requests_total{path="/v1/chat/completions",status="400"} 1.0' in page
    assert "tfcap_pictures_total 2.0" in page and "tfcap_batch_pictures_sum 2.0" in page
    assert "tfcap_requests_inside 0.0" in page and "process_resident_memory_bytes" in page


def test_many_clients_at_once_get_their_own_captions(site, wanted):
    answers = {}

    def ask(number):
        content = b"text" if number % 5 == 4 else PICTURES[number % 5]
        answers[number] = site.ask(CHAT, chat(content))

    threads = [threading.Thread(target=ask, args=[number]) for number in range(15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (status, answer) in answers.items():
        if number % 5 == 4:
            assert status == 400
        else:
            text = answer["choices"][0]["message"]["content"]
            assert text == wanted[number % 5].text


def test_a_fault_of_the_program_is_a_sentence(light, capfd, monkeypatch):
    with serving(light) as site:
        monkeypatch.setattr(light.runtime._captioner, "caption", None)
        status, answer = site.ask(CHAT, chat(PICTURES[0]))
    assert status == 500 and answer["error"]["message"].startswith("The program has failed.")
    assert capfd.readouterr().err.startswith("error: TypeError: ")


class _Held:
    """Lets a worker wait before its first batch, and keeps the sizes of the batches."""

    def __init__(self):
        self.sizes = []
        self.begun, self.free = threading.Event(), threading.Event()

    def __call__(self, size):
        self.sizes.append(size)
        self.begun.set()
        assert self.free.wait(60)


def _prepared(captioner, paths):
    contents = [inputs.Picture(0, path, open(path, "rb").read()) for path in paths]
    return [prepare(captioner.runtime, content) for content in contents]


def test_what_waits_shares_a_batch_and_nothing_else(captioner, pictures):
    held = _Held()
    batches = Batches(captioner.runtime, 4, observe=held)
    first, *others = _prepared(captioner, [*pictures, pictures[0]])
    wrong = Prepared(first.picture, np.zeros([2, 2, 3], np.float32))
    results = [batches.submit(first, 1)]
    assert held.begun.wait(60)
    left = batches.submit(first, 1)
    results += [batches.submit(picture, 1) for picture in others]
    spoiled = batches.submit(wrong, 1)
    left.cancel()  # its client has gone
    held.free.set()
    texts = [result.result(60).text for result in results]
    assert texts == [one.text for one in captioner([*pictures, pictures[0]])]
    assert spoiled.exception(60) is not None
    assert held.sizes == [1, 3, 3]  # of four, the cancelled picture is left out


def test_a_request_whose_client_has_left_gives_its_place_to_another(light):
    service = Service(light, Settings("small", most_requests=1))
    held = _Held()
    service._batches = Batches(light.runtime, 1, observe=held)
    body = json.dumps(chat(PICTURES[0])).encode()
    server = web.Server(application(service, web.check_sender), "127.0.0.1", 0)
    with running(server) as site:
        with socket.create_connection((server.host, server.port)) as link:
            link.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert held.begun.wait(60) and service.inside == 1
        end = time.monotonic() + 20
        while service.inside:
            assert time.monotonic() < end
            time.sleep(0.01)
        held.free.set()
        page = site.ask("/metrics")[1].decode()
    assert f'tfcap_requests_total{{path="{CHAT}",status="499"}} 1.0' in page


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "saved_model", "litert", "onnx"])
def test_runs_and_exports_are_served_alike(captioner, trained, exported, pictures, tmp_path, kind):
    served = captioner
    if kind == "saved_model":
        served = tfcap.load(exported)
    elif kind != "run":
        if kind == "onnx":
            pytest.importorskip("tf2onnx")
        flags = ["--model_dir", trained, f"--format={kind}", "--weights=float32"]
        commands.run_here(export, *flags, "--export_dir", tmp_path)
        served = tfcap.load(tmp_path)
    contents = [open(path, "rb").read() for path in pictures[:2]]
    with serving(served) as site:
        answer = ollama.Client(site.url).generate("small", images=contents)
        assert answer.response == "\n".join(one.text for one in captioner(contents))
        rows = [{"image_bytes": {"b64": base64.b64encode(one).decode()}} for one in contents]
        _, answer = site.ask(PREDICT, {"instances": rows})
        log_probs = answer["predictions"][1]["log_probs"][0]
        if kind != "saved_model":
            assert log_probs == pytest.approx(captioner(contents)[1].log_probs, abs=1e-4)


@pytest.mark.slow
def test_seeds_draw_captions_as_the_captioner_does(captioner, pictures):
    contents = [open(path, "rb").read() for path in pictures[:2]]
    sampler = captioner.with_decoding("search=sample,samples=2")
    with serving(sampler) as site:
        client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="any")
        for seed in (3, 4):
            answer = client.chat.completions.create(**chat(*contents, seed=seed))
            texts = [one.text for one in sampler(contents, seed=seed)]
            assert answer.choices[0].message.content == "\n".join(texts)
