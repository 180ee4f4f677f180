"""The place of a process in a cluster, and the sentence about a `TF_CONFIG` that cannot be used."""

import json

import pytest

from tfcap.training import cluster

TWO = {"worker": ["a:1", "b:1"]}


def config(cluster, kind="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    "given, place",
    [
        (config({"worker": ["a:1", "b:1", "c:1"]}, "worker", 2), (3, 2)),
        (config({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "chief"), (3, 0)),
        (config({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", "1"), (3, 2)),
        (config({"worker": ["[::1]:1"]}), (1, 0)),
        ("{}", (1, 0)),
        ("", (1, 0)),
    ],
)
def test_the_place_among_all_workers(given, place, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", given)
    assert cluster.place() == place


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("{", "TF_CONFIG must be JSON. Received: '{' "),
        ("[1]", "must be an object. Received: "),
        (config(["a:1"]), "with lists of addresses HOST:PORT"),
        (config({"worker": "a:1"}), "with lists of addresses HOST:PORT"),
        (config({"worker": ["a", "b:1"]}), "with lists of addresses HOST:PORT"),
        (config({**TWO, "ps": ["c:1"]}, "ps"), "of `worker`, and `chief` .* Received: ps"),
        (config({"worker": ["a:1", "a:1"]}), "different addresses"),
        (json.dumps({"cluster": TWO}), "a task with `type` and `index` .* Received: None"),
        (config(TWO, "evaluator"), "a task with `type`"),
        (config(TWO, ["worker"]), "a task with `type`"),
        (config(TWO, "worker", 2), "a task with `type`"),
        (config(TWO, "worker", -1), "a task with `type`"),
        (config(TWO, "worker", "one"), "a task with `type`"),
    ],
)
def test_what_cannot_be_used_is_an_error_with_an_example(given, wanted, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", given)
    with pytest.raises(ValueError, match=wanted + '.* For example: {"cluster"'):
        cluster.place()
