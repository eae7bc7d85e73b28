"""Activation functions, element by element: they keep the operand's sharding and communicate nothing."""

from __future__ import annotations

import math
from typing import Any

from mpiarray import numpy as jnp
from mpiarray.core.value import aval_of
from mpiarray.higher_order.custom_derivatives import custom_jvp
from mpiarray.ops import special, transcendental
from mpiarray.ops.common import const_like

__all__ = [
    "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu", "log_sigmoid", "mish", "relu",
    "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus", "sparse_sigmoid", "squareplus", "swish", "tanh",
]  # fmt: skip


def identity(x: Any) -> Any:
    """`x`, as an array."""
    return jnp.asarray(x)


@custom_jvp
def relu(x: Any) -> Any:
    """max(x, 0), with derivative 0 at 0; NaN stays NaN."""
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return relu(x), jnp.where(x > 0, t, const_like(t, 0))


def relu6(x: Any) -> Any:
    """min(max(x, 0), 6)."""
    return jnp.minimum(relu(x), 6.0)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return transcendental.logistic(_inexact(x))


def _inexact(x: Any) -> Any:
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)


def softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    return jnp.logaddexp(x, 0.0)


def soft_sign(x: Any) -> Any:
    """x / (1 + |x|)."""
    x = _inexact(x)
    return x / (jnp.abs(x) + 1)


def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    x = _inexact(x)
    return x * sigmoid(x)


swish = silu


def mish(x: Any) -> Any:
    """x * tanh(softplus(x))."""
    x = _inexact(x)
    return x * jnp.tanh(softplus(x))


def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)) = -softplus(-x)."""
    return -softplus(-_inexact(x))


def leaky_relu(x: Any, negative_slope: Any = 1e-2) -> Any:
    """x where positive, else negative_slope * x."""
    x = _inexact(x)
    return jnp.where(x >= 0, x, negative_slope * x)


def hard_tanh(x: Any) -> Any:
    """x limited to [-1, 1]."""
    x = jnp.asarray(x)
    return jnp.where(x > 1, const_like(x, 1), jnp.where(x < -1, const_like(x, -1), x))


def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6."""
    return relu6(_inexact(x) + 3.0) / 6.0


def hard_silu(x: Any) -> Any:
    """x * hard_sigmoid(x)."""
    x = _inexact(x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu


def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where positive, else alpha * (exp(x) - 1)."""
    x = _inexact(x)
    below = jnp.where(x > 0, const_like(x, 0), x)  # so that exp does not overflow where its result is not used
    return jnp.where(x > 0, x, alpha * jnp.expm1(below))


def celu(x: Any, alpha: Any = 1.0) -> Any:
    """x where positive, else alpha * (exp(x / alpha) - 1)."""
    x = _inexact(x)
    below = jnp.where(x > 0, const_like(x, 0), x)
    return jnp.where(x > 0, x, alpha * jnp.expm1(below / alpha))


def selu(x: Any) -> Any:
    """The self-normalising elu (Klambauer et al. 2017)."""
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x, exactly or by the tanh approximation (Hendrycks and Gimpel 2016)."""
    x = _inexact(x)
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * (0.5 * (1.0 + jnp.tanh(inner)))
    return 0.5 * x * special.erfc(-x * const_like(x, math.sqrt(0.5)))


def glu(x: Any, axis: int = -1) -> Any:
    """The first half along an axis times the sigmoid of the second.  Raises ValueError for an odd size."""
    size = aval_of(x).shape[axis]
    if size % 2:
        raise ValueError(f"glu: axis {axis} of {aval_of(x).str_short()} must have an even size, got {size}")
    first, second = jnp.split(x, 2, axis)
    return first * sigmoid(second)


def squareplus(x: Any, b: Any = 4) -> Any:
    """(x + sqrt(x^2 + b)) / 2."""
    x = _inexact(x)
    return (x + jnp.sqrt(jnp.square(x) + b)) / 2


def sparse_plus(x: Any) -> Any:
    """0 below -1, x above 1, (x + 1)^2 / 4 between."""
    x = _inexact(x)
    return jnp.where(x <= -1.0, const_like(x, 0), jnp.where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


def sparse_sigmoid(x: Any) -> Any:
    """(x + 1) / 2 limited to [0, 1]."""
    return 0.5 * jnp.clip(_inexact(x) + 1.0, 0.0, 2.0)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return jnp.tanh(x)
