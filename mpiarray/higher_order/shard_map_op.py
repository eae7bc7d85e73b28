"""The `shard_map` equation: a jaxpr of blocks inside a global program.

The compiler inlines it: its body is what partition makes of everything else, ops on blocks and collectives.
"""

from __future__ import annotations

from typing import Any

from mpiarray.compiler.pipeline import lower, results_of
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn
from mpiarray.core.op import Undefined, define
from mpiarray.core.plan import Plan, axes_size, replicated
from mpiarray.core.trace import state
from mpiarray.higher_order.blocks import bind_blocks
from mpiarray.higher_order.shard_map_batch import map_batch
from mpiarray.higher_order.shard_map_rules import inside, map_jvp, map_kept, map_partial_eval, map_transpose
from mpiarray.transforms.evaluate import eval_jaxpr
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


def _result(mesh: AbstractMesh, aval: ShapedArray, spec: P, manual: frozenset[str]) -> ShapedArray:
    padded = spec.padded(aval.ndim)
    typed = aval.sharding.spec.dims if not aval.mesh.empty else ((),) * aval.ndim
    shape = tuple(n * axes_size(mesh, axes) for n, axes in zip(aval.shape, padded.dims))
    dims = tuple((*mine, *rest) for mine, rest in zip(padded.dims, typed))
    shown = tuple(tuple(a for a in axes if mesh.axis_type_of[a] is AxisType.Explicit) for axes in dims)
    kinds = aval.manual.update(
        varying=aval.manual.varying - manual, unreduced=aval.manual.unreduced - manual, reduced=aval.manual.reduced - manual
    )  # fmt: skip
    return ShapedArray(
        shape, aval.dtype, aval.weak_type, NamedSharding(mesh, P.from_dims(shown, spec.unreduced, spec.reduced)), kinds
    )


def _infer(
    avals: Any,
    context: Any,
    *,
    jaxpr: Any,
    mesh: AbstractMesh,
    newly_manual_axes: frozenset[str],
    out_specs: tuple[P, ...],
    **params: Any,
) -> Any:
    return [_result(mesh, a, s, newly_manual_axes) for a, s in zip(jaxpr.out_avals, out_specs)]


def _plan(
    avals: Any, *, jaxpr: ClosedJaxpr, mesh: AbstractMesh, newly_manual_axes: frozenset[str], check_vma: bool, in_specs: tuple[P, ...],
    out_specs: tuple[P, ...],
) -> Plan:  # fmt: skip
    """Over the manual axes operands lie as their specs say; over the others (partial manual) as they do, behind the manual ones."""
    if not _others(mesh, newly_manual_axes):
        ins = tuple(s.padded(a.ndim) for s, a in zip(in_specs, avals))
        return Plan(ins, tuple(s.padded(a.ndim) for s, a in zip(out_specs, jaxpr.out_avals)))
    rest = [_rest(a, s, mesh, newly_manual_axes) for a, s in zip(avals, in_specs)]
    fallen = _fallen(jaxpr, tuple(rest), mesh, newly_manual_axes, check_vma)
    ins = tuple(_behind(s, r) for s, r in zip(in_specs, rest))
    return Plan(ins, tuple(_behind(s, r) for s, r in zip(out_specs, fallen)))


def _others(mesh: AbstractMesh, manual: frozenset[str]) -> tuple[str, ...]:
    """The axes that are not manual in the body."""
    return tuple(a for a in mesh.axis_names if a not in manual and mesh.axis_type_of[a] is not AxisType.Manual)


def _rest(a: Any, spec: P, mesh: AbstractMesh, manual: frozenset[str]) -> P:
    """Where an instance's value lies over the other axes: as the operand does, where that divides its block."""
    dims = []
    for n, own, axes in zip(a.shape, a.sharding.spec.dims, spec.padded(a.ndim).dims):
        other = tuple(x for x in own if x not in manual)
        dims.append(other if n % axes_size(mesh, (*axes, *other)) == 0 else ())
    return P.from_dims(tuple(dims))


def _behind(spec: P, rest: P) -> P:
    dims = tuple((*mine, *other) for mine, other in zip(spec.padded(len(rest.dims)).dims, rest.dims))
    return P.from_dims(dims, spec.unreduced | rest.unreduced, spec.reduced | rest.reduced)


def _fallen(
    jaxpr: ClosedJaxpr, rest: tuple[P, ...], mesh: AbstractMesh, manual: frozenset[str], check_vma: bool
) -> tuple[P, ...]:
    """Where the body's results lie over the other axes."""
    if not mesh.auto_axes:
        return tuple(replicated(a.ndim) if a.sharding.mesh.empty else P.from_dims(a.dims) for a in jaxpr.out_avals)
    with inside(mesh, manual, check_vma):
        return results_of("shard_map", jaxpr, rest, state.abstract_mesh)


def _lower(partitioner: Any, eqn: Eqn, operands: list[Any]) -> list[Any]:
    """Bind the body's equations on the blocks; axis names mean the mesh with its manual axes.

    Where other axes remain the body is partitioned over them first.
    """
    params = eqn.params
    jaxpr, manual = params["jaxpr"], params["newly_manual_axes"]
    plan = partitioner.program.plans.get(eqn)
    if plan is None or not _others(params["mesh"], manual):
        return bind_blocks(partitioner, jaxpr.jaxpr, operands, params["mesh"])
    ins, outs = (tuple(_without(s, manual) for s in specs) for specs in (plan.ins, plan.outs))
    with inside(params["mesh"], manual, params["check_vma"]):
        local = lower(
            f"{partitioner.program.name}_shard_map", jaxpr, ins, outs, state.abstract_mesh, partitioner.program.size
        ).local
    assert local is not None, "the pipeline partitions"
    return eval_jaxpr(local.jaxpr, local.consts, operands)


def _without(spec: P, manual: frozenset[str]) -> P:
    return P.from_dims(tuple(tuple(a for a in axes if a not in manual) for axes in spec.dims))


shard_map_op = define(
    "shard_map",
    type_rule=Undefined("its types are those of its jaxpr and specs"),
    infer=_infer,
    plan=_plan,
    lower=_lower,
    jvp=map_jvp,
    transpose=map_transpose,
    partial_eval=map_partial_eval,
    batch=map_batch,
    kept=map_kept,
    multiple_results=True,
    aligns=False,
)
