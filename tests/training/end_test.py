"""What is printed at the end of a training."""

import json
import shutil

import pytest
from helpers import events

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.files import file_sha256
from tfcap.training.run import summarize
from tfcap.training.task import CaptionTask

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]


def test_the_summary_of_images_with_one_caption_or_none(small, trained, tmp_path, capsys):
    """There is no score of the references against each other, and the command goes on."""
    folder = shutil.copytree(small["task"]["data_dir"], tmp_path / "data")
    path = folder / "references_val.json"
    content = json.loads(path.read_text())
    firsts = {one["image_id"]: one for one in reversed(content["annotations"])}
    first, *others = sorted(firsts)
    del firsts[first]
    for number, image in enumerate(content["images"]):
        image["file_name"] = f"a\nb\t{number}.jpg"  # any name shows in one line
    path.write_text(json.dumps({**content, "annotations": list(firsts.values())}))
    fingerprint = json.loads((folder / "dataset.json").read_text())
    fingerprint["splits"]["val"]["references_sha256"] = file_sha256(path)
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    params = configs.resolve("attention_lstm", override=json.dumps(small))
    task = CaptionTask(params.task, PreparedData.load(folder), params.trainer.optimizer_config)
    for captions in ({}, dict.fromkeys((first, *others), "a dog")):
        task.captions = captions
        summarize(task, params, trained, "attention_lstm")
    said = capsys.readouterr().out
    summarize(task, params, str(tmp_path / "new"), "attention_lstm")
    new = capsys.readouterr().out
    assert "best checkpoint: none yet" in new and "best validation" not in new
    assert "references against each other" not in said and said.count("scores:   python -m") == 2
    assert said.count("a dog   (a reference: ") == 3 and "(a reference: none)" in said
    assert "\n  a\\nb\\t0.jpg: " in said


@pytest.mark.parametrize(
    ("stored", "now", "line"),
    [
        ({}, {}, "val, beam 2, step 6, cross-entropy, 12 images"),
        (
            {},
            {"decoding": {"beam": 3}},
            "val, beam 2, step 6, cross-entropy, 12 images; this start validates with other",
        ),
        (
            {},
            {"validation_data": {"split": "test"}},
            "val, beam 2, step 6, cross-entropy, 12 images; this start validates with other",
        ),
        (
            {"decoding.search": "sample", "decoding.samples": 7, "validation_data.limit": 8},
            {},
            "the first 8 images of val, 7 samples, step 6, cross-entropy, 12 images; this start",
        ),
        (
            {"validation_data.global_batch_size": 3, "trainer.validation_steps": 2},
            {},
            "the first 6 images of val, beam 2, step 6, cross-entropy, 12 images; this start",
        ),
    ],
)
def test_the_best_scores_are_shown_as_they_were_measured(
    small, trained, stored, now, line, tmp_path, capsys
):
    """An evaluation with other options does not claim them for itself."""
    run = shutil.copytree(trained, tmp_path / "run")
    info = run / "best_ckpt" / "info.json"
    content = json.loads(info.read_text())
    for key, value in stored.items():
        content["measured"][key if key.startswith("trainer.") else f"task.{key}"] = value
    info.write_text(json.dumps(content))
    overrides = json.dumps(events.merged(small, {"task": now}))
    params = configs.resolve("attention_lstm", override=overrides)
    data = PreparedData.load(small["task"]["data_dir"])
    task = CaptionTask(params.task, data, params.trainer.optimizer_config)
    summarize(task, params, str(run), "attention_lstm")
    said = capsys.readouterr().out
    assert f"best validation: {line}" in said and f"{content['CIDEr']:.2f}" in said
    assert (
        ("the model reaches" in said) is ("other options" not in said) is (not now and not stored)
    )
    assert runs.read_best(str(run / "best_ckpt"))["CIDEr"] == content["CIDEr"]
