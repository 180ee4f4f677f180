"""The measurement of the search: what is drawn, what is counted, and the line of the command."""

import contextlib
import importlib.util
import io
import json

import numpy as np
import pytest
from helpers import commands

from tfcap import benchmark, cli
from tfcap.measure.search import Options, draw, measure, recall


def test_recall_counts_the_shared_part_of_the_first_k():
    right = np.arange(120).reshape(2, 60)
    found = right.copy()
    assert recall(found, right) == {"recall@1": 1, "recall@10": 1, "recall@60": 1}
    found[0, [0, 1]] = found[0, [1, 0]]  # another order: the first is wrong, ten are the same
    found[1, 5:] = 999
    assert recall(found, right) == {"recall@1": 0.5, "recall@10": 0.75, "recall@60": 0.5417}


def test_clustered_vectors_have_near_neighbours_and_random_ones_do_not(tmp_path):
    nearest = {}
    for kind in ("clustered", "random"):
        queries = draw(Options(1000, 32, 20, kind), str(tmp_path / f"{kind}.npy"))
        vectors = np.load(tmp_path / f"{kind}.npy")
        assert vectors.dtype == queries.dtype == np.float32 and vectors.shape == (1000, 32)
        far = np.linalg.norm(vectors - queries[:, None], axis=-1)
        nearest[kind] = (far.min(1) / far.mean(1)).mean()
    assert nearest["clustered"] < 0.6 < nearest["random"]


def test_a_line_has_times_sizes_and_recall():
    line = measure(Options(500, 16, 20, repeats=1))
    assert (line["images"], line["vectors_bytes"]) == (500, 500 * 16 * 4)
    found = [line["exact"]]
    if importlib.util.find_spec("faiss"):
        found.append(line["approximate"])
        assert line["approximate"]["graph_bytes"] > 500 * (16 + 4 * 64)
        assert line["approximate"]["recall"]["recall@60"] > 0.9
    for one in found:
        for name in ("build", "query_in_batch", "query_alone"):
            assert one[name]["seconds"] > 0 and one[name]["cpu_seconds"] >= 0


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_kind():
    flags = ["--what=search", "--indexed=300", "--features=8", "--images=5", "--repeats=1"]
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        commands.run_here(benchmark, *flags)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["vectors"] for line in lines] == ["clustered", "random"]
    with pytest.raises(cli.UsageError, match="--vectors must be some of clustered, random"):
        commands.run_here(benchmark, *flags, "--vectors=other")
