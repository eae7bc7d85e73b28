"""Arrays that a group would hand to a later one are made again there, where that is cheaper than writing and reading them.

`x - mean` is needed for the variance, in one pass over x, and for the norm, in the next one.  Written to memory it costs as
much as reading x twice, and a subtraction in cache costs a fifth of that.  So a group's result that takes few cheap steps from
one array (and from small ones) is left out of its results; those steps are done by the groups that read it.  All numbers stay
what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, readers_of
from mpiarray.core.value import Literal
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.tile_steps import ufunc_of
from mpiarray.ops.tiles import fusion
from mpiarray.transforms.evaluate import dead_code

_CHEAP = frozenset((np.add, np.subtract, np.multiply, np.negative, np.maximum, np.minimum, np.absolute, np.square))
_MOST = 2  # steps: each takes as long as a quarter of writing and reading an array
_READERS = 2  # groups that make a value again


def again(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such results made where they are read, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, again)
    if sum(e.op is fusion for e in jaxpr.eqns) < 2:
        return jaxpr
    readers = readers_of(jaxpr)
    changed: dict[Eqn, Eqn] = {}
    for eqn in jaxpr.eqns:
        for v in eqn.outvars if eqn.op is fusion else ():
            group = changed.get(eqn, eqn)
            there = _groups_that_read(readers[v], eqn)
            steps = _recipe(group, v) if there else None
            if steps is not None:
                changed.update((r, _with_steps(changed.get(r, r), v, group, steps)) for r in there)
                changed[eqn] = _without(group, v)
    return dead_code(jaxpr.replace(eqns=[changed.get(e, e) for e in jaxpr.eqns])) if changed else jaxpr


def _groups_that_read(readers: Sequence[Eqn | None], maker: Eqn) -> list[Eqn]:
    """The groups of the same shape that read a value, if nobody else does, and they are few."""
    found = [r for r in dict.fromkeys(readers) if r is not None]
    shape = maker.params["shape"]
    alike = None not in readers and all(r.op is fusion and r.params["shape"] == shape for r in found)
    return found if alike and 0 < len(found) <= _READERS else []


def _recipe(group: Eqn, result: Var) -> list[Eqn] | None:
    """The steps that make a group's result of its operands, in order: few and cheap, of one array of the group's shape."""
    inner: Jaxpr = group.params["jaxpr"]
    makers: dict[Any, Eqn] = {v: e for e in inner.eqns for v in e.outvars}
    goal = inner.outvars[group.outvars.index(result)]
    if goal not in makers or goal.aval.shape != group.params["shape"]:
        return None
    steps: dict[Eqn, None] = {}
    arrays: set[Any] = set()
    waiting: list[Any] = [goal]
    while waiting:
        v = waiting.pop()
        eqn = None if isinstance(v, Literal) else makers.get(v)
        if eqn is None:
            arrays |= {v} if v.aval.shape == group.params["shape"] else set()
            continue
        cheap = ufunc_of(eqn) in _CHEAP and eqn.outvars[0].aval.shape == group.params["shape"]
        if not cheap and not (eqn.op is broadcast_in_dim and eqn.invars[0] not in makers):
            return None
        steps[eqn] = None
        waiting += eqn.invars
    work = [e for e in steps if e.op is not broadcast_in_dim]
    return [e for e in inner.eqns if e in steps] if len(arrays) == 1 and 0 < len(work) <= _MOST else None


def _with_steps(reader: Eqn, v: Var, maker: Eqn, steps: Sequence[Eqn]) -> Eqn:
    """A group that makes a value by these steps of another one."""
    inner: Jaxpr = reader.params["jaxpr"]
    given: dict[Any, Atom] = dict(zip(maker.params["jaxpr"].invars, maker.invars))
    operands = [w for w in reader.invars if w is not v]
    mine: dict[Any, Any] = {w: x for w, x in zip(reader.invars, inner.invars) if w is not v}
    goal = dict(zip(reader.invars, inner.invars))[v]
    names: dict[Any, Any] = {}
    made = []
    for step in steps:
        invars = []
        for w in step.invars:
            if not isinstance(w, Literal) and w not in names:
                outer = given[w]
                if outer not in mine:
                    mine[outer] = Var(w.aval)
                    operands.append(outer)
                names[w] = mine[outer]
            invars.append(w if isinstance(w, Literal) else names[w])
        out = goal if step is steps[-1] else Var(step.outvars[0].aval)
        names[step.outvars[0]] = out
        made.append(step.replace(invars=tuple(invars), outvars=(out,)))
    jaxpr = inner.replace(invars=[mine[w] for w in operands], eqns=[*made, *inner.eqns])
    return reader.replace(invars=tuple(operands), params={**reader.params, "jaxpr": jaxpr})


def _without(group: Eqn, v: Var) -> Eqn:
    """A group without one of its results."""
    inner: Jaxpr = group.params["jaxpr"]
    kept = [(w, x) for w, x in zip(group.outvars, inner.outvars) if w is not v]
    jaxpr = dead_code(inner.replace(outvars=[x for _, x in kept]))
    used = {w for e in jaxpr.eqns for w in e.invars if not isinstance(w, Literal)} | set(jaxpr.outvars)
    operands = [(w, x) for w, x in zip(group.invars, jaxpr.invars) if x in used]
    jaxpr = jaxpr.replace(invars=[x for _, x in operands])
    params = {**group.params, "jaxpr": jaxpr}
    return group.replace(invars=tuple(w for w, _ in operands), outvars=tuple(w for w, _ in kept), params=params)
