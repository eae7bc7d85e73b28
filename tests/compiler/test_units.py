"""Operations with a number that changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

X = np.array([[1.5, -0.0, np.nan], [np.inf, -np.inf, 0.0]], np.float32)
ONES = np.ones((2, 3), np.float32)


def text_of(f, *args):
    return jax.jit(f).lower(*args).compile().as_text()


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda x: jnp.sin(x) * 1.0, "multiply"),
        (lambda x: 1.0 * jnp.sin(x), "multiply"),
        (lambda x: jnp.sin(x) * jnp.ones_like(x), "multiply"),
        (lambda x: jnp.sin(x) / 1.0, "divide"),
        (lambda x: jnp.maximum(jnp.sin(x), -jnp.inf), "maximum"),
        (lambda x: jnp.minimum(jnp.inf, jnp.sin(x)), "minimum"),
        (lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) * 1.0, x), "multiply"),
    ],
)
def test_left_out(f, name):
    assert f" {name}(" not in text_of(f, X)
    got, want = np.asarray(jax.jit(f)(X)), np.asarray(f(jnp.asarray(X)))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda x: jnp.sin(x) * 1.5, "multiply"),
        (lambda x: 1.0 / jnp.sin(x), "divide"),
        (lambda x: jnp.sin(x) + 0.0, "add"),
        (lambda x: jnp.maximum(jnp.sin(x), jnp.inf), "maximum"),
        (lambda x: jnp.sum(x) * jnp.ones((4,), np.float32), "multiply"),
        (lambda x: jnp.sin(x[0]) * jnp.array([1.0, 1.0, 2.0], np.float32), "multiply"),
    ],
)
def test_kept_where_they_change_something(f, name):
    assert f" {name}(" in text_of(f, X)
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(X)), np.asarray(f(jnp.asarray(X))))


def test_a_result_that_is_an_argument_has_memory_of_its_own():
    x = jnp.asarray(ONES)
    view = np.asarray(x)
    y = jax.jit(lambda x: x * 1.0)(x)
    np.testing.assert_array_equal(np.asarray(y), ONES)
    z = jax.jit(lambda y: y.at[0].set(7.0), donate_argnums=0)(y)
    assert np.asarray(z)[0, 0] == 7
    np.testing.assert_array_equal(view, ONES)
    np.testing.assert_array_equal(np.asarray(x), ONES)


def test_the_slope_of_a_sum_of_squares_has_two_operations():
    grad = jax.grad(lambda x: jnp.sum(jnp.sin(x) * jnp.sin(x)))
    text = text_of(grad, X)
    assert text.count(" multiply(") == 1 and text.count(" add(") == 1
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(np.asarray(jax.jit(grad)(x)), np.sin(2 * x), rtol=1e-5)
