"""Sums that do not wait for each other travel in one message."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from mpiarray.compiler.passes.combine import combine
from mpiarray.compiler.passes.simplify import closed
from mpiarray.core.check import check_jaxpr
from mpiarray.core.jaxpr import Jaxpr
from mpiarray.ops import together

MESH = jax.sharding.AbstractMesh((8,), ("x",), (jax.sharding.AxisType.Explicit,))
BY_X, REPLICATED = P("x"), P()


def lowered(f, *args):
    with jax.sharding.use_abstract_mesh(MESH):
        return jax.jit(f).lower(*args)


def reductions(f, *args) -> list[str]:
    return [line for line in lowered(f, *args).compile().as_text().splitlines() if "all-reduce(" in line]


def block(*shape: int, dtype: str = "float32", spec: P = BY_X):
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype), sharding=jax.NamedSharding(MESH, spec))


def summed(body, outs=REPLICATED):
    return jax.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=outs)


def test_independent_sums_of_one_dtype_are_one_message():
    f = summed(lambda x: (jax.lax.psum(x, "x"), jax.lax.psum(x * 2, "x"), jax.lax.psum(x.sum(), "x")))
    (line,) = reductions(f, block(16))
    assert line.count("f32[2]") == 2
    assert "f32[]" in line


def test_dtypes_are_apart():
    f = summed(lambda x: (jax.lax.psum(x, "x"), jax.lax.psum(x.astype(np.int32), "x"), jax.lax.psum(2 * x, "x")))
    assert len(reductions(f, block(16))) == 2


def test_sums_that_wait_for_each_other_are_apart():
    def body(x):
        total = jax.lax.psum(x, "x")
        return total, jax.lax.psum(x * total, "x"), jax.lax.psum(x + 1, "x")

    first, second = reductions(summed(body), block(16))
    assert first.count("f32[2]") == 2
    assert second.count("f32[2]") == 1


def test_more_than_a_message_is_split():
    old = jax.config.exchange_bytes
    jax.config.update("exchange_bytes", 16)
    try:
        f = summed(lambda x: tuple(jax.lax.psum(k * x, "x") for k in range(1, 6)))
        assert len(reductions(f, block(16))) == 3  # 8 bytes each, two in a message
    finally:
        jax.config.update("exchange_bytes", old)


def test_the_gradients_of_a_data_parallel_step_are_one_message():
    def loss(params, x):
        for w, b in params:
            x = jnp.tanh(x @ w + b)
        return jnp.mean(x**2)

    sizes = [8, 16, 16, 4]
    params = [(block(a, b, spec=P(None, None)), block(b, spec=P(None))) for a, b in itertools.pairwise(sizes)]
    found = reductions(jax.value_and_grad(loss), params, block(16, 8, spec=P("x", None)))
    assert len(found) == 1
    assert found[0].count("f32[") == 7  # the loss, three weights, three biases


def test_in_the_bodies_of_loops():
    def body(carry, _):
        a, b = carry
        return (jax.lax.psum(a, "x") * 0.5, jax.lax.psum(b, "x") * 0.5), None

    def f(x):
        return summed(lambda x: jax.lax.scan(lambda c, _: (jax.lax.pcast(body(c, _)[0], "x", to="varying"), None), (x, 2 * x), None, length=3)[0], P("x"))(x)  # fmt: skip

    text = lowered(f, block(16)).compile().as_text()
    assert text.count("all-reduce(") == 1


def test_costs_count_every_operand():
    together = lowered(summed(lambda x: (jax.lax.psum(x, "x"), jax.lax.psum(x * 2, "x"))), block(16))
    alone = lowered(summed(lambda x: jax.lax.psum(x, "x")), block(16))
    a, b = (low.compile().cost_analysis() for low in (together, alone))
    assert a["communication bytes"] == 2 * b["communication bytes"]
    assert a["communication messages"] == b["communication messages"]


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_stay_in_order(seed):
    """Whatever depends on what: operands come first, and every sum is in one message of its own level."""
    rng = np.random.default_rng(seed)

    def body(x):
        values = [x, x + 1, x * 2]
        for _ in range(int(rng.integers(4, 14))):
            a, b = (values[int(k)] for k in rng.integers(0, len(values), 2))
            new = jax.lax.pcast(jax.lax.psum(a, "x"), "x", to="varying") if rng.random() < 0.5 else a * b
            values.append(new)
        return tuple(jax.lax.psum(v, "x") for v in values)

    with jax.sharding.use_abstract_mesh(MESH):
        jaxpr: Jaxpr = closed(jax.make_jaxpr(summed(body))(block(16)))
    (eqn,) = [e for e in jaxpr.eqns if e.op.name == "shard_map"]
    inner = eqn.params["jaxpr"]
    inner = getattr(inner, "jaxpr", inner)
    after = combine(inner)
    check_jaxpr(after, after="combine", types=False)
    sums = [e for e in after.eqns if e.op.name in ("psum_invariant", "psum_many")]
    assert sum(len(e.outvars) for e in sums) == sum(e.op.name == "psum_invariant" for e in inner.eqns)
    level: dict = {}
    for e in after.eqns:
        depth = max((level.get(v, 0) for v in e.invars if hasattr(v, "aval") and not hasattr(v, "val")), default=0)
        level.update((v, depth + (e in sums)) for v in e.outvars)
    assert len(sums) == max(level.values(), default=0)


# -- gathers, and sums that are scattered


def spread_step(params, x):
    """A step of descent of layers whose weights and biases are spread by rows."""

    def loss(params):
        y = x
        for w, b in params:
            w, b = (jax.lax.all_gather(v, "x", tiled=True) for v in (w, b))
            y = jnp.tanh(y @ w + b)
        return jax.lax.pmean(jnp.sum(y * y), "x")

    return jax.tree.map(lambda p, slope: p - 0.1 * slope, params, jax.grad(loss)(params))


def spread_layers(count: int, make, narrow: int = 160, wide: int = 1280):
    return [(make(a, b), make(b)) for k in range(count) for a, b in [(narrow, wide) if k % 2 == 0 else (wide, narrow)]]


def messages(rows: list[str], kind: str) -> list[str]:
    """Of the lines of such collectives the first one of each message."""
    return [row for row in rows if f" {kind}(" in row and ("message=" not in row or "message=1 " in row)]


def test_biases_that_are_spread_travel_together():
    step = jax.shard_map(spread_step, mesh=MESH, in_specs=(BY_X, BY_X), out_specs=BY_X)
    lowering = lowered(step, spread_layers(6, block), block(16, 160))
    rows = lowering.compile().as_text().splitlines()
    for kind in ("all-gather", "reduce-scatter"):
        assert sum(f" {kind}(" in row for row in rows) == 6 + 6
        mine = messages(rows, kind)
        assert len(mine) == 6 + 1, "a message for each weight, one for all biases"
        assert sum(row.endswith("message=1 of 6") for row in mine) == 1
    cost = lowering.cost_analysis()
    sizes = 6 * 160 * 1280 * 4, 3 * (160 + 1280) * 4
    assert cost["communication bytes all-gather"] == cost["communication bytes reduce-scatter"] == sum(sizes) * 7 / 8
    text = "\n".join(rows)
    assert text.index(" dot(") > text.index("message=6 of 6"), "the biases are gathered first"


def test_gathers_of_what_is_not_there_yet_come_later():
    def body(x):
        y = 2 * x
        a, b = jax.lax.all_gather(x, "x"), jax.lax.all_gather(y, "x")
        u, v = a[0] * x, b[0] + x
        return a, b, jax.lax.all_gather(u, "x"), jax.lax.all_gather(v, "x")

    text = lowered(jax.shard_map(body, mesh=MESH, in_specs=BY_X, out_specs=P(None, "x")), block(64)).compile().as_text()
    assert text.count(" all-gather(") == 4 and len(messages(text.splitlines(), "all-gather")) == 2


def test_two_ranks_send_each_alone():
    mesh = jax.sharding.AbstractMesh((2,), ("x",), (jax.sharding.AxisType.Explicit,))
    body = lambda x, y: (jax.lax.all_gather(x, "x"), jax.lax.all_gather(y, "x"))
    args = [jax.ShapeDtypeStruct((16,), np.float32, sharding=jax.NamedSharding(mesh, BY_X)) for _ in range(2)]
    mapped = jax.shard_map(body, mesh=mesh, in_specs=BY_X, out_specs=P(None, "x"))
    assert jax.jit(mapped).lower(*args).compile().as_text().count(" all-gather(") == 2


WAYS = [(0, True), (1, True), (0, False), (1, False), (2, False)]


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, np.bool_])
def test_many_are_what_each_is(dtype):
    n = jax.device_count()
    rng = np.random.default_rng(jax.process_index())
    blocks = [np.asarray(rng.integers(0, 9, (n, n, 3 * k + 1)), dtype)[..., ::-1] for k in range(len(WAYS))]
    group = comm.world_group()
    gathers = together._Gathers(group, WAYS)
    for _ in range(2):  # with new buffers, and with kept ones
        for found, x, way in zip(gathers(*blocks), blocks, WAYS, strict=True):
            np.testing.assert_array_equal(found, comm.all_gather(group, x, *way))
            assert found.flags.c_contiguous and found.flags.writeable
    if dtype != np.bool_:
        scatters = together._Scatters(group, ways := [w for w in WAYS if w != (2, False)])
        for _ in range(2):
            for found, x, (dim, tiled) in zip(scatters(*blocks[: len(ways)]), blocks, ways, strict=False):
                np.testing.assert_array_equal(found, comm.reduce_scatter(group, x, dim, "sum", tiled))


@pytest.mark.mpi
def test_a_step_with_spread_biases():
    n = jax.device_count()
    rng = np.random.default_rng(0)
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32) / 8
    params, x = spread_layers(2, make, 4 * n, 6 * n), make(2 * n, 4 * n)
    with jax.set_mesh(jax.make_mesh((n,), ("x",))):
        placed = jax.tree.map(lambda v: jax.device_put(v, P("x")), (params, x))
        mapped = jax.shard_map(spread_step, in_specs=(BY_X, BY_X), out_specs=BY_X)
        got = jax.tree.map(np.asarray, jax.jit(mapped)(*placed))
    (w, b), (v, c) = [[a.astype(np.float64) for a in layer] for layer in params]
    y = np.tanh(x @ w + b)
    z = np.tanh(y @ v + c)
    last = 2 * z * (1 - z * z) / n
    first = last @ v.T * (1 - y * y)
    slopes = [(x.T @ first, first.sum(0)), (y.T @ last, last.sum(0))]
    for mine, layer, of_layer in zip(got, params, slopes, strict=True):
        for a, p, slope in zip(mine, layer, of_layer, strict=True):
            np.testing.assert_allclose(a, p - 0.1 * slope, rtol=1e-4, atol=1e-5)
