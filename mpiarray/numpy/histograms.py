"""Counting: bincount, digitize, histograms of one and more dims; interpolation in tables.

Values that are spread over the mesh are counted where they are, and the counts summed by one all-reduce: results are
replicated.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.plan import dims_of, spec_from
from mpiarray.core.trace import Tracer
from mpiarray.core.value import Value, aval_of, literal
from mpiarray.errors import ConcretizationTypeError
from mpiarray.numpy.arithmetic import add, divide, multiply, remainder, subtract
from mpiarray.numpy.choices import clip, maximum, where_op
from mpiarray.numpy.comparison import equal, greater, greater_equal, less
from mpiarray.numpy.creation import asarray
from mpiarray.numpy.cumulative import diff
from mpiarray.numpy.index_reads import read
from mpiarray.numpy.manipulation import concatenate, one, ravel, reshape, stack
from mpiarray.numpy.promotion import cast, operands, promote_inexact
from mpiarray.numpy.ranges import linspace
from mpiarray.numpy.reductions import max, min, sum
from mpiarray.numpy.sorting import argsort, searchsorted
from mpiarray.ops.gather import scatter
from mpiarray.ops.linear import broadcast_in_dim, full_of
from mpiarray.ops.shape import rev
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

__all__ = [
    "bincount", "digitize", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "interp",
]  # fmt: skip


def counted(places: Any, weights: Any, size: int) -> Any:
    """The sum of the weights at each of `size` places; those out of bounds are left out.  The result is replicated.

    places: integers from 0.  weights: of the same shape, or a scalar.
    """
    places = ravel_any(places)
    aval = aval_of(places)
    dtype = aval_of(weights).dtype
    mesh = aval.sharding.mesh
    sharding = None if mesh.empty else NamedSharding(mesh, spec_from([()]))
    if aval_of(weights).ndim:
        weights = ravel_any(weights)
    else:
        own = None if mesh.empty else NamedSharding(mesh, spec_from(dims_of(aval)))
        weights = broadcast_in_dim(weights, shape=aval.shape, broadcast_dimensions=(), sharding=own)
    zeros = full_of(ShapedArray((size,), dtype), 0)
    zeros = broadcast_in_dim(zeros, shape=(size,), broadcast_dimensions=(0,), sharding=sharding)
    return scatter(zeros, weights, places, dims=(0,), batch_dims=0, mode="fill", combine="add", out_sharding=sharding)


def ravel_any(x: Any) -> Any:
    """Flattened, whatever the sharding: the first dim's axes stay where they can, since the order does not matter."""
    x = one("ravel", x)
    aval = aval_of(x)
    if aval.ndim == 1 or aval.sharding.mesh.empty or not any_sharded(aval):
        return ravel(x)
    merged = tuple(a for axes in dims_of(aval) for a in axes)
    return reshape(x, (aval.size,), out_sharding=NamedSharding(aval.sharding.mesh, spec_from([merged])))


def any_sharded(aval: ShapedArray) -> bool:
    return any(dims_of(aval))


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each of 0, 1, 2, ... occurs in a 1-D array of integers (or the sum of the weights there).

    length: of the result, needed for tracers; larger values are left out.  Negative values count as 0.
    """
    x, weights = operands("bincount", x, 1 if weights is None else weights)
    aval = aval_of(x)
    if dtypes.is_bool(aval.dtype):
        x = cast(x, np.dtype(np.uint8))
    elif not dtypes.is_int(aval.dtype):
        raise TypeError(f"x argument to bincount must have an integer type; got {aval.str_short()}")
    if aval.ndim != 1:
        raise ValueError(f"only 1-dimensional input supported, got {aval.str_short()} in bincount")
    minlength = operator.index(minlength)
    if length is None:
        if isinstance(x, Tracer):
            raise ConcretizationTypeError(
                "Abstract tracer value encountered where concrete value is expected: the error occurred because of "
                f"argument 'x' of jnp.bincount, {aval.str_short()}. To avoid this error, pass a static `length` "
                "argument."
            )
        length = minlength if not aval.size else np.maximum(int(np.maximum(int(max(x)), 0)) + 1, minlength)
    length = operator.index(length)
    if dtypes.is_python_scalar(weights):
        weights = literal(weights, dtypes.default_dtype(int))
    elif aval_of(weights).shape != aval.shape:
        raise ValueError(
            f"shape of weights must match shape of x, got {aval.str_short()} and weights {aval_of(weights).str_short()}"
        )
    return counted(maximum(x, 0), cast(weights, aval_of(weights).dtype), length)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """The number of the bin that each element is in, as int32: `bins[i - 1] <= x < bins[i]` (`right`: `<` and `<=`).

    bins: 1-D, increasing or decreasing.
    """
    x, bins = operands("digitize", x, bins)
    if aval_of(bins).ndim != 1:
        raise ValueError(f"digitize: bins must be a 1-dimensional array; got bins={aval_of(bins).str_short()}")
    x, bins = one("digitize", x), one("digitize", bins)
    n = aval_of(bins).shape[0]
    if not n:
        return one("digitize", full_of(aval_of(x).update(dtype=np.dtype(np.int32), weak_type=False), 0))
    side = "right" if not right else "left"
    up = searchsorted(bins, x, side)
    down = subtract(n, searchsorted(rev(bins, dimensions=(0,)), x, side))
    return where_op(greater_equal(read(bins, n - 1), read(bins, 0)), up, down)


# -- histograms ---------------------------------------------------------------------------------------------


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of bins: `bins` many of equal width from the smallest to the largest element (or over `range`).

    bins: a number, or the edges themselves.  Names of rules ("auto", ...) are not supported.
    """
    if isinstance(bins, str):
        raise TypeError(f"string values for `bins` are not implemented, got {bins!r} in jnp.histogram_bin_edges")
    (a,) = operands("histogram_bin_edges", a)
    dtype = dtypes.to_inexact(aval_of(a).dtype)
    if np.ndim(bins) == 1 or (isinstance(bins, Value) and bins.aval.ndim == 1):
        return cast(asarray(bins), dtype)
    if range is None:
        low, high = (min(a), max(a)) if aval_of(a).size else (asarray(0, dtype), asarray(1, dtype))
    else:
        low, high = (asarray(v, dtype) for v in range)
    low, high = cast(low, dtype), cast(high, dtype)
    flat = equal(low, high)
    low = where_op(flat, subtract(low, cast(0.5, dtype)), low)
    high = where_op(flat, add(high, cast(0.5, dtype)), high)
    return linspace(low, high, operator.index(bins) + 1, dtype=dtype)


def _bin_numbers(x: Any, edges: Any) -> Any:
    """The bin of each element from 0; -1 or the number of bins outside.  The last bin includes its right edge."""
    n = aval_of(edges).shape[0]
    found = subtract(searchsorted(edges, x, "right"), 1)
    last = cast(n - 2, aval_of(found).dtype)
    return where_op(equal(x, read(edges, n - 1)), last, found)


def histogram(
    a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Any, Any]:
    """How many elements (or how much of the weights) each bin has, in floating point, and the edges of the bins.

    `density`: divided by the total and the bin's width.
    """
    if weights is None:
        (a,) = operands("histogram", a)
        (a,) = promote_inexact(a)
        weights = literal(1, aval_of(a).dtype)
    else:
        a, weights = operands("histogram", a, weights)
        if aval_of(a).shape != aval_of(weights).shape:
            raise ValueError(
                f"weights should have the same shape as a., got {aval_of(a).str_short()} and "
                f"{aval_of(weights).str_short()}"
            )
        a, weights = promote_inexact(a, weights)
    a = one("histogram", a)
    edges = histogram_bin_edges(a, bins, range, weights)
    if aval_of(edges).shape[0] < 2:
        return asarray(np.zeros(0), dtype=aval_of(weights).dtype), edges
    edges = cast(edges, aval_of(a).dtype)
    counts = counted(_bin_numbers(a, edges), weights, aval_of(edges).shape[0] - 1)
    if density:
        counts = divide(divide(counts, diff(edges)), sum(counts))
    return counts, edges


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Any, Any, Any]:
    """Histogram of points with coordinates `x` and `y`: the counts, and the edges along both."""
    x, y = operands("histogram2d", x, y)
    if not _is_number(bins) and len(bins) not in (1, 2):  # one set of edges for both
        bins = [asarray(bins)] * 2
    sample = stack([one("histogram2d", x), one("histogram2d", y)], axis=1)
    counts, edges = histogramdd(sample, bins, range, weights, density)
    return counts, edges[0], edges[1]


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Any, list[Any]]:
    """Histogram of N points of D coordinates, `sample` of shape (N, D): the counts, of D dims, and edges per dim."""
    if weights is None:
        (sample,) = operands("histogramdd", sample)
        (sample,) = promote_inexact(sample)
    else:
        sample, weights = promote_inexact(*operands("histogramdd", sample, weights))
    points = one("histogramdd", sample)
    if aval_of(points).ndim != 2:
        raise ValueError(f"sample must be of shape (N, D), got {aval_of(points).str_short()} in histogramdd")
    n, d = aval_of(points).shape
    if weights is not None and aval_of(weights).shape != (n,):
        raise ValueError(f"should have one weight for each sample, got {aval_of(weights).str_short()} for {n} samples")
    if range is not None and (len(range) != d or any(r is not None and len(r) != 2 for r in range)):
        raise ValueError(f"For sample.shape={(n, d)} range must be a sequence of {d} pairs or Nones; got {range=}")
    per_dim = [bins] * d if _is_number(bins) else list(bins)
    if len(per_dim) != d:
        raise ValueError(f"should be a bin for each dimension. got {len(per_dim)} for {d} dimensions")
    edges, numbers = [], []
    for k, wanted in enumerate(per_dim):
        column = read(points, (slice(None), k))
        edges.append(histogram_bin_edges(column, wanted, None if range is None else range[k]))
        numbers.append(_bin_numbers(column, edges[-1]))
    sizes = [aval_of(e).shape[0] - 1 for e in edges]
    total = int(np.prod(sizes))
    flat, inside = numbers[0], None
    for number, size in zip(numbers, sizes):
        ok = _inside(number, size)
        inside = ok if inside is None else multiply(inside, ok)
        flat = number if number is numbers[0] else add(multiply(flat, size), number)
    flat = where_op(inside, flat, cast(total, aval_of(flat).dtype))
    unit = literal(1, dtypes.default_dtype(int)) if weights is None else weights
    counts = reshape(counted(flat, unit, total), tuple(sizes))
    if density:
        counts = cast(counts, aval_of(points).dtype)
        counts = divide(counts, sum(counts))
        for k, e in enumerate(edges):
            counts = divide(counts, reshape(diff(e), tuple(-1 if j == k else 1 for j, _ in enumerate(edges))))
    return counts, edges


def _is_number(bins: Any) -> bool:
    return not isinstance(bins, Sequence) and np.ndim(bins) == 0


def _inside(number: Any, size: int) -> Any:
    return multiply(greater_equal(number, 0), less(number, size))


# -- interpolation --------------------------------------------------------------------------------------------


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """The values at `x` of the piecewise linear function with values `fp` at increasing places `xp`.

    left, right: the values outside (default: those at the edges), or "extrapolate".  period: of the places, instead of
    these.  The result has the sharding of `x`.
    """
    for name, side in (("left", left), ("right", right)):
        if isinstance(side, str) and side != "extrapolate":
            raise ValueError(f"the only valid string value of `{name}` is 'extrapolate', but got: {side!r}")
    x, xp, fp = operands("interp", x, xp, fp)
    if aval_of(xp).ndim != 1 or aval_of(fp).shape != aval_of(xp).shape or not aval_of(xp).shape[0]:
        raise ValueError(
            "xp and fp must be one-dimensional arrays of equal size, got "
            f"{aval_of(xp).str_short()} and {aval_of(fp).str_short()}"
        )
    x, xp = promote_inexact(x, xp)
    (fp,) = promote_inexact(fp)
    xp, fp = one("interp", xp), one("interp", fp)
    if period is not None:
        x, xp, fp = _periodic(x, xp, fp, period)
    n = aval_of(xp).shape[0]
    at = clip(searchsorted(xp, x, "right"), 1, n - 1 if n > 1 else 1)
    sharding = None if aval_of(at).sharding.mesh.empty else aval_of(at).sharding

    def of(table: Any, place: Any) -> Any:
        return read(table, place, "clip", out_sharding=sharding)

    before = subtract(at, 1)
    low, x0 = of(fp, before), of(xp, before)
    rise, run = subtract(of(fp, at), low), subtract(of(xp, at), x0)
    tiny = np.spacing(float(dtypes.finfo(aval_of(xp).dtype).eps))
    no_run = less(where_op(less(run, 0), subtract(0, run), run), tiny)
    slope = divide(rise, where_op(no_run, cast(1, aval_of(run).dtype), run))
    out = where_op(no_run, low, add(low, multiply(subtract(x, x0), slope)))
    if not isinstance(left, str):
        out = where_op(less(x, read(xp, 0)), read(fp, 0) if left is None else cast(left, aval_of(fp).dtype), out)
    if not isinstance(right, str):
        out = where_op(
            greater(x, read(xp, n - 1)), read(fp, n - 1) if right is None else cast(right, aval_of(fp).dtype), out
        )
    return out


def _periodic(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """Places within one period, in order, with one more beyond each end."""
    (period,) = operands("interp", period)
    if aval_of(period).ndim:
        raise ValueError(f"period must be a scalar; got {period}")
    period = where_op(equal(period, 0), cast(np.nan, aval_of(xp).dtype), cast(period, aval_of(xp).dtype))
    x, xp = remainder(x, period), remainder(xp, period)
    order = argsort(xp)
    xp, fp = read(xp, order), read(fp, order)
    n = aval_of(xp).shape[0]
    end = slice(n - 1, n)
    xp = concatenate([subtract(read(xp, end), period), xp, add(read(xp, slice(0, 1)), period)])
    fp = concatenate([read(fp, end), fp, read(fp, slice(0, 1))])
    return x, xp, fp
