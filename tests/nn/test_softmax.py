"""softmax and log_softmax with masks and their derivatives, against numpy in 64 bits and differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5, 6))
T = RNG.standard_normal((4, 5, 6))
W = RNG.standard_normal((4, 5, 6))
MASK = RNG.random((4, 5, 6)) < 0.6
MASK[..., 0] = True
MASK[0, 0] = True


def by_hand(x, axis, where):
    kept = np.where(True if where is None else where, x, -np.inf)
    e = np.exp(kept - np.max(kept, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [-1, 1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_derivatives(axis, masked):
    where = MASK if masked else None
    with jax.enable_x64():
        f = lambda x: jax.nn.softmax(x, axis, where=where)
        want = by_hand(X, axis, where)
        np.testing.assert_allclose(np.asarray(f(X)), want, rtol=1e-12)
        with np.errstate(divide="ignore"):
            logs = np.log(want)
        np.testing.assert_allclose(np.asarray(jax.nn.log_softmax(X, axis, where=where)), logs, rtol=1e-12)
        step = 1e-6
        slope = (by_hand(X + step * T, axis, where) - by_hand(X - step * T, axis, where)) / 2 / step
        value, tangent = jax.jvp(f, (X,), (T,))
        np.testing.assert_allclose(np.asarray(value), want, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(tangent), slope, rtol=1e-6, atol=1e-9)
        grad = jax.jit(jax.grad(lambda x: jnp.sum(f(x) * W)))
        np.testing.assert_allclose(np.sum(np.asarray(grad(X)) * T), np.sum(slope * W), rtol=1e-6)
        bend = (np.asarray(grad(X + step * T)) - np.asarray(grad(X - step * T))) / 2 / step
        second = jax.jvp(grad, (X,), (T,))[1]
        np.testing.assert_allclose(np.asarray(second), bend, rtol=1e-5, atol=1e-8)
        mapped = jax.vmap(lambda x, m: jax.nn.softmax(x, where=m))(X, MASK)
        np.testing.assert_allclose(np.asarray(mapped), by_hand(X, -1, MASK), rtol=1e-12)


@pytest.mark.parametrize("jit", [False, True])
def test_rows_without_numbers_that_count(jit):
    """As in JAX: 0 and -inf, also for the derivative; and what does not count may be anything."""
    x = np.array([[1.0, 2.0], [np.nan, 3.0], [np.inf, 1.0]], np.float32)
    where = np.array([[False, False], [False, True], [False, True]])
    run = jax.jit if jit else lambda f: f
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.asarray(run(lambda x: jax.nn.softmax(x, where=where))(x)), where)
        logs = np.asarray(run(lambda x: jax.nn.log_softmax(x, where=where))(x))
        np.testing.assert_array_equal(logs, np.where(where, 0, -np.inf))
        slopes = run(jax.grad(lambda x: jnp.sum(jax.nn.softmax(x, where=where) * X[0, :3, :2])))(x)
    np.testing.assert_array_equal(np.asarray(slopes), np.zeros((3, 2)))


def test_integers_and_first_numbers():
    for f, initial in itertools.product((jax.nn.softmax, jax.nn.log_softmax), (-jnp.inf, 0.0, 4.0)):
        got = f(np.arange(3), initial=initial)
        want = by_hand(np.arange(3.0), -1, None)
        assert got.dtype == np.float32
        np.testing.assert_allclose(np.asarray(got), want if f is jax.nn.softmax else np.log(want), rtol=1e-6)


def test_the_slope_is_made_of_the_result():
    grad = jax.grad(lambda x, w: jnp.sum(w * jax.nn.softmax(x)))
    text = jax.jit(grad).lower(X.astype(np.float32), W.astype(np.float32)).compile().as_text()
    assert text.count(" exponential(") == 1 and text.count(" divide(") == 1 and text.count(" multiply(") == 2
