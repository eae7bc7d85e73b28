"""Sums that end up sharded are scattered where they arise, not reduced whole and then cut.

On Explicit axes a pending sum is due where the value's type says, which is often whole: the gradient of a weight that was
gathered with `reshard` is a product, then a transpose, then a `reshard` to the parameter's own place.  Nobody but that chain
sees the whole sum, so that each rank may as well get only its part of it at once: half the bytes, and the rest of the
chain works on a part.  Every link's own plan says what it makes of a sharded operand; a link that would communicate, or a second
reader, ends the chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mpiarray.compiler.passes.propagate import REFUSALS, checked_plan, itemsize, mesh_of_eqn, spec_of
from mpiarray.compiler.program import Program
from mpiarray.core import redistribution as rd
from mpiarray.core.jaxpr import Eqn, Var, readers_of
from mpiarray.core.plan import Plan, axes_size, has_duplicates, used_axes
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P

Links = list[tuple[Eqn, Plan]]

_ORDERS = 64  # assignments of the target's dims to the sum's that are tried: more than enough for three dims each


def scatter(program: Program) -> Program:
    """Lay out pending sums, and what is made from them, by where they are placed later, wherever that moves fewer bytes."""
    found = _Scatterer(program)
    for eqn in program.jaxpr.eqns:
        if any(p is not None and p.kind == "sum" for p in found.plans[eqn].pending):
            for k, v in enumerate(eqn.outvars):
                found.place(eqn, k, v)
    return program.update(specs=found.specs, plans=found.plans)


class _Scatterer:
    def __init__(self, program: Program):
        self.program = program
        self.specs, self.plans = dict(program.specs), dict(program.plans)
        self.readers = readers_of(program.jaxpr)

    def place(self, eqn: Eqn, k: int, v: Var) -> None:
        """Choose where the pending sum `v`, result `k` of the equation, goes."""
        plan, mesh = self.plans[eqn], mesh_of_eqn(eqn)
        pending = plan.pending[k]
        if pending is None or pending.kind != "sum" or not v.aval.ndim or mesh.empty or not mesh.same_axes(v.aval.mesh):
            return
        have = plan.outs[k]
        parts = P.from_dims(have.dims, have.unreduced | set(pending.axes), have.reduced)
        chain, last = self.chain(v)
        if last is None or parts.unreduced & (last[1].unreduced | self.specs[v].unreduced):
            return
        best = self.cost(v, mesh, parts, self.specs[v]) + self.cost(chain[-1], mesh, self.specs[chain[-1]], last[1])
        chosen: tuple[P, Links, list[P]] | None = None
        for spec in _candidates(v, mesh, self.specs[v], frozenset(pending.axes), last[1]):
            found = self.follow(chain, spec)
            if found is None:
                continue
            links, specs = found
            cost = self.cost(v, mesh, parts, spec) + self.cost(chain[-1], mesh, specs[-1], last[1])
            if cost < best:
                best, chosen = cost, (spec, links, specs)
        if chosen is not None:
            self.settle(eqn, k, chain, last[0], *chosen)

    def chain(self, v: Var) -> tuple[list[Var], tuple[Eqn | None, P] | None]:
        """The values that are made from `v`, each read once, up to the one that is placed; and by what, and where."""
        chain = [v]
        while len(self.readers[chain[-1]]) == 1:
            at = chain[-1]
            (reader,) = self.readers[at]
            if reader is None:
                wanted = self.program.out_specs[self.program.jaxpr.outvars.index(at)]
                return chain, None if wanted is None else (None, wanted)
            if reader.op.infer is not None:
                plan, target = self.plans[reader], reader.outvars[0].aval.mesh
                same = not target.empty and target.same_axes(at.aval.mesh)
                return chain, (reader, (plan.result or plan.outs)[0]) if same else None
            if not _is_link(reader, self.plans[reader]):
                break
            chain.append(reader.outvars[0])
        return chain, None

    def follow(self, chain: Sequence[Var], spec: P) -> tuple[Links, list[P]] | None:
        """Plans and specs along the chain when the sum lies so; None when a link cannot take its operand as it lies."""
        links: Links = []
        specs = [spec]
        for v in chain[:-1]:
            (eqn,) = self.readers[v]
            assert eqn is not None, "only the last value of a chain is returned"
            held = [specs[-1] if a is v else spec_of(self.specs, a) for a in eqn.invars]
            try:
                plan = checked_plan(eqn, mesh_of_eqn(eqn), held)
            except REFUSALS:
                return None
            moves = any(h != s and a.aval.ndim for a, h, s in zip(eqn.invars, held, plan.ins))
            if moves or plan.result not in ((), plan.outs) or not _is_link(eqn, plan):
                return None
            links.append((eqn, plan))
            specs.append(plan.outs[0])
        return links, specs

    def settle(
        self, eqn: Eqn, k: int, chain: list[Var], end: Eqn | None, spec: P, links: Links, specs: list[P]
    ) -> None:
        plan = self.plans[eqn]
        result = list(plan.result or plan.outs)
        result[k] = spec
        self.plans[eqn] = replace(plan, result=tuple(result))
        self.plans.update(links)
        self.specs.update(zip(chain, specs))
        if end is not None:
            last = self.plans[end]
            self.plans[end] = replace(last, ins=(specs[-1],), outs=(specs[-1],), result=last.result or last.outs)

    def cost(self, v: Var, mesh: AbstractMesh, have: P, want: P) -> int:
        return rd.plan(v.aval.shape, itemsize(v.aval), (mesh, have), (mesh, want)).bytes_moved if have != want else 0


def _is_link(eqn: Eqn, plan: Plan) -> bool:
    """Whether an equation only computes, on its operand's blocks as they are; others may be scalars."""
    plain = eqn.op.impl is not None and eqn.op.lower is None and not eqn.op.effects and not eqn.op.casts
    alone = sum(a.aval.ndim > 0 for a in eqn.invars) == 1 and len(eqn.outvars) == 1
    return plain and alone and plan.local is None and not any(plan.pending)


def _candidates(v: Var, mesh: AbstractMesh, have: P, axes: frozenset[str], target: P) -> Iterator[P]:
    """The sum's spec with the target's sharded dims, those that share axes with the sum, put at any of its own."""
    entries = [dims for dims in target.dims if axes & set(dims)]
    if not entries or len(entries) > v.aval.ndim:
        return
    for places in itertools.islice(itertools.permutations(range(v.aval.ndim), len(entries)), _ORDERS):
        dims = list(have.dims)
        for d, entry in zip(places, entries):
            dims[d] = entry
        taken = used_axes(tuple(entries))
        for d in range(len(dims)):
            if d not in places:
                dims[d] = tuple(a for a in dims[d] if a not in taken)
        fits = all(n % axes_size(mesh, e) == 0 for n, e in zip(v.aval.shape, dims))
        if fits and not has_duplicates(tuple(dims)):
            yield P.from_dims(tuple(dims), have.unreduced, have.reduced)
