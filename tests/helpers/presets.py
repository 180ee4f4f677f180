"""Small random presets of keras-hub, one of each kind of output, for tests without a network."""

import json

import numpy as np

from helpers import seeds


def _resnet(hub):
    network = hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(None, None, 3),
    )
    scale = [0.017, 0.018, 0.019]
    return network, hub.layers.ResNetImageConverter(
        (48, 48), scale, [-2.1, -2.0, -1.8], interpolation="bilinear", antialias=True
    )


def _vit(hub):
    network = hub.models.ViTBackbone(
        image_shape=(32, 32, 3), patch_size=8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32
    )
    return network, hub.layers.ViTImageConverter((32, 32), 1 / 127.5, -1.0)


def _dinov2(hub):
    network = hub.models.DINOV2Backbone(
        patch_size=8,
        num_layers=1,
        hidden_dim=16,
        num_heads=2,
        layer_scale_init_value=1.0,
        intermediate_dim=32,
        num_register_tokens=4,
        use_swiglu_ffn=False,
        image_shape=(32, 32, 3),
    )
    return network, hub.layers.DINOV2ImageConverter(
        image_size=(32, 32), scale=1 / 255, interpolation="bicubic", antialias=True
    )


def _dinov3(hub):
    network = hub.models.DINOV3Backbone(
        patch_size=8,
        num_layers=1,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=32,
        image_shape=(32, 32, 3),
    )
    return network, hub.layers.DINOV3ImageConverter(image_size=(32, 32), scale=1 / 255)


def _clip(hub):
    vision = hub.models.CLIPVisionEncoder(
        patch_size=8, hidden_dim=16, num_layers=2, num_heads=2, intermediate_dim=32,
        image_shape=(32, 32, 3), name="vision_encoder",
    )  # fmt: skip
    text = hub.models.CLIPTextEncoder(
        vocabulary_size=20, embedding_dim=16, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, name="text_encoder",
    )  # fmt: skip
    network = hub.models.CLIPBackbone(vision, text, projection_dim=12)
    return network, hub.layers.CLIPImageConverter(
        (32, 32), [0.014, 0.015, 0.0145], [-1.8, -1.7, -1.5]
    )


def _siglip(hub):
    vision = hub.models.SigLIPVisionEncoder(
        patch_size=8, hidden_dim=16, num_layers=2, num_heads=2, intermediate_dim=32,
        image_shape=(32, 32, 3), name="vision_encoder",
    )  # fmt: skip
    text = hub.models.SigLIPTextEncoder(
        vocabulary_size=20, embedding_dim=16, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, name="text_encoder",
    )  # fmt: skip
    network = hub.models.SigLIPBackbone(vision, text)
    return network, hub.layers.SigLIPImageConverter(
        (32, 32), 1 / 127.5, -1.0, crop_to_aspect_ratio=False
    )


def _swin(hub):
    network = hub.models.SwinTransformerBackbone(
        image_shape=(32, 32, 3), embed_dim=16, depths=(1, 1), num_heads=(2, 2), window_size=4
    )
    return network, hub.layers.SwinTransformerImageConverter((32, 32), 1 / 255, -0.5)


MAKERS = {
    "resnet": _resnet,
    "vit": _vit,
    "dinov2": _dinov2,
    "dinov3": _dinov3,
    "clip": _clip,
    "siglip": _siglip,
    "swin": _swin,
}


def write(hub, name, folder):
    """Writes a preset with random weights into a directory; returns network and converter."""
    seeds.set_seed(sum(map(ord, name)))
    network, converter = MAKERS[name](hub)
    rng = np.random.default_rng(3)
    for variable in network.weights:  # biases and class tokens are zeros at first
        if "float" in str(variable.dtype):
            noise = 0.05 * rng.standard_normal(variable.shape)
            variable.assign(variable + (np.abs(noise) if "variance" in variable.path else noise))
    network.save_to_preset(str(folder))
    converter.save_to_preset(str(folder))
    if name == "dinov2":  # it computes some of its weights when it is loaded
        network = hub.models.Backbone.from_preset(str(folder))
    return network, converter


# The numbers of facebook/dinov2-base, but smaller: 28 pixels in config.json, the middle 16 of 20 in
# preprocessor_config.json.
PROCESSOR = {"image_processor_type": "BitImageProcessor", "resample": 3, "do_resize": True,
             "size": {"shortest_edge": 20}, "do_center_crop": True,
             "crop_size": {"height": 16, "width": 16}, "do_rescale": True,
             "rescale_factor": 1 / 255, "do_normalize": True,
             "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}  # fmt: skip


def write_dinov2(folder, registers=0):
    """Writes a random DINOv2 with patches of 4 pixels as on Hugging Face; returns its tensors."""
    from safetensors.numpy import save_file

    width, rng = 16, np.random.default_rng(5)
    config = {"model_type": "dinov2_with_registers" if registers else "dinov2",
              "hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2,
              "mlp_ratio": 2, "image_size": 28, "patch_size": 4, "layerscale_value": 1.0,
              "drop_path_rate": 0.0, "hidden_dropout_prob": 0.0, "use_swiglu_ffn": False,
              "apply_layernorm": True}  # fmt: skip
    shapes = {"embeddings.cls_token": (1, 1, width), "embeddings.mask_token": (1, width),
              "embeddings.position_embeddings": (1, 50, width),
              "embeddings.patch_embeddings.projection.weight": (width, 3, 4, 4),
              "embeddings.patch_embeddings.projection.bias": (width,)}  # fmt: skip
    if registers:
        config["num_register_tokens"] = registers
        shapes["embeddings.register_tokens"] = (1, registers, width)
    block = "encoder.layer.0."
    dense = {f"attention.attention.{name}": (width, width) for name in ("query", "key", "value")}
    dense |= {"attention.output.dense": (width, width)}
    dense |= {"mlp.fc1": (2 * width, width), "mlp.fc2": (width, 2 * width)}
    for name, shape in dense.items():
        shapes |= {f"{block}{name}.weight": shape, f"{block}{name}.bias": shape[:1]}
    for name in (f"{block}norm1", f"{block}norm2", "layernorm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    shapes |= {f"{block}layer_scale{number}.lambda1": (width,) for number in (1, 2)}
    tensors = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return tensors
