"""Training steps on ranks: in place, the same bits everywhere, and safe where a step runs within itself."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm

pytestmark = pytest.mark.mpi

WIDE, BATCH = 192, 12  # weights of 144 KB


def line():
    return jax.make_mesh((comm.size(),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))


def made():
    rng = np.random.default_rng(3)
    params = [(rng.standard_normal((WIDE, WIDE)) / 12, rng.standard_normal(WIDE)) for _ in range(3)]
    params = [(w.astype(np.float32), b.astype(np.float32)) for w, b in params]
    x = rng.standard_normal((BATCH * comm.size(), WIDE)).astype(np.float32)
    return params, x


def loss(params, x):
    for w, b in params:
        x = jax.nn.relu(x @ w + b)
    return jax.lax.pmean(jnp.mean(x * x), "x")


def step_of(inside=lambda value: None):
    mapped = jax.shard_map(loss, in_specs=(P(), P("x")), out_specs=P())

    def step(params, x):
        value, slopes = jax.value_and_grad(mapped)(params, x)
        inside(value)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, slopes)

    return step


def by_numpy(params, x):
    acts = [x.astype(np.float64)]
    for w, b in params:
        acts.append(np.maximum(acts[-1] @ w + b, 0))
    delta = 2 * acts[-1] / acts[-1].size
    new = []
    for (w, b), a, z in reversed(list(zip(params, acts, acts[1:]))):
        delta = delta * (z > 0)
        new.append((w - 0.1 * (a.T @ delta), b - 0.1 * delta.sum(0)))
        delta = delta @ np.asarray(w).T
    return np.mean(acts[-1] ** 2), new[::-1]


def leaves(params):
    return [np.array(v.addressable_data(0)) for v in jax.tree.leaves(params)]


def check(value, params, want_value, want):
    assert abs(float(value) - want_value) < 1e-4 * abs(want_value)
    mine = leaves(params)
    for got, w in zip(mine, (v for layer in want for v in layer), strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-4, atol=1e-5)
    told = comm.agree(comm.world_group(), [v.tobytes() for v in mine])
    assert all(t == told[0] for t in told), "replicas have different bits"


@pytest.mark.parametrize("donate", [False, True])
def test_data_parallel_steps(donate):
    host, x = made()
    with jax.set_mesh(line()):
        step = jax.jit(step_of(), donate_argnums=0 if donate else ())
        params = jax.device_put(host, P())
        data = jax.device_put(x, P("x"))
        want, places = host, None
        for _ in range(3):
            before = jax.tree.leaves(params)
            kept = leaves(params)
            value, params = step(params, data)
            want_value, want = by_numpy(want, x)
            check(value, params, want_value, want)
            assert all(v.is_deleted() == donate for v in before)
            if not donate:
                for v, k in zip(before, kept):
                    np.testing.assert_array_equal(np.asarray(v.addressable_data(0)), k)
            now = [v._block.__array_interface__["data"][0] for v in jax.tree.leaves(params)]
            assert not donate or places is None or now == places, "new memory for donated parameters"
            places = now


def test_a_step_that_runs_in_its_own_middle():
    """A callback calls the program that it is in: each run has a message of its own."""
    host, x = made()
    depth, inner = [0], []
    with jax.set_mesh(line()):
        params, data = jax.device_put(host, P()), jax.device_put(x, P("x"))
        other = jax.device_put(x[::-1].copy(), P("x"))

        def again(_):
            if depth[0] < 2:
                depth[0] += 1
                inner.append(step(params, other))

        def body(params, x):
            for w, b in params:
                x = jax.nn.relu(x @ w + b)
                jax.debug.callback(again, x[0, 0])
            return jax.lax.pmean(jnp.mean(x * x), "x")

        mapped = jax.shard_map(body, in_specs=(P(), P("x")), out_specs=P())

        @jax.jit
        def step(params, x):
            value, slopes = jax.value_and_grad(mapped)(params, x)
            return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, slopes)

        value, new = step(params, data)
        assert len(inner) == 2
        for got, rows in (((value, new), x), (inner[0], x[::-1]), (inner[1], x[::-1])):
            want_value, want = by_numpy(host, rows)
            check(*got, want_value, want)
