"""Reductions over dims other than sums: maxima, minima, products and logic.

Blocks are reduced first, then one all-reduce combines them over the mesh axes of the reduced dims.  `reduce_sum`,
which other ops' derivatives need, stands in linear.py; positions of extremes in extremes.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op, Out, Zero, define
from mpiarray.core.plan import axes_size, dims_of, spec_from
from mpiarray.core.value import aval_of
from mpiarray.ops.arithmetic import div, mul
from mpiarray.ops.common import BatchAxis, check_kind, const_like
from mpiarray.ops.comparison import eq
from mpiarray.ops.elementwise import NOT_LINEAR
from mpiarray.ops.linear import (
    add_any,
    by_argument,
    convert_element_type,
    move_dim,
    reduce_sum,
    reduced_shape,
    reduction_plan,
    reshape,
    sharding_of,
    tangent_aval,
    zero_jvp,
)
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.ops.row_reductions import extreme_of_rows
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

# -- reductions by one function -----------------------------------------------------------------------


def lowest(dtype: Any) -> Any:
    """The neutral element of max: -inf for floats, else the least value."""
    return _limit(dtype, "min")


def highest(dtype: Any) -> Any:
    """The neutral element of min: inf for floats, else the greatest value."""
    return _limit(dtype, "max")


def _limit(dtype: Any, which: str) -> Any:
    if dtypes.is_bool(dtype):
        return np.bool_(which == "max")
    if dtypes.is_int(dtype):
        return np.asarray(getattr(dtypes.iinfo(dtype), which)).astype(dtype)[()]
    value = math.inf if which == "max" else -math.inf
    if dtypes.is_complex(dtype):
        return np.asarray(complex(value, value)).astype(dtype)[()]
    with np.errstate(all="ignore"):
        out = np.asarray(value).astype(dtype)[()]
    return out if np.isinf(out) else np.asarray(getattr(dtypes.finfo(dtype), which)).astype(dtype)[()]


def _fold(ufunc: Any, neutral: Callable[[Any], Any]) -> Callable[..., np.ndarray]:
    """numpy's reduction, of the operand's dtype, with a value for empty dims; 16-bit floats are exact in float32."""

    def impl(x: Any, *, axes: tuple[int, ...]) -> np.ndarray:
        x = np.asarray(x)
        dtype = x.dtype
        if not x.size:
            return np.full([n for d, n in enumerate(x.shape) if d not in axes], neutral(dtype), dtype)
        if dtypes.is_float(dtype) and dtype.itemsize <= 2:
            return impl(x.astype(np.float32), axes=axes).astype(dtype)
        if dtype.kind not in "biufc":
            return np.asarray(ufunc.reduce(x.astype(np.int8), axis=axes)).astype(dtype)
        found = extreme_of_rows(ufunc, x, axes) if ufunc in (np.maximum, np.minimum) else None
        return np.asarray(ufunc.reduce(x, axis=axes, dtype=dtype)) if found is None else found

    return impl


def _reduction_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, axes: Any, **params: Any
) -> Any:
    return op(move_dim(args[0], dims[0], 0), axes=tuple(a + 1 for a in axes), **params), 0


def _define(name: str, kinds: str, kind: str, impl: Callable[..., Any], jvp: Callable[..., Any]) -> Op:
    def type_rule(x: ShapedArray, *, axes: tuple[int, ...]) -> Out:
        check_kind(name, x.dtype, kinds)
        return Out(reduced_shape(name, x, axes), x.dtype, x.weak_type)

    return define(
        name,
        type_rule=type_rule,
        plan=lambda avals, *, axes: reduction_plan(kind, avals, axes),
        impl=impl,
        jvp=jvp,
        transpose=NOT_LINEAR,
        batch=_reduction_batch,
        partial_sums=refuse_unreduced,
        hlo_name="reduce",
    )


def _kept_dims(x: Any, like: Any, axes: tuple[int, ...]) -> Any:
    """A reduced array with its reduced dims put back, of size 1."""
    aval = aval_of(like)
    sizes = tuple(1 if d in axes else n for d, n in enumerate(aval.shape))
    sharding = sharding_of(aval)
    if sharding is not None:
        entries = [() if d in axes else e for d, e in enumerate(dims_of(aval))]
        sharding = sharding.update(spec=spec_from(entries, aval.unreduced, aval.reduced))
    return reshape(x, new_sizes=sizes, dimensions=None, sharding=sharding)


def _share_among_equals(t: Any, out: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    """The tangent is the mean over all elements that are the extreme."""
    aval = aval_of(t)
    chosen = convert_element_type(eq(x, _kept_dims(out, x, axes)), new_dtype=aval.dtype, weak_type=False)
    total = reduce_sum(mul(t, chosen), axes=axes, out_sharding=None)
    return div(total, reduce_sum(chosen, axes=axes, out_sharding=None))


reduce_max = _define("reduce_max", "bifc", "max", _fold(np.maximum, lowest), by_argument(_share_among_equals))
reduce_min = _define("reduce_min", "bifc", "min", _fold(np.minimum, highest), by_argument(_share_among_equals))


def _ones(dtype: Any) -> Any:
    return np.asarray(-1).astype(dtype)[()] if dtypes.is_int(dtype) else np.bool_(True)


reduce_and = _define("reduce_and", "bi", "and", _fold(np.bitwise_and, _ones), zero_jvp)
reduce_or = _define("reduce_or", "bi", "or", _fold(np.bitwise_or, lambda dtype: 0), zero_jvp)
reduce_xor = _define("reduce_xor", "bi", "xor", _fold(np.bitwise_xor, lambda dtype: 0), zero_jvp)


# -- products -----------------------------------------------------------------------------------------
#
# The product of all other elements cannot be had by dividing where one of them is zero.  The derivative therefore goes
# along a binary tree of products, which is exact, and stays so when it is differentiated again.


def _halved(x: Any, dim: int, fill: float) -> tuple[Any, Any]:
    """The two halves of `x` along `dim`, the second one padded if need be."""
    n = aval_of(x).shape[dim]
    if n % 2:
        config = tuple((0, 1 if d == dim else 0, 0) for d in range(aval_of(x).ndim))
        x = pad(x, const_like(x, fill), padding_config=config)
        n += 1
    shape = aval_of(x).shape
    halves = []
    for start, limit in ((0, n // 2), (n // 2, n)):
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(limit if d == dim else m for d, m in enumerate(shape))
        halves.append(slice_(x, start_indices=starts, limit_indices=limits, strides=None))
    return halves[0], halves[1]


def _tree(x: Any, t: Any, dim: int) -> tuple[Any, Any]:
    """Product along an unsharded dim, with its tangent; the dim stays, of size 1."""
    while aval_of(x).shape[dim] > 1:
        (a, b), (da, db) = _halved(x, dim, 1), _halved(t, dim, 0)
        x, t = mul(a, b), add_any(mul(da, b), mul(a, db))
    return x, t


def _with_entries(x: Any, sizes: Sequence[int], entries: Sequence[tuple[str, ...]]) -> Any:
    aval = aval_of(x)
    sharding = sharding_of(aval)
    if sharding is not None:
        sharding = sharding.update(spec=spec_from(entries, aval.unreduced, aval.reduced))
    return reshape(x, new_sizes=tuple(sizes), dimensions=None, sharding=sharding)


def _prod_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, axes: tuple[int, ...]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    out = op(x, axes=axes)
    if isinstance(t, Zero) or not aval_of(x).size:
        return out, Zero(tangent_aval(out.aval))
    for dim in axes:
        aval = aval_of(x)
        shape, entries = list(aval.shape), list(dims_of(aval))
        parts = axes_size(aval.mesh, entries[dim]) if entries[dim] else 1
        if parts > 1:  # first along each block, then along the few results
            split = [*shape[:dim], parts, shape[dim] // parts, *shape[dim + 1 :]]
            inner = [*entries[: dim + 1], (), *entries[dim + 1 :]]
            x, t = _tree(_with_entries(x, split, inner), _with_entries(t, split, inner), dim + 1)
            shape[dim], entries[dim] = parts, ()
            x, t = (_with_entries(v, shape, entries) for v in (x, t))
        x, t = _tree(x, t, dim)
    return out, _with_entries(t, out.aval.shape, dims_of(out.aval))


reduce_prod = _define("reduce_prod", "ifc", "prod", _fold(np.multiply, lambda dtype: 1), _prod_jvp)
