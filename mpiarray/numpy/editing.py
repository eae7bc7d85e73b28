"""Arrays with elements repeated, added or taken out: repeat, insert, delete, trim_zeros.

Which elements is a host value, except for `repeat` with `total_repeat_length`, as it decides the result's shape.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.errors import ConcretizationTypeError, ShardingTypeError
from mpiarray.numpy.creation import array
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import (
    broadcast_to,
    canonical_axes,
    canonical_axis,
    concatenate,
    expand_dims,
    moveaxis,
    one,
    ravel,
)
from mpiarray.numpy.placing import made
from mpiarray.numpy.promotion import cast, operands, replicated_or_raise
from mpiarray.ops import arithmetic, linear
from mpiarray.ops.common import const_like
from mpiarray.ops.cumulative import cumsum
from mpiarray.ops.gather import gather
from mpiarray.ops.searching import searchsorted
from mpiarray.ops.shape import iota
from mpiarray.ops.slicing import slice_
from mpiarray.types.sharding import NamedSharding

__all__ = ["delete", "insert", "repeat", "trim_zeros"]

_I32 = np.dtype(np.int32)


def take_along(x: Any, indices: Any, axis: int, sharding: NamedSharding | None = None) -> Any:
    """The slices of `x` at 1-D integer indices along an axis; all indices must be inside."""
    out = gather(x, indices, dims=(axis,), batch_dims=0, mode="clip", fill_value=None, out_sharding=sharding)
    return moveaxis(out, 0, axis)


def cut(x: Any, axis: int, start: int, stop: int) -> Any:
    """A slice along one dim."""
    sizes = aval_of(x).shape
    starts, limits = [0] * len(sizes), list(sizes)
    starts[axis], limits[axis] = start, stop
    return slice_(x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=None)


# -- repeat -----------------------------------------------------------------------------------------------------


def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out_sharding: Any = None
) -> Any:
    """Each element along an axis (None: flattened) repeated as often as `repeats` says.

    repeats: an int, or one integer per element; traced ones need `total_repeat_length`, at which the result is cut, or
    filled with the last element.  A sharded axis needs `out_sharding` (ValueError).
    """
    x = one("repeat", a)
    if axis is None:
        x, axis = ravel(x), 0
    aval = aval_of(x)
    if not aval.ndim:
        x, aval = expand_dims(x, 0), aval_of(expand_dims(x, 0))
    axis = canonical_axis(axis, aval.ndim, "repeat")
    if aval.dims[axis] and out_sharding is None:
        raise ValueError(
            f"Please pass sharding to `jnp.repeat` via `out_sharding` parameter: axis {axis} of "
            f"{aval.str_short()} is sharded, and how the "
            "repeated elements should be divided is not known"
        )
    n = aval.shape[axis]
    if not isinstance(repeats, Value):
        counts = np.asarray(repeats)
        if counts.dtype.kind not in "iu" and counts.size:
            raise TypeError(f"jnp.repeat: repeats must be integers, got {repeats!r}")
    elif total_repeat_length is None:
        counts = _concrete(repeats)
    else:
        return _placed_take(x, _traced_places(repeats, n, operator.index(total_repeat_length)), axis, out_sharding)
    if counts.ndim > 1 or (counts.ndim == 1 and counts.size not in (1, n)):
        raise ValueError(
            f"jnp.repeat: repeats must be an integer or have one entry per element ({n}), got shape {counts.shape}"
        )
    if counts.size == 1 and total_repeat_length is None:
        return _uniform(x, int(counts.reshape(())[()]), axis, out_sharding)
    places = np.repeat(np.arange(n), counts)
    if total_repeat_length is not None:
        total = operator.index(total_repeat_length)
        places = places[:total]
        places = np.pad(places, (0, total - len(places)), constant_values=places[-1] if len(places) else n - 1)
    return _placed_take(x, array(places.astype(np.int32)), axis, out_sharding)


def _concrete(repeats: Any) -> np.ndarray:
    try:
        return np.asarray(repeats)
    except TypeError as e:
        raise ConcretizationTypeError(
            "Abstract tracer value encountered where concrete value is expected: when jnp.repeat is traced, "
            "repeats must be static, or "
            f"`total_repeat_length` must be given; got {aval_of(repeats).str_short()}"
        ) from e


def _uniform(x: Any, count: int, axis: int, out_sharding: Any) -> Any:
    if count < 0:
        raise ValueError(f"jnp.repeat: repeats must not be negative, got {count}")
    aval = aval_of(x)
    sizes = (*aval.shape[:axis], aval.shape[axis] * count, *aval.shape[axis + 1 :])
    wide = (*aval.shape[: axis + 1], count, *aval.shape[axis + 1 :])
    kept = tuple(d + (d > axis) for d in range(aval.ndim))
    spread = linear.broadcast_in_dim(x, shape=wide, broadcast_dimensions=kept, sharding=None)
    mesh = aval.sharding.mesh

    def make(sharding: NamedSharding | None) -> Any:
        if sharding is None and not mesh.empty:
            sharding = aval.sharding
        return linear.reshape(spread, new_sizes=sizes, dimensions=None, sharding=sharding)

    return made("repeat", sizes, make, None, out_sharding)


def _placed_take(x: Any, places: Any, axis: int, out_sharding: Any) -> Any:
    aval = aval_of(x)
    sizes = (*aval.shape[:axis], aval_of(places).shape[0], *aval.shape[axis + 1 :])

    def make(sharding: NamedSharding | None) -> Any:
        if sharding is None:
            return take_along(x, places, axis)
        dims = list(sharding.spec.dims)
        dims.insert(0, dims.pop(axis))
        first = NamedSharding(sharding.mesh, type(sharding.spec).from_dims(tuple(dims)))
        return take_along(x, places, axis, first)

    return made("repeat", sizes, make, None, out_sharding)


def _traced_places(repeats: Any, n: int, total: int) -> Any:
    """Which element stands at each place: the first whose running count is above it."""
    counts = cast(repeats, _I32)
    if aval_of(counts).ndim > 1 or aval_of(counts).size not in (1, n):
        raise ValueError(
            f"jnp.repeat: repeats must have one entry per element ({n}), got {aval_of(counts).str_short()}"
        )
    counts = broadcast_to(counts, (n,))
    ends = cumsum(counts, axis=0, reverse=False)
    found = searchsorted(
        ends, iota(dtype=_I32, shape=(total,), dimension=0, sharding=None), side="right", dtype=_I32, batch_dims=0
    )
    return arithmetic.min_(found, const_like(found, max(n - 1, 0)))


# -- insert, delete ---------------------------------------------------------------------------------------------


def _host_index(name: str, obj: Any, n: int) -> Any:
    """An index argument as host integers: 0-d for a single place."""
    if isinstance(obj, slice):
        return np.arange(n)[obj]
    if isinstance(obj, Value):
        replicated_or_raise(name, obj.aval, "the index should be replicated")
    found = np.asarray(obj)
    if found.ndim > 1:
        raise ValueError(
            f"jnp.{name}(): obj must be a slice, a one-dimensional array, or a scalar, got shape {found.shape}."
        )
    if not found.size and not isinstance(obj, (Value, np.ndarray)):
        found = found.astype(int)
    return found


def _flat_or_axis(name: str, arr: Any, axis: int | None) -> tuple[Any, int]:
    x = one(name, arr)
    if axis is None:
        x, axis = ravel(x), 0
    axis = canonical_axis(axis, aval_of(x).ndim, name)
    if aval_of(x).dims[axis]:
        raise ShardingTypeError(
            f"{name}: axis {axis} of {aval_of(x).str_short()} must be unsharded, as the result's size is "
            "another one. Use `jax.reshard` first."
        )
    return x, axis


def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Any:
    """`arr` without the slices at `obj` (int, slice, integers, or a mask) along an axis (None: flattened).

    `obj` must be concrete.  The axis must be unsharded (ShardingTypeError).  Raises IndexError for places outside.
    """
    x, axis = _flat_or_axis("delete", arr, axis)
    n = aval_of(x).shape[axis]
    index = _host_index("delete", obj, n)
    if index.dtype.kind == "b":
        if index.shape != (n,):
            raise ValueError(
                f"np.delete(arr, obj): for boolean indices, obj must be one-dimensional with length {n}, got "
                f"shape {index.shape}"
            )
        keep = ~index
    else:
        if index.dtype.kind not in "iu":
            raise ValueError(
                f"np.delete(arr, obj): for non-scalar indices, obj must be integers or a mask, got dtype {index.dtype}"
            )
        keep = np.ones(n, bool)
        outside = index[(index < -n) | (index >= n)] if index.ndim else index
        if np.size(outside) and (index.ndim or not -n <= index < n):
            raise IndexError(f"delete: index {obj} is out of bounds for axis {axis} with size {n}")
        keep[index] = False
    left = np.flatnonzero(keep)
    if left.size and left[-1] - left[0] + 1 == left.size:
        return cut(x, axis, int(left[0]), int(left[-1]) + 1)
    return take_along(x, array(left.astype(np.int32)), axis) if left.size else cut(x, axis, 0, 0)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """`arr` with `values` put in before the places `obj` (int, slice or integers) along an axis (None: flattened).

    `obj` must be concrete.  The axis must be unsharded (ShardingTypeError).
    """
    x, axis = _flat_or_axis("insert", arr, axis)
    (new,) = operands("insert", values)
    aval = aval_of(x)
    n = aval.shape[axis]
    index = _host_index("insert", obj, n)
    if index.dtype.kind not in "iu":
        raise ValueError(f"jnp.insert(): obj must be integer type, got dtype {index.dtype}.")
    if np.any(index < -n) or np.any(index > n):
        raise IndexError(f"insert: index {obj} is out of bounds for axis {axis} with size {n}")
    new = as_array(cast(new, aval.dtype))
    if aval_of(new).ndim < aval.ndim:
        new = expand_dims(new, tuple(range(aval.ndim - aval_of(new).ndim)))
    if not index.ndim:
        new = moveaxis(new, 0, axis)
    count = np.broadcast_shapes(np.reshape(index, -1).shape, (aval_of(new).shape[axis],))[0]
    sizes = (*aval.shape[:axis], count, *aval.shape[axis + 1 :])
    new = broadcast_to(new, sizes) if aval.mesh.empty or not any(aval.dims) else _laid_like(new, sizes, aval)
    before = np.broadcast_to(np.where(index < 0, index + n, index), (count,))
    order = np.argsort(np.concatenate([np.repeat(before, 1) * 2, np.arange(n) * 2 + 1]), kind="stable")
    places = np.where(order < count, order + n, order - count)
    return take_along(concatenate([x, new], axis=axis), array(places.astype(np.int32)), axis)


def _laid_like(new: Any, sizes: tuple[int, ...], aval: Any) -> Any:
    sharding = NamedSharding(aval.sharding.mesh, type(aval.sharding.spec).from_dims(aval.dims))
    return linear.broadcast_in_dim(new, shape=sizes, broadcast_dimensions=tuple(range(aval.ndim)), sharding=sharding)


def trim_zeros(filt: Any, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Any:
    """`filt` without the zeros at its front ("f") and back ("b").  The values must be concrete and replicated."""
    x = one("trim_zeros", filt)
    aval = aval_of(x)
    replicated_or_raise("trim_zeros", aval, "the array should be replicated, as its values decide the result's shape")
    nonzero = np.argwhere(np.asarray(x) != 0)
    axes = range(aval.ndim) if axis is None else canonical_axes(axis, aval.ndim, "trim_zeros")
    trim = trim.lower()
    if set(trim) - set("fb"):
        raise ValueError(f"unexpected character(s) in `trim`: {trim!r}")
    for d in axes:
        n = aval_of(x).shape[d]
        first = 0 if "f" not in trim else int(nonzero[:, d].min()) if len(nonzero) else n
        last = (
            n
            if "b" not in trim
            else int(nonzero[:, d].max()) + 1
            if len(nonzero)
            else (n if "f" not in trim else first)
        )
        x = cut(x, d, first, last) if len(nonzero) else cut(x, d, 0, 0)
    return x
