"""The exported SavedModel gives the same captions without this package and is always complete."""

import json
import os
import re
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from helpers import captions, commands
from PIL import Image

from tfcap import export as command
from tfcap import runs
from tfcap.data.prepared import PreparedData
from tfcap.runs import savedmodel
from tfcap.runs.savedmodel import export

pytestmark = pytest.mark.slow  # it writes SavedModels and loads them in other processes

# Runs where nothing but TensorFlow is known. Prints captions, and every operation of the graph.
STRANGER = """
import json, sys
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

path, *pictures = sys.argv[1:]
loaded = tf.saved_model.load(path)
bytes_ = tf.constant([open(picture, "rb").read() for picture in pictures])
from_bytes = loaded.signatures["serving_default"](image_bytes=bytes_)
features = tf.random.stateless_normal([2, 5, 194], [1, 2])
from_features = loaded.signatures["features"](
    features=features, num_regions=tf.constant([5, 3]))

saved = saved_model_pb2.SavedModel()
saved.ParseFromString(open(path + "/saved_model.pb", "rb").read())
graph = saved.meta_graphs[0].graph_def
nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
library = {f.signature.name for f in graph.library.function}
operations = {node.op for node in nodes} - library
print("RESULT " + json.dumps({
    "captions": [[c.decode() for c in row] for row in from_bytes["captions"].numpy()],
    "scores": from_bytes["scores"].numpy().tolist(),
    "from_features": {k: v.numpy().astype(str).tolist() for k, v in from_features.items()
                      if k not in ("captions", "status")},
    "operations": sorted(operations),
    "unknown": sorted(op for op in operations if op_def_registry.get(op) is None),
    "foreign": [name for name in sys.modules
                if name.split(".")[0] in ("tfcap", "tensorflow_text", "official", "export")],
}))
"""


class _Poller(threading.Thread):
    """A server's view: notes the size of every file the moment a version appears."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.seen, self.ended = folder, {}, threading.Event()
        self.looks = 0

    def run(self):
        while not self.ended.wait(0.0005):
            self._look()
        self._look()  # the thread may not have run since the last version appeared

    def _look(self):
        for name in os.listdir(self.folder):
            if name.isdecimal() and name not in self.seen:
                self.seen[name] = _sizes(os.path.join(self.folder, name))
        self.looks += 1


def _sizes(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder): os.path.getsize(f"{place}/{name}")
        for place, _, names in os.walk(folder)
        for name in names
    }


@pytest.fixture(scope="module")
def exported(served, tmp_path_factory):
    """Two versions that are written at the same time, and who watched them come."""
    folder = str(tmp_path_factory.mktemp("served"))
    poller = _Poller(folder)
    poller.start()
    paths = []
    # Both must have chosen their number before either takes it.
    both, chosen = threading.Barrier(2), set()
    choose = savedmodel._last_version

    def last_version(folder):
        number = choose(folder)
        if threading.get_ident() not in chosen:
            chosen.add(threading.get_ident())
            both.wait(120)
        return number

    threads = [
        threading.Thread(target=lambda: paths.append(export(served, folder))) for _ in range(2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(savedmodel, "_last_version", last_version)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    poller.ended.set()
    poller.join()
    return folder, paths, poller


@pytest.fixture(scope="module")
def pictures(shapes, tmp_path_factory):
    """Paths of six pictures: three PNG files of the data and a scene, stored in three ways.

    The scene lies on its side in a JPEG whose EXIF says so, and in one without EXIF; the third file
    is a PNG of the upright scene with the same pixels.
    """
    data = PreparedData.load(shapes)
    names = list(data.file_names("val").values())[:4]
    paths = [os.path.join(data.images, name) for name in names]
    assert all(open(path, "rb").read(4) == b"\x89PNG" for path in paths)
    folder = tmp_path_factory.mktemp("pictures")
    names = ("exif.jpg", "upright.png", "no_exif.jpg")
    with_exif, upright, without = (str(folder / name) for name in names)
    scene = Image.open(paths[3]).convert("RGB").resize((240, 180))
    lying, exif = scene.transpose(Image.Transpose.ROTATE_90), Image.Exif()
    exif[0x0112] = 6
    lying.save(with_exif, quality=85, exif=exif)
    lying.save(without, quality=85)
    stored = tf.io.decode_jpeg(tf.io.read_file(without)).numpy()
    Image.fromarray(np.rot90(stored, -1)).save(upright)
    return [*paths[:3], with_exif, upright, without]


def test_versions_count_up_and_no_two_exports_take_the_same(exported):
    folder, paths, _ = exported
    assert sorted(paths) == [os.path.join(folder, number) for number in "12"]
    assert sorted(os.listdir(folder)) == ["1", "2"]
    os.makedirs(os.path.join(folder, "10"))
    try:
        assert savedmodel._last_version(folder) == 10
    finally:
        os.rmdir(os.path.join(folder, "10"))


def test_a_server_never_sees_half_a_version(exported):
    folder, paths, poller = exported
    assert poller.looks > 100
    assert sorted(poller.seen) == ["1", "2"]
    for name, sizes in poller.seen.items():
        assert sizes == _sizes(os.path.join(folder, name))
        assert {"saved_model.pb", "variables/variables.index"} <= sizes.keys()


def test_a_process_that_knows_only_tensorflow_gives_the_same_captions(
    captioner, served, exported, pictures, tmp_path
):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    result = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, exported[1][0], *pictures],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    answer = json.loads(line.removeprefix("RESULT "))
    assert answer["foreign"] == []

    here = list(captions.every(captioner, pictures, batch_size=3))
    assert answer["captions"] == [found for _, found, _ in here]
    assert all(captions[0] for captions in answer["captions"])
    np.testing.assert_allclose(answer["scores"], [scores for *_, scores in here], atol=1e-5)
    # The graph reads the EXIF of the scene that lies on its side.
    assert answer["captions"][3] == answer["captions"][4]
    assert answer["scores"][3] == pytest.approx(answer["scores"][4], abs=1e-5)
    assert answer["scores"][5] != pytest.approx(answer["scores"][4], abs=1e-3)
    features = tf.random.stateless_normal([2, 5, 194], [1, 2])
    direct = served.from_features(features, tf.constant([5, 3]))
    far = answer["from_features"]
    np.testing.assert_array_equal(np.array(far["tokens"]).astype(int), direct["tokens"])
    np.testing.assert_allclose(np.array(far["scores"]).astype(float), direct["scores"], atol=1e-5)

    operations = set(answer["operations"])
    assert {"DecodeImage", "MatMul", "TopKV2"} <= operations and answer["unknown"] == []
    assert operations & {"While", "StatelessWhile"}
    foreign = re.compile("PyFunc|Xla|Sentencepiece|RaggedTensorTo|NormalizeUTF8|^Text")
    assert not [op for op in operations if foreign.search(op)]


def test_saved_model_cli_lists_both_signatures(exported):
    tool = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli"]
    command = [*tool, "show", "--dir", exported[1][0], "--all"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout.split("Concrete Functions")[0]
    _, *parts = re.split(r"signature_def\['(\w+)'\]:", text)
    found = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        entry = r"(in|out)puts\['(\w+)'\] tensor_info:\s+dtype: (\w+)\s+shape: (.+)"
        found[name] = {f"{way}: {key}": f"{d} {s}" for way, key, d, s in re.findall(entry, part)}
    outputs = {
        "out: captions": "DT_STRING (-1, 2)",
        "out: scores": "DT_FLOAT (-1, 2)",
        "out: tokens": "DT_INT32 (-1, 2, 12)",
        "out: status": "DT_STRING (-1)",
    }
    found.pop("__saved_model_init_op", None)
    assert found == {
        "serving_default": {"in: image_bytes": "DT_STRING (-1)", **outputs},
        "features": {
            "in: features": "DT_FLOAT (-1, -1, 194)",
            "in: num_regions": "DT_INT32 (-1)",
            **outputs,
        },
    }


def test_an_export_is_written_to_a_disk(served):
    with pytest.raises(ValueError, match="to a disk. Received: ram://bucket/served"):
        savedmodel.export(served, "ram://bucket/served")
    assert not tf.io.gfile.exists("ram://bucket")


def test_a_failed_export_leaves_no_files(served, tmp_path):
    """A limit on the size of files acts like a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="The export could not be written"):
            export(served, str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_a_model_that_is_not_finite_is_not_kept(trained, tmp_path):
    broken = runs.server(runs.load(trained))
    bias = broken.model.checkpoint_items["weights"]["head/bias"]
    bias.assign(bias * np.nan)
    with pytest.raises(ValueError, match="scores .* must be finite. Received: .*nan"):
        export(broken, str(tmp_path))
    assert os.listdir(tmp_path) == []


# Draws samples where nothing but TensorFlow is known.
SAMPLER = """
import json, sys
import tensorflow as tf

captioner = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
bytes_ = tf.constant([open(picture, "rb").read() for picture in sys.argv[2:]])
seeds = [tf.constant(numbers, tf.int64) for numbers in ([1, 2], [2, 1], [1, 2])]
results = [captioner(image_bytes=bytes_, seed=seed)["captions"].numpy() for seed in seeds]
print("RESULT " + json.dumps([[[c.decode() for c in row] for row in r] for r in results]))
"""


def test_an_export_with_samples_and_rules_gives_the_same_captions(
    trained, pictures, tmp_path, capsys
):
    """A process with TensorFlow alone gives the same captions, here by consensus of samples."""
    changes = "search=sample,samples=4,top_k=20,prefix=there,min_length=3,order=consensus"
    flag = ("--model_dir", trained, "--export_dir", str(tmp_path), "--decoding", changes)
    commands.run_here(command, *flag)
    said = capsys.readouterr().out
    assert f"is exported to {tmp_path}/1" in said and "saved_model_cli show" in said
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    sampler = [sys.executable, "-c", SAMPLER, f"{tmp_path}/1", *pictures[:2]]
    stranger = subprocess.run(
        sampler, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert "RESULT " in stranger.stdout, stranger.stderr[-2000:]
    first, other, again = json.loads(stranger.stdout.split("RESULT ")[1].splitlines()[0])
    assert first == again != other
    served = runs.server(runs.load(trained), changes)
    content = tf.constant([open(picture, "rb").read() for picture in pictures[:2]])
    here = served.from_bytes(content, tf.constant([1, 2], tf.int64))["captions"].numpy()
    assert first == [[text.decode() for text in row] for row in here]
    assert all(c.startswith("there ") and len(c.split()) > 2 for row in first for c in row)
