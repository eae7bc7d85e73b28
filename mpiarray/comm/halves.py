"""Collectives that are started now and waited for later, so that work in between goes on while messages travel.

Each function here gives a function of a block, `start(x) -> Started`; `Started.wait()` gives what the namesake in
`collectives` would have given.  Every member must start the collectives of a group in the same order, may wait for them in
any order, and must not write into `x` before.  What is never waited for, because a step in between failed, is finished
when its `Started` goes: no request stays behind.

Where MPI has no short way for a block (see `prepared`), and where somebody watches for divergence or for stuck ranks, the
whole collective is done at the start.  All members decide that alike, from the block's type and the settings: MPI does
not let blocking and non-blocking collectives meet.  A sum of floats over three and more members may be made in another
order than the blocking one makes it, large ones are (these are MPI's own, those go around the `ring`); all members receive the same bits, which is tried once per group.

Messages between two ranks (`permute`, `exchange`) of up to `COPIED` bytes leave from a copy.  So the block may be written over at
once, and nobody waits until the other rank takes it: MPI libraries hold back what is longer than a few KB until the receiver asks,
and ranks that wait for this are never more than a message apart.  The copies are forgotten once they have left.
"""

from __future__ import annotations

import atexit
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mpiarray.comm import collectives, datatypes, stats
from mpiarray.comm.groups import Group, sums_agree
from mpiarray.comm.pairwise import TAG, buffer_bytes, message_bytes, pieces
from mpiarray.config import config

Finish = Callable[[Any], Any]
Start = Callable[..., "Started"]

COPIED = 2**17
"""Bytes of a block that is sent from a copy; longer ones are sent from where they lie."""
_MOST_COPIES = 16
"""Copies that may be on their way; with more, the oldest is waited for."""

_in_flight = 0
_copies: deque[tuple[Any, np.ndarray]] = deque()  # (request, what is being sent), the oldest first


def in_flight() -> int:
    """How many collectives this rank has started and not finished."""
    return _in_flight


class Started:
    """A collective under way.  It keeps the block that is sent and the one that is filled until both are free."""

    __slots__ = ("_finish", "_kept", "_requests", "_result")

    def __init__(self, result: Any, requests: Sequence[Any] = (), kept: Any = None, finish: Finish | None = None):
        global _in_flight
        self._result, self._requests, self._kept, self._finish = result, requests, kept, finish
        if requests:
            _in_flight += 1

    @property
    def result(self) -> Any:
        """Where the result will be, for collectives that need no work after the messages; not to be read before `wait`."""
        return self._result

    def wait(self) -> Any:
        """The result, when it is there.  Later calls give it again."""
        self._complete()
        finish, self._finish = self._finish, None
        if finish is not None:
            self._result = finish(self._result)
        return self._result

    def _complete(self) -> None:
        global _in_flight
        requests, self._requests = self._requests, ()
        if requests:
            for request in requests:
                request.Wait()
            self._kept = None
            _in_flight -= 1

    def __del__(self, finalized: Callable[[], bool] = datatypes.finalized) -> None:  # at exit globals may be gone
        if self._requests and not finalized():
            self._complete()


class Arriving(list[Any]):
    """Pieces of a value, of which some are still on their way: nobody may read these before `wait()` is done."""

    __slots__ = ("wait",)

    def __init__(self, pieces: Iterable[Any], wait: Callable[[], Any]):
        super().__init__(pieces)
        self.wait = wait


def all_reduce(group: Group, op: str) -> Start:
    """Start `collectives.all_reduce(group, x, op)`.  Collective: tries once whether MPI's way gives all members equal bits."""
    trusted = group.comm is None or not datatypes.depends_on_order(op, np.dtype("f4")) or sums_agree(group)

    def start(x: np.ndarray) -> Started:
        native = datatypes.native(op, x.dtype)
        ordered = datatypes.depends_on_order(op, x.dtype) and (config.deterministic or not trusted)
        if native is None or ordered or x.size > datatypes.MAX_COUNT or watched(group):
            return Started(collectives.all_reduce(group, x, op))
        _count("all_reduce", group, x)
        x = np.ascontiguousarray(x).reshape(x.shape)
        out = np.empty(x.shape, x.dtype)
        request = group.comm.Iallreduce((x, x.size, native[0]), (out, x.size, native[0]), native[1])
        return Started(out, (request,), x)

    return start


def all_reduce_many(group: Group, op: str) -> Start:
    """Start `collectives.all_reduce_many(group, blocks, op)`: a function of several blocks of one dtype."""
    start_one = all_reduce(group, op)

    def start(*blocks: np.ndarray) -> Started:
        if group.comm is None:
            return Started([np.array(x) for x in blocks])
        started = start_one(collectives.pack_many(blocks))
        shapes = [x.shape for x in blocks]
        return Started(started, finish=lambda s: collectives.places(s.wait(), shapes))

    return start


def all_gather(group: Group, dim: int = 0, tiled: bool = True) -> Start:
    """Start `collectives.all_gather(group, x, dim, tiled)`."""

    def start(x: np.ndarray) -> Started:
        n, at = group.size, collectives.position(dim, x.ndim + (not tiled), "all_gather")
        before = math.prod(x.shape[:at])
        if watched(group) or not before or x.size * n > datatypes.MAX_COUNT:
            return Started(collectives.all_gather(group, x, dim, tiled))
        if before > 1 and x.nbytes > collectives.PACK_BYTES:
            return Started(collectives.all_gather(group, x, dim, tiled))
        _count("all_gather", group, x)
        full = collectives.gathered_shape(x.shape, at, n, tiled)
        x = np.ascontiguousarray(x)
        rows = np.empty((n, before, x.size // before), x.dtype)
        request = group.comm.Iallgather(datatypes.wire(x), datatypes.wire(rows, n))
        return Started(rows, (request,), x, lambda found: collectives.joined(found, full))

    return start


def reduce_scatter(group: Group, dim: int = 0, op: str = "sum", tiled: bool = True) -> Start:
    """Start `collectives.reduce_scatter(group, x, dim, op, tiled)`."""

    def start(x: np.ndarray) -> Started:
        native = datatypes.native(op, x.dtype)
        ordered = config.deterministic and datatypes.depends_on_order(op, x.dtype)
        if native is None or ordered or x.size > datatypes.MAX_COUNT or watched(group):
            return Started(collectives.reduce_scatter(group, x, dim, op, tiled))
        at = collectives.position(dim, x.ndim, "reduce_scatter")
        out = np.empty(collectives.part_shape(x.shape, at, group.size, tiled, "reduce_scatter"), x.dtype)
        _count("reduce_scatter", group, x)
        x = collectives.pack(x, at, group.size)
        request = group.comm.Ireduce_scatter_block((x, out.size, native[0]), (out, out.size, native[0]), native[1])
        return Started(out, (request,), x)

    return start


def all_to_all(group: Group, split: int, concat: int, tiled: bool = True) -> Start:
    """Start `collectives.all_to_all(group, x, split, concat, tiled)`."""

    def start(x: np.ndarray) -> Started:
        n = group.size
        cut = collectives.position(split, x.ndim, "all_to_all")
        join = collectives.position(concat, x.ndim, "all_to_all")
        part, full = collectives.exchanged_shapes(x.shape, cut, join, n, tiled)
        before = math.prod(part[:join])
        packs = before > 1 or math.prod(x.shape[:cut]) > 1
        if (
            watched(group)
            or not x.size
            or x.size > datatypes.MAX_COUNT
            or (packs and x.nbytes > collectives.PACK_BYTES)
        ):
            return Started(collectives.all_to_all(group, x, split, concat, tiled))
        _count("all_to_all", group, x)
        x = collectives.pack(x, cut, n)
        rows = np.empty((n, before, math.prod(part[join:])), x.dtype)
        request = group.comm.Ialltoall(datatypes.wire(x, n), datatypes.wire(rows, n))
        return Started(rows, (request,), x, lambda found: collectives.joined(found, full))

    return start


def permute(group: Group, perm: Sequence[tuple[int, int]], *, copied: bool = False) -> Start:
    """Start `collectives.permute(group, x, perm)`; `copied`: what is sent leaves from a copy, whatever its size."""
    pairs = tuple(perm)
    source, target = collectives.partners(pairs, group.rank)

    def start(x: np.ndarray) -> Started:
        if watched(group):
            return Started(collectives.permute(group, x, pairs))
        _count("permute", group, x)
        if target == group.rank:
            return Started(x.copy(order="C"))
        out = (np.empty if source >= 0 else np.zeros)(x.shape, x.dtype)
        requests = []
        if source >= 0:
            requests.append(group.comm.Irecv(datatypes.wire(out), source, collectives.TAG_PERMUTE))
        if target >= 0:
            requests += _send(group, target, collectives.TAG_PERMUTE, x, copied)
        return Started(out, requests, x)

    return start


def exchange(
    group: Group,
    sends: Sequence[tuple[int, np.ndarray]],
    recvs: Sequence[tuple[int, np.ndarray]],
    *,
    copied: bool = False,
) -> Started:
    """Start `collectives.exchange(group, sends, recvs)`: blocks for others, and contiguous blocks that theirs will fill.

    Its result is the list of the latter.  `copied`: all that is sent leaves from copies.  Blocks that need much packing are exchanged at
    once.  For what is done many times see `repeated`.
    """
    received = [x for _, x in recvs]
    packed = sum(x.nbytes for _, x in sends if not x.flags.c_contiguous and x.nbytes > COPIED)
    if watched(group) or packed > buffer_bytes():
        collectives.exchange(group, sends, recvs)
        return Started(received)
    if stats.active & stats.COUNT:
        moved = sum(x.nbytes for _, x in sends)
        stats.add("exchange", group.size, moved, stats.bytes_moved("exchange", group.size, moved))
    limit = message_bytes()
    arriving = [
        group.comm.Irecv(datatypes.wire(part), peer, TAG) for peer, x in recvs if x.size for part in pieces(x, limit)
    ]
    leaving: list[Any] = []
    for peer, x in sends:
        if x.size:
            for part in pieces(x, limit):
                leaving += _send(group, peer, TAG, part, copied)
    return Started(received, (*arriving, *leaving), (sends, recvs))


def _send(group: Group, peer: int, tag: int, x: np.ndarray, copied: bool) -> Sequence[Any]:
    """Begin to send a block, and give the requests that are to be waited for before it may be written over: none for a copy."""
    if x.nbytes <= COPIED:
        x = x.copy(order="C")
        leave(group.comm.Isend(datatypes.wire(x), peer, tag), x)
        return ()
    x = x.copy(order="C") if copied else np.ascontiguousarray(x)
    return (_Sending(group.comm.Isend(datatypes.wire(x), peer, tag), x),)


class _Sending:
    """A request, and the block that must stay until it is done."""

    def __init__(self, request: Any, block: np.ndarray):
        self.request, self.block = request, block

    def Wait(self) -> None:
        self.request.Wait()


def leave(request: Any, copy: np.ndarray) -> None:
    """Keep what is being sent until it has left; nobody waits for it."""
    _forget_copies()
    _copies.append((request, copy))


def _forget_copies() -> None:
    """Let go what has left, and wait for the oldest where there are too many.

    Its receiver asks for it before it waits for anything that was sent later, so that ranks cannot wait in a circle.
    """
    if not _copies:
        atexit.register(finish_copies)  # before MPI ends, which was started, and so registered, earlier
    while _copies and (len(_copies) >= _MOST_COPIES or _copies[0][0].Test()):
        _copies.popleft()[0].Wait()


def finish_copies() -> None:
    """Wait until all copies have left."""
    atexit.unregister(finish_copies)
    while _copies and not datatypes.finalized():
        _copies.popleft()[0].Wait()


def watched(group: Group) -> bool:
    """Whether the whole collective is done at the start: alone, or where a watch or a trace must see it."""
    return group.comm is None or config.check or bool(stats.active & (stats.TIMEOUT | stats.RECORD))


def _count(kind: str, group: Group, x: np.ndarray) -> None:
    if stats.active & stats.COUNT:
        stats.add(kind, group.size, x.nbytes, stats.bytes_moved(kind, group.size, x.nbytes))
