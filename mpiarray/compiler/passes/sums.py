"""A sum of a sum over other dims is one sum over all of them: a pass less, and what makes its operand may end in it.

A mean over examples of a sum over features is written so in most losses.  The order in which elements are added up changes, as
in any sum of a compiled program.
"""

from __future__ import annotations

from typing import Any

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Eqn, Jaxpr, uses_of
from mpiarray.core.value import Literal
from mpiarray.ops.linear import reduce_sum
from mpiarray.transforms.evaluate import dead_code


def sums(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such sums as one, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, sums)
    if sum(e.op is reduce_sum for e in jaxpr.eqns) < 2:
        return jaxpr
    uses = uses_of(jaxpr)
    made: dict[Any, Eqn] = {}  # sums by their results
    out: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn.op is reduce_sum:
            inner = None if isinstance(eqn.invars[0], Literal) else made.get(eqn.invars[0])
            if inner is not None and uses[eqn.invars[0]] == 1:
                eqn = eqn.replace(invars=inner.invars, params=dict(eqn.params, axes=_both(inner, eqn)))
            made[eqn.outvars[0]] = eqn
        out.append(eqn)
    return jaxpr if all(a is b for a, b in zip(out, jaxpr.eqns)) else dead_code(jaxpr.replace(eqns=out))


def _both(inner: Eqn, outer: Eqn) -> tuple[int, ...]:
    """The dims of the inner sum's operand that either of two sums is over."""
    left = [d for d in range(inner.invars[0].aval.ndim) if d not in inner.params["axes"]]
    return tuple(sorted((*inner.params["axes"], *(left[d] for d in outer.params["axes"]))))
