"""`update_inside`: within a box an array takes the values of another one of its shape that lies like it.

`u.at[1:-1].set(f(u[:-2], u[2:]))` writes a smaller array, whose dims need not divide among the devices where those of `u` do,
and whose blocks lie elsewhere.  With its operands shifted instead of cut (passes.inside) the same is a function of whole
arrays: each device computes the part of the box that it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Out, Undefined, define
from mpiarray.core.plan import Plan, dims_of, spec_from
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.boxes import Blocks, blocks_of, range_of

Box = tuple[slice, ...]

_NEVER = Undefined("it only stands in compiled programs, after derivatives are taken")


def _plan(avals: Any, *, start: tuple[int, ...], limit: tuple[int, ...], blocks: Any) -> Plan:
    base, new = avals
    dims = dims_of(base)
    if dims_of(new) != dims:
        raise ShardingTypeError(f"update_inside: both operands must lie alike, got {base.short()} and {new.short()}")
    spec = spec_from(dims)
    return Plan((spec, spec), (spec,), params={"blocks": blocks_of(base.sharding.mesh, base.shape, dims)})


def own_part(ctx: DeviceContext, start: tuple[int, ...], limit: tuple[int, ...], blocks: tuple[Blocks, ...]) -> Box:
    """The part of the box that this device holds, in numbers within its block; empty slices where it holds nothing of it."""
    sizes = dict(ctx.mesh.shape_tuple)
    found = []
    for first, last, cut in zip(start, limit, blocks):
        at, length = range_of(sizes, ctx.coords, cut)
        found.append(slice(max(first - at, 0), min(last - at, length)))
    return tuple(found) if all(s.start < s.stop for s in found) else tuple(slice(0, 0) for _ in found)


def _build(ctx: DeviceContext, *, start: Any, limit: Any, blocks: tuple[Blocks, ...]) -> Callable[..., Any]:
    box = own_part(ctx, start, limit, blocks)
    if not all(s.stop for s in box):
        return lambda base, new: memory.copied(base)  # no view: whoever reads the operand last may write over it
    if all((s.start, s.stop) == (0, b.length) for s, b in zip(box, blocks)):
        return lambda base, new: memory.copied(new)

    def run(base: Any, new: Any) -> np.ndarray:
        out = memory.copied(base)
        out[box] = new[box]
        return out

    return run


update_inside = define(
    "update_inside",
    type_rule=lambda base, new, **params: Out(base.shape, base.dtype, base.weak_type and new.weak_type),
    plan=_plan,
    build=_build,
    jvp=_NEVER,
    transpose=_NEVER,
    batch=_NEVER,
    hlo_name="dynamic-update-slice",
)
