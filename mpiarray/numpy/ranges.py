"""Evenly spaced numbers and grids: arange, linspace, logspace, geomspace, meshgrid, indices, mgrid, ogrid, r_, c_, ix_.

Bounds and counts are host values, as they decide shapes; numbers are made block by block from their index.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.core.value import Value, aval_of, literal
from mpiarray.errors import ConcretizationTypeError
from mpiarray.numpy.arithmetic import add, divide, multiply, power, subtract
from mpiarray.numpy.arithmetic import sign as arithmetic_sign
from mpiarray.numpy.creation import array, asarray, canonical_shape
from mpiarray.numpy.elementary import log10
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import broadcast_to, concatenate, expand_dims, moveaxis, reshape, squeeze, transpose
from mpiarray.numpy.placing import made
from mpiarray.numpy.promotion import cast, operands
from mpiarray.ops import arithmetic as ops
from mpiarray.ops.common import const_like
from mpiarray.ops.shape import iota
from mpiarray.ops.slicing import slice_
from mpiarray.types import dtypes
from mpiarray.types.sharding import NamedSharding

__all__ = [
    "arange", "c_", "fromfunction", "geomspace", "index_exp", "indices", "ix_", "linspace", "logspace", "meshgrid",
    "mgrid", "ogrid", "r_", "s_",
]  # fmt: skip


def _bound(x: Any, name: str) -> Any:
    """A bound of arange as a host number."""
    if isinstance(x, Tracer):
        raise ConcretizationTypeError(
            "Abstract tracer value encountered where concrete value is expected: traced array with shape "
            f"{x.aval.short()}. It arose in the "
            f"jnp.arange argument '{name}', on which the result's shape depends. Mark it static with `static_argnums`."
        )
    if isinstance(x, Value):
        x = np.asarray(x)
    if (
        isinstance(x, (str, bytes))
        or np.ndim(x)
        or not isinstance(x, (bool, int, float, complex, np.generic, np.ndarray))
    ):
        raise TypeError(f"jnp.arange: argument '{name}' must be a real number, not {type(x).__name__}: got {x!r}")
    if np.iscomplexobj(x):
        raise ValueError(f"Passing complex start/stop/step to jnp.arange is not supported, got {name}={x}")
    return x if dtypes.is_python_scalar(x) else np.asarray(x)[()]


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Any:
    """`start`, `start + step`, ... below `stop`, 1-D; one argument is the stop.  Bounds must be concrete.

    The dtype is int32 for integers, float32 for floats, unless bounds have one or it is given.
    """
    given = {"start": start, "stop": stop, "step": step}
    bounds = {k: _bound(v, k) for k, v in given.items() if v is not None}
    if "start" not in bounds:
        raise TypeError("jnp.arange: argument 'start' must be a real number, not NoneType")
    own = dtypes.result_type(
        *(v if dtypes.is_python_scalar(v) else (dtypes.canonicalize(v.dtype), False) for v in bounds.values())
    )
    own = dtypes.requested(dtype, "jnp.arange") if dtype is not None else own
    if not dtypes.is_int(own) and not dtypes.is_inexact(own):
        raise TypeError(
            f"arange does not accept dtype {dtypes.name(own)}. Accepted dtypes are subtypes of integer, "
            "floating, complexfloating."
        )
    by = bounds.get("step", 1)
    if by == 0:
        raise ZeroDivisionError("jnp.arange: step must not be 0")
    first, last = (bounds["start"], bounds["stop"]) if "stop" in bounds else (0, bounds["start"])
    count = max(0, _steps(first, last, by))
    return made(
        "arange", (count,), lambda sharding: _progression(first, by, count, own, sharding), device, out_sharding
    )


def _steps(first: Any, last: Any, by: Any) -> int:
    if all(isinstance(v, (int, np.integer)) for v in (first, last, by)):
        return -((int(first) - int(last)) // int(by))
    return math.ceil((float(last) - float(first)) / float(by))


def _progression(first: Any, by: Any, count: int, dtype: Any, sharding: NamedSharding | None) -> Any:
    """`count` numbers from `first`, computed as numpy does: in the dtype, 16-bit floats in float32."""
    wide = np.dtype(np.float32) if dtypes.is_float(dtype) and dtypes.bit_width(dtype) < 32 else dtype
    out = iota(dtype=wide, shape=(count,), dimension=0, sharding=sharding)
    if count:
        start = dtypes.cast(np.asarray(first), wide)[()]
        second = dtypes.cast(np.asarray(first + by if count > 1 else first), wide)[()]
        with np.errstate(over="ignore"):
            step = np.subtract(second, start, dtype=wide) if count > 1 else np.zeros((), wide)[()]
        if step != 1 and count > 1:
            out = ops.mul(out, literal(step, wide))
        if start != 0:
            out = ops.add(out, literal(start, wide))
    return cast(out, dtype)


# -- spaced numbers -------------------------------------------------------------------------------------------


def _count(num: Any, name: str) -> int:
    try:
        count = operator.index(num)
    except TypeError:
        raise TypeError(f"jnp.{name}: num must be a concrete integer, got {num!r} of type {type(num)}") from None
    if count < 0:
        raise ValueError(f"Number of samples, {count}, must be non-negative.")
    return count


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`num` evenly spaced numbers from `start` to `stop` (without it: `endpoint=False`), along a new `axis`.

    Bounds may be arrays, which broadcast.  `retstep`: also return the step.
    """
    count = _count(num, "linspace")
    start, stop = operands("linspace", start, stop)
    common = dtypes.result_type(
        *((x if dtypes.is_python_scalar(x) else dtypes.dtype_of(getattr(x, "aval", x))) for x in (start, stop))
    )
    wide = dtypes.to_inexact(common)
    own = dtypes.requested(dtype, "jnp.linspace") if dtype is not None else wide
    shape = np.broadcast_shapes(aval_of(start).shape, aval_of(stop).shape)
    first, last = (broadcast_to(cast(x, wide), shape) for x in (start, stop))
    divisions = count - 1 if endpoint else count
    position = (
        axis % (len(shape) + 1)
        if -len(shape) - 1 <= axis <= len(shape)
        else _bad_axis("linspace", axis, len(shape) + 1)
    )

    def make(sharding: NamedSharding | None) -> Any:
        along = (
            None
            if sharding is None
            else NamedSharding(sharding.mesh, type(sharding.spec).from_dims((sharding.spec.dims[position],)))
        )
        out = _between(first, last, count, divisions, endpoint, wide, along)
        if dtypes.is_int(own) or dtypes.is_bool(own):
            out = ops.floor(out) if not dtypes.is_complex(wide) else out
        return cast(moveaxis(out, 0, position), own)

    full = (*shape[:position], count, *shape[position:])
    out = made("linspace", full, make, device, out_sharding)
    if not retstep:
        return out
    if divisions > 0:
        return out, ops.div(subtract(last, first), const_like(first, divisions))
    return out, asarray(math.nan, wide)


def _bad_axis(name: str, axis: int, ndim: int) -> int:
    raise ValueError(f"{name}: axis {axis} is out of bounds for array of dimension {ndim}")


def _between(
    first: Any, last: Any, count: int, divisions: int, endpoint: bool, dtype: Any, sharding: NamedSharding | None
) -> Any:
    """Numbers along a new first dim; both ends are exact."""
    ndim = aval_of(first).ndim
    if count < 2 or divisions < 1:
        return broadcast_to(expand_dims(first, 0), (count, *aval_of(first).shape))
    real = dtypes.real_dtype(dtype)
    place = iota(dtype=real, shape=(count,), dimension=0, sharding=sharding)
    part = ops.div(place, const_like(place, divisions))
    part = reshape(cast(part, dtype), (count,) + (1,) * ndim) if ndim else cast(part, dtype)
    first, last = (expand_dims(x, 0) if ndim else x for x in (first, last))
    rest = ops.sub(const_like(part, 1), part)
    return add(multiply(first, rest), multiply(last, part))


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """`base` to the powers `linspace(start, stop, num)`."""
    start, stop, base = operands("logspace", start, stop, base)
    own = None if dtype is None else dtypes.requested(dtype, "jnp.logspace")
    exponents = linspace(start, stop, num, endpoint=endpoint, axis=axis)
    out = power(cast_like(base, exponents), exponents)
    return out if own is None else cast(out, own)


def cast_like(x: Any, like: Any) -> Any:
    """A host scalar or an array in the dtype of another operand."""
    return cast(x, aval_of(like).dtype)


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """`num` numbers from `start` to `stop` with equal quotients.  Both must have the same sign."""
    start, stop = operands("geomspace", start, stop)
    common = dtypes.to_inexact(dtypes.result_type(*(dtypes.dtype_of(getattr(x, "aval", x)) for x in (start, stop))))
    own = common if dtype is None else dtypes.requested(dtype, "jnp.geomspace")
    first, last = (as_array(cast(x, common)) for x in (start, stop))
    flip = arithmetic_sign(first)
    exponents = linspace(log10(divide(first, flip)), log10(divide(last, flip)), num, endpoint=endpoint, axis=axis)
    out = power(cast_like(10.0, exponents), exponents)
    position = axis % aval_of(out).ndim
    return cast(multiply(expand_dims(flip, position) if aval_of(flip).ndim else flip, out), own)


# -- grids -----------------------------------------------------------------------------------------------------


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """Coordinates of the points of a grid, one array per argument; indexing "xy" swaps the first two dims."""
    if not copy:
        raise ValueError("jax.numpy.meshgrid only supports copy=True")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"Valid values for indexing are 'xy' and 'ij', got {indexing!r}")
    args = operands("meshgrid", *xi)
    if any(aval_of(a).ndim != 1 for a in args):
        raise ValueError(f"Arguments to jax.numpy.meshgrid must be 1D, got shapes {[aval_of(a).shape for a in args]}")
    swapped = indexing == "xy" and len(args) >= 2
    order = [1, 0, *range(2, len(args))] if swapped else list(range(len(args)))
    shape = [aval_of(args[k]).shape[0] for k in order]
    out = []
    for k, a in enumerate(args):
        at = order[k]
        alone = reshape(a, tuple(shape[d] if d == at else 1 for d in range(len(args))))
        out.append(alone if sparse else broadcast_to(alone, tuple(shape)))
    return out


def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    """The index of each element of an array of shape `dimensions`: one array per dim, stacked unless `sparse`."""
    own = dtypes.requested(int if dtype is None else dtype, "jnp.indices")
    shape = canonical_shape(tuple(dimensions), "indices")
    lines = [
        reshape(arange(n, dtype=own), tuple(n if d == k else 1 for d in range(len(shape)))) for k, n in enumerate(shape)
    ]
    if sparse:
        return tuple(lines)
    if not lines:
        return array(np.zeros((0,), np.int32), dtype=own)
    return concatenate([expand_dims(broadcast_to(v, shape), 0) for v in lines])


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """What `function` makes of the indices of an array: it is called once, with one array of indices per dim."""
    sizes = canonical_shape(shape, "fromfunction")
    grid = indices(sizes, dtype=dtype)
    out = function(*(_row(grid, k) for k in range(len(sizes))), **kwargs)
    ndim = aval_of(out).ndim if isinstance(out, Value) else np.ndim(out)
    return broadcast_to(out, sizes) if ndim < len(sizes) else out


def _row(grid: Any, k: int) -> Any:
    shape = aval_of(grid).shape
    part = slice_(grid, start_indices=(k,) + (0,) * (len(shape) - 1), limit_indices=(k + 1, *shape[1:]), strides=None)
    return squeeze(part, 0)


def ix_(*args: Any) -> tuple[Any, ...]:
    """1-D arrays as index arrays of a grid.  Masks are replaced by the places where they are True."""
    out = []
    for k, a in enumerate(operands("ix_", *args)):
        a = as_array(a)
        aval = aval_of(a)
        if aval.ndim != 1:
            raise ValueError(f"Arguments to jax.numpy.ix_ must be 1-dimensional, got shape {aval.shape}")
        if dtypes.is_bool(aval.dtype):
            raise NotImplementedError(
                "Boolean arguments to jax.numpy.ix_ are not implemented: use `jnp.nonzero(mask)[0]`"
            )
        out.append(reshape(a, tuple(aval.shape[0] if d == k else 1 for d in range(len(args)))))
    return tuple(out)


def _line(key: slice, name: str) -> Any:
    """The numbers of a slice: a complex step counts them, as in numpy's mgrid."""
    start, stop, step = 0 if key.start is None else key.start, key.stop, 1 if key.step is None else key.step
    if stop is None:
        raise ValueError(f"{name}: a slice needs a stop, got {key}")
    if isinstance(step, complex):
        return linspace(start, stop, int(abs(step)))
    return arange(start, stop, step)


class _Grid:
    """`mgrid[0:2, 0:3]`: coordinates of the points of a grid."""

    def __init__(self, name: str, sparse: bool):
        self._name, self._sparse = name, sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _line(key, self._name)
        lines = [_line(k, self._name) for k in key]
        own = dtypes.result_type(*(aval_of(v).dtype for v in lines))
        out = meshgrid(*(cast(v, own) for v in lines), indexing="ij", sparse=self._sparse)
        return out if self._sparse else concatenate([expand_dims(v, 0) for v in out])

    def __repr__(self) -> str:
        return f"jnp.{self._name}"


mgrid = _Grid("mgrid", False)
ogrid = _Grid("ogrid", True)


class _Joiner:
    """`r_[1:3, 7]`: slices, numbers and arrays joined along an axis."""

    def __init__(self, name: str, axis: int, ndmin: int, trans1d: int):
        self._name, self._axis, self._ndmin, self._trans1d = name, axis, ndmin, trans1d

    def __getitem__(self, key: Any) -> Any:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, ndmin, trans1d, matrix = self._axis, self._ndmin, self._trans1d, ""
        if parts and isinstance(parts[0], str):
            text = parts.pop(0)
            if text in ("r", "c"):
                matrix = text
            else:
                try:
                    numbers = [int(v) for v in text.split(",")]
                except ValueError:
                    raise ValueError(f"unknown special directive {text!r} in jnp.{self._name}") from None
                axis, ndmin, trans1d = [*numbers, *(axis, ndmin, trans1d)[len(numbers) :]][:3]
        if not parts:
            raise ValueError(f"jnp.{self._name}: need at least one array to join")
        out = concatenate([self._part(p, ndmin, trans1d) for p in parts], axis=axis)
        if not matrix:
            return out
        n = aval_of(out).size
        return reshape(out, (1, n) if matrix == "r" else (n, 1)) if aval_of(out).ndim == 1 else out

    def _part(self, item: Any, ndmin: int, trans1d: int) -> Any:
        item = _line(item, self._name) if isinstance(item, slice) else asarray(item)
        own = aval_of(item).ndim
        if not own:
            return reshape(item, (1,) * max(ndmin, 1))
        missing = ndmin - own
        if missing <= 0:
            return item
        item = reshape(item, (1,) * missing + aval_of(item).shape)
        # the dims it had go where trans1d says, the new ones around them
        order = list(range(missing, ndmin))
        fill = list(range(missing))
        begin = trans1d if trans1d != -1 else missing
        return transpose(item, (*fill[:begin], *order, *fill[begin:]))

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"jnp.{self._name}"


r_ = _Joiner("r_", 0, 1, -1)
c_ = _Joiner("c_", -1, 2, 0)


class _Index:
    """`s_[1:3, ...]`: an index as a value."""

    def __init__(self, always_tuple: bool):
        self._always_tuple = always_tuple

    def __getitem__(self, key: Any) -> Any:
        return (key,) if self._always_tuple and not isinstance(key, tuple) else key


s_ = _Index(False)
index_exp = _Index(True)
