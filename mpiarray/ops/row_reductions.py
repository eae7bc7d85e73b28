"""Sums and extremes of rows: reductions of a block over its last dims, where numpy has something faster than `reduce`.

numpy's `add.reduce` and `maximum.reduce` start anew for each row, which takes as long as some hundred elements.  The product of
a row with ones is a call of BLAS, three times as fast and as exact: it adds up in as many lanes as numpy does, and rows longer
than `_PIECE` are added piece by piece.  The place of a row's extreme is found in half the time that the extreme is.  Bits
depend on the row alone, and not on its place in the block, so that blocks of other sizes give the same numbers.

Apart from the ops because tiles (ops.tile_steps) call these with two factors too: sums of products that nobody else reads.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

_vecdot: Any = getattr(np, "vecdot", None)  # numpy 2
_PIECE = 2048  # elements that one call of BLAS adds up: more of them would lose digits that numpy's pairs of sums keep
_LEAST = 64  # of a piece
_MOST = 2**27  # elements of blocks for which the places of rows are kept
_SHORT = 2048  # elements of a row: in longer ones an extreme itself is found as fast as its place


def row_length(x: np.ndarray, axes: tuple[int, ...]) -> int:
    """How many elements a row has, if `axes` are the last ones and rows lie one after the other in memory; else 0."""
    lead = x.ndim - len(axes)
    if not 0 < lead < x.ndim or min(axes) != lead or not x.flags.c_contiguous or not x.size:
        return 0
    return math.prod(x.shape[lead:])


def sum_of_rows(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray | None:
    """The sum over last dims of a block of 32- or 64-bit floats; None where this module has no better way."""
    n = row_length(x, axes)
    if n < 2 or _vecdot is None or x.dtype.kind != "f" or x.dtype.itemsize not in (4, 8) or not _piece(n):
        return None
    return _sums(x.reshape((*x.shape[: x.ndim - len(axes)], n)))


def sum_of_products(a: np.ndarray, b: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The sum of a * b over last dims, or over all, for blocks of one shape and dtype (32- or 64-bit floats)."""
    if len(axes) == a.ndim and a.flags.c_contiguous and b.flags.c_contiguous:
        return np.dot(a.reshape(-1), b.reshape(-1))
    n = row_length(a, axes)
    if n and n == row_length(b, axes) and _vecdot is not None and (piece := _piece(n)):
        shape = (*a.shape[: a.ndim - len(axes)], *(() if piece == n else (n // piece,)), piece)
        found = _vecdot(a.reshape(shape), b.reshape(shape))
        return found if piece == n else _sums(found)
    product = np.multiply(a, b)
    found = sum_of_rows(product, axes)
    return np.add.reduce(product, axis=axes, dtype=a.dtype) if found is None else found


def prepared(name: str, shape: tuple[int, ...], dtype: Any, axes: tuple[int, ...], factors: int) -> Any:
    """What the others here do with blocks of `shape`, or of some of its rows, as a function in which all that depends on the shape is
    found out: `name` is that of the ufunc, and a sum of products has two factors.  None where there is nothing better."""
    n = shape[-1]
    if axes != (len(shape) - 1,) or len(shape) < 2 or n < 2 or dtype.kind != "f" or dtype.itemsize not in (4, 8):
        return None
    if name in ("maximum", "minimum") and n <= _SHORT and math.prod(shape) <= _MOST:
        return _prepared_extreme(name, shape, n)
    if name != "add" or _vecdot is None or _piece(n) != n:
        return None
    vecdot, ones, reduce = _vecdot, _ones(n, dtype), np.add.reduce

    def rows(x: np.ndarray) -> Any:
        return vecdot(x, ones) if x.flags.c_contiguous else reduce(x, axis=-1)

    def products(a: np.ndarray, b: np.ndarray) -> Any:
        return vecdot(a, b) if a.flags.c_contiguous and b.flags.c_contiguous else sum_of_products(a, b, axes)

    return rows if factors == 1 else products


def _prepared_extreme(name: str, shape: tuple[int, ...], n: int) -> Any:
    starts = np.arange(0, math.prod(shape), n)
    ufunc = getattr(np, name)

    def run(x: np.ndarray) -> np.ndarray:
        if not x.flags.c_contiguous:
            return ufunc.reduce(x, axis=-1)
        places = (x.argmax if name == "maximum" else x.argmin)(-1)
        flat = places.reshape(-1)
        flat += starts[: flat.size]
        return x.reshape(-1).take(places)

    return run


def sum_of_tile(x: np.ndarray, axes: tuple[int, ...]) -> Any:
    """The sum of a tile over all dims, or the first ones, for 32- or 64-bit floats; tiles have so few rows that they may be added
    up one after the other, as numpy does, which BLAS does without starting anew for each."""
    if not x.flags.c_contiguous or not x.size:
        return np.add.reduce(x, axis=axes)
    if len(axes) < x.ndim:
        rows = math.prod(x.shape[: len(axes)])
        return np.dot(_ones(rows, x.dtype), x.reshape(rows, -1)).reshape(x.shape[len(axes) :])
    return sum_of_all(x.reshape(-1))


def sum_of_all(x: np.ndarray) -> Any:
    """The sum of a contiguous array of one dim, of 32- or 64-bit floats."""
    whole = x.size - x.size % _PIECE
    if _vecdot is None or not whole:
        return np.add.reduce(x)
    pieces = np.add.reduce(_sums(x[:whole].reshape(-1, _PIECE)))
    return pieces if whole == x.size else pieces + np.add.reduce(x[whole:])


def extreme_of_rows(ufunc: Any, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray | None:
    """The largest (`ufunc` is np.maximum) or smallest (np.minimum) element over last dims, NaN if there is one; None as above."""
    n = row_length(x, axes)
    if not 1 < n <= _SHORT or x.dtype.kind not in "fiu" or x.dtype.itemsize not in (4, 8):
        return None
    rows = x.reshape(-1, n)
    places = rows.argmax(-1) if ufunc is np.maximum else rows.argmin(-1)
    places += np.arange(0, x.size, n)
    return x.reshape(-1).take(places).reshape(x.shape[: x.ndim - len(axes)])


def _sums(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1]
    piece = _piece(n)
    if not piece:
        return np.add.reduce(x, axis=-1)
    if piece == n:
        return _vecdot(x, _ones(n, x.dtype))
    return _sums(_vecdot(x.reshape((*x.shape[:-1], n // piece, piece)), _ones(piece, x.dtype)))


@lru_cache(maxsize=256)
def _piece(n: int) -> int:
    """Into pieces of how many elements a row is cut; 0 where no such length divides it."""
    if n <= _PIECE:
        return n
    return next((d for d in range(_PIECE, _LEAST - 1, -1) if n % d == 0), 0)


@lru_cache(maxsize=64)
def _ones(n: int, dtype: Any) -> np.ndarray:
    found = np.ones(n, dtype)
    found.flags.writeable = False
    return found
