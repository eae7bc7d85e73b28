"""Bits in bytes: packbits, unpackbits."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.numpy.comparison import bitwise_and, left_shift, right_shift, truth
from mpiarray.numpy.index_reads import read
from mpiarray.numpy.manipulation import canonical_axis, moveaxis, one, ravel, reshape
from mpiarray.numpy.padding import pad
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.reductions import sum
from mpiarray.types import dtypes

__all__ = ["packbits", "unpackbits"]

_U8 = np.dtype(np.uint8)


def _shifts(bitorder: str) -> np.ndarray:
    if bitorder not in ("little", "big"):
        raise ValueError(f"'order' must be either 'little' or 'big', got {bitorder!r}")
    bits = np.arange(8, dtype=np.uint8)
    return bits if bitorder == "little" else bits[::-1].copy()


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements along `axis` (None: of the flattened array), zero or not, as the bits of one byte.

    Zeros fill the last byte up.  `bitorder` "big": the first element is the highest bit.
    """
    x = one("packbits", a)
    dtype = aval_of(x).dtype
    if not (dtypes.is_int(dtype) or dtypes.is_bool(dtype)):
        raise TypeError(
            f"Expected an input array of integer or boolean data type, got {aval_of(x).str_short()} in packbits"
        )
    shifts = _shifts(bitorder)
    if axis is None:
        x, axis = ravel(x), 0
    dim = canonical_axis(axis, aval_of(x).ndim, "packbits")
    x = moveaxis(cast(truth(x), _U8), dim, -1)
    *outer, n = aval_of(x).shape
    if n % 8:
        x = pad(x, [(0, 0)] * len(outer) + [(0, -n % 8)])
    x = reshape(x, (*outer, -(-n // 8), 8))
    return moveaxis(sum(left_shift(x, shifts), -1, _U8), -1, dim)


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """The bits of bytes along `axis` (None: of the flattened array), as 0 and 1 in uint8.

    count: how many to return, zeros filling up; a negative one leaves as many out at the end.
    """
    x = one("unpackbits", a)
    if aval_of(x).dtype != _U8:
        raise TypeError(
            f"Expected an input array of unsigned byte data type, got {aval_of(x).str_short()} in unpackbits"
        )
    shifts = _shifts(bitorder)
    if axis is None:
        x, axis = ravel(x), 0
    dim = canonical_axis(axis, aval_of(x).ndim, "unpackbits")
    x = moveaxis(x, dim, -1)
    *outer, n = aval_of(x).shape
    bits = bitwise_and(right_shift(reshape(x, (*outer, n, 1)), shifts), literal(1, _U8))
    bits = reshape(bits, (*outer, 8 * n))
    if count is not None and count <= 8 * n:
        bits = read(bits, (Ellipsis, slice(0, count)))
    elif count is not None:
        bits = pad(bits, [(0, 0)] * len(outer) + [(0, count - 8 * n)])
    return moveaxis(bits, -1, dim)
