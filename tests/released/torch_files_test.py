"""Files of `torch.save`: good ones are read, and hostile ones run no code."""

import collections
import os
import pickle
import resource
import zipfile

import numpy as np
import pytest
from helpers import torch_writer
from helpers.torch_writer import Call, Named

from tfcap.released import torch_files

rng = np.random.default_rng(7)
BASE = rng.normal(size=(4, 6)).astype(np.float32)
VIEWS = {
    "whole": BASE,
    "turned": BASE.T,
    "every other": BASE[1:, ::2],
    "row": BASE[2],
    "number": BASE[3, 5:].reshape(()),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pth"


def same(found, expected):
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype and found.shape == expected.shape


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_dictionaries_and_views_are_read(path, protocol):
    content = {
        "state": collections.OrderedDict(VIEWS),
        "epoch": 3,
        "rest": [1.5, None, (True, "x")],
    }
    torch_writer.write(path, content, protocol=protocol)
    found = torch_files.load(path)
    assert found["epoch"] == 3 and found["rest"] == [1.5, None, (True, "x")]
    for name, expected in VIEWS.items():
        same(found["state"][name], expected)
    with pytest.raises(ValueError, match="read-only"):
        found["state"]["whole"][0, 0] = 1
    assert np.shares_memory(found["state"]["whole"], found["state"]["turned"])


def test_the_older_layout_is_read(path):
    torch_writer.write_older(path, {"state": VIEWS, "epoch": 3})
    found = torch_files.load(path)
    assert found["epoch"] == 3
    for name, expected in VIEWS.items():
        same(found["state"][name], expected)


@pytest.mark.parametrize("order", [None, "little", "big"])
@pytest.mark.parametrize("top", ["archive", "caption_model_37", "a b.c"])
def test_byte_orders_and_folder_names_are_read(path, order, top):
    torch_writer.write(path, VIEWS, top=top, order=order)
    for name, found in torch_files.load(path).items():
        same(found, VIEWS[name])


@pytest.mark.parametrize("writer", [torch_writer.write, torch_writer.write_older])
@pytest.mark.parametrize("dtype", torch_writer.KINDS)
def test_number_types_are_read(path, dtype, writer):
    values = np.array([0, 1, 2, 100]).astype(dtype)
    writer(path, {"x": values, "turned": values.reshape(2, 2).T})
    same(torch_files.load(path)["x"], values)
    same(torch_files.load(path)["turned"], values.reshape(2, 2).T)


@pytest.mark.parametrize("order", ["little", "big"])
def test_bfloat16_becomes_float32(path, order):
    values = np.array([1.0, -2.5, 0.15625, np.inf], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    kinds = {id(upper): "BFloat16Storage"}
    torch_writer.write(path, {"x": upper}, order=order, kinds=kinds)
    same(torch_files.load(path)["x"], values)


def test_parameters_and_attributes_are_read(path):
    parameter = Call("torch._utils", "_rebuild_parameter", BASE, True, collections.OrderedDict())
    torch_writer.write(path, {"x": parameter})
    same(torch_files.load(path)["x"], BASE)
    # A state dict has an attribute, which is set by BUILD.
    described = torch_writer.described(collections.OrderedDict(a=1))
    metadata = pickle.dumps({"_metadata": {"": {"version": 1}}}, 2)[2:-1]
    torch_writer.write_pickle(path, described[:-1] + metadata + b"b.")
    assert torch_files.load(path) == {"a": 1}


def test_only_what_is_wanted_is_read(path):
    """Only the dictionary under the wrapper keys is read; damage elsewhere does not matter."""
    content = {"optimizer": {"m": np.ones(1)}, "model": {"state_dict": {"w": BASE}}}
    storages = {}
    described = torch_writer.described(content, storages)
    members = {key: flat.tobytes() for key, (_, flat) in storages.items()}
    members["0"] = b"short"
    torch_writer.write_pickle(path, described, members)
    found = torch_files.load(path, ("model", "state_dict"))
    assert list(found) == ["w"]
    same(found["w"], BASE)
    with pytest.raises(ValueError, match="the storage '0' has 5 bytes, not 8"):
        torch_files.load(path)


HOSTILE = {
    "os.system": Call("os", "system", "touch {}"),
    "posix.system": Call("posix", "system", "touch {}"),
    "builtins.eval": Call("builtins", "eval", "open('{}', 'w')"),
    "builtins.exec": Call("builtins", "exec", "open('{}', 'w')"),
    "builtins.getattr": Call("builtins", "getattr", Named("os", "system"), "x"),
    "subprocess.Popen": Call("subprocess", "Popen", ["touch", "{}"]),
    "torch._utils._rebuild_tensor": Call("torch._utils", "_rebuild_tensor"),
    "torch.load": Call("torch", "load", "{}"),
    "torch.FloatStorage.__class__": Named("torch", "FloatStorage.__class__"),
    "collections.OrderedDict.fromkeys": Named("collections", "OrderedDict.fromkeys"),
    "numpy.core.multiarray._reconstruct": Named("numpy.core.multiarray", "_reconstruct"),
    "tfcap.torch_files.load": Call("tfcap.torch_files", "load", "{}"),
}


def _aimed(value, target):
    """Returns `value` with {} replaced by the file `target`."""
    if isinstance(value, Call):
        arguments = [_aimed(argument, target) for argument in value.arguments]
        return Call(value.function.module, value.function.name, *arguments)
    if isinstance(value, list):
        return [_aimed(item, target) for item in value]
    return value.format(target) if isinstance(value, str) else value


@pytest.mark.parametrize("protocol", [2, 4])  # 4 names globals by STACK_GLOBAL
@pytest.mark.parametrize("name", HOSTILE)
def test_other_names_are_refused_and_not_called(path, tmp_path, name, protocol):
    call = _aimed(HOSTILE[name], tmp_path / "run")
    for number, content in enumerate([call, {"state": [({"w": call},)]}]):
        described = torch_writer.described(content, protocol=protocol)
        torch_writer.write_pickle(path, described)
        with pytest.raises(ValueError, match=f"refused: its pickle refers to '{name}'.*torch.save"):
            torch_files.load(path)
        assert not (tmp_path / "run").exists(), number


def test_unpickling_a_hostile_file_would_run_its_code(tmp_path):
    """Without this, the tests of hostile files could pass with harmless files."""
    call = _aimed(Call("builtins", "exec", "open('{}', 'w').close()"), tmp_path / "run")
    pickle.loads(torch_writer.described(call))
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("opcodes", "reason"),
    [
        (b"(cos\nsystem\nX\x01\x00\x00\x00xo.", "refers to 'os.system'"),
        (b"(X\x01\x00\x00\x00xios\nsystem\n.", "refers to 'os.system'"),
        (b"ccollections\nOrderedDict\n)\x81.", "opcode NEWOBJ"),
        (b"(ccollections\nOrderedDict\no.", "opcode OBJ"),
        (b"\x82\x01.", "opcode EXT1"),
        (b"Pstorage\n.", "opcode PERSID"),
        (b"ccollections\nOrderedDict\n(X\x01\x00\x00\x00xtR.", "another way than torch.save"),
        (b"ctorch\nFloatStorage\n)R.", "calls torch FloatStorage in another way"),
        (b"K\x01)R.", "calls a int in another way"),
        (b"ctorch\nFloatStorage\n}b.", "sets attributes of torch FloatStorage"),
        (b"ccollections\nOrderedDict\n}b.", "sets attributes of collections OrderedDict"),
        (b"](K\x01K\x02u.", "not a dictionary"),
        (b"})K\x01s.", "not a dictionary with plain keys"),
        (b"}K\x01a.", "appends to a dict"),
        (b"ctorch\nFloatStorage\n.", "where a value should be"),
        (b"j\xff\xff\xff\x7f.", "damaged"),
        (b"K\x01r\xff\xff\xff\xff.", None),  # a memo of four thousand million places
        (b"0.", "damaged"),
        (b"R.", "takes more values than the stack has"),
        (b"t.", "damaged"),
        (b"K\x01", "refused"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.", "refused"),  # BINUNICODE8, 9e18 bytes
        (b"T\xff\xff\xff\x7fx.", "refused"),  # BINSTRING
        (b"\x8b\xff\xff\xff\x7fx.", "refused"),  # LONG4
        (b"", "refused"),
    ],
)
def test_wrong_opcodes_are_refused(path, opcodes, reason):
    torch_writer.write_pickle(path, b"\x80\x02" + opcodes)
    if reason is None:
        assert torch_files.load(path) == 1
        return
    with pytest.raises(ValueError, match=reason):
        torch_files.load(path)


def test_deep_and_recursive_containers_are_refused(path):
    """Containers that share their contents many times are read without copying each."""
    torch_writer.write_pickle(path, b"\x80\x02]q\x00h\x00a.")
    with pytest.raises(ValueError, match="nested too deeply"):
        torch_files.load(path)
    torch_writer.write_pickle(path, b"\x80\x02K\x01" + b"\x85" * 30_000 + b".")
    with pytest.raises(ValueError, match="nested too deeply"):
        torch_files.load(path)
    torch_writer.write_pickle(path, b"\x80\x02}K\x01" + b"\x85" * 30_000 + b"K\x02s.")
    with pytest.raises(ValueError, match="not a dictionary with plain keys"):
        torch_files.load(path)
    laughs = b"\x80\x02]q\x00" + b"".join(
        b"](" + (b"h" + bytes([n])) * 9 + b"eq" + bytes([n + 1]) for n in range(60)
    )
    torch_writer.write_pickle(path, laughs + b".")
    assert len(torch_files.load(path)) == 9  # 9^60 lists, if each were copied


def tensor(count=6, offset=0, shape=(2, 3), strides=(3, 1), kind="FloatStorage", key="0"):
    """Returns the call that rebuilds a tensor with the given sizes."""
    storage = torch_writer.Storage(key, kind, count)
    return Call(
        *("torch._utils", "_rebuild_tensor_v2", storage, offset),
        *(shape, strides, False, collections.OrderedDict()),
    )


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (dict(count=7), "has 24 bytes, not 28"),
        (dict(count=5), "reaches out of its storage"),
        (dict(count=1 << 60), "has 24 bytes, not"),
        (dict(kind="DoubleStorage"), "has 24 bytes, not 48"),
        (dict(kind="UntypedStorage"), "refers to 'torch.UntypedStorage'"),
        (dict(key="1"), "the storage '1' is missing"),
        (dict(key="../data.pkl"), "the storage '../data.pkl' is missing"),
        (dict(key="/etc/passwd"), "the storage '/etc/passwd' is missing"),
        (dict(key=7), "describes a storage as"),
        (dict(count=-6), "describes a storage as"),
        (dict(count=6.0), "describes a storage as"),
        (dict(offset=1), "reaches out of its storage"),
        (dict(offset=-1), "offset -1"),
        (dict(strides=(4, 1)), "reaches out of its storage"),
        (dict(strides=(-3, 1)), "strides"),
        (dict(strides=(3,)), "strides"),
        (dict(shape=(2, -3)), "the shape"),
        (dict(shape=(2.0, 3)), "the shape"),
        (dict(shape=(1 << 70, 1)), "the shape"),
        (dict(shape=(1 << 40, 1 << 40), strides=(0, 0)), "reaches out of its storage"),
        (dict(shape=(7,), strides=(0,)), "reaches out of its storage"),
        (dict(shape=(1,) * 40, strides=(1,) * 40), "the shape"),
        (dict(shape=[2, 3]), "another way than torch.save"),
    ],
)
def test_wrong_sizes_are_refused(path, sizes, reason):
    described = torch_writer.described({"w": tensor(**sizes)})
    torch_writer.write_pickle(path, described, {"0": np.arange(6, dtype=np.float32).tobytes()})
    with pytest.raises(ValueError, match=reason):
        torch_files.load(path)


def test_right_sizes_are_read(path):
    """The stride of an axis of length 1 may have any value."""
    content = {"w": tensor(), "v": tensor(offset=2, shape=(1, 4), strides=(1 << 50, 1))}
    described = torch_writer.described(content)
    torch_writer.write_pickle(path, described, {"0": np.arange(6, dtype=np.float32).tobytes()})
    found = torch_files.load(path)
    same(found["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
    same(found["v"], np.arange(2, 6, dtype=np.float32)[None])


def test_a_wrong_size_allocates_no_memory(path):
    """A storage that claims 4 TB is refused before memory is allocated for it."""
    described = torch_writer.described({"w": tensor(count=1 << 40, shape=(1 << 40,), strides=(1,))})
    torch_writer.write_pickle(path, described, {"0": bytes(24)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="has 24 bytes, not 4398046511104"):
        torch_files.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.98])
@pytest.mark.parametrize("writer", [torch_writer.write, torch_writer.write_older])
def test_cut_files_are_refused(path, writer, share):
    writer(path, VIEWS)
    os.truncate(path, int(os.path.getsize(path) * share))
    with pytest.raises(ValueError, match="model.pth is refused: "):
        torch_files.load(path)


def test_flipped_bytes_give_a_dictionary_or_a_value_error(path):
    """Every third byte of a small file is changed, one at a time."""
    torch_writer.write(path, {"w": BASE[:2, :2].copy()})
    content = path.read_bytes()
    wrong = 0
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 0x11
        path.write_bytes(damaged)
        try:
            found = torch_files.load(path)
            assert isinstance(found, dict)
        except ValueError:
            wrong += 1
    assert wrong > 50


def test_wrong_archives_are_refused(path):
    """Members are compressed, doubled, misplaced or larger than the file."""
    described = torch_writer.described({"a": 1})
    good = {"archive/data.pkl": described}
    torch_writer.write_members(path, good, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="is compressed"):
        torch_files.load(path)
    for members in ({}, {"data.pkl": described}, {**good, "other/data.pkl": described}):
        torch_writer.write_members(path, {**members, "x/version": b"3"})
        with pytest.raises(
            ValueError, match="must have one file <folder>/data.pkl. Received: [02] files"
        ):
            torch_files.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", described)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("archive/data.pkl", described)
    with pytest.raises(ValueError, match="same name"):
        torch_files.load(path)
    torch_writer.write_members(path, {**good, "archive/byteorder": b"middle"})
    with pytest.raises(ValueError, match="byte order must be little or big. Received: 'middle'"):
        torch_files.load(path)
    torch_writer.write_members(path, {**good, "archive/data/0": b"12345678"})
    content = path.read_bytes()
    place = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)  # of the second member
    huge = (1 << 31).to_bytes(4, "little")
    path.write_bytes(content[: place + 20] + 2 * huge + content[place + 28 :])
    with pytest.raises(ValueError, match="must not exceed the"):
        torch_files.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"<!DOCTYPE html>", b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"\x80\x02}."]
)
def test_other_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="model.pth is refused: "):
        torch_files.load(path)
    with pytest.raises(ValueError, match="nowhere.pth cannot be read: No such file"):
        torch_files.load(path.parent / "nowhere.pth")
