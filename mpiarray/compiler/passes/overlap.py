"""Collectives start as soon as their operands are there, and are waited for when their results are needed.

A collective that moves enough, with enough work beside it that neither makes its operands nor uses its results, is cut
in two (`ops.halves`): the first half goes as early, the second as late as they can.  The order is the same on all
ranks, because they have the same program and nothing here depends on the rank: starts on one communicator meet in order.

Where several things could come next, starts come first, then what comes first in the given program; a second half
counts as coming last until the work done since its start should cover the transfer, so that memory is not held for
longer than it pays.  Off unless `config.overlap` is set: whether messages travel while Python calculates depends on the
network and on MPI, and where ranks share memory and each has one core they do not.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpiarray.compiler.cost import communication, flops, nbytes
from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.compiler.passes.combine import needs_of
from mpiarray.config import config
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, subjaxprs
from mpiarray.core.value import Literal
from mpiarray.ops.halves import HALVES

_LEAST_BYTES = 2**15
"""Smaller messages are all latency: a start and a wait cost more than one call."""
_LEAST_SECONDS = 2e-5
_LEAST_PART = 0.2
"""Work beside a collective, in seconds and as a part of the time that the transfer should take."""
_FLOPS, _BYTES, _NETWORK, _LATENCY = 2e10, 5e9, 1e9, 2e-5
"""Per second, and seconds: of products, of other work, of the network; rough, they only decide what is worth it."""
_ROUNDS = 4


def overlap(jaxpr: Jaxpr) -> Jaxpr:
    """The program with collectives started early and awaited late, here and in the bodies of loops; unchanged where none pays."""
    if not config.overlap:
        return jaxpr
    jaxpr = map_bodies(jaxpr, overlap)
    eqns = list(jaxpr.eqns)
    chosen = {k: t for k, eqn in enumerate(eqns) if (t := _transfer(eqn)) > 0.0}
    for _ in range(_ROUNDS):
        if not chosen:
            break
        found = _scheduled(eqns, chosen)
        worth = {k: t for k, t in chosen.items() if found.beside[k] >= max(_LEAST_SECONDS, _LEAST_PART * t)}
        if len(worth) == len(chosen):
            return jaxpr.replace(eqns=found.eqns)
        chosen = worth
    return jaxpr.replace(eqns=_scheduled(eqns, chosen).eqns) if chosen else jaxpr


def _transfer(eqn: Eqn) -> float:
    """Seconds that a collective's messages should travel; 0 for what has no halves, or moves too little."""
    if eqn.op not in HALVES or any(isinstance(v, Literal) for v in eqn.invars):
        return 0.0
    moved, messages = communication(eqn, sum(nbytes(v.aval) for v in eqn.invars))
    return 0.0 if moved < _LEAST_BYTES else messages * _LATENCY + moved / _NETWORK


def seconds(eqn: Eqn) -> float:
    """What an equation should take, collectives apart."""
    bodies = [sum(map(seconds, body.eqns)) for body in subjaxprs(eqn.params)]
    if bodies:
        return (max(bodies) if "branches" in eqn.params else sum(bodies)) * eqn.params.get("length", 1)
    if eqn.op in HALVES:
        return 0.0
    shapes = [tuple(v.aval.shape) for v in (*eqn.invars, *eqn.outvars)]
    count = len(eqn.invars)
    work = flops(eqn, shapes[:count], shapes[count:]) if eqn.op.build is None else 0.0
    return max(work / _FLOPS, sum(nbytes(v.aval) for v in eqn.outvars) / _BYTES)


class _Schedule(NamedTuple):
    """A program in a new order, and the seconds of work between the halves of each cut collective (by its old number)."""

    eqns: list[Eqn]
    beside: dict[int, float]


def _scheduled(eqns: Sequence[Eqn], chosen: dict[int, float]) -> _Schedule:
    nodes: list[Eqn] = []
    starts: dict[int, int] = {}  # node -> old number
    ends: dict[int, int] = {}
    for k, eqn in enumerate(eqns):
        if k not in chosen:
            nodes.append(eqn)
            continue
        starts[len(nodes)], ends[len(nodes) + 1] = k, k
        nodes += _halves(eqn)
    order: list[Eqn] = []
    began: dict[int, float] = {}
    beside: dict[int, float] = {}
    clock = 0.0
    queue = _Queue(needs_of(nodes), starts, ends)
    while (node := queue.next(lambda k: clock - began[k] >= chosen[k])) is not None:  # noqa: B023
        order.append(nodes[node])
        if node in starts:
            began[starts[node]] = clock
        elif node in ends:
            beside[ends[node]] = clock - began[ends[node]]
        else:
            clock += seconds(nodes[node])
    assert len(order) == len(nodes), "overlap: equations wait for each other"
    return _Schedule(order, beside)


def _halves(eqn: Eqn) -> tuple[Eqn, Eqn]:
    start, done = HALVES[eqn.op]
    tokens = [Var(v.aval) for v in eqn.outvars]
    return eqn.replace(op=start, outvars=tokens), eqn.replace(op=done, invars=(*tokens, *eqn.invars))


class _Queue:
    """The equations of which all that they need is done, and which of them comes next."""

    def __init__(self, needs: Sequence[set[int]], starts: dict[int, int], ends: dict[int, int]):
        self.starts, self.ends = starts, ends
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.missing = [len(n) for n in needs]
        self.first: list[int] = []
        self.others: list[tuple[int, int]] = []  # (place, node)
        self.late: deque[int] = deque()  # second halves, in the order of their starts
        for node, before in enumerate(needs):
            for k in before:
                self.readers[k].append(node)
        for node, count in enumerate(self.missing):
            if not count:
                self._ready(node)

    def _ready(self, node: int) -> None:
        if node in self.ends:
            self.late.append(node)
        elif node in self.starts:
            heapq.heappush(self.first, node)
        else:
            heapq.heappush(self.others, (node, node))

    def next(self, covered: Callable[[int], bool]) -> int | None:
        """The next equation, None when there is none left; `covered(k)`: whether the transfer of collective k should be over."""
        if self.first:
            return self._take(heapq.heappop(self.first))
        while self.late and covered(self.ends[self.late[0]]):
            node = self.late.popleft()
            heapq.heappush(self.others, (min(self.readers[node], default=node), node))  # where its result is needed
        if self.others:
            return self._take(heapq.heappop(self.others)[1])
        return self._take(self.late.popleft()) if self.late else None

    def _take(self, node: int) -> int:
        for reader in self.readers[node]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._ready(reader)
        return node
