"""Training with parameters split in types on Explicit axes, on real ranks: what is sent, and what a rank holds.

The reference is numpy on the global arrays; what is sent is read from the compiled text and counted while it runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.comm.stats import counting
from tests.higher_order.tanh_layers import by_hand
from tests.peak import peak_of
from tests.runtime.on_ranks import grid, line, placed, ranks, same, under

pytestmark = pytest.mark.mpi

P = jax.P


def network(widths: Sequence[int], batch: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(5)
    weights = [(rng.standard_normal((a, b)) / a**0.5).astype("f") for a, b in itertools.pairwise(widths)]
    return weights, rng.standard_normal((batch, widths[0])).astype("f")


def check(found: Any, ws: Sequence[np.ndarray], x: np.ndarray, rtol: float = 1e-4) -> None:
    loss, grads = by_hand(ws, x)
    np.testing.assert_allclose(float(found[0]), loss, rtol=rtol)
    for got, want in zip(found[1], grads):
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=rtol, atol=rtol * np.abs(want).max())


@under(line)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_fsdp(dim: int, half: bool) -> None:
    """half: the weights are gathered and used as bfloat16, and the gradients are summed before they are cast."""
    n = ranks()
    ws, x = network([8 * n, 16 * n, 8 * n], 2 * n)
    spec = P("x", None) if dim == 0 else P(None, "x")
    params, batch = [placed(w, line(), *spec) for w in ws], placed(x, line(), "x", None)

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            w = jax.reshard(w.astype(jnp.bfloat16) if half else w, P(None, None))
            x = jnp.tanh((x.astype(w.dtype) @ w).astype(jnp.float32))
        return (x**2).mean()

    step = jax.jit(jax.value_and_grad(loss))
    text = step.lower(params, batch).compile().as_text()
    step(params, batch)
    with counting() as counts:
        found = step(params, batch)
    check(found, ws, x, rtol=5e-2 if half else 1e-4)
    assert [g.sharding.spec for g in found[1]] == [spec, spec]
    if n > 1:
        together = 1 if n > 2 else len(ws)  # small ones of more than two ranks travel in one message
        assert text.count("reduce-scatter(") == len(ws) and counts.calls["reduce_scatter"] == together
        assert text.count("all-reduce(") == counts.calls["all_reduce"] == 1  # the loss
        assert counts.bytes["all_reduce"] == 4
        assert counts.bytes["reduce_scatter"] == sum(w.size for w in ws) * (2 if half else 4)
        casts = len(ws) if half else together  # the second one is cast after the first gather
        assert text.count("all-gather(") == len(ws) and counts.calls["all_gather"] == casts


@under(grid)
def test_fsdp_with_tensor_parallelism() -> None:
    """Columns over y, rows over x: every gradient is summed over x alone, to its own rows."""
    n = ranks()
    ws, x = network([8 * n, 16 * n], 2 * n)
    w, batch = placed(ws[0], grid(), "x", "y"), placed(x, grid(), "x", None)

    def loss(params: Any, x: Any) -> Any:
        return (jnp.tanh(x @ jax.reshard(params[0], P(None, "y"))) ** 2).mean()

    step = jax.jit(jax.value_and_grad(loss))
    step([w], batch)
    with counting() as counts:
        found = step([w], batch)
    check(found, ws, x)
    assert found[1][0].sharding.spec == P("x", "y")
    sizes = dict(grid().shape)
    if sizes["x"] > 1:
        assert counts.calls["reduce_scatter"] == 1
        assert counts.bytes["reduce_scatter"] == ws[0].nbytes // sizes["y"]
        assert counts.bytes["all_reduce"] <= 8


@under(line)
def test_layers_in_a_scan() -> None:
    """The bodies of loops are scattered too: one reduce-scatter for every layer's gradient."""
    n, depth = ranks(), 3
    ws, x = network([8 * n] * (depth + 1), 2 * n)
    stack, batch = placed(np.stack(ws), line(), None, "x", None), placed(x, line(), "x", None)

    def loss(stack: Any, x: Any) -> Any:
        layer = lambda x, w: (jnp.tanh(x @ jax.reshard(w, P(None, None))), None)
        return (jax.lax.scan(layer, x, stack)[0] ** 2).mean()

    step = jax.jit(jax.value_and_grad(loss))
    step(stack, batch)
    with counting() as counts:
        value, grads = step(stack, batch)
    check((value, list(np.asarray(grads))), ws, x)
    if n > 1:
        assert counts.calls["reduce_scatter"] == depth
        assert counts.bytes["reduce_scatter"] == stack.nbytes
        assert counts.calls["all_reduce"] == 1


@under(line)
def test_sums_of_integers_are_exact() -> None:
    n = ranks()
    a = (np.arange(4 * n * 6 * n) * 7919 % 1013).astype(np.int32).reshape(4 * n, 6 * n)

    @jax.jit
    def f(a: Any) -> Any:
        c = jnp.einsum("ki,kj->ij", a, a[:, : 2 * n] + 1, out_sharding=P(None, None))
        return jax.reshard(-c.T, P(None, "x"))

    array = placed(a, line(), "x", None)
    f(array)
    with counting() as counts:
        got = f(array)
    same(got, -(a.T @ (a[:, : 2 * n] + 1)).T)
    assert counts.calls == ({"reduce_scatter": 1} if n > 1 else {})


# -- tensor parallelism ----------------------------------------------------------------------------------------


def tensor_parallel(manual: bool) -> Any:
    """The loss of pairs of layers, the first split by columns and the second by rows, by `shard_map` or in types."""

    def pair(x: Any, first: Any, second: Any) -> Any:
        hidden = jnp.tanh(x @ first)
        if manual:
            return jnp.tanh(jax.lax.psum(hidden @ second, "x"))
        return jnp.tanh(jnp.einsum("bh,ho->bo", hidden, second, out_sharding=P(None, None)))

    def loss(params: Any, x: Any) -> Any:
        for first, second in zip(params[::2], params[1::2]):
            x = pair(x, first, second)
        return (x**2).mean()

    if not manual:
        return loss
    specs = lambda params: [P("x", None) if k % 2 else P(None, "x") for k in range(len(params))]
    return lambda params, x: jax.shard_map(loss, in_specs=(specs(params), P()), out_specs=P())(params, x)


@under(line)
@pytest.mark.parametrize("manual", [False, True], ids=["in types", "shard_map"])
def test_tensor_parallel_training_never_builds_a_global_weight(manual: bool) -> None:
    """Peak memory of a rank in a step that updates the weights, against its share of them; and what it sends."""
    n = ranks()
    width, depth, batch = 128 * n, 6, 4
    ws, x = network([width] * (depth + 1), batch)
    params = [placed(w, line(), *(("x", None) if k % 2 else (None, "x"))) for k, w in enumerate(ws)]
    loss = tensor_parallel(manual)

    @jax.jit
    def step(params: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, grads, [w - 0.1 * g for w, g in zip(params, grads)]

    data = placed(x, line())
    step(params, data)
    with counting() as counts:
        found, peak = peak_of(lambda: step(params, data))
    weight, share = width * width * 4, depth * width * width * 4 // n
    # gradients and new weights, each a share; little beside them
    assert 2 * share <= peak < 2 * share + 1.2 * weight // n
    blocks = re.findall(r"f32\[(\d+),(\d+)\]", step.lower(params, data).compile().as_text())
    assert max(int(a) * int(b) * 4 for a, b in blocks) == weight // n
    if n > 1:
        activations = depth // 2 * batch * width * 4
        assert set(counts.calls) == {"all_reduce"}
        # forward one sum for each pair, and backward one for each pair but the first, whose input is data
        assert counts.bytes["all_reduce"] <= 2 * activations + 64
    check(found[:2], ws, x)
    for new, w, g in zip(found[2], ws, by_hand(ws, x)[1]):
        np.testing.assert_allclose(np.asarray(new), w - 0.1 * g, rtol=1e-4, atol=1e-6)
        assert {s.data.nbytes for s in new.addressable_shards} == {weight // n}
