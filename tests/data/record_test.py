"""Records are read as they were written, and bad ones are refused."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from helpers.prepared import WIDTH, make_record

from tfcap.data.prepared import PreparedData
from tfcap.data.record import Record, inputs_of, parse, parse_pictures, serialize
from tfcap.data.tokens import SPECIALS, Vocab

DATA = PreparedData("data", {}, Vocab(SPECIALS))


def serialized(*records: Record) -> tf.Tensor:
    return tf.constant([serialize(record) for record in records])


def test_parse_cuts_and_pads_regions():
    records = serialized(make_record(2, regions=3), make_record(0, regions=1))
    whole = parse(records, WIDTH)["features"].numpy()
    cut = parse(records, WIDTH, max_regions=2)
    np.testing.assert_array_equal(cut["features"], whole[:, :2])
    assert cut["mask"].numpy().tolist() == [[True, True], [True, False]]
    wide = parse(records, WIDTH, pad_regions=5)
    np.testing.assert_array_equal(wide["features"][:, :3], whole)
    assert not wide["features"][:, 3:].numpy().any() and wide["mask"].numpy().sum() == 4


def test_a_record_may_have_no_captions():
    parsed = parse(serialized(make_record(0, captions=()), make_record(1)), WIDTH)
    assert parsed["captions"].to_list() == [[], [b"A dog .", b"one Cat"]]
    assert parsed["id"].numpy().tolist() == [10, 11]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"features": np.full([2, 3], np.nan)}, "finite.*nan"),
        ({"features": np.full([2, 3], -np.inf)}, "finite.*inf"),
        ({"features": np.full([2, 3], 1e5)}, "finite as float16.*100000"),
    ],
)
def test_bad_records_are_refused(change, message):
    good = {"features": np.zeros([2, 3]), "boxes": np.zeros([2, 4]), "captions": ["a"]}
    Record(7, "x.jpg", **good)
    with pytest.raises(ValueError, match=message):
        Record(7, "x.jpg", **{**good, **change})


def test_a_bad_record_is_named_when_it_is_read():
    """A feature is replaced behind the back of the writer; the good record is not named."""
    example = tf.train.Example.FromString(serialize(make_record(5)))
    bad = np.full([3, WIDTH], np.nan, np.float16).tobytes()
    example.features.feature["features/data"].bytes_list.value[0] = bad
    records = tf.constant([serialize(make_record(0)), example.SerializeToString()])
    dataset = tf.data.Dataset.from_tensors(records)
    with pytest.raises(ValueError) as caught, DATA.readable_errors():
        list(dataset.map(lambda batch: parse(batch, WIDTH)))
    assert str(caught.value).startswith("Bad record: NaN or infinite features in image 15. Run")


def test_the_vector_of_an_image_is_stored_beside_its_regions():
    plain = make_record(1)
    vectors = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float16)
    made = [dataclasses.replace(make_record(i), image=vectors[i].astype("f4")) for i in (0, 1)]
    parsed = parse(serialized(*made), WIDTH, image_dim=5)
    np.testing.assert_array_equal(parsed["image"], vectors.astype(np.float32))
    np.testing.assert_array_equal(parsed["features"][1], plain.features.astype(np.float32))
    assert inputs_of(parsed).keys() == {"features", "mask", "image", "boxes"}
    assert "image" not in parse(serialized(*made), WIDTH)


def with_pictures(*numbers, regions=3, **changes):
    """Serialized records with boxes and the picture b"file N"."""
    return tf.constant(
        [
            serialize(
                dataclasses.replace(
                    make_record(2 * n + 1, regions), **({"picture": b"file %d" % n} | changes)
                )
            )
            for n in numbers
        ]
    )


def test_pictures_are_read_in_place_of_features():
    records = with_pictures(1, 0)
    result, usual = parse_pictures(records, 3), parse(records, WIDTH)
    assert result.pop("picture").numpy().tolist() == [b"file 1", b"file 0"]
    del usual["features"]
    assert result.keys() == usual.keys()
    assert result.pop("captions").to_list() == usual.pop("captions").to_list()
    for key, value in usual.items():
        np.testing.assert_array_equal(result[key], value)
    short = parse_pictures(records, 3, 2)
    assert short["mask"].shape == [2, 2]
    np.testing.assert_array_equal(short["boxes"], usual["boxes"][:, :2])
