"""Rows that other ranks own: what gather and scatter do on blocks when an indexed dim is sharded.

Two ways. `owned_*`: every rank knows all index arrays, takes or writes what is in its own block, and a sum over the owners
makes the result; this is for few places, or results that all ranks want. `fetch_rows` and `send_rows`: each rank has its
part of the places, and exchanges indices and rows with the owners directly, so that nothing is larger than a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.comm import collectives as mpi
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Out, Undefined, define
from mpiarray.core.plan import Dims, LocalContext, Plan, axes_size, replicated
from mpiarray.core.value import aval_of
from mpiarray.ops.collectives import reduce_over, scatter_sum
from mpiarray.ops.indexed import flat_places, heads_first, put, put_rows, take
from mpiarray.ops.linear import add_any, full_of
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


def rest_dims(ndim: int, dims: Sequence[int], batch_dims: int) -> tuple[int, ...]:
    """The operand's dims that are neither batch nor indexed."""
    return tuple(d for d in range(batch_dims, ndim) if d not in dims)


def result_shape(
    x: ShapedArray, index_shape: tuple[int, ...], dims: tuple[int, ...], batch_dims: int
) -> tuple[int, ...]:
    """The shape of a gather's result and of a scatter's updates."""
    return (*index_shape, *(x.shape[d] for d in rest_dims(x.ndim, dims, batch_dims)))


def default_fill(dtype: Any) -> Any:
    """What a read outside of the operand gives: NaN, the smallest signed or the largest unsigned integer, True."""
    if dtypes.is_key(dtype):
        return 0
    if dtypes.is_bool(dtype):
        return True
    if dtypes.is_int(dtype):
        info = dtypes.iinfo(dtype)
        return info.min if info.min < 0 else info.max
    return math.nan


# -- owners take part ------------------------------------------------------------------------------


class OwnedGather:
    """Each rank reads the places that it owns, and zeros elsewhere; the sum over the owners is the result."""

    def __init__(
        self, axes: Dims, outs: Dims, scatters: Sequence[tuple[tuple[str, ...], int]], summed: tuple[str, ...]
    ):
        self.axes, self.outs, self.scatters, self.summed = axes, outs, scatters, summed

    def __call__(self, ctx: LocalContext, x: Any, *indices: Any, out_sharding: Any, **params: Any) -> Any:
        part = owned_gather(x, *indices, **params, **_global_sizes(ctx, x, params["dims"], self.axes))
        for axes, d in self.scatters:
            part = scatter_sum(part, axes, d)
        return reduce_over(part, "or" if dtypes.is_bool(aval_of(part).dtype) else "sum", self.summed)


class OwnedScatter:
    """Each rank writes what belongs to its rows; updates that are spread over `summed` axes are added up first."""

    def __init__(self, axes: Dims, summed: tuple[str, ...]):
        self.axes, self.summed = axes, summed

    def __call__(self, ctx: LocalContext, x: Any, updates: Any, *indices: Any, out_sharding: Any, **params: Any) -> Any:
        base = full_of(aval_of(x), 0) if self.summed else x
        where = _global_sizes(ctx, x, params["dims"], self.axes)
        part = owned_scatter(base, updates, *indices, **params, **where)
        return add_any(x, reduce_over(part, "sum", self.summed)) if self.summed else part


def _global_sizes(ctx: LocalContext, x: Any, dims: Sequence[int], axes: Dims) -> dict[str, Any]:
    """The whole sizes of the indexed dims of a block, and what they are sharded over."""
    shape = aval_of(x).shape
    return {"sizes": tuple(shape[d] * axes_size(ctx.mesh, a) for d, a in zip(dims, axes)), "axes": axes}


def _own_indices(
    ctx: DeviceContext, sizes: Sequence[int], axes: Dims, clip: bool
) -> Callable[[Sequence[Any]], tuple[list[np.ndarray], np.ndarray | None]]:
    """Global indices -> indices in this rank's block, -1 where another rank owns the place; and where no rank does."""
    numbers = [ctx.index(a) for a in axes]
    parts = [n // ctx.size(a) for n, a in zip(sizes, axes)]

    def localize(indices: Sequence[Any]) -> tuple[list[np.ndarray], np.ndarray | None]:
        out, outside = [], None
        for i, n, k, m in zip(indices, sizes, numbers, parts):
            i = np.asarray(i).astype(np.int64)
            if clip:
                i = np.clip(i, 0, max(n - 1, 0))
            else:
                beyond = (i < 0) | (i >= n)
                outside = beyond if outside is None else outside | beyond
            i = i - k * m
            out.append(np.where((i >= 0) & (i < m), i, -1))
        return out, outside

    return localize


def _owned_gather_build(
    ctx: DeviceContext, *, dims: Any, batch_dims: int, mode: str, fill_value: Any, sizes: Sequence[int], axes: Dims
) -> Callable[..., Any]:
    localize = _own_indices(ctx, sizes, axes, mode != "fill")
    first = all(ctx.index(a) == 0 for a in axes)

    def run(x: Any, *indices: Any) -> np.ndarray:
        mine, outside = localize(indices)
        zero = np.zeros((), x.dtype)[()]
        out = take(x, mine, dims, batch_dims, "fill", zero)
        if first and outside is not None and outside.any():
            fill = default_fill(x.dtype) if fill_value is None else fill_value
            out = np.array(out)
            out[outside] = fill
        return out

    return run


_COMPILED_ONLY = "it only stands in compiled programs, after derivatives are taken"


def _rows_type(x: ShapedArray, *indices: ShapedArray, dims: Any, batch_dims: int, **params: Any) -> Out:
    return Out(result_shape(x, indices[0].shape, dims, batch_dims), x.dtype, x.weak_type)


def _rows_plan(avals: tuple[ShapedArray, ...], *, dims: Any, batch_dims: int, **params: Any) -> Plan:
    ndim = avals[0].ndim - len(dims) - batch_dims + avals[1].ndim
    return Plan(tuple(replicated(a.ndim) for a in avals), (replicated(ndim),))


owned_gather = define(
    "owned_gather",
    type_rule=_rows_type,
    plan=_rows_plan,
    build=_owned_gather_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="gather",
)


def _owned_scatter_build(
    ctx: DeviceContext, *, dims: Any, batch_dims: int, mode: str, combine: str, sizes: Sequence[int], axes: Dims
) -> Callable[..., Any]:
    localize = _own_indices(ctx, sizes, axes, mode == "clip")
    return lambda x, updates, *indices: put(x, updates, localize(indices)[0], dims, batch_dims, "fill", combine)


owned_scatter = define(
    "owned_scatter",
    type_rule=lambda x, updates, *indices, **params: Out(x.shape, x.dtype, x.weak_type),
    plan=lambda avals, **params: Plan(tuple(replicated(a.ndim) for a in avals), (replicated(avals[0].ndim),)),
    build=_owned_scatter_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="scatter",
)

# -- rows exchanged with their owners ----------------------------------------------------------------


class _Routes:
    """Which rank owns each place of this rank's index arrays, and where it is in that rank's block."""

    def __init__(self, ctx: DeviceContext, sizes: Sequence[int], axes: Dims, batch_dims: int, clip: bool):
        self.group = ctx.group(tuple(a for entry in axes for a in entry))
        self.counts = [ctx.size(a) for a in axes]
        self.parts = [n // k for n, k in zip(sizes, self.counts)]
        self.sizes, self.batch_dims, self.mode = sizes, batch_dims, "clip" if clip else "fill"

    def find(self, indices: Sequence[Any], batch: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Places sorted by owner: (flat place in the owner's block, its number in S, where no rank owns it).

        Also sets `sent`, how many go to each owner.
        """
        indices = [np.asarray(i).astype(np.int64) for i in indices]
        outside = None
        if self.mode == "fill":
            outside = np.logical_or.reduce([(i < 0) | (i >= n) for i, n in zip(indices, self.sizes)]).reshape(-1)
        inside = [np.clip(i, 0, max(n - 1, 0)) for i, n in zip(indices, self.sizes)]
        owner = np.zeros(inside[0].shape, np.int64)
        for i, k, m in zip(inside, self.counts, self.parts):
            owner = owner * k + i // max(m, 1)
        within = [i % max(m, 1) for i, m in zip(inside, self.parts)]
        flat, _ = flat_places(within, (*batch, *self.parts), self.batch_dims, "clip")
        owner = owner.reshape(-1)
        numbers = np.argsort(owner, kind="stable")
        if outside is not None:
            numbers = numbers[~outside[numbers]]
        self.sent = np.bincount(owner[numbers], minlength=self.group.size)
        return flat[numbers], numbers, outside

    def swap_counts(self) -> None:
        """Learn how many places each rank asks this one for."""
        self.received = mpi.all_to_all(self.group, self.sent.astype(np.int64), 0, 0, True)

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the order of `find`, at the owners: in the order of the ranks they come from."""
        return self._exchange(rows, self.sent, self.received)

    def from_owners(self, rows: np.ndarray) -> np.ndarray:
        """Answers in the order in which the owners got the questions, back where these came from."""
        return self._exchange(rows, self.received, self.sent)

    def _exchange(self, rows: np.ndarray, sent: np.ndarray, received: np.ndarray) -> np.ndarray:
        out = np.empty((int(received.sum()), *rows.shape[1:]), rows.dtype)
        ends, starts = np.cumsum(sent), np.cumsum(received)
        sends = [(k, rows[e - n : e]) for k, (e, n) in enumerate(zip(ends, sent))]
        recvs = [(k, out[e - n : e]) for k, (e, n) in enumerate(zip(starts, received))]
        mpi.exchange(self.group, sends, recvs)
        return out


def _fetch_build(
    ctx: DeviceContext, *, dims: Any, batch_dims: int, mode: str, fill_value: Any, sizes: Sequence[int], axes: Dims
) -> Callable[..., Any]:
    routes = _Routes(ctx, sizes, axes, batch_dims, mode != "fill")

    def run(x: Any, *indices: Any) -> np.ndarray:
        x = np.asarray(x)
        table = heads_first(x, dims, batch_dims)
        places, numbers, outside = routes.find(indices, x.shape[:batch_dims])
        routes.swap_counts()
        rows = routes.from_owners(table[routes.to_owners(places)])
        shape = np.shape(indices[0])
        out = np.empty((math.prod(shape), table.shape[1]), x.dtype)
        out[numbers] = rows
        if outside is not None:
            out[outside] = default_fill(x.dtype) if fill_value is None else fill_value
        return out.reshape(*shape, *(x.shape[d] for d in rest_dims(x.ndim, dims, batch_dims)))

    return run


fetch_rows = define(
    "fetch_rows",
    type_rule=_rows_type,
    plan=_rows_plan,
    build=_fetch_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="all-to-all",
)


def _send_build(
    ctx: DeviceContext, *, dims: Any, batch_dims: int, mode: str, combine: str, sizes: Sequence[int], axes: Dims
) -> Callable[..., Any]:
    routes = _Routes(ctx, sizes, axes, batch_dims, mode == "clip")

    def run(x: Any, updates: Any, *indices: Any) -> np.ndarray:
        x, updates = np.asarray(x), np.asarray(updates)
        places, numbers, _ = routes.find(indices, x.shape[:batch_dims])
        routes.swap_counts()
        count = math.prod(np.shape(indices[0]))
        rest = math.prod(x.shape[d] for d in rest_dims(x.ndim, dims, batch_dims))
        rows = updates.reshape(count, rest)[numbers]
        places, rows = routes.to_owners(places), routes.to_owners(rows)
        return put_rows(x, rows, places, dims, batch_dims, combine)

    return run


send_rows = define(
    "send_rows",
    type_rule=lambda x, updates, *indices, **params: Out(x.shape, x.dtype, x.weak_type),
    plan=lambda avals, **params: Plan(tuple(replicated(a.ndim) for a in avals), (replicated(avals[0].ndim),)),
    build=_send_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="all-to-all",
)


class FetchRows:
    """A gather whose places are spread over the owners' axes too: every rank asks the owners for its own."""

    def __init__(self, axes: Dims):
        self.axes = axes

    def __call__(self, ctx: LocalContext, x: Any, *indices: Any, out_sharding: Any, **params: Any) -> Any:
        return fetch_rows(x, *indices, **params, **_global_sizes(ctx, x, params["dims"], self.axes))


class SendRows:
    """A scatter whose updates are spread over the owners' axes too: every rank sends its own to the owners."""

    def __init__(self, axes: Dims):
        self.axes = axes

    def __call__(self, ctx: LocalContext, x: Any, updates: Any, *indices: Any, out_sharding: Any, **params: Any) -> Any:
        return send_rows(x, updates, *indices, **params, **_global_sizes(ctx, x, params["dims"], self.axes))
