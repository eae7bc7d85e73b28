"""Where elements are not zero, and which those are.

How many there are decides shapes, so the values are read on the host (a collective read, of replicated arrays only);
with `size=` shapes are static, and the functions can be traced.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.core.value import aval_of, literal
from mpiarray.errors import ConcretizationTypeError
from mpiarray.numpy.arithmetic import floor_divide, remainder, subtract
from mpiarray.numpy.choices import where_op
from mpiarray.numpy.comparison import greater_equal, truth
from mpiarray.numpy.creation import asarray
from mpiarray.numpy.host import from_host
from mpiarray.numpy.index_reads import read
from mpiarray.numpy.index_updates import write
from mpiarray.numpy.manipulation import canonical_axis, expand_dims, moveaxis, one, ravel, reshape, stack
from mpiarray.numpy.promotion import cast, operands, replicated_or_raise
from mpiarray.numpy.ranges import arange
from mpiarray.numpy.reductions import sum
from mpiarray.ops import cumulative
from mpiarray.ops.linear import full_of
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

__all__ = ["argwhere", "compress", "extract", "flatnonzero", "nonzero"]


def host_value(name: str, x: Any, hint: str) -> np.ndarray:
    """The values of a replicated array on the host.  Raises for tracers and for arrays that Explicit axes shard."""
    aval = aval_of(x)
    replicated_or_raise(name, aval, f"Input should be fully replicated when axis is not specified to cumsum or {name}")
    if isinstance(x, Tracer):
        raise ConcretizationTypeError(
            "Abstract tracer value encountered where concrete value is expected: traced array with shape "
            f"{aval.str_short()}. {hint}"
        )
    return np.asarray(x)


def _hint(name: str) -> str:
    return f"The size argument of jnp.{name} must be statically specified to use jnp.{name} within JAX transformations."


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """The indices of elements that are not zero, one int32 array per dim.

    size: how many to return; more are left out, missing ones are `fill_value` (default 0), a number or one per dim.
    Raises ConcretizationTypeError for tracers without `size`, ShardingTypeError for sharded arrays, ValueError for
    scalars.
    """
    (x,) = operands("nonzero", a)
    aval = aval_of(x)
    if not aval.ndim:
        raise ValueError("Calling nonzero on 0d arrays is not allowed. Use jnp.atleast_1d(scalar).nonzero() instead.")
    return places("nonzero", x, size, fill_value)


def places(name: str, x: Any, size: int | None, fill_value: Any) -> tuple[Any, ...]:
    """`nonzero` by its name for users."""
    aval, index = aval_of(x), dtypes.default_dtype(int)
    if size is None or not isinstance(x, Tracer):
        found = np.nonzero(host_value(name, truth(x), _hint(name)))
        if size is not None:
            found = tuple(_padded(i, size, f) for i, f in zip(found, _fills(name, fill_value, aval.ndim)))
        return tuple(from_host(i.astype(index), index) for i in found)
    replicated_or_raise(name, aval, f"Input should be fully replicated when axis is not specified to cumsum or {name}")
    mask = ravel(truth(x))
    flat = compacted(arange(aval.size, dtype=index), mask, size, literal(np.int64(0), index))
    missing = greater_equal(arange(size, dtype=index), sum(mask, dtype=index))
    out = []
    for d, fill in enumerate(_fills(name, fill_value, aval.ndim)):
        step = math.prod(aval.shape[d + 1 :])
        along = remainder(floor_divide(flat, max(step, 1)), max(aval.shape[d], 1))
        out.append(where_op(missing, cast(fill, index), along))
    return tuple(out)


def _fills(name: str, fill_value: Any, ndim: int) -> tuple[Any, ...]:
    if not isinstance(fill_value, tuple):
        return (0 if fill_value is None else fill_value,) * ndim
    if len(fill_value) != ndim:
        raise ValueError(f"{name}: fill_value must have one entry per dim, {ndim}, got {fill_value}")
    return fill_value


def _padded(x: np.ndarray, size: int, fill: Any) -> np.ndarray:
    """The first `size` rows of a host array, or as many rows with rows of `fill` behind."""
    if len(x) >= size:
        return x[:size]
    out = np.empty((size, *x.shape[1:]), x.dtype)
    out[: len(x)] = x
    out[len(x) :] = np.asarray(fill)
    return out


def compacted(values: Any, mask: Any, size: int, fill: Any) -> Any:
    """The first `size` rows of `values` at which the 1-D mask holds, and `fill` behind them; traceable."""
    aval = aval_of(values)
    index = dtypes.default_dtype(int)
    place = subtract(cumulative.cumsum(cast(mask, index), axis=0, reverse=False), 1)
    place = where_op(mask, place, literal(np.int64(size), index))
    return write(filled_rows(aval, size, fill), place, values, "set")


def filled_rows(like: ShapedArray, size: int, fill: Any) -> Any:
    """`size` rows like those of a type, of one value."""
    out = full_of(ShapedArray((size, *like.shape[1:]), like.dtype), 0)
    return where_op(True, cast(fill, like.dtype), asarray(out))


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of elements that are not zero in the flattened array."""
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The indices of elements that are not zero, one row per element."""
    x = one("argwhere", a)
    if not aval_of(x).ndim:
        found = nonzero(expand_dims(x, 0), size=size, fill_value=fill_value)[0]
        return reshape(read(found, slice(0, 0)), (aval_of(found).shape[0], 0))
    return stack(nonzero(x, size=size, fill_value=fill_value), axis=1)


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements of `arr` where the condition holds, 1-D.  With `size`, missing ones are `fill_value`."""
    condition, arr = operands("extract", condition, arr)
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)


def compress(
    condition: Any, a: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0, out: None = None
) -> Any:
    """The slices along `axis` (None: the elements) where the 1-D condition holds.

    A condition that is too short selects nothing behind its end; one that is too long must not hold there.
    """
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.compress is not supported.")
    condition, x = operands("compress", condition, a)
    if aval_of(condition).ndim != 1:
        raise ValueError(f"condition must be a 1D array, got {aval_of(condition).str_short()} in jnp.compress")
    condition, x = one("compress", truth(condition)), one("compress", x)
    if axis is None:
        x, axis = ravel(x), 0
    dim = canonical_axis(axis, aval_of(x).ndim, "compress")
    x = moveaxis(x, dim, 0)
    n, m = aval_of(condition).shape[0], aval_of(x).shape[0]
    if n > m:
        if not isinstance(condition, Tracer) and np.asarray(condition)[m:].any():
            raise ValueError(
                f"condition contains entries that are out of bounds: got {aval_of(condition).str_short()} for a dim "
                f"of size {m}"
            )
        condition = read(condition, slice(0, m))
    elif n < m:
        x = read(x, slice(0, n))
    if size is None:
        (rows,) = places("compress", condition, None, None)
        return moveaxis(read(x, rows), 0, dim)
    return moveaxis(compacted(x, condition, size, fill_value), 0, dim)
