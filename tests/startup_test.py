"""What makes a command start faster is undone behind its block and keeps the exit code."""

import gc
import sys

import pytest
import tensorflow as tf
from helpers import commands

from tfcap import startup


def test_a_blocked_package_cannot_be_imported_and_can_afterwards():
    sys.modules.pop("colorsys", None)
    import json

    with startup.block_imports("colorsys", "json"):
        with pytest.raises(ImportError):
            import colorsys
        import json as again
    import colorsys

    assert again is json and colorsys.rgb_to_hsv


def test_a_module_of_a_bare_package_comes_alone_and_the_package_is_whole_afterwards(
    tmp_path, monkeypatch
):
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "__init__.py").write_text("from many import other\nwhole = True\n")
    for name in ("one", "other"):
        (tmp_path / "many" / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with startup.bare_packages("many", "no_such_package", "json"):
        from many import one

        assert "many.other" not in sys.modules
    import many
    from many import one as again
    from many import other

    assert again is one and many.whole and many.other is other


def test_the_collector_is_off_inside_the_block_alone():
    with pytest.raises(KeyError):
        with startup.building():
            assert not gc.isenabled()
            raise KeyError
    assert gc.isenabled()


def test_graphs_are_optimized_again_behind_the_block():
    def off():
        return tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]

    before = off()
    try:
        for already in (False, True):
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": already})
            for wanted in (True, False):
                with startup.unoptimized(wanted):
                    assert off() is (wanted or already)
                assert off() is already
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("sys.exit('no')", 1), ("0", 0)])
def test_a_command_ends_with_its_exit_code_and_all_that_it_printed(end, code):
    done = commands.python(
        "-c",
        "import atexit, sys; from tfcap import startup; atexit.register(print, 'slow end')\n"
        f"def run():\n    print('x' * 9999)\n    {end}\nstartup.run_and_end(run)",
    )
    assert done.returncode == code and done.stdout == "x" * 9999 + "\n"
