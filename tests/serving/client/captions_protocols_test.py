"""What the client's protocols read and refuse; captions_client_test.py sends requests with them."""

import pytest
from helpers.client import captions_protocols
from helpers.rest_service import RestService

Rest, OpenInference = captions_protocols.Rest, captions_protocols.OpenInference


@pytest.fixture
def service(versions):
    service = RestService(versions)
    yield service
    service.close()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8501", "ftp://a", "http://", "http://my host:85", "http://a/\n"]
)
def test_a_url_must_be_one_of_http(url):
    with pytest.raises(ValueError, match="must begin with http:// or https://, .* Received: "):
        Rest(url, "captions")


def test_the_open_inference_protocol_has_no_labels():
    with pytest.raises(ValueError, match="has no labels. Received: 'stable'. Give a version"):
        OpenInference("http://a", "captions", label="stable")


def test_a_label_with_a_space_is_one_that_the_server_does_not_have(service):
    with pytest.raises(captions_protocols.Missing, match="HTTP 404"):
        Rest(service.url, "captions", label="a b").predict([{"image_bytes": b"x"}], 5)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((200, {}), "ServerError", "must have 1 rows with captions and scores"),
        ((400, {}), "Rejected", "HTTP 400 Bad Request"),
        ((404, {}), "Missing", "HTTP 404"),
        ((500, {}), "ServerError", "HTTP 500"),
        ((503, {"Retry-After": "20"}), "Busy", "HTTP 503"),
        ((200, {"Content-Length": "5", "Connection": "close"}), "ServerError", "must be JSON"),
        ((200, {"Content-Length": "999", "Connection": "close"}), "Busy", "IncompleteRead"),
    ],
)
def test_each_answer_is_one_kind_of_error(service, answer, error, message):
    service.failures = [answer]
    with pytest.raises(captions_protocols.ServerError, match=message) as raised:
        Rest(service.url, "captions").predict([{"image_bytes": b"x"}], 5)
    assert type(raised.value).__name__ == error
    assert getattr(raised.value, "after", 0) == (20 if error == "Busy" and "503" in message else 0)


def test_a_connection_serves_the_next_request_after_an_error(service, pictures):
    server = Rest(service.url, "captions")
    service.failures = [(200, {"Content-Length": "999", "Connection": "close"})]
    with open(pictures[0], "rb") as file:
        rows = [{"image_bytes": file.read()}]
    with pytest.raises(captions_protocols.Busy):
        server.predict(rows, 5)
    assert len(server.predict(rows, 5)) == 1


@pytest.mark.parametrize(
    "rows", [None, [], [{"captions": ["a"]}], [{"captions": [], "scores": []}] * 2, ["a"]]
)
def test_rows_must_be_those_of_a_captioner(rows):
    with pytest.raises(captions_protocols.ServerError, match="Check --name"):
        captions_protocols._rows(rows, 1)
