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
from helpers import commands, run_files

import tfcap
from tfcap import export, pretrained
from tfcap.files import file_sha256

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers for the repositories me/NAME with the files of `folder`/NAME."""

    def do_GET(self):
        parts = self.path.partition("?")[0].strip("/").removeprefix("api/models/").split("/")
        folder, kind = self.server.folder / parts[1], parts[2]
        files = [path for path in folder.rglob("*") if path.is_file()]
        if not files:
            self._answer(b"", 404)
        elif kind == "revision":
            names = [str(path.relative_to(folder)) for path in files]
            content = {"id": f"me/{folder.name}", "sha": COMMIT, "private": False, "tags": []}
            content["siblings"] = [{"rfilename": name} for name in names]
            self._answer(json.dumps(content).encode())
        elif kind == "tree":
            entries = [
                {
                    "type": "file",
                    "path": str(path.relative_to(folder)),
                    "size": path.stat().st_size,
                    "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
                }
                for path in files
            ]
            self._answer(json.dumps(entries).encode())
        else:  # resolve
            name = "/".join(parts[4:])
            self.server.asked.add(name)
            self._answer((folder / name).read_bytes())

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
    """The hub with the packaged captioner and a pickle, which nobody should read.

    The run me/nested has no weights of its backbone, and names another model of a hub.
    """
    folder = tmp_path / "repositories"
    shutil.copytree(pretrained.packaged_directory("flickr8k"), folder / "photos")
    (folder / "photos" / "evil.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    content = json.loads((folder / "photos" / "dataset.json").read_text())
    content["backbone"] |= {"name": "hub:hf://a/b", "weights": None}
    (folder / "nested").mkdir()
    (folder / "nested" / "dataset.json").write_text(json.dumps(content))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.folder, server.asked = folder, set()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


PROGRAM = """
import sys
from tfcap import pretrained

for address in sys.argv[1:]:
    try:
        print(pretrained.directory_of(address))
    except ValueError as error:
        print(error)
"""


def places(folder, port, *addresses, **more):
    """What `pretrained.directory_of` says in a process, whose environment tells it the hub."""
    env = os.environ | {"HF_HOME": str(folder), "HF_ENDPOINT": f"http://127.0.0.1:{port}"} | more
    command = [sys.executable, "-c", PROGRAM, *addresses]
    done = subprocess.run(command, env=env, cwd=commands.ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_run_of_the_hub_is_loaded_and_the_second_time_needs_no_network(server, tmp_path):
    addresses = (f"hf://me/{name}" for name in ("photos", "nothing", "nested"))
    folder, missing, refused = places(tmp_path, server.server_port, *addresses)
    assert "ckpt-0.index" in server.asked and not server.asked & {"evil.pkl", "MODEL_CARD.md"}
    packaged = run_files.contents(pretrained.packaged_directory("flickr8k"))
    assert run_files.contents(folder) == {name: packaged[name] for name in server.asked}
    tfcap.load(folder)
    assert missing.startswith("hf://me/nothing cannot be downloaded: ")
    assert "names another model of a hub" in refused
    server.asked.clear()
    [offline] = places(tmp_path, server.server_port, "hf://me/photos@main", HF_HUB_OFFLINE="1")
    assert offline == folder and not server.asked
    server.shutdown()
    server.server_close()
    again, new = places(tmp_path, server.server_port, "hf://me/photos", "hf://me/new")
    assert again == folder and new.startswith("hf://me/new cannot be downloaded: ")


def test_an_export_has_a_card_with_metadata_that_the_hub_reads(tmp_path):
    commands.run_here(
        *(export, "--export_dir", tmp_path / "run", "--format=run")  # of the packaged captioner
    )
    path = tmp_path / "run" / "README.md"
    metadata = huggingface_hub.metadata_load(path)
    assert metadata["pipeline_tag"] == "image-to-text" and metadata["library_name"] == "tfcap"
    card = huggingface_hub.ModelCard.load(path)
    (result, *_) = card.data.eval_results
    assert result.metric_type and result.metric_value > 0
    assert f"| vocab.txt | {file_sha256(tmp_path / 'run' / 'vocab.txt')} |" in card.text
    assert "12,000 images, 60,000 captions, mirrored copies included |" in card.text
    # What the run says of its use and of its terms is not to be filled in.
    assert "### Training data and terms" in card.text and "unknown: fill in" not in card.text
