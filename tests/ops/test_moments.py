"""Sum, mean and squared deviations in tiles, and squares about any number, against sums in 64 bits or more."""

from __future__ import annotations

import numpy as np
import pytest

from mpiarray.ops.moments import Moments, moments, squares_about

RNG = np.random.default_rng(0)
N = 5000
DATA = {
    "ordinary": RNG.standard_normal(N),
    "far from zero": RNG.standard_normal(N) + 1e4,
    "a slope": np.arange(N) - 100.0,
    "steps": np.repeat([0.0, 1e5, -3.0, 1.0], N // 4) + RNG.standard_normal(N),
    "begins with an outlier": np.r_[1e6, RNG.standard_normal(N - 1)],
    "tiny": RNG.standard_normal(N) * 1e-15,
    "one element": np.array([3.25]),
}


def found(x, tile=700):
    all_three = Moments(x.dtype, tile)
    for k in range(0, len(x), tile):
        all_three.add(x[k : k + tile])
    return all_three.result()


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("name", DATA)
def test_against_two_passes_in_longer_numbers(name, dtype):
    x = DATA[name].astype(dtype)
    if x.dtype.kind == "c":
        x = x + (1j * DATA[name][::-1]).astype(dtype)
    longer = x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)
    total, mean = longer.sum(), longer.mean()
    got = found(x)
    eps = np.finfo(x.dtype).eps
    scale = np.abs(longer).sum()
    assert abs(got[0] - total) <= 4 * eps * scale and abs(got[1] - mean) <= 4 * eps * scale / len(x)
    np.testing.assert_allclose(got[2].real, float((abs(longer - mean) ** 2).sum()), rtol=30 * eps, atol=0)
    for c in (0.5, mean, 1e3):
        c = x.dtype.type(c)
        want = float((abs(longer - c) ** 2).sum())
        out = squares_about.impl(got, np.full((1, 1), c), count=len(x), dtype=np.dtype(np.float64))
        np.testing.assert_allclose(out, want, rtol=30 * eps, atol=0)


@pytest.mark.parametrize("value", [3.0, 0.1, -1e30, 7e-30])
def test_constants_have_no_deviations(value):
    got = found(np.full(N, value, np.float32))
    assert got[2] == 0 and got[1] == np.float32(value)


def test_sums_of_small_integers_are_exact():
    x = (RNG.random(N) < 0.3).astype(np.float32)
    assert found(x)[0] == np.count_nonzero(x)
    x = RNG.integers(-50, 1000, N).astype(np.float32)
    assert found(x)[0] == x.astype(int).sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "bad", [[np.inf], [-np.inf], [np.nan], [np.inf, -np.inf], [np.inf, np.inf, np.nan], [3e38] * 3]
)
@pytest.mark.parametrize("place", [0, 1, N // 2, N - 3])
def test_numbers_that_are_not_finite_and_too_large(bad, place):
    x = RNG.standard_normal(N).astype(np.float32)
    x[place : place + len(bad)] = bad[: N - place]
    got = found(x)
    total = x.astype(np.float64).sum()
    np.testing.assert_allclose(got[0].astype(np.float32), total.astype(np.float32), rtol=1e-6)
    c = np.float32(np.float32(total) / N)
    with np.errstate(all="ignore"):
        want = np.sum((x - c) ** 2)
    np.testing.assert_array_equal(squares_about.impl(got, c, count=N, dtype=np.dtype(np.float32)), want)


def test_nothing():
    got = moments.impl(np.zeros((0, 3), np.float32), axes=(0, 1))
    np.testing.assert_array_equal(got, [0, 0, 0])
    assert squares_about.impl(got, np.float32(np.nan), count=0, dtype=np.dtype(np.float32)) == 0


def test_other_memory_orders():
    x = np.asfortranarray(RNG.standard_normal((30, 50)).astype(np.float32))[::-1, 3:]
    got, want = moments.impl(x, axes=(0, 1)), found(np.ascontiguousarray(x).ravel())
    np.testing.assert_allclose(got, want, rtol=1e-5)
