"""The ways to run an equation on Auto axes, and what each takes: what the search over a program chooses from.

A label is a plan with its results' specs and its seconds.  Labels come from assumptions on the operands: every Auto axis
divides one dim or nothing, on top of the type's Explicit axes; products give each axis a role (batch, free, contracting).
Apart from `search`, which knows nothing of equations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from mpiarray.compiler.cost import Cost, flops, program_cost
from mpiarray.compiler.machine import Machine
from mpiarray.compiler.passes.partition import partition
from mpiarray.compiler.passes.propagate import REFUSALS, checked_plan, itemsize
from mpiarray.compiler.program import Program
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var
from mpiarray.core.plan import Plan, axes_size, local_shape, spec_from
from mpiarray.core.value import Literal
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P

_MOST = 400  # assumptions that are tried for an equation
_BODIES = 12  # assumptions for an equation with a body, which is lowered for each
_KEPT = 64  # labels that are kept of them: the fastest by themselves


class Label(NamedTuple):
    """One way to run an equation.

    plan     what the partition pass follows
    outs     where the results lie
    partial  where they lie before a sum that a single reader may finish in its own way; empty when none is pending
    seconds  own work and messages, operands being there, sums in `partial` finished
    unsummed the same without finishing them
    """

    plan: Plan
    outs: tuple[P, ...]
    partial: tuple[P, ...]
    seconds: float
    unsummed: float


# -- layouts --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def layouts(aval: Any, mesh: AbstractMesh) -> tuple[P, ...]:
    """All specs of a value over the Auto axes of its mesh that divide it, beside its Explicit axes."""
    axes = tuple(a for a in mesh.auto_axes if mesh.shape[a] > 1)
    own = tuple(tuple(d) for d in aval.dims) if not aval.mesh.empty else ((),) * aval.ndim
    dims = [d for d in range(aval.ndim) if aval.shape[d] > 1]
    if (len(dims) + 1) ** len(axes) > _MOST:  # the longest dims only
        dims = sorted(sorted(dims, key=lambda d: -aval.shape[d])[:3])
    found = []
    for places in itertools.product((None, *dims), repeat=len(axes)):
        spec = [(*own[d], *(a for a, p in zip(axes, places) if p == d)) for d in range(aval.ndim)]
        if all(n % axes_size(mesh, s) == 0 for n, s in zip(aval.shape, spec)):
            found.append(spec_from(spec))
    return tuple(found)


def bare_spec(aval: Any) -> P:
    """A value without Auto axes."""
    return spec_from(aval.dims if not aval.mesh.empty else ((),) * aval.ndim)


def _alike(aval: Any, other: Any, spec: P, mesh: AbstractMesh) -> P:
    """Another operand's layout for this one, dim by dim where the sizes agree."""
    if aval.shape == other.shape:
        return spec
    bare = bare_spec(aval)
    if aval.ndim != other.ndim:
        return bare
    pairs = zip(aval.shape, other.shape, spec.dims, bare.dims)
    return spec_from([s if n == m else b for n, m, s, b in pairs])


# -- assumptions ----------------------------------------------------------------------------------------------


def assumptions(eqn: Eqn, mesh: AbstractMesh) -> Iterator[list[P]]:
    """Specs for the operands."""
    avals = [v.aval for v in eqn.invars]
    arrays = [k for k, a in enumerate(avals) if a.ndim and not isinstance(eqn.invars[k], Literal)]
    bare = [bare_spec(a) for a in avals]
    if not arrays:
        yield bare
    elif eqn.op.name == "dot_general" and len(arrays) == 2:
        yield from _products(eqn, mesh)
    else:
        first = max(arrays, key=lambda k: (avals[k].size, -k))
        others = [k for k in arrays if avals[k].shape != avals[first].shape]
        spread = list(layouts(avals[first], mesh))
        if len(others) == 1 and avals[others[0]].ndim != avals[first].ndim:
            more: Sequence[P] = layouts(avals[others[0]], mesh)
            if len(spread) * len(more) > _MOST:
                spread, more = spread[: _MOST // 4], more[:4]
            for s, t in itertools.product(spread, more):
                yield [t if k == others[0] else _alike(a, avals[first], s, mesh) for k, a in enumerate(avals)]
            return
        for s in spread:
            yield [_alike(a, avals[first], s, mesh) if k in arrays else bare[k] for k, a in enumerate(avals)]
        for k in others:
            for s in layouts(avals[k], mesh):
                yield [s if i == k else bare[i] for i in range(len(avals))]


def _products(eqn: Eqn, mesh: AbstractMesh) -> Iterator[list[P]]:
    """Each Auto axis in each role: a batch dim, a free dim of a side, a contracting dim, or none."""
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    left, right = (v.aval for v in eqn.invars)
    roles: list[tuple[int | None, int | None]] = [(None, None)]
    roles += [*zip(lb, rb), *zip(lc, rc)]
    roles += [(d, None) for d in range(left.ndim) if d not in (*lc, *lb)]
    roles += [(None, d) for d in range(right.ndim) if d not in (*rc, *rb)]
    axes = [a for a in mesh.auto_axes if mesh.shape[a] > 1]
    if len(roles) ** len(axes) > 4 * _MOST:
        roles = roles[: max(2, int((4 * _MOST) ** (1 / len(axes))))]
    for chosen in itertools.product(roles, repeat=len(axes)):
        specs = [[list(d) for d in bare_spec(a).dims] for a in (left, right)]
        for axis, places in zip(axes, chosen):
            for side, d in enumerate(places):
                if d is not None:
                    specs[side][d].append(axis)
        fits = all(n % axes_size(mesh, s) == 0 for a, spec in zip((left, right), specs) for n, s in zip(a.shape, spec))
        if fits:
            yield [spec_from(s) for s in specs]


def _placements(eqn: Eqn, mesh: AbstractMesh) -> Iterator[P | None]:
    """Where a value that is made from nothing may be told to be made."""
    yield None
    name = "out_sharding" if "out_sharding" in eqn.params else "sharding"
    arrays = [v for v in eqn.invars if v.aval.ndim]
    if not arrays and eqn.op.infer is None and len(eqn.outvars) == 1 and eqn.params.get(name, eqn) is None:
        yield from layouts(eqn.outvars[0].aval, mesh)


# -- labels ---------------------------------------------------------------------------------------------------


class Labels:
    """Labels of equations for one machine and mesh; equal equations share theirs."""

    def __init__(self, program: Program, machine: Machine, loops: Callable[[Eqn], list[list[P]]]):
        """`loops` gives assumptions on the operands of an equation that runs a body many times."""
        self.program, self.machine, self.loops = program, machine, loops
        self.found: dict[Any, list[Label]] = {}

    def of(self, eqn: Eqn, mesh: AbstractMesh, first: Plan) -> list[Label]:
        """The labels of an equation; the first is the plan that it has now."""
        shapes = tuple(v.aval for v in eqn.invars), tuple(v.aval for v in eqn.outvars)
        literals = tuple(k for k, v in enumerate(eqn.invars) if isinstance(v, Literal))
        key = (eqn.op, *shapes, literals, tuple(eqn.params.items()), mesh)
        if key not in self.found:
            self.found[key] = self.make(eqn, mesh)
        now = self.label(eqn, mesh, first)
        same = [k for k, x in enumerate(self.found[key]) if (x.plan.ins, x.outs) == (now.plan.ins, now.outs)]
        return [now, *(x for k, x in enumerate(self.found[key]) if k not in same)]

    def make(self, eqn: Eqn, mesh: AbstractMesh) -> list[Label]:
        plans: dict[Any, Plan] = {}
        given: Iterator[list[P]] = assumptions(eqn, mesh)
        if eqn.op.lower is not None:
            given = iter(self.loops(eqn) or list(itertools.islice(given, _BODIES if self.program.open else 0)))
        for assumed in itertools.islice(given, 4 * _MOST):
            for placed in _placements(eqn, mesh):
                try:
                    plan = checked_plan(eqn, mesh, assumed, placed)
                except REFUSALS:
                    continue
                for p in (plan, *scattered(eqn, mesh, plan)):
                    plans.setdefault((p.ins, p.result or p.outs), p)
        found = []
        for plan in plans.values():
            try:
                found.append(self.label(eqn, mesh, plan))
            except REFUSALS:
                continue
        return sorted(found, key=lambda x: x.seconds)[:_KEPT]

    def label(self, eqn: Eqn, mesh: AbstractMesh, plan: Plan) -> Label:
        outs = plan.result or plan.outs
        if plan.local is not None or eqn.op.lower is not None:
            seconds = self.machine.seconds(self.lowered(eqn, mesh, plan))
            return Label(plan, outs, (), seconds, seconds)
        cost = Cost()
        if eqn.op.infer is None and eqn.op.impl is not None:
            ins = [local_shape(mesh, v.aval.shape, s.dims) for v, s in zip(eqn.invars, plan.ins)]
            made = [local_shape(mesh, v.aval.shape, s.dims) for v, s in zip(eqn.outvars, plan.outs)]
            cost.flops = flops(eqn, ins, made)
            sized = zip((*eqn.invars, *eqn.outvars), (*ins, *made))
            cost.bytes_accessed = float(sum(math.prod(shape) * itemsize(v.aval) for v, shape in sized))
        unsummed = self.machine.seconds(cost)
        partial, seconds = [], unsummed
        for k, (v, spec, out) in enumerate(zip(eqn.outvars, plan.outs, outs)):
            pending = plan.pending[k] if plan.pending else None
            if pending is not None:  # what is no sum cannot be scattered, but moves as much
                spec = P.from_dims(spec.dims, spec.unreduced | set(pending.axes), spec.reduced)
            late = pending is not None and pending.kind == "sum" and spec.dims == out.dims
            partial.append(spec if late else out)
            step = self.move(v.aval, mesh, spec, out)
            seconds += step
            unsummed += 0.0 if late else step
        return Label(plan, outs, tuple(partial), seconds, unsummed)

    def lowered(self, eqn: Eqn, mesh: AbstractMesh, plan: Plan) -> Cost:
        """What a local program or a loop costs: it is made, and counted."""
        alone = eqn.replace(invars=[v if isinstance(v, Literal) else Var(v.aval) for v in eqn.invars])
        outs = plan.result or plan.outs
        specs = {v: s for v, s in zip(alone.invars, plan.ins) if not isinstance(v, Literal)} | dict(
            zip(alone.outvars, outs)
        )
        jaxpr = Jaxpr((), tuple(specs)[: len(specs) - len(outs)], alone.outvars, (alone,), eqn.op.name)
        program = Program(
            eqn.op.name, jaxpr, tuple(specs[v] for v in jaxpr.invars), outs, mesh, self.program.size, specs, {alone: plan}
        )  # fmt: skip
        return program_cost(partition(program))

    def move(self, aval: Any, mesh: AbstractMesh, have: P, want: P) -> float:
        return move_seconds(self.machine, tuple(aval.shape), itemsize(aval), mesh, have, want)


def scattered(eqn: Eqn, mesh: AbstractMesh, plan: Plan) -> Iterator[Plan]:
    """The plan with its pending sum left scattered over dims of the result, axis by axis."""
    if len(eqn.outvars) != 1 or not plan.pending or plan.pending[0] is None or plan.result or plan.local is not None:
        return
    pending, dims = plan.pending[0], plan.outs[0].dims
    axes = [a for a in pending.axes if a in mesh.auto_axes and mesh.shape[a] > 1]
    if pending.kind != "sum" or len(axes) > 2 or eqn.op.infer is not None:
        return
    shape = eqn.outvars[0].aval.shape
    for places in itertools.product((None, *range(len(shape))), repeat=len(axes)):
        spec = [(*d, *(a for a, p in zip(axes, places) if p == k)) for k, d in enumerate(dims)]
        if any(p is not None for p in places) and all(n % axes_size(mesh, s) == 0 for n, s in zip(shape, spec)):
            yield replace(plan, result=(spec_from(spec),))


# -- moving ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def move_seconds(machine: Machine, shape: tuple[int, ...], item: int, mesh: AbstractMesh, have: P, want: P) -> float:
    """What it takes to bring a value from one spec to another, by the planner's usual steps: slices, scattered sums,
    all-to-alls, sums, gathers. An estimate: quick, and without the search for the best order."""
    if have == want:
        return 0.0
    cost = Cost()
    source, target = [list(d) for d in have.dims], [list(d) for d in want.dims]
    block = float(math.prod(local_shape(mesh, shape, have.dims)) * item)
    cost.bytes_accessed = block + float(math.prod(local_shape(mesh, shape, want.dims)) * item)
    place = {a: d for d, axes in enumerate(target) for a in axes}
    held = {a: d for d, axes in enumerate(source) for a in axes}
    partial = [a for a in mesh.axis_names if a in have.unreduced and a not in want.unreduced and mesh.shape[a] > 1]
    used = {a for a in mesh.axis_names if mesh.shape[a] > 1}
    sliced = [a for a in place if a in used and a not in held and a not in partial]
    block /= math.prod(mesh.shape[a] for a in sliced)
    if any(source[place[a]] != target[place[a]][: len(source[place[a]])] for a in sliced):
        cost.communication_bytes += block  # slices of the blocks held are not those wanted: they change places
        cost.communication_messages += 1
    scattered_ones = [a for a in partial if a in place]
    summed = [a for a in partial if a not in place]
    swapped = [a for a in held if a in used and a in place and place[a] != held[a]]
    gathered = [a for a in held if a in used and a not in place]
    order = [[a for a in axes if a in used] for axes in source] == [[a for a in axes if a in used] for axes in target]
    for kind, axes in (("scatter", scattered_ones), ("swap", swapped), ("sum", summed), ("gather", gathered)):
        n = math.prod(mesh.shape[a] for a in axes)
        if n == 1:
            continue
        rounds = (n - 1).bit_length()
        if kind == "scatter":
            cost.communication_bytes += block * (n - 1) / n
            cost.communication_messages += rounds
            block /= n
        elif kind == "swap":
            cost.communication_bytes += block * (n - 1) / n
            cost.communication_messages += n - 1
        elif kind == "sum":
            cost.communication_bytes += 2 * block * (n - 1) / n
            cost.communication_messages += 2 * rounds
        else:
            cost.communication_bytes += block * (n - 1)
            cost.communication_messages += rounds
            block *= n
    if not order and not (scattered_ones or swapped or gathered) and set(held) == set(place):
        cost.communication_bytes += block  # the same axes in another order: whole blocks change places
        cost.communication_messages += 1
    return machine.seconds(cost)
