"""The `cond` equation: one of several jaxprs, chosen by an index that is in range.

Residuals of the branches share their places in the forward equation's results, by type; a branch gives zeros for what only
others need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Var
from mpiarray.core.op import Linear, Op, Out, Zero, define
from mpiarray.core.plan import Plan, mesh_of
from mpiarray.core.trace import current
from mpiarray.higher_order.control_flow import lowering
from mpiarray.higher_order.control_flow.divergence import check_meeting
from mpiarray.higher_order.control_flow.select import choose
from mpiarray.higher_order.control_flow.splits import Parts, parts_of
from mpiarray.higher_order.control_flow.values import concrete
from mpiarray.higher_order.kept import Kept, Policy, kept_body
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import move_dim, tangent_aval
from mpiarray.transforms.batching import batch_jaxpr, front
from mpiarray.transforms.evaluate import Derived, DerivedCache, eval_jaxpr
from mpiarray.transforms.interning import rearranged, widened
from mpiarray.transforms.jvp import jvp_jaxpr
from mpiarray.transforms.partial_eval import PartialTrace
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.transforms.tangents import cotangent_aval, filled
from mpiarray.transforms.transpose import transpose_call
from mpiarray.types.aval import ShapedArray

Branches = tuple[ClosedJaxpr, ...]
Flags = tuple[bool, ...]


def _infer(avals: Sequence[ShapedArray], mesh: Any, *, branches: Branches) -> list[ShapedArray]:
    for b in branches:
        lowering.check_operands("cond", avals[1:], b.in_avals)
        lowering.check_operands("cond results", b.out_avals, branches[0].out_avals)
    check_meeting("cond", avals[0].vma, branches)
    weak = [all(a.weak_type for a in outs) for outs in zip(*(b.out_avals for b in branches))]
    return [a.update(weak_type=w) if a.weak_type != w else a for a, w in zip(branches[0].out_avals, weak)]


def _type(*avals: ShapedArray, branches: Branches) -> list[Out]:
    return lowering.outs_of(branches[0].out_avals)


def _plan(avals: Sequence[Any], *, branches: Branches) -> Plan:
    """Results lie where the first branch leaves them; the others bring them there."""
    specs = tuple(a.sharding.spec.padded(a.ndim) for a in avals)
    return Plan(specs, lowering.fallen(branches[0], specs[1:], mesh_of(avals)))


def _lower(partitioner: Any, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    plan = lowering.plan_of(partitioner, eqn)
    branches = eqn.params["branches"]
    if plan is None:
        programs = [lowering.local_body(partitioner, eqn, b) for b in branches]
    else:
        programs = [lowering.global_body(partitioner, eqn, b, plan.ins[1:], plan.outs) for b in branches]
    return cond_op(*operands, branches=tuple(programs))


def _build(ctx: DeviceContext, *, branches: Branches) -> Callable[..., Any]:
    assert ctx.compile is not None, "conditionals are steps of executables"
    runs = [ctx.compile(b) for b in branches]
    return lambda index, *blocks: runs[int(index)](*blocks)


def _steps(op: Op, args: Sequence[Any], *, branches: Branches) -> list[Any]:
    chosen = branches[int(np.asarray(concrete(args[0])).reshape(())[()])]
    return eval_jaxpr(chosen.jaxpr, chosen.consts, args[1:])


def with_shared(branches: Sequence[ClosedJaxpr], consts: Sequence[Sequence[Any]]) -> tuple[Branches, list[Any]]:
    """Branches that take the constants of all of them, where each took its own as its first inputs."""
    avals = [tuple(b.in_avals[: len(c)]) for b, c in zip(branches, consts)]
    out: list[ClosedJaxpr] = []
    for b, own in zip(branches, avals):
        after = tuple(a for other in avals[len(out) + 1 :] for a in other)
        first = tuple(a for other in avals[: len(out)] for a in other)
        wide = widened(b, after, len(own)) if after else b
        out.append(widened(wide, first, 0) if first else wide)
    return tuple(out), [c for own in consts for c in own]


# -- batching ---------------------------------------------------------------------------------------------------


def _batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], *, branches: Branches
) -> tuple[list[Any], list[int | None]]:
    """By an index that differs between examples: all branches, and a selection; so that collectives in them are met by all."""
    mapped = [d is not None for d in dims[1:]]
    operands = front(args[1:], dims[1:])
    if dims[0] is not None:
        index = move_dim(args[0], dims[0], 0)
        results = []
        for b in branches:
            found = batch_jaxpr(b, axis, mapped, True)
            results.append(eval_jaxpr(found.jaxpr.jaxpr, (), [*found.consts, *operands]))
        return [choose(index, cases) for cases in zip(*results)], [0] * len(results[0])
    outs = [False] * len(branches[0].jaxpr.outvars)
    for b in branches:
        outs = [x or y for x, y in zip(outs, batch_jaxpr(b, axis, mapped).mapped)]
    derived = [batch_jaxpr(b, axis, mapped, outs) for b in branches]
    jaxprs, consts = with_shared([d.jaxpr for d in derived], [d.consts for d in derived])
    found = op(args[0], *consts, *operands, branches=jaxprs)
    return list(found), [0 if m else None for m in outs]


# -- derivatives --------------------------------------------------------------------------------------------------


def _jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, branches: Branches) -> tuple[list[Any], list[Any]]:
    nonzero = [not isinstance(t, Zero) for t in tangents[1:]]
    outs = [False] * len(branches[0].jaxpr.outvars)
    for b in branches:
        outs = [x or y for x, y in zip(outs, jvp_jaxpr(b, nonzero).nonzero)]
    derived = [jvp_jaxpr(b, nonzero, outs) for b in branches]
    jaxprs, consts = with_shared([d.jaxpr for d in derived], [d.consts for d in derived])
    found = op(
        primals[0], *consts, *primals[1:], *(t for t in tangents[1:] if not isinstance(t, Zero)), branches=jaxprs
    )
    rest = iter(found[len(outs) :])
    values = list(found[: len(outs)])
    return values, [next(rest) if flag else Zero(tangent_aval(v.aval)) for flag, v in zip(derived[0].nonzero, values)]


def _partial_eval(
    op: Op, trace: PartialTrace, args: Sequence[Any], unknown: Sequence[bool], *, branches: Branches
) -> list[Any]:
    if unknown[0]:
        return trace.stage(op, args, {"branches": branches})
    flags = tuple(unknown[1:])
    out_known = (True,) * len(branches[0].jaxpr.outvars)
    for b in branches:
        out_known = tuple(x and y for x, y in zip(out_known, parts_of(b, flags, out_known).out_known))
    parts = [parts_of(b, flags, out_known) for b in branches]
    key = (*branches, flags)
    joined = _joined_cache.get(key, lambda: _Joined(parts))
    known = [a for a, u in zip(args[1:], flags) if not u]
    with current(trace.parent):
        outs = op(args[0], *(c for p in parts for c in p.consts), *known, branches=joined.known)
    results, residuals = outs[: sum(out_known)], outs[sum(out_known) :]
    later: list[Any] = []
    if not all(out_known):
        rest = [a for a, u in zip(args[1:], flags) if u]
        later = trace.stage(
            op, [args[0], *residuals, *(known[n] for n in joined.forwarded), *rest], {"branches": joined.unknown}
        )
    k_iter, u_iter = iter(results), iter(later)
    return [next(k_iter) if flag else next(u_iter) for flag in out_known]


def _shared_slots(avals: Sequence[Sequence[ShapedArray]]) -> tuple[list[ShapedArray], list[list[int]]]:
    """Places for what each branch hands on, by type, and which of them each uses."""
    slots: list[ShapedArray] = []
    places = []
    for own in avals:
        free = list(range(len(slots)))
        mine = []
        for a in own:
            found = next((s for s in free if slots[s] is a), None)
            if found is None:
                slots.append(a)
                mine.append(len(slots) - 1)
            else:
                free.remove(found)
                mine.append(found)
        places.append(mine)
    return slots, places


def _with_slots(closed: ClosedJaxpr, slots: Sequence[ShapedArray], mine: Sequence[int]) -> ClosedJaxpr:
    """A branch whose last results, those for the places `mine`, stand among zeros for all others."""
    count = len(closed.out_avals) - len(mine)
    place = {s: count + n for n, s in enumerate(mine)}

    def f(*args: Any) -> list[Any]:
        outs = eval_jaxpr(closed.jaxpr, closed.consts, args)
        return [*outs[:count], *(outs[place[s]] if s in place else filled(a, 0) for s, a in enumerate(slots))]

    return Derived(trace_to_jaxpr(f, closed.in_avals, name=closed.jaxpr.debug_name, record_source=False)).jaxpr


_joined_cache = DerivedCache()


class _Joined:
    """The parts of all branches with operands and results in common.

    known      (*the branches' constants, *known operands) -> (*known results, *residuals)
    unknown    (*residuals, *forwarded, *unknown operands) -> unknown results
    """

    consts: tuple[Any, ...] = ()  # its jaxprs have none

    def __init__(self, parts: Sequence[Parts]):
        self.forwarded = sorted({n for p in parts for n in p.forwarded})
        self.slots, places = _shared_slots([p.residual_avals for p in parts])
        self.known_avals = parts[0].known.in_avals[len(parts[0].consts) :]
        shared, _ = with_shared([p.known for p in parts], [p.consts for p in parts])
        self.known = tuple(_with_slots(j, self.slots, mine) for j, mine in zip(shared, places))
        self.unknown = tuple(self._from_slots(p, mine) for p, mine in zip(parts, places))

    def _from_slots(self, parts: Parts, mine: Sequence[int]) -> ClosedJaxpr:
        inner = parts.unknown
        r, f = parts.residuals, len(parts.forwarded)
        missing = [s for s in range(len(self.slots)) if s not in mine]
        other = [n for n in self.forwarded if n not in parts.forwarded]
        wide = widened(inner, tuple(self.known_avals[n] for n in other), r + f)
        wide = widened(wide, tuple(self.slots[s] for s in missing), r)
        at = {s: n for n, s in enumerate(mine)} | {s: r + n for n, s in enumerate(missing)}
        base = r + len(missing)
        at_forwarded = {n: base + k for k, n in enumerate(parts.forwarded)} | {
            n: base + f + k for k, n in enumerate(other)
        }
        rest = range(base + f + len(other), len(wide.in_avals))
        ins = (*(at[s] for s in range(len(self.slots))), *(at_forwarded[n] for n in self.forwarded), *rest)
        return rearranged(wide, ins, tuple(range(len(wide.out_avals))))


def _transpose(op: Op, cts: Sequence[Any], *args: Any, branches: Branches) -> list[Any]:
    linear = tuple(isinstance(a, Linear) for a in args[1:])
    live = tuple(not isinstance(ct, Zero) for ct in cts)
    derived = [_transposed(b, linear, live) for b in branches]
    jaxprs, consts = with_shared([d.jaxpr for d in derived], [d.consts for d in derived])
    known = [a for a in args[1:] if not isinstance(a, Linear)]
    found = iter(op(args[0], *consts, *known, *(ct for ct in cts if not isinstance(ct, Zero)), branches=jaxprs))
    return [None, *(next(found) if flag else None for flag in linear)]


_transposed_cache = DerivedCache()


def _transposed(branch: ClosedJaxpr, linear: Flags, live: Flags) -> Derived:
    return _transposed_cache.get((branch, linear, live), lambda: _backward(branch, linear, live))


def _backward(branch: ClosedJaxpr, linear: Flags, live: Flags) -> Derived:
    """(*known operands, *cotangents) -> cotangents of all linear operands, zeros among them."""
    known = [a for a, flag in zip(branch.in_avals, linear, strict=True) if not flag]
    ct_avals = [cotangent_aval(a) for a in branch.out_avals]

    def f(*flat: Any) -> list[Any]:
        given = iter(flat[len(known) :])
        cts = [next(given) if flag else Zero(a) for flag, a in zip(live, ct_avals, strict=True)]
        found = transpose_call(branch, linear, flat[: len(known)], cts)
        return [filled(ct.aval, 0) if isinstance(ct, Zero) else ct for ct in found]

    avals = [*known, *(a for a, flag in zip(ct_avals, live) if flag)]
    return Derived(trace_to_jaxpr(f, avals, name=branch.jaxpr.debug_name, record_source=False))


# -- policies of checkpoint --------------------------------------------------------------------------------------


def _kept(eqn: Eqn, policy: Policy, needed: Sequence[bool]) -> Kept | None:
    """What a policy keeps in the branches; a branch gives zeros for what only others keep."""
    branches = eqn.params["branches"]
    found = [kept_body(b, policy, needed) for b in branches]
    if all(f is None for f in found):
        return None
    slots, places = _shared_slots([[] if f is None else [v.aval for v in f.saved] for f in found])
    forward = tuple(
        _with_slots(b if f is None else f.forward, slots, mine) for b, f, mine in zip(branches, found, places)
    )
    again = tuple(
        _given_slots(_results(b, needed) if f is None else f.again, slots, mine)
        for b, f, mine in zip(branches, found, places)
    )
    saved = tuple(Var(a) for a in slots)
    outs = [v for v, flag in zip(eqn.outvars, needed) if flag]
    return Kept(
        eqn.replace(outvars=(*eqn.outvars, *saved), params={"branches": forward}),
        eqn.replace(invars=(eqn.invars[0], *saved, *eqn.invars[1:]), outvars=outs, params={"branches": again}),
        saved,
    )


def _results(closed: ClosedJaxpr, needed: Sequence[bool]) -> ClosedJaxpr:
    outs = tuple(n for n, flag in enumerate(needed) if flag)
    return rearranged(closed, tuple(range(len(closed.in_avals))), outs)


def _given_slots(closed: ClosedJaxpr, slots: Sequence[ShapedArray], mine: Sequence[int]) -> ClosedJaxpr:
    """A branch that takes, as its first inputs, all places instead of its own."""
    missing = [s for s in range(len(slots)) if s not in mine]
    wide = widened(closed, tuple(slots[s] for s in missing), len(mine))
    at = {s: n for n, s in enumerate((*mine, *missing))}
    ins = (*(at[s] for s in range(len(slots))), *range(len(slots), len(wide.in_avals)))
    return rearranged(wide, ins, tuple(range(len(wide.out_avals))))


cond_op = define(
    "cond",
    type_rule=_type,
    infer=_infer,
    plan=_plan,
    lower=_lower,
    build=_build,
    jvp=_jvp,
    transpose=_transpose,
    partial_eval=_partial_eval,
    batch=_batch,
    multiple_results=True,
    aligns=False,
    steps=_steps,
    kept=_kept,
    hlo_name="conditional",
)
