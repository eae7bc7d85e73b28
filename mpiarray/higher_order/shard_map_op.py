"""The `shard_map` equation: a jaxpr of blocks inside a global program.

The compiler inlines it: its body is what partition makes of everything else, ops on blocks and collectives.
"""

from __future__ import annotations

from typing import Any

from mpiarray.core.op import Undefined, define
from mpiarray.core.plan import Plan, axes_size
from mpiarray.higher_order.blocks import bind_blocks
from mpiarray.higher_order.shard_map_rules import map_jvp, map_partial_eval, map_transpose
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

_LATER = "batching of shard_map comes with the transformations"


def _result(mesh: AbstractMesh, aval: ShapedArray, spec: P, manual: frozenset[str]) -> ShapedArray:
    padded = spec.padded(aval.ndim)
    typed = aval.sharding.spec.dims if not aval.mesh.empty else ((),) * aval.ndim
    shape = tuple(n * axes_size(mesh, axes) for n, axes in zip(aval.shape, padded.dims))
    dims = tuple((*mine, *rest) for mine, rest in zip(padded.dims, typed))
    shown = tuple(tuple(a for a in axes if mesh.axis_type_of[a] is AxisType.Explicit) for axes in dims)
    kinds = aval.manual.update(
        varying=aval.manual.varying - manual, unreduced=aval.manual.unreduced - manual, reduced=aval.manual.reduced - manual
    )  # fmt: skip
    return ShapedArray(shape, aval.dtype, aval.weak_type, NamedSharding(mesh, P.from_dims(shown, spec.unreduced, spec.reduced)), kinds)


def _infer(avals: Any, context: Any, *, jaxpr: Any, mesh: AbstractMesh, newly_manual_axes: frozenset[str], out_specs: tuple[P, ...], **params: Any) -> Any:
    return [_result(mesh, a, s, newly_manual_axes) for a, s in zip(jaxpr.out_avals, out_specs)]


def _plan(avals: Any, *, in_specs: tuple[P, ...], out_specs: tuple[P, ...], jaxpr: Any, **params: Any) -> Plan:
    ins = tuple(_padded(s, a.ndim) for s, a in zip(in_specs, avals))
    outs = tuple(_padded(s, a.ndim) for s, a in zip(out_specs, jaxpr.out_avals))
    return Plan(ins, outs)


def _padded(spec: P, ndim: int) -> P:
    return spec.padded(ndim)


def _lower(partitioner: Any, eqn: Any, operands: list[Any]) -> list[Any]:
    """Bind the body's equations on the blocks; axis names mean the mesh with its manual axes."""
    return bind_blocks(partitioner, eqn.params["jaxpr"].jaxpr, operands, eqn.params["mesh"])


shard_map_op = define(
    "shard_map",
    type_rule=Undefined("its types are those of its jaxpr and specs"),
    infer=_infer,
    plan=_plan,
    lower=_lower,
    jvp=map_jvp,
    transpose=map_transpose,
    partial_eval=map_partial_eval,
    batch=Undefined(_LATER),
    multiple_results=True,
    aligns=False,
)
