"""Conversion of files of the released sizes, and of files that do not fit."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import parity
from helpers.released_files import JDAI, ROWS, checkpoint, float32_positions, state

from tfcap import runs
from tfcap.importers.convert import convert
from tfcap.layers.positions import sinusoids
from tfcap.serving import saved_model

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


POSITIONS = "module.decoder.embed_positions.pe"
RELEASED_WORDS = [f"w{number}" for number in range(1, 9487)] + ["UNK"]  # 9,487 words, id 0 apart


def test_a_file_of_the_released_sizes_is_converted(tmp_path):
    """Its 5,000 positions equal the sinusoids up to float32 rounding, so no table is stored."""
    tensors, rng = state("xtransformer"), np.random.default_rng(6)
    tensors[POSITIONS] = float32_positions(5000, 64)[None]
    for key in ("embed_tokens.weight", "generator.weight", "generator.bias"):
        shape = (9488, *tensors[f"module.decoder.{key}"].shape[1:])
        tensors[f"module.decoder.{key}"] = rng.normal(size=shape).astype(np.float32)
    family, path, words = checkpoint(tmp_path, "xtransformer", tensors)
    (tmp_path / "words.txt").write_text("\n".join(RELEASED_WORDS) + "\n")
    line = convert(family, path, words, str(tmp_path / "run"))
    run = runs.load(str(tmp_path / "run"))
    assert "9490 words" in line and "position" not in line
    assert not run.params.task.model.xtransformer.stored_positions
    assert len(run.vocab) == 9490 and run.vocab.words[4] == "w1"
    weights = run.model.checkpoint_items["weights"]
    assert "position_codes/table" not in weights
    words = tensors["module.decoder.embed_tokens.weight"]
    expected = np.concatenate([words[[0, 0, 0, 9487]], words[1:9487]])
    np.testing.assert_array_equal(weights["embed_tokens/embeddings"], expected)


def test_other_positions_are_kept_in_checkpoint_and_export(tmp_path):
    tensors = state("xtransformer")
    table = float32_positions(5000, 64)[None]
    table[0, 3, 5] += 2
    tensors[POSITIONS] = table
    features = parity.read("xtransformer")["in/feats"]
    line = convert(*checkpoint(tmp_path, "xtransformer", tensors), str(tmp_path / "run"))
    run = runs.load(str(tmp_path / "run"))
    assert "position codes of the file" in line
    assert run.params.task.model.xtransformer.stored_positions
    table = run.model.checkpoint_items["weights"]["position_codes/table"]
    wanted = tensors[POSITIONS][0, :17]
    np.testing.assert_array_equal(table, wanted)
    inputs = {"features": features, "mask": tf.ones(features.shape[:2], bool)}
    inputs["tokens"] = tf.constant([[[1, 7, 8, 9, 10]]] * len(features))
    logits = run.model(inputs)
    exported = saved_model.server(run).model_variables
    assert any(variable is table for variable in exported)
    table.assign(sinusoids(17, 64))
    apart = np.abs(run.model(inputs) - logits).max(axis=(0, 1, 3))
    assert apart[:3].max() < 1e-4 and apart[3] > 1e-2  # position 3 is read


def test_overrides_change_the_converted_configuration(tmp_path):
    source = checkpoint(tmp_path, "updown")
    line = convert(
        *source, str(tmp_path / "run"), 8, "task.model.updown.embed_activation=relu,task.seed=5"
    )
    params = runs.load(str(tmp_path / "run")).params
    assert params.task.model.updown.embed_activation == "relu" and params.task.seed == 5
    assert params.task.max_length == 8 and "embed_activation" in line
