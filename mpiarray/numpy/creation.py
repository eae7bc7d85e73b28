"""Making arrays: of one value, like others, and from what the host has.

Under a context mesh the results are replicated on it; `out_sharding=` and `device=` say otherwise (numpy/placing.py).
Each rank makes its own block only.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.plan import mesh_order
from mpiarray.core.trace import is_evaluating, state
from mpiarray.core.value import Literal, Value, aval_of, literal
from mpiarray.numpy.host import as_array, from_host, place
from mpiarray.numpy.placing import made
from mpiarray.numpy.promotion import add_leading, broadcast_operands, cast, check_arraylike, joined_shape
from mpiarray.ops.linear import broadcast_in_dim, full_of
from mpiarray.ops.linear import copy as copy_op
from mpiarray.ops.manual import pvary
from mpiarray.ops.placement import reshard
from mpiarray.ops.shape import concatenate
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

__all__ = [
    "array", "asarray", "copy", "empty", "empty_like", "from_dlpack", "frombuffer", "fromfile", "fromiter",
    "fromstring", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like",
]  # fmt: skip


def canonical_shape(shape: Any, name: str) -> tuple[int, ...]:
    """A shape argument as a tuple of ints.

    Raises TypeError unless it is an int or a 1-D sequence of ints of at least 0, none of them traced.
    """
    sizes = (shape,) if not isinstance(shape, (Sequence, np.ndarray)) or np.ndim(shape) == 0 else tuple(shape)
    try:
        out = tuple(operator.index(n) for n in sizes)
    except TypeError:
        hint = ""
        if any(isinstance(n, Value) for n in sizes):
            hint = (
                " If using `jit`, mark the argument static with `static_argnums` or apply `jit` to smaller "
                "subfunctions."
            )
        raise TypeError(
            f"Shapes must be 1D sequences of concrete values of integer type, got {sizes} in {name}.{hint}"
        ) from None
    if any(n < 0 for n in out):
        raise TypeError(f"{name}: shape must have every element be nonnegative, got {out}")
    return out


# -- of one value ----------------------------------------------------------------------------------------


def filled(value: Literal, shape: tuple[int, ...], sharding: NamedSharding | None) -> Any:
    """An array of one host scalar."""
    if not shape and sharding is None:
        return as_array(value)
    return broadcast_in_dim(value, shape=shape, broadcast_dimensions=(), sharding=sharding)


def _constant(name: str, value: Any, shape: Any, dtype: Any, device: Any, out_sharding: Any) -> Any:
    sizes = canonical_shape(shape, name)
    scalar = literal(value, dtypes.requested(dtype, f"jnp.{name}"))
    return made(name, sizes, lambda sharding: filled(scalar, sizes, sharding), device, out_sharding)


def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of zeros (dtype default: float32).  With `unreduced` axes in `out_sharding` every block is zero."""
    return _constant("zeros", 0, shape, dtype, device, out_sharding)


def ones(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of ones (dtype default: float32)."""
    return _constant("ones", 1, shape, dtype, device, out_sharding)


def empty(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array whose values do not matter: zeros."""
    return _constant("empty", 0, shape, dtype, device, out_sharding)


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of one value, or of an array that is broadcast to the shape.

    The dtype is that of the value (weak for a Python number) unless it is given.
    """
    check_arraylike("full", fill_value)
    sizes = canonical_shape(shape, "full")
    value = _as_fill(fill_value, dtype, "jnp.full")
    if device is not None:
        value = cast(value, aval_of(value).dtype)

    def make(sharding: NamedSharding | None) -> Any:
        if isinstance(value, Literal):
            return filled(value, sizes, sharding)
        return _spread(value, sizes, sharding, "full")

    return made("full", sizes, make, device, out_sharding)


def _as_fill(value: Any, dtype: Any, where: str) -> Any:
    """A fill value in its final dtype: a literal for host scalars."""
    own, weak = dtypes.dtype_of(value.aval if isinstance(value, Value) else value)
    if dtype is not None:
        own, weak = dtypes.requested(dtype, where), False
    if isinstance(value, Value) or np.ndim(value):
        return cast(value, own, weak)
    return literal(dtypes.scalar_array(value, own) if dtypes.is_python_scalar(value) else value, own, weak)


def _spread(x: Any, shape: tuple[int, ...], sharding: NamedSharding | None, name: str) -> Any:
    aval = aval_of(x)
    if joined_shape(name, aval.shape, shape) != shape:
        raise ValueError(f"{name}: Incompatible shapes for broadcasting: {aval.shape} and requested shape {shape}")
    if aval.shape == shape and sharding is None:
        return as_array(x)
    return broadcast_in_dim(
        x, shape=shape, broadcast_dimensions=tuple(range(len(shape) - aval.ndim, len(shape))), sharding=sharding
    )


# -- like others -------------------------------------------------------------------------------------------


def _type_of(name: str, a: Any) -> ShapedArray:
    """The type of an array, or of anything with a shape and a dtype."""
    if hasattr(a, "shape") and hasattr(a, "dtype") and not isinstance(a, (Value, np.ndarray, np.generic)):
        sharding = getattr(a, "sharding", None)
        aval = ShapedArray(tuple(a.shape), dtypes.canonicalize(a.dtype), bool(getattr(a, "weak_type", False)))
        if isinstance(sharding, NamedSharding):
            aval = aval.update(sharding=NamedSharding(sharding.mesh.abstract_mesh, sharding.spec.padded(aval.ndim)))
        return aval
    check_arraylike(name, a)
    return aval_of(a)


def _like(name: str, a: Any, value: Any, dtype: Any, shape: Any, device: Any, out_sharding: Any) -> Any:
    like = _type_of(name, a)
    weak = like.weak_type if dtype is None else False
    own = like.dtype if dtype is None else dtypes.requested(dtype, f"jnp.{name}")
    sizes = like.shape if shape is None else canonical_shape(shape, name)
    fill = cast(value, own, weak) if isinstance(value, Value) or np.ndim(value) else _cast_fill(value, own, weak)

    def make(sharding: NamedSharding | None) -> Any:
        if sharding is None and shape is None and device is None and not isinstance(a, np.ndarray):
            sharding = None if like.sharding.mesh.empty else _plain(like)
        return filled(fill, sizes, sharding) if isinstance(fill, Literal) else _spread(fill, sizes, sharding, name)

    out = made(name, sizes, make, device, out_sharding)
    varying = like.vma - aval_of(out).vma
    if varying and shape is None:  # inside shard_map: it varies over what `a` varies over
        return pvary(out, axes=mesh_order(state.abstract_mesh, varying))
    if shape is not None and device is None and out_sharding is None and is_evaluating():
        where = getattr(a, "sharding", None)
        if (
            isinstance(where, NamedSharding)
            and where.is_fully_replicated
            and len(where.spec) <= len(sizes)
            and not where.spec.unreduced
        ):
            return place(out, where)  # replicated either way; what `.sharding` shows is the operand's
    return out


def _plain(aval: ShapedArray) -> NamedSharding:
    """A type's sharding without what says that it is a sum of parts."""
    spec = aval.sharding.spec
    if not spec.unreduced and not spec.reduced:
        return aval.sharding
    return NamedSharding(aval.sharding.mesh, spec.from_dims(spec.dims))


def _cast_fill(value: Any, dtype: Any, weak: bool) -> Literal:
    if dtypes.is_python_scalar(value) and not isinstance(value, bool) and not dtypes.is_bool(dtype):
        return literal(dtypes.scalar_array(value, dtype), dtype, weak)
    return literal(value, dtype, weak)


def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """Zeros of the shape, dtype and sharding of `a`; another `shape` is replicated."""
    return _like("zeros_like", a, 0, dtype, shape, device, out_sharding)


def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """Ones of the shape, dtype and sharding of `a`; another `shape` is replicated."""
    return _like("ones_like", a, 1, dtype, shape, device, out_sharding)


def empty_like(
    prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Any:
    """An array of the shape, dtype and sharding of `prototype` whose values do not matter: zeros."""
    return _like("empty_like", prototype, 0, dtype, shape, device, out_sharding)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Any:
    """`fill_value` in the shape, dtype and sharding of `a`; another `shape` is replicated."""
    check_arraylike("full_like", fill_value)
    return _like("full_like", a, fill_value, dtype, shape, device, out_sharding)


# -- from what the host has ------------------------------------------------------------------------------------


def array(
    object: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """An array of numbers, nested lists or tuples of numbers and arrays, or anything that numpy makes an array of.

    Python numbers have a weak dtype of 32 bits; numpy's 64-bit dtypes are narrowed.  Host values must be equal on
    all ranks.
    Raises TypeError for what is no number, ValueError for None and ragged lists, OverflowError for Python integers
    that do not fit.
    """
    if order not in (None, "K"):
        raise NotImplementedError(
            f"jnp.array: only implemented for order='K', got {order!r}; the memory order of arrays is a matter "
            "of `Format`"
        )
    wanted = None if dtype is None else dtypes.requested(dtype, "jnp.array")
    x = _value_of(object, wanted)
    if copy and isinstance(object, Value) and x is object:
        x = copy_op(x)
    if aval_of(x).ndim < ndmin:
        x = add_leading(x, ndmin - aval_of(x).ndim)
    if device is None and out_sharding is None:
        return as_array(x)
    aval = aval_of(x)
    return made(
        "array", aval.shape, lambda s: as_array(x) if s is None else reshard(x, dst_sharding=s), device, out_sharding
    )


def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """As `array`, but an array of that dtype is returned as it is."""
    return array(a, dtype, copy=bool(copy), order=order, device=device, out_sharding=out_sharding)


def _value_of(x: Any, dtype: Any) -> Any:
    """`x` as an operand of `dtype` (None: its own)."""
    if hasattr(x, "__jax_array__") and not isinstance(x, Value):
        x = x.__jax_array__()
    if isinstance(x, Value):
        return x if dtype is None else cast(x, dtype)
    if isinstance(x, (list, tuple)):
        return _of_sequence(x, dtype)
    if x is None:
        raise ValueError("None is not a valid value for jnp.array")
    if dtypes.is_python_scalar(x):
        own, weak = dtypes.dtype_of(x)
        if dtype is not None:
            own, weak = dtype, False
        return literal(dtypes.scalar_array(x, own), own, weak)
    return _of_host(np.asarray(x), x, dtype)


def _of_host(value: np.ndarray, x: Any, dtype: Any) -> Any:
    if value.dtype != dtypes.float0 and value.dtype.kind in "OSUMmV" and not _is_number(value.dtype):
        raise TypeError(
            f"Value {x!r} with dtype {value.dtype} is not a valid JAX array type. Only arrays of numeric types "
            "are supported by JAX."
        )
    own = dtypes.canonicalize(value.dtype) if dtype is None else dtype
    return literal(value, own) if not value.ndim and not isinstance(x, np.ndarray) else from_host(value, own)


def _is_number(dtype: Any) -> bool:
    """Whether a dtype that numpy calls void is one of the small floats and integers."""
    return dtypes.is_int(dtype) or dtypes.is_float(dtype)


def _leaves(x: Any, out: list[Any]) -> list[Any]:
    if isinstance(x, (list, tuple)):
        for item in x:
            _leaves(item, out)
    else:
        out.append(x)
    return out


def _of_sequence(x: Sequence[Any], dtype: Any) -> Any:
    leaves = _leaves(x, [])
    if any(v is None for v in leaves):
        raise ValueError("None is not a valid value for jnp.array")
    leaves = [v.__jax_array__() if hasattr(v, "__jax_array__") and not isinstance(v, Value) else v for v in leaves]
    on_host = not any(isinstance(v, Value) for v in leaves)
    if dtype is None:
        dtype = dtypes.result_type(*(_dtype_argument(v) for v in leaves)) if leaves else dtypes.default_dtype(float)
    if not on_host:
        return _stacked([_value_of(v, dtype) for v in x])
    try:
        value = np.array(x, dtype=dtypes.storage(dtype))
    except OverflowError as e:
        raise OverflowError(f"jnp.array: {e} (the values become {dtypes.name(dtype)})") from None
    return from_host(value, dtype)


def _dtype_argument(v: Any) -> Any:
    if isinstance(v, Value):
        return (v.aval.dtype, v.aval.weak_type)
    if dtypes.is_python_scalar(v):
        return v
    found = np.asarray(v)
    if found.dtype.kind in "OSUMm":
        raise TypeError(
            f"Value {v!r} with dtype {found.dtype} is not a valid JAX array type. Only arrays of numeric types "
            "are supported by JAX."
        )
    return (dtypes.canonicalize(found.dtype), False)


def _stacked(items: Sequence[Any]) -> Any:
    """Items of one shape, stacked along a new first dim; scalars of one list get one common sharding."""
    shapes = {aval_of(v).shape for v in items}
    if len(shapes) > 1:
        raise ValueError(
            "jnp.array: items of a list must have the same shape, got shapes "
            f"{', '.join(str(aval_of(v).shape) for v in items)}"
        )
    return concatenate(*(add_leading(v, 1) for v in broadcast_operands("array", *items)), dimension=0)


def copy(a: Any, order: str | None = None) -> Any:
    """An array of its own with the values of `a`."""
    check_arraylike("copy", a)
    return array(a, copy=True, order="K" if order is None else order)


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Any:
    """A 1-D array of the bytes of a buffer, which must be equal on all ranks."""
    return array(np.frombuffer(buffer, dtype=dtypes.storage(dtypes.as_dtype(dtype)), count=count, offset=offset))


def fromfile(*args: Any, **kwargs: Any) -> Any:
    """Not there: what a file holds may differ from rank to rank."""
    raise NotImplementedError(
        "jnp.fromfile() is not implemented because it may be non-pure; use `jnp.asarray(np.fromfile(...))` instead."
    )


def fromiter(*args: Any, **kwargs: Any) -> Any:
    """Not there: an iterator has a state."""
    raise NotImplementedError(
        "jnp.fromiter() is not implemented because it may be non-pure; use `jnp.asarray(np.fromiter(...))` instead."
    )


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Any:
    """A 1-D array of the numbers in a text."""
    return array(np.fromstring(string, dtype=dtypes.storage(dtypes.as_dtype(dtype)), count=count, sep=sep))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of what another library's array on this host holds, which must be equal on all ranks."""
    return array(x if isinstance(x, Value) else np.from_dlpack(x), device=device)


def zeros_of(aval: ShapedArray) -> Any:
    """Zeros of a type, sharding included."""
    return as_array(full_of(aval, 0))
