"""Sorts of blocks, and of one dim that is cut over ranks.

Order: NaN is last, -0.0 equals 0.0, complex numbers go by real, then imaginary part.  All sorts are stable.

numpy's fast sorts are not stable and do not give positions.  For keys of up to 32 bits, key and position make one
64-bit number, which the fast sort takes; in tiles, so that the numbers stay in the cache.

Over ranks: every rank sorts its block; the exact places where the sorted whole is to be cut are found by bisection
on the bits of the keys (a few counts per step are added over the ranks); each rank sends the others what is theirs, and
merges what it gets.  Each element moves once, and every rank ends with as many as it had.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.comm import collectives as mpi
from mpiarray.comm.groups import Group
from mpiarray.types import dtypes

_TILE = 1 << 17  # elements
_LONG = 1 << 15  # elements of a row in which zeros are looked up, not looked for
_LOW = 0 if sys.byteorder == "little" else 1
_FEW = 1024  # elements below which numpy's own sorts cost less


def comparable(x: Any) -> np.ndarray:
    """The same values and order in a dtype that numpy compares as it should: narrow floats and integers are widened."""
    x = np.asarray(x)
    if x.dtype.kind in "biufc":
        return x
    return x.astype(np.float32 if dtypes.is_float(x.dtype) else np.int8)


def sort_bits(x: Any) -> np.ndarray:
    """Unsigned integers, as wide as the elements, in the order of a sort; equal elements have equal ones."""
    x = comparable(x)
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    if x.dtype.kind == "u":
        return x
    top = unsigned.type(1 << (8 * unsigned.itemsize - 1))
    if x.dtype.kind == "i":
        return x.view(unsigned) ^ top
    bits = np.asarray(x + x.dtype.type(0)).view(unsigned)  # -0.0 + 0.0 is 0.0
    signs = bits.view(f"i{unsigned.itemsize}") >> (8 * unsigned.itemsize - 1)  # all bits set for negative numbers
    bits ^= signs.view(unsigned) | top
    missing = np.isnan(x)
    if missing.any():
        np.copyto(bits, unsigned.type(np.iinfo(unsigned).max), where=missing)
    return bits


# -- blocks -------------------------------------------------------------------------------------------------


def order_of(keys: Sequence[Any], dim: int, dtype: Any = np.intp) -> np.ndarray:
    """Positions that sort by the keys, the first one most important; equal elements keep their order."""
    keys = [comparable(k) for k in keys]
    (key, *rest) = keys
    if rest:
        return np.lexsort(keys[::-1], axis=dim).astype(dtype, copy=False)
    if key.dtype.kind == "c" or key.dtype.itemsize > 4 or key.size < _FEW or key.shape[dim] >= 2**32:
        return np.argsort(key, axis=dim, kind="stable").astype(dtype, copy=False)
    moved = np.moveaxis(key, dim, -1)
    n = moved.shape[-1]
    rows = moved.reshape(-1, n)
    out = np.empty(rows.shape, dtype)
    step = min(max(1, _TILE // n), len(rows))
    joint = np.empty((step, n), np.uint64)
    halves = joint.view(np.uint32).reshape(step, n, 2)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        m = len(some)
        halves[:m, :, 1 - _LOW] = sort_bits(some)
        halves[:m, :, _LOW] = np.arange(n, dtype=np.uint32)
        joint[:m].sort(axis=-1)
        out[start : start + m] = halves[:m, :, _LOW]
    return np.moveaxis(out.reshape(moved.shape), -1, dim)


def sorted_block(x: np.ndarray, dim: int) -> np.ndarray:
    """The block sorted along a dim.

    The fast sort of numpy is not stable, which shows only where zeros of both signs are.
    """
    y = comparable(x)
    if y.dtype.kind not in "fc":
        return np.sort(y, axis=dim).astype(x.dtype, copy=False)
    if y.dtype.kind == "c" or dim != y.ndim - 1 or not y.flags.c_contiguous or not y.size:
        zeros = y == 0
        mixed = bool(zeros.any()) and bool(np.signbit(y.real[zeros]).any())
        return np.sort(y, axis=dim, kind="stable" if mixed else None).astype(x.dtype, copy=False)
    out = np.empty_like(y)
    n = y.shape[-1]
    source, target = y.reshape(-1, n), out.reshape(-1, n)
    step = max(1, _TILE // n)
    for start in range(0, len(source), step):
        given, some = source[start : start + step], target[start : start + step]
        np.copyto(some, given)
        some.sort(axis=-1)
        if _negative_zeros(some):
            np.copyto(some, given)
            some.sort(axis=-1, kind="stable")
    return out.astype(x.dtype, copy=False)


def _negative_zeros(rows: np.ndarray) -> bool:
    """Whether sorted rows contain -0.0."""
    if rows.shape[-1] < _LONG:
        zeros = rows == 0
        return bool(zeros.any()) and bool(np.signbit(rows[zeros]).any())
    for row in rows:
        first, last = np.searchsorted(row, 0, "left"), np.searchsorted(row, 0, "right")
        if np.signbit(row[first:last]).any():
            return True
    return False


# -- over ranks ----------------------------------------------------------------------------------------------


def sort_over(group: Group, xs: Sequence[np.ndarray], dim: int, *, ordered: bool) -> list[np.ndarray]:
    """This rank's part of operands of one shape, sorted by the first one along a dim that is cut in group order.

    With `ordered` the result is [positions in the unsorted whole, int32] instead.  All members must call it.
    """
    count, shape = xs[0].shape[dim], np.moveaxis(xs[0], dim, -1).shape
    rows = [np.ascontiguousarray(np.moveaxis(x, dim, -1)).reshape(-1, count) for x in xs]
    alone = len(rows) == 1 and not ordered
    if alone:
        moved = [sorted_block(rows[0], 1)]
        bits = sort_bits(moved[0])
    else:
        order = order_of(rows[:1], 1)
        bits = np.take_along_axis(sort_bits(rows[0]), order, 1)
        if ordered:
            moved = [bits, (order + group.rank * count).astype(np.int32)]
        else:
            moved = [np.take_along_axis(x, order, 1) for x in rows]
    cuts = _cuts(group, bits)
    received = [_dealt(group, x, cuts) for x in moved]
    if alone:
        y = comparable(received[0])
        outs = [np.sort(y, axis=1, kind="stable").astype(xs[0].dtype, copy=False)]
    else:
        keys = received[0] if ordered else comparable(received[0])
        order = np.argsort(keys, axis=1, kind="stable")
        outs = [np.take_along_axis(x, order, 1) for x in (received[1:] if ordered else received)]
    return [np.moveaxis(x.reshape(shape), -1, dim) for x in outs]


def _cuts(group: Group, bits: np.ndarray) -> np.ndarray:
    """For each member, row and part of the sorted whole, where that part begins in the member's sorted row (and where
    the last one ends)."""
    rows, count = bits.shape
    targets = np.arange(1, group.size, dtype=np.int64) * count
    wide = np.uint64
    low = np.zeros((rows, len(targets)), wide)
    high = np.full(low.shape, np.iinfo(bits.dtype).max, wide)
    while (low < high).any():
        middle = low + (high - low) // wide(2)
        reached = mpi.all_reduce(group, _places(bits, middle, "right"), "sum") >= targets
        high = np.where(reached, middle, high)
        low = np.where(reached, low, middle + wide(1))
    # of elements that equal the one at the cut, the members' come in order
    below, upto = _places(bits, low, "left"), _places(bits, low, "right")
    members = mpi.all_gather(group, np.stack([below, upto - below]), 0, tiled=False)
    smaller, equal = members[:, 0], members[:, 1]
    needed = targets - smaller.sum(0)
    before = np.cumsum(equal, axis=0) - equal
    inner = smaller + np.clip(needed - before, 0, equal)
    ends = np.zeros((group.size, rows, 1), np.int64)
    return np.concatenate([ends, inner, ends + count], axis=2)


def _places(bits: np.ndarray, values: np.ndarray, side: Any) -> np.ndarray:
    found = [np.searchsorted(row, v.astype(bits.dtype), side) for row, v in zip(bits, values)]
    return np.asarray(found, np.int64).reshape(values.shape)


def _dealt(group: Group, x: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """For each row the parts that are this rank's, of all members in order."""
    out = np.empty_like(x)
    me = group.rank
    sends, recvs = [], []
    for r, row in enumerate(x):
        start = 0
        for peer in range(group.size):
            sends.append((peer, row[cuts[me, r, peer] : cuts[me, r, peer + 1]]))
            size = int(cuts[peer, r, me + 1] - cuts[peer, r, me])
            recvs.append((peer, out[r, start : start + size]))
            start += size
    mpi.exchange(group, sends, recvs)
    return out
