"""When MPI starts, and what happens with a user's own MPI: each in a process of its own."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpiarray import comm
from mpiarray.tools import environment

world = importlib.import_module("mpiarray.comm.world")  # `comm.world` is its function

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, **environ: str) -> str:
    """stdout of a script in one process without a launcher."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment.without_job(os.environ) | {"PYTHONPATH": path} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_starts_nothing():
    said = run("""
import sys
import mpiarray
from mpiarray import comm
print("mpi4py.MPI" in sys.modules, comm.started(), comm.rank_hint(), comm.size_hint())
""")
    assert said == "False False None None\n"


def test_hints_come_from_the_launcher():
    script = "from mpiarray import comm; print(comm.rank_hint(), comm.size_hint(), comm.started())"
    assert run(script, OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="4") == "3 4 False\n"
    assert run(script, PMI_RANK="1", PMI_SIZE="2") == "1 2 False\n"


def launched(size, local, version="5.0.11"):
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_SIZE": local}
    return variables | ({"OMPI_VERSION": version} if version else {})


NODES = [  # environment, whether it is known to be Open MPI 5 on one node
    (launched("4", "4"), True),
    (launched("4", "2"), False),
    (launched("4", "4", "4.1.6"), False),
    (launched("4", "4", None), False),
    ({"PMIX_RANK": "0"}, False),
    ({"PMIX_RANK": "0", "SLURM_PROCID": "0", "SLURM_NNODES": "1"}, False),
    ({"PALS_RANKID": "0"}, False),
]


@pytest.mark.parametrize(("variables", "one"), NODES)
def test_one_node(variables, one):
    assert world.is_open_mpi_on_one_node(variables) == one


@pytest.mark.parametrize(
    ("version", "file", "one"), [("5.0.8", False, True), ("5.0.8", True, False), ("4.1.5", False, False)]
)
def test_one_node_without_a_launcher(version, file, one, monkeypatch, tmp_path):
    """The wheel of version 5, unless the user has settings in a file."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setattr(world, "_PARAMETERS", str(tmp_path / "mca-params.conf"))
    if file:
        (tmp_path / "mca-params.conf").write_text("btl = self,sm")
    assert world.is_open_mpi_on_one_node({}) == one


BTL = world._TRANSPORTS


@pytest.mark.parametrize(
    ("given", "seen"),
    [(launched("4", "4"), "^ofi"), (launched("4", "4") | {BTL: "self,sm"}, "self,sm"), (launched("4", "2"), None)],
)
def test_settings_for_the_start(given, seen, monkeypatch):
    """Open MPI 5 sleeps a second over a transport that one node has no use for; nothing of it is left afterwards."""
    for name in (BTL, *launched("1", "1")):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with world._settings_for_start():
        assert os.environ.get(BTL) == seen
    assert os.environ.get(BTL) == given.get(BTL)


def test_users_mpi_after_ours():
    """mpi4py imported by the user finds a running MPI, as without us."""
    said = run("""
from mpiarray import comm
import mpi4py
from mpi4py import MPI
print(MPI.Is_initialized(), MPI.COMM_WORLD.size, comm.started(), mpi4py.rc.initialize)
print(comm.size(), comm.started())
import atexit
atexit.register(lambda: print(MPI.Is_finalized()))
""")
    assert said == "True 1 False True\n1 True\nFalse\n"


def test_users_mpi_first_and_threads_as_the_user_wants():
    said = run("""
import mpi4py
mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
from mpiarray import comm
print(comm.size(), MPI.Query_thread() == MPI.THREAD_SERIALIZED)
""")
    assert said == "1 True\n"


def test_a_user_who_does_not_initialise():
    """mpi4py then leaves finalising to the user, so whoever initialised does it: here, this package."""
    said = run("""
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from mpiarray import comm
import atexit
print(MPI.Is_initialized())
atexit.register(lambda: print("finalised", MPI.Is_finalized()))
print(comm.size(), MPI.Is_initialized())
""")
    assert said == "False\n1 True\nfinalised True\n"


def test_mpi_that_has_ended_is_an_error():
    said = run("""
from mpi4py import MPI
MPI.Finalize()
from mpiarray import comm
try:
    comm.rank()
except RuntimeError as error:
    print(error)
""")
    assert "already finalised" in said


def test_one_rank_needs_no_mpi_library():
    """Without a library one process works alone; a job of several ranks is told what is missing."""
    hide = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI":
            raise RuntimeError("cannot load MPI library")
sys.meta_path.insert(0, Missing())
import numpy as np
from mpiarray import comm
"""
    alone = "group = comm.world_group(); print(comm.size(), comm.all_reduce(group, np.ones(2)), comm.agree(group, 3))"
    assert run(hide + alone) == "1 [1. 1.] [3]\n"
    caught = "\ntry:\n    comm.size()\nexcept RuntimeError as error:\n    print(error)"
    said = run(hide + caught, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4")
    assert "started on 4 ranks, but mpi4py cannot load an MPI library" in said
    assert "pip install" in said


@pytest.mark.mpi
def test_world():
    world = comm.world()
    assert comm.world() is world
    assert (comm.rank(), comm.size()) == (world.rank, world.size)
    assert (comm.rank_hint(), comm.size_hint()) == (world.rank, world.size)
    assert comm.started()
    group = comm.world_group()
    assert comm.agree(group, world.rank) == list(range(world.size))


@pytest.mark.mpi(min_size=2)
def test_exception_hook_is_ours():
    comm.world()
    assert sys.excepthook.__module__ == "mpiarray.comm.world"
