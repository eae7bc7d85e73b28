"""`gather_many` and `scatter_many`: several small gathers, or sums that are scattered, in one message.

The biases of layers whose parameters are spread over ranks are gathered before they are used, and their slopes are summed and
scattered; each message has a price of its own, many times that of its few bytes.  The pass `combine` puts such together.

A message has the blocks one after the other: of a scattered sum first all that rank 0 gets, then what rank 1 gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpiarray import memory
from mpiarray.comm import collectives as mpi
from mpiarray.comm import datatypes, prepared, stats
from mpiarray.comm.groups import Group
from mpiarray.config import config
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.plan import Plan, replicated
from mpiarray.ops.collectives import Groups, all_gather, reduce_scatter
from mpiarray.types.aval import ShapedArray

_NEVER = Undefined("it only stands in compiled programs, after derivatives are taken")
Way = tuple[int, bool]  # the dim that is gathered or scattered, and whether it is there already (tiled)


class _Buffers(NamedTuple):
    """What a call works with, kept for the next one; whoever comes when it is in use gets another."""

    sent: np.ndarray
    parts: list[np.ndarray]  # of what is sent, one for each block
    come: np.ndarray | None = None
    found: Sequence[np.ndarray] = ()  # parts of what comes, in the order of the results' elements
    call: Callable[[], Any] | None = None


class _Many:
    """The function of blocks; their shapes are found out by the first call."""

    def __init__(self, group: Group, ways: Sequence[Way]):
        self.group, self.ways = group, ways
        self.free: list[_Buffers] = []
        self.shapes: list[tuple[int, ...]] = []  # of the results
        self.cuts: list[tuple[int, int, int]] = []  # of the whole blocks: before the dim, ranks, of it and after
        self.places: list[slice] = []  # in what a rank gives or gets
        self.size, self.dtype = 0, np.dtype(bool)

    def taken(self, blocks: Sequence[np.ndarray]) -> _Buffers:
        """Buffers for these blocks, who puts them back into `free`."""
        if not self.places:
            for x, (dim, tiled) in zip(blocks, self.ways, strict=True):
                self._lay_out(x.shape, dim, tiled)
            self.size, self.dtype = self.places[-1].stop, blocks[0].dtype
        try:
            return self.free.pop()
        except IndexError:
            return self.made()

    def _lay_out(self, shape: tuple[int, ...], dim: int, tiled: bool) -> None:
        raise NotImplementedError

    def made(self) -> _Buffers:
        raise NotImplementedError

    def _place(self, shape: tuple[int, ...], before: int, size: int) -> None:
        start = self.places[-1].stop if self.places else 0
        self.places.append(slice(start, start + size))
        self.shapes.append(shape)
        self.cuts.append((before, self.group.size, size // max(1, before)))

    def by_rank(self, whole: np.ndarray) -> list[np.ndarray]:
        """The parts, of all ranks, of an array with one row a rank: in the order of a whole block's elements."""
        return [
            whole[:, place].reshape(n, before, after).swapaxes(0, 1)
            for place, (before, n, after) in zip(self.places, self.cuts)
        ]


class _Gathers(_Many):
    """Each block is gathered in its way."""

    def _lay_out(self, shape: tuple[int, ...], dim: int, tiled: bool) -> None:
        at = mpi.position(dim, len(shape) + (not tiled), "all_gather")
        full = mpi.gathered_shape(shape, at, self.group.size, tiled)
        self._place(full, math.prod(shape[:at]), math.prod(shape))

    def made(self) -> _Buffers:
        n, comm = self.group.size, self.group.comm
        sent, come = memory.empty((self.size,), self.dtype), memory.empty((n, self.size), self.dtype)
        call = comm and partial(comm.Allgather, datatypes.wire(sent), datatypes.wire(come, n))
        return _Buffers(sent, [sent[place] for place in self.places], come, self.by_rank(come), call)

    def __call__(self, *blocks: Any) -> list[np.ndarray]:
        buffers = self.taken(blocks)
        for part, x in zip(buffers.parts, blocks):
            part[...] = x.reshape(-1)
        if stats.active or config.check or buffers.call is None:
            mpi.all_gather(self.group, buffers.sent, 0, False, out=buffers.come)
        else:
            buffers.call()
        found = [part.copy().reshape(shape) for part, shape in zip(buffers.found, self.shapes)]
        self.free.append(buffers)
        return found


class _Scatters(_Many):
    """Each block is summed, and this rank's part taken in the block's way; results are parts of one array."""

    def __init__(self, group: Group, ways: Sequence[Way]):
        super().__init__(group, ways)
        self.send = prepared.reduce_scatter(group, 0, "sum", False)

    def _lay_out(self, shape: tuple[int, ...], dim: int, tiled: bool) -> None:
        at = mpi.position(dim, len(shape), "reduce_scatter")
        part = mpi.part_shape(shape, at, self.group.size, tiled, "reduce_scatter")
        self._place(part, math.prod(shape[:at]), math.prod(part))

    def made(self) -> _Buffers:
        sent = memory.empty((self.group.size, self.size), self.dtype)
        return _Buffers(sent, self.by_rank(sent))

    def __call__(self, *blocks: Any) -> list[np.ndarray]:
        buffers = self.taken(blocks)
        for part, cut, x in zip(buffers.parts, self.cuts, blocks):
            part[...] = x.reshape(cut)
        mine = self.send(buffers.sent)
        self.free.append(buffers)
        return [mine[place].reshape(shape) for place, shape in zip(self.places, self.shapes)]


def _many(name: str, single: Op, dimension: str, run: Callable[..., Any]) -> Op:
    """The op of several blocks that `single` is of one, with a way for each."""

    def type_rule(*xs: ShapedArray, ways: Sequence[Way], **params: Any) -> list[Out]:
        return [single.type_rule(x, **params, **{dimension: d, "tiled": tiled}) for x, (d, tiled) in zip(xs, ways)]

    def build(
        ctx: DeviceContext,
        *,
        axis_name: tuple[str, ...],
        axis_size: int,
        axis_index_groups: Groups,
        ways: Sequence[Way],
    ) -> Callable[..., Any]:
        return run(ctx.group(axis_name, axis_index_groups), ways)

    def plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
        return Plan(
            tuple(replicated(a.ndim) for a in avals),
            tuple(replicated(len(out.shape)) for out in type_rule(*avals, **params)),
        )

    return define(
        name,
        type_rule=type_rule,
        plan=plan,
        build=build,
        jvp=_NEVER,
        transpose=_NEVER,
        batch=_NEVER,
        multiple_results=True,
        hlo_name=single.hlo_name,
    )


gather_many = _many("gather_many", all_gather, "all_gather_dimension", _Gathers)
scatter_many = _many("scatter_many", reduce_scatter, "scatter_dimension", _Scatters)
