"""Swin against the released network: every block, its files, its pictures, its drop path."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds, swins
from PIL import Image

from tfcap import private_api
from tfcap.backbones import SWINS, swin
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.saved import digest
from tfcap.files import file_sha256
from tfcap.layers import precision, trees


@pytest.fixture(scope="module", autouse=True)
def narrow():
    with pytest.MonkeyPatch.context() as patch:
        swins.add(patch)
        yield


@pytest.fixture(scope="module")
def arrays():
    return swins.arrays_of()


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    path = tmp_path_factory.mktemp("swin") / "swin.pth"
    return Backbone(swins.NAME, weights=swins.write(path))


@pytest.fixture(scope="module")
def pixels(arrays):
    return tf.constant(arrays["in/pixels"], tf.float32)


def distance(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def test_every_block_equals_the_released_one(arrays, backbone):
    """Two stages have shifted windows; the last one has an odd block, but a single window."""
    model, names = backbone.model, {"patches": "patch_embed.norm", "swin": "norm"}
    for i, depth in enumerate(swins.SIZE.depths):
        names |= {f"stage{i}_block{j}": f"layers.{i}.blocks.{j}" for j in range(depth)}
    names |= {f"stage{i}": f"layers.{i}.downsample" for i in range(2)}
    parts = keras.Model(model.input, {k: model.get_layer(n).output for k, n in names.items()})
    outputs = parts(arrays["in/pictures"].transpose(0, 2, 3, 1))
    for name, output in outputs.items():
        expected = arrays[f"out/{name}"]
        worst = distance(tf.reshape(output, expected.shape), expected)
        assert worst < 2e-6 * np.abs(expected).max(), name


def test_features_of_pictures_equal_the_released_ones(arrays, backbone, pixels):
    assert (backbone.num_regions, backbone.feature_dim) == (16, 32)
    features = tf.function(backbone.features)(pixels)
    assert distance(features, arrays["out/swin"]) < 1e-5
    extracted = tf.function(backbone.extract)(pixels)  # TensorFlow joins operations of a graph
    assert distance(backbone.bulk_extractor()(pixels), extracted) == 0


def test_the_weights_are_saved_and_found_again(arrays, backbone, pixels, tmp_path):
    again = Backbone(
        swins.NAME, weights=swins.write(tmp_path / "b.pth", swins.state(buffers=False))
    )
    paths = [tmp_path / f"{name}.weights.h5" for name in ("first", "second")]
    for built, path in zip((backbone, again), paths, strict=True):
        built.network.save(path)
    assert file_sha256(paths[0]) == file_sha256(paths[1])
    made_by = backbone.made_by(paths[0].name, digest(paths[0]))
    assert "rounds" not in made_by
    loaded = Backbone.from_fingerprint({"backbone": made_by | {"rounds": False}}, tmp_path)
    assert distance(loaded.extract(pixels), backbone.features(pixels)) == 0
    assert loaded.made_by(None, None)["rounds"] is False
    assert 0 < distance(backbone.extract(pixels), backbone.features(pixels)) < 2e-3


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("layers.1.blocks.2.attn.qkv.bias", None, "layers.1.blocks.2.attn.qkv.bias"),
        ("layers.0.blocks.1.attn.relative_position_bias_table", np.ones((25, 1), "f4"), "25"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(name, value, word, tmp_path):
    tensors = swins.state() | {name: value}
    if value is None:
        del tensors[name]
    with pytest.raises(ValueError, match=f"do not fit swin_narrow .*{word}"):
        Backbone(swins.NAME, weights=swins.write(tmp_path / "swin.pth", tensors))


def test_sizes(backbone):
    """The six networks of the released code; the window and the strides decide what fits."""
    assert (*SWINS, swins.NAME) == tuple(swin.SIZES)
    with pytest.raises(ValueError, match="`weights=None` cannot be used for swin_tiny"):
        Backbone("swin_tiny_224")
    with pytest.raises(ValueError, match="`image_size` must be a multiple of 64, not 96"):
        swin.build(swins.SIZE, 96)


@pytest.mark.slow
def test_the_largest_network_has_the_released_number_of_weights():
    with tf.Graph().as_default():
        model = swin.build(swin.SIZES["swin_large_384"], 384)
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == 195_198_516


@pytest.mark.parametrize(("size", "most"), [((480, 640), 2), ((30, 50), 1), ((333, 64), 1)])
def test_pictures_are_resized_as_pillow_does_it(backbone, size, most):
    """Noise is the worst case: its means fall on halves."""
    noise = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(noise[::24, ::24]).resize(size[::-1], Image.BICUBIC))
    for image, limit, share in ((noise, most, 0.06), (smooth, 1, 0.01)):
        wanted = Image.fromarray(image).resize((64, 64), Image.BILINEAR)
        differences = np.abs(backbone.resize(tf.constant(image)) - np.asarray(wanted, np.float32))
        assert differences.max() <= limit and np.mean(differences > 0) < share


def test_half_precision_keeps_scores_in_float32(pixels, arrays, tmp_path):
    low = Backbone(swins.NAME, weights=swins.write(tmp_path / "swin.pth"))
    for layer in private_api.all_layers(low.model):  # as `EndToEnd` does it
        layer.dtype_policy = keras.dtype_policies.get("mixed_bfloat16")
    assert low.model.output.dtype == "float32"  # of the first call
    features = low.features(pixels)
    assert 1e-3 < np.abs(features - arrays["out/swin"]).mean() < 0.03
    bias = low.model.get_layer("layers.0.blocks.1").bias
    scores = bias(tf.zeros((1, 1, 16, 16), tf.bfloat16))
    table = arrays["w/swin_transf.layers.0.blocks.1.attn.relative_position_bias_table"]
    assert scores.dtype == tf.float32 and scores[0, 0, 0, 0] == table[3 * 7 + 3, 0]


def test_float16_has_room_for_queries_times_keys():
    with precision.using("mixed_float16"):
        block = swin.Block(cells=4, width=16, heads=2, window=4, shift=0, rate=0.0)
    block.qkv.kernel.assign(tf.zeros([16, 48]))
    block.qkv.bias.assign(tf.fill([48], 112.0))  # 8 * 112 ** 2 is more than float16 has
    assert np.isfinite(block(tf.ones([1, 4, 4, 16], tf.float16))).all()


def test_products_alone_are_bfloat16(pixels, arrays, tmp_path):
    with precision.using(precision.policy("bfloat16", accelerated=False)):
        low = Backbone(swins.NAME, weights=swins.write(tmp_path / "swin.pth"))
    graph = tf.function(low.features).get_concrete_function(pixels).graph.as_graph_def()
    nodes = [*graph.node, *(n for function in graph.library.function for n in function.node_def)]
    dtypes = {n.op: set() for n in nodes}
    for node in nodes:
        dtypes[node.op].add(node.attr["T"].type)
    products = dtypes["MatMul"] | dtypes["BatchMatMulV2"]
    assert products == {tf.bfloat16.as_datatype_enum}
    assert dtypes["Rsqrt"] == {tf.float32.as_datatype_enum}
    softmax = tf.bfloat16 if precision._rounds_once() else tf.float32
    assert dtypes["Softmax"] == {softmax.as_datatype_enum}
    assert 1e-3 < np.abs(low.features(pixels) - arrays["out/swin"]).mean() < 0.03


def test_blocks_of_a_kind_are_traced_once(backbone):
    blocks = [layer for layer in backbone.model.layers if isinstance(layer, swin.Block)]
    assert (len(blocks), len({id(block.traced) for block in blocks})) == (7, 5)


def test_a_state_dict_that_was_read_is_taken_and_freed(backbone, pixels, tmp_path):
    tensors = swins.state()
    path = swins.write(tmp_path / "other.pth", {})
    taken = Backbone(swins.NAME, weights=path, tensors=tensors)
    assert distance(taken.features(pixels), backbone.features(pixels)) == 0
    assert not any(key.endswith("fc1.weight") for key in tensors)


def test_drop_path(backbone, pixels):
    """A picture skips a branch or has 1 / (1 - rate) of it, by seeds; nothing else is random."""
    blocks = [layer for layer in backbone.model.layers if isinstance(layer, swin.Block)]
    rates = [(block.path_1.rate, block.path_2.rate) for block in blocks]
    np.testing.assert_allclose(rates, np.stack(2 * [np.arange(7) / 60], 1))
    assert distance(backbone.features(pixels), backbone.features(pixels, training=False)) == 0

    def draw():
        seeds.set_seed(4)
        block = swin.Block(4, 8, 1, 4, 0, 0.25)
        block.proj.bias.assign(tf.ones(8))  # the branches are 1 and 10
        block.fc2.bias.assign(tf.fill([8], 10.0))
        return block(tf.zeros((400, 4, 4, 8)), training=True).numpy().reshape(400, -1)

    sums = draw()
    np.testing.assert_array_equal(sums, draw())
    assert np.ptp(sums, axis=1).max() == 0  # a whole picture
    values, counts = np.unique(sums[:, 0].round(3), return_counts=True)
    np.testing.assert_allclose(values, [0, 1.333, 13.333, 14.667], atol=1e-3)
    np.testing.assert_allclose(counts / 400, [1 / 16, 3 / 16, 3 / 16, 9 / 16], atol=0.06)


def test_blocks_of_a_kind_are_one_function_of_the_graph(backbone, pixels):
    """TensorFlow would prepare the graph of an inlined function for each block."""
    graph = tf.function(backbone.features).get_concrete_function(pixels).graph.as_graph_def()
    calls = [node for node in graph.node if "PartitionedCall" in node.op]
    kinds = {node.attr["f"].func.name for node in calls}
    blocks = [layer for layer in backbone.model.layers if isinstance(layer, swin.Block)]
    assert len(calls) == len(blocks) == 7 and len(kinds) == 5
    functions = {function.signature.name: function for function in graph.library.function}
    assert all(functions[kind].attr["_noinline"].b for kind in kinds)
    with trees.portable_graphs():  # LiteRT has no calls of functions
        portable = tf.function(backbone.features).get_concrete_function(pixels).graph
    assert not [op for op in portable.get_operations() if "PartitionedCall" in op.type]
