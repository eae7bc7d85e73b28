"""Which carries of a loop's body may be updated where they lie.

A carry's block is the loop's own from the second iteration on if the body's result for it is made by updates of the
carry alone: `new = update(carry, ...)`, perhaps several in a row.  Then the first block is copied once, before the loop,
and the updates overwrite it.  What was read of a carry may be a view of its block, so that whatever may be one must not
be used after the update: the results of all equations are taken for views but for those that numpy's ufuncs make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.ops.in_place import OVERWRITING
from mpiarray.ops.tiles import ufunc_of


def overwriting(closed: ClosedJaxpr, first: int, count: int) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """The body, whose carry is its arguments from `first` on and its first `count` results, with updates in place, and
    which of the carry's values must be blocks of the loop's own."""
    jaxpr = closed.jaxpr
    updates: dict[Eqn, Eqn] = {}
    owned = []
    for k in range(count):
        found = _updates_of(jaxpr, k, jaxpr.invars[first + k], count)
        if found:
            owned.append(k)
            updates |= {e: e.replace(op=OVERWRITING[e.op]) for e in found}
    if not owned:
        return closed, ()
    eqns = [updates.get(e, e) for e in jaxpr.eqns]
    return ClosedJaxpr(jaxpr.replace(eqns=eqns), closed.consts), tuple(owned)


def _updates_of(jaxpr: Jaxpr, k: int, carry: Var, count: int) -> list[Eqn]:
    """The updates that make result k of the carry, in order; empty where they must not overwrite it."""
    updates: list[Eqn] = []
    value: Any = jaxpr.outvars[k]
    makers = {v: e for e in jaxpr.eqns for v in e.outvars}
    while value is not carry:
        eqn = makers.get(value) if isinstance(value, Var) else None
        if eqn is None or eqn.op not in OVERWRITING or not isinstance(eqn.invars[0], Var):
            return []
        updates.insert(0, eqn)
        value = eqn.invars[0]
    return updates if updates and _alone(jaxpr, k, carry, updates, count) else []


def _alone(jaxpr: Jaxpr, k: int, carry: Var, updates: Sequence[Eqn], count: int) -> bool:
    """Whether nothing reads an earlier state of the memory after an update, and no other carry shares it."""
    states = {carry: 0} | {e.outvars[0]: n + 1 for n, e in enumerate(updates)}
    number = {e: n for n, e in enumerate(updates)}
    views: dict[Var, int] = dict(states)  # what may share the memory, and the state it is about
    state = 0
    for eqn in jaxpr.eqns:
        seen = [views[v] for v in eqn.invars if isinstance(v, Var) and v in views]
        if any(s != state for s in seen):
            return False
        if eqn in number:
            state += 1
        elif seen and ufunc_of(eqn) is None:
            views |= dict.fromkeys(eqn.outvars, state)
    results = [v for n, v in enumerate(jaxpr.outvars) if n != k and isinstance(v, Var) and v in views]
    others = [v for n, v in enumerate(jaxpr.outvars[:count]) if n != k and isinstance(v, Var) and v in views]
    return not others and all(views[v] == state for v in results)


def compiled(ctx: DeviceContext, body: ClosedJaxpr, first: int, count: int) -> Callable[[bool], Callable[..., Any]]:
    """The body of a loop, prepared: from whether the carry is what an iteration before gave, the function of its blocks.

    From the second iteration on a stencil may then write over the carry that it reads (`ops.sweeps`).
    """
    assert ctx.compile is not None, "loops are steps of executables"
    run = ctx.compile(body, {k: first + k for k in range(count)})
    again = partial(run, own=True) if getattr(run, "overwrites", False) else run
    return lambda own: again if own else run


def owned_blocks(blocks: Sequence[Any], owned: Sequence[int]) -> list[Any]:
    """A loop's first carry, with blocks of its own where the body overwrites them."""
    out = list(blocks)
    for k in owned:
        out[k] = np.array(blocks[k], order="C")
    return out
