"""The cheapest way from one placement to another on the same mesh, in axis steps (Dijkstra).

States are (dims, unreduced); edges are the steps of steps.py, costed by bytes received, then messages, then number
of steps, then bytes held in between. The moves are aimed at the target: an axis is only sliced, moved or scattered
to where the target wants it or, for sums, to where it makes later steps smaller. That keeps the number of states
small on meshes with many axes; `EXPANSIONS` is the stop for the rest, and the planner then has an Exchange to fall
back on.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from mpiarray.core.redistribution.placement import Dims, Placement
from mpiarray.core.redistribution.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    AxisStep,
    Mask,
    ReduceScatter,
    Slice,
    State,
    Widen,
)

EXPANSIONS = 400


@dataclass(frozen=True)
class Reorder:
    """A Permute not yet written as pairs: the blocks go to where `dims` wants them, on the same mesh."""

    dims: Dims

    def after(self, state: State) -> State:
        return self.dims, state[1]


Move = AxisStep | Reorder


@dataclass(frozen=True)
class Problem:
    """What a search is given: array, mesh, end state, and the limits of a path.

    ceiling: bytes received that a path may not pass, None if unknown.
    room: bytes that a rank may hold beside the source block, None for no bound.
    """

    shape: tuple[int, ...]
    itemsize: int
    source: Placement
    target: Placement
    ceiling: int | None
    room: int | None
    buffer: int

    def bytes(self, dims: Dims) -> int:
        """Size of one block."""
        cut = math.prod(self.source.product(axes) for axes in dims)
        return math.prod(self.shape) // cut * self.itemsize


def search(problem: Problem) -> list[Move] | None:
    """The cheapest path from the source's state to the target's, or None within the limits."""
    source, target = problem.source, problem.target
    start: State = (source.dims, frozenset(source.unreduced))
    goal: State = (target.dims, frozenset(target.unreduced))
    ticket = itertools.count()
    heap: list[tuple[int, int, int, int, int, State, int]] = [(0, 0, 0, 0, next(ticket), start, 0)]
    best: dict[State, tuple[int, int, int, int]] = {start: (0, 0, 0, 0)}
    came: dict[State, tuple[State, Move]] = {}
    done: set[State] = set()
    while heap and len(done) < EXPANSIONS:
        received, messages, steps, between, _, state, live = heapq.heappop(heap)
        if state == goal:
            return _path(came, start, goal)
        if state in done:
            continue
        done.add(state)
        for move in _moves(problem, state):
            new = move.after(state)
            if new in done:
                continue
            got, count = edge_traffic(problem, state, move)
            if problem.ceiling is not None and received + got > problem.ceiling:
                continue
            peak, held = edge_memory(problem, state, move, live)
            if problem.room is not None and peak > problem.room:
                continue
            cost = (received + got, messages + count, steps + 1, between + held)
            if new not in best or cost < best[new]:
                best[new] = cost
                came[new] = (state, move)
                heapq.heappush(heap, (*cost, next(ticket), new, held))
    return None


def edge_traffic(problem: Problem, state: State, move: Move) -> tuple[int, int]:
    """Bytes and messages that a rank receives in one step."""
    block = problem.bytes(state[0])
    if isinstance(move, Reorder):
        return block, 1
    n = problem.source.product(move.axes)  # type: ignore[attr-defined]
    return move.received(block, n), move.messages(n)


def edge_memory(problem: Problem, state: State, move: Move, live: int) -> tuple[int, int]:
    """Bytes beside the source block at the peak of a step, and after it.

    `live` is what is held before. A Slice is a view and holds nothing new. A step whose pieces are not
    contiguous packs them in messages of at most `buffer` bytes.
    """
    if isinstance(move, Slice):
        return live, live
    before, after = problem.bytes(state[0]), problem.bytes(move.after(state)[0])
    packed = 0
    if isinstance(move, AllToAll):
        packed = before
    elif isinstance(move, (AllGather, ReduceScatter)) and not leading(problem, state[0], move.dim):
        packed = max(before, after)
    return live + after + min(packed, problem.buffer), after


def leading(problem: Problem, dims: Dims, dim: int) -> bool:
    """True if pieces along `dim` are contiguous: all dimensions before it have length 1 in the block."""
    return all(problem.shape[d] == problem.source.product(dims[d]) for d in range(dim))


def _path(came: dict[State, tuple[State, Move]], start: State, goal: State) -> list[Move]:
    moves: list[Move] = []
    state = goal
    while state != start:
        state, move = came[state]
        moves.append(move)
    return moves[::-1]


def _moves(problem: Problem, state: State) -> Iterator[Move]:
    dims, wanted = state[0], problem.target.dims
    free = _free_axes(problem, state)
    common = [_common(cur, end) for cur, end in zip(dims, wanted)]
    for d, (cur, end) in enumerate(zip(dims, wanted)):
        run = _leading_run(end[len(cur) :], free) if common[d] == len(cur) else ()
        if run:  # never worse now than later: it makes all that follows smaller
            yield Slice(d, run)
            return
    yield from _regroupings(problem, state, common)
    yield from _sums(problem, state)
    yield from _partial_sums(problem, state, free, common)
    yield from _detours(problem, state, free, common)


def _regroupings(problem: Problem, state: State, common: list[int]) -> Iterator[Move]:
    """Gather or move the last axes of a dimension that the target does not want there."""
    dims, wanted = state[0], problem.target.dims
    for d, cur in enumerate(dims):
        for k in range(common[d], len(cur)):
            run = cur[k:]
            yield AllGather(d, run)
            for t, there in enumerate(dims):
                if t != d and common[t] == len(there) and wanted[t][len(there) :][: len(run)] == run:
                    yield AllToAll(run, d, t)


def _sums(problem: Problem, state: State) -> Iterator[Move]:
    """Finish pending sums that the target does not have."""
    dims, unreduced = state
    pending = _ordered(problem, unreduced.difference(problem.target.unreduced))
    if not pending:
        return
    runs = {pending, *((name,) for name in pending)}
    for cur, end in zip(dims, problem.target.dims):
        if end[: len(cur)] == cur:
            runs.add(_leading_run(end[len(cur) :], set(pending)))
    runs.discard(())
    for run in sorted(runs, key=str):
        yield AllReduce(run)
        for d in range(len(dims)):
            if _divides(problem, dims, d, run):
                yield ReduceScatter(d, run)


def _partial_sums(problem: Problem, state: State, free: set[str], common: list[int]) -> Iterator[Move]:
    """Make the value unreduced where the target is."""
    dims, unreduced = state
    gained = set(problem.target.unreduced) - unreduced
    unused = _ordered(problem, gained & free)
    if unused:
        yield Mask(unused)
        for d in range(len(dims)):
            if _divides(problem, dims, d, unused):
                yield Slice(d, unused)  # to be widened later: pieces travel for less than whole blocks
    for d, cur in enumerate(dims):
        k = len(cur)
        while k > common[d] and cur[k - 1] in gained:
            k -= 1
        if k < len(cur):
            yield Widen(d, cur[k:])


def _detours(problem: Problem, state: State, free: set[str], common: list[int]) -> Iterator[Move]:
    """Whole-block permutations, and slices that make one possible."""
    dims, wanted = state[0], problem.target.dims
    product = problem.source.product
    if dims == wanted:
        return
    if all(product(cur) == product(end) for cur, end in zip(dims, wanted)) and not state[1].intersection(*wanted):
        if not _overlapping(wanted, state[1]):
            yield Reorder(wanted)
    sorted_dims = []
    for cur, end in zip(dims, wanted):
        keep = tuple(name for name in end if name in cur)
        sorted_dims.append(keep + tuple(name for name in cur if name not in keep))
    if tuple(sorted_dims) not in (dims, wanted):
        yield Reorder(tuple(sorted_dims))
    for d, (cur, end) in enumerate(zip(dims, wanted)):
        run = tuple(name for name in end if name in free)
        if run and common[d] < len(cur) and _divides(problem, dims, d, run):
            yield Slice(d, run)


def _overlapping(dims: Dims, axes: frozenset[str]) -> bool:
    return any(name in axes for entry in dims for name in entry)


def _free_axes(problem: Problem, state: State) -> set[str]:
    taken = set(state[1]).union(*state[0])
    return {name for name, _ in problem.source.axes if name not in taken}


def _ordered(problem: Problem, axes: frozenset[str] | set[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in problem.source.axes if name in axes)


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """Length of the common prefix."""
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _leading_run(axes: tuple[str, ...], allowed: set[str]) -> tuple[str, ...]:
    return tuple(itertools.takewhile(allowed.__contains__, axes))


def _divides(problem: Problem, dims: Dims, dim: int, axes: tuple[str, ...]) -> bool:
    return problem.shape[dim] % problem.source.product(dims[dim] + axes) == 0
