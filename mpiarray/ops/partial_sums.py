"""What elementwise ops do to operands that are unreduced (the value is the sum of the blocks over some axes) or
reduced (their cotangent will be unreduced).

Each function is a `partial_sums` rule of an op record (core.op): it takes `(unreduced, reduced)` of every operand and
gives those of the result, or raises.  They stand apart because the families of ops share them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpiarray.core.op import NONE, Op, PartialSums
from mpiarray.errors import ShardingTypeError
from mpiarray.types.aval import ShapedArray

Axes = frozenset[str]
_NO_AXES: Axes = frozenset()
_HINT = "Use `jax.reshard` to bring both to one type."


def _shown(avals: Sequence[ShapedArray]) -> str:
    return ", ".join(a.short() for a in avals)


def refuse_unreduced(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict) -> PartialSums:
    """For ops that are not linear: f(a + b) is not f(a) + f(b), so the sum has to be made first."""
    unreduced = _NO_AXES.union(*(u for u, _ in sums))
    if unreduced:
        raise NotImplementedError(
            f"unreduced rule for {op.name} is not implemented: got operands {_shown(avals)}, unreduced over "
            f"{sorted(unreduced)}; the value is the sum of the blocks over these axes, and {op.name} of the parts does "
            "not add up. Use `jax.reshard` to reduce it first."
        )
    return join_reduced(op, sums, avals, params)


def add_sums(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict) -> PartialSums:
    """u + u stays unreduced; u + anything else would add the other operand once per device."""
    us = [u for u, _ in sums]
    if not any(us):
        return join_reduced(op, sums, avals, params)
    if len(set(us)) > 1:
        side, other = ("lhs", "rhs") if us[0] else ("rhs", "lhs")
        what = "is unreduced while {} is not" if not all(us) else "and {} are unreduced over different axes"
        raise ShardingTypeError(f"{op.name}: {side} {what.format(other)}, got {_shown(avals)}. {_HINT}")
    return us[0], _NO_AXES


def mul_sums(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict) -> PartialSums:
    """(sum of u) * r is the sum of u * r, if r is the same on the devices that hold the parts, and typed so."""
    (ux, rx), (uy, ry) = sums
    if ux and uy:
        raise ShardingTypeError(
            f"{op.name}: lhs and rhs cannot both be unreduced, got {_shown(avals)}: reduce one of them first. {_HINT}"
        )
    if ux and ry != ux:
        raise ShardingTypeError(
            f"{op.name}: RHS should be reduced along the same axes LHS is unreduced on, got {_shown(avals)}. {_HINT}"
        )
    if uy and rx != uy:
        raise ShardingTypeError(
            f"{op.name}: LHS should be reduced along the same axes RHS is unreduced on, got {_shown(avals)}. {_HINT}"
        )
    return (ux | uy, _NO_AXES) if ux or uy else join_reduced(op, sums, avals, params)


def div_sums(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict) -> PartialSums:
    """Linear in the dividend only."""
    return refuse_unreduced(op, sums, avals, params) if sums[1][0] else mul_sums(op, sums, avals, params)


def select_sums(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict) -> PartialSums:
    """The cases agree; the predicate picks alike on all devices that hold parts, so it is plain."""
    if sums[0][0]:
        return refuse_unreduced(op, sums, avals, params)
    cases = sums[1:]
    if len({u for u, _ in cases}) > 1:
        raise ShardingTypeError(
            f"{op.name}: all cases should be unreduced over the same axes, got {_shown(avals)}. {_HINT}"
        )
    unreduced = cases[0][0]
    return (unreduced, _NO_AXES) if unreduced else join_reduced(op, cases, avals[1:], params)


def join_reduced(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict) -> PartialSums:
    """Operands that are reduced over axes: all arrays must be, or none.

    Scalars go with any where the axes are Explicit.  A reduced operand that meets one that varies over the same Manual
    axis counts as varying.
    """
    reduced = _NO_AXES.union(*(r for _, r in sums))
    if not reduced:
        return NONE
    mesh = next(a.mesh for a, (_, r) in zip(avals, sums) if r)
    manual = frozenset(mesh.manual_axes)
    varying = _NO_AXES.union(*(a.vma for a in avals)) & manual
    reduced -= varying
    for a, (_, r) in zip(avals, sums):
        missing = reduced - r if a.ndim or r else (reduced - r) & manual
        if missing:
            sharded = missing & {x for axes in a.dims for x in axes}
            raise ShardingTypeError(
                f"{op.name}: Inputs cannot be {'sharded/varying' if sharded else 'replicated'} on the same axes that "
                f"another input is reduced on, got {_shown(avals)}, where {a.short()} is not reduced over "
                f"{sorted(missing)}. Use `jax.reshard` (in a shard_map body `jax.lax.pcast`) to bring all to one type."
            )
    return _NO_AXES, reduced
