"""`jax.scipy.special`: special functions, elementwise on arrays of any sharding.

The transcendental kernels are ops (`ops/special.py`); here they get scipy's names and arguments, and the functions
that are made of them.  Integers become floats.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy import manipulation, reductions
from mpiarray.numpy.arithmetic import absolute, add, divide, floor, multiply, negative, sqrt, square, subtract
from mpiarray.numpy.choices import where_op
from mpiarray.numpy.comparison import equal, greater, isfinite, isnan, less, less_equal, logical_and, logical_or
from mpiarray.numpy.complex_numbers import real
from mpiarray.numpy.creation import array
from mpiarray.numpy.elementary import exp, expm1, log, log1p
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast, operands, promote_to_inexact
from mpiarray.ops import special as ops
from mpiarray.ops.complex_parts import sign as sign_op
from mpiarray.ops.elementwise import match
from mpiarray.ops.select import stop_gradient
from mpiarray.types import dtypes

__all__ = [
    "bernoulli", "beta", "betainc", "betaln", "boxcox", "boxcox1p", "comb", "digamma", "entr", "erf", "erfc",
    "erfinv", "expit",
    "factorial", "gamma", "gammainc", "gammaincc", "gammaln", "gammasgn", "i0", "i0e", "i1", "i1e", "kl_div",
    "log_ndtr",
    "log_softmax", "logit", "loggamma", "logsumexp", "multigammaln", "ndtr", "ndtri", "poch", "polygamma",
    "rel_entr", "softmax",
    "xlog1py", "xlogy", "zeta",
]  # fmt: skip


def _floats(name: str, *args: Any) -> list[Any]:
    """The operands in one real floating dtype and one rank."""
    out = list(promote_to_inexact(name, *args))
    dtype = aval_of(out[0]).dtype
    if dtypes.is_complex(dtype):
        raise ValueError(
            f"{name} does not support complex-valued inputs, got {', '.join(aval_of(x).str_short() for x in out)}"
        )
    return out


def _met(op: Any, *args: Any) -> Any:
    """An op on operands of one rank, as an array for the user."""
    return as_array(op(*args))


# -- error functions and the normal distribution ------------------------------------------------------------


def erf(x: Any) -> Any:
    """The error function."""
    return _met(ops.erf, *_floats("erf", x))


def erfc(x: Any) -> Any:
    """1 - erf(x), exact where that is small."""
    return _met(ops.erfc, *_floats("erfc", x))


def erfinv(x: Any) -> Any:
    """The inverse of the error function; NaN outside of [-1, 1]."""
    return _met(ops.erf_inv, *_floats("erfinv", x))


def ndtr(x: Any) -> Any:
    """The distribution function of the normal distribution."""
    (x,) = _floats("ndtr", x)
    half = multiply(x, -math.sqrt(0.5))
    return multiply(erfc(half), 0.5)


# from where on the logarithm is taken of an asymptotic series, or of 1 minus the other tail
_TAILS = {4: (-10.0, 5.0), 8: (-20.0, 8.0)}


def log_ndtr(x: Any, series_order: int = 3) -> Any:
    """The logarithm of `ndtr`, exact in both tails; `series_order` terms of the asymptotic series are used in the
    lower one.
    """
    (x,) = _floats("log_ndtr", x)
    dtype = aval_of(x).dtype
    low, high = _TAILS[8 if dtype.itemsize == 8 else 4]
    is_low, is_high = less(x, low), greater(x, high)
    # each formula sees harmless values where it is not used, so that its derivative is finite
    in_low = where_op(is_low, x, low)
    square_low = square(in_low)
    total, term = 1.0, 1.0
    for n in range(1, operator.index(series_order) + 1):
        term = divide(multiply(term, -(2.0 * n - 1)), square_low)
        total = add(total, term)
    by_series = add(
        subtract(multiply(square_low, -0.5), log(negative(in_low))), subtract(log(total), 0.5 * math.log(2 * math.pi))
    )
    middle = where_op(logical_or(is_low, is_high), 0.0, x)
    in_high = where_op(is_high, x, high)
    return where_op(is_low, by_series, where_op(is_high, negative(ndtr(negative(in_high))), log(ndtr(middle))))


def ndtri(p: Any) -> Any:
    """The quantiles of the normal distribution; NaN outside of [0, 1].

    In the tails the inverse error function is not exact enough: there the equation is solved for the logarithm, by
    Newton's rule.
    """
    (p,) = _floats("ndtri", p)
    is_low, is_high = less(p, 0.05), greater(p, 0.95)
    middle = where_op(logical_or(is_low, is_high), 0.5, p)
    inside = multiply(erfinv(subtract(multiply(middle, 2.0), 1.0)), math.sqrt(2.0))
    tail = where_op(is_low, p, where_op(is_high, subtract(1.0, p), 0.05))
    usable = logical_and(greater(tail, 0.0), less_equal(tail, 0.5))
    x = _lower_quantile(log(where_op(usable, tail, 0.05)))
    x = where_op(usable, x, where_op(equal(tail, 0.0), -math.inf, math.nan))
    x = where_op(isnan(p), math.nan, x)
    return where_op(is_low, x, where_op(is_high, negative(x), where_op(isnan(p), math.nan, inside)))


def _lower_quantile(log_p: Any) -> Any:
    start = multiply(log_p, -2.0)
    x = negative(sqrt(subtract(subtract(start, math.log(2 * math.pi)), log(start))))
    x = where_op(isfinite(x), x, -1.0)
    x = where_op(less(x, -1.0), x, -1.0)
    for _ in range(6):
        value = log_ndtr(x, 10)
        log_density = subtract(multiply(square(x), -0.5), 0.5 * math.log(2 * math.pi))
        x = subtract(x, multiply(subtract(value, log_p), exp(subtract(value, log_density))))
    return x


# -- gamma, beta, zeta ----------------------------------------------------------------------------------------


def gammaln(x: Any) -> Any:
    """The logarithm of the absolute value of the gamma function."""
    return _met(ops.lgamma, *_floats("gammaln", x))


def loggamma(x: Any) -> Any:
    """The logarithm of the gamma function of positive numbers; NaN of others."""
    (x,) = _floats("loggamma", x)
    return where_op(greater(x, 0.0), gammaln(x), math.nan)


def gammasgn(x: Any) -> Any:
    """The sign of the gamma function: NaN at negative integers, where it has poles."""
    (x,) = _floats("gammasgn", x)
    whole = floor(x)
    odd = greater(subtract(divide(whole, 2.0), floor(divide(whole, 2.0))), 0.25)
    sign = where_op(odd, -1.0, 1.0)
    at_zero = where_op(_signbit(x), -1.0, 1.0)
    pole = where_op(equal(x, whole), math.nan, sign)
    return where_op(equal(x, 0.0), at_zero, where_op(less(x, 0.0), pole, 1.0))


def _signbit(x: Any) -> Any:
    """Whether 1 / x is negative: tells -0.0 from 0.0."""
    return less(divide(1.0, x), 0.0)


def gamma(x: Any) -> Any:
    """The gamma function."""
    (x,) = _floats("gamma", x)
    return multiply(gammasgn(x), exp(gammaln(x)))


def factorial(n: Any, exact: bool = False) -> Any:
    """n!, as a float; 0 for negative n."""
    if exact:
        raise NotImplementedError("factorial with exact=True")
    (n,) = _floats("factorial", n)
    return where_op(less(n, 0.0), 0.0, exp(gammaln(add(where_op(less(n, 0.0), 0.0, n), 1.0))))


def comb(N: Any, k: Any, *, repetition: bool = False) -> Any:
    """How many ways there are to choose k of N things, as a float (not rounded)."""
    N, k = _floats("comb", N, k)
    if repetition:
        N = subtract(add(N, k), 1.0)
    usable = logical_and(logical_and(less_equal(k, N), less_equal(0.0, k)), less_equal(0.0, N))
    n, j = where_op(usable, N, 1.0), where_op(usable, k, 0.0)
    out = exp(subtract(gammaln(add(n, 1.0)), add(gammaln(add(j, 1.0)), gammaln(add(subtract(n, j), 1.0)))))
    return where_op(usable, out, 0.0)


def poch(z: Any, m: Any) -> Any:
    """The Pochhammer symbol, gamma(z + m) / gamma(z)."""
    z, m = _floats("poch", z, m)
    top = add(z, m)
    out = multiply(multiply(gammasgn(top), gammasgn(z)), exp(subtract(gammaln(top), gammaln(z))))
    return where_op(equal(m, 0.0), 1.0, out)


def digamma(x: Any) -> Any:
    """The derivative of `gammaln`."""
    return _met(ops.digamma, *_floats("digamma", x))


def polygamma(n: Any, x: Any) -> Any:
    """The n-th derivative of `digamma`."""
    if not dtypes.is_int(aval_of(operands("polygamma", n)[0]).dtype):
        raise TypeError(f"Argument `n` to polygamma must be of integer type, got {aval_of(n).str_short()}")
    return _met(ops.polygamma, *_same_shape("polygamma", n, x))


def zeta(x: Any, q: Any = None) -> Any:
    """Hurwitz' zeta function, the sum of `1 / (k + q) ** x`; Riemann's for q = 1, the default."""
    return _met(ops.zeta, *_same_shape("zeta", x, 1.0 if q is None else q))


def _same_shape(name: str, *args: Any) -> list[Any]:
    """Operands of one dtype whose scalars are brought to the others' type."""
    out = _floats(name, *args)
    full = max((aval_of(x) for x in out), key=lambda a: a.ndim)
    return [match(x, full) if not aval_of(x).ndim and full.ndim else x for x in out]


def multigammaln(a: Any, d: Any) -> Any:
    """The logarithm of the multivariate gamma function of dimension d."""
    d = operator.index(d)
    (a,) = _floats("multigammaln", a)
    total = 0.25 * d * (d - 1) * math.log(math.pi)
    out = add(gammaln(a), total)
    for k in range(1, d):
        out = add(out, gammaln(subtract(a, 0.5 * k)))
    return out


def betaln(a: Any, b: Any) -> Any:
    """The logarithm of the absolute value of the beta function."""
    a, b = _floats("betaln", a, b)
    return subtract(add(gammaln(a), gammaln(b)), gammaln(add(a, b)))


def beta(a: Any, b: Any) -> Any:
    """The beta function."""
    a, b = _floats("beta", a, b)
    sign = multiply(multiply(gammasgn(a), gammasgn(b)), gammasgn(add(a, b)))
    return multiply(sign, exp(betaln(a, b)))


def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function."""
    return _met(ops.regularized_incomplete_beta, *_same_shape("betainc", a, b, x))


def gammainc(a: Any, x: Any) -> Any:
    """The regularized lower incomplete gamma function."""
    return _met(ops.igamma, *_same_shape("gammainc", a, x))


def gammaincc(a: Any, x: Any) -> Any:
    """The regularized upper incomplete gamma function."""
    return _met(ops.igammac, *_same_shape("gammaincc", a, x))


def bernoulli(n: int) -> Any:
    """The Bernoulli numbers 0 to n."""
    n = operator.index(n)
    if n < 0:
        raise ValueError("n must be a non-negative integer.")
    numbers = [1.0, -0.5] + [0.0] * max(0, n - 1)
    for k in range(2, n + 1, 2):
        # |B_k| = 2 k! zeta(k) / (2 pi)^k
        series = 1.0 + sum(m ** -float(k) for m in range(2, 60))
        numbers[k] = (-1) ** (k // 2 + 1) * 2 * math.exp(math.lgamma(k + 1) - k * math.log(2 * math.pi)) * series
    exact = {2: 1 / 6, 4: -1 / 30, 6: 1 / 42, 8: -1 / 30, 10: 5 / 66}
    values = [exact.get(k, v) for k, v in enumerate(numbers[: n + 1])]
    return array(np.array(values).astype(dtypes.default_dtype(float)))


# -- exponentials and logarithms ---------------------------------------------------------------------------------


def expit(x: Any) -> Any:
    """The logistic function, 1 / (1 + exp(-x))."""
    (x,) = _floats("expit", x)
    # of the negative absolute value nothing overflows
    small = exp(negative(absolute(x)))
    return where_op(less(x, 0.0), divide(small, add(1.0, small)), divide(1.0, add(1.0, small)))


def logit(p: Any) -> Any:
    """The inverse of `expit`."""
    (p,) = _floats("logit", p)
    return subtract(log(p), log1p(negative(p)))


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0."""
    x, y = _floats("xlogy", x, y)
    none = equal(x, 0.0)
    return where_op(none, 0.0, multiply(x, log(where_op(none, 1.0, y))))


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0."""
    x, y = _floats("xlog1py", x, y)
    none = equal(x, 0.0)
    return where_op(none, 0.0, multiply(x, log1p(where_op(none, 0.0, y))))


def entr(x: Any) -> Any:
    """-x log(x), 0 at 0, and minus infinity below."""
    (x,) = _floats("entr", x)
    return where_op(less(x, 0.0), -math.inf, negative(xlogy(x, where_op(less(x, 0.0), 1.0, x))))


def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q): 0 where p is 0 and q is not negative, infinity where one is negative or only q is 0."""
    p, q = _floats("rel_entr", p, q)
    zero = logical_and(equal(p, 0.0), less_equal(0.0, q))
    both = logical_and(greater(p, 0.0), greater(q, 0.0))
    out = multiply(where_op(both, p, 1.0), subtract(log(where_op(both, p, 1.0)), log(where_op(both, q, 1.0))))
    return where_op(zero, 0.0, where_op(both, out, math.inf))


def kl_div(p: Any, q: Any) -> Any:
    """p log(p / q) - p + q."""
    p, q = _floats("kl_div", p, q)
    return add(subtract(rel_entr(p, q), p), q)


def boxcox(x: Any, lmbda: Any) -> Any:
    """(x ** lmbda - 1) / lmbda, and log(x) where lmbda is 0."""
    x, lmbda = _floats("boxcox", x, lmbda)
    return _boxcox(log(x), lmbda)


def boxcox1p(x: Any, lmbda: Any) -> Any:
    """`boxcox` of 1 + x."""
    x, lmbda = _floats("boxcox1p", x, lmbda)
    return _boxcox(log1p(x), lmbda)


def _boxcox(log_x: Any, lmbda: Any) -> Any:
    none = equal(lmbda, 0.0)
    safe = where_op(none, 1.0, lmbda)
    return where_op(none, log_x, divide(expm1(multiply(log_x, safe)), safe))


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(a))) over axes, without overflow; `where` leaves elements out.

    return_sign: give the logarithm of the absolute value and the sign.  Otherwise the result is NaN where the sum is
    negative.
    """
    if b is None:
        (x,) = (as_array(v) for v in promote_to_inexact("logsumexp", a))
        weights = None
    else:
        x, weights = (as_array(v) for v in promote_to_inexact("logsumexp", a, b))
        x = where_op(equal(weights, 0), -math.inf, x)
    aval = aval_of(x)
    axes = reductions.reduced_axes("logsumexp", axis, aval.ndim)
    real_x = x if not dtypes.is_complex(aval.dtype) else real(x)
    top = reductions.max(real_x, axis=axes, keepdims=True, initial=-math.inf, where=where)
    top = stop_gradient(where_op(isfinite(top), top, 0.0))
    parts = exp(subtract(x, cast(top, aval.dtype)))
    if weights is not None:
        parts = multiply(weights, parts)
    total = reductions.sum(parts, axis=axes, keepdims=True, where=where)
    sign = as_array(sign_op(total))
    if return_sign or dtypes.is_complex(aval.dtype):
        size = absolute(total) if return_sign else total
        out = add(log(size), top)
    else:
        out = add(log(where_op(less(total, 0), math.nan, total)) if weights is not None else log(total), top)
    if not keepdims and axes:
        out, sign = manipulation.squeeze(out, axes), manipulation.squeeze(sign, axes)
    return (out, sign) if return_sign else out


def softmax(x: Any, /, *, axis: Any = None) -> Any:
    """exp(x) divided by its sum over axes (None: all)."""
    (x,) = _floats("softmax", x)
    top = stop_gradient(reductions.max(x, axis=axis, keepdims=True))
    parts = exp(subtract(x, top))
    return divide(parts, reductions.sum(parts, axis=axis, keepdims=True))


def log_softmax(x: Any, /, *, axis: Any = None) -> Any:
    """The logarithm of `softmax`."""
    (x,) = _floats("log_softmax", x)
    shifted = subtract(x, stop_gradient(reductions.max(x, axis=axis, keepdims=True)))
    return subtract(shifted, log(reductions.sum(exp(shifted), axis=axis, keepdims=True)))


# -- Bessel functions ------------------------------------------------------------------------------------------------


def i0e(x: Any) -> Any:
    """The modified Bessel function of order 0, times exp(-|x|)."""
    return _met(ops.bessel_i0e, *_floats("i0e", x))


def i0(x: Any) -> Any:
    """The modified Bessel function of order 0."""
    (x,) = _floats("i0", x)
    return multiply(exp(absolute(x)), i0e(x))


def i1e(x: Any) -> Any:
    """The modified Bessel function of order 1, times exp(-|x|)."""
    return _met(ops.bessel_i1e, *_floats("i1e", x))


def i1(x: Any) -> Any:
    """The modified Bessel function of order 1."""
    (x,) = _floats("i1", x)
    return multiply(exp(absolute(x)), i1e(x))
