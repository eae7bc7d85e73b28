"""Functions along an axis: softmax and its kin, encodings.  Over a sharded axis each sum is one Allreduce."""

from __future__ import annotations

from functools import partial
from typing import Any

from mpiarray import numpy as jnp
from mpiarray.core.value import aval_of
from mpiarray.higher_order.custom_derivatives import custom_jvp
from mpiarray.ops.select import stop_gradient
from mpiarray.types import dtypes

__all__ = ["dot_product_attention", "log_softmax", "logmeanexp", "logsumexp", "one_hot", "softmax", "standardize"]


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(a))) over axes, without overflow.  b: weights; where: which elements count; return_sign: (log|sum|, sign)."""
    a = jnp.asarray(a)
    a = a if jnp.issubdtype(a.dtype, jnp.inexact) else a.astype(float)
    if b is not None:
        a = jnp.where(jnp.asarray(b) != 0, a, -jnp.inf)
    top = jnp.max(a.real, axis=axis, keepdims=True, where=where, initial=-jnp.inf)
    top = stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    terms = jnp.exp(a - top)
    if b is not None:
        terms = terms * b
    total = jnp.sum(terms, axis=axis, keepdims=True, where=where)
    sign = jnp.sign(total)
    size = total if not return_sign and b is None else jnp.abs(total)
    out = jnp.log(size) + top
    if b is not None and not return_sign:
        out = jnp.where(sign < 0, jnp.nan, out) if not jnp.iscomplexobj(out) else out
    if not keepdims:
        out, sign = jnp.squeeze(out, axis), jnp.squeeze(sign, axis)
    return (out, sign) if return_sign else out


def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Any:
    """log(mean(exp(x))) over axes."""
    total = logsumexp(x, axis=axis, where=where, keepdims=keepdims)
    count = jnp.sum(jnp.ones_like(x), axis=axis, where=where, keepdims=keepdims)
    return total - jnp.log(count)


def softmax(x: Any, axis: Any = -1, where: Any = None, initial: Any = -jnp.inf) -> Any:
    """exp(x) / sum(exp(x)) over axes; keeps the sharding, also of a sharded axis.

    where: which elements count; the others become 0.  initial: the least number that is subtracted before exp.
    """
    x = jnp.asarray(x)
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)
    out = _softmax(_or_none(x, where), axis, initial)
    return out if where is None else jnp.where(where, out, 0)


def _or_none(x: Any, where: Any) -> Any:
    """`x`, with -inf, of which exp is 0, where it does not count: sums of exponentials then need no mask."""
    return x if where is None else jnp.where(where, x, -jnp.inf)


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _softmax(x: Any, axis: Any, initial: Any) -> Any:
    """With the derivative in terms of the result, which needs no exponentials and no division."""
    terms = jnp.exp(x - jnp.max(x, axis, keepdims=True, initial=initial))
    return terms / jnp.sum(terms, axis, keepdims=True)


@_softmax.defjvp
def _softmax_jvp(axis: Any, initial: Any, primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    y = _softmax(x, axis, initial)
    part = y * t
    return y, part + y * -jnp.sum(part, axis, keepdims=True)  # in this order the transpose is y (w - sum(y w))


def log_softmax(x: Any, axis: Any = -1, where: Any = None, initial: Any = -jnp.inf) -> Any:
    """x - logsumexp(x) over axes.  where: which elements count; the others become -inf."""
    x = _or_none(jnp.asarray(x), where)
    shifted = x - stop_gradient(jnp.max(x, axis, keepdims=True, initial=initial))
    out = shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis, keepdims=True))
    return out if where is None else jnp.where(where, out, -jnp.inf)


def standardize(
    x: Any, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5, where: Any = None
) -> Any:
    """(x - mean) / sqrt(variance + epsilon) over axes."""
    x = jnp.asarray(x)
    if mean is None:
        mean = jnp.mean(x, axis, keepdims=True, where=where)
    if variance is None:
        variance = jnp.mean(jnp.square(x), axis, keepdims=True, where=where) - jnp.square(mean)
    return (x - mean) * (1 / jnp.sqrt(variance + epsilon))


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: Any = -1) -> Any:
    """1 at the position of each index along a new axis, 0 elsewhere; all 0 for indices out of range."""
    x = jnp.asarray(x)
    ndim = x.ndim + 1
    if not -ndim <= axis < ndim:
        raise ValueError(f"one_hot: axis {axis} is out of bounds for indices {aval_of(x).str_short()}")
    at = axis % ndim
    shape = [1] * ndim
    shape[at] = num_classes
    classes = jnp.arange(num_classes, dtype=x.dtype).reshape(shape)
    hot = jnp.expand_dims(x, at) == classes
    return hot.astype(dtypes.default_dtype(float) if dtype is None else dtype)


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Any:
    """softmax(query key^T * scale + bias) value, per head: query (..., T, N, H), key and value (..., S, K, H) with K dividing N."""
    q, k, v = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    if q.ndim not in (3, 4) or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"dot_product_attention: query {aval_of(q).str_short()}, key {aval_of(k).str_short()} and value {aval_of(v).str_short()} do not fit"
        )
    batched = q.ndim == 4
    if not batched:
        q, k, v = q[None], k[None], v[None]
    heads, kv_heads = q.shape[2], k.shape[2]
    if heads % kv_heads:
        raise ValueError(
            f"dot_product_attention: the {heads} query heads must be a multiple of the {kv_heads} key heads"
        )
    if kv_heads != heads:
        k, v = jnp.repeat(k, heads // kv_heads, axis=2), jnp.repeat(v, heads // kv_heads, axis=2)
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        causal = jnp.tri(q.shape[1], k.shape[1], dtype=bool)
        mask = causal if mask is None else jnp.logical_and(mask, causal)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    out = jnp.einsum("bnts,bsnh->btnh", softmax(scores.astype("float32"), axis=-1).astype(scores.dtype), v)
    return out if batched else out[0]
