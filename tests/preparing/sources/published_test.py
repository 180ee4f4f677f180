"""Pictures inside other files get to their own records."""

import os

import numpy as np
import pytest
from helpers import photos, source_files

from tfcap.data.prepared import PreparedData
from tfcap.prepare import prepare
from tfcap.preparing.sources import READERS, RECOGNISERS


def test_an_empty_or_missing_directory_is_no_data_set(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        assert not [name for name, recognises in RECOGNISERS.items() if recognises(path)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parquet", "webdataset", "tfds"])
def test_records_have_the_features_of_their_own_pictures(tmp_path, name, capsys):
    made = source_files.MAKERS[name][0](tmp_path)
    content = {entry.file_name: entry.content.read() for entry in READERS[name](made.given())}
    paths = [os.fspath(path) for path in made.captions]
    given = {"backbone": "pixels", "min_count": 1}
    data = PreparedData.load(prepare(tmp_path / "out", paths, **given))
    assert f"source: {name} (" in capsys.readouterr().out
    stored = {}
    for split in data.fingerprint["splits"]:
        names = data.file_names(split)
        for number, features in photos.examples(data, split).items():
            stored[names[number]] = features
    assert set(stored) == set(content) and data.images is None
    expected = photos.features_of([content[name] for name in stored])
    for features, own in zip(stored.values(), expected, strict=True):
        np.testing.assert_allclose(features, own, rtol=1e-3, atol=1e-6)
    prepare(tmp_path / "out", paths, **given)
    assert "is prepared already" in capsys.readouterr().out
