"""Inlining of nested jits and common subexpressions, on global and on local programs alike; dead code is dropped by
`transforms.evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, callee, substituted
from mpiarray.core.value import Literal


def inline(jaxpr: Jaxpr) -> Jaxpr:
    """Replace equations that only call another jaxpr (`jit`), and loops that are to be unrolled, by the equations of that."""
    if all(_callee(e) is None for e in jaxpr.eqns):
        return jaxpr
    out: list[Eqn] = []
    env: dict[Var, Atom] = {}
    for eqn in jaxpr.eqns:
        invars = substituted(eqn.invars, env)
        inner = _callee(eqn)
        if inner is not None:
            env.update(zip(eqn.outvars, _called(inner, invars, out)))
        else:
            out.append(eqn if invars == eqn.invars else eqn.replace(invars=invars))
    return jaxpr.replace(eqns=out, outvars=substituted(jaxpr.outvars, env))


def _callee(eqn: Eqn) -> Jaxpr | None:
    """The jaxpr whose equations go in an equation's place."""
    if eqn.op.inlines:
        return callee(eqn.params).jaxpr
    return eqn.op.unrolled(eqn) if eqn.op.unrolled is not None else None


def _called(jaxpr: Jaxpr, args: Sequence[Atom], out: list[Eqn]) -> list[Atom]:
    """Append a call's equations with variables of their own, each renamed once however deep it is; its results."""
    if jaxpr.constvars:
        raise ValueError("inline: nested jaxprs must take their constants as operands")
    env: dict[Var, Atom] = dict(zip(jaxpr.invars, args))
    for eqn in jaxpr.eqns:
        invars = substituted(eqn.invars, env)
        inner = _callee(eqn)
        if inner is not None:
            env.update(zip(eqn.outvars, _called(inner, invars, out)))
            continue
        fresh = tuple(Var(v.aval) for v in eqn.outvars)
        env.update(zip(eqn.outvars, fresh))
        out.append(eqn.replace(invars=invars, outvars=fresh))
    return list(substituted(jaxpr.outvars, env))


def common_subexpressions(jaxpr: Jaxpr) -> Jaxpr:
    """Compute equal equations once.  Equations that communicate are left alone: their number is part of the text's contract."""
    seen: dict[Any, tuple[Var, ...]] = {}
    env: dict[Var, Atom] = {}
    out: list[Eqn] = []
    for eqn in jaxpr.eqns:
        invars = substituted(eqn.invars, env)
        eqn = eqn if invars == eqn.invars else eqn.replace(invars=invars)
        if eqn.op.effects or eqn.op.build is not None or eqn.op.lower is not None:
            out.append(eqn)
            continue
        key: Any = (
            eqn.op,
            tuple(_atom_key(v) for v in invars),
            tuple(eqn.params.items()),
            eqn.mesh,
            tuple(v.aval for v in eqn.outvars),
        )
        try:
            found = seen.get(key)
        except TypeError:
            found = None
            key = None
        if found is None:
            if key is not None:
                seen[key] = eqn.outvars
            out.append(eqn)
        else:
            env.update(zip(eqn.outvars, found))
    if not env:
        return jaxpr
    return jaxpr.replace(eqns=out, outvars=substituted(jaxpr.outvars, env))


def _atom_key(atom: Atom) -> Any:
    if isinstance(atom, Literal):
        return atom.val.tobytes() if hasattr(atom.val, "tobytes") else atom.val, atom.aval
    return atom


def closed(jaxpr: ClosedJaxpr) -> Jaxpr:
    """A closed jaxpr's constants as its first inputs."""
    inner = jaxpr.jaxpr
    return inner.replace(constvars=(), invars=(*inner.constvars, *inner.invars))
