"""Conversion of files that do not fit, and with other options."""

import numpy as np
import pytest
from helpers.released_files import JDAI, ROWS, checkpoint, state

from tfcap import runs
from tfcap.released.convert import convert

pytestmark = pytest.mark.slow


def test_the_error_lists_every_wrong_tensor(tmp_path):
    tensors = state("xlan")
    del tensors["module.att2ctx.0.bias"], tensors["module.attention.layer_norm.weight"]
    tensors["module.att_lstm.weight_ih"] = np.zeros((256, 100), np.float32)
    tensors["module.att_embed.3.weight"] = np.zeros((2, 3), np.float32)
    tensors["module.logit.bias"] = np.full(ROWS, np.nan, np.float32)
    faults = [
        "att2ctx/bias [128] is missing",
        "attention_norm/gamma [64] is missing",
        "att_lstm.weight_ih is [100, 256] and should be [128, 256]",
        "att_embed.3.weight is not used",
        "logit.bias holds NaN or infinity",
    ]
    source = checkpoint(tmp_path, "xlan", tensors)
    with pytest.raises(ValueError, match="the weights do not fit") as error:
        convert(*source, str(tmp_path / "run"))
    for fault in faults:
        assert fault in str(error.value)
    assert str(error.value).count(";") == len(faults) - 1
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_of_another_length_is_refused(tmp_path):
    family, path, words = checkpoint(tmp_path, "updown")
    (tmp_path / "short.txt").write_text("\n".join(JDAI[1:]) + "\n")
    with pytest.raises(ValueError, match="short.txt has words for 59 ids, .* has 60"):
        convert(family, path, str(tmp_path / "short.txt"), str(tmp_path / "run"))


def test_overrides_change_the_converted_configuration(tmp_path):
    source = checkpoint(tmp_path, "updown")
    line = convert(
        *source, str(tmp_path / "run"), 8, "task.model.updown.embed_activation=relu,task.seed=5"
    )
    params = runs.load(str(tmp_path / "run")).params
    assert params.task.model.updown.embed_activation == "relu" and params.task.seed == 5
    assert params.task.max_length == 8 and "embed_activation" in line
