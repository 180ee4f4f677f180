"""Registration: a model that this file defines has options, trains and captions."""

import json

import pytest
from keras import ops

from tfcap import configs, models, runs
from tfcap.data.prepared import PreparedData
from tfcap.inference.decode import decode_split
from tfcap.layers import common
from tfcap.layers.packing import on_words
from tfcap.models import captioner
from tfcap.models.captioner import RecurrentCaptioner
from tfcap.training.stages import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]


class Toy(RecurrentCaptioner):
    """Adds the mean of the regions to a decayed sum of the embedded words."""

    def __init__(self, *sizes: int, width: int = 48, decay: float = 0.5, **kwargs):
        super().__init__(*sizes, **kwargs)
        self.width = self.output_width = width
        self.decay = decay
        self.region_embed = common.linear(self.feature_dim, width, "region_embed")
        self.embed_tokens = common.embedding(self.vocab_size, width, "embed_tokens")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        return {"image": self.region_embed(common.masked_mean(inputs["features"], inputs["mask"]))}

    def init_cache(self, context, max_length):
        return {"sum": context["image"]}

    def embed(self, tokens, training=False):
        return self.embed_tokens(tokens)

    def recur(self, context, cache, words, training=False):
        total = self.decay * cache["sum"] + words
        return ops.tanh(total), {"sum": total}

    def predict(self, context, words, outputs, training=False, packing=None):
        return on_words(self.head, outputs, packing)


@pytest.fixture(scope="module")
def toy():
    """Registers the class after configurations were imported, and forgets it at the end."""
    captioner.register("toy", small=dict(width=16))(Toy)
    yield "toy"
    del captioner.MODELS["toy"], captioner.SMALL["toy"]


def test_options_follow_from_the_signature(toy):
    group = configs.Model(type=toy).get()
    assert group.as_dict() == {"width": 48, "decay": 0.5}
    assert configs.resolve(toy).task.model.toy.as_dict() == {"width": 16, "decay": 0.5}
    override = "task.model.toy.decay=0.25"
    scst = configs.resolve("toy_scst", override=override)
    assert scst.task.objective == "scst" and scst.task.init_checkpoint == "runs/toy/best_ckpt"
    assert scst.task.model.toy.decay == 0.25
    with pytest.raises(ValueError, match="no key depth"):
        configs.resolve(toy, override="task.model.toy.depth=2")


def test_a_registered_model_trains_and_evaluates(toy, small, shapes, tmp_path):
    task = {key: value for key, value in small["task"].items() if key != "model"}
    task["validation_data"] = {**task["validation_data"], "limit": 4}
    task |= {"max_length": 6, "decoding": {"beam": 1}}
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    trainer = small["trainer"] | dict.fromkeys(graphs, False)
    trainer |= {"train_steps": 2, "validation_interval": 2, "shown_images": 0}
    params = configs.resolve(toy, override=json.dumps({"task": task, "trainer": trainer}))
    train(params, toy, str(tmp_path))
    run = runs.load(str(tmp_path))
    assert run.params.task.model.as_dict() == {"type": "toy", "toy": {"width": 16, "decay": 0.5}}
    data = PreparedData.load(shapes)
    result = decode_split(run, data, "val", 2).captions
    assert len(result) == 12 and all(texts for texts in result.values())


def test_options_without_a_type_are_refused_and_an_unknown_name_lists_the_systems(toy):
    def no_type(self, *sizes, width=3):
        """A constructor with an option that has no type."""

    with pytest.raises(TypeError, match="`width` of the constructor needs a type"):
        captioner.options_of(type("Wrong", (RecurrentCaptioner,), {"__init__": no_type}))
    with pytest.raises(ValueError, match="`name` must be one of .*xlan.*, not 'lstm'"):
        models.build("lstm", 10, 5, 4)
    assert models.MODELS[toy] is Toy
