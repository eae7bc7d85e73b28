"""Where every value of a program lies: the user's types on Explicit axes, our choice on Auto ones.

Explicit axes leave nothing to choose: types and plans come from the same rules.  On Auto axes an equation whose strict
plan does not accept the operands as they lie is tried with other assumptions (an operand without its Auto axes, or laid
out like another one), and the cheapest plan wins: bytes to bring the operands there, bytes of the pending reduction,
bytes to the result.  What later constraints wish for (`hints`) counts as the result's destination, and is
tried as the result's sharding.  Ties go to the plan that keeps results more sharded, then to the earlier assumption, so
that every rank chooses alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mpiarray.compiler.passes.hints import wishes
from mpiarray.compiler.program import Program
from mpiarray.core import redistribution as rd
from mpiarray.core.jaxpr import Atom, Eqn, Var
from mpiarray.core.plan import Laid, Plan, axes_size, has_duplicates, replicated, spec_from, used_axes
from mpiarray.core.value import Literal
from mpiarray.errors import DuplicateSpecError, IndivisibleError, ShardingTypeError
from mpiarray.types import dtypes
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

REFUSALS = (ShardingTypeError, DuplicateSpecError, IndivisibleError, NotImplementedError)


def propagate(program: Program) -> Program:
    """Choose the spec of every variable and the plan of every equation."""
    specs: dict[Var, P] = dict(zip(program.jaxpr.invars, program.in_specs))
    plans: dict[Eqn, Plan] = {}
    why: list[str] = []
    wanted = wishes(program)
    for eqn in program.jaxpr.eqns:
        mesh = mesh_of_eqn(eqn)
        held = [spec_of(specs, v) for v in eqn.invars]
        plan = _plan(eqn, mesh, held, wanted, why)
        plans[eqn] = plan
        specs.update(zip(eqn.outvars, plan.result or plan.outs))
    return program.update(specs=specs, plans=plans, why=tuple(why))


def mesh_of_eqn(eqn: Eqn) -> AbstractMesh:
    """The mesh that an equation's axis names mean: its results', else the context's, else an operand's."""
    for v in eqn.outvars:
        if not v.aval.mesh.empty:
            return v.aval.mesh
    if not eqn.mesh.empty:
        return eqn.mesh
    for a in eqn.invars:
        if not a.aval.mesh.empty:
            return a.aval.mesh
    return EMPTY_ABSTRACT_MESH


def spec_of(specs: dict[Var, P], atom: Atom) -> P:
    return replicated(atom.aval.ndim) if isinstance(atom, Literal) else specs[atom]


def laid(eqn: Eqn, mesh: AbstractMesh, held: Sequence[P]) -> tuple[Laid, ...]:
    """The operands as they lie, each on its own mesh (those without one on the equation's)."""
    out = []
    for atom, spec in zip(eqn.invars, held):
        own = atom.aval.mesh
        out.append(Laid(atom.aval, NamedSharding(mesh if own.empty else own, spec)))
    return tuple(out)


def _plan(eqn: Eqn, mesh: AbstractMesh, held: list[P], wanted: dict[Var, P], why: list[str]) -> Plan:
    if mesh.empty:
        return Plan(tuple(held), tuple(replicated(v.aval.ndim) for v in eqn.outvars))
    flexible = frozenset(mesh.auto_axes)
    wishful = len(eqn.outvars) == 1 and eqn.outvars[0] in wanted
    if not flexible or not (wishful or any(flexible & used_axes(s.dims) for s in held)):
        return checked_plan(eqn, mesh, held)
    return _choose(eqn, mesh, held, flexible, wanted.get(eqn.outvars[0]) if wishful else None, why)


def checked_plan(eqn: Eqn, mesh: AbstractMesh, held: Sequence[P], placed: P | None = None) -> Plan:
    """The op's plan for operands that lie so (and a result at `placed`, for ops that can be told); raises when it does not accept them."""
    params = eqn.params
    if placed is not None:
        everywhere = mesh.update_axis_types(dict.fromkeys(mesh.axis_names, AxisType.Explicit))
        params = params | {_placing(eqn): NamedSharding(everywhere, placed)}
    plan = eqn.op.plan(laid(eqn, mesh, held), **params)
    if placed is not None:
        if (plan.result or plan.outs) != (placed,):
            raise NotImplementedError(f"{eqn.op.name} cannot be told where its result goes")
        if plan.local is not None:  # a local program reads the equation's parameters, so that it must see this one
            plan = replace(plan, local=_told(plan.local, {_placing(eqn): params[_placing(eqn)]}))
    for a, spec in zip(eqn.invars, plan.ins):
        if has_duplicates(spec.dims):
            raise DuplicateSpecError(f"{eqn.op.name} would want {a.aval.short()} at the spec {spec}")
    for v, spec in zip(eqn.outvars, plan.result or plan.outs):
        if has_duplicates(spec.dims):
            raise DuplicateSpecError(f"{eqn.op.name} would give {v.aval.short()} the spec {spec}")
        for n, axes in zip(v.aval.shape, spec.dims):
            if n % axes_size(v.aval.mesh if not v.aval.mesh.empty else mesh, axes):
                raise IndivisibleError(f"{eqn.op.name} would give {v.aval.short()} the spec {spec}")
    if eqn.outvars and any(u for u, _ in ((s.unreduced, s.reduced) for s in held)):
        plan = _with_sums(eqn, plan)
    return plan


def _with_sums(eqn: Eqn, plan: Plan) -> Plan:
    """Operands and results that are unreduced by type stay so through the op."""
    ins = tuple(
        P.from_dims(s.dims, s.unreduced | a.aval.unreduced, s.reduced | a.aval.reduced)
        for s, a in zip(plan.ins, eqn.invars)
    )
    outs = tuple(P.from_dims(s.dims, v.aval.unreduced, v.aval.reduced) for s, v in zip(plan.outs, eqn.outvars))
    result = tuple(P.from_dims(s.dims, v.aval.unreduced, v.aval.reduced) for s, v in zip(plan.result, eqn.outvars))
    if eqn.op.infer is not None:
        return plan
    return Plan(ins, outs, plan.pending, result, plan.params, plan.local)


# -- choosing on Auto axes ------------------------------------------------------------------------------


def _choose(
    eqn: Eqn, mesh: AbstractMesh, held: list[P], flexible: frozenset[str], wish: P | None, why: list[str]
) -> Plan:
    best: Plan | None = None
    best_cost: tuple[float, float] = (math.inf, math.inf)
    refusal: Exception | None = None
    for assumed, placed in _trials(eqn, held, flexible, wish):
        try:
            plan = checked_plan(eqn, mesh, assumed, placed)
            cost = _cost(eqn, mesh, held, plan, wish)
        except REFUSALS as e:
            refusal = refusal or e
            continue
        if cost < best_cost:
            best, best_cost = plan, cost
        if wish is None and (best_cost[0] == 0 or plan.ins == tuple(held)):
            break  # operands are not copied where the op takes them as they lie: each rank would do the others' work too
    if best is None:
        raise refusal or ShardingTypeError(f"{eqn.op.name}: no plan")
    if best_cost[0]:
        moved = ", ".join(f"{a} -> {b}" for a, b in zip(held, best.ins) if a != b)
        result = ", ".join(str(s) for s in best.result or best.outs)
        why.append(f"{eqn.op.name}: {result}, {best_cost[0]:.0f} bytes moved" + (f" ({moved})" if moved else ""))
    return best


def _told(local: Callable[..., Any], told: dict[str, Any]) -> Callable[..., Any]:
    return lambda ctx, *blocks, **params: local(ctx, *blocks, **(params | told))


def _placing(eqn: Eqn) -> str:
    return "out_sharding" if "out_sharding" in eqn.params else "sharding"


def _trials(eqn: Eqn, held: list[P], flexible: frozenset[str], wish: P | None) -> Iterator[tuple[list[P], P | None]]:
    """Assumptions on the operands, each with the result where it falls and, for ops that can be told, where it is wished."""
    tell = (
        wish is not None
        and eqn.op.infer is None
        and any(k in eqn.params and eqn.params[k] is None for k in ("out_sharding", "sharding"))
    )
    tell = tell or (wish is not None and eqn.op.infer is None and not eqn.invars and "sharding" in eqn.params)
    alike = (
        wish is not None
        and all(a.aval.shape in ((), eqn.outvars[0].aval.shape) for a in eqn.invars)
        and bool(eqn.invars)
    )
    for assumed in _assumptions(eqn, held, flexible):
        yield assumed, None
        if tell:
            yield assumed, wish
    if alike:
        yield [wish if a.aval.ndim else h for a, h in zip(eqn.invars, held)], None  # type: ignore[misc]


def _assumptions(eqn: Eqn, held: list[P], flexible: frozenset[str]) -> Iterator[list[P]]:
    """Ways to see the operands: as they are, laid out like another, or without some or all of their Auto axes."""
    yield held
    shapes = [v.aval.shape for v in eqn.invars]
    movable = [i for i, s in enumerate(held) if flexible & used_axes(s.dims)]
    for i in movable:
        alike = [j for j in range(len(held)) if j != i and shapes[j] == shapes[i]]
        if alike:
            yield [held[i] if j in alike else s for j, s in enumerate(held)]
    bare = {i: _without(held[i], flexible) for i in movable}
    for count in range(1, min(len(movable), 4) + 1):
        for chosen in itertools.combinations(movable, count):
            yield [bare[i] if i in chosen else s for i, s in enumerate(held)]
    for i in movable:
        for axis in sorted(flexible & used_axes(held[i].dims)):
            yield [_without(held[i], frozenset((axis,))) if j == i else s for j, s in enumerate(held)]
    yield [bare.get(i, s) for i, s in enumerate(held)]


def _without(spec: P, axes: frozenset[str]) -> P:
    return spec_from([[a for a in d if a not in axes] for d in spec.dims], spec.unreduced, spec.reduced)


def _cost(eqn: Eqn, mesh: AbstractMesh, held: Sequence[P], plan: Plan, wish: P | None) -> tuple[float, float]:
    """Bytes that the busiest rank receives for a plan (and to bring the result where it is wished), and the size of the blocks made."""
    moved = 0.0
    for atom, have, want in zip(eqn.invars, held, plan.ins):
        if have != want and atom.aval.ndim:
            moved += rd.plan(atom.aval.shape, itemsize(atom.aval), (mesh, have), (mesh, want)).bytes_moved
    blocks = 0.0
    for k, v in enumerate(eqn.outvars):
        size = v.aval.size * itemsize(v.aval)
        block = size / max(1, math.prod(axes_size(mesh, d) for d in plan.outs[k].dims))
        pending = plan.pending[k] if plan.pending else None
        have, want = plan.outs[k], (plan.result or plan.outs)[k]
        if pending is not None and pending.kind == "sum":
            have = P.from_dims(have.dims, have.unreduced | set(pending.axes), have.reduced)
        elif pending is not None:
            n = axes_size(mesh, pending.axes)
            moved += 2 * block * (n - 1) / n
        want = wish if wish is not None else want
        if have != want:
            moved += rd.plan(v.aval.shape, itemsize(v.aval), (mesh, have), (mesh, want)).bytes_moved
        blocks += block
    return moved + _local_bytes(eqn, mesh, plan), blocks


def _local_bytes(eqn: Eqn, mesh: AbstractMesh, plan: Plan) -> float:
    """A local program moves something too: count it as one operand's block, so that it loses only to plans that move nothing."""
    if plan.local is None or not eqn.invars:
        return 0.0
    a = eqn.invars[0].aval
    return a.size * itemsize(a) / max(1, math.prod(axes_size(mesh, d) for d in plan.ins[0].dims))


def itemsize(aval: Any) -> int:
    return dtypes.storage(aval.dtype).itemsize
