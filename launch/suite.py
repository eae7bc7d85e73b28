"""The runs of the test suite and their sum: what `launch/test` does once there is an environment.

Runs of one process go side by side, those of several ranks one after the other.  Apart from the
shell script because it counts, and from tests/ because it is about starting them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mpiarray.tools import environment

ROOT = Path(__file__).resolve().parent.parent
LEFT = 30.0  # seconds after which a job has read the files that it was started with
NO_TESTS = 5  # pytest's exit status when nothing was selected, which -k and paths may lead to
COUNTED_AS = {"passed": "passed", "xpassed": "failed", "failed": "failed", "error": "failed"}


@dataclass(frozen=True)
class Run:
    """One run: `mpi` None is a run in one process; `limit` in seconds for the whole run; `check`: MPIARRAY_CHECK.

    `part`: which of the tests for one process (tests/conftest.py divides them so that the parts take about as long).
    """

    name: str
    mpi: str | None
    ranks: int
    limit: float
    check: bool = False
    quick: bool = False
    part: str = ""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line of this run with pytest's `arguments`."""
        if self.mpi is None:
            return [sys.executable, "-m", "pytest", *arguments]
        start = [sys.executable, "-m", "mpiarray", "run", "-n", str(self.ranks), "--mpi", self.mpi]
        return [*start, "--stdout", "root", "--timeout", f"{self.limit:g}", "-m", "pytest", "--only-mpi", *arguments]


RUNS = (
    Run("serial", None, 1, 900, check=True, quick=True, part="others"),
    Run("compiler", None, 1, 900, check=True, quick=True, part="compiler"),
    Run("jobs", None, 1, 900, check=True, quick=True, part="jobs"),
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


def perform(run: Run, arguments: Sequence[str], output: IO[bytes] | None = None) -> Result:
    """Do one run and read its counts; what it says goes to `output`, or is shown as it comes."""
    if run.mpi is not None:
        try:
            environment.choose(run.ranks, run.ranks, run.mpi)
        except environment.MpiNotFound as error:
            # on a machine of our own one MPI may do; CI must have both
            return Result(run, 0, 1 if os.environ.get("CI") else 0, 0, 0.0, f"not run: {error}")
    with tempfile.TemporaryDirectory(prefix="mpiarray-suite-", ignore_cleanup_errors=True) as folder:
        summary = Path(folder, "counts.json")
        # jobs that are killed, as many tests have it, leave files of theirs: they go with the folder
        environ = os.environ | {"MPIARRAY_TEST_SUMMARY": str(summary), "MPIARRAY_TEST_PART": run.part, "TMPDIR": folder}
        if run.check:
            environ = {"MPIARRAY_CHECK": "1"} | environ
        begun = time.monotonic()
        try:
            status = subprocess.run(
                run.command(arguments), cwd=ROOT, env=environ, timeout=run.limit + 30, check=False,
                stdout=output, stderr=output and subprocess.STDOUT,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = 124
        seconds = time.monotonic() - begun
        counts = json.loads(summary.read_text()) if summary.exists() else None
    return judge(run, status, counts, seconds)


def side_by_side(runs: Sequence[Run], arguments: Sequence[str], workers: int) -> list[Result]:
    """Do runs, so many at a time; the first is shown as it comes, the others after it."""
    results = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in runs[1:]]
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        found = [pool.submit(perform, run, arguments, file) for run, file in zip(runs, (None, *files))]
        for run, file, future in zip(runs, (None, *files), found):
            print(f"== {run.name}", flush=True)
            results.append(future.result())
            if file is not None:
                file.seek(0)
                print(file.read().decode(errors="replace"), end="")
            print(results[-1].line(), flush=True)
    return results


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


def sweep(since: float) -> None:
    """Remove what MPICH leaves of jobs that were ended, in places that no variable changes: files made after `since` that are not new
    and that no process has open."""
    if not Path("/proc/self/maps").exists():
        return
    found = [*Path("/tmp").glob("hydra_hwloc_xmlfile_*"), *Path("/dev/shm").glob("mpich_shm_*")]
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            used.update(line.split()[-1] for line in maps.read_text().splitlines() if "mpich_shm_" in line)
    for path in found:
        with contextlib.suppress(OSError):
            facts = path.stat()
            own = facts.st_uid == os.getuid() and since < facts.st_mtime < time.time() - LEFT
            if own and str(path) not in used:
                path.unlink()


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
    begun = time.time()
    together = [run for run in runs if run.ranks == 1]
    # one more than there are cores: "jobs" mostly waits
    results = side_by_side(together, rest, len(environment.cores()) + 1) if together else []
    for run in runs:
        if run not in together:
            results += side_by_side([run], rest, 1)
    sweep(begun)
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    print("\n".join(["", *(result.line() for result in results)]))
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
