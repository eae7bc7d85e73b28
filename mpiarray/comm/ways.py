"""Which way large blocks are exchanged that do not lie as MPI wants them: found out at work, once per kind of exchange.

    pieces   packed piece by piece into buffers that stay in the cache, sent from rank to rank
    long     the same in pieces twice as long, where what another core has just written is slow to read
    packed   packed whole, one MPI collective; only blocks that fit into the buffers that an exchange may have
    typed    one MPI collective over derived datatypes, which packs inside of MPI

The results are the same, the speed depends on the MPI library, the network and the size.  For each group and size class
the first exchanges are done in turn in each way and timed; then the members agree on one, which stays for the process.
`config.exchange` (MPIARRAY_EXCHANGE) names one instead.  All members have the same blocks and settings, so that they
take the same way at every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray.comm import datatypes
from mpiarray.comm.groups import Group
from mpiarray.config import config

_TRIES = 3
"""Exchanges timed in each way; the fastest counts, since others waited for late ranks or touched new memory."""
_GAIN = 0.9
"""Another way is taken instead of the first one if it needs at most this part of its time."""
_TYPES = 64  # lists of datatypes that are kept


@dataclass
class _Trial:
    seconds: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    chosen: str | None = None


_trials: dict[tuple[tuple[int, ...], str, int], _Trial] = {}


def chosen() -> dict[tuple[tuple[int, ...], str, int], str]:
    """What was agreed so far: (members, kind, bits of the size in bytes) -> way."""
    return {key: trial.chosen for key, trial in _trials.items() if trial.chosen is not None}


def run(group: Group, kind: str, nbytes: int, ways: Mapping[str, Callable[[], None]]) -> None:
    """Do an exchange in the best of several ways; the first one is taken where `config.exchange` names none of them."""
    names = list(ways)
    if config.exchange != "auto" or len(names) == 1:
        ways[config.exchange if config.exchange in ways else names[0]]()
        return
    key = (group.members, kind, nbytes.bit_length())
    trial = _trials.get(key)
    if trial is None:
        trial = _trials[key] = _Trial()
    if trial.chosen is not None:
        ways[trial.chosen if trial.chosen in ways else names[0]]()
        return
    name = names[trial.calls % len(names)]
    start = time.perf_counter()
    ways[name]()
    taken = time.perf_counter() - start
    trial.seconds[name] = min(taken, trial.seconds.get(name, taken))
    trial.calls += 1
    if trial.calls >= _TRIES * len(names):
        trial.chosen = _agreed(group, names, [trial.seconds.get(name, float("inf")) for name in names])


def _agreed(group: Group, names: list[str], seconds: list[float]) -> str:
    """The way whose slowest member is fastest, if that gains enough; collective."""
    mine = np.array(seconds)
    slowest = np.empty_like(mine)
    count, datatype = mine.size, datatypes.double()
    group.comm.Allreduce((mine, count, datatype), (slowest, count, datatype), datatypes.largest())
    best = int(np.argmin(slowest))
    return names[best] if slowest[best] <= _GAIN * slowest[0] else names[0]


@lru_cache(maxsize=_TYPES)
def parts(shape: tuple[int, ...], dtype: np.dtype, dim: int, n: int) -> Parts:
    """Datatypes of the n equal parts along `dim` of a C-order block."""
    return Parts(shape, dtype, dim, n)


class Parts:
    """MPI datatypes for the parts of a block, committed until this object goes."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, dim: int, n: int):
        item, self.view = datatypes.carrier(dtype)
        size = shape[dim] // n
        part = (*shape[:dim], size, *shape[dim + 1 :])
        starts = [(*(0,) * dim, k * size, *(0,) * (len(shape) - dim - 1)) for k in range(n)]
        self.types = [item.Create_subarray(shape, part, start).Commit() for start in starts]
        self.counts: tuple[list[int], list[int]] = ([1] * n, [0] * n)

    def message(self, block: np.ndarray) -> list[Any]:
        """What Alltoallw takes for a block of this shape and dtype."""
        return [block if self.view is None else block.view(self.view), self.counts, self.types]

    def __del__(self, finalized: Callable[[], bool] = datatypes.finalized) -> None:  # at exit globals may be gone
        if not finalized():
            for kind in self.types:
                kind.Free()
