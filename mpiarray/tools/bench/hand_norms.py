"""The hand-written sides of softmax and layer norm over rows, and of their slopes: numpy on tiles of whole rows.

Sums of rows and of their products are calls of BLAS per row, maxima are found by their places, everything else is done in place
in a tile that stays in cache; numpy's buffers are made so small that it does not copy rows and columns into them.  The first
thing that is written into the result is an exponential where there is one: it has more to do than to wait for memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.tools.bench.timing import Timed, better, buffer

EPSILON = np.float32(1e-5)
_TILES = (32, 64, 128)  # rows
_BUFFER = 512  # elements
_dot: Any = getattr(np, "vecdot", lambda a, b: np.einsum("ij,ij->i", *np.broadcast_arrays(a, b)))


def rows_of(kind: str, *blocks: np.ndarray) -> Timed:
    """The fastest size of tiles of one of the kinds, for this rank's blocks."""
    make: Any = {
        "softmax": _softmax,
        "softmax slope": _softmax_slope,
        "layer norm": _layer_norm,
        "layer norm slopes": _layer_norm_slopes,
    }[kind]
    return better(*(_with_buffers(make(min(tile, len(blocks[0])), *blocks)) for tile in _TILES))


def _with_buffers(run: Timed) -> Timed:
    def buffered() -> Any:
        before = np.setbufsize(_BUFFER)
        try:
            return run()
        finally:
            np.setbufsize(before)

    return buffered


def _parts(tile: int, *arrays: np.ndarray) -> list[list[np.ndarray]]:
    return [[a[k : k + tile] for a in arrays] for k in range(0, len(arrays[0]), tile)]


class _Exponentials:
    """exp(x - max) of the rows of a tile, and their sums."""

    def __init__(self, tile: int, x: np.ndarray):
        self.shifted, self.ones = buffer((tile, x.shape[1]), x.dtype), np.ones(x.shape[1], x.dtype)
        self.starts = np.arange(0, tile * x.shape[1], x.shape[1])

    def __call__(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        rows = len(x)
        places = x.argmax(axis=1)
        places += self.starts[:rows]
        shifted = self.shifted[:rows]
        np.subtract(x, x.reshape(-1).take(places)[:, None], out=shifted)
        np.exp(shifted, out=out)
        return _dot(out, self.ones)[:, None]


def _softmax(tile: int, x: np.ndarray) -> Timed:
    out = buffer(x.shape, x.dtype)
    exponentials, parts = _Exponentials(tile, x), _parts(tile, x, out)

    def run() -> list[np.ndarray]:
        for rows, y in parts:
            np.divide(y, exponentials(rows, y), out=y)
        return [out]

    return run


def _softmax_slope(tile: int, x: np.ndarray, w: np.ndarray) -> Timed:
    """y (w - sum of w y), y being the softmax."""
    out, spare = buffer(x.shape, x.dtype), buffer((tile, x.shape[1]), x.dtype)
    exponentials, parts = _Exponentials(tile, x), _parts(tile, x, w, out)

    def run() -> list[np.ndarray]:
        for rows, weights, y in parts:
            np.divide(y, exponentials(rows, y), out=y)
            t = spare[: len(rows)]
            np.subtract(weights, _dot(weights, y)[:, None], out=t)
            np.multiply(y, t, out=y)
        return [out]

    return run


class _Standardized:
    """(x - mean) / deviation of the rows of a tile, and 1 / deviation."""

    def __init__(self, x: np.ndarray):
        self.ones, self.count = np.ones(x.shape[1], x.dtype), np.float32(x.shape[1])

    def __call__(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        np.subtract(x, (_dot(x, self.ones) / self.count)[:, None], out=out)
        scale = (1 / np.sqrt(_dot(out, out) / self.count + EPSILON))[:, None]
        np.multiply(out, scale, out=out)
        return scale


def _layer_norm(tile: int, x: np.ndarray, gain: np.ndarray, bias: np.ndarray) -> Timed:
    out = buffer(x.shape, x.dtype)
    standardized, parts = _Standardized(x), _parts(tile, x, out)

    def run() -> list[np.ndarray]:
        for rows, y in parts:
            standardized(rows, y)
            np.multiply(y, gain, out=y)
            np.add(y, bias, out=y)
        return [out]

    return run


def _layer_norm_slopes(tile: int, x: np.ndarray, gain: np.ndarray, bias: np.ndarray, w: np.ndarray) -> Timed:
    """Of the sum of w times the norm: for x, gain and bias; the latter two summed over all ranks."""
    raw = comm.world().comm
    out = buffer(x.shape, x.dtype)
    standard, spare = (buffer((tile, x.shape[1]), x.dtype) for _ in range(2))
    mine, total = np.zeros((2, x.shape[1]), x.dtype), np.zeros((2, x.shape[1]), x.dtype)
    standardized, parts, ones = _Standardized(x), _parts(tile, x, w, out), np.ones(x.shape[1], x.dtype)
    count = np.float32(x.shape[1])

    def run() -> list[np.ndarray]:
        mine[:] = 0
        for rows, weights, y in parts:
            z, t = standard[: len(rows)], spare[: len(rows)]
            scale = standardized(rows, z)
            np.multiply(weights, z, out=t)
            np.add(mine[0], np.add.reduce(t, axis=0), out=mine[0])
            np.add(mine[1], np.add.reduce(weights, axis=0), out=mine[1])
            np.multiply(weights, gain, out=t)
            middle, along = (_dot(t, other)[:, None] / count for other in (ones, z))
            np.multiply(z, along, out=z)
            np.subtract(t, z, out=t)
            np.subtract(t, middle, out=t)
            np.multiply(t, scale, out=y)
        raw.Allreduce(mine, total)
        return [out, total[0], total[1]]

    return run
