"""Finding in an order: top_k, and positions in a sorted array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mpiarray.core.op import Op, Out, Undefined, Zero, define
from mpiarray.core.plan import LocalContext, Plan, dims_of, replicated, require_unsharded, spec_from
from mpiarray.core.value import aval_of, literal
from mpiarray.ops.along_dim import refuse_explicit
from mpiarray.ops.arithmetic import add, mul
from mpiarray.ops.collectives import gather, position
from mpiarray.ops.common import BatchAxis, check_kind
from mpiarray.ops.linear import batch_to, move_dim, tangent_aval, zero_jvp
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.ops.sort_kernel import comparable, order_of
from mpiarray.ops.sorting import take_along
from mpiarray.types.aval import ShapedArray

_TILE = 1 << 17  # elements whose keys exist at a time

# -- top_k --------------------------------------------------------------------------------------------------


def descending(x: Any) -> np.ndarray:
    """Unsigned integers in the opposite order of the elements: -NaN < -inf < ... < -0.0 < 0.0 < ... < inf < NaN."""
    x = comparable(x)
    if x.dtype.kind == "b":
        return (~x).astype(np.uint8)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    bits, top = x.view(unsigned), unsigned.type(1) << unsigned.type(8 * unsigned.itemsize - 1)
    if x.dtype.kind == "u":
        return ~bits
    if x.dtype.kind == "i":
        return ~(bits ^ top)
    return np.where(bits & top, bits, ~(bits | top)).astype(unsigned)


def _largest(x: np.ndarray, k: int, axis: int) -> np.ndarray:
    """Positions of the k largest, in descending order, equal ones by position."""
    moved = np.moveaxis(x, axis, -1)
    n = moved.shape[-1]
    rows = moved.reshape(math.prod(moved.shape[:-1]), n)
    out = np.empty((len(rows), k), np.int64)
    step = max(1, _TILE // max(n, 1))
    for start in range(0, len(rows) if k else 0, step):
        keys = descending(rows[start : start + step])
        out[start : start + step] = order_of([keys], 1)[:, :k] if k * 4 > n else _smallest(keys, k)
    return np.moveaxis(out.reshape((*moved.shape[:-1], k)), -1, axis)


def _smallest(keys: np.ndarray, k: int) -> np.ndarray:
    """For each row the positions of the k smallest keys, in order, found by a partition instead of a sort."""
    last = np.partition(keys, k - 1, axis=1)[:, k - 1 : k]
    chosen = keys <= last
    if np.count_nonzero(chosen) > k * len(keys):  # of those that equal the last one, the first ones
        less, equal = keys < last, keys == last
        needed = k - np.count_nonzero(less, axis=1, keepdims=True)
        chosen = less | (equal & (np.cumsum(equal, axis=1) <= needed))
    at = np.nonzero(chosen)[1].reshape(len(keys), k)
    order = np.argsort(np.take_along_axis(keys, at, 1), axis=1, kind="stable")
    return np.take_along_axis(at, order, 1)


def _top_k_type(x: ShapedArray, *, axis: int, k: int) -> list[Out]:
    check_kind("top_k", x.dtype, "bif")
    if not 0 <= axis < x.ndim:
        raise ValueError(f"top_k: axis {axis} is out of bounds for {x.str_short()}: it needs at least one dimension")
    if k < 0:
        raise ValueError(f"k argument to top_k must be nonnegative, got {k}")
    if k > x.shape[axis]:
        raise ValueError(
            f"k argument to top_k must be no larger than size along axis; got {k=} for {x.str_short()} and axis={axis}"
        )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [Out(shape, x.dtype, x.weak_type), Out(shape, np.dtype(np.int32))]


def _top_k_plan(avals: tuple[ShapedArray, ...], *, axis: int, k: int) -> Plan:
    (x,) = avals
    message = "operand should be unsharded over the axis along which to compute the top_k"
    over = refuse_explicit("top_k", x, axis, message)
    dims = list(dims_of(x))
    out = spec_from([*dims[:axis], (), *dims[axis + 1 :]])
    return Plan((spec_from(dims),), (out, out), local=_top_k_program if over else None)


def _top_k_program(ctx: LocalContext, x: Any, *, axis: int, k: int) -> list[Any]:
    """The best of each block, then of those; they are gathered by position, so that ties go to the smaller index."""
    over, n = dims_of(ctx.ins[0])[axis], aval_of(x).shape[axis]
    values, indices = top_k(x, axis=axis, k=min(k, n))
    start = mul(position(over), literal(n, np.dtype(np.int32)))
    candidates = gather(values, over, axis)
    places = gather(add(indices, start), over, axis)
    best, chosen = top_k(candidates, axis=axis, k=k)
    return [best, take_along(places, chosen, dimension=axis)]


def _top_k_impl(x: Any, *, axis: int, k: int) -> list[np.ndarray]:
    x = np.asarray(x)
    at = _largest(x, k, axis)
    return [np.take_along_axis(x, at, axis), at.astype(np.int32)]


def _top_k_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, axis: int, k: int) -> Any:
    values, indices = op(*primals, axis=axis, k=k)
    (t,) = tangents
    moved = Zero(tangent_aval(values.aval)) if isinstance(t, Zero) else take_along(t, indices, dimension=axis)
    return [values, indices], [moved, Zero(tangent_aval(indices.aval))]


def _top_k_batch(op: Op, batch: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, axis: int, k: int) -> Any:
    return op(move_dim(args[0], dims[0], 0), axis=axis + 1, k=k), [0, 0]


top_k = define(
    "top_k",
    type_rule=_top_k_type,
    plan=_top_k_plan,
    impl=_top_k_impl,
    jvp=_top_k_jvp,
    transpose=Undefined("top_k is not linear; its derivative moves elements by `take_along`"),
    batch=_top_k_batch,
    multiple_results=True,
    partial_sums=refuse_unreduced,
)

# -- searchsorted ---------------------------------------------------------------------------------------------


def _search_type(table: ShapedArray, queries: ShapedArray, *, side: str, dtype: Any, batch_dims: int) -> Out:
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if table.ndim != batch_dims + 1 or queries.shape[:batch_dims] != table.shape[:-1]:
        raise ValueError(f"searchsorted: the sorted array must have one dimension, got {table.str_short()}")
    if table.dtype != queries.dtype:
        raise TypeError(
            f"searchsorted: operands must have one dtype, got {table.str_short()} and {queries.str_short()}"
        )
    return Out(queries.shape, np.dtype(dtype))


def _search_plan(avals: tuple[ShapedArray, ...], *, side: str, dtype: Any, batch_dims: int) -> Plan:
    table, queries = avals
    require_unsharded("searchsorted", table, (batch_dims,), "the sorted array should be unsharded")
    dims = dims_of(queries)
    return Plan(
        (spec_from([*dims[:batch_dims], ()]) if batch_dims else replicated(1), spec_from(dims)), (spec_from(dims),)
    )


def _search_impl(
    table: Any, queries: Any, *, side: Literal["left", "right"], dtype: Any, batch_dims: int
) -> np.ndarray:
    """numpy's order has NaN last and -0.0 equal to 0.0, as sorting has."""
    table, queries = comparable(table), comparable(queries)
    if not batch_dims:
        return np.asarray(np.searchsorted(table, queries, side=side)).astype(dtype)
    out = np.empty(queries.shape, dtype)
    for at in np.ndindex(table.shape[:-1]):
        out[at] = np.searchsorted(table[at], queries[at], side=side)
    return out


def _search_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
    if dims[0] is None and not params["batch_dims"]:
        return op(*args, **params), dims[1]
    table, queries = (batch_to(x, axis, d, 0) for x, d in zip(args, dims))
    return op(table, queries, **params | {"batch_dims": params["batch_dims"] + 1}), 0


searchsorted = define(
    "searchsorted",
    type_rule=_search_type,
    plan=_search_plan,
    impl=_search_impl,
    jvp=zero_jvp,
    transpose=Undefined("positions have no derivative"),
    batch=_search_batch,
    partial_sums=refuse_unreduced,
)
