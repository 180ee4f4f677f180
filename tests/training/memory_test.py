"""The estimate of memory before the first step."""

import json

import numpy as np
import pytest
from helpers import events

from tfcap import configs
from tfcap.data.prepared import PreparedData
from tfcap.training import keras3, memory, optim, self_critical
from tfcap.training.task import CaptionTask

NARROW = {"mrnn": {"width": 8, "embed_width": 8, "multimodal_width": 8}}


def estimate(small, objective="xe", replicas=1, **task):
    overrides = events.merged(
        small, {"task": {"objective": objective, "label_smoothing": 0.0, **task}}
    )
    params = configs.resolve("mrnn", override=json.dumps(overrides))
    strategy = keras3.strategy(configs.Runtime(replicas=replicas))
    with strategy.scope():
        task = self_critical.build_task(
            params, PreparedData.load(small["task"]["data_dir"]), replicas
        )
        model = task.build_model()
        optimizer = task.build_optimizer(model, optim.Plateau(0, 1.0, "CIDEr", True))
    return memory.estimate(task, model, optimizer, strategy), model


def test_parts(small):
    """Weights, gradients and the two moments are exact; the batch decides about the rest."""
    found, model = estimate(small, model=NARROW)
    size = 4 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert found.gradients == size and size <= found.weights < 1.1 * size
    assert 2 * size <= found.slots < 2 * size + 100
    assert found.total == sum(found[:4])
    twice = {"global_batch_size": 16, "captions_per_image": 2}
    double, _ = estimate(small, model=NARROW, train_data=twice)
    assert 1.6 < double.activations / found.activations < 2.1
    assert "GiB" in memory.sentence(found)


def test_samples_need_memory_and_micro_batches_save_it(small):
    few, _ = estimate(small, "scst", self_critical={"samples": 2})
    many, _ = estimate(small, "scst", self_critical={"samples": 8})
    parts, _ = estimate(small, "scst", self_critical={"samples": 8}, micro_batches=4)
    assert parts.activations < 0.75 * many.activations and few.activations < many.activations


def test_one_replica_of_two(small):
    one, _ = estimate(small, train_data={"global_batch_size": 4, "captions_per_image": 2})
    two, _ = estimate(
        small, replicas=2, train_data={"global_batch_size": 8, "captions_per_image": 2}
    )
    assert two[:3] == one[:3]
    assert two.activations == pytest.approx(one.activations, rel=0.2)


def test_largest_batch(small):
    params = configs.resolve("mrnn", override=json.dumps(small))
    data = PreparedData.load(small["task"]["data_dir"])
    task = CaptionTask(params.task, data, params.trainer.optimizer_config, 2)
    shapes = {name: spec.shape.as_list() for name, spec in memory.largest_batch(task).items()}
    regions, dim = data.max_regions, data.feature_dim
    assert shapes == {
        "features": [4, regions, dim], "mask": [4, regions], "tokens": [4, 2, 13], "id": [4]
    }  # fmt: skip


@pytest.fixture(autouse=True)
def float32():
    yield
    keras3.set_precision("float32")
