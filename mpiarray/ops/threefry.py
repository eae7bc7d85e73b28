"""Threefry-2x32 on numpy blocks: the bits behind every random number, and nothing else.

A counter-based generator has no state.  The bits of element ``i`` of a draw are a function of the key
and of ``i``, its flat row-major index in the *global* array, so a rank makes the bits of its own block and
no others, and the values do not depend on how many ranks there are or on how the array is sharded.

This file is apart from the random ops because it knows neither types nor shardings: keys are ``uint64``
arrays (one key each; the low 32 bits are the first key word, the high 32 bits the second), blocks are given
by the global shape, where they start and their shape.  Everything runs in chunks through three small
buffers that stay in the processor's cache, so the only memory that grows with the draw is its result.

The maths: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011;
20 rounds.  The 64-bit counter goes in as (high word, low word).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["fold_in", "key_words", "pack_words", "random_bits_block", "seed", "split", "split_block", "threefry"]

_MASK = 0xFFFFFFFF
_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# numpy converts a Python or numpy scalar operand at every call, a 0-d array at none.
_SHIFTS = tuple(tuple((np.array(r, np.uint32), np.array(32 - r, np.uint32)) for r in group) for group in _ROTATIONS)
_SMALL = tuple(np.array(i, np.uint32) for i in range(6))

# Elements at a time.  Three buffers of this many words fit a second-level cache of 1 MB, and 115 numpy calls
# of 0.2 microseconds are then 5 % of the work.
_CHUNK = 1 << 16
# Buffers an exact multiple of 4096 bytes apart compete for the same lines of the first-level cache.
_PADDING = 16
# Up to this many elements Python's integers are faster than 115 numpy calls.
_FEW = 6


def threefry(words: tuple, hi: Any, lo: Any) -> tuple[np.ndarray, np.ndarray]:
    """The block function: two words for every counter.

    ``words`` is the pair of key words, ``hi`` and ``lo`` are the counter words; all uint32, scalars or
    arrays that broadcast together.  Returns two new uint32 arrays of the common shape.
    """
    operands = [np.asarray(v, np.uint32) for v in (*words, hi, lo)]
    shape = np.broadcast_shapes(*(v.shape for v in operands))
    k0, k1, hi, lo = (v if v.ndim == 0 else np.broadcast_to(v, shape).reshape(-1) for v in operands)
    y0, y1 = np.empty(math.prod(shape), np.uint32), np.empty(math.prod(shape), np.uint32)
    one_key = k0.ndim == k1.ndim == 0
    schedule = _scalar_schedule(int(k0) | int(k1) << 32) if one_key else []
    spare = _buffers(min(y0.size, _CHUNK))[0]
    for start in range(0, y0.size, _CHUNK):
        part = slice(start, min(start + _CHUNK, y0.size))
        x0, x1 = y0[part], y1[part]
        x0[...], x1[...] = (v if v.ndim == 0 else v[part] for v in (hi, lo))
        if not one_key:
            schedule = _array_schedule(*(v if v.ndim == 0 else v[part] for v in (k0, k1)))
        _rounds(schedule, x0, x1, spare[: x0.size])
    return y0.reshape(shape), y1.reshape(shape)


def random_bits_block(
    keys: np.ndarray,
    global_shape: Sequence[int],
    block_start: Sequence[int],
    block_shape: Sequence[int],
    bit_width: int,
) -> np.ndarray:
    """The bits of one block of a draw of ``global_shape``, for every key of an array of keys.

    ``keys`` is a uint64 array of any shape (0-d for one key); each key makes its own draw.  ``block_start``
    and ``block_shape`` say which part of the draw is wanted; ``bit_width`` is 8, 16, 32 or 64.  Returns a
    new C-ordered array of unsigned integers, of shape ``keys.shape + block_shape``.
    """
    dtype = _UNSIGNED.get(bit_width)
    if dtype is None:
        raise TypeError(f"random bits come 8, 16, 32 or 64 at a time, got bit_width={bit_width!r}")
    return _fill(keys, global_shape, block_start, block_shape, dtype, _store_wide if bit_width == 64 else _store_xor)


def split_block(
    keys: np.ndarray, global_shape: Sequence[int], block_start: Sequence[int], block_shape: Sequence[int]
) -> np.ndarray:
    """One block of the keys that each of ``keys`` splits into: uint64, shape ``keys.shape + block_shape``."""
    return _fill(keys, global_shape, block_start, block_shape, np.dtype(np.uint64), _store_key)


def split(keys: np.ndarray, shape: int | Sequence[int] = 2) -> np.ndarray:
    """All new keys of every key in ``keys`` (uint64 storage): shape ``keys.shape + shape``."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return split_block(keys, shape, (0,) * len(shape), shape)


def fold_in(keys: np.ndarray, data: Any) -> np.ndarray:
    """A new key for every key and 32-bit number; ``keys`` and ``data`` broadcast.  Numbers count mod 2**32."""
    keys, data = np.broadcast_arrays(np.asarray(keys, np.uint64), _as_words(data))
    if keys.size <= _FEW:
        pairs = (_words_of(int(k), 0, int(d)) for k, d in zip(keys.flat, data.flat, strict=True))
        return np.array([y0 | y1 << 32 for y0, y1 in pairs], np.uint64).reshape(keys.shape)
    return pack_words(*threefry(key_words(keys), 0, data))


def seed(numbers: Any) -> np.ndarray:
    """The key of every integer in ``numbers``: 64 bits fill both words, high word first."""
    numbers = np.asarray(numbers)
    if numbers.dtype.itemsize < 8:
        low = numbers.astype(np.int64).astype(np.uint32)
        return pack_words(np.zeros_like(low), low)
    full = numbers.astype(np.uint64)
    return pack_words((full >> np.uint64(32)).astype(np.uint32), (full & np.uint64(_MASK)).astype(np.uint32))


def key_words(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two uint32 words of every key."""
    keys = np.asarray(keys, np.uint64)
    return (keys & np.uint64(_MASK)).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)


def pack_words(k0: np.ndarray, k1: np.ndarray) -> np.ndarray:
    """Keys from their two uint32 words."""
    return np.asarray(k0, np.uint64) | np.asarray(k1, np.uint64) << np.uint64(32)


def _as_words(data) -> np.ndarray:
    data = np.asarray(data)
    return data if data.dtype == np.uint32 else data.astype(np.int64).astype(np.uint32)


# ---------------------------------------------------------------------------------------------- the rounds


def _rounds(schedule: list[tuple], x0: np.ndarray, x1: np.ndarray, spare: np.ndarray) -> None:
    """The 20 rounds on counter words (x0, x1), in place."""
    add, xor, either, left, right = np.add, np.bitwise_xor, np.bitwise_or, np.left_shift, np.right_shift
    _inject(schedule[0], x0, x1)
    for i in range(5):
        for up, down in _SHIFTS[i % 2]:
            add(x0, x1, x0)
            right(x1, down, spare)
            left(x1, up, x1)
            either(x1, spare, x1)
            xor(x1, x0, x1)
        _inject(schedule[i + 1], x0, x1)


def _inject(terms: tuple, x0: np.ndarray, x1: np.ndarray) -> None:
    np.add(x0, terms[0], x0)
    for term in terms[1:]:
        np.add(x1, term, x1)


def _scalar_schedule(key: int) -> list[tuple]:
    """What is added to (x0, x1) before the rounds and after every fourth, for one key."""
    k = key & _MASK, key >> 32, (key & _MASK) ^ (key >> 32) ^ _PARITY
    return [(np.array(k[i % 3], np.uint32), np.array((k[(i + 1) % 3] + i) & _MASK, np.uint32)) for i in range(6)]


def _array_schedule(k0: np.ndarray, k1: np.ndarray) -> list[tuple]:
    """The same with a key for every element.  The round number stays apart: no six more arrays."""
    k = k0, k1, k0 ^ k1 ^ np.uint32(_PARITY)
    return [(k[i % 3], k[(i + 1) % 3], _SMALL[i]) for i in range(6)]


def _words_of(key: int, hi: int, lo: int) -> tuple[int, int]:
    """The block function for one counter in Python's integers."""
    k = key & _MASK, key >> 32, (key & _MASK) ^ (key >> 32) ^ _PARITY
    x0, x1 = (hi + k[0]) & _MASK, (lo + k[1]) & _MASK
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x0 = (x0 + x1) & _MASK
            x1 = ((x1 << r | x1 >> (32 - r)) & _MASK) ^ x0
        x0, x1 = (x0 + k[(i + 1) % 3]) & _MASK, (x1 + k[(i + 2) % 3] + i + 1) & _MASK
    return x0, x1


# ------------------------------------------------------------------------------------- from words to results

_UNSIGNED = {width: np.dtype(f"uint{width}") for width in (8, 16, 32, 64)}


def _store_xor(y0: np.ndarray, y1: np.ndarray, out: np.ndarray) -> None:
    """32 bits are the exclusive or of the two words, fewer are its lowest ones."""
    if out.dtype == np.uint32:
        np.bitwise_xor(y0, y1, out)
    else:
        np.bitwise_xor(y0, y1, y0)
        out[...] = y0


def _store_wide(y0: np.ndarray, y1: np.ndarray, out: np.ndarray) -> None:
    out[...] = y0
    np.left_shift(out, np.uint64(32), out)
    np.bitwise_or(out, y1, out)


def _store_key(y0: np.ndarray, y1: np.ndarray, out: np.ndarray) -> None:
    _store_wide(y1, y0, out)


def _few_results(y0: int, y1: int, store, dtype: np.dtype) -> int:
    if store is _store_xor:
        return (y0 ^ y1) & ((1 << 8 * dtype.itemsize) - 1)
    return y0 << 32 | y1 if store is _store_wide else y1 << 32 | y0


# ----------------------------------------------------------------------------------------- counters of a block


def _fill(keys, global_shape, block_start, block_shape, dtype: np.dtype, store) -> np.ndarray:
    keys = np.asarray(keys)
    if keys.dtype != np.uint64:
        raise TypeError(f"keys are held as uint64 arrays, one number a key, got {keys.dtype}")
    shape = tuple(operator.index(n) for n in block_shape)
    _check_block(tuple(global_shape), tuple(block_start), shape)
    size = math.prod(shape)
    out = np.empty(keys.shape + shape, dtype)
    if out.size == 0:
        return out
    rows = Runs(global_shape, block_start, shape)
    if out.size <= _FEW:
        flat = out.reshape(-1)
        counters = [int(c) for c in rows.counters(0, size)]
        for i, key in enumerate(keys.flat):
            for j, c in enumerate(counters):
                flat[i * size + j] = _few_results(*_words_of(int(key), c >> 32, c & _MASK), store, dtype)
    elif size >= _CHUNK // 16 or keys.ndim == 0:
        for key, part in zip(keys.flat, out.reshape(-1, size), strict=True):
            _fill_one_key(int(key), rows, part, store)
    else:
        _fill_many_keys(keys.reshape(-1), rows, out.reshape(-1, size), store)
    return out


def _check_block(global_shape: tuple, start: tuple, shape: tuple) -> None:
    if not len(global_shape) == len(start) == len(shape):
        raise ValueError(f"a block of a draw of shape {global_shape} needs as many starts and sizes: {start}, {shape}")
    for n, s, b in zip(global_shape, start, shape, strict=True):
        if s < 0 or b < 0 or s + b > n:
            raise ValueError(f"the block at {start} of shape {shape} is not inside a draw of shape {global_shape}")
    if math.prod(global_shape) > 1 << 64:
        raise ValueError(f"a draw of shape {global_shape} has more than 2**64 elements")


def _fill_one_key(key: int, rows: Runs, out: np.ndarray, store) -> None:
    schedule = _scalar_schedule(key)
    x0, x1, spare = _buffers(min(out.size, _CHUNK))
    steps = np.arange(min(rows.run, _CHUNK), dtype=np.uint32)
    for start, stop in rows.chunks():
        n = stop - start
        rows.counter_words(start, n, steps, x0[:n], x1[:n])
        _rounds(schedule, x0[:n], x1[:n], spare[:n])
        store(x0[:n], x1[:n], out[start:stop])


def _fill_many_keys(keys: np.ndarray, rows: Runs, out: np.ndarray, store) -> None:
    """Short draws from many keys: several whole draws to a chunk."""
    size = out.shape[1]
    counters = rows.counters(0, size)
    hi, lo = (counters >> np.uint64(32)).astype(np.uint32), (counters & np.uint64(_MASK)).astype(np.uint32)
    together = max(1, _CHUNK // size)
    x0, x1, spare = _buffers(min(keys.size, together) * size)
    for first in range(0, keys.size, together):
        part = keys[first : first + together]
        n = part.size * size
        x0[:n].reshape(-1, size)[...] = hi
        x1[:n].reshape(-1, size)[...] = lo
        words = (np.repeat(k, size) for k in key_words(part))
        _rounds(_array_schedule(*words), x0[:n], x1[:n], spare[:n])
        store(x0[:n], x1[:n], out[first : first + together].reshape(-1))


class Runs:
    """The flat global indices of a block: equal runs of consecutive numbers, in row-major order.

    ``run`` is the length of a run; ``outer`` has (size, stride) of the dimensions that count the runs.
    """

    def __init__(self, global_shape: Sequence[int], start: Sequence[int], shape: Sequence[int]):
        strides = [math.prod(global_shape[d + 1 :]) for d in range(len(shape))]
        self.first = sum(s * stride for s, stride in zip(start, strides, strict=True))
        self.size = math.prod(shape)
        self.run = 1
        self.outer: list[tuple[int, int]] = []
        for b, stride in zip(reversed(shape), reversed(strides), strict=True):
            if not self.outer and (b == 1 or self.run == stride):
                self.run *= b
            elif b != 1:
                self._add_outer(b, stride)

    def _add_outer(self, b: int, stride: int) -> None:
        # Whole inner dimensions make one longer dimension with the outer one.
        if self.outer and self.outer[0][0] * self.outer[0][1] == stride:
            inner = self.outer[0]
            self.outer[0] = inner[0] * b, inner[1]
        else:
            self.outer.insert(0, (b, stride))

    def counters(self, start: int, n: int) -> np.ndarray:
        """Global indices (uint64) of elements start..start+n of the block."""
        if not self.outer:
            return np.arange(start, start + n, dtype=np.uint64) + np.uint64(self.first)
        where = np.arange(start, start + n, dtype=np.uint64)
        rest, inside = np.divmod(where, np.uint64(self.run)) if self.run > 1 else (where, None)
        total = self.starts(rest)
        return total if inside is None else total + inside

    def starts(self, run_numbers: np.ndarray) -> np.ndarray:
        """The first global index of each of these runs."""
        total = np.full(run_numbers.shape, self.first, np.uint64)
        for b, stride in reversed(self.outer[1:]):
            run_numbers, index = np.divmod(run_numbers, np.uint64(b))
            total += index * np.uint64(stride)
        if self.outer:
            total += run_numbers * np.uint64(self.outer[0][1])
        return total

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(start, stop) in the block: whole runs when they are short, parts of one run when they are long."""
        if self.run >= _CHUNK:
            for run_start in range(0, self.size, self.run):
                for start in range(run_start, run_start + self.run, _CHUNK):
                    yield start, min(start + _CHUNK, run_start + self.run)
        else:
            step = _CHUNK // self.run * self.run
            for start in range(0, self.size, step):
                yield start, min(start + step, self.size)

    def counter_words(self, start: int, n: int, steps: np.ndarray, hi: np.ndarray, lo: np.ndarray) -> None:
        """Write the counter words of elements start..start+n, a piece of `chunks()`."""
        number, inside = divmod(start, self.run)
        if n <= self.run:
            base = int(self.starts(np.array([number], np.uint64))[0]) + inside
            np.add(steps[:n], np.array(base & _MASK, np.uint32), lo)
            hi[...] = base >> 32
            carried = (1 << 32) - (base & _MASK)
            if carried < n:
                hi[carried:] += np.uint32(1)
            return
        starts = self.starts(np.arange(number, number + n // self.run, dtype=np.uint64))
        if int(starts[0]) >> 32 == (int(starts[-1]) + self.run - 1) >> 32:
            hi[...] = int(starts[0]) >> 32
            np.add(starts.astype(np.uint32)[:, None], steps, lo.reshape(-1, self.run))
        else:
            full = (starts[:, None] + steps).reshape(-1)
            lo[...] = full & np.uint64(_MASK)
            hi[...] = full >> np.uint64(32)


def _buffers(n: int) -> list[np.ndarray]:
    """Three uint32 buffers of n elements, placed so that they do not push each other out of the cache."""
    whole = np.empty(3 * (n + _PADDING), np.uint32)
    return [whole[i * (n + _PADDING) :][:n] for i in range(3)]
