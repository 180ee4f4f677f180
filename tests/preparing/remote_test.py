"""A remote directory gets the same bytes as a local one, and is continued and read like it."""

import json

import numpy as np
import pytest
from helpers.photos import examples, make_photos, write_captions

from tfcap import files
from tfcap.data.prepared import PreparedData
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings

pytestmark = pytest.mark.slow  # networks are traced

photos = pytest.fixture(make_photos)


def content_of(folder):
    """The content of every file of a prepared directory, without the lock and its own path."""
    result = {}
    for name in files.names(folder):
        if files.is_file(f"{folder}/{name}") and name != ".prepare.lock":
            result[name] = files.read_bytes(f"{folder}/{name}").replace(folder.encode(), b"")
    shards = f"{folder}/.shards"
    return result | {name: files.read_bytes(f"{shards}/{name}") for name in files.names(shards)}


def test_a_remote_directory_has_the_same_bytes_and_is_continued(photos, capsys):
    folder, entries, settings = photos
    captions = write_captions(folder, entries)
    local, remote = settings.pop("out"), "ram://remote_test/out"
    prepare(Settings(captions=captions, out=local, **settings))
    for name in files.names(settings["images"]):  # pictures and captions may be remote as well
        files.copy_files(f"{settings['images']}/{name}", f"ram://remote_test/images/{name}")
    files.copy_files(captions, "ram://remote_test/captions.json")
    received = Settings(captions="ram://remote_test/captions.json", out=f"{remote}/", **settings)
    assert prepare(received) == remote
    expected = content_of(local)
    assert content_of(remote) == expected and len(expected) == 16

    # As if it was killed: one shard has no description, and a file is unfinished.
    files.remove(f"{remote}/dataset.json")
    files.remove(f"{remote}/.shards/train-00001-of-00003.json")
    files.copy_files(captions, f"{remote}/.tmp-9-x.tfrecord")
    capsys.readouterr()
    prepare(received)
    assert "finished already: 8 images" in capsys.readouterr().out
    assert content_of(remote) == expected
    prepare(received)
    assert f"{remote} is prepared already" in capsys.readouterr().out

    data, same = PreparedData.load(f"{remote}/"), PreparedData.load(local)
    for split in ("train", "val"):
        values, others = examples(data, split), examples(same, split)
        assert values.keys() == others.keys()
        assert all(np.array_equal(values[image], others[image]) for image in values)
        assert data.references(split) == same.references(split)
    files.remove(f"{remote}/val.index.npz")
    with pytest.raises(ValueError, match="val.index.npz"):
        PreparedData.load(remote).index("val")

    images = "ram://remote_test/images"
    pictures = Settings(captions=captions, out=f"{local}2", **settings | {"images": images})
    prepare(pictures)
    made = json.loads(files.read_bytes(f"{local}2/dataset.json"))
    assert made.pop("images") == images
    mine = content_of(f"{local}2")
    names = [name for name in mine if name.endswith((".tfrecord", ".npz", ".txt"))]
    assert {name: mine[name] for name in names} == {name: expected[name] for name in names}
