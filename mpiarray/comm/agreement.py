"""Small Python values agreed among ranks: for errors that one rank meets, checks of equality, barriers.

Values are pickled; array data goes through `collectives`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.comm import stats, watch
from mpiarray.comm.collectives import all_reduce
from mpiarray.comm.groups import Group
from mpiarray.config import config


def agree(group: Group, value: Any) -> list[Any]:
    """The values of all members, in group order, on every member."""
    if group.comm is None:
        return [value]
    if stats.active or config.check:
        return watch.run("agree", group, None, (), lambda: group.comm.allgather(value))
    return group.comm.allgather(value)


def compare(group: Group, value: Any) -> list[Any]:
    """As `agree`, for what only MPIARRAY_CHECK sends: it is neither counted nor watched."""
    return [value] if group.comm is None else group.comm.allgather(value)


def barrier(group: Group) -> None:
    """Wait until all members have come here."""
    if group.comm is None:
        return
    if stats.active or config.check:
        watch.run("barrier", group, None, (), group.comm.Barrier)
    else:
        group.comm.Barrier()


def any_failed(group: Group, error: BaseException | None) -> tuple[int, str] | None:
    """(world rank, message) of the first member that hands in an error, on every member; None if none does.

    One small all_reduce when all is well.
    """
    failed = all_reduce(group, np.array(error is not None), "or")
    if not failed:
        return None
    text = None if error is None else f"{type(error).__name__}: {error}"
    for rank, told in zip(group.members, agree(group, text), strict=True):
        if told is not None:
            return rank, told
    raise AssertionError("any_failed: a member reported an error and then none")


def raise_together(group: Group, error: BaseException | None) -> None:
    """Raise on all members if any hands in an error: its own where there is one, RuntimeError on the others."""
    first = any_failed(group, error)
    if error is not None:
        raise error
    if first is not None:
        raise RuntimeError(f"failed on rank {first[0]}: {first[1]}")
