"""A portable export captions as its run does, with operators that need no TensorFlow."""

import base64
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import interpreter
from ai_edge_litert import schema_py_generated as schema
from helpers import captions, commands, small_models, systems
from helpers.sizes import FEATURES, LENGTH, REGIONS, VOCABULARY

import tfcap
from tfcap import caption as caption_command
from tfcap import doctor, errors, export, runs
from tfcap.captioning import demo_page
from tfcap.data.tokens import SPECIALS, Vocab
from tfcap.decoding import Options
from tfcap.decoding.confidence import Confidence
from tfcap.decoding.search import Search
from tfcap.serving import portable, saved_model
from tfcap.serving.standalone import caption

pytestmark = pytest.mark.slow

# Every search, with every constraint.
CHANGES = {
    "groups": dict(beam=6, groups=3, length_power=1.0, length_penalty="gnmt"),
    "retire": dict(finished="retire", no_repeat_ngram=3, bad_endings=(5, 6), temperature=0.7),
    "prefix": dict(prefix=(7,), min_length=3, suppress=(8,), max_length=4),
    "sample": dict(search="sample", samples=4, top_k=5, top_p=0.8),
}


def server(name, **changes):
    model = small_models.make(name, seed=3)
    batch = systems.padded_batch()
    model.decode(model.encode(batch), batch["tokens"][:, 0])  # creates the variables
    words = [*SPECIALS, *(f"w{i}" for i in range(VOCABULARY - len(SPECIALS)))]
    return saved_model.CaptionServer(model, Vocab(words), Search(Options(**changes), LENGTH))


def inputs(function, number):
    rng = np.random.default_rng(number)
    values = {
        "features": rng.normal(size=function.inputs["features"].shape).astype(np.float32),
        "num_regions": np.array([1 + number % REGIONS], np.int32),
        "draws": rng.random((1, 4, LENGTH), np.float32),
    }
    return {name: values[name] for name in function.inputs}


def check_parts(content):
    """Has a LiteRT file only built-in operators, and only tensors of known shapes?

    An operator of TensorFlow does not run in LiteRT, and a tensor of unknown shape moves the memory
    that XNNPACK reads.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    assert [code.customCode for code in model.operatorCodes if code.customCode] == []
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    signatures = [tensor.shapeSignature for tensor in tensors]
    assert tensors and not [one for one in signatures if one is not None and -1 in one]


def folder_of(served, path, **entries):
    """A directory with a LiteRT file, as `portable.write` writes it for a run."""
    function = portable.trace(served, 1, REGIONS)
    content = portable.litert(function, "float32")
    check_parts(content)
    (path / "captioner.tflite").write_bytes(content)
    card = {"file": "captioner.tflite", "words": "words.txt", "regions": REGIONS, "samples": None}
    (path / "captioner.json").write_text(json.dumps(card | entries))
    (path / "words.txt").write_text("\n".join(served.vocab.words))
    return function


def check_equal(function, path):
    model = caption.Captioner(path)
    for number in range(4):
        given = inputs(function, number)
        wanted = function.traced(**{name: tf.constant(value) for name, value in given.items()})
        result = model.run(**given)
        np.testing.assert_array_equal(result["tokens"], wanted["tokens"])
        for name in wanted.keys() - {"tokens"}:
            np.testing.assert_allclose(result[name], wanted[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*small_models.SIZES, "ensemble"])
def test_every_system_gives_the_captions_of_tensorflow(name, tmp_path):
    check_equal(folder_of(server(name), tmp_path), tmp_path)


def test_the_box_of_a_region_stands_behind_its_features():
    served = server("ort")
    function = portable.trace(served, 1, REGIONS)
    values = inputs(function, REGIONS - 1)
    assert values["features"].shape == (1, REGIONS, FEATURES + 4)
    features, boxes = np.split(values["features"], [FEATURES], axis=-1)
    wanted = served.from_features(features, values["num_regions"], boxes=boxes)["scores"]
    result = function.traced(**{name: tf.constant(value) for name, value in values.items()})
    np.testing.assert_allclose(result["scores"], wanted, atol=1e-5)
    without = served.from_features(features, values["num_regions"])["scores"]
    assert np.abs(result["scores"] - without).max() > 1e-4


# `test_the_confidences_are_those_of_tensorflow` has the others of Up-Down.
@pytest.mark.parametrize(
    "name, changes",
    [("updown", "groups"), ("updown", "retire"), *(("transformer", one) for one in CHANGES)],
)
def test_every_search_gives_the_captions_of_tensorflow(name, changes, tmp_path):
    check_equal(folder_of(server(name, **CHANGES[changes]), tmp_path), tmp_path)


@pytest.mark.parametrize("changes", [{}, CHANGES["prefix"], CHANGES["sample"]])
def test_the_confidences_are_those_of_tensorflow(changes, tmp_path):
    rng = np.random.default_rng(5)
    shapes = {"mean": [FEATURES], "hidden": [FEATURES, 3], "hidden_bias": [3]}
    shapes |= {"words": [VOCABULARY, 3], "words_bias": [VOCABULARY], "idf": [VOCABULARY]}
    arrays = {name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()}
    served = server("updown", **changes)
    served.confidence = Confidence(arrays, {"signals": {"log_prob": 1, "support": 2}, "bias": 0.5})
    function = folder_of(served, tmp_path, confidence={}, samples=changes.get("samples"))
    check_equal(function, tmp_path)
    values = caption.Captioner(tmp_path).run(**inputs(function, 2))["confidences"]
    assert values.shape[0] == 1 and np.ptp(values) > 1e-3 and 0 < values.min() < values.max() < 1


def test_log_probs_sum_to_the_scores(tmp_path):
    function = folder_of(server("updown"), tmp_path)
    result = caption.Captioner(tmp_path).run(**inputs(function, 2))
    assert (result["tokens"] == 0).any()  # a caption that ends early
    np.testing.assert_allclose(result["log_probs"].sum(-1), result["scores"], rtol=1e-5)


def test_a_slice_that_is_assigned_has_no_built_in_operator(monkeypatch):
    monkeypatch.setattr(portable, "portable_graphs", contextlib.nullcontext)
    function = portable.trace(server("transformer"), 1, REGIONS)
    with pytest.raises(ValueError, match="TensorStridedSliceUpdate.*Use `format=saved_model`"):
        portable.litert(function, "float32")


def test_samples_have_seeds_of_their_own(tmp_path):
    folder_of(server("updown", search="sample", samples=4), tmp_path, samples=4, length=LENGTH)
    model = caption.Captioner(tmp_path)
    features = np.ones([3, REGIONS, FEATURES], np.float32)
    first, second, again = model.caption(features, [5] * 3, seeds=[1, 2, 1])
    assert first == again != second
    assert model.caption(features[:1], [5], seeds=[2]) == [second]


# ---- the directory -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def float32(trained, pictures, made_once):
    """The directory of a portable export of `trained` in float32."""

    def fill(folder):
        flags = ["--model_dir", trained, "--format=litert", "--weights=float32"]
        flags += [f"--pictures={path}" for path in pictures]
        commands.run_here(export, *flags, "--export_dir", folder)

    return made_once("portable", fill)


def test_it_captions_as_the_run_does(captioner, float32, pictures):
    loaded = tfcap.load(float32)
    assert str(loaded.runtime) == f"attention_lstm of {float32}/captioner.tflite, beam 2"
    wanted = captions.every(captioner, pictures)
    for one, other in zip(wanted, captions.every(loaded, pictures, 2), strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], abs=1e-4)
    assert loaded(pictures[0]).log_probs == pytest.approx(captioner(pictures[0]).log_probs, 1e-3)
    pixels = np.random.default_rng(1).integers(0, 256, (70, 50, 3), np.uint8)
    assert loaded(pixels).text == captioner(pixels).text


def test_its_files_and_cards(float32, trained):
    folder = pathlib.Path(float32)
    names = {"README.md", "caption.py", "captioner.json", "captioner.tflite", "words.txt"}
    assert {path.name for path in folder.iterdir()} == names
    card = json.loads((folder / "captioner.json").read_text())
    measured = {"pictures": 5, "equal": 5}
    assert measured.items() <= card["measured"].items() and card["measured"]["score"] < 1e-4
    assert card["decoding"] == runs.load(trained).params.task.decoding.as_dict()
    text = (folder / "README.md").read_text()
    assert card["sha256"] in text and "| 5 of 5; their scores differ by at most" in text
    assert (folder / "words.txt").read_text() == pathlib.Path(trained, "vocab.txt").read_text()


def test_the_script_alone_captions_without_tensorflow(float32, captioner, pictures, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow is not here')")
    (tmp_path / "tfcap.py").write_text("raise ImportError('tfcap is not here')")
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    done = subprocess.run(
        [sys.executable, f"{float32}/caption.py", *pictures, bad],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    wanted = [f"{path}\t{texts[0]}" for path, texts, _ in captions.every(captioner, pictures)]
    assert done.stdout.splitlines() == wanted
    assert done.returncode == 3 and f"error: {bad}: it is damaged" in done.stderr


def test_the_command_captions_without_tensorflow(float32, captioner, pictures, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow is not here')")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tfcap import caption"
    wanted = [f"{path}\t{texts[0]}" for path, texts, _ in captions.every(captioner, pictures)]
    for flags in ([], ["--write=csv", "--out", tmp_path / "new" / "captions.csv"]):
        done = subprocess.run(
            [sys.executable, "-c", f"{code}; caption.main()", tmp_path, *pictures, *flags]
            + ["--model_dir", float32],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert flags or done.stdout.splitlines() == wanted
    assert len((tmp_path / "new" / "captions.csv").read_text().splitlines()) == 1 + len(wanted)


def test_what_it_cannot_do_is_refused(float32, pictures):
    loaded = tfcap.load(float32)
    with pytest.raises(ValueError, match="is an export, which only captions pictures"):
        loaded.score(pictures[0], "a red circle")
    with pytest.raises(ValueError, match="`beam` cannot be used with .*an export"):
        tfcap.load(float32, beam=3)
    with pytest.raises(errors.UsageError, match="--rerank needs a run"):
        commands.run_here(
            caption_command, "--model_dir", float32, "--rerank=consensus", pictures[0]
        )


def test_a_file_beside_a_run_is_not_taken_for_that_of_the_run(float32, trained, tmp_path):
    for folder in (float32, trained):
        for path in pathlib.Path(folder).iterdir():
            if not (tmp_path / path.name).exists():
                (tmp_path / path.name).symlink_to(path)
    assert "captioner.tflite" not in str(tfcap.load(tmp_path).runtime)


def test_fewer_bits_say_what_they_change(float32, trained, pictures, tmp_path, capsys):
    (tmp_path / "some").mkdir()
    for path in sorted(pathlib.Path(pictures[0]).parent.iterdir())[:17]:  # two batches
        shutil.copy(path, tmp_path / "some")
    for weights in ("float16", "int8"):
        flags = ["--model_dir", trained, "--format=litert", f"--weights={weights}"]
        flags += ["--pictures", tmp_path / "some"]
        commands.run_here(export, *flags, "--export_dir", tmp_path / weights)
        measured = json.loads((tmp_path / weights / "captioner.json").read_text())["measured"]
        assert measured["pictures"] == 17
        assert f"{measured['equal']} of 17 pictures are those of the run" in capsys.readouterr().out
    folders = tmp_path / "float16", pathlib.Path(float32)
    half, whole = ((folder / "captioner.tflite").stat().st_size for folder in folders)
    assert half < 0.8 * whole


def test_half_precision_keeps_small_constants(tmp_path):
    """A divisor of 1e-9 and a mask of -1e9 are no numbers of float16."""
    weights = np.random.default_rng(1).normal(size=(300, 40)).astype(np.float32)

    def function(images):
        values = tf.matmul(images, tf.constant(weights)) * 0.0
        return {"y": values / (values + 1e-9) + tf.constant([1e-7] * 40) - 1e9}

    specs = {"images": tf.TensorSpec([1, 300], tf.float32, "images")}
    traced = tf.function(function, autograph=False).get_concrete_function(**specs)
    function = portable.Function(traced, specs, tf.Module())
    contents = [portable.litert(function, kind) for kind in ("float32", "float16")]
    assert len(contents[1]) < 0.6 * len(contents[0])
    for content in contents:
        run = interpreter.Interpreter(model_content=content).get_signature_runner()
        result = run(images=np.ones([1, 300], np.float32))["y"]
        np.testing.assert_array_equal(result, np.full([1, 40], -1e9, np.float32))


@pytest.mark.parametrize(
    "flags, reason",
    [
        (("--format=litert", "--bundle"), "--bundle is for a SavedModel"),
        (("--format=onnx", "--weights=int8"), "cannot be used with --format=onnx"),
        (("--format=run", "--pictures=a.jpg"), "--pictures needs --format litert, onnx, web"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags, reason, tmp_path):
    with pytest.raises(errors.UsageError, match=reason):
        commands.run_here(export, "--model_dir=a", "--export_dir", tmp_path / "out", *flags)


def test_the_demo_leaves_out_the_attention_that_it_cannot_compute(float32, pictures):
    model = demo_page.Model("portable", tfcap.load(float32))
    content = base64.b64encode(pathlib.Path(pictures[0]).read_bytes()).decode()
    request = {"instances": [{"b64": content}], "attention": "attention"}
    [prediction] = model.predict(request)["predictions"]
    assert prediction["captions"][0] == tfcap.load(float32)(pictures[0]).text
    assert "attention" not in prediction and prediction["log_probs"][0]


def test_the_doctor_captions_with_it(float32):
    [*_, finding] = doctor.findings(export_dir=float32)
    assert finding.status == doctor.OK and "captions zeros: " in finding.text


def test_pictures_that_cannot_be_compared_are_refused(trained, pictures, tmp_path):
    flags = ["--model_dir", trained, "--format=litert", "--export_dir", tmp_path / "out"]
    with pytest.raises(errors.UsageError, match="--pictures names .*none.jpg, which is neither"):
        commands.run_here(export, *flags, "--pictures", tmp_path / "none.jpg")
    with pytest.raises(ValueError, match="draws samples, so --pictures cannot be used"):
        flags += ["--decoding=search=sample", "--pictures", pictures[0]]
        commands.run_here(export, *flags)


def test_an_empty_directory_is_filled_and_what_cannot_be_read_is_counted(
    trained, pictures, tmp_path, monkeypatch, capsys
):
    (tmp_path / "bad.jpg").write_text("no picture")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    flags = ["--model_dir", trained, "--format=litert", "--export_dir=."]
    flags += ["--pictures", tmp_path / "bad.jpg", "--pictures", pictures[0]]
    commands.run_here(export, *flags)
    assert "captions of 1 of 1 pictures" in (said := capsys.readouterr().out)
    assert "1 pictures could not be read" in said
    assert "captioner.json" in (names := os.listdir(tmp_path / "empty")) and len(names) == 5
    assert tfcap.load(".")(pictures[0]).text


def test_several_threads_and_a_fork_caption(float32, pictures):
    loaded = tfcap.load(float32)
    wanted = [caption.text for caption in loaded(pictures)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: [one.text for one in loaded(pictures)], range(8)))
    assert results == [wanted] * 8
    child = os.fork()
    if not child:
        os._exit(0 if [one.text for one in loaded(pictures)] == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_is_left_of_an_export_that_fails(run, tmp_path):
    served = saved_model.server(run)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(ValueError, match="full is not empty. Name a new directory"):
        portable.write(run, served, str(tmp_path / "full"), "litert")
    ready = saved_model.server(
        dataclasses.replace(run, fingerprint={**run.fingerprint, "backbone": None})
    )
    with pytest.raises(ValueError, match="its page reads pictures, but the model reads ready-made"):
        portable.write(run, ready, str(tmp_path / "other"), "web")
    served.search.consensus = lambda tokens: tokens
    with pytest.raises(ValueError, match="`format=litert`: order=consensus looks up"):
        portable.write(run, served, str(tmp_path / "other"), "litert")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_file_that_captions_in_another_way_is_refused(run, tmp_path, monkeypatch):
    wrong = run.with_decoding("temperature=0.5")
    converted = portable.litert

    def other(function, weights):
        return converted(portable.trace(saved_model.server(wrong), 1, 36), weights)

    monkeypatch.setattr(portable, "litert", other)
    with pytest.raises(ValueError, match="gives other captions than the run"):
        portable.write(run, saved_model.server(run), str(tmp_path / "out"), "litert", "float32")
    assert not list(tmp_path.iterdir())


def test_a_damaged_export_is_an_error_that_names_it(float32, tmp_path):
    for name in ("captioner.json", "captioner.tflite", "words.txt"):
        (tmp_path / name).write_bytes(pathlib.Path(float32, name).read_bytes())
    (tmp_path / "captioner.tflite").write_bytes(b"no model")
    with pytest.raises(ValueError, match=f"The export {tmp_path} cannot be loaded: "):
        tfcap.load(tmp_path)


def test_ready_made_features_are_an_input(run, tmp_path):
    fingerprint = {**run.fingerprint, "backbone": None}
    of_features = dataclasses.replace(run, fingerprint=fingerprint)
    served = saved_model.server(of_features)
    portable.write(of_features, served, str(tmp_path / "out"), "litert", "float32")
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(20, run.model.feature_dim)).astype(np.float32)
    np.save(tmp_path / "features.npy", rows)
    done = subprocess.run(
        [sys.executable, tmp_path / "out/caption.py", tmp_path / "features.npy"],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = served.from_features(tf.constant(rows[None]), tf.constant([20]))["captions"]
    assert done.stdout == f"{tmp_path}/features.npy\t{wanted.numpy()[0, 0].decode()}\n"
    with pytest.raises(ValueError, match="reads features, not pictures"):
        tfcap.load(tmp_path / "out")


def test_a_constant_that_shares_its_bytes_with_a_halved_one_stays():
    """The zeros that tokens and scores of long captions begin with are stored once."""

    def function(x):
        state = (tf.constant(0), tf.zeros([1, 300]), tf.zeros([1, 300], tf.int32))
        _, sums, counts = tf.while_loop(
            lambda index, *_: tf.cast(index, tf.float32) < x[0, 0],
            lambda index, sums, counts: (index + 1, sums + x, counts + 1),
            state,
        )
        return {"sums": sums, "counts": counts}

    traced = tf.function(function, autograph=False).get_concrete_function(
        x=tf.TensorSpec([1, 300], name="x")
    )
    content = portable.litert(portable.Function(traced, {}, tf.Module()), "float16")
    runner = interpreter.Interpreter(model_content=content).get_signature_runner()
    result = runner(x=np.full((1, 300), 3.0, np.float32))
    assert (result["sums"] == 9).all() and (result["counts"] == 3).all()
