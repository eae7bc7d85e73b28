"""What an op does to shardings, as data: which sharding each input must have, which one comes out,
and which reduction is then still pending.

An op's `plan` is a pure function of types.  Two readers share it, so that they cannot disagree: `core.infer`
takes the result's sharding for the type that the user sees, and the compiler's partition pass takes the
communication that happens.

In a plan every mesh axis that occurs in a spec is visible: `infer` shows a plan only the Explicit axes,
the partition pass shows it the Auto axes too.  A plan is strict: where the operands' shardings do not fit it
raises `ShardingTypeError`; on Auto axes the compiler then tries other operand shardings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpiarray.errors import ShardingTypeError
from mpiarray.types.aval import ShapedArray
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """A reduction over mesh axes that the blocks still need: `kind` is 'sum', 'max', 'min', 'prod', 'and', 'or' or 'xor'."""

    kind: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one equation runs on blocks.

    ins     the spec (padded to the rank) that each array operand must have first
    outs    the spec of each result's blocks, after the pending reductions
    pending per result, the reduction that its blocks need (None: none); empty when there is none at all
    result  the spec of each result's type, where it is not `outs`: the compiler redistributes from the one to the
            other (a pending sum whose axes then shard a dim becomes a reduce-scatter); empty when they are the same
    params  parameters that differ on blocks (shapes, mostly), over the global ones
    local   instead of `impl` on blocks and the pending reductions: a local program
            `local(ctx, *blocks, **params) -> block or sequence of blocks`, written in ops and collectives;
            `ctx` is a `LocalContext`, `params` the equation's global ones
    """

    ins: tuple[P, ...]
    outs: tuple[P, ...]
    pending: tuple[Pending | None, ...] = ()
    result: tuple[P, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    local: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class LocalContext:
    """What a local program may ask: the mesh (`mesh.shape[axis]` is a size), the operands' global types
    with the specs that they now have, and the results' global types with the specs to make."""

    mesh: Any
    ins: tuple[Any, ...]
    outs: tuple[Any, ...]

    def size(self, axes: Sequence[str]) -> int:
        return axes_size(self.mesh, axes)


class Laid:
    """A type with the axes that a value really lies on, Auto axes included: what plans are given while programs are partitioned.

    It answers what a plan asks of a `ShapedArray`; `sharding.mesh` keeps the user's axis types, so that a plan can tell an
    Explicit axis, where it must raise, from an Auto one, where it may do something else.
    """

    __slots__ = ("aval", "dtype", "ndim", "reduced", "shape", "sharding", "size", "unreduced", "vma", "weak_type")

    def __init__(self, aval: ShapedArray, sharding: NamedSharding):
        self.aval, self.sharding = aval, sharding
        self.shape, self.ndim, self.size, self.dtype, self.weak_type = (
            aval.shape,
            aval.ndim,
            aval.size,
            aval.dtype,
            aval.weak_type,
        )
        self.unreduced, self.reduced, self.vma = sharding.spec.unreduced, sharding.spec.reduced, aval.vma

    @property
    def mesh(self) -> Any:
        return self.sharding.mesh

    @property
    def dims(self) -> Dims:
        return self.sharding.spec.dims

    def str_short(self, short_dtypes: bool = False) -> str:
        return self.aval.str_short(short_dtypes)

    def short(self) -> str:
        return self.aval.short()

    def __str__(self) -> str:
        return f"{self.aval} at {self.sharding.spec}"

    __repr__ = __str__


# -- helpers for those who write plans ---------------------------------------------------------


def dims_of(aval: ShapedArray) -> Dims:
    """The axes of each dim of a type; () where it is not sharded."""
    return aval.sharding.spec.dims


def axes_size(mesh: Any, axes: Sequence[str]) -> int:
    size = 1
    for a in axes:
        size *= mesh.shape[a]
    return size


def mesh_order(mesh: Any, axes: Any) -> tuple[str, ...]:
    """Axes in the order of the mesh, which is the order every rank derives alike."""
    return tuple(a for a in mesh.axis_names if a in axes)


def mesh_of(avals: Sequence[ShapedArray]) -> Any:
    """The mesh that sharded operands are on (any operand's when none is sharded)."""
    for aval in avals:
        if not aval.mesh.empty:
            return aval.mesh
    return avals[0].sharding.mesh if avals else None


def local_size(mesh: Any, size: int, axes: Sequence[str]) -> int:
    return size // axes_size(mesh, axes) if axes else size


def local_shape(mesh: Any, shape: Sequence[int], dims: Dims) -> tuple[int, ...]:
    """The block's shape of a global shape laid out by `dims`."""
    return tuple(local_size(mesh, n, axes) for n, axes in zip(shape, dims))


def replicated(ndim: int) -> P:
    return P.from_dims(((),) * ndim)


def spec_from(dims: Sequence[Sequence[str]], unreduced: Any = frozenset(), reduced: Any = frozenset()) -> P:
    return P.from_dims(tuple(tuple(d) for d in dims), unreduced, reduced)


def used_axes(dims: Dims) -> set[str]:
    return {a for axes in dims for a in axes}


def has_duplicates(dims: Dims) -> bool:
    flat = [a for axes in dims for a in axes]
    return len(flat) != len(set(flat))


def entry(axes: Sequence[str]) -> Any:
    """Axes of a dim as they are printed in errors: None, 'x' or ('x', 'y')."""
    return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)


def require_unsharded(name: str, aval: ShapedArray, dims: Sequence[int], message: str) -> None:
    """Raise ShardingTypeError unless the given dims of the operand are unsharded."""
    sharded = [d for d in dims if dims_of(aval)[d]]
    if sharded:
        raise ShardingTypeError(
            f"{name}: {message}, got {aval.str_short()} (and {aval.short()}) whose dimension {sharded[0]} is sharded over "
            f"{entry(dims_of(aval)[sharded[0]])!r}. Use `jax.reshard` first, or wrap the call in `jax.sharding.auto_axes`."
        )


def require_divisible(name: str, mesh: Any, shape: Sequence[int], dims: Dims, message: str) -> None:
    """Raise ShardingTypeError '<message> where out dim (2) is not divisible by mesh axes (4) ...' unless the shape divides."""
    for n, axes in zip(shape, dims):
        size = axes_size(mesh, axes)
        if n % size:
            raise ShardingTypeError(
                f"{message} where out dim ({n}) is not divisible by mesh axes ({size}) with spec ({', '.join(axes)}) is not "
                f"implemented: {name} would have to make blocks of unequal size. Reshard the operand first, or say where the "
                "result goes with `.at[...].get(out_sharding=)` or `out_sharding=`."
            )


def local_only(avals: Sequence[ShapedArray], outs: Sequence[P], **params: Any) -> Plan:
    """A plan in which every operand stays as it is and blocks are computed independently."""
    return Plan(tuple(a.sharding.spec for a in avals), tuple(outs), params=params)


def as_stored(plan_outs: int, avals: Sequence[ShapedArray], ndims: Sequence[int]) -> Plan:
    """Everything replicated: for ops that take whole arrays only."""
    return Plan(tuple(replicated(a.ndim) for a in avals), tuple(replicated(n) for n in ndims[:plan_outs]))
