"""Operations on arrays that repeat smaller ones."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 8)).astype(np.float32)
ROW = RNG.uniform(0.5, 1.5, 8).astype(np.float32)
COLUMN = RNG.uniform(0.5, 1.5, 6).astype(np.float32)


def text_of(f, *args):
    return jax.jit(f).lower(*args).compile().as_text()


@pytest.mark.parametrize(
    ("f", "made"),
    [
        (lambda x, r, c: x * jnp.exp(jnp.broadcast_to(r, x.shape)), "f32[8] exponential("),
        (lambda x, r, c: x * (jnp.broadcast_to(r, x.shape) + 2 * jnp.broadcast_to(r, x.shape)), "f32[8] add("),
        (lambda x, r, c: x * jnp.sin(c[:, None]), "f32[6] sine("),
        (lambda x, r, c: x * jnp.maximum(jnp.broadcast_to(c[:, None], x.shape), 1), "f32[6] maximum("),
        (
            lambda x, r, c: x + jnp.where(jnp.broadcast_to(r, x.shape) > 1, 2.0, jnp.full(x.shape, 3.0)),
            "f32[8] select(",
        ),
        (lambda x, r, c: jax.lax.fori_loop(0, 2, lambda i, x: x * jnp.exp(c[:, None]), x), "f32[6] exponential("),
    ],
)
def test_done_before_they_are_repeated(f, made):
    text = text_of(f, X, ROW, COLUMN)
    assert made in text, text
    with jax.disable_jit():
        want = np.asarray(f(*map(jnp.asarray, (X, ROW, COLUMN))))
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(X, ROW, COLUMN)), want)


def test_arrays_that_repeat_along_different_dims_meet_as_they_are():
    f = lambda x, r, c: x * jnp.exp(r[None, :] + c[:, None])
    assert "f32[6,8] add(" in text_of(f, X, ROW, COLUMN)
    np.testing.assert_allclose(np.asarray(jax.jit(f)(X, ROW, COLUMN)), X * np.exp(ROW + COLUMN[:, None]), rtol=1e-6)


def test_means_with_and_without_their_dim_are_one():
    def f(x):
        return (x - jnp.mean(x, 0)) / jnp.sqrt(jnp.var(x, 0) + 1e-5)

    text = text_of(f, X)
    assert text.count("f32[6,8] subtract(") == 1
    wide = X.astype(np.float64)
    np.testing.assert_allclose(
        np.asarray(jax.jit(f)(X)), (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5), rtol=1e-4
    )


def test_dims_that_come_and_go_vanish():
    f = lambda c: -jnp.sin(c.reshape(6, 1)).reshape(6)
    text = text_of(f, COLUMN)
    assert "reshape(" not in text and "broadcast(" not in text
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(COLUMN)), np.asarray(f(jnp.asarray(COLUMN))))
    g = lambda c: (c.reshape(2, 1, 3), c.reshape(1, 6), c.reshape(6, 1).reshape(1, 6))
    for a, b in zip(jax.jit(g)(COLUMN), g(COLUMN), strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)
