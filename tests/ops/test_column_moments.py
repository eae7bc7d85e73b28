"""Moments of columns in tiles, against sums in longer numbers; data of all kinds beside each other."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.passes import fuse, moments
from mpiarray.ops import tiles
from mpiarray.ops.column_moments import ColumnMoments
from mpiarray.ops.moments import squares_about
from tests.ops.test_moments import DATA, RNG, N

COLUMNS = np.stack([d for name, d in DATA.items() if name != "one element"], axis=1)


def found(x, rows=140):
    all_three = ColumnMoments(x.dtype, rows * x[0].size, 1)
    with np.errstate(all="ignore"):
        for k in range(0, len(x), rows):
            all_three.add(x[k : k + rows])
        return all_three.result()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_against_two_passes_in_longer_numbers(dtype, order):
    x = np.asarray(COLUMNS.astype(dtype), order=order)
    longer = x.astype(np.longdouble)
    eps, scale = np.finfo(x.dtype).eps, np.abs(longer).sum(0)
    got = found(x)
    assert (abs(got[0] - longer.sum(0)) <= 4 * eps * scale).all()
    assert (abs(got[1] - longer.mean(0)) <= 8 * eps * scale / N).all()
    want = ((longer - longer.mean(0)) ** 2).sum(0).astype(float)
    np.testing.assert_allclose(got[2], want, rtol=60 * eps, atol=0)
    c = np.full(x.shape[1], 0.5, dtype)
    want = ((longer - c) ** 2).sum(0).astype(float)
    out = squares_about.impl(got, c[None], count=N, dtype=np.dtype(np.float64))
    np.testing.assert_allclose(out, want, rtol=60 * eps, atol=0)


def test_each_column_by_itself_and_in_more_dims():
    x = COLUMNS.astype(np.float32)
    np.testing.assert_allclose(found(x)[:, [2]], found(x[:, 2:3].copy()), rtol=1e-6)
    deep = ColumnMoments(x.dtype, x.size, 2)
    deep.add(x.reshape(50, N // 50, 3, -1))
    np.testing.assert_allclose(deep.result().reshape(3, -1)[0], found(x)[0], rtol=1e-5)
    assert deep.result().shape == (3, 3, x.shape[1] // 3)


def test_constants_have_no_deviations_and_integers_are_exact():
    x = np.tile(np.array([3.0, 0.1, -1e18, 7e-18, 0.0], np.float32), (N, 1))
    got = found(x)
    np.testing.assert_array_equal(got[2], 0)
    np.testing.assert_allclose(got[1], x[0], rtol=1e-7)
    x = np.stack([RNG.random(N) < 0.3, RNG.integers(-50, 1000, N)], 1).astype(np.float32)
    np.testing.assert_array_equal(found(x)[0], x.astype(int).sum(0))


@pytest.mark.parametrize("place", [0, 1, N // 2, N - 3])
def test_columns_that_are_not_finite_and_too_large(place):
    x = RNG.standard_normal((N, 7)).astype(np.float32)
    for k, bad in enumerate([[np.inf], [-np.inf], [np.nan], [np.inf, -np.inf], [np.inf, np.inf, np.nan], [3e38] * 3]):
        x[place : place + len(bad), k] = bad[: N - place]
    with np.errstate(all="ignore"):
        got = found(x)
        total = x.astype(np.float64).sum(0)
        np.testing.assert_allclose(got[0].astype(np.float32), total.astype(np.float32), rtol=1e-5)
        c = (total / N).astype(np.float32)
        want = ((x.astype(np.float64) - c) ** 2).sum(0).astype(np.float32)
        np.testing.assert_allclose(squares_about.impl(got, c, count=N, dtype=np.dtype(np.float32)), want, rtol=1e-5)


@pytest.fixture
def small_tiles(monkeypatch):
    for module in (fuse, moments):
        monkeypatch.setattr(module, "_SMALLEST", 900)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 100)


X = RNG.standard_normal((30, 4, 8)).astype(np.float32) * 3 + 5
FUNCTIONS = {
    "variance": lambda x, xp: xp.var(x, 0),
    "of two dims": lambda x, xp: xp.std(x, (0, 1), keepdims=True),
    "batch norm": lambda x, xp: (x - xp.mean(x, 0)) / xp.sqrt(xp.var(x, 0) + 1e-5),
    "of what is made": lambda x, xp: xp.var(xp.exp(x / 9), 0) + xp.sum(xp.exp(x / 9), 0),
    "both": lambda x, xp: (x - xp.mean(x, (0, 1))) / xp.std(x, (0, 1)) * xp.var(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_programs(name, order, dtype, small_tiles):
    x = np.asarray(X.astype(dtype), order=order)
    compiled = jax.jit(lambda x: FUNCTIONS[name](x, jnp)).lower(x).compile()
    assert " moments(" in compiled.as_text()
    got = np.asarray(compiled(x))
    want = FUNCTIONS[name](x.astype(np.float64), np)
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=1e-5 if dtype == "f4" else 1e-2, atol=2e-2 if dtype == "f2" else 1e-5
    )


def test_second_derivatives(small_tiles):
    x = X[:, 0]
    f = lambda x: jnp.sum(FUNCTIONS["batch norm"](x, jnp) ** 3)
    plain = jax.grad(f)
    step = 1e-2 * RNG.standard_normal(x.shape).astype(np.float32)
    with jax.enable_x64():
        wide = x.astype(np.float64)
        exact = np.asarray(plain(wide))
        bend = np.asarray(plain(wide + 1e-4 * step) - plain(wide - 1e-4 * step)) / 2e-4
    np.testing.assert_allclose(np.asarray(jax.jit(plain)(x)), exact, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        np.asarray(jax.jit(lambda x: jax.jvp(plain, (x,), (step,))[1])(x)), bend, rtol=1e-3, atol=1e-4
    )


def test_columns_of_pieces_are_whole(small_tiles):
    """A rolled array comes in pieces, which must not cut its columns."""
    f = lambda x, xp: xp.var(xp.roll(x, 3, 1) + x, 0) + xp.mean(xp.roll(x, 3, 1) + x, 0)
    x = X[:, :, 0].copy()
    x = np.concatenate([x] * 8, 1)
    np.testing.assert_allclose(np.asarray(jax.jit(lambda x: f(x, jnp))(x)), f(x.astype(np.float64), np), rtol=1e-5)
