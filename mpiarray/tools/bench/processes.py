"""What the bench starts as processes of its own: whole commands from start to the first psum, and JAX.

Rank 0 starts them, on the cores of all ranks of its node; the others sleep meanwhile, so that the cores are free.
"""

from __future__ import annotations

import json
import os
import platform
import socket
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
_SCRIPT = Path(__file__).with_name("jax_side.py")
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
    cores, _ = _cores()
    result = work(cores) if comm.rank() == 0 else None
    _quiet_barrier()
    return comm.agree(comm.world_group(), result)[0]


def _cores() -> tuple[set[int], bool]:
    """The cores of the ranks on this node, and whether there are other nodes; all ranks must call."""
    told = comm.agree(comm.world_group(), (platform.node(), environment.allowed_cpus()))
    own = {core for node, cores in told if node == platform.node() for core in cores}
    return own, any(node != platform.node() for node, _ in told)


def _quiet_barrier() -> None:
    """Wait for all ranks, asleep: the cores are for whoever works."""
    request = comm.world().comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


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
    """Medians and best times of commands that run in turn; if more than once, after one run each that fills the caches of files."""
    seconds: list[list[float]] = [[] for _ in commands]
    for k in range(0 if times > 1 else 1, times + 1):
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


KINDS = ("plain", "tuned", "processes", "processes_tuned")
"""JAX in one process with a CPU device for each rank, and over as many processes: as it is, and with a C library that keeps memory."""


def jax_times(python: str, pattern: str, size: str, seconds: float) -> tuple[dict[str, Any], str]:
    """Seconds of each row in JAX, by row name: a dict by `KINDS`, None where JAX refuses the program; and what failed.

    One process is rank 0's; of several each rank starts one, and the slowest counts.  They may use the cores of all ranks of their
    node: gloo has threads of its own.  All ranks must call.
    """
    out, trouble = on_root(partial(_jax, python, pattern, size, seconds, comm.size()))
    for kind, extra in zip(KINDS[2:], (dict[str, str](), TUNED)):
        if trouble or comm.size() == 1:
            break
        found, trouble = _together(python, pattern, size, seconds, extra)
        for name, value in found.items():
            out.setdefault(name, {})[kind] = value
    return out, trouble


def _jax_environ(extra: Mapping[str, str]) -> dict[str, str]:
    without = ("PYTHONPATH", *environment.THREAD_VARIABLES)
    base = {k: v for k, v in environment.without_job(os.environ).items() if k not in without}
    return {**base, **extra, "JAX_PLATFORMS": "cpu"}


def _together(
    python: str, pattern: str, size: str, seconds: float, extra: Mapping[str, str]
) -> tuple[dict[str, float | None], str]:
    """JAX over processes, one started by each rank; all ranks must call."""
    world = comm.world_group()
    cores, elsewhere = _cores()
    with socket.socket() as free:
        free.bind(("", 0))
        own = f"{platform.node() if elsewhere else 'localhost'}:{free.getsockname()[1]}"
    address = comm.agree(world, own)[0]
    command = [python, str(_SCRIPT), str(comm.size()), size, str(seconds), pattern, address, str(comm.rank())]
    done = _process(command, cores, _jax_environ(extra), 60 * LIMIT)
    _quiet_barrier()
    told = comm.agree(world, (_found(done), _last_words(done)))
    trouble = next((f"--jax {python}: process {rank}: {words}" for rank, (_, words) in enumerate(told) if words), "")
    if trouble:
        return {}, trouble
    names = told[0][0]
    return {n: None if any(f[n] is None for f, _ in told) else max(f[n] for f, _ in told) for n in names}, ""


def _found(done: subprocess.CompletedProcess[str]) -> dict[str, float | None]:
    """The figures that a process of JAX printed."""
    return json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process failed; "" if it did not."""
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1] if done.returncode else ""


def _jax(python: str, pattern: str, size: str, seconds: float, n: int, cores: set[int]) -> tuple[dict[str, Any], str]:
    out: dict[str, dict[str, float | None]] = {}
    for kind, extra in zip(KINDS, (dict[str, str](), TUNED)):
        command = [python, str(_SCRIPT), str(n), size, str(seconds), pattern]
        try:
            done = _process(command, cores, _jax_environ(extra), 60 * LIMIT)
        except OSError as problem:
            return {}, f"--jax {python}: {problem}"
        if words := _last_words(done):
            return {}, f"--jax {python}: {words}"
        for name, found in _found(done).items():
            out.setdefault(name, {})[kind] = found
    return out, ""
