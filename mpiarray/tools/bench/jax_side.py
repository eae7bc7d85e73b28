"""The script that JAX's own Python runs: the programs of `programs.py` in JAX, in one process with a CPU device for each rank,
or as one of several processes with a device each.

    PYTHON jax_side.py DEVICES SIZE SECONDS PATTERN [ADDRESS PROCESS]

ADDRESS is where process 0 waits for the others ("host:port").  They send with gloo, which every JAX has, unless
JAX_CPU_COLLECTIVES_IMPLEMENTATION names another.

It prints one line of JSON: seconds per call by row name, null where JAX refuses the program.  Nothing of this package is
imported, and JAX only by the name that is looked up at run time: the package does not depend on it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Agreement = Callable[[int, int], tuple[int, int]]
START = "start to first psum, whole command"


def main(arguments: Sequence[str]) -> None:
    devices, size, seconds, pattern = int(arguments[0]), arguments[1], float(arguments[2]), arguments[3]
    start = time.perf_counter()
    agreed: Agreement = lambda calls, repeats: (calls, repeats)
    if arguments[4:]:
        jax, agreed = connected(devices, arguments[4], int(arguments[5]))
    else:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        jax = importlib.import_module("jax")
    importlib.import_module("jax.numpy")
    listed = importlib.import_module("programs")
    first_psum(jax, listed, devices)
    found: dict[str, float | None] = {}
    if re.search(pattern, START):
        found[START] = time.perf_counter() - start + age()
    for program in listed.programs(devices, listed.SIZES[size]):
        if re.search(pattern, program.name):
            try:
                found[program.name] = timed(jax, listed, program, devices, seconds, agreed)
            except Exception as problem:
                print(f"{program.name}: {type(problem).__name__}: {problem}", file=sys.stderr)
                found[program.name] = None
    print(json.dumps(found))


def connected(n: int, address: str, process: int) -> tuple[Any, Agreement]:
    """JAX as one of n processes, and how they agree on numbers of calls: all must make as many."""
    os.environ.setdefault("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
    jax = importlib.import_module("jax")
    jax.distributed.initialize(address, n, process)
    tell = importlib.import_module("jax.experimental.multihost_utils").broadcast_one_to_all

    def agreed(calls: int, repeats: int) -> tuple[int, int]:
        found = tell(np.array([calls, repeats], np.int32))
        return int(found[0]), int(found[1])

    return jax, agreed


def age() -> float:
    """Seconds that this process took before its first line here; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat") as file:
            started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started - time.process_time()) if started else 0.0
    except (OSError, AttributeError, ValueError):
        return 0.0


def first_psum(jax: Any, listed: Any, n: int) -> None:
    mesh = listed.mesh_of(jax, n, False)
    with jax.set_mesh(mesh):
        x = listed.place(jax, mesh, (listed.Given((n,), ("x",)),))
        jax.block_until_ready(jax.jit(listed._mapped(jax, "psum", n))(*x))


def timed(jax: Any, listed: Any, program: Any, n: int, seconds: float, agreed: Agreement) -> float:
    """The median of some batches of calls, each waited for."""
    mesh = listed.mesh_of(jax, n, program.auto)
    with jax.set_mesh(mesh):
        inputs = listed.place(jax, mesh, program.inputs)
        function = program.build(jax)
        if program.how == "jit":
            function = jax.jit(function)
        elif program.how == "body":  # operation by operation: JAX cannot time one inside
            function = jax.shard_map(function, in_specs=jax.P("x"), out_specs=_out(jax, program))
        return median(lambda: jax.block_until_ready(function(*inputs)), seconds, agreed)


def _out(jax: Any, program: Any) -> Any:
    return jax.P() if program.facts["kind"] == "psum" else jax.P("x")


def median(call: Callable[[], Any], seconds: float, agreed: Agreement) -> float:
    call()
    start = time.perf_counter()
    call()
    single = max(time.perf_counter() - start, 1e-7)
    calls = max(1, int(0.002 / single))
    calls, repeats = agreed(calls, max(3, min(200, int(seconds / (2 * calls * single)))))
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls)
    return statistics.median(found)


if __name__ == "__main__":
    main(sys.argv[1:])
