"""Reading and writing NumPy arrays safely."""

import ast
import concurrent.futures
import gc
import os
import sys
import zipfile

import numpy as np
import pytest

from tfcap.arrays import load_npy, load_npz, map_npy, write_npz


def test_an_npz_that_claims_more_bytes_than_it_has_is_refused(tmp_path):
    header = np.lib.format.magic(1, 0)
    text = repr({"descr": "<f4", "fortran_order": False, "shape": (10**11,)}).encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("feat.npy", header + len(text).to_bytes(2, "little") + text)
    with pytest.raises(ValueError, match="promises 400000000000 bytes.*Make it again"):
        load_npz(tmp_path / "x.npz", ["feat"], "Make it again.")
    (tmp_path / "y.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a usable npz"):
        load_npz(tmp_path / "y.npz", None, "Make it again.")


def test_pickled_arrays_are_refused_and_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    np.savez(tmp_path / "x.npz", a=np.array([Evil()], dtype=object))
    with pytest.raises(ValueError, match="x.npz is not a usable npz.*pickled"):
        load_npz(tmp_path / "x.npz", ["a"], "Make it again.")
    assert not (tmp_path / "executed").exists()


def test_an_npz_is_read_as_it_was_written(tmp_path):
    write_npz(tmp_path / "x.npz", a=np.arange(3), b=np.float32(2))
    assert load_npz(tmp_path / "x.npz", ["b"], "").keys() == {"b"}
    np.testing.assert_array_equal(load_npz(tmp_path / "x.npz", None, "")["a"], [0, 1, 2])
    with pytest.raises(ValueError, match="array 'c' is missing"):
        load_npz(tmp_path / "x.npz", ["c"], "")


def test_an_npy_is_mapped_and_its_header_is_checked(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    mapped = map_npy(tmp_path / "x.npy", np.float32, (3, None), "")
    assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, [[0, 1], [2, 3], [4, 5]])
    for dtype, shape in ((np.float64, (3, 2)), (np.float32, (2, None)), (np.float32, (3,))):
        with pytest.raises(ValueError, match=r"x.npy must hold .*float32 \[3, 2\]. Make it again"):
            map_npy(tmp_path / "x.npy", dtype, shape, "Make it again.")
    whole = (tmp_path / "x.npy").read_bytes()
    for content in (whole[:-1], whole + b"x", b"no array"):
        (tmp_path / "x.npy").write_bytes(content)
        with pytest.raises(ValueError, match="not a usable npy"):
            map_npy(tmp_path / "x.npy", np.float32, (3, 2), "")
    with pytest.raises(ValueError, match="Cannot read"):
        map_npy(tmp_path / "y.npy", np.float32, (3, 2), "")


@pytest.mark.parametrize(
    "load, arguments",
    [(load_npy, {}), (load_npz, {"names": None}), (map_npy, {"dtype": np.float64, "shape": (3,)})],
)
def test_a_parser_that_fails_by_mistake_is_asked_again(load, arguments, tmp_path, monkeypatch):
    """Python's parser fails here as it does where threads read headers together."""
    name = "x.npz" if load is load_npz else "x.npy"
    (np.savez if load is load_npz else np.save)(tmp_path / name, np.arange(3.0))
    parse, failures = ast.literal_eval, []

    def failing(text):
        if len(failures) < most:
            failures.append(text)
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", failing)
    most = 3
    read = load(tmp_path / name, **arguments, remedy="Remedy.")
    assert len(failures) == 3
    np.testing.assert_array_equal(read["arr_0"] if load is load_npz else read, [0, 1, 2])
    most = 1_000
    with pytest.raises(ValueError, match=f"{name} cannot be read: Python's parser failed 20 times"):
        load(path=tmp_path / name, **arguments, remedy="Remedy.")


class Cycle:
    """Garbage at once. Its end runs Python code, so another thread may go on inside C code."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        sum(range(20))


def test_threads_that_read_arrays_together_refuse_no_good_file(tmp_path):
    """CPython 3.11 raises SystemError for some good headers when threads read together."""
    np.save(tmp_path / "a.npy", np.arange(6.0))
    before = gc.get_threshold(), sys.getswitchinterval()

    def read(_):
        Cycle()
        return load_npy(tmp_path / "a.npy", "Remedy.").sum()

    try:
        gc.set_threshold(20, 3, 3)
        sys.setswitchinterval(1e-6)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert set(pool.map(read, range(4_000))) == {15.0}
    finally:
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])
