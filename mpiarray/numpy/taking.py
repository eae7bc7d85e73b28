"""Reading and writing at index arrays by function: take, take_along_axis, put, place; flat numbers of multi-indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.core.value import aval_of, literal
from mpiarray.errors import ConcretizationTypeError, ShardingTypeError
from mpiarray.numpy.arithmetic import add, floor_divide, multiply, remainder, subtract
from mpiarray.numpy.choices import clip, where_op
from mpiarray.numpy.comparison import greater_equal, less, logical_or, truth
from mpiarray.numpy.creation import canonical_shape
from mpiarray.numpy.index_parts import from_start
from mpiarray.numpy.index_reads import read
from mpiarray.numpy.index_updates import write
from mpiarray.numpy.manipulation import broadcast_to, canonical_axis, moveaxis, one, ravel, reshape
from mpiarray.numpy.promotion import cast, operands
from mpiarray.numpy.reductions import any as any_of
from mpiarray.ops.boxes import explicit_axes
from mpiarray.ops.common import const_like
from mpiarray.ops.comparison import ge, lt
from mpiarray.ops.cumulative import cumsum
from mpiarray.ops.gather import default_fill, scatter
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.sorting import take_along
from mpiarray.types import dtypes

__all__ = [
    "place", "put", "put_along_axis", "ravel_multi_index", "take", "take_along_axis", "unravel_index",
]  # fmt: skip


def take(
    a: Any,
    indices: Any,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Any:
    """The slices of `a` at integer `indices` along `axis` (None: elements of the flattened array).

    mode: what indices out of bounds give: "fill" (default) `fill_value`, itself by default NaN, the smallest signed or
    the largest unsigned integer; "clip" the edge, and negative indices 0; "wrap" counts round.
    Raises ShardingTypeError along a sharded axis: use `.at[...].get(out_sharding=)`.
    """
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.take is not supported.")
    a, indices = operands("take", a, indices)
    x = one("take", a)
    if axis is None:
        x, axis = ravel(x), 0
    dim = canonical_axis(axis, aval_of(x).ndim, "take")
    indices, how = _taken("take", indices, aval_of(x).shape[dim], mode)
    return read(x, (*(slice(None),) * dim, indices), how, fill_value)


def _taken(name: str, indices: Any, n: int, mode: str | None) -> tuple[Any, str]:
    """Indices prepared for numpy's modes, and the mode to read or write with."""
    dtype = aval_of(indices).dtype
    if dtypes.is_bool(dtype):
        indices = cast(indices, dtypes.default_dtype(int))
    elif not dtypes.is_int(dtype):
        raise ValueError(f"indices must have an integer type, got {aval_of(indices).str_short()} in jnp.{name}")
    if mode is None or mode == "fill":
        return indices, "fill"
    if mode == "raise":
        raise NotImplementedError(f"The 'raise' mode to jnp.{name} is not supported.")
    if mode == "wrap":
        return remainder(indices, n), "fill"
    if mode == "clip":
        return clip(indices, 0, n - 1), "clip"
    raise ValueError(f"Invalid mode {mode!r} for np.{name}: it must be 'fill', 'clip' or 'wrap'")


def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: str | None = None, fill_value: Any = None
) -> Any:
    """For each line along `axis`, its elements at the line of `indices`; the other dims broadcast.

    Indices out of bounds give `fill_value` (default as in `take`), or with mode "clip" the edge.
    Raises ShardingTypeError where `axis` is sharded over Explicit axes.
    """
    arr, indices = operands("take_along_axis", arr, indices)
    x, i, dim = _along("take_along_axis", arr, indices, axis)
    if mode not in (None, "fill", "clip", "promise_in_bounds"):
        raise ValueError(f"take_along_axis: mode must be 'fill', 'clip' or 'promise_in_bounds', got {mode!r}")
    aval, n = aval_of(x), aval_of(x).shape[dim]
    if not n:
        raise IndexError(f"take_along_axis: axis {axis} of {aval.str_short()} has size 0")
    inside = clip(i, 0, n - 1)
    out = take_along(x, inside, dimension=dim)
    if mode not in (None, "fill") or (isinstance(indices, np.ndarray) and _all_inside(i, n)):
        return out
    fill = default_fill(aval.dtype) if fill_value is None else fill_value
    outside = logical_or(lt(i, const_like(i, 0)), ge(i, const_like(i, n)))
    return where_op(_like(outside, out), literal(fill, aval.dtype, aval.weak_type), out)


def _like(mask: Any, out: Any) -> Any:
    """A mask in the sharding of a result."""
    aval = aval_of(out)
    if aval.sharding.mesh.empty or aval_of(mask).dims == aval.dims:
        return mask
    return broadcast_in_dim(
        mask, shape=aval.shape, broadcast_dimensions=tuple(range(aval.ndim)), sharding=aval.sharding
    )


def _all_inside(i: Any, n: int) -> bool:
    return isinstance(i, np.ndarray) and bool(((i >= 0) & (i < n)).all())


def _along(name: str, arr: Any, indices: Any, axis: int | None) -> tuple[Any, Any, int]:
    """Operand and indices, of one shape but for the axis; indices count from the start."""
    dtype = aval_of(indices).dtype
    if not dtypes.is_int(dtype):
        raise TypeError(f"{name} indices must be of integer type, got {dtypes.name(dtype)}")
    x = one(name, arr)
    if axis is None:
        if aval_of(indices).ndim != 1:
            raise ValueError(
                f"{name} with axis=None: indices must be 1-dimensional, got {aval_of(indices).str_short()}"
            )
        x, axis = ravel(x), 0
    aval = aval_of(x)
    if aval_of(indices).ndim != aval.ndim:
        raise ValueError(
            f"indices and arr must have the same number of dimensions; {aval_of(indices).ndim} vs. {aval.ndim} in "
            f"{name}"
        )
    dim = canonical_axis(axis, aval.ndim, name)
    sharded = explicit_axes(aval.sharding.mesh, aval.dims[dim])
    if sharded:
        raise ShardingTypeError(
            "Use `.at[...].get(out_sharding=)` to provide output PartitionSpec for the gather indexing as out sharding "
            f"could not be resolved unambiguously: {name} along dim {dim} of {aval.short()}, which is sharded over "
            f"{', '.join(sharded)}."
        )
    i = from_start(indices, aval.shape[dim])
    others = [s[:dim] + s[dim + 1 :] for s in (aval.shape, aval_of(i).shape)]
    try:
        joined = np.broadcast_shapes(*others)
    except ValueError:
        raise ValueError(
            f"{name}: Incompatible shapes for broadcasting: shapes={[aval_of(i).shape, aval.shape]}"
        ) from None
    full = [(*joined[:dim], aval_of(v).shape[dim], *joined[dim:]) for v in (x, i)]
    x, i = (v if aval_of(v).shape == s else broadcast_to(v, s) for v, s in zip((x, i), full))
    return x, i, dim


def put_along_axis(
    arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = True, *, mode: str | None = None
) -> Any:
    """A copy of `arr` with `values` at the places that `take_along_axis` reads.  `inplace` must be False."""
    if inplace:
        raise ValueError(
            "jax.numpy.put_along_axis cannot modify arrays in-place, because JAX arrays are immutable. Pass "
            "inplace=False to instead return an updated array."
        )
    arr, indices, values = operands("put_along_axis", arr, indices, values)
    shape = aval_of(arr).shape
    x, i, dim = _along("put_along_axis", arr, indices, axis)
    aval = aval_of(x)
    if aval.shape != (shape if axis is not None else (aval.size,)):
        raise ValueError(
            f"put_along_axis: indices {aval_of(indices).str_short()} do not broadcast to {aval.str_short()}"
        )
    # lines as batch dims of a scatter
    lines = moveaxis(x, dim, -1)
    places, updates = (
        moveaxis(broadcast_to(v, aval_of(i).shape), dim, -1) for v in (i, cast(values, aval.dtype, aval.weak_type))
    )
    how = "clip" if mode == "clip" else "fill"
    out = scatter(
        lines,
        updates,
        places,
        dims=(aval.ndim - 1,),
        batch_dims=aval.ndim - 1,
        mode=how,
        combine="set",
        out_sharding=None,
    )
    return reshape(moveaxis(out, -1, dim), shape)


def _not_in_place(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(
            f"jax.numpy.{name} cannot modify arrays in-place, because JAX arrays are immutable. Pass inplace=False "
            "to instead return an updated array."
        )


def put(a: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = True) -> Any:
    """A copy of `a` with `v`, repeated as needed, at the positions `ind` of the flattened array.

    Positions out of bounds go to the edge; mode "fill" leaves them out, "wrap" counts round.  `inplace` must be False.
    """
    _not_in_place("put", inplace)
    a, ind, v = operands("put", a, ind, v)
    x, places, values = one("put", a), ravel(ind), ravel(v)
    size = aval_of(places).shape[0]
    if not size or not aval_of(values).shape[0]:
        return x
    values = _repeated(values, size)
    places, how = _taken("put", places, aval_of(x).size, "clip" if mode is None else mode)
    return reshape(write(ravel(x), places, values, "set", how), aval_of(x).shape)


def _repeated(values: Any, size: int) -> Any:
    """The first `size` elements of a 1-D array that is repeated as often as needed."""
    n = aval_of(values).shape[0]
    return read(values, slice(0, size)) if size <= n else read(values, np.arange(size, dtype=np.int32) % n)


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = True) -> Any:
    """A copy of `arr` with the first elements where `mask` holds replaced by those of `vals`, in order, repeatedly.

    `inplace` must be False.
    """
    _not_in_place("place", inplace)
    arr, mask, vals = operands("place", arr, mask, vals)
    x, chosen, values = one("place", arr), ravel(truth(mask)), ravel(vals)
    if aval_of(chosen).size != aval_of(x).size:
        raise ValueError(
            f"place: arr and mask must be the same size, got {aval_of(x).str_short()} and {aval_of(mask).str_short()}"
        )
    n = aval_of(values).shape[0]
    if not n:
        raise ValueError("Cannot place values from an empty array")
    if not aval_of(x).size:
        return x
    index = dtypes.default_dtype(int)
    number = remainder(subtract(cumsum(cast(chosen, index), axis=0, reverse=False), 1), n)
    new = cast(read(values, number), aval_of(x).dtype)
    return reshape(where_op(chosen, new, ravel(x)), aval_of(x).shape)


# -- multi-indices ----------------------------------------------------------------------------------------


def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """The index in each dim of positions in a flattened array of `shape`.

    Negative positions count from the end; those out of bounds are clipped.
    """
    (i,) = operands("unravel_index", indices)
    sizes = canonical_shape(shape, "unravel_index")
    if not sizes:
        return ()
    total = int(np.prod(sizes))
    i = where_op(less(i, 0), add(i, total), i)
    i = clip(i, 0, max(total - 1, 0))
    out = []
    for n in reversed(sizes):
        out.append(remainder(i, n))
        i = floor_divide(i, n)
    return tuple(reversed(out))


def ravel_multi_index(multi_index: Sequence[Any], dims: Sequence[int], mode: str = "raise", order: str = "C") -> Any:
    """The positions in a flattened array of shape `dims` of indices in each dim.

    mode: what indices out of bounds do: "raise" (concrete indices only), "wrap", "clip"; "ignore" takes them as they
    are.
    order: "C" or "F".
    """
    if len(multi_index) != len(dims):
        raise ValueError(f"ravel_multi_index: {len(multi_index)=} != {len(dims)=}")
    sizes = canonical_shape(tuple(dims), "ravel_multi_index")
    items = operands("ravel_multi_index", *multi_index)
    for i in items:
        if not dtypes.is_int(aval_of(i).dtype):
            raise ValueError(f"ravel_multi_index: dtype={aval_of(i).dtype!r} is not an integer type.")
    if mode not in ("raise", "wrap", "clip", "ignore"):
        raise ValueError(f"invalid {mode=}. Expected 'raise', 'wrap', 'clip', or 'ignore'.")
    if order not in ("C", "F"):
        raise ValueError(f"invalid {order=}. Expected 'C' or 'F'")
    if mode == "raise":
        if any(isinstance(i, Tracer) for i in items):
            raise ConcretizationTypeError(
                "Abstract tracer value encountered where concrete value is expected: ravel_multi_index was traced with "
                "mode='raise'. Use mode='wrap' or mode='clip' instead."
            )
        if any(bool(any_of(logical_or(less(i, 0), greater_equal(i, n)))) for i, n in zip(items, sizes)):
            raise ValueError(f"invalid entry in coordinates array, for dims {sizes}")
    elif mode == "clip":
        items = tuple(clip(i, 0, n - 1) for i, n in zip(items, sizes))
    elif mode == "wrap":
        items = tuple(remainder(i, n) for i, n in zip(items, sizes))
    pairs = list(zip(items, sizes))
    out: Any = 0
    for i, n in pairs if order == "C" else reversed(pairs):
        out = add(multiply(out, n), i)
    return one("ravel_multi_index", out)
