"""`jnp.fft`: discrete Fourier transforms, in the precision of their operand (complex64 of float32).

Along a sharded dim data move: see `ops/fft.py`.  The result keeps the operand's sharding where the new sizes allow.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.numpy import manipulation
from mpiarray.numpy.arithmetic import divide, multiply
from mpiarray.numpy.complex_numbers import conjugate
from mpiarray.numpy.creation import array
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast, operands
from mpiarray.ops.fft import FftType
from mpiarray.ops.fft import fft as fft_op
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn",
    "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip


def _axes(name: str, ndim: int, s: Sequence[int] | None, axes: Sequence[int] | None) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(ndim)) if s is None else tuple(range(ndim - len(s), ndim))
    out = tuple(manipulation.canonical_axis(a, ndim, f"jnp.fft.{name}") for a in axes)
    if len(out) != len(set(out)):
        raise ValueError(f"jnp.fft.{name} does not support repeated axes. Got axes {list(axes)}.")
    if s is not None and len(s) != len(out):
        raise ValueError(
            f"jnp.fft.{name}: shape and axes must have the same number of elements, got s={s} and axes={axes}"
        )
    return out


def _transformed(name: str, kind: FftType, a: Any, s: Any, axes: Any, norm: str | None) -> Any:
    """A transform over several axes, of the lengths `s`."""
    (x,) = (as_array(v) for v in operands(f"jnp.fft.{name}", a))
    ndim = x.aval.ndim
    axes = _axes(name, ndim, s, axes)
    if not axes:
        return x
    lengths = _lengths(name, kind, [x.aval.shape[d] for d in axes], s)
    dtype = dtypes.to_inexact(x.aval.dtype)
    if kind == FftType.RFFT and dtypes.is_complex(dtype):
        raise ValueError(f"only real valued inputs supported for jnp.fft.{name}, got {x.aval.str_short()}")
    wide = dtypes.complex_dtype(dtype)
    x = cast(x, dtypes.real_dtype(wide) if kind == FftType.RFFT else wide)
    last = tuple(range(ndim - len(axes), ndim))
    x = _fitted(manipulation.moveaxis(x, axes, last), lengths, kind)
    out = fft_op(x, fft_type=kind, fft_lengths=tuple(lengths))
    return manipulation.moveaxis(_scaled(name, out, kind, math.prod(lengths), norm), last, axes)


def _lengths(name: str, kind: FftType, sizes: list[int], s: Any) -> list[int]:
    if s is not None:
        lengths = [n if m is None else operator.index(m) for m, n in zip(s, sizes)]
    else:
        lengths = list(sizes)
        if kind == FftType.IRFFT:
            lengths[-1] = 2 * (sizes[-1] - 1)
    if any(n < 1 for n in lengths):
        raise ValueError(f"jnp.fft.{name}: lengths of transforms must be at least 1, got {lengths}")
    return lengths


def _fitted(x: Any, lengths: Sequence[int], kind: FftType) -> Any:
    """Dims cut or filled with zeros to the lengths."""
    aval = aval_of(x)
    wanted = list(lengths)
    if kind == FftType.IRFFT:
        wanted[-1] = lengths[-1] // 2 + 1
    first = aval.ndim - len(lengths)
    shape = (*aval.shape[:first], *wanted)
    if any(n > m for n, m in zip(aval.shape, shape)):
        limits = tuple(min(n, m) for n, m in zip(aval.shape, shape))
        x = slice_(x, start_indices=(0,) * aval.ndim, limit_indices=limits, strides=None)
    have = aval_of(x).shape
    if have != shape:
        x = pad(x, literal(0, aval.dtype), padding_config=tuple((0, m - n, 0) for n, m in zip(have, shape)))
    return x


def _scaled(name: str, x: Any, kind: FftType, size: int, norm: str | None) -> Any:
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"jnp.fft.{name}: norm must be one of 'backward', 'ortho', 'forward' or None, got {norm!r}")
    back = kind in (FftType.IFFT, FftType.IRFFT)
    factor = {"ortho": math.sqrt(size) if back else 1 / math.sqrt(size), "forward": size if back else 1 / size}.get(
        norm or "", 1
    )
    return x if factor == 1 else multiply(x, factor)


def _one(name: str, kind: FftType, a: Any, n: int | None, axis: int, norm: str | None) -> Any:
    if not isinstance(axis, (int, np.integer)):
        raise ValueError(
            f"jnp.fft.{name} does not support multiple axes. Please use jnp.fft.{name}n. Got axis = {axis!r}."
        )
    return _transformed(name, kind, a, None if n is None else (n,), (axis,), norm)


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The Fourier transform along an axis, of length `n` (the operand is cut or filled with zeros)."""
    return _one("fft", FftType.FFT, a, n, axis, norm)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `fft`."""
    return _one("ifft", FftType.IFFT, a, n, axis, norm)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The Fourier transform of real values: the frequencies from 0 to n // 2."""
    return _one("rfft", FftType.RFFT, a, n, axis, norm)


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `rfft`, of length `n` (default: the even one)."""
    return _one("irfft", FftType.IRFFT, a, n, axis, norm)


_OTHER_WAY = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The transform, real, of values that are Hermitian, of which the first half is given."""
    (x,) = operands("jnp.fft.hfft", a)
    return _one("hfft", FftType.IRFFT, conjugate(x), n, axis, _OTHER_WAY[norm])


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `hfft`."""
    return conjugate(_one("ihfft", FftType.RFFT, a, n, axis, _OTHER_WAY[norm]))


def fftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The Fourier transform over axes (None: all) with lengths `s`."""
    return _transformed("fftn", FftType.FFT, a, s, axes, norm)


def ifftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `fftn`."""
    return _transformed("ifftn", FftType.IFFT, a, s, axes, norm)


def rfftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The Fourier transform of real values over axes; the last one has the frequencies from 0 to n // 2."""
    return _transformed("rfftn", FftType.RFFT, a, s, axes, norm)


def irfftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `rfftn`."""
    return _transformed("irfftn", FftType.IRFFT, a, s, axes, norm)


def _plane(name: str, kind: FftType, a: Any, s: Any, axes: Any, norm: str | None) -> Any:
    if len(axes) != 2:
        raise ValueError(f"jnp.fft.{name} only supports 2 axes. Got axes = {axes!r}.")
    return _transformed(name, kind, a, s, axes, norm)


def fft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`fftn` over two axes."""
    return _plane("fft2", FftType.FFT, a, s, axes, norm)


def ifft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`ifftn` over two axes."""
    return _plane("ifft2", FftType.IFFT, a, s, axes, norm)


def rfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`rfftn` over two axes."""
    return _plane("rfft2", FftType.RFFT, a, s, axes, norm)


def irfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`irfftn` over two axes."""
    return _plane("irfft2", FftType.IRFFT, a, s, axes, norm)


# -- frequencies ---------------------------------------------------------------------------------------------


def _frequencies(name: str, numbers: np.ndarray, n: int, d: Any, dtype: Any) -> Any:
    own = dtypes.requested(float if dtype is None else dtype, f"jnp.fft.{name}")
    values = array(numbers.astype(np.float32 if own.itemsize < 8 else np.float64))
    return divide(cast(values, own), cast(multiply(n, d), own))


def _count(name: str, n: Any) -> int:
    if isinstance(n, (list, tuple)) or np.ndim(n):
        raise ValueError(f"The n argument of jnp.fft.{name} only takes an int. Got n = {n!r}.")
    return operator.index(n)


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of `fft` of length n for samples at distance d."""
    n = _count("fftfreq", n)
    half = (n - 1) // 2 + 1
    out = _frequencies("fftfreq", np.concatenate([np.arange(half), np.arange(-(n // 2), 0)]), n, d, dtype)
    return out if device is None else array(out, device=device)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of `rfft` of length n for samples at distance d."""
    n = _count("rfftfreq", n)
    out = _frequencies("rfftfreq", np.arange(n // 2 + 1), n, d, dtype)
    return out if device is None else array(out, device=device)


def _shift(name: str, x: Any, axes: Any, sign: int) -> Any:
    (a,) = (as_array(v) for v in operands(f"jnp.fft.{name}", x))
    ndim = a.aval.ndim
    dims = (
        tuple(range(ndim))
        if axes is None
        else manipulation.canonical_axes(axes if isinstance(axes, (tuple, list)) else (axes,), ndim, name)
    )
    sizes = [a.aval.shape[d] for d in dims]
    return manipulation.roll(a, tuple(n // 2 if sign > 0 else -(n // 2) for n in sizes), dims)


def fftshift(x: Any, axes: Any = None) -> Any:
    """Move the zero frequency to the middle along axes (None: all); they must be unsharded (ShardingTypeError)."""
    return _shift("fftshift", x, axes, 1)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of `fftshift`."""
    return _shift("ifftshift", x, axes, -1)
