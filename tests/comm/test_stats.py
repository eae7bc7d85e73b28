"""Counting of collectives and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import stats


def test_bytes_moved():
    """The least that one rank must send for a block of 80 bytes."""
    assert stats.bytes_moved("all_reduce", 4, 80) == 120
    assert stats.bytes_moved("all_gather", 4, 80) == 240
    assert stats.bytes_moved("reduce_scatter", 4, 80) == 60
    assert stats.bytes_moved("all_to_all", 4, 80) == 60
    assert stats.bytes_moved("permute", 4, 80) == 80


@pytest.mark.mpi
def test_alone_nothing_is_counted():
    group = comm.device_group((comm.rank(),))
    with comm.counting() as counts:
        comm.all_reduce(group, np.ones(3))
        comm.all_gather(group, np.ones(3))
        comm.barrier(group)
    assert counts.total_calls == counts.total_bytes == counts.total_moved == 0


@pytest.mark.mpi(min_size=2)
def test_counts():
    group = comm.world_group()
    n = group.size
    x = np.ones((n, 2), np.float32)
    with comm.counting() as outer:
        comm.all_reduce(group, x)
        with comm.counting() as inner:
            comm.all_reduce(group, x, "max")
            comm.all_gather(group, x[:1])
            comm.reduce_scatter(group, x)
            comm.all_to_all(group, x, 0, 1)
        comm.permute(group, x, [(0, 1)])
        comm.broadcast(group, x, 0)
        comm.exchange(group, [(k, x[k]) for k in range(n)], [(k, np.empty_like(x[k])) for k in range(n)])
        comm.agree(group, None)
        comm.barrier(group)
    comm.all_reduce(group, x)
    assert inner.calls == {"all_reduce": 1, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    assert outer.calls["all_reduce"] == 2
    assert outer.total_calls == 10
    assert outer.bytes["all_reduce"] == 2 * x.nbytes
    assert inner.bytes["all_gather"] == 8
    assert inner.moved["all_gather"] == 8 * (n - 1)
    assert outer.bytes["exchange"] == 8 * (n - 1), "the block that stays is not sent"
    assert outer.groups["all_reduce", n] == 2
    assert outer.bytes["broadcast"] == (x.nbytes if group.rank == 0 else 0)
    assert stats.active & stats.COUNT == 0


@pytest.mark.mpi(min_size=2)
def test_counts_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), comm.counting():
        raise RuntimeError("inside")
    assert stats.active & stats.COUNT == 0
