"""Files in the layouts of the Object Relation and the Meshed-Memory Transformer become runs."""

import argparse
import collections
import pickle
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers import parity, torch_writer

from tfcap import runs
from tfcap.importers import words
from tfcap.importers.convert import convert

pytestmark = pytest.mark.slow
LENGTH = 6
NAMES = [f"w{number}" for number in range(30)]  # of the released ids


def weights_of(arrays, **changes):
    """The state dict of a fixture."""
    values = {key[2:]: value for key, value in arrays.items() if key.startswith("w/")}
    return collections.OrderedDict(values | changes)


def infos(path, protocol=2, **options):
    """The file infos_ID.pkl; the id 0 has no word, and the last is UNK."""
    table = {str(number): name for number, name in enumerate([*NAMES[:-1], "UNK"])}
    del table["0"]
    opt = argparse.Namespace(num_layers=2, legacy_extra_skip=False, **options)
    content = {"opt": opt, "vocab": table, "iter": 6000, "iterators": {"train": 3}}
    content |= {"best_val_score": np.float64(1.2)}
    path.write_bytes(pickle.dumps(content, protocol))
    return str(path)


@pytest.fixture
def vocabulary(tmp_path, monkeypatch):
    """The file vocab.pkl: an object of a class `data.vocab.Vocab`, which is not there later."""

    class Vocab:
        pass

    def unknown():
        return 0

    for name in ("data", "data.vocab"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for made, name in ((Vocab, "Vocab"), (unknown, "_default_unk_index")):
        made.__module__, made.__qualname__ = "data.vocab", name
        setattr(sys.modules["data.vocab"], name, made)
    itos = ["<unk>", "<pad>", "<bos>", "<eos>", *NAMES[4:]]
    vocab = Vocab()
    vocab.freqs, vocab.itos, vocab.vectors = collections.Counter(NAMES), itos, None
    vocab.stoi = collections.defaultdict(unknown, {name: i for i, name in enumerate(itos)})
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickle.dumps(vocab, 3))
    return str(path)


def captions_of(run, arrays):
    """The best caption of each image of a fixture, as words."""
    inputs = {"features": tf.constant(arrays["in/feats"]), "mask": arrays["in/mask"] > 0}
    if run.model.reads_boxes:
        inputs["boxes"] = tf.constant(arrays["in/boxes"])
    tokens = run.search()(run.model, run.model.encode(inputs))[0][:, 0].numpy()
    return [[run.vocab.words[i] for i in row if i > 2] for row in tokens]


def released(rows, end, words):
    """What the released code says."""
    rows = [row[: row.index(end)] if end in row else row for row in rows.tolist()]
    return [[words[i] for i in row] for row in rows]


def test_an_object_relation_transformer(tmp_path):
    arrays = parity.read("ort")
    torch_writer.write(tmp_path / "model-best.pth", weights_of(arrays))
    table = infos(tmp_path / "infos_bu-best.pkl", protocol=0)  # of Python 2
    override = "task.decoding.beam=3"
    source = ("ort", str(tmp_path / "model-best.pth"), table)
    line = convert(*source, str(tmp_path / "run"), LENGTH, override)
    assert line.startswith("ort, ") and "tensor shapes show all of its options" in line
    run = runs.load(str(tmp_path / "run"))
    options = run.params.task.model.ort
    assert (options.heads, options.inner_width, options.encoder_layers) == (8, 24, 2)
    assert not options.extra_skip and not options.stored_positions
    assert captions_of(run, arrays) == released(arrays["out/beam3"], 0, NAMES)

    # A list of words shows no options, and the line says so. The search is the released one.
    path = tmp_path / "words.txt"
    path.write_text("\n".join([*NAMES[1:-1], "UNK"]))
    line = convert(*source[:2], str(path), str(tmp_path / "other"))
    assert "at most 16 words, beam 2; assumed, because tensor shapes do not show it" in line
    assert "extra_skip False" in line
    decoding = runs.load(str(tmp_path / "other")).params.task.decoding
    assert decoding.finished == "retire" and decoding.suppress_unk


def test_the_extra_connection_of_a_released_model_is_read(tmp_path):
    arrays = parity.read("ort")
    torch_writer.write(tmp_path / "model.pth", weights_of(arrays))
    for protocol in (0, 2, 4):
        path = tmp_path / f"infos{protocol}.pkl"
        table = pickle.dumps({"opt": argparse.Namespace(legacy_extra_skip=True)}, protocol)
        path.write_bytes(table)
        assert words.released_options("ort", path) == {"extra_skip": True}
        assert words.released_options("aoanet", path) == {}
    table = infos(tmp_path / "infos.pkl")
    options = pickle.loads(tmp_path.joinpath("infos.pkl").read_bytes())
    options["opt"].legacy_extra_skip = True
    tmp_path.joinpath("infos.pkl").write_bytes(pickle.dumps(options, 2))
    convert("ort", str(tmp_path / "model.pth"), table, str(tmp_path / "run"), LENGTH)
    run = runs.load(str(tmp_path / "run"))
    assert run.params.task.model.ort.extra_skip and run.model.encoder[0].extra_skip


def test_a_model_without_sines_of_boxes_does_not_fit(tmp_path):
    """The option `box_trignometric_embedding` of the code, which no released model lacks."""
    arrays = parity.read("ort")
    narrow = {k: v[:, :4] for k, v in weights_of(arrays).items() if ".WGs." in k and v.ndim == 2}
    torch_writer.write(tmp_path / "model.pth", weights_of(arrays, **narrow))
    source = ("ort", str(tmp_path / "model.pth"), infos(tmp_path / "infos.pkl"))
    with pytest.raises(ValueError, match=r"self_attn.WGs.weight is \[4, 8\] and should be \[64, 8"):
        convert(*source, str(tmp_path / "run"), LENGTH)


def test_a_meshed_memory_transformer(tmp_path, vocabulary):
    arrays = parity.read("m2")
    content = {"state_dict": weights_of(arrays), "epoch": 3, "use_rl": True, "patience": 0}
    content |= {"optimizer": {"state": {0: {"exp_avg": np.ones(7, "f4")}}}}
    torch_writer.write(tmp_path / "meshed_memory_transformer.pth", content)
    source = ("m2", str(tmp_path / "meshed_memory_transformer.pth"), vocabulary)
    override = "task.decoding.beam=3,task.model.m2.heads=2,task.model.m2.filled_regions=5"
    line = convert(*source, str(tmp_path / "run"), LENGTH, override)
    assert "filled_regions 5, heads 2; position codes of the file, which are not" in line
    run = runs.load(str(tmp_path / "run"))
    options = run.params.task.model.m2
    assert (options.slots, options.inner_width, options.decoder_layers) == (4, 24, 2)
    assert options.head_bias and options.stored_positions
    names = ["<unk>", "[pad]", "[bos]", "", *NAMES[4:]]
    assert captions_of(run, arrays) == released(arrays["out/beam3"], 3, names)
    table = run.model.checkpoint_items["weights"]["position_codes/table"]
    np.testing.assert_array_equal(table, arrays["w/decoder.pos_emb.weight"][1 : LENGTH + 1])

    with pytest.raises(ValueError, match="pos_emb.weight has codes for 8 words. Set `max_length`"):
        convert(*source, str(tmp_path / "long"), 9)
    content["state_dict"]["decoder.pos_emb.weight"] = np.ones((55, 16), "f4")  # as released
    torch_writer.write(tmp_path / "meshed_memory_transformer.pth", content)
    line = convert(*source, str(tmp_path / "released"), None, "task.model.m2.heads=2")
    assert "at most 20 words, beam 5;" in line
    run = runs.load(str(tmp_path / "released"))
    assert run.params.task.model.m2.filled_regions == run.max_regions == 50
    decoding = run.params.task.decoding
    assert decoding.finished == "hold" and not decoding.suppress_unk


def test_a_vocabulary_without_marks_is_refused(tmp_path):
    path = tmp_path / "vocab.json"
    path.write_text('["<unk>", "<pad>", "a"]')
    with pytest.raises(ValueError, match="lacks <bos>, <eos>, words that this family needs"):
        words.read_words("m2", path)
