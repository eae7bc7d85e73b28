"""Equal jaxprs as one object.

A jaxpr is a parameter of loops and conditionals, and parameters are compared by identity: a function that is traced anew
at each call would be compiled, differentiated and batched anew each time.  `intern` finds the jaxpr that says the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from mpiarray.core.value import Literal
from mpiarray.transforms.evaluate import without_constants

_SIZE = 4096
_found: dict[Any, ClosedJaxpr] = {}


def intern(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The first jaxpr that was equal to this one (its constants become its first inputs); equations' sources do not count."""
    closed = without_constants(closed)
    key = _key(closed.jaxpr)
    try:
        found = _found.get(key)
    except TypeError:  # a parameter is not hashable
        return closed
    if found is None:
        if len(_found) >= _SIZE:
            for old in list(_found)[: _SIZE // 2]:
                del _found[old]
        found = _found[key] = closed
    return found


def _key(jaxpr: Jaxpr) -> Any:
    numbers: dict[Var, int] = {}

    def number(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return atom.val.tobytes() if hasattr(atom.val, "tobytes") else atom.val, atom.aval
        return numbers[atom]

    def bind(v: Var) -> Any:
        numbers[v] = len(numbers)
        return v.aval

    head = tuple(bind(v) for v in jaxpr.invars)
    body = tuple(
        (e.op, tuple(number(a) for a in e.invars), tuple(e.params.items()), e.mesh, tuple(bind(v) for v in e.outvars))
        for e in jaxpr.eqns
    )
    return head, body, tuple(number(a) for a in jaxpr.outvars), jaxpr.debug_name


@lru_cache(maxsize=4096)
def rearranged(closed: ClosedJaxpr, ins: tuple[int, ...], outs: tuple[int, ...]) -> ClosedJaxpr:
    """A jaxpr with its inputs in another order, and some of its results."""
    inner = closed.jaxpr
    return ClosedJaxpr(inner.replace(invars=[inner.invars[i] for i in ins], outvars=[inner.outvars[i] for i in outs]))


@lru_cache(maxsize=4096)
def widened(closed: ClosedJaxpr, avals: tuple[Any, ...], position: int) -> ClosedJaxpr:
    """A jaxpr with more inputs, which it does not use, at a position."""
    inner = closed.jaxpr
    more = [Var(a) for a in avals]
    return ClosedJaxpr(inner.replace(invars=[*inner.invars[:position], *more, *inner.invars[position:]]))
