"""Presets of keras-hub from directories: every kind of network, in all that reads pictures."""

import io
import json
import os
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers import photos as photographs
from helpers import presets
from PIL import Image

import tfcap
from tfcap import runs
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.hub import _preprocessor
from tfcap.backbones.saved import digest, save
from tfcap.doctor import findings

GRIDS = {"resnet": 6}  # the others have 4 x 4 patches


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub", reason="the extra hub is not installed")


@pytest.fixture(scope="module")
def preset(hub, tmp_path_factory):
    """A function from the name of a kind to directory, network and converter."""
    made = {}

    def of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("presets") / name
            made[name] = folder, *presets.write(hub, name, folder)
        return made[name]

    return of


def _picture(shape=(40, 70, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _encoded(picture):
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return tf.constant(buffer.getvalue())


def _tokens(name, network, scaled):
    """What keras-hub's own network gives, as a grid and as a vector, by what its papers say."""
    if name == "resnet":
        grid = network(scaled).numpy()
        return grid.reshape(len(grid), -1, grid.shape[-1]), grid.mean((1, 2))
    if name == "swin":
        grid = network(scaled).numpy()
        return grid, grid.mean(1)
    if name == "clip":
        tokens = network.vision_encoder({"images": scaled}).numpy()
        return tokens[:, 1:], network.get_vision_embeddings(scaled).numpy()
    if name == "siglip":
        encoder = network.vision_encoder
        x = encoder.embedding(scaled)
        for layer in encoder.encoder_layers:
            x = layer(x)
        pooled = network.get_vision_embeddings(scaled).numpy()
        return encoder.post_layer_norm(x).numpy(), pooled.reshape(len(pooled), -1)
    key = {"dinov2": "images", "dinov3": "pixel_values"}.get(name)
    tokens = network({key: scaled} if key else scaled).numpy()
    before = {"vit": 1, "dinov2": 5, "dinov3": 5}[name]  # class, registers
    return tokens[:, before:], tokens[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", presets.MAKERS)
def test_features_are_those_of_keras_hub(name, preset):
    folder, network, converter = preset(name)
    pictures = [_picture((40, 70, 3), 1), _picture((61, 33, 3), 2)]
    scaled = np.concatenate([converter(p[None].astype(np.float32)) for p in pictures])
    grid, vector = _tokens(name, network, tf.constant(scaled))
    assert np.abs(grid[0] - grid[1]).max() > 0.01  # else any picture would pass
    for wanted, options in ((grid, {}), (vector[:, None], {"vector": True})):
        backbone = Backbone(f"hub:{folder}", **options)
        decoded = tf.stack([backbone.decode(_encoded(picture)) for picture in pictures])
        result = backbone.extract(decoded).numpy()
        assert result.shape == wanted.shape
        assert (backbone.num_regions, backbone.feature_dim) == result.shape[1:]
        np.testing.assert_allclose(result, wanted, rtol=2e-3, atol=3e-3)
    if name in ("resnet", "vit"):  # with statistics of batches, and without
        bulk = backbone.bulk_extractor()(decoded)
        np.testing.assert_allclose(bulk, result, rtol=2e-3, atol=2e-3)
    assert len(grid[0]) == GRIDS.get(name, 4) ** 2


@pytest.mark.slow
def test_a_prepared_directory_and_a_run_hold_the_preset(preset, trained, tmp_path, capsys):
    source = tmp_path / "source"
    shutil.copytree(preset("vit")[0], source)
    photos = photographs.make_photos(tmp_path)
    asked = {"backbone": f"hub:{source}", "grid": 2}
    data = photographs.run(photos, **asked)
    made_by = data.fingerprint["backbone"]
    assert made_by["name"] == "hub:source" and made_by["weights"] == "backbone.preset"
    assert set(made_by["files"]) == {"config.json", "image_converter.json", "model.weights.h5"}
    assert digest(tmp_path / "out" / "backbone.preset").files == made_by["files"]
    stored = photographs.examples(data, "train")
    assert {values.shape for values in stored.values()} == {(4, 16)}
    photographs.run(photos, **asked)
    assert "is prepared already" in capsys.readouterr().out
    shutil.rmtree(source)  # nothing below needs it
    again = Backbone.from_fingerprint(data.fingerprint, tmp_path / "out")
    path = tmp_path / "images" / "3.jpg"
    result = again.extract(again.decode(path.read_bytes())[None])[0]
    np.testing.assert_allclose(result, stored[13], rtol=2e-3, atol=2e-3)

    of = runs.load(trained)
    run = str(tmp_path / "run")
    model = runs.build_model(of.params.task, len(of.vocab), {"dim": again.feature_dim})
    fingerprint = {**of.fingerprint, "features": data.fingerprint["features"], "backbone": made_by}
    files = [str(tmp_path / "out" / "backbone.preset")]
    runs.create(run, "xtransformer", of.params, of.vocab, fingerprint, model, files)
    checks = {finding.check: finding for finding in findings(str(tmp_path / "out"), run)}
    unchanged = f"hub:source, weights {run}/backbone.preset"
    assert checks["backbone of the run"].text == unchanged
    assert checks["backbone of the data"].status == "ok"
    captioner = tfcap.load(run)
    caption = captioner(path, attention="attention")
    assert np.isfinite(caption.score) and caption.boxes.shape == (4, 4)
    height, width, _ = caption.picture.shape
    np.testing.assert_allclose(caption.boxes, again.boxes_in(height, width)[: len(caption.boxes)])
    exported = tfcap.load(captioner.export(str(tmp_path / "served")))(path)
    assert exported.text == caption.text
    np.testing.assert_allclose(exported.score, caption.score, rtol=1e-4)
    os.remove(os.path.join(run, "backbone.preset", "image_converter.json"))
    with pytest.raises(ValueError, match="are not those that made the features"):
        tfcap.load(run)


@pytest.mark.slow
def test_what_is_no_preset_of_pictures_is_refused(hub, preset, tmp_path):
    def refused(message, name, **options):
        with pytest.raises(ValueError, match=message):
            Backbone(f"hub:{name}", **options)

    refused("resnet_50_imagnet could not be loaded", "resnet_50_imagnet")
    folder = preset("vit")[0]
    refused("32 x 32 pixels.* 64", folder, image_size=64)
    refused("must be from 1 to 4", folder, grid=5)
    hub.models.BertBackbone(20, 1, 2, 8, 16, max_sequence_length=8).save_to_preset(
        str(tmp_path / "t")
    )
    shutil.copy(folder / "image_converter.json", tmp_path / "t")
    refused("is a BertBackbone, whose input is not just a picture", tmp_path / "t")


@pytest.mark.slow
def test_a_directory_of_hugging_face_is_read(hub, tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="the extra hub is not installed")
    rng, width, inner = np.random.default_rng(2), 16, 32
    shapes = {"embeddings.cls_token": (1, 1, width),
              "embeddings.position_embeddings": (1, 17, width),
              "embeddings.patch_embeddings.projection.weight": (width, 3, 8, 8),
              "embeddings.patch_embeddings.projection.bias": (width,),
              "layernorm.weight": (width,), "layernorm.bias": (width,)}  # fmt: skip
    block = {"attention.attention.query": width, "attention.attention.key": width,
             "attention.attention.value": width, "attention.output.dense": width}  # fmt: skip
    for name, out in block.items():
        shapes |= {f"encoder.layer.0.{name}.weight": (out, width)}
        shapes |= {f"encoder.layer.0.{name}.bias": (out,)}
    for name, (out, values) in {"intermediate": (inner, width), "output": (width, inner)}.items():
        shapes |= {f"encoder.layer.0.{name}.dense.weight": (out, values)}
        shapes |= {f"encoder.layer.0.{name}.dense.bias": (out,)}
    for name in ("layernorm_before", "layernorm_after"):
        shapes |= {f"encoder.layer.0.{name}.{part}": (width,) for part in ("weight", "bias")}
    tensors = {f"vit.{name}": rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    numpy.save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "vit", "image_size": 32, "patch_size": 8, "num_hidden_layers": 1,
              "num_attention_heads": 2, "hidden_size": width, "intermediate_size": inner,
              "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
              "qkv_bias": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="preprocessor_config.json .*could not be loaded"):
        Backbone(f"hub:{tmp_path}")
    size = {"height": 32, "width": 32}
    processor = {"size": size, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**processor, "resample": 3}))
    backbone = Backbone(f"hub:{tmp_path}")
    picture = _picture((32, 32, 3))
    decoded = backbone.decode(_encoded(picture))
    scaled = (picture / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    np.testing.assert_allclose(backbone.network.scale(decoded), scaled, rtol=1e-3, atol=1e-3)
    wanted = hub.models.ViTBackbone.from_preset(str(tmp_path))(scaled[None].astype(np.float32))
    result = backbone.extract(decoded[None])
    np.testing.assert_allclose(result, np.asarray(wanted)[:, 1:], rtol=3e-3, atol=3e-3)
    assert backbone.network.shown(10, 20) == (0, 0, 1, 1)
    (tmp_path / "data").mkdir()
    made_by = backbone.made_by(*save(backbone.network, tmp_path / "data", None))
    again = Backbone.from_fingerprint({"backbone": made_by}, tmp_path / "data")
    np.testing.assert_array_equal(again.extract(again.decode(_encoded(picture))[None]), result)
    path.write_text(json.dumps({**processor, "size": {"shortest_edge": 40}, "do_center_crop": True,
                                "crop_size": size}))  # fmt: skip
    shown = Backbone(f"hub:{tmp_path}").network.shown(10, 20)
    np.testing.assert_allclose(shown, (0.3, 0.1, 0.7, 0.9))  # 32 of 40 pixels of the middle square
    path.write_text(json.dumps({"size": size}))
    with pytest.raises(ValueError, match="KeyError.*image_mean"):
        Backbone(f"hub:{tmp_path}")


def _cubic(x, a=-0.75):
    """The kernel of torch.nn.functional.interpolate(mode="bicubic")."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0


def _positions(embeddings, new):
    """The position embeddings [1, 1 + old * old, F] for new x new patches, point by point."""
    old = int((embeddings.shape[1] - 1) ** 0.5)
    grid, result = embeddings[0, 1:].reshape(old, old, -1), [embeddings[0, 0]]
    for row, column in np.ndindex(new, new):
        y, x = ((place + 0.5) * old / new - 0.5 for place in (row, column))
        top, left = int(np.floor(y)) - 1, int(np.floor(x)) - 1
        result.append(
            sum(
                _cubic(y - i)
                * _cubic(x - j)
                * grid[min(max(i, 0), old - 1), min(max(j, 0), old - 1)]
                for i in range(top, top + 4)
                for j in range(left, left + 4)
            )
        )
    return np.stack(result)[None]


def _as_pillow(picture, before, side, kept=True):
    """Resizes the shorter side, or both, with Pillow, and crops the middle."""
    height, width = picture.shape[:2]
    short = min(height, width)
    size = (before * width // short, before * height // short) if kept else (before, before)
    resized = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC))
    top, left = (size[1] - side) // 2, (size[0] - side) // 2
    return resized[top : top + side, left : left + side]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image_size", "side", "before"), [(None, 16, 20), (16, 16, 20), (28, 28, 35)]
)
def test_a_dinov2_as_published_reads_the_crop_of_its_processor(
    hub, tmp_path, image_size, side, before
):
    tensors = presets.write_dinov2(tmp_path / "dinov2")
    backbone = Backbone(f"hub:{tmp_path / 'dinov2'}", image_size=image_size)
    assert (backbone.image_size, backbone.grid) == (side, side // 4)
    picture = np.asarray(Image.fromarray(_picture((9, 13, 3))).resize((90, 60)))
    decoded = backbone.decode(_encoded(picture))
    cropped = _as_pillow(picture, before, side).astype(np.float32)
    np.testing.assert_allclose(decoded, cropped, atol=2.01)  # Pillow rounds in between
    np.testing.assert_allclose(
        backbone.network.shown(60, 90), (15 / 90 + 1 / 15, 0.1, 75 / 90 - 1 / 15, 0.9)
    )
    network = hub.models.Backbone.from_preset(str(tmp_path / "dinov2"), image_shape=(side, side, 3))
    [weight] = [w for w in network.weights if "interpolated" in w.path]
    weight.assign(_positions(tensors["embeddings.position_embeddings"], side // 4))
    scaled = (decoded.numpy() / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    wanted = np.asarray(network({"images": scaled[None].astype(np.float32)}))[:, 1:]
    result = backbone.extract(decoded[None])
    np.testing.assert_allclose(result, wanted, rtol=2e-3, atol=3e-3)

    (tmp_path / "data").mkdir()
    made_by = backbone.made_by(*save(backbone.network, tmp_path / "data", None))
    again = Backbone.from_fingerprint({"backbone": made_by}, tmp_path / "data")
    np.testing.assert_array_equal(again.extract(again.decode(_encoded(picture))[None]), result)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "dinov3", "swin"])
def test_image_size_chooses_where_no_position_embeddings_are_learnt(hub, name, preset):
    folder = preset(name)[0]
    backbone = Backbone(f"hub:{folder}", image_size=64)
    network = hub.models.Backbone.from_preset(str(folder), image_shape=(64, 64, 3))
    decoded = backbone.decode(_encoded(_picture()))[None]
    wanted, _ = _tokens(name, network, backbone.network.scale(decoded))
    assert decoded.shape == (1, 64, 64, 3) and wanted.shape[1] == 64
    np.testing.assert_allclose(backbone.extract(decoded), wanted, rtol=2e-3, atol=3e-3)


@pytest.mark.slow
def test_a_dinov2_with_registers_has_its_positions_smoothed(hub, tmp_path):
    presets.write_dinov2(tmp_path / "dinov2", registers=2)
    backbone = Backbone(f"hub:{tmp_path / 'dinov2'}")
    network = hub.models.Backbone.from_preset(str(tmp_path / "dinov2"), image_shape=(16, 16, 3))
    decoded = backbone.decode(_encoded(_picture()))[None]
    wanted = np.asarray(network({"images": backbone.network.scale(decoded)}))[:, 3:]
    np.testing.assert_allclose(backbone.extract(decoded), wanted, rtol=2e-3, atol=3e-3)


ONE_SIZE = {"do_center_crop": False, "size": {"height": 24, "width": 24}}
# Changes of preprocessor_config.json -> size after the crop and before, and whether the aspect
# ratio is kept.
PROCESSORS = [
    ({}, (16, 20, True)),
    ({"size": 20, "crop_size": 16}, (16, 20, True)),
    ({"size": 20, "image_processor_type": "DeiTImageProcessor"}, (16, 20, False)),
    ({"size": {"height": 20, "width": 20}}, (16, 20, False)),
    (ONE_SIZE, (24, 24, False)),
    ({"do_center_crop": False}, (20, 20, True)),
    ({"do_center_crop": False, "size": 24, "image_processor_type": "ViTImageProcessor"},
     (24, 24, False)),
    ({"do_center_crop": False, "crop_pct": 0.875, "size": {"shortest_edge": 224}},
     (224, 256, True)),
    ({"do_center_crop": False, "crop_pct": 0.875, "size": {"shortest_edge": 384}},
     (384, 384, False)),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), PROCESSORS)
def test_a_processor_of_hugging_face_resizes_and_crops_as_it_says(hub, tmp_path, changes, expected):
    config = {**presets.PROCESSOR, **changes}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    converter, before = _preprocessor("x", str(tmp_path))
    side, *_ = converter.image_size
    assert (side, before, converter.crop_to_aspect_ratio) == expected
    np.testing.assert_allclose(converter.scale, 1 / 255 / np.array([0.2, 0.3, 0.4]))


REFUSED = {
    "do_resize is false.*give `image_size`, for example 16": {"do_resize": False},
    r"squares, but its sides are \[20, 24\]": {
        **ONE_SIZE,
        "size": {"height": 20, "width": 24},
    },
    "must have a size with height and width or shortest_edge, not None": {"size": None},
    "crops 16 pixels out of only 12": {"size": {"shortest_edge": 12}},
    "resizes with nearest and then crops": {"resample": 0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_processor_that_cannot_be_followed_is_refused(hub, tmp_path, message):
    config = {**presets.PROCESSOR, **REFUSED[message]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        _preprocessor("x", str(tmp_path))
    if "do_resize" in message:
        assert _preprocessor("x", str(tmp_path), image_size=32)[1] == 20


def test_what_is_not_normalized_keeps_its_values(hub, tmp_path):
    config = {**presets.PROCESSOR, "do_normalize": False, "do_rescale": False}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    converter, _ = _preprocessor("x", str(tmp_path))
    assert (converter.scale, converter.offset) == ([1.0] * 3, [0.0] * 3)


def test_without_keras_hub_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ValueError, match=r"needs keras-hub.*pip install 'tfcap\[hub\]'"):
        Backbone("hub:resnet_50_imagenet")
