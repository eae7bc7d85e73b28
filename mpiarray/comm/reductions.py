"""Reductions that MPI does not do, or not in a given order: moved by MPI, combined by numpy in the order of the ranks.

Large blocks come here only where `ring` does not take them: floats of 16 bits and fewer, and rank order where it counts.
The bytes on the wire are those of the narrow type: a sum of bfloat16 blocks sends half of what sending float32 would,
and still adds in float32 and rounds once.  Small blocks are gathered whole and every member combines them; of larger
ones each member combines a part, piece by piece in the cache, from what the others send it.
"""

from __future__ import annotations

import numpy as np

from mpiarray import memory
from mpiarray.comm import datatypes, ring
from mpiarray.comm.groups import Group
from mpiarray.comm.pairwise import pieces
from mpiarray.comm.ring import Parts
from mpiarray.errors import InternalError

_TAG = 4
_GATHER_BYTES = 2**15
"""Up to this many bytes over all members together, gathering everything is faster than cutting."""
_WHOLE_BYTES = 2**18
"""Up to this many bytes, the parts of a block that is scattered travel whole."""
_PIECE_BYTES = 2**20
"""Bytes of the pieces of all members together, of which one is made, and at least `_LEAST_BYTES` of each."""
_LEAST_BYTES = 2**16
_TILE = 2**14
"""Elements combined at a time, so that the float32 sums stay in the cache."""


def result_like(out: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, where: str) -> np.ndarray:
    """`out`, if a result of that shape and dtype can be written into it."""
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
        raise InternalError(
            f"{where}: out must be a writable C-contiguous {dtype}{shape}, not {out.dtype}{out.shape} "
            f"(C-contiguous: {out.flags.c_contiguous}, writable: {out.flags.writeable})"
        )
    return out


def ordered_all_reduce(group: Group, x: np.ndarray, op: str, result: np.ndarray) -> None:
    """Combine C-contiguous blocks in rank order into `result` (which may be x), equal bits on every member."""
    n = group.size
    if x.nbytes * n <= _GATHER_BYTES:
        rows = np.empty((n, x.size), x.dtype)
        group.comm.Allgather(datatypes.wire(x), datatypes.wire(rows, n))
        fold(rows, op, result.reshape(-1), rows[0])
        return
    rooms = _rooms(n, x.dtype)
    ring.in_stretches(group, x, result, rooms.shape[1], lambda parts, out: _combine(group, parts, op, rooms, out))


def ordered_reduce_scatter(group: Group, parts: Parts, op: str, result: np.ndarray) -> None:
    """Combine in rank order the members' blocks, given and cut as `ring.reduce_scatter` wants them."""
    n = group.size
    if result.nbytes * n <= _WHOLE_BYTES:
        rows = np.empty((n, result.size), result.dtype)
        group.comm.Alltoall(datatypes.wire(np.ascontiguousarray(parts, result.dtype), n), datatypes.wire(rows, n))
        fold(rows, op, result.reshape(-1), rows[0])
        return
    rooms = _rooms(n, result.dtype)
    ring.in_pieces(parts, result, rooms[0].nbytes, lambda given, out: _combine(group, given, op, rooms, out))


def _rooms(n: int, dtype: np.dtype) -> np.ndarray:
    """Pieces that came from the others, and one that is packed."""
    nbytes = ring.whole_lines(max(_PIECE_BYTES // n, _LEAST_BYTES))
    return memory.empty((n, nbytes // dtype.itemsize), dtype)


def _combine(group: Group, parts: Parts, op: str, rooms: np.ndarray, out: np.ndarray) -> None:
    """One piece of each member's part: this member's, combined over all of them in rank order, goes into `out`."""
    me, n = group.rank, group.size
    rows = [room[: out.size].reshape(out.shape) for room in rooms]
    for distance in range(1, n):
        target, source = (me + distance) % n, (me - distance) % n
        given = parts[target]
        if not given.flags.c_contiguous:
            given = rooms[me, : given.size].reshape(given.shape)
            np.copyto(given, parts[target])
        group.comm.Sendrecv(datatypes.wire(given), target, _TAG, datatypes.wire(rows[source]), source, _TAG)
    rows[me] = parts[me]
    fold(rows, op, out, rows[me == 0])


def fold(rows: Parts, op: str, out: np.ndarray, room: np.ndarray) -> None:
    """Combine the rows, first to last, into `out`; small floats are added and multiplied in float32 and rounded once.

    `room`: a row that may be written, the first or the second one.  Any one row may be the memory of `out`.
    Sums go row by row: numpy's own `reduce` changes their order with the shape.
    """
    ufunc, last = datatypes.UFUNCS[op], len(rows) - 1
    wide = datatypes.accumulator(out.dtype) if op in ("sum", "prod") else out.dtype
    with np.errstate(all="ignore"):  # as MPI's own reductions: overflow and NaN are results
        if wide == out.dtype:
            total = rows[0]
            for k in range(1, last + 1):
                total = ufunc(total, rows[k], out=out if k == last else room)
            return
        if out.size <= _TILE:
            out[...] = _widened(rows, ufunc, wide)
            return
        limit = _TILE * out.itemsize
        for tile, *given in zip(pieces(out, limit), *(pieces(row, limit) for row in rows), strict=True):
            tile[...] = _widened(given, ufunc, wide)


def _widened(rows: Parts, ufunc: np.ufunc, wide: np.dtype) -> np.ndarray:
    total = rows[0].astype(wide)
    for row in rows[1:]:
        ufunc(total, row, out=total)
    return total
