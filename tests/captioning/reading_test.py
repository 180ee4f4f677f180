"""Files, web servers and open files give bytes of pictures, or the reason why not."""

import http.server
import io
import os
import threading

import numpy as np
from PIL import Image

from tfcap.captioning import inputs, reading


def _png():
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def _one(given):
    (picture,) = inputs.read(given)
    return picture


class _Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.requestline.split()[1]  # `path` has lost a slash
        found = asked in ("/a.png", "//b/c.png", "/my%20ph%C3%B6to%20.png?size=1%202")
        self.send_response(200 if found else 404)
        self.end_headers()
        if found:
            self.wfile.write(_png())

    def log_message(self, *_):
        pass


def test_urls_are_downloaded():
    server = http.server.HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        base = f"http://127.0.0.1:{server.server_port}"
        picture = _one(f"{base}/a.png")
        assert picture.content == _png() and picture.source == f"{base}/a.png"
        assert _one(f"{base}/b.png").reason == "the server answers 404 Not Found"
        assert _one(f"{base}//b/c.png").content == _png()
        assert _one(f"{base}/my phöto%20.png?size=1 2").content == _png()
    finally:
        server.shutdown()
        server.server_close()
    assert _one(f"{base}/a.png").reason.startswith("the download failed: ")


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    path.write_bytes(_png())
    monkeypatch.setattr(reading, "MOST_BYTES", 10)
    assert "at most 10 bytes" in _one(path).reason


def test_a_pipe_and_a_device_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    os.symlink("/dev/zero", tmp_path / "endless.png")
    found = list(inputs.read(str(tmp_path)))
    assert [picture.content for picture in found] == [None, None]
    assert all("must be a regular file" in picture.reason for picture in found)
