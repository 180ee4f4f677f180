"""The folder of the best checkpoint: its scores, its signature, and a damaged file."""

import json

import pytest
import tensorflow as tf

from tfcap import configs
from tfcap.runs.best import best_directory, read_best, read_signature


@pytest.fixture
def info(tmp_path):
    return tmp_path / "info.json"


def save_checkpoint(folder, step):
    counter = tf.Variable(step, dtype=tf.int64)
    return tf.train.Checkpoint(global_step=counter).write(str(folder / f"ckpt-{step}"))


def test_the_folder_has_the_configured_name():
    params = configs.resolve("xlan")
    assert best_directory("run", params) == "run/best_ckpt"
    params = params.replace(trainer={"best_checkpoint_export_subdir": "highest"})
    assert best_directory("run", params) == "run/highest"


def test_scores_are_the_numbers_beside_the_checkpoint(tmp_path, info):
    assert read_best(str(tmp_path)) == {}
    info.write_text(json.dumps({"CIDEr": 42.5, "signature": "XE", "best_ckpt_global_step": 300.0}))
    assert read_best(str(tmp_path)) == {"CIDEr": 42.5, "best_ckpt_global_step": 300.0}


@pytest.mark.parametrize("text", ["[1.5]", '{"CIDEr": 42'], ids=["a list", "cut"])
def test_a_damaged_file_is_refused_with_a_remedy(tmp_path, info, text):
    info.write_text(text)
    with pytest.raises(ValueError, match="info.json .*Remove it: the scores"):
        read_best(str(tmp_path))


def test_the_saved_signature_goes_before_that_of_the_configuration(tmp_path, info):
    params = configs.resolve("xlan")
    trained, converted = save_checkpoint(tmp_path, 5), save_checkpoint(tmp_path, 0)
    assert read_signature(trained, params) == "cross-entropy"
    assert read_signature(converted, params) == "unknown (converted or averaged)"
    info.write_text(json.dumps({"signature": "STANDARD_wInit+Cider-D"}))
    assert read_signature(converted, params) == "STANDARD_wInit+Cider-D"
