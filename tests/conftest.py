"""How the tests run: which tests belong to which run, one verdict for all ranks, and a time limit for each test.

Tests marked `mpi` run under an MPI launcher (also with one rank), all others in one process without MPI; `launch/test`
starts both kinds. Under MPI every rank runs the same tests in the same order, and after each phase of a test the ranks
agree on its outcome: a failure on any rank is a failure on all, shown with that rank's report.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from mpiarray.tools import environment

RANK = environment.launcher_rank()
UNDER_MPI = RANK is not None
LIMIT = float(os.environ.get("MPIARRAY_TEST_LIMIT", "60" if UNDER_MPI else "180"))  # seconds for one test
LIMIT_EXCEEDED = 3  # exit status
ON_RANKS = "pytest.mark.mpi"  # how tests say that they are for ranks

# every rank must generate the same cases, and a run must be repeatable
hypothesis.settings.register_profile("ranks", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("ranks")

if UNDER_MPI:
    os.environ.setdefault("MPIARRAY_TIMEOUT", "120")
    # pytest numbers and cleans its temporary folders: ranks that share them get in each other's way
    own_root = Path(tempfile.gettempdir(), f"mpiarray-tests-{os.getuid()}-rank{RANK}")
    own_root.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own_root)


class Ranks:
    """The ranks of this run, on a communicator that no test uses."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.rank = self.comm.rank
        self.size = self.comm.size
        self.smallest = MPI.MIN

    def agree(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        return self.comm.allgather(value)

    def same(self, number: int) -> bool:
        """Whether all ranks have this number: one small message, for what is true nearly always."""
        found = np.array([number, -number])
        self.comm.Allreduce(found.copy(), found, op=self.smallest)
        return bool(found[0] == number == -found[1])


ranks: Ranks | None = None
stderr_file = 2


def pytest_configure(config: pytest.Config) -> None:
    global ranks, stderr_file
    stderr_file = os.dup(2)  # before pytest captures it: a report of a hang must get out
    if UNDER_MPI:
        ranks = Ranks()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Under MPI, do not read files without a test for ranks: on many ranks that share cores it takes longer than the tests."""
    if not UNDER_MPI or collection_path.suffix != ".py":
        return None
    return True if ON_RANKS not in collection_path.read_text(encoding="utf-8") else None


def part_of(item: pytest.Item) -> str:
    """The run of `launch/test` that a test for one process belongs to."""
    if item.get_closest_marker("jobs"):
        return "jobs"
    return "compiler" if item.path.parent.name in ("compiler", "core") else "others"


def belongs(item: pytest.Item) -> bool:
    """Whether the test is one for this run."""
    wanted = os.environ.get("MPIARRAY_TEST_PART")
    if wanted and wanted != part_of(item):
        return False
    mark = item.get_closest_marker("mpi")
    if ranks is None or mark is None:
        return ranks is None and mark is None
    return mark.kwargs.get("min_size", 1) <= ranks.size <= mark.kwargs.get("max_size", ranks.size)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not belongs(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if belongs(item)]
    if ranks is not None and ranks.size > 1:
        lists = ranks.agree([item.nodeid for item in items])
        if any(names != lists[0] for names in lists):
            different = sorted(set(lists[0]) ^ {name for names in lists for name in names if names != lists[0]})
            raise pytest.UsageError(f"the ranks have collected different tests: {different[:5] or 'other order'}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave modules and tests out of garbage collection from now on: there is no garbage in them, and much to look through."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if ranks is not None and ranks.size > 1 and (call.when == "call" or may_end_early(item)):
        agree_on(report, ranks)
    return report


def may_end_early(item: pytest.Item) -> bool:
    """Whether the ranks have to agree before and after the test itself, too: it has fixtures, or marks that may skip it."""
    values: set[str] = set()  # what parametrize gives cannot fail
    for mark in item.iter_markers("parametrize"):
        if not mark.kwargs.get("indirect"):
            names = mark.args[0]
            values.update(name.strip() for name in (names.split(",") if isinstance(names, str) else names))
    fixtures = set(getattr(item, "fixturenames", ())) - values
    return bool(fixtures) or any(item.get_closest_marker(name) for name in ("skip", "skipif", "xfail"))


def agree_on(report: pytest.TestReport, ranks: Ranks) -> None:
    """Make one verdict of all ranks' reports: a failure anywhere, or a skip of some, is a failure on each."""
    number = ("passed", "skipped", "failed").index(report.outcome)
    if ranks.same(number) and report.outcome != "failed":
        return
    own = re.sub(r"\b0x[0-9a-f]+", "0x...", report.longreprtext)  # addresses differ, and say nothing
    verdicts = ranks.agree((report.outcome, own))
    outcomes = [outcome for outcome, _ in verdicts]
    if len(set(outcomes)) == 1 and (outcomes[0] != "failed" or len({text for _, text in verdicts}) == 1):
        return
    failed = [(rank, text) for rank, (outcome, text) in enumerate(verdicts) if outcome == "failed"]
    by_text: dict[str, list[int]] = {}
    for rank, text in failed:
        by_text.setdefault(text, []).append(rank)
    parts = [f"=== on ranks {members} of {ranks.size}:\n{text}" for text, members in by_text.items()]
    report.outcome = "failed"
    report.longrepr = "\n".join(parts) or f"the ranks disagree whether to skip: {outcomes}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("limit")
    limit = float(mark.args[0]) if mark else LIMIT

    def too_long() -> None:
        where = f"rank {RANK}, " if UNDER_MPI else ""
        os.write(stderr_file, f"\n{where}{item.nodeid}: time limit of {limit:g} s exceeded\n".encode())
        faulthandler.dump_traceback(stderr_file, all_threads=True)
        if ranks is not None and ranks.size > 1:
            time.sleep(2)  # the others come to their limits about now: let them say where they are
        os._exit(LIMIT_EXCEEDED)  # the launcher ends the other ranks

    timer = threading.Timer(limit, too_long)
    timer.daemon = True
    timer.start()
    # for a test that holds the interpreter's lock, where no other thread can run
    faulthandler.dump_traceback_later(limit + 5, exit=True, file=stderr_file)
    try:
        return (yield)
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Leave the counts where `launch/test` adds them up (rank 0's are everybody's)."""
    path = os.environ.get("MPIARRAY_TEST_SUMMARY")
    if path and not RANK:
        names = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
        counts = {name: len(terminalreporter.stats.get(name, [])) for name in names}
        Path(path).write_text(json.dumps(counts))


def pytest_unconfigure() -> None:
    sys.stdout.flush()
