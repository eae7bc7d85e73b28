"""Interpreting a jaxpr: bind its equations again under the current trace, each under the mesh it was traced with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from mpiarray.config import config
from mpiarray.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, callee, subjaxprs
from mpiarray.core.op import Op
from mpiarray.core.trace import Tracer, abstract_mesh, state
from mpiarray.core.value import Literal


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], inlined: Collection[Op] = ()) -> list[Any]:
    """The results of a jaxpr for these constants and arguments; the bodies of calls by `inlined` ops are
    interpreted too.
    """
    env: dict[Atom, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for eqn in jaxpr.eqns:
        ins = [v if isinstance(v, Literal) else env[v] for v in eqn.invars]
        if eqn.op in inlined:
            env.update(zip(eqn.outvars, eval_jaxpr(callee(eqn.params).jaxpr, (), ins, inlined), strict=True))
            continue
        if eqn.mesh is state.abstract_mesh:
            out = eqn.op(*ins, **eqn.params)
        else:
            with abstract_mesh(eqn.mesh):
                out = eqn.op(*ins, **eqn.params)
        env.update(zip(eqn.outvars, out if eqn.op.multiple_results else (out,), strict=True))
    return [v if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


class Derived:
    """A jaxpr that a transformation made from another one.

    jaxpr   without constants, so that it can be an equation's parameter
    consts  values of its first inputs
    """

    def __init__(self, closed: ClosedJaxpr):
        self.jaxpr = without_constants(closed)
        self.consts = closed.consts


def without_constants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with its constants as first inputs."""
    inner = closed.jaxpr
    if not inner.constvars:
        return closed if not closed.consts else ClosedJaxpr(inner)
    return ClosedJaxpr(inner.replace(constvars=(), invars=(*inner.constvars, *inner.invars)))


def dividing_axes() -> frozenset[str]:
    """The mesh axes over which maps inside of enclosing vmaps divide examples (`spmd_axis_name`): what one example comes to does not
    differ along them.
    """
    return frozenset(a for axis in state.mapped for a in axis.spmd)


class DerivedCache:
    """What transformations made of jaxprs, found again by the identity of the jaxpr, so that equal calls share one
    program.

    Results that captured a tracer belong to one trace only and are not kept.
    """

    def __init__(self, size: int = 2048):
        self._found: dict[Any, Any] = {}
        self._size = size

    def get(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        key = (*key, state.check_vma, config.jax_enable_x64, dividing_axes())
        found = self._found.get(key)
        if found is None:
            found = make()
            if not any(isinstance(c, Tracer) for c in found.consts):
                if len(self._found) >= self._size:
                    for old in list(self._found)[: self._size // 2]:
                        del self._found[old]
                self._found[key] = found
        return found


def has_effects(eqn: Eqn) -> bool:
    """Whether an equation, or one in the jaxprs that it carries, must run even when nobody uses its results."""
    return eqn.op.effects or any(has_effects(e) for inner in subjaxprs(eqn.params) for e in inner.eqns)


def dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """Drop equations whose results nobody uses and that have no effect."""
    live = {v for v in jaxpr.outvars if isinstance(v, Var)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if has_effects(eqn) or any(v in live for v in eqn.outvars):
            kept.append(eqn)
            live.update(v for v in eqn.invars if isinstance(v, Var))
    return jaxpr if len(kept) == len(jaxpr.eqns) else jaxpr.replace(eqns=kept[::-1])
