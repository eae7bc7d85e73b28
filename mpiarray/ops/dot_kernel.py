"""Products of blocks that always reach BLAS, whatever the dims, strides and dtypes.

Dims are brought to matrices by views where the memory allows it; what numpy's `matmul` would compute in a slow loop
(integers, strides that BLAS does not take) is brought to a form that it multiplies by BLAS: integers through float64
where that is exact, wrapping at their width; 8- and 16-bit floats in float32, rounded once, panel by panel, so that no
whole operand is widened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mpiarray.types import dtypes

DimensionNumbers = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]

_EXACT = 2**53  # integers below it are exact in float64
_FLOAT64 = np.dtype(np.float64)
_PANELS = 64 << 20  # bytes of widened parts of operands and results that exist at a time
_INNER = 4096  # elements of a sum that are widened at a time


class Dims(NamedTuple):
    """How the dims of both sides become (batch, free, contracting) and (batch, contracting, free)."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    batch: int
    left_free: int
    contracting: int
    plain: bool  # two matrices as they stand


@lru_cache(maxsize=4096)
def _dims(numbers: DimensionNumbers, left_ndim: int, right_ndim: int, by_right: bool) -> Dims:
    (lc, rc), (lb, rb) = numbers
    pairs = sorted(zip(lc, rc), key=lambda p: p[1] if by_right else p[0])
    lc, rc = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    left_free = free_dims(left_ndim, lc, lb)
    right_free = free_dims(right_ndim, rc, rb)
    left, right = (*lb, *left_free, *lc), (*rb, *rc, *right_free)
    plain = left == right == (0, 1) and len(lc) == 1 and not lb
    return Dims(left, right, len(lb), len(left_free), len(lc), plain)


def free_dims(ndim: int, contracting: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    return tuple(d for d in range(ndim) if d not in contracting and d not in batch)


def product(x: Any, y: Any, numbers: DimensionNumbers, dtype: Any, out: np.ndarray | None = None) -> np.ndarray:
    """The generalized product of two blocks, of the dtype: batch dims, free dims of the left, free dims of the
    right.

    With `out`, a C-contiguous array of the result's shape and dtype that overlaps no operand, the result is written there.
    """
    x, y = np.asarray(x), np.asarray(y)
    dims = _dims(numbers, x.ndim, y.ndim, y.size > x.size)
    if dims.plain and x.dtype == y.dtype == dtype and dtype.kind in "fc" and dtype.itemsize > 2:
        return np.matmul(blas_ready(x), blas_ready(y), out=out)
    x, y = x.transpose(dims.left), y.transpose(dims.right)
    b, f, c = dims.batch, dims.left_free, dims.contracting
    batch, left, inner, right = x.shape[:b], x.shape[b : b + f], x.shape[b + f :], y.shape[b + c :]
    k = math.prod(inner)
    x = x.reshape((*batch, math.prod(left), k))
    y = y.reshape((*batch, k, math.prod(right)))
    room = None if out is None else out.reshape((*batch, x.shape[-2], y.shape[-1]))
    found = matrices(x, y, dtype, room)
    return found.reshape((*batch, *left, *right)) if out is None else out


def matrix_product(numbers: DimensionNumbers, dtype: Any, general: Callable[..., Any]) -> Callable[..., Any] | None:
    """`f(x, y, out=None)` for products over one dim without batch dims; None for others.

    What two float matrices of one dtype need is decided here, once; all other operands go to `general`.
    """
    (lc, rc), (lb, rb) = numbers
    if lb or rb or len(lc) != 1 or lc[0] > 1 or rc[0] > 1:
        return None
    turn_left, turn_right = lc[0] == 0, rc[0] == 1
    matmul, ndarray = np.matmul, np.ndarray

    def multiply(x: Any, y: Any, out: np.ndarray | None = None) -> np.ndarray:
        if not (type(x) is type(y) is ndarray and x.ndim == y.ndim == 2):
            return general(x, y, out=out)
        kind = x.dtype
        if kind is not y.dtype or kind.kind not in "fc" or kind.itemsize == 2 or (dtype is not None and dtype != kind):
            return general(x, y, out=out)
        x, y = (x if x.flags.c_contiguous else blas_ready(x)), (y if y.flags.c_contiguous else blas_ready(y))
        return matmul(x.T if turn_left else x, y.T if turn_right else y, out=out)

    multiply.into = multiply  # type: ignore[attr-defined]
    return multiply


def matrices(x: np.ndarray, y: np.ndarray, dtype: Any, out: np.ndarray | None = None) -> np.ndarray:
    """`x @ y` for stacks of matrices of one batch shape, of the dtype (into `out` where it is given)."""
    if dtypes.is_complex(dtype) or (dtypes.is_float(dtype) and dtype.itemsize > 2):
        return np.matmul(blas_ready(dtypes.cast(x, dtype)), blas_ready(dtypes.cast(y, dtype)), out=out)
    if dtypes.is_float(dtype):
        wide = np.dtype(np.float32) if not any(a.dtype.itemsize == 8 for a in (x, y)) else _FLOAT64
        out = np.empty((*x.shape[:-1], y.shape[-1]), dtype) if out is None else out
        _by_panels(x, y, wide, out)
        return out
    if not all(dtypes.is_int(a.dtype) or dtypes.is_bool(a.dtype) for a in (x, y)):
        found = dtypes.cast(matrices(x, y, np.promote_types(x.dtype, y.dtype)), dtype)
    elif dtypes.is_bool(dtype):
        found = np.matmul(blas_ready(x != 0, np.float32), blas_ready(y != 0, np.float32)) > 0
    else:
        found = _integers(x, y, dtype)
    if out is None:
        return found
    np.copyto(out, found)
    return out


def _by_panels(x: np.ndarray, y: np.ndarray, wide: np.dtype, out: np.ndarray) -> None:
    """Write `x @ y`, summed in the wide dtype, to an array of a narrow one; large operands are widened in parts."""
    item = wide.itemsize
    if (x.size + y.size + out.size) * item <= _PANELS:
        out[...] = dtypes.cast(matrices(x, y, wide), out.dtype)
        return
    if x.ndim > 2:
        one = (x[:1].size + y[:1].size + out[:1].size) * item
        step = max(1, _PANELS // max(one, 1))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            _by_panels(x[part][0] if step == 1 else x[part], y[part][0] if step == 1 else y[part], wide,
                       out[part][0] if step == 1 else out[part])  # fmt: skip
        return
    (rows, k), columns = x.shape, y.shape[1]
    inner = min(k, _INNER)
    width = min(columns, max(256, _PANELS // 2 // (inner * item)))
    height = min(rows, max(256, _PANELS // 2 // ((inner + width) * item)))
    for left in range(0, columns, width):
        right = slice(left, left + width)
        whole = dtypes.cast(y[:, right], wide) if k <= inner else None
        for top in range(0, rows, height):
            down = slice(top, top + height)
            if whole is not None:
                total = matrices(x[down], whole, wide)
            else:
                total = np.zeros((len(x[down]), y[:, right].shape[1]), wide)
                for start in range(0, k, inner):
                    along = slice(start, start + inner)
                    total += matrices(x[down, along], y[along, right], wide)
            out[down, right] = dtypes.cast(total, out.dtype)


def _integers(x: np.ndarray, y: np.ndarray, dtype: Any) -> np.ndarray:
    """Exact modulo the width of the dtype."""
    k = x.shape[-1]
    if not x.size or not y.size:
        return np.zeros((*x.shape[:-1], y.shape[-1]), dtype)
    x, y = _at_least_8_bits(x), _at_least_8_bits(y)
    if _magnitude(x) * _magnitude(y) * k < _EXACT:
        return _wrap(_by_float64(x, y), dtype)
    if dtype.itemsize <= 4 and k < 2**20:
        # the low 32 bits decide; of halves of 16 bits all sums of products are exact
        (low_x, high_x), (low_y, high_y) = _halves(x), _halves(y)
        cross = _by_float64(high_x, low_y) + _by_float64(low_x, high_y)
        return _wrap(_by_float64(low_x, low_y) + (cross << np.int64(16)), dtype)
    wide = dtype if dtype.itemsize == 8 else np.dtype(np.int64)
    return _wrap(np.matmul(x.astype(wide), y.astype(wide)), dtype)


def _at_least_8_bits(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind in "biu" else x.astype(np.int16)


def _magnitude(x: np.ndarray) -> int:
    if x.dtype.kind == "b":
        return 1
    if x.dtype.itemsize <= 2:
        return 1 << (8 * x.dtype.itemsize)
    return max(abs(int(x.min())), abs(int(x.max())))


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits = x.astype(np.int64) & 0xFFFFFFFF
    return bits & 0xFFFF, bits >> 16


def _by_float64(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.matmul(blas_ready(x, _FLOAT64), blas_ready(y, _FLOAT64)).astype(np.int64)


def _wrap(x: np.ndarray, dtype: Any) -> np.ndarray:
    return dtypes.cast(x, dtype)


def blas_ready(x: np.ndarray, dtype: Any = None) -> np.ndarray:
    """`x` with its last two dims laid out as BLAS takes them: rows or columns contiguous; a copy only if they are
    not.
    """
    if dtype is not None and x.dtype != dtype:
        return x.astype(dtype, order="C")
    if x.flags.c_contiguous:
        return x
    rows, columns = x.shape[-2:]
    across, along = x.strides[-2:]
    item = x.itemsize
    if (along == item or columns <= 1) and _strides_over(across, item, columns, rows):
        return x
    if (across == item or rows <= 1) and _strides_over(along, item, rows, columns):
        return x
    return np.ascontiguousarray(x)


def _strides_over(stride: int, item: int, length: int, count: int) -> bool:
    return count <= 1 or (stride % item == 0 and stride >= item * max(length, 1))
