"""Gamma variates and the distributions that are made of them.

Samples are differentiable by their parameters.  Ratios are formed from logarithms of gamma variates, which do not
underflow for small parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.ops import random as ops
from mpiarray.ops.arithmetic import add, div, max_, mul, pow_, sqrt, sub
from mpiarray.ops.complex_parts import abs_
from mpiarray.ops.linear import reduce_sum
from mpiarray.ops.reductions import reduce_max
from mpiarray.ops.select import stop_gradient_op
from mpiarray.ops.transcendental import exp
from mpiarray.random.arguments import (
    common_shape,
    draw_sharding,
    expanded,
    float_dtype,
    full_parameter,
    one_key,
    parameter,
    shape_of,
    without_last,
)
from mpiarray.random.continuous import standard_exponential
from mpiarray.random.keys import subkeys
from mpiarray.random.uniform import rademacher, standard_normal


def gamma(key: Any, a: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Gamma variates of shape parameter `a` and scale 1: density x**(a - 1) exp(-x) / Gamma(a) for x > 0."""
    return _gamma("gamma", key, a, shape, dtype, out_sharding, False)


def loggamma(key: Any, a: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The logarithms of gamma variates, exact also where those underflow (small `a`)."""
    return _gamma("loggamma", key, a, shape, dtype, out_sharding, True)


def _gamma(name: str, key: Any, a: Any, shape: Any, dtype: Any, out_sharding: Any, log_space: bool) -> Any:
    key = one_key(name, key)
    dtype = float_dtype(name, dtype)
    shape = common_shape(name, shape, a)
    sharding = draw_sharding(name, shape, out_sharding, a)
    return gamma_draw(key, a, shape, dtype, sharding, log_space)


def gamma_draw(key: Any, a: Any, shape: tuple[int, ...], dtype: Any, sharding: Any, log_space: bool) -> Any:
    return ops.random_gamma(key, full_parameter(a, shape, dtype, sharding), log_space=log_space, block=None)


def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Density proportional to x**(a - 1) (1 - x)**(b - 1) for 0 < x < 1."""
    key = one_key("beta", key)
    dtype = float_dtype("beta", dtype)
    shape = common_shape("beta", shape, a, b)
    sharding = draw_sharding("beta", shape, out_sharding, a, b)
    log_x, log_y = (gamma_draw(k, p, shape, dtype, sharding, True) for k, p in zip(subkeys(key, 2), (a, b)))
    top = max_(log_x, log_y)
    x, y = exp(sub(log_x, top)), exp(sub(log_y, top))
    return div(x, add(x, y))


def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Vectors of positive numbers that add up to 1: alpha of shape (..., n), result of shape `shape + (n,)`.

    shape: the batch shape, to which `alpha.shape[:-1]` broadcasts (default: that itself).
    """
    key = one_key("dirichlet", key)
    dtype = float_dtype("dirichlet", dtype)
    sizes = aval_of(alpha).shape
    if not sizes:
        raise ValueError("dirichlet requires alpha.ndim >= 1, got alpha.ndim == 0")
    batch = common_shape("dirichlet", shape, np.empty(sizes[:-1]))
    full = (*batch, sizes[-1])
    sharding = draw_sharding("dirichlet", full, out_sharding, alpha)
    logs = gamma_draw(key, alpha, full, dtype, sharding, True)
    last = (len(batch),)
    top = stop_gradient_op(reduce_max(logs, axes=last))
    parts = exp(sub(logs, expanded(top, len(batch))))
    return div(parts, expanded(reduce_sum(parts, axes=last, out_sharding=None), len(batch)))


def chisquare(key: Any, df: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The sum of squares of `df` standard normal numbers; `df` need not be whole."""
    key = one_key("chisquare", key)
    dtype = float_dtype("chisquare", dtype)
    shape = common_shape("chisquare", shape, df)
    sharding = draw_sharding("chisquare", shape, out_sharding, df)
    return _chisquare(key, df, shape, dtype, sharding)


def _chisquare(key: Any, df: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    half = div(parameter(df, shape, dtype, sharding), literal(2, dtype))
    return mul(exp(gamma_draw(key, half, shape, dtype, sharding, True)), literal(2, dtype))


def f(key: Any, dfnum: Any, dfden: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Ratios of two chi-square numbers, each divided by its degrees of freedom."""
    key = one_key("f", key)
    dtype = float_dtype("f", dtype)
    shape = common_shape("f", shape, dfnum, dfden)
    sharding = draw_sharding("f", shape, out_sharding, dfnum, dfden)
    first, second = subkeys(key, 2)
    above = div(_chisquare(second, dfnum, shape, dtype, sharding), parameter(dfnum, shape, dtype, sharding))
    below = div(_chisquare(first, dfden, shape, dtype, sharding), parameter(dfden, shape, dtype, sharding))
    return div(above, below)


def t(key: Any, df: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Student's t with `df` degrees of freedom."""
    key = one_key("t", key)
    dtype = float_dtype("t", dtype)
    shape = common_shape("t", shape, df)
    sharding = draw_sharding("t", shape, out_sharding, df)
    first, second = subkeys(key, 2)
    half = div(parameter(df, shape, dtype, sharding), literal(2, dtype))
    spread = sqrt(div(half, gamma_draw(second, half, shape, dtype, sharding, False)))
    return mul(standard_normal(first, shape, dtype, sharding), spread)


def generalized_normal(key: Any, p: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Density proportional to exp(-|x|**p); `p` is a number."""
    key = one_key("generalized_normal", key)
    dtype = float_dtype("generalized_normal", dtype)
    shape = shape_of("generalized_normal", shape)
    return _generalized_normal(key, p, shape, dtype, draw_sharding("generalized_normal", shape, out_sharding))


def _generalized_normal(key: Any, p: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    first, second = subkeys(key, 2)
    power = div(literal(1, dtype), parameter(p, (), dtype, None))
    size = gamma_draw(first, power, shape, dtype, sharding, False)
    side = rademacher(second, shape, dtype, out_sharding=sharding)
    return mul(side, pow_(size, power))


def ball(key: Any, d: int, p: Any = 2, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Points uniform in the unit ball of the p-norm in `d` dimensions: result of shape `shape + (d,)`.

    The method is that of F. Barthe, O. Guedon, S. Mendelson, A. Naor, Annals of Probability 33 (2005).
    """
    key = one_key("ball", key)
    dtype = float_dtype("ball", dtype)
    shape = shape_of("ball", shape)
    (d,) = shape_of("ball", (d,))
    sharding = draw_sharding("ball", (*shape, d), out_sharding)
    first, second = subkeys(key, 2)
    g = _generalized_normal(first, p, (*shape, d), dtype, sharding)
    e = standard_exponential(second, shape, dtype, without_last(sharding))
    p = parameter(p, (), dtype, None)
    norm = reduce_sum(pow_(abs_(g), p), axes=(len(shape),), out_sharding=None)
    length = pow_(add(norm, e), div(literal(1, dtype), p))
    return div(g, expanded(length, len(shape)))
