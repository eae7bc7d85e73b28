"""What the lowering of loops and conditionals shares: where their values lie, and their bodies as programs of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mpiarray.compiler.pipeline import lower, results_of
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn
from mpiarray.core.op import Out
from mpiarray.core.plan import Plan, replicated
from mpiarray.errors import InternalError
from mpiarray.higher_order.blocks import block_program
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

Specs = tuple[P, ...]


def leading(spec: P) -> P:
    """The spec of values stacked along a new first dim, which is not sharded."""
    return P.from_dims(((), *spec.dims), spec.unreduced, spec.reduced)


def without_leading(spec: P) -> P:
    return P.from_dims(spec.dims[1:], spec.unreduced, spec.reduced)


def stacked_aval(aval: ShapedArray, length: int) -> ShapedArray:
    """The type of `length` values stacked along a new first dim."""
    shape = (length, *aval.shape)
    if aval.sharding.mesh.empty:
        return ShapedArray(shape, aval.dtype, aval.weak_type, None, aval.manual)
    return ShapedArray(
        shape,
        aval.dtype,
        aval.weak_type,
        NamedSharding(aval.sharding.mesh, leading(aval.sharding.spec)),
        aval.manual,
    )


def typed_specs(avals: Sequence[ShapedArray]) -> Specs:
    return tuple(replicated(a.ndim) if a.sharding.mesh.empty else a.sharding.spec.padded(a.ndim) for a in avals)


@lru_cache(maxsize=1024)
def fallen(closed: ClosedJaxpr, in_specs: Specs, mesh: AbstractMesh) -> Specs:
    """Where a body's results fall; on Explicit and Manual axes their types say it."""
    return results_of("body", closed, in_specs, mesh) if mesh.auto_axes else typed_specs(closed.out_avals)


def settle(closed: ClosedJaxpr, before: Specs, carry: Specs, after: Specs, mesh: AbstractMesh) -> tuple[Specs, Specs]:
    """(where a loop's carry lies, where the body's results fall): where the initial carry lies, unless the body leaves it elsewhere and keeps it there."""
    n = len(carry)
    first = fallen(closed, (*before, *carry, *after), mesh)
    if first[:n] == carry:
        return carry, first
    second = fallen(closed, (*before, *first[:n], *after), mesh)
    if second[:n] == first[:n]:
        return first[:n], second
    return carry, first


def plan_of(partitioner: Any, eqn: Eqn) -> Plan | None:
    """The plan of an equation of a global program; None for equations on blocks."""
    return partitioner.program.plans.get(eqn)


def global_body(
    partitioner: Any, eqn: Eqn, closed: ClosedJaxpr, in_specs: Sequence[P], out_specs: Sequence[P]
) -> ClosedJaxpr:
    """A body of a global equation as a local program, for arguments that lie so and results that are to."""
    program = partitioner.program
    local = lower(f"{program.name}_{eqn.op.name}", closed, in_specs, out_specs, program.mesh, program.size).local
    assert local is not None, "the pipeline partitions"
    return local


def local_body(partitioner: Any, eqn: Eqn, closed: ClosedJaxpr) -> ClosedJaxpr:
    """A body of an equation on blocks as a local program."""
    return block_program(partitioner, closed, eqn.mesh)


def outs_of(avals: Sequence[ShapedArray]) -> list[Out]:
    return [Out(a.shape, a.dtype, a.weak_type) for a in avals]


def block_dtype(aval: ShapedArray) -> Any:
    """The numpy dtype of a value's blocks."""
    return dtypes.storage(aval.dtype)


def check_operands(name: str, avals: Sequence[ShapedArray], wanted: Sequence[ShapedArray]) -> None:
    """The operands of an equation are what its jaxpr takes; only a broken rule makes them differ."""
    got, want = [(a.shape, a.dtype) for a in avals], [(a.shape, a.dtype) for a in wanted]
    if got != want:
        raise InternalError(f"{name}: operands {list(avals)} for a jaxpr that takes {list(wanted)}")


def check_loop(name: str, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> None:
    """A loop's carry keeps its type; the functions for users have checked it, so that only a broken rule makes it differ."""
    for a, o in zip(ins, outs, strict=True):
        same = (a.shape, a.dtype, a.dims, a.unreduced, a.reduced) == (o.shape, o.dtype, o.dims, o.unreduced, o.reduced)
        if not same:
            raise InternalError(f"{name}: the carry of type {a} comes back as {o}")
