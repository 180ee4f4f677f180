"""Runs on region features: m-RNN on vectors of whole images, figures and report over boxes."""

import json
import re

import numpy as np
import pytest
from helpers import commands, features

from tfcap import configs, evaluate, runs
from tfcap.data.prepared import PreparedData
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings
from tfcap.training.stages import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_java")]


def _images(shapes):
    source = json.loads(open(f"{shapes}/dataset_shapes.json").read())["images"]
    images = {entry["imgid"]: features.image(entry["imgid"]) for entry in source}
    return {
        key: one._replace(size=(96, 96), boxes=np.floor(one.unit * 96))
        for key, one in images.items()
    }


def _prepared(shapes, out, given):
    settings = Settings(str(out), f"{shapes}/dataset_shapes.json", features=str(given), min_count=1)
    return str(prepare(settings))


def _trained(small, name, model, data, folder):
    override = {**small, "task": {**small["task"], "data_dir": data, "model": {name: model}}}
    override["trainer"] = {**small["trainer"], "train_steps": 2, "validation_interval": 2}
    # Two steps and one validation take less time than their graphs.
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    override["trainer"] |= dict.fromkeys(graphs, False)
    override["task"]["validation_data"] = {**small["task"]["validation_data"], "limit": 2}
    override["task"] |= {"max_length": 6, "decoding": {"beam": 1}}
    train(configs.resolve(name, override=json.dumps(override)), name, str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def over_boxes(shapes, small, tmp_path_factory):
    """The directory of a run on features of a bottom-up tsv; the data has no pictures."""
    folder = tmp_path_factory.mktemp("boxes")
    data = _prepared(shapes, folder / "data", features.bottom_up(folder / "a.tsv", _images(shapes)))
    sizes = small["task"]["model"]["attention_lstm"]
    return _trained(small, "attention_lstm", sizes, data, folder / "run")


def test_figures_and_report_show_boxes_of_all_models(over_boxes, trained, shapes, tmp_path, capsys):
    """The model beside reads its own data, a grid of the same pictures."""
    page, folder = tmp_path / "report.html", tmp_path / "figures"
    values = ["--model_dir", over_boxes, "--limit", "3", "--beside", f"grid={trained}"]
    values += ["--images", f"{shapes}/images", "--attention", folder, "--report", page]
    commands.run_here(evaluate, *values)
    said = capsys.readouterr().out
    assert f"{folder}: 3 figures" in said and "3 images, 3 of them with a picture" in said
    ids = PreparedData.load(shapes).index("val").id[:3].tolist()
    names = PreparedData.load(shapes).file_names("val")
    assert {path.stem for path in folder.iterdir()} == {names[i].split(".")[0] for i in ids}
    content = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert [run["name"] for run in content["runs"]] == ["run", "grid"]
    boxes = [{one["attended"]["boxes"] for one in row["runs"]} for row in content["images"]]
    assert all(len(pair) == 2 for pair in boxes)  # each model has its own regions
    assert [tiles for _, tiles in content["boxes"]].count(True) == 1


def test_mrnn_is_trained_and_scored_on_vectors_of_another_width(shapes, small, tmp_path, capsys):
    data = _prepared(
        shapes, tmp_path / "data", features.ruotianluo(tmp_path / "source", _images(shapes))
    )
    sizes = dict(embed_width=6, width=8, multimodal_width=9)
    run = _trained(small, "mrnn", sizes, data, tmp_path / "run")
    model = runs.load(run).model
    assert model.feature_dim == 5 and PreparedData.load(data).feature_dim == features.WIDTH
    kernel = model.checkpoint_items["weights"]["multimodal/image/kernel"]
    assert kernel.shape == (5, 9)
    commands.run_here(evaluate, "--model_dir", run, "--limit", "4", "--perplexity")
    assert "perplexity: " in capsys.readouterr().out
    other = _prepared(
        shapes, tmp_path / "other", features.bottom_up(tmp_path / "a.tsv", _images(shapes))
    )
    with pytest.raises(ValueError, match=f"another feature width .{features.WIDTH}. than .* .5."):
        commands.run_here(evaluate, "--model_dir", run, "--data_dir", other)
