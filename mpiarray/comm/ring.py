"""Large reductions, made by the members themselves: blocks travel around the ring of the group in pieces.

MPI libraries move a block and combine it in passes over all of it; the members lose most of the time to memory.  Here
each message is a piece that is still in the cache when it is combined.  The part that ends on member k starts on member
k + 1, which sends its own items; each member on the way adds its own to what comes and sends that on, and member k
writes the last sum into its result.  So a part takes n - 1 messages, all between neighbours: where ranks are placed
node by node, each boundary between nodes is crossed once.  An all-reduce does this with the n parts of a stretch of the
block, and then passes the results around in the same way.

Two members with smaller blocks send each other all they have, and both combine it: as many bytes in one step.

Order: member k combines its part in the order k + 1, k + 2, ..., n - 1, 0, ..., k.  Every item is computed once, by one
member, and copied to the others, so that all have equal bits whatever the operation is (two members that swap compute the
same of the same operands in the same order, member 0's first); and it is computed in the same
order in every run, on every MPI library.  Which blocks are reduced in this way is decided by `takes` from what all members
know (never by timing), so that this holds for the choice as well.

This is apart from `reductions`, where the members' blocks are combined in the order of the ranks: small blocks, floats
of 16 bits (which must not be rounded on the way), and all that `config.deterministic` asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from mpiarray import memory
from mpiarray.comm import datatypes
from mpiarray.comm.groups import Group
from mpiarray.comm.pairwise import pieces
from mpiarray.config import config

_TAG = 3
PART_BYTES = (2**16, 2**19)
"""From this size of each member's part on, the ring is faster than what MPI libraries do (measured with two of them): of
two members; of more, who wait for each other at every step."""
_PIECE_BYTES = 2**20
"""Bytes of one message: long enough for full speed, short enough to stay in the cache."""
_USED_BYTES = 2**18
"""The same where the caller uses each piece at once, with as much of other arrays beside it."""
SWAPPED_BYTES = (2**13, 2**21)
"""From this size on, and up to that one, two members send each other whole blocks: one message, where a ring takes two, one
after the other (measured with two MPI libraries)."""
_LINE = 64  # bytes of a cache line, where parts are cut

Rooms = tuple[np.ndarray, np.ndarray]
Parts = Sequence[np.ndarray] | np.ndarray
Combine = Callable[[Parts, np.ndarray], None]
Last = Callable[[np.ndarray, np.ndarray, slice], None]


def takes(group: Group, op: str, dtype: np.dtype, count: int) -> bool:
    """Whether blocks of `count` items are combined around the ring; all members find the same."""
    return would_take(group.size, op, dtype, count)


def would_take(members: int, op: str, dtype: np.dtype, count: int) -> bool:
    """`takes` for a group that need not be there yet."""
    if op in ("sum", "prod") and datatypes.accumulator(dtype) != dtype:
        return False  # what travels would be wider than the blocks
    if config.deterministic and datatypes.depends_on_order(op, dtype):
        return False
    if count > datatypes.MAX_COUNT or config.sums == "ring":
        return True
    return config.sums == "auto" and count * dtype.itemsize >= PART_BYTES[members > 2] * members


def takes_whole(group: Group, op: str, dtype: np.dtype, count: int) -> bool:
    """Whether blocks are combined by `all_reduce` here: two members do this with smaller ones, too."""
    small = group.size == 2 and config.sums == "auto" and count * dtype.itemsize >= SWAPPED_BYTES[0]
    return takes(group, op, dtype, max(count, 2 * PART_BYTES[0] // dtype.itemsize) if small else count)


def all_reduce(group: Group, x: np.ndarray, op: str, result: np.ndarray) -> None:
    """Combine C-contiguous blocks of one shape into `result` (C-contiguous, may be x), on every member."""
    if swaps(group, x.nbytes):
        _swap(group, x.reshape(-1), datatypes.UFUNCS[op], result.reshape(-1))
        return
    ufunc, rooms = datatypes.UFUNCS[op], _rooms(x.dtype)
    with np.errstate(all="ignore"):  # as in MPI's own reductions: overflow and NaN are results
        in_stretches(group, x, result, rooms[0].size, lambda parts, out: _combine(group, parts, ufunc, rooms, out))


def swaps(group: Group, nbytes: int) -> bool:
    """Whether blocks are combined by `swap` and an operation on both: two members, and blocks that are not too long."""
    return group.size == 2 and nbytes <= SWAPPED_BYTES[1]


def swap(group: Group, x: np.ndarray, come: np.ndarray) -> None:
    """Send a C-contiguous block to the other one of two members, and receive theirs."""
    peer = 1 - group.rank
    group.comm.Sendrecv(datatypes.wire(x), peer, _TAG, datatypes.wire(come), peer, _TAG)


def all_reduce_with(group: Group, x: np.ndarray, op: str, result: np.ndarray, last: Last) -> None:
    """An all-reduce of C-contiguous blocks whose last step is the caller's: what follows the reduction, item by item.

    `last(come, own, place)` makes the items `place` of the flat result from what came around the ring, which it may
    write over, and this member's own items; nothing else is left to combine.  Each member makes a part, and all get all
    parts.  `result` (C-contiguous, of any dtype) may be x, where `last` writes `own`.
    """
    source, target, me, n = x.reshape(-1), result.reshape(-1), group.rank, group.size
    ufunc, items = datatypes.UFUNCS[op], whole_lines(_USED_BYTES) // x.itemsize
    rooms = memory.empty((items,), x.dtype), memory.empty((items if n > 2 else 0,), x.dtype)
    cuts = _cuts(0, x.size, n, x.itemsize)
    with np.errstate(all="ignore"):
        for start in range(0, cuts[0].stop, items):
            places = [slice(min(c.start + start, c.stop), min(c.start + start + items, c.stop)) for c in cuts]
            come, own = _arriving(group, [source[p] for p in places], ufunc, rooms)
            if own.size:
                last(come, own, places[me])
    _pass_around(group, [target[c] for c in cuts])


def reduce_scatter(group: Group, parts: Parts, op: str, result: np.ndarray) -> None:
    """Combine the members' blocks, given as the parts for each member, into `result`: of a part's shape, C-contiguous.

    The parts may have any strides, their shape must be the same on all members.
    """
    ufunc, rooms = datatypes.UFUNCS[op], _rooms(result.dtype)
    with np.errstate(all="ignore"):
        in_pieces(parts, result, rooms[0].nbytes, lambda given, out: _combine(group, given, ufunc, rooms, out))


def in_stretches(group: Group, x: np.ndarray, result: np.ndarray, items: int, combine: Combine) -> None:
    """An all-reduce: `combine(parts, out)` makes this member's of n parts of at most `items`; then all get all parts."""
    source, target, n = x.reshape(-1), result.reshape(-1), group.size
    for start in range(0, x.size, n * items):
        cuts = _cuts(start, min(start + n * items, x.size), n, x.itemsize)
        filled = [target[cut] for cut in cuts]
        combine([source[cut] for cut in cuts], filled[group.rank])
        _pass_around(group, filled)


def in_pieces(parts: Parts, result: np.ndarray, limit: int, combine: Combine) -> None:
    """A reduce-scatter: `combine(given, out)` makes a piece of `result` from the same piece of each part."""
    for out, *given in zip(pieces(result, limit), *(pieces(part, limit) for part in parts), strict=True):
        combine(given, out)


def _swap(group: Group, x: np.ndarray, ufunc: np.ufunc, result: np.ndarray) -> None:
    """Two members send each other their blocks, and both combine them: in one message, or where x is the result by pieces."""
    first = group.rank == 0
    with np.errstate(all="ignore"):
        if not np.may_share_memory(x, result):
            swap(group, x, result)
            ufunc(x if first else result, result if first else x, out=result)
            return
        items = min(x.size, whole_lines(_USED_BYTES) // x.itemsize)
        room = memory.empty((items,), x.dtype)
        for start in range(0, x.size, max(1, items)):
            own = x[start : start + items]
            come = room[: own.size]
            swap(group, own, come)
            ufunc(own if first else come, come if first else own, out=result[start : start + items])


def _combine(group: Group, parts: Parts, ufunc: np.ufunc, rooms: Rooms, out: np.ndarray) -> None:
    """One piece of each member's part: this member's, combined over all of them, goes into `out`."""
    come, own = _arriving(group, parts, ufunc, rooms)
    ufunc(come, own, out=out)


def _arriving(group: Group, parts: Parts, ufunc: np.ufunc, rooms: Rooms) -> tuple[np.ndarray, np.ndarray]:
    """For one piece of each member's part: this member's, combined over all the others, and what it has of it itself."""
    me, n = group.rank, group.size
    send, after, before = group.comm.Sendrecv, (me + 1) % n, (me - 1) % n
    here, other = rooms
    given = parts[before]
    if not given.flags.c_contiguous:
        given = _like(given, other)
        np.copyto(given, parts[before])
    for step in range(2, n + 1):
        own = parts[me - step]
        come = _like(own, here)
        send(datatypes.wire(given), after, _TAG, datatypes.wire(come), before, _TAG)
        if step < n:
            ufunc(come, own, out=come)
        given, here, other = come, other, here
    return come, own


def _pass_around(group: Group, blocks: Sequence[np.ndarray]) -> None:
    """Each member's own block of `blocks`, on all members: a step brings the next one from the neighbour."""
    me, n = group.rank, group.size
    send, after, before = group.comm.Sendrecv, (me + 1) % n, (me - 1) % n
    for step in range(n - 1):
        send(datatypes.wire(blocks[me - step]), after, _TAG, datatypes.wire(blocks[me - step - 1]), before, _TAG)


def _rooms(dtype: np.dtype) -> Rooms:
    """Two pieces: one is sent while the other is received, then the one that came is combined in place."""
    items = whole_lines(_PIECE_BYTES) // dtype.itemsize
    return memory.empty((items,), dtype), memory.empty((items,), dtype)


def _like(piece: np.ndarray, room: np.ndarray) -> np.ndarray:
    """A contiguous array of the shape of `piece` in the memory of `room`."""
    return room[: piece.size].reshape(piece.shape)


def whole_lines(nbytes: int) -> int:
    """So many bytes or somewhat fewer, as pieces must have: parts that are cut at cache lines fit into them."""
    return max(_LINE, nbytes // _LINE * _LINE)


def _cuts(start: int, stop: int, n: int, itemsize: int) -> list[slice]:
    """The n parts of items start..stop, equal but for the last ones; each begins a whole number of cache lines after start."""
    line = max(1, _LINE // itemsize)
    length = -(-(stop - start) // (n * line)) * line
    ends = [min(start + k * length, stop) for k in range(n + 1)]
    return [slice(first, last) for first, last in pairwise(ends)]
