"""Compiles a module that `export.py` wrote with the XLA of JAX, and times it; `run.py` starts it.

JAX has no public function that compiles such a module, so this file uses private ones.
"""

import collections
import json
import pathlib
import re
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib.mlir import ir
from run import answer


def drawn(spec: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Draws an array like the one that was described."""
    shape, dtype = spec["shape"], jax.numpy.dtype(spec["dtype"])
    if "least" in spec:
        return rng.integers(spec["least"], spec["most"], shape, endpoint=True).astype(dtype)
    if not spec["deviation"]:
        return np.full(shape, spec["mean"], dtype)
    values = np.float32(spec["deviation"]) * rng.standard_normal(shape, np.float32)
    return (values + np.float32(spec["mean"])).astype(dtype)


def load(path: pathlib.Path) -> tuple[ir.Module, dict[int, int]]:
    """Reads a module; returns also which results are the new values of which parameters."""
    module = ir.Module.parse(path.read_bytes())
    copies: list[Any] = []

    def see(operation):
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(see)
    for copy in copies:  # the plug-in for GPUs does not read them
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
    aliases = str(dict(module.operation.attributes).get("mhlo.input_output_alias", ""))
    pairs = re.findall(r"parameter_number = (\d+).*?output_index = array<i64: (\d+)", aliases)
    return module, {int(parameter): int(result) for parameter, result in pairs}


def kernels(call) -> dict[str, Any]:
    """Profiles three calls: the kernels of one call, and the ten names that took longest, in ms."""
    times: collections.Counter[str] = collections.Counter()
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(3):
                call()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events if line.name.startswith("Stream") else ():
                    number += 1
                    times[re.sub(r"[_.\d]+$", "", event.name)] += event.duration_ns / 3e6
    longest = {name: round(time, 3) for name, time in times.most_common(10)}
    return {"kernels": number // 3, "busy_ms": round(times.total(), 2), "longest_ms": longest}


def main(folder: str, name: str) -> None:
    """Compiles a work and times it."""
    jax.config.update("jax_enable_x64", True)
    lines = (pathlib.Path(folder) / "works.jsonl").read_text(encoding="utf-8").splitlines()
    (*_, entry) = (entry for entry in map(json.loads, lines) if entry["name"] == name)  # newest
    device = jax.devices()[0]
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    devices = xla_client.DeviceList((device,))
    begin, processor = time.monotonic(), time.process_time()
    with mlir.make_ir_context():
        module, updates = load(pathlib.Path(folder) / f"{name}.mlirbc")
        program = compiler.backend_compile_and_load(device.client, module, devices, options, [])
    prepared = {
        "device": device.device_kind,
        "compile_s": round(time.monotonic() - begin, 1),
        "compile_processor_s": round(time.process_time() - processor, 1),
    }
    rng = np.random.default_rng(0)
    arrays = [jax.device_put(drawn(spec, rng), device) for spec in entry["arrays"]]

    def call() -> None:
        results = program.execute_sharded(arrays).disassemble_into_single_device_arrays()
        jax.block_until_ready(results)
        for parameter, result in updates.items():
            arrays[parameter] = results[result][0]

    def memory() -> int:
        return (device.memory_stats() or {}).get("peak_bytes_in_use", 0)

    call()
    call()
    answer(call, prepared, memory)
    print(json.dumps(kernels(call)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
