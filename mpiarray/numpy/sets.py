"""Arrays as sets: unique, isin, intersections, unions, differences.

How many elements a result has depends on values, which are therefore read on the host (replicated arrays only); with
`size=` shapes are static, and the functions can be traced.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.core.value import aval_of, literal
from mpiarray.numpy.arithmetic import subtract
from mpiarray.numpy.choices import clip, where_op
from mpiarray.numpy.comparison import equal, greater_equal, isnan, logical_and, logical_not, logical_or, not_equal
from mpiarray.numpy.cumulative import part
from mpiarray.numpy.host import from_host
from mpiarray.numpy.index_reads import read
from mpiarray.numpy.index_updates import write
from mpiarray.numpy.manipulation import canonical_axis, concatenate, moveaxis, one, ravel, reshape
from mpiarray.numpy.nonzeros import compacted, filled_rows, host_value
from mpiarray.numpy.promotion import cast, operands, promote_dtypes, replicated_or_raise
from mpiarray.numpy.ranges import arange
from mpiarray.numpy.reductions import any, sum
from mpiarray.numpy.sorting import order_by, searchsorted, sort
from mpiarray.ops import cumulative
from mpiarray.ops.linear import full_of
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

__all__ = [
    "intersect1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all", "unique_counts",
    "unique_inverse", "unique_values",
]  # fmt: skip


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Any
    inverse_indices: Any


def _hint(name: str) -> str:
    return (
        f"To make jnp.{name}() compatible with JIT and other transforms, pass a static integer as the `size` argument."
    )


# -- sorted rows ------------------------------------------------------------------------------------------


class _Runs(NamedTuple):
    """Rows in sorted order, and where among them a run of equal ones begins."""

    order: Any  # positions of the rows
    rows: Any  # in sorted order
    first: Any  # bool: the first row of a run
    number: Any  # which run a row belongs to


def _runs(x: Any, equal_nan: bool) -> _Runs:
    """x: an array of rows, 1-D or 2-D with columns as keys."""
    index = dtypes.default_dtype(int)
    keys = [x] if aval_of(x).ndim == 1 else [read(x, (slice(None), k)) for k in range(aval_of(x).shape[1])]
    order = cast(order_by(keys, 0), index)
    rows = read(x, order)
    n = aval_of(x).shape[0]
    now, before = part(rows, 0, min(1, n), n), part(rows, 0, 0, max(n - 1, 0))
    other = not_equal(now, before)
    if equal_nan and dtypes.is_inexact(aval_of(x).dtype):
        other = logical_and(other, logical_not(logical_and(isnan(now), isnan(before))))
    if aval_of(other).ndim > 1:
        other = any(other, axis=1)
    begin = full_of(ShapedArray((min(1, n),), np.dtype(np.bool_)), True)
    first = concatenate([begin, other]) if n else other
    number = subtract(cumulative.cumsum(cast(first, index), axis=0, reverse=False), 1)
    return _Runs(order, rows, first, number)


# -- unique -----------------------------------------------------------------------------------------------


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The different elements, sorted; with `axis`, the different slices along it.

    return_index, return_inverse, return_counts: also the position of the first of each, for each element its position
    among the different ones, and how often each occurs, as int32.
    size: how many to return; more are left out, missing ones are `fill_value` (default: the first).  It makes the
    function traceable.  Raises ConcretizationTypeError for tracers without it, ShardingTypeError for sharded arrays.
    """
    x = one("unique", ar)
    aval = aval_of(x)
    if size is None:
        host_check("unique", x)
    replicated_or_raise("unique", aval, "Arguments to sort must be unsharded over the sorting dimension")
    if axis is None:
        rows, dim, shape = ravel(x), 0, aval.shape
    else:
        dim = canonical_axis(axis, aval.ndim, "unique")
        moved = moveaxis(x, dim, 0)
        shape = (aval.shape[dim],)
        rest = aval_of(moved).shape[1:]
        rows = reshape(moved, (aval.shape[dim], int(np.prod(rest))))
    out = _unique(rows, equal_nan, size, fill_value)
    values = out.values
    if axis is not None:
        values = moveaxis(reshape(values, (aval_of(values).shape[0], *rest)), 0, dim)
    wanted = [values]
    if return_index:
        wanted.append(out.indices)
    if return_inverse:
        wanted.append(reshape(out.inverse_indices, shape))
    if return_counts:
        wanted.append(out.counts)
    return tuple(wanted) if len(wanted) > 1 else values


def host_check(name: str, x: Any) -> None:
    """Raise ConcretizationTypeError for a tracer, with advice."""
    if isinstance(x, Tracer):
        host_value(name, x, _hint(name))


def _unique(rows: Any, equal_nan: bool, size: int | None, fill_value: Any) -> UniqueAll:
    aval, index = aval_of(rows), dtypes.default_dtype(int)
    if not aval.shape[0]:
        if size and fill_value is None:
            raise ValueError(
                "jnp.unique: for zero-sized input with nonzero size argument, fill_value must be specified"
            )
        count = size or 0
        none = full_of(ShapedArray((count,), index), 0)
        values = filled_rows(aval, count, 0 if fill_value is None else fill_value)
        return UniqueAll(values, none, full_of(ShapedArray((0,), index), 0), none)
    runs = _runs(rows, equal_nan)
    found = sum(runs.first, dtype=index)
    count = int(found) if size is None else size
    missing = greater_equal(arange(count, dtype=index), found)
    values = compacted(runs.rows, runs.first, count, 0)
    fill = read(runs.rows, slice(0, 1)) if fill_value is None else fill_value
    lost = reshape(missing, (count, *(1,) * (aval.ndim - 1)))
    if size is not None:
        values = where_op(lost, cast(fill, aval.dtype), values)
    indices = compacted(runs.order, runs.first, count, literal(np.int64(0), index))
    if size is not None:
        indices = where_op(missing, read(runs.order, slice(0, 1)), indices)
    inverse = write(full_of(ShapedArray((aval.shape[0],), index), 0), runs.order, runs.number, "set")
    counts = write(full_of(ShapedArray((count,), index), 0), runs.number, literal(np.int64(1), index), "add")
    return UniqueAll(values, indices, inverse, counts)


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """The different elements, the position of the first of each, the inverse, and counts.  NaN differs from NaN."""
    found = unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueAll(*found)


def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """The different elements and how often each occurs.  NaN differs from NaN."""
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """The different elements and for each element its position among them.  NaN differs from NaN."""
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The different elements.  NaN differs from NaN."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


# -- sets --------------------------------------------------------------------------------------------------


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, method: str = "auto"
) -> Any:
    """Whether each element is among `test_elements`; it keeps the elements' sharding.  NaN is not.

    `assume_unique` and `method` have no effect.
    """
    x, table = promote_dtypes(*operands("isin", element, test_elements))
    table = ravel(table)
    n = aval_of(table).shape[0]
    if not n:
        return one("isin", full_of(aval_of(x).update(dtype=np.dtype(np.bool_), weak_type=False), invert))
    table = sort(table)
    place = clip(searchsorted(table, x), 0, n - 1)
    sharding = aval_of(place).sharding if not aval_of(place).sharding.mesh.empty else None
    found = equal(read(table, place, "clip", out_sharding=sharding), x)
    return logical_not(found) if invert else found


def _pair(name: str, ar1: Any, ar2: Any, size: int | None) -> tuple[Any, Any]:
    a, b = promote_dtypes(*operands(name, ar1, ar2))
    a, b = ravel(a), ravel(b)
    if size is None:
        for x in (a, b):
            host_check(name, x)
    for x in (a, b):
        replicated_or_raise(name, aval_of(x), "Arguments to sort must be unsharded over the sorting dimension")
    return a, b


def _chosen(values: Any, mask: Any, size: int | None, fill: Any) -> Any:
    count = int(sum(mask)) if size is None else size
    return compacted(values, mask, count, fill)


def _first_or(values: Any, mask: Any, fill_value: Any) -> Any:
    """The fill value, by default the first of the chosen elements."""
    return read(compacted(values, mask, 1, 0), 0) if fill_value is None else fill_value


def intersect1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The elements that both arrays have, sorted; with `return_indices` also the first position of each in both.

    With `size`, missing ones are `fill_value` (default: the first), their positions the arrays' lengths.
    """
    a, b = _pair("intersect1d", ar1, ar2, size)
    index = dtypes.default_dtype(int)
    n, m = aval_of(a).shape[0], aval_of(b).shape[0]
    if not n or not m:
        none = [from_host(np.zeros(size or 0, index), index)] * 2
        values = filled_rows(aval_of(a), size or 0, 0 if fill_value is None else fill_value)
        return (values, *none) if return_indices else values
    runs = _runs(a, False)
    table, order_b = sort(b), cast(order_by([b], 0), index)
    at = searchsorted(table, runs.rows)
    inside = clip(at, 0, m - 1)
    common = logical_and(runs.first, equal(read(table, inside), runs.rows))
    values = _chosen(runs.rows, common, size, _first_or(runs.rows, common, fill_value))
    if not return_indices:
        return values
    first = _chosen(runs.order, common, size, literal(np.int64(n), index))
    second = _chosen(read(order_b, inside), common, size, literal(np.int64(m), index))
    return values, first, second


def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The elements that one of the arrays has, sorted."""
    a, b = _pair("union1d", ar1, ar2, size)
    return unique(concatenate([a, b]), size=size, fill_value=fill_value)


def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The elements of the first array that the second does not have, sorted (`assume_unique`: all of them, in order).

    With `size`, missing ones are `fill_value` (default 0).
    """
    a, b = _pair("setdiff1d", ar1, ar2, size)
    fill = 0 if fill_value is None else fill_value
    if assume_unique:
        return _chosen(a, isin(a, b, invert=True), size, fill)
    if not aval_of(a).shape[0]:
        return filled_rows(aval_of(a), size or 0, fill)
    runs = _runs(a, True)
    return _chosen(runs.rows, logical_and(runs.first, isin(runs.rows, b, invert=True)), size, fill)


def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The elements that exactly one array has, sorted; with `size`, missing ones are `fill_value` (the first)."""
    a, b = _pair("setxor1d", ar1, ar2, size)
    both = concatenate([a, b])
    if not aval_of(both).shape[0]:
        return filled_rows(aval_of(both), size or 0, 0 if fill_value is None else fill_value)
    runs = _runs(both, True)
    alone = logical_or(isin(runs.rows, a, invert=True), isin(runs.rows, b, invert=True))
    chosen = logical_and(runs.first, alone)
    return _chosen(runs.rows, chosen, size, _first_or(runs.rows, chosen, fill_value))
