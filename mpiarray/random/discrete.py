"""Counts and categories."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.ops import random as ops
from mpiarray.ops.arithmetic import add, div, sub
from mpiarray.ops.comparison import eq
from mpiarray.ops.cumulative import cumsum
from mpiarray.ops.extremes import argmax
from mpiarray.ops.linear import convert_element_type, reshape, transpose
from mpiarray.ops.searching import top_k
from mpiarray.ops.select import select_n
from mpiarray.ops.shape import concatenate
from mpiarray.random.arguments import (
    common_shape,
    draw_sharding,
    expanded,
    float_dtype,
    full_parameter,
    int_dtype,
    item,
    moved_to,
    one_key,
    parameter,
    shape_of,
)
from mpiarray.random.continuous import standard_gumbel
from mpiarray.random.keys import subkeys
from mpiarray.types import dtypes


def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Poisson counts of mean `lam`, as integers; -1 where `lam` is negative or NaN.

    Sharded draws communicate one number (how long the slowest element of the whole draw takes).
    """
    key = one_key("poisson", key)
    result = int_dtype("poisson", dtype)
    shape = common_shape("poisson", shape, lam)
    sharding = draw_sharding("poisson", shape, out_sharding, lam)
    rate = full_parameter(lam, shape, np.dtype(np.float32), sharding)
    return convert_element_type(ops.draw_by_rejection("poisson", key, rate), new_dtype=result, weak_type=False)


def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Successes in `n` trials of probability `p`, as floats; NaN for impossible parameters.

    Sharded draws communicate one number, as `poisson`.
    """
    key = one_key("binomial", key)
    dtype = float_dtype("binomial", dtype)
    shape = common_shape("binomial", shape, n, p)
    sharding = draw_sharding("binomial", shape, out_sharding, n, p)
    return _binomial(key, n, p, shape, dtype, sharding)


def _binomial(key: Any, n: Any, p: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    work = dtype if dtypes.bit_width(dtype) >= 32 else np.dtype(np.float32)
    n, p = (full_parameter(x, shape, work, sharding) for x in (n, p))
    out = ops.draw_by_rejection("binomial", key, n, p)
    return out if work == dtype else convert_element_type(out, new_dtype=dtype, weak_type=False)


def multinomial(
    key: Any, n: Any, p: Any, *, shape: Any = None, dtype: Any = None, unroll: int | bool = 1, out_sharding: Any = None
) -> Any:
    """How often each of k categories occurs in `n` trials, as floats.

    p: probabilities of shape (..., k), which may be given up to a factor.  n broadcasts to `p.shape[:-1]`.
    shape: the result's shape (..., k).  One binomial draw is made per category, for what the earlier ones left.
    """
    key = one_key("multinomial", key)
    dtype = float_dtype("multinomial", dtype)
    sizes = aval_of(p).shape
    if not sizes:
        raise ValueError("multinomial: p must have at least one dimension, that of the categories")
    k = sizes[-1]
    if shape is not None:
        shape = shape_of("multinomial", shape)
        if not shape or shape[-1] != k:
            raise ValueError(
                f"multinomial: shape {shape} must end with the number of categories {k} of p, got p of shape {sizes}"
            )
        shape = shape[:-1]
    batch = common_shape("multinomial", shape, n, np.empty(sizes[:-1]))
    sharding = draw_sharding("multinomial", batch, None, n)
    p = parameter(p, sizes, dtype, None)
    rest = cumsum(p, axis=len(sizes) - 1, reverse=True)
    ratio = div(p, select_n(eq(rest, literal(0, dtype)), rest, _ones(rest)))
    columns = transpose(ratio, permutation=(len(sizes) - 1, *range(len(sizes) - 1)))
    left = full_parameter(n, batch, dtype, sharding)
    counts = []
    for i, sub_key in enumerate(subkeys(key, k)):
        counts.append(_binomial(sub_key, left, item(columns, i), batch, dtype, sharding))
        left = sub(left, counts[-1])
    last = len(batch)
    together = concatenate(*(expanded(c, last) for c in counts), dimension=last)
    return moved_to(together, out_sharding, "multinomial")


def _ones(x: Any) -> Any:
    return add(sub(x, x), literal(1, aval_of(x).dtype))


# -- categories ----------------------------------------------------------------------------------------


def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Category numbers with probabilities proportional to exp(logits) along `axis`, as int32.

    shape: the result's shape, whose last dims are the batch dims of `logits` (default: just these).
    replace: False draws the categories of the leading dims of `shape` without repetition.
    Raises ValueError where shapes do not fit, or for more draws than categories without replacement.
    """
    key = one_key("categorical", key)
    aval = aval_of(logits)
    dtype = aval.dtype
    if not dtypes.is_float(dtype):
        logits, dtype = parameter(logits, aval.shape, dtypes.canonicalize(float), None), dtypes.canonicalize(float)
    if not -aval.ndim <= axis < aval.ndim:
        raise ValueError(f"categorical: axis {axis} is out of bounds for logits of type {aval.str_short()}")
    axis %= aval.ndim
    batch = aval.shape[:axis] + aval.shape[axis + 1 :]
    shape = batch if shape is None else shape_of("categorical", shape)
    if np.broadcast_shapes(*([batch, shape] if _fits(batch, shape) else [()])) != shape:
        raise ValueError(f"categorical: Incompatible shapes for broadcasting: shapes={[shape, batch]}")
    lead = shape[: len(shape) - len(batch)]
    if replace:
        return moved_to(_with_replacement(key, logits, axis, lead, batch, dtype, mode), out_sharding, "categorical")
    return moved_to(_without_replacement(key, logits, axis, lead, batch, dtype, mode), out_sharding, "categorical")


def _fits(batch: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(shape) >= len(batch) and all(b in (1, n) for b, n in zip(batch[::-1], shape[::-1]))


def _with_replacement(key: Any, logits: Any, axis: int, lead: Any, batch: Any, dtype: Any, mode: str | None) -> Any:
    categories = aval_of(logits).shape[axis]
    sizes = list(batch)
    sizes.insert(axis, categories)
    full = (*lead, *sizes)
    sharding = draw_sharding("categorical", full, None, logits)
    score = add(standard_gumbel(key, full, dtype, sharding, mode), parameter(logits, full, dtype, sharding))
    return argmax(score, axes=(len(lead) + axis,), index_dtype=np.dtype(np.int32))


def _without_replacement(key: Any, logits: Any, axis: int, lead: Any, batch: Any, dtype: Any, mode: str | None) -> Any:
    aval = aval_of(logits)
    count = int(np.prod(lead)) if lead else 1
    if count > aval.shape[axis]:
        raise ValueError(
            f"Number of samples without replacement ({count}) cannot exceed number of categories ({aval.shape[axis]})."
        )
    sharding = draw_sharding("categorical", aval.shape, None, logits)
    score = add(standard_gumbel(key, aval.shape, dtype, sharding, mode), parameter(logits, aval.shape, dtype, sharding))
    _, places = top_k(score, axis=axis, k=count)
    places = transpose(places, permutation=(axis, *(d for d in range(aval.ndim) if d != axis)))
    return reshape(places, new_sizes=(*lead, *batch), dimensions=None, sharding=None)
