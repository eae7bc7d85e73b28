"""Parts of complex numbers, and floats taken apart into sign, fraction and exponent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy.arithmetic import absolute, trunc
from mpiarray.numpy.comparison import isfinite, isinf, signbit
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast, operands, promote_ranks, promote_strong, promote_to_inexact
from mpiarray.ops import arithmetic, bits, comparison, complex_parts, transcendental
from mpiarray.ops.common import const_like
from mpiarray.ops.linear import full_of
from mpiarray.ops.select import where
from mpiarray.types import dtypes

__all__ = [
    "angle", "conj", "conjugate", "copysign", "frexp", "imag", "ldexp", "modf", "nextafter", "real", "real_if_close",
    "spacing",
]  # fmt: skip

_I32 = np.dtype(np.int32)


def real(val: Any, /) -> Any:
    """The real part."""
    (x,) = operands("real", val)
    return complex_parts.real(x) if dtypes.is_complex(aval_of(x).dtype) else as_array(x)


def imag(val: Any, /) -> Any:
    """The imaginary part; zeros for real numbers."""
    (x,) = operands("imag", val)
    return complex_parts.imag(x) if dtypes.is_complex(aval_of(x).dtype) else as_array(full_of(aval_of(x), 0))


def conjugate(x: Any, /) -> Any:
    """The complex conjugate; real numbers as they are."""
    (x,) = operands("conjugate", x)
    return complex_parts.conj(x) if dtypes.is_complex(aval_of(x).dtype) else as_array(x)


conj = conjugate


def angle(z: Any, deg: bool = False) -> Any:
    """The angle of complex numbers in radians from -pi to pi, or in degrees."""
    (z,) = operands("angle", z)
    (z,) = promote_strong("angle", z)
    out = transcendental.atan2(imag(z), real(z))
    return arithmetic.mul(out, const_like(out, 180 / math.pi)) if deg else out


def real_if_close(a: Any, tol: float = 100) -> Any:
    """Real numbers as they are; complex ones too, as whether they are real cannot be part of a type."""
    return as_array(*operands("real_if_close", a))


# -- floats -----------------------------------------------------------------------------------------------


def copysign(x1: Any, x2: Any, /) -> Any:
    """The absolute value of `x1` with the sign of `x2`, of real numbers."""
    x1, x2 = promote_to_inexact("copysign", x1, x2)
    if dtypes.is_complex(aval_of(x1).dtype):
        raise TypeError(f"copysign does not support complex-valued inputs, got {aval_of(x1).str_short()}")
    size = complex_parts.abs_(x1)
    negative = signbit(x2)
    one = const_like(x1, 1)
    sign = where(negative, const_like(x1, -1), one, aval_of(negative).update(dtype=aval_of(x1).dtype))
    return arithmetic.mul(size, sign)


def nextafter(x: Any, y: Any, /) -> Any:
    """The next float after `x` towards `y`."""
    return arithmetic.nextafter(*promote_to_inexact("nextafter", x, y))


def spacing(x: Any, /) -> Any:
    """The distance to the next float away from zero, with the sign of `x`."""
    (x,) = promote_strong("spacing", x)
    if dtypes.is_complex(aval_of(x).dtype):
        raise ValueError(f"jnp.spacing is not defined for complex inputs, got {aval_of(x).str_short()}")
    info = dtypes.finfo(aval_of(x).dtype)
    away = where(signbit(x), const_like(x, -math.inf), const_like(x, math.inf), aval_of(x))
    step = arithmetic.sub(arithmetic.nextafter(x, away), x)
    tiny = copysign(const_like(x, info.smallest_subnormal), x)
    step = where(comparison.eq(x, const_like(x, 0)), tiny, step, aval_of(x))
    return where(isfinite(x), step, const_like(x, math.nan), aval_of(x))


def modf(x: Any, /, out: None = None) -> tuple[Any, Any]:
    """`(fraction, whole)`, both with the sign of `x`."""
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.modf is not supported.")
    (x,) = promote_to_inexact("modf", x)
    if dtypes.is_complex(aval_of(x).dtype):
        raise TypeError(f"modf does not support complex-valued inputs, got {aval_of(x).str_short()}")
    whole = trunc(x)
    fraction = where(isinf(x), const_like(x, 0), arithmetic.sub(x, whole), aval_of(x))
    return fraction, whole


def frexp(x: Any, /) -> tuple[Any, Any]:
    """`(mantissa, exponent)`, with `x == mantissa * 2**exponent` and mantissas from 0.5 to 1; exponents are int32."""
    (x,) = promote_strong("frexp", x)
    dtype = aval_of(x).dtype
    if dtypes.is_complex(dtype):
        raise TypeError(f"frexp does not support complex-valued inputs, got {aval_of(x).str_short()}")
    info = dtypes.finfo(dtype)
    pattern = np.dtype(f"int{dtypes.bit_width(dtype)}")
    fraction_bits = int(info.nmant)
    exponent_mask = (1 << (dtypes.bit_width(dtype) - 1 - fraction_bits)) - 1
    bias = (exponent_mask >> 1) - 1  # of mantissas from 0.5 to 1
    scaled = arithmetic.mul(x, const_like(x, 2.0**fraction_bits))
    small = comparison.lt(absolute(x), const_like(x, float(info.tiny)))
    x_normal = where(small, scaled, x, aval_of(x))
    read = bits.bitcast_convert_type(x_normal, new_dtype=pattern)
    exponent = bits.and_(
        bits.shift_right_logical(read, const_like(read, fraction_bits)), const_like(read, exponent_mask)
    )
    exponent = cast(exponent, _I32)
    exponent = arithmetic.sub(exponent, const_like(exponent, bias))
    exponent = arithmetic.sub(
        exponent, where(small, const_like(exponent, fraction_bits), const_like(exponent, 0), aval_of(exponent))
    )
    special = bits.or_(bits.not_(isfinite(x)), comparison.eq(x, const_like(x, 0)))
    exponent = where(special, const_like(exponent, 0), exponent, aval_of(exponent))
    return _scaled(x, arithmetic.neg(exponent)), exponent


def _scaled(x: Any, n: Any) -> Any:
    """`x * 2**n`, in two steps, neither of which leaves the exponents that the dtype has."""
    half = bits.shift_right_arithmetic(n, const_like(n, 1))
    for step in (half, arithmetic.sub(n, half)):
        x = arithmetic.mul(x, transcendental.exp2(cast(step, aval_of(x).dtype, aval_of(x).weak_type)))
    return x


def ldexp(x1: Any, x2: Any, /) -> Any:
    """`x1 * 2**x2`, for integer `x2`; exact where the result is."""
    x1, x2 = operands("ldexp", x1, x2)
    a, b = aval_of(x1), aval_of(x2)
    if not dtypes.is_int(b.dtype) and not dtypes.is_bool(b.dtype):
        raise ValueError(f"ldexp requires x2 to be an integer, got {b.str_short()}")
    if dtypes.is_complex(a.dtype):
        raise ValueError(f"ldexp does not support complex-valued inputs, got {a.str_short()}")
    x1, x2 = promote_ranks("ldexp", x1, x2)
    (x,) = promote_strong("ldexp", x1)
    return _scaled(x, cast(x2, _I32))
