"""Small random presets of keras-hub, one of each kind of output, for tests without a network."""

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
