"""Exponentials, logarithms, trigonometric and hyperbolic functions, of real and complex numbers.

Integers and bools are computed in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import (
    cast,
    operands,
    promote_inexact,
    promote_strong,
    promote_strong_unless_weak,
    promote_to_inexact,
)
from mpiarray.ops import arithmetic, bits, comparison, complex_parts, transcendental
from mpiarray.ops.common import const_like
from mpiarray.ops.linear import full_of
from mpiarray.ops.select import where
from mpiarray.types import dtypes

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "cos", "cosh", "deg2rad", "degrees", "exp", "exp2", "expm1", "hypot", "i0", "log",
    "log10", "log1p", "log2", "rad2deg", "radians", "sin", "sinc", "sinh", "tan", "tanh",
]  # fmt: skip

_I0_SMALL = (
    -4.41534164647933937950e-18, 3.33079451882223809783e-17, -2.43127984654795469359e-16, 1.71539128555513303061e-15,
    -1.16853328779934516808e-14, 7.67618549860493561688e-14, -4.85644678311192946090e-13, 2.95505266312963983461e-12,
    -1.72682629144155570723e-11, 9.67580903537323691224e-11, -5.18979560163526290666e-10, 2.65982372468238665035e-9,
    -1.30002500998624804212e-8, 6.04699502254191894932e-8, -2.67079385394061173391e-7, 1.11738753912010371815e-6,
    -4.41673835845875056359e-6, 1.64484480707288970893e-5, -5.75419501008210370398e-5, 1.88502885095841655729e-4,
    -5.76375574538582365885e-4, 1.63947561694133579842e-3, -4.32430999505057594430e-3, 1.05464603945949983183e-2,
    -2.37374148058994688156e-2, 4.93052842396707084878e-2, -9.49010970480476444210e-2, 1.71620901522208775349e-1,
    -3.04682672343198398683e-1, 6.76795274409476084995e-1,
)  # fmt: skip
_I0_LARGE = (
    -7.23318048787475395456e-18, -4.83050448594418207126e-18, 4.46562142029675999901e-17, 3.46122286769746109310e-17,
    -2.82762398051658348494e-16, -3.42548561967721913462e-16, 1.77256013305652638360e-15, 3.81168066935262242075e-15,
    -9.55484669882830764870e-15, -4.15056934728722208663e-14, 1.54008621752140982691e-14, 3.85277838274214270114e-13,
    7.18012445138366623367e-13, -1.79417853150680611778e-12, -1.32158118404477131188e-11, -3.14991652796324136454e-11,
    1.18891471078464383424e-11, 4.94060238822496958910e-10, 3.39623202570838634515e-9, 2.26666899049817806459e-8,
    2.04891858946906374183e-7, 2.89137052083475648297e-6, 6.88975834691682398426e-5, 3.36911647825569408990e-3,
    8.04490411014108831608e-1,
)  # fmt: skip


def _function(name: str, op: Any, doc: str) -> Callable[[Any], Any]:
    def f(x: Any, /) -> Any:
        return op(*promote_to_inexact(name, x))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


exp = _function("exp", transcendental.exp, "e to the power `x`.")
exp2 = _function("exp2", transcendental.exp2, "2 to the power `x`.")
expm1 = _function("expm1", transcendental.expm1, "`exp(x) - 1`, accurate near 0.")
log = _function("log", transcendental.log, "Natural logarithm.")
log1p = _function("log1p", transcendental.log1p, "`log(1 + x)`, accurate near 0.")
sin = _function("sin", transcendental.sin, "Sine of radians.")
cos = _function("cos", transcendental.cos, "Cosine of radians.")
tan = _function("tan", transcendental.tan, "Tangent of radians.")
sinh = _function("sinh", transcendental.sinh, "Hyperbolic sine.")
cosh = _function("cosh", transcendental.cosh, "Hyperbolic cosine.")
tanh = _function("tanh", transcendental.tanh, "Hyperbolic tangent.")
arcsin = asin = _function("arcsin", transcendental.asin, "The angle, in radians, whose sine is `x`.")
arccos = acos = _function("arccos", transcendental.acos, "The angle, in radians, whose cosine is `x`.")
arctan = atan = _function("arctan", transcendental.atan, "The angle, in radians, whose tangent is `x`.")
arcsinh = asinh = _function("arcsinh", transcendental.asinh, "Inverse hyperbolic sine.")
arccosh = acosh = _function("arccosh", transcendental.acosh, "Inverse hyperbolic cosine.")
arctanh = atanh = _function("arctanh", transcendental.atanh, "Inverse hyperbolic tangent.")


def arctan2(x1: Any, x2: Any, /) -> Any:
    """The angle, in radians from -pi to pi, of the point whose ordinate is `x1` and abscissa `x2`."""
    return transcendental.atan2(*promote_to_inexact("arctan2", x1, x2))


atan2 = arctan2


def _scaled_log(name: str, base: float) -> Callable[[Any], Any]:
    def f(x: Any, /) -> Any:
        (x,) = promote_strong(name, x)
        real = dtypes.real_dtype(aval_of(x).dtype)
        y = transcendental.log(x)
        if dtypes.is_complex(aval_of(x).dtype):
            scale = np.array(math.log(base), dtypes.storage(real))[()]
            return complex_parts.complex_(
                arithmetic.div(complex_parts.real(y), scale), arithmetic.div(complex_parts.imag(y), scale)
            )
        return arithmetic.div(y, const_like(y, math.log(base)))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"Logarithm to the base {base:g}."
    return f


log2 = _scaled_log("log2", 2)
log10 = _scaled_log("log10", 10)


def hypot(x1: Any, x2: Any, /) -> Any:
    """`sqrt(x1**2 + x2**2)` of real numbers, without overflow on the way."""
    x, y = promote_strong_unless_weak("hypot", x1, x2)
    if dtypes.is_complex(aval_of(x).dtype):
        raise ValueError(
            f"jnp.hypot does not support complex inputs, got {aval_of(x).str_short()} and {aval_of(y).str_short()}"
        )
    x, y = complex_parts.abs_(x), complex_parts.abs_(y)
    infinite = _either_infinite(x, y)
    larger, smaller = arithmetic.max_(x, y), arithmetic.min_(x, y)
    aval = aval_of(larger)
    ratio = arithmetic.div(smaller, where(comparison.eq(larger, const_like(x, 0)), const_like(x, 1), larger, aval))
    length = arithmetic.mul(larger, arithmetic.sqrt(arithmetic.add(const_like(x, 1), arithmetic.square(ratio))))
    return where(infinite, const_like(x, math.inf), length, aval)


def _either_infinite(x: Any, y: Any) -> Any:
    """Of absolute values, where NaN does not hide an infinity."""
    from_x, from_y = (comparison.eq(v, const_like(v, math.inf)) for v in (x, y))
    return bits.or_(from_x, from_y)


def logaddexp(x1: Any, x2: Any, /) -> Any:
    """`log(exp(x1) + exp(x2))` without overflow."""
    x, y = promote_to_inexact("logaddexp", x1, x2)
    if dtypes.is_complex(aval_of(x).dtype):
        x, y = promote_strong_unless_weak("logaddexp", x1, x2)
    return _log_of_sum(x, y, transcendental.exp, transcendental.log1p)


def logaddexp2(x1: Any, x2: Any, /) -> Any:
    """`log2(2**x1 + 2**x2)` without overflow."""
    x, y = promote_strong_unless_weak("logaddexp2", x1, x2)

    def log1p2(t: Any) -> Any:
        return arithmetic.mul(transcendental.log1p(t), const_like(t, 1 / math.log(2)))

    return _log_of_sum(x, y, transcendental.exp2, log1p2)


def _log_of_sum(x: Any, y: Any, power: Callable[[Any], Any], log1p: Callable[[Any], Any]) -> Any:
    is_complex = dtypes.is_complex(aval_of(x).dtype)
    total = arithmetic.add(x, y)
    aval = aval_of(total)
    first = comparison.ge(complex_parts.real(x), complex_parts.real(y)) if is_complex else comparison.ge(x, y)
    larger, smaller = where(first, x, y, aval), where(first, y, x, aval)
    difference = arithmetic.sub(smaller, larger)
    undefined = comparison.ne(difference, difference)  # equal infinities, or an operand is NaN
    inner = log1p(power(where(undefined, const_like(difference, 0), difference, aval)))
    out = where(undefined, total, arithmetic.add(larger, inner), aval)
    return _principal(out) if is_complex else out


def _principal(z: Any) -> Any:
    """The logarithm whose imaginary part lies between -pi and pi."""
    angle = complex_parts.imag(z)
    turns = arithmetic.round_(arithmetic.div(angle, const_like(angle, 2 * math.pi)), rounding_method=1)
    return complex_parts.complex_(
        complex_parts.real(z), arithmetic.sub(angle, arithmetic.mul(turns, const_like(angle, 2 * math.pi)))
    )


def deg2rad(x: Any, /) -> Any:
    """Degrees as radians."""
    (x,) = promote_to_inexact("deg2rad", x)
    return arithmetic.mul(x, const_like(x, math.pi / 180))


def rad2deg(x: Any, /) -> Any:
    """Radians as degrees."""
    (x,) = promote_to_inexact("rad2deg", x)
    return arithmetic.mul(x, const_like(x, 180 / math.pi))


radians, degrees = deg2rad, rad2deg


def sinc(x: Any, /) -> Any:
    """`sin(pi x) / (pi x)`, and 1 at 0."""
    (x,) = promote_to_inexact("sinc", x)
    aval = aval_of(x)
    at_zero = comparison.eq(x, const_like(x, 0))
    angle = arithmetic.mul(const_like(x, math.pi), x)
    safe = where(at_zero, const_like(x, 1), angle, aval)
    # near 0 the series keeps the derivatives right, where the quotient has none
    series = arithmetic.sub(const_like(x, 1), arithmetic.mul(arithmetic.square(angle), const_like(x, 1 / 6)))
    return where(at_zero, series, arithmetic.div(transcendental.sin(safe), safe), aval)


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind, of order 0, of real numbers.

    By Clenshaw's recurrence on the Chebyshev series of the Cephes library.
    """
    (x,) = operands("i0", x)
    (x,) = promote_inexact(as_array(x))
    if dtypes.is_complex(aval_of(x).dtype):
        raise ValueError(f"Unsupported input type to jax.numpy.i0: {aval_of(x).str_short()}")
    own = aval_of(x)
    x = complex_parts.abs_(x)
    if dtypes.bit_width(own.dtype) < 32:
        x = cast(x, np.dtype(np.float32))
    aval = aval_of(x)
    small = _chebyshev(arithmetic.sub(arithmetic.mul(x, const_like(x, 0.5)), const_like(x, 2)), _I0_SMALL)
    is_small = comparison.le(x, const_like(x, 8))
    safe = where(is_small, const_like(x, 8), x, aval)
    inverse = arithmetic.sub(arithmetic.div(const_like(x, 32), safe), const_like(x, 2))
    large = arithmetic.div(_chebyshev(inverse, _I0_LARGE), arithmetic.sqrt(safe))
    return cast(arithmetic.mul(transcendental.exp(x), where(is_small, small, large, aval)), own.dtype, own.weak_type)


def _chebyshev(x: Any, coefficients: tuple[float, ...]) -> Any:
    zero = full_of(aval_of(x), 0)
    b0, b1, b2 = zero, zero, zero
    for c in coefficients:
        b2, b1 = b1, b0
        b0 = arithmetic.add(arithmetic.sub(arithmetic.mul(x, b1), b2), const_like(x, c))
    return arithmetic.mul(const_like(x, 0.5), arithmetic.sub(b0, b2))
