"""The benchmark: one run of the command for all kinds of work. No times are compared."""

import contextlib
import io
import json
import math

import pytest
import tensorflow as tf
from helpers import commands, forks

from tfcap import benchmark, cli
from tfcap.measure import growth
from tfcap.preparing.run import prepare_shapes

pytestmark = pytest.mark.slow

TINY = (
    "--experiment=mrnn --images=2 --regions=3 --features=4 --vocab=40 --captions=2 --samples=3 "
    "--beam=2 --length=3 --repeats=3 --peak_size=128"
).split()
WORK = ("xe", "scst", "beam", "greedy", "retrieval", "reward", "input")


@pytest.fixture(scope="module")
def run(shapes, tmp_path_factory):
    """The parsed lines and the output of everything but quality, and the directory of growth."""
    folder = tmp_path_factory.mktemp("growth") / "out"
    grow = ("--grow=length,sentences", "--points=2", "--systems=mrnn", f"--out={folder}")
    grow += ("--sentences=4", "--corpus=30")
    what = ",".join((*WORK, "growth"))
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        commands.run_here(benchmark, f"--what={what}", *TINY, f"--data_dir={shapes}", *grow)
    out = stream.getvalue()
    parsed = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return parsed, out, folder


@pytest.fixture(scope="module")
def lines(run):
    """The line of each kind of work."""
    return {line["what"]: line for line in run[0] if "experiment" in line}


def test_one_line_for_each(lines):
    assert list(lines) == list(WORK)
    for line in lines.values():
        assert (line["images"], line["regions"], line["length"], line["vocab"]) == (2, 3, 3, 40)
        assert line["model"]["type"] == "mrnn" and line["dtype"] == "float32"
        assert line["peak_memory_gib"] > 0.1


def test_a_flag_that_is_not_used_is_refused():
    with pytest.raises(cli.UsageError, match="--data_dir is not used by --what=quality"):
        # Without the check, the unknown row ends the command before it trains.
        commands.run_here(benchmark, "--what=quality", "--data_dir=data/mine", "--rows=none")


def test_one_sample_without_others_is_refused_before_the_work():
    with pytest.raises(cli.UsageError, match="^--samples must be at least 2 .* Received: 1"):
        commands.run_here(benchmark, "--what=scst", "--samples=1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "--what=xe --images=10 --params_override=task.micro_batches=4",
            r"--images must be a multiple of task.micro_batches \(4\). Received: 10",
        ),
        ("--what=growth --params_override=task.micro_batches=2", "needs task.micro_batches=1"),
        (
            "--what=beam --params_override=task.backbone.trainable=true",
            "--what=beam measures a model of features, without its backbone",
        ),
    ],
)
def test_work_that_would_be_measured_in_part_is_refused(given, message):
    with pytest.raises(cli.UsageError, match=message):
        commands.run_here(benchmark, *given.split())


def test_pictures_are_read_where_the_backbone_is_trained(tmp_path, capsys):
    folder = prepare_shapes(tmp_path, train=4, val=0, test=0, keep_pictures=True, min_count=1)
    tiny = [f for f in TINY if not f.startswith(("--captions", "--peak_size"))]
    trainable = "--params_override=task.backbone.trainable=true"
    commands.run_here(benchmark, "--what=input", *tiny, f"--data_dir={folder}", trainable)
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["images_per_second"] > 0
    fingerprint = folder / "dataset.json"
    fingerprint.write_text(fingerprint.read_text().replace('"pictures"', '"other"'))
    with pytest.raises(ValueError, match="whose records have none"):
        commands.run_here(benchmark, "--what=input", *tiny, f"--data_dir={folder}", trainable)


@pytest.mark.parametrize("what", WORK)
def test_spread(lines, what):
    line = lines[what]
    for seconds in (
        [line["seconds"]]
        if what != "reward"
        else [line[n]["seconds"] for n in ("graph", "ready", "python")]
    ):
        order = ("min", "lower_quartile", "median", "upper_quartile", "max")
        values = [seconds[key] for key in order]
        assert values == sorted(values) and 0 < values[0] and seconds["first"] > 0
        assert seconds["repetitions"] + seconds["dropped"] == 3
        assert seconds["waiting"] is None or 0 <= seconds["waiting"] <= 1


@pytest.mark.parametrize(
    ("what", "stages"),
    [
        ("xe", ["forward", "backward", "optimizer"]),
        ("scst", ["encode", "sample", "reward", "forward", "backward", "optimizer"]),
        ("beam", ["encode", "decode"]),
        ("greedy", ["encode", "decode"]),
        ("retrieval", ["encode", "score"]),
    ],
)
def test_operations_of_the_stages(lines, what, stages):
    line = lines[what]
    assert list(line["stages"]) == stages
    counts = [stage["gflop"] for stage in line["stages"].values()]
    assert math.isclose(sum(counts), line["gflop"], abs_tol=1e-5) and line["gflop"] > 0
    assert line["uncounted"] == []
    assert line["stages"].get("optimizer", {"gflop": 0})["gflop"] == 0
    share = line["gflop_per_second"] / line["peak_gflop_per_second"]
    assert math.isclose(line["share_of_peak"], share, rel_tol=0.05, abs_tol=1e-3)


def test_threads_are_limited_in_a_new_process_only():
    tf.zeros([1]).numpy()  # starts TensorFlow here
    code = "import tensorflow as tf; from tfcap.measure import timing; timing.limit_threads(1); "
    code += "print(tf.config.threading.get_intra_op_parallelism_threads())"
    assert forks.run(["-c", code], commands.ROOT).stdout.split() == ["1"]
    with pytest.raises(cli.UsageError, match="--threads must be set before TensorFlow starts"):
        commands.run_here(benchmark, "--what=greedy", *TINY, "--threads=1")


def test_relations(lines):
    assert lines["xe"]["captions_per_second"] == pytest.approx(
        2 * lines["xe"]["images_per_second"], rel=1e-3
    )
    assert lines["scst"]["captions_per_second"] == pytest.approx(
        3 * lines["scst"]["images_per_second"], rel=1e-3
    )
    assert lines["beam"]["gflop"] > lines["greedy"]["gflop"]
    assert isinstance(lines["greedy"]["full_length"], bool)
    beam = lines["beam"]
    assert beam["threads"] == 0
    milliseconds = 1000 * beam["seconds"]["median"] / 2
    assert beam["milliseconds_per_sentence"] == pytest.approx(milliseconds, rel=1e-2)
    assert "milliseconds_per_sentence" not in lines["xe"]
    pairs = lines["retrieval"]["gflop_per_pair"] * 2 * 4
    assert pairs == pytest.approx(lines["retrieval"]["gflop"])
    seconds = lines["retrieval"]["seconds_per_pair"] * 2 * 4
    assert seconds == pytest.approx(lines["retrieval"]["seconds"]["median"])
    for what in ("xe", "scst"):
        needed = lines[what]["expected_bytes"]
        parts = ("weights", "gradients", "slots", "activations")
        assert needed["total"] == sum(needed[part] for part in parts) > 0


def test_reward_in_the_graph_and_in_python(lines):
    line = lines["reward"]
    assert line["hypotheses"] == 6 and line["ngrams"] > 1000
    assert line["largest_difference"] < 1e-5
    ratio = line["python"]["seconds"]["median"] / line["graph"]["seconds"]["median"]
    assert line["ratio"] == pytest.approx(ratio, rel=0.05)


def test_growth(run, lines):
    points = [line for line in run[0] if "axis" in line]
    assert [(p["axis"], p["value"], p["what"]) for p in points] == [
        ("length", 2, "xe"),
        ("length", 2, "beam"),
        ("sentences", 2, "retrieval"),
    ]
    each = points[2]["seconds"]["median"] / (2 * 2)  # two images
    assert points[2]["seconds_per_pair"] == pytest.approx(each, rel=1e-3)
    for point in points:  # a caption more, or two sentences more
        assert lines[point["what"]]["gflop"] > point["gflop"] > 0
    folder = run[2]
    assert sorted(path.name for path in folder.iterdir()) == ["growth.md", "growth.png"]
    table = (folder / "growth.md").read_text()
    assert table.strip() in run[1] and table == growth.table(points) + "\n"
    assert table.count("| 2 |") == 3 and table.count("µs a pair") == 1
    assert (folder / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_errors_are_one_line():
    result = commands.forked("tfcap.benchmark", "--what=beam,nothing")
    assert result.returncode == 2
    (error,) = commands.errors(result)
    assert error.startswith("error: --what must be some of xe, scst") and "beam,nothing" in error
