"""dot_general: every product of arrays (dot, matmul, einsum, tensordot, ...) is this op.

Result dims: batch dims, free dims of the left side, free dims of the right side.  `dimension_numbers` is
`((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`.  Products of 8- and 16-bit floats accumulate in float32
and are rounded once; `preferred_element_type` is the dtype of the sums and of the result.

Where a product is computed stands in dot_layout.py, how blocks are multiplied in dot_kernel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpiarray.core.op import NONE, Linear, Op, Out, PartialSums, Zero, define
from mpiarray.core.plan import dims_of, spec_from
from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.dot_kernel import DimensionNumbers, free_dims, matrix_product, product
from mpiarray.ops.dot_layout import dot_plan
from mpiarray.ops.linear import add_tangents, convert_element_type, transpose, with_batch_entry
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding


def _check_numbers(x: ShapedArray, y: ShapedArray, numbers: DimensionNumbers) -> None:
    """Raise TypeError unless the dimension numbers fit the operands."""
    (lc, rc), (lb, rb) = numbers
    shown = f"for operands {x.str_short()} and {y.str_short()}"
    for side, aval, contracting, batch in (("lhs", x, lc, lb), ("rhs", y, rc, rb)):
        for what, dims in (("contracting", contracting), ("batch", batch)):
            if any(not 0 <= d < aval.ndim for d in dims):
                raise TypeError(
                    f"dot_general requires {side} {what} dimensions to be nonnegative and less than the number of "
                    f"axes of the {side} "
                    f"value, got {what} dimensions {dims} {shown}"
                )
            if len(set(dims)) != len(dims):
                raise TypeError(
                    f"dot_general requires {side} {what} dimensions to be distinct, got {side}_{what} {dims} {shown}"
                )
        if set(batch) & set(contracting):
            raise TypeError(
                f"dot_general requires {side} batch dimensions to be disjoint from contracting dimensions, got "
                f"{side}_batch {batch} and "
                f"{side}_contracting {contracting} {shown}"
            )
    for what, left, right in (("batch", lb, rb), ("contracting", lc, rc)):
        sizes = tuple(x.shape[d] for d in left), tuple(y.shape[d] for d in right)
        kind = f"{what} dimensions" if what == "contracting" else "lhs batch dimensions and rhs batch dimensions"
        if sizes[0] != sizes[1]:
            raise TypeError(
                f"dot_general requires {kind} to have the same shape, got {sizes[0]} and {sizes[1]}. (Operands: "
                f"{x.str_short()}, {y.str_short()})"
            )


def _result_dtype(x: ShapedArray, y: ShapedArray, preferred: Any) -> Any:
    if dtypes.is_key(x.dtype) or dtypes.is_key(y.dtype):
        raise TypeError(f"dot_general does not accept keys, got {x.str_short()} and {y.str_short()}")
    if preferred is None:
        return x.dtype if x.dtype == y.dtype else dtypes.promote_types(x.dtype, y.dtype)
    if dtypes.is_key(preferred) or (dtypes.is_complex(x.dtype) and not dtypes.is_complex(preferred)):
        raise TypeError(
            f"dot_general: preferred_element_type {preferred} cannot hold products of {x.str_short()} and "
            f"{y.str_short()}"
        )
    return preferred


def _type(
    x: ShapedArray,
    y: ShapedArray,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
) -> Out:
    _check_numbers(x, y, dimension_numbers)
    (lc, rc), (lb, rb) = dimension_numbers
    shape = (
        *(x.shape[d] for d in lb),
        *(x.shape[d] for d in free_dims(x.ndim, lc, lb)),
        *(y.shape[d] for d in free_dims(y.ndim, rc, rb)),
    )
    return Out(
        shape,
        _result_dtype(x, y, preferred_element_type),
        x.weak_type and y.weak_type and preferred_element_type is None,
    )


def _impl(
    x: Any,
    y: Any,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    out: np.ndarray | None = None,
) -> np.ndarray:
    dtype = preferred_element_type
    if dtype is None:
        dtype = x.dtype if x.dtype == y.dtype else dtypes.promote_types(x.dtype, y.dtype)
    return product(x, y, dimension_numbers, dtype, out)


def _for_params(**params: Any) -> Callable[..., np.ndarray]:
    """The function of two blocks alone: for two matrices of one float type little more than numpy's."""
    general = partial(_impl, **params)
    return matrix_product(params["dimension_numbers"], params["preferred_element_type"], general) or general


_impl.into = _impl  # type: ignore[attr-defined]
_impl.for_params = _for_params  # type: ignore[attr-defined]


def _partial_sums(
    op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]
) -> PartialSums:
    """Unreduced operands are refused; a reduced one gives a plain result, and its cotangent is unreduced."""
    if any(u for u, _ in sums):
        raise ShardingTypeError(
            f"lhs or rhs passed to dot_general cannot be unreduced, got {', '.join(a.short() for a in avals)}. Use "
            "`jax.reshard` to reduce it first."
        )
    return NONE


# -- derivatives -------------------------------------------------------------------------------------------


def _jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, y), (dx, dy) = primals, tangents
    out = op(x, y, **params)
    if not dtypes.is_inexact(out.aval.dtype):
        return out, Zero(out.aval.update(dtype=dtypes.float0, weak_type=False))
    terms = []
    if not isinstance(dx, Zero):
        terms.append(op(dx, y, **params))
    if not isinstance(dy, Zero):
        terms.append(op(x, dy, **params))
    return out, add_tangents(terms, out.aval)


def cotangent_sharding(aval: ShapedArray, order: Sequence[int]) -> NamedSharding | None:
    """The sharding of a value's cotangent with its dims in another order: unreduced and reduced change places.

    None on meshes without Explicit axes, where there is nothing to say.
    """
    mesh, spec = aval.sharding.mesh, aval.sharding.spec
    if mesh.empty or not mesh.explicit_axes:
        return None
    return NamedSharding(mesh, spec_from([dims_of(aval)[d] for d in order], spec.reduced, spec.unreduced))


def _transpose(
    op: Op,
    ct: Any,
    x: Any,
    y: Any,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
) -> list[Any]:
    (lc, rc), (lb, rb) = dimension_numbers
    if isinstance(x, Linear):
        return [_side(op, ct, x.aval, y, lc, rc, lb, rb, precision, of_left=True), None]
    return [None, _side(op, ct, y.aval, x, rc, lc, rb, lb, precision, of_left=False)]


def _side(
    op: Op,
    ct: Any,
    mine: ShapedArray,
    other: Any,
    my_sum: Any,
    other_sum: Any,
    my_batch: Any,
    other_batch: Any,
    precision: Any,
    *,
    of_left: bool,
) -> Any:
    """The cotangent of one side: the other side's free dims are contracted with the cotangent's."""
    theirs = aval_of(other)
    batch = len(my_batch)
    my_free, other_free = free_dims(mine.ndim, my_sum, my_batch), free_dims(theirs.ndim, other_sum, other_batch)
    start = batch + (len(my_free) if of_left else 0)
    contracted = tuple(range(start, start + len(other_free)))
    # result dims: batch, then free dims of mine and the contracted dims, in the order in which the other side has them,
    # whichever first makes the result lie as it should without a transpose
    by_position = sorted(range(len(other_sum)), key=lambda k: other_sum[k])
    summed = tuple(my_sum[k] for k in by_position)
    order, swapped = (*my_batch, *my_free, *summed), (*my_batch, *summed, *my_free)
    contract, batches = (contracted, tuple(other_free)), (tuple(range(batch)), tuple(other_batch))
    sides = (ct, other)
    if order != tuple(range(mine.ndim)) and swapped == tuple(range(mine.ndim)):
        order, sides, contract, batches = swapped, (other, ct), contract[::-1], batches[::-1]
    out = op(
        *sides,
        dimension_numbers=(contract, batches),
        precision=precision,
        preferred_element_type=mine.dtype,
        out_sharding=cotangent_sharding(mine, order),
    )
    if order != tuple(range(mine.ndim)):
        out = transpose(out, permutation=tuple(order.index(d) for d in range(mine.ndim)))
    if aval_of(out).weak_type != mine.weak_type:
        out = convert_element_type(out, new_dtype=mine.dtype, weak_type=mine.weak_type)
    return out


def _batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    dimension_numbers: DimensionNumbers,
    out_sharding: Any,
    **params: Any,
) -> tuple[Any, int]:
    """A dim mapped on both sides is a batch dim; mapped on one side it is one more free dim of it."""
    (lc, rc), (lb, rb) = dimension_numbers
    left, right = dims
    lc, lb = _shifted(lc, left), _shifted(lb, left)
    rc, rb = _shifted(rc, right), _shifted(rb, right)
    if left is not None and right is not None:
        lb, rb, position = (left, *lb), (right, *rb), 0
    elif left is not None:
        free = free_dims(aval_of(args[0]).ndim, lc, lb)
        position = len(lb) + free.index(left)
    else:
        assert right is not None, "one operand is mapped"
        free = free_dims(aval_of(args[1]).ndim, rc, rb)
        position = len(lb) + len(free_dims(aval_of(args[0]).ndim, lc, lb)) + free.index(right)
    out = op(
        *args,
        dimension_numbers=((lc, rc), (lb, rb)),
        out_sharding=with_batch_entry(out_sharding, axis, position),
        **params,
    )
    return out, position


def _shifted(dims: Sequence[int], inserted: int | None) -> tuple[int, ...]:
    return tuple(dims) if inserted is None else tuple(d + (d >= inserted) for d in dims)


dot_general = define(
    "dot_general",
    type_rule=_type,
    plan=dot_plan,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    partial_sums=_partial_sums,
    hlo_name="dot",
)
