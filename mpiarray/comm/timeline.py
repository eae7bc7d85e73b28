"""What this rank did and when, while somebody traces: events, clocks that are compared between ranks, and who waited for whom.

A recording is a list of events in the clock of its rank.  At its end clocks are brought together by their differences
from rank 0's, measured at the start and at the end, and the ranks of each group tell each other when they came to each
collective.  So waiting and moving data are told apart afterwards: while the program runs, nothing is sent for it.

`active` is None in normal use.  The collectives look at `stats.active` alone, which has one bit for this.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mpiarray.comm import stats
from mpiarray.comm.agreement import agree, barrier
from mpiarray.comm.collectives import all_reduce
from mpiarray.comm.groups import Group, device_group, world_group

T = TypeVar("T")
now: Callable[[], int] = time.perf_counter_ns

_TAG_CLOCK = 11
_TAG_TEXT = 12
_ROUNDS = 12  # messages by which two clocks are compared; the fastest round trip tells most
_CHUNK = 2**16  # collectives whose arrivals are compared at once


class Event(NamedTuple):
    """A piece of time of this rank, in nanoseconds of its own clock.

    facts: what is known of every such event (shared, never changed).  members: the ranks that meet here, () for an event
    of one rank alone.
    """

    start: int
    end: int
    name: str
    category: str
    thread: int
    facts: dict[str, Any]
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Meeting:
    """A collective, in nanoseconds: how long this rank waited for the last member, and how far apart the members came."""

    wait: int
    skew: int


class Recording:
    """The events of this rank, at most `limit` of them; later ones are counted in `dropped`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.events: list[Event] = []
        self.dropped = 0
        self.began = (0, 0)  # (own clock, how far it is ahead of rank 0's)
        self.ended = (0, 0)

    def add(self, event: Event) -> None:
        if len(self.events) < self.limit:
            self.events.append(event)
        else:
            self.dropped += 1

    def common(self, moment: int) -> int:
        """A moment of this rank's clock in rank 0's; between the two measurements the difference changes evenly."""
        (first, ahead), (last, later) = self.began, self.ended
        return moment - ahead - (later - ahead) * (moment - first) // max(last - first, 1)


active: Recording | None = None


def begin(limit: int) -> Recording:
    """Start to record; collective over the world."""
    global active
    found = Recording(limit)
    found.began = clock_difference(world_group())
    stats.set_bit(stats.RECORD, True)
    active = found
    return found


def end(found: Recording) -> None:
    """Stop to record; collective over the world."""
    forget()
    found.ended = clock_difference(world_group())


def forget() -> None:
    """Stop to record, on this rank alone."""
    global active
    stats.set_bit(stats.RECORD, False)
    active = None


def recorded(kind: str, group: Group, nbytes: int, body: Callable[[], T]) -> T:
    """Do a collective, and note when."""
    start = now()
    result = body()
    if active is not None:
        facts = {"bytes": nbytes, "ranks": group.size}
        active.add(Event(start, now(), kind, "collective", 0, facts, group.members))
    return result


stats.recorder = recorded


def clock_difference(group: Group) -> tuple[int, int]:
    """(this rank's clock now, how many nanoseconds it is ahead of that of the group's first rank); collective.

    Rank 0 asks one rank after the other; half the fastest round trip is what the difference may be wrong by.
    """
    barrier(group)
    if group.comm is None:
        return now(), 0
    mine = np.zeros(1, np.int64)
    if group.rank:
        for _ in range(_ROUNDS):
            group.comm.Recv(mine, 0, _TAG_CLOCK)
            mine[0] = now()
            group.comm.Send(mine, 0, _TAG_CLOCK)
        group.comm.Recv(mine, 0, _TAG_CLOCK)
        return now(), int(mine[0])
    for other in range(1, group.size):
        rounds = []
        for _ in range(_ROUNDS):
            asked = now()
            group.comm.Send(mine, other, _TAG_CLOCK)
            group.comm.Recv(mine, other, _TAG_CLOCK)
            told = now()
            rounds.append((told - asked, int(mine[0]) - (asked + told) // 2))
        mine[0] = min(rounds)[1]
        group.comm.Send(mine, other, _TAG_CLOCK)
    return now(), 0


def meetings(found: Recording) -> list[Meeting | None]:
    """For each event of an ended recording, how its ranks met; None for events of one rank.  Collective over the world.

    The n-th collective of a group is the same one on all its members.  A rank that dropped events knows fewer: then
    only those that all members know are compared.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for k, event in enumerate(found.events):
        if event.members:
            places.setdefault(event.members, []).append(k)
    counts = agree(world_group(), {members: len(at) for members, at in places.items()})
    fewest: Counter[tuple[int, ...]] = Counter()
    for members in sorted({m for told in counts for m in told}):
        fewest[members] = min(counts[rank].get(members, 0) for rank in members)
    out: list[Meeting | None] = [None] * len(found.events)
    for members, at in sorted(places.items()):  # in one order on all ranks, so that no two groups wait for each other
        group, known = device_group(members), at[: fewest[members]]
        for start in range(0, len(known), _CHUNK):
            _meet(found, group, known[start : start + _CHUNK], out)
    return out


def _meet(found: Recording, group: Group, places: list[int], out: list[Meeting | None]) -> None:
    came = np.array([found.common(found.events[k].start) for k in places], np.int64)
    last, first = all_reduce(group, came, "max"), all_reduce(group, came, "min")
    for k, own, latest, earliest in zip(places, came.tolist(), last.tolist(), first.tolist()):
        event = found.events[k]
        out[k] = Meeting(min(max(latest - own, 0), event.end - event.start), latest - earliest)


def told_to_root(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Every rank's texts on rank 0, rank by rank, one at a time in memory; collective over the world.

    On other ranks nothing is yielded; exhaust the iterator on all of them.
    """
    world = world_group()
    if world.rank == 0:
        yield from texts
        size = np.zeros(1, np.int64)
        for other in range(1, world.size):
            while True:
                world.comm.Recv(size, other, _TAG_TEXT)
                if size[0] < 0:
                    break
                piece = np.empty(int(size[0]), np.uint8)
                world.comm.Recv(piece, other, _TAG_TEXT)
                yield piece.tobytes()
        return
    for text in texts:
        world.comm.Send(np.array([len(text)], np.int64), 0, _TAG_TEXT)
        world.comm.Send(np.frombuffer(text, np.uint8), 0, _TAG_TEXT)
    world.comm.Send(np.array([-1], np.int64), 0, _TAG_TEXT)
