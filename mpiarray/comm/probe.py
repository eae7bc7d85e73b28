"""What MPI and this rank say about themselves: the facts that the doctor (mpiarray.tools.doctor) judges.

Here because only this package uses mpi4py. It is a program of its own as well: the doctor starts it by path in a job,
so that it answers also where the rest of the package does not. It uses COMM_WORLD itself, since it stands in no program
of a user. mpi4py's extension module, which starts MPI, is imported at the first need, as in `world`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

EXCHANGE = 1 << 16  # bytes that each rank sends to its neighbour: enough to leave the first buffer of a transport


def facts() -> dict[str, Any]:
    """This rank's facts; starts MPI. Without communication, so it is safe on a rank that is alone by mistake."""
    mpi = importlib.import_module("mpi4py.MPI")
    levels = {
        mpi.THREAD_SINGLE: "single",
        mpi.THREAD_FUNNELED: "funneled",
        mpi.THREAD_SERIALIZED: "serialized",
        mpi.THREAD_MULTIPLE: "multiple",
    }
    return {
        "rank": mpi.COMM_WORLD.Get_rank(),
        "size": mpi.COMM_WORLD.Get_size(),
        "library": mpi.Get_library_version().strip("\0\n ").splitlines()[0].split(",")[0],
        "standard": ".".join(map(str, mpi.Get_version())),
        "thread_level": levels.get(mpi.Query_thread(), "unknown"),
        "mpi4py": importlib.metadata.version("mpi4py"),
        "host": platform.node(),
        "pid": os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
    }


def gather(extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every rank's facts and `extra`, on every rank, after each rank has sent its neighbour some bytes. Collective."""
    mpi = importlib.import_module("mpi4py.MPI")
    own = facts() | dict(extra)
    comm, rank, size = mpi.COMM_WORLD, own["rank"], own["size"]
    received = bytearray(EXCHANGE)
    comm.Sendrecv(_pattern(rank), (rank + 1) % size, 0, received, (rank - 1) % size, 0)
    own["exchange"] = received == _pattern((rank - 1) % size)
    return comm.allgather(own)


def _pattern(rank: int) -> bytearray:
    return bytearray([rank % 251 + 1]) * EXCHANGE


def main() -> int:
    """Print the list of all ranks' facts as one line of JSON, on the ranks that MPI calls rank 0."""
    everyone = gather({})
    if everyone[0]["pid"] == os.getpid() and everyone[0]["host"] == platform.node():
        print(json.dumps(everyone), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
