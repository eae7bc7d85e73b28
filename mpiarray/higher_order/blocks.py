"""Programs on the blocks of a map's instances: their equations bound as they are, since blocks are what they are about.

The partition pass turns global equations into ones on blocks; the bodies of `shard_map` are that already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.compiler.passes.combine import combine
from mpiarray.compiler.passes.overlap import overlap
from mpiarray.compiler.passes.partition import LocalTrace
from mpiarray.compiler.passes.simplify import common_subexpressions, inline
from mpiarray.compiler.program import Program
from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr
from mpiarray.core.trace import abstract_mesh, current
from mpiarray.core.value import Literal
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, AbstractMesh


class BlockPartitioner:
    """What the lowering rules of ops with jaxprs ask, for equations that are on blocks already: there are no plans."""

    def __init__(self) -> None:
        self.program = Program("blocks", Jaxpr((), (), (), ()), (), (), EMPTY_ABSTRACT_MESH, 1)

    def inlined(self, jaxpr: Jaxpr) -> Jaxpr:
        return dead_code(inline(jaxpr))


def bind_blocks(partitioner: Any, jaxpr: Jaxpr, operands: Sequence[Any], mesh: AbstractMesh) -> list[Any]:
    """Bind a body's equations on blocks; axis names mean the mesh that each was traced under (`mesh` for those without one)."""
    body = partitioner.inlined(jaxpr)
    env: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else env[atom]

    for e in body.eqns:
        ins = [read(v) for v in e.invars]
        with abstract_mesh(mesh if e.mesh.empty else e.mesh):
            out = e.op.lower(partitioner, e, ins) if e.op.lower is not None else e.op(*ins, **e.params)
        env.update(zip(e.outvars, out if e.op.multiple_results else [out]))
    return [read(v) for v in body.outvars]


def block_program(partitioner: Any, closed: ClosedJaxpr, mesh: AbstractMesh) -> ClosedJaxpr:
    """A jaxpr on blocks as a local program."""
    trace = LocalTrace(closed.jaxpr.debug_name, None, record_source=False)
    args = [trace.new_arg(ShapedArray(a.shape, a.dtype, a.weak_type)) for a in closed.in_avals]
    with current(trace), abstract_mesh(EMPTY_ABSTRACT_MESH):
        outs = bind_blocks(partitioner, closed.jaxpr, args, mesh)
        local = trace.finish(args, outs)
    return ClosedJaxpr(overlap(combine(common_subexpressions(dead_code(local.jaxpr)))), local.consts)
