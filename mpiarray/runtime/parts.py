"""Some rows of an array on the host of every rank, without the rest: what printing a large array needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.comm.collectives import all_gather_varied
from mpiarray.comm.groups import world_group
from mpiarray.types import dtypes


def rows_of(x: Any, wanted: Sequence[np.ndarray]) -> np.ndarray:
    """The elements of a concrete array at `wanted`, one increasing array of numbers per dim, on every rank.

    Each rank sends what it owns of them and nothing else.  Collective over the world, whatever mesh `x` is on.
    """
    firsts = {s.device.id: s.index for s in x.global_shards if s.replica_id == 0}
    dtype = dtypes.storage(x.dtype)
    spans = {rank: [_span(rows, s, n) for rows, s, n in zip(wanted, index, x.shape)] for rank, index in firsts.items()}
    nothing = (0,) * max(x.ndim, 1)
    group = world_group()
    shapes = [tuple(stop - start for start, stop in spans[r]) if r in spans else nothing for r in range(group.size)]
    mine = None
    if comm.rank() in firsts:
        index = firsts[comm.rank()]
        own = [rows[start:stop] - (s.start or 0) for rows, (start, stop), s in zip(wanted, spans[comm.rank()], index)]
        mine = np.ascontiguousarray(x._block[np.ix_(*own)])
    parts = all_gather_varied(group, mine, shapes, dtype)
    out = np.empty([len(rows) for rows in wanted], dtype)
    for rank, span in spans.items():
        out[tuple(slice(*s) for s in span)] = parts[rank]
    return out


def _span(rows: np.ndarray, index: slice, size: int) -> tuple[int, int]:
    """Which of the rows lie in a block: from one position to before another."""
    start, stop = 0 if index.start is None else index.start, size if index.stop is None else index.stop
    low, high = np.searchsorted(rows, (start, stop))
    return int(low), int(high)
