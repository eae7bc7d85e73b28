"""Arithmetic of numpy: sums, products, quotients, remainders, powers, maxima and minima, rounding.

Integer quotients round down and remainders have the divisor's sign, as in Python; `fmod` and `lax` truncate.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import (
    cast,
    join,
    operands,
    promote,
    promote_dtypes,
    promote_inexact,
    promote_numeric,
    promote_ranks,
    promote_strong,
    promote_to_inexact,
)
from mpiarray.ops import arithmetic as ops
from mpiarray.ops import bits, comparison, complex_parts, divisors
from mpiarray.ops.common import const_like
from mpiarray.ops.select import select_n, where
from mpiarray.types import dtypes

__all__ = [
    "abs", "absolute", "cbrt", "ceil", "divide", "divmod", "fabs", "fix", "float_power", "floor", "floor_divide",
    "fmod", "gcd", "lcm", "mod", "positive", "pow", "power", "reciprocal", "remainder", "rint", "sign", "sqrt",
    "square", "true_divide", "trunc",
]  # fmt: skip


def add(x: Any, y: Any, /) -> Any:
    """Sum; of bools: or."""
    x, y = promote("add", x, y)
    return bits.or_(x, y) if dtypes.is_bool(aval_of(x).dtype) else ops.add(x, y)


def subtract(x: Any, y: Any, /) -> Any:
    """Difference.  Raises TypeError for bools: use `logical_xor`."""
    x, y = promote("subtract", x, y)
    if dtypes.is_bool(aval_of(x).dtype):
        raise TypeError(
            "subtract does not accept dtype bool: use `jnp.logical_xor`, `jnp.bitwise_xor` or cast to an integer dtype"
        )
    return ops.sub(x, y)


def multiply(x: Any, y: Any, /) -> Any:
    """Product; of bools: and."""
    x, y = promote("multiply", x, y)
    return bits.and_(x, y) if dtypes.is_bool(aval_of(x).dtype) else ops.mul(x, y)


def divide(x1: Any, x2: Any, /) -> Any:
    """Quotient, in floating point also for integers."""
    return ops.div(*promote_to_inexact("divide", x1, x2))


true_divide = divide


def _numeric(name: str, *args: Any) -> list[Any]:
    args = operands(name, *args)
    out = promote_ranks(name, *promote_numeric(*args))
    if dtypes.is_complex(aval_of(out[0]).dtype):
        raise TypeError(
            f"{name} does not support complex-valued inputs, got {', '.join(aval_of(a).str_short() for a in args)}"
        )
    return out


def floor_divide(x1: Any, x2: Any, /) -> Any:
    """Quotient rounded down."""
    x, y = _numeric("floor_divide", x1, x2)
    dtype = aval_of(x).dtype
    if dtypes.is_unsigned(dtype):
        return ops.div(x, y)
    if dtypes.is_int(dtype):
        return _floor_divide(x, y)
    return _floor_of_floats(x, y)[0]


def _floor_divide(x: Any, y: Any) -> Any:
    quotient = ops.div(x, y)
    inexact = comparison.ne(ops.rem(x, y), const_like(x, 0))
    down = bits.and_(comparison.ne(complex_parts.sign(x), complex_parts.sign(y)), inexact)
    return select_n(down, quotient, ops.sub(quotient, const_like(quotient, 1)))


def _nonzero_divisor(x: Any) -> Any:
    """An integer divisor with 1 for 0: remainders by 0 are 0, as in numpy."""
    if not dtypes.is_int(aval_of(x).dtype):
        return x
    return where(comparison.eq(x, const_like(x, 0)), const_like(x, 1), x, aval_of(x))


def remainder(x1: Any, x2: Any, /) -> Any:
    """Remainder of the quotient that is rounded down: it has the sign of `x2`."""
    return _remainder(*_numeric("remainder", x1, x2))


mod = remainder


def _remainder(x: Any, y: Any) -> Any:
    zero, y = const_like(x, 0), _nonzero_divisor(y)
    rest = ops.rem(x, y)
    if dtypes.is_unsigned(aval_of(x).dtype):
        return rest
    opposite = comparison.ne(comparison.lt(rest, zero), comparison.lt(y, zero))
    wrong_sign = bits.and_(opposite, comparison.ne(rest, zero))
    return select_n(wrong_sign, rest, ops.add(rest, y))


def _floor_of_floats(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """The quotient rounded down, the remainder of the truncated one, and where the remainder's sign is not the divisor's."""
    rest = ops.rem(x, y)
    quotient = ops.div(ops.sub(x, rest), y)
    zero = const_like(rest, 0)
    negative = comparison.lt(y, const_like(y, 0))
    wrong_sign = bits.and_(comparison.ne(rest, zero), comparison.ne(negative, comparison.lt(rest, zero)))
    down = select_n(wrong_sign, quotient, ops.sub(quotient, const_like(quotient, 1)))
    by_zero = comparison.eq(y, const_like(y, 0))
    down = where(by_zero, ops.div(x, y), down, aval_of(down))
    return ops.round_(down, rounding_method=0), rest, wrong_sign


def divmod(x1: Any, x2: Any, /) -> tuple[Any, Any]:
    """`(floor_divide(x1, x2), remainder(x1, x2))`."""
    x, y = _numeric("divmod", x1, x2)
    if dtypes.is_int(aval_of(x).dtype):
        return ops.div(x, y) if dtypes.is_unsigned(aval_of(x).dtype) else _floor_divide(x, y), _remainder(x, y)
    quotient, rest, wrong_sign = _floor_of_floats(x, y)
    return quotient, select_n(wrong_sign, rest, ops.add(rest, y))


def fmod(x1: Any, x2: Any, /) -> Any:
    """Remainder of the quotient that is rounded towards zero: it has the sign of `x1`."""
    x, y = _numeric("fmod", x1, x2)
    return ops.rem(x, _nonzero_divisor(y))


# -- powers --------------------------------------------------------------------------------------------


def power(x1: Any, x2: Any, /) -> Any:
    """`x1` to the power `x2`.  A Python or numpy integer exponent is applied by products alone.

    Raises TypeError for an integer base and a negative static exponent.
    """
    x1, x2 = operands("power", x1, x2)
    if type(x2) is int:
        return _static_power(x1, x2)
    if not isinstance(x2, Value) and np.ndim(x2) == 0 and not isinstance(x2, (bool, np.bool_)):
        try:
            exponent = operator.index(x2)
        except TypeError:
            pass
        else:
            return _static_power(x1, exponent)
    x, y = promote_ranks("power", *promote_numeric(x1, x2))
    if dtypes.is_int(aval_of(x).dtype):
        return _power_of_integers(x, y)
    base, exponent_type = aval_of(x1).dtype, aval_of(x2).dtype
    if dtypes.is_inexact(base) and dtypes.is_int(exponent_type) and isinstance(x2, Value):
        return ops.pow_(*promote_ranks("power", as_array(x1), x2))
    return ops.pow_(x, y)


def _static_power(x: Any, exponent: int) -> Any:
    (x,) = promote_numeric(x)
    if dtypes.is_int(aval_of(x).dtype) and exponent < 0:
        raise TypeError(
            f"Integers cannot be raised to negative powers, got power({aval_of(x).str_short()}, {exponent}). "
            "Cast the base to a float."
        )
    return ops.integer_pow(x, y=exponent)


def _power_of_integers(x: Any, y: Any) -> Any:
    """By squaring; six bits of the exponent suffice, as every base but -1, 0, 1 has wrapped around by then."""
    x, y = join("power", x, y)
    zero, one = const_like(x, 0), const_like(x, 1)
    vanishes = bits.and_(comparison.eq(x, zero), comparison.ne(y, zero))
    out = cast(bits.not_(vanishes), aval_of(x).dtype, aval_of(x).weak_type)
    for _ in range(6):
        odd = comparison.ne(bits.and_(y, one), zero)
        out = select_n(odd, out, ops.mul(out, x))
        x = ops.mul(x, x)
        y = bits.shift_right_logical(y, one)
    return out


pow = power


def float_power(x: Any, y: Any, /) -> Any:
    """`x` to the power `y` in floating point, also for integers."""
    return ops.pow_(*promote_to_inexact("float_power", x, y))


def _of_inexact(name: str, op: Any, doc: str) -> Any:
    def f(x: Any, /) -> Any:
        return op(*promote_to_inexact(name, x))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


sqrt = _of_inexact("sqrt", ops.sqrt, "Square root; NaN for negative numbers.")
cbrt = _of_inexact("cbrt", ops.cbrt, "Cube root.")


def square(x: Any, /) -> Any:
    """`x * x`."""
    (x,) = operands("square", x)
    (x,) = promote_numeric(x) if dtypes.is_bool(aval_of(x).dtype) else promote_dtypes(x)
    return ops.square(x)


def reciprocal(x: Any, /) -> Any:
    """`1 / x`, in floating point."""
    (x,) = promote_to_inexact("reciprocal", x)
    return ops.integer_pow(x, y=-1)


# -- signs -------------------------------------------------------------------------------------------------


def negative(x: Any, /) -> Any:
    """`-x`; unsigned integers wrap around.  Raises TypeError for bools: use `logical_not`."""
    (x,) = promote_dtypes(*operands("negative", x))
    if dtypes.is_bool(aval_of(x).dtype):
        raise TypeError("neg does not accept dtype bool: use `jnp.logical_not` or `~`")
    return ops.neg(x)


def positive(x: Any, /) -> Any:
    """`x`."""
    return as_array(*operands("positive", x))


def absolute(x: Any, /) -> Any:
    """Absolute value; real for complex numbers."""
    (x,) = promote_dtypes(*operands("absolute", x))
    dtype = aval_of(x).dtype
    return as_array(x) if dtypes.is_bool(dtype) or dtypes.is_unsigned(dtype) else complex_parts.abs_(x)


abs = absolute


def fabs(x: Any, /) -> Any:
    """Absolute value of real numbers, in floating point."""
    (x,) = promote_to_inexact("fabs", x)
    if dtypes.is_complex(aval_of(x).dtype):
        raise TypeError(f"ufunc 'fabs' does not support complex dtypes, got {aval_of(x).str_short()}; use `jnp.abs`")
    return complex_parts.abs_(x)


def sign(x: Any, /) -> Any:
    """-1, 0 or 1; for complex numbers `x / abs(x)`."""
    return complex_parts.sign(*promote_dtypes(*operands("sign", x)))


# -- rounding ------------------------------------------------------------------------------------------------


def _rounding(name: str, op: Any, doc: str) -> Any:
    def f(x: Any, /) -> Any:
        (x,) = operands(name, x)
        dtype = aval_of(x).dtype
        if dtypes.is_bool(dtype) or dtypes.is_int(dtype):
            return as_array(x)
        return op(*promote_inexact(x))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


floor = _rounding("floor", ops.floor, "The largest whole number that is not above `x`.")
ceil = _rounding("ceil", ops.ceil, "The smallest whole number that is not below `x`.")
trunc = _rounding("trunc", ops.trunc, "`x` rounded towards zero.")
fix = trunc


def rint(x: Any, /) -> Any:
    """The nearest whole number, in floating point; half-way cases go to the even one."""
    (x,) = operands("rint", x)
    (x,) = promote_inexact(x) if dtypes.is_inexact(aval_of(x).dtype) else promote_strong("rint", x)
    if dtypes.is_complex(aval_of(x).dtype):
        return complex_parts.complex_(rint(complex_parts.real(x)), rint(complex_parts.imag(x)))
    return ops.round_(x, rounding_method=1)


# -- divisors --------------------------------------------------------------------------------------------------


def _integers(name: str, x1: Any, x2: Any) -> Sequence[Any]:
    args = promote(name, x1, x2)
    if not dtypes.is_int(aval_of(args[0]).dtype):
        raise ValueError(
            f"Arguments to jax.numpy.{name} must be integers, got {', '.join(aval_of(a).str_short() for a in (x1, x2))}"
        )
    return args


def gcd(x1: Any, x2: Any) -> Any:
    """Greatest common divisor of integers, not negative."""
    return divisors.gcd(*_integers("gcd", x1, x2))


def lcm(x1: Any, x2: Any) -> Any:
    """Least common multiple of integers, not negative."""
    return divisors.lcm(*_integers("lcm", x1, x2))
