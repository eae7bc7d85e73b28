"""Bits and what is a function of one or two of them per element: uniform, integers, normal, Bernoulli."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, is_python_scalar, literal
from mpiarray.higher_order.jit import jit
from mpiarray.numpy.promotion import cast
from mpiarray.ops import random as ops
from mpiarray.ops.arithmetic import add, div, max_, min_, mul, nextafter, rem, sub
from mpiarray.ops.bits import bitcast_convert_type, or_, shift_right_logical
from mpiarray.ops.common import const_like
from mpiarray.ops.comparison import gt, le, lt
from mpiarray.ops.linear import convert_element_type
from mpiarray.ops.select import select_n, stop_gradient_op
from mpiarray.ops.special import erf, erf_inv
from mpiarray.random.arguments import (
    common_shape,
    draw_sharding,
    float_dtype,
    item,
    one_key,
    parameter,
    shape_of,
    with_dims,
)
from mpiarray.random.keys import subkeys
from mpiarray.types import dtypes


def bits(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Uniform random bits as unsigned integers (uint32 by default, uint64 with 64-bit types enabled).

    The bits of an element depend on the key and on its row-major index only, so that a draw is the same for any
    sharding and number of ranks; each rank makes its block of it.
    """
    key = one_key("bits", key)
    found = dtypes.canonicalize(np.uint64) if dtype is None else dtypes.requested(dtype, "bits")
    if not dtypes.is_unsigned(found):
        raise ValueError(f"dtype argument to `bits` must be an unsigned int dtype, got {found}")
    shape = shape_of("bits", shape)
    return ops.draw_bits(key, shape, dtypes.bit_width(found), draw_sharding("bits", shape, out_sharding))


def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, *, out_sharding: Any = None
) -> Any:
    """Floats uniform in [minval, maxval), which broadcast to `shape`."""
    key = one_key("uniform", key)
    dtype = float_dtype("uniform", dtype)
    shape = common_shape("uniform", shape_of("uniform", shape), minval, maxval)
    return between(key, shape, dtype, minval, maxval, draw_sharding("uniform", shape, out_sharding, minval, maxval))


# Draws are compiled, once per shape, dtype and sharding: called by themselves they are one step, not ten.
compiled = partial(jit, static_argnums=(1, 2, 3))


@compiled
def unit(key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """Floats uniform in [0, 1): random bits make the mantissa of a number in [1, 2)."""
    width, mantissa = dtypes.bit_width(dtype), int(dtypes.finfo(dtype).nmant)
    drawn = 8 if mantissa < 8 else width
    unsigned = np.dtype(f"uint{width}")
    raw = ops.draw_bits(key, shape, drawn, sharding)
    if drawn != width:
        raw = convert_element_type(raw, new_dtype=unsigned, weak_type=False)
    one = np.ones((), dtype).view(unsigned)
    raw = or_(shift_right_logical(raw, literal(drawn - mantissa, unsigned)), literal(one, unsigned))
    return sub(bitcast_convert_type(raw, new_dtype=dtype), literal(1, dtype))


def between(key: Any, shape: tuple[int, ...], dtype: Any, low: Any, high: Any, sharding: Any) -> Any:
    """Floats uniform in [low, high)."""
    if not (is_python_scalar(low) and is_python_scalar(high)):
        return _stretched(unit(key, shape, dtype, sharding), low, high, shape, dtype, sharding)
    if low == 0 and high == 1:
        return unit(key, shape, dtype, sharding)
    return _between_numbers(key, shape, dtype, sharding, low, high)


@partial(jit, static_argnums=(1, 2, 3, 4, 5))
def _between_numbers(key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any, low: float, high: float) -> Any:
    return _stretched(unit(key, shape, dtype, sharding), low, high, shape, dtype, sharding)


def _stretched(u: Any, low: Any, high: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    low, high = (parameter(x, shape, dtype, sharding) for x in (low, high))
    return max_(low, add(mul(u, sub(high, low)), low))


def just_above_minus_one(dtype: Any) -> float:
    """The float after -1."""
    return -1 + float(dtypes.finfo(dtype).eps) / 2


def normal(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Normal numbers of mean 0 and variance 1; complex ones have variance 1/2 in each part."""
    key = one_key("normal", key)
    found = dtypes.requested(float if dtype is None else dtype, "normal")
    if not dtypes.is_inexact(found):
        raise ValueError(f"dtype argument to `normal` must be a float or complex dtype, got {found}")
    shape = shape_of("normal", shape)
    return standard_normal(key, shape, found, draw_sharding("normal", shape, out_sharding))


@compiled
def standard_normal(key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    if dtypes.is_complex(dtype):
        parts = [standard_normal(k, shape, dtypes.real_dtype(dtype), sharding) for k in subkeys(key, 2)]
        real, imag = (convert_element_type(p, new_dtype=dtype, weak_type=False) for p in parts)
        return div(add(real, mul(literal(1j, dtype), imag)), literal(np.sqrt(2), dtype))
    u = between(key, shape, dtype, just_above_minus_one(dtype), 1.0, sharding)
    return mul(literal(np.sqrt(2), dtype), erf_inv(u))


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """Normal numbers in the open interval (lower, upper), which broadcast to `shape` (default: to each other)."""
    key = one_key("truncated_normal", key)
    dtype = float_dtype("truncated_normal", dtype)
    shape = common_shape("truncated_normal", shape, lower, upper)
    sharding = draw_sharding("truncated_normal", shape, out_sharding, lower, upper)
    lower, upper = (parameter(x, shape, dtype, sharding) for x in (lower, upper))
    root = literal(np.sqrt(2), dtype)
    u = between(key, shape, dtype, erf(div(lower, root)), erf(div(upper, root)), sharding)
    out = mul(root, erf_inv(u))
    inside = [
        nextafter(stop_gradient_op(x), literal(toward, dtype)) for x, toward in ((lower, math.inf), (upper, -math.inf))
    ]
    return min_(inside[1], max_(inside[0], out))


# -- integers ------------------------------------------------------------------------------------------


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Integers uniform in [minval, maxval), which broadcast to `shape`; `minval` where `maxval <= minval`.

    Bounds outside of the dtype's range are moved into it.
    """
    key = one_key("randint", key)
    found = dtypes.requested(int if dtype is None else dtype, "randint")
    if not dtypes.is_int(found):
        raise TypeError(f"randint only accepts integer dtypes, got {found}")
    shape = common_shape("randint", shape_of("randint", shape), minval, maxval)
    sharding = draw_sharding("randint", shape, out_sharding, minval, maxval)
    work = found if dtypes.bit_width(found) >= 32 else np.dtype(np.int32)
    if isinstance(minval, int) and isinstance(maxval, int):
        out = _between_host_ints(key, shape, found, work, int(minval), int(maxval), sharding)
    else:
        out = _between_ints(key, shape, found, work, minval, maxval, sharding)
    return out if work == found else convert_element_type(out, new_dtype=found, weak_type=False)


def _between_host_ints(key: Any, shape: Any, dtype: Any, work: Any, low: int, high: int, sharding: Any) -> Any:
    info = dtypes.iinfo(dtype)
    low = min(max(low, int(info.min)), int(info.max))
    span = max(min(high, int(info.max) + 1) - low, 1)
    return _offset(key, shape, work, literal(low, work), span, sharding)


def _between_ints(key: Any, shape: Any, dtype: Any, work: Any, low: Any, high: Any, sharding: Any) -> Any:
    info, width = dtypes.iinfo(dtype), dtypes.iinfo(work)
    unsigned = np.dtype(f"uint{dtypes.bit_width(work)}")
    # one more than the largest value fits in `work` when dtype is narrower; else it has to be remembered
    top = min(int(info.max) + 1, int(width.max))
    low, _ = _clipped(low, int(info.min), int(info.max), work, shape, sharding)
    high, beyond = _clipped(high, int(info.min), top, work, shape, sharding)
    one = literal(1, unsigned)
    span = convert_element_type(sub(high, low), new_dtype=unsigned, weak_type=False)
    span = select_n(le(high, low), span, _like(one, span))
    if beyond is not None and int(info.max) + 1 > int(width.max):
        more = convert_element_type(beyond, new_dtype=unsigned, weak_type=False)
        more = mul(more, convert_element_type(gt(high, low), new_dtype=unsigned, weak_type=False))
        span = add(span, more)
    return _offset(key, shape, work, low, span, sharding)


def _like(x: Any, other: Any) -> Any:
    """A scalar broadcast to the type of an array."""
    return add(sub(other, other), x)


def _clipped(x: Any, low: int, high: int, work: Any, shape: Any, sharding: Any) -> tuple[Any, Any]:
    """`x` moved into [low, high] in its own dtype, then as `work`; and where it was above `high`."""
    if isinstance(x, int):
        return literal(min(max(x, low), high), work), None
    dtype = aval_of(x).dtype
    if not dtypes.is_int(dtype):
        x, dtype = cast(x, np.dtype(np.int32) if dtypes.bit_width(work) <= 32 else work), np.dtype(np.int32)
        dtype = aval_of(x).dtype
    x = parameter(x, shape, dtype, sharding)
    own = dtypes.iinfo(dtype)
    low, high = max(low, int(own.min)), min(high, int(own.max))
    beyond = gt(x, literal(high, dtype))
    x = min_(max_(x, literal(low, dtype)), literal(high, dtype))
    return (x if dtype == work else convert_element_type(x, new_dtype=work, weak_type=False)), beyond


def _offset(key: Any, shape: Any, work: Any, low: Any, span: Any, sharding: Any) -> Any:
    """`low` plus a number below `span`, which is a Python int or an array."""
    width = dtypes.bit_width(work)
    unsigned = np.dtype(f"uint{width}")
    half = 1 << (width // 2)
    if not isinstance(span, int):
        part = rem(literal(half, unsigned), span)
        return _below(key, shape, work, sharding, "two", low, span, rem(mul(part, part), span))
    if span == 1 << width:
        return _below(key, shape, work, sharding, "all", low, None, None)
    # as the words do it: the square wraps around, so that a span above 2**(width / 2) uses the second draw alone
    scale = (half % span) ** 2 % (1 << width) % span
    number = literal(span, unsigned)
    if not scale:
        return _below(key, shape, work, sharding, "one", low, number, None)
    return _below(key, shape, work, sharding, "two", low, number, literal(scale, unsigned))


@partial(jit, static_argnums=(1, 2, 3, 4))
def _below(key: Any, shape: Any, work: Any, sharding: Any, draws: str, low: Any, span: Any, scale: Any) -> Any:
    """`low` plus a number below `span` from two draws of bits, the high and the low half of a wider number.

    draws: 'two'; 'one' where the first would be multiplied by 0; 'all' where every number of the width is wanted.
    """
    width = dtypes.bit_width(work)
    first, second = subkeys(key, 2)
    offset = ops.draw_bits(second, shape, width, sharding)
    if draws != "all":
        offset = rem(offset, span)
    if draws == "two":
        upper = rem(ops.draw_bits(first, shape, width, sharding), span)
        offset = rem(add(mul(upper, scale), offset), span)
    return add(low, convert_element_type(offset, new_dtype=work, weak_type=False))


# -- yes or no -----------------------------------------------------------------------------------------


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low", *, out_sharding: Any = None) -> Any:
    """True with probability `p` (a float or an array of them, which broadcasts to `shape`).

    mode: 'low' draws one number an element, 'high' two, which makes small probabilities exact to twice the digits.
    """
    key = one_key("bernoulli", key)
    if mode not in ("low", "high"):
        raise ValueError(f"bernoulli: got mode={mode!r}; expected 'high' or 'low'")
    dtype = aval_of(p).dtype
    if not dtypes.is_float(dtype):
        raise TypeError(f"bernoulli probability `p` must have a floating dtype, got {dtype}.")
    shape = common_shape("bernoulli", shape, p)
    sharding = draw_sharding("bernoulli", shape, out_sharding, p)
    p = parameter(p, shape, dtype, sharding)
    if mode == "low":
        return lt(unit(key, shape, dtype, sharding), p)
    first, second = two_units(key, shape, dtype, sharding)
    return lt(mul(second, const_like(second, float(dtypes.finfo(dtype).eps))), sub(p, first))


def two_units(key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> tuple[Any, Any]:
    """Two uniform numbers an element, as one draw of shape `(2, *shape)` has them."""
    both = unit(key, (2, *shape), dtype, with_dims(sharding, 1, 0))
    return item(both, 0), item(both, 1)


def rademacher(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """-1 or 1, each with probability 1/2."""
    found = dtypes.requested(int if dtype is None else dtype, "rademacher")
    if not dtypes.is_number(found):
        raise ValueError(f"dtype argument to `rademacher` must be a number dtype, got {found}")
    yes = bernoulli(key, 0.5, shape_of("rademacher", shape), out_sharding=out_sharding)
    yes = convert_element_type(yes, new_dtype=found, weak_type=False)
    return sub(mul(literal(2, found), yes), literal(1, found))
