"""CLIPScore with a tiny random CLIP of keras-hub, against the formula computed literally."""

import json
import sys

import numpy as np
import pytest
from helpers import seeds
from PIL import Image

from tfcap.metrics import coco, results
from tfcap.scoring.clip import KerasHubClip

CAPTIONS = {1: "a red dog", 2: "the cat", 3: "zebra"}
REFERENCES = {1: ["a dog", "one Red dog."], 2: ["a cat"], 3: ["a dog"]}


@pytest.fixture(scope="module")
def preset(pictures, tmp_path_factory):
    """The directory of a CLIP with random weights, as `save_to_preset` writes it."""
    hub = pytest.importorskip("keras_hub", reason="the extra hub is not installed")

    seeds.set_seed(4)
    vision = hub.models.CLIPVisionEncoder(8, 16, 1, 2, 24, image_shape=(16, 16, 3), name="vision")
    text = hub.models.CLIPTextEncoder(300, 16, 16, 1, 2, 24, max_sequence_length=12, name="text")
    model = hub.models.CLIPBackbone(vision, text, 10)
    letters = [chr(code) for code in range(33, 127)]
    words = letters + [f"{letter}</w>" for letter in letters]
    words += ["<|startoftext|>", "<|endoftext|>"]
    merges = ["d o", "do g</w>"]
    words[:0] = ["do", "dog</w>"]
    tokenizer = hub.models.CLIPTokenizer({word: n for n, word in enumerate(words)}, merges)
    converter = hub.layers.CLIPImageConverter(
        image_size=(16, 16), scale=[1 / 64] * 3, offset=[-2.0, -2.1, -1.9]
    )
    folder = tmp_path_factory.mktemp("clip")
    for part in (tokenizer, converter, model):
        part.save_to_preset(str(folder))
    encoder = KerasHubClip(str(folder))
    fits = encoder.texts(list(CAPTIONS.values())) * encoder.pictures(
        [pictures[i] for i in CAPTIONS]
    )
    if np.median(fits.sum(axis=1)) < 0:  # or most scores would be 0
        (kernel,) = model.vision_projection.get_weights()
        model.vision_projection.set_weights([-kernel])
        model.save_to_preset(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("pictures"), {}
    for image in CAPTIONS:
        noise = np.random.default_rng(image).integers(0, 256, (20, 30 + image, 3), np.uint8)
        found[image] = str(folder / f"{image}.png")
        Image.fromarray(noise).save(found[image])
    return found


@pytest.mark.slow
def test_the_scores_are_those_of_the_formula_over_the_networks(preset, pictures):
    import keras_hub as hub
    import tensorflow as tf

    encoder = KerasHubClip(preset)
    options = results.Options(pictures=pictures, clip=encoder)
    found = coco.CocoScorer(["CLIPScore"], java=None, options=options).score(REFERENCES, CAPTIONS)

    model = hub.models.CLIPBackbone.from_preset(preset)
    tokenizer = hub.models.CLIPTokenizer.from_preset(preset)
    converter = hub.layers.CLIPImageConverter.from_preset(preset)

    def unit(vector):
        return vector[0] / np.linalg.norm(vector[0])

    def text(caption):
        ids = np.asarray(tokenizer(f"A photo depicts {caption}".lower())).tolist()[:10]
        ids = [tokenizer.start_token_id, *ids, tokenizer.end_token_id]
        ids += [0] * (12 - len(ids))
        return unit(np.asarray(model.get_text_embeddings(np.array([ids], np.int32))))

    for image, caption in CAPTIONS.items():
        pixels = np.asarray(Image.open(pictures[image]), np.float32)
        batch = np.asarray(converter(tf.constant(pixels)))[None]
        seen = unit(np.asarray(model.get_vision_embeddings(batch)))
        fit = 2.5 * max(float(text(caption) @ seen), 0)
        best = max(max(float(text(caption) @ text(r)) for r in REFERENCES[image]), 0)
        assert found.per_image[image]["CLIPScore"] == pytest.approx(100 * fit, abs=1e-3)
        both = 2 * fit * best / (fit + best) if fit + best else 0
        assert found.per_image[image]["RefCLIPScore"] == pytest.approx(100 * both, abs=1e-3)
    assert sum(scores["RefCLIPScore"] > 0 for scores in found.per_image.values()) >= 2


@pytest.mark.slow
def test_vectors_are_computed_once_and_do_not_depend_on_the_batch(preset, pictures, monkeypatch):
    encoder = KerasHubClip(preset)
    many = [f"dog {n}" for n in range(40)]
    vectors = encoder.texts(many)
    assert vectors.shape == (40, 10)
    np.testing.assert_allclose(KerasHubClip(preset).texts(many[35:36])[0], vectors[35], atol=1e-5)
    monkeypatch.setattr(encoder, "_of_texts", None)
    np.testing.assert_array_equal(encoder.texts(many[::-1]), vectors[::-1])


@pytest.mark.slow
def test_a_file_that_is_no_picture_is_named(preset, tmp_path):
    path = tmp_path / "a.jpg"
    path.write_text("<html>")
    with pytest.raises(ValueError, match="a.jpg: a picture must be JPEG"):
        KerasHubClip(preset).pictures([str(path)])
    with pytest.raises(ValueError, match="none.jpg"):
        KerasHubClip(preset).pictures([str(tmp_path / "none.jpg")])


def test_what_is_no_preset_is_refused(tmp_path, monkeypatch):
    if "keras_hub" in sys.modules or _installed():
        (tmp_path / "config.json").write_text(json.dumps({"class_name": "Dense", "config": {}}))
        with pytest.raises(ValueError, match="is no CLIP preset of keras-hub"):
            KerasHubClip(str(tmp_path))
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ValueError, match=r"--clip needs keras-hub.*pip install 'tfcap\[hub\]'"):
        KerasHubClip(str(tmp_path))


def _installed():
    import importlib.util

    return importlib.util.find_spec("keras_hub") is not None
