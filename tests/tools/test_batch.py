"""The batch templates of launch/, with a pretended srun and mpiexec that write down how they were called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.failures.jobs import ROOT

pytestmark = pytest.mark.jobs
RECORDER = '#!/bin/sh\necho "$(basename "$0") threads=$OMP_NUM_THREADS limit=$MPIARRAY_TIMEOUT $*" >>"$RECORD"\n'


@pytest.fixture
def batch(tmp_path):
    """Run a template with variables and arguments; give what it called, and how it ended."""
    for name in ("srun", "mpiexec"):
        (tmp_path / name).write_text(RECORDER)
        (tmp_path / name).chmod(0o755)

    def run(template: str, *arguments: str, **variables: str) -> tuple[int, list[str], str]:
        record = tmp_path / "record"
        environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "RECORD": str(record)} | variables
        done = subprocess.run(
            ["bash", str(ROOT / "launch" / template), *arguments],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, record.read_text().splitlines() if record.exists() else [], done.stderr

    return run


def test_slurm(batch):
    status, calls, _ = batch("slurm.sbatch", "a.py", "x y", SLURM_CPUS_PER_TASK="4", MPIARRAY_PYTHON="/v/python")
    common = "srun threads=4 limit=600 --mpi=pmix --cpu-bind=cores --kill-on-bad-exit=1 /v/python"
    assert status == 0
    assert calls == [f"{common} -m mpiarray doctor", f"{common} a.py x y"]
    status, calls, said = batch("slurm.sbatch")
    assert status == 2
    assert "usage: sbatch" in said


def test_pbs(batch, tmp_path: Path):
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\n")
    variables = {"PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": str(tmp_path)}
    status, calls, said = batch("pbs.sh", SCRIPT="a.py", ARGS="x y", **variables)
    assert status == 0, said
    common = "mpiexec threads=1 limit=600 -n 4 .venv/bin/python"
    assert calls == [f"{common} -m mpiarray doctor", f"{common} a.py x y"]
    status, _, said = batch("pbs.sh", **variables)
    assert status == 2
    assert "usage: qsub" in said
