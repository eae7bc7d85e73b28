"""`where(mask, x, 0)` is one product of integers (`ops.masked`), where the mask has an element for each of x."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr
from mpiarray.core.value import Literal
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.masked import is_maskable, masked
from mpiarray.ops.select import select_n
from mpiarray.transforms.evaluate import dead_code


def zeros(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such choices as that, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, zeros)
    if not any(e.op is select_n for e in jaxpr.eqns):
        return jaxpr
    makers: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    eqns = [_masked(e, makers) if e.op is select_n else e for e in jaxpr.eqns]
    return jaxpr if all(a is b for a, b in zip(eqns, jaxpr.eqns)) else dead_code(jaxpr.replace(eqns=eqns))


def _masked(eqn: Eqn, makers: dict[Any, Eqn]) -> Eqn:
    mask, no, *others = eqn.invars
    aval = eqn.outvars[0].aval
    if len(others) != 1 or isinstance(mask, Literal) or mask.aval.dtype != np.bool_ or mask.aval.shape != aval.shape:
        return eqn
    (yes,) = others
    maker = makers.get(mask)
    broadcast = maker is not None and maker.op is broadcast_in_dim
    if (
        broadcast
        or not aval.ndim
        or isinstance(yes, Literal)
        or not is_maskable(aval.dtype)
        or not _is_zero(no, makers)
    ):
        return eqn
    return eqn.replace(op=masked, invars=(mask, yes))


def _is_zero(atom: Atom, makers: dict[Any, Eqn]) -> bool:
    """Whether an operand is 0 everywhere, and no -0."""
    if not isinstance(atom, Literal):
        maker = makers.get(atom)
        return maker is not None and maker.op is broadcast_in_dim and _is_zero(maker.invars[0], makers)
    return not np.any(np.asarray(atom.val).reshape(-1).view(np.uint8))
