"""Fourier transforms of blocks along one dim, in the precision of their dtype.

Large ones are scipy's where scipy is installed: it transforms several rows at a time with vector instructions, and in
place.  It is looked for at the first large transform, never when the package is imported.  numpy's are the default; its
transforms along a dim whose elements lie apart are cut into tiles that fit in the cache.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from mpiarray.types import dtypes

_LARGE = 1 << 14  # elements from which looking for scipy, and calling it, costs less than it gains
_TILE = 1 << 20  # bytes of a tile: half of a second-level cache
_LINE = 64  # bytes that memory gives at once


class FftType(enum.IntEnum):
    """Which transform: of complex values and back, of real values to the nonnegative frequencies and back."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3

    def __repr__(self) -> str:
        return str(int(self))


def result_size(kind: FftType, n: int) -> int:
    """The size of the last dim of a result, for a transform of length n."""
    return n // 2 + 1 if kind == FftType.RFFT and n else n


def result_dtype(kind: FftType, dtype: Any) -> Any:
    """complex64 of float32, float32 of complex64, and so on."""
    if kind == FftType.RFFT:
        return dtypes.complex_dtype(dtype)
    return dtypes.real_dtype(dtype) if kind == FftType.IRFFT else dtype


@lru_cache(maxsize=1)
def scipys() -> ModuleType | None:
    """`scipy.fft` where scipy is installed."""
    try:
        return importlib.import_module("scipy.fft")
    except ImportError:
        return None


def transform(x: Any, kind: FftType, length: int, axis: int, *, overwrite: bool = False) -> np.ndarray:
    """The transform of a block along one dim; with `overwrite` the block's memory may be used for the result."""
    x = np.asarray(x)
    dtype = result_dtype(kind, x.dtype)
    axis %= x.ndim
    if not length or not x.size:
        return np.zeros((*x.shape[:axis], result_size(kind, length), *x.shape[axis + 1 :]), dtype)
    overwrite = overwrite and kind in (FftType.FFT, FftType.IFFT) and x.flags.writeable
    library = scipys() if x.size >= _LARGE and x.dtype.char in "fdFD" else None
    if library is not None:
        out = getattr(library, kind.name.lower())(x, n=length, axis=axis, overwrite_x=overwrite)
    else:
        out = _numpys(x, kind, length, axis, x if overwrite and x.dtype.char in "FD" else None)
    return out.astype(dtype, copy=False)


def _numpys(x: np.ndarray, kind: FftType, length: int, axis: int, out: np.ndarray | None) -> np.ndarray:
    f: Callable[..., np.ndarray] = getattr(np.fft, kind.name.lower())
    step = _columns(x, axis)
    if not step:
        return f(x, n=length, axis=axis, out=out)
    if out is None:
        out = np.empty((*x.shape[:axis], result_size(kind, length), *x.shape[axis + 1 :]), result_dtype(kind, x.dtype))
    before, size, count = x.shape[:axis], x.shape[axis], out.shape[axis]
    source, target = x.reshape(*before, size, -1), out.reshape(*before, count, -1)
    width = source.shape[-1]
    tile = np.empty((size, step), x.dtype)
    for place in np.ndindex(*before):
        for start in range(0, width, step):
            stop = min(start + step, width)
            part = tile[:, : stop - start]
            np.copyto(part, source[place][:, start:stop])
            target[place][:, start:stop] = f(part, n=length, axis=0)
    return out


def _columns(x: np.ndarray, axis: int) -> int:
    """How many neighbours make a tile; 0 where the block is transformed as it is."""
    width = x.strides[axis] // x.itemsize
    column = x.shape[axis] * x.itemsize
    if not x.flags.c_contiguous or x.dtype.char not in "fdFD" or width * column <= _TILE:
        return 0
    least = _LINE // x.itemsize
    return 0 if width < least else max(least, min(_TILE // column, width))
