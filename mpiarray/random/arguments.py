"""What the functions of this package do with their arguments: keys, shapes, dtypes, shardings, parameters.

All errors are raised here or in the ops' type rules, from types alone, on every rank alike.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import Literal, Value, aval_of
from mpiarray.numpy.promotion import cast, out_sharding
from mpiarray.ops import random as ops
from mpiarray.ops.linear import broadcast_in_dim, squeeze
from mpiarray.ops.placement import reshard
from mpiarray.ops.slicing import slice_
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

IMPL = "threefry2x32"
_OTHERS = ("philox2x32", "philox4x32", "rbg", "unsafe_rbg", "threefry4x32")


# -- keys ------------------------------------------------------------------------------------------


def check_impl(impl: Any, dtype: Any = None) -> None:
    """Raise unless `impl` (or a key dtype) names the one implementation there is."""
    if dtype is not None:
        if impl is not None:
            raise ValueError(f"key: give impl= or dtype=, not both; got impl={impl!r} and dtype={dtype!r}")
        impl = dtype
    if impl is None or impl is dtypes.key_dtype or impl in (IMPL, "fry"):
        return
    if impl in _OTHERS:
        raise ValueError(f"PRNG implementation {impl!r} is not available here; there is {IMPL!r}")
    raise ValueError(f"unrecognized PRNG implementation {impl!r}. Did you mean {IMPL!r}?")


def key_array(name: str, key: Any) -> tuple[Any, bool]:
    """`key` as an array of typed keys, and whether it was a raw one (uint32[..., 2]).

    Raises TypeError for everything that is neither.
    """
    if isinstance(key, Value) and dtypes.is_key(key.aval.dtype):
        return key, False
    if isinstance(key, (Value, np.ndarray)):
        aval = aval_of(key)
        if aval.dtype == np.uint32 and aval.ndim and aval.shape[-1] == 2:
            return ops.random_wrap(key, impl="fry"), True
        wrong = (
            f"expected key_data.shape to end with (2,); got shape={aval.shape} for impl={IMPL}"
            if aval.dtype == np.uint32
            else f"expected key_data.dtype = uint32; got dtype={aval.dtype}"
        )
        raise TypeError(
            f"{name}: invalid PRNG key data: {wrong} ({aval.str_short()}). Make a key with `jax.random.key`."
        )
    raise TypeError(
        f"{name}: unexpected PRNG key type {type(key)}: expected a key or an array of key data, got {key!r}. "
        "Make a key with `jax.random.key`."
    )


def single_key(name: str, key: Any) -> tuple[Any, bool]:
    """`key_array` for functions that take one key.  Raises ValueError for arrays of keys."""
    typed, raw = key_array(name, key)
    if typed.aval.ndim:
        raise ValueError(
            f"{name} accepts a single key, but was given a key array of shape {aval_of(key).shape} != (). "
            "Use jax.vmap for batching."
        )
    return typed, raw


def one_key(name: str, key: Any) -> Any:
    return single_key(name, key)[0]


# -- shapes and dtypes -------------------------------------------------------------------------------


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """A user's shape: an int or a sequence of non-negative ints."""
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        out = tuple(operator.index(n) for n in sizes)
    except TypeError:
        raise TypeError(
            f"{name}: Shapes must be 1D sequences of concrete values of integer type, got {shape}. "
            "Inside jit, pass the shape as a static argument."
        ) from None
    if any(n < 0 for n in out):
        raise ValueError(f"{name}: sizes of a shape cannot be negative, got shape {out}")
    return out


def float_dtype(name: str, dtype: Any) -> Any:
    """The floating dtype that the user asked for; the default one for None."""
    found = dtypes.requested(float if dtype is None else dtype, name)
    if not dtypes.is_float(found):
        raise ValueError(f"dtype argument to `{name}` must be a float dtype, got {found}")
    return found


def int_dtype(name: str, dtype: Any) -> Any:
    found = dtypes.requested(int if dtype is None else dtype, name)
    if not dtypes.is_int(found):
        raise ValueError(f"dtype argument to `{name}` must be an int dtype, got {found}")
    return found


# -- parameters --------------------------------------------------------------------------------------


def common_shape(name: str, shape: Any, *params: Any) -> tuple[int, ...]:
    """The draw's shape: the given one, to which all parameters must broadcast; their common one for None."""
    shapes = [aval_of(p).shape for p in params]
    if shape is not None:
        shape = shape_of(name, shape)
        shapes = [shape, *shapes]
    try:
        found = np.broadcast_shapes(*shapes)
    except ValueError:
        found = None
    if found is None or (shape is not None and found != shape):
        raise ValueError(f"{name}: Incompatible shapes for broadcasting: shapes={shapes}")
    return tuple(found)


def draw_sharding(name: str, shape: Sequence[int], given: Any, *params: Any) -> NamedSharding | None:
    """Where a draw goes: the user's `out_sharding`, or where its parameters are."""
    found = out_sharding(given, shape, name)
    if found is not None:
        return found
    dims: list[tuple[str, ...]] = [()] * len(shape)
    mesh = None
    for p in params:
        aval = aval_of(p)
        if aval.sharding.mesh.empty:
            continue
        mesh = aval.sharding.mesh
        for d, (n, axes) in enumerate(zip(aval.shape[::-1], aval.sharding.spec.dims[::-1])):
            at = len(shape) - 1 - d
            if axes and n == shape[at] and not dims[at]:
                dims[at] = axes
    flat = [a for axes in dims for a in axes]
    if mesh is None or not flat or len(set(flat)) < len(flat):
        return None
    return NamedSharding(mesh, P.from_dims(tuple(dims)))


def parameter(x: Any, shape: Sequence[int], dtype: Any, sharding: NamedSharding | None) -> Any:
    """`x` as `dtype`, a scalar or of the draw's rank, fit to broadcast to a draw of `shape` placed by `sharding`."""
    x = cast(x, dtype)
    aval = aval_of(x)
    if not aval.ndim:
        return x
    lead = len(shape) - aval.ndim
    if lead:
        kept = tuple(range(lead, len(shape)))
        x = broadcast_in_dim(x, shape=(1,) * lead + aval.shape, broadcast_dimensions=kept, sharding=None)
    if sharding is None or not any(aval.sharding.spec.dims):
        return x
    dims = tuple(() if n == 1 else axes for n, axes in zip(aval_of(x).shape, sharding.spec.dims))
    return x if aval_of(x).sharding.spec.dims == dims else reshard(x, dst_sharding=_placed(sharding, dims))


def full_parameter(x: Any, shape: Sequence[int], dtype: Any, sharding: NamedSharding | None) -> Any:
    """`parameter` broadcast to the whole shape, for samplers that need one for every element."""
    x = parameter(x, shape, dtype, sharding)
    aval = aval_of(x)
    if aval.shape == tuple(shape) and not isinstance(x, Literal):
        if sharding is None or aval.sharding.spec.dims == sharding.spec.dims:
            return x
        return reshard(x, dst_sharding=sharding)
    kept = tuple(range(len(shape))) if aval.ndim else ()
    return broadcast_in_dim(x, shape=tuple(shape), broadcast_dimensions=kept, sharding=sharding)


def _placed(like: NamedSharding, dims: Any) -> NamedSharding:
    return NamedSharding(like.mesh, P.from_dims(tuple(dims)))


def with_dims(sharding: NamedSharding | None, ndim: int, at: int) -> NamedSharding | None:
    """`sharding` with `ndim` unsharded dims put in at a position: for draws that have more dims than the result."""
    if sharding is None:
        return None
    dims = list(sharding.spec.dims)
    dims[at:at] = [()] * ndim
    return _placed(sharding, dims)


def without_last(sharding: NamedSharding | None) -> NamedSharding | None:
    """`sharding` for an array that lacks the last dim."""
    return None if sharding is None else _placed(sharding, sharding.spec.dims[:-1])


def moved_to(x: Any, given: Any, name: str) -> Any:
    """A result, brought to the user's `out_sharding`."""
    aval: ShapedArray = aval_of(x)
    sharding = out_sharding(given, aval.shape, name)
    if sharding is None or (aval.sharding.spec == sharding.spec and not aval.sharding.mesh.empty):
        return x
    return reshard(x, dst_sharding=sharding)


def item(x: Any, index: int) -> Any:
    """`x[index]` along the first dim, for an index known while tracing."""
    shape = aval_of(x).shape
    starts, limits = (index, *(0,) * (len(shape) - 1)), (index + 1, *shape[1:])
    return squeeze(slice_(x, start_indices=starts, limit_indices=limits, strides=None), dimensions=(0,))


def expanded(x: Any, at: int) -> Any:
    """`x` with a dim of size 1 put in at a position."""
    shape = list(aval_of(x).shape)
    kept = tuple(d + (d >= at) for d in range(len(shape)))
    shape.insert(at, 1)
    return broadcast_in_dim(x, shape=tuple(shape), broadcast_dimensions=kept, sharding=None)
