"""Changes of shape that move nothing are taken together, and left out where they end as they began.

A bias meets a layer's values as `[1, n]`, and so its gradient is reshaped, summed over the mesh as `[1, n]`, and "summed"
over that 1.  Here reductions over dims of size 1 are reshapes, reshapes stand after the collectives that act on each
element alike, and one reshape of another is one.  Each step that is left out is a call of Python, after a matrix product
has emptied the caches.
"""

from __future__ import annotations

from typing import Any

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, substituted
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import pmax, pmin, psum
from mpiarray.ops.linear import reduce_sum, reshape
from mpiarray.ops.manual import psum_invariant, unreduced_psum
from mpiarray.ops.reductions import reduce_max, reduce_min, reduce_prod
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types import dtypes

_REDUCTIONS = (reduce_sum, reduce_max, reduce_min, reduce_prod)
_EACH_ALIKE = (psum, pmax, pmin, psum_invariant, unreduced_psum)


def reshapes(jaxpr: Jaxpr) -> Jaxpr:
    """The program with fewer reshapes, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, reshapes)
    if not any(e.op is reshape or keeps_all(e) for e in jaxpr.eqns):
        return jaxpr
    eqns: list[Eqn] = []
    instead: dict[Var, Any] = {}
    origin: dict[Any, Any] = {}  # of reshaped values
    for eqn in jaxpr.eqns:
        invars = substituted(eqn.invars, instead)
        eqn = eqn.replace(invars=invars)
        if eqn.op in _EACH_ALIKE and invars[0] in origin:
            x = origin[invars[0]]
            moved = Var(eqn.outvars[0].aval.update(shape=x.aval.shape, sharding=x.aval.sharding))
            eqns.append(eqn.replace(invars=(x,), outvars=(moved,)))
            eqn = _reshape(eqn, moved)
        elif keeps_all(eqn):
            eqn = _reshape(eqn, invars[0])
        if eqn.op is reshape and not isinstance(eqn.invars[0], Literal):
            (x,), (out,) = eqn.invars, eqn.outvars
            x = origin.get(x, x)
            if x.aval.shape == out.aval.shape and x.aval.dtype == out.aval.dtype:
                instead[out] = x
                continue
            origin[out] = x
            eqn = eqn.replace(invars=(x,))
        eqns.append(eqn)
    return dead_code(jaxpr.replace(eqns=eqns, outvars=substituted(jaxpr.outvars, instead)))


def keeps_all(eqn: Eqn) -> bool:
    """Whether an equation is a reduction over dims of size 1."""
    if eqn.op not in _REDUCTIONS or isinstance(eqn.invars[0], Literal):
        return False
    x = eqn.invars[0].aval
    return all(x.shape[d] == 1 for d in eqn.params["axes"]) and not dtypes.is_key(x.dtype)


def _reshape(eqn: Eqn, x: Any) -> Eqn:
    """A reshape of a value to the shape of an equation's result."""
    params = {"new_sizes": eqn.outvars[0].aval.shape, "dimensions": None, "sharding": None}
    return eqn.replace(op=reshape, invars=(x,), params=params)
