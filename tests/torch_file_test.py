"""Weights in files of `torch.save`: good ones are read, and hostile ones run no code."""

import argparse
import collections
import datetime
import io
import json
import os
import pickle
import resource
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from helpers import torch_writer
from helpers.torch_writer import Call, Named

from tfcap import torch_file

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


@pytest.mark.parametrize("protocol", [2, 4])
def test_views_are_read(path, protocol):
    torch_writer.write(
        path, {**VIEWS, "epoch": 3, "rest": [1.5, None, (True, "x")]}, "m", protocol=protocol
    )
    result = torch_file.read_tensors(path)
    assert list(result) == list(VIEWS)
    for name, expected in VIEWS.items():
        same(result[name], expected)
    with pytest.raises(ValueError, match="read-only"):
        result["whole"][0, 0] = 1
    assert np.shares_memory(result["whole"], result["turned"])


def test_the_older_layout_is_read(path):
    torch_writer.write_older(path, {"model": VIEWS, "epoch": 3})
    for name, result in torch_file.read_tensors(path).items():
        same(result, VIEWS[name])


@pytest.mark.parametrize("order", [None, "little", "big"])
def test_byte_orders_are_read(path, order):
    torch_writer.write(path, VIEWS, top="a b.c", order=order)
    for name, result in torch_file.read_tensors(path).items():
        same(result, VIEWS[name])


@pytest.mark.parametrize("writer", [torch_writer.write, torch_writer.write_older])
@pytest.mark.parametrize("dtype", torch_writer.KINDS)
def test_number_types_are_read(path, dtype, writer):
    values = np.array([0, 1, 2, 100]).astype(dtype)
    writer(path, {"x": values, "turned": values.reshape(2, 2).T})
    same(torch_file.read_tensors(path)["x"], values)
    same(torch_file.read_tensors(path)["turned"], values.reshape(2, 2).T)


@pytest.mark.parametrize("order", ["little", "big"])
def test_bfloat16_becomes_float32(path, order):
    values = np.array([1.0, -2.5, 0.15625, np.inf], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    kinds = {id(upper): "BFloat16Storage"}
    torch_writer.write(path, {"x": upper}, order=order, kinds=kinds)
    same(torch_file.read_tensors(path)["x"], values)


def test_parameters_and_attributes_are_read(path):
    parameter = Call("torch._utils", "_rebuild_parameter", BASE, True, collections.OrderedDict())
    torch_writer.write(path, {"x": parameter})
    same(torch_file.read_tensors(path)["x"], BASE)
    # A state dict has an attribute, which is set by BUILD.
    storages = {}
    described = torch_writer.described(collections.OrderedDict(a=BASE), storages)
    metadata = pickle.dumps({"_metadata": {"": {"version": 1}}}, 2)[2:-1]
    members = {key: flat.tobytes() for key, (_, flat) in storages.items()}
    torch_writer.write_pickle(path, described[:-1] + metadata + b"b.", members)
    same(torch_file.read_tensors(path)["a"], BASE)


def test_only_the_state_dict_is_read(path):
    """Damage elsewhere does not matter."""
    content = {"optimizer": {"m": np.ones(1)}, "model": {"state_dict": {"w": BASE}}}
    storages = {}
    described = torch_writer.described(content, storages)
    members = {key: flat.tobytes() for key, (_, flat) in storages.items()}
    members["0"] = b"short"
    torch_writer.write_pickle(path, described, members)
    assert list(torch_file.read_tensors(path)) == ["w"]
    members["1"] = b"short"
    torch_writer.write_pickle(path, described, members)
    with pytest.raises(ValueError, match="a storage has 5 bytes, not 96"):
        torch_file.read_tensors(path)


@pytest.mark.parametrize(
    ("names", "bare"),
    [
        (["module.att.w", "module.logit.w"], ["att.w", "logit.w"]),
        (["module._orig_mod.att.w", "module._orig_mod.logit.w"], ["att.w", "logit.w"]),
        (["captioner.net.att.w", "captioner.net.logit.w"], ["att.w", "logit.w"]),
        (["att._orig_mod.w", "logit.w"], ["att.w", "logit.w"]),
        (["features.module.0.w", "classifier.1.w"], ["features.0.w", "classifier.1.w"]),
        (["features.0.w", "features.2.w"], ["features.0.w", "features.2.w"]),
        (["n_averaged", "module.att.w", "module.logit.w"], ["att.w", "logit.w"]),
    ],
)
def test_names_are_those_of_the_bare_model(path, names, bare):
    torch_writer.write(path, dict.fromkeys(names, BASE))
    assert list(torch_file.read_tensors(path)) == bare


def test_the_first_wrapper_that_holds_tensors_counts(path):
    for content in (
        {"model": {"name": "fc", "d": 8}, "weights": {"w": BASE}},
        {"module": {"a": 1}, "net": {"state_dict": {"w": BASE, 3: BASE, ("w", 1): BASE}}},
    ):
        torch_writer.write(path, content)
        assert list(torch_file.read_tensors(path)) == ["w"]


class Settings(argparse.Namespace):
    pass


class Words(dict):
    pass


# What trainers keep beside the weights, as Python pickles it.
OTHERS = {
    "numpy.float64": np.float64(1.13),
    "numpy.dtype": np.dtype("f4"),
    "numpy.ndarray": Call(  # the writer takes arrays for tensors
        *("numpy.core.multiarray", "_reconstruct", Named("numpy", "ndarray"), (0,), b"b")
    ),
    "Namespace": Settings(lr=1e-4, ids=[1, 2]),
    "subclass of dict": Words(a=1),
    "torch.device": Call("torch", "device", "cuda", 0),
    "set": {1, "x"},
    "bytearray": bytearray(b"x"),
    "datetime": datetime.datetime(2024, 1, 1),
    "keys": {Named("builtins", "int"): 3, Call("torch", "device", "cpu"): 4},
    "sparse tensor": Call("torch._utils", "_rebuild_sparse_tensor", 1, (2,)),
    "method of a result": Call("builtins", "getattr", Call("a", "b"), "c"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_objects_beside_the_weights_do_not_matter(path, name):
    content = {name: OTHERS[name], "model": {"w": BASE, name: OTHERS[name]}, "last": OTHERS[name]}
    torch_writer.write(path, content)
    same(torch_file.read_tensors(path)["w"], BASE)


HOSTILE = {
    "os.system": Call("os", "system", "touch {}"),
    "builtins.eval": Call("builtins", "eval", "open('{}', 'w')"),
    "builtins.getattr": Call("builtins", "getattr", Named("os", "system"), "x"),
    "subprocess.Popen": Call("subprocess", "Popen", ["touch", "{}"]),
    "torch.load": Call("torch", "load", "{}"),
    "collections.OrderedDict.fromkeys": Named("collections", "OrderedDict.fromkeys"),
    "a module that is not imported": Call("antigravity", "fly"),
    "tfcap.torch_file.read_tensors": Call("tfcap.torch_file", "read_tensors", "{}"),
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
    same(torch_file.read_tensors(path)["w"], BASE)
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
        b"ctorch\nFloatStorage\n}b.",  # sets attributes
        b"cos\nsystem\n}X\x01\x00\x00\x00xK\x01sb.",
        b"K\x01r\xff\xff\xff\xff.",  # a memo of four thousand million places
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",  # BINUNICODE8, 9e18 bytes
        b"]q\x00h\x00a.",  # contains itself
        b"}q\x00X\x05\x00\x00\x00modelh\x00s.",
        b"K\x01" + b"\x85" * 30_000 + b".",  # nested
        b"",
    ],
)
def test_damaged_pickles_are_refused(path, opcodes):
    torch_writer.write_pickle(path, b"\x80\x02" + opcodes)
    with pytest.raises(ValueError, match=r"model.pth is no usable file of torch.save: [^.]"):
        torch_file.read_tensors(path)


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
        (dict(count=1 << 60), "has 24 bytes, not"),
        (dict(kind="UntypedStorage"), "no tensors by name"),
        (dict(key="1"), "data/1"),
        (dict(key="../data.pkl"), "no usable file"),
        (dict(count=6.0), "no tensors by name"),
        (dict(offset=1), "reaches out of its storage"),
        (dict(offset=-1), "below 0 or not whole"),
        (dict(strides=(4, 1)), "reaches out of its storage"),
        (dict(strides=(-3, 1)), "below 0 or not whole"),
        (dict(shape=(1 << 70, 1)), "reaches out of its storage"),
        (dict(shape=(1 << 40, 1 << 40), strides=(0, 0)), "reaches out of its storage"),
    ],
)
def test_wrong_sizes_are_refused(path, sizes, reason):
    written(path, w=tensor(**sizes))
    with pytest.raises(ValueError, match=reason):
        torch_file.read_tensors(path)


def test_right_sizes_are_read(path):
    """The stride of an axis of length 1 may have any value."""
    written(path, w=tensor(), v=tensor(offset=2, shape=(1, 4), strides=(1 << 50, 1)))
    result = torch_file.read_tensors(path)
    same(result["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
    same(result["v"], np.arange(2, 6, dtype=np.float32)[None])


def test_a_promised_size_allocates_no_memory(path):
    torch_writer.write_pickle(path, b"\x80\x05\x96" + (3 << 30).to_bytes(8, "little") + b".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="model.pth is no usable file of torch.save"):
        torch_file.read_tensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("share", [0.3, 0.98])
@pytest.mark.parametrize("writer", [torch_writer.write, torch_writer.write_older])
def test_cut_files_are_refused(path, writer, share):
    writer(path, VIEWS)
    os.truncate(path, int(os.path.getsize(path) * share))
    with pytest.raises(ValueError, match="model.pth is no usable file of torch.save: "):
        torch_file.read_tensors(path)


def zipped(*names):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"),
        (b"\x89HDF\r\n\x1a\n" + bytes(9), r"HDF5 file \(.h5\), such as Keras writes"),
        (zipped("metadata.json", "config.json", "model.weights.h5"), "model of Keras"),
        (zipped("w.npy"), r"NumPy \(.npz\)"),
        (b"\x93NUMPY", r"NumPy \(.npy\)"),
        (zipped("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"), "TorchScript"),
        (zipped("folder/model.pth"), "zip archive with files of weights: unpack it"),
        (b"PK\x05\x06" + bytes(18), "zip file without data.pkl"),
        (b"\x1f\x8b\x08", "gzip: unpack it"),
        (bytes(257) + b"ustar" + bytes(700), "tar archive: unpack it"),
        (b"\0\0w" + (0xDB4775248B80FB57).to_bytes(8, "little"), "checkpoint of TensorFlow"),
        (b"GGUF", "GGUF"),
        (b'{"weight_map": {"w": "model-00001-of-00002.safetensors"}}', "JSON, .* an index of"),
        (pickle.dumps({"w": BASE}), "pickle of another program"),
        (b"\x0a\x04text", "another format"),
    ],
)
def test_a_whole_file_of_another_format_is_not_called_damaged(path, content, kind):
    path.write_bytes(content)
    pattern = f"model.pth is no usable file of torch.save: .*{kind}.* with torch.save"
    with pytest.raises(ValueError, match=pattern) as caught:
        torch_file.read_tensors(path)
    assert "Copy" not in str(caught.value)
    with pytest.raises(ValueError, match="nowhere.pth cannot be read: No such file"):
        torch_file.read_tensors(path.parent / "nowhere.pth")


# ---- safetensors --------------------------------------------------------------------------------


def safe(path, arrays, **changes):
    """Writes a safetensors file; `changes` replace entries of the header."""
    header, content = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        kind = {"f": "F", "i": "I", "u": "U"}.get(array.dtype.kind, "")
        kind = f"{kind}{8 * array.itemsize}" if kind else "BOOL"
        ends = [len(content), len(content) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": ends}
        content += array.tobytes()
    text = json.dumps(header | changes).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


def test_safetensors_are_read(path):
    arrays = {f"module.{name}": np.ascontiguousarray(view) for name, view in VIEWS.items()}
    kinds = [kind for kind in torch_writer.KINDS if kind != "float32"]
    arrays |= {f"module.{kind}": np.array([[0, 1], [100, 1]]).astype(kind) for kind in kinds}
    safe(path, arrays)
    result = torch_file.read_tensors(path)
    assert list(result) == [*VIEWS, *kinds]
    for name, expected in arrays.items():
        same(result[name.removeprefix("module.")], expected)
    with pytest.raises(ValueError, match="read-only"):
        result["whole"][0, 0] = 1
    upper = (np.array([1.0, -2.5, 0.15625], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    safe(path, {"x": upper}, x={"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]})
    same(torch_file.read_tensors(path)["x"], np.array([1.0, -2.5, 0.15625], np.float32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": [4, 7]}, "has 96 bytes, not 112"),
        ({"shape": [-4, -6]}, "the tensor w reaches out of it"),
        ({"shape": [4.0, 6]}, "the tensor w reaches out of it"),
        ({"data_offsets": [0, 1 << 60]}, "the tensor w reaches out of it"),
        ({"data_offsets": [-8, 88]}, "the tensor w reaches out of it"),
        # It would be read up to the end of the file, like each further tensor of its kind.
        ({"dtype": "U8", "shape": [95], "data_offsets": [1, 0]}, "the tensor w reaches out of it"),
        ({"data_offsets": "ab"}, "no usable file"),
        ({"dtype": "F8_E4M3"}, "the tensor w has the type F8_E4M3, which is not read. Save"),
    ],
)
def test_wrong_headers_of_safetensors_are_refused(path, changes, reason):
    entry = {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}
    safe(path, {"w": BASE}, w=entry | changes)
    with pytest.raises(ValueError, match=reason):
        torch_file.read_tensors(path)
    safe(path, {"w": BASE}, w=entry, again=entry)  # many names of the same bytes
    with pytest.raises(ValueError, match="the tensor again reaches out of it"):
        torch_file.read_tensors(path)


@pytest.mark.parametrize("share", [0.3, 0.98])
def test_cut_safetensors_are_refused(path, share):
    safe(path, {"w": BASE})
    os.truncate(path, int(os.path.getsize(path) * share))
    with pytest.raises(ValueError, match="no usable file of torch.save: .* Copy it again, or save"):
        torch_file.read_tensors(path)


def test_a_promised_header_allocates_no_memory(path):
    path.write_bytes((99_000_000).to_bytes(8, "little") + b'{"w": {}}')
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="the file is cut: .* Copy it again"):
            torch_file.read_tensors(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
