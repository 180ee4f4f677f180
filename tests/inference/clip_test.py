"""The vectors of a tiny random CLIP of keras-hub are those of its networks."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from helpers import seeds
from PIL import Image

from tfcap.inference.clip import KerasHubClip

CAPTIONS = ["a red Dog", "the cat", "zebra " * 9]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
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
    return str(folder)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, result = tmp_path_factory.mktemp("pictures"), []
    for image in range(3):
        noise = np.random.default_rng(image).integers(0, 256, (20, 30 + image, 3), np.uint8)
        result.append(str(folder / f"{image}.png"))
        Image.fromarray(noise).save(result[-1])
    return result


@pytest.mark.slow
def test_vectors_are_those_of_the_networks(preset, pictures):
    import keras_hub as hub
    import tensorflow as tf

    model = hub.models.CLIPBackbone.from_preset(preset)
    tokenizer = hub.models.CLIPTokenizer.from_preset(preset)
    converter = hub.layers.CLIPImageConverter.from_preset(preset)
    encoder = KerasHubClip(preset)
    texts = encoder.texts(CAPTIONS)
    for caption, vector in zip(CAPTIONS, texts, strict=True):
        ids = np.asarray(tokenizer(caption.lower())).tolist()[:10]
        ids = [tokenizer.start_token_id, *ids, tokenizer.end_token_id]
        ids += [0] * (12 - len(ids))
        wanted = np.asarray(model.get_text_embeddings(np.array([ids], np.int32)))[0]
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
    np.testing.assert_array_equal(encoder.texts(CAPTIONS[::-1]), texts[::-1])  # kept
    for path, vector in zip(pictures, encoder.pictures(pictures), strict=True):
        batch = np.asarray(converter(tf.constant(np.asarray(Image.open(path), np.float32))))[None]
        wanted = np.asarray(model.get_vision_embeddings(batch))[0]
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


def test_what_is_no_preset_is_refused(tmp_path, monkeypatch):
    if importlib.util.find_spec("keras_hub"):
        (tmp_path / "config.json").write_text(json.dumps({"class_name": "Dense", "config": {}}))
        with pytest.raises(ValueError, match="is not a CLIP preset of keras-hub"):
            KerasHubClip(str(tmp_path))
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(
        ValueError, match=r"`clip` needs the package keras-hub.*pip install 'tfcap\[hub\]'"
    ):
        KerasHubClip(str(tmp_path))
