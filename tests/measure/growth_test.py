"""How costs grow: what is skipped, and axes and systems that do not exist."""

import pytest
from matplotlib import figure

from tfcap import cli, configs
from tfcap.health import machine
from tfcap.measure import growth, workloads

SIZES = workloads.Sizes(2, 3, 4, 40, captions=2, beam=2, sentences=4, corpus=30)


def test_a_call_that_would_take_too_long_is_skipped():
    options = growth.Options(paper_size=False, repeats=1, limit=1e-9, points=(2,))
    params = configs.resolve("mrnn")
    points = list(growth.measure(params, ["mrnn"], ["beam"], SIZES, options))
    assert [point.get("skipped", "")[:5] for point in points] == ["about"]
    assert "seconds" not in points[0]
    assert "not run: about" in growth.table(points)


def test_a_step_that_needs_more_memory_than_the_container_has_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**30 - 2**20}\n")
    (tmp_path / "memory.stat").write_text("anon 0\ninactive_file 0\n")
    options = growth.Options(paper_size=False, repeats=1, limit=60.0, points=(2,))
    if machine.available_memory() is None:
        pytest.skip("the system does not say how much memory is free")
    point = next(growth.measure(configs.resolve("mrnn"), ["mrnn"], ["length"], SIZES, options))
    assert point["what"] == "xe" and point["skipped"].endswith("GiB of memory")


@pytest.mark.parametrize(
    ("systems", "axes", "message"),
    [
        (["mrnn"], ["height"], "--grow must be among regions.*Received: 'height'"),
        (["lstm"], ["beam"], "--systems must be among .*Received: 'lstm'"),
    ],
)
def test_an_unknown_axis_or_system_is_an_error(systems, axes, message):
    options = growth.Options(paper_size=False, repeats=1, limit=1.0, points=())
    with pytest.raises(cli.UsageError, match=message):
        next(growth.measure(configs.resolve("mrnn"), systems, axes, SIZES, options))


def test_an_interrupted_run_keeps_its_points(tmp_path):
    first = {"system": "mrnn", "axis": "beam", "value": 2, "what": "beam", "gflop": 1.5,
             "seconds": {"median": 0.25}}  # fmt: skip

    def measured():
        yield first
        # The table is there before the next point is measured, as if the process were killed now.
        assert (tmp_path / "out" / "growth.md").read_text() == growth.table([first]) + "\n"
        raise KeyboardInterrupt

    points = growth.kept(measured(), str(tmp_path / "out"))
    assert next(points) == first
    with pytest.raises(KeyboardInterrupt):
        next(points)
    assert "| 2 | 0.25 (1.5) |" in (tmp_path / "out" / "growth.md").read_text()
    assert (tmp_path / "out" / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_no_empty_panel_and_tells_why_a_line_stops(tmp_path, monkeypatch):
    drawn = []
    real = figure.Figure.savefig
    monkeypatch.setattr(
        figure.Figure, "savefig", lambda self, *a, **k: drawn.append(self) or real(self, *a, **k)
    )
    kinds = [("regions", "xe"), ("regions", "beam"), ("beam", "beam"), ("images", "xe")]
    points = [
        {"system": system, "axis": axis, "value": value, "what": what, "gflop": 1.0,
         "seconds": {"median": value / 10}}
        for system in ("mrnn", "xlan") for axis, what in kinds for value in (1, 2)
    ]  # fmt: skip
    del points[-1]["seconds"]
    points[-1]["skipped"] = "about 9 s"
    list(growth.kept(points, str(tmp_path)))
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    panels = drawn[0].axes
    shown = [panel for panel in panels if panel.axison]
    assert [panel.get_title() for panel in shown] == ["training step"] * 2 + ["beam search"] * 2
    assert panels[: len(shown)] == shown  # the free places come last
    assert [panel.get_legend() is None for panel in panels] == [True] * 4 + [False, True]
    assert all(len(panel.lines[:2]) == 2 for panel in shown)
    label = shown[1].get_xlabel()
    assert label == "images of a batch\nxlan at 2 not run:\nabout 9 s"
    list(growth.kept([p for p in points if p["axis"] != "images"], str(tmp_path)))
    assert drawn[1].legends and all(panel.get_legend() is None for panel in drawn[1].axes)
