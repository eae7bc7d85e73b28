"""Choosing between values elementwise: where, select, choose, piecewise, clip, maximum, minimum, nan_to_num, round."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy.comparison import greater, isnan, less, truth
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import (
    broadcast_operands,
    cast,
    join,
    operands,
    promote,
    promote_dtypes,
    promote_strong_unless_weak,
)
from mpiarray.ops import arithmetic, bits, comparison, complex_parts
from mpiarray.ops.common import const_like
from mpiarray.ops.select import select_n
from mpiarray.ops.select import where as choose_like
from mpiarray.types import dtypes

__all__ = [
    "around", "clip", "fmax", "fmin", "heaviside", "nan_to_num", "round", "select",
]  # fmt: skip


def where_op(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, else `y`.

    Shapes broadcast.  Operands of different shapes are broadcast to the joined sharding of all; operands of one shape
    must have one sharding (ShardingTypeError).
    """
    condition, x, y = operands("where", condition, x, y)
    condition = truth(condition)
    x, y = promote_dtypes(x, y)
    if not aval_of(condition).ndim:
        x, y = broadcast_operands("where", x, y)
    else:
        condition, x, y = broadcast_operands("where", condition, x, y)
    return select_n(condition, y, x)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """The first choice whose condition holds, else `default`, element by element.  Conditions are bool."""
    if len(condlist) != len(choicelist):
        raise ValueError(f"condlist must have length equal to choicelist ({len(condlist)} vs {len(choicelist)})")
    if not condlist:
        raise ValueError("condlist must be non-empty")
    conditions = operands("select", *condlist)
    if any(not dtypes.is_bool(aval_of(c).dtype) for c in conditions):
        raise ValueError(
            "select: all arrays in condlist must be boolean, got "
            f"{', '.join(aval_of(c).str_short() for c in conditions)}"
        )
    *choices, out = promote_dtypes(*operands("select", *choicelist, default))
    *choices, out = broadcast_operands("select", *choices, out)
    for condition, choice in zip(reversed(conditions), reversed(choices)):
        out = where_op(condition, choice, out)
    return out


# -- maxima, minima, limits ------------------------------------------------------------------------------------


def _extremum(name: str, op: Any, doc: str) -> Callable[[Any, Any], Any]:
    def f(x: Any, y: Any, /) -> Any:
        return op(*promote(name, x, y))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


maximum = _extremum("maximum", arithmetic.max_, "The larger of two numbers; NaN if one is.")
minimum = _extremum("minimum", arithmetic.min_, "The smaller of two numbers; NaN if one is.")


def _ignoring_nan(name: str, x1: Any, x2: Any, better: Any) -> Any:
    x, y = join(name, *promote(name, x1, x2))
    take_x = bits.or_(better(x, y), isnan(y))
    return select_n(take_x, y, x)


def fmax(x1: Any, x2: Any) -> Any:
    """The larger of two numbers; where one is NaN, the other."""
    return _ignoring_nan("fmax", x1, x2, greater)


def fmin(x1: Any, x2: Any) -> Any:
    """The smaller of two numbers; where one is NaN, the other."""
    return _ignoring_nan("fmin", x1, x2, less)


def clip(arr: Any = None, /, min: Any = None, max: Any = None) -> Any:
    """`arr` limited to values from `min` to `max`; None is no limit.  Raises ValueError for complex numbers."""
    if arr is None:
        raise ValueError("No input was provided to the clip function.")
    args = operands("clip", *(a for a in (arr, min, max) if a is not None))
    if any(dtypes.is_complex(aval_of(a).dtype) for a in args):
        raise ValueError(
            "Clip received a complex value either through the input or the min/max keywords. Complex values "
            "have no ordering and cannot be "
            "clipped. Please convert to a real value or array by taking the real or imaginary components via "
            "jax.numpy.real/imag respectively."
        )
    out = args[0]
    if min is not None:
        out = maximum(min, out)
    if max is not None:
        out = minimum(max, out)
    return as_array(out)


def heaviside(x1: Any, x2: Any, /) -> Any:
    """0 for negative `x1`, 1 for positive, `x2` at 0, NaN for NaN."""
    x, y = join("heaviside", *promote_strong_unless_weak("heaviside", x1, x2))
    if dtypes.is_complex(aval_of(x).dtype):
        raise TypeError(f"jnp.heaviside is not supported for complex inputs, got {aval_of(x).str_short()}")
    zero, one, aval = const_like(x, 0), const_like(x, 1), aval_of(x)
    out = choose_like(comparison.gt(x, zero), one, y, aval)
    out = choose_like(comparison.lt(x, zero), zero, out, aval)
    return choose_like(isnan(x), x, out, aval)


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """NaN replaced by `nan`, infinities by `posinf` and `neginf` (default: the dtype's largest and smallest)."""
    (x,) = operands("nan_to_num", x)
    dtype = aval_of(x).dtype
    if not dtypes.is_inexact(dtype):
        return as_array(x)
    if dtypes.is_complex(dtype):
        parts = (complex_parts.real(x), complex_parts.imag(x))
        return complex_parts.complex_(*(nan_to_num(p, copy, nan, posinf, neginf) for p in parts))
    x = cast(x, dtype)
    info = dtypes.finfo(dtype)
    posinf = float(info.max) if posinf is None else posinf
    neginf = float(info.min) if neginf is None else neginf

    def as_value(v: Any) -> Any:
        return cast(v, dtype, aval_of(x).weak_type)

    out = where_op(isnan(x), as_value(nan), x)
    out = where_op(comparison.eq(out, const_like(x, math.inf)), as_value(posinf), out)
    return where_op(comparison.eq(out, const_like(x, -math.inf)), as_value(neginf), out)


def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """Rounded to `decimals` places after the point; half-way cases go to the even digit.  Integers stay as they are."""
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.round is not supported.")
    (x,) = operands("round", a)
    decimals = operator.index(decimals)
    dtype = aval_of(x).dtype
    if dtypes.is_bool(dtype):
        raise ValueError(f"round: dtype bool has no digits, got {aval_of(x).str_short()}")
    if dtypes.is_int(dtype):
        if decimals < 0:
            raise NotImplementedError("integer np.round not implemented for decimals < 0")
        return as_array(x)
    if dtypes.is_complex(dtype):
        return complex_parts.complex_(round(complex_parts.real(x), decimals), round(complex_parts.imag(x), decimals))
    (x,) = promote_dtypes(x)
    if not decimals:
        return arithmetic.round_(x, rounding_method=1)
    wide = cast(x, np.dtype(np.float32)) if dtypes.bit_width(dtype) < 32 else x
    factor = const_like(wide, 10.0**decimals)
    shifted = arithmetic.round_(arithmetic.mul(wide, factor), rounding_method=1)
    return cast(arithmetic.div(shifted, factor), dtype, aval_of(x).weak_type)


around = round
