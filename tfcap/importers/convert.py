"""Converts a released PyTorch checkpoint to a run directory."""

import collections
import json
import os
import re
import tempfile
from typing import Any

import numpy as np

from tfcap import configs, runs, torch_file
from tfcap.backbones import detector, saved, swin
from tfcap.backbones.backbone import Backbone
from tfcap.data import tokens
from tfcap.data.tokens import SPECIALS, Vocab
from tfcap.files import file_sha256
from tfcap.importers import systems, weights

# How the released code decodes: the largest number of words, and the options of the search.
# X-LAN's authors computed the numbers of the paper with an older search, which is a comment in
# their code; the options `finished: retire, suppress_unk: true` give that search.
# The test scripts of both ExpansionNets decode up to 73 words, their training 20.
_DECODING: dict[str, tuple[int, dict[str, Any]]] = {
    "xlan": (17, {"beam": 3}),
    "xtransformer": (17, {"beam": 2}),
    "updown": (17, {"beam": 3}),
    "expansionnet": (20, {"beam": 5, "length_power": 1.0}),
    "expansionnet_v2": (20, {"beam": 5, "length_power": 1.0}),
    "xmodaler": (20, {"beam": 3}),
    "self_critical": (20, {"beam": 5, "finished": "retire", "suppress_unk": True}),
    "aoanet": (20, {"beam": 2, "finished": "retire", "suppress_unk": True}),
    "xmodaler transformer": (20, {"beam": 2}),
}
CARD = "MODEL_CARD.md"
# Source, licence and training data that the card of a converted run names.
_SOURCES = {
    "expansionnet_v2": (
        "jchenghu/ExpansionNet_v2 (Hu et al., arXiv 2208.06551)",
        "MIT, as its repository says; the Swin inside is MIT, of microsoft/Swin-Transformer",
        "COCO captions, Karpathy's train and restval; the Swin first on ImageNet-22k",
    )
}
_V2_VECTORS = 992  # a first ExpansionNet has 64
# [GUESS] No schedule is published for training these weights further with cross-entropy.
_FURTHER = {"name": "constant", "learning_rate": 1.0e-5}


def convert(
    family: str,
    path: str,
    vocab_file: str,
    model_dir: str,
    max_length: int | None = None,
    override: str = "",
    regions: str | None = None,
) -> str:
    """Writes a run directory with the weights of a released checkpoint.

    Args:
      family: one of `importers.FAMILIES`.
      path: a file of `torch.save`.
      vocab_file: the released words, see `read_words`.
      model_dir: the directory to write; it must be empty or not exist.
      max_length: T, the longest caption in words; None takes the value of the released code.
      override: changes of the configuration, see `configs.resolve`. Use it where tensor shapes do
        not show an option (activations, heads of a Transformer) and its default is wrong.
      regions: directory of the detector whose regions the model reads. The run gets a copy, and
        then reads photographs; None reads features.

    Returns:
      One line that describes the model.
    """
    path, vocab_file, model_dir = map(os.path.expanduser, (path, vocab_file, model_dir))
    vocab, ids = read_words(family, vocab_file)
    state = torch_file.load(path)
    try:
        checkpoint = systems.recognize(family, state)
        if ids.max() + 1 != checkpoint.rows:
            raise ValueError(
                f"{vocab_file} has words for {ids.max() + 1} ids, and the checkpoint has "
                f"{checkpoint.rows}."
            )
        params = _resolve(family, checkpoint, max_length, override)
        _check_groups(params.task.model.get().as_dict(), checkpoint)
        model = runs.build_model(params.task, len(vocab), checkpoint.feature_dim)
        weights.assign(model, checkpoint.tensors, ids, checkpoint.names)
        network = swin.name_of(checkpoint.backbone) if checkpoint.backbone else ""
        if network and regions:
            raise ValueError("it has a backbone of its own. Leave out --regions.")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    fingerprint = {
        "name": os.path.basename(path),
        "tokenizer": tokens.TOKENIZER,
        "vocab_size": len(vocab),
        "vocab_sha256": vocab.sha256,
        "features": {"dim": checkpoint.feature_dim},
        "backbone": None,
        "converted": {"from": family, "sha256": file_sha256(path)},
    }
    line = (
        f"{checkpoint.system}, {runs.count_parameters(model):,} parameters, {len(vocab)} words, "
        f"features {checkpoint.feature_dim} wide, at most {params.task.max_length} words, beam "
        f"{params.task.decoding.beam}; {_assumed(checkpoint, params)}"
    )
    with tempfile.TemporaryDirectory() as folder:
        extra: list[str] = []
        backbone: Any = None
        if network:
            del state, checkpoint  # the file is large, and the backbone reads it again
            backbone = Backbone(network, weights=path)
            backbone.rounds = False  # as released
            line = f"{network} and {line}"
        elif regions:
            backbone = detector.load(os.path.expanduser(regions))
            if backbone.feature_dim != checkpoint.feature_dim:
                raise ValueError(
                    f"{path} reads features {checkpoint.feature_dim} wide, and those of {regions} "
                    f"are {backbone.feature_dim} wide. Give the detector that made its features."
                )
        if backbone is not None:
            name, digest = saved.save(backbone.network, folder, None)
            fingerprint["backbone"] = backbone.made_by(name, digest)
            extra.append(os.path.join(folder, name))
        if family in _SOURCES:
            extra.append(os.path.join(folder, CARD))
            with open(extra[-1], "w", encoding="utf-8") as file:
                file.write(_card(family, fingerprint, params, vocab_file, network))
        runs.create(model_dir, params.task.model.type, params, vocab, fingerprint, model, extra)
    return line


def _card(family, fingerprint, params, vocab_file, network):
    """Returns a text in Markdown: where the weights come from, and under which licence."""
    source, licence, trained_on = _SOURCES[family]
    return f"""# {fingerprint["name"]}

| | |
|---|---|
| source | {source} |
| licence of the weights | {licence} |
| trained on | {trained_on} |
| file | {fingerprint["name"]}, SHA-256 {fingerprint["converted"]["sha256"]} |
| words | {os.path.basename(vocab_file)}, SHA-256 {file_sha256(vocab_file)} |
| features | {network or "ready-made"} |
| decoding | beam {params.task.decoding.beam}, at most {params.task.max_length} words |

`tfcap.convert --from {family}` wrote this directory.
"""


def _check_groups(options, checkpoint):
    """Raises ValueError unless the groups, which no shape shows, have the vectors of the file."""
    table = checkpoint.tensors.get("encoder/0/expansion/query_exp_vectors")
    groups = options.get("encoder_groups")
    if groups is None and table is not None and len(table) == _V2_VECTORS:
        raise ValueError("it is an ExpansionNet v2. Use --from=expansionnet_v2.")
    if groups is None or table is None or sum(map(int, groups.split())) == len(table):
        return
    raise ValueError(
        f"it has {len(table)} static vectors, which are not the groups {groups}. Give its groups "
        "with --params_override='task.model.expansionnet_v2.encoder_groups=...', or use "
        "--from=expansionnet if it is a first ExpansionNet."
    )


def _resolve(family, checkpoint, max_length, override):
    """Returns the configuration; keeps the position codes of the file if they are not sinusoids."""
    changes = _changes(family, checkpoint, max_length)
    params = configs.resolve(checkpoint.system, (), override, changes)
    if not checkpoint.has_sinusoids(params.task.max_length):
        checkpoint.store_positions(params.task.max_length)
        changes = _changes(family, checkpoint, max_length)
        params = configs.resolve(checkpoint.system, (), override, changes)
    return params


def _changes(family, checkpoint, max_length):
    """Returns how the configuration differs from the experiment of the same name."""
    system = checkpoint.system
    length, decoding = _DECODING.get(f"{family} {system}") or _DECODING[family]
    options = getattr(configs.Model(type=system), system).as_dict() | checkpoint.options
    return {
        "task": {
            "model": {"type": system, system: options},
            "max_length": max_length or length,
            "decoding": {"finished": "hold", "suppress_unk": False, **decoding},
            "train_data": {"global_batch_size": 10, "captions_per_image": 5},
        },
        "trainer": {"optimizer_config": {"schedule": _FURTHER}},
    }


def _assumed(checkpoint, params):
    """Returns a text with the options that tensor shapes do not show, for the user to check."""
    keys = ("activation", "embed_activation")
    options = params.task.model.get().as_dict()
    assumed = [f"{key} {options[key]}" for key in keys if key in options]
    if "encoder_groups" in options:
        assumed.append(f"encoder_groups {options['encoder_groups']}")
    if "heads" in options and "heads" not in checkpoint.options:
        assumed.append(f"heads {options['heads']}")
    why = "assumed, because tensor shapes do not show it (see --params_override)"
    text = f"{why}: {', '.join(assumed)}" if assumed else "tensor shapes show all of its options"
    if checkpoint.options.get("stored_positions"):
        text += "; position codes of the file, which are not sinusoids"
    return text


# X-LAN's authors, in both of their toolkits, use the id 0 for beginning, end and padding; line i of
# their file, counted from 1, has the id i. ExpansionNet has its marks PAD, SOS, EOS and UNK among
# the sorted words. Its search may emit PAD and SOS as words; ours never emits <pad> and <bos>. So
# PAD and SOS stay in our vocabulary as words, and all words keep their released probabilities.

_UNKNOWN = ("UNK", "<unk>", "<UNK>", "[UNK]")
# Where toolkits keep their table; cocotalk.json of ruotianluo's has the first.
_TABLES = ("ix_to_word", "word_to_ix", "itow", "wtoi", "idx2word", "word2idx")
_EXPANSIONNETS = ("expansionnet", "expansionnet_v2")
_MARKS = ("PAD", "SOS", "EOS", "UNK")  # of ExpansionNet, in our order


def read_words(family: str, path: str | os.PathLike) -> tuple[Vocab, np.ndarray]:
    """Reads the words of a released model in our order: <pad> <bos> <eos> <unk>, then the others.

    Args:
      family: one of `importers.FAMILIES`. The file of `expansionnet` has a word for every id, the
        files of the others begin with id 1.
      path: a file with the words in the order of their ids, one per line or as a JSON list, which
        can also hold the newline, the first word of ExpansionNet; a JSON file with an object
        from ids to words or from words to ids, alone or under one of `_TABLES`; or the pickle of
        ExpansionNet v2.

    Returns:
      Our vocabulary, and the released id of each of our V words, int64 [V].
    """
    first = 0 if family in _EXPANSIONNETS else 1
    words = _words(path, first)
    doubled = [word for word, count in collections.Counter(words).items() if count > 1]
    if doubled:
        raise ValueError(f"{path} has the word {doubled[0]!r} twice.")
    if family in _EXPANSIONNETS:
        if lost := [mark for mark in _MARKS if mark not in words]:
            raise ValueError(f"{path} lacks {', '.join(lost)}, the marks of ExpansionNet.")
        marks = [words.index(mark) for mark in _MARKS]
        apart = marks[2:]
    else:
        unknown = [number for number, word in enumerate(words, 1) if word in _UNKNOWN]
        if len(unknown) != 1:
            raise ValueError(
                f"{path} needs one word for unknown words, {' or '.join(_UNKNOWN)}, and has "
                f"{len(unknown)}."
            )
        marks = [0, 0, 0, unknown[0]]
        apart = marks
    rest = [number for number in range(first, first + len(words)) if number not in apart]
    known = [_printable(words[number - first]) for number in rest]
    return Vocab([*SPECIALS, *known], source=str(path)), np.array([*marks, *rest])


def _words(path, first):
    """Reads the words of a table in the order of their ids, which begin with `first`."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if is_pickle := first == 0 and data.startswith(b"\x80"):
            table = torch_file.load_plain(data)
            content = table.get("idx2word_list") if isinstance(table, dict) else None
        else:
            text = data.decode("utf-8-sig")
            content = json.loads(text)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8. Give the words as text or JSON.") from error
    except (ValueError, RecursionError) as error:
        if is_pickle:
            raise ValueError(f"{path}: {error}") from error
        if re.match(r'\s*(\{|\[\s*")', text):
            raise ValueError(f"{path} is damaged JSON: {error}") from error
        # splitlines() also splits at U+2028
        content = [line.strip() for line in text.removesuffix("\n").split("\n")]
    words = _by_id(content, first) if isinstance(content, dict) else content
    if not isinstance(words, list) or len(words) < 2 or set(map(type, words)) != {str}:
        raise ValueError(
            f"{path} must hold one word per line, a JSON list of words, or a JSON object with a "
            f"word for each id from {first} on, such as ix_to_word of cocotalk.json"
        )
    return words


def _by_id(content, first):
    """Returns the words of an object from id to word or from word to id; None if it is neither."""
    for name in _TABLES:
        content = content.get(name) if isinstance(content.get(name), dict) else content
    try:
        by_id = {int(key): value for key, value in content.items()}
    except (TypeError, ValueError):
        by_id = {value: key for key, value in content.items() if type(value) is int}
    return [by_id.get(number) for number in range(first, first + len(content))]


def _printable(word: str) -> str:
    """Returns a word for vocab.txt and for captions, with escapes for white space."""
    if word in SPECIALS or not word:
        return f"[{word.strip('<>') or 'empty'}]"
    escapes = {ord(c): "\\x20" if c == " " else ascii(c)[1:-1] for c in word if c.isspace()}
    return word.translate(escapes)
