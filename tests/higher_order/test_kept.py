"""Policies of `checkpoint` inside the bodies of scans and maps: the same derivatives, and less that is done again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.ad_checkpoint import checkpoint_name, saved_residuals
from tests.ops.pretended_mesh import mesh_of, run

RNG = np.random.default_rng(4)
X, W = (RNG.standard_normal((4, 4)).astype(np.float32) / 2 for _ in range(2))
policies = jax.checkpoint_policies
POLICIES = {
    "none": None,
    "dots": policies.dots_saveable,
    "names": policies.save_only_these_names("product"),
    "everything": policies.everything_saveable,
    "nothing": policies.nothing_saveable,
}


def layer(x: Any, w: Any) -> Any:
    return jnp.sin(checkpoint_name(x @ w, "product"))


def in_scan(x: Any, w: Any) -> Any:
    def body(carry, scale):
        carry = jax.jit(layer)(carry, w) * scale
        return carry, (carry**2).sum()

    carry, ys = lax.scan(body, x, jnp.arange(1.0, 4.0))
    return carry.sum() + (ys**2).sum()


def in_nested_scans(x: Any, w: Any) -> Any:
    inner = lambda c: lax.scan(lambda c, _: (layer(c, w), c.sum()), c, None, length=2)
    return lax.scan(lambda c, _: inner(c), x, None, length=2)[0].sum()


def in_branches(x: Any, w: Any) -> Any:
    """A conditional, a switch whose branches keep other things, and one inside a loop."""
    small = lambda x, w: jnp.cos(x @ w @ w)
    y = lax.cond(x.sum() > 100, small, layer, x, w)
    y = lax.switch(jnp.argmax(y[0]), [layer, small, lambda x, w: x + w, layer], y, w)
    return lax.scan(lambda c, k: (lax.cond(k > 1, layer, lambda c, w: c, c, w), None), y, jnp.arange(3))[0].sum()


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("f", [in_scan, in_nested_scans, in_branches])
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_of_scans(f, name, reverse):
    kept = jax.checkpoint(f, policy=POLICIES[name])
    order = (1, 0) if reverse else (0, 1)
    want = jax.grad(f, order)(X, W)
    for g in (jax.grad(kept, order), jax.jit(jax.grad(kept, order))):
        for a, b in zip(g(X, W), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    second = lambda h: jax.grad(lambda x: (jax.grad(h)(x, W) ** 2).sum())(X)
    np.testing.assert_allclose(second(kept), second(f), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(kept), (0, None))(np.stack([X, 2 * X]), W), [jax.grad(f)(X, W), jax.grad(f)(2 * X, W)], rtol=1e-4, atol=1e-5
    )  # fmt: skip


def test_what_is_stacked():
    shapes = lambda policy: [a.shape for a, _ in saved_residuals(jax.checkpoint(in_scan, policy=policy), X, W)]
    assert shapes(None) == shapes(policies.nothing_saveable)
    assert (3, 4, 4) not in shapes(None)
    for name in ("dots", "names"):
        assert shapes(POLICIES[name]).count((3, 4, 4)) == 1


def test_products_are_not_made_again():
    """Forward one product for each iteration, backward two; a third to make it again unless it is kept."""
    count = {}
    for name in ("none", "names"):
        text = str(jax.make_jaxpr(jax.grad(jax.checkpoint(in_scan, policy=POLICIES[name])))(X, W))
        count[name] = text.count("dot_general[")
    assert count["none"] == count["names"] + 1


def test_branches_share_places_for_what_they_keep():
    def f(x, w):
        return lax.cond(x.sum() > 0, layer, lambda x, w: jnp.cos(jnp.sin(x @ w) @ w), x, w).sum()

    shapes = lambda policy: [a.shape for a, _ in saved_residuals(jax.checkpoint(f, policy=policy), X, W)]
    assert shapes(None) == [(4, 4)] * 2  # the arguments; the predicate is made again
    assert shapes(POLICIES["names"]) == [(4, 4)] * 3
    assert shapes(POLICIES["dots"]) == [(4, 4)] * 4
    count = {}
    for name in ("none", "dots"):
        text = str(jax.make_jaxpr(jax.grad(jax.checkpoint(f, policy=POLICIES[name])))(X, W))
        count[name] = text.count("dot_general[")
    assert count["none"] == count["dots"] + 3


MESH = mesh_of(("x", 4))


def test_branches_in_maps_keep_what_they_gathered():
    def loss(policy):
        def body(x, w):
            gathered = lambda x, w: jnp.sin(x @ checkpoint_name(lax.all_gather(w, "x", tiled=True), "whole"))
            here = lax.psum(x.sum(), "x") > -1e3
            return lax.cond(here, gathered, lambda x, w: x + w.sum(), x, w)

        f = jax.checkpoint(jax.shard_map(body, in_specs=(P("x"), P("x")), out_specs=P("x")), policy=policy)
        return lambda x, w: list(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1))(x, w))

    x = RNG.standard_normal((8, 4)).astype(np.float32)
    y = np.cos(x @ W) * 2 * np.sin(x @ W)
    gathers = {}
    for name, policy in (("none", None), ("kept", policies.save_only_these_names("whole"))):
        slopes, _, _, world = run(loss(policy), [x, W], [P("x", None)] * 2, MESH)
        for slope, want in zip(slopes, (y @ W.T, x.T @ y)):
            np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-5)
        gathers[name] = world.calls["all_gather"] // 4
    assert gathers == {"none": 2, "kept": 1}


def gathered(policy: Any, slope: bool) -> Any:
    """A layer whose weight is gathered in the body, with scalars that vary and values that do not."""

    def body(x, w):
        whole = checkpoint_name(lax.all_gather(w, "x", tiled=True), "whole")
        scale = checkpoint_name(jnp.tanh(x.sum()), "scale")
        total = checkpoint_name(lax.psum(jnp.sin(x @ whole).sum(), "x"), "total")
        return jnp.sin(x @ whole) * scale * total

    f = jax.checkpoint(jax.shard_map(body, in_specs=(P("x"), P("x")), out_specs=P("x")), policy=policy)
    return lambda x, w: list(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1))(x, w)) if slope else [f(x, w)]


def test_maps_keep_what_they_gathered():
    specs = [P("x", None), P("x", None)]
    x, w = RNG.standard_normal((8, 4)).astype(np.float32), W

    def loss(v: np.ndarray, u: np.ndarray) -> float:
        y = np.sin(v @ u)
        scales = np.repeat([np.tanh(b.sum()) for b in np.split(v, 4)], 2)[:, None]
        return float(((y * scales * y.sum()) ** 2).sum())

    calls = {}
    names = {"none": None, "gathered": ("whole",), "all": ("whole", "scale", "total"), "sums": ("total",)}
    for name, kept in names.items():
        policy = None if kept is None else policies.save_only_these_names(*kept)
        slopes, _, _, world = run(gathered(policy, True), [x, w], specs, MESH)
        calls[name] = {k: n // 4 for k, n in world.calls.items()}
        h, exact = 1e-5, (x.astype(np.float64), w.astype(np.float64))
        for k, slope in enumerate(slopes):
            direction = RNG.standard_normal(slope.shape)
            step = [h * direction if i == k else 0 for i in range(2)]
            want = (loss(*(a + s for a, s in zip(exact, step))) - loss(*(a - s for a, s in zip(exact, step)))) / (2 * h)
            np.testing.assert_allclose((slope * direction).sum(), want, rtol=1e-3)
    assert calls["none"]["all_gather"] == 2
    assert calls["gathered"]["all_gather"] == calls["all"]["all_gather"] == 1
    assert calls["sums"]["all_reduce"] <= calls["none"]["all_reduce"]
