"""What runs before the tests on a build machine: optional packages, never at the tests' cost."""

import os
import pathlib
import shutil
import stat
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "run"
README = """
<!-- debian packages -->
```bash
sudo apt-get install -y --no-install-recommends chromium chromium-driver
```
<!-- end -->
<!-- test command -->
```bash
echo tested $PWD
```
<!-- end -->
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def ci(tmp_path, readme=README, **programs):
    """Runs the script beside this README; `programs` stand before those of the machine."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci" / "run")
    (tmp_path / "README.md").write_text(readme)
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "log"
    log.touch()
    defaults = {"apt-get": "true", "dpkg-query": "exit 1", "sudo": '"${@:2}"', "id": "echo 0"}
    for name, body in {**defaults, **programs}.items():
        path = folder / name
        path.write_text(f'#!/bin/bash\necho {name} "$@" >> {log}\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        [tmp_path / ".ci" / "run"],
        env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert f"tested {tmp_path}" in done.stdout
    calls = [line for line in log.read_text().splitlines() if line.startswith(("apt-get", "sudo"))]
    return done.stdout, calls


INSTALL = "apt-get install -y --no-install-recommends chromium chromium-driver"


def test_as_root_the_packages_of_the_readme_are_installed(tmp_path):
    printed, calls = ci(tmp_path)
    assert calls == ["apt-get update", INSTALL]
    assert printed.splitlines() == ["+ echo tested $PWD", f"tested {tmp_path}"]


def test_what_is_installed_is_left_alone(tmp_path):
    printed, calls = ci(tmp_path, **{"dpkg-query": "echo installed; echo installed"})
    assert calls == [] and len(printed.splitlines()) == 2


def test_one_that_was_removed_is_installed_again(tmp_path):
    _, calls = ci(tmp_path, **{"dpkg-query": "echo installed; echo config-files"})
    assert calls == ["apt-get update", INSTALL]


def test_another_user_needs_sudo_without_a_password(tmp_path):
    _, calls = ci(tmp_path, id="echo 1000")
    assert "sudo -n apt-get update" in calls and calls[-1] == INSTALL


def test_without_rights_the_tests_run_all_the_same(tmp_path):
    printed, calls = ci(tmp_path, id="echo 1000", sudo="exit 1")
    assert calls == ["sudo -n true"]
    assert "so not installed: chromium chromium-driver" in printed


def test_without_a_network_the_tests_run_all_the_same(tmp_path):
    printed, calls = ci(tmp_path, **{"apt-get": "echo E: no such host >&2; exit 100"})
    assert calls == ["apt-get update"]
    assert "could not install chromium chromium-driver: E: no such host" in printed


def test_a_readme_without_packages_asks_for_none(tmp_path):
    _, calls = ci(tmp_path, README.split("<!-- end -->", 1)[1])
    assert calls == []
