"""Sums over the same mesh axes that do not wait for each other travel in one message.

The gradients of a data-parallel step are summed over the mesh one parameter at a time; each message has a price of its
own, so that those of one dtype are better sent together.  The level of a sum is the largest number of other sums on any
path to it.  Sums of one level are independent of each other: the path from one to another would
raise the level.  Every rank has the same local program, so that all combine alike.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from mpiarray.compiler.cost import nbytes
from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.config import config
from mpiarray.core.jaxpr import Eqn, Jaxpr
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import psum, psum_many
from mpiarray.ops.manual import psum_invariant, unreduced_psum
from mpiarray.ops.sum_update import psum_update
from mpiarray.transforms.evaluate import has_effects

_OVERLAPPED_BYTES = 2**22
"""Messages up to this size where they overlap with work: what is ready early need not wait for what comes late."""
_SUMS = (psum, psum_invariant, unreduced_psum)


def combine(jaxpr: Jaxpr) -> Jaxpr:
    """One `psum_many` for independent sums of one dtype over the same axes, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, combine)
    eqns = list(jaxpr.eqns)
    if sum(e.op in _SUMS for e in eqns) > 1:
        eqns = _ordered(_groups(eqns, needs_of(eqns)), eqns)
        jaxpr = jaxpr.replace(eqns=eqns)
    return jaxpr


def needs_of(eqns: Sequence[Eqn]) -> list[set[int]]:
    """The equations that each one must come after: those of its operands, and effects in their order."""
    maker = {v: k for k, eqn in enumerate(eqns) for v in eqn.outvars}
    needs = [{maker[v] for v in eqn.invars if not isinstance(v, Literal) and v in maker} for eqn in eqns]
    effects = [k for k, eqn in enumerate(eqns) if has_effects(eqn)]
    for before, after in itertools.pairwise(effects):
        needs[after].add(before)
    return needs


def _groups(eqns: Sequence[Eqn], needs: Sequence[set[int]]) -> list[list[int]]:
    """The sums that go together, each group within the size of a message."""
    limit = min(config.exchange_bytes, _OVERLAPPED_BYTES) if config.overlap else config.exchange_bytes
    levels: list[int] = []
    found: dict[Any, list[list[int]]] = defaultdict(list)
    sizes: dict[Any, int] = {}
    for k, eqn in enumerate(eqns):
        levels.append(max((levels[n] + (eqns[n].op in _SUMS) for n in needs[k]), default=0))
        if eqn.op not in _SUMS or isinstance(eqn.invars[0], Literal):
            continue
        aval = eqn.invars[0].aval
        key = (levels[k], eqn.mesh, eqn.params["axes"], eqn.params.get("axis_index_groups"), aval.dtype)
        size = nbytes(aval)
        if not found[key] or sizes[key] + size > limit:
            found[key].append([])
            sizes[key] = 0
        found[key][-1].append(k)
        sizes[key] += size
    return [group for groups in found.values() for group in groups if len(group) > 1]


def _ordered(groups: Sequence[Sequence[int]], eqns: Sequence[Eqn]) -> list[Eqn]:
    """The program with each group as one equation, where its last member stood, or as soon as it can be after that.

    Sums that nothing but results waits for go before the next update with a sum, where ranks wait for each other anyway.
    """
    if not groups:
        return list(eqns)
    member = {k: group for group in groups for k in group}
    merged: dict[float, Eqn] = {k: eqn for k, eqn in enumerate(eqns) if k not in member}
    late = _Late(eqns)
    for group in groups:
        first = eqns[group[0]]
        merged[late.place(group)] = first.replace(
            op=psum_many,
            invars=[eqns[k].invars[0] for k in group],
            outvars=[eqns[k].outvars[0] for k in group],
            params={"axes": first.params["axes"], "axis_index_groups": first.params.get("axis_index_groups")},
        )
    keys = sorted(merged)
    new = [merged[k] for k in keys]
    return [new[k] for k in _sorted(needs_of(new))]


class _Late:
    """Which sums may come late, and how late."""

    def __init__(self, eqns: Sequence[Eqn]):
        self.eqns = eqns
        self.places = [k for k, e in enumerate(eqns) if e.op is psum_update]
        self.waiting: set[Any] = set()  # values that more than elementwise work waits for
        if self.places:
            for eqn in reversed(eqns):
                plain = eqn.op.elementwise and not eqn.op.effects
                if not plain or any(v in self.waiting for v in eqn.outvars):
                    self.waiting.update(v for v in eqn.invars if not isinstance(v, Literal))

    def place(self, group: Sequence[int]) -> float:
        """Where the equation of a group goes."""
        last = group[-1]
        after = next((k for k in self.places if k > last), None)
        if after is None or any(v in self.waiting for k in group for v in self.eqns[k].outvars):
            return last
        return after - 0.5


def _sorted(needs: Sequence[set[int]]) -> list[int]:
    """An order in which everything comes after what it needs, as near to the given one as that allows."""
    readers: dict[int, list[int]] = defaultdict(list)
    waiting = [len(n) for n in needs]
    for k, n in enumerate(needs):
        for before in n:
            readers[before].append(k)
    ready = [k for k, n in enumerate(waiting) if not n]
    heapq.heapify(ready)
    out = []
    while ready:
        k = heapq.heappop(ready)
        out.append(k)
        for reader in readers[k]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    assert len(out) == len(needs), "combine: sums that wait for each other were put together"
    return out
