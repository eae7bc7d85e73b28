"""What the bench starts as processes of its own: whole commands from start to the first psum, and JAX.

Rank 0 starts them, on the cores of all ranks of its node; the others sleep meanwhile, so that the cores are free.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mpiarray import comm
from mpiarray.tools import environment
from mpiarray.tools.bench.rows import Row
from mpiarray.tools.bench.timing import Times

START = "start to first psum, whole command"
LIMIT = 120.0  # seconds for one process
TUNED = {"MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_MMAP_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**28)}
"""Makes the C library keep freed memory, so that new arrays cost no page faults."""

_OURS = """
import mpiarray as jax
n = jax.device_count()
jax.set_mesh(jax.make_mesh((n,), ("x",)))
total = jax.jit(jax.shard_map(lambda b: jax.lax.psum(b, "x"), in_specs=jax.P("x"), out_specs=jax.P()))
assert float(total(jax.device_put(jax.numpy.arange(n, dtype="float32"), jax.P("x")))[0]) == n * (n - 1) / 2
"""

_HAND = """
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
out = np.empty(1, np.float32)
world.Allreduce(np.array([world.rank], np.float32), out)
assert out[0] == world.size * (world.size - 1) / 2
"""


def on_root(work: Callable[[set[int]], Any]) -> Any:
    """Rank 0's `work(cores of this node's ranks)`, told to all; the others sleep until it is done.  All ranks must call.

    An exception of rank 0 ends the job as every other does.
    """
    told = comm.agree(comm.world_group(), (platform.node(), environment.allowed_cpus()))
    cores = {core for node, own in told if node == told[0][0] for core in own}
    result = work(cores) if comm.rank() == 0 else None
    request = comm.world().comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)
    return comm.agree(comm.world_group(), result)[0]


def _process(
    command: Sequence[str], cores: set[int], environ: Mapping[str, str], limit: float
) -> subprocess.CompletedProcess[str]:
    """Run a command on these cores, though this rank may be bound to one."""
    bind = partial(os.sched_setaffinity, 0, cores) if hasattr(os, "sched_setaffinity") else None
    return subprocess.run(
        list(command), env=dict(environ), capture_output=True, text=True, timeout=limit, check=False, preexec_fn=bind,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


# -- whole commands -------------------------------------------------------------------------------------------------------


def start_row(once: bool) -> Row:
    """Seconds from the start of `mpirun -n N python ...` to its end, for a script that does one psum; N as here, on this node."""
    found, trouble = on_root(partial(_starts, comm.size(), 1 if once else 5))
    return Row(START, None if found is None else Times(*found), trouble)


def _starts(ranks: int, times: int, cores: set[int]) -> tuple[tuple[float, ...] | None, str]:
    family = environment.job_family()
    try:
        mpi = environment.choose(ranks, len(cores), family or "auto")
    except environment.MpiNotFound as problem:
        return None, f"not measured: {problem}"
    environ = environment.job_environment(mpi, ranks, len(cores))
    command = [mpi.launcher, "-n", str(ranks), sys.executable, "-c"]
    with tempfile.TemporaryDirectory(prefix="mpiarray-") as folder:
        if environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # installed packages have theirs
            environ["PYTHONPYCACHEPREFIX"] = folder
        return _alternate([[*command, script] for script in (_OURS, _HAND)], times, cores, environ)


def _alternate(
    commands: Sequence[Sequence[str]], times: int, cores: set[int], environ: Mapping[str, str]
) -> tuple[tuple[float, ...] | None, str]:
    """Medians and best times of commands that run in turn, after one run each that fills the caches of files."""
    seconds: list[list[float]] = [[] for _ in commands]
    for k in range(times + 1):
        for command, found in zip(commands, seconds):
            start = time.perf_counter()
            done = _process(command, cores, environ, LIMIT)
            if done.returncode:
                lines = (done.stderr or done.stdout).strip().splitlines()
                return None, f"not measured: {command[0]} failed: {lines[-1] if lines else done.returncode}"
            if k:
                found.append(time.perf_counter() - start)
    return tuple(f(found) for f in (statistics.median, min) for found in seconds), ""


# -- JAX ------------------------------------------------------------------------------------------------------------------


def jax_times(python: str, pattern: str, size: str, seconds: float) -> tuple[dict[str, Any], str]:
    """Seconds of each row in JAX, by row name: {"plain": ..., "tuned": ...}, None where JAX refuses the program; and what failed.

    JAX runs in a process of its own, with one CPU device for each rank: as it is, and with a C library that keeps memory.
    """
    return on_root(partial(_jax, python, pattern, size, seconds, comm.size()))


def _jax(python: str, pattern: str, size: str, seconds: float, n: int, cores: set[int]) -> tuple[dict[str, Any], str]:
    out: dict[str, dict[str, float | None]] = {}
    script = Path(__file__).with_name("jax_side.py")
    base = {k: v for k, v in environment.without_job(os.environ).items() if k != "PYTHONPATH"}
    base = {k: v for k, v in base.items() if k not in environment.THREAD_VARIABLES}
    for kind, extra in (("plain", {}), ("tuned", TUNED)):
        command = [python, str(script), str(n), size, str(seconds), pattern]
        try:
            done = _process(command, cores, base | extra | {"JAX_PLATFORMS": "cpu"}, 60 * LIMIT)
        except OSError as problem:
            return {}, f"--jax {python}: {problem}"
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return {}, f"--jax {python}: {lines[-1] if lines else f'status {done.returncode}'}"
        for name, found in json.loads(done.stdout.splitlines()[-1]).items():
            out.setdefault(name, {})[kind] = found
    return out, ""
