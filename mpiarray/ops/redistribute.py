"""Redistribution plans as ops on blocks: the one place that says which op each step is.

The compiler binds them while it partitions a program; `runtime.transfer` builds and runs them on arrays whose
source and target are on different devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mpiarray.comm import collectives as mpi
from mpiarray.comm import prepared
from mpiarray.comm.groups import device_group
from mpiarray.core import redistribution as rd
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.trace import abstract_mesh
from mpiarray.ops.collectives import all_gather, all_to_all, psum, reduce_scatter, shard_slice, shard_widen
from mpiarray.ops.common import same_plan
from mpiarray.ops.linear import mask_replicas
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh

_COMPILED_ONLY = "it only stands in compiled programs, after derivatives and batching"


def _exchange_build(ctx: DeviceContext, *, step: rd.Exchange) -> Callable[..., Any]:
    """Peers in the step are positions of `ctx.device_ids`, or world ranks when the step names devices."""
    members = step.members()
    group = (
        device_group(tuple(ctx.device_ids[m] for m in members))
        if members != tuple(range(len(members)))
        else ctx.all_devices()
    )
    place = {m: k for k, m in enumerate(members)}
    table = step.for_rank(ctx.position)
    return exchanger(table, group, place)


def exchanger(table: rd.RankTable, group: Any, place: dict[int, int]) -> Callable[..., Any]:
    """What one device does in an exchange: a function from its source block (None: it has none) to its target block.

    One call for all boxes, so that every member makes the same number of calls whatever it sends.
    """
    sends = [(place[t.peer], t.box) for t in table.sends]
    recvs = [(place[t.peer], t.box) for t in table.recvs]

    def run(x: np.ndarray | None, dtype: Any = None) -> np.ndarray | None:
        dtype = x.dtype if x is not None else dtype
        out = None
        if table.target_shape is not None:
            out = (np.empty if table.covered else np.zeros)(table.target_shape, dtype)
            for source, target in table.copies:
                out[target] = x[source]  # type: ignore[index]
        mpi.exchange(group, [(p, x[box]) for p, box in sends], [(p, out[box]) for p, box in recvs])  # type: ignore[index]
        return out

    return run


def _exchange_type(x: ShapedArray, *, step: rd.Exchange) -> Out:
    return Out(step.target.block_shape(step.shape), x.dtype, x.weak_type)


exchange = define(
    "exchange",
    type_rule=_exchange_type,
    plan=same_plan,
    build=_exchange_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="all-to-all",
)


def _move_build(ctx: DeviceContext, *, pairs: tuple[tuple[int, int], ...]) -> Callable[..., Any]:
    return prepared.permute(ctx.all_devices(), pairs)


move_blocks = define(
    "move_blocks",
    type_rule=lambda x, *, pairs: Out(x.shape, x.dtype, x.weak_type),
    plan=same_plan,
    build=_move_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="collective-permute",
)


class StepOp(NamedTuple):
    """An op that does one step, and the mesh (of the plan's placement before it) whose axes its params name."""

    op: Op
    params: dict[str, Any]
    mesh: AbstractMesh


@lru_cache(maxsize=4096)
def step_ops(plan: rd.Redistribution) -> tuple[StepOp, ...]:
    """The ops of a plan, in order; steps that move nothing are left out."""
    return tuple(_step_ops(plan))


def _step_ops(plan: rd.Redistribution) -> Iterator[StepOp]:
    for step, before in zip(plan.steps, plan.states):
        mesh = AbstractMesh(tuple(n for _, n in before.axes), tuple(a for a, _ in before.axes))
        found = _axis_op(step, mesh)
        if found is not None:
            yield StepOp(*found, mesh)


def _axis_op(step: rd.Step, mesh: AbstractMesh) -> tuple[Op, dict[str, Any]] | None:
    match step:
        case rd.Relabel():
            return None
        case rd.Slice(dim=dim, axes=axes):
            return shard_slice, {"axes": axes, "axes_size": _size(mesh, axes), "dim": dim}
        case rd.Widen(dim=dim, axes=axes):
            return shard_widen, {"axes": axes, "axes_size": _size(mesh, axes), "dim": dim}
        case rd.Mask(axes=axes):
            return mask_replicas, {"axes": axes}
        case rd.AllReduce(axes=axes):
            return psum, {"axes": axes, "axis_index_groups": None}
        case rd.AllGather(dim=dim, axes=axes):
            return all_gather, _grouped(mesh, axes) | {"all_gather_dimension": dim}
        case rd.ReduceScatter(dim=dim, axes=axes):
            return reduce_scatter, _grouped(mesh, axes) | {"scatter_dimension": dim}
        case rd.AllToAll(axes=axes, from_dim=source, to_dim=target):
            return all_to_all, _grouped(mesh, axes) | {"split_axis": target, "concat_axis": source}
        case rd.Exchange():
            return exchange, {"step": step}
        case rd.Permute(pairs=pairs):
            return move_blocks, {"pairs": pairs}
    raise TypeError(f"redistribution: no op does the step {step!r}")


def _grouped(mesh: AbstractMesh, axes: tuple[str, ...]) -> dict[str, Any]:
    return {"axis_name": axes, "axis_size": _size(mesh, axes), "axis_index_groups": None, "tiled": True}


def _size(mesh: AbstractMesh, axes: tuple[str, ...]) -> int:
    return math.prod(mesh.shape[a] for a in axes)


def redistribute(x: Any, shape: tuple[int, ...], itemsize: int, source: Any, target: Any) -> Any:
    """Bind the steps from one (abstract mesh, spec) to another on a block; both meshes have the same devices in one order."""
    for op, params, mesh in step_ops(rd.plan(shape, itemsize, source, target)):
        with abstract_mesh(mesh):
            x = op(x, **params)
    return x
