"""Who may import whom: every module's syntax tree against the table of the architecture."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = (
    "tfcap.prepare",
    "tfcap.train",
    "tfcap.average",
    "tfcap.evaluate",
    "tfcap.caption",
    "tfcap.convert",
    "tfcap.compare",
    "tfcap.retrieve",
    "tfcap.submit",
    "tfcap.benchmark",
    "tfcap.export",
    "tfcap.doctor",
    "tfcap.demo",
)
# What each module may import of this project, by prefix of its name; the longest prefix counts.
# `official` is of the outside and restricted as well.
BOTTOM = tuple(  # for every module
    f"tfcap.{name}"
    for name in "arrays checks console devices exhausted files ids locks picture_files pretrained "
    "shading storage unfinished usage".split()
)
ALLOWED = {
    "tfcap.__init__": ("tfcap.captioning", "tfcap.evaluate", "tfcap.prepare", "tfcap.train"),
    "tfcap.door": (),
    "tfcap.startup": (),
    "tfcap.ids": (),
    "tfcap.checks": (),
    "tfcap.shading": (),
    "tfcap.arrays": ("tfcap.files", "tfcap.storage"),
    "tfcap.files": ("tfcap.storage",),
    "tfcap.locks": ("tfcap.storage",),
    "tfcap.storage": (),
    "tfcap.unfinished": (),
    "tfcap.devices": (),
    "tfcap.exhausted": (),
    "tfcap.console": ("tfcap.checks", "tfcap.exhausted", "tfcap.usage"),
    "tfcap.usage": (),
    "tfcap.picture_files": (),
    "tfcap.pretrained": (),
    "tfcap.recipes": (),
    "tfcap.published": ("tfcap.configs.yaml_text", "tfcap.recipes"),
    "tfcap.__main__": ("tfcap",),
    # The keys `task.decoding` are derived from the options of the searches.
    "tfcap.configs": (
        "official",
        "tfcap.configs",
        "tfcap.decoding.options",
        "tfcap.metrics.registry",
        "tfcap.models.registry",
        "tfcap.recipes",
    ),
    "tfcap.data": ("tfcap.data",),
    "tfcap.preparing": ("tfcap.data", "tfcap.preparing"),
    # The reader of PyTorch files stands below everything.
    "tfcap.preparing.features.backbones": (
        "tfcap.preparing.features",
        "tfcap.released.torch_file",
    ),
    "tfcap.released.torch_file": (),
    "tfcap.layers": ("tfcap.layers",),
    "tfcap.models": ("tfcap.layers", "tfcap.models"),
    "tfcap.objectives": ("tfcap.models.rows", "tfcap.objectives"),
    "tfcap.decoding": (
        "tfcap.decoding",
        "tfcap.layers.loops",
        "tfcap.models.captioner",
        "tfcap.models.rows",
    ),
    "tfcap.decoding.options": (),
    "tfcap.decoding.consensus": ("tfcap.objectives.ngrams",),
    "tfcap.metrics": ("tfcap.metrics",),
    "tfcap.report": ("tfcap.metrics", "tfcap.report"),
    "tfcap.visualize": (
        "tfcap.data",
        "tfcap.layers",
        "tfcap.models.captioner",
        "tfcap.models.variables",
        "tfcap.visualize",
    ),
    "tfcap.visualize.recall": ("tfcap.metrics.retrieval", "tfcap.visualize.maps"),
    "tfcap.runs": (
        "tfcap.__version__",
        "tfcap.configs",
        "tfcap.data",
        "tfcap.decoding",
        "tfcap.layers.precision",
        "tfcap.metrics.endings",
        "tfcap.models",
        "tfcap.objectives",
        "tfcap.preparing.features",
        "tfcap.runs",
    ),
    "tfcap.released": (
        "tfcap.configs",
        "tfcap.data.tokens",
        "tfcap.layers",
        "tfcap.models",
        "tfcap.released",
        "tfcap.runs",
    ),
    "tfcap.nearest": ("tfcap.data", "tfcap.layers.common", "tfcap.nearest"),
    "tfcap.reranking": ("tfcap.data", "tfcap.nearest", "tfcap.objectives", "tfcap.reranking"),
    "tfcap.reranking.hypotheses": ("tfcap.data.prepared", "tfcap.metrics", "tfcap.reranking"),
    "tfcap.reranking.options": ("tfcap.data", "tfcap.flags", "tfcap.reranking", "tfcap.runs"),
    "tfcap.scoring": (
        "tfcap.data",
        "tfcap.decoding",
        "tfcap.layers.loops",
        "tfcap.metrics",
        "tfcap.models",
        "tfcap.nearest",
        "tfcap.runs",
        "tfcap.scoring",
    ),
    "tfcap.training": (
        "official",
        "tfcap.__version__",
        "tfcap.configs",
        "tfcap.data",
        "tfcap.decoding",
        "tfcap.layers.precision",
        "tfcap.measure",
        "tfcap.metrics",
        "tfcap.models",
        "tfcap.objectives",
        "tfcap.preparing",
        "tfcap.runs",
        "tfcap.training",
        "tfcap.visualize",
    ),
    "tfcap.measure": (
        "tfcap.configs",
        "tfcap.data",
        "tfcap.decoding",
        "tfcap.measure",
        "tfcap.metrics",
        "tfcap.nearest",
        "tfcap.objectives",
        "tfcap.preparing.features.backbone",
        "tfcap.runs",
        "tfcap.scoring",
        "tfcap.training",
    ),
    "tfcap.captioning": (
        "tfcap.captioning",
        "tfcap.data.clips",
        "tfcap.data.pictures",
        "tfcap.data.prepared",
        "tfcap.decoding",
        "tfcap.nearest",
        "tfcap.reranking",
        "tfcap.runs",
        "tfcap.scoring",
        "tfcap.visualize",
    ),
    "tfcap.webpage": (
        "tfcap.captioning",
        "tfcap.decoding.options",
        "tfcap.report.pictures",
        "tfcap.webpage",
    ),
    "tfcap.serving": (
        "tfcap.__version__",
        "tfcap.metrics",
        "tfcap.runs",
        "tfcap.serving",
    ),
    "tfcap.health": (
        "tfcap.configs",
        "tfcap.data",
        "tfcap.health",
        "tfcap.measure.timing",
        "tfcap.metrics.java",
        "tfcap.metrics.javascript",
        "tfcap.metrics.spice",
        "tfcap.preparing.features.backbone",
        "tfcap.preparing.finish",
        "tfcap.preparing.vocabulary",
        "tfcap.runs",
    ),
    # Files that a bundle copies: they run where tfcap is not installed.
    "tfcap.serving.client": (),
    "tfcap.retrieving": (
        "tfcap.captioning",
        "tfcap.data",
        "tfcap.flags",
        "tfcap.metrics.retrieval",
        "tfcap.nearest",
        "tfcap.retrieving",
        "tfcap.runs",
        "tfcap.scoring",
        "tfcap.visualize",
    ),
    "tfcap.evaluating": (
        "tfcap.evaluating",
        "tfcap.flags",
        "tfcap.metrics",
        "tfcap.reranking.options",
    ),
    "tfcap.flags": ("tfcap",),
    **{command: ("tfcap",) for command in COMMANDS},
    "tfcap.prepare": ("tfcap.door", "tfcap.preparing"),
    "tfcap.compare": ("tfcap.flags", "tfcap.metrics", "tfcap.pretrained", "tfcap.scoring"),
    "tfcap.doctor": ("tfcap.health", "tfcap.metrics.spice_jars"),
    "export": ("tfcap.export",),
}
# Names of the outside that a module must not import, by prefix.
FORBIDDEN = {
    "tfcap.metrics": ("tensorflow", "tensorflow_text", "keras", "tf_keras", "orbit"),
    "tfcap.layers": ("tensorflow.data", "tensorflow_text", "orbit"),
    "tfcap.models": ("tensorflow.data", "tensorflow_text", "orbit"),
    "tfcap.decoding": ("keras", "orbit"),
    "tfcap.objectives.losses": ("keras", "orbit"),
    "tfcap.objectives.ngrams": ("keras", "orbit"),
    "tfcap.objectives.rewards": ("keras", "orbit"),
    "tfcap.runs.server": ("keras", "orbit", "tensorflow_text"),
    "tfcap.captioning.exported": ("keras", "orbit", "tfcap.runs", "tfcap.models"),
    "tfcap.serving.client": ("tfcap", "tensorflow", "numpy", "requests"),
    "tfcap.data": ("keras", "orbit"),
    "tfcap.preparing.features": ("orbit",),
    "tfcap.console": ("tensorflow", "keras"),
    "tfcap.picture_files": ("tensorflow", "keras"),
    "tfcap.devices": ("tensorflow", "keras"),
    "tfcap.exhausted": ("tensorflow", "keras"),
    "tfcap.usage": ("tensorflow", "keras"),
    "tfcap.recipes": ("tensorflow", "keras"),
    "tfcap.__main__": ("tensorflow", "keras"),
    "tfcap.compare": ("tensorflow", "keras", "orbit"),
    "tfcap.report": ("tensorflow", "keras", "orbit"),
    "tfcap.webpage": ("tensorflow", "keras", "orbit"),
}
RESTRICTED = ("official", "tfcap", "export")
ALIASES = {"tf": "tensorflow", "tf_text": "tensorflow_text"}


def _modules():
    """Name and source of every module of the package and of export."""
    for path in sorted([*ROOT.glob("tfcap/**/*.py"), *ROOT.glob("export/**/*.py")]):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name, path.read_text(encoding="utf-8")


def _covers(prefix, name):
    return name == prefix or name.startswith(prefix + ".")


def _rule(table, module):
    """The row of a module; None without one."""
    prefixes = [prefix for prefix in table if _covers(prefix, module)]
    return table[max(prefixes, key=len)] if prefixes else None


def _targets(node):
    """Dotted names that an import statement may load: `from a import b` may load a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def faults(module: str, source: str) -> list[str]:
    """What the table or the bans forbid in the source of a module."""
    if _rule(ALLOWED, module) is None:
        return [f"{module} has no row in ALLOWED: add one"]
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append(f"{module}:{node.lineno} imports relatively")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found += _import_faults(module, node)
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            first, _, rest = dotted.partition(".")
            dotted = f"{ALIASES.get(first, first)}.{rest}"
            if dotted in (_rule(FORBIDDEN, module) or ()):
                found.append(f"{module}:{node.lineno} uses {dotted}")
        elif isinstance(node, ast.Call):
            found += _call_faults(module, node)
    return found


def _import_faults(module, node):
    for name in _targets(node):
        # The reader of PyTorch files derives its unpickler, which imports nothing, from Python's.
        if (module, name) != ("tfcap.released.torch_file", "pickle") and name.split(".")[0] in (
            *("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"),
        ):
            yield f"{module}:{node.lineno} imports {name}: it can run what it reads"
        if any(_covers(prefix, name) for prefix in _rule(FORBIDDEN, module) or ()):
            yield f"{module}:{node.lineno} must not import {name}"
        if name.split(".")[0] not in RESTRICTED:
            continue
        # The rows of these two say to what they forward.
        forwards = module.startswith("export") or module == "tfcap.__init__"
        of_other = not forwards and any(
            _covers(c, name) and not _covers(c, module) for c in COMMANDS
        )
        allowed = (*_rule(ALLOWED, module), *(() if module in BOTTOM else BOTTOM))
        if of_other or not any(_covers(prefix, name) for prefix in allowed):
            yield f"{module}:{node.lineno} must not import {name}"


def _call_faults(module, node):
    if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "__import__"):
        yield f"{module}:{node.lineno} calls {node.func.id}"
    called = ast.unparse(node.func)
    if called.startswith("pickle."):
        yield f"{module}:{node.lineno} calls {called}: it can run what it reads"
    if called in ("importlib.import_module", "import_module"):
        yield f"{module}:{node.lineno} imports by a computed name"
    if called in ("yaml.load", "yaml.safe_load", "yaml.unsafe_load", "yaml.full_load"):
        yield f"{module}:{node.lineno} calls {called}: use tfcap.configs.yaml_text"
    for keyword in node.keywords:
        refused = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg == "allow_pickle" and not refused:
            yield f"{module}:{node.lineno} allows pickle"


@pytest.mark.parametrize(("module", "source"), _modules(), ids=[name for name, _ in _modules()])
def test_module_keeps_to_the_table(module, source):
    assert not faults(module, source)


def test_the_table_is_about_modules_that_exist():
    names = [name for name, _ in _modules()]
    assert len(names) > 30
    rules = {*ALLOWED, *FORBIDDEN}
    assert not [rule for rule in rules if not any(_covers(rule, name) for name in names)]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("tfcap.layers.xlinear", "from tfcap.models import captioner"),
        ("tfcap.layers.xlinear", "from tfcap import configs"),
        ("tfcap.layers.xlinear", "dataset = tf.data.Dataset.range(3)"),
        ("tfcap.models.xtransformer", "from tfcap.data import tokens"),
        ("tfcap.models.xtransformer", "import tfcap.training.optim"),
        ("tfcap.models.xtransformer", "from tfcap.configs import XTransformer"),
        ("tfcap.decoding", "from tfcap.models.xtransformer import XTransformer"),
        ("tfcap.decoding", "from tfcap import models"),
        ("tfcap.objectives.losses", "from tfcap.training import optim"),
        ("tfcap.objectives.rewards", "from tfcap.data import tokens"),
        ("tfcap.objectives.rewards", "import keras"),
        ("tfcap.metrics.coco", "import tensorflow as tf"),
        ("tfcap.metrics.coco", "def late():\n    from keras import ops"),
        ("tfcap.data.tokens", "from tfcap.models import captioner"),
        ("tfcap.data.tokens", "import keras"),
        ("tfcap.data.prepared", "from tfcap import configs"),
        ("tfcap.runs.server", "from official.core import exp_factory"),
        ("tfcap.training.task", "from tfcap import train"),
        ("tfcap.configs", "from tfcap.data import tokens"),
        ("tfcap.console", "from tfcap import configs"),
        ("tfcap.evaluate", "from tfcap.train import train"),
        ("tfcap.evaluate", "from official.core import exp_factory"),
        ("tfcap.train", "from tfcap import evaluate"),
        ("tfcap.caption", "from export import savedmodel"),
        ("tfcap.prepare", "from tfcap import runs"),
        ("export.savedmodel", "import tfcap.caption"),
        ("tfcap.data.tokens", "from . import record"),
        ("tfcap.arrays", "numpy.load(path, allow_pickle=True)"),
        ("tfcap.arrays", "numpy.load(path, allow_pickle=trusted)"),
        ("tfcap.files", "import pickle"),
        ("tfcap.files", "from pickle import loads"),
        ("tfcap.released.torch_file", "from pickle import loads"),
        ("tfcap.released.torch_file", "pickle.loads(data)"),
        ("tfcap.released.torch_file", "pickle.Unpickler(file).load()"),
        ("tfcap.runs.run", "from tfcap.training import optim"),
        ("tfcap.runs.server", "from tfcap.training.task import CaptionTask"),
        ("tfcap.scoring.decode", "from tfcap.training import optim"),
        ("tfcap.data.pipeline", "from tfcap.preparing.shards import write_shard"),
        ("tfcap.preparing.run", "from tfcap.models import build"),
        ("tfcap.preparing.run", "from tfcap.released import torch_file"),
        ("tfcap.preparing.features.backbones.alexnet", "from tfcap.released import weights"),
        ("tfcap.released.torch_file", "from tfcap.released import weights"),
        ("tfcap.serving.client.captions_client", "from tfcap import files"),
        ("tfcap.configs", "eval('1')"),
        ("tfcap.configs", "exec('x = 1')"),
        ("tfcap.configs", "yaml.load(text)"),
        ("tfcap.configs", "yaml.safe_load(text)"),
        ("tfcap.novelty", "import os"),
    ],
)
def test_a_forbidden_line_is_caught(module, line):
    sources = dict(_modules())
    assert faults(module, sources.get(module, "") + "\n" + line + "\n")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("tfcap.train", "from tfcap.training import optim"),
        ("tfcap.evaluate", "from tfcap import runs"),
        ("tfcap.runs", "from tfcap.runs.server import CaptionServer"),
        ("tfcap.preparing.features.backbone", "import keras"),
        ("tfcap.decoding", "from tfcap.models.captioner import Captioner"),
        ("tfcap.arrays", "numpy.load(path, allow_pickle=False)"),
        ("tfcap.files", "def retrieval(x):\n    return retrieval(x)"),
    ],
)
def test_an_allowed_line_is_not(module, line):
    assert not faults(module, line + "\n")
