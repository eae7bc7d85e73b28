"""Cheap results of groups that later groups make again."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.passes import fuse
from mpiarray.ops import tiles

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 40)).astype(np.float32)
W = RNG.standard_normal((12, 40)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(fuse, "_SMALLEST", 900)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 90)


def groups_of(f, *args) -> list[str]:
    text = jax.jit(f).lower(*args).compile().as_text()
    return [line for line in text.splitlines() if " fusion(" in line]


def unfused(f, args, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(fuse, "_SMALLEST", 1 << 40)
        return jax.jit(lambda *xs: f(*xs))(*args)


def batch_norm(x, w):
    return (x - jnp.mean(x, 0)) / jnp.sqrt(jnp.var(x, 0) + 1e-5) * w


def three_passes(x, w):
    apart = x - jnp.mean(x, 0)
    scaled = apart / jnp.sqrt(jnp.sum(apart * apart, 0) + 1)
    return jnp.maximum(2 * apart, w) - jnp.sum(scaled * w, 0)


@pytest.mark.parametrize("f", [batch_norm, three_passes, jax.grad(lambda x, w: jnp.sum(batch_norm(x, w) * w))])
def test_made_again(f, monkeypatch):
    lines = groups_of(f, X, W)
    assert len(lines) > 1
    for a, b in zip(jax.tree.leaves(jax.jit(f)(X, W)), jax.tree.leaves(unfused(f, (X, W), monkeypatch)), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


def test_deviations_are_not_written():
    first, second = groups_of(batch_norm, X, W)
    assert first.count("f32[12,40]") == 0 and second.count("f32[12,40]") == 1
    first, *_, last = groups_of(three_passes, X, W)
    assert first.count("f32[12,40]") == 0 and last.count("f32[12,40]") == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: (jnp.sin(x) - jnp.mean(x, 0), jnp.sum(jnp.square(jnp.sin(x) - jnp.mean(x, 0)), 0)),  # a result
        lambda x, w: (jnp.sin(x) * w) / jnp.sum(jnp.square(jnp.sin(x) * w), 0),  # not cheap
        lambda x, w: (x * w) / jnp.sum(jnp.square(x * w), 0),  # of two arrays
    ],
)
def test_written_where_that_is_better(f, monkeypatch):
    first, *_ = groups_of(f, X, W)
    assert first.count("f32[12,40]") == 1
    for a, b in zip(jax.tree.leaves(jax.jit(f)(X, W)), jax.tree.leaves(unfused(f, (X, W), monkeypatch)), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


def test_donated_arrays_and_loops(monkeypatch):
    def step(_, x):
        return batch_norm(x, W) + 0.1 * x

    f = lambda x: jax.lax.fori_loop(0, 3, step, x)
    want = np.asarray(unfused(f, (X,), monkeypatch))
    np.testing.assert_allclose(np.asarray(jax.jit(f)(X)), want, rtol=1e-4, atol=1e-4)
    once = np.asarray(unfused(batch_norm, (X, W), monkeypatch))
    given = jnp.asarray(X)
    np.testing.assert_allclose(np.asarray(jax.jit(batch_norm, donate_argnums=0)(given, W)), once, rtol=2e-5, atol=2e-5)
