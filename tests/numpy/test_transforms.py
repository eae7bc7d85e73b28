"""jnp.fft, polynomials and windows against numpy."""

import itertools

import numpy as np
import pytest

from mpiarray.numpy import fft, polynomials, windows
from mpiarray.runtime import eager  # noqa: F401  (ops run at once)
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, run

EXPLICIT = mesh_of(("x", 4), ("y", 2))
REAL = np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32)
COMPLEX = (REAL + 1j * REAL[::-1]).astype(np.complex64)


def f32(*x):
    return np.array(x, np.float32)


def close(got, wanted, tol=1e-4):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_along_one_axis(name):
    x = REAL if name in ("rfft", "ihfft") else COMPLEX
    for n, axis, norm in itertools.product((None, 1, 3, 8), (0, 1, -1), (None, "ortho", "forward", "backward")):
        got = getattr(fft, name)(x, n, axis, norm)
        close(got, getattr(np.fft, name)(x, n, axis, norm))
        assert got.dtype == (np.float32 if name in ("irfft", "hfft") else np.complex64)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_over_axes(name):
    x = REAL if name == "rfftn" else COMPLEX
    cases = [
        (None, None, None),
        (None, (0, 1), "ortho"),
        ((3, 8), (2, 0), None),
        ((4, 4), (1, 2), "forward"),
        (None, (1,), None),
    ]
    for s, axes, norm in cases:
        close(getattr(fft, name)(x, s, axes, norm), getattr(np.fft, name)(x, s, axes, norm))
    plane = name[:-1] + "2"
    close(getattr(fft, plane)(x), getattr(np.fft, plane)(x))


def test_frequencies_and_shifts():
    for n in (1, 4, 5):
        close(fft.fftfreq(n, 0.5), np.fft.fftfreq(n, 0.5))
        close(fft.rfftfreq(n, 0.5), np.fft.rfftfreq(n, 0.5))
    for axes in (None, 1, (0, 2)):
        close(fft.fftshift(REAL, axes), np.fft.fftshift(REAL, axes))
        close(fft.ifftshift(REAL, axes), np.fft.ifftshift(REAL, axes))
    close(fft.fft(np.arange(4)), np.fft.fft(np.arange(4)))


def test_a_transform_keeps_its_sharding():
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    (got, back), avals, _, _ = run(lambda a: [fft.fft(a), fft.ifft(fft.fft(a))], [x], [P("x", "y")], EXPLICIT)
    close(got, np.fft.fft(x), 1e-3)
    close(back, x, 1e-3)
    assert [a.short() for a in avals] == ["c64[8@x,8@y]"] * 2
    (_,), (aval,), _, _ = run(lambda a: [fft.rfft(a)], [x], [P("x", "y")], EXPLICIT)
    assert aval.short() == "c64[8@x,5]"  # 5 is not divisible


def test_errors_of_transforms():
    with pytest.raises(ValueError, match=r"only real valued inputs supported for jnp\.fft\.rfft"):
        fft.rfft(COMPLEX)
    with pytest.raises(ValueError, match="does not support multiple axes"):
        fft.fft(REAL, axis=(0, 1))
    with pytest.raises(ValueError, match="does not support repeated axes"):
        fft.fftn(REAL, axes=(0, 0))
    with pytest.raises(ValueError, match="only supports 2 axes"):
        fft.fft2(REAL, axes=(0,))
    with pytest.raises(ValueError, match="norm must be one of"):
        fft.fft(REAL, norm="x")


# -- polynomials -------------------------------------------------------------------------------------------------


def test_arithmetic_of_polynomials():
    a, b = f32(1, 2, 3, 4), f32(2, -1)
    for name in ("polyadd", "polysub", "polymul"):
        close(getattr(polynomials, name)(a, b), getattr(np, name)(a, b))
        close(getattr(polynomials, name)(b, a), getattr(np, name)(b, a))
    for trim in (False, True):
        quotient, rest = polynomials.polydiv(a, b, trim_leading_zeros=trim)
        close(quotient, np.polydiv(a, b)[0])
        close(np.trim_zeros(np.asarray(rest), "f"), np.polydiv(a, b)[1])
    close(polynomials.polymul(f32(0, 1, 2), f32(0, 1), trim_leading_zeros=True), f32(1, 2))
    for m in (1, 2, 5):
        close(polynomials.polyder(a, m), np.polyder(a, m))
        close(polynomials.polyint(a, m), np.polyint(a, m))
    close(polynomials.polyint(a, 2, f32(5, 6)), np.polyint(a, 2, [5, 6]))
    close(polynomials.polyval(a, f32(1, 2, 0.5)), np.polyval(a, f32(1, 2, 0.5)))
    close(polynomials.polyval(a, 2.0), np.polyval(a, 2.0))


def test_zeros_of_polynomials():
    close(polynomials.poly(f32(1, 2, 3)), np.poly(f32(1, 2, 3)))
    matrix = np.array([[1, 2], [3, 4]], np.float32)
    close(polynomials.poly(matrix), np.poly(matrix))
    for p in (f32(0, 1, -3, 2, 0), f32(1, 2, 3, 4), f32(1, 2), f32(2)):
        close(np.sort_complex(np.asarray(polynomials.roots(p))), np.sort_complex(np.roots(p).astype(np.complex64)))
    close(np.sort_complex(np.asarray(polynomials.roots(f32(1, -3, 2), strip_zeros=False))), [1, 2])


def test_fits():
    x = np.arange(6, dtype=np.float32)
    y = x**2 + np.sin(x)
    close(polynomials.polyfit(x, y, 2), np.polyfit(x, y, 2), 1e-3)
    close(polynomials.polyfit(x, np.stack([y, x], 1), 2), np.polyfit(x, np.stack([y, x], 1), 2), 1e-3)
    for got, wanted in zip(polynomials.polyfit(x, y, 2, full=True), np.polyfit(x, y, 2, full=True)):
        close(got, wanted, 1e-3)
    for cov in (True, "unscaled"):
        for got, wanted in zip(polynomials.polyfit(x, y, 2, cov=cov, w=1 + x), np.polyfit(x, y, 2, cov=cov, w=1 + x)):
            close(got, wanted, 1e-2)
    with pytest.raises(TypeError, match="same length"):
        polynomials.polyfit(x, y[1:], 1)


@pytest.mark.parametrize("name", ["hamming", "hanning", "blackman", "bartlett"])
def test_windows(name):
    for m in (0, 1, 2, 5, 8):
        close(getattr(windows, name)(m), getattr(np, name)(m))
        assert getattr(windows, name)(m).dtype == np.float32
    for m in (0, 1, 5, 8):
        close(windows.kaiser(m, 3.0), np.kaiser(m, 3.0))
