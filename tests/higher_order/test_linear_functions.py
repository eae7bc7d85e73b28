"""What `vjp` and `linearize` return goes through jit, vmap and scan as a pytree of its residuals."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp


def f(x, y):
    return jnp.sin(x) * y


def test_from_jit_and_into_it():
    out, f_vjp = jax.jit(lambda x, y: jax.vjp(f, x, y))(1.0, 2.0)
    want = [2 * np.cos(1), np.sin(1)]
    np.testing.assert_allclose(out, 2 * np.sin(1), rtol=1e-6)
    np.testing.assert_allclose(f_vjp(1.0), want, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda g, ct: g(ct))(f_vjp, 2.0), np.multiply(want, 2), rtol=1e-6)
    _, f_jvp = jax.jit(lambda x, y: jax.linearize(f, x, y))(1.0, 2.0)
    np.testing.assert_allclose(f_jvp(3.0, 4.0), 3 * want[0] + 4 * want[1], rtol=1e-6)


def test_a_jitted_taker_is_traced_once():
    traced = []

    @jax.jit
    def apply(g, ct):
        traced.append(1)
        return g(ct)[0]

    for k in range(4):
        _, f_vjp = jax.vjp(f, float(k), 2.0)
        np.testing.assert_allclose(apply(f_vjp, 1.0), 2 * np.cos(k), rtol=1e-6)
    assert len(traced) == 1
    _, other = jax.vjp(lambda x, y: jnp.cos(x) * y, 1.0, 2.0)
    np.testing.assert_allclose(apply(other, 1.0), -2 * np.sin(1), rtol=1e-6)
    assert len(traced) == 2


def test_leaves_are_the_residuals():
    _, f_vjp = jax.vjp(f, jnp.ones(3), jnp.ones(3))
    assert {x.shape for x in jax.tree.leaves(f_vjp)} == {(3,)}
    doubled = jax.tree.map(lambda r: 2 * r, f_vjp)
    np.testing.assert_allclose(doubled(jnp.ones(3))[1], 2 * np.sin(np.ones(3)), rtol=1e-6)
    assert isinstance(f_vjp, jax.tree_util.Partial)


def test_through_vmap_and_scan():
    rows = jnp.arange(6.0).reshape(3, 2)
    functions = jax.vmap(lambda x: jax.vjp(jnp.sin, x)[1])(rows)
    np.testing.assert_allclose(jax.vmap(lambda g, ct: g(ct)[0])(functions, rows), rows * np.cos(rows), rtol=1e-6)
    _, stacked = jax.lax.scan(lambda c, x: (c, jax.vjp(jnp.sin, x)[1]), 0.0, rows)
    _, found = jax.lax.scan(lambda c, g: (c, g(jnp.ones(2))[0]), 0.0, stacked)
    np.testing.assert_allclose(found, np.cos(rows), rtol=1e-6)


def test_a_second_derivative_through_one():
    slope = lambda x: jax.vjp(lambda v: v**3, x)[1](1.0)[0]
    np.testing.assert_allclose(jax.grad(slope)(2.0), 12, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: jax.linearize(lambda v: v**3, x)[1](1.0))(2.0), 12, rtol=1e-6)


def test_more_than_one_cotangent_is_refused():
    _, f_vjp = jax.vjp(f, 1.0, 2.0)
    with pytest.raises(TypeError, match="was called with 2 arguments"):
        f_vjp(1.0, 2.0)
