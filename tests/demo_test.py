"""The command serves the page until it is interrupted, and refuses what cannot be shown."""

import contextlib
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest
from helpers import commands

from tfcap import demo
from tfcap.training import workers


@pytest.mark.slow
def test_the_command_serves_the_page_until_it_is_asked_to_end(exported):
    [port] = workers.free_ports(1)
    address, answers = f"http://127.0.0.1:{port}", []

    def visit():
        while not answers:
            with contextlib.suppress(urllib.error.URLError):
                answers.append(urllib.request.urlopen(address, timeout=60).read())
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    others = set(threading.enumerate())
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threading.Thread(target=visit, daemon=True).start()
    flags = [f"--model_dir={exported}", f"--beside=small={exported}", f"--port={port}"]
    done = commands.run_command("tfcap.demo", *flags)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for thread in set(threading.enumerate()) - others:
        thread.join(60)
    assert done.returncode == 0 and done.stderr == "" and b"Caption a picture" in answers[0]
    first, second, page = done.stdout.splitlines()
    assert ": the SavedModel " in first and second.startswith("small: the SavedModel ")
    assert page.startswith(f"The page: {address} ")


@pytest.mark.slow
def test_both_models_have_the_decoding_of_the_flags(trained):
    args = demo.Demo(
        model_dir=[trained],
        beside=trained,
        decoding="length_power=0.5",
        beam=3,
        checkpoint="latest",
    )
    loaded = demo._models(args)
    assert list(loaded) == ["captions", "beside"]
    for model in loaded.values():
        about = model.about()
        assert about["decoding"]["beam"] == 3 and about["decoding"]["length_power"] == 0.5
        assert "ckpt-" in about["about"] and "best_ckpt" not in about["about"]
