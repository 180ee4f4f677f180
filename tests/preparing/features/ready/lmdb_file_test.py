"""Files that the library lmdb wrote are read as the library reads them, and damaged ones safely."""

import random

import pytest

from tfcap.preparing.features.ready.lmdb_file import LmdbFile

lmdb = pytest.importorskip("lmdb")
MOST = 1 << 20


def write(path, values, **options):
    """Writes data.mdb with the values in several transactions, so that pages are used again."""
    with lmdb.open(str(path), map_size=1 << 26, **options) as store:
        items = list(values.items())
        for start in range(0, len(items), 100):
            with store.begin(write=True) as transaction:
                for key, value in items[start : start + 100]:
                    transaction.put(key, b"an old value")
                    transaction.put(key, value)
        with store.begin(write=True) as transaction:
            for key, _ in items[::7]:
                transaction.delete(key)
    return path / "data.mdb"


def values(count, seed=0):
    rng = random.Random(seed)
    keys = {str(rng.randrange(10**6)).encode(): None for _ in range(count)}
    return {key: rng.randbytes(rng.choice((0, 1, 30, 500, 3000, 5000, 20_000))) for key in keys}


@pytest.mark.parametrize("count", [0, 1, 3, 40, 700])
def test_every_value_is_the_one_that_was_written(tmp_path, count):
    given = values(count)
    file = LmdbFile(write(tmp_path / "a", given))
    deleted = set(list(given)[::7])
    for key, value in given.items():
        assert file.value(key, MOST) == (None if key in deleted else value)
    for key in (b"", b"x", b"\xff" * 600, b"5"):
        assert file.value(key, MOST) is None or key in given


def test_a_value_that_is_too_long_is_refused(tmp_path):
    file = LmdbFile(write(tmp_path / "a", {b"0": b"", b"1": b"x" * 9000}))
    assert file.value(b"1", 9000) == b"x" * 9000
    with pytest.raises(ValueError, match="at most 8999 bytes, and has 9000"):
        file.value(b"1", 8999)


def test_tables_of_other_kinds_are_refused(tmp_path):
    with lmdb.open(str(tmp_path / "a"), max_dbs=2) as store:
        table = store.open_db(b"named")
        with store.begin(write=True) as transaction:
            transaction.put(b"1", b"2", db=table)
    with pytest.raises(ValueError, match="several values"):
        LmdbFile(tmp_path / "a" / "data.mdb").value(b"named", MOST)


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"\0" * 10_000])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="a must be a file of LMDB, version 1"):
        LmdbFile(tmp_path / "a")


def test_the_older_meta_page_is_used_if_the_newer_one_is_damaged(tmp_path):
    path = write(tmp_path / "a", {b"0": b"", b"1": b"one"})
    content = bytearray(path.read_bytes())
    for page in (0, 4096):
        changed = content[:]
        changed[page + 16] ^= 255
        path.write_bytes(changed)
        assert LmdbFile(path).value(b"9", MOST) is None


def test_mutated_files_give_values_or_errors(tmp_path):
    """The library itself would end the process with a signal for some of these files."""
    given = values(60, seed=1)
    path = write(tmp_path / "a", given)
    whole, rng, refused = path.read_bytes(), random.Random(2), 0
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 8, 64))):
            page = rng.randrange(len(content) // 4096) * 4096
            start = page + rng.choice((rng.randrange(64), rng.randrange(4096)))
            content[start : start + 2] = rng.choice((b"\0\0", b"\xff\xff", rng.randbytes(2)))
        path.write_bytes(content[: rng.choice((len(content), rng.randrange(len(content))))])
        try:
            file = LmdbFile(path)
            for key in list(given)[:20]:
                file.value(key, MOST)
        except ValueError as error:
            assert "a" in str(error)
            refused += 1
    assert 20 < refused < 150
