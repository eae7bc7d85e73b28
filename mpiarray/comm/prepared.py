"""Collectives that are called many times with blocks of one type: what depends on the type is worked out once.

Each function here gives a function of a block, `run(x) -> new block`, that does what its namesake in `collectives` does.
The first call, and any later one with another type of block or after a setting has changed, finds shapes, counts, MPI
datatypes and peers; the rest is one MPI call with ready arguments, or for large reductions the messages of `ring`.  What
has no short way (packing, reductions in rank order, anybody watching) goes to `collectives`, which stays the one place that says what each collective means.
Making such a function is local; calling it is collective over the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.comm import collectives, datatypes, ring, stats
from mpiarray.comm.groups import Group
from mpiarray.config import config

Run = Callable[[Any], np.ndarray]
Blocks = Callable[[tuple[int, ...], Any], Callable[[], np.ndarray]]  # `memory.maker`, or `memory.recycled`
Planner = Callable[[tuple[int, ...], np.dtype, Blocks], Run | None]


def all_reduce(group: Group, op: str) -> Run:
    """`collectives.all_reduce(group, x, op)`."""

    def plan(shape: tuple[int, ...], dtype: np.dtype, blocks: Blocks) -> Run | None:
        native, count, new = datatypes.native(op, dtype), math.prod(shape), blocks(shape, dtype)
        if ring.takes_whole(group, op, dtype, count):

            def run_ring(x: np.ndarray) -> np.ndarray:
                out = new()
                ring.all_reduce(group, x, op, out)
                return out

            return run_ring
        if native is None or (group.ordered and datatypes.depends_on_order(op, dtype)):
            return None
        datatype, reduction = native
        call = group.comm.Allreduce

        def run(x: np.ndarray) -> np.ndarray:
            out = new()
            call((x, count, datatype), (out, count, datatype), reduction)
            return out

        return run

    return _typed(group, plan, lambda x: collectives.all_reduce(group, x, op), moves=False)


def all_gather(group: Group, dim: int = 0, tiled: bool = True) -> Run:
    """`collectives.all_gather(group, x, dim, tiled)`."""

    def plan(shape: tuple[int, ...], dtype: np.dtype, blocks: Blocks) -> Run | None:
        at = collectives.position(dim, len(shape) + (not tiled), "all_gather")
        if math.prod(shape[:at]) != 1:
            return None
        full = collectives.gathered_shape(shape, at, group.size, tiled)
        return _moved(group.comm.Allgather, blocks(full, dtype), dtype, math.prod(shape), group.size)

    return _typed(group, plan, lambda x: collectives.all_gather(group, x, dim, tiled))


def reduce_scatter(group: Group, dim: int = 0, op: str = "sum", tiled: bool = True) -> Run:
    """`collectives.reduce_scatter(group, x, dim, op, tiled)`."""

    def plan(shape: tuple[int, ...], dtype: np.dtype, blocks: Blocks) -> Run | None:
        at = collectives.position(dim, len(shape), "reduce_scatter")
        part = collectives.part_shape(shape, at, group.size, tiled, "reduce_scatter")
        native = datatypes.native(op, dtype)
        if native is None or math.prod(shape[:at]) != 1 or ring.takes(group, op, dtype, math.prod(shape)):
            return None
        datatype, reduction = native
        count, call, new = math.prod(part), group.comm.Reduce_scatter_block, blocks(part, dtype)

        def run(x: np.ndarray) -> np.ndarray:
            out = new()
            call((x, count, datatype), (out, count, datatype), reduction)
            return out

        return run

    return _typed(group, plan, lambda x: collectives.reduce_scatter(group, x, dim, op, tiled), moves=False)


def all_to_all(group: Group, split: int, concat: int, tiled: bool = True) -> Run:
    """`collectives.all_to_all(group, x, split, concat, tiled)`."""

    def plan(shape: tuple[int, ...], dtype: np.dtype, blocks: Blocks) -> Run | None:
        cut = collectives.position(split, len(shape), "all_to_all")
        join = collectives.position(concat, len(shape), "all_to_all")
        part, full = collectives.exchanged_shapes(shape, cut, join, group.size, tiled)
        if math.prod(shape[:cut]) != 1 or math.prod(part[:join]) != 1:
            return None
        return _moved(group.comm.Alltoall, blocks(full, dtype), dtype, math.prod(part), group.size)

    return _typed(group, plan, lambda x: collectives.all_to_all(group, x, split, concat, tiled))


def permute(group: Group, perm: Sequence[tuple[int, int]]) -> Run:
    """`collectives.permute(group, x, perm)`."""
    pairs = tuple(perm)
    source, target = collectives.partners(pairs, group.rank)

    def plan(shape: tuple[int, ...], dtype: np.dtype, blocks: Blocks) -> Run | None:
        if source < 0 or target < 0 or target == group.rank:  # an end of a chain, or nothing to send
            return None
        count, call, tag = math.prod(shape), group.comm.Sendrecv, collectives.TAG_PERMUTE
        new = blocks(shape, dtype)
        datatype, view = datatypes.carrier(dtype)
        if count > datatypes.MAX_COUNT:
            return None
        if view is None:

            def run(x: np.ndarray) -> np.ndarray:
                out = new()
                call((x, count, datatype), target, tag, (out, count, datatype), source, tag)
                return out
        else:

            def run(x: np.ndarray) -> np.ndarray:
                out = new()
                call((x.view(view), count, datatype), target, tag, (out.view(view), count, datatype), source, tag)
                return out

        return run

    return _typed(group, plan, lambda x: collectives.permute(group, x, pairs))


def _moved(call: Any, new: Callable[[], np.ndarray], dtype: np.dtype, count: int, n: int) -> Run | None:
    """A collective of n messages of `count` items each, from a contiguous block into a new one."""
    if count * n > datatypes.MAX_COUNT:
        return None
    datatype, view = datatypes.carrier(dtype)
    if view is None:

        def run(x: np.ndarray) -> np.ndarray:
            out = new()
            call((x, count, datatype), (out, count, datatype))
            return out
    else:

        def run(x: np.ndarray) -> np.ndarray:
            out = new()
            call((x.view(view), count, datatype), (out.view(view), count, datatype))
            return out

    return run


def for_type(run: Run, shape: tuple[int, ...], dtype: np.dtype, *, recycled: bool = False) -> Run | None:
    """What a prepared function comes to for C-contiguous blocks of one type, under the settings of now and while nobody counts
    (`stats.active`); None where it has no short way for them, or is none of this module's.

    `recycled`: it keeps its latest results, and gives them again when nobody holds them.
    """
    blocks = memory.recycled if recycled else memory.maker
    plan: Planner | None = getattr(run, "plan", None)
    return None if plan is None or config.check or config.deterministic else plan(shape, dtype, blocks)


def _typed(group: Group, plan: Planner, general: Callable[[np.ndarray], np.ndarray], *, moves: bool = True) -> Run:
    """A function that calls what `plan` made for the type of its latest block, and `general` where there is no plan.

    moves: it computes nothing, so that numpy has nothing to warn of.
    """
    if group.comm is None:
        return lambda x: general(np.asarray(x))
    ndarray = np.ndarray
    shape: tuple[int, ...] | None = None
    dtype: np.dtype | None = None
    step: Run | None = None
    generation, plain = -1, False

    def run(x: Any) -> np.ndarray:
        nonlocal shape, dtype, step, generation, plain
        if type(x) is not ndarray:
            x = np.asarray(x)
        if config.generation != generation:  # plans hold for the settings under which they were made
            generation, plain, shape = config.generation, config.check or config.deterministic, None
        if plain or stats.active or not x.flags.c_contiguous:
            return general(x)
        if x.shape != shape or x.dtype is not dtype:
            step = plan(x.shape, x.dtype, memory.recycled)
            shape, dtype = x.shape, x.dtype
        return general(x) if step is None else step(x)

    run.plan, run.moves = plan, moves  # type: ignore[attr-defined]  # for who knows the type of all blocks to come
    return run
