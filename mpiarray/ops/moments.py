"""`moments`: sum, mean and squared deviations of a block in one pass, and what variances are made of them.

The variance of an array wants the squares of its deviations from a mean that all ranks must know first, so that each
rank would read its block twice.  But for any number c

    sum |x - c|^2  =  sum |x - m|^2  +  n |m - c|^2,        m the block's own mean,

where both terms are at least zero: nothing cancels, and only the second one needs c.  `squares_about` is that sum.

The deviations of a tile are taken from a center near its mean, in cache, and corrected (with S and Q the sums of the
deviations and of their squares, sum |x - m|^2 = Q - |S|^2 / n) where the center is so near that no digit is lost; if
it is not, the center is moved.  Tiles join like the samples of Chan, Golub and LeVeque, Updating Formulae and a Pairwise
Algorithm for Computing Sample Variances (1979), in 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.core.op import Out, Undefined, define
from mpiarray.core.plan import Plan, replicated
from mpiarray.ops.column_moments import ColumnMoments
from mpiarray.ops.row_reductions import sum_of_all
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_NEVER = Undefined("moments are found after differentiation and batching, of blocks")
_NEAR = 0.25  # of the squares about the center, what may come from the center's distance to the mean


def wide(dtype: Any) -> Any:
    """In what moments are kept."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


class Moments:
    """Tiles of one dtype are added, at most `most` elements each; `result()` gives their sum, mean and squared deviations."""

    def __init__(self, dtype: Any, most: int):
        self.dtype = dtype
        self.real: Any = dtypes.real_dtype(dtype)
        self.scratch = memory.empty((most,), dtype)
        self.center: Any = None  # a number of the dtype
        self.parts: list[tuple[int, Any, Any, float]] = []  # for each tile: count, center, S, Q
        self.lost: list[tuple[Any, float]] = []  # for tiles whose deviations are not finite: sum, squares

    def add(self, tile: Any) -> None:
        """Take a tile into account; it is not written."""
        tile = np.asarray(tile)
        n = tile.size
        if not n:
            return
        if self.center is None:
            first = tile[(0,) * tile.ndim]
            self.center = first if np.isfinite(first) else self.dtype.type(0)
        s, q = self._about(tile)
        if abs(s) * abs(s) > _NEAR * n * q and math.isfinite(abs(s)):
            self.center = self._moved(n, s, q)
            s, q = self._about(tile)
        if math.isfinite(abs(s)):
            self.parts.append((n, self.center, s, q))
        else:
            # not finite or too large to add: so is the sum, or the squares are
            self.lost.append((np.add.reduce(tile, axis=None), math.inf if np.isfinite(tile).all() else math.nan))

    def _about(self, tile: np.ndarray) -> tuple[Any, float]:
        """The sums of a tile's deviations from the center, and of their squares."""
        flat = self.scratch[: tile.size]
        np.subtract(tile, self.center, out=flat if tile.ndim == 1 else flat.reshape(tile.shape))
        parts = flat.view(self.real)
        total = np.add.reduce(flat) if self.dtype.kind == "c" else sum_of_all(flat)
        return total.item(), np.dot(parts, parts).item()

    def _moved(self, n: int, s: Any, q: float) -> Any:
        """A center near the mean: of few digits, so that deviations of numbers with few digits are exact."""
        mean = self.center.item() + s / n
        spread = math.sqrt(max(0.0, (q - abs(s) * abs(s) / n) / n))
        if 0.0 < spread < math.inf:
            _, exponent = math.frexp(spread)
            grid = math.ldexp(0.5, exponent - 1)
            if grid > 0:
                parts = [round(p / grid) * grid if abs(p / grid) < 2**52 else p for p in (mean.real, mean.imag)]
                mean = complex(*parts) if self.dtype.kind == "c" else parts[0]
        moved = self.dtype.type(mean)
        return moved if np.isfinite(moved) else self.center

    def result(self) -> np.ndarray:
        """Three numbers in 64 bits: the sum of all elements, their mean (anything if there is
        no finite one), the sum of squared distances from the mean."""
        dtype = wide(self.dtype)
        total, middle, squares = dtype.type(0), dtype.type(0), 0.0
        if self.parts:
            counts, centers, s, q = (np.asarray(column) for column in zip(*self.parts))
            centers = centers.astype(dtype)
            n = int(counts.sum())
            beyond = s + counts * (centers - centers[0])
            total = n * centers[0] + beyond.sum()
            middle = centers[0] + beyond.sum() / n
            within = np.maximum(q - np.abs(s) ** 2 / counts, 0.0)
            apart = (centers - centers[0]) + (s / counts - beyond.sum() / n)
            squares = within.sum() + (counts * np.abs(apart) ** 2).sum()
        for lost, their in self.lost:
            total, squares = total + lost, squares + their
        return np.asarray([total, middle, squares], dtype)


def collector(dtype: Any, most: int, ndim: int, axes: tuple[int, ...]) -> Moments | ColumnMoments:
    """What takes tiles of blocks of so many dims, at most `most` elements each, that are reduced over all dims or the first ones."""
    return Moments(dtype, most) if len(axes) == ndim else ColumnMoments(dtype, most, len(axes))


def _moments(x: Any, *, axes: tuple[int, ...]) -> np.ndarray:
    x = np.asarray(x)
    if not x.size:
        return np.zeros((3, *x.shape[len(axes) :]), wide(x.dtype))
    found = collector(x.dtype, x.size, x.ndim, axes)
    found.add(x)
    return found.result()


def _squares_about(found: Any, c: Any, *, count: int, dtype: Any) -> np.ndarray:
    _, middle, squares = found
    if not count:
        return np.zeros(np.shape(squares), dtype)
    far = np.abs(middle - np.asarray(c).reshape(np.shape(middle)).astype(found.dtype))
    return np.asarray(squares.real + count * far * far).astype(dtype)


def _define(name: str, type_rule: Callable[..., Out], impl: Callable[..., Any], hlo_name: str) -> Any:
    return define(
        name,
        type_rule=type_rule,
        plan=lambda avals, **params: Plan(
            tuple(replicated(a.ndim) for a in avals), (replicated(len(type_rule(*avals, **params).shape)),)
        ),
        impl=impl,
        jvp=_NEVER,
        transpose=_NEVER,
        batch=_NEVER,
        hlo_name=hlo_name,
    )


def _moments_type(x: ShapedArray, *, axes: tuple[int, ...]) -> Out:
    return Out((3, *x.shape[len(axes) :]), wide(x.dtype))


#: sum, mean and squared deviations of a block of floats or complex numbers over all its dims, or of real ones over the first
moments = _define("moments", _moments_type, _moments, "moments")

#: the sum of them, of the block's dtype
moments_sum = _define(
    "moments_sum",
    lambda found, *, dtype: Out(found.shape[1:], dtype),
    lambda found, *, dtype: np.asarray(found[0]).astype(dtype),
    "moments-sum",
)

#: the sum of the squared distances of `count` elements from a number, column by column (of any shape with so many elements)
squares_about = _define(
    "squares_about", lambda found, c, *, count, dtype: Out(found.shape[1:], dtype), _squares_about, "squares-about"
)
