"""Starts an MPI job of a small script and returns what became of it: for tests of jobs that must fail, and how.

The job runs under the plain MPI launcher, not under `mpiarray run`, which would end a failed job by itself: here it is
the package that must. Each rank's output goes to a file of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpiarray.tools import environment
from mpiarray.tools.run import launcher_command

ROOT = Path(__file__).resolve().parents[2]
# for jobs that are not about an MPI: the family that starts several times faster
QUICK = "mpich" if any(mpi.family == "mpich" for mpi in environment.find_all()) else "auto"
# each rank writes to files of its own: MPI launchers mix lines, and lose some when a job is aborted
REDIRECT = 'r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$@" >"$JOB_FOLDER/out.$r" 2>"$JOB_FOLDER/err.$r"'


@dataclass(frozen=True)
class Outcome:
    """How a job ended: exit status, each rank's output, the launcher's own, seconds, and whether it was killed."""

    status: int
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    launcher: str
    seconds: float
    timed_out: bool

    @property
    def errors(self) -> str:
        """All that was said on stderr."""
        return "".join(self.stderr) + self.launcher

    def __str__(self) -> str:
        """Everything, for the message of a failed assertion."""
        parts = [f"exit status {self.status} after {self.seconds:.1f} s{', killed' * self.timed_out}"]
        for name, texts in (("stdout", self.stdout), ("stderr", self.stderr)):
            parts += [f"--- {name} of rank {rank}:\n{text}" for rank, text in enumerate(texts) if text]
        return "\n".join([*parts, f"--- launcher:\n{self.launcher}"])


def run_job(
    script: str,
    ranks: int,
    *arguments: str,
    limit: float = 60.0,
    environ: Mapping[str, str] | None = None,
    mpi: str = "auto",
) -> Outcome:
    """Run the text `script` on `ranks` ranks; `environ` adds variables. Killed after `limit` seconds."""
    folder = Path(tempfile.mkdtemp(prefix="mpiarray-job-"))
    try:
        file = folder / "script.py"
        file.write_text(textwrap.dedent(script))
        return _run(folder, [sys.executable, str(file), *arguments], ranks, limit, environ or {}, mpi)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, program: Sequence[str], ranks: int, limit: float, extra: Mapping[str, str], mpi: str) -> Outcome:
    cores = len(environment.cores())
    installation = environment.choose(ranks, cores, mpi)
    variables = environment.job_environment(installation, ranks, cores)
    path = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    variables |= {"JOB_FOLDER": str(folder), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | dict(extra)
    command = [*launcher_command(installation, ranks), "sh", "-c", REDIRECT, "sh", *program]
    begun = time.monotonic()
    process = subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        said, status = _kill(process, folder), None
    seconds = time.monotonic() - begun
    texts = {name: tuple(_read(folder / f"{name}.{rank}") for rank in range(ranks)) for name in ("out", "err")}
    text = said.decode(errors="replace")
    return Outcome(status or 0, texts["out"], texts["err"], text, seconds, timed_out=status is None)


def _kill(process: subprocess.Popen[bytes], folder: Path) -> bytes:
    process.terminate()  # lets the MPI launcher take its ranks with it
    try:
        said, _ = process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    for pid in members(f"JOB_FOLDER={folder}"):
        os.kill(pid, signal.SIGKILL)
    return said


def members(mark: str) -> list[int]:
    """The processes that have `mark` ("NAME=value") in their environment, except this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has gone, or is not ours
            continue
    return found


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
