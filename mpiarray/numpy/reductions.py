"""Reductions of numpy: sums, products, extremes, logic, means, variances.

`axis` is None (all dims), an int or a sequence of ints; `keepdims` leaves reduced dims with size 1; `where` (a mask
that broadcasts to the operand) leaves elements out; `initial` is combined with the result.  Entries of reduced dims are
dropped from the sharding; other dims keep theirs.  Reducing a sharded dim is one all-reduce of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.numpy.arithmetic import add, divide, multiply, sqrt, subtract
from mpiarray.numpy.choices import maximum, minimum, where_op
from mpiarray.numpy.comparison import bitwise_and, bitwise_or, truth
from mpiarray.numpy.complex_numbers import conj, real
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import broadcast_to, canonical_axis
from mpiarray.numpy.promotion import cast, operands, promote_inexact
from mpiarray.ops import arithmetic as ops
from mpiarray.ops import reductions
from mpiarray.ops.common import const_like
from mpiarray.ops.comparison import gt
from mpiarray.ops.linear import expand_dims, reduce_sum, transpose
from mpiarray.types import dtypes

__all__ = [
    "all", "amax", "amin", "any", "average", "count_nonzero", "max", "mean", "min", "prod", "ptp", "std", "sum", "var",
]  # fmt: skip

_F32 = np.dtype(np.float32)


# -- what they share ---------------------------------------------------------------------------------


def reduced_axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """The dims that `axis` names.  Raises ValueError when one is out of bounds or named twice."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, (tuple, list, np.ndarray)) and np.ndim(axis):
        axes = tuple(canonical_axis(a, ndim, name) for a in axis)
        if len(set(axes)) != len(axes):
            raise ValueError(f"{name}: duplicate value in 'axis': {tuple(axis)}")
        return axes
    return (canonical_axis(axis, ndim, name),)


def no_out(name: str, out: Any) -> None:
    if out is not None:
        raise NotImplementedError(f"The 'out' argument to jnp.{name} is not supported: arrays cannot be written to.")


def widened(dtype: Any) -> Any:
    """The dtype of sums of bools and small integers: 32 bits, 64 in x64 mode."""
    if dtypes.is_inexact(dtype):
        return dtype
    default = dtypes.default_dtype(int)
    if dtypes.is_bool(dtype):
        return default
    if dtypes.is_int(dtype) and dtypes.bit_width(dtype) < dtypes.bit_width(default):
        return default if dtypes.is_signed(dtype) else dtypes.canonicalize(np.dtype(f"u{default.itemsize}"))
    return dtype


@lru_cache(maxsize=64)
def computed_in(dtype: Any) -> Any:
    """The dtype to add numbers up in: float32 for narrower floats."""
    return _F32 if dtypes.is_float(dtype) and dtypes.bit_width(dtype) < 32 else dtype


def kept(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """A result with its reduced dims put back, of size 1, when `keepdims`."""
    return expand_dims(x, tuple(sorted(axes))) if keepdims and axes else x


def count_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[d] for d in axes)


def masked(x: Any, where: Any, neutral: Any) -> Any:
    """`x` with elements that do not count replaced by a number that changes nothing."""
    aval = aval_of(x)
    (where,) = operands("where", where)
    return where_op(where, x, literal(neutral, aval.dtype, aval.weak_type))


def _with_initial(name: str, combine: Callable[[Any, Any], Any], out: Any, initial: Any) -> Any:
    if initial is None:
        return out
    (initial,) = operands(name, initial)
    if aval_of(initial).ndim:
        raise ValueError(f"initial value must be a scalar. Got array of shape {aval_of(initial).shape} in jnp.{name}")
    return combine(out, cast(initial, aval_of(out).dtype))


# -- sums and products --------------------------------------------------------------------------------


def _accumulated(
    name: str, x: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any, promote_integers: bool
) -> Any:
    """A sum or a product."""
    (x,) = operands(name, x)
    aval = aval_of(x)
    axes = reduced_axes(name, axis, aval.ndim)
    if dtype is not None:
        own = dtypes.requested(dtype, f"jnp.{name}")
    else:
        own = widened(aval.dtype) if promote_integers else aval.dtype
    x = cast(x, computed_in(own))
    if where is not None:
        x = masked(x, where, name == "prod")
    if dtypes.is_bool(own):
        out = (reductions.reduce_or if name == "sum" else reductions.reduce_and)(x, axes=axes)
        out = _with_initial(name, bitwise_or if name == "sum" else bitwise_and, out, initial)
    elif name == "sum":
        out = _with_initial(name, add, reduce_sum(x, axes=axes, out_sharding=None), initial)
    else:
        out = _with_initial(name, multiply, reductions.reduce_prod(x, axes=axes), initial)
    return cast(kept(out, axes, keepdims), own)


def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """Sum.  Bools and small integers are summed in 32 bits, unless `dtype` or `promote_integers` says otherwise."""
    no_out("sum", out)
    return _accumulated("sum", a, axis, dtype, keepdims, initial, where, promote_integers)


def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """Product.  Bools and small integers are multiplied in 32 bits, as in `sum`."""
    no_out("prod", out)
    return _accumulated("prod", a, axis, dtype, keepdims, initial, where, promote_integers)


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements are not zero, as int32."""
    (x,) = operands("count_nonzero", a)
    return sum(truth(x), axis, dtypes.default_dtype(int), keepdims=keepdims)


# -- extremes and logic --------------------------------------------------------------------------------


def _extreme(name: str, x: Any, axis: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    (x,) = operands(name, x)
    aval = aval_of(x)
    if initial is None and where is not None:
        raise ValueError(
            f"reduction operation {name} does not have an identity, so to use a where mask one has to specify "
            f"'initial': got {aval.str_short()}"
        )
    axes = reduced_axes(name, axis, aval.ndim)
    if initial is None and not count_of(aval.shape, axes):
        raise ValueError(
            f"zero-size array to reduction operation {name} which has no identity: got {aval.str_short()} and axis "
            f"{axis}; give `initial=`"
        )
    if where is not None:
        x = masked(x, where, reductions.lowest(aval.dtype) if name == "max" else reductions.highest(aval.dtype))
    out = (reductions.reduce_max if name == "max" else reductions.reduce_min)(cast(x, aval.dtype), axes=axes)
    return kept(_with_initial(name, maximum if name == "max" else minimum, out, initial), axes, keepdims)


def max(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest element; NaN if there is one.

    Raises ValueError for an empty array without `initial`, and for `where` without `initial`.
    """
    no_out("max", out)
    return _extreme("max", a, axis, keepdims, initial, where)


def min(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest element; NaN if there is one.

    Raises ValueError for an empty array without `initial`, and for `where` without `initial`.
    """
    no_out("min", out)
    return _extreme("min", a, axis, keepdims, initial, where)


amax, amin = max, min


def ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The largest minus the smallest element.  Raises TypeError for bools."""
    no_out("ptp", out)
    return subtract(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


def _logic(name: str, x: Any, axis: Any, keepdims: bool, where: Any) -> Any:
    (x,) = operands(name, x)
    axes = reduced_axes(name, axis, aval_of(x).ndim)
    x = cast(truth(x), np.dtype(np.bool_))
    if where is not None:
        x = masked(x, where, name == "all")
    return kept((reductions.reduce_and if name == "all" else reductions.reduce_or)(x, axes=axes), axes, keepdims)


def all(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether all elements are true (not zero)."""
    no_out("all", out)
    return _logic("all", a, axis, keepdims, where)


def any(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether an element is true (not zero)."""
    no_out("any", out)
    return _logic("any", a, axis, keepdims, where)


# -- means and variances ---------------------------------------------------------------------------------


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Mean, in floating point also for integers; NaN of nothing.  16-bit floats are added up in float32."""
    no_out("mean", out)
    (x,) = operands("mean", a)
    aval = aval_of(x)
    own = dtypes.to_inexact(aval.dtype) if dtype is None else dtypes.requested(dtype, "jnp.mean")
    inside = computed_in(own)
    axes = reduced_axes("mean", axis, aval.ndim)
    total = sum(x, axis, inside, keepdims=keepdims, where=where)
    if where is None:
        return cast(ops.div(total, literal(count_of(aval.shape, axes), inside)), own)
    count = sum(broadcast_to(where, aval.shape), axis, inside, keepdims=keepdims)
    return cast(divide(total, count), own)


def _variance_dtypes(name: str, given: Any, dtype: Any) -> tuple[Any, Any]:
    """The dtypes to compute a variance in and to give it in."""
    if dtype is None:
        inside = dtypes.to_inexact(given)
        own = dtypes.real_dtype(inside)
    else:
        inside = own = dtypes.requested(dtype, f"jnp.{name}")
        if dtypes.is_complex(given) and not dtypes.is_complex(own):
            raise ValueError(
                f"jax.numpy.{name} does not yet support real dtype parameters when computing the variance of an array "
                f"of complex values: got dtype {own} for {given}. Leave dtype out, or give a complex one."
            )
    return computed_in(inside), own


def _variance(
    name: str, x: Any, axis: Any, dtype: Any, ddof: Any, keepdims: bool, where: Any, mean_given: Any, correction: Any
) -> tuple[Any, Any]:
    """The variance in the dtype that it is computed in, and the dtype it is wanted in."""
    if correction is not None:
        if not isinstance(ddof, int) or ddof != 0:
            raise ValueError(
                f"{name}: ddof and correction can't be provided simultaneously, got ddof={ddof} and {correction=}"
            )
        ddof = correction
    (x,) = operands(name, x)
    inside, own = _variance_dtypes(name, aval_of(x).dtype, dtype)
    x = cast(x, inside)
    axes = reduced_axes(name, axis, aval_of(x).ndim)
    middle = mean(x, axis, inside, keepdims=True, where=where) if mean_given is None else cast(mean_given, inside)
    apart = subtract(x, middle)
    squares = real(multiply(apart, conj(apart))) if dtypes.is_complex(inside) else ops.square(apart)
    real_inside = dtypes.real_dtype(inside)
    total = sum(squares, axis, real_inside, keepdims=keepdims, where=where)
    (ddof,) = operands(name, ddof)
    if where is None and dtypes.is_python_scalar(ddof):
        count = count_of(aval_of(x).shape, axes) - ddof
        return ops.div(total, literal(count if count > 0 else math.nan, real_inside)), own
    counted = True if where is None else where
    count = sum(broadcast_to(counted, aval_of(x).shape), axis, real_inside, keepdims=keepdims)
    count = subtract(count, cast(ddof, real_inside))
    return where_op(_is_positive(count), divide(total, count), literal(math.nan, real_inside)), own


def _is_positive(count: Any) -> Any:
    return gt(as_array(count), const_like(count, 0))


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """Variance: the sum of squared distances from the mean, divided by the count less `ddof`.

    NaN where that divisor is not above zero.  It takes two passes, the mean first, so that large means cost no
    accuracy.  Real also for complex numbers.
    """
    no_out("var", out)
    found, own = _variance("var", a, axis, dtype, ddof, keepdims, where, mean, correction)
    return cast(found, own)


def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """Standard deviation: the square root of the variance."""
    no_out("std", out)
    found, own = _variance("std", a, axis, dtype, ddof, keepdims, where, mean, correction)
    return cast(sqrt(found), own)


def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    """Mean with weights.  `weights` has the shape of `a`, or that of the reduced dims.

    `returned`: also return the sum of the weights.  Raises ValueError for weights that do not fit.
    """
    if weights is None:
        (x,) = promote_inexact(*operands("average", a))
        axes = reduced_axes("average", axis, aval_of(x).ndim)
        out = mean(x, axis, keepdims=keepdims)
        total = literal(count_of(aval_of(x).shape, axes), out.aval.dtype)
    else:
        x, w = promote_inexact(*operands("average", a, weights))
        axes = reduced_axes("average", axis, aval_of(x).ndim)
        w = _fitted(x, w, axes)
        total = sum(w, axis, keepdims=keepdims)
        out = divide(sum(multiply(x, w), axis, keepdims=keepdims), total)
    if not returned:
        return out
    return out, as_array(broadcast_to(as_array(total), aval_of(out).shape))


def _fitted(x: Any, w: Any, axes: tuple[int, ...]) -> Any:
    """Weights that broadcast against the operand."""
    xa, wa = aval_of(x), aval_of(w)
    if wa.shape == xa.shape:
        return w
    shown = f"got {xa.str_short()}, weights {wa.str_short()} and axis {axes}"
    if wa.ndim != len(axes):
        kind = "1D " if len(axes) == 1 else ""
        raise ValueError(
            f"{kind}weights expected when shapes of a and weights differ, one dim per reduced dim: {shown}"
        )
    if wa.shape != tuple(xa.shape[d] for d in axes):
        raise ValueError(f"Length of weights not compatible with specified axis: {shown}")
    order = tuple(int(k) for k in np.argsort(axes))
    w = transpose(w, permutation=order)
    return expand_dims(w, tuple(d for d in range(xa.ndim) if d not in axes))
