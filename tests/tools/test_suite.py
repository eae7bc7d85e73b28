"""The test runner itself: one verdict for all ranks, the time limit of a test, and what a run counts as."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mpiarray.tools import environment
from tests.failures.jobs import ROOT

pytestmark = pytest.mark.jobs
TESTS = """
    import time
    import pytest
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    pytestmark = pytest.mark.mpi

    def test_passes(tmp_path):
        assert comm.allreduce(1) == comm.size

    def test_fails_on_one_rank():
        assert comm.rank != 1, "rank one alone"

    @pytest.fixture
    def broken_on_one_rank():
        if comm.rank == 2:
            raise ValueError("in the fixture")

    def test_broken_fixture(broken_on_one_rank):
        pass

    def test_skipped_on_one_rank():
        if comm.rank == 0:
            pytest.skip("only here")

    @pytest.mark.mpi(min_size=4)
    def test_for_more_ranks():
        pass

    @pytest.mark.mpi(max_size=1)
    def test_for_fewer_ranks():
        pass
"""
HANGS = """
    import pytest
    from mpi4py import MPI

    @pytest.mark.mpi
    @pytest.mark.limit(2)
    def test_hangs():
        if MPI.COMM_WORLD.rank == 1:
            MPI.COMM_WORLD.recv(source=0)
"""


def run_tests(folder: Path, text: str, ranks: int) -> tuple[subprocess.CompletedProcess[str], dict[str, int] | None]:
    """Run a file of tests with this suite's conftest on some ranks: how it ended, and the counts it left."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copy(ROOT / "setup.cfg", folder)
    (folder / "test_some.py").write_text(textwrap.dedent(text))
    summary = folder / "counts.json"
    variables = environment.without_job(os.environ) | {"PYTHONPATH": str(ROOT), "MPIARRAY_TEST_SUMMARY": str(summary)}
    variables["MPIARRAY_TEST_PART"] = ""
    start = [sys.executable, "-m", "mpiarray", "run", "-n", str(ranks), "--stdout", "root", "--timeout", "60"]
    done = subprocess.run(
        [*start, "-m", "pytest", "--only-mpi", str(folder)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done, json.loads(summary.read_text()) if summary.exists() else None


def test_ranks_agree_on_every_test(tmp_path):
    done, counts = run_tests(tmp_path, TESTS, 3)
    assert done.returncode == 1, done.stderr
    assert counts is not None, done.stdout + done.stderr
    assert (counts["passed"], counts["failed"], counts["error"], counts["skipped"]) == (1, 2, 1, 0), done.stdout
    assert "rank one alone" in done.stdout, "rank 0 shows what happened on rank 1"
    assert "on ranks [1] of 3" in done.stdout
    assert "ValueError: in the fixture" in done.stdout
    assert "the ranks disagree whether to skip" in done.stdout


def test_a_test_that_hangs_ends_the_run(tmp_path):
    done, counts = run_tests(tmp_path, HANGS, 2)
    assert done.returncode == 3, done.stdout + done.stderr
    assert counts is None
    assert "test_hangs: time limit of 2 s exceeded" in done.stderr
    assert "in test_hangs" in done.stderr


@pytest.fixture(scope="module")
def suite():
    spec = importlib.util.spec_from_file_location("suite", ROOT / "launch" / "suite.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["suite"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["suite"]


@pytest.mark.parametrize(
    ("status", "counts", "passed", "failed", "trouble"),
    [
        (0, {"passed": 5, "failed": 0, "error": 0, "skipped": 2, "xfailed": 1, "xpassed": 0}, 5, 0, ""),
        (1, {"passed": 5, "failed": 2, "error": 1, "skipped": 0, "xfailed": 0, "xpassed": 1}, 5, 4, ""),
        (5, {"passed": 0, "failed": 0, "error": 0, "skipped": 0, "xfailed": 0, "xpassed": 0}, 0, 0, ""),
        (2, {"passed": 3, "failed": 0, "error": 0, "skipped": 0}, 3, 1, "broke off with exit status 2"),
        (139, None, 0, 1, "broke off with exit status 139"),
        (124, None, 0, 1, "time limit"),
    ],
)
def test_what_a_run_counts_as(suite, status, counts, passed, failed, trouble):
    result = suite.judge(suite.RUNS[0], status, counts, 1.0)
    assert (result.passed, result.failed, result.trouble) == (passed, failed, trouble)


def test_choice_of_runs(suite, capsys):
    runs, rest = suite.options([])
    assert {(run.mpi, run.ranks) for run in runs if run.mpi} == {
        *(("openmpi", ranks) for ranks in (1, 2, 3, 4, 8)),
        ("mpich", 4),
    }
    assert runs[0].mpi is None
    assert rest == []
    runs, rest = suite.options(["--quick", "tests/types", "-k", "mesh"])
    assert [run.name for run in runs] == ["serial", "compiler", "jobs", "openmpi-4"]
    assert rest == ["-m", "not slow", "tests/types", "-k", "mesh"]
    runs, rest = suite.options(["--runs", "mpich-4,openmpi-2", "-x"])
    assert ([run.name for run in runs], rest) == (["openmpi-2", "mpich-4"], ["-x"])
    with pytest.raises(SystemExit):
        suite.options(["--runs", "none"])
    assert "no run named none; there are serial, compiler, jobs, openmpi-1" in capsys.readouterr().err
