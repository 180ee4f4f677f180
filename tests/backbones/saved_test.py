"""Weights in a prepared directory and in a run are found, compared and named."""

import pytest

from tfcap.backbones import saved
from tfcap.backbones.backbone import Backbone


@pytest.fixture(scope="module")
def network():
    return Backbone("small_cnn", image_size=48).network


def test_unchanged_weights_are_not_written_again(network, tmp_path):
    name, digest = saved.save(network, tmp_path, None)
    path = tmp_path / name
    written = path.stat().st_mtime_ns
    assert saved.save(network, tmp_path, digest.sha256) == (name, digest)
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"wrong")
    assert saved.save(network, tmp_path, digest.sha256) == (name, digest)
    assert path.stat().st_size > 5


def test_the_digest_of_a_preset_is_that_of_all_its_files(tmp_path):
    data, run = tmp_path / "data" / "backbone.preset", tmp_path / "run"
    data.mkdir(parents=True)
    run.mkdir()
    for name in ("config.json", "model.weights.h5"):
        (data / name).write_text(name)
    made_by = {"weights": "backbone.preset", "weights_sha256": saved.digest(data).sha256}
    with pytest.raises(ValueError, match="are missing"):
        saved.checked_weights(made_by, run)
    saved.copy(data, run / "backbone.preset")
    saved.copy(data, run / "backbone.preset")  # a run that starts again
    assert saved.checked_weights(made_by, run) == str(run / "backbone.preset")
    (run / "backbone.preset" / "task.json").write_text("{}")
    with pytest.raises(ValueError, match="are not those that made the features"):
        saved.checked_weights(made_by, run)


def test_the_check_beside_a_block_wins_over_an_error_in_it(network, tmp_path):
    name, digest = saved.save(network, tmp_path, None)
    made_by = {"weights": name, "weights_sha256": digest.sha256}
    with saved.checked_beside(made_by, tmp_path) as path:
        assert path == str(tmp_path / name)
    (tmp_path / name).write_bytes(b"wrong")
    with pytest.raises(ValueError, match="are not those that made the features"):
        with saved.checked_beside(made_by, tmp_path):
            raise OSError("no HDF5 file")
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match="are missing"):
        with saved.checked_beside(made_by, tmp_path):
            raise AssertionError("the block must not run")
