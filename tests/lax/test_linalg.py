"""`lax.linalg` and `lax.fft`: signatures and orders of results, on numpy's values."""

import numpy as np
import pytest

from mpiarray import lax

X = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
DEFINITE = X @ np.swapaxes(X, 1, 2) + 4 * np.eye(4, dtype=np.float32)


def close(got, wanted):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-3, atol=1e-3)


def test_factors():
    close(lax.linalg.cholesky(DEFINITE), np.linalg.cholesky(DEFINITE))
    v, w = (np.asarray(a) for a in lax.linalg.eigh(DEFINITE))
    close(v * w[:, None, :] @ np.swapaxes(v, 1, 2), DEFINITE)
    u, s, vh = (np.asarray(a) for a in lax.linalg.svd(X))
    close(u * s[:, None, :] @ vh, X)
    close(lax.linalg.svd(X, compute_uv=False), s)
    q, r = (np.asarray(a) for a in lax.linalg.qr(X[:, :, :2]))
    assert q.shape == (2, 4, 4) and r.shape == (2, 4, 2)
    close(q @ r, X[:, :, :2])
    w, v = (np.asarray(a) for a in lax.linalg.eig(X))
    close(X @ v, v * w[:, None, :])
    factors, pivots, permutation = (np.asarray(a) for a in lax.linalg.lu(X))
    low = np.tril(factors, -1) + np.eye(4)
    close(low @ np.triu(factors), np.take_along_axis(X, permutation[..., None].astype(int), 1))
    assert np.array_equal(np.asarray(lax.linalg.lu_pivots_to_permutation(pivots, 4)), permutation)


@pytest.mark.parametrize("left", [True, False])
def test_triangular_systems(left):
    low = np.tril(DEFINITE)
    b = X[:, :, :2] if left else X[:, :2, :]
    x = np.asarray(lax.linalg.triangular_solve(DEFINITE, b, left_side=left, lower=True))
    close(low @ x if left else x @ low, b)
    one = np.asarray(lax.linalg.triangular_solve(DEFINITE[0], X[0, 0], left_side=left, lower=True))
    close(low[0] @ one if left else one @ low[0], X[0, 0])


def test_fourier_transforms():
    z = (X + 1j * X[::-1]).astype(np.complex64)
    close(lax.fft(z, "FFT", 4), np.fft.fft(z))
    close(lax.fft(X, lax.FftType.RFFT, (4, 4)), np.fft.rfftn(X, axes=(1, 2)))
    with pytest.raises(ValueError, match="Unknown FFT type"):
        lax.fft(z, "DFT", 4)
    with pytest.raises(TypeError, match="requires complex64 or complex128"):
        lax.fft(X, "FFT", 4)
