"""Initial weights: `initializer(key, shape, dtype, out_sharding=None)`.  Values do not depend on shardings or rank counts.

Variance scaling after Glorot and Bengio (2010), He et al. (2015), LeCun et al. (1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray import numpy as jnp
from mpiarray import random
from mpiarray.types import dtypes

Initializer = Callable[..., Any]

__all__ = [
    "Initializer", "constant", "delta_orthogonal", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "kaiming_normal", "kaiming_uniform",
    "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal", "truncated_normal", "uniform", "variance_scaling", "xavier_normal", "xavier_uniform",
    "zeros",
]  # fmt: skip


def _float(dtype: Any) -> Any:
    return dtypes.default_dtype(float) if dtype is None else dtypes.canonicalize(dtype)


def zeros(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
    """All 0."""
    return jnp.zeros(shape, _float(dtype), out_sharding=out_sharding)


def ones(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
    """All 1."""
    return jnp.ones(shape, _float(dtype), out_sharding=out_sharding)


def constant(value: Any, dtype: Any = None) -> Initializer:
    """All `value`."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
        return jnp.full(shape, value, _float(default if dtype is None else dtype), out_sharding=out_sharding)

    return init


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform in [0, scale)."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
        return (
            random.uniform(key, shape, _float(default if dtype is None else dtype), out_sharding=out_sharding) * scale
        )

    return init


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal with mean 0."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
        return (
            random.normal(key, shape, _float(default if dtype is None else dtype), out_sharding=out_sharding) * stddev
        )

    return init


def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: Any = -2.0, upper: Any = 2.0) -> Initializer:
    """Normal with mean 0, cut at `lower` and `upper` standard deviations."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
        draw = random.truncated_normal(
            key, lower, upper, shape, _float(default if dtype is None else dtype), out_sharding=out_sharding
        )
        return draw * stddev

    return init


def _fans(shape: Sequence[int], in_axis: Any, out_axis: Any, batch_axis: Any) -> tuple[float, float]:
    if len(shape) <= 1:
        raise ValueError(
            f"Can't compute input and output sizes of a {len(shape)}-dimensional weights tensor. Must be at least 2D."
        )

    def size(axes: Any) -> int:
        return math.prod(shape[a] for a in ((axes,) if isinstance(axes, int) else axes))

    ins, outs, batch = size(in_axis), size(out_axis), size(batch_axis)
    field = math.prod(shape) / ins / outs / batch
    return ins * field, outs * field


def variance_scaling(
    scale: Any,
    mode: str,
    distribution: str,
    in_axis: Any = -2,
    out_axis: Any = -1,
    batch_axis: Any = (),
    dtype: Any = None,
) -> Initializer:
    """Variance `scale / n`, n being 'fan_in', 'fan_out', 'fan_avg' or 'fan_geo_avg'; 'normal', 'truncated_normal' or 'uniform'."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
        dtype = _float(default if dtype is None else dtype)
        fan_in, fan_out = _fans(shape, in_axis, out_axis, batch_axis)
        counts = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
            "fan_geo_avg": (fan_in * fan_out) ** 0.5,
        }
        if mode not in counts:
            raise ValueError(f"invalid mode for variance scaling initializer: {mode}; expected one of {sorted(counts)}")
        variance = jnp.array(scale / counts[mode], dtype=dtype)
        if distribution == "normal":
            return random.normal(key, shape, dtype, out_sharding=out_sharding) * jnp.sqrt(variance)
        if distribution == "uniform":
            return random.uniform(key, shape, dtype, -1, out_sharding=out_sharding) * jnp.sqrt(3 * variance)
        if distribution == "truncated_normal":
            deviation = jnp.sqrt(variance) / jnp.array(
                0.87962566103423978, dtype
            )  # of the normal cut at 2 standard deviations
            return random.truncated_normal(key, -2, 2, shape, dtype, out_sharding=out_sharding) * deviation
        raise ValueError(f"invalid distribution for variance scaling initializer: {distribution}")

    return init


def _scaled(scale: float, mode: str, distribution: str, name: str) -> Callable[..., Initializer]:
    def make(in_axis: Any = -2, out_axis: Any = -1, batch_axis: Any = (), dtype: Any = None) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"`variance_scaling({scale}, {mode!r}, {distribution!r})`."
    return make


glorot_uniform = xavier_uniform = _scaled(1.0, "fan_avg", "uniform", "glorot_uniform")
glorot_normal = xavier_normal = _scaled(1.0, "fan_avg", "truncated_normal", "glorot_normal")
lecun_uniform = _scaled(1.0, "fan_in", "uniform", "lecun_uniform")
lecun_normal = _scaled(1.0, "fan_in", "truncated_normal", "lecun_normal")
he_uniform = kaiming_uniform = _scaled(2.0, "fan_in", "uniform", "he_uniform")
he_normal = kaiming_normal = _scaled(2.0, "fan_in", "truncated_normal", "he_normal")


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """A random orthogonal matrix (rows or columns orthonormal), times `scale`."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
        dtype = _float(default if dtype is None else dtype)
        if len(shape) < 2:
            raise ValueError("orthogonal initializer requires at least a 2D shape")
        n_rows, n_cols = math.prod(shape) // shape[column_axis], shape[column_axis]
        tall = (max(n_rows, n_cols), min(n_rows, n_cols))
        q, r = jnp.linalg.qr(random.normal(key, tall, dtype))
        q = q * jnp.expand_dims(jnp.sign(jnp.diagonal(r)), -2)
        q = q.T if n_rows < n_cols else q
        rest = [n for d, n in enumerate(shape) if d != column_axis % len(shape)]
        q = jnp.moveaxis(q.reshape(*rest, n_cols), -1, column_axis)
        return scale * q

    return init


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """For convolutions: an orthogonal matrix at the kernel's centre, 0 elsewhere (Xiao et al. 2018)."""
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
        dtype = _float(default if dtype is None else dtype)
        if len(shape) not in (3, 4, 5):
            raise ValueError("delta_orthogonal initializer requires a 3D, 4D or 5D shape")
        if shape[-1] < shape[-2]:
            raise ValueError("`fan_in` must be less or equal than `fan_out` for delta_orthogonal")
        matrix = orthogonal(scale, column_axis, dtype)(key, shape[-2:])
        centre = tuple((k - 1) // 2 for k in shape[:-2])
        return jnp.zeros(shape, dtype).at[centre].set(matrix)

    return init
