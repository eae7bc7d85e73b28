"""lax's functions of shape, slices and creation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of, literal
from mpiarray.lax.elementwise import add, lt, operands, select
from mpiarray.numpy import creation
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.promotion import out_sharding as checked_sharding
from mpiarray.ops import linear, slicing
from mpiarray.ops import shape as shapes
from mpiarray.ops.placement import reshard
from mpiarray.types import dtypes

__all__ = [
    "broadcast", "broadcast_in_dim", "broadcasted_iota", "concatenate", "dynamic_index_in_dim", "dynamic_slice",
    "dynamic_slice_in_dim", "dynamic_update_index_in_dim", "dynamic_update_slice", "dynamic_update_slice_in_dim",
    "expand_dims", "full", "full_like", "index_in_dim", "iota", "pad", "reshape", "rev", "slice", "slice_in_dim",
    "split", "squeeze", "transpose",
]  # fmt: skip


def _dim(axis: int, ndim: int, name: str) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"lax.{name}: axis {axis} is out of bounds for an array of {ndim} dimensions")
    return axis % ndim


def broadcast_in_dim(
    operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out_sharding: Any = None
) -> Any:
    """The operand with dim `i` as result dim `broadcast_dimensions[i]`; other dims repeat it."""
    (x,) = operands("broadcast_in_dim", operand)
    placed = checked_sharding(out_sharding, tuple(shape), "broadcast_in_dim")
    return linear.broadcast_in_dim(
        x, shape=tuple(shape), broadcast_dimensions=tuple(broadcast_dimensions), sharding=placed
    )


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """The operand repeated along new leading dims."""
    shape = (*sizes, *aval_of(operand).shape)
    return broadcast_in_dim(operand, shape, range(len(sizes), len(shape)), out_sharding=out_sharding)


def reshape(operand: Any, new_sizes: Sequence[int], dimensions: Any = None, *, out_sharding: Any = None) -> Any:
    """The operand's elements, in row-major order, in another shape."""
    sizes = tuple(new_sizes)
    if dimensions is not None and tuple(dimensions) != tuple(range(aval_of(operand).ndim)):
        operand = transpose(operand, dimensions)
    return linear.reshape(
        operand, new_sizes=sizes, dimensions=None, sharding=checked_sharding(out_sharding, sizes, "reshape")
    )


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """Dims in another order."""
    return linear.transpose(operand, permutation=tuple(permutation))


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """Without the given dims, which have size 1."""
    ndim = aval_of(array).ndim
    return linear.squeeze(array, dimensions=tuple(sorted(_dim(d, ndim, "squeeze") for d in dimensions)))


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """With dims of size 1 inserted at the given positions of the result."""
    ndim = aval_of(array).ndim + len(dimensions)
    return linear.expand_dims(array, tuple(_dim(d, ndim, "expand_dims") for d in dimensions))


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """Elements in reverse order along dims; along a sharded dim blocks are exchanged."""
    return shapes.rev(operand, dimensions=tuple(dimensions))


def concatenate(operands_: Sequence[Any], dimension: int) -> Any:
    """Arrays side by side along a dim; all of one sharding."""
    if not operands_:
        raise ValueError("lax.concatenate: needs at least one operand")
    return shapes.concatenate(*operands_, dimension=_dim(dimension, aval_of(operands_[0]).ndim, "concatenate"))


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """The operand with `padding_value` before, after and between its elements: (low, high, interior) per dim."""
    value = cast(padding_value, aval_of(operand).dtype) if dtypes.is_python_scalar(padding_value) else padding_value
    return slicing.pad(operand, value, padding_config=tuple(tuple(int(n) for n in p) for p in padding_config))


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Consecutive pieces of the given sizes along a dim."""
    return list(shapes.split(operand, sizes=tuple(sizes), axis=_dim(axis, aval_of(operand).ndim, "split")))


def slice(operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any = None) -> Any:
    """A static box of the operand."""
    return slicing.slice_(
        operand, start_indices=tuple(start_indices), limit_indices=tuple(limit_indices), strides=None if strides is None else tuple(strides)
    )  # fmt: skip


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0) -> Any:
    """A static slice along one dim; None means the end; negative indices count from it."""
    shape = aval_of(operand).shape
    axis = _dim(axis, len(shape), "slice_in_dim")
    n = shape[axis]
    start = 0 if start_index is None else start_index + n if start_index < 0 else start_index
    limit = n if limit_index is None else limit_index + n if limit_index < 0 else limit_index
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return slice(operand, starts, limits, strides)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The slice of size 1 at a static index along a dim."""
    n = aval_of(operand).shape[axis]
    at = index + n if index < 0 else index
    found = slice_in_dim(operand, at, at + 1, 1, axis)
    return found if keepdims else squeeze(found, (axis,))


def _starts(starts: Any, ndim: int) -> list[Any]:
    if isinstance(starts, (Value, np.ndarray)):
        starts = [squeeze(slice_in_dim(starts, k, k + 1), (0,)) for k in range(ndim)]
    return [literal(s, np.dtype("int32")) if dtypes.is_python_scalar(s) else s for s in starts]


def _wrapped(starts: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    """Negative starts count from the end, as `dynamic_slice` of JAX does."""
    out = []
    for s, n in zip(starts, shape):
        if not isinstance(s, Value):
            out.append(s + n if s < 0 else s)
        elif hasattr(s, "val"):
            out.append(literal(s.val + n if s.val < 0 else s.val, s.aval.dtype))
        else:
            out.append(_wrap(s, n))
    return out


def _wrap(s: Any, n: int) -> Any:
    dtype = aval_of(s).dtype
    if dtypes.is_unsigned(dtype):
        return s
    return select(lt(s, literal(0, dtype)), add(s, literal(n, dtype)), s)


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int]) -> Any:
    """A box of static sizes at start indices that may be traced; starts are clamped so that the box fits."""
    aval = aval_of(operand)
    starts = _wrapped(_starts(start_indices, aval.ndim), aval.shape)
    return slicing.dynamic_slice(operand, *starts, slice_sizes=tuple(slice_sizes))


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Any:
    """`dynamic_slice` along one dim."""
    aval = aval_of(operand)
    axis = _dim(axis, aval.ndim, "dynamic_slice_in_dim")
    starts, sizes = [0] * aval.ndim, list(aval.shape)
    starts[axis], sizes[axis] = start_index, slice_size
    return dynamic_slice(operand, starts, sizes)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """`dynamic_slice` of size 1 along one dim."""
    found = dynamic_slice_in_dim(operand, index, 1, axis)
    return found if keepdims else squeeze(found, (axis,))


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Any:
    """The operand with a box replaced; starts are clamped so that the box fits."""
    aval = aval_of(operand)
    starts = _wrapped(_starts(start_indices, aval.ndim), aval.shape)
    return slicing.dynamic_update_slice(operand, update, *starts)


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Any:
    """`dynamic_update_slice` along one dim."""
    ndim = aval_of(operand).ndim
    starts: list[Any] = [0] * ndim
    starts[_dim(axis, ndim, "dynamic_update_slice_in_dim")] = start_index
    return dynamic_update_slice(operand, update, starts)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Any:
    """One slice of size 1 replaced; `update` may lack the dim."""
    aval = aval_of(operand)
    axis = _dim(axis, aval.ndim, "dynamic_update_index_in_dim")
    if dtypes.is_python_scalar(update):
        update = literal(update, aval.dtype)
    if aval_of(update).ndim != aval.ndim:
        update = expand_dims(update, (axis,))
    return dynamic_update_slice_in_dim(operand, update, index, axis)


def iota(dtype: Any, size: int) -> Any:
    """0, 1, ..., size - 1."""
    return broadcasted_iota(dtype, (size,), 0)


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, *, out_sharding: Any = None) -> Any:
    """The index along one dim, as an array of the whole shape; each rank makes its own block."""
    placed = checked_sharding(out_sharding, tuple(shape), "broadcasted_iota")
    return shapes.iota(dtype=dtypes.canonicalize(dtype), shape=tuple(shape), dimension=dimension, sharding=placed)


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
    """An array of one value; `sharding` is a NamedSharding."""
    return creation.full(shape, fill_value, dtype, device=sharding)


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None, sharding: Any = None) -> Any:
    """One value in the shape, dtype and sharding of another array."""
    out = creation.full_like(x, fill_value, dtype, shape)
    return out if sharding is None else reshard(out, dst_sharding=sharding)
