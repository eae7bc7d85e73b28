"""Arrays in other shapes and dtypes: reshape, transpose, broadcast, astype, view; and what axis arguments mean.

Shardings follow the dims (sharding_rules of reshape); where that is not possible the function says so, and takes
`out_sharding=` where JAX's does.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy.host import as_array
from mpiarray.numpy.placing import made
from mpiarray.numpy.promotion import add_leading, cast, join, operands
from mpiarray.ops import complex_parts, linear
from mpiarray.ops.bits import bitcast_convert_type
from mpiarray.ops.placement import reshard
from mpiarray.ops.shape import concatenate as concatenate_op
from mpiarray.ops.shape import split as split_op
from mpiarray.types import dtypes
from mpiarray.types.sharding import NamedSharding

__all__ = [
    "astype", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_shapes", "broadcast_to",
    "expand_dims", "matrix_transpose", "moveaxis", "ndim", "permute_dims", "ravel", "reshape", "rollaxis", "shape",
    "size", "squeeze", "swapaxes", "transpose",
]  # fmt: skip


def canonical_axis(axis: Any, ndim: int, name: str) -> int:
    """An axis as a number from 0.  Raises ValueError when it is out of bounds, TypeError when it is no integer."""
    try:
        k = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name}: axis must be an integer, got {axis!r} of type {type(axis)}") from None
    if not -ndim <= k < ndim:
        raise ValueError(f"{name}: axis {k} is out of bounds for array of dimension {ndim}")
    return k % ndim


def canonical_axes(axes: Any, ndim: int, name: str) -> tuple[int, ...]:
    """Axes (an int or a sequence) as numbers from 0.  Raises ValueError for repeated ones."""
    if isinstance(axes, (Sequence, np.ndarray)) and not isinstance(axes, str):
        out = tuple(canonical_axis(a, ndim, name) for a in axes)
    else:
        out = (canonical_axis(axes, ndim, name),)
    if len(set(out)) != len(out):
        raise ValueError(f"{name}: repeated axis in {axes}")
    return out


def one(name: str, x: Any) -> Any:
    """An operand as an array."""
    (x,) = operands(name, x)
    return as_array(x)


def shape(a: Any) -> tuple[int, ...]:
    """The sizes of the dims; of nested lists, those that an array of them would have."""
    return np.shape(a) if isinstance(a, (list, tuple)) else aval_of(*operands("shape", a)).shape


def ndim(a: Any) -> int:
    """The number of dims."""
    return len(shape(a))


def size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    """The number of elements, or the size along the given axes."""
    sizes = shape(a)
    return math.prod(sizes if axis is None else (sizes[d] for d in canonical_axes(axis, len(sizes), "size")))


# -- reshape ------------------------------------------------------------------------------------------------


def _new_sizes(have: Sequence[int], wanted: Any) -> tuple[int, ...]:
    """The shape asked for, with -1 replaced."""
    sizes = wanted if isinstance(wanted, (Sequence, np.ndarray)) else (wanted,)
    try:
        out = [operator.index(n) for n in sizes]
    except TypeError:
        raise TypeError(
            f"Shapes must be 1D sequences of concrete values of integer type, got {tuple(sizes)} in reshape"
        ) from None
    total = math.prod(have)
    if out.count(-1) > 1:
        raise ValueError(f"reshape: can only specify one unknown dimension, got {tuple(out)}")
    if -1 in out:
        rest = math.prod(n for n in out if n != -1)
        if rest == 0 or total % rest:
            raise TypeError(
                f"cannot reshape array of shape {tuple(have)} (size {total}) into shape {tuple(out)}: {rest} "
                f"does not divide {total}"
            )
        out[out.index(-1)] = total // rest
    if math.prod(out) != total or min(out, default=0) < 0:
        raise TypeError(
            f"cannot reshape array of shape {tuple(have)} (size {total}) into shape {tuple(out)} (size "
            f"{math.prod(out)})"
        )
    return tuple(out)


def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Any:
    """`a` in another shape of the same size; one size may be -1.

    The sharding follows where one dim splits or dims merge; else ShardingTypeError asks for `out_sharding`.  It may
    communicate.  Raises TypeError for sizes that do not fit.
    """
    if copy is False:
        raise NotImplementedError("jnp.reshape: copy=False is not supported: whether data move depends on the sharding")
    x = one("reshape", a)
    aval = aval_of(x)
    sizes = _new_sizes(aval.shape, shape)
    if order == "F":
        flipped = _reshape(transpose(x), sizes[::-1], _reversed(out_sharding, sizes))
        return transpose(flipped)
    if order != "C":
        raise (
            NotImplementedError(f"jnp.reshape: order must be 'C' or 'F', got {order!r}")
            if order == "A"
            else ValueError(f"jnp.reshape: unexpected value for 'order' argument: {order!r}")
        )
    return _reshape(x, sizes, out_sharding)


def _reversed(given: Any, sizes: tuple[int, ...]) -> Any:
    """A sharding of the dims in reverse order."""
    if given is None:
        return None
    spec = (given.spec if isinstance(given, NamedSharding) else given).padded(len(sizes))
    turned = type(spec).from_dims(spec.dims[::-1], spec.unreduced, spec.reduced)
    return NamedSharding(given.mesh, turned) if isinstance(given, NamedSharding) else turned


def _reshape(x: Any, sizes: tuple[int, ...], out_sharding: Any) -> Any:
    aval = aval_of(x)
    if out_sharding is None and sizes == aval.shape:
        return x
    if out_sharding is None and aval.ndim > len(sizes) and tuple(n for n in aval.shape if n != 1) == sizes:
        return linear.squeeze(x, dimensions=tuple(d for d, n in enumerate(aval.shape) if n == 1))

    def make(sharding: Any) -> Any:
        return linear.reshape(x, new_sizes=sizes, dimensions=None, sharding=sharding)

    return made("reshape", sizes, make, None, out_sharding)


def ravel(a: Any, order: str = "C", *, out_sharding: Any = None) -> Any:
    """`a` as 1-D."""
    if order == "K":
        raise NotImplementedError("Ravel not implemented for order='K'.")
    return reshape(a, (aval_of(*operands("ravel", a)).size,), order, out_sharding=out_sharding)


def expand_dims(a: Any, axis: int | Sequence[int]) -> Any:
    """`a` with dims of size 1 put in at the positions `axis` of the result."""
    x = one("expand_dims", a)
    count = len(axis) if isinstance(axis, (Sequence, np.ndarray)) else 1
    axes = canonical_axes(axis, aval_of(x).ndim + count, "expand_dims")
    return linear.expand_dims(x, axes) if axes else x


def squeeze(a: Any, axis: int | Sequence[int] | None = None) -> Any:
    """`a` without the dims `axis`, or without all dims, of size 1.  Raises ValueError for dims of another size."""
    x = one("squeeze", a)
    aval = aval_of(x)
    if axis is None:
        axes = tuple(d for d, n in enumerate(aval.shape) if n == 1)
    else:
        axes = canonical_axes(axis, aval.ndim, "squeeze")
    return linear.squeeze(x, dimensions=tuple(sorted(axes))) if axes else x


def atleast_1d(*arys: Any) -> Any:
    """Each array with at least 1 dim; a list when there are several."""
    return _each(arys, lambda x: add_leading(x, 1) if not x.aval.ndim else x, "atleast_1d")


def atleast_2d(*arys: Any) -> Any:
    """Each array with at least 2 dims: new ones in front."""
    return _each(arys, lambda x: add_leading(x, 2 - x.aval.ndim) if x.aval.ndim < 2 else x, "atleast_2d")


def atleast_3d(*arys: Any) -> Any:
    """Each array with at least 3 dims: 1-D as (1, n, 1), 2-D as (m, n, 1)."""
    places = {0: (0, 1, 2), 1: (0, 2), 2: (2,)}
    return _each(arys, lambda x: linear.expand_dims(x, places[x.aval.ndim]) if x.aval.ndim < 3 else x, "atleast_3d")


def _each(arys: Sequence[Any], f: Any, name: str) -> Any:
    out = [f(one(name, a)) for a in arys]
    return out[0] if len(out) == 1 else out


# -- transposes -----------------------------------------------------------------------------------------------


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """`a` with its dims in the order `axes` (default: reversed)."""
    x = one("transpose", a)
    ndim = aval_of(x).ndim
    order = tuple(range(ndim))[::-1] if axes is None else tuple(canonical_axis(d, ndim, "transpose") for d in axes)
    if len(order) != ndim or len(set(order)) != ndim:
        raise ValueError(f"transpose: axes {axes} are not a permutation of the {ndim} dims of {aval_of(x).str_short()}")
    return x if order == tuple(range(ndim)) else linear.transpose(x, permutation=order)


def permute_dims(a: Any, /, axes: Sequence[int]) -> Any:
    """`a` with its dims in the order `axes`."""
    return transpose(a, axes)


def matrix_transpose(x: Any, /) -> Any:
    """`x` with its last two dims swapped."""
    ndim = aval_of(*operands("matrix_transpose", x)).ndim
    if ndim < 2:
        raise ValueError(f"x must be at least two-dimensional for matrix_transpose; got ndim={ndim}")
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """`a` with two dims swapped."""
    x = one("swapaxes", a)
    ndim = aval_of(x).ndim
    i, j = canonical_axis(axis1, ndim, "swapaxes"), canonical_axis(axis2, ndim, "swapaxes")
    order = list(range(ndim))
    order[i], order[j] = j, i
    return transpose(x, order)


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """`a` with the dims `source` moved to `destination`; the others keep their order."""
    x = one("moveaxis", a)
    ndim = aval_of(x).ndim
    sources, targets = canonical_axes(source, ndim, "moveaxis"), canonical_axes(destination, ndim, "moveaxis")
    if len(sources) != len(targets):
        raise ValueError(
            f"Inconsistent number of elements: {len(sources)} vs {len(targets)} in moveaxis source and destination"
        )
    order = [d for d in range(ndim) if d not in sources]
    for target, d in sorted(zip(targets, sources)):
        order.insert(target, d)
    return transpose(x, order)


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """`a` with a dim moved in front of the one that is at `start`."""
    x = one("rollaxis", a)
    ndim = aval_of(x).ndim
    axis = canonical_axis(axis, ndim, "rollaxis")
    start = operator.index(start)
    if not -ndim <= start <= ndim:
        raise ValueError(f"rollaxis: start={start} must satisfy {-ndim}<=start<={ndim}")
    start += ndim if start < 0 else 0
    return moveaxis(x, axis, start - 1 if start > axis else start)


# -- broadcast ------------------------------------------------------------------------------------------------


def broadcast_to(array: Any, shape: Any, *, out_sharding: Any = None) -> Any:
    """`array` repeated along dims of size 1 and new leading dims, which `out_sharding` may shard; or ValueError."""
    (x,) = operands("broadcast_to", array)
    aval = aval_of(x)
    sizes = (
        tuple(operator.index(n) for n in shape)
        if isinstance(shape, (Sequence, np.ndarray))
        else (operator.index(shape),)
    )
    if len(sizes) < aval.ndim or any(n not in (1, m) for n, m in zip(aval.shape[::-1], sizes[::-1])):
        raise ValueError(
            f"Incompatible shapes for broadcasting: {aval.shape} and requested shape {sizes} in broadcast_to "
            f"of {aval.str_short()}"
        )
    if sizes == aval.shape and out_sharding is None:
        return as_array(x)
    dims = tuple(range(len(sizes) - aval.ndim, len(sizes)))

    def make(sharding: Any) -> Any:
        return linear.broadcast_in_dim(x, shape=sizes, broadcast_dimensions=dims, sharding=sharding)

    return made("broadcast_to", sizes, make, None, out_sharding)


def broadcast_arrays(*args: Any) -> list[Any]:
    """The arrays in their common shape, and in the sharding that adding them would give."""
    args = operands("broadcast_arrays", *args)
    return [as_array(x) for x in join("broadcast_arrays", *args)] if args else []


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The common shape of shapes.  Raises ValueError when there is none."""
    if not shapes:
        return ()
    sizes = [
        (operator.index(s),) if not isinstance(s, (Sequence, np.ndarray)) else tuple(operator.index(n) for n in s)
        for s in shapes
    ]
    try:
        return np.broadcast_shapes(*sizes)
    except ValueError:
        raise ValueError(f"Incompatible shapes for broadcasting: shapes={sizes}") from None


# -- dtypes ------------------------------------------------------------------------------------------------------


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Any:
    """`x` converted to a dtype (None: float32).  A complex array loses its imaginary part with a warning."""
    (x,) = operands("astype", x)
    own = dtypes.requested(float if dtype is None else dtype, "astype")
    if dtypes.is_complex(aval_of(x).dtype) and not dtypes.is_complex(own) and not dtypes.is_bool(own):
        warnings.warn(
            f"astype: casting {aval_of(x).str_short()} to {dtypes.name(own)} discards the imaginary part. Use `jnp.real`.",
            np.exceptions.ComplexWarning,
            stacklevel=dtypes.depth_of_user(),
        )
    out = cast(x, own)
    out = linear.copy(out) if copy and out is x else as_array(out)
    return (
        out
        if device is None
        else made("astype", aval_of(out).shape, lambda s: out if s is None else reshard(out, dst_sharding=s), device)
    )


def view(x: Any, dtype: Any = None) -> Any:
    """The bits of `x` read as another dtype; the last dim grows or shrinks with the width."""
    x = one("view", x)
    aval = aval_of(x)
    if dtype is None:
        return x
    own = dtypes.requested(dtype, "view")
    if own == aval.dtype:
        return x
    if not aval.ndim and dtypes.storage(own).itemsize != dtypes.storage(aval.dtype).itemsize:
        raise ValueError(
            "view() of a 0d array can only change the dtype if the itemsize is unchanged: got "
            f"{aval.str_short()} and {own}"
        )
    if dtypes.is_complex(aval.dtype):
        parts = [linear.expand_dims(f(x), (aval.ndim,)) for f in (complex_parts.real, complex_parts.imag)]
        pairs = concatenate_op(*parts, dimension=aval.ndim)
        return view(reshape(pairs, (*aval.shape[:-1], -1)) if aval.ndim else pairs, own)
    if dtypes.is_complex(own):
        real = dtypes.real_dtype(own)
        if aval.dtype != real:
            return view(view(x, real), own)
        if aval.shape[-1] % 2:
            raise ValueError(f"view: {aval.str_short()} as {dtypes.name(own)} needs an even last dimension")
        pairs = reshape(x, (*aval.shape[:-1], -1, 2))
        return complex_parts.complex_(
            *(linear.squeeze(p, dimensions=(aval.ndim,)) for p in split_op(pairs, sizes=(1, 1), axis=aval.ndim))
        )
    if dtypes.is_bool(own) or dtypes.is_bool(aval.dtype):
        byte = np.dtype(np.uint8)
        return astype(view(x, byte), own) if dtypes.is_bool(own) else view(astype(x, byte), own)
    old, new = dtypes.bit_width(aval.dtype), dtypes.bit_width(own)
    if old == new:
        return bitcast_convert_type(x, new_dtype=own)
    if old > new:
        out = bitcast_convert_type(x, new_dtype=own)
        return reshape(out, (*aval.shape[:-1], aval.shape[-1] * (old // new)))
    many = new // old
    if aval.shape[-1] % many:
        raise ValueError(
            "When changing to a larger dtype, its size must be a divisor of the total size in bytes of the "
            f"last axis: got {aval.str_short()}"
        )
    return bitcast_convert_type(reshape(x, (*aval.shape[:-1], aval.shape[-1] // many, many)), new_dtype=own)
