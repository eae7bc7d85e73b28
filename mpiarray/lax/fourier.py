"""lax's Fourier transform."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from mpiarray.lax.elementwise import operands
from mpiarray.numpy.host import as_array
from mpiarray.ops.fft import FftType
from mpiarray.ops.fft import fft as fft_op

__all__ = ["FftType", "fft"]


def fft(x: Any, fft_type: FftType | str | int, fft_lengths: int | Sequence[int]) -> Any:
    """A transform of the last dims: `fft_type` is "FFT", "IFFT", "RFFT" or "IRFFT", `fft_lengths` their sizes.

    Raises TypeError or ValueError for dtypes and sizes that do not fit.
    """
    lengths = (fft_lengths,) if isinstance(fft_lengths, int) else fft_lengths
    try:
        kind = FftType[fft_type] if isinstance(fft_type, str) else FftType(fft_type)
    except (KeyError, ValueError):
        raise ValueError(f"Unknown FFT type '{fft_type}': use one of {', '.join(FftType.__members__)}") from None
    (x,) = operands("fft", x)
    return fft_op(as_array(x), fft_type=kind, fft_lengths=tuple(operator.index(n) for n in lengths))
