"""Exponentials, logarithms, trigonometric and hyperbolic functions, for real and complex numbers.

`log` stands in arithmetic.py, where the derivative of powers needs it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray.core.op import Op
from mpiarray.ops.arithmetic import add, div, log, mul, neg, rsqrt, square, sub
from mpiarray.ops.common import const_like
from mpiarray.ops.elementwise import nary, unary, widened

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "exp", "exp2", "expm1", "log", "log1p",
    "logistic", "sin", "sinh", "tan", "tanh",
]  # fmt: skip


def _one_minus(x: Any) -> Any:
    return sub(const_like(x, 1), x)


def _one_plus(x: Any) -> Any:
    return add(const_like(x, 1), x)


exp = unary("exp", "fc", widened(np.exp), lambda t, out, x: mul(t, out), hlo_name="exponential")
exp2 = unary(
    "exp2",
    "fc",
    widened(np.exp2),
    lambda t, out, x: mul(const_like(x, math.log(2)), mul(t, out)),
    hlo_name="exponential",
)
expm1 = unary(
    "expm1", "fc", widened(np.expm1), lambda t, out, x: mul(t, _one_plus(out)), hlo_name="exponential-minus-one"
)
log1p = unary("log1p", "fc", widened(np.log1p), lambda t, out, x: div(t, _one_plus(x)), hlo_name="log-plus-one")
logistic = unary(
    "logistic",
    "fc",
    widened(lambda x: np.reciprocal(1 + np.exp(-x))),
    lambda t, out, x: mul(t, mul(out, _one_minus(out))),
)

sin = unary("sin", "fc", widened(np.sin), lambda t, out, x: mul(t, cos(x)), hlo_name="sine")
cos: Op = unary("cos", "fc", widened(np.cos), lambda t, out, x: neg(mul(t, sin(x))), hlo_name="cosine")
tan = unary("tan", "fc", widened(np.tan), lambda t, out, x: mul(t, _one_plus(square(out))))
asin = unary("asin", "fc", widened(np.arcsin), lambda t, out, x: mul(t, rsqrt(_one_minus(square(x)))))
acos = unary("acos", "fc", widened(np.arccos), lambda t, out, x: mul(t, neg(rsqrt(_one_minus(square(x))))))
atan = unary("atan", "fc", widened(np.arctan), lambda t, out, x: div(t, _one_plus(square(x))))

sinh = unary("sinh", "fc", widened(np.sinh), lambda t, out, x: mul(t, cosh(x)))
cosh: Op = unary("cosh", "fc", widened(np.cosh), lambda t, out, x: mul(t, sinh(x)))
tanh = unary("tanh", "fc", widened(np.tanh), lambda t, out, x: mul(mul(t, _one_plus(out)), _one_minus(out)))
asinh = unary("asinh", "fc", widened(np.arcsinh), lambda t, out, x: mul(t, rsqrt(_one_plus(square(x)))))
acosh = unary(
    "acosh",
    "fc",
    widened(np.arccosh),
    lambda t, out, x: mul(t, rsqrt(mul(sub(x, const_like(x, 1)), _one_plus(x)))),
)
atanh = unary("atanh", "fc", widened(np.arctanh), lambda t, out, x: div(t, mul(_one_plus(x), _one_minus(x))))


def _atan2(y: Any, x: Any) -> Any:
    """For complex numbers the principal value of -i log((x + iy) / sqrt(x^2 + y^2))."""
    if x.dtype.kind != "c":
        return np.arctan2(y, x)
    return (-1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))).astype(x.dtype)


atan2 = nary(
    "atan2",
    "fc",
    widened(_atan2),
    (
        lambda t, out, y, x: mul(t, div(x, add(square(x), square(y)))),
        lambda t, out, y, x: mul(t, div(neg(y), add(square(x), square(y)))),
    ),
)
