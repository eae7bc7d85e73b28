"""Arrays put together, taken apart and turned: concatenate, stack, split, tile, flip, roll; and all of `shapes`.

Concatenating and splitting along a sharded dim moves data; the sharding of the result is the operands'.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.core.value import Value, aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.numpy.arithmetic import negative, remainder
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import add_leading, cast, operands, promote_dtypes
from mpiarray.numpy.shapes import (
    astype,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    ndim,
    permute_dims,
    ravel,
    reshape,
    rollaxis,
    shape,
    size,
    squeeze,
    swapaxes,
    transpose,
)
from mpiarray.numpy.shapes import canonical_axes as canonical_axes
from mpiarray.numpy.shapes import canonical_axis as canonical_axis
from mpiarray.numpy.shapes import one as one
from mpiarray.numpy.shapes import view as view
from mpiarray.ops import linear
from mpiarray.ops.common import const_like
from mpiarray.ops.shape import concatenate as concatenate_op
from mpiarray.ops.shape import rev
from mpiarray.ops.shape import roll as roll_op
from mpiarray.ops.shape import split as split_op
from mpiarray.ops.slicing import dynamic_slice, slice_
from mpiarray.types import dtypes
from mpiarray.types.sharding import NamedSharding

__all__ = [
    "append", "array_split", "astype", "atleast_1d", "atleast_2d", "atleast_3d", "block", "broadcast_arrays",
    "broadcast_shapes", "broadcast_to", "column_stack", "concat", "concatenate", "dsplit", "dstack", "expand_dims",
    "flip", "fliplr", "flipud", "hsplit", "hstack", "matrix_transpose", "moveaxis", "ndim", "permute_dims", "ravel",
    "reshape", "resize", "roll", "rollaxis", "rot90", "shape", "size", "split", "squeeze", "stack", "swapaxes",
    "tile", "transpose", "unstack", "vsplit", "vstack",
]  # fmt: skip


# -- join -----------------------------------------------------------------------------------------------------


def _many(name: str, arrays: Any, dtype: Any = None) -> list[Any]:
    """Several arrays in one dtype; one array counts as the sequence of its rows."""
    if isinstance(arrays, (Value, np.ndarray)):
        x = one(name, arrays)
        if not aval_of(x).ndim:
            raise TypeError(f"{name}: expected a sequence of arrays, got the scalar {aval_of(x).str_short()}")
        return (
            list(unstack(x)) if dtype is None else [cast(v, dtypes.requested(dtype, f"jnp.{name}")) for v in unstack(x)]
        )
    items = list(arrays)
    if not items:
        raise ValueError(f"Need at least one array to {name}.")
    items = list(operands(name, *items))
    if dtype is not None:
        own = dtypes.requested(dtype, f"jnp.{name}")
        return [cast(v, own) for v in items]
    return promote_dtypes(*items)


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Arrays joined along an axis (None: flattened first).

    All must have one sharding (ShardingTypeError); along a sharded axis data move.  Raises TypeError for other shapes.
    """
    if isinstance(arrays, (Value, np.ndarray)):
        whole = one("concatenate", arrays)
        aval = aval_of(whole)
        if axis is None:
            return ravel(whole)
        if aval.ndim < 2:
            raise ValueError(
                f"Zero-dimensional arrays cannot be concatenated: got one array of type {aval.str_short()}"
            )
        axis = canonical_axis(axis, aval.ndim - 1, "concatenate")
        if aval.dims[0] == ():
            merged = moveaxis(whole, 0, axis)
            sizes = (*aval.shape[1 : axis + 1], aval.shape[0] * aval.shape[axis + 1], *aval.shape[axis + 2 :])
            return reshape(merged, sizes)
    items = _many("concatenate", arrays, dtype)
    if axis is None:
        items, axis = [ravel(v) for v in items], 0
    ndims = {aval_of(v).ndim for v in items}
    if 0 in ndims:
        raise ValueError("Zero-dimensional arrays cannot be concatenated.")
    if len(ndims) > 1:
        shown = ", ".join(str(aval_of(v).shape) for v in items)
        raise TypeError(f"Cannot concatenate arrays with different numbers of dimensions: got {shown}.")
    axis = canonical_axis(axis, ndims.pop(), "concatenate")
    return as_array(items[0]) if len(items) == 1 else concatenate_op(*items, dimension=axis)


def concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    """Arrays joined along an axis."""
    return concatenate(arrays, axis)


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Any:
    """Arrays of one shape joined along a new axis."""
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.stack is not supported.")
    if isinstance(arrays, (Value, np.ndarray)):
        x = one("stack", arrays)
        moved = moveaxis(x, 0, axis)
        return moved if dtype is None else astype(moved, dtype)
    items = _many("stack", arrays, dtype)
    shapes = [aval_of(v).shape for v in items]
    if len(set(shapes)) > 1:
        raise ValueError(f"All input arrays must have the same shape: got {', '.join(map(str, shapes))} in stack.")
    axis = canonical_axis(axis, len(shapes[0]) + 1, "stack")
    return concatenate_op(*(linear.expand_dims(v, (axis,)) for v in items), dimension=axis)


def vstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the first dim; 1-D ones count as rows."""
    return concatenate(_lifted(tup, atleast_2d, "vstack"), 0, dtype)


def hstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the second dim; 1-D ones along their only one."""
    items = _lifted(tup, atleast_1d, "hstack")
    return concatenate(items, 0 if aval_of(items[0]).ndim == 1 else 1, dtype)


def dstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the third dim."""
    return concatenate(_lifted(tup, atleast_3d, "dstack"), 2, dtype)


def column_stack(tup: Any) -> Any:
    """Arrays joined along the second dim; 1-D ones count as columns."""
    items = _lifted(tup, atleast_1d, "column_stack")
    return concatenate([expand_dims(v, 1) if aval_of(v).ndim == 1 else v for v in items], 1)


def _lifted(tup: Any, lift: Any, name: str) -> list[Any]:
    items = unstack(tup) if isinstance(tup, (Value, np.ndarray)) else list(tup)
    if not items:
        raise ValueError(f"Need at least one array to {name}.")
    return [lift(v) for v in items]


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` joined to the end of `arr` along an axis (None: both flattened)."""
    if axis is None:
        return concatenate([ravel(arr), ravel(values)], 0)
    return concatenate([arr, values], axis)


def block(arrays: Any) -> Any:
    """An array put together from nested lists of blocks: the innermost lists along the last dim, and so on outwards."""
    depth = _depth(arrays)
    return _block(arrays, 1, depth)


def _depth(arrays: Any) -> int:
    if isinstance(arrays, tuple):
        raise ValueError("jax.numpy.block does not allow tuples, got " + str(type(arrays)))
    if isinstance(arrays, list):
        if not arrays:
            raise ValueError("jax.numpy.block does not allow empty list arguments")
        depths = {_depth(a) for a in arrays}
        if len(depths) > 1:
            raise ValueError("jnp.block: mismatched list depths")
        return depths.pop() + 1
    return 0


def _block(arrays: Any, level: int, depth: int) -> Any:
    if not isinstance(arrays, list):
        return one("block", arrays)
    parts = [_block(a, level + 1, depth) for a in arrays]
    wanted = max(depth, max(aval_of(p).ndim for p in parts))
    parts = [add_leading(p, wanted - aval_of(p).ndim) if aval_of(p).ndim < wanted else p for p in parts]
    return concatenate(parts, axis=-(depth - level + 1))


# -- split ------------------------------------------------------------------------------------------------------


def _pieces(name: str, ary: Any, indices_or_sections: Any, axis: int) -> list[Any]:
    x = one(name, ary)
    aval = aval_of(x)
    axis = canonical_axis(axis, aval.ndim, name)
    n = aval.shape[axis]
    if isinstance(indices_or_sections, (list, tuple, np.ndarray)) and np.ndim(indices_or_sections):
        at = [operator.index(i) for i in indices_or_sections]
    elif isinstance(indices_or_sections, Value) and indices_or_sections.aval.ndim:
        at = [int(i) for i in np.asarray(indices_or_sections)]
    else:
        sections = operator.index(indices_or_sections)
        if sections < 1:
            raise ValueError(f"{name}: number of sections must be larger than 0, got {sections}")
        if name != "array_split" and n % sections:
            raise ValueError(
                f"array split does not result in an equal division: {name} of {aval.str_short()} along axis "
                f"{axis}, whose size {n} is not divisible "
                f"by {sections}; use `jnp.array_split`"
            )
        more = n % sections
        return _split(x, [n // sections + (k < more) for k in range(sections)], axis)
    bounds = [0, *(min(max(i + n if i < 0 else i, 0), n) for i in at), n]
    if bounds == sorted(bounds):
        return _split(x, [b - a for a, b in pairwise(bounds)], axis)
    return [_cut(x, axis, a, max(a, b)) for a, b in pairwise(bounds)]


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    sizes = aval_of(x).shape
    starts, limits = [0] * len(sizes), list(sizes)
    starts[axis], limits[axis] = start, stop
    return slice_(x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=None)


def _split(x: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    return [x] if len(sizes) == 1 else list(split_op(x, sizes=tuple(sizes), axis=axis))


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Parts of equal size, or parts that begin at the given indices.

    Raises ValueError when the size does not divide, ShardingTypeError when parts of a sharded dim do not.
    """
    return _pieces("split", ary, indices_or_sections, axis)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """As `split`, but sizes may differ by 1."""
    return _pieces("array_split", ary, indices_or_sections, axis)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along the first dim."""
    return _pieces("vsplit", ary, indices_or_sections, 0)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along the second dim; of 1-D arrays along their only one."""
    return _pieces("hsplit", ary, indices_or_sections, 0 if aval_of(*operands("hsplit", ary)).ndim == 1 else 1)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along the third dim."""
    return _pieces("dsplit", ary, indices_or_sections, 2)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The parts along an axis, without it.  The axis must be unsharded (ShardingTypeError)."""
    x = one("unstack", x)
    aval = aval_of(x)
    if not aval.ndim:
        raise ValueError("Unstack requires arrays with rank > 0, however a scalar array was passed.")
    axis = canonical_axis(axis, aval.ndim, "unstack")
    if aval.dims[axis]:
        raise ShardingTypeError(
            f"unstack operand cannot be sharded on the unstacking axis: got axis {axis} of {aval.str_short()}. "
            "Use `jax.reshard` first."
        )
    n = aval.shape[axis]
    return tuple(linear.squeeze(p, dimensions=(axis,)) for p in _split(x, [1] * n, axis)) if n else ()


# -- repeat, flip, roll ---------------------------------------------------------------------------------------


def tile(A: Any, reps: Any) -> Any:
    """`A` repeated as a whole along each dim.  A repeated dim must be unsharded (ShardingTypeError)."""
    x = one("tile", A)
    counts = (
        tuple(operator.index(r) for r in reps) if isinstance(reps, (Sequence, np.ndarray)) else (operator.index(reps),)
    )
    if any(r < 0 for r in counts):
        raise ValueError(f"tile: reps must not be negative, got {reps}")
    aval = aval_of(x)
    ndim = max(aval.ndim, len(counts))
    counts = (1,) * (ndim - len(counts)) + counts
    x = add_leading(x, ndim - aval.ndim) if aval.ndim < ndim else x
    sizes, dims = aval_of(x).shape, aval_of(x).dims
    for d, (r, axes) in enumerate(zip(counts, dims)):
        if r != 1 and axes:
            raise ShardingTypeError(
                f"tile: operand {aval.str_short()} cannot be sharded on dimension {d} when the tiling is "
                f"non-trivial, got reps={reps}. "
                "Use `jax.reshard` first."
            )
    if counts == (1,) * ndim:
        return x
    spread = [m for r, n in zip(counts, sizes) for m in (r, n)]
    wide = linear.broadcast_in_dim(
        x, shape=tuple(spread), broadcast_dimensions=tuple(range(1, 2 * ndim, 2)), sharding=_interleaved(x, 2 * ndim)
    )
    merged = tuple(r * n for r, n in zip(counts, sizes))
    mesh = aval.sharding.mesh
    sharding = None if mesh.empty else NamedSharding(mesh, aval_of(x).sharding.spec)
    return linear.reshape(wide, new_sizes=merged, dimensions=None, sharding=sharding)


def _interleaved(x: Any, ndim: int) -> NamedSharding | None:
    aval = aval_of(x)
    if aval.sharding.mesh.empty:
        return None
    spec = aval.sharding.spec
    dims = [e for axes in spec.dims for e in ((), axes)]
    return NamedSharding(aval.sharding.mesh, type(spec).from_dims(tuple(dims), spec.unreduced, spec.reduced))


def flip(m: Any, axis: int | Sequence[int] | None = None) -> Any:
    """`m` in reverse order along the axes (None: all).  Along sharded dims data move."""
    x = one("flip", m)
    ndim = aval_of(x).ndim
    axes = tuple(range(ndim)) if axis is None else canonical_axes(axis, ndim, "flip")
    return rev(x, dimensions=axes) if axes else x


def fliplr(m: Any) -> Any:
    """`m` in reverse order along the second dim."""
    return flip(m, 1)


def flipud(m: Any) -> Any:
    """`m` in reverse order along the first dim."""
    return flip(m, 0)


def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    """`m` turned `k` times by 90 degrees from the first towards the second of the axes."""
    x = one("rot90", m)
    first, second = (canonical_axis(a, aval_of(x).ndim, "rot90") for a in axes)
    if first == second:
        raise ValueError("Axes must be different in rot90")
    k = k % 4
    if k == 0:
        return x
    if k == 2:
        return flip(x, (first, second))
    if k == 1:
        return flip(swapaxes(x, first, second), first)
    return flip(swapaxes(x, first, second), second)


def roll(a: Any, shift: Any, axis: int | Sequence[int] | None = None) -> Any:
    """`a` shifted along the axes (None: flattened); what leaves at one end enters at the other."""
    x = one("roll", a)
    aval = aval_of(x)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), aval.shape)
    axes = tuple(
        canonical_axis(d, aval.ndim, "roll") for d in (axis if isinstance(axis, (Sequence, np.ndarray)) else (axis,))
    )
    if isinstance(shift, Tracer):
        return _roll_by_traced(x, shift, axes)
    shifts = np.asarray(shift)
    if shifts.ndim > 1 or not np.issubdtype(shifts.dtype, np.integer):
        raise ValueError(f"roll: shift must be an integer or a 1-D sequence of integers, got {shift}")
    try:
        shifts, order = np.broadcast_arrays(shifts.reshape(-1), np.array(axes))
    except ValueError:
        raise ValueError(f"roll: needs one shift per axis, got shift={shift} and axis={axis}") from None
    return roll_op(x, shift=tuple(int(s) for s in shifts), axis=tuple(int(d) for d in order)) if axes else x


def _roll_by_traced(x: Any, shift: Any, axes: Sequence[int]) -> Any:
    """A window of the array joined to itself, which begins where a traced shift says.  The axes must be unsharded."""
    by = ravel(astype(shift, np.int32))
    if aval_of(by).size not in (1, len(axes)):
        raise ValueError(
            f"roll: needs one shift per axis, got shift of type {aval_of(shift).str_short()} and axis={axes}"
        )
    each = unstack(by) if aval_of(by).size > 1 else (squeeze(by),) * len(axes)
    for s, d in zip(each, axes):
        sizes = aval_of(x).shape
        if sizes[d]:
            zero = const_like(s, 0)
            starts = [remainder(negative(s), sizes[d]) if k == d else zero for k in range(len(sizes))]
            x = dynamic_slice(concatenate_op(x, x, dimension=d), *starts, slice_sizes=sizes)
    return x


def resize(a: Any, new_shape: Any) -> Any:
    """The elements of `a`, repeated as often as needed, in a new shape."""
    sizes = (
        tuple(operator.index(n) for n in new_shape)
        if isinstance(new_shape, (Sequence, np.ndarray))
        else (operator.index(new_shape),)
    )
    if any(n < 0 for n in sizes):
        raise ValueError("all elements of `new_shape` must be non-negative")
    flat = ravel(a)
    have, total = aval_of(flat).size, math.prod(sizes)
    if not have or not total:
        return linear.broadcast_in_dim(
            cast(0, aval_of(flat).dtype), shape=sizes, broadcast_dimensions=(), sharding=None
        )
    repeats = -(-total // have)
    flat = tile(flat, repeats) if repeats > 1 else flat
    return reshape(_cut(flat, 0, 0, total), sizes)
