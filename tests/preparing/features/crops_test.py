"""A run trained on ten crops reads a picture file by the same ten crops, everywhere."""

import numpy as np
import pytest
import tensorflow as tf

import tfcap
from tfcap import runs
from tfcap.data.prepared import PreparedData
from tfcap.files import file_sha256
from tfcap.preparing.features.backbone import Backbone

SIDE = 32


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """A run of untrained weights whose data were vectors of ten crops."""
    folder = tmp_path_factory.mktemp("ten")
    path = folder / "backbone.weights.h5"
    backbone = Backbone("small_cnn", image_size=SIDE, crops=10)
    backbone.save_weights(path)
    made_by = backbone.made_by(path.name, file_sha256(path))
    of = runs.load(trained)
    statistics = {**of.fingerprint["features"], "dim": backbone.feature_dim, "max_regions": 1}
    fingerprint = {**of.fingerprint, "features": statistics, "backbone": made_by}
    model = runs.build_model(of.params.task, len(of.vocab), backbone.feature_dim)
    directory = str(folder / "run")
    runs.create(
        directory, "xtransformer", of.params, of.vocab, fingerprint, model, files=[str(path)]
    )
    return directory


@pytest.fixture(scope="module")
def paths(shapes):
    data = PreparedData.load(shapes)
    return [f"{data.images}/{name}" for name in list(data.file_names("val").values())[:3]]


@pytest.mark.slow
def test_caption_and_export_see_ten_crops(run, paths):
    served = runs.server(runs.load(run))
    assert served.backbone.crops == 10
    stack = []
    for path in paths:
        whole = tf.io.decode_image(tf.io.read_file(path), 3)
        side = SIDE * 256 // 224  # the shorter side; these pictures are square
        small = tf.image.resize(whole, [side, side], antialias=True).numpy()
        end, middle = side - SIDE, (side - SIDE) // 2
        corners = [(0, 0), (0, end), (end, 0), (end, end), (middle, middle)]
        crops = [small[y : y + SIDE, x : x + SIDE] for y, x in corners]
        stack.append(crops + [crop[:, ::-1] for crop in crops])
    crops = served.backbone.network.scale(np.reshape(stack, [-1, SIDE, SIDE, 3]))
    grids = served.backbone.model(crops, training=False).numpy()
    vectors = grids.reshape(len(paths), 10, -1, served.backbone.feature_dim).mean((1, 2))
    wanted = served.from_features(tf.constant(vectors[:, None]), tf.ones([len(paths)], tf.int32))
    found = [[c.score, *(a.score for a in c.alternatives)] for c in tfcap.load(run)(paths)]
    np.testing.assert_allclose(found, wanted["scores"], rtol=1e-3)
    exported = served.signatures()["serving_default"]
    pictures = tf.constant([tf.io.read_file(path).numpy() for path in paths])
    result = exported(image_bytes=pictures)
    np.testing.assert_allclose(result["scores"], found, rtol=1e-4)
