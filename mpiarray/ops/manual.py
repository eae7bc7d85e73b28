"""Ops on what a value is along manual axes: casts between varying, unreduced, reduced and invariant, and the collectives
whose types say which of these they take and give (shard_map.md 6 and 8).

The casts cost nothing at run time.  `align` is the automatic cast of operands that meet: to the union of their varying axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.comm import collectives as mpi
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import NONE, Op, Out, PartialSums, define
from mpiarray.core.plan import Plan, dims_of, mesh_order, spec_from
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of
from mpiarray.ops import mapped_axis, mixed_axes
from mpiarray.ops.collectives import (
    _carried,
    _gather_batch,
    _gather_build,
    _gather_type,
    _inserted,
    _reduce_build,
    _scatter_build,
    _scatter_plan,
    _scatter_type,
    psum,
    reduce_scatter,
)
from mpiarray.ops.common import same_plan
from mpiarray.ops.linear import linear_jvp, move_dim, nary_batch
from mpiarray.types.aval import ShapedArray

Sums = Callable[..., PartialSums]


def _same(x: ShapedArray, **params: Any) -> Out:
    return Out(x.shape, x.dtype, x.weak_type)


def _axes(params: dict[str, Any]) -> frozenset[str]:
    found = params.get("axes", params.get("axis_name", ()))
    return frozenset(found if isinstance(found, tuple) else (found,))


def _plus(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> frozenset[str]:
    return avals[0].vma | _axes(params)


def _minus(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> frozenset[str]:
    return avals[0].vma - _axes(params)


def _kept(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> frozenset[str]:
    return avals[0].vma


def sums_rule(unreduced: str = "", reduced: str = "") -> Sums:
    """Add ('+') or take away ('-') the op's axes from the unreduced and the reduced ones."""

    def rule(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> PartialSums:
        (u, r), axes = (sums[0] if sums else NONE), _axes(params)
        change = {"": lambda s: s, "+": lambda s: s | axes, "-": lambda s: s - axes}
        return change[unreduced](u), change[reduced](r)

    return rule


def _cast(name: str, vma: Callable[..., frozenset[str]], sums: Sums, back: str) -> Op:
    return define(
        name,
        type_rule=_same,
        plan=same_plan,
        impl=lambda x, *, axes: x,
        jvp=linear_jvp,
        transpose=lambda op, ct, x, *, axes: [TYPED[back](ct, axes=axes)],
        batch=nary_batch,
        vma=vma,
        partial_sums=sums,
        casts=True,
        aligns=False,
        hlo_name="copy",
    )


pvary = _cast("pvary", _plus, sums_rule(), "psum_invariant")
preduced = _cast("preduced", _kept, sums_rule(reduced="+"), "unreduced_psum")
vary_unreduced_cast = _cast("vary_unreduced_cast_p", _minus, sums_rule(unreduced="+"), "reduced_vary_cast_p")
reduced_vary_cast = _cast("reduced_vary_cast_p", _plus, sums_rule(reduced="-"), "vary_unreduced_cast_p")


def _sum_build(ctx: DeviceContext, *, axes: tuple[str, ...]) -> Callable[..., Any]:
    return _reduce_build("sum")(ctx, axes=axes, axis_index_groups=None)


def _typed_sum(name: str, vma: Callable[..., frozenset[str]], sums: Sums, back: str) -> Op:
    return define(
        name,
        type_rule=_same,
        plan=same_plan,
        build=_sum_build,
        jvp=linear_jvp,
        transpose=lambda op, ct, x, *, axes: [TYPED[back](ct, axes=axes)],
        batch=mapped_axis.undivided(_carried),
        vma=vma,
        partial_sums=sums,
        casts=True,
        aligns=False,
        hlo_name="all-reduce",
    )


psum_invariant = _typed_sum("psum_invariant", _minus, sums_rule(), "pvary")
unreduced_psum = _typed_sum("unreduced_psum", _kept, sums_rule(unreduced="-"), "preduced")


def _own_part_build(
    ctx: DeviceContext, *, dimension: int, axis_name: tuple[str, ...], axis_size: int, tiled: bool
) -> Callable[..., Any]:
    index = ctx.index(axis_name)

    def run(x: np.ndarray) -> np.ndarray:
        n = x.shape[dimension] // axis_size
        part = x[(slice(None),) * dimension + (slice(index * n, (index + 1) * n),)]
        return part if tiled else np.squeeze(part, dimension)

    return run


def _own_part_type(x: ShapedArray, *, dimension: int, axis_name: tuple[str, ...], axis_size: int, tiled: bool) -> Out:
    shape = list(x.shape)
    shape[dimension] //= axis_size
    if not tiled:
        shape.pop(dimension)
    return Out(tuple(shape), x.dtype, x.weak_type)


def _own_part_plan(
    avals: tuple[ShapedArray, ...], *, dimension: int, axis_name: tuple[str, ...], axis_size: int, tiled: bool
) -> Plan:
    dims = list(dims_of(avals[0]))
    if not tiled:
        dims.pop(dimension)
    return Plan((spec_from(dims_of(avals[0])),), (spec_from(dims),))


# transpose of a gather to an invariant value: each instance takes its own slice
own_part = define(
    "own_part",
    type_rule=_own_part_type,
    plan=_own_part_plan,
    build=_own_part_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, dimension, axis_name, axis_size, tiled: [
        all_gather_invariant(
            ct,
            all_gather_dimension=dimension,
            axis_name=axis_name,
            axis_size=axis_size,
            axis_index_groups=None,
            tiled=tiled,
        )
    ],
    batch=lambda op, axis, args, dims, **params: (
        op(move_dim(args[0], dims[0], 0), **params | {"dimension": params["dimension"] + 1}),
        0,
    ),
    vma=_plus,
    casts=True,
    aligns=False,
    partial_sums=sums_rule(),
    hlo_name="slice",
)


def _typed_gather(name: str, vma: Callable[..., frozenset[str]], sums: Sums, transpose: Callable[..., Any]) -> Op:
    return define(
        name,
        type_rule=_gather_type,
        plan=_inserted("tiled", "all_gather_dimension"),
        build=_gather_build,
        jvp=linear_jvp,
        transpose=transpose,
        batch=_gather_batch,
        vma=vma,
        partial_sums=sums,
        casts=True,
        aligns=False,
        hlo_name="all-gather",
    )


all_gather_invariant: Op = _typed_gather(
    "all_gather_invariant",
    _minus,
    sums_rule(),
    lambda op, ct, x, *, all_gather_dimension, axis_name, axis_size, axis_index_groups, tiled: [
        own_part(ct, dimension=all_gather_dimension, axis_name=axis_name, axis_size=axis_size, tiled=tiled)
    ],
)
all_gather_reduced: Op = _typed_gather(
    "all_gather_reduced",
    _minus,
    sums_rule(reduced="+"),
    lambda op, ct, x, *, all_gather_dimension, **params: [
        unreduced_reduce_scatter(ct, scatter_dimension=all_gather_dimension, **params)
    ],
)

unreduced_reduce_scatter: Op = define(
    "unreduced_reduce_scatter",
    type_rule=_scatter_type,
    plan=_scatter_plan,
    build=_scatter_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, scatter_dimension, **params: [
        all_gather_reduced(ct, all_gather_dimension=scatter_dimension, **params)
    ],
    batch=reduce_scatter.batch,
    vma=_plus,
    partial_sums=sums_rule(unreduced="-"),
    casts=True,
    aligns=False,
    hlo_name="reduce-scatter",
)


def _broadcast_transpose(op: Op, ct: Any, x: Any, *, axis_name: tuple[str, ...], source: int) -> list[Any]:
    """The source's value goes to all, so that all cotangents come together there."""
    named = {a.name for a in state.mapped}
    mapped = tuple(a for a in axis_name if a in named)
    rest = tuple(a for a in axis_name if a not in named)
    for a in mapped:
        ct = psum(ct, axes=(a,), axis_index_groups=None)
    if rest and state.check_vma:
        ct = pvary(psum_invariant(ct, axes=rest), axes=rest)
    elif rest:
        ct = psum(ct, axes=rest, axis_index_groups=None)
    return [mixed_axes.only_on(ct, axis_name, source)]


def _broadcast_build(ctx: DeviceContext, *, axis_name: tuple[str, ...], source: int) -> Callable[..., Any]:
    group = ctx.group(axis_name)
    return lambda x: mpi.broadcast(group, np.asarray(x), source)


pbroadcast = define(
    "pbroadcast",
    type_rule=_same,
    plan=same_plan,
    build=_broadcast_build,
    jvp=linear_jvp,
    transpose=_broadcast_transpose,
    batch=mapped_axis.over(mapped_axis.from_one, _carried, mixed_axes.from_one),
    aligns=False,
    hlo_name="collective-broadcast",
)

TYPED: dict[str, Op] = {
    op.name: op for op in (pvary, preduced, vary_unreduced_cast, reduced_vary_cast, psum_invariant, unreduced_psum)
}


def align(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Operands of an ordinary op inside shard_map: cast to vary over all axes that any of them varies over."""
    if len(args) < 2 or not op.aligns or not state.check_vma:
        return args
    avals = [aval_of(a) for a in args]
    union = frozenset().union(*(a.vma for a in avals))
    if not union or all(a.vma == union for a in avals):
        return args
    mesh = state.abstract_mesh
    return [_vary_to(x, a, union, mesh) for x, a in zip(args, avals)]


def _vary_to(x: Any, aval: ShapedArray, union: frozenset[str], mesh: Any) -> Any:
    missing = union - aval.vma
    reduced = missing & aval.manual.reduced
    if reduced:
        x = reduced_vary_cast(x, axes=mesh_order(mesh, reduced))
    invariant = missing - aval.manual.reduced - aval.manual.unreduced
    return pvary(x, axes=mesh_order(mesh, invariant)) if invariant else x
