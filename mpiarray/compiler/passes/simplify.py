"""Inlining of nested jits and common subexpressions, on global and on local programs alike; dead code is dropped by
`transforms.evaluate`.
"""

from __future__ import annotations

from typing import Any

from mpiarray.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, callee
from mpiarray.core.value import Literal


def inline(jaxpr: Jaxpr) -> Jaxpr:
    """Replace equations that only call another jaxpr (`jit`) by its equations."""
    if not any(e.op.inlines for e in jaxpr.eqns):
        return jaxpr
    out: list[Eqn] = []
    env: dict[Var, Atom] = {}
    consts: dict[Var, Any] = {}
    _inline_into(jaxpr.eqns, env, out, consts)
    if consts:
        raise ValueError("inline: nested jaxprs must take their constants as operands")
    return jaxpr.replace(eqns=out, outvars=[_read(env, v) for v in jaxpr.outvars])


def _read(env: dict[Var, Atom], atom: Atom) -> Atom:
    while not isinstance(atom, Literal) and atom in env:
        atom = env[atom]
    return atom


def _inline_into(eqns: Any, env: dict[Var, Atom], out: list[Eqn], consts: dict[Var, Any]) -> None:
    for eqn in eqns:
        invars = tuple(_read(env, v) for v in eqn.invars)
        if not eqn.op.inlines:
            out.append(eqn if invars == eqn.invars else eqn.replace(invars=invars))
            continue
        inner: Jaxpr = callee(eqn.params).jaxpr
        fresh: dict[Var, Atom] = dict(zip(inner.invars, invars))
        for e in inner.eqns:
            for v in e.outvars:
                fresh[v] = Var(v.aval)
        renamed = [
            e.replace(invars=[v if isinstance(v, Literal) else fresh[v] for v in e.invars], outvars=[fresh[v] for v in e.outvars])
            for e in inner.eqns
        ]  # fmt: skip
        _inline_into(renamed, env, out, consts)
        for v, r in zip(eqn.outvars, inner.outvars):
            env[v] = r if isinstance(r, Literal) else _read(env, fresh[r])


def common_subexpressions(jaxpr: Jaxpr) -> Jaxpr:
    """Compute equal equations once.  Equations that communicate are left alone: their number is part of the text's contract."""
    seen: dict[Any, tuple[Var, ...]] = {}
    env: dict[Var, Atom] = {}
    out: list[Eqn] = []
    for eqn in jaxpr.eqns:
        invars = tuple(_read(env, v) for v in eqn.invars)
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
    return jaxpr.replace(eqns=out, outvars=[_read(env, v) for v in jaxpr.outvars])


def _atom_key(atom: Atom) -> Any:
    if isinstance(atom, Literal):
        return atom.val.tobytes() if hasattr(atom.val, "tobytes") else atom.val, atom.aval
    return atom


def closed(jaxpr: ClosedJaxpr) -> Jaxpr:
    """A closed jaxpr's constants as its first inputs."""
    inner = jaxpr.jaxpr
    return inner.replace(constvars=(), invars=(*inner.constvars, *inner.invars))
