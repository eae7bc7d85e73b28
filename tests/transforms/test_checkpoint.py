"""`checkpoint`: equal values and derivatives, work done again on the way back, and what policies keep."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.ad_checkpoint import checkpoint_name

policies = jax.checkpoint_policies
X = np.linspace(-1, 2, 5, dtype=np.float32)
W = np.cos(np.arange(10, dtype=np.float32)).reshape(5, 2)


def f(x, w):
    return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "inner") * 2).sum()


def count(text, word):
    return text.count(f"= {word}")


@pytest.mark.parametrize(
    "policy",
    [
        None,
        policies.everything_saveable,
        policies.nothing_saveable,
        policies.dots_saveable,
        policies.dots_with_no_batch_dims_saveable,
        policies.save_only_these_names("inner"),
        policies.save_any_names_but_these("other"),
        policies.save_anything_except_these_names("inner"),
        policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names("inner")),
        lambda prim, *avals, **params: prim.name == "tanh",
    ],
)
@pytest.mark.parametrize("way", ["eager", "jit", "jit inside"])
def test_derivatives_are_those_without(policy, way):
    g = jax.checkpoint(jax.jit(f) if way == "jit inside" else f, policy=policy)
    wrap = jax.jit if way == "jit" else lambda h: h
    for derivative in (
        lambda h: jax.grad(h, argnums=(0, 1)),
        lambda h: jax.grad(lambda x, w: jax.grad(h)(x, w).sum(), argnums=(0, 1)),
        lambda h: lambda x, w: jax.jvp(jax.grad(h), (x, w), (x, w))[1],
        lambda h: lambda x, w: jax.vmap(jax.grad(h), in_axes=(0, None))(jnp.stack([x, 2 * x]), w),
    ):
        got, want = (wrap(derivative(h))(jnp.asarray(X), jnp.asarray(W)) for h in (g, f))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "dots", "tanhs"),
    [
        (None, 2, 2),
        (policies.nothing_saveable, 2, 2),
        (policies.dots_saveable, 1, 2),
        (policies.save_only_these_names("inner"), 2, 2),  # the derivative of tanh needs its result before the name
        (policies.save_from_both_policies(policies.dots_saveable, lambda p, *a, **k: p.name == "tanh"), 1, 1),
        (policies.everything_saveable, 1, 1),
    ],
)
def test_what_is_computed_again(policy, dots, tanhs):
    g = jax.checkpoint(f, policy=policy)
    text = str(jax.make_jaxpr(jax.grad(g, argnums=0))(X, W))
    assert (
        count(text, "dot_general") == dots + 1 and count(text, "tanh") == tanhs
    )  # one product is the derivative's own
    compiled = (
        jax.jit(jax.value_and_grad(g)).lower(X, W).compile().as_text()
    )  # and the compiler does not merge them again
    assert compiled.count(" tanh(") == tanhs
    again = (
        jax.jit(jax.value_and_grad(jax.checkpoint(f, policy=policy, prevent_cse=False))).lower(X, W).compile().as_text()
    )
    assert again.count(" tanh(") == 1


def test_static_arguments_and_aux():
    g = jax.checkpoint(lambda x, n: (jnp.sin(x) ** n if n > 1 else x).sum(), static_argnums=(1,))
    np.testing.assert_allclose(jax.grad(g)(X, 3), 3 * np.sin(X) ** 2 * np.cos(X), rtol=1e-5)
    h = jax.checkpoint(lambda p: ((p["a"] ** 2).sum(), {"aux": p["a"] * 2}))
    (value, aux), grads = jax.value_and_grad(h, has_aux=True)({"a": jnp.asarray(X)})
    np.testing.assert_allclose(aux["aux"], 2 * X)
    np.testing.assert_allclose(grads["a"], 2 * X)


def test_text():
    text = str(jax.make_jaxpr(jax.checkpoint(jnp.sin))(X))
    assert "remat2[" in text and "differentiated=False" in text and "policy=None" in text and "prevent_cse=True" in text
    assert "differentiated=True" in str(jax.make_jaxpr(jax.grad(lambda x: jax.checkpoint(jnp.sin)(x).sum()))(X))


def test_errors():
    with pytest.raises(TypeError, match="expected a callable"):
        jax.checkpoint(3)
