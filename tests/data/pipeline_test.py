"""Batches: exact order, exact resume, exact shapes."""

import itertools
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import numbered
from helpers.numbered import IMAGES, VAL, WIDTH, make_records, words_of

from tfcap.data import pipeline, prepared
from tfcap.data.prepared import PreparedData, write_fingerprint
from tfcap.data.record import Record
from tfcap.ids import BOS, PAD
from tfcap.preparing.shards import shard_name, write_index, write_shard


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PreparedData:
    return numbered.prepare(str(tmp_path_factory.mktemp("prepared")))


def training(data, count: int, **changes) -> list[dict[str, np.ndarray]]:
    start = changes.pop("start_batch", 0)
    arguments = {"batch_size": 4, "captions_per_image": 3, "max_length": 8, **changes}
    seed = arguments.pop("seed", 11)
    options = pipeline.BatchOptions(**arguments)
    dataset = pipeline.training_batches(data, options, seed=seed, start_batch=start)
    return list(itertools.islice(dataset.as_numpy_iterator(), count))


def decoding(data, **changes) -> list[dict[str, np.ndarray]]:
    limit = changes.pop("limit", None)
    arguments = {"split": "val", "batch_size": 2, "captions_per_image": 3, "max_length": 8}
    options = pipeline.BatchOptions(**arguments | changes)
    return list(pipeline.decoding_batches(data, options, limit=limit).as_numpy_iterator())


def sentences(data, batch) -> list[list[str]]:
    return [
        [sentence.decode() for sentence in row]
        for row in data.vocab.detokenize(batch["tokens"]).numpy()
    ]


def same(left, right) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)
        for a, b in zip(left, right, strict=True)
    )


@pytest.fixture(scope="module")
def stream(data):
    return training(data, 15)  # three epochs of five batches


def test_batch_belongs_together(data, stream):
    for batch in stream:
        longest = max(1 + int(i) % 5 for i in batch["id"])
        assert batch["features"].shape == (4, longest, WIDTH)
        for row, image in enumerate(batch["id"]):
            regions = 1 + image % 5
            assert batch["mask"][row].tolist() == [i < regions for i in range(longest)]
            assert (batch["features"][row, :regions] == image + 1).all()
            assert (batch["features"][row, regions:] == 0).all()
            for sentence in sentences(data, batch)[row]:
                assert sentence.startswith(f"image {words_of(image)} caption ")
        assert batch["features"].dtype == np.float32 and batch["tokens"].dtype == np.int32


def test_a_small_split_is_read_once_in_training(data, stream, tmp_path):
    shutil.copytree(data.folder, tmp_path / "data")
    copy = PreparedData.load(tmp_path / "data")
    options = pipeline.BatchOptions(batch_size=4, captions_per_image=3, max_length=8)
    batches = iter(pipeline.training_batches(copy, options, seed=11).as_numpy_iterator())
    first = next(batches)
    for path in copy.shard_paths("train"):
        pathlib.Path(path).unlink()
    assert same([first, *itertools.islice(batches, 14)], stream)


def test_a_large_split_is_read_from_files_and_not_kept(data, stream, monkeypatch):
    monkeypatch.setattr(prepared, "IN_MEMORY", 0)
    monkeypatch.setattr(PreparedData, "all_examples", None)
    assert same(training(data, 15), stream)


def test_epoch_is_a_permutation(stream):
    epochs = [np.concatenate([b["id"] for b in stream[i : i + 5]]) for i in (0, 5, 10)]
    for ids in epochs:
        assert len(set(ids.tolist())) == 20 and set(ids.tolist()) <= set(range(IMAGES))
    assert not np.array_equal(epochs[0], epochs[1])
    assert len(set(np.concatenate(epochs).tolist())) == IMAGES  # another tail is dropped each time


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 13])
def test_resume_equals_skipping(data, stream, start):
    assert same(training(data, 15 - start, start_batch=start), stream[start:])


@pytest.mark.slow
def test_two_replicas_see_what_one_sees(data, stream):
    halves = training(data, 30, batch_size=2, replicas=2)
    for step, whole in enumerate(stream):
        pair = halves[2 * step : 2 * step + 2]
        np.testing.assert_array_equal(np.concatenate([b["id"] for b in pair]), whole["id"])
        assert [s for b in pair for s in sentences(data, b)] == sentences(data, whole)
    resumed = training(data, 10, batch_size=2, replicas=2, start_batch=10)
    assert same(resumed, halves[20:])


@pytest.mark.slow
def test_workers_share_the_global_batch(data, stream):
    def worker(number, start, count):
        context = tf.distribute.InputContext(2, number, num_replicas_in_sync=4)
        return training(data, count, batch_size=1, input_context=context, start_batch=start)

    workers = [worker(0, 0, 30), worker(1, 0, 30)]  # two replicas each
    for step, whole in enumerate(stream):
        ids = [int(b["id"][0]) for w in workers for b in w[2 * step : 2 * step + 2]]
        assert ids == whole["id"].tolist()
    assert same(worker(0, 7, 16), workers[0][14:])
    assert same(worker(1, 7, 16), workers[1][14:])


def test_through_a_distribution_strategy(data, stream):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    dataset = strategy.distribute_datasets_from_function(
        lambda context: pipeline.training_batches(
            data,
            pipeline.BatchOptions(
                batch_size=context.get_per_replica_batch_size(4),
                captions_per_image=3,
                max_length=8,
                input_context=context,
            ),
            seed=11,
        )
    )
    first = next(iter(dataset))
    assert same([{key: value.numpy() for key, value in first.items()}], stream[:1])


def test_captions_are_drawn_without_replacement(data):
    drawn = {}
    for batch in training(data, 5 * 30, captions_per_image=3):
        for image, chosen in zip(batch["id"].tolist(), sentences(data, batch), strict=True):
            available = 1 + image % 6
            assert len(set(chosen)) >= min(3, available)
            if available >= 3:
                assert len(set(chosen)) == 3
            drawn.setdefault(image, []).append(tuple(chosen))
    for image, draws in drawn.items():  # 26 draws of each image on average
        available = 1 + image % 6
        assert len({s for draw in draws for s in draw}) == available
        if available > 1:
            assert len(set(draws)) > 1  # another draw in another epoch


@pytest.mark.slow
def test_regions_are_cut_and_shapes_static(data):
    for batch in training(data, 5, max_regions=2):
        assert batch["features"].shape[1] == 2
        assert batch["mask"].sum(1).tolist() == [min(2, 1 + i % 5) for i in batch["id"]]
    options = pipeline.BatchOptions(
        batch_size=4, captions_per_image=3, max_length=8, pad_to_max=True
    )
    static = pipeline.training_batches(data, options, seed=11)
    assert {key: spec.shape.as_list() for key, spec in static.element_spec.items()} == {
        "features": [4, 5, WIDTH],
        "mask": [4, 5],
        "boxes": [4, 5, 4],
        "tokens": [4, 3, 9],
        "id": [4],
    }
    for padded, trimmed in zip(static.take(3), training(data, 3), strict=True):
        regions, length = trimmed["features"].shape[1], trimmed["tokens"].shape[-1]
        np.testing.assert_array_equal(padded["features"][:, :regions], trimmed["features"])
        np.testing.assert_array_equal(padded["tokens"][:, :, :length], trimmed["tokens"])
        assert not padded["features"][:, regions:].numpy().any()
        assert not padded["tokens"][:, :, length:].numpy().any()


@pytest.mark.slow
@pytest.mark.parametrize("batch_size, replicas", [(2, 2), (7, 1)])
def test_decoding_covers_each_image_once_in_order(data, batch_size, replicas):
    batches = decoding(data, batch_size=batch_size, replicas=replicas)
    assert len(batches) % replicas == 0 and all(len(b["id"]) == batch_size for b in batches)
    assert len(batches) == replicas * -(-VAL // (batch_size * replicas))
    ids = np.concatenate([b["id"] for b in batches])
    real = np.concatenate([b["real"] for b in batches])
    assert ids[real].tolist() == list(range(50, 50 + VAL))
    assert real.tolist() == sorted(real.tolist(), reverse=True)
    if (batch_size, replicas) == (2, 2):  # the same every time
        assert same(batches, decoding(data, batch_size=batch_size, replicas=replicas))


@pytest.mark.slow
def test_decoding_captions_limit_and_workers(data):
    batches = decoding(data, limit=3)
    assert [i for b in batches for i in b["id"][b["real"]]] == [50, 51, 52]
    for batch in batches:
        for image, chosen in zip(batch["id"].tolist(), sentences(data, batch), strict=True):
            count = 1 + image % 6
            assert chosen == [
                f"image {words_of(image)} caption {words_of(c % count)}" for c in range(3)
            ]
    halves = [
        decoding(data, input_context=tf.distribute.InputContext(2, i, num_replicas_in_sync=2))
        for i in (0, 1)
    ]
    assert same([b for pair in zip(*halves, strict=True) for b in pair], decoding(data, replicas=2))


@pytest.fixture
def partly_captioned(data, tmp_path):
    """The same val split, but images 51, 54 and 55 have no captions."""
    folder = shutil.copytree(data.folder, tmp_path / "data")
    made = [
        Record(r.image_id, r.file_name, r.features, None, [] if i in (1, 4, 5) else r.captions)
        for i, r in enumerate(make_records(VAL, 50))
    ]
    shard = write_shard(folder / shard_name("val", 0, 1), made)
    splits = {**data.fingerprint["splits"], "val": {"images": VAL, "captions": 0}}
    splits["val"]["shards"] = [shard.entry]
    write_fingerprint(folder, {**data.fingerprint, "splits": splits})
    write_index(folder, "val", [shard])
    return PreparedData.load(folder)


@pytest.mark.slow
@pytest.mark.parametrize("pad_to_max", [False, True])
def test_images_without_captions_have_no_word_to_count(data, partly_captioned, pad_to_max):
    options = {"pad_to_max": pad_to_max, "references": lambda captions: captions}
    plain, bare = decoding(data, **options), decoding(partly_captioned, **options)
    for whole, part in zip(plain, bare, strict=True):
        assert (part["features"] == whole["features"]).all()
        length = part["tokens"].shape[-1]
        captions, words = part["references"].shape[1:]
        for row, image in enumerate(part["id"]):
            if image in (51, 54, 55):
                assert (part["tokens"][row, :, 0] == BOS).all()
                assert (part["tokens"][row, :, 1:] == PAD).all()
                assert (part["references"][row] == PAD).all()
            else:
                assert (part["tokens"][row] == whole["tokens"][row, :, :length]).all()
                cut = whole["references"][row, :captions, :words]
                assert (part["references"][row] == cut).all()
    assert {tuple(b["id"]) for b in bare} >= {(54, 55)}  # a batch without any caption


def test_training_refuses_an_image_without_captions(partly_captioned):
    message = "no captions for image 5.*Train on a split whose images all have captions"
    with pytest.raises(ValueError, match=message), partly_captioned.readable_errors():
        training(partly_captioned, 3, split="val", batch_size=2)


@pytest.mark.slow
def test_caption_without_words_and_swapped_shards_are_named(data, tmp_path):
    """What prepare never writes: a caption of punctuation, an index of other shards."""
    folder = shutil.copytree(data.folder, tmp_path / "data")
    made = make_records(IMAGES, 0)
    made[2] = Record(2, "2.jpg", made[2].features, None, ["fine", "..."])
    names = [shard_name("train", i, 2) for i in range(2)]
    shards = [
        write_shard(folder / name, part)
        for name, part in zip(names, (made[:4], made[4:]), strict=True)
    ]
    fingerprint = {**data.fingerprint}
    fingerprint["splits"]["train"]["shards"] = [shard.entry for shard in shards]
    write_fingerprint(folder, fingerprint)
    write_index(folder, "train", shards)
    changed = PreparedData.load(folder)
    with pytest.raises(ValueError, match="caption without a word for image 2"):
        with changed.readable_errors():
            training(changed, 5, captions_per_image=2, batch_size=23)
    wrong = shards[0]._replace(ids=shards[0].ids[::-1])
    write_index(folder, "train", [wrong, shards[1]])
    changed = PreparedData.load(folder)
    with pytest.raises(ValueError, match="index points to wrong image"):
        with changed.readable_errors():
            training(changed, 5, captions_per_image=2)


def test_drawing_is_fair():
    """Each of six captions is in a draw of three half of the time."""
    lengths = tf.fill([4000], tf.constant(6, tf.int64))
    drawn = pipeline.draw_captions(
        lengths, 3, tf.range(4000, dtype=tf.int64), 5, tf.constant(0, tf.int64)
    )
    counts = np.bincount(drawn.numpy().ravel(), minlength=6)
    assert abs(counts - 2000).max() < 5 * np.sqrt(4000 / 4)
    firsts = np.bincount(drawn.numpy()[:, 0], minlength=6)
    assert abs(firsts - 4000 / 6).max() < 5 * np.sqrt(4000 * 5 / 36)


def test_an_image_has_the_same_draw_in_another_batch():
    ids, lengths = tf.range(5, dtype=tf.int64), tf.constant([1, 2, 5, 9, 3], tf.int64)
    together = pipeline.draw_captions(lengths, 4, ids, 5, tf.constant(2, tf.int64)).numpy()
    alone = pipeline.draw_captions(lengths[2:3], 4, ids[2:3], 5, tf.constant(2, tf.int64)).numpy()
    assert (together[2] == alone[0]).all()
    assert sorted(together[1][:2]) == [0, 1]
    assert (together < lengths.numpy()[:, None]).all()
