"""Collectives of one kind over the same mesh axes that do not wait for each other travel in one message.

The gradients of a data-parallel step are summed over the mesh one parameter at a time; each message has a price of its
own, so that those of one dtype are better sent together.  The level of a sum is the largest number of other sums on any
path to it.  Sums of one level are independent of each other: the path from one to another would
raise the level.  Every rank has the same local program, so that all combine alike.

Sums that are scattered are combined in the same way where they are small (the slopes of biases that are spread over ranks).
Results of gathers are needed soon: small ones come with the first of them, if their operands are there by then.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpiarray.compiler.cost import nbytes
from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.config import config
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr
from mpiarray.core.op import Op
from mpiarray.core.plan import axes_size
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import all_gather, psum, psum_many, reduce_scatter
from mpiarray.ops.manual import (
    all_gather_invariant,
    all_gather_reduced,
    psum_invariant,
    unreduced_psum,
    unreduced_reduce_scatter,
)
from mpiarray.ops.sum_update import psum_update
from mpiarray.ops.together import gather_many, scatter_many
from mpiarray.transforms.evaluate import has_effects
from mpiarray.types import dtypes

_OVERLAPPED_BYTES = 2**22
"""Messages up to this size where they overlap with work: what is ready early need not wait for what comes late."""
_SMALL_BYTES = 2**14
"""Of what a rank gives to a gather, or gets of a sum: larger ones are not worth the copies into a message and out of it."""
_FEWEST_RANKS = 3
"""For small gathers and scattered sums: between two ranks one exchange does it, which takes no longer than packing (measured in
shared memory: 13 us for five messages warm, 35 cold, either way; 250 and 110 us on four ranks)."""
_EARLY_BYTES = 2**18
"""Of what a rank gives to gathers of one message: their results are there for longer than they would be."""
_SUMS = (psum, psum_invariant, unreduced_psum)
_SCATTERS = (reduce_scatter, unreduced_reduce_scatter)
_GATHERS = (all_gather, all_gather_invariant, all_gather_reduced)

Key = Callable[[Eqn], tuple[Any, int] | None]


def combine(jaxpr: Jaxpr) -> Jaxpr:
    """One equation for collectives that travel together, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, combine)
    eqns = list(jaxpr.eqns)
    for ops, key, merge in (
        (_SUMS, _sum_key, _sums),
        (_SCATTERS, _scatter_key, _scatters),
        (_GATHERS, _gather_key, _gathers),
    ):
        if sum(e.op in ops and key(e) is not None for e in eqns) > 1:
            eqns = merge(eqns)
    return jaxpr.replace(eqns=eqns)


def _sum_key(eqn: Eqn) -> tuple[Any, int] | None:
    """What sums of one message have in common, and the bytes of this one; None for what travels alone."""
    if eqn.op not in _SUMS or isinstance(eqn.invars[0], Literal):
        return None
    aval = eqn.invars[0].aval
    return (eqn.mesh, eqn.params["axes"], eqn.params.get("axis_index_groups"), aval.dtype), nbytes(aval)


def _scatter_key(eqn: Eqn) -> tuple[Any, int] | None:
    return _way_key(eqn, eqn.outvars[0]) if eqn.op in _SCATTERS else None


def _gather_key(eqn: Eqn) -> tuple[Any, int] | None:
    return _way_key(eqn, eqn.invars[0]) if eqn.op in _GATHERS else None


def _way_key(eqn: Eqn, part: Atom) -> tuple[Any, int] | None:
    aval, axes = part.aval, eqn.params["axis_name"]
    if isinstance(eqn.invars[0], Literal) or dtypes.is_key(aval.dtype) or not aval.size:
        return None
    if nbytes(aval) > _SMALL_BYTES or axes_size(eqn.mesh, axes) < _FEWEST_RANKS:
        return None
    return (eqn.mesh, axes, eqn.params["axis_size"], eqn.params["axis_index_groups"], aval.dtype), nbytes(aval)


def _sums(eqns: Sequence[Eqn]) -> list[Eqn]:
    groups = _groups(eqns, needs_of(eqns), _sum_key)
    late = _Late(eqns)

    def merged(members: Sequence[Eqn]) -> Eqn:
        params = {name: members[0].params.get(name) for name in ("axes", "axis_index_groups")}
        return _together(members, psum_many, params)

    return _ordered(groups, eqns, merged, late.place)


def _scatters(eqns: Sequence[Eqn]) -> list[Eqn]:
    merged = partial(_with_ways, op=scatter_many, dimension="scatter_dimension")
    return _ordered(_groups(eqns, needs_of(eqns), _scatter_key), eqns, merged, lambda group: group[-1])


def _gathers(eqns: Sequence[Eqn]) -> list[Eqn]:
    merged = partial(_with_ways, op=gather_many, dimension="all_gather_dimension")
    return _ordered(_early_groups(eqns, needs_of(eqns)), eqns, merged, lambda group: group[0])


def _together(members: Sequence[Eqn], op: Op, params: dict[str, Any]) -> Eqn:
    invars, outvars = ([v for e in members for v in getattr(e, name)] for name in ("invars", "outvars"))
    return members[0].replace(op=op, invars=invars, outvars=outvars, params=params)


def _with_ways(members: Sequence[Eqn], op: Op, dimension: str) -> Eqn:
    params = {name: members[0].params[name] for name in ("axis_name", "axis_size", "axis_index_groups")}
    ways = tuple((e.params[dimension], e.params["tiled"]) for e in members)
    return _together(members, op, {**params, "ways": ways})


def needs_of(eqns: Sequence[Eqn]) -> list[set[int]]:
    """The equations that each one must come after: those of its operands, and effects in their order."""
    maker = {v: k for k, eqn in enumerate(eqns) for v in eqn.outvars}
    needs = [{maker[v] for v in eqn.invars if not isinstance(v, Literal) and v in maker} for eqn in eqns]
    effects = [k for k, eqn in enumerate(eqns) if has_effects(eqn)]
    for before, after in itertools.pairwise(effects):
        needs[after].add(before)
    return needs


def _groups(eqns: Sequence[Eqn], needs: Sequence[set[int]], key_of: Key) -> list[list[int]]:
    """The collectives that go together, each group within the size of a message."""
    limit = min(config.exchange_bytes, _OVERLAPPED_BYTES) if config.overlap else config.exchange_bytes
    keys = list(map(key_of, eqns))
    levels: list[int] = []
    found: dict[Any, list[list[int]]] = defaultdict(list)
    sizes: dict[Any, int] = {}
    for k, mine in enumerate(keys):
        levels.append(max((levels[n] + (keys[n] is not None) for n in needs[k]), default=0))
        if mine is None:
            continue
        key, size = (levels[k], mine[0]), mine[1]
        if not found[key] or sizes[key] + size > limit:
            found[key].append([])
            sizes[key] = 0
        found[key][-1].append(k)
        sizes[key] += size
    return [group for groups in found.values() for group in groups if len(group) > 1]


def _early_groups(eqns: Sequence[Eqn], needs: Sequence[set[int]]) -> list[list[int]]:
    """The gathers that go together where the first of each group stands: what they gather is there by then."""
    open: dict[Any, list[int]] = {}
    room: dict[Any, int] = {}
    found: list[list[int]] = []
    for k, eqn in enumerate(eqns):
        mine = _gather_key(eqn)
        if mine is None:
            continue
        key, size = mine
        group = open.get(key)
        if group is None or max(needs[k], default=-1) >= group[0] or size > room[key]:
            open[key] = group = []
            room[key] = _EARLY_BYTES
            found.append(group)
        group.append(k)
        room[key] -= size
    return [group for group in found if len(group) > 1]


def _ordered(
    groups: Sequence[Sequence[int]],
    eqns: Sequence[Eqn],
    merged_of: Callable[[Sequence[Eqn]], Eqn],
    place_of: Callable[[Sequence[int]], float],
) -> list[Eqn]:
    """The program with each group as one equation, at its place, or as soon as it can be after that."""
    if not groups:
        return list(eqns)
    member = {k: group for group in groups for k in group}
    merged: dict[float, Eqn] = {k: eqn for k, eqn in enumerate(eqns) if k not in member}
    merged.update((place_of(group), merged_of([eqns[k] for k in group])) for group in groups)
    keys = sorted(merged)
    new = [merged[k] for k in keys]
    return [new[k] for k in _sorted(needs_of(new))]


class _Late:
    """Which sums may come late, and how late: those that nothing but results waits for go before the next update with a sum, where
    ranks wait for each other anyway."""

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
        """Where the equation of a group goes, if not where its last member stood."""
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
