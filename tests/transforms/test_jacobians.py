"""`jacfwd`, `jacrev`, `hessian`: shapes, trees, and values against formulas."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

X = np.array([0.5, 1.5, 2.5], np.float32)


@pytest.mark.parametrize(
    "jacobian",
    [jax.jacfwd, jax.jacrev, jax.jacobian, lambda f: jax.jit(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jit(f))],
)
def test_of_a_vector(jacobian):
    f = lambda v: jnp.stack([v[0] * v[1], jnp.sin(v[2])])
    np.testing.assert_allclose(jacobian(f)(X), [[1.5, 0.5, 0], [0, 0, np.cos(2.5)]], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev, jax.grad])
def test_of_a_jacobian(outer, inner):
    f = lambda v: v[0] ** 2 * v[1] + jnp.exp(v[2])
    want = [[3, 1, 0], [1, 0, 0], [0, 0, np.exp(2.5)]]
    np.testing.assert_allclose(outer(inner(f))(X), want, rtol=1e-6)
    np.testing.assert_allclose(jax.hessian(f)(X), want, rtol=1e-6)


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev])
def test_of_trees(jacobian):
    f = lambda p, s: {"a": p["w"] @ p["v"] * s, "b": [p["v"] ** 2]}
    w, v = np.arange(6, dtype=np.float32).reshape(2, 3), X
    got = jacobian(f)({"w": w, "v": v}, 2.0)
    np.testing.assert_allclose(got["a"]["v"], 2 * w)
    np.testing.assert_allclose(got["a"]["w"], 2 * np.einsum("ij,k->ijk", np.eye(2), v))
    np.testing.assert_allclose(got["b"][0]["v"], 2 * np.diag(v))
    assert got["b"][0]["w"].shape == (3, 2, 3) and not np.any(np.asarray(got["b"][0]["w"]))
    by_both = jacobian(f, argnums=(0, 1))({"w": w, "v": v}, 2.0)
    np.testing.assert_allclose(by_both["a"][1], w @ v)
    assert isinstance(by_both["b"][0], tuple)


def test_aux_and_complex():
    jac, aux = jax.jacrev(lambda x: (x**2, x.sum()), has_aux=True)(X)
    np.testing.assert_allclose(jac, 2 * np.diag(X))
    assert float(aux) == 4.5
    jac, aux = jax.jacfwd(lambda x: (x**2, x.sum()), has_aux=True)(X)
    np.testing.assert_allclose(jac, 2 * np.diag(X))
    z = X + 1j
    np.testing.assert_allclose(
        jax.jacfwd(lambda z: z**2, holomorphic=True)(z.astype(np.complex64)), 2 * np.diag(z), rtol=1e-6
    )
    np.testing.assert_allclose(
        jax.jacrev(lambda z: z**2, holomorphic=True)(z.astype(np.complex64)), 2 * np.diag(z), rtol=1e-6
    )
    with pytest.raises(TypeError, match="real-valued outputs"):
        jax.jacrev(lambda x: x * 1j)(X)
    with pytest.raises(TypeError, match="real-valued inputs"):
        jax.jacfwd(jnp.abs)(z.astype(np.complex64))
