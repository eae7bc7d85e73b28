"""What policies of `jax.checkpoint` keep inside the bodies of loops and maps.

A policy says of each operation whether its results are kept for the backward pass. Where it stands in the body of a `scan` or a
`shard_map`, the forward equation gets the kept values as more results (stacked, or concatenated over the instances), and the
equation that repeats it on the way back takes them as more operands and leaves out what made them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpiarray.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, callee
from mpiarray.core.value import Literal
from mpiarray.higher_order.jit_function import jit_op
from mpiarray.transforms.evaluate import dead_code

Policy = Callable[..., Any]


class Kept(NamedTuple):
    """An equation in two: `forward` has the values `saved` as its last results, `again` takes them as operands."""

    forward: Eqn
    again: Eqn
    saved: tuple[Var, ...]


class KeptBody(NamedTuple):
    """forward: (*inputs) -> (*results, *saved).  again: (*saved, *inputs) -> the results that are needed again."""

    forward: ClosedJaxpr
    again: ClosedJaxpr
    saved: tuple[Var, ...]


def saves(policy: Policy, eqn: Eqn) -> bool:
    return bool(policy(eqn.op, *(a.aval for a in eqn.invars), **eqn.params))


def kept_equations(eqns: Sequence[Eqn], outs: Sequence[Atom], policy: Policy) -> tuple[list[Eqn], list[Eqn], list[Var]]:
    """(equations now, equations again, saved variables) of equations of which `outs` are needed again."""
    live = {v for v in outs if isinstance(v, Var)}
    for e in reversed(eqns):
        if any(v in live for v in e.outvars):
            live.update(v for v in e.invars if isinstance(v, Var))
    now: list[Eqn] = []
    again: list[Eqn] = []
    saved: list[Var] = []
    for e in eqns:
        if saves(policy, e):
            now.append(e)
            saved += e.outvars
            continue
        found = e.op.kept(e, policy, [v in live for v in e.outvars]) if e.op.kept is not None else None
        now.append(e if found is None else found.forward)
        if not e.op.effects:
            again.append(e if found is None else found.again)
        saved += () if found is None else found.saved
    return now, again, saved


def kept_body(closed: ClosedJaxpr, policy: Policy, needed: Sequence[bool]) -> KeptBody | None:
    """A body in two by a policy; None when it keeps nothing that the needed results depend on."""
    jaxpr = without_jits(closed.jaxpr)
    outs = [v for v, flag in zip(jaxpr.outvars, needed, strict=True) if flag]
    now, again, saved = kept_equations(jaxpr.eqns, outs, policy)
    later = dead_code(jaxpr.replace(eqns=again, outvars=outs))
    reads = {v for e in later.eqns for v in e.invars} | set(outs)
    used = tuple(v for v in dict.fromkeys(saved) if v in reads)
    if not used:
        return None
    forward = jaxpr.replace(eqns=now, outvars=(*jaxpr.outvars, *used))
    return KeptBody(ClosedJaxpr(forward), ClosedJaxpr(later.replace(invars=(*used, *jaxpr.invars))), used)


def without_jits(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr whose nested jits are written out, functions with rules of their own not."""
    if all(e.op is not jit_op for e in jaxpr.eqns):
        return jaxpr
    eqns: list[Eqn] = []
    outs = _written(jaxpr, {v: v for v in jaxpr.invars}, eqns)
    return jaxpr.replace(eqns=eqns, outvars=outs)


def _written(jaxpr: Jaxpr, env: dict[Atom, Atom], eqns: list[Eqn]) -> list[Atom]:
    read = lambda v: v if isinstance(v, Literal) else env[v]
    for e in jaxpr.eqns:
        ins = [read(v) for v in e.invars]
        if e.op is jit_op:
            inner = callee(e.params).jaxpr
            env.update(zip(e.outvars, _written(inner, dict(zip(inner.invars, ins, strict=True)), eqns), strict=True))
            continue
        fresh = [Var(v.aval) for v in e.outvars]
        env.update(zip(e.outvars, fresh))
        eqns.append(e.replace(invars=ins, outvars=fresh))
    return [read(v) for v in jaxpr.outvars]
