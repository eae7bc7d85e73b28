"""Variances of large blocks read them once; results are those of two passes."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.passes import fuse, moments
from mpiarray.ops import tiles

X = (np.random.default_rng(0).standard_normal((30, 40)) * 3 + 100).astype(np.float32)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(moments, "_SMALLEST", 0)
    monkeypatch.setattr(fuse, "_SMALLEST", 1000)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 100)


def text_of(f, *args):
    return jax.jit(f).lower(*args).compile().as_text()


def large_steps(text: str, shape: str) -> list[str]:
    """The steps of the program, not of its groups, that read or write a whole block."""
    lines = [line for line in text.splitlines() if line.startswith("%") and "parameter(" not in line]
    large = {line.split()[0] for line in text.splitlines() if line.startswith("%") and f" = {shape}" in line}
    return [line for line in lines if any(f"{v}," in line or f"{v})" in line or line.startswith(v) for v in large)]


FUNCTIONS = {
    "mean, var": lambda x, xp: (xp.mean(x), xp.var(x)),
    "std": lambda x, xp: (xp.std(x, ddof=1),),
    "keepdims": lambda x, xp: (xp.var(x, keepdims=True), xp.mean(x, keepdims=True)),
    "chain": lambda x, xp: (xp.var(xp.sin(x) * 2 + 1),),
    "written out": lambda x, xp: (xp.sum((x - xp.sum(x) / x.size) ** 2),),
    "product": lambda x, xp: (xp.sum((x - x.mean()) * (x - x.mean())),),
    "two numbers": lambda x, xp: (xp.var(x), xp.sum(xp.square(x - 2 * xp.mean(x)))),
    "deviations are wanted": lambda x, xp: ((x - x.mean()) / xp.std(x), xp.var(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_values(name, dtype, order):
    f = FUNCTIONS[name]
    with jax.enable_x64():
        x = np.asarray(X, order=order).astype(dtype)
        if x.dtype.kind == "c":
            x = x + (1j * X[::-1]).astype(dtype)
        if x.dtype.kind == "c" and name not in ("mean, var", "std", "keepdims"):
            pytest.skip("squares of complex numbers are no variance")
        if dtype == "f2" and name in ("deviations are wanted", "written out", "product", "two numbers"):
            pytest.skip("too large for 16 bits")
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        g = jax.jit(lambda x: f(x, jnp))
        assert "moments(" in g.lower(x).compile().as_text()
        for got, want in zip(g(x), f(wide, np), strict=True):
            tolerance = {"f2": 5e-3, "f4": 2e-5, "c8": 2e-5}.get(dtype, 1e-12)
            np.testing.assert_allclose(np.asarray(got).astype(wide.dtype), want, rtol=tolerance, atol=tolerance)


def test_one_pass():
    (step,) = large_steps(text_of(lambda x: (jnp.mean(x), jnp.var(x)), X), "f32[30,40]")
    assert "f64[3] fusion(" in step
    (step,) = large_steps(text_of(lambda x: jnp.var(jnp.sin(x) * 2), X), "f32[30,40]")
    assert "f64[3] fusion(" in step


def test_two_passes_where_deviations_are_wanted_that_are_divided():
    def f(x):
        apart = x - x.mean()
        return apart / jnp.sqrt(jnp.mean(apart**2) + 1e-5)

    first, second = large_steps(text_of(f, X), "f32[30,40]")
    assert "f64[3] fusion(" in first and "f32[30,40] fusion(" in second


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.var(x, axis=1),
        lambda x: jnp.sum((x - 3) ** 2) + x.sum(),
        lambda x: jnp.sum((x - x.max()) ** 2) + x.sum(),
        lambda x: jnp.sum((x - jnp.exp(x.sum())) ** 2),
        lambda x: jnp.sum((x - x.sum()) ** 3),
        lambda x: jnp.sum((x[:, :1] - x.sum()) ** 2),
        lambda x: jnp.sum((2 * x - x.sum()) ** 2),
        lambda x: jnp.sum((x.astype(jnp.int32) - x.astype(jnp.int32).sum()) ** 2),
        lambda x: jnp.sum((x - x.mean()) * (x - 1)) + x.sum(),
    ],
)
def test_other_sums_stay(f):
    assert "moments(" not in text_of(f, X)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e30])
def test_not_finite(bad):
    x = X.copy()
    x[7, 3] = bad
    got = jax.jit(lambda x: (jnp.mean(x), jnp.var(x)))(x)
    np.testing.assert_allclose(got[0], x.mean(dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(got[1], np.var(x))


def test_derivatives():
    def f(x):
        return jnp.var(x) * jnp.std(x[:, ::2])

    got = jax.jit(jax.value_and_grad(f))(X)
    apart = X.astype(np.float64) - X.mean(dtype=np.float64)
    half = X[:, ::2].astype(np.float64)
    near = half - half.mean()
    want = 2 * apart / X.size * half.std()
    want[:, ::2] += np.var(X.astype(np.float64)) * near / half.std() / half.size
    np.testing.assert_allclose(got[0], np.var(X.astype(np.float64)) * half.std(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(got[1]), want, rtol=1e-4, atol=1e-5)


def test_in_a_loop():
    def f(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: (x - x.mean()) / jnp.std(x) + 1, x)

    assert "moments(" in text_of(f, X)
    want = X.astype(np.float64)
    for _ in range(3):
        want = (want - want.mean()) / want.std() + 1
    np.testing.assert_allclose(np.asarray(jax.jit(f)(X)), want, rtol=1e-4, atol=1e-4)


@pytest.mark.mpi
def test_over_ranks():
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    n = jax.device_count()
    x = np.repeat(X, n, axis=0) * np.arange(1, 30 * n + 1, dtype=np.float32)[:, None]
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.NamedSharding(mesh, jax.P("x")))
        f = jax.jit(lambda x: (jnp.mean(x), jnp.var(x), jnp.std(jnp.sin(x) + 10)))
        text = f.lower(placed).compile().as_text()
        assert text.count(" moments(") == 2 and text.count("all-reduce(") <= 4
        got = f(placed)
    wide = x.astype(np.float64)
    for a, b in zip(got, (wide.mean(), wide.var(), np.std(np.sin(wide) + 10))):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5)
