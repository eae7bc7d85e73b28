"""`scan(unroll=n)`: the same results and derivatives whatever n, with as many copies of the body as it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from tests.ops.pretended_mesh import mesh_of, run

XS = np.random.default_rng(0).uniform(-1, 1, (7, 3)).astype(np.float32)


def loop(unroll: Any, reverse: bool) -> Any:
    def body(carry, x):
        total, count = carry
        total = jnp.sin(total) + x * 2
        return (total, count + 1), {"y": total * count, "one": 1.0, "x": x}

    def f(start, xs):
        (total, count), ys = lax.scan(body, (start, 0), xs, reverse=reverse, unroll=unroll)
        return total, count, ys

    return f


def by_hand(start: np.ndarray, xs: np.ndarray, reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    total, ys = start, np.zeros_like(xs)
    for n, i in enumerate(range(len(xs))[::-1] if reverse else range(len(xs))):
        total = np.sin(total) + xs[i] * 2
        ys[i] = total * n
    return total, ys


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2, 3, 6, 7, 8, True])
@pytest.mark.parametrize("length", [0, 1, 6, 7])
def test_values(length, unroll, reverse):
    xs, start = XS[:length], np.ones(3, np.float32)
    total, count, ys = jax.jit(loop(unroll, reverse))(start, xs)
    want, want_ys = by_hand(start, xs, reverse)
    np.testing.assert_allclose(total, want, rtol=1e-6)
    np.testing.assert_allclose(ys["y"], want_ys, rtol=1e-5)
    np.testing.assert_array_equal(ys["one"], np.ones(length))
    np.testing.assert_array_equal(ys["x"], xs)
    assert int(count) == length
    for got, plain in zip(jax.tree.leaves(loop(unroll, reverse)(start, xs)), jax.tree.leaves((total, count, ys))):
        np.testing.assert_allclose(got, plain, rtol=1e-6)


@pytest.mark.parametrize("unroll", [2, 3, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_and_batches(unroll, reverse):
    def loss(f):
        return lambda start, xs: (lambda out: (out[0] ** 2).sum() + (out[2]["y"] ** 2).sum())(f(start, xs))

    start = np.ones(3, np.float32)
    one, many = loss(loop(1, reverse)), loss(loop(unroll, reverse))
    for g, h in ((jax.grad(one, (0, 1)), jax.grad(many, (0, 1))), (jax.hessian(one), jax.hessian(many))):
        for a, b in zip(jax.tree.leaves(g(start, XS)), jax.tree.leaves(jax.jit(h)(start, XS))):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
    rows = np.stack([start, 2 * start])
    np.testing.assert_allclose(jax.jit(jax.vmap(many, (0, None)))(rows, XS), [one(r, XS) for r in rows], rtol=1e-5)


def test_the_text_says_how_many():
    """One loop with that many copies of the body, and the rest behind it; none where all are written out."""

    def text(unroll: Any) -> str:
        f = jax.jit(lambda x: lax.scan(lambda c, _: (jnp.cumsum(c), None), x, None, length=7, unroll=unroll)[0])
        return f.lower(jnp.ones(4)).compile().as_text()

    counts = [(text(n).count("while("), text(n).count("cumsum(")) for n in (1, 2, 3, 7, True)]
    assert counts == [(1, 1), (1, 3), (1, 4), (0, 7), (0, 7)]


@pytest.mark.parametrize("unroll", [1, 2, 3, True])
def test_on_a_mesh(unroll):
    """Sharded slices and carries; the sum in the body is made once for each iteration."""
    mesh = mesh_of(("x", 2), ("y", 2))
    rng = np.random.default_rng(1)
    w, xs = rng.standard_normal((4, 4)).astype(np.float32) / 2, rng.standard_normal((5, 4)).astype(np.float32)

    def f(w, start, xs):
        def body(carry, x):
            carry = jnp.tanh(jnp.einsum("ij,j->i", w, carry, out_sharding=P("x")) + x)
            return carry, carry * 2

        return list(lax.scan(body, start, xs, unroll=unroll))

    outs, avals, _, world = run(f, [w, xs[0], xs], [P(None, "x"), P("x"), P(None, "x")], mesh)
    carry, rows = xs[0], []
    for x in xs:
        carry = np.tanh(w @ carry + x)
        rows.append(carry * 2)
    np.testing.assert_allclose(outs[0], carry, rtol=1e-5)
    np.testing.assert_allclose(outs[1], rows, rtol=1e-5)
    assert [a.short() for a in avals] == ["f32[4@x]", "f32[5,4@x]"]
    assert world.calls["reduce_scatter"] == 4 * len(xs)
