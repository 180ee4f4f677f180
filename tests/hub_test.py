"""Runs come from the Hugging Face Hub; a small server on the loopback speaks its protocol."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
from helpers import commands

import tfcap
from tfcap import export, pretrained
from tfcap.files import file_sha256

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers for the repository me/photos with the files of `folder`."""

    def do_GET(self):
        parts = self.path.partition("?")[0].strip("/").split("/")
        files = [path for path in self.server.folder.rglob("*") if path.is_file()]
        if parts[:4] == ["api", "models", "me", "photos"] and parts[4] == "revision":
            names = [str(path.relative_to(self.server.folder)) for path in files]
            content = {"id": "me/photos", "sha": COMMIT, "private": False, "tags": []}
            content["siblings"] = [{"rfilename": name} for name in names]
            self._answer(json.dumps(content).encode())
        elif parts[:5] == ["api", "models", "me", "photos", "tree"]:
            entries = [
                {
                    "type": "file",
                    "path": str(path.relative_to(self.server.folder)),
                    "size": path.stat().st_size,
                    "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
                }
                for path in files
            ]
            self._answer(json.dumps(entries).encode())
        elif parts[:3] == ["me", "photos", "resolve"]:
            name = "/".join(parts[4:])
            self.server.asked.add(name)
            self._answer((self.server.folder / name).read_bytes())
        else:
            self._answer(b"", 404)

    do_HEAD = do_GET

    def _answer(self, content, code=200):
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    """The hub with the packaged captioner and a pickle, which nobody should read."""
    folder = tmp_path / "repository"
    shutil.copytree(pretrained.directory("flickr8k"), folder)
    (folder / "evil.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.folder, server.asked = folder, set()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def place(address, folder, port, **more):
    """Runs `pretrained.place` in a process, whose environment tells it the hub."""
    env = os.environ | {"HF_HOME": str(folder), "HF_ENDPOINT": f"http://127.0.0.1:{port}"} | more
    program = f"from tfcap import pretrained; print(pretrained.place({address!r}))"
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=env, cwd=commands.ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_run_of_the_hub_is_loaded_and_the_second_time_needs_no_network(
    server, pictures, tmp_path
):
    folder = place("hf://me/photos", tmp_path, server.server_port).stdout.strip()
    assert "ckpt-0.index" in server.asked and not server.asked & {"evil.pkl", "MODEL_CARD.md"}
    assert tfcap.load(folder)(pictures[0]) == tfcap.load("flickr8k")(pictures[0])
    missing = place("hf://me/nothing", tmp_path, server.server_port)
    assert "ValueError: hf://me/nothing cannot be downloaded: " in missing.stderr
    path = server.folder / "dataset.json"
    content = json.loads(path.read_text())
    other = content | {"backbone": content["backbone"] | {"name": "hub:hf://a/b", "weights": None}}
    path.write_text(json.dumps(other))
    refused = place("hf://me/photos", tmp_path / "other", server.server_port)
    assert "names another model of a hub" in refused.stderr
    path.write_text(json.dumps(content))
    server.asked.clear()
    offline = place("hf://me/photos@main", tmp_path, server.server_port, HF_HUB_OFFLINE="1")
    assert offline.stdout.strip() == folder and not server.asked
    server.shutdown()
    server.server_close()
    assert place("hf://me/photos", tmp_path, server.server_port).stdout.strip() == folder
    new = place("hf://me/photos", tmp_path / "new", server.server_port)
    assert "ValueError: hf://me/photos cannot be downloaded: " in new.stderr


def test_an_export_has_a_card_with_metadata_that_the_hub_reads(tmp_path):
    commands.run_here(
        export, "--model_dir=flickr8k", "--export_dir", tmp_path / "run", "--format=run"
    )
    path = tmp_path / "run" / "README.md"
    metadata = huggingface_hub.metadata_load(path)
    assert metadata["pipeline_tag"] == "image-to-text" and metadata["library_name"] == "tfcap"
    card = huggingface_hub.ModelCard.load(path)
    (result, *_) = card.data.eval_results
    assert result.metric_type and result.metric_value > 0
    assert f"| vocab.txt | {file_sha256(tmp_path / 'run' / 'vocab.txt')} |" in card.text
