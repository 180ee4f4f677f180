"""The measured peak of the memory of training, and exhausted memory."""

import signal
import subprocess

import pytest
from helpers import commands, events

pytestmark = pytest.mark.slow

EXHAUSTED = """
import tensorflow as tf
from tfcap import exhausted
from tfcap.training.train import LESS_MEMORY

def step(side):  # the error of a graph has the reason in the midst of many lines
    return tf.reduce_sum(tf.zeros((side, side, 64)))

try:
    with exhausted.readable_errors("a training step", LESS_MEMORY):
        tf.function(step, autograph=False)(tf.constant(2**20))
except ValueError as error:
    print(repr(str(error)))
"""


@pytest.fixture(scope="module", autouse=True)
def exhausting():
    """A process without enough memory. TensorFlow waits ten seconds for some before it gives up."""
    process = commands.start("-c", EXHAUSTED, stdout=subprocess.PIPE)
    yield process
    process.send_signal(signal.SIGKILL)


def test_training_says_its_peak_once_after_the_first_loop(small, tmp_path, capsys):
    two_loops = {"trainer": {"train_steps": 2, "summary_interval": 1, "steps_per_loop": 1}}
    events.run(events.merged(small, two_loops), tmp_path, "train")
    lines = [line for line in capsys.readouterr().out.splitlines() if "memory:" in line]
    assert len(lines) == 1
    _, _, peak = lines[0].removesuffix(" GiB so far").rpartition(" ")
    assert 0.3 < float(peak) < 64


def test_exhausted_memory_is_one_line_with_the_remedy(exhausting):
    line = exhausting.communicate()[0]
    assert line.startswith("'There is not enough memory for a training step: OOM when allocating")
    assert "task.micro_batches" in line and "\\n" not in line
