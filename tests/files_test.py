"""Reading and writing files safely."""

import hashlib
import os
import zipfile

import numpy as np
import pytest

from tfcap import files
from tfcap.files import file_sha256, load_npz, map_npy, read_json, replacing, write_json, write_npz


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


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": "\u00e9"})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        with open(temporary, "w") as file:
            file.write("half")
        raise KeyboardInterrupt
    assert read_json(path, "") == {"a": "\u00e9"}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON: .*line 1 column 2"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[" + b"9" * 5000 + b"]", "is not valid JSON"),
        (b'"\xff"', "is not UTF-8 text at byte 1"),
        (b'"larger than the limit"', "must have at most 20 bytes. Received: 23"),
    ],
)
def test_unreadable_json_gives_one_line_with_the_remedy(tmp_path, monkeypatch, content, message):
    if b"larger" in content:
        monkeypatch.setattr(files, "_MAX_JSON_BYTES", 20)
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"x.json {message}.* Make it again.$") as caught:
        read_json(tmp_path / "x.json", "Make it again.")
    assert "\n" not in str(caught.value)


def test_json_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(tmp_path / "x.json", "") == [1]


def test_sha256_of_a_file(tmp_path):
    content = os.urandom(1 << 20) + b"one more block"
    (tmp_path / "x").write_bytes(content)
    assert file_sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()


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
