"""Reads `TF_CONFIG`, which names the workers of a cluster and the worker that this process is."""

import json
import os
import re
from typing import Any, NamedTuple

VARIABLE = "TF_CONFIG"
_ADDRESS = re.compile(r"\S+:\d{1,5}")
_EXAMPLE = json.dumps(
    {"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}
)


class Place(NamedTuple):
    """The number of workers, and the number of this one; 0 is the chief."""

    workers: int
    number: int


def place() -> Place:
    """Returns the place of this process in the cluster; Place(1, 0) without a cluster.

    Raises:
      ValueError: `TF_CONFIG` cannot be used.
    """
    text = os.environ.get(VARIABLE) or "{}"
    try:
        given = json.loads(text)
    except ValueError as error:
        raise _wrong("JSON", f"{text!r} ({error})") from None
    if not isinstance(given, dict):
        raise _wrong("an object", text)
    cluster = given.get("cluster") or {}
    if not isinstance(cluster, dict) or not all(_is_list(each) for each in cluster.values()):
        raise _wrong("an object with lists of addresses HOST:PORT as `cluster`", cluster)
    if others := sorted(set(cluster) - {"chief", "worker"}):
        raise _wrong("a cluster of `worker`, and `chief` if there is one", ", ".join(others))
    addresses = [address for each in cluster.values() for address in each]
    if len(set(addresses)) < len(addresses):
        raise _wrong("a cluster of different addresses", addresses)
    if not addresses:
        return Place(1, 0)
    return Place(len(addresses), _index(cluster, given.get("task")))


def _index(cluster: dict[str, list[str]], task: Any) -> int:
    """Returns the number of the worker that `task` names."""
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else ("", "")
    own = cluster.get(kind, []) if isinstance(kind, str) else []
    if not str(index).isdecimal() or int(str(index)) >= len(own):
        raise _wrong("a task with `type` and `index` of one of the cluster's addresses", task)
    chiefs = len(cluster.get("chief", []))
    return int(str(index)) + (chiefs if kind == "worker" else 0)


def _is_list(given: Any) -> bool:
    """Returns whether a value is a list of addresses."""
    return isinstance(given, list) and all(
        isinstance(each, str) and _ADDRESS.fullmatch(each) for each in given
    )


def _wrong(wanted: str, received: object) -> ValueError:
    return ValueError(f"{VARIABLE} must be {wanted}. Received: {received}. For example: {_EXAMPLE}")
