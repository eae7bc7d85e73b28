"""Sums and products up to each element, differences of neighbours, slopes and integrals of samples.

Cumulative functions need a dim that Explicit axes do not shard; differences are slices, and so do they.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op
from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.arithmetic import add, divide, multiply, subtract
from mpiarray.numpy.comparison import isnan, not_equal
from mpiarray.numpy.creation import asarray
from mpiarray.numpy.manipulation import (
    broadcast_to,
    canonical_axes,
    canonical_axis,
    concatenate,
    moveaxis,
    ravel,
    reshape,
)
from mpiarray.numpy.promotion import cast, operands, promote_inexact, replicated_or_raise
from mpiarray.numpy.reductions import masked, no_out, sum, widened
from mpiarray.ops import cumulative
from mpiarray.ops.bits import not_
from mpiarray.ops.common import const_like
from mpiarray.ops.linear import full_of
from mpiarray.ops.slicing import slice_
from mpiarray.types import dtypes

__all__ = [
    "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff", "ediff1d", "gradient", "nancumprod", "nancumsum",
    "trapezoid",
]  # fmt: skip

_BOOL = np.dtype(np.bool_)


def _cumulated(
    name: str,
    op: Op,
    x: Any,
    axis: Any,
    dtype: Any,
    out: Any,
    skip_nan: float | None = None,
    promote_integers: bool = False,
) -> Any:
    no_out(name, out)
    (x,) = operands(name, x)
    own = None if dtype is None else dtypes.requested(dtype, f"jnp.{name}")
    if axis is None or not aval_of(x).ndim:
        replicated_or_raise(name, aval_of(x), f"Input should be fully replicated when axis is not specified to {name}")
        x, axis = ravel(x), 0 if axis is None else axis
    dim = canonical_axis(axis, aval_of(x).ndim, name)
    if skip_nan is not None and dtypes.is_inexact(aval_of(x).dtype):
        x = masked(x, not_(isnan(x)), skip_nan)
    given = aval_of(x).dtype
    inside = given if own is None else own
    if dtypes.is_bool(inside) or (own is None and promote_integers):
        inside = widened(inside)
    if own is not None and dtypes.is_bool(own) and not dtypes.is_bool(given):
        x = not_equal(x, 0)
    found = op(cast(x, inside), axis=dim, reverse=False)
    return not_equal(found, 0) if own is not None and dtypes.is_bool(own) else found


def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    """Sums of the elements up to each one along `axis`; None: of the flattened array.  Bools are counted in int32."""
    return _cumulated("cumsum", cumulative.cumsum, a, axis, dtype, out)


def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    """Products of the elements up to each one along `axis`; None: of the flattened array."""
    return _cumulated("cumprod", cumulative.cumprod, a, axis, dtype, out)


def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    """As `cumsum`, NaN counted as 0."""
    return _cumulated("nancumsum", cumulative.cumsum, a, axis, dtype, out, 0)


def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    """As `cumprod`, NaN counted as 1."""
    return _cumulated("nancumprod", cumulative.cumprod, a, axis, dtype, out, 1)


def _with_start(name: str, op: Op, x: Any, axis: Any, dtype: Any, include_initial: bool, start: int) -> Any:
    (x,) = operands(name, x)
    aval = aval_of(x)
    what = "sum" if name == "cumulative_sum" else "product"
    if not aval.ndim:
        raise ValueError(
            f"The input must be non-scalar to take a cumulative {what}, however a scalar value or scalar array was "
            "given."
        )
    if axis is None:
        if aval.ndim > 1:
            raise ValueError(
                f"The input array has rank {aval.ndim}, however axis was not set to an explicit value. The axis "
                f"argument is only optional for one-dimensional arrays: got {aval.str_short()} in {name}."
            )
        axis = 0
    out = _cumulated(name, op, x, axis, dtype, None, promote_integers=True)
    if not include_initial:
        return out
    dim = canonical_axis(axis, aval.ndim, name)
    shape = (*out.aval.shape[:dim], 1, *out.aval.shape[dim + 1 :])
    return concatenate([full_of(out.aval.update(shape=shape), start), out], axis=dim)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Sums up to each element; small integers in 32 bits.  `include_initial` puts a 0 in front.

    Raises ValueError for scalars, and without `axis` for more than one dim.
    """
    return _with_start("cumulative_sum", cumulative.cumsum, x, axis, dtype, include_initial, 0)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Products up to each element; small integers in 32 bits.  `include_initial` puts a 1 in front.

    Raises ValueError for scalars, and without `axis` for more than one dim.
    """
    return _with_start("cumulative_prod", cumulative.cumprod, x, axis, dtype, include_initial, 1)


# -- differences ------------------------------------------------------------------------------------------


def part(x: Any, axis: int, start: int, stop: int) -> Any:
    """Elements from `start` to before `stop` of a dim; both count from the end when negative."""
    shape = aval_of(x).shape
    n = shape[axis]
    low, high = (k + n if k < 0 else k for k in (start, stop))
    starts = tuple(low if d == axis else 0 for d in range(len(shape)))
    limits = tuple(max(low, min(high, n)) if d == axis else m for d, m in enumerate(shape))
    return x if (low, limits[axis]) == (0, n) else slice_(x, start_indices=starts, limit_indices=limits, strides=None)


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along `axis`, taken `n` times; of bools: whether they differ.

    `prepend` and `append` are put before and behind the operand first; scalars stand for one element per line.
    Raises ValueError for scalars and negative `n`.
    """
    (x,) = operands("diff", a)
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n} in jnp.diff")
    if not aval_of(x).ndim:
        raise ValueError(f"diff requires input that is at least one dimensional; got {aval_of(x).str_short()}")
    dim = canonical_axis(axis, aval_of(x).ndim, "diff")
    ends = [None if e is None else _end(x, e, dim) for e in (prepend, append)]
    pieces = [p for p in (ends[0], asarray(x), ends[1]) if p is not None]
    x = concatenate(pieces, axis=dim) if len(pieces) > 1 and n else pieces[0] if len(pieces) == 1 else asarray(x)
    op = not_equal if dtypes.is_bool(aval_of(x).dtype) else subtract
    for _ in range(n):
        size = aval_of(x).shape[dim]
        x = op(part(x, dim, min(1, size), size), part(x, dim, 0, max(size - 1, 0)))
    return x


def _end(x: Any, end: Any, dim: int) -> Any:
    (end,) = operands("diff", end)
    if aval_of(end).ndim:
        return end
    shape = aval_of(x).shape
    return broadcast_to(end, (*shape[:dim], 1, *shape[dim + 1 :]))


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Differences of neighbours of the flattened array, with `to_begin` before and `to_end` behind them."""
    (x,) = operands("ediff1d", ary)
    x = ravel(x)
    out = diff(x)
    before = [] if to_begin is None else [ravel(asarray(to_begin, dtype=out.aval.dtype))]
    behind = [] if to_end is None else [ravel(asarray(to_end, dtype=out.aval.dtype))]
    return concatenate([*before, out, *behind]) if before or behind else out


# -- slopes and integrals -----------------------------------------------------------------------------------


def gradient(f: Any, *varargs: Any, axis: int | Sequence[int] | None = None, edge_order: int | None = None) -> Any:
    """Slopes of samples along each axis: central differences inside, one-sided at the edges; a list for several axes.

    varargs: the distance of samples, or their 1-D coordinates, for all axes or for each.
    Raises ValueError for dims of fewer than 2 samples, TypeError for a wrong number of distances.
    """
    if edge_order is not None:
        raise NotImplementedError("The 'edge_order' argument to jnp.gradient is not supported.")
    x, *spacing = promote_inexact(*operands("gradient", f, *varargs))
    aval = aval_of(x)
    axes = tuple(range(aval.ndim)) if axis is None else canonical_axes(axis, aval.ndim, "gradient")
    if any(aval.shape[d] < 2 for d in axes):
        raise ValueError(
            "Shape of array too small to calculate a numerical gradient, at least 2 elements are required: got "
            f"{aval.str_short()}, axis {axis}"
        )
    if len(spacing) not in (0, 1, len(axes)) or (len(spacing) == 1 and aval_of(spacing[0]).ndim and len(axes) > 1):
        raise TypeError(f"Invalid number of spacing arguments {len(spacing)} for axis={axis} in jnp.gradient")
    if not spacing:
        spacing = [const_like(x, 1)]
    spacing = spacing * len(axes) if len(spacing) == 1 else spacing
    out = [_slope(x, h, d) for h, d in zip(spacing, axes)]
    return out[0] if len(axes) == 1 else out


def _slope(x: Any, h: Any, axis: int) -> Any:
    n = aval_of(x).shape[axis]
    low, high = part(x, axis, 0, n - 2), part(x, axis, 2, n)
    first = subtract(part(x, axis, 1, 2), part(x, axis, 0, 1))
    last = subtract(part(x, axis, n - 1, n), part(x, axis, n - 2, n - 1))
    if not aval_of(h).ndim:
        inner = multiply(subtract(high, low), divide(0.5, h))
        return concatenate([divide(first, h), inner, divide(last, h)], axis=axis)
    if aval_of(h).ndim != 1:
        raise ValueError(f"Spacing arrays must be 1D arrays or scalars, got {aval_of(h).str_short()} in jnp.gradient")
    if aval_of(h).shape[0] != n:
        raise ValueError(
            "Spacing arrays must have the same length as the dimension along which the gradient is calculated: got "
            f"{aval_of(h).str_short()} for dim {axis} of {aval_of(x).str_short()}"
        )
    steps = reshape(diff(h), tuple(n - 1 if d == axis else 1 for d in range(aval_of(x).ndim)))
    before, after = part(steps, axis, 0, n - 2), part(steps, axis, 1, n - 1)
    a = divide(-after, multiply(before, add(before, after)))
    b = divide(subtract(after, before), multiply(before, after))
    c = divide(before, multiply(after, add(before, after)))
    inner = add(add(multiply(a, low), multiply(b, part(x, axis, 1, n - 1))), multiply(c, high))
    ends = divide(first, part(steps, axis, 0, 1)), divide(last, part(steps, axis, n - 2, n - 1))
    return concatenate([ends[0], inner, ends[1]], axis=axis)


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples along `axis` by the trapezoidal rule; their distance is `dx`, or their places are `x`."""
    if x is None:
        (y,) = promote_inexact(*operands("trapezoid", y))
        widths = cast(dx, aval_of(y).dtype) if not isinstance(dx, Value) or not dx.aval.ndim else moveaxis(dx, axis, -1)
        y = moveaxis(asarray(y), axis, -1)
    else:
        y, x = promote_inexact(*operands("trapezoid", y, x))
        if aval_of(x).ndim == 1:
            widths = diff(x)
        else:
            widths = moveaxis(diff(x, axis=axis), axis, -1)
        y = moveaxis(asarray(y), axis, -1)
    last, n = aval_of(y).ndim - 1, aval_of(y).shape[-1]
    pairs = add(part(y, last, min(1, n), n), part(y, last, 0, max(n - 1, 0)))
    return multiply(0.5, sum(multiply(widths, pairs), -1))
