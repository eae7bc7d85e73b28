"""The command `python -m mpiarray bench`: options, progress, the table, JSON."""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.compiler import machine as cost_model
from mpiarray.ops import compiled_chains
from mpiarray.tools import environment
from mpiarray.tools.bench import processes
from mpiarray.tools.bench.hand_arrays import mpi
from mpiarray.tools.bench.hand_grids import scipys_fft
from mpiarray.tools.bench.machine import Machine, machine
from mpiarray.tools.bench.programs import SIZES, programs
from mpiarray.tools.bench.rows import Row, run

WIDTH = 66

_ABOUT = """Time this library beside hand-written numpy and MPI, on the ranks that this is started on.

Each row runs both sides in turn in one run and prints medians of the slowest rank, and their ratio.  Results are compared before
anything is timed.  The hand-written side is what an expert would write: buffers that are kept, tiles that fit the cache, packed or
typed messages, whichever is fastest here."""


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mpiarray bench", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", metavar="PATTERN", help="only rows whose name has this (a regular expression)")
    parser.add_argument("--list", action="store_true", help="say the names of the rows, run nothing")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long each row is timed (default 1)")
    parser.add_argument("--size", choices=SIZES, default="full", help="small: a test of the bench itself, in seconds")
    parser.add_argument(
        "--keep", action="store_true",
        help="measure once more, and keep on this machine, what automatic sharding chooses by (jax.sharding.machine)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write all figures to this file")
    parser.add_argument(
        "--jax", metavar="PYTHON", nargs="?", const=sys.executable,
        help="time the same programs in JAX too, by this Python, which must have it: in one process with a CPU device for each rank,"
        " and over as many processes, both also with a C library that keeps memory",
    )  # fmt: skip
    options = parser.parse_args(argv)
    try:
        re.compile(options.rows or "")
    except re.error as problem:
        parser.error(f"--rows {options.rows}: {problem}")
    if options.seconds <= 0:
        parser.error(f"--seconds {options.seconds}: must be more than 0")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m mpiarray bench`: exit status 1 if a result differs from the hand-written one, 2 for wrong options."""
    options = parsed(argv)
    n, sizes = comm.size(), SIZES[options.size]
    chosen = [p for p in programs(n, sizes) if re.search(options.rows or "", p.name)]
    starts = re.search(options.rows or "", processes.START) is not None
    if comm.rank() == 0 and (options.list or not (chosen or starts)):
        names = [*(p.name for p in programs(n, sizes)), processes.START]
        print("\n".join(names) if options.list else f"bench: no row's name has {options.rows!r}; --list tells them")
    if options.list or not (chosen or starts):
        return 0 if options.list else 2
    found = Printer(n, jax=bool(options.jax))
    given = machine(options.size == "small")
    found.head(given)
    if options.keep:
        constants = cost_model.measured(0.2 if options.size == "small" else 1.0)
        if comm.rank() == 0:
            found.say(f"kept for automatic sharding, in {cost_model.save(constants)}: {constants}")
    rivals: dict[str, Any] = {}
    if options.jax:
        rivals, trouble = processes.jax_times(options.jax, options.rows or "", options.size, options.seconds)
        if trouble:
            found.say(f"bench: {trouble}")
            return 2
    rows = []
    for k, program in enumerate(chosen):
        found.now(k, len(chosen) + starts, program.name)
        rows.append(run(program, n, options.seconds))
        found.row(rows[-1], rivals.get(program.name))
    if starts:
        found.now(len(chosen), len(chosen) + 1, processes.START)
        rows.append(processes.start_row(options.size == "small"))
        found.row(rows[-1], rivals.get(processes.START))
    if comm.rank() == 0 and options.json:
        with open(options.json, "w") as file:
            json.dump(report(options, given, rows, rivals), file, indent=1, allow_nan=False)
            file.write("\n")
    return int(any(row.trouble for row in rows if row.name != processes.START))


def setting() -> dict[str, Any]:
    """Where the figures are from."""
    scipy = scipys_fft()
    return {
        "ranks": comm.size(), "mpi": mpi().Get_library_version().strip("\0\n ").splitlines()[0].split(",")[0], "numpy": np.__version__,
        "python": platform.python_version(), "scipy": scipy is not None, "llvm": compiled_chains.are_on(), "machine": platform.machine(),
        "cores": len(environment.allowed_cpus()),
    }  # fmt: skip


def report(options: argparse.Namespace, given: Machine, rows: Sequence[Row], rivals: dict[str, Any]) -> dict[str, Any]:
    """What `--json` writes: seconds; null where there is no figure."""
    lines = []
    for row in rows:
        times = asdict(row.times) if row.times else dict.fromkeys(("ours", "hand", "ours_best", "hand_best"))
        ratio = None if math.isnan(row.ratio) else row.ratio
        jax = rivals.get(row.name)
        lines.append(
            {"name": row.name, **times, "ratio": ratio, "trouble": row.trouble} | ({"jax": jax} if options.jax else {})
        )
    return {"size": options.size, "seconds": options.seconds, "job": setting(), "machine": asdict(given), "rows": lines}


def duration(seconds: float | None) -> str:
    """For people: 3 digits and a unit."""
    if seconds is None or not seconds:
        return "-"
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        value = seconds * factor
        if value < 1000:
            return f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f} {unit}"
    return f"{seconds:.2f} s"


class Printer:
    """Rank 0's progress and table; silent on the other ranks."""

    def __init__(self, ranks: int, jax: bool):
        self.speaks, self.ranks = comm.rank() == 0, ranks
        titles = ("JAX", "tuned", *((f"JAX x {ranks}", "tuned") if ranks > 1 else ()))
        self.rivals = dict(zip(processes.KINDS, titles)) if jax else {}
        # Open MPI gives every rank a terminal of its own for stdout: stderr is a terminal only where people watch
        self.erases = self.speaks and sys.stdout.isatty() and sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self.speaks:
            print(f"\r\033[K{text}" if self.erases else text, flush=True)

    def head(self, given: Machine) -> None:
        if not self.speaks:
            return
        where = setting()
        self.say(
            f"{self.ranks} ranks, {where['mpi']}, numpy {where['numpy']}, {'scipy.fft' if where['scipy'] else 'no scipy'}"
            f"{', chains compiled' if where['llvm'] else ''}"
        )
        self.say(f"this machine: {given.text()}")
        rival = "".join(f"{title:>10s}" for title in self.rivals.values())
        self.say(
            f"{'seconds per call: median, slowest rank':{WIDTH}s}{'mpiarray':>10s}{'by hand':>10s}{'ratio':>8s}{rival}"
        )

    def now(self, k: int, of: int, name: str) -> None:
        """What runs now; only a terminal can take it back."""
        if self.erases:
            print(f"\r\033[K[{k + 1}/{of}] {name}", end="", flush=True)

    def row(self, row: Row, rival: dict[str, float | None] | None) -> None:
        if row.times is None:
            self.say(f"{row.name:{WIDTH}s}{row.trouble}")
            return
        ratio = f"{row.ratio:8.2f}" if row.times.hand else f"{'':8s}"
        text = f"{row.name:{WIDTH}s}{duration(row.times.ours):>10s}{duration(row.times.hand):>10s}{ratio}"
        text += "".join(f"{duration((rival or {}).get(kind)):>10s}" for kind in self.rivals)
        self.say(text)
