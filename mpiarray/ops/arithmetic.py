"""Arithmetic: sums, products, quotients, powers, roots, maxima and minima, rounding.

Integers wrap around, divide towards zero (by 0: -1, and the remainder is the dividend), as XLA does on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, Undefined, pass_through
from mpiarray.core.value import aval_of
from mpiarray.ops.common import broadcast_shape, check_kind, const_like, same_dtype
from mpiarray.ops.comparison import eq, lt
from mpiarray.ops.elementwise import by_kind, elementwise_type, nary, unary, widened, wrapped
from mpiarray.ops.linear import convert_element_type, unbroadcast
from mpiarray.ops.partial_sums import add_sums, div_sums, mul_sums
from mpiarray.ops.select import where
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

neg: Op = unary(
    "neg",
    "ifc",
    wrapped(np.negative),
    lambda t, out, x: neg(t),
    transpose=lambda op, ct, x: [neg(ct)],
    partial_sums=pass_through,
    hlo_name="negate",
    code=lambda b, x: b.neg(x),
)


def _add_transpose(op: Op, ct: Any, x: Any, y: Any) -> list[Any]:
    return [unbroadcast(ct, a.aval) if isinstance(a, Linear) else None for a in (x, y)]


def _sub_transpose(op: Op, ct: Any, x: Any, y: Any) -> list[Any]:
    return [
        unbroadcast(ct, x.aval) if isinstance(x, Linear) else None,
        unbroadcast(neg(ct), y.aval) if isinstance(y, Linear) else None,
    ]


add: Op = nary(
    "add",
    "ifc",
    np.add,
    (lambda t, out, x, y: t, lambda t, out, x, y: t),
    transpose=_add_transpose,
    partial_sums=add_sums,
    code=lambda b, x, y: b.add(x, y),
)
sub: Op = nary(
    "sub",
    "ifc",
    np.subtract,
    (lambda t, out, x, y: t, lambda t, out, x, y: neg(t)),
    transpose=_sub_transpose,
    partial_sums=add_sums,
    hlo_name="subtract",
    code=lambda b, x, y: b.sub(x, y),
)


def _mul_transpose(op: Op, ct: Any, x: Any, y: Any) -> list[Any]:
    if isinstance(x, Linear):
        return [unbroadcast(mul(ct, y), x.aval), None]
    return [None, unbroadcast(mul(x, ct), y.aval)]


mul: Op = nary(
    "mul",
    "ifc",
    np.multiply,
    (lambda t, out, x, y: mul(t, y), lambda t, out, x, y: mul(x, t)),
    transpose=_mul_transpose,
    partial_sums=mul_sums,
    hlo_name="multiply",
    code=lambda b, x, y: b.mul(x, y),
)

# -- division -----------------------------------------------------------------------------------------


def _divide_integers(x: Any, y: Any) -> Any:
    """Towards zero; anything by 0 is all ones."""
    zero = y == 0
    safe = np.where(zero, np.ones((), y.dtype), y) if np.any(zero) else y
    q = np.floor_divide(x, safe)
    if dtypes.is_signed(x.dtype):
        q = q + ((q * safe != x) & ((x < 0) != (safe < 0)))
    return (
        np.where(zero, np.array(-1).astype(q.dtype), q).astype(x.dtype)
        if safe is not y
        else np.asarray(q).astype(x.dtype)
    )


def _remainder_of_integers(x: Any, y: Any) -> Any:
    zero = y == 0
    if not np.any(zero):
        return np.fmod(x, y)
    return np.where(zero, x, np.fmod(x, np.where(zero, np.ones((), y.dtype), y)))


div: Op = nary(
    "div",
    "ifc",
    by_kind(wrapped(_divide_integers), np.divide),
    (lambda t, out, x, y: div(t, y), lambda t, out, x, y: div(mul(neg(t), out), y)),
    transpose=lambda op, ct, x, y: [unbroadcast(div(ct, y), x.aval), None],
    partial_sums=div_sums,
    hlo_name="divide",
    code=lambda b, x, y: b.div(x, y),
)


def _rem_by_divisor(t: Any, out: Any, x: Any, y: Any) -> Any:
    return mul(neg(t), trunc(div(x, y)))


rem = nary(
    "rem",
    "if",
    by_kind(wrapped(_remainder_of_integers), widened(np.fmod)),
    (lambda t, out, x, y: t, _rem_by_divisor),
    hlo_name="remainder",
)

# -- maxima and minima ----------------------------------------------------------------------------------


def select_share(chosen: Any, out: Any, other: Any) -> Any:
    """1 where the result is `chosen`, 0 where it is not, 1/2 where both operands are it."""
    aval = out.aval
    ones, twos = const_like(out, 1), const_like(out, 2)
    return div(where(eq(chosen, out), ones, const_like(out, 0), aval), where(eq(other, out), twos, ones, aval))


_TO_THE_CHOSEN = (
    lambda t, out, x, y: mul(t, select_share(x, out, y)),
    lambda t, out, x, y: mul(t, select_share(y, out, x)),
)

# NaN wins; of zeros of different signs either may
max_ = nary("max", "bifc", wrapped(np.maximum), _TO_THE_CHOSEN, hlo_name="maximum", code=lambda b, x, y: b.max(x, y))
min_ = nary("min", "bifc", wrapped(np.minimum), _TO_THE_CHOSEN, hlo_name="minimum", code=lambda b, x, y: b.min(x, y))

# -- powers and roots -------------------------------------------------------------------------------------


def _times(x: Any, factor: float) -> Any:
    return mul(const_like(x, factor), x)


square = unary(
    "square",
    "ifc",
    wrapped(np.square),
    lambda t, out, x: mul(t, _times(x, 2)),
    hlo_name="multiply",
    code=lambda b, x: b.square(x),
)
sqrt = unary("sqrt", "fc", np.sqrt, lambda t, out, x: mul(t, div(const_like(x, 0.5), out)), code=lambda b, x: b.sqrt(x))


def _rsqrt_code(b: Any, x: Any) -> Any:
    wide = b.wide(x)
    return b.cast(b.div(b.constant(1, wide.dtype), b.sqrt(wide)), x.dtype)


rsqrt = unary(
    "rsqrt", "fc", widened(lambda x: np.reciprocal(np.sqrt(x))), lambda t, out, x: mul(t, _times(div(out, x), -0.5)),
    code=_rsqrt_code,
)  # fmt: skip
cbrt = unary("cbrt", "f", widened(np.cbrt), lambda t, out, x: mul(t, div(const_like(x, 1 / 3), square(out))))


def _integer_pow_type(x: ShapedArray, *, y: int) -> Out:
    if dtypes.is_int(x.dtype) and y < 0:
        raise TypeError(f"Integers cannot be raised to negative powers, got integer_pow({x.str_short()}, {y})")
    return elementwise_type("integer_pow", "ifc")(x)


def _integer_pow(x: Any, *, y: int) -> Any:
    """By repeated squaring: exact where the products are, and integers wrap around."""
    if y == 0:
        return np.ones_like(x)
    left, base = abs(y), x
    out: Any = None
    while True:
        if left & 1:
            out = base if out is None else out * base
        left >>= 1
        if not left:
            return np.reciprocal(out) if y < 0 else out
        base = base * base


def _integer_pow_code(b: Any, x: Any, *, y: int) -> Any:
    left, base, out = abs(y), b.wide(x), None
    while left:
        if left & 1:
            out = base if out is None else b.mul(out, base)
        left >>= 1
        base = b.mul(base, base) if left else base
    one = b.constant(1, base.dtype)
    return b.cast(one if out is None else out if y > 0 else b.div(one, out), x.dtype)


def _integer_pow_of(*, y: int) -> Callable[..., Any]:
    """The power as a function of blocks alone; the square is one pass, which can write into a given array."""
    return np.square if y == 2 else partial(_integer_pow, y=y)


_integer_pow.for_params = _integer_pow_of  # type: ignore[attr-defined]


def _integer_pow_jvp(t: Any, out: Any, x: Any, *, y: int) -> Any:
    if y == 0:
        return mul(t, const_like(x, 0))
    if y == 1:
        return t
    return mul(t, _times(x if y == 2 else integer_pow(x, y=y - 1), y))


integer_pow: Op = nary(
    "integer_pow",
    "ifc",
    widened(wrapped(_integer_pow)),
    (_integer_pow_jvp,),
    type_rule=_integer_pow_type,
    hlo_name="power",
    code=_integer_pow_code,
)


def _pow_type(x: ShapedArray, y: ShapedArray) -> Out:
    if not dtypes.is_int(y.dtype):
        same_dtype("pow", (x, y))
    check_kind("pow", x.dtype, "fc")
    return Out(broadcast_shape("pow", (x, y)), x.dtype, x.weak_type and y.weak_type)


def _power(x: Any, y: Any) -> Any:
    return np.power(x, y if y.dtype == x.dtype else y.astype(x.dtype))


def _pow_by_base(t: Any, out: Any, x: Any, y: Any) -> Any:
    if not dtypes.is_int(aval_of(y).dtype):
        return mul(t, mul(y, pow_(x, sub(y, const_like(y, 1)))))
    at_zero = eq(y, const_like(y, 0))
    factor = convert_element_type(y, new_dtype=aval_of(x).dtype, weak_type=aval_of(x).weak_type)
    slope = mul(factor, pow_(x, sub(y, const_like(y, 1))))
    return mul(t, where(at_zero, const_like(out, 0), slope, out.aval))


def _pow_by_exponent(t: Any, out: Any, x: Any, y: Any) -> Any:
    """Where the base is 0 the logarithm is taken of 1, so that 0**y has slope 0."""
    return mul(t, mul(log_of_nonzero(x), out))


def log_of_nonzero(x: Any) -> Any:
    return log(where(eq(x, const_like(x, 0)), const_like(x, 1), x, aval_of(x)))


pow_: Op = nary("pow", "fc", widened(_power), (_pow_by_base, _pow_by_exponent), type_rule=_pow_type, hlo_name="power")

log = unary("log", "fc", widened(np.log), lambda t, out, x: div(t, x))

# -- rounding -----------------------------------------------------------------------------------------------

floor = unary("floor", "f", np.floor, None, code=lambda b, x: b.call("floor", x))
ceil = unary("ceil", "f", np.ceil, None, code=lambda b, x: b.call("ceil", x))


def _half_away(x: Any) -> Any:
    """Half-way cases away from zero; adding 0.5 first would round 0.49999997 up."""
    whole = np.trunc(x)
    return whole + np.copysign((np.abs(x - whole) >= 0.5).astype(whole.dtype), x)


def _round(x: Any, *, rounding_method: int) -> Any:
    return np.rint(x) if int(rounding_method) == 1 else _half_away(x)


def _round_type(x: ShapedArray, *, rounding_method: Any) -> Out:
    if int(rounding_method) not in (0, 1):
        raise ValueError(
            f"round: rounding_method must be 0 (half away from zero) or 1 (half to even), got {rounding_method}"
        )
    return elementwise_type("round", "f")(x)


round_ = nary("round", "f", widened(_round), (None,), type_rule=_round_type, hlo_name="round-nearest-afz")


def trunc(x: Any) -> Any:
    """Rounded towards zero."""
    return where(lt(x, const_like(x, 0)), ceil(x), floor(x), aval_of(x))


# equal operands give the second one, which shows where they are zeros of different signs
nextafter = nary(
    "nextafter",
    "f",
    lambda x, y: np.where(x == y, y, np.nextafter(x, y)),
    Undefined("a step to the next float has no derivative"),
)


def _reduce_precision(x: Any, *, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Round to a shorter mantissa (half to even); exponents out of range become infinity or zero of the same sign."""
    x = np.asarray(x)
    info = dtypes.finfo(x.dtype)
    own, unsigned = int(info.nmant), f"u{x.dtype.itemsize}"
    bits = x.view(unsigned)
    one = np.ones((), unsigned)
    drop = own - mantissa_bits
    if drop > 0:
        last = (bits >> (one * drop)) & one
        bits = (bits + last + ((one << (one * (drop - 1))) - one)) & ~((one << (one * drop)) - one)
    if exponent_bits < int(info.nexp):
        mask = ((one << (one * int(info.nexp))) - one) << (one * own)
        bias, reduced = (1 << (int(info.nexp) - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        exponent = (bits & mask) >> (one * own)
        sign = bits & (one << (one * (8 * x.dtype.itemsize - 1)))
        bits = np.where(exponent > bias + reduced, sign | mask, bits)
        bits = np.where(exponent <= bias - reduced, sign, bits)
    return np.where(np.isnan(x), x, bits.astype(unsigned).view(x.dtype))


def _precision_type(x: ShapedArray, *, exponent_bits: int, mantissa_bits: int) -> Out:
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ValueError(
            f"reduce_precision: exponent_bits must be at least 1 and mantissa_bits at least 0, "
            f"got {exponent_bits} and {mantissa_bits}"
        )
    return elementwise_type("reduce_precision", "f")(x)


reduce_precision: Op = nary(
    "reduce_precision",
    "f",
    _reduce_precision,
    (lambda t, out, x, **params: reduce_precision(t, **params),),
    type_rule=_precision_type,
    transpose=lambda op, ct, x, **params: [op(ct, **params)],
    hlo_name="reduce-precision",
)
