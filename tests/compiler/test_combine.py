"""Sums that do not wait for each other travel in one message."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from mpiarray.compiler.passes.combine import combine
from mpiarray.compiler.passes.simplify import closed
from mpiarray.core.check import check_jaxpr
from mpiarray.core.jaxpr import Jaxpr

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
