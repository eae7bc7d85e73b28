"""Reductions that MPI does not do, or not in a given order: moved by MPI, combined by numpy in the order of the ranks.

Large blocks come here only where `ring` does not take them: floats of 16 bits and fewer, and rank order where it counts.

The bytes on the wire are those of the narrow type: a sum of bfloat16 blocks sends half of what sending float32 would,
and still adds in float32 and rounds once.  Small blocks are gathered whole and every member combines them; large ones
are cut into a part for each member (all-to-all), combined there, and gathered, piece by piece, so that no more than
`config.exchange_bytes` of buffers are needed.
"""

from __future__ import annotations

import numpy as np

from mpiarray.comm import datatypes
from mpiarray.comm.groups import Group
from mpiarray.comm.pairwise import exchange_blocks
from mpiarray.config import config
from mpiarray.errors import InternalError

_GATHER_BYTES = 2**15
"""Up to this many bytes over all members together, gathering everything is faster than cutting."""
_PIECE_BYTES = 2**24
"""Bytes of a block that are cut, combined and gathered at a time."""
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
    source, target = x.reshape(-1), result.reshape(-1)
    if x.nbytes * n <= _GATHER_BYTES:
        rows = np.empty((n, x.size), x.dtype)
        group.comm.Allgather(datatypes.wire(source), datatypes.wire(rows, n))
        fold(rows, op, target)
        return
    step = _piece(n, x.itemsize)
    for start in range(0, x.size, step):
        _reduce_piece(group, source[start : start + step], op, target[start : start + step])


def _reduce_piece(group: Group, source: np.ndarray, op: str, target: np.ndarray) -> None:
    n, count = group.size, source.size
    short, longer = divmod(count, n)
    mine = short + (group.rank < longer)
    rows = np.empty((n, mine), source.dtype)
    part = np.empty(mine, source.dtype)
    if not longer:
        group.comm.Alltoall(datatypes.wire(source, n), datatypes.wire(rows, n))
        fold(rows, op, part)
        group.comm.Allgather(datatypes.wire(part), datatypes.wire(target, n))
        return
    counts = [short + (k < longer) for k in range(n)]
    places = [short * k + min(k, longer) for k in range(n)]
    given, _, datatype = datatypes.wire(source)
    received = datatypes.wire(rows)[0]
    group.comm.Alltoallv(
        (given, counts, places, datatype), (received, [mine] * n, [mine * k for k in range(n)], datatype)
    )
    fold(rows, op, part)
    group.comm.Allgatherv(datatypes.wire(part), (datatypes.wire(target)[0], counts, places, datatype))


def ordered_reduce_scatter(group: Group, packed: np.ndarray, op: str, result: np.ndarray) -> None:
    """Combine in rank order the parts for this rank of all blocks; `packed` holds the n parts one after the other."""
    n = group.size
    target = result.reshape(-1)
    if packed.nbytes <= _PIECE_BYTES:
        rows = np.empty((n, target.size), result.dtype)
        group.comm.Alltoall(datatypes.wire(packed, n), datatypes.wire(rows, n))
        fold(rows, op, target)
        return
    parts = packed.reshape(n, -1)
    step = max(1, _piece(n, result.itemsize) // n)
    for start in range(0, target.size, step):
        stop = min(start + step, target.size)
        rows = np.empty((n, stop - start), result.dtype)
        exchange_blocks(group, [(k, parts[k, start:stop]) for k in range(n)], list(enumerate(rows)))
        fold(rows, op, target[start:stop])


def _piece(n: int, itemsize: int) -> int:
    """Elements combined per step over n members: few enough for the buffers, a multiple of n."""
    count = max(n, min(config.exchange_bytes, _PIECE_BYTES) // itemsize)
    return count - count % n


def fold(rows: np.ndarray, op: str, out: np.ndarray) -> None:
    """Combine the rows, first to last, into `out`; small floats are added and multiplied in float32 and rounded once.

    Sums go row by row: numpy's own `reduce` changes their order with the shape.
    """
    ufunc = datatypes.UFUNCS[op]
    if op in ("max", "min") and out.dtype.isbuiltin == 1:
        ufunc.reduce(rows, 0, None, out)
        return
    wide = datatypes.accumulator(out.dtype) if op in ("sum", "prod") else out.dtype
    with np.errstate(all="ignore"):  # as MPI's own reductions: overflow and NaN are results
        if out.size <= _TILE:
            out[:] = _fold_tile(rows, ufunc, wide)
            return
        for start in range(0, out.size, _TILE):
            tile = slice(start, start + _TILE)
            out[tile] = _fold_tile(rows[:, tile], ufunc, wide)


def _fold_tile(rows: np.ndarray, ufunc: np.ufunc, wide: np.dtype) -> np.ndarray:
    total = rows[0].astype(wide)
    for row in rows[1:]:
        ufunc(total, row, out=total)
    return total
