"""The training captions are those of the run, wherever its data is."""

import dataclasses
import json
import shutil

import pytest

from tfcap import runs
from tfcap.data.prepared import PreparedData, write_references
from tfcap.inference.training_captions import training_captions

pytestmark = pytest.mark.slow


def test_novel_captions_are_not_among_those_of_the_run(trained, data, tmp_path, capsys):
    """The evaluated data may have other training captions than the run."""
    run = runs.load(trained)
    folder = shutil.copytree(data.folder, tmp_path / "other")
    names, ids = data.file_names("train"), data.references("train")
    write_references(folder, "train", [(image, names[image], ["a new caption"]) for image in ids])
    fingerprint = json.loads((folder / "dataset.json").read_text())
    del fingerprint["splits"]["train"]["references_sha256"]
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    other = PreparedData.load(folder)
    captions = [text for texts in data.references("train").values() for text in texts]
    assert training_captions(run, other) == captions
    assert training_captions(run, data) == captions
    assert training_captions(None, other) == ["a new caption"] * len(ids)
    assert training_captions(None, None) == []
    converted = dataclasses.replace(run, fingerprint=run.fingerprint | {"splits": {}})
    assert training_captions(converted, data) == captions
    params = run.params.replace(task={"data_dir": str(tmp_path / "gone")})
    moved = dataclasses.replace(run, params=params)
    assert training_captions(moved, other) == []
    params = run.params.replace(task={"data_dir": other.folder})  # it has other captions now
    changed = dataclasses.replace(run, params=params)
    assert training_captions(changed, other) == []
    assert "note: no share of novel captions, because" in capsys.readouterr().out
