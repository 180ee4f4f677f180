"""mypy over the package: `py.typed` promises that its annotations are right."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def mypy(*arguments: str) -> subprocess.CompletedProcess:
    """Runs mypy with the configuration of setup.cfg."""
    command = [sys.executable, "-m", "mypy", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_the_package_has_no_type_error():
    done = mypy()
    assert done.returncode == 0 and "Success: no issues" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_wrong_use_of_the_package_is_a_type_error(tmp_path):
    path = tmp_path / "use.py"
    path.write_text("from tfcap import files, recipes\nfiles.read_json(1)\nrecipes.names() + 1\n")
    done = mypy(str(path))
    assert done.returncode == 1 and done.stdout.count(" error: ") >= 2, done.stdout + done.stderr


@pytest.mark.slow
def test_one_picture_gives_a_caption_and_several_a_list(tmp_path):
    path = tmp_path / "use.py"
    path.write_text(
        "import pathlib\nimport tfcap\nfrom PIL import Image\n"
        "captioner = tfcap.load()\n"
        "reveal_type(captioner('a.jpg'))\nreveal_type(captioner(b''))\n"
        "reveal_type(captioner(pathlib.Path('a.jpg'), seed=2))\n"
        "reveal_type(captioner(Image.new('RGB', (2, 2))))\n"
        "reveal_type(captioner(['a.jpg', b'']))\n"
        "captioner('a.jpg', sead=2)\n"
    )
    found = re.findall(r"(?:error|note): (.*)", mypy(str(path)).stdout)
    one = 'Revealed type is "tfcap.captioning.captions.Caption"'
    assert found[:4] == [one] * 4
    assert found[4] == 'Revealed type is "list[tfcap.captioning.captions.Caption]"'
    assert found[5].startswith('Unexpected keyword argument "sead"')
