"""Passes also work on the bodies of loops and the branches of conditionals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, subjaxprs
from mpiarray.ops.tiles import fusion


def map_bodies(jaxpr: Jaxpr, f: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
    """The program with `f` applied to the jaxprs that its equations carry; itself where nothing changes.

    Groups that are fused stay as they are.
    """
    eqns = [e if e.op.hlo_name == fusion.hlo_name else _mapped(e, f) for e in jaxpr.eqns]
    return jaxpr if all(a is b for a, b in zip(eqns, jaxpr.eqns)) else jaxpr.replace(eqns=eqns)


def _mapped(eqn: Eqn, f: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    if not any(True for _ in subjaxprs(eqn.params)):
        return eqn

    def one(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            inner = f(value.jaxpr)
            return value if inner is value.jaxpr else ClosedJaxpr(inner, value.consts)
        return f(value) if isinstance(value, Jaxpr) else value

    params = {k: tuple(map(one, v)) if isinstance(v, tuple) else one(v) for k, v in eqn.params.items()}
    return eqn.replace(params=params)
