"""Exchanges that are done again and again: the halos of a loop, or of a program that runs many times.

The first calls are those of `halves.exchange`.  From then on persistent requests (MPI-4.1, 3.9) are started over buffers that
are kept: what depends on sizes, types and ranks is handed to MPI once, nothing is allocated, and a call is a copy of what leaves
and a start for each message.  Measured with cold caches (two ranks, Open MPI 5), an exchange between neighbours is under way after
4 us instead of 11.  A persistent request meets an ordinary one: each rank decides for itself, without asking the others.

What comes lies in a buffer that the next call fills again.  While somebody holds what a call gave, the next one is done as the
first ones were, in new memory.  What leaves is copied into one of two buffers in turn, so a rank is at most two messages ahead
of who takes them.  Long messages gain nothing and are always sent as the first ones are.
"""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.comm import collectives, datatypes, halves, stats
from mpiarray.comm.groups import Group
from mpiarray.comm.pairwise import TAG, message_bytes
from mpiarray.config import config

_FIRST = 2  # calls before requests are made: most programs run once or twice

Message = tuple[int, tuple[int, ...]]  # the other rank of the group, and the shape of the block
Once = Callable[[Sequence[np.ndarray]], halves.Started]

_open: weakref.WeakSet[Repeated] = weakref.WeakSet()


class Again(halves.Started):
    """A repeated exchange under way; `wait()` gives the blocks that came, which stay as they are while this is held."""

    __slots__ = ("__weakref__",)


class Repeated:
    """`once(blocks)`, which sends blocks of known shapes to known ranks and receives others, done many times.

    kind    what it is for `stats`
    once    begins it in new memory
    give    makes what `wait` gives of the received blocks
    """

    def __init__(
        self,
        group: Group,
        kind: str,
        tag: int,
        sends: Sequence[Message],
        recvs: Sequence[Message],
        dtype: np.dtype,
        once: Once,
        give: Callable[[list[np.ndarray]], Any] = lambda received: received,
    ):
        self.group, self.kind, self.tag, self.dtype, self.once, self.give = group, kind, tag, dtype, once, give
        self.sends, self.recvs = tuple(sends), tuple(recvs)
        nbytes = [math.prod(shape) * dtype.itemsize for _, shape in (*sends, *recvs)]
        self.longest, self.shortest = max(nbytes, default=0), min(nbytes, default=0)
        self.moved = sum(nbytes[: len(sends)]) if kind == "exchange" else self.longest  # as `halves` counts it
        self.calls, self.generation, self.short = 0, -1, False
        self.latest: Callable[[], Again | None] = lambda: None
        self.incoming: list[tuple[Any, np.ndarray]] = []  # persistent requests and their buffers
        self.outgoing: list[list[tuple[Any, np.ndarray]]] = []  # two sets of them, the one whose turn it is first

    def start(self, blocks: Sequence[np.ndarray]) -> halves.Started:
        """Begin to send the blocks, in the order of `sends`.  Collective over the ranks that these and `recvs` name."""
        if not self._ready():
            return self.once(blocks)
        self._start(blocks)
        started = Again(self.result, self.requests, self)
        self.latest = weakref.ref(started)
        return started

    def into(self, blocks: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        """Send the blocks and fill the targets."""
        if not self._ready():
            given = [(peer, block) for (peer, _), block in zip(self.sends, blocks)]
            collectives.exchange(self.group, given, [(peer, x) for (peer, _), x in zip(self.recvs, targets)])
            return
        self._start(blocks)
        for (request, buffer), target in zip(self.incoming, targets):
            request.Wait()
            target[...] = buffer
        for request, _ in self.outgoing[
            -1
        ]:  # over networks a message needs its sender, who may be busy with other things then
            request.Wait()

    def _ready(self) -> bool:
        """Whether the next messages are those of the persistent requests."""
        if self.generation != config.generation:
            self.generation = config.generation
            self.short = self.longest <= min(halves.COPIED, message_bytes()) and self.shortest > 0
        if self.calls < _FIRST or not self.short or halves.watched(self.group) or self.latest() is not None:
            self.calls += 1
            return False
        if not self.outgoing:
            self._make_requests()
        return True

    def _start(self, blocks: Sequence[np.ndarray]) -> None:
        if stats.active & stats.COUNT:
            stats.add(self.kind, self.group.size, self.moved, self.moved)
        for request in self.requests:
            request.Start()
        outgoing, _ = self.outgoing
        self.outgoing.reverse()
        for (request, buffer), block in zip(outgoing, blocks):
            request.Wait()  # of the call before the last; does nothing where that is done
            buffer[...] = block
            request.Start()

    def _make_requests(self) -> None:
        comm, new = self.group.comm, lambda shape: np.empty(shape, self.dtype)
        received = [new(shape) for _, shape in self.recvs]
        self.incoming = [
            (comm.Recv_init(datatypes.wire(x), peer, self.tag), x) for (peer, _), x in zip(self.recvs, received)
        ]
        leaving = [[(peer, new(shape)) for peer, shape in self.sends] for _ in range(2)]
        self.outgoing = [
            [(comm.Send_init(datatypes.wire(x), peer, self.tag), x) for peer, x in turn] for turn in leaving
        ]
        self.result, self.requests = self.give(received), [request for request, _ in self.incoming]
        if not _open:
            atexit.register(_close_all)  # before MPI ends, which was started, and so registered, earlier
        _open.add(self)

    def close(self) -> None:
        """Let the requests go.  Messages that nobody took yet keep their buffers until they have left."""
        if self.latest() is None:  # which keeps this: so only when the process ends, after an error
            for request, _ in self.incoming:
                request.Free()
        for request, buffer in (pair for turn in self.outgoing for pair in turn):
            halves.leave(_Last(request), buffer)
        self.incoming, self.outgoing = [], []

    def __del__(self, finalized: Callable[[], bool] = datatypes.finalized) -> None:  # at exit globals may be gone
        if self.outgoing and not finalized():
            self.close()


def exchange(
    group: Group, sends: Sequence[Message], recvs: Sequence[Message], dtype: np.dtype, *, copied: bool = False
) -> Repeated:
    """What starts `halves.exchange` of blocks for others, in the order of `sends`; it gives the blocks that come.

    Every member must start its exchanges in the same order.  Blocks may have any strides.  With `copied`, long ones leave from
    copies too; short ones always do, so that they may be written over at once.  Making this is local.
    """

    def once(blocks: Sequence[np.ndarray]) -> halves.Started:
        wanted = [(peer, np.empty(shape, dtype)) for peer, shape in recvs]
        return halves.exchange(group, [(p, x) for (p, _), x in zip(sends, blocks)], wanted, copied=copied)

    return Repeated(group, "exchange", TAG, sends, recvs, dtype, once)


def swap(
    group: Group, sends: Sequence[Message], recvs: Sequence[Message]
) -> Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]:
    """`collectives.exchange` of blocks for others, and blocks to fill, in the order of `sends` and `recvs`, of any one dtype."""
    known: dict[np.dtype, Repeated] = {}

    def run(blocks: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        if not sends and not recvs:
            collectives.exchange(group, (), ())
            return
        dtype = (blocks or targets)[0].dtype
        found = known.get(dtype)
        if found is None:
            found = known[dtype] = exchange(group, sends, recvs, dtype)
        found.into(blocks, targets)

    return run


def permute(group: Group, perm: Sequence[tuple[int, int]], shape: tuple[int, ...], dtype: np.dtype) -> Once:
    """What starts `halves.permute` of the one block that it is given, which leaves from a copy; it gives the block that comes."""
    source, target = collectives.partners(tuple(perm), group.rank)
    start = halves.permute(group, perm, copied=True)
    once = lambda blocks: start(*blocks)
    if group.comm is None or source == target == group.rank or source == target == -1:
        return once
    sends, recvs = ([(peer, shape)] if peer >= 0 else [] for peer in (target, source))
    give = lambda received: received[0] if received else np.zeros(shape, dtype)
    return Repeated(group, "permute", collectives.TAG_PERMUTE, sends, recvs, dtype, once, give).start


class _Last:
    """A persistent request that is not started again: it is freed when it is done."""

    def __init__(self, request: Any):
        self.request = request

    def Test(self) -> bool:
        return bool(self.request.Test())

    def Wait(self) -> None:
        self.request.Wait()
        self.request.Free()


def _close_all() -> None:
    atexit.unregister(_close_all)
    for exchange in list(_open):
        exchange.close()
    _open.clear()
    halves.finish_copies()
