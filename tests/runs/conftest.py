"""What the tests of run directories share: data, a configuration, and a copy of a trained run."""

import json
import shutil

import pytest
from helpers import seeds
from helpers.prepared import with_other_vocabulary
from helpers.run_files import EXPERIMENT, OTHER_WORDS

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import SPECIALS, Vocab


@pytest.fixture(scope="module")
def params(small):
    return configs.resolve(EXPERIMENT, override=json.dumps(small))


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a finished run of 6 steps with checkpoints at steps 4 and 6."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="module")
def other_vocabulary(shapes, tmp_path_factory):
    """The same data, prepared with one word less."""
    folder = tmp_path_factory.mktemp("other") / "shapes"
    return PreparedData.load(with_other_vocabulary(shapes, folder))


@pytest.fixture(scope="module")
def other(data, params, tmp_path_factory):
    """A run directory whose vocabulary shares three words with the shapes, and its model."""
    vocab = Vocab([*SPECIALS, *OTHER_WORDS])
    seeds.set_seed(9)
    model = runs.build_model(params.task, len(vocab), data.fingerprint["features"])
    fingerprint = data.fingerprint | {"vocab_sha256": vocab.sha256}
    folder = str(tmp_path_factory.mktemp("other") / "run")
    path = runs.create(folder, "attention_lstm", params, vocab, fingerprint, model)
    assert path == f"{folder}/ckpt-0"
    return folder, model
