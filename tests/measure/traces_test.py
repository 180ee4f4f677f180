"""Graphs are traced once, however regions, captions and references vary from batch to batch."""

import collections
import json

import pytest
from helpers import numbered

from tfcap import configs, runs
from tfcap.data.document_frequency import document_frequencies, write_document_frequencies
from tfcap.models.mrnn import MRNN
from tfcap.scoring.decode import decode_split
from tfcap.training import self_critical
from tfcap.training.task import CaptionTask
from tfcap.training.train import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of 1 to 5 regions and 1 to 6 captions, in 6 to 7 words."""
    data = numbered.prepare(str(tmp_path_factory.mktemp("numbered")))
    captions = data.references("train").values()
    ids = [[data.vocab.ids(caption.lower().split()) for caption in image] for image in captions]
    write_document_frequencies(data.folder, document_frequencies(ids))
    return data


def params_of(experiment, data):
    overrides = {
        "task": {
            "data_dir": data.folder,
            "init_checkpoint": "",
            "max_length": 9,
            "metrics": ["CIDEr"],
            "model": {"mrnn": {"width": 8, "embed_width": 8, "multimodal_width": 8}},
            "train_data": {"global_batch_size": 4},
            "validation_data": {"global_batch_size": 3},
            "decoding": {"beam": 2},
        },
        "trainer": {
            "train_steps": 10,
            "validation_interval": 10,
            "steps_per_loop": 5,
            "summary_interval": 5,
            "checkpoint_interval": 10,
            "shown_images": 0,
            "optimizer_config": {"name": "adam", "clip": "none"},
        },
    }
    return configs.resolve(experiment, override=json.dumps(overrides))


@pytest.fixture
def traces(monkeypatch):
    """How often Python went through each of these while graphs were built."""
    counts = collections.Counter()

    def count(owner, name):
        original = getattr(owner, name)

        def counted(*args, **kwargs):
            counts[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    count(CaptionTask, "train_step")
    count(self_critical.SelfCriticalTask, "objective")
    count(CaptionTask, "validation_step")
    return counts


@pytest.mark.parametrize("experiment", ["mrnn", "mrnn_scst"])
def test_batches_of_varied_shapes_do_not_trace_again(
    experiment, data, traces, tmp_path, monkeypatch
):
    """Two epochs of training and three validation batches, each of another shape."""
    params = params_of(experiment, data)
    train(params, experiment, str(tmp_path))
    assert traces["train_step"] == traces["validation_step"] == 1
    assert traces["objective"] == (experiment == "mrnn_scst")
    if experiment == "mrnn_scst":  # what follows does not depend on it
        return
    dataset = CaptionTask(params.task, data, params.trainer.optimizer_config).build_inputs(
        params.task.train_data
    )
    shapes = {(batch["features"].shape[1], batch["tokens"].shape[2]) for batch in dataset.take(10)}
    assert all(len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True))

    run = runs.load(str(tmp_path))
    steps = collections.Counter()
    original = MRNN.encode

    def encode(*args, **kwargs):
        steps["encode"] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(MRNN, "encode", encode)
    parts = (run.model, run.vocab, runs.search(run, beam=2), data, "train", 3)
    assert len(decode_split(*parts).captions) == numbered.IMAGES
    assert steps["encode"] == 1
