"""What `mpiarray.numpy` does to operands before it binds an op: refuse what is no array, promote dtypes and ranks.

Below this layer nothing is implicit: lax is strict about dtypes and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray.config import config
from mpiarray.core.plan import mesh_of
from mpiarray.core.trace import state
from mpiarray.core.value import Literal, Value, aval_of, literal, scalar_aval
from mpiarray.errors import ShardingTypeError, TypePromotionError
from mpiarray.ops.common import join_dims
from mpiarray.ops.linear import broadcast_in_dim, convert_element_type
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding, check_spec, divisible_or_raise

ARRAY_LIKE = (Value, np.ndarray, np.generic, bool, int, float, complex)


def check_arraylike(name: str, *args: Any) -> None:
    """Raise TypeError unless every argument is an array, a numpy array or a scalar; lists are refused, as in JAX."""
    for i, x in enumerate(args):
        if not isinstance(x, ARRAY_LIKE) and not hasattr(x, "__jax_array__"):
            raise TypeError(
                f"{name} requires ndarray or scalar arguments, got {type(x)} at position {i}. Convert it with "
                "`jnp.array` first."
            )


def cast(x: Any, dtype: Any, weak_type: bool = False) -> Any:
    """`x` as `dtype`; host scalars become literals, and nothing is bound when it is that already."""
    if dtypes.is_python_scalar(x):
        return literal(dtypes.scalar_array(x, dtype) if isinstance(x, int) else x, dtype, weak_type)
    aval = aval_of(x)
    if aval.dtype == dtype and aval.weak_type == weak_type:
        return x
    if not isinstance(x, Value) and aval.ndim == 0:
        return literal(x, dtype, weak_type)
    if isinstance(x, Literal):
        return literal(x.val, dtype, weak_type)
    return convert_element_type(x, new_dtype=dtype, weak_type=weak_type)


def promote_dtypes(*args: Any) -> list[Any]:
    """The operands in their common dtype, weak when the result is (all are, or an integer meets a Python float)."""
    dtype, weak = _common_pair(args)
    return [cast(a, dtype, weak) for a in args]


def _common_pair(args: Sequence[Any]) -> Any:
    """The dtype that operands have in common, and whether it is weak.  TypeError where keys meet numbers."""
    pairs = [_pair(a) for a in args]
    try:
        return dtypes.result_pair(*pairs)
    except TypePromotionError:
        avals = [aval_of(a) for a in args]
        if not any(dtypes.is_key(a.dtype) for a in avals):
            raise
        raise TypeError(
            f"arithmetic and comparison with numbers do not accept dtype {dtypes.key_dtype}, got "
            f"{', '.join(a.str_short() for a in avals)}. The words of keys are in `jax.random.key_data(keys)`."
        ) from None


def promote_numeric(*args: Any) -> list[Any]:
    """As `promote_dtypes`, but bools become integers."""
    return [
        cast(a, dtypes.default_dtype(int)) if dtypes.is_bool(aval_of(a).dtype) else a for a in promote_dtypes(*args)
    ]


def _pair(x: Any) -> Any:
    if dtypes.is_python_scalar(x):
        return x
    a = aval_of(x)
    return (a.dtype, a.weak_type)


def promote_inexact(*args: Any) -> list[Any]:
    """The operands in their common floating or complex dtype: ints and bools become floats."""
    dtype, weak = _common_pair(args)
    if not dtypes.is_inexact(dtype):
        dtype = dtypes.to_inexact(dtype)
    return [cast(a, dtype, weak) for a in args]


def promote_ranks(name: str, *args: Any) -> list[Any]:
    """Operands of one rank: leading dims of size 1 are added; scalars stay scalars.

    Raises ValueError where shapes of different rank do not broadcast.
    """
    ndims = [np.ndim(a) if not isinstance(a, Value) else a.aval.ndim for a in args]
    most = max(ndims)
    if all(n in (0, most) for n in ndims):
        return list(args)
    joined_shape(name, *(aval_of(a).shape for a in args))
    return [a if n in (0, most) else add_leading(a, most - n) for a, n in zip(args, ndims)]


def add_leading(x: Any, count: int) -> Any:
    aval = aval_of(x)
    shape = (1,) * count + aval.shape
    return broadcast_in_dim(x, shape=shape, broadcast_dimensions=tuple(range(count, len(shape))), sharding=None)


def promote(name: str, *args: Any) -> Sequence[Any]:
    """Operands of one dtype and one rank."""
    if len(args) == 2 and isinstance(args[0], Value) and isinstance(args[1], Value):  # the common case, and a cheap one
        a, b = args[0].aval, args[1].aval
        if (
            a.dtype is b.dtype
            and a.weak_type == b.weak_type
            and (len(a.shape) == len(b.shape) or not a.shape or not b.shape)
        ):
            return args
    found = _beside_scalar(args, _partner) if len(args) == 2 else None
    if found is not None:
        return found
    args = operands(name, *args)
    return promote_ranks(name, *promote_dtypes(*args))


def _beside_scalar(args: tuple[Any, ...], partner: Any) -> Sequence[Any] | None:
    """An array and a Python number that takes the array's dtype, without the general machinery; None for all else."""
    a, b = args
    if isinstance(a, Value):
        kind = type(b)
        if kind is float or (kind is int and -(2**31) <= b < 2**31):
            found = partner(a.aval, kind, config.jax_enable_x64)
            return None if found is None else (a, Literal(found[0](b), found[1]))
    elif isinstance(b, Value):
        kind = type(a)
        if kind is float or (kind is int and -(2**31) <= a < 2**31):
            found = partner(b.aval, kind, config.jax_enable_x64)
            return None if found is None else (Literal(found[0](a), found[1]), b)
    return None


@lru_cache(maxsize=4096)
def _partner(aval: ShapedArray, kind: type, x64: bool) -> tuple[Any, ShapedArray] | None:
    """How such a Python number becomes a literal beside an array; None if it does not just take the dtype."""
    if dtypes.is_key(aval.dtype) or (dtypes.is_int(aval.dtype) and aval.dtype.itemsize < 4):
        return None
    dtype, weak = dtypes.result_pair((aval.dtype, aval.weak_type), kind(0))
    if dtype != aval.dtype or weak != aval.weak_type or (dtypes.is_unsigned(dtype)):
        return None
    return dtypes.storage(dtype).type, scalar_aval(dtype, weak)


@lru_cache(maxsize=4096)
def _inexact_partner(aval: ShapedArray, kind: type, x64: bool) -> tuple[Any, ShapedArray] | None:
    return _partner(aval, kind, x64) if dtypes.is_inexact(aval.dtype) else None


def promote_to_inexact(name: str, *args: Any) -> Sequence[Any]:
    """Operands of one floating or complex dtype and one rank."""
    if len(args) == 1:
        aval = getattr(args[0], "aval", None)
        if aval is not None and aval.dtype.kind in "fc":
            return args
    elif len(args) == 2:
        found = _beside_scalar(args, _inexact_partner)
        if found is not None:
            return found
    args = operands(name, *args)
    return promote_ranks(name, *promote_inexact(*args))


def promote_strong(name: str, *args: Any) -> list[Any]:
    """As `promote_to_inexact`, with a dtype that is not weak."""
    args = operands(name, *args)
    return _strong(name, args)


def promote_strong_unless_weak(name: str, *args: Any) -> list[Any]:
    """As `promote_to_inexact`, but the dtype is weak only if all operands are."""
    args = operands(name, *args)
    if all(dtypes.is_python_scalar(a) or aval_of(a).weak_type for a in args):
        return promote_ranks(name, *promote_inexact(*args))
    return _strong(name, args)


def _strong(name: str, args: Sequence[Any]) -> list[Any]:
    dtype = dtypes.to_inexact(dtypes.result_type(*(_pair(a) for a in args)))
    return promote_ranks(name, *(cast(a, dtype) for a in args))


def operands(name: str, *args: Any) -> tuple[Any, ...]:
    """The arguments checked by `check_arraylike`, with those that only can become arrays turned into arrays."""
    check_arraylike(name, *args)
    return tuple(a if isinstance(a, ARRAY_LIKE) else a.__jax_array__() for a in args)


def broadcast_operands(name: str, *args: Any) -> list[Any]:
    """Operands of one shape.  Those of one shape already stay as they are; else all get the joined sharding.

    Raises ValueError where shapes do not broadcast, ShardingTypeError where two shardings differ.
    """
    shapes = {aval_of(a).shape for a in args}
    return list(args) if len(shapes) == 1 else join(name, *args)


def join(name: str, *args: Any) -> list[Any]:
    """Operands of one shape and one sharding: that which an elementwise operation on them would give its result."""
    params = _joining(name, *[aval_of(a) for a in args])
    return [x if p is None else broadcast_in_dim(x, **p) for x, p in zip(args, params)]


@lru_cache(maxsize=4096)
def _joining(name: str, *avals: ShapedArray) -> tuple[dict[str, Any] | None, ...]:
    """For each operand how to broadcast it; None for those that have the joined type's shape and sharding."""
    shape = joined_shape(name, *(a.shape for a in avals))
    full = [_leading(a, len(shape)) for a in avals if a.ndim]
    dims = tuple(join_dims(name, full)) if full else ()
    mesh = mesh_of(avals)
    sharding = None if mesh is None or mesh.empty else NamedSharding(mesh, P.from_dims(dims))
    return tuple(
        None
        if a.shape == shape and (a.dims == dims or sharding is None)
        else {
            "shape": shape,
            "broadcast_dimensions": tuple(range(len(shape) - a.ndim, len(shape))),
            "sharding": sharding,
        }
        for a in avals
    )


def joined_shape(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{name}: Incompatible shapes for broadcasting: {', '.join(map(str, shapes))}") from None


def _leading(a: ShapedArray, ndim: int) -> ShapedArray:
    """The type with leading dims of size 1 added."""
    more = ndim - a.ndim
    if not more:
        return a
    sharding = None if a.sharding.mesh.empty else NamedSharding(a.sharding.mesh, P.from_dims(((),) * more + a.dims))
    return ShapedArray((1,) * more + a.shape, a.dtype, sharding=sharding)


def out_sharding(given: Any, shape: Sequence[int], name: str) -> NamedSharding | None:
    """A user's `out_sharding=` as a sharding parameter: on the abstract mesh, padded to the rank, checked.

    Raises TypeError for what is no spec or NamedSharding; ValueError for a missing mesh, Auto or Manual axes,
    sizes that do not divide.
    """
    if given is None:
        return None
    context = state.abstract_mesh
    if isinstance(given, P):
        if context.empty:
            raise ValueError(
                f"{name}: a PartitionSpec as out_sharding needs a mesh: got {given} and you are not under a "
                "mesh context. Use `jax.set_mesh`."
            )
        mesh, spec = context, given
    elif isinstance(given, NamedSharding):
        mesh, spec = given.mesh.abstract_mesh, given.spec
        if not context.empty and not mesh.same_axes(context):
            raise ValueError(f"Context mesh {context} should match the mesh of sharding {mesh} passed to {name}")
        mesh = mesh if context.empty else context
    else:
        raise TypeError(
            f"`out_sharding` argument of {name} only supports instances of `NamedSharding` or `PartitionSpec`. "
            f"Got {given!r} of type {type(given)}"
        )
    ndim = len(shape)
    check_spec(mesh, spec, where=f"{name}: ")
    if len(spec.dims) > ndim:
        hint = " For scalars the spec should be P()." if ndim == 0 else ""
        raise ValueError(
            f"{name}: spec {spec} is only valid for values of rank at least {len(spec.dims)}, but was applied "
            f"to a value of rank {ndim}.{hint}"
        )
    bad = [a for axes in spec.dims for a in (axes if isinstance(axes, tuple) else ()) if a not in mesh.explicit_axes]
    if bad:
        raise ValueError(
            f"PartitionSpec {spec} passed to {name} cannot contain axis names that are of type Auto or Manual: "
            f"{bad} in mesh {mesh}. "
            "On Auto axes use `jax.lax.with_sharding_constraint`."
        )
    sharding = NamedSharding(mesh, spec.padded(ndim))
    divisible_or_raise(shape, sharding, where=f"{name}: ")
    return sharding


def replicated_or_raise(name: str, aval: ShapedArray, why: str) -> None:
    """Raise ShardingTypeError unless no dim is sharded."""
    if any(aval.dims):
        raise ShardingTypeError(
            f"{name}: {why}, got {aval.str_short()}. Use `jax.reshard(x, P())` first or `jax.sharding.auto_axes`."
        )
