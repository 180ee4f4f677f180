"""Pictures in the cells of Parquet files."""

import concurrent.futures

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfcap.preparing.sources import cells
from tfcap.preparing.sources.cells import Cell

# It outlives the test: what is freed later, by the garbage collector, goes back to it.
POOL = pa.proxy_memory_pool(pa.default_memory_pool())


@pytest.fixture
def pictures(tmp_path):
    """A hundred cells of 20 KB in two row groups."""
    rng = np.random.default_rng(0)
    values = [rng.bytes(20_000) for _ in range(100)]
    path = str(tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"image": values}), path, row_group_size=50, write_batch_size=4,
        data_page_size=40_000, use_dictionary=False,
    )  # fmt: skip
    made = [Cell(path, number // 50, number % 50, "image") for number in range(100)]
    return made, values


def test_cells_are_read_in_any_order_and_by_several_threads(pictures):
    made, values = pictures
    assert [cell.read() for cell in made] == values
    order = np.random.default_rng(1).permutation(100)[:30]
    assert [made[n].read() for n in order] == [values[n] for n in order]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(Cell.read, made)) == values


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"info": {"features": {"split": {"names": ["train", "val"]}}}}', ["train", "val"]),
        ('{"info": {"features": {"split": {"names": [1]}}}}', []),
        ('{"info": {"features": {"split": {"dtype": "string"}}}}', []),
        ('{"info": {"features": ["split"]}}', []),
        ("[" * 99999, []),
        ("\udcff", []),
    ],
)
def test_names_of_a_class_label_are_in_the_metadata(content, expected):
    metadata = {"huggingface": content.encode("utf-8", "surrogateescape")}
    schema = pa.schema([("split", pa.int64())], metadata=metadata)
    names = cells.class_names(schema, "split")
    assert names == expected and cells.class_names(schema, "text") == []
    assert cells.class_names(schema.remove_metadata(), "split") == []
    assert [cells.named(value, ["train", "val"]) for value in (1, 2, -1, True, "x", None)] == [
        "val", 2, -1, True, "x", None
    ]  # fmt: skip


def test_a_file_that_was_written_again_is_read_again(pictures):
    made, _ = pictures
    made[0].read()
    pq.write_table(pa.table({"image": [b"new"]}), made[0].path)
    assert made[0].read() == b"new"


def test_reading_in_order_opens_each_row_group_once(pictures, monkeypatch):
    made, values = pictures
    opened, count = cells.opened, []
    monkeypatch.setattr(cells, "opened", lambda path: count.append(path) or opened(path))
    cells._pictures.cache_clear()
    assert [cell.read() for cell in made] == values
    assert len(count) == 2


def test_a_row_group_does_not_enter_memory_as_a_whole(tmp_path):
    path = str(tmp_path / "large.parquet")
    values = [np.random.default_rng(n).bytes(50_000) for n in range(150)]
    pq.write_table(
        pa.table({"image": values}), path, write_batch_size=4, data_page_size=100_000,
        use_dictionary=False, compression=None,
    )  # fmt: skip
    cells._pictures.cache_clear()
    own, taken, default = POOL, [], pa.default_memory_pool()
    start = default.bytes_allocated()
    pa.set_memory_pool(own)
    try:
        for number, value in enumerate(values):
            assert Cell(path, 0, number, "image").read() == value
            taken.append(default.bytes_allocated() - start)  # with what the file itself keeps
    finally:
        cells._pictures.cache_clear()
        pa.set_memory_pool(default)
    assert 50_000 < max(*taken, own.max_memory()) < 3_500_000  # of 7,500,000


def test_what_is_missing_or_damaged_is_told(pictures, tmp_path):
    made, _ = pictures
    with pytest.raises(ValueError, match="row 99 cannot be read"):
        Cell(made[0].path, 0, 99, "image").read()
    with pytest.raises(ValueError, match="none.parquet must be a Parquet file"):
        Cell(str(tmp_path / "none.parquet"), 0, 0, "image").read()
    content = bytearray(open(made[0].path, "rb").read())
    content[4:2000] = b"\xff" * 1996
    path = tmp_path / "damaged.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        Cell(str(path), 0, 0, "image").read()


def test_a_picture_that_must_not_enter_memory_is_refused(pictures, monkeypatch):
    monkeypatch.setattr("tfcap.preparing.sources.content.MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="at most 1000 bytes. Received: 20000"):
        pictures[0][0].read()
