"""Jobs that must end by themselves, with a message that says what happened where: nothing hangs.

They run under the plain MPI launcher, so it is the package that ends them. Lines of scripts are counted from `HEAD` on.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mpiarray.tools import environment
from tests.failures.jobs import QUICK, ROOT, Outcome, run_job

pytestmark = pytest.mark.jobs
SOON = 25.0  # seconds; a job that is still there then hangs
HEAD = """
import sys, time
import numpy as np
from mpiarray import comm
group = comm.world_group()
rank, size = comm.rank(), comm.size()
"""
FAMILIES = [
    pytest.param(
        family,
        marks=pytest.mark.skipif(
            not any(mpi.family == family for mpi in environment.find_all()), reason=f"no {family} here"
        ),
    )
    for family in environment.FAMILIES
]


def end_of(script: str, ranks: int, mpi: str = QUICK, **environ: str) -> Outcome:
    """Run HEAD and `script`; the job must not hang."""
    done = run_job(HEAD + script, ranks, limit=SOON, environ=environ, mpi=mpi)
    assert not done.timed_out, f"the job hangs\n{done}"
    return done


@pytest.mark.parametrize("mpi", FAMILIES)
def test_a_rank_that_raises_ends_the_job(mpi):
    script = """
comm.all_reduce(group, np.ones(3))
print('first is done', flush=True)
comm.barrier(group)
if rank == 2:
    raise ValueError('only here')
comm.all_reduce(group, np.ones(3))
print('never')
"""
    done = end_of(script, 4, mpi)
    assert done.status != 0
    said = done.stderr[2].splitlines()
    assert said[0] == "[rank 2] Traceback (most recent call last):", str(done)
    assert any(line.startswith("[rank 2]") and "raise ValueError('only here')" in line for line in said)
    assert "[rank 2] ValueError: only here" in said
    assert all("Traceback" not in text for rank, text in enumerate(done.stderr) if rank != 2), str(done)
    assert all(text == "first is done\n" for text in done.stdout), str(done)


def test_the_same_error_on_all_ranks_is_an_error_of_the_job():
    done = end_of("raise TypeError('everywhere')", 3)
    assert done.status != 0
    assert any("TypeError: everywhere" in text for text in done.stderr)


def test_interrupted_rank_ends_the_job():
    done = end_of("if rank == 1: raise KeyboardInterrupt\ncomm.barrier(group)", 3)
    assert done.status != 0
    assert "KeyboardInterrupt" in done.stderr[1]


@pytest.mark.parametrize("mpi", FAMILIES)
def test_a_rank_that_stays_away_is_named(mpi):
    script = """
comm.barrier(group)
def stays_away():
    time.sleep(100)
def goes_there():
    comm.all_reduce(group, np.ones(5, np.float32))
goes_there() if rank != 1 else stays_away()
"""
    done = end_of(script, 3, mpi, MPIARRAY_TIMEOUT="2")
    assert done.status == 124
    assert "all_reduce" in done.errors, str(done)
    assert "script.py:12" in done.errors, f"the user's line is not named\n{done}"
    assert "rank 1" in done.errors


def test_ranks_that_diverge_are_told_under_check():
    script = """
comm.barrier(group)
try:
    if rank == 3:
        comm.all_gather(group, np.ones(4, np.float32), 0, True)
    else:
        comm.all_reduce(group, np.ones(4, np.float32))
except RuntimeError as error:
    print(error)
print('=== the same collective from different lines')
try:
    if rank == 0:
        comm.all_reduce(group, np.ones(4))
    else:
        comm.all_reduce(group, np.ones(4))
except RuntimeError as error:
    print(error)
"""
    done = end_of(script, 4, MPIARRAY_CHECK="1")
    for text in done.stdout:
        text, lines = text.split("===")
        assert "ranks have diverged" in text, str(done)
        assert "all_reduce" in text
        assert "all_gather" in text
        assert "script.py:11" in text
        assert "script.py:13" in text
        assert "ranks have diverged" in lines
        assert "script.py:19" in lines
        assert "script.py:21" in lines
    assert len(set(done.stdout)) == 1, "every rank says the same"


def test_exit_status_of_a_good_job():
    done = end_of("print(comm.all_reduce(group, np.full(1, rank))[0])", 3, MPIARRAY_CHECK="1", MPIARRAY_TIMEOUT="20")
    assert (done.status, done.stdout, done.stderr) == (0, ("3\n",) * 3, ("",) * 3)


def test_a_rank_that_is_alone_by_mistake_is_warned():
    """The launcher's variables tell of four ranks, the library knows of one: as under another MPI's launcher."""
    variables = environment.without_job(os.environ) | {"OMPI_COMM_WORLD_SIZE": "4", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + "print(size)"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.stdout == "1\n", done.stderr
    assert "the launcher started 4 ranks" in done.stderr
    assert "python -m mpiarray doctor" in done.stderr
