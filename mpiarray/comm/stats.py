"""Counts of collectives and bytes, and the one flag that tells the collectives whether anybody looks.

This is apart from `watch` because counting needs no MPI and no ranks: tests use it to assert how much an operation
communicates.  `active` is read by every collective, once; it is zero in normal use, so observing costs one `if`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Recorder = Callable[[str, Any, int, Callable[[], Any]], Any]

COUNT = 1
"""Bit of `active`: at least one `counting()` block is open."""
CHECK = 2
"""Bit of `active`: fingerprints are compared (MPIARRAY_CHECK)."""
TIMEOUT = 4
"""Bit of `active`: the watchdog runs (MPIARRAY_TIMEOUT)."""
RECORD = 8
"""Bit of `active`: a trace is recorded (`timeline`)."""

recorder: Recorder | None = None
"""What does a collective and notes when, (kind, group, bytes, body) -> result; set by `timeline`, used under RECORD."""

active: int = 0
"""Which observers want to see the collectives; read by every collective, written by this module and by `watch`."""


@dataclass
class Counts:
    """What one rank did inside a `counting()` block.  Groups of one member communicate nothing and are not counted.

    calls: number of collectives by kind ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'permute',
        'exchange', 'broadcast', 'gather', 'agree', 'barrier').
    bytes: by kind, the bytes of the block that this rank hands in (for 'exchange': of all blocks it sends to others).
    moved: by kind, the bytes that leave this rank when the collective is done with the fewest bytes possible.
    groups: calls by (kind, group size).
    """

    calls: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    groups: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def total_calls(self) -> int:
        """Collectives of all kinds."""
        return sum(self.calls.values())

    @property
    def total_bytes(self) -> int:
        """Bytes handed in, over all kinds."""
        return sum(self.bytes.values())

    @property
    def total_moved(self) -> int:
        """Bytes that left this rank, over all kinds."""
        return sum(self.moved.values())


_open: list[Counts] = []


def set_bit(bit: int, on: bool) -> None:
    """Switch one observer on or off."""
    global active
    active = active | bit if on else active & ~bit


@contextmanager
def counting() -> Iterator[Counts]:
    """Count this rank's collectives inside the block: `with counting() as c: ...; c.calls['all_reduce']`.  May nest."""
    counts = Counts()
    _open.append(counts)
    set_bit(COUNT, True)
    try:
        yield counts
    finally:
        _open.remove(counts)
        set_bit(COUNT, bool(_open))


def add(kind: str, size: int, nbytes: int, moved: int) -> None:
    """Add one collective of `kind` over `size` members to every open `counting()` block."""
    for counts in _open:
        counts.calls[kind] += 1
        counts.bytes[kind] += nbytes
        counts.moved[kind] += moved
        counts.groups[kind, size] += 1


def bytes_moved(kind: str, size: int, nbytes: int) -> int:
    """Bytes that leave one rank when a block of `nbytes` goes through a collective of `size` members, at the least."""
    if kind in ("reduce_scatter", "all_to_all"):
        return nbytes * (size - 1) // size
    if kind == "all_reduce":
        return 2 * nbytes * (size - 1) // size
    if kind == "all_gather":
        return nbytes * (size - 1)
    return nbytes
