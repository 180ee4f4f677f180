"""Weights in a prepared directory and in a run: one file, or the directory of a preset."""

import shutil

import pytest

from tfcap.preparing.features import saved


class _Preset:
    """What `save` needs of a network: it writes a directory of two files."""

    is_preset = True

    def __init__(self, content=b"weights"):
        self.content, self.written = content, 0

    def save(self, path):
        self.written += 1
        for name, content in (("config.json", b"{}"), ("model.weights.h5", self.content)):
            with open(f"{path}/{name}", "wb") as file:
                file.write(content)


@pytest.fixture
def made_by(tmp_path):
    (tmp_path / "data").mkdir()
    name, digest = saved.save(_Preset(), tmp_path / "data", None)
    return {"weights": name, "weights_sha256": digest.sha256, "files": digest.files}


def test_unchanged_weights_are_not_written_again(made_by, tmp_path):
    again = _Preset()
    saved.save(again, tmp_path / "data", made_by["weights_sha256"])
    assert again.written == 0
    (tmp_path / "data" / "backbone.preset" / "config.json").write_text("{} ")
    _, digest = saved.save(again, tmp_path / "data", made_by["weights_sha256"])
    assert again.written == 1 and digest.sha256 == made_by["weights_sha256"]
    _, digest = saved.save(_Preset(b"other"), tmp_path / "data", None)
    assert digest.sha256 != made_by["weights_sha256"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["backbone.preset"]


def test_a_copy_of_a_preset_is_accepted_and_a_change_is_named(made_by, tmp_path):
    run, data = tmp_path / "run", tmp_path / "data"
    run.mkdir()
    copied, source = run / "backbone.preset", data / "backbone.preset"
    with pytest.raises(ValueError, match=f"are missing. .* a copy: cp -r {source} {copied}"):
        saved.checked_weights(made_by, run, data)
    saved.copy(source, copied)
    saved.copy(source, copied)  # a run that starts again
    assert saved.checked_weights(made_by, run) == str(copied)
    (copied / "model.weights.h5").write_bytes(b"wrong")
    with pytest.raises(ValueError, match="are not those that made the features"):
        saved.checked_weights(made_by, run)
    shutil.copy(source / "model.weights.h5", copied)
    (copied / "task.json").write_text("{}")
    with pytest.raises(ValueError, match="are not those that made the features"):
        saved.checked_weights(made_by, run)
