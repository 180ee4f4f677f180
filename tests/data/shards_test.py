"""The index finds every record, and one that does not fit its shards is refused."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.prepared import make_record

from tfcap.arrays import load_npz, write_npz
from tfcap.data.shards import read_index
from tfcap.preparing.shards import write_index, write_shard


@pytest.fixture
def shards(tmp_path):
    """Two shards of three and two records with their index; returns the entries."""
    records = [make_record(i, regions=1 + i) for i in range(5)]
    infos = [
        write_shard(tmp_path / f"{name}.tfrecord", part)
        for name, part in (("a", records[:3]), ("b", records[3:]))
    ]
    write_index(tmp_path, "train", infos)
    return [info.entry for info in infos]


def test_each_offset_points_to_the_record_of_its_image(shards, tmp_path):
    index = read_index(tmp_path, "train", shards)
    assert index.id.tolist() == [10, 11, 12, 13, 14] and index.shard.tolist() == [0, 0, 0, 1, 1]
    for shard, offset, image in zip(*index, strict=True):
        content = (tmp_path / shards[shard]["file"]).read_bytes()[offset:]
        length = int.from_bytes(content[:8], "little")  # TFRecord: length, checksum, data
        example = tf.train.Example.FromString(content[12 : 12 + length])
        assert example.features.feature["image/id"].int64_list.value[0] == image


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {name: values[:-1] for name, values in arrays.items()},
        lambda arrays: {**arrays, "offset": arrays["offset"] + 10**6},
        lambda arrays: {**arrays, "offset": arrays["offset"] - 1},
        lambda arrays: {**arrays, "shard": arrays["shard"][::-1]},
        lambda arrays: {**arrays, "id": arrays["id"].astype(np.int32)},
    ],
)
def test_an_index_of_other_shards_is_refused(shards, tmp_path, change):
    path = tmp_path / "train.index.npz"
    write_npz(path, **change(load_npz(path, None, "")))
    with pytest.raises(ValueError, match="train.index.npz does not fit the 5 records"):
        read_index(tmp_path, "train", shards)
