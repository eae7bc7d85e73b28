"""Sums of sums are one sum."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp


def sums_in(f, *args) -> list[str]:
    return [row for row in jax.jit(f).lower(*args).compile().as_text().splitlines() if " reduce(" in row]


@pytest.mark.parametrize(
    ("inner", "outer"),
    [((1,), (0,)), ((0,), (1,)), ((2, 0), (0,)), ((1,), (1, 0)), ((0,), (0, 1)), ((), (1,)), ((-1,), (-1,))],
)
def test_over_the_dims_of_both(inner, outer):
    x = jnp.arange(60.0).reshape(3, 4, 5)
    f = lambda x: jnp.sum(jnp.sum(x, inner), outer)
    assert len(sums_in(f, x)) == 1
    found = jax.jit(f)(x)
    wanted = np.sum(np.sum(np.asarray(x), inner), outer)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def test_what_is_read_twice_stays():
    x = jnp.arange(12.0).reshape(3, 4)

    def f(x):
        rows = jnp.sum(x, 1)
        return rows, jnp.sum(rows)

    assert len(sums_in(f, x)) == 2
    for found, wanted in zip(jax.jit(f)(x), f(x)):
        np.testing.assert_array_equal(found, wanted)


def test_losses_and_their_slopes():
    x, y = jnp.arange(12.0).reshape(3, 4), jnp.ones((3, 4))
    loss = lambda x: jnp.mean(jnp.sum((x - y) ** 2, axis=-1))
    assert len(sums_in(loss, x)) == 1
    np.testing.assert_allclose(jax.jit(loss)(x), np.mean(np.sum((np.asarray(x) - 1) ** 2, -1)), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), 2 * (np.asarray(x) - 1) / 3, rtol=1e-6)
