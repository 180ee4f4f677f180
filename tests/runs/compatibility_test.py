"""A run refuses configurations and data that do not belong to it."""

import os

import pytest
from helpers.run_files import EXPERIMENT, contents

from tfcap import runs
from tfcap.data.prepared import PreparedData


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            {"model": {"attention_lstm": {"width": 32}}},
            ["attention_lstm.width must stay 16", "32"],
        ),
        ({"max_length": 13}, ["task.max_length must stay 12", "13"]),
        ({"seed": 2}, ["task.seed must stay 1", "2"]),
        (
            {"train_data": {"global_batch_size": 4}},
            ["global_batch_size must stay 8", "4"],
        ),
    ],
)
def test_keys_that_may_not_change_during_a_run(run, params, data, change, parts):
    before = contents(run)
    with pytest.raises(ValueError) as caught:
        runs.begin(run, EXPERIMENT, params.replace(task=change), data)
    assert all(part in str(caught.value) for part in [str(run), *parts])
    assert contents(run) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("best_checkpoint_eval_metric", "perplexity"), ("best_checkpoint_metric_comp", "lower")],
)
def test_the_comparison_of_scores_stays(run, params, data, key, value):
    """The best score so far, of `patience` for example, is not one of another metric."""
    other = params.replace(trainer={key: value})
    best = runs.best_directory(str(run), params)
    with pytest.raises(ValueError, match=f"trainer.{key} must stay .*, by which {best} was chosen"):
        runs.begin(run, EXPERIMENT, other, data)
    runs.begin(run, EXPERIMENT, other, data, train=False)
    os.remove(os.path.join(best, "info.json"))  # no validation has had the score
    runs.begin(run, EXPERIMENT, other, data)


def test_the_state_of_the_optimizer_must_fit(run, params, data, tmp_path):
    before = contents(run)
    for change, part in (
        ({"trainer": {"optimizer_config": {"name": "sgd"}}}, "optimizer_config.name must stay"),
        ({"runtime": {"mixed_precision_dtype": "float16"}}, "mixed_precision_dtype must stay"),
    ):
        with pytest.raises(ValueError, match=f"{part}.*task.init_checkpoint"):
            runs.begin(run, EXPERIMENT, params.replace(**change), data)
        assert contents(run) == before
    same = {"trainer": {"optimizer_config": {"name": "adam"}}}
    assert runs.begin(run, EXPERIMENT, params.replace(**same), data) > 0
    # The first checkpoint of a converted run has weights alone.
    loaded = runs.load(str(run))
    folder = str(tmp_path / "converted")
    parts = (loaded.params, loaded.vocab, loaded.fingerprint, loaded.model)
    runs.create(folder, EXPERIMENT, *parts)
    half = params.replace(runtime={"mixed_precision_dtype": "float16"})
    assert runs.begin(folder, EXPERIMENT, half, data) == 0


def test_a_run_refuses_another_experiment_and_other_data(run, params, data, other_vocabulary):
    before = contents(run)
    with pytest.raises(ValueError, match="this experiment.*'attention_lstm_scst'.*--model_dir"):
        runs.begin(run, "attention_lstm_scst", params, data)
    words = f"--vocab {run}/vocab.txt"
    with pytest.raises(ValueError, match=f"The vocabulary must stay.*{words}"):
        runs.begin(run, EXPERIMENT, params, other_vocabulary)
    wider = {**data.fingerprint, "features": {**data.fingerprint["features"], "dim": 7}}
    with pytest.raises(ValueError, match="feature width must stay .* 194. Received: 7 "):
        runs.begin(run, EXPERIMENT, params, PreparedData(data.folder, wider, data.vocab))
    made_by = {**data.fingerprint["backbone"], "grid": 4}
    pooled = {**data.fingerprint, "backbone": made_by}
    with pytest.raises(ValueError, match="backbone must stay .*pixels, grid 6 .*: pixels, grid 4 "):
        runs.begin(run, EXPERIMENT, params, PreparedData(data.folder, pooled, data.vocab))
    assert contents(run) == before


def test_a_run_refuses_data_of_another_vocabulary(run, data, other_vocabulary):
    loaded = runs.load(run)
    runs.check_vocabulary(loaded, data)
    with pytest.raises(ValueError, match=f"vocabulary must be the one that .*--vocab {run}/vocab"):
        runs.check_vocabulary(loaded, other_vocabulary)


def test_changed_settings_are_told_and_the_old_ones_kept(run, params, data, capsys):
    old = (run / "params.yaml").read_bytes()
    runs.begin(run, EXPERIMENT, params, data)
    assert "->" not in capsys.readouterr().out and not list(run.glob("params_until*"))
    rate = {"optimizer_config": {"schedule": {"learning_rate": 0.0005}}, "train_steps": 9}
    runs.begin(run, EXPERIMENT, params.replace(trainer=rate), data, train=False)
    assert "->" not in capsys.readouterr().out  # a validation changes nothing
    runs.begin(run, EXPERIMENT, params.replace(trainer=rate), data)
    said = capsys.readouterr().out
    assert said.count("->") == 2 and said.count("trainer.train_steps 6 -> 9 from step 6") == 1
    assert "schedule.learning_rate 0.003 -> 0.0005 from step 6" in said
    rate["train_steps"] = 10  # a second start at the same step
    runs.begin(run, EXPERIMENT, params.replace(trainer=rate), data)
    assert "trainer.train_steps 9 -> 10 from step 6" in capsys.readouterr().out
    assert (run / "params_until_step_6.yaml").read_bytes() == old
