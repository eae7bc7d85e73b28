"""Collectives in two halves, for compiled programs: `psum_start` begins what `psum_done` waits for.

    token = psum_start(x, axes=("x",), axis_index_groups=None)
    ...                                  work that needs neither
    total = psum_done(token, x, axes=("x",), axis_index_groups=None)

A token has the type of the result, whose memory it holds while messages travel; at run time it is a
`comm.halves.Started`, which nothing but the second half may read.  The operands go to both halves: they are being read
until the second one.  Only the overlap pass makes these ops, in one jaxpr and in pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.comm import halves
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.plan import Plan
from mpiarray.ops import collectives, manual
from mpiarray.types.aval import ShapedArray

_NEVER = Undefined("it only stands in compiled programs, after derivatives are taken")

Maker = Callable[..., Callable[..., halves.Started]]


def _reduce(kind: str) -> Maker:
    def make(ctx: DeviceContext, *, axes: tuple[str, ...], axis_index_groups: Any = None) -> Any:
        return halves.all_reduce(ctx.group(axes, axis_index_groups), kind)

    return make


def _many(ctx: DeviceContext, *, axes: tuple[str, ...], axis_index_groups: Any) -> Any:
    return halves.all_reduce_many(ctx.group(axes, axis_index_groups), "sum")


def _gather(
    ctx: DeviceContext,
    *,
    all_gather_dimension: int,
    axis_name: Any,
    axis_size: int,
    axis_index_groups: Any,
    tiled: bool,
) -> Any:
    return halves.all_gather(ctx.group(axis_name, axis_index_groups), all_gather_dimension, tiled)


def _scatter(
    ctx: DeviceContext, *, scatter_dimension: int, axis_name: Any, axis_size: int, axis_index_groups: Any, tiled: bool
) -> Any:
    return halves.reduce_scatter(ctx.group(axis_name, axis_index_groups), scatter_dimension, "sum", tiled)


def _exchange(
    ctx: DeviceContext, *, axis_name: Any, split_axis: int, concat_axis: int, axis_index_groups: Any, tiled: bool,
    axis_size: int,
) -> Any:  # fmt: skip
    axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    return halves.all_to_all(ctx.group(axes, axis_index_groups), split_axis, concat_axis, tiled)


def _permute(ctx: DeviceContext, *, axis_name: tuple[str, ...], perm: tuple[tuple[int, int], ...]) -> Any:
    return halves.permute(ctx.group(tuple(a for a in ctx.mesh.axis_names if a in axis_name)), perm)


_MAKERS: dict[Op, Maker] = {
    collectives.psum: _reduce("sum"),
    collectives.psum_many: _many,
    collectives.pmax: _reduce("max"),
    collectives.pmin: _reduce("min"),
    collectives.all_gather: _gather,
    collectives.reduce_scatter: _scatter,
    collectives.all_to_all: _exchange,
    collectives.ppermute: _permute,
    manual.psum_invariant: _reduce("sum"),
    manual.unreduced_psum: _reduce("sum"),
    manual.all_gather_invariant: _gather,
    manual.all_gather_reduced: _gather,
    manual.unreduced_reduce_scatter: _scatter,
}


def _blocks_plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
    raise TypeError("halves of collectives are made of blocks, after partition: they have no plan")


def _start(op: Op, make: Maker) -> Op:
    def build(ctx: DeviceContext, **params: Any) -> Callable[..., Any]:
        run = make(ctx, **params)
        if not op.multiple_results:
            return lambda x: run(np.asarray(x))

        def several(*blocks: Any) -> list[Any]:
            return [run(*map(np.asarray, blocks))] * len(blocks)

        return several

    return define(
        f"{op.name}_start",
        type_rule=op.type_rule,
        plan=_blocks_plan,
        build=build,
        jvp=_NEVER,
        transpose=_NEVER,
        batch=_NEVER,
        multiple_results=op.multiple_results,
        vma=op.vma,
        aligns=False,
        hlo_name=f"{op.hlo_name}-start",
    )


def _done(op: Op) -> Op:
    def type_rule(*avals: ShapedArray, **params: Any) -> Any:
        outs = [Out(a.shape, a.dtype, a.weak_type) for a in avals[: len(avals) // 2]]
        return outs if op.multiple_results else outs[0]

    def build(ctx: DeviceContext, **params: Any) -> Callable[..., Any]:
        return lambda token, *others: token.wait()

    return define(
        f"{op.name}_done",
        type_rule=type_rule,
        plan=_blocks_plan,
        build=build,
        jvp=_NEVER,
        transpose=_NEVER,
        batch=_NEVER,
        multiple_results=op.multiple_results,
        vma=lambda avals, params: avals[0].vma,
        aligns=False,
        hlo_name=f"{op.hlo_name}-done",
    )


#: (first half, second half) of each collective that has them
HALVES: dict[Op, tuple[Op, Op]] = {op: (_start(op, make), _done(op)) for op, make in _MAKERS.items()}
