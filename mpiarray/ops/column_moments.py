"""Moments of columns: what `ops.moments` does for a whole block, for each column of blocks whose first dims are reduced.

Apart because everything here is an array with one element a column.  Deviations of all tiles are taken from one center a column,
at first from 0, which needs no subtraction, as long as no tile would lose digits by that; then the centers are moved near the
means, and what was added up so far is a part that is joined with the others at the end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.ops.row_reductions import sum_of_tile

NEAR = 0.5  # of the squares about the center, what may come from the center's distance to the mean
_EXACT = 2.0**52  # numbers on a grid that a float64 holds


class ColumnMoments:
    """Tiles with all columns, of 32- or 64-bit floats, are added; `result()` gives sums, means and squared deviations.

    dims  how many of the first dims are reduced
    most  elements of a tile, at most
    """

    def __init__(self, dtype: Any, most: int, dims: int):
        self.dtype, self.dims = dtype, dims
        self.scratch = memory.empty((most,), dtype)
        self.center: Any = None
        self.at_zero = True  # the centers are
        self.count = 0
        self.sums: Any = 0.0  # of the deviations from the center, and of their squares
        self.squares: Any = 0.0
        self.parts: list[tuple[int, Any, Any, Any]] = []  # count, center, sums, squares about former centers
        self.lost: Any = None  # sums and squares of what is not finite

    def add(self, tile: Any) -> None:
        """Take a tile into account; it is not written."""
        tile = np.asarray(tile)
        if not tile.size:
            return
        n = math.prod(tile.shape[: self.dims])
        if self.center is None:
            self.center = np.zeros(tile.shape[self.dims :], self.dtype)
        s, q = self._about(tile)
        if not _is_near(n, s, q):
            self._keep()
            self.center, self.at_zero = self._moved(n, s, q), False
            s, q = self._about(tile)
            if not np.isfinite(s).all():
                s, q = self._lose(tile, s, q)
        self.count += n
        self.sums = self.sums + s.astype(np.float64)
        self.squares = self.squares + q.astype(np.float64)

    def _about(self, tile: np.ndarray) -> tuple[Any, Any]:
        """The sums of a tile's deviations from the center, and of their squares."""
        squares = self.scratch[: tile.size].reshape(tile.shape)
        apart = tile if self.at_zero else np.subtract(tile, self.center, out=squares)
        axes = tuple(range(self.dims))
        s = sum_of_tile(apart, axes)
        np.square(apart, out=squares)
        return s, sum_of_tile(squares, axes)

    def _keep(self) -> None:
        if self.count:
            self.parts.append((self.count, self.center, self.sums, self.squares))
        self.count, self.sums, self.squares = 0, 0.0, 0.0

    def _moved(self, n: int, s: Any, q: Any) -> Any:
        """Centers near the means, of few digits (as those of `Moments`), where a tile's numbers are finite."""
        s, q = s.astype(np.float64), q.astype(np.float64)
        mean = self.center + s / n
        spread = np.sqrt(np.maximum((q - s * s / n) / n, 0.0))
        _, exponent = np.frexp(spread)
        grid = np.ldexp(0.5, exponent - 1)
        on_grid = np.round(mean / grid) * grid
        usable = (spread > 0) & np.isfinite(spread) & (grid > 0) & (np.abs(mean / grid) < _EXACT)
        moved = np.where(usable, on_grid, mean).astype(self.dtype)
        return np.where(np.isfinite(moved), moved, self.center)

    def _lose(self, tile: np.ndarray, s: Any, q: Any) -> tuple[Any, Any]:
        """Columns of a tile that are not finite, or too large to add: so is the sum, or the squares are."""
        bad = ~np.isfinite(s)
        axes = tuple(range(self.dims))
        sums = np.where(bad, np.add.reduce(tile, axis=axes, dtype=np.float64), 0.0)
        squares = np.where(bad, np.where(np.isfinite(tile).all(axis=axes), np.inf, np.nan), 0.0)
        before = self.lost
        self.lost = (sums, squares) if before is None else (before[0] + sums, before[1] + squares)
        return np.where(bad, 0, s), np.where(bad, 0, q)

    def result(self) -> np.ndarray:
        """In 64 bits, one below the other: sums, means (anything where there is no finite one), squared deviations from them."""
        self._keep()
        shape = np.shape(self.center)
        total, middle, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        if self.parts:
            origin = self.parts[0][1].astype(np.float64)
            n = sum(count for count, *_ in self.parts)
            beyond = sum(s + count * (center - origin) for count, center, s, _ in self.parts)
            total, middle = n * origin + beyond, origin + beyond / n
            for count, center, s, q in self.parts:
                apart = (center - origin) + (s / count - beyond / n)
                squares = squares + np.maximum(q - s * s / count, 0.0) + count * apart * apart
        if self.lost is not None:
            total, squares = total + self.lost[0], squares + self.lost[1]
        return np.stack([total, middle, squares])


def _is_near(n: int, s: Any, q: Any) -> bool:
    """Whether no column's center is so far from its mean that digits are lost; not where numbers are not finite."""
    return bool((NEAR * n * q - s * s >= 0).all())
