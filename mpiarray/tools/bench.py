"""`python -m mpiarray bench`: this library beside hand-written numpy and MPI, on the ranks it is started on.

Every row times both sides in one run, in turn, and prints their ratio (medians over repetitions; the slowest rank counts).  The
hand-written side is what an expert writes.  Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm
from mpiarray.comm.world import mpi as mpi_module
from mpiarray.tools.bench_bodies import collective_rows, data_parallel_step

Timed = Callable[[], Any]


@dataclass
class Row:
    """One workload: seconds of this library and of the hand-written side (0: there is none)."""

    name: str
    ours: float
    hand: float

    @property
    def ratio(self) -> float:
        return self.ours / self.hand if self.hand else float("nan")


def timed(ours: Timed, hand: Timed | None, *, seconds: float) -> tuple[float, float]:
    """Medians of both sides, run in turn; the slowest rank's time counts."""
    calls = max(1, int(0.002 / max(_once(ours), 1e-7)))
    calls = max(comm.agree(comm.world_group(), calls))
    mine: list[float] = []
    theirs: list[float] = []
    repeats = max(7, min(60, int(seconds / max(calls * _once(ours), 1e-6))))
    repeats = max(comm.agree(comm.world_group(), repeats))
    for _ in range(repeats):
        for side, found in ((ours, mine), (hand, theirs)):
            if side is None:
                continue
            comm.barrier(comm.world_group())
            start = time.perf_counter()
            for _ in range(calls):
                side()
            found.append((time.perf_counter() - start) / calls)
    told = comm.agree(comm.world_group(), (statistics.median(mine), statistics.median(theirs) if theirs else 0.0))
    return max(t[0] for t in told), max(t[1] for t in told)


def _once(f: Timed) -> float:
    f()
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def rows(seconds: float) -> Iterator[Row]:
    """All workloads."""
    n = jax.device_count()
    jax.set_mesh(jax.make_mesh((n,), ("x",)))
    for make in (
        tiny_elementwise,
        large_elementwise,
        sum_over_sharded,
        reshard_rows_to_columns,
        tiny_jit,
        data_parallel_step,
    ):
        name, ours, hand = make(n)
        yield Row(name, *timed(ours, hand, seconds=seconds))
    for name, mine, theirs in collective_rows(n, seconds):
        yield Row(name, mine, theirs)


def _block(x: Any) -> np.ndarray:
    return np.asarray(x.addressable_data(0))


def _same(x: Any, block: np.ndarray, what: str) -> None:
    if not np.allclose(_block(x), block, rtol=1e-5):
        raise AssertionError(f"bench: {what} differs from the hand-written result")


def tiny_elementwise(n: int) -> tuple[str, Timed, Timed]:
    x = jax.device_put(np.arange(8.0 * n, dtype=np.float32), jax.P("x"))
    b = _block(x).copy()
    _same(x + x, b + b, "x + x")
    return "eager x + x, 8 elements per rank", lambda: x + x, lambda: b + b


def large_elementwise(n: int) -> tuple[str, Timed, Timed]:
    x = jax.device_put(np.arange(2.0**20 * n, dtype=np.float32), jax.P("x"))
    b = _block(x).copy()
    _same(x * x, b * b, "x * x")
    return "eager x * x, 4 MB per rank", lambda: x * x, lambda: b * b


def sum_over_sharded(n: int) -> tuple[str, Timed, Timed]:
    x = jax.device_put(np.ones((n * 1024, 1024), np.float32), jax.P("x", None))
    b, raw = _block(x).copy(), comm.world().comm

    def hand() -> np.ndarray:
        part = b.sum(0)
        out = np.empty_like(part)
        raw.Allreduce(part, out)
        return out

    _same(x.sum(0), hand(), "x.sum(0)")
    return "x.sum(0) over a sharded dim, 4 MB per rank", lambda: x.sum(0), hand


def reshard_rows_to_columns(n: int) -> tuple[str, Timed, Timed]:
    size = 4096 - 4096 % n
    x = jax.device_put(np.arange(size * size, dtype=np.float32).reshape(size, size), jax.P("x", None))
    b = _block(x).copy()
    packed, direct = packed_alltoall(b, n), typed_alltoall(b, n)
    _same(jax.reshard(x, jax.P(None, "x")), packed(), "reshard")
    _same(jax.reshard(x, jax.P(None, "x")), direct(), "reshard")
    better = min((packed, direct), key=lambda f: max(comm.agree(comm.world_group(), min(_once(f) for _ in range(3)))))
    label = "Alltoall" if better is packed else "Alltoallw"
    return (
        f"reshard rows to columns, {size}x{size} float32 (hand: {label})",
        lambda: jax.reshard(x, jax.P(None, "x")),
        better,
    )


def packed_alltoall(b: np.ndarray, n: int) -> Timed:
    """Pack column blocks, Alltoall: what arrives is the target block already."""
    raw = comm.world().comm
    rows_, columns = b.shape

    def run() -> np.ndarray:
        send = np.ascontiguousarray(b.reshape(rows_, n, columns // n).transpose(1, 0, 2))
        out = np.empty((n * rows_, columns // n), b.dtype)
        raw.Alltoall(send, out)
        return out

    return run


def typed_alltoall(b: np.ndarray, n: int) -> Timed:
    """Alltoallw with a subarray type per peer, no packing of our own."""
    raw, mpi = comm.world().comm, mpi_module()
    assert mpi is not None, "MPI runs"
    rows_, columns = b.shape
    width = columns // n
    sends = [mpi.FLOAT.Create_subarray((rows_, columns), (rows_, width), (0, k * width)).Commit() for k in range(n)]
    recvs = [mpi.FLOAT.Create_subarray((n * rows_, width), (rows_, width), (k * rows_, 0)).Commit() for k in range(n)]

    def run() -> np.ndarray:
        out = np.empty((n * rows_, width), b.dtype)
        raw.Alltoallw([b, ([1] * n, [0] * n), sends], [out, ([1] * n, [0] * n), recvs])
        return out

    return run


def tiny_jit(n: int) -> tuple[str, Timed, Timed]:
    x = jax.device_put(np.arange(8.0 * n, dtype=np.float32), jax.P("x"))
    b = _block(x).copy()
    f = jax.jit(lambda v: jnp.sin(v) * 2.0)
    _same(f(x), np.sin(b) * 2, "jitted sin(x) * 2")
    return "jitted sin(x) * 2, 8 elements per rank", lambda: f(x), lambda: np.sin(b) * 2


def import_seconds() -> tuple[float, float]:
    """Seconds that `import mpiarray` takes, and those of numpy, ml_dtypes and mpi4py alone; medians of fresh processes."""

    def once(code: str) -> float:
        return min(_process(code) for _ in range(5))

    return once("import mpiarray"), once("import numpy, ml_dtypes, mpi4py")


def _process(code: str) -> float:
    timer = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    return float(
        subprocess.run([sys.executable, "-c", timer], capture_output=True, text=True, check=True, timeout=60).stdout
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m mpiarray bench`."""
    parser = argparse.ArgumentParser(
        prog="python -m mpiarray bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long each row is timed")
    parser.add_argument("--json", help="write the rows to this file")
    args = parser.parse_args(argv)
    first = comm.rank() == 0
    found = []
    if first:
        print(
            f"{comm.size()} ranks; seconds per call, median, slowest rank\n{'':58s}{'mpiarray':>12s}{'by hand':>12s}{'ratio':>8s}",
            flush=True,
        )
    for row in rows(args.seconds):
        found.append(row)
        if first:
            print(f"{row.name:58s}{row.ours * 1e6:10.1f}us{row.hand * 1e6:10.1f}us{row.ratio:8.2f}", flush=True)
    if first and comm.size() == 1:
        ours, others = import_seconds()
        print(f"import mpiarray: {ours:.3f} s, of which numpy, ml_dtypes and mpi4py {others:.3f} s")
    if first and args.json:
        with open(args.json, "w") as f:
            json.dump([asdict(r) | {"ratio": r.ratio} for r in found], f, indent=1)
    return 0
