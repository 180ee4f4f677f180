"""The measured peak of the memory of training."""

import pytest
from helpers import events

pytestmark = pytest.mark.slow


def test_training_says_its_peak_once_after_the_first_loop(small, tmp_path, capsys):
    two_loops = {"trainer": {"train_steps": 2, "summary_interval": 1, "steps_per_loop": 1}}
    events.run(events.merged(small, two_loops), tmp_path, "train")
    lines = [line for line in capsys.readouterr().out.splitlines() if "memory:" in line]
    assert len(lines) == 1
    _, _, peak = lines[0].removesuffix(" GiB so far").rpartition(" ")
    assert 0.3 < float(peak) < 64
