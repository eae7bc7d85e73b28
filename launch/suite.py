"""The runs of the test suite, one after the other, and their sum: what `launch/test` does once there is an environment.

Apart from the shell script because it counts, and from tests/ because it is about starting them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpiarray.tools import environment

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's exit status when nothing was selected, which -k and paths may lead to
COUNTED_AS = {"passed": "passed", "xpassed": "failed", "failed": "failed", "error": "failed"}


@dataclass(frozen=True)
class Run:
    """One run: `mpi` None is the run in one process; `limit` in seconds for the whole run; `check`: MPIARRAY_CHECK."""

    name: str
    mpi: str | None
    ranks: int
    limit: float
    check: bool = False
    quick: bool = False

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line of this run with pytest's `arguments`."""
        if self.mpi is None:
            return [sys.executable, "-m", "pytest", *arguments]
        start = [sys.executable, "-m", "mpiarray", "run", "-n", str(self.ranks), "--mpi", self.mpi]
        return [*start, "--stdout", "root", "--timeout", f"{self.limit:g}", "-m", "pytest", "--only-mpi", *arguments]


RUNS = (
    Run("serial", None, 1, 900, check=True, quick=True),
    Run("openmpi-1", "openmpi", 1, 300),
    Run("openmpi-2", "openmpi", 2, 300),
    Run("openmpi-3", "openmpi", 3, 300),
    Run("openmpi-4", "openmpi", 4, 400, check=True, quick=True),
    Run("openmpi-8", "openmpi", 8, 600),
    Run("mpich-4", "mpich", 4, 600),
)


@dataclass
class Result:
    """Counts of a run; a run that broke off has one failure more, with the reason in `trouble`."""

    run: Run
    passed: int
    failed: int
    skipped: int
    seconds: float
    trouble: str = ""

    def line(self) -> str:
        """One line for the summary."""
        end = f"  {self.trouble}" if self.trouble else ""
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return f"  {self.run.name:<10} {counts} in {self.seconds:.0f} s{end}"


def perform(run: Run, arguments: Sequence[str]) -> Result:
    """Do one run and read its counts."""
    if run.mpi is not None:
        try:
            environment.choose(run.ranks, run.ranks, run.mpi)
        except environment.MpiNotFound as error:
            # on a machine of our own one MPI may do; CI must have both
            return Result(run, 0, 1 if os.environ.get("CI") else 0, 0, 0.0, f"not run: {error}")
    with tempfile.TemporaryDirectory(prefix="mpiarray-suite-") as folder:
        summary = Path(folder, "counts.json")
        environ = os.environ | {"MPIARRAY_TEST_SUMMARY": str(summary)}
        if run.check:
            environ = {"MPIARRAY_CHECK": "1"} | environ
        begun = time.monotonic()
        try:
            status = subprocess.run(
                run.command(arguments), cwd=ROOT, env=environ, timeout=run.limit + 30, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
        seconds = time.monotonic() - begun
        counts = json.loads(summary.read_text()) if summary.exists() else None
    return judge(run, status, counts, seconds)


def judge(run: Run, status: int, counts: dict[str, int] | None, seconds: float) -> Result:
    """The result of a run from its exit status and the counts that it left (None: it did not come to its end)."""
    sums = {"passed": 0, "failed": 0}
    for name, number in (counts or {}).items():
        if name in COUNTED_AS:
            sums[COUNTED_AS[name]] += number
    skipped = (counts or {}).get("skipped", 0) + (counts or {}).get("xfailed", 0)
    result = Result(run, sums["passed"], sums["failed"], skipped, seconds)
    if counts is None or (status not in (0, NO_TESTS) and result.failed == 0):
        result.failed += 1
        result.trouble = "time limit" if status == 124 else f"broke off with exit status {status}"
    return result


def options(arguments: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs that were asked for, and the arguments for pytest."""
    parser = argparse.ArgumentParser(
        prog="launch/test",
        description="Run the test suite.",
        epilog="Everything else goes to pytest.",
        allow_abbrev=False,
    )
    names = [run.name for run in RUNS]
    parser.add_argument("--quick", action="store_true", help="one process and 4 ranks only, without slow tests")
    parser.add_argument("--runs", help=f"which runs, with commas between: {', '.join(names)}")
    own, rest = parser.parse_known_args(arguments)
    runs = [run for run in RUNS if run.quick or not own.quick]
    if own.runs:
        wanted = own.runs.split(",")
        unknown = sorted(set(wanted) - set(names))
        if unknown:
            parser.error(f"no run named {', '.join(unknown)}; there are {', '.join(names)}")
        runs = [run for run in RUNS if run.name in wanted]
    return runs, [*(["-m", "not slow"] if own.quick else []), *rest]


def main(arguments: Sequence[str]) -> int:
    """Do the runs; print the sum; return 0 when nothing failed and something passed."""
    runs, rest = options(arguments)
    results = []
    for run in runs:
        print(f"== {run.name}", flush=True)
        results.append(perform(run, rest))
        print(results[-1].line(), flush=True)
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    print("\n".join(["", *(result.line() for result in results)]))
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
