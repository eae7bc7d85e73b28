"""`custom_jvp`, `custom_vjp`, `custom_gradient`: the user's rules are used in place of those of the ops."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

X = np.array([-1.0, 0.0, 3.0], np.float32)


def make_jvp():
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    @f.defjvp
    def f_jvp(primals, tangents):
        return f(primals[0]), 10 * jnp.cos(primals[0]) * tangents[0]

    return f


def make_vjp():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), jnp.cos(x)), lambda c, g: (10 * c * g,))
    return f


WAYS = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "grad of jit": lambda f: jax.grad(jax.jit(lambda x: f(x).sum())),
    "jit of grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()),
    "jit of grad of vmap": lambda f: jax.jit(jax.grad(lambda x: jax.vmap(f)(x).sum())),
    "grad of vmap of jit": lambda f: jax.grad(lambda x: jax.vmap(jax.jit(f))(x).sum()),
    "jacrev": lambda f: lambda x: jax.jacrev(f)(x).sum(0),
    "grad of remat": lambda f: jax.grad(jax.remat(lambda x: f(x).sum())),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [make_jvp, make_vjp])
def test_rule_is_used(make, way):
    f = make()
    np.testing.assert_allclose(f(X), np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(X), np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(WAYS[way](f)(jnp.asarray(X)), 10 * np.cos(X), rtol=1e-5)


def test_forwards():
    f = make_jvp()
    for g in (f, jax.jit(f), jax.vmap(f), jax.remat(f)):
        out, t = jax.jvp(g, (X,), (np.ones(3, np.float32),))
        np.testing.assert_allclose(out, np.sin(X), rtol=1e-6)
        np.testing.assert_allclose(t, 10 * np.cos(X), rtol=1e-5)


def test_second_derivatives_differentiate_the_rule():
    g = jax.grad(lambda x: jax.grad(lambda x: make_jvp()(x).sum())(x).sum())(jnp.asarray(X))
    np.testing.assert_allclose(g, -10 * np.sin(X), rtol=1e-5, atol=1e-6)
    g = jax.grad(lambda x: jax.grad(lambda x: make_vjp()(x).sum())(x).sum())(jnp.asarray(X))
    np.testing.assert_allclose(g, -10 * np.sin(X), rtol=1e-5, atol=1e-6)


def test_unmapped_arguments_under_vmap():
    @jax.custom_vjp
    def f(w, x):
        return w * x

    f.defvjp(lambda w, x: (w * x, (w, x)), lambda s, g: (s[1] * g * 100, s[0] * g))
    loss = lambda w, x: jax.vmap(f, in_axes=(None, 0))(w, x).sum()
    gw, gx = jax.grad(loss, argnums=(0, 1))(jnp.float32(2), jnp.asarray(X))
    np.testing.assert_allclose(gw, 200)
    np.testing.assert_allclose(gx, [2, 2, 2])

    @jax.custom_jvp
    def h(w, x):
        return w * x

    h.defjvps(lambda t, out, w, x: 100 * t * x, lambda t, out, w, x: t * w)
    loss = lambda w, x: jax.vmap(h, in_axes=(None, 0))(w, x).sum()
    gw, gx = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.float32(2), jnp.asarray(X))
    np.testing.assert_allclose(gw, 200)
    np.testing.assert_allclose(gx, [2, 2, 2])


def test_fixed_arguments_trees_and_defaults():
    @partial(jax.custom_vjp, nondiff_argnums=(0, 2))
    def clip(lo, x, hi=2.0):
        return {"y": x["a"], "z": [x["b"]]}

    def bwd(lo, hi, saved, g):
        return ({"a": jnp.clip(g["y"], lo, hi), "b": None},)

    clip.defvjp(lambda lo, x, hi: (clip(lo, x, hi), None), bwd)
    x = {"a": jnp.arange(5.0), "b": jnp.ones(2)}
    loss = lambda x, *hi: (clip(-1.0, x, *hi)["y"] ** 2).sum() + clip(-1.0, x)["z"][0].sum()
    np.testing.assert_allclose(jax.grad(loss)(x)["a"], [0, 2, 2, 2, 2])
    np.testing.assert_allclose(jax.grad(loss)(x, 5.0)["a"], [0, 2, 4, 5, 5])
    np.testing.assert_allclose(jax.grad(loss)(x)["b"], [0, 0])


def test_custom_gradient():
    f = jax.custom_gradient(lambda x: (x**2, lambda g: (g * x * 100,)))
    for g in (jax.grad(f), jax.jit(jax.grad(f)), jax.grad(jax.jit(f)), jax.grad(jax.remat(f))):
        assert float(g(jnp.float32(3))) == 300


def test_closure_convert():
    def outer(w, x):
        f, consts = jax.closure_convert(lambda x: x * w, x)
        assert len(consts) == 1
        return f(x, *consts)

    assert float(jax.grad(outer)(2.0, 5.0)) == 5


def test_branch_on_a_concrete_value():
    @jax.custom_jvp
    def f(x):
        return x if x > 0 else -x

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * (3.0 if primals[0] > 0 else 5.0)))
    assert float(jax.grad(f)(2.0)) == 3 and float(jax.grad(f)(-2.0)) == 5


@pytest.fixture
def refused():
    @jax.custom_vjp
    def no_rule(x):
        return x

    @jax.custom_vjp
    def wrong_count(x, y):
        return x * y

    wrong_count.defvjp(lambda x, y: (x * y, None), lambda _, g: (g,))

    @jax.custom_vjp
    def wrong_shape(x):
        return x * 2

    wrong_shape.defvjp(lambda x: (x * 2, None), lambda _, g: (jnp.ones(7),))

    @jax.custom_jvp
    def no_pair(x):
        return x

    no_pair.defjvp(lambda p, t: t[0])

    @jax.custom_jvp
    def wrong_tangent(x):
        return x

    wrong_tangent.defjvp(lambda p, t: (p[0], t[0].sum()))
    return locals()


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda r: r["no_rule"](X), AttributeError, "no_rule using defvjp"),
        (
            lambda r: jax.grad(lambda x: r["wrong_count"](x, x).sum())(X),
            TypeError,
            "must produce a tuple of length equal",
        ),
        (lambda r: jax.grad(lambda x: r["wrong_shape"](x).sum())(X), ValueError, r"float32\[7\].*float32\[3\]"),
        (lambda r: jax.jvp(r["no_pair"], (X,), (X,)), TypeError, "must produce a pair"),
        (lambda r: jax.jvp(r["wrong_tangent"], (X,), (X,)), TypeError, "corresponding shapes and dtypes"),
        (lambda r: jax.jvp(make_vjp(), (X,), (X,)), TypeError, "can't apply forward-mode autodiff"),
        (
            lambda r: jax.jit(lambda x: jax.jvp(make_vjp(), (x,), (x,)))(X),
            TypeError,
            "can't apply forward-mode autodiff",
        ),
        (lambda r: jax.jvp(jax.jit(make_vjp()), (X,), (X,)), TypeError, "can't apply forward-mode autodiff"),
    ],
)
def test_errors(refused, call, kind, words):
    with pytest.raises(kind, match=words):
        call(refused)
