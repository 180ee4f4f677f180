"""A tenth of COCO 2014, with its real captions, through prepare, doctor, scores and training."""

import json

import pytest
from helpers import coco_2014

from tfcap import configs, doctor, runs
from tfcap.data.prepared import PreparedData
from tfcap.metrics.coco import CocoScorer
from tfcap.prepare import prepare
from tfcap.training.stages import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Every tenth image of both files, prepared."""
    if coco_2014.jar() is None:
        pytest.skip("this pycocoevalcap has no spice-1.0.jar, which holds COCO's captions")
    folder = tmp_path_factory.mktemp("coco")
    coco_2014.write(folder, every=10)
    files = [folder / f"captions_{split}2014.json" for split in coco_2014.SPLITS]
    prepare(folder / "data", captions=files, features=folder / "coco_ims.npy")
    return PreparedData.load(folder / "data")


def test_all_images_captions_words_and_ngrams_are_counted(data):
    splits = data.fingerprint["splits"]
    counts = {name: (split["images"], split["captions"]) for name, split in splits.items()}
    assert counts == {"train": (8279, 41418), "val": (4051, 20270)}
    assert len(data.vocab) == 3064
    frequencies = data.document_frequencies()
    assert (len(frequencies.counts), frequencies.images) == (455192, 8279)


def test_the_doctor_finds_no_leaks_but_equal_captions(data):
    found = {finding.check: finding for finding in doctor.findings(data_dir=data.folder)}
    assert not [check for check, one in found.items() if one.status == doctor.PROBLEM]
    assert found["same pictures"].text.startswith("none in two splits")
    assert found["same captions"].text.startswith("362 of 20270 captions of val stand in train")


def test_the_score_of_a_person_is_that_of_the_first_caption_against_the_others(data):
    references = data.references("val")
    with CocoScorer(["CIDEr"], java=None) as scorer:
        scores = scorer.score(
            {image: captions[1:] for image, captions in references.items()},
            {image: captions[0] for image, captions in references.items()},
        )
    assert scores.corpus["CIDEr"] == pytest.approx(88.35, abs=0.005)


def test_a_narrow_system_trains_on_it(data, tmp_path):
    override = {
        "task": {
            "data_dir": data.folder,
            "max_length": 20,
            "model": {"xlan": {"width": 32, "encoder_layers": 1, "attention_width": 32}},
            "train_data": {"global_batch_size": 20, "captions_per_image": 2},
        },
        "trainer": {"train_steps": 50, "steps_per_loop": 25, "checkpoint_interval": 50},
    }
    params = configs.resolve("xlan", override=json.dumps(override))
    train(params, "xlan", str(tmp_path / "run"), mode="train")
    assert runs.step_of(runs.newest_checkpoint(str(tmp_path / "run"))) == 50
