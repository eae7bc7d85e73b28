"""Continuous distributions by inversion and other direct formulas.

Parameters are floats or arrays that broadcast to `shape` (None: to their common shape).  Every draw is of the global
shape, each rank makes its block; `out_sharding` says where the result goes, otherwise it is where the parameters are.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mpiarray.core.value import literal
from mpiarray.higher_order.jit import jit
from mpiarray.ops.arithmetic import add, div, floor, log, max_, mul, neg, pow_, sqrt, square, sub
from mpiarray.ops.common import const_like
from mpiarray.ops.comparison import eq, ge, le, lt
from mpiarray.ops.complex_parts import abs_, sign
from mpiarray.ops.linear import convert_element_type, reduce_sum
from mpiarray.ops.select import select_n
from mpiarray.ops.transcendental import exp, log1p, tan
from mpiarray.random.arguments import (
    common_shape,
    draw_sharding,
    float_dtype,
    full_parameter,
    int_dtype,
    one_key,
    parameter,
    shape_of,
    with_dims,
)
from mpiarray.random.keys import subkeys
from mpiarray.random.uniform import (
    between,
    compiled,
    just_above_minus_one,
    rademacher,
    standard_normal,
    two_units,
    unit,
)
from mpiarray.types import dtypes


def tiny(dtype: Any) -> float:
    """The smallest normal number."""
    return float(dtypes.finfo(dtype).tiny)


def _begin(name: str, key: Any, shape: Any, dtype: Any, out_sharding: Any) -> tuple[Any, tuple[int, ...], Any, Any]:
    """(key, shape, dtype, sharding) of a draw without parameters."""
    key = one_key(name, key)
    dtype = float_dtype(name, dtype)
    shape = shape_of(name, shape)
    return key, shape, dtype, draw_sharding(name, shape, out_sharding)


def _begin_with(
    name: str, key: Any, shape: Any, dtype: Any, out_sharding: Any, *params: Any, full: bool = False
) -> tuple[Any, tuple[int, ...], Any, Any, list[Any]]:
    """(key, shape, dtype, sharding, parameters) of a draw; with `full`, each parameter has the draw's whole shape."""
    key = one_key(name, key)
    dtype = float_dtype(name, dtype)
    shape = common_shape(name, shape, *params)
    sharding = draw_sharding(name, shape, out_sharding, *params)
    bring = full_parameter if full else parameter
    return key, shape, dtype, sharding, [bring(p, shape, dtype, sharding) for p in params]


# -- without parameters --------------------------------------------------------------------------------


def exponential(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Density exp(-x) for x >= 0."""
    return standard_exponential(*_begin("exponential", key, shape, dtype, out_sharding))


@compiled
def standard_exponential(key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    return neg(log1p(neg(unit(key, shape, dtype, sharding))))


def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str | None = None, *, out_sharding: Any = None) -> Any:
    """Density exp(-x - exp(-x)).

    mode: 'low' (default) draws one number an element, 'high' two, for values far out in the tail.
    """
    return standard_gumbel(*_begin("gumbel", key, shape, dtype, out_sharding), mode)


@partial(jit, static_argnums=(1, 2, 3, 4))
def standard_gumbel(key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any, mode: str | None) -> Any:
    if mode not in (None, "low", "high"):
        raise ValueError(f"gumbel: got mode={mode!r}; must be 'high' or 'low'")
    if mode != "high":
        return neg(log(neg(log(between(key, shape, dtype, tiny(dtype), 1.0, sharding)))))
    first, second = two_units(key, shape, dtype, sharding)
    low = add(
        add(first, mul(second, const_like(second, float(dtypes.finfo(dtype).eps)))), const_like(first, tiny(dtype))
    )
    u = select_n(ge(first, const_like(first, 0.5)), low, first)
    return neg(log(neg(log1p(neg(u)))))


def laplace(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Density exp(-|x|) / 2."""
    key, shape, dtype, sharding = _begin("laplace", key, shape, dtype, out_sharding)
    u = between(key, shape, dtype, just_above_minus_one(dtype), 1.0, sharding)
    return mul(sign(u), log1p(neg(abs_(u))))


def logistic(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Distribution function 1 / (1 + exp(-x))."""
    key, shape, dtype, sharding = _begin("logistic", key, shape, dtype, out_sharding)
    u = between(key, shape, dtype, tiny(dtype), 1.0, sharding)
    return sub(log(u), log1p(neg(u)))


def cauchy(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Density 1 / (pi (1 + x**2))."""
    key, shape, dtype, sharding = _begin("cauchy", key, shape, dtype, out_sharding)
    u = between(key, shape, dtype, float(dtypes.finfo(dtype).eps), 1.0, sharding)
    return tan(mul(sub(u, const_like(u, 0.5)), const_like(u, math.pi)))


def maxwell(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The length of a vector of three standard normal numbers."""
    key, shape, dtype, sharding = _begin("maxwell", key, shape, dtype, out_sharding)
    x = standard_normal(key, (*shape, 3), dtype, with_dims(sharding, 1, len(shape)))
    return sqrt(reduce_sum(mul(x, x), axes=(len(shape),), out_sharding=None))


# -- with parameters -----------------------------------------------------------------------------------


def double_sided_maxwell(
    key: Any, loc: Any, scale: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """`loc` plus or minus `scale` times a Maxwell number, each sign with probability 1/2."""
    key, shape, dtype, sharding, (loc, scale) = _begin_with(
        "double_sided_maxwell", key, shape, dtype, out_sharding, loc, scale
    )
    first, second = subkeys(key, 2)
    size = maxwell(first, shape, dtype, out_sharding=sharding)
    side = rademacher(second, shape, dtype, out_sharding=sharding)
    return add(mul(mul(side, size), scale), loc)


def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """exp of a normal number of standard deviation `sigma`."""
    key, shape, dtype, sharding, (sigma,) = _begin_with("lognormal", key, shape, dtype, out_sharding, sigma)
    return exp(mul(standard_normal(key, shape, dtype, sharding), sigma))


def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Density b x**(-b - 1) for x >= 1."""
    key, shape, dtype, sharding, (b,) = _begin_with("pareto", key, shape, dtype, out_sharding, b)
    return exp(div(standard_exponential(key, shape, dtype, sharding), b))


def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """`scale` times the length of a vector of two standard normal numbers."""
    key, shape, dtype, sharding, (scale,) = _begin_with("rayleigh", key, shape, dtype, out_sharding, scale)
    u = unit(key, shape, dtype, sharding)
    return mul(sqrt(mul(log(u), const_like(u, -2))), scale)


def weibull_min(
    key: Any, scale: Any, concentration: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """Distribution function 1 - exp(-(x / scale)**concentration) for x >= 0."""
    key, shape, dtype, sharding, (scale, concentration) = _begin_with(
        "weibull_min", key, shape, dtype, out_sharding, scale, concentration
    )
    power = div(literal(1, dtype), concentration)
    return mul(pow_(standard_exponential(key, shape, dtype, sharding), power), scale)


def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """Density rising from `left` to `mode` and falling to `right` in straight lines."""
    key, shape, dtype, sharding, (left, mode, right) = _begin_with(
        "triangular", key, shape, dtype, out_sharding, left, mode, right, full=True
    )
    u = unit(key, shape, dtype, sharding)
    width = sub(right, left)
    lower = add(left, sqrt(mul(mul(u, width), sub(mode, left))))
    upper = sub(right, sqrt(mul(mul(sub(const_like(u, 1), u), width), sub(right, mode))))
    return select_n(lt(u, div(sub(mode, left), width)), upper, lower)


def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Inverse Gaussian numbers of scale 1.

    The method is that of J. Michael, W. Schucany, R. Haas, The American Statistician 30 (1976).
    """
    key, shape, dtype, sharding, (mean,) = _begin_with("wald", key, shape, dtype, out_sharding, mean, full=True)
    first, second = subkeys(key, 2)
    v = square(standard_normal(first, shape, dtype, sharding))
    u = unit(second, shape, dtype, sharding)
    half, four = const_like(v, 0.5), const_like(v, 4)
    spread = sqrt(add(mul(mul(four, mean), v), mul(square(mean), square(v))))
    x = sub(add(mean, mul(mul(square(mean), v), half)), mul(mul(mean, half), spread))
    return select_n(le(u, div(mean, add(mean, x))), div(square(mean), x), x)


def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Trials until the first success of probability `p`, as integers from 1."""
    key = one_key("geometric", key)
    result = int_dtype("geometric", dtype)
    shape = common_shape("geometric", shape, p)
    dtype = dtypes.canonicalize(float)
    sharding = draw_sharding("geometric", shape, out_sharding, p)
    u = unit(key, shape, dtype, sharding)
    u = select_n(eq(u, const_like(u, 0)), u, max_(u, const_like(u, 1)))
    trials = div(log(u), log1p(neg(parameter(p, shape, dtype, sharding))))
    return convert_element_type(add(floor(trials), const_like(trials, 1)), new_dtype=result, weak_type=False)
