"""Training with several seeds: a directory each, and the mean and the spread of the scores."""

import json
import shutil

import pytest
from helpers import commands, events

from tfcap import cli, configs, runs, train
from tfcap.training.run import seed_table as table


def copies(trained, folder, scores):
    """Runs whose best validations have these scores."""
    found = {}
    for seed, values in scores.items():
        run = shutil.copytree(trained, folder / f"seed_{seed}")
        values = {"best_ckpt_global_step": 4.0, "signature": "XE", **values}
        (run / "best_ckpt" / "info.json").write_text(json.dumps(values))
        found[seed] = str(run)
    return found


def test_mean_and_spread_are_over_the_scores_that_all_runs_have(trained, tmp_path):
    scores = {3: {"CIDEr": 30.0, "METEOR": 9.0}, 5: {"CIDEr": 34.0}, 8: {"CIDEr": 38.0}}
    found = copies(trained, tmp_path, scores)
    assert table(found).splitlines() == [
        "best validations of the seeds 3, 5, 8: mean ± standard deviation",
        "  CIDEr              34.00 ± 4.00   (30.00, 34.00, 38.00)",
    ]
    assert table({3: found[3]}).splitlines()[1] == "  CIDEr              30.00   (30.00)"


def test_seeds_must_be_different_numbers_and_need_an_experiment():
    for seeds in ("1,1", "1,x", "-1", "1,4294967296"):
        with pytest.raises(cli.UsageError, match="--seeds must be different whole numbers"):
            commands.run_here(train, "--experiment=attention_lstm", f"--seeds={seeds}")
    with pytest.raises(cli.UsageError, match="--seeds needs --experiment"):
        commands.run_here(train, "--seeds=1,2", "--model_dir=somewhere")


@pytest.mark.slow
@pytest.mark.usefixtures("module_without_java")
def test_each_seed_trains_a_run_of_its_own(small, tmp_path, capsys):
    quick = {
        "trainer": {
            "train_steps": 1,
            "steps_per_loop": 1,
            "summary_interval": 1,
            "validation_interval": 1,
            "shown_images": 0,
            "train_tf_while_loop": False,
            "train_tf_function": False,
            "eval_tf_function": False,
        },
        "task": {"max_length": 5, "validation_data": {"limit": 2}, "decoding": {"beam": 1}},
    }
    quick = events.merged(small, quick)
    quick["task"]["model"] = {"show_tell": {"width": 8}}
    override = json.dumps(quick)
    arguments = ["--experiment=show_tell", "--params_override", override]
    commands.run_here(train, *arguments, "--model_dir", tmp_path / "run", "--seeds=3,4")
    said = capsys.readouterr().out
    assert "best validations of the seeds 3, 4: mean" in said and "  CIDEr " in said
    losses = []
    for seed in (3, 4):
        folder = tmp_path / "run" / f"seed_{seed}"
        assert configs.load(folder / "params.yaml").task.seed == seed
        assert runs.read_best(str(folder / "best_ckpt"))
        losses.append(events.curve(folder / "train"))
    assert losses[0] != losses[1]
