"""Loops, conditionals and vmap in shard_map bodies and over arrays on real ranks, eagerly and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm, lax
from mpiarray.types.mesh import AxisType
from tests.runtime.on_ranks import grid, line, placed, ranks

pytestmark = pytest.mark.mpi

P = jax.P
KINDS = [AxisType.Explicit, AxisType.Auto]


def both(f: Any, *args: Any) -> list[Any]:
    """Results of eager and of compiled runs, as numpy arrays."""
    return [jax.tree.map(np.asarray, g(*args)) for g in (f, jax.jit(f))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_body_with_everything(kind: AxisType, check_vma: bool) -> None:
    n = ranks()
    x = np.arange(4 * n, dtype=np.float32)
    with jax.set_mesh(line(kind)):
        outside, host = jnp.arange(4.0), np.arange(4, dtype=np.float32)

        @jax.shard_map(in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)
        def f(b: Any) -> Any:
            c, _ = lax.scan(lambda c, r: (c * outside + host + r + b, None), b * 0, outside)
            c = lax.fori_loop(0, 2, lambda k, c: c + outside * k, c)
            c = lax.cond(lax.psum(b.sum(), "x") > -1, lambda: c * outside, lambda: c)
            return lax.while_loop(lambda c: lax.pmax(c.max(), "x") < 1e4, lambda c: c * 2 + outside, c)

        found = both(f, placed(x, line(kind), "x"))
    w = np.arange(4, dtype=np.float32)
    c = np.zeros((n, 4), np.float32)
    for r in w:
        c = c * w + w + r + x.reshape(n, 4)
    c = (c + w) * w
    while c.max() < 1e4:
        c = c * 2 + w
    for got in found:
        np.testing.assert_allclose(got, c.reshape(-1), rtol=1e-6)


def test_one_message_for_each_collective_and_iteration() -> None:
    n = ranks()
    ring = [(k, (k + 1) % n) for k in range(n)]
    with jax.set_mesh(line()):
        x = placed(np.arange(2 * n, dtype=np.float32), line(), "x")

        @jax.shard_map(in_specs=P("x"), out_specs=(P("x"), P(None)))
        def f(b: Any) -> Any:
            step = lambda c, k: (lax.ppermute(c, "x", ring) + k, lax.psum(c.sum(), "x"))
            return lax.scan(step, b, jnp.arange(5.0))

        for g in (f, jax.jit(f)):
            g(x)  # compiled now
            with comm.counting() as count:
                last, totals = g(x)
            if n > 1:
                assert count.calls == {"permute": 5, "all_reduce": 5}
            want, sums = np.arange(2 * n, dtype=np.float32).reshape(n, 2), []
            for k in range(5):
                sums.append(want.sum())
                want = np.roll(want, 1, 0) + k
            np.testing.assert_array_equal(np.asarray(last), want.reshape(-1))
            np.testing.assert_array_equal(np.asarray(totals), sums)


def test_instances_decide_for_themselves() -> None:
    n = ranks()
    with jax.set_mesh(line()):

        @jax.shard_map(in_specs=P("x"), out_specs=(P("x"), P("x")))
        def f(b: Any) -> Any:
            steps = lax.while_loop(lambda c: c[0][0] > 0, lambda c: (c[0] // 2, c[1] + 1), (b, jnp.zeros_like(b)))[1]
            return steps, lax.switch(lax.axis_index("x") % 3, [lambda v: v, lambda v: v * 10, lambda v: -v], b)

        for steps, chosen in both(f, placed(np.arange(n, dtype=np.int32), line(), "x")):
            assert list(steps) == [int(k).bit_length() for k in range(n)]
            assert list(chosen) == [k * (1, 10, -1)[k % 3] for k in range(n)]


@pytest.mark.parametrize("kind", KINDS)
def test_partial_manual_bodies(kind: AxisType) -> None:
    """Loops whose bodies communicate over a manual axis, on values that lie over another one."""
    mesh = grid(kind)
    nx, ny = mesh.shape["x"], mesh.shape["y"]
    x = np.arange(4 * nx * ny * 2, dtype=np.float32).reshape(2 * nx, 4 * ny)
    ring = [(k, (k + 1) % ny) for k in range(ny)]
    with jax.set_mesh(mesh):

        @jax.shard_map(in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})
        def f(b: Any) -> Any:
            c = lax.scan(lambda c, k: (lax.ppermute(c, "y", ring) * 0.5 + k, c.sum()), b, jnp.arange(3.0))[0]
            c = lax.fori_loop(0, 2, lambda k, c: c + k + b, c)
            return lax.cond(lax.psum(b.sum(), "y") > 0, lambda c: c - lax.pmean(c, "y"), lambda c: c, c)

        array = placed(x, mesh, "x", "y")
        found = both(f, array)
    want = x.reshape(2 * nx, ny, 4)
    start = want
    for k in range(3):
        want = np.roll(want, 1, 1) * 0.5 + k
    want = want + 1 + 2 * start
    want = want - want.mean(1, keepdims=True)
    for got in found:
        np.testing.assert_allclose(got, want.reshape(x.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_loops_over_sharded_arrays(kind: AxisType) -> None:
    n = ranks()
    x = np.arange(3 * 2 * n, dtype=np.float32).reshape(3, 2 * n) / 8
    with jax.set_mesh(line(kind)):
        rows, zeros = placed(x, line(kind), None, "x"), placed(np.zeros(2 * n, np.float32), line(kind), "x")
        f = lambda c, rows: lax.scan(lambda c, r: (jnp.sin(c) + r, (c * r).sum()), c, rows)
        found = both(f, zeros, rows)
        grads = both(jax.grad(lambda rows: (f(zeros, rows)[0] ** 2).sum()), rows)
    c, sums = np.zeros(2 * n), []
    for r in x:
        sums.append((c * r).sum())
        c = np.sin(c) + r
    for last, ys in found:
        np.testing.assert_allclose(last, c, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ys, sums, rtol=1e-4)
    a = np.sin(x[0]) + x[1]
    outer = 2 * (np.sin(a) + x[2])
    want = np.stack([outer * np.cos(a) * np.cos(x[0]), outer * np.cos(a), outer])
    for got in grads:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_vmap_over_a_sharded_dim() -> None:
    n = ranks()
    x = np.arange(2 * n * 3, dtype=np.float32).reshape(2 * n, 3)
    with jax.set_mesh(line()):
        array = placed(x, line(), "x", None)
        with comm.counting() as count:
            got = jax.vmap(lambda r: (r * 2, r.sum(), lax.cond(r[0] > 6, jnp.sin, jnp.cos, r)))(array)
        assert not count.calls, "examples are independent"
        assert [jax.typeof(v).short() for v in got] == [f"f32[{2 * n}@x,3]", f"f32[{2 * n}@x]", f"f32[{2 * n}@x,3]"]
        np.testing.assert_allclose(
            np.asarray(got[2]), np.where(x[:, :1] > 6, np.sin(x), np.cos(x)), rtol=1e-5, atol=1e-6
        )
        for got in both(jax.vmap(lambda r: r - lax.pmean(r, "b"), axis_name="b"), array):
            np.testing.assert_allclose(got, x - x.mean(0), rtol=1e-5, atol=1e-5)


def test_vmap_in_and_around_bodies() -> None:
    n = ranks()
    x = np.arange(3 * 2 * n, dtype=np.float32).reshape(3, 2 * n)
    with jax.set_mesh(line()):
        f = jax.shard_map(lambda b: b - lax.pmean(b.mean(), "x"), in_specs=P("x"), out_specs=P("x"))
        for got in both(jax.vmap(f), placed(x, line(), None, "x")):
            np.testing.assert_allclose(got, x - x.mean(1, keepdims=True), rtol=1e-4, atol=1e-4)

        @jax.shard_map(in_specs=P(None, "x"), out_specs=P(None, "x"))
        def g(b: Any) -> Any:
            return jax.vmap(lambda r: r * lax.axis_index("rows") + lax.psum(r.sum(), ("rows", "x")), axis_name="rows")(
                b
            )

        for got in both(g, placed(x, line(), None, "x")):
            np.testing.assert_allclose(got, x * np.arange(3)[:, None] + x.sum(), rtol=1e-5)


def test_every_rank_raises_the_same() -> None:
    with jax.set_mesh(line()):
        x = placed(np.arange(2 * ranks(), dtype=np.float32), line(), "x")
        run = lambda body: jax.shard_map(body, in_specs=P("x"), out_specs=P("x"))(x)
        with pytest.raises(TypeError, match=r"scan body function carry input(.|\n)*\{V:x\}(.|\n)*pcast"):
            run(lambda b: lax.scan(lambda c, r: (c + r, None), 0.0, b)[0][None])
        with pytest.raises(ValueError, match="collective over 'x' under control flow"):
            run(lambda b: lax.cond(b.sum() > 1, lambda b: lax.pcast(lax.pmax(b, "x"), "x", to="varying"), lambda b: b, b))  # fmt: skip
        with pytest.raises(NotImplementedError, match="Closing over inputs to shard_map"):
            run(lambda b: lax.fori_loop(0, 2, lambda k, c: c + x, b))
