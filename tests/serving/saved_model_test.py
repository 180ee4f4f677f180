"""The served functions, whose requests do not touch each other, and their SavedModel."""

import io
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers import captions, picture_bytes
from helpers import clips as small_clips
from PIL import Image

from tfcap import decoding, models, runs
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.clips import Clips
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import SPECIALS, Vocab
from tfcap.decoding.search import Search
from tfcap.serving import saved_model
from tfcap.serving.saved_model import CaptionServer, decode, export

pytestmark = pytest.mark.slow

REGIONS, WIDTH = 6, 194


@pytest.fixture(scope="module")
def signatures(served):
    """The functions as they are exported, `serving_default` and `features`."""
    return served.signatures()


@pytest.fixture(scope="module")
def features():
    """Three images of 6, 4 and 1 regions."""
    values = np.random.default_rng(2).normal(size=(3, REGIONS, WIDTH)).astype(np.float32)
    return tf.constant(values), tf.constant([6, 4, 1])


@pytest.fixture(scope="module")
def pictures(shapes):
    """Bytes of four pictures of the data."""
    data = PreparedData.load(shapes)
    names = list(data.file_names("val").values())[:4]
    return [tf.io.read_file(os.path.join(data.images, name)).numpy() for name in names]


def _equal(first, second):
    np.testing.assert_array_equal(first["tokens"], second["tokens"])
    np.testing.assert_array_equal(first["captions"], second["captions"])
    for name in ("scores", "log_probs"):
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=1e-5)


def _join(parts):
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def test_results_have_their_shapes_and_the_best_caption_first(signatures, features):
    result = signatures["features"](features=features[0], num_regions=features[1])
    assert {key: (value.dtype, value.shape) for key, value in result.items()} == {
        "captions": (tf.string, (3, 2)),
        "scores": (tf.float32, (3, 2)),
        "tokens": (tf.int32, (3, 2, 12)),
        "log_probs": (tf.float32, (3, 2, 12)),
        "status": (tf.string, (3,)),
    }
    scores = result["scores"].numpy()
    assert (scores[:, 0] >= scores[:, 1]).all() and (scores < 0).all()
    assert len(set(result["captions"].numpy().ravel())) > 1


def test_a_batch_equals_its_images(signatures, features, pictures):
    values, counts = features
    describe = signatures["features"]
    together = describe(features=values, num_regions=counts)
    alone = [
        describe(features=values[i : i + 1, :n], num_regions=counts[i : i + 1])
        for i, n in enumerate(counts)
    ]
    _equal(together, _join(alone))
    describe = signatures["serving_default"]
    together = describe(image_bytes=tf.constant(pictures))
    _equal(together, _join([describe(image_bytes=tf.constant([p])) for p in pictures]))
    turned = describe(image_bytes=tf.constant(pictures[::-1]))
    _equal(together, {key: value[::-1] for key, value in turned.items()})


def test_padding_does_not_change_results(signatures, features):
    values, counts = features
    padding = tf.fill([3, 4, WIDTH], np.float32(np.nan))  # whatever a client pads with
    real = tf.sequence_mask(counts, REGIONS)[..., None]
    filled = tf.where(real, values, 1e30)
    describe = signatures["features"]
    _equal(
        describe(features=values, num_regions=counts),
        describe(features=tf.concat([filled, padding], 1), num_regions=counts),
    )
    fewer = describe(features=values, num_regions=tf.constant([5, 4, 1]))
    assert (
        (describe(features=values, num_regions=counts)["scores"][0] != fewer["scores"][0])
        .numpy()
        .all()
    )  # and a real region does count


def _with(features, value):
    values = features[0].numpy()
    values[1, 3, 7] = value  # the last real region of the image of four
    return tf.constant(values)


FINITE = "features must be finite, and at most 65504 in size"


def check_rows(mixed, alone, reasons):
    """Compares a batch with its good rows alone; `reasons` has the status of each bad row."""
    good = [row for row in range(len(mixed["status"])) if row not in reasons]
    status = [text.decode() for text in mixed["status"].numpy()]
    assert {row: status[row] for row in reasons} == reasons
    assert [status[row] for row in good] == ["ok"] * len(good)
    _equal({key: value.numpy()[good] for key, value in mixed.items()}, alone)
    for row in reasons:
        assert not mixed["tokens"].numpy()[row].any() and not mixed["scores"].numpy()[row].any()
        assert set(mixed["captions"].numpy()[row]) == {b""}
    assert np.isfinite(mixed["scores"]).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: {"num_regions": [6, 0, 1]}, "num_regions must be at least 1, not 0"),
        (
            lambda f: {"num_regions": [6, 7, 1]},
            "num_regions must be at most the regions given, not 7",
        ),
        (lambda f: {"features": _with(f, -65520.0)}, FINITE),
    ],
)
def test_bad_features_have_a_status_and_do_not_affect_good_ones(
    signatures, features, change, reason
):
    describe = signatures["features"]
    values, counts = features
    received = {"features": values, "num_regions": counts, **change(features)}
    mixed = describe(**{key: tf.convert_to_tensor(value) for key, value in received.items()})
    alone = describe(features=tf.gather(values, [0, 2]), num_regions=tf.gather(counts, [0, 2]))
    check_rows(mixed, alone, {1: reason})


def test_a_request_without_images_is_refused(signatures):
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one image"):
        signatures["features"](
            features=tf.zeros([0, 4, WIDTH]), num_regions=tf.zeros([0], tf.int32)
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one image"):
        signatures["serving_default"](image_bytes=tf.constant([], tf.string))


def _jpeg(quality=90):
    pixels = np.random.default_rng(1).integers(0, 256, (80, 60, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=quality)
    return file.getvalue()


# Name -> a bad file and its status.
BAD = {
    "head": (_jpeg()[:900], "a truncated or damaged JPEG file"),
    "tail cut": (_jpeg()[:-200], "a truncated or damaged JPEG file"),
    "mark": (b"\xff\xd8\xff", "a truncated or damaged JPEG file"),
    "empty": (b"", "the file is empty"),
    "text": (b"no picture", "not a JPEG, PNG, BMP, GIF or WebP file"),
    "PNG": (picture_bytes.file("PNG")[:60], "a truncated or damaged PNG file"),
    "WebP": (picture_bytes.file("WEBP", frames=2), "a truncated, damaged or animated WebP file"),
    "bomb": (
        picture_bytes.claiming("PNG", 20_000, 20_000),
        "too many pixels: 400000000, at most 50000000",
    ),
}


def test_bad_pictures_have_a_status_and_do_not_affect_good_ones(signatures, pictures):
    """Four good rows among eight bad ones, then a batch in which every row is bad."""
    describe = signatures["serving_default"]
    contents, reasons, left = [], {}, list(pictures)
    for number, (content, reason) in enumerate(BAD.values()):
        if number % 2 == 0:
            contents.append(left.pop(0))
        reasons[len(contents)] = reason
        contents.append(content)
    mixed = describe(image_bytes=tf.constant(contents))
    check_rows(mixed, describe(image_bytes=tf.constant(pictures)), reasons)
    for row, picture in zip((0, 3, 6, 9), pictures, strict=True):
        alone = describe(image_bytes=tf.constant([picture]))
        _equal({key: value.numpy()[row : row + 1] for key, value in mixed.items()}, alone)
    bad = [content for content, _ in BAD.values()]
    result = describe(image_bytes=tf.constant(bad))
    assert [s.decode() for s in result["status"].numpy()] == [reason for _, reason in BAD.values()]
    assert not result["tokens"].numpy().any() and not result["scores"].numpy().any()


def test_a_picture_gives_what_its_record_gives(served, shapes):
    """Training read features from records; serving makes them again from the picture."""
    data = PreparedData.load(shapes)
    options = pipeline.BatchOptions(split="val", batch_size=4, captions_per_image=1, max_length=12)
    batches = pipeline.decoding_batches(data, options)
    batch, names = next(iter(batches)), data.file_names("val")
    paths = [os.path.join(data.images, names[int(image)]) for image in batch["id"]]
    content = tf.stack([tf.io.read_file(path) for path in paths])
    counts = tf.reduce_sum(tf.cast(batch["mask"], tf.int32), 1)
    _equal(served.from_features(batch["features"], counts), served.from_bytes(content))


def test_without_a_backbone_both_signatures_take_features(served, features):
    """A model of ready-made features serves features under both names."""
    bare = CaptionServer(served.model, served.vocab, served.search)
    signatures = bare.signatures()
    assert signatures["serving_default"] is signatures["features"]
    arguments = {"features": features[0], "num_regions": features[1]}
    _equal(signatures["serving_default"](**arguments), served.from_features(*features))


@pytest.fixture(scope="module")
def with_network(tmp_path_factory):
    """The path of an export whose backbone has weights and normalises batches, and its server."""
    backbone = Backbone("small_cnn", image_size=32)
    model = models.build("attention_lstm", 20, 5, backbone.feature_dim, width=8, attention_width=4)
    served = CaptionServer(
        model,
        Vocab([*SPECIALS, *map(str, range(20 - len(SPECIALS)))]),
        Search(decoding.Options(beam=2), 5),
        backbone,
    )
    path = str(tmp_path_factory.mktemp("served"))
    tf.saved_model.save(served, path, signatures=served.signatures())
    return path, served


def test_the_session_loader_of_tf_serving_restores_every_variable(with_network):
    """It restores by other rules than `tf.saved_model.load`, and needs no object of Keras."""
    path, served = with_network
    content = [picture_bytes.file("JPEG"), b"no picture", picture_bytes.file("PNG")]
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], path)
        signature = loaded.signature_def["serving_default"]
        outputs = {key: value.name for key, value in signature.outputs.items()}
        result = session.run(outputs, {signature.inputs["image_bytes"].name: content})
    _equal(result, served.from_bytes(tf.constant(content)))
    assert result["status"].tolist() == [b"ok", b"not a JPEG, PNG, BMP, GIF or WebP file", b"ok"]


def test_regions_beyond_those_of_training_are_cut_off(served, features):
    values, counts = features
    cut = CaptionServer(served.model, served.vocab, served.search, max_regions=4)
    _equal(cut.from_features(values, counts), served.from_features(values[:, :4], [4, 4, 1]))


def test_bad_clips_do_not_change_the_good_ones():
    backbone = Clips(Backbone("pixels", image_size=32, vector=True), 4)
    most = 48 * 30
    gif = small_clips.gif(small_clips.FRAMES)  # six frames of 36 x 24 pixels
    large = gif[:6] + bytes([0, 4, 0, 3]) + gif[10:]  # it claims 1024 x 768
    contents = tf.constant([gif, gif[:30], large, picture_bytes.file("PNG"), b"text"])
    images, status = decode(contents, backbone.decode, backbone.decoded_shape, most)
    assert images.shape == (5, 4, 32, 32, 3)
    for row in (0, 3):
        np.testing.assert_array_equal(images[row], backbone.decode(contents[row]))
    assert [text.decode() for text in status.numpy()] == [
        "ok",
        "a truncated or damaged GIF file",
        f"too many pixels: {1024 * 768}, at most {most}",
        "ok",
        "not a JPEG, PNG, BMP, GIF or WebP file",
    ]


# ---- SavedModel ----------------------------------------------------------------------------------

# Runs where nothing but TensorFlow is known, so that its operations are stock ones.
STRANGER = """
import json, sys
import tensorflow as tf
path, *pictures = sys.argv[1:]
loaded = tf.saved_model.load(path)
bytes_ = tf.constant([open(picture, "rb").read() for picture in pictures])
from_bytes = loaded.signatures["serving_default"](image_bytes=bytes_)
features = tf.random.stateless_normal([2, 5, 194], [1, 2])
from_features = loaded.signatures["features"](
    features=features, num_regions=tf.constant([5, 3]))
print("RESULT " + json.dumps({
    "captions": [[c.decode() for c in row] for row in from_bytes["captions"].numpy()],
    "scores": from_bytes["scores"].numpy().tolist(),
    "from_features": {k: v.numpy().astype(str).tolist() for k, v in from_features.items()
                      if k not in ("captions", "status")},
    "foreign": [name for name in sys.modules
                if name.split(".")[0] in ("tfcap", "tensorflow_text", "official", "export")],
}))
"""


@pytest.fixture(scope="module")
def exported(served, tmp_path_factory):
    """The path of an export, and what was in its directory before it was complete."""
    folder, names = tmp_path_factory.mktemp("served"), []
    (folder / "3").mkdir()
    path = export(served, str(folder), lambda *_: names.extend(os.listdir(folder)))
    return path, names


@pytest.fixture(scope="module")
def scenes(shapes, tmp_path_factory):
    """Paths of seven pictures: three PNG files of the data and a scene, stored in four ways.

    The scene lies on its side in a JPEG whose EXIF says so, and in one without EXIF; the third file
    is a PNG of the upright scene with the same pixels. The last one is a GIF whose frame is smaller
    than its screen.
    """
    data = PreparedData.load(shapes)
    names = list(data.file_names("val").values())[:4]
    paths = [os.path.join(data.images, name) for name in names]
    assert all(open(path, "rb").read(4) == b"\x89PNG" for path in paths)
    folder = tmp_path_factory.mktemp("pictures")
    names = ("exif.jpg", "upright.png", "no_exif.jpg")
    with_exif, upright, without = (str(folder / name) for name in names)
    scene = Image.open(paths[3]).convert("RGB").resize((240, 180))
    lying, exif = scene.transpose(Image.Transpose.ROTATE_90), Image.Exif()
    exif[0x0112] = 6
    lying.save(with_exif, quality=85, exif=exif)
    lying.save(without, quality=85)
    Image.fromarray(np.rot90(np.asarray(Image.open(without)), -1)).save(upright)
    sticker = folder / "sticker.gif"
    frame = np.asarray(scene.convert("L").resize((60, 40)))
    sticker.write_bytes(picture_bytes.gif((200, 90), [(frame, 120, 30)]))
    return [*paths[:3], with_exif, upright, without, str(sticker)]


def test_a_server_never_sees_half_a_version(exported):
    """TF Serving loads any directory that has a number as its name."""
    path, before = exported
    assert [name for name in before if name.isdecimal()] == ["3"] and len(before) == 2
    assert os.path.basename(path) == "4" and sorted(os.listdir(os.path.dirname(path))) == ["3", "4"]


def test_a_process_that_knows_only_tensorflow_gives_the_same_captions(
    captioner, served, exported, scenes, tmp_path
):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    result = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, exported[0], *scenes],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    answer = json.loads(line.removeprefix("RESULT "))
    assert answer["foreign"] == []

    here = list(captions.every(captioner, scenes, batch_size=3))
    assert answer["captions"] == [received for _, received, _ in here]
    assert all(captions[0] for captions in answer["captions"])
    np.testing.assert_allclose(answer["scores"], [scores for *_, scores in here], atol=1e-5)
    # The graph reads the EXIF of the scene that lies on its side.
    assert answer["captions"][3] == answer["captions"][4]
    assert answer["scores"][3] == pytest.approx(answer["scores"][4], abs=1e-5)
    assert answer["scores"][5] != pytest.approx(answer["scores"][4], abs=1e-3)
    features = tf.random.stateless_normal([2, 5, 194], [1, 2])
    direct = served.from_features(features, tf.constant([5, 3]))
    far = answer["from_features"]
    np.testing.assert_array_equal(np.array(far["tokens"]).astype(int), direct["tokens"])
    np.testing.assert_allclose(np.array(far["scores"]).astype(float), direct["scores"], atol=1e-5)


def test_a_failed_export_leaves_no_files(served, tmp_path):
    """A limit on the size of files acts like a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="The export could not be written"):
            export(served, str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_a_model_that_is_not_finite_is_not_kept(trained, tmp_path):
    broken = saved_model.server(runs.load(trained))
    bias = broken.model.checkpoint_items["weights"]["head/bias"]
    bias.assign(bias * np.nan)
    with pytest.raises(ValueError, match="does not caption a test input: .*nan"):
        export(broken, str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_samples_depend_on_the_seed_of_their_row_alone(trained, pictures):
    changes = "search=sample,samples=4,top_k=20,prefix=there,min_length=3,order=consensus"
    served = saved_model.server(runs.load(trained).with_decoding(changes))
    describe = served.signatures()["serving_default"]
    content = tf.constant(pictures[:2])
    first, other, again = (
        describe(image_bytes=content, seed=tf.constant(seeds, tf.int64))["captions"].numpy()
        for seeds in ([1, 2], [2, 1], [1, 2])
    )
    assert first.tolist() == again.tolist() != other.tolist()
    texts = [text.decode() for row in first for text in row]
    assert all(text.startswith("there ") and len(text.split()) > 2 for text in texts)
