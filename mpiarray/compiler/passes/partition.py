"""From a global program to the one that every rank runs on its blocks: ops on local shapes and collectives.

Operands are brought to the shardings that an equation's plan wants (redistribution), the op runs on blocks with the
plan's parameters (or its local program does), pending sums are reduced, and the result goes where its type says.
A sum whose axes then shard the result becomes a reduce-scatter, since it is redistributed as an unreduced value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.compiler.passes.propagate import itemsize, laid, mesh_of_eqn, spec_of
from mpiarray.compiler.passes.simplify import inline
from mpiarray.compiler.program import Program
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, uses_of
from mpiarray.core.op import Op
from mpiarray.core.plan import Laid, LocalContext, Pending, Plan, local_shape, mesh_order, replicated
from mpiarray.core.trace import abstract_mesh, current
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import reduce_over
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.redistribute import redistribute
from mpiarray.transforms.evaluate import dead_code
from mpiarray.transforms.stage import StageTrace
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


class LocalTrace(StageTrace):
    """Stages ops on blocks: types are shapes and dtypes only, and axis names mean the mesh they were bound under."""

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if op.casts and op.impl is not None:  # only the type changes
            return args[0]
        return super().process(op, args, params)

    def types(self, op: Op, avals: list[ShapedArray], params: dict[str, Any]) -> Sequence[ShapedArray]:
        out = op.type_rule(*avals, **params)
        outs = out if op.multiple_results else (out,)
        return [ShapedArray(tuple(o.shape), o.dtype, o.weak_type) for o in outs]


def partition(program: Program) -> Program:
    """The local program of a propagated one; `out_specs` are then the specs that the results really have."""
    return _Partitioner(program).run()


class _Partitioner:
    def __init__(self, program: Program):
        self.program = program
        self.trace = LocalTrace(program.name, None, record_source=False)
        self.blocks: dict[Var, Any] = {}
        self.specs = program.specs
        # the same value at another placement, so that two readers do not move it twice
        self.moved: dict[tuple[Var, Any, P], Any] = {}
        # sums that one reader alone waits for: it may want them scattered, so that they are not reduced before it comes
        self.sums: dict[Var, tuple[AbstractMesh, P]] = {}
        self.broadcasts: dict[Var, Eqn] = {}  # of which every rank has all: they are made anew where a part is wanted
        self.bodies: dict[Jaxpr, Jaxpr] = {}
        self.uses = uses_of(program.jaxpr)

    def run(self) -> Program:
        jaxpr = self.program.jaxpr
        args = [self.trace.new_arg(self.local_aval(v)) for v in jaxpr.invars]
        self.blocks.update(zip(jaxpr.invars, args))
        with current(self.trace), abstract_mesh(AbstractMesh((), ())):
            for eqn in jaxpr.eqns:
                self.run_eqn(eqn)
            outs, out_specs = self.results()
            local = self.trace.finish(args, outs)
        return self.program.update(local=local, out_specs=tuple(out_specs))

    def local_aval(self, v: Var) -> ShapedArray:
        mesh = self.mesh_of(v)
        return ShapedArray(local_shape(mesh, v.aval.shape, self.specs[v].dims), v.aval.dtype, v.aval.weak_type)

    def mesh_of(self, atom: Atom) -> AbstractMesh:
        own = atom.aval.mesh
        return self.program.mesh if own.empty else own

    def results(self) -> tuple[list[Any], list[P]]:
        outs, specs = [], []
        for atom, wanted in zip(self.program.jaxpr.outvars, self.program.out_specs):
            have = spec_of(self.specs, atom)
            mesh = self.mesh_of(atom)
            target = have if wanted is None else wanted
            outs.append(self.at(atom, mesh, target))
            specs.append(target)
        return outs, specs

    def at(self, atom: Atom, mesh: AbstractMesh, spec: P) -> Any:
        """The block of an operand, laid out by `spec` on `mesh`."""
        if isinstance(atom, Literal):
            return atom
        have = self.specs[atom]
        source = atom.aval.mesh
        source = mesh if source.empty else source
        block = self.blocks[atom]
        if atom in self.sums:
            source, have = self.sums[atom]
        if not atom.aval.ndim and have.unreduced == spec.unreduced:
            return block
        if have == spec and (source is mesh or source.same_axes(mesh)):
            return block
        key = (atom, mesh, spec)
        if (
            key not in self.moved
            and atom in self.broadcasts
            and not spec.unreduced
            and (source is mesh or source.same_axes(mesh))
        ):
            self.moved[key] = self.broadcast(self.broadcasts[atom], mesh, spec)
        if key not in self.moved:
            self.moved[key] = redistribute(block, atom.aval.shape, itemsize(atom.aval), (source, have), (mesh, spec))
        return self.moved[key]

    def broadcast(self, eqn: Eqn, mesh: AbstractMesh, spec: P) -> Any:
        """The block of a broadcast, laid out by `spec`, from that of its operand."""
        (x,), (v,) = eqn.invars, eqn.outvars
        dims = eqn.params["broadcast_dimensions"]
        own = P.from_dims(tuple(spec.dims[b] if n == v.aval.shape[b] else () for n, b in zip(x.aval.shape, dims)))
        shape = local_shape(mesh, v.aval.shape, spec.dims)
        return broadcast_in_dim(self.at(x, mesh, own), shape=shape, broadcast_dimensions=dims, sharding=None)

    def run_eqn(self, eqn: Eqn) -> None:
        plan, mesh = self.program.plans[eqn], mesh_of_eqn(eqn)
        mesh = self.program.mesh if mesh.empty else mesh  # values without a mesh are copies on every device
        if eqn.op.lower is not None:
            self.lower(eqn, plan, mesh)
            return
        if eqn.op.infer is not None:
            self.move(eqn, plan)
            return
        ins = [self.at(v, mesh, s) for v, s in zip(eqn.invars, plan.ins)]
        with abstract_mesh(mesh):
            if plan.local is not None:
                ctx = LocalContext(mesh, laid(eqn, mesh, plan.ins), self.laid_results(eqn, plan, mesh))
                out = plan.local(ctx, *ins, **eqn.params)
            else:
                out = eqn.op(*ins, **(eqn.params | plan.params))
        outs = list(out) if eqn.op.multiple_results else [out]
        if eqn.op is broadcast_in_dim and plan.outs == (replicated(eqn.outvars[0].aval.ndim),) and not plan.result:
            self.broadcasts[eqn.outvars[0]] = eqn
        for k, (v, block) in enumerate(zip(eqn.outvars, outs)):
            pending = plan.pending[k] if plan.pending else None
            wanted = plan.result[k] if plan.result else plan.outs[k]
            self.blocks[v] = self.finish(v, block, mesh, plan.outs[k], pending, wanted)

    def move(self, eqn: Eqn, plan: Plan) -> None:
        """A placement op: its operand, redistributed from its own mesh to the result's."""
        (atom,), (v,) = eqn.invars, eqn.outvars
        target = self.mesh_of(v)
        if isinstance(atom, Literal):
            self.blocks[v] = redistribute(atom, (), itemsize(v.aval), (target, P()), (target, plan.result[0]))
            return
        own = atom.aval.mesh
        if atom in self.sums:
            self.blocks[v] = self.finish(v, self.blocks[atom], *self.sums[atom], None, plan.result[0])
            return
        block = self.at(atom, target if own.empty else own, plan.ins[0])
        self.blocks[v] = self.finish(v, block, target if own.empty else own, plan.ins[0], None, plan.result[0])

    def lower(self, eqn: Eqn, plan: Plan, mesh: AbstractMesh) -> None:
        """An op that carries a jaxpr: its own rule says how the body runs on blocks."""
        assert eqn.op.lower is not None, "only ops with a lower rule come here"
        ins = [self.at(v, mesh, s) for v, s in zip(eqn.invars, plan.ins)]
        outs = eqn.op.lower(self, eqn, ins)
        for k, (v, block) in enumerate(zip(eqn.outvars, outs)):
            self.blocks[v] = self.finish(v, block, mesh, plan.outs[k], None, plan.outs[k])

    def inlined(self, jaxpr: Jaxpr) -> Jaxpr:
        """A body without nested calls."""
        found = self.bodies.get(jaxpr)
        if found is None:
            found = self.bodies[jaxpr] = dead_code(inline(jaxpr))
        return found

    def laid_results(self, eqn: Eqn, plan: Plan, mesh: AbstractMesh) -> tuple[Laid, ...]:
        return tuple(Laid(v.aval, NamedSharding(mesh, s)) for v, s in zip(eqn.outvars, plan.outs))

    def finish(self, v: Var, block: Any, mesh: AbstractMesh, spec: P, pending: Pending | None, wanted: P) -> Any:
        """Reduce and redistribute a result to where its type says."""
        if pending is not None and pending.axes:
            if pending.kind == "sum":
                spec = P.from_dims(spec.dims, spec.unreduced | set(pending.axes), spec.reduced)
            elif any(mesh.shape[a] > 1 for a in pending.axes):
                with abstract_mesh(mesh):
                    block = reduce_over(block, pending.kind, mesh_order(mesh, pending.axes))
        target = self.mesh_of(v)
        if (
            spec.unreduced != wanted.unreduced
            and spec.dims == wanted.dims
            and self.uses[v] == 1
            and mesh.same_axes(target)
        ):
            self.sums[v] = (mesh, spec)
            return block
        if spec == wanted and (mesh is target or mesh.same_axes(target)):
            return block
        return redistribute(block, v.aval.shape, itemsize(v.aval), (mesh, spec), (target, wanted))
