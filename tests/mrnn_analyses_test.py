"""The analyses of the m-RNN paper on a tiny m-RNN; the numbers are computed again."""

import dataclasses
import importlib.util

import numpy as np
import pytest
from helpers import commands

from tfcap import models, runs
from tfcap.inference import nearest

SPEC = importlib.util.spec_from_file_location(
    "mrnn_analyses", commands.ROOT / "tools" / "mrnn_analyses.py"
)
mrnn_analyses = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mrnn_analyses)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(trained, data):
    sizes = dict(embed_width=6, width=8, multimodal_width=10)
    run = runs.load(trained)
    mrnn = models.build("mrnn", len(data.vocab), 12, data.feature_dim, **sizes)
    return dataclasses.replace(run, model=mrnn)


def test_the_shortlist_leaves_captions_of_other_images_out(run, data, tmp_path, capsys):
    summaries = mrnn_analyses.shortlist(run, data, "val", 4, 9, 5, tmp_path / "curves.png")
    few, full = summaries["image to text, 4 nearest"], summaries["image to text"]
    assert all(few.recall[k] >= full.recall[k] for k in few.recall) and few.median < full.median
    assert few.recall[10] > full.recall[10]
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    alone = mrnn_analyses.shortlist(run, data, "val", 1, 0, 5)
    assert alone["image to text, 1 nearest"].recall[1] == 100


def test_an_image_is_the_first_in_its_neighbourhood():
    points = np.array([[0.0, 0], [1, 0], [5, 0], [1, 0], [0, 2]], np.float32)
    index = nearest.Index(points, np.arange(5) * 2)
    wanted = [[0, 1, 3], [1, 3, 0], [2, 1, 3], [3, 1, 0], [4, 0, 1]]
    assert mrnn_analyses.neighbourhoods(index, 3).tolist() == wanted
    assert mrnn_analyses.neighbourhoods(index, 9).shape == (5, 5)


def test_neighbours_of_both_spaces_and_words_are_the_nearest(run, data, capsys):
    share = mrnn_analyses.neighbours(run, data, "val", 2, 3)
    rows = []
    for space in (nearest.Space(), nearest.Space(run.model)):
        train, val = (
            nearest.open_index(data, space, splits=(s,)).vectors for s in ("train", "val")
        )
        distances = np.linalg.norm(train[None] - val[:2, None].astype(float), axis=-1)
        rows.append(np.argsort(distances, 1)[:, :3])
    assert share == 100 * np.mean([np.isin(*pair).mean() for pair in zip(*rows, strict=True)])
    assert capsys.readouterr().out.count("train_") == 12
    table = run.model.checkpoint_items["weights"]["embed_tokens/embeddings"].numpy().astype(float)
    place = data.vocab.words.index("red")
    distances = np.linalg.norm(table[4:] - table[place], axis=1)
    wanted = [data.vocab.words[4 + n] for n in np.argsort(distances)[1:4]]
    assert [word for word, _ in mrnn_analyses.words(run, ["red"], 3)[0]] == wanted
