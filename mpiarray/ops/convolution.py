"""convolve: the full discrete convolution along the last dim; what numpy.convolve computes, differentiable in both
operands.

Here and not in the convolutions of images, because polynomials and 1-D filters of any dtype need just this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, Zero, define
from mpiarray.core.plan import Plan, dims_of, require_unsharded, spec_from
from mpiarray.core.value import aval_of
from mpiarray.ops.common import BatchAxis, same_dtype
from mpiarray.ops.linear import add_tangents, batch_to
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.ops.shape import rev
from mpiarray.ops.slicing import slice_
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


def _type(x: ShapedArray, y: ShapedArray) -> Out:
    dtype = same_dtype("convolve", (x, y))
    if not x.ndim or x.shape[:-1] != y.shape[:-1] or not x.shape[-1] or not y.shape[-1]:
        raise ValueError(
            f"convolve: operands need a last dim of at least one element and equal dims before it, got "
            f"{x.str_short()} and {y.str_short()}"
        )
    return Out((*x.shape[:-1], x.shape[-1] + y.shape[-1] - 1), dtype, x.weak_type and y.weak_type)


def _plan(avals: tuple[Any, ...]) -> Plan:
    x, y = avals
    for a in avals:
        require_unsharded("convolve", a, (a.ndim - 1,), "the dimension that is convolved must be unsharded")
    batch = [a or b for a, b in zip(dims_of(x)[:-1], dims_of(y)[:-1])]
    spec = spec_from([*batch, ()])
    return Plan((spec, spec), (spec,))


def _impl(x: Any, y: Any) -> np.ndarray:
    x, y = np.asarray(x), np.asarray(y)
    dtype = x.dtype
    if dtypes.is_float(dtype) and dtype.itemsize < 4:
        x, y = x.astype(np.float32), y.astype(np.float32)
    elif dtypes.is_bool(dtype) or x.dtype.kind not in "iufc":
        x, y = x.astype(np.int32), y.astype(np.int32)
    out = np.zeros((*x.shape[:-1], x.shape[-1] + y.shape[-1] - 1), x.dtype)
    for k in np.ndindex(*x.shape[:-1]):
        out[k] = np.convolve(x[k], y[k])
    return dtypes.cast(out, dtype)


def _jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (x, y), (dx, dy) = primals, tangents
    out = op(x, y)
    terms = [op(*pair) for pair, t in (((dx, y), dx), ((x, dy), dy)) if not isinstance(t, Zero)]
    return out, add_tangents(terms, out.aval)


def _transpose(op: Op, ct: Any, x: Any, y: Any) -> list[Any]:
    """The cotangent correlated with the other operand, where they overlap whole."""
    linear, other = (x, y) if isinstance(x, Linear) else (y, x)
    last, n, m = linear.aval.ndim - 1, linear.aval.shape[-1], aval_of(other).shape[-1]
    wide = op(ct, rev(other, dimensions=(last,)))
    shape = aval_of(wide).shape
    part = slice_(wide, start_indices=(0,) * last + (m - 1,), limit_indices=(*shape[:-1], m - 1 + n), strides=None)
    return [part, None] if linear is x else [None, part]


def _batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, int]:
    return op(*(batch_to(x, axis, d, 0) for x, d in zip(args, dims))), 0


convolve = define(
    "convolve",
    type_rule=_type,
    plan=_plan,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    partial_sums=refuse_unreduced,
    hlo_name="convolution",
)
