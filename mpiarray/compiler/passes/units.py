"""Operations with a number that changes nothing: x * 1, x / 1, max(x, -inf), min(x, inf) are x.

Derivatives are full of them: the slope of a sum is 1, and `softmax` starts its maximum at -inf.  Exact, for NaN and signed
zeros too (which is why x + 0 is left: it makes 0 of -0).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, substituted
from mpiarray.core.op import Op
from mpiarray.core.value import Literal
from mpiarray.ops.arithmetic import div, max_, min_, mul
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types import dtypes

_UNITS: dict[Op, float] = {mul: 1.0, div: 1.0, max_: -math.inf, min_: math.inf}


def units(jaxpr: Jaxpr) -> Jaxpr:
    """The program without such operations, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, units)
    if not any(e.op in _UNITS for e in jaxpr.eqns):
        return jaxpr
    numbers: dict[Any, Literal] = {}  # what is one number everywhere
    same: dict[Var, Atom] = {}
    out: list[Eqn] = []
    for eqn in jaxpr.eqns:
        invars = substituted(eqn.invars, same)
        eqn = eqn if invars == eqn.invars else eqn.replace(invars=invars)
        if eqn.op is broadcast_in_dim and isinstance(invars[0], Literal) and not invars[0].aval.ndim:
            numbers[eqn.outvars[0]] = invars[0]
        kept = _kept(eqn, numbers) if eqn.op in _UNITS else None
        if kept is None:
            out.append(eqn)
        else:
            same[eqn.outvars[0]] = kept
    if not same:
        return jaxpr
    return dead_code(jaxpr.replace(eqns=out, outvars=substituted(jaxpr.outvars, same)))


def _kept(eqn: Eqn, numbers: dict[Any, Literal]) -> Atom | None:
    """The operand that an operation with its unit gives back unchanged."""
    unit = _UNITS[eqn.op]
    for k in (1,) if eqn.op is div else (1, 0):
        x, other = eqn.invars[1 - k], eqn.invars[k]
        number = other if isinstance(other, Literal) else numbers.get(other)
        if number is None or number.aval.ndim or isinstance(x, Literal) or not dtypes.is_float(x.aval.dtype):
            continue
        if x.aval == eqn.outvars[0].aval and np.asarray(number.val).astype(np.float64) == unit:
            return x
    return None
