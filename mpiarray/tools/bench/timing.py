"""How the bench measures: two sides in turn, after a barrier, medians, and the slowest rank's time; and how it compares results.

Every function here is to be called by all ranks.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpiarray import comm

Timed = Callable[[], Any]

_BATCH_SECONDS = 0.002  # calls that are shorter are timed in batches of about this length
_LEAST = 7  # repetitions of each side, however long they take


@dataclass(frozen=True)
class Times:
    """Seconds per call of each side: medians, and the best repetition; hand is 0 where nobody wrote one."""

    ours: float
    hand: float
    ours_best: float
    hand_best: float


def buffer(shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """A new array that begins at a page: numpy's own begin where the allocator likes, and vector units then work on two lines."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def copied(x: np.ndarray) -> np.ndarray:
    """A copy in a `buffer`."""
    out = buffer(x.shape, x.dtype)
    np.copyto(out, x)
    return out


class Different(Exception):
    """This library's result is not the hand-written one."""


def same(
    ours: Sequence[np.ndarray], hand: Sequence[np.ndarray], what: str, tolerance: float = 1e-5, scale: float = 0.0
) -> None:
    """Compare results, block by block; Different on all ranks where any rank's differ.

    By more than `tolerance` of the largest number, that is, or of `scale` where all numbers are smaller.
    """
    words = ""
    for k, (a, b) in enumerate(zip(ours, hand, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            words = words or f"result {k} is {a.dtype}{list(a.shape)}, by hand {b.dtype}{list(b.shape)}"
            continue
        wide = np.result_type(a.dtype, np.float64)
        largest = float(np.max(np.abs(b), initial=0))
        off = float(np.max(np.abs(a.astype(wide) - b), initial=0)) if a.size else 0.0
        if not off <= tolerance * max(largest, scale, 1e-30):
            words = words or f"result {k} is off by {off:.3g} where the largest number is {largest:.3g}"
    told = comm.agree(comm.world_group(), words)
    for rank, text in enumerate(told):
        if text:
            raise Different(f"{what}: on rank {rank}, {text}")


def once(f: Timed) -> float:
    """Seconds of a call, after one that warms up."""
    f()
    comm.barrier(comm.world_group())
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def better(*sides: Timed) -> Timed:
    """The fastest of several ways to do one thing, where all ranks do the same."""
    if len(sides) == 1:
        return sides[0]
    seconds = [min(once(f) for _ in range(3)) for f in sides]
    told = comm.agree(comm.world_group(), seconds)
    slowest = [max(rank[k] for rank in told) for k in range(len(sides))]
    return sides[slowest.index(min(slowest))]


def measure(ours: Timed, hand: Timed | None, *, seconds: float) -> Times:
    """Time both sides in turn for about `seconds` in all; the slowest rank counts."""
    world = comm.world_group()
    single = max(comm.agree(world, max(once(ours), once(hand) if hand else 0.0, 1e-7)))
    calls = max(1, int(_BATCH_SECONDS / single))
    sides = 2 if hand else 1
    repeats = max(_LEAST, min(200, int(seconds / (calls * single * sides))))
    found: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    for _ in range(repeats):
        for side, times in zip((ours, hand), found):
            if side is not None:
                times.append(_batch(side, calls))
    mine = [f(times) if times else 0.0 for f in (statistics.median, min) for times in found]
    told = comm.agree(world, mine)
    return Times(*(max(rank[k] for rank in told) for k in range(4)))


def together(found: Sequence[Times]) -> Times:
    """Several measurements of one program as one: medians of the medians, and the best of all."""
    medians = (statistics.median(getattr(t, name) for t in found) for name in ("ours", "hand"))
    return Times(*medians, *(min(getattr(t, name) for t in found) for name in ("ours_best", "hand_best")))


def _batch(side: Timed, calls: int) -> float:
    comm.barrier(comm.world_group())
    start = time.perf_counter()
    for _ in range(calls):
        side()
    return (time.perf_counter() - start) / calls
