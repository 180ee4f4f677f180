"""Several runs are loaded as one captioner, and refused where they do not go together."""

import json

import pytest
from helpers import seeds

import tfcap
from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.scoring.decode import decode_split


@pytest.fixture(scope="module")
def together(trained, shapes, tmp_path_factory):
    """A trained run and one of another system on the same data, with random weights."""
    data = PreparedData.load(shapes)
    override = {"task": {"data_dir": shapes, "max_length": 12, "model": {"updown": {"width": 16}}}}
    params = configs.resolve("updown", override=json.dumps(override))
    seeds.set_seed(5)
    model = runs.build_model(params.task, len(data.vocab), data.feature_dim)
    folder = str(tmp_path_factory.mktemp("other") / "run")
    runs.create(folder, "updown", params, data.vocab, data.fingerprint, model)
    return [trained, folder]


@pytest.mark.slow
def test_runs_are_loaded_as_one(together, captioner, shapes):
    run = runs.load_together(together)
    assert [m.name for m in run.model.members] == ["attention_lstm", "updown"]
    data = PreparedData.load(shapes)

    parts = (run.model, run.vocab, runs.search(run), data, "val", 6)
    captions = decode_split(*parts).captions
    assert len(captions) == 12
    names = data.file_names("val")
    paths = [f"{data.images}/{names[image]}" for image in captions]
    found = [str(caption) for caption in tfcap.load(together)(paths)]
    assert found == [texts[0] for texts in captions.values()]
    assert found != [str(caption) for caption in captioner(paths)]  # of the first run alone


def test_one_run_is_no_ensemble(together):
    assert runs.load_together(together[:1]).model.name == "attention_lstm"


def test_runs_of_other_data_are_refused(together, tmp_path):
    fingerprint = runs.read_fingerprint(together[1])
    first = runs.load(together[1])
    other = fingerprint | {"backbone": fingerprint["backbone"] | {"grid": 3}}
    folder = str(tmp_path / "run")
    runs.create(folder, "updown", first.params, first.vocab, other, first.model)
    with pytest.raises(ValueError, match="must have the same backbone. .*on the same data"):
        runs.load_together([together[0], folder])


def test_runs_with_another_limit_of_regions_are_refused(together, tmp_path):
    first = runs.load(together[1])
    params = first.params.replace(task={"validation_data": {"max_regions": 7}})
    folder = str(tmp_path / "run")
    runs.create(folder, "updown", params, first.vocab, first.fingerprint, first.model)
    with pytest.raises(ValueError, match="max_regions. Received: 7 in .* all in"):
        runs.load_together([together[0], folder])


def test_members_are_different_runs_and_take_no_checkpoint_path(together):
    with pytest.raises(
        ValueError, match="checkpoint PATH needs exactly one --model_dir. Received: 2"
    ):
        runs.load_together(together, "ckpt-6")
    with pytest.raises(ValueError, match="must name different runs"):
        runs.load_together([together[0], together[0] + "/"])
