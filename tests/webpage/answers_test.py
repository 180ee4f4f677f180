"""Requests become captions with all that is known of them, or a sentence and a status."""

import base64
import math
import pathlib

import numpy as np
import pytest
from helpers.webpages import instance

from tfcap.shading import full_strength
from tfcap.webpage import answers
from tfcap.webpage.refused import Refused

pytestmark = pytest.mark.slow


def test_a_prediction_is_what_the_captioner_says(models, captioner, pictures):
    request = {"instances": [instance(path) for path in pictures[:2]], "attention": "attention"}
    found = models["captions"].predict(request)
    assert found["notes"] == [] and len(found["predictions"]) == 2
    wanted = captioner(pictures[:2], attention="attention", attention_captions=9)
    for one, caption in zip(found["predictions"], wanted, strict=True):
        every = (caption, *caption.alternatives)
        assert one["captions"] == [each.text for each in every] and len(every) == 2
        assert one["scores"] == pytest.approx([each.score for each in every], abs=1e-4)
        assert one["words"] == [text.split() for text in one["captions"]]
        assert sum(one["log_probs"][0]) == pytest.approx(one["scores"][0], abs=1e-3)
        assert one["tiles"] is True and "picture" not in one
        boxes = np.frombuffer(base64.b64decode(one["boxes"]), "<u2").reshape(-1, 4) / 65535
        np.testing.assert_allclose(boxes, caption.boxes, atol=1e-4)
        for seen, each in zip(one["attention"], every, strict=True):
            weights = np.frombuffer(base64.b64decode(seen["weights"]), np.uint8).reshape(-1, 36)
            restored = weights * full_strength(each.weights) / 255
            np.testing.assert_allclose(restored, each.weights, atol=0.01)
            assert seen["kind"] == "attention"


def test_decoding_and_seed_are_those_of_the_request(models, captioner, pictures):
    request = {"instances": [instance(pictures[0])], "decoding": "beam=4"}
    found = models["captions"].predict(request)["predictions"][0]
    assert len(found["captions"]) == 4 and "attention" not in found
    texts = []
    for seed in (3, 3, 4):
        request = {"instances": [instance(pictures[0], seed=seed)], "decoding": "search=sample"}
        texts.append(models["captions"].predict(request)["predictions"][0]["captions"])
    assert texts[0] == texts[1] != texts[2]
    sampler = captioner.with_decoding("search=sample")
    caption = sampler(pictures[0], seed=3)
    assert texts[0] == [one.text for one in (caption, *caption.alternatives)]


def test_the_forms_of_tf_serving_are_read():
    first, second = ({"b64": base64.b64encode(bytes(60) + sign).decode()} for sign in (b"a", b"b"))
    rows = [{"image_bytes": first, "seed": 3}, {"image_bytes": second, "seed": 4}]
    columns = {"image_bytes": [first, second], "seed": [3, 4]}
    for request in ({"instances": rows}, {"inputs": columns}):
        assert answers._instances(request) == rows
    plain = [bytes(60) + b"a", bytes(60) + b"b"]
    for request in (
        *({"instances": [first, second]}, {"inputs": [first, second]}, {"instances": rows}),
        *({"inputs": {"image_bytes": [first, second]}}, {"inputs": columns}),
        {"instances": [{"b64": base64.encodebytes(content).decode()} for content in plain]},
    ):
        assert [answers.picture_of(one) for one in answers._instances(request)] == plain
    for request in ({"inputs": first}, {"inputs": {"image_bytes": first, "seed": 1}}):
        assert [answers.picture_of(one) for one in answers._instances(request)] == plain[:1]


def test_one_seed_is_that_of_all_pictures():
    pictures = [{"b64": "YQ=="}, {"b64": "Yg=="}]
    request = {"inputs": {"image_bytes": pictures, "seed": 3}}
    assert [answers._seed_of(one) for one in answers._instances(request)] == [3, 3]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_the_common_forms_of_base64_are_read(size):
    content = b"\xfb\xff\xfe\xfa\xf0"[:size]
    coded = base64.b64encode(content).decode()
    forms = (coded, coded.rstrip("="), base64.urlsafe_b64encode(content).decode().rstrip("="))
    for text in (*forms, f"data:image/png;base64,{coded}"):
        assert answers.picture_of({"b64": text}) == content


def test_columns_are_answered_by_columns(models, pictures):
    rows = [instance(path) for path in pictures[:2]]
    by_rows = models["captions"].predict({"instances": rows})["predictions"]
    columns = {"image_bytes": [row["image_bytes"] for row in rows]}
    outputs = models["captions"].predict({"inputs": columns})["outputs"]
    assert outputs["captions"] == [one["captions"] for one in by_rows]
    assert outputs["status"] == ["ok", "ok"]


def test_few_searches_are_kept(models):
    model = models["captions"]
    kept = [model._decoding(f"min_length={n}") for n in range(1, 9)]
    assert model._decoding("min_length=2") is kept[1] and model._decoding("") is model.captioner
    model._decoding("min_length=9")
    assert model._decoding("min_length=2") is kept[1]
    assert model._decoding("min_length=1") is not kept[0]


def test_an_export_gives_captions_and_scores_only(models, captioner, pictures):
    request = {"instances": [instance(pictures[0])], "attention": "attention"}
    (found,) = models["beside"].predict(request)["predictions"]
    assert found["captions"][0] == captioner(pictures[0]).text
    assert found["log_probs"] == [None, None] and "attention" not in found
    assert models["beside"].about()["exported"] and models["beside"].about()["decoding"] is None
    with pytest.raises(Refused, match="has a fixed decoding") as refused:
        models["beside"].predict({**request, "decoding": "beam=3"})
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("change", "status", "part"),
    [
        ({"instances": None}, 400, "instances or inputs must hold 1 to 16 pictures"),
        ({"instances": []}, 400, "Received: 0"),
        ({"inputs": [instance(b"")]}, 400, "instances or inputs must hold .* Received: both"),
        ({"instances": None, "inputs": {}}, 400, "Received: 0"),
        (
            {"instances": None, "inputs": {"image_bytes": [{"b64": ""}], "seed": [1, 2]}},
            *(400, "The lists of inputs must have the same length. Received: 1 and 2"),
        ),
        ({"instances": [{}] * 17}, 400, "Received: 17"),
        ({"instances": [3]}, 400, "An instance must be"),
        ({"instances": [{"image_bytes": "/etc/passwd"}]}, 400, "An instance must be"),
        ({"instances": [{"image_bytes": {"b64": "no base64!"}}]}, 400, "must be in base64"),
        ({"instances": [{"image_bytes": {"b64": ""}}]}, 422, "The file is empty"),
        ({"instances": [instance(b"text")]}, 422, "A picture must be JPEG, PNG, BMP, GIF or WebP"),
        ({"instances": [instance(b"", seed=-1)]}, 400, "seed must be from 0"),
        ({"instances": [instance(b"", seed=True)]}, 400, "seed must be from 0"),
        ({"attention": "gaze"}, 400, "attention must be attention or contribution"),
        ({"decoding": 3}, 400, "decoding must be text"),
        # The sentences of the command line.
        ({"decoding": "temperature=0"}, 400, "task.decoding.temperature must be above 0. Received"),
        ({"decoding": "bream=3"}, 400, "--decoding: there is no key bream"),
        ({"decoding": "fast"}, 400, "fast is no preset"),
        ({"decoding": "search=sample,samples=1001"}, 400, "samples must be from 1 to 1000"),
    ],
)
def test_a_bad_request_has_a_status_and_a_sentence(models, pictures, change, status, part):
    request = {"instances": [instance(pictures[0])], **change}
    with pytest.raises(Refused, match=part) as refused:
        models["captions"].predict(request)
    assert refused.value.status == status and "\n" not in str(refused.value)


def test_a_picture_above_the_limit_is_refused(monkeypatch, pictures):
    monkeypatch.setattr(answers, "MOST_BYTES", 1000)
    assert answers.picture_of(instance(bytes(1000))) == bytes(1000)
    with pytest.raises(Refused, match="A picture must have at most") as refused:
        answers.picture_of(instance(bytes(1001)))
    assert refused.value.status == 413


def test_the_note_on_animated_pictures_is_returned(models, pictures, tmp_path):
    from PIL import Image

    frames = [Image.open(path).convert("RGB") for path in pictures[:2]]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    request = {"instances": [instance(str(tmp_path / "a.gif"))]}
    (note,) = models["captions"].predict(request)["notes"]
    assert "Only the first frame" in note


def test_numbers_that_are_not_finite_become_null():
    assert answers._number(math.nan) is None and answers._number(-1.234567) == -1.23457


def test_every_option_is_described():
    described = {one["name"]: one for one in answers.described_options()}
    assert described["search"]["choices"] == ["beam", "sample"]
    assert described["beam"]["kind"] == "integer" and described["beam"]["search"] == "beam"
    assert described["suppress_unk"]["kind"] == "flag" and described["prefix"]["kind"] == "text"
    page = pathlib.Path(answers.__file__).with_name("options.js").read_text(encoding="utf-8")
    for kind in {one["kind"] for one in described.values()}:
        assert f'"{kind}"' in page
