"""Draws that need linear algebra: vectors of given covariance, orthogonal matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy import linalg
from mpiarray.numpy.einsum import einsum
from mpiarray.numpy.promotion import out_sharding as checked_sharding
from mpiarray.ops.arithmetic import add, mul, sqrt
from mpiarray.ops.complex_parts import sign
from mpiarray.ops.matrices import swapped
from mpiarray.random.arguments import (
    common_shape,
    draw_sharding,
    expanded,
    float_dtype,
    moved_to,
    one_key,
    parameter,
    shape_of,
    with_dims,
    without_last,
)
from mpiarray.random.uniform import standard_normal
from mpiarray.types import dtypes

_METHODS = ("cholesky", "eigh", "svd")


def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    shape: Any = None,
    dtype: Any = None,
    method: str = "cholesky",
    *,
    out_sharding: Any = None,
) -> Any:
    """Normal vectors of given mean (..., n) and covariance (..., n, n): result of shape `shape + (n,)`.

    shape: batch shape to which the parameters' batch dims broadcast (default: their common one).
    method: how the covariance is factored; 'cholesky' (the fastest) needs it to be positive definite.
    Raises ValueError for shapes that do not fit.
    """
    key = one_key("multivariate_normal", key)
    dtype = float_dtype("multivariate_normal", dtype)
    if method not in _METHODS:
        raise ValueError(f"multivariate_normal: method must be one of {set(_METHODS)}, got {method!r}")
    mean_shape, cov_shape = aval_of(mean).shape, aval_of(cov).shape
    if not mean_shape:
        raise ValueError("multivariate_normal requires mean.ndim >= 1, got mean.ndim == 0")
    if len(cov_shape) < 2:
        raise ValueError(f"multivariate_normal requires cov.ndim >= 2, got cov.ndim == {len(cov_shape)}")
    n = mean_shape[-1]
    if cov_shape[-2:] != (n, n):
        raise ValueError(
            f"multivariate_normal requires cov.shape == (..., n, n) for n={n}, but got cov.shape == {cov_shape}."
        )
    batch = common_shape("multivariate_normal", shape, np.empty(mean_shape[:-1]), np.empty(cov_shape[:-2]))
    whole = checked_sharding(out_sharding, (*batch, n), "multivariate_normal")
    # the product with the factor sums over the last dim, so that the draw is whole along it
    sharding = draw_sharding("multivariate_normal", (*batch, n), with_dims(without_last(whole), 1, len(batch)))
    x = standard_normal(key, (*batch, n), dtype, sharding)
    factor = _factor(parameter(cov, cov_shape, dtype, None), method)
    x = einsum("...ij,...j->...i", factor, x)
    return moved_to(add(parameter(mean, (*batch, n), dtype, sharding), x), whole, "multivariate_normal")


def _factor(cov: Any, method: str) -> Any:
    """A matrix that times its transpose is the covariance."""
    if method == "cholesky":
        return linalg.cholesky(cov)
    if method == "eigh":
        values, vectors = linalg.eigh(cov)
    else:
        vectors, values, _ = linalg.svd(cov)
    return mul(vectors, expanded(sqrt(values), aval_of(values).ndim - 1))


def orthogonal(
    key: Any, n: int, shape: Any = (), dtype: Any = None, m: int | None = None, *, out_sharding: Any = None
) -> Any:
    """Matrices `shape + (n, m)` with orthonormal columns or rows, whichever are fewer; uniform by Haar's measure.

    m: columns, `n` by default.  Complex dtypes give unitary matrices.
    """
    key = one_key("orthogonal", key)
    found = dtypes.requested(float if dtype is None else dtype, "orthogonal")
    if not dtypes.is_inexact(found):
        raise ValueError(f"dtype argument to `orthogonal` must be a float or complex dtype, got {found}")
    shape = shape_of("orthogonal", shape)
    n, m = shape_of("orthogonal", (n, n if m is None else m))
    whole = checked_sharding(out_sharding, (*shape, n, m), "orthogonal")
    tall = (*shape, max(n, m), min(n, m))
    sharding = draw_sharding("orthogonal", tall, with_dims(without_last(without_last(whole)), 2, len(shape)))
    q, r = linalg.qr(standard_normal(key, tall, found, sharding))
    # signs that make the factorization unique, without which the matrices are not uniform
    q = mul(q, expanded(sign(linalg.diagonal(r)), len(shape)))
    return moved_to(swapped(q) if n < m else q, whole, "orthogonal")
