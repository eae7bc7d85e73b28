"""The special functions as ops: error, gamma, beta, zeta and Bessel functions; numerics in special_kernels.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.op import Op
from mpiarray.core.value import aval_of
from mpiarray.ops import special_kernels as kernels
from mpiarray.ops.arithmetic import add, div, log, mul, neg, square, sub
from mpiarray.ops.common import const_like
from mpiarray.ops.comparison import eq
from mpiarray.ops.complex_parts import sign
from mpiarray.ops.elementwise import nary, unary
from mpiarray.ops.gamma_slope import gamma_slope
from mpiarray.ops.select import where
from mpiarray.ops.transcendental import exp, log1p


def _together(kernel: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A kernel for operands that meet dim by dim."""

    def impl(*blocks: Any) -> np.ndarray:
        blocks = tuple(np.asarray(b) for b in blocks)
        if any(b.shape != blocks[0].shape for b in blocks):
            blocks = tuple(np.ascontiguousarray(b) for b in np.broadcast_arrays(*blocks))
        return kernel(*blocks)

    impl.__name__ = kernel.__name__
    return impl


def _alone(kernel: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], np.ndarray]:
    return lambda x: kernel(np.asarray(x))


def _missing(function: str, argument: str) -> Callable[..., Any]:
    def rule(t: Any, out: Any, *operands: Any) -> Any:
        raise NotImplementedError(
            f"Differentiation rule for '{function}' with respect to {argument} is not implemented: it is no elementary "
            f"function. Wrap {argument} in `jax.lax.stop_gradient`, or write a rule with `jax.custom_jvp`."
        )

    return rule


def _times(x: Any, factor: float) -> Any:
    return mul(const_like(x, factor), x)


def _minus_one(x: Any) -> Any:
    return sub(x, const_like(x, 1))


# -- error functions ------------------------------------------------------------------------------------------

_SLOPE = 2 / math.sqrt(math.pi)

erf = unary("erf", "f", _alone(kernels.erf), lambda t, out, x: mul(_times(t, _SLOPE), exp(neg(square(x)))))
erfc = unary("erfc", "f", _alone(kernels.erfc), lambda t, out, x: mul(_times(t, -_SLOPE), exp(neg(square(x)))))
erf_inv = unary(
    "erf_inv",
    "f",
    _alone(kernels.erf_inv),
    lambda t, out, x: mul(_times(t, 1 / _SLOPE), exp(square(out))),
    hlo_name="erf-inv",
)

# -- gamma functions --------------------------------------------------------------------------------------------

lgamma = unary("lgamma", "f", _alone(kernels.lgamma), lambda t, out, x: mul(t, digamma(x)))
digamma: Op = unary("digamma", "f", _alone(kernels.digamma), lambda t, out, x: mul(t, polygamma(const_like(x, 1), x)))
polygamma: Op = nary(
    "polygamma",
    "f",
    _together(kernels.polygamma),
    (_missing("polygamma", "n"), lambda t, out, n, x: mul(t, polygamma(add(n, const_like(n, 1)), x))),
)
zeta: Op = nary(
    "zeta",
    "f",
    _together(kernels.zeta),
    (_missing("zeta", "x"), lambda t, out, x, q: mul(t, neg(mul(x, zeta(add(x, const_like(x, 1)), q))))),
)


def _gamma_density(a: Any, x: Any) -> Any:
    return exp(sub(sub(mul(_minus_one(a), log(x)), x), lgamma(a)))


def _by_shape_parameter(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """d igamma(a, x) / da, from how a variate moves at a fixed quantile: P(a, x(a)) is constant."""
    b, y = a.astype(np.float64), x.astype(np.float64)
    with np.errstate(all="ignore"):
        log_density = (b - 1) * np.log(y) - y - kernels.lgamma(b)
        inside = (y > 0) & np.isfinite(y) & (b > 0)
        safe = np.where(inside, y, 1.0)
        slope = gamma_slope(np.where(inside, b, 1.0), safe, log_space=False)
        out = np.where(inside, -slope * np.exp(np.where(inside, log_density, 0.0)), 0.0)
        return np.where((y >= 0) & (b > 0), out, np.nan).astype(a.dtype)


igamma_grad_a = nary(
    "igamma_grad_a",
    "f",
    _together(_by_shape_parameter),
    (_missing("igamma_grad_a", "a"), _missing("igamma_grad_a", "x")),
)
igamma = nary(
    "igamma",
    "f",
    _together(kernels.igamma),
    (
        lambda t, out, a, x: mul(t, igamma_grad_a(a, x)),
        lambda t, out, a, x: mul(t, _gamma_density(a, x)),
    ),
)
igammac = nary(
    "igammac",
    "f",
    _together(kernels.igammac),
    (
        lambda t, out, a, x: neg(mul(t, igamma_grad_a(a, x))),
        lambda t, out, a, x: neg(mul(t, _gamma_density(a, x))),
    ),
)

# -- beta -----------------------------------------------------------------------------------------------------


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    norm = sub(add(lgamma(a), lgamma(b)), lgamma(add(a, b)))
    return exp(sub(add(mul(_minus_one(b), log1p(neg(x))), mul(_minus_one(a), log(x))), norm))


regularized_incomplete_beta = nary(
    "regularized_incomplete_beta",
    "f",
    _together(kernels.betainc),
    (
        _missing("regularized_incomplete_beta", "a"),
        _missing("regularized_incomplete_beta", "b"),
        lambda t, out, a, b, x: mul(t, _beta_density(a, b, x)),
    ),
)

# -- Bessel functions -------------------------------------------------------------------------------------------


def _i1e_slope(t: Any, out: Any, x: Any) -> Any:
    """i0e(x) - i1e(x) (sign(x) + 1/x), which is 1/2 at 0."""
    aval = aval_of(x)
    at_zero = eq(x, const_like(x, 0))
    safe = where(at_zero, const_like(x, 1), x, aval)
    slope = sub(bessel_i0e(safe), mul(out, add(sign(safe), div(const_like(x, 1), safe))))
    return mul(t, where(at_zero, const_like(x, 0.5), slope, aval))


bessel_i0e: Op = unary(
    "bessel_i0e", "f", _alone(kernels.bessel_i0e), lambda t, out, x: mul(t, sub(bessel_i1e(x), mul(sign(x), out)))
)
bessel_i1e: Op = unary("bessel_i1e", "f", _alone(kernels.bessel_i1e), _i1e_slope)
