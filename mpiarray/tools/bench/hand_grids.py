"""The hand-written sides for grids: Jacobi's iteration in tiles of rows with halos by Sendrecv, and the 2-D Fourier transform.

As in `hand_arrays`: a function of this rank's blocks gives a function that works in buffers which it keeps.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.tools.bench.hand_arrays import alltoalls, mpi
from mpiarray.tools.bench.timing import Timed, better, buffer

HEIGHTS = (4, 8, 16, 32, 64)
"""Rows of a tile."""


def jacobi(b: np.ndarray, steps: int, periodic: bool) -> Timed:
    """Each new value is the mean of four neighbours; the rim is held, or the grid is a torus.  In two grids, or in one."""
    heights = [height for height in HEIGHTS if height <= max(len(b), HEIGHTS[0])]
    return better(
        *(_jacobi(b, steps, periodic, height, 2) for height in heights),
        *(_jacobi(b, steps, periodic, height, 1) for height in heights[-2:]),
    )


def _jacobi(b: np.ndarray, steps: int, periodic: bool, height: int, count: int) -> Timed:
    rank, n = comm.rank(), comm.size()
    rows, wide = b.shape[0], int(periodic)  # a torus has a column of halo on both sides as well
    grids = [buffer((rows + 2, b.shape[1] + 2 * wide), b.dtype) for _ in range(count)]
    grids = [grids[0], grids[-1]]
    for u in grids:
        u.fill(0)
    inner = (slice(1, rows + 1), slice(wide, b.shape[1] + wide))
    nobody = mpi().PROC_NULL
    up = (rank - 1) % n if periodic or rank > 0 else nobody
    down = (rank + 1) % n if periodic or rank < n - 1 else nobody
    first = 1 if periodic or rank > 0 else 2
    end = rows + 1 if periodic or rank < n - 1 else rows
    sweeps = [(_sweep if count == 2 else _sweep_over)(u, v, first, end, height) for u, v in (grids, grids[::-1])]
    halos = [_halos(u, up, down, periodic) for u in grids]
    start = grids[0][inner]
    edges = [(u[inner], v[inner]) for u, v in (grids, grids[::-1])]

    def run() -> list[np.ndarray]:
        np.copyto(start, b)
        if not periodic and count == 2:  # the rim, which the sweeps never write
            v = grids[1]
            v[1], v[rows], v[1:-1, 0], v[1:-1, -1] = b[0], b[-1], b[:, 0], b[:, -1]
        for k in range(steps):
            halos[k % 2]()
            sweeps[k % 2]()
        return [edges[steps % 2][0]]

    return run


def _sweep(u: np.ndarray, v: np.ndarray, first: int, end: int, height: int) -> Callable[[], None]:
    """Rows first ... end - 1 of v from u, by tiles of rows, straight into v while its tile is in cache."""
    quarter = u.dtype.type(0.25)
    tiles = []
    for i in range(first, end, height):
        j = min(i + height, end)
        above, below, left, right = u[i - 1 : j - 1, 1:-1], u[i + 1 : j + 1, 1:-1], u[i:j, :-2], u[i:j, 2:]
        tiles.append((above, below, left, right, v[i:j, 1:-1]))

    def sweep() -> None:
        for above, below, left, right, out in tiles:
            np.add(above, below, out=out)
            np.add(out, left, out=out)
            np.add(out, right, out=out)
            np.multiply(out, quarter, out=out)

    return sweep


def _sweep_over(u: np.ndarray, v: np.ndarray, first: int, end: int, height: int) -> Callable[[], None]:
    """The same where u is v: the last step of a tile waits until the next tile has read what it writes over."""
    quarter = u.dtype.type(0.25)
    spaces = [buffer((height, u.shape[1]), u.dtype)[:, 1:-1] for _ in range(2)]  # aligned as the grid is
    tiles = []
    for k, i in enumerate(range(first, end, height)):
        j = min(i + height, end)
        above, below, left, right = u[i - 1 : j - 1, 1:-1], u[i + 1 : j + 1, 1:-1], u[i:j, :-2], u[i:j, 2:]
        tiles.append((above, below, left, right, spaces[k % 2][: j - i], v[i:j, 1:-1]))

    def sweep() -> None:
        done = None
        for above, below, left, right, space, out in tiles:
            np.add(above, below, out=space)
            np.add(space, left, out=space)
            np.add(space, right, out=space)
            if done is not None:
                np.multiply(done[0], quarter, out=done[1])
            done = space, out
        if done is not None:
            np.multiply(done[0], quarter, out=done[1])

    return sweep


def _halos(u: np.ndarray, up: int, down: int, periodic: bool) -> Callable[[], None]:
    raw = comm.world().comm

    def exchange() -> None:
        if periodic:
            u[1:-1, 0], u[1:-1, -1] = u[1:-1, -2], u[1:-1, 1]
        raw.Sendrecv(u[-2], down, 0, u[0], up, 0)
        raw.Sendrecv(u[1], up, 1, u[-1], down, 1)

    return exchange


# -- Fourier transform ----------------------------------------------------------------------------------------------------


def scipys_fft() -> Any:
    """`scipy.fft` where scipy is installed; its transforms work in place and in single precision."""
    return importlib.import_module("scipy.fft") if importlib.util.find_spec("scipy") else None


def fft2(b: np.ndarray) -> Timed:
    """To columns, transform in place, back to rows, transform in place: no copy but the messages; by scipy, else numpy."""
    n, (rows, columns) = comm.size(), b.shape
    width = columns // n
    tall, out = buffer((n * rows, width), b.dtype), buffer(b.shape, b.dtype)
    by_columns = [(slice(None), slice(k * width, (k + 1) * width)) for k in range(n)]
    by_rows = [(slice(k * rows, (k + 1) * rows), slice(None)) for k in range(n)]
    there = better(*alltoalls(b, tall, by_columns, by_rows))
    back = better(*alltoalls(tall, out, by_rows, by_columns))
    library = scipys_fft()

    def with_scipy(x: np.ndarray, axis: int) -> None:
        found = library.fft(x, axis=axis, overwrite_x=True)
        if found.ctypes.data != x.ctypes.data:  # where it could not work in place
            np.copyto(x, found)

    def with_numpy(x: np.ndarray, axis: int) -> None:
        np.fft.fft(x, axis=axis, out=x)

    def by(transform: Callable[[np.ndarray, int], None]) -> Timed:
        def run() -> list[np.ndarray]:
            there()
            transform(tall, 0)
            back()
            transform(out, 1)
            return [out]

        return run

    return better(*(by(transform) for transform in ((with_numpy,) if library is None else (with_scipy, with_numpy))))
