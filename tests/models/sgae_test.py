"""SGAE against the released code, with scene graphs of images and of sentences.

`fixtures/golden_sgae.py` made the fixture, and says what its modes are.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import interpreter
from helpers import contract, parity, searches, seeds, small_models
from helpers.sizes import FEATURES, LENGTH, REGIONS, VOCABULARY

from tfcap import configs, decoding, models, runs
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import Vocab
from tfcap.decoding.search import Search
from tfcap.importers import weights
from tfcap.inference.decode import decode_split
from tfcap.models.sgae import COLUMNS, _read_graph
from tfcap.prepare import prepare
from tfcap.preparing.ready import checked
from tfcap.preparing.sources.entry import Entry
from tfcap.runs import checkpoints
from tfcap.serving import portable, saved_model
from tfcap.training.stages import train
from tfcap.visualize.attention import attend

RETIRE = dict(finished="retire", suppress=(3,))
SENTENCE, IMAGE = dict(phase="sentence"), dict(graph=True)
MODES = {"0": SENTENCE | dict(dictionary=0), "1": SENTENCE, "2": IMAGE, "3": dict(graph=False)}
SHARED = {
    "embed_tokens/embeddings": "embed.0.weight",
    "mean_embed/linear": "fc_embed.0",
    "dictionary/vectors": "memory_cell",
    "head": "logit",
}
# Of each phase: our layers and the released ones.
PARTS = {
    "sentence": {
        "own/linear": "ssg_obj_obj_fc.0",
        "graph/subject/linear": "ssg_sbj_rela_fc.0",
        "graph/object/linear": "ssg_obj_rela_fc.0",
        "graph/relation/linear": "ssg_rela_fc.0",
        "graph/attribute/linear": "ssg_attr_fc.0",
        "attention/key": "ssg_ctx2att",
        "attention/query": "ssg_core.attention.h2att",
        "attention/alpha": "ssg_core.attention.alpha_net",
        "lstm1": "ssg_core.att_lstm",
        "lstm2": "ssg_core.lang_lstm",
    },
    "image": {
        "region/linear": "att_embed.0",
        "label/linear": "embed2vis.0",
        "graph/subject/linear": "rela_sbj_rela_fc.0",
        "graph/object/linear": "rela_obj_rela_fc.0",
        "graph/relation/linear": "rela_rela_fc.0",
        "graph/attribute/linear": "rela_attr_fc.0",
        "to_sentence/0": "img2sg.fc1.0",
        "to_sentence/1": "img2sg.fc2.0",
        "to_sentence/2": "img2sg.fc3",
        "attention/key": "rela_ctx2att",
        "attention/query": "rela_core.attention_rela.h2att",
        "attention/alpha": "rela_core.attention_rela.alpha_net",
        "dictionary_attention/query": "rela_core.attention_mem.h2att",
        "dictionary_attention/alpha": "rela_core.attention_mem.alpha_net",
        "lstm1": "rela_core.att_lstm",
        "lstm2": "rela_core.lang_lstm",
    },
}
ENDS = {
    "/recurrent_kernel": ".weight_hh",
    "/recurrent_bias": ".bias_hh",
    "/kernel": ".weight",
    "/bias": ".bias",
}


def released_name(name, phase):
    """The released name of our weight."""
    if name in SHARED:
        return SHARED[name]
    layers = SHARED | {f"{phase}/{ours}": released for ours, released in PARTS[phase].items()}
    end = next(end for end in ENDS if name.endswith(end))
    released = ENDS[end]
    if "lstm" in name and "recurrent" not in end:
        released += "_ih"
    return layers[name.removesuffix(end)] + released


def as_ours(name, released, values):
    """A released weight, or its gradient, in our layout."""
    if name.endswith("kernel"):
        values = values.T
    if released == "rela_attr_fc.0.weight":  # which has the label before the object
        values = np.roll(values, len(values) // 2, axis=0)
    return values


def rows_of_files(arrays, mode, vocabulary):
    """Features and mask of the images, as prepare makes them of npz files, with our ids."""
    entry = Entry(1, "1.jpg", "train", ())
    rows = []
    for image, mask in enumerate(arrays["in/mask"]):
        file = {"feat": arrays["in/feats"][image][mask > 0]}
        relations = arrays["in/rela_matrix"][image][arrays["in/rela_masks"][image] > 0]
        if mode in "01":
            file["labels"] = arrays["in/ssg_obj"][image][arrays["in/ssg_obj_masks"][image] > 0]
            attributes = enumerate(arrays["in/ssg_attr"][image])
        else:
            attributes = ((row[0], row[1:]) for row in arrays["in/attr_matrix"][image])
        edges = [*relations, *([i, -1, a] for i, row in attributes for a in row if a >= 0)]
        file["graph"] = np.array(edges).astype(int)
        file["graph"][:, 2] = vocabulary.ours[file["graph"][:, 2]]
        if "labels" in file:
            file["labels"] = vocabulary.ours[file["labels"].astype(int)]
        if mode == "3":
            del file["graph"]
        rows.append(checked(entry, file).features)
    longest = max(map(len, rows))
    features = np.stack([np.pad(x, ((0, longest - len(x)), (0, 0))) for x in rows])
    mask = tf.sequence_mask([*map(len, rows)], longest)
    return {"features": tf.constant(features), "mask": mask}


@pytest.fixture(scope="module")
def arrays():
    return parity.read("sgae")


@pytest.mark.parametrize("mode", MODES)
def test_the_released_code_gives_the_same_numbers(mode, arrays):
    """Teacher forcing, two gradients, and in the modes of images greedy and beam search."""
    options = MODES[mode]
    phase = options.get("phase", "image")
    vocabulary = parity.Vocabulary(len(arrays["w/embed.0.weight"]))
    inputs = rows_of_files(arrays, mode, vocabulary)
    length = arrays[f"out/{mode}/logps"].shape[1]
    sizes = len(vocabulary.released), length, inputs["features"].shape[-1]
    memory = arrays["w/memory_cell"]
    model = models.build(
        "sgae", *sizes, **dict(dictionary=len(memory), width=12, attention_width=6) | options
    )
    names = {name: released_name(name, phase) for name in model.checkpoint_items["weights"]}
    tensors = {n: as_ours(n, released, arrays[f"w/{released}"]) for n, released in names.items()}
    weights.assign(model, tensors, vocabulary.released, names)

    words = arrays["in/seq"]
    tokens = tf.constant(vocabulary.inputs(words)[:, :-1])
    variables = model.checkpoint_items["weights"]
    with tf.GradientTape() as tape:
        logits = model.decode(model.encode(inputs), tokens)
        ours = tf.nn.log_softmax(tf.gather(logits, vocabulary.ours, axis=-1))
        loss = -tf.reduce_mean(tf.gather(ours, words[:, 1:], batch_dims=2))
    assert distance(ours, arrays[f"out/{mode}/logps"]) < 1e-4
    compared = [name for name, released in names.items() if f"grad/{mode}/{released}" in arrays]
    assert len(compared) == 2
    gradients = tape.gradient(loss, {name: variables[name] for name in compared})
    for name, gradient in gradients.items():
        expected = as_ours(name, names[name], arrays[f"grad/{mode}/{names[name]}"])
        gradient = tf.convert_to_tensor(gradient).numpy()
        if name in model.vocabulary_axes:  # the same word stands for start, end and padding
            gradient = np.concatenate([gradient[:3].sum(0)[None], gradient[vocabulary.ours[1:]]])
        assert np.abs(expected).max() > 1e-3 and distance(gradient, expected) < 1e-5, name
    if phase == "image":
        context = model.encode(inputs)
        result, logps = searches.traced(searches.sample, model, context, length)[:2]
        expected = vocabulary.sentences(arrays[f"out/{mode}/greedy"])
        np.testing.assert_array_equal(result, expected)
        steps = arrays[f"out/{mode}/greedy_logp"]
        assert distance(logps[expected > 0], steps[expected > 0]) < 1e-4
        result = searches.traced(searches.beam_search, model, context, 3, length, **RETIRE)[0]
        np.testing.assert_array_equal(
            result[:, 0], vocabulary.sentences(arrays[f"out/{mode}/beam3"])
        )


# Rows of scene graphs: the label of an object, the start, end and label of an edge. Among them an
# attribute, two attributes of one object, an object that relates to itself, an end that is no
# object, and an edge without label.
GRAPHS = [
    [[0, 4, 1, 2, 0, 5], [0, 5, 3, 0, 0, 7], [0, 6, 3, 0, 0, 9], [0, 7, 4, 4, 0, 2], [0] * 6],
    [[0, 4, 1, 3, 0, 5], [0, 5, 3, 0, 0, 7], [0, 6, 3, 5, 0, 7], [0] * 6, [0] * 6],
    [[0, 4, 1, 2, 0, 5], [0, 5, 1, 0, 0, 7], [0, 0, 1, 1, 0, 0], [0] * 6, [0] * 6],
]
OPTIONS = {"1": SENTENCE, "2": IMAGE}


@pytest.fixture(scope="module", params=OPTIONS)
def options(request):
    return OPTIONS[request.param]


@pytest.fixture(scope="module")
def graphs(batch):
    features = tf.concat([batch["features"], tf.constant(GRAPHS, tf.float32)], -1)
    return batch | {"features": features, "tokens": batch["tokens"][..., :4]}


@pytest.fixture(scope="module")
def model(options):
    sizes = VOCABULARY, LENGTH, FEATURES + COLUMNS
    seeds.set_seed(1)
    model = models.build("sgae", *sizes, **small_models.SIZES["sgae"] | options)
    for weight in model.trainable_variables:  # initial ones make all nodes alike
        if len(weight.shape) == 2:
            weight.assign(weight * (100 if weight.name == "vectors" else 3))
    return model


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_the_contract_with_scene_graphs(check, model, graphs):
    check(model, graphs, model(graphs))


def test_steps_and_gradients_with_scene_graphs(model, graphs):
    contract.check_step_equals_decode(model, graphs)
    contract.check_gradients(model, graphs, ("alpha/bias",))


def test_what_no_graph_can_have_changes_nothing(model, graphs):
    """An edge without label, and one to a row that is no object or is hidden."""
    hidden = graphs["features"].numpy()
    hidden[2, 0, -COLUMNS:] = [0, 4, 0, 0, 0, 0]  # its relation led to a hidden row
    hidden[1, 2, -COLUMNS:] = [0, 6, 0, 0, 0, 0]
    result = model(graphs | {"features": tf.constant(hidden)})
    contract.same(result, model(graphs), 1e-6)
    hidden[1, 1, -COLUMNS:] = [0, 5, 2, 0, 0, 7]  # another object has the attribute
    result = model(graphs | {"features": tf.constant(hidden)})
    contract.differ(result[1], model(graphs)[1])


def test_attention_to_nodes_is_not_shown_as_that_to_regions(model, graphs):
    """Relations have no boxes: words get contributions of regions instead."""
    words = Vocab(["<pad>", "<bos>", "<eos>", "<unk>", "a", "b"])
    boxes = np.tile([0.1, 0.1, 0.9, 0.9], (*graphs["mask"].shape, 1))
    assert attend(model, words, graphs, boxes, ["a b"] * len(boxes))[0].kind == "contribution"


@pytest.mark.slow
@pytest.mark.parametrize("format", ["litert", "onnx"])
def test_exported_files_read_scene_graphs(format, model, graphs, tmp_path):
    words = Vocab(["<pad>", "<bos>", "<eos>", "<unk>", *"abcdefghi"])
    search = Search(decoding.Options(beam=2), LENGTH)
    function = portable.trace(saved_model.CaptionServer(model, words, search), 1, REGIONS)
    if format == "litert":
        content = portable.litert(function, "float32")
        run = interpreter.Interpreter(model_content=content).get_signature_runner()
    else:
        onnxruntime = pytest.importorskip("onnxruntime")
        path = str(tmp_path / "captioner.onnx")
        pytest.importorskip("tfcap.serving.onnx_file").convert(function.traced, path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(**inputs):
            return dict(zip(names, session.run(names, inputs), strict=True))

    for row, mask in zip(graphs["features"].numpy(), graphs["mask"].numpy(), strict=True):
        inputs = {"features": row[None], "num_regions": np.int32([mask.sum()])}
        expected = function.traced(**{name: tf.constant(x) for name, x in inputs.items()})
        result = run(**inputs)
        np.testing.assert_array_equal(result["tokens"], expected["tokens"])
        assert distance(result["scores"], expected["scores"]) < 1e-4


def test_labels_are_thousands_and_rest():
    columns = np.float32([[[1, 5, 1, 0, 2, 999], [64, 0, 0, 0, 0, 0]]])
    graph = _read_graph(columns, None, np.array([[True, True]]), 3000)
    assert graph["objects"].numpy().tolist() == [[1005, 2999]]  # the last word in place of 64,000
    assert graph["labels"].numpy().tolist() == [[2999, 0]]


def test_a_graph_without_objects_is_finite_whatever_its_padding(graphs):
    sizes = VOCABULARY, LENGTH, FEATURES + COLUMNS
    model = models.build("sgae", *sizes, **small_models.SIZES["sgae"] | SENTENCE)
    features = tf.zeros((1, 2, FEATURES + COLUMNS))
    tokens = graphs["tokens"][:1]
    one = model({"features": features, "mask": tf.ones((1, 2), tf.bool), "tokens": tokens})
    longer = tf.pad(features, [[0, 0], [0, 3], [0, 0]])
    two = model({"features": longer, "mask": tf.ones((1, 5), tf.bool), "tokens": tokens})
    assert np.isfinite(one).all()
    contract.same(one, two, 1e-6)


def test_a_phase_starts_from_the_one_before(tmp_path, graphs):
    """It takes words, dictionary and logits, and all else where the phase is the same."""
    sizes = VOCABULARY, LENGTH, FEATURES + COLUMNS

    def make(options):
        return models.build("sgae", *sizes, **small_models.SIZES["sgae"] | options)

    names = ("graph", "sentence", "image")
    path, stored = "", {}
    for name, options in zip(names, (MODES["0"], SENTENCE, IMAGE), strict=True):
        model = make(options)
        before = {n: v.numpy() for n, v in model.checkpoint_items["weights"].items()}
        if path:
            checkpoints.restore_weights(model, path, start=True)
            with pytest.raises(ValueError, match="dictionary/vectors|image/|sentence/"):
                checkpoints.restore_weights(model, path)
            for key, weight in model.checkpoint_items["weights"].items():
                expected = stored[key] if key in stored else before[key]
                np.testing.assert_array_equal(weight, expected)
            shared = stored.keys() & before.keys()
            assert {"embed_tokens/embeddings", "head/kernel"} <= shared
            assert ("dictionary/vectors" in shared) == (name == "image")
            assert ("sentence/lstm1/kernel" in shared) == (name == "sentence")
        stored = model.checkpoint_items["weights"]
        path = tf.train.Checkpoint(**model.checkpoint_items).write(str(tmp_path / name))


@pytest.mark.parametrize(
    "options, width, message",
    [
        (SENTENCE, COLUMNS, "needs 6 numbers behind"),
        (dict(phase="words"), 12, "`phase` must be one of sentence, image"),
    ],
)
def test_options_that_cannot_work_are_refused(options, width, message):
    with pytest.raises(ValueError, match=message):
        models.build("sgae", VOCABULARY, LENGTH, width, **options)


COLOURS, SHAPES, PLACES = "red green blue".split(), "ball box cone".split(), "on under".split()
WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "a", *COLOURS, *SHAPES, *PLACES]


def scenes(folder):
    """Captions of two coloured shapes, and files with the graphs of the sentences and the images.

    The features of a region show the shape alone. Colour and place are in the graph.
    """
    rng = np.random.default_rng(1)
    rows = []
    for number in range(144):
        colours, shapes = rng.integers(3, size=2), rng.integers(3, size=2)
        place = PLACES[rng.integers(2)]
        one, two = (f"a {COLOURS[c]} {SHAPES[s]}" for c, s in zip(colours, shapes, strict=True))
        split = "train" if number < 128 else "val"
        sentence = f"{one} {place} {two}"
        rows.append({"image": f"{number}.jpg", "id": number, "caption": sentence, "split": split})
        ids = [WORDS.index(SHAPES[s]) for s in shapes]
        edges = [[i, -1, WORDS.index(COLOURS[c])] for i, c in enumerate(colours)]
        graph = np.array([[0, 1, WORDS.index(place)], *edges])
        regions = np.eye(3, dtype=np.float32)[shapes]
        for name, arrays in (
            ("sentence", dict(labels=np.array(ids), feat=np.zeros((1, 3), np.float32))),
            ("image", dict(feat=regions)),
        ):
            (folder / name).mkdir(exist_ok=True)
            np.savez(folder / name / f"{number}.npz", graph=graph, **arrays)
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_sentences_teach_and_images_are_captioned_by_their_graphs(tmp_path):
    """All three stages learn to name all five words; each starts from the one before."""
    scenes(tmp_path)
    start = ""
    for number, phase in enumerate(("sentence", "sentence", "image")):
        data = prepare(
            tmp_path / f"data_{number}",
            tmp_path / "captions.jsonl",
            features=tmp_path / phase,
            vocab=tmp_path / "vocab.txt",
        )
        sizes = dict(width=32, attention_width=16, dictionary=30 * (number > 0), graph=True)
        rates = dict.fromkeys(["word_dropout", "region_dropout", "graph_dropout"], 0.0)
        rates["phase"] = phase
        task = {"data_dir": str(data), "max_length": 8, "init_checkpoint": start}
        task |= {"model": {"sgae": sizes | rates}, "label_smoothing": 0.0, "metrics": ["CIDEr"]}
        task["train_data"] = {"global_batch_size": 16, "captions_per_image": 1}
        task["validation_data"] = {"global_batch_size": 16, "captions_per_image": 1}
        schedule = {"name": "constant", "learning_rate": 0.01}
        trainer = {"train_steps": 300, "validation_interval": 300, "steps_per_loop": 50}
        trainer |= {"shown_images": 0, "optimizer_config": {"name": "adam", "schedule": schedule}}
        params = configs.resolve("sgae", override=json.dumps({"task": task, "trainer": trainer}))
        directory = str(tmp_path / f"run_{number}")
        train(params, "sgae", directory)
        start = f"{directory}/best_ckpt"
        prepared = PreparedData.load(str(data))
        captions = decode_split(runs.load(directory), prepared, "val", 16).captions
        references = prepared.references("val")
        right = [texts[0] in references[image] for image, texts in captions.items()]
        assert np.mean(right) > (0.5, 0.1, 0.5)[number]  # by chance one in 162


def distance(result, expected):
    return np.abs(np.asarray(result) - np.asarray(expected)).max()
