"""What the type rules and plans of many ops share: broadcasting of shapes and of shardings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpiarray.core.op import Out
from mpiarray.core.plan import Plan, dims_of, entry, spec_from
from mpiarray.core.value import Literal, aval_of, literal
from mpiarray.errors import ShardingTypeError
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.partition_spec import PartitionSpec as P


class BatchAxis(NamedTuple):
    """The axis that vmap maps: its size, its name (None: unnamed), and the mesh axes its dim is sharded over.

    mesh   the abstract mesh of these axes (None when there are none)
    spmd   the mesh axes that shard_map shards the dim over (vmap's `spmd_axis_name`)
    split  those that it does shard it over, in its body, where `size` counts the examples of one instance
    """

    size: int
    name: Any = None
    spec: tuple[str, ...] = ()
    mesh: Any = None
    spmd: tuple[str, ...] = ()
    split: tuple[str, ...] = ()


class Parts(NamedTuple):
    """How a result can stay in pieces (`compiler.pieces`): what the attribute `pieces` of an op's `build` or `impl` gives.

    boxes   of the result, that the pieces fill
    run     the function of blocks that gives the pieces
    places  for each piece of which operand it is a view, and where it begins there; None for one that is no view
            (None for all of them: nothing is known)
    late    the numbers of pieces that may still be on their way, `run` gives a `comm.halves.Arriving` then;
            None where there is nothing to wait for
    copied  whether what is sent leaves from copies, so that operands may be written over while messages travel
    """

    boxes: Sequence[tuple[slice, ...]]
    run: Callable[..., Any]
    places: Sequence[tuple[int, tuple[int, ...]] | None] | None = None
    late: Sequence[int] | None = None
    copied: bool = True


# -- types of n-ary elementwise ops ---------------------------------------------------------------


def broadcast_shape(name: str, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The common shape of operands of one rank (scalars go with any): dims equal or 1."""
    shapes = [a.shape for a in avals if a.ndim]
    if not shapes:
        return ()
    if all(s == shapes[0] for s in shapes):
        return shapes[0]
    if len({len(s) for s in shapes}) > 1:
        raise TypeError(
            f"{name}: arrays must have the same number of dimensions, got {', '.join(a.str_short() for a in avals)}"
        )
    out = []
    for sizes in zip(*shapes):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise TypeError(f"{name} got incompatible shapes for broadcasting: {', '.join(map(str, shapes))}.")
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def same_dtype(name: str, avals: Sequence[ShapedArray]) -> Any:
    """The operands' one dtype; lax is strict, promotion is `numpy/`'s."""
    dtype = avals[0].dtype
    for a in avals[1:]:
        if a.dtype != dtype:
            raise TypeError(
                f"lax.{name} requires arguments to have equal dtypes, got {', '.join(str(a.dtype) for a in avals)} "
                f"({', '.join(a.str_short() for a in avals)}). Use `jnp`, which promotes, or `lax.convert_element_type`."
            )
    return dtype


def check_kind(name: str, dtype: Any, kinds: str) -> None:
    """Raise TypeError unless the dtype is of one of the kinds: 'b' bool, 'i' integer, 'f' float, 'c' complex, 'k' key."""
    if _kind(dtype) not in kinds:
        words = {"b": "bool", "i": "integer", "f": "floating", "c": "complex", "k": "key"}
        raise TypeError(
            f"{name} does not accept dtype {dtype}. Accepted dtypes are of kinds: {', '.join(words[k] for k in kinds)}."
        )


def _kind(dtype: Any) -> str:
    if dtypes.is_key(dtype):
        return "k"
    return "b" if dtypes.is_bool(dtype) else "i" if dtypes.is_int(dtype) else "c" if dtypes.is_complex(dtype) else "f"


def nary_type(name: str, kinds: str = "bifc", result: Callable[[Any], Any] | None = None) -> Callable[..., Out]:
    """The type rule of an elementwise op: one shape, one dtype; `result(dtype)` where the result's differs."""

    def rule(*avals: ShapedArray, **params: Any) -> Out:
        dtype = same_dtype(name, avals)
        check_kind(name, dtype, kinds)
        weak = result is None and all(a.weak_type for a in avals)
        return Out(broadcast_shape(name, avals), result(dtype) if result else dtype, weak)

    return rule


# -- plans -----------------------------------------------------------------------------------------


def join_dims(name: str, avals: Sequence[ShapedArray]) -> tuple[tuple[str, ...], ...]:
    """The result's axes per dim of an elementwise op; ShardingTypeError where two operands disagree."""
    arrays = [a for a in avals if a.ndim]
    if not arrays:
        return ()
    out = []
    for d in range(arrays[0].ndim):
        entries = {dims_of(a)[d] for a in arrays}
        entries.discard(())
        if len(entries) > 1:
            shown = ", ".join(str(tuple(entry(e) for e in dims_of(a))) for a in arrays)
            raise ShardingTypeError(
                f"{name} got incompatible shardings for broadcasting: {shown}, for operands {', '.join(a.short() for a in avals)}. "
                "Use `jax.reshard` to bring them to one sharding, or `jax.sharding.auto_axes`."
            )
        out.append(entries.pop() if entries else ())
    return tuple(out)


def join_plan(name: str) -> Callable[..., Plan]:
    """Operands meet: a replicated one is sliced locally, dims of size 1 stay whole."""

    def plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
        dims = join_dims(name, avals)
        return Plan(tuple(operand_spec(a, dims, avals) for a in avals), (spec_from(dims),))

    return plan


def operand_spec(a: ShapedArray, dims: Sequence[tuple[str, ...]], avals: Sequence[ShapedArray]) -> P:
    if not a.ndim:
        return a.sharding.spec
    sizes = [next((n for n in ns if n != 1), 1) for ns in zip(*(b.shape for b in avals if b.ndim))]  # 0 wins over 1
    mine = [own if n == 1 and size != 1 else axes for own, n, size, axes in zip(dims_of(a), a.shape, sizes, dims)]
    return spec_from(mine)


def same_plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
    """One operand, and a result of its shape and sharding."""
    spec = spec_from(dims_of(avals[0]))
    return Plan((spec,) * len(avals), (spec,))


# -- host constants --------------------------------------------------------------------------------


def const_like(x: Any, value: Any) -> Literal:
    """A literal of the dtype of `x`, weak, so that it changes nothing."""
    return literal(value, aval_of(x).dtype, True)


def through_float32(f: Callable[..., Any]) -> Callable[..., Any]:
    """A numpy function for 16- and 8-bit floats, computed in float32 and rounded once."""

    def impl(*blocks: Any, **params: Any) -> Any:
        dtype = blocks[0].dtype
        if dtypes.is_float(dtype) and dtype.itemsize < 4:
            return np.asarray(f(*(b.astype(np.float32) for b in blocks), **params)).astype(dtype)
        return f(*blocks, **params)

    return impl
