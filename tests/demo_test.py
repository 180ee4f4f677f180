"""The command serves the page until it is interrupted, and refuses what cannot be shown."""

import signal
import subprocess
import urllib.request

import pytest
from helpers import commands

from tfcap import demo


@pytest.mark.slow
def test_the_command_serves_the_page_until_it_is_asked_to_end(exported):
    arguments = [f"--model_dir={exported}", f"--beside=small={exported}", "--port=0"]
    process = commands.start(
        *("-m", "tfcap.demo", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert ": the SavedModel " in process.stdout.readline()
    assert process.stdout.readline().startswith("small: the SavedModel ")
    address = process.stdout.readline().split()[2]
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert b"Caption a picture" in answer.read()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""


@pytest.mark.slow
def test_both_models_have_the_decoding_of_the_flags(trained):
    more = ["--decoding=length_power=0.5", "--beam=3", "--checkpoint=latest"]
    given = commands.parse(demo, f"--model_dir={trained}", f"--beside={trained}", *more)
    loaded = demo._models(given)
    assert list(loaded) == ["captions", "beside"]
    for model in loaded.values():
        about = model.about()
        assert about["decoding"]["beam"] == 3 and about["decoding"]["length_power"] == 0.5
        assert "ckpt-" in about["about"] and "best_ckpt" not in about["about"]
