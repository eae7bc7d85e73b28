"""Collectives over the axis that vmap maps together with others: axes of the mesh, or those of other vmaps.

The instances of such a group are the examples on all devices of a smaller group.  Each function takes all examples of this
device, moves them among themselves along the mapped dim, and communicates over the other axes with the collective of
these: as one step for each run of neighbouring axes in `axes`, of which the first counts most.

`axis.split`: mesh axes that divide the examples between them (vmap's `spmd_axis_name`).  There the mapped axis is itself
such a group, of these axes and of the examples that each device has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import OPS, Op
from mpiarray.core.plan import axes_size, mesh_order
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of, literal
from mpiarray.ops import mapped_axis
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import batch_to, full_of, move_dim, reduce_sum, reshape, transpose
from mpiarray.ops.mapped_axis import Batched, merged, placed, rows, times, whole

Axes = tuple[Any, ...]
OWN, SPLIT, OTHER = "own", "split", "other"


def size_of(axis: BatchAxis, axes: Axes) -> int:
    """The number of instances along axes, of which one may be the mapped one."""
    sizes = {a.name: a.size * axes_size(state.abstract_mesh, a.split) for a in state.mapped}
    sizes[axis.name] = axis.size
    count = 1
    for a in axes:
        count *= sizes[a] if a in sizes else axes_size(state.abstract_mesh, (a,))
    return count


def _runs(axis: BatchAxis, axes: Axes) -> list[tuple[str, Axes]]:
    """Axes with others of their kind beside them: the mapped one, those that divide its examples, others."""
    kind = lambda a: OWN if a == axis.name else SPLIT if a in axis.split else OTHER
    return [(k, tuple(run)) for k, run in itertools.groupby(axes, key=kind)]


def _front(x: Any, axis: BatchAxis, d: int | None) -> Any:
    return batch_to(x, axis._replace(spec=()), None, 0) if d is None else move_dim(whole(x, d), d, 0)


def _varying(x: Any, axes: Axes) -> Any:
    """`x`, which may be the same on all devices that divide the examples, as their collectives take it."""
    if not state.check_vma:
        return x
    missing = set(axes) - aval_of(x).vma
    return OPS["pvary"](x, axes=mesh_order(state.abstract_mesh, missing)) if missing else x


def _numbers(axes: Axes, sizes: Sequence[int], k: int) -> dict[Any, int]:
    """Instance `k` of a group, as its number along each of its axes."""
    return dict(zip(axes, map(int, np.unravel_index(k, sizes))))


def _number(axes: Axes, sizes: Sequence[int], numbers: dict[Any, int]) -> int:
    return int(np.ravel_multi_index([numbers[a] for a in axes], sizes)) if axes else 0


# -- sums and extremes ---------------------------------------------------------------------------------------------


def reduced(local: Callable[..., Batched]) -> Callable[..., Batched]:
    """Among the examples first, then over the other axes; of what is the same for all examples, without the devices that divide them."""

    def rule(op: Op, axis: BatchAxis, among: Axes, x: Any, d: int | None, **params: Any) -> Batched:
        out, _ = local(op, axis, x, d)
        rest = tuple(a for a in among if a != axis.name and a not in axis.split)
        if d is None and op.name == "psum":
            out = times(out, axes_size(state.abstract_mesh, axis.split))
        elif d is not None and axis.split:
            out = _total(op, _varying(out, axis.split), axis.split)
        return (op(out, axes=rest, axis_index_groups=None) if rest else out), None

    return rule


def _total(op: Op, x: Any, axes: Axes) -> Any:
    """Reduced over the devices that divide the examples, and typed as equal on them."""
    if op.name == "psum" and state.check_vma:
        return OPS["psum_invariant"](x, axes=axes)
    return op(x, axes=axes, axis_index_groups=None)


# -- gathers and scatters ------------------------------------------------------------------------------------------


def gathered(
    op: Op, axis: BatchAxis, axes: Axes, x: Any, d: int | None, *, all_gather_dimension: int, tiled: bool, **params: Any
) -> Batched:
    """One axis after another, the last, which counts least, first."""
    at = all_gather_dimension
    x, examples = _front(x, axis, d), 1
    runs = _runs(axis, axes)
    for kind, run in reversed(runs):
        if kind == OWN:
            x, examples = move_dim(x, 0, at), 0
            x = merged(x, at) if tiled else x
            continue
        gather = OPS["all_gather_invariant"] if kind == SPLIT and state.check_vma else op
        x = gather(
            _varying(x, run) if kind == SPLIT else x, all_gather_dimension=at + examples, axis_name=run,
            axis_size=size_of(axis, run), axis_index_groups=None, tiled=tiled,
        )  # fmt: skip
    for _ in range(0 if tiled else len(runs) - 1):
        x = merged(x, at)
    return x, None


def scattered(
    op: Op, axis: BatchAxis, axes: Axes, x: Any, d: int | None, *, scatter_dimension: int, tiled: bool, **params: Any
) -> Batched:
    """One axis after another, the first, which counts most, first."""
    at = scatter_dimension
    x = _front(x, axis, d)
    for kind, run in _runs(axis, axes):
        if kind == OWN:
            total = whole(reduce_sum(x, axes=(0,), out_sharding=None), at)
            x = move_dim(mapped_axis.cut(total, at, axis.size), at, 0)
            continue
        x = op(
            _varying(x, run) if kind == SPLIT else x, scatter_dimension=at + 1, axis_name=run,
            axis_size=size_of(axis, run), axis_index_groups=None, tiled=True,
        )  # fmt: skip
    x = x if tiled else OPS["squeeze"](x, dimensions=(at + 1,))
    return placed(x, axis, 0), 0


# -- exchanges -----------------------------------------------------------------------------------------------------


def exchanged(
    op: Op, axis: BatchAxis, axes: Axes, x: Any, d: int | None, *, split_axis: int, concat_axis: int, tiled: bool,
    **params: Any,
) -> Batched:  # fmt: skip
    """The split dim as one dim for each run of axes; each of them is exchanged for itself, and then they are joined."""
    x, at = _front(x, axis, d), split_axis + 1
    x = whole(x, at)
    runs = _runs(axis, axes)
    shape, sizes = aval_of(x).shape, [size_of(axis, run) for _, run in runs]
    count = int(np.prod(sizes))
    parts = (*sizes, shape[at] // count) if tiled else tuple(sizes)
    x = reshape(x, new_sizes=(*shape[:at], *parts, *shape[at + 1 :]), dimensions=None, sharding=None)
    for k, (kind, run) in enumerate(runs):
        if kind == OWN:
            order = list(range(aval_of(x).ndim))
            order[0], order[at + k] = at + k, 0
            x = transpose(x, permutation=tuple(order))
            continue
        x = op(
            _varying(x, run) if kind == SPLIT else x, axis_name=run if len(run) > 1 else run[0], split_axis=at + k,
            concat_axis=at + k, axis_index_groups=None, tiled=False, axis_size=sizes[k],
        )  # fmt: skip
    senders = range(at, at + len(runs))
    order = [n for n in range(aval_of(x).ndim) if n not in senders]
    order[concat_axis + 1 : concat_axis + 1] = senders
    x = transpose(x, permutation=tuple(order))
    for _ in range(len(runs) - (not tiled)):
        x = merged(x, concat_axis + 1)
    return placed(x, axis, 0), 0


def from_one(op: Op, axis: BatchAxis, axes: Axes, x: Any, d: int | None, *, source: int, **params: Any) -> Batched:
    """The source's example first, so that just this one travels."""
    sizes = [size_of(axis, (a,)) for a in axes]
    numbers = _numbers(axes, sizes, source)
    if d is not None:
        own = numbers[axis.name]
        x = OPS["squeeze"](rows(move_dim(whole(x, d), d, 0), own, own + 1), dimensions=(0,))
    for kind, run in _runs(axis, axes):
        number = _number(run, [size_of(axis, (a,)) for a in run], numbers)
        if kind == OTHER:
            x = op(x, axis_name=run, source=number)
        elif kind == SPLIT and d is not None:
            x = _total(OPS["psum"], only_on(_varying(x, run), run, number), run)
    return x, None


def only_on(x: Any, axes: Axes, number: int) -> Any:
    """`x` on one instance along axes, zeros on the others."""
    index = OPS["axis_index"](axis_name=axes if len(axes) > 1 else axes[0])
    here = OPS["eq"](index, literal(number, np.dtype("int32")))
    return OPS["select_n"](here, full_of(aval_of(x), 0), x)


def numbered(op: Op, axis: BatchAxis, axes: Axes, **params: Any) -> Batched:
    """The numbers along all axes, weighted."""
    index, weight, d = None, 1, None
    for _, run in reversed(_runs(axis, axes)):
        if run == (axis.name,):
            part, d = mapped_axis.numbered(op, axis)
        else:
            part = op(axis_name=run if len(run) > 1 else run[0])
            if d is not None:
                part = batch_to(part, axis, None, 0)
        part = times(part, weight) if weight > 1 else part
        if index is None:
            index = part
        else:
            index = OPS["add"](
                batch_to(index, axis, None, 0) if aval_of(part).ndim > aval_of(index).ndim else index, part
            )
        weight *= size_of(axis, run)
    return index, d


# -- permutations --------------------------------------------------------------------------------------------------


class _Step:
    """Devices send `count` of their examples each: `edges` is destination -> (source, [(example there, example here)])."""

    def __init__(self, edges: dict[int, tuple[int, list[tuple[int, int]]]]):
        self.edges = edges
        self.count = max(len(found) for _, found in edges.values())
        self.pairs = tuple((s, t) for t, (s, _) in sorted(edges.items()))


def _steps(moves: dict[tuple[int, int], list[tuple[int, int]]]) -> Iterator[_Step]:
    """Moves between devices, (source, destination) -> examples, so that each device sends to one and gets from one at a time."""
    left = {pair: list(found) for pair, found in moves.items()}
    while left:
        edges: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        senders: set[int] = set()
        for s, t in sorted(left, key=lambda p: (-len(left[p]), p)):
            if t not in edges and s not in senders:
                senders.add(s)
                edges[t] = s, left[s, t]
        for t, (s, _) in edges.items():
            del left[s, t]
        yield _Step(edges)


def permuted(
    op: Op, axis: BatchAxis, axes: Axes, x: Any, d: int | None, *, perm: tuple[tuple[int, int], ...], **params: Any
) -> Batched:
    """Examples that stay on their device are picked there; others travel in steps, in each of which a device sends to one other."""
    others = _in_mesh_order(axis, axes)
    sizes, other_sizes = [size_of(axis, (a,)) for a in axes], [size_of(axis, (a,)) for a in others]
    moves: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair in perm:
        source, target = (_numbers(axes, sizes, k) for k in pair)
        way = _number(others, other_sizes, source), _number(others, other_sizes, target)
        moves.setdefault(way, []).append((source[axis.name], target[axis.name]))
    x = _varying(_front(x, axis, d), axis.split)
    n, devices = axis.size, int(np.prod(other_sizes))
    origin = np.full((devices, n), -1)  # for each device, which row of all that it has becomes an example; -1: zeros
    stay = {s: found for (s, t), found in moves.items() if s == t}
    for device, found in stay.items():
        for a, b in found:
            origin[device, b] = a
    pool = [x]
    held = n
    for step in _steps({p: found for p, found in moves.items() if p[0] != p[1]}):
        sent = np.full((devices, step.count), -1)
        for t, (s, found) in step.edges.items():
            for k, (a, b) in enumerate(found):
                sent[s, k], origin[t, b] = a, held + k
        pool.append(op(_picked(x, sent, others, False), axis_name=others, perm=step.pairs))
        held += step.count
    everything = pool[0] if len(pool) == 1 else OPS["concatenate"](*pool, dimension=0)
    return placed(_picked(everything, origin, others, True), axis, 0), 0


def _in_mesh_order(axis: BatchAxis, axes: Axes) -> Axes:
    """The other axes, those of the mesh last and in its order, in which a permutation numbers their instances."""
    mesh = state.abstract_mesh
    others = [a for a in axes if a != axis.name]
    named = {a.name for a in state.mapped}
    return (*(a for a in others if a in named), *mesh_order(mesh, [a for a in others if a not in named]))


def _picked(x: Any, table: np.ndarray, axes: Axes, zeros: bool) -> Any:
    """Rows of `x`, as the line of `table` says that belongs to this device's place along axes; zeros for -1.

    zeros: whether it matters that a device whose line is -1 throughout has zeros.
    """
    lines = {tuple(line) for line in table if zeros or (line >= 0).any()}
    if len(lines) == 1:
        (line,) = lines
        return mapped_axis.arranged(x, [None if k < 0 else int(k) for k in line])
    index = OPS["axis_index"](axis_name=axes if len(axes) > 1 else axes[0])
    safe = np.where(table < 0, aval_of(x).shape[0], table).astype(np.int32)
    mine = OPS["dynamic_slice"](safe, index, literal(0, np.dtype("int32")), slice_sizes=(1, table.shape[1]))
    picks = OPS["squeeze"](mine, dimensions=(0,))
    return OPS["gather"](x, picks, dims=(0,), batch_dims=0, mode="fill", fill_value=0, out_sharding=None)
