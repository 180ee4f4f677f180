"""The command serves until it is asked to end, loses nothing, and asks for a token."""

import errno
import json
import os
import signal
import socket
import subprocess
import threading

import openai
import pytest
from helpers import commands
from helpers.services import jpeg, message

import tfcap
from tfcap import errors, serve
from tfcap.training import workers

PICTURES = [jpeg(seed) for seed in range(3)]


def start(*flags):
    """Starts the command; returns the process and the lines that it prints."""
    process = commands.start(
        "-m", "tfcap.serve", *flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    return process, [process.stdout.readline() for _ in range(2)]


@pytest.mark.slow
def test_what_has_come_is_answered_before_the_command_ends():
    process, (about, address) = start("--port=0", "--sentence", "--name=mine:latest")
    try:
        assert about == f"mine: {tfcap.load().runtime}\n"
        port = int(address.split()[2].rpartition(":")[2])
        body = json.dumps({"messages": [message(PICTURES[0])]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{port}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            link.sendall(head.encode() + body[:100])
            with socket.create_connection(("127.0.0.1", port), timeout=60) as other:
                other.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert other.recv(99).startswith(b"HTTP/1.1 200 ")  # so the first has arrived
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionRefusedError):
                while True:  # until it listens no more
                    socket.create_connection(("127.0.0.1", port), timeout=60).close()
            link.sendall(body[100:])
            answer = link.makefile("rb").read()
        caption = tfcap.load()(PICTURES[0]).text
        assert answer.startswith(b"HTTP/1.1 200 ") and caption[1:].encode() in answer
        assert process.wait(60) == 0
    finally:
        process.kill()
        _, told = process.communicate()
    assert not commands.errors(subprocess.CompletedProcess([], 0, "", told)), told


@pytest.mark.slow
def test_clients_that_try_again_lose_nothing_when_the_server_is_killed():
    [port] = workers.free_ports(1)
    flags = ["--port", str(port)]
    process, _ = start(*flags)
    wanted = [one.text for one in tfcap.load()(PICTURES)]
    answers, begun = {}, threading.Event()

    def ask(number):
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="any", max_retries=20) as client:
            for _ in range(8):
                said = [message(PICTURES[number])]
                answer = client.chat.completions.create(model="flickr8k", messages=said)
                answers.setdefault(number, []).append(answer.choices[0].message.content)
                begun.set()

    threads = [threading.Thread(target=ask, args=[number]) for number in range(3)]
    try:
        for thread in threads:
            thread.start()
        assert begun.wait(60)  # the others have asked and wait
        process.kill()
        process.communicate()
        process, _ = start(*flags)
        for thread in threads:
            thread.join(120)
    finally:
        process.kill()
        process.communicate()
    assert answers == {number: [text] * 8 for number, text in enumerate(wanted)}


def run(*flags):
    return commands.run_command("tfcap.serve", *flags)


def test_another_host_needs_a_token(monkeypatch, tmp_path):
    monkeypatch.delenv("TFCAP_TOKEN", raising=False)
    done = run("--host=0.0.0.0")
    assert done.returncode == 2 and "--host=0.0.0.0 lets other machines ask" in done.stderr
    done = run("--host=0.0.0.0", "--token=short")
    assert done.returncode == 2 and "at least 16 printable" in done.stderr
    (tmp_path / "token").write_text("short\n")
    done = run(f"--token_file={tmp_path / 'token'}")
    assert done.returncode == 2 and "at least 16 printable" in done.stderr
    done = run(f"--token_file={tmp_path / 'token'}", "--token=b")
    assert done.returncode == 2 and "Give one of them" in done.stderr


def test_the_token_is_that_of_the_flag_the_file_or_the_environment(monkeypatch, tmp_path):
    secrets = ["of-the-environment", "of-the-command-line", "of-the-first-line"]
    monkeypatch.setenv("TFCAP_TOKEN", secrets[0])
    (tmp_path / "token").write_text(f"{secrets[2]}\nanother line\n")
    assert serve._token(serve.Serve()) == secrets[0]
    assert serve._token(serve.Serve(token=secrets[1])) == secrets[1]
    assert serve._token(serve.Serve(token_file=str(tmp_path / "token"))) == secrets[2]


def test_unsure_captions_need_a_level():
    with pytest.raises(errors.UsageError, match="needs --min_confidence"):
        commands.run_here(serve, "--unsure")


def test_a_port_in_use_is_told():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(f"--port={port}")
    assert done.returncode == 3 and f"port {port}: {os.strerror(errno.EADDRINUSE)}" in done.stderr
