"""Sums that are placed later, on a mesh of threads: scattered where that sends less, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from tests.ops.pretended_mesh import lowered, mesh_of, run

MESH = mesh_of(("x", 2), ("y", 4))
A = np.arange(8 * 16, dtype=np.float32).reshape(8, 16) % 11
B = np.arange(8 * 24, dtype=np.float32).reshape(8, 24) % 7
C = A.T @ B  # f32[16,24], of 1536 bytes


def product(a: Any, b: Any, columns: Any = None) -> Any:
    """Over the sharded rows: a sum is pending over their axes."""
    return jnp.einsum("ki,kj->ij", a, b, out_sharding=P(None, columns))


def sent(f: Any, want: Any, rows: Any = "x", **tolerances: Any) -> tuple[dict[str, float], float]:
    """Collectives and bytes for each device; the value is compared."""
    (got,), _, _, world = run(lambda a, b: [f(a, b)], [A, B], [P(rows, None), P(rows, None)], MESH)
    np.testing.assert_allclose(got, want, rtol=1e-6, **tolerances)
    return {k: v / 8 for k, v in world.calls.items()}, sum(world.bytes.values()) / 8


CHAINS = [
    (lambda c: c.T, C.T),
    (lambda c: -c.T, -C.T),
    (lambda c: jnp.exp(c.T * 1e-3).astype(jnp.float16), np.exp(C.T * 1e-3).astype(np.float16)),
    (lambda c: (c / 4).reshape(16, 4, 6).transpose(0, 2, 1), (C / 4).reshape(16, 4, 6).transpose(0, 2, 1)),
    (lambda c: c.reshape(16, 4, 6).sum(2), C.reshape(16, 4, 6).sum(2)),
]


@pytest.mark.parametrize(("chain", "want"), CHAINS, ids=range(len(CHAINS)))
@pytest.mark.parametrize("rows", ["x", "y", ("x", "y")], ids=str)
def test_a_chain_that_ends_sharded_is_one_reduce_scatter(chain, want, rows):
    """Over the target's dims one after another, where they can be made without moving anything else."""
    size = {"x": 2, "y": 4}
    n = int(np.prod([size[a] for a in rows])) if isinstance(rows, tuple) else size[rows]
    for dim in range(want.ndim):
        if want.shape[dim] % n:
            continue
        target = P(*(rows if d == dim else None for d in range(want.ndim)))
        calls, nbytes = sent(lambda a, b, t=target: jax.reshard(chain(product(a, b)), t), want, rows, atol=1e-3)
        assert calls.pop("reduce_scatter") == 1, target
        if want.shape[dim] == 6:  # half of every group of six: no part of the columns before the reshape
            assert calls.pop("all_to_all", 1) == 1
        else:
            assert nbytes == C.nbytes  # what each device puts in; it receives its own part
        assert not calls, target


def test_two_axes_of_a_sum_go_to_two_dims():
    calls, _ = sent(lambda a, b: jax.reshard(product(a, b).T, P("y", "x")), C.T, ("x", "y"))
    assert calls == {"reduce_scatter": 2}


def test_a_sum_over_one_axis_keeps_the_other():
    """Tensor parallel: the columns are sharded already, the sum's axis goes to the rows."""

    def f(a: Any, b: Any) -> list[Any]:
        return [jax.reshard(product(a, b, "y").T, P("y", "x"))]

    (got,), _, _, world = run(f, [A, B], [P("x", None), P("x", "y")], MESH)
    np.testing.assert_array_equal(got, C.T)
    assert {k: v / 8 for k, v in world.calls.items()} == {"reduce_scatter": 1}
    assert world.bytes["reduce_scatter"] / 8 == C.nbytes / 4


NOT_SCATTERED = [
    ("read twice", lambda c: jax.reshard(c.T, P("x", None)) + c.T[0, 0], C.T + C[0, 0]),
    ("stays whole", lambda c: -c.T, -C.T),
    ("another axis", lambda c: jax.reshard(c.T, P("y", None)), C.T),
    ("a link sums over the dim", lambda c: jax.reshard(c.sum(0), P("x")), C.sum(0)),
]


@pytest.mark.parametrize(("name", "f", "want"), NOT_SCATTERED, ids=[n for n, _, _ in NOT_SCATTERED])
def test_what_is_reduced_whole(name, f, want):
    calls, _ = sent(lambda a, b: f(product(a, b)), want)
    if name == "a link sums over the dim":  # the other dim can still be scattered, the one that the link keeps
        assert calls == {"reduce_scatter": 1}
    else:
        assert calls["all_reduce"] == 1
        assert "reduce_scatter" not in calls


def test_equations_that_another_operand_holds_back():
    """Another operand that lies whole would have to be cut: the sum is made before they meet."""
    other = np.float32(2) + np.arange(24 * 16, dtype=np.float32).reshape(24, 16)

    def f(a: Any, b: Any, o: Any) -> list[Any]:
        return [jax.reshard(product(a, b).T * o, P("x", None))]

    specs = [P("x", None), P("x", None), P(None, None)]
    (got,), _, _, world = run(f, [A, B, other], specs, MESH)
    np.testing.assert_allclose(got, C.T * other, rtol=1e-6)
    assert world.calls["all_reduce"] == 8


def test_gradients_of_gathered_weights_are_scattered():
    """FSDP written with `reshard`: gradients are reduce-scattered, each of the whole weight's size; small ones in one message."""
    mesh = mesh_of(("x", 4))
    rng = np.random.default_rng(0)
    x, v, w = (rng.standard_normal(s).astype(np.float32) for s in ((8, 16), (16, 32), (32, 8)))

    def loss(ws: list[Any], x: Any) -> Any:
        for weight in ws:
            x = jnp.tanh(x @ jax.reshard(weight, P(None, None)))
        return (x**2).mean()

    def f(x: Any, v: Any, w: Any) -> list[Any]:
        value, grads = jax.value_and_grad(loss)([v, w], x)
        return [value, *grads]

    outs, avals, _, world = run(f, [x, v, w], [P("x", None), P("x", None), P(None, "x")], mesh)
    assert [a.short() for a in avals] == ["f32[]", "f32[16@x,32]", "f32[32,8@x]"]
    assert {k: n / 4 for k, n in world.calls.items()} == {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 1}
    assert world.bytes["reduce_scatter"] / 4 == v.nbytes + w.nbytes
    assert world.bytes["all_reduce"] / 4 == 4
    y = np.tanh(x @ v)
    z = np.tanh(y @ w)
    back = 2 * z / z.size * (1 - z**2)
    np.testing.assert_allclose(outs[0], (z**2).mean(), rtol=1e-5)
    np.testing.assert_allclose(outs[2], y.T @ back, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(outs[1], x.T @ (back @ w.T * (1 - y**2)), rtol=1e-4, atol=1e-6)


def test_the_program_of_every_device_is_one():
    f = lambda a, b: [jax.reshard(product(a, b).T, P("x", None))]
    specs = [P("x", None), P("x", None)]
    assert str(lowered(f, [A, B], specs, MESH).local) == str(lowered(f, [A, B], specs, MESH).local)
