"""The command calibrates a run; then captions have a confidence, and evaluate measures it."""

import csv
import json
import os
import pathlib
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml
from helpers import commands, report_world, services
from helpers.rest_service import RestService
from helpers.webpages import instance

import tfcap
from tfcap import calibrate, caption, errors, evaluate, export, metadata, runs, serve
from tfcap.captioning import demo_page
from tfcap.captioning.caption_files import Wording
from tfcap.inference import calibration
from tfcap.inference.decode import decode_split
from tfcap.runs import checkpoints, compact
from tfcap.visualize import report

pytestmark = pytest.mark.slow
CLIENT = commands.ROOT / "tfcap" / "serving" / "client" / "captions_client.py"


@pytest.fixture(scope="module")
def calibrated(trained, tmp_path_factory):
    """A copy of `trained` that the command calibrated on the first eight images."""
    folder = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(trained, folder)
    flags = ["--limit=8", "--steps=30", "--usable=0.7"]
    commands.run_here(calibrate, f"--model_dir={folder}", *flags)
    return folder


@pytest.fixture(scope="module")
def captioner(calibrated):
    """The captioner of `calibrated`; its search is traced once for all tests."""
    return tfcap.load(calibrated)


def test_captions_of_the_run_have_the_confidence_of_the_split(
    calibrated, captioner, data, pictures
):
    run = runs.load(calibrated)
    decoded = decode_split(run, data, "val", 8)
    captions = captioner(pictures)
    for best, values in zip(captions, decoded.confidences.values(), strict=False):
        own = [best.confidence, *(other.confidence for other in best.alternatives)]
        np.testing.assert_allclose(own, values, atol=1e-3)
        assert 0 <= min(own) <= max(own) <= 1
    content = json.loads((calibrated / "confidence.json").read_text())
    assert content["images"] == data.index("val").id[:8].tolist() and content["level"] == 0.7
    assert content["checkpoint"] in run.checkpoint


def test_an_exported_model_returns_the_confidence(captioner, pictures, tmp_path):
    exported = tfcap.load(captioner.export(tmp_path))
    wanted = [one.confidence for one in captioner(pictures)]
    result = [one.confidence for one in exported(pictures)]
    np.testing.assert_allclose(result, wanted, atol=1e-4)


def test_a_server_tells_the_confidence_and_leaves_doubted_captions_empty(captioner, pictures):
    wanted = captioner(pictures[:2])
    low, high = sorted(wanted, key=lambda one: one.confidence)
    level = (low.confidence + high.confidence) / 2
    contents = [pathlib.Path(path).read_bytes() for path in pictures[:2]]
    request = {"messages": [services.message(*contents)]}
    for unsure, doubted in ((False, ""), (True, f"unsure: {low.text}")):
        wording = Wording(min_confidence=level, unsure=unsure)
        with services.serving(captioner, wording=wording) as site:
            _, answer = site.ask("/v1/chat/completions", request)
        [choice] = answer["choices"]
        texts = [doubted if one is low else one.text for one in wanted]
        assert choice["message"]["content"] == "\n".join(texts)
        for told, one in zip(choice["captions"], wanted, strict=True):
            assert told["confidence"] == pytest.approx(one.confidence, abs=1e-3)


@pytest.mark.parametrize("kind", ["litert", "onnx"])
def test_a_portable_export_returns_the_confidence(
    calibrated, captioner, pictures, tmp_path, kind, capsys
):
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
    out = tmp_path / "out"
    flags = ["--model_dir", calibrated, f"--format={kind}", "--weights=float32"]
    commands.run_here(export, *flags, f"--pictures={pictures[0]}", "--export_dir", out)
    assert ", confidences by " in capsys.readouterr().out
    card = json.loads((out / "captioner.json").read_text())
    assert card["confidence"]["level"] == 0.7 and card["measured"]["confidence"] < 1e-4
    text = (out / "README.md").read_text()
    assert "| the probability of a CIDEr of at least 0.7" in text
    assert "their confidences by" in text and "how probable it is that one is usable" in text

    wanted, loaded = (model(pictures) for model in (captioner, tfcap.load(out)))
    for one, other in zip(wanted, loaded, strict=True):
        values = [
            [best.confidence, *(more.confidence for more in best.alternatives)]
            for best in (one, other)
        ]
        np.testing.assert_allclose(*values, atol=1e-4)
    level = sorted(one.confidence for one in wanted)[2] - 1e-3
    command = [sys.executable, out / "caption.py", f"--min_confidence={level}", *pictures]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    texts = [line.split("\t")[1] for line in done.stdout.splitlines()]
    assert texts == [one.text if one.confidence >= level else "" for one in wanted]


def test_a_portable_export_that_is_not_calibrated_refuses_a_level(trained, pictures, tmp_path):
    out = tmp_path / "out"
    commands.run_here(export, "--model_dir", trained, "--format=litert", "--export_dir", out)
    for level, message in ((0.5, "needs a model that was calibrated"), (50, "from 0 to 1")):
        command = [sys.executable, out / "caption.py", f"--min_confidence={level}", pictures[0]]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr
    with pytest.raises(errors.UsageError, match="tflite, beam 2 has no confidence"):
        commands.run_here(caption, "--model_dir", out, "--min_confidence=0.5", pictures[0])


def test_the_demo_and_the_client_of_a_server_tell_the_confidence(
    captioner, pictures, tmp_path, capsys
):
    best = captioner(pictures[0])
    wanted = [best.confidence, *(other.confidence for other in best.alternatives)]
    request = {"instances": [instance(pictures[0])]}
    [prediction] = demo_page.Model("mine", captioner).predict(request)["predictions"]
    assert prediction["confidences"] == pytest.approx(wanted, abs=1e-4)
    service, client = RestService(captioner.export(tmp_path)), runpy.run_path(str(CLIENT))
    [result] = client["Client"](service.url).caption(pictures[:1])
    assert result.confidences == pytest.approx(wanted, abs=1e-4)
    assert client["main"](["--url", service.url, pictures[0]]) == 0
    assert capsys.readouterr().out.split("\t")[3] == f"{result.confidences[0]:.4f}\n"
    service.close()


def test_a_small_run_has_the_confidence_of_its_checkpoint(
    calibrated, captioner, pictures, tmp_path
):
    flags = ["--model_dir", calibrated, "--format=run", "--weights=float32", "--export_dir"]
    commands.run_here(export, *flags, tmp_path / "small")
    wanted = [one.confidence for one in captioner(pictures)]
    small = tfcap.load(tmp_path / "small")
    np.testing.assert_allclose([one.confidence for one in small(pictures)], wanted, atol=1e-4)
    content, copied = (
        json.loads((folder / "confidence.json").read_text())
        for folder in (calibrated, tmp_path / "small")
    )
    assert copied == content | {"checkpoint": "ckpt-0"} != content


def test_the_mean_of_checkpoints_has_no_confidence(calibrated, tmp_path):
    path = shutil.copytree(calibrated, tmp_path / "run") / "confidence.json"
    newest = checkpoints.newest_checkpoint(str(calibrated))
    content = json.loads(path.read_text()) | {"checkpoint": os.path.basename(newest)}
    path.write_text(json.dumps(content))
    assert runs.load(path.parent, "latest").confidence is not None
    assert compact.load_mean(path.parent, 2).confidence is None


def test_runs_that_are_not_calibrated_and_ensembles_have_none(trained, calibrated, pictures):
    assert tfcap.load(trained)(pictures[0]).confidence is None
    assert runs.load(calibrated).confidence is not None
    assert runs.load_together([calibrated, calibrated]).confidence is None


def test_another_checkpoint_has_no_confidence_and_a_damaged_file_is_named(calibrated, tmp_path):
    shutil.copytree(calibrated, tmp_path / "run")
    path = tmp_path / "run" / "confidence.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"checkpoint": "ckpt-999"}))
    assert runs.load(tmp_path / "run").confidence is None
    path.write_text("[]")
    with pytest.raises(
        ValueError, match="confidence.json is no calibration. Remove confidence.json"
    ):
        runs.load(tmp_path / "run")


def test_a_picture_below_the_level_gets_no_caption(
    calibrated, captioner, pictures, tmp_path, capsys
):
    for path in pictures:
        shutil.copy(path, tmp_path)
    captions = {os.path.basename(one.source): one for one in captioner(pictures)}
    ordered = sorted(captions, key=lambda name: captions[name].confidence)
    level = (captions[ordered[1]].confidence + captions[ordered[2]].confidence) / 2
    doubted = ordered[:2]
    kept = {name: "" if name in doubted else one.text for name, one in captions.items()}
    marked = {n: f"unsure: {captions[n].text}" if n in doubted else t for n, t in kept.items()}
    flags = ["--model_dir", calibrated, f"--min_confidence={level}", tmp_path]

    for more, wanted in (([], kept), (["--unsure"], marked)):
        commands.run_here(caption, *flags, *more)
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert {os.path.basename(path): text for path, text in lines} == wanted
    commands.run_here(caption, *flags, "--json", "--unsure")
    for answer in map(json.loads, capsys.readouterr().out.splitlines()):
        name = os.path.basename(answer["image"])
        assert answer["caption"] == marked[name] and answer["captions"][0] == captions[name].text

    commands.run_here(caption, *flags, "--write=txt,csv,html")
    said = capsys.readouterr().out
    assert f"{len(captions) - 2} captions are written" in said
    assert f"2 captions are left out: their confidence is below {level:g}" in said
    for name, text in kept.items():
        assert (tmp_path / name).with_suffix(".txt").read_text() == f"{text}\n"
    with open(tmp_path / "captions.csv", newline="") as file:
        rows = {row["image"]: row for row in csv.DictReader(file)}
    assert {name: row["caption"] for name, row in rows.items()} == kept
    assert float(rows[ordered[0]]["confidence"]) < level < float(rows[ordered[2]]["confidence"])
    page = report.read_captions(tmp_path / "captions.html")
    assert {row[0]: row[1] for row in page} == {n: t for n, t in kept.items() if t}
    commands.run_here(caption, *flags, "--write=embed")
    found = {name: metadata.description((tmp_path / name).read_bytes()) for name in kept}
    assert {n: one.text if one else "" for n, one in found.items()} == kept
    # Without the level, only the pictures that have no caption get one.
    commands.run_here(
        caption, "--model_dir", calibrated, tmp_path, "--write=txt", "--skip_existing"
    )
    assert "2 captions are written" in capsys.readouterr().out


def test_captions_in_another_order_keep_their_confidence(calibrated, pictures, tmp_path, capsys):
    flags = ["--model_dir", calibrated, "--json", *pictures]
    commands.run_here(caption, *flags)
    more = ["--rerank=consensus", "--rerank_neighbours=8", f"--rerank_index={tmp_path / 'index'}"]
    commands.run_here(caption, *flags, *more)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found, ranked = (
        [list(zip(one["captions"], one["confidences"], strict=True)) for one in part]
        for part in (answers[: len(pictures)], answers[len(pictures) :])
    )
    assert ranked != found and [*map(dict, ranked)] == [*map(dict, found)]


def test_a_level_needs_a_calibrated_model(trained, pictures):
    with pytest.raises(errors.UsageError, match="beam 2 has no confidence. Run tfcap.calibrate"):
        commands.run_here(caption, "--model_dir", trained, "--min_confidence=0.5", pictures[0])
    with pytest.raises(errors.UsageError, match="--min_confidence needs a calibrated model"):
        commands.run_here(serve, "--model_dir", trained, "--min_confidence=0.5")


def test_evaluate_measures_the_images_that_the_fit_left_out(calibrated, tmp_path, capsys):
    path = tmp_path / "metrics.json"
    flags = [f"--model_dir={calibrated}", "--scores=CIDEr", "--calibration", f"--metrics={path}"]
    page = tmp_path / "report.html"
    commands.run_here(evaluate, *flags, f"--report={page}")
    content = report_world.element(page, "data")
    assert content["figure"].startswith("<svg ")
    assert any("8 images are left out" in note for note in content["notes"])
    out = capsys.readouterr().out
    assert "8 images are left out" in out and "4 captions; usable: CIDEr of at least 0.7" in out
    assert any("8 images are left out" in n for n in json.loads(path.read_text())["notes"])
    measured = json.loads(path.read_text())["calibration"]
    assert measured["images"] == 4 and measured["level"] == 0.7
    assert "fitted with other decoding" not in out
    assert measured["areas"].keys() == {
        "confidence", "mean log-probability", "summed log-probability",
    }  # fmt: skip


def test_evaluate_tells_that_captions_are_found_in_another_way(calibrated, capsys):
    flags = [f"--model_dir={calibrated}", "--scores=CIDEr", "--calibration", "--beam=1"]
    commands.run_here(evaluate, *flags)
    assert "the confidence was fitted with other decoding: beam differ" in capsys.readouterr().out


def test_images_of_the_fit_alone_are_refused_before_they_are_captioned(calibrated, tmp_path):
    path = tmp_path / "captions.json"
    flags = [f"--model_dir={calibrated}", "--calibration", "--limit=8", f"--output={path}"]
    with pytest.raises(ValueError, match="was fitted on these images of the split val"):
        commands.run_here(evaluate, *flags)
    assert not path.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--model_dir=RUN --calibration", "is not calibrated. Run tfcap.calibrate first"),
        (
            "--model_dir=RUN --calibration --rerank=consensus",
            "leave out --predictions and --rerank",
        ),
        ("--model_dir=RUN --calibration --scores=BLEU", "--calibration needs CIDEr"),
        ("--model_dir=RUN --model_dir=RUN --calibration", "An ensemble has no confidence"),
    ],
)
def test_wrong_flags_of_evaluate_are_refused(given, message, trained):
    with pytest.raises(errors.UsageError, match=message):
        commands.run_here(evaluate, *given.replace("RUN", str(trained)).split())


def test_levels_that_no_caption_or_every_caption_reaches_are_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    for level, share in ((0, "all"), (1000, "none")):
        with pytest.raises(ValueError, match=f"{share} of the captions are usable"):
            calibrate.calibrate(str(tmp_path / "run"), usable=level, steps=1)
    for split, message in (("dev", "no images in the split dev"), ("train", "another `split`")):
        with pytest.raises(errors.UsageError, match=message):
            calibrate.calibrate(str(tmp_path / "run"), split=split)
    assert not (tmp_path / "run" / "confidence.json").exists()
    with pytest.raises(errors.UsageError, match="Write flickr8k to a directory with `format=run`"):
        calibrate.calibrate("flickr8k")


def test_the_search_of_the_fit_takes_the_frequencies_of_its_data(trained, data, tmp_path):
    """The data of the training is gone, and the run has no document frequencies of its own."""
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "document_frequency.npz").unlink()
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["task"]["data_dir"] = str(tmp_path / "gone")
    params["task"]["decoding"] |= {"search": "sample", "samples": 2, "order": "consensus"}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    result = calibrate.calibrate(str(folder), data_dir=data.folder, usable=0.7, steps=1)
    assert result.images == 12


def test_the_logistic_function_finds_the_weights_of_its_data():
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(20000, 2)) * [2.0, 0.1] + [5.0, -1.0]
    logits = signals @ [0.5, 8.0] + 5.0
    usable = rng.random(20000) < 1 / (1 + np.exp(-logits))
    weights, bias = calibration.fit_logistic(signals, usable)
    np.testing.assert_allclose([*weights, bias], [0.5, 8.0, 5.0], rtol=0.1)
    fitted = calibration.cross_fitted(signals[:200], usable[:200])
    assert np.corrcoef(fitted, logits[:200])[0, 1] > 0.9


def test_the_network_learns_which_words_an_image_has():
    """Images of two kinds, with words of their own beside one that all have."""
    kind = np.arange(400) % 2
    vectors = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32) * 0.1
    vectors[:, 0] += kind
    tokens = np.stack([np.full(400, 4), 5 + kind, np.full(400, 2)], 1)[:, None].astype(np.int32)
    arrays = calibration.fit_expectation(vectors, tokens, 8, steps=300)
    assert arrays["idf"][4] == 0 and arrays["idf"][5] == pytest.approx(np.log(2))
    from tfcap.decoding.confidence import WordExpectation

    network = WordExpectation(arrays)
    code = network.code(vectors[:2])
    support = network.support(code, np.array([[[4, 5, 2], [4, 6, 2]]] * 2)).numpy()
    assert support[0, 0] > 0.8 > 0.2 > support[0, 1]
    assert support[1, 1] > 0.8 > 0.2 > support[1, 0]


def test_the_level_is_what_three_of_four_references_reach():
    """Three first references equal another one, and one has no word in common."""
    words = ["red dog", "blue cat", "green bird", "old house"]
    references = {i: [text, text] for i, text in enumerate(words)}
    references[3] = ["old house", "new car"]
    level = calibration.human_level(references)
    highest = calibration.ciders({0: "red dog"} | {i: "x" for i in (1, 2, 3)}, references)[0]
    assert 0 < level < highest
    with pytest.raises(ValueError, match="Give it as `usable`"):
        calibration.human_level({1: ["a dog"], 2: ["a cat"]})


def test_captions_without_spaces_are_compared_as_their_data_cuts_them():
    references = {1: ["一只狗"], 2: ["两只猫"]}
    captions = {1: "一头狗", 2: "鸟"}
    assert calibration.ciders(captions, references)[0] == 0
    first, second = calibration.ciders(captions, references, "characters")
    assert first > 0 == second
