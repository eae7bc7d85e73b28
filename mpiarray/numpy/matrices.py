"""Matrices by their diagonals and triangles: eye, tri, tril, triu, diag, diagonal, trace, vander, and their indices."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of, literal
from mpiarray.errors import ShardingTypeError
from mpiarray.numpy.creation import array
from mpiarray.numpy.manipulation import canonical_axis, concatenate, moveaxis, one, ravel, reshape
from mpiarray.numpy.placing import made
from mpiarray.numpy.promotion import cast, operands
from mpiarray.ops import arithmetic as ops
from mpiarray.ops import comparison, linear
from mpiarray.ops.bits import and_
from mpiarray.ops.common import const_like
from mpiarray.ops.select import where
from mpiarray.ops.shape import iota
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

__all__ = [
    "diag", "diag_indices", "diag_indices_from", "diagflat", "diagonal", "eye", "fill_diagonal", "identity",
    "mask_indices", "trace", "tri", "tril", "tril_indices", "tril_indices_from", "triu", "triu_indices",
    "triu_indices_from", "vander",
]  # fmt: skip

_I32 = np.dtype(np.int32)


def _size(n: Any, name: str, what: str) -> int:
    if isinstance(n, Value) and n.aval.ndim:
        raise TypeError(f"Shapes must be 1D sequences of concrete values of integer type, got {n} for {what} of {name}")
    try:
        out = operator.index(n)
    except TypeError:
        raise TypeError(
            f"Shapes must be 1D sequences of concrete values of integer type, got ({n!r},) for {what} of {name}"
        ) from None
    if out < 0:
        raise ValueError(f"negative dimensions are not allowed, got {what}={out} in {name}")
    return out


def _compared(op: Any, shape: tuple[int, int], offset: Any, sharding: NamedSharding | None) -> Any:
    """`op(row + offset, column)` for every element of a matrix."""
    rows = iota(dtype=_I32, shape=shape, dimension=0, sharding=sharding)
    columns = iota(dtype=_I32, shape=shape, dimension=1, sharding=sharding)
    shift = cast(offset, _I32) if isinstance(offset, Value) else literal(operator.index(offset), _I32)
    return op(ops.add(rows, shift), columns)


def eye(N: Any, M: Any = None, k: Any = 0, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """A matrix of zeros with ones on the diagonal `k` (above the main one for positive `k`)."""
    own = dtypes.requested(float if dtype is None else dtype, "jnp.eye")
    shape = (_size(N, "jnp.eye", "N"), _size(N if M is None else M, "jnp.eye", "M"))
    return made("eye", shape, lambda s: cast(_compared(comparison.eq, shape, k, s), own), device, out_sharding)


def identity(n: int, dtype: Any = None) -> Any:
    """The square matrix of zeros with ones on the main diagonal."""
    return eye(n, dtype=dtype)


def tri(N: Any, M: Any = None, k: Any = 0, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """A matrix with ones at and below the diagonal `k`."""
    own = dtypes.requested(float if dtype is None else dtype, "jnp.tri")
    shape = (_size(N, "jnp.tri", "N"), _size(N if M is None else M, "jnp.tri", "M"))
    return made("tri", shape, lambda s: cast(_compared(comparison.ge, shape, k, s), own), None, out_sharding)


def _triangle(name: str, m: Any, k: int, op: Any) -> Any:
    x = one(name, m)
    aval = aval_of(x)
    if aval.ndim < 2:
        raise ValueError(f"Argument to jax.numpy.{name} must be at least 2D, got {aval.str_short()}")
    mesh = aval.sharding.mesh
    sharding = None if mesh.empty else NamedSharding(mesh, type(aval.sharding.spec).from_dims(aval.dims[-2:]))
    inside = _compared(op, (aval.shape[-2], aval.shape[-1]), k, sharding)
    if aval.ndim > 2:
        inside = linear.broadcast_in_dim(
            inside, shape=aval.shape, broadcast_dimensions=(aval.ndim - 2, aval.ndim - 1), sharding=_plain(aval)
        )
    return where(inside, x, const_like(x, 0), aval)


def _plain(aval: ShapedArray) -> NamedSharding | None:
    """The sharding of a type for a value that is no sum of parts."""
    return (
        None
        if aval.sharding.mesh.empty
        else NamedSharding(aval.sharding.mesh, type(aval.sharding.spec).from_dims(aval.dims))
    )


def tril(m: Any, k: int = 0) -> Any:
    """`m` with zeros above the diagonal `k` of its last two dims."""
    return _triangle("tril", m, operator.index(k), comparison.ge)


def triu(m: Any, k: int = 0) -> Any:
    """`m` with zeros below the diagonal `k` of its last two dims."""
    return _triangle("triu", m, operator.index(k), comparison.le)


# -- diagonals ---------------------------------------------------------------------------------------------------


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonals of the matrices along two axes, as the last dim.  Both must be unsharded (ShardingTypeError)."""
    x = one("diagonal", a)
    aval = aval_of(x)
    if aval.ndim < 2:
        raise ValueError(f"diagonal requires an array of at least two dimensions, got {aval.str_short()}")
    i, j = canonical_axis(axis1, aval.ndim, "diagonal"), canonical_axis(axis2, aval.ndim, "diagonal")
    if i == j:
        raise ValueError(f"diagonal: axis1 and axis2 must differ, got {axis1} and {axis2}")
    if aval.dims[i] or aval.dims[j]:
        raise ShardingTypeError(
            f"diagonal: axes {axis1} and {axis2} of {aval.str_short()} must be unsharded. Use `jax.reshard` first, or "
            "`.at[...].get(out_sharding=)` with index arrays."
        )
    offset = operator.index(offset)
    x = moveaxis(x, (i, j), (-2, -1))
    *batch, n, m = aval_of(x).shape
    first = max(0, -offset) * m + max(0, offset)
    count = max(0, min(n - max(0, -offset), m - max(0, offset)))
    dims = aval_of(x).dims[:-2]
    mesh = aval.sharding.mesh
    flat_sharding = (
        None
        if mesh.empty
        else NamedSharding(mesh, type(aval.sharding.spec).from_dims((*dims, ()), aval.unreduced, aval.reduced))
    )
    flat = linear.reshape(x, new_sizes=(*batch, n * m), dimensions=None, sharding=flat_sharding)
    stop = first + (count - 1) * (m + 1) + 1 if count else 0
    return slice_(
        flat,
        start_indices=(*(0,) * len(batch), first if count else 0),
        limit_indices=(*batch, stop),
        strides=(*(1,) * len(batch), m + 1),
    )


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
    """The sum of the diagonal.  Both axes must be unsharded (ShardingTypeError)."""
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.trace is not supported.")
    x = diagonal(a, offset, axis1, axis2)
    if dtype is not None:
        x = cast(x, dtypes.requested(dtype, "jnp.trace"))
    elif dtypes.is_bool(x.aval.dtype) or (dtypes.is_int(x.aval.dtype) and dtypes.bit_width(x.aval.dtype) < 32):
        x = cast(x, dtypes.default_dtype(int) if not dtypes.is_unsigned(x.aval.dtype) else np.dtype(np.uint32))
    return linear.reduce_sum(x, axes=(x.aval.ndim - 1,), out_sharding=None)


def diag(v: Any, k: int = 0) -> Any:
    """A vector as the diagonal `k` of a square matrix, its rows sharded as the vector; or a matrix' diagonal."""
    x = one("diag", v)
    aval = aval_of(x)
    k = operator.index(k)
    if aval.ndim == 2:
        return diagonal(x, k)
    if aval.ndim != 1:
        raise ValueError(f"diag input must be 1d or 2d, got {aval.str_short()}")
    n = aval.shape[0] + abs(k)
    rows = pad(x, const_like(x, 0), padding_config=((max(0, -k), max(0, k), 0),)) if k else x
    mesh = aval.sharding.mesh
    sharding = (
        None
        if mesh.empty
        else NamedSharding(mesh, type(aval.sharding.spec).from_dims((aval.dims[0], ()), aval.unreduced, aval.reduced))
    )
    wide = linear.broadcast_in_dim(rows, shape=(n, n), broadcast_dimensions=(0,), sharding=sharding)
    on_it = _compared(comparison.eq, (n, n), k, _plain(aval_of(wide)))
    return where(on_it, wide, const_like(x, 0), aval_of(wide))


def diagflat(v: Any, k: int = 0) -> Any:
    """The elements of `v`, flattened, as the diagonal `k` of a square matrix."""
    return diag(ravel(v), k)


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Any:
    """`a` with `val` on its main diagonal, as a new array: call it with `inplace=False`.

    `val` may be an array, whose elements are used in turn.  The elements must be unsharded for an array `val`.
    """
    if inplace:
        raise NotImplementedError("JAX arrays are immutable, must use inplace=False")
    if wrap:
        raise NotImplementedError("wrap=True is not implemented, must use wrap=False")
    x = one("fill_diagonal", a)
    (value,) = operands("fill_diagonal", val)
    aval = aval_of(x)
    if aval.ndim < 2:
        raise ValueError(f"array must be at least 2-d, got {aval.str_short()}")
    if aval.ndim > 2 and len(set(aval.shape)) > 1:
        raise ValueError(f"All dimensions of input must be of equal length, got {aval.str_short()}")
    sharding = _plain(aval)
    first = iota(dtype=_I32, shape=aval.shape, dimension=0, sharding=sharding)
    mask = comparison.eq(first, iota(dtype=_I32, shape=aval.shape, dimension=1, sharding=sharding))
    for d in range(2, aval.ndim):
        mask = and_(mask, comparison.eq(first, iota(dtype=_I32, shape=aval.shape, dimension=d, sharding=sharding)))
    value = cast(value, aval.dtype, aval.weak_type)
    if aval_of(value).ndim:
        value = _along_rows(value, aval)
    return where(mask, value, x, aval)


def _along_rows(value: Any, aval: ShapedArray) -> Any:
    """Elements in turn, one per row, broadcast to a type."""
    n = aval.shape[0]
    flat = ravel(value)
    have = aval_of(flat).shape[0]
    if have < n:
        flat = linear.broadcast_in_dim(flat, shape=(-(-n // have), have), broadcast_dimensions=(1,), sharding=None)
        flat = reshape(flat, (-(-n // have) * have,))
    flat = slice_(flat, start_indices=(0,), limit_indices=(n,), strides=None)
    return linear.broadcast_in_dim(flat, shape=aval.shape, broadcast_dimensions=(0,), sharding=_plain(aval))


# -- indices -------------------------------------------------------------------------------------------------------


def _host_indices(found: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
    return tuple(array(i.astype(np.int32)) for i in found)


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """Indices of the main diagonal of an array with `ndim` dims of size `n`."""
    if n < 0 or ndim < 0:
        raise ValueError(f"diag_indices: n and ndim must not be negative, got n={n}, ndim={ndim}")
    return (iota(dtype=dtypes.default_dtype(int), shape=(operator.index(n),), dimension=0, sharding=None),) * ndim


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """Indices of the main diagonal of an array, whose dims have one size."""
    aval = aval_of(*operands("diag_indices_from", arr))
    if aval.ndim < 2:
        raise ValueError(f"input array must be at least 2-d, got {aval.str_short()}")
    if len(set(aval.shape)) > 1:
        raise ValueError(f"All dimensions of input must be of equal length, got {aval.str_short()}")
    return diag_indices(aval.shape[0], aval.ndim)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Indices of the elements at and below the diagonal `k` of an n by m matrix."""
    return _host_indices(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Indices of the elements at and above the diagonal `k` of an n by m matrix."""
    return _host_indices(np.triu_indices(n, k, m))


def _matrix_shape(name: str, arr: Any) -> tuple[int, int]:
    aval = aval_of(*operands(name, arr))
    if aval.ndim != 2:
        raise ValueError(f"Only 2-D inputs are accepted by {name}, got {aval.str_short()}")
    n, m = aval.shape
    return n, m


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`tril_indices` for the shape of a matrix."""
    n, m = _matrix_shape("tril_indices_from", arr)
    return tril_indices(n, k, m)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`triu_indices` for the shape of a matrix."""
    n, m = _matrix_shape("triu_indices_from", arr)
    return triu_indices(n, k, m)


def mask_indices(n: int, mask_func: Any, k: int = 0, *, size: int | None = None) -> tuple[Any, Any]:
    """Indices of an n by n matrix at which `mask_func(ones, k)` is not 0."""
    found = np.nonzero(np.asarray(mask_func(np.ones((n, n), np.int32), k)))
    if size is not None:
        found = tuple(np.pad(f[:size], (0, max(0, size - len(f)))) for f in found)
    return _host_indices(found)


# -- products ------------------------------------------------------------------------------------------------------


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The matrix whose columns are powers of `x`, the highest first unless `increasing`."""
    x = one("vander", x)
    aval = aval_of(x)
    if aval.ndim != 1:
        raise ValueError(f"x must be a one-dimensional array, got {aval.str_short()}")
    count = aval.shape[0] if N is None else operator.index(N)
    if count < 0:
        raise ValueError(f"N must be nonnegative, got {count}")
    if dtypes.is_bool(aval.dtype):
        x = cast(x, dtypes.default_dtype(int))
    column = linear.expand_dims(x, (1,))
    if not count:
        return slice_(column, start_indices=(0, 0), limit_indices=(aval.shape[0], 0), strides=None)
    powers = range(count) if increasing else range(count)[::-1]
    return concatenate([ops.integer_pow(column, y=p) for p in powers], axis=1)
