"""Transforms of blocks: with and without scipy, in tiles, in place, against numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from mpiarray.ops import fft_kernel
from mpiarray.ops.fft_kernel import FftType, transform

SHAPES = [((3, 40), 1), ((520, 300), 0), ((2, 1100, 130), 1), ((70, 300), 1), ((4, 5, 6000, 3), 2), ((16400, 9), 0)]
WIDE = {FftType.FFT: np.fft.fft, FftType.IFFT: np.fft.ifft, FftType.RFFT: np.fft.rfft, FftType.IRFFT: np.fft.irfft}


@pytest.fixture(params=["scipy", "numpy"])
def library(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(fft_kernel, "scipys", lambda: None)
        monkeypatch.setattr(fft_kernel, "_TILE", 1 << 16)
    else:
        pytest.importorskip("scipy.fft")


def _block(shape, kind, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    if kind != FftType.RFFT:
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype if kind == FftType.RFFT else np.result_type(dtype, np.complex64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", list(FftType))
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_transform(library, shape, axis, kind, dtype):
    x = _block(shape, kind, dtype)
    before = x.copy()
    n = 2 * (shape[axis] - 1) if kind == FftType.IRFFT else shape[axis]
    want = WIDE[kind](x.astype(np.result_type(x.dtype, np.float64)), n=n, axis=axis)
    out = transform(x, kind, n, axis)
    assert out.dtype == fft_kernel.result_dtype(kind, x.dtype) and out.shape == want.shape
    limit = (3e-6 if dtype == np.float32 else 1e-14) * np.abs(want).max()
    np.testing.assert_allclose(out, want, rtol=0, atol=limit)
    np.testing.assert_array_equal(x, before)  # the operand is the caller's
    np.testing.assert_array_equal(transform(x.copy(), kind, n, axis, overwrite=True), out)


def test_overwriting_uses_the_memory(library):
    x = _block((600, 400), FftType.FFT, np.float32)
    for axis in (0, 1):
        out = transform(x, FftType.FFT, x.shape[axis], axis, overwrite=True)
        assert np.shares_memory(out, x)
    x.flags.writeable = False
    assert not np.shares_memory(transform(x, FftType.FFT, 400, 1, overwrite=True), x)
    real = _block((600, 400), FftType.RFFT, np.float32)
    before = real.copy()
    transform(real, FftType.RFFT, 400, 1, overwrite=True)
    np.testing.assert_array_equal(real, before)


def test_strided_blocks(library):
    x = _block((300, 200), FftType.FFT, np.float32)
    for view in (x.T, x[::2], x[:, ::-1]):
        for axis in (0, 1):
            np.testing.assert_allclose(
                transform(view, FftType.FFT, view.shape[axis], axis), np.fft.fft(view, axis=axis), atol=2e-4
            )
