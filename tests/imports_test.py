"""Which package may import which: models know nothing of data, and nothing imports a command.

Imports inside functions and for type checkers count, too.
"""

import ast
import functools
import graphlib
import pathlib
import subprocess
import sys

import pytest

TFCAP = pathlib.Path(__file__).parents[1] / "tfcap"
# From the bottom up: each package, and each module beside the packages that is no command, with all
# that it imports of the others.
ALLOWED = {
    "errors": "",
    "segmentation": "errors",
    "arguments": "errors",
    "ids": "",
    "marks": "",
    "gpus": "",
    "torch_file": "",
    "progress": "",
    "files": "",
    "images": "",
    "metadata": "",
    "private_api": "",
    "layers": "private_api",
    "metrics": "segmentation arguments errors marks progress files",
    "models": "private_api ids layers",
    "objectives": "ids layers",
    "decoding": "ids layers models objectives",
    "data": "segmentation errors ids files images",
    "backbones": "private_api torch_file files layers data",
    "pretrained": "files backbones",
    "configs": "errors files metrics models decoding pretrained",
    "runs": "segmentation ids files layers models objectives decoding data backbones pretrained "
    "configs",
    "preparing": "segmentation arguments errors ids marks progress files images data backbones",
    "visualize": "segmentation errors ids progress files images layers metrics models data",
    "inference": "segmentation arguments errors ids progress files layers metrics models "
    "objectives decoding data pretrained runs visualize",
    "training": "segmentation private_api errors ids gpus progress files layers metrics models "
    "objectives decoding data configs runs preparing visualize",
    "serving": "segmentation files images layers metrics models decoding data backbones "
    "pretrained runs",
    "importers": "ids torch_file files layers models data backbones configs runs",
    "captioning": "errors files images metadata models decoding data pretrained runs preparing "
    "visualize inference serving",
    "measure": "ids models objectives decoding data backbones configs runs training",
    "cli": "arguments errors progress decoding pretrained",
}
COMMANDS = {p.stem for p in TFCAP.glob("*.py") if '__name__ == "__main__"' in p.read_text("utf-8")}
WITHOUT_TENSORFLOW = (
    "segmentation",
    "metrics",
    "decoding/__init__",
    "decoding/options",
    "metadata",
    "visualize/attended",
    "visualize/calibration",
    "visualize/fonts",
    "visualize/figures",
    "visualize/report",
    "serving/standalone",
    "captioning/demo_page",
    "captioning/portable_model",
    "captioning/server",
    "captioning/shards",
    "inference/rerank_arguments",
)


def imported(path):
    """The dotted names that a file may import: `from a import b` may import a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def name_of(path):
    parts = path.relative_to(TFCAP.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def graph():
    """The modules of tfcap, each with the modules that it imports."""
    modules = {name_of(path): path for path in TFCAP.rglob("*.py")}

    def module(name):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    return {
        name: {module(other) for other in imported(path)} - {"", "tfcap", name}
        for name, path in modules.items()
    }


def rooms():
    """What `graph` says of packages, and of the modules beside them."""
    result = {}
    for name, others in graph().items():
        room = result.setdefault(name.split(".")[1] if "." in name else name, set())
        room |= {other.split(".")[1] for other in others}
    return {name: others - {name} for name, others in result.items()}


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_what_its_row_names_and_no_more(room):
    assert rooms()[room] == set(ALLOWED[room].split())


def test_a_room_imports_only_rooms_below():
    order = list(ALLOWED)
    for room, others in ALLOWED.items():
        assert set(others.split()) <= set(order[: order.index(room)]), room


def test_every_room_has_a_row():
    assert rooms().keys() - {"tfcap", "__main__"} == ALLOWED.keys() | COMMANDS - {"__main__"}


def test_no_files_import_each_other_in_a_circle():
    assert list(graphlib.TopologicalSorter(graph()).static_order())


@pytest.mark.parametrize("place", WITHOUT_TENSORFLOW)
def test_tensorflow_is_not_imported(place):
    paths = [TFCAP / f"{place}.py", *(TFCAP / place).rglob("*.py")]
    names = [name for path in paths if path.is_file() for name in imported(path)]
    assert names
    assert not {name.split(".")[0] for name in names} & {"tensorflow", "keras"}


def test_a_command_logs_as_a_part_of_tfcap():
    """As a script, its module has the name __main__, and messages of this logger are lost."""
    for name in COMMANDS:
        assert "getLogger(__name__)" not in (TFCAP / f"{name}.py").read_text("utf-8"), name


def test_only_training_imports_the_trainers_of_tf_model_garden():
    """They take seconds; a configuration needs `hyperparams` alone."""
    for path in TFCAP.rglob("*.py"):
        for name in imported(path):
            if name.startswith("official.") and not name.startswith("official.modeling."):
                assert path.parent.name == "training", f"{path} imports {name}"


def test_the_package_imports_neither_tensorflow_nor_absl():
    program = "import tfcap, sys; sys.exit(bool({'absl', 'tensorflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=TFCAP.parent).returncode == 0
