"""Polynomials as 1-D arrays of coefficients, the highest power first."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.errors import ConcretizationTypeError
from mpiarray.numpy import linalg, manipulation, reductions
from mpiarray.numpy.arithmetic import add, divide, multiply, negative, sqrt, subtract
from mpiarray.numpy.complex_numbers import conjugate, real
from mpiarray.numpy.creation import array, ones
from mpiarray.numpy.host import as_array
from mpiarray.numpy.matrices import eye, vander
from mpiarray.numpy.products import convolve, matmul, outer
from mpiarray.numpy.promotion import cast, operands, promote_dtypes, promote_inexact, replicated_or_raise
from mpiarray.ops.linear import expand_dims
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes

__all__ = [
    "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval", "roots",
]  # fmt: skip


def _vectors(name: str, *args: Any) -> list[Any]:
    """Operands as 1-D arrays of one dtype; scalars are polynomials of degree 0."""
    out = []
    for x in promote_dtypes(*operands(name, *args)):
        x = as_array(x)
        if x.aval.ndim > 1:
            raise ValueError(f"{name}: coefficients must be a one-dimensional array, got {x.aval.str_short()}")
        out.append(manipulation.reshape(x, (1,)) if not x.aval.ndim else x)
    return out


def _cut(x: Any, start: int, stop: int) -> Any:
    return slice_(x, start_indices=(start,), limit_indices=(stop,), strides=None)


def _padded(x: Any, before: int, after: int) -> Any:
    if not before and not after:
        return x
    return pad(x, literal(0, aval_of(x).dtype), padding_config=((before, after, 0),))


def _same_length(x: Any, y: Any) -> tuple[Any, Any]:
    n, m = aval_of(x).size, aval_of(y).size
    most = max(n, m)
    return _padded(x, most - n, 0), _padded(y, most - m, 0)


def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials."""
    return add(*_same_length(*_vectors("polyadd", a1, a2)))


def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials."""
    return subtract(*_same_length(*_vectors("polysub", a1, a2)))


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Any:
    """The product of two polynomials, in floats.  `trim_leading_zeros` needs concrete values."""
    x, y = _vectors("polymul", *promote_inexact(*operands("polymul", a1, a2)))
    if trim_leading_zeros:
        x, y = _trimmed("polymul", x), _trimmed("polymul", y)
    return convolve(x, y)


def _trimmed(name: str, x: Any) -> Any:
    """Without leading zeros, but for one coefficient."""
    given = np.flatnonzero(_values(name, x))
    return _cut(x, int(given[0]) if given.size else x.aval.size - 1, x.aval.size)


def _values(name: str, x: Any) -> np.ndarray:
    """The coefficients on the host, where their values decide on a shape."""
    replicated_or_raise(name, x.aval, "the coefficients must be replicated, as their values decide the result's shape")
    try:
        return np.asarray(x)
    except TypeError as e:
        raise ConcretizationTypeError(
            f"Abstract tracer value encountered where concrete value is expected: {name} of {x.aval.str_short()} "
            "looks at values to find its "
            "result's shape. Keep leading zeros, or call it outside of the transformation."
        ) from e


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Any, Any]:
    """Quotient and remainder of two polynomials.  `trim_leading_zeros` of the remainder needs concrete values."""
    x, y = _vectors("polydiv", *promote_inexact(*operands("polydiv", u, v)))
    n, m = x.aval.size, y.aval.size
    count = n - m + 1
    if count < 1:
        return as_array(cast(np.zeros(1), x.aval.dtype)), x
    parts = []
    lead = _cut(y, 0, 1)
    for k in range(count):
        part = divide(_cut(x, k, k + 1), lead)
        parts.append(part)
        x = subtract(x, _padded(multiply(part, y), k, n - m - k))
    if trim_leading_zeros:
        values = _values("polydiv", x)
        values = np.where(np.abs(values) <= np.finfo(values.dtype).eps, 0, values)
        given = np.flatnonzero(values)
        x = _cut(x, int(given[0]) if given.size else n - 1, n)
    return manipulation.concatenate(parts), x


def polyval(p: Any, x: Any, *, unroll: int = 16) -> Any:
    """The polynomial's value at every element of `x`, by Horner's rule.  `unroll` changes nothing."""
    p, x = (as_array(v) for v in promote_dtypes(*operands("polyval", p, x)))
    count = p.aval.shape[0] if p.aval.ndim else 1
    out = multiply(x, 0)
    for k in range(count):
        out = add(multiply(out, x), _coefficient(p, k))
    return out


def _coefficient(p: Any, k: int) -> Any:
    if not p.aval.ndim:
        return p
    first = slice_(
        p, start_indices=(k, *(0,) * (p.aval.ndim - 1)), limit_indices=(k + 1, *p.aval.shape[1:]), strides=None
    )  # fmt: skip
    return manipulation.squeeze(first, 0)


def polyder(p: Any, m: int = 1) -> Any:
    """The m-th derivative."""
    (x,) = _vectors("polyder", *promote_inexact(*operands("polyder", p)))
    m = operator.index(m)
    if m < 0:
        raise ValueError("Order of derivative must be positive")
    n = x.aval.size
    if m == 0:
        return x
    if n <= m:
        return _cut(x, 0, 0)
    powers = np.arange(n - 1, -1, -1)[: n - m]
    factors = np.prod([powers - k for k in range(m)], axis=0)
    return multiply(_cut(x, 0, n - m), cast(array(factors.astype(np.float32)), x.aval.dtype))


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The m-th antiderivative; `k` are the constants of integration, the one of the first integration first
    (default 0).
    """
    m = operator.index(m)
    if m < 0:
        raise ValueError("Order of integral must be positive")
    given = 0 if k is None else k
    x, constants = _vectors("polyint", *promote_inexact(*operands("polyint", p, given)))
    count = constants.aval.size
    if count not in (1, m):
        raise ValueError(f"k must be a scalar or a rank-1 array of length 1 or {m}, got {constants.aval.str_short()}")
    for step in range(m):
        n = x.aval.size
        x = divide(x, cast(array(np.arange(n, 0, -1).astype(np.float32)), x.aval.dtype))
        at = 0 if count == 1 else step
        x = manipulation.concatenate([x, _cut(constants, at, at + 1)])
    return x


def poly(seq_of_zeros: Any) -> Any:
    """The polynomial with these zeros, or the characteristic polynomial of a square matrix, with leading
    coefficient 1.
    """
    (x,) = (as_array(v) for v in promote_inexact(*operands("poly", seq_of_zeros)))
    if x.aval.ndim == 2 and x.aval.shape[0] == x.aval.shape[1] and x.aval.size:
        out = poly(linalg.eigvals(x))
        return out if dtypes.is_complex(x.aval.dtype) else real(out)
    if x.aval.ndim > 1:
        raise ValueError(f"input must be 1d or non-empty square 2d array, got {x.aval.str_short()}")
    x = manipulation.reshape(x, (-1,)) if not x.aval.ndim else x
    out = ones(1, dtype=x.aval.dtype)
    for k in range(x.aval.size):
        zero = _cut(x, k, k + 1)
        out = subtract(_padded(out, 0, 1), _padded(multiply(zero, out), 1, 0))
    return out


def roots(p: Any, *, strip_zeros: bool = True) -> Any:
    """The zeros of a polynomial, complex.

    strip_zeros: leave out leading and trailing zero coefficients (which must be concrete then); otherwise the leading
    one must not be 0.
    """
    (x,) = _vectors("roots", *promote_inexact(*operands("roots", p)))
    if as_array(operands("roots", p)[0]).aval.ndim != 1:
        raise ValueError("Input must be a rank-1 array.")
    at_zero = 0
    if strip_zeros:
        given = np.flatnonzero(_values("roots", x))
        if not given.size:
            return as_array(np.zeros(0, dtypes.complex_dtype(x.aval.dtype)))
        at_zero = x.aval.size - 1 - int(given[-1])
        x = _cut(x, int(given[0]), int(given[-1]) + 1)
    n = x.aval.size
    dtype = dtypes.complex_dtype(x.aval.dtype)
    if n < 2:
        found = as_array(np.zeros(0, dtype))
    else:
        first = expand_dims(divide(negative(_cut(x, 1, n)), _cut(x, 0, 1)), (0,))
        companion = manipulation.concatenate([first, eye(n - 2, n - 1, dtype=x.aval.dtype)]) if n > 2 else first
        found = linalg.eigvals(companion)
    return found if not at_zero else manipulation.concatenate([found, as_array(np.zeros(at_zero, dtype))])


def polyfit(
    x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: bool | str = False
) -> Any:
    """The polynomial of degree `deg` that fits points in the least-squares sense, optionally weighted by `w`.

    full: also residuals, rank, singular values and rcond.  cov: also the covariance matrix of the coefficients
    ("unscaled": without the scale of the residuals).
    """
    deg = operator.index(deg)
    order = deg + 1
    xs, ys = (as_array(v) for v in promote_inexact(*operands("polyfit", x, y)))
    if deg < 0:
        raise ValueError("expected deg >= 0")
    if xs.aval.ndim != 1:
        raise TypeError("expected 1D vector for x")
    if not xs.aval.size:
        raise TypeError("expected non-empty vector for x")
    if ys.aval.ndim not in (1, 2):
        raise TypeError("expected 1D or 2D array for y")
    if xs.aval.shape[0] != ys.aval.shape[0]:
        raise TypeError("expected x and y to have same length")
    real_dtype = dtypes.real_dtype(xs.aval.dtype)
    rcond = xs.aval.shape[0] * float(dtypes.finfo(real_dtype).eps) if rcond is None else rcond
    left, right = vander(xs, order), ys
    if w is not None:
        (weights,) = (as_array(v) for v in promote_inexact(*operands("polyfit", w)))
        if weights.aval.ndim != 1 or weights.aval.shape[0] != ys.aval.shape[0]:
            raise TypeError("expected a 1-d array for weights of the length of y")
        left = multiply(left, expand_dims(weights, (1,)))
        right = multiply(right, expand_dims(weights, (1,)) if right.aval.ndim == 2 else weights)
    scale = sqrt(reductions.sum(real(multiply(left, conjugate(left))), axis=0))
    scale = cast(scale, left.aval.dtype)
    left = divide(left, expand_dims(scale, (0,)))
    c, residuals, rank, s = linalg.lstsq(left, right, rcond)
    c = divide(c, expand_dims(scale, (1,)) if c.aval.ndim == 2 else scale)
    if full:
        return c, residuals, rank, s, as_array(rcond)
    if not cov:
        return c
    base = divide(linalg.inv(matmul(manipulation.transpose(left), left)), outer(scale, scale))
    if cov == "unscaled":
        return c, base
    count = xs.aval.shape[0]
    if count <= order:
        raise ValueError("the number of data points must exceed order to scale the covariance matrix")
    factor = divide(residuals, count - order)
    if ys.aval.ndim == 1:
        return c, multiply(base, manipulation.reshape(factor, ()))
    return c, multiply(expand_dims(base, (2,)), expand_dims(factor, (0, 1)))
