"""Weights in files of `torch.save`: good ones are read, and hostile ones run no code."""

import argparse
import collections
import datetime
import os
import pathlib
import pickle
import resource
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from helpers import torch_writer
from helpers.torch_writer import Call, Named

from tfcap.released import torch_file

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
def test_views_are_read(path, protocol):
    torch_writer.write(
        path, {**VIEWS, "epoch": 3, "rest": [1.5, None, (True, "x")]}, "m", protocol=protocol
    )
    found = torch_file.load(path)
    assert list(found) == list(VIEWS)
    for name, expected in VIEWS.items():
        same(found[name], expected)
    with pytest.raises(ValueError, match="read-only"):
        found["whole"][0, 0] = 1
    assert np.shares_memory(found["whole"], found["turned"])


def test_the_older_layout_is_read(path):
    torch_writer.write_older(path, {"model": VIEWS, "epoch": 3})
    for name, found in torch_file.load(path).items():
        same(found, VIEWS[name])


@pytest.mark.parametrize("order", [None, "little", "big"])
@pytest.mark.parametrize("top", ["archive", "caption_model_37", "a b.c"])
def test_byte_orders_and_folder_names_are_read(path, order, top):
    torch_writer.write(path, VIEWS, top=top, order=order)
    for name, found in torch_file.load(path).items():
        same(found, VIEWS[name])


@pytest.mark.parametrize("writer", [torch_writer.write, torch_writer.write_older])
@pytest.mark.parametrize("dtype", torch_writer.KINDS)
def test_number_types_are_read(path, dtype, writer):
    values = np.array([0, 1, 2, 100]).astype(dtype)
    writer(path, {"x": values, "turned": values.reshape(2, 2).T})
    same(torch_file.load(path)["x"], values)
    same(torch_file.load(path)["turned"], values.reshape(2, 2).T)


@pytest.mark.parametrize("order", ["little", "big"])
def test_bfloat16_becomes_float32(path, order):
    values = np.array([1.0, -2.5, 0.15625, np.inf], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    kinds = {id(upper): "BFloat16Storage"}
    torch_writer.write(path, {"x": upper}, order=order, kinds=kinds)
    same(torch_file.load(path)["x"], values)


def test_parameters_and_attributes_are_read(path):
    parameter = Call("torch._utils", "_rebuild_parameter", BASE, True, collections.OrderedDict())
    torch_writer.write(path, {"x": parameter})
    same(torch_file.load(path)["x"], BASE)
    # A state dict has an attribute, which is set by BUILD.
    storages = {}
    described = torch_writer.described(collections.OrderedDict(a=BASE), storages)
    metadata = pickle.dumps({"_metadata": {"": {"version": 1}}}, 2)[2:-1]
    members = {key: flat.tobytes() for key, (_, flat) in storages.items()}
    torch_writer.write_pickle(path, described[:-1] + metadata + b"b.", members)
    same(torch_file.load(path)["a"], BASE)


def test_only_the_state_dict_is_read(path):
    """Damage elsewhere does not matter."""
    content = {"optimizer": {"m": np.ones(1)}, "model": {"state_dict": {"w": BASE}}}
    storages = {}
    described = torch_writer.described(content, storages)
    members = {key: flat.tobytes() for key, (_, flat) in storages.items()}
    members["0"] = b"short"
    torch_writer.write_pickle(path, described, members)
    assert list(torch_file.load(path)) == ["w"]
    members["1"] = b"short"
    torch_writer.write_pickle(path, described, members)
    with pytest.raises(ValueError, match="the storage '1' has 5 bytes, not 96"):
        torch_file.load(path)


@pytest.mark.parametrize("key", torch_file.WRAPPERS)
def test_a_state_dict_may_stand_in_a_checkpoint(path, key):
    torch_writer.write(path, {"epoch": 3, "optimizer": {"state": {}}, key: {"w": BASE, "n": 3}})
    assert list(torch_file.load(path)) == ["w"]


@pytest.mark.parametrize(
    ("names", "bare"),
    [
        (["module.att.w", "module.logit.w"], ["att.w", "logit.w"]),
        (["_orig_mod.att.w", "_orig_mod.logit.w"], ["att.w", "logit.w"]),
        (["module._orig_mod.att.w", "module._orig_mod.logit.w"], ["att.w", "logit.w"]),
        (["model.att.w", "model.logit.w"], ["att.w", "logit.w"]),
        (["captioner.net.att.w", "captioner.net.logit.w"], ["att.w", "logit.w"]),
        (["att._orig_mod.w", "logit.w"], ["att.w", "logit.w"]),
        (["features.module.0.w", "classifier.1.w"], ["features.0.w", "classifier.1.w"]),
        (["features.0.w", "features.2.w"], ["features.0.w", "features.2.w"]),
        (["fc.w", "fc.b"], ["w", "b"]),
        (["module", "module.x"], ["x"]),
        (["n_averaged", "module.att.w", "module.logit.w"], ["att.w", "logit.w"]),
        (["w"], ["w"]),
    ],
)
def test_names_are_those_of_the_bare_model(path, names, bare):
    torch_writer.write(path, dict.fromkeys(names, BASE))
    assert list(torch_file.load(path)) == bare


def test_the_first_wrapper_that_holds_tensors_counts(path):
    for content in (
        {"model": {"name": "fc", "d": 8}, "weights": {"w": BASE}},
        {"module": {"a": 1}, "net": {"state_dict": {"w": BASE, 3: BASE, ("w", 1): BASE}}},
    ):
        torch_writer.write(path, content)
        assert list(torch_file.load(path)) == ["w"]


def test_a_path_may_begin_with_home(path, monkeypatch):
    monkeypatch.setenv("HOME", str(path.parent))
    torch_writer.write(path, {"w": BASE})
    assert list(torch_file.load("~/model.pth")) == ["w"]


def test_two_names_of_one_tensor_are_refused(path):
    torch_writer.write(path, {"module.a": BASE, "a": BASE})
    with pytest.raises(ValueError, match="the same name but for module."):
        torch_file.load(path)


class Settings(argparse.Namespace):
    pass


class Words(dict):
    pass


# What trainers keep beside the weights, as Python pickles it.
OTHERS = {
    "numpy.float64": np.float64(1.13),
    "numpy.int64": np.int64(3),
    "numpy.dtype": np.dtype("f4"),
    "numpy.ndarray": Call(  # the writer takes arrays for tensors
        *("numpy.core.multiarray", "_reconstruct", Named("numpy", "ndarray"), (0,), b"b")
    ),
    "Namespace": Settings(lr=1e-4, ids=[1, 2]),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "Counter": collections.Counter("aab"),
    "subclass of dict": Words(a=1),
    "torch.device": Call("torch", "device", "cuda", 0),
    "torch.float16": Named("torch", "float16"),
    "torch.Size": Call("torch", "Size", (2, 3)),
    "Path": pathlib.PurePosixPath("a/b"),
    "set": {1, "x"},
    "frozenset": frozenset("x"),
    "complex": 1j,
    "bytearray": bytearray(b"x"),
    "datetime": datetime.datetime(2024, 1, 1),
    "keys": {Named("builtins", "int"): 3, Call("torch", "device", "cpu"): 4},
    "sparse tensor": Call("torch._utils", "_rebuild_sparse_tensor", 1, (2,)),
    "method of a result": Call("builtins", "getattr", Call("a", "b"), "c"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", OTHERS)
def test_other_objects_beside_the_weights_do_not_matter(path, name, protocol):
    content = {name: OTHERS[name], "model": {"w": BASE, name: OTHERS[name]}, "last": OTHERS[name]}
    torch_writer.write(path, content, protocol=protocol)
    same(torch_file.load(path)["w"], BASE)


HOSTILE = {
    "os.system": Call("os", "system", "touch {}"),
    "posix.system": Call("posix", "system", "touch {}"),
    "builtins.eval": Call("builtins", "eval", "open('{}', 'w')"),
    "builtins.exec": Call("builtins", "exec", "open('{}', 'w')"),
    "builtins.getattr": Call("builtins", "getattr", Named("os", "system"), "x"),
    "subprocess.Popen": Call("subprocess", "Popen", ["touch", "{}"]),
    "torch.load": Call("torch", "load", "{}"),
    "torch.FloatStorage.__class__": Named("torch", "FloatStorage.__class__"),
    "collections.OrderedDict.fromkeys": Named("collections", "OrderedDict.fromkeys"),
    "a module that is not imported": Call("antigravity", "fly"),
    "tfcap.torch_file.load": Call("tfcap.released.torch_file", "load", "{}"),
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
def test_other_names_are_neither_imported_nor_called(path, tmp_path, name, protocol):
    call = _aimed(HOSTILE[name], tmp_path / "run")
    torch_writer.write(path, {"w": BASE, "x": [({"y": call},)]}, protocol=protocol)
    same(torch_file.load(path)["w"], BASE)
    assert not (tmp_path / "run").exists() and "antigravity" not in sys.modules


def test_unpickling_a_hostile_file_would_run_its_code(tmp_path):
    """Without this, the tests of hostile files could pass with harmless files."""
    call = _aimed(Call("builtins", "exec", "open('{}', 'w').close()"), tmp_path / "run")
    pickle.loads(torch_writer.described(call))
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"(cos\nsystem\nX\x01\x00\x00\x00xo.",  # OBJ
        b"(X\x01\x00\x00\x00xios\nsystem\n.",  # INST
        b"ccollections\nOrderedDict\n)\x81.",  # NEWOBJ
        b"\x82\x01.",  # EXT1
        b"Pstorage\n.",  # PERSID
        b"K\x01)R.",  # calls a number
        b"ctorch\nFloatStorage\n)R.",
        b"ctorch\nFloatStorage\n}b.",  # sets attributes
        b"ccollections\nOrderedDict\n}b.",
        b"cos\nsystem\n}X\x01\x00\x00\x00xK\x01sb.",
        b"K\x01r\xff\xff\xff\xff.",  # a memo of four thousand million places
        b"j\xff\xff\xff\x7f.",
        b"0.",
        b"R.",
        b"t.",
        b"K\x01",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",  # BINUNICODE8, 9e18 bytes
        b"T\xff\xff\xff\x7fx.",  # BINSTRING
        b"\x8b\xff\xff\xff\x7fx.",  # LONG4
        b"]q\x00h\x00a.",  # contains itself
        b"}q\x00X\x05\x00\x00\x00modelh\x00s.",
        b"K\x01" + b"\x85" * 30_000 + b".",  # nested
        b"",
    ],
)
def test_damaged_pickles_are_refused(path, opcodes):
    torch_writer.write_pickle(path, b"\x80\x02" + opcodes)
    with pytest.raises(ValueError, match=r"model.pth is no usable file of torch.save: [^.]"):
        torch_file.load(path)


def tensor(count=6, offset=0, shape=(2, 3), strides=(3, 1), kind="FloatStorage", key="0"):
    """Returns the call that rebuilds a tensor with the given sizes."""
    storage = torch_writer.Storage(key, kind, count)
    return Call(
        *("torch._utils", "_rebuild_tensor_v2", storage, offset),
        *(shape, strides, False, collections.OrderedDict()),
    )


def written(path, **tensors):
    described = torch_writer.described(tensors)
    torch_writer.write_pickle(path, described, {"0": np.arange(6, dtype=np.float32).tobytes()})


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (dict(count=7), "has 24 bytes, not 28"),
        (dict(count=5), "has 24 bytes, not 20"),
        (dict(count=1 << 60), "has 24 bytes, not"),
        (dict(count=-6), "has 24 bytes, not"),
        (dict(kind="DoubleStorage"), "has 24 bytes, not 48"),
        (dict(kind="UntypedStorage"), "no tensors by name"),
        (dict(key="1"), "data/1"),
        (dict(key="../data.pkl"), "no usable file"),
        (dict(key="/etc/passwd"), "no usable file"),
        (dict(key=7), "no tensors by name"),
        (dict(count=6.0), "no tensors by name"),
        (dict(offset=1), "reaches out of its storage"),
        (dict(offset=-1), "as its sizes"),
        (dict(strides=(4, 1)), "reaches out of its storage"),
        (dict(strides=(-3, 1)), "as its sizes"),
        (dict(strides=(3,)), "as its sizes"),
        (dict(shape=(2, -3)), "as its sizes"),
        (dict(shape=(2.0, 3)), "as its sizes"),
        (dict(shape=(1 << 70, 1)), "reaches out of its storage"),
        (dict(shape=(2, 1), strides=(1 << 62, 1)), "reaches out of its storage"),
        (dict(shape=(1 << 40, 1 << 40), strides=(0, 0)), "reaches out of its storage"),
        (dict(shape=(7,), strides=(0,)), "reaches out of its storage"),
        (dict(shape=(1,) * 70, strides=(1,) * 70), "no usable file"),
    ],
)
def test_wrong_sizes_are_refused(path, sizes, reason):
    written(path, w=tensor(**sizes))
    with pytest.raises(ValueError, match=reason):
        torch_file.load(path)


def test_right_sizes_are_read(path):
    """The stride of an axis of length 1 may have any value."""
    written(path, w=tensor(), v=tensor(offset=2, shape=(1, 4), strides=(1 << 50, 1)))
    found = torch_file.load(path)
    same(found["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
    same(found["v"], np.arange(2, 6, dtype=np.float32)[None])


def test_a_wrong_size_allocates_no_memory(path):
    """A storage that claims 4 TB is refused before memory is allocated for it."""
    written(path, w=tensor(count=1 << 40, shape=(1 << 40,), strides=(1,)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="has 24 bytes, not 4398046511104"):
        torch_file.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_promised_size_allocates_no_memory(path):
    torch_writer.write_pickle(path, b"\x80\x05\x96" + (3 << 30).to_bytes(8, "little") + b".")
    assert "model.pth is no usable file of torch.save" in refusal_apart(path)


def refusal_apart(path):
    """Reads a file in a process of its own, which may crash; returns the error."""
    code = (
        "import resource, sys\nfrom tfcap.released import torch_file\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    torch_file.load(sys.argv[1])\nexcept ValueError as error:\n    print(error)\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "assert grown < 200_000, grown  # kilobytes"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) < 500
    return done.stdout


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.98])
@pytest.mark.parametrize("writer", [torch_writer.write, torch_writer.write_older])
def test_cut_files_are_refused(path, writer, share):
    writer(path, VIEWS)
    os.truncate(path, int(os.path.getsize(path) * share))
    with pytest.raises(ValueError, match="model.pth is no usable file of torch.save: "):
        torch_file.load(path)


@pytest.mark.parametrize("writer", [torch_writer.write, torch_writer.write_older])
def test_flipped_bytes_give_arrays_or_a_value_error(path, writer):
    """Every third byte of a small file is changed, one at a time."""
    writer(path, {"w": BASE[:2, :2].copy()})
    content = path.read_bytes()
    wrong = 0
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 0x11
        path.write_bytes(damaged)
        try:
            assert torch_file.load(path)
        except ValueError:
            wrong += 1
    assert wrong > 50


@pytest.mark.parametrize(
    "content", [b"", b"<!DOCTYPE html>", b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"\x80\x02}."]
)
def test_other_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="model.pth is no usable file of torch.save: "):
        torch_file.load(path)
    torch_writer.write_members(path, {"a/data.pkl": b"\x80\x02}."}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="compressed"):
        torch_file.load(path)
    with pytest.raises(ValueError, match="nowhere.pth cannot be read: No such file"):
        torch_file.load(path.parent / "nowhere.pth")
