"""Which package may import which: models know nothing of data, and nothing imports a command."""

import ast
import pathlib
import subprocess
import sys

import pytest

TFCAP = pathlib.Path(__file__).parents[1] / "tfcap"
# Every package may also import the modules beside the packages that are not commands.
ALLOWED = {
    "layers": "",
    "models": "layers",
    "objectives": "layers",
    "decoding": "layers models objectives",
    "metrics": "",
    "data": "",
    "configs": "decoding metrics models",
    "preparing": "data layers released",
    "runs": "configs data decoding layers metrics models objectives preparing",
    "released": "configs data layers models preparing runs",
    "scoring": "data decoding layers metrics models objectives runs",
    # The page of the demo captions; what is captioned may be drawn.
    "visualize": "captioning data decoding layers metrics models",
    "training": "configs data decoding layers metrics models objectives preparing runs visualize",
    "measure": "configs data decoding metrics objectives preparing runs scoring training",
    "captioning": "data decoding runs scoring visualize",
    "serving": "decoding metrics runs",
}
WITHOUT_TENSORFLOW = (
    "metrics",
    "visualize/fonts",
    "visualize/figures",
    "visualize/report",
    "visualize/demo",
)
COMMANDS = {p.stem for p in TFCAP.glob("*.py") if '__name__ == "__main__"' in p.read_text("utf-8")}


def imported(path):
    """The dotted names that a file may import: `from a import b` may import a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_the_table_allows(package):
    refused = COMMANDS | ALLOWED.keys() - {package, *ALLOWED[package].split()}
    for path in (TFCAP / package).rglob("*.py"):
        for name in imported(path):
            first, second, *_ = f"{name}.".split(".")
            assert first != "tfcap" or second not in refused, f"{path} imports {name}"
            if path.relative_to(TFCAP).as_posix().startswith(WITHOUT_TENSORFLOW):
                assert first not in ("tensorflow", "keras"), f"{path} imports {name}"


def test_only_training_imports_the_trainers_of_tf_model_garden():
    """They take seconds; a configuration needs `hyperparams` alone."""
    for path in TFCAP.rglob("*.py"):
        for name in imported(path):
            if name.startswith("official.") and not name.startswith("official.modeling."):
                assert path.parent.name == "training", f"{path} imports {name}"


def test_every_package_has_a_row():
    """But for `pretrained`, which has run directories and no code that imports."""
    assert {path.parent.name for path in TFCAP.glob("*/__init__.py")} <= {*ALLOWED, "pretrained"}


def test_the_package_imports_neither_tensorflow_nor_absl():
    program = "import tfcap, sys; sys.exit(bool({'absl', 'tensorflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=TFCAP.parent).returncode == 0
