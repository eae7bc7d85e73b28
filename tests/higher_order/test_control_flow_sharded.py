"""Loops and conditionals over sharded values and in shard_map bodies: types, communication, errors, on a mesh of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import lax
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import lowered, mesh_of, run

F32 = np.float32
KINDS = [AxisType.Auto, AxisType.Explicit]
X, C = np.arange(32, dtype=F32).reshape(4, 8) / 8, np.arange(8, dtype=F32) / 4


def reference(c: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ys = []
    for r in x:
        c, y = c * 0.5 + r, (c + 1).sum()
        ys.append(y)
    return c, np.array(ys)


def loop(c: Any, x: Any) -> list[Any]:
    return list(lax.scan(lambda c, r: (c * 0.5 + r, (c + 1).sum()), c, x))


@pytest.mark.parametrize("kind", KINDS)
def test_a_carry_stays_where_it_lies(kind: AxisType) -> None:
    mesh = mesh_of(("x", 2), ("y", 2), kind=kind)
    outs, avals, specs, world = run(loop, [C, X], [P("x"), P(None, "x")], mesh)
    for got, want in zip(outs, reference(C, X)):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert specs[0] == P("x")
    assert world.calls == {"all_reduce": 4 * mesh.size}, "one sum in each iteration, and nothing else"
    if kind is AxisType.Explicit:
        assert [a.short() for a in avals] == ["f32[8@x]", "f32[4]"]
    text = [e.op.name for e in lowered(loop, [C, X], [P("x"), P(None, "x")], mesh).local.jaxpr.eqns]
    assert text == ["scan"]


@pytest.mark.parametrize(
    ("carry", "rows"),
    [(P(), P(None, "x")), (P("y"), P(None, "x")), (P(), P("x", "y")), (P(("x", "y")), P(None, ("y", "x")))],
)
def test_auto_carries_settle(carry: P, rows: P) -> None:
    """Where the body leaves the carry elsewhere than it came, it goes there first, or is brought back each time."""
    mesh = mesh_of(("x", 2), ("y", 2), kind=AxisType.Auto)
    outs = run(loop, [C, X], [carry, rows], mesh)[0]
    for got, want in zip(outs, reference(C, X)):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_auto_carry_that_starts_replicated_is_cut_once() -> None:
    mesh = mesh_of(("x", 4), kind=AxisType.Auto)
    _, _, specs, world = run(loop, [C, X], [P(), P(None, "x")], mesh)
    assert specs[0] == P("x")
    assert set(world.calls) == {"all_reduce"}


@pytest.mark.parametrize("kind", KINDS)
def test_while_and_cond_over_shards(kind: AxisType) -> None:
    mesh = mesh_of(("x", 2), ("y", 2), kind=kind)

    def f(c: Any) -> list[Any]:
        v, n = lax.while_loop(lambda s: s[0].sum() < 40, lambda s: (s[0] * 2, s[1] + 1), (c, 0))
        w = lax.cond(n > 1, lambda v: v - v.sum(), lambda v: v, v)
        return [v, n, w]

    (v, n, w), avals, specs, _ = run(f, [C], [P("x")], mesh)
    want, steps = C, 0
    while want.sum() < 40:
        want, steps = want * 2, steps + 1
    np.testing.assert_allclose(v, want)
    np.testing.assert_allclose(w, want - want.sum())
    assert int(n) == steps > 1
    assert specs[0] == specs[2] == P("x")
    if kind is AxisType.Explicit:
        assert avals[2].short() == "f32[8@x]"


def test_gradients_of_sharded_loops() -> None:
    mesh = mesh_of(("x", 2), ("y", 2))
    loss = lambda w, x: (lax.scan(lambda c, r: (jnp.sin(c * w + r), c), jnp.zeros_like(w), x)[0] ** 2).sum()
    got, avals, *_ = run(lambda w, x: jax.grad(loss, argnums=(0, 1))(w, x), [C, X], [P("x"), P(None, "x")], mesh)
    want = jax.grad(loss, argnums=(0, 1))(C, X)
    for g, w in zip(got, want):
        np.testing.assert_allclose(g, np.asarray(w), rtol=1e-5, atol=1e-6)
    assert [a.short() for a in avals] == ["f32[8@x]", "f32[4,8@x]"]


def test_explicit_shardings_are_checked() -> None:
    mesh = mesh_of(("x", 2), ("y", 2))
    with pytest.raises(TypeError, match=r"float32\[8\].*float32\[8@x\].*the shardings do not match"):
        run(loop, [C, X], [P(), P(None, "x")], mesh)
    with pytest.raises(ValueError, match=r"0th dimension of all xs should be replicated. Got P\('x', None\)"):
        run(loop, [C, X], [P(), P("x")], mesh)
    with pytest.raises(ValueError, match="0th dimension of all xs should be replicated"):
        run(lambda x: [lax.map(jnp.sum, x)], [X], [P("x")], mesh)
    with pytest.raises(TypeError, match=r"branches must have equal output types.*float32\[8@x\].*float32\[8\]"):
        run(lambda c: [lax.cond(c.sum() > 0, lambda: c, lambda: jnp.zeros(8))], [C], [P("x")], mesh)
    with pytest.raises(TypeError, match=r"float32\[8@x\].*float32\[8@y\]"):
        run(lambda c: [lax.while_loop(lambda c: True, lambda c: jax.reshard(c, P("y")), c)], [C], [P("x")], mesh)
    with pytest.raises(jax.errors.ShardingTypeError, match=r"associative_scan.*unsharded"):
        run(lambda c: [lax.associative_scan(jnp.add, c)], [C], [P("x")], mesh)


# -- in the bodies of maps -----------------------------------------------------------------------------------------

RING = [(k, (k + 1) % 4) for k in range(4)]
MAP = mesh_of(("i", 4))
SPLIT = P("i")


def mapped(
    body: Any, *args: Any, in_specs: Any = SPLIT, out_specs: Any = SPLIT, check_vma: bool = True, mesh: Any = MAP
) -> Any:
    f = jax.shard_map(body, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)
    specs = in_specs if isinstance(in_specs, tuple) else (in_specs,)
    return run(lambda *xs: jax.tree.leaves(f(*xs)), list(args), list(specs), mesh)


@pytest.mark.parametrize("check_vma", [True, False])
def test_collectives_in_loops(check_vma: bool) -> None:
    def body(b: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            c = lax.ppermute(c, "i", RING) + k
            return c, lax.psum(c.sum(), "i")

        return lax.scan(step, b, jnp.arange(3.0))

    outs, _, _, world = mapped(body, C, out_specs=(P("i"), P(None)), check_vma=check_vma)
    c, totals = C.reshape(4, 2), []
    for k in range(3):
        c = np.roll(c, 1, 0) + k
        totals.append(c.sum())
    np.testing.assert_allclose(outs[0], c.reshape(-1))
    np.testing.assert_allclose(outs[1], totals)
    assert world.calls == {"permute": 3 * 4, "all_reduce": 3 * 4}


def test_a_decision_that_all_instances_share_may_communicate() -> None:
    def body(b: Any) -> Any:
        b = lax.cond(lax.psum(b.sum(), "i") > 3, lambda b: b - lax.pmean(b, "i"), lambda b: b, b)
        return lax.while_loop(lambda c: lax.pmax(c.max(), "i") < 9, lambda c: c * 2 + lax.psum(c.sum(), "i") + 1, b)

    (got,), *_ = mapped(body, C)
    want = (C.reshape(4, 2) - C.reshape(4, 2).mean(0)).astype(F32)
    while want.max() < 9:
        want = want * 2 + want.sum() + 1
    np.testing.assert_allclose(got, want.reshape(-1), rtol=1e-5)


def test_instances_may_decide_otherwise_without_communicating() -> None:
    def body(b: Any) -> Any:
        steps = lax.while_loop(lambda c: c[0].sum() < 5, lambda c: (c[0] + 1, c[1] + 1), (b, jnp.zeros_like(b)))[1]
        return steps + lax.switch(lax.axis_index("i") % 3, [lambda v: v, lambda v: v * 10, lambda v: -v], b)

    (got,), *_ = mapped(body, C)
    want = []
    for i, block in enumerate(C.reshape(4, 2)):
        b, n = block, 0
        while b.sum() < 5:
            b, n = b + 1, n + 1
        want += list(n + block * (1, 10, -1)[i % 3])
    np.testing.assert_allclose(got, want)


@pytest.mark.parametrize(
    "body",
    [
        lambda b: lax.cond(b.sum() > 1, lambda b: b - lax.pmean(b, "i"), lambda b: b, b),
        lambda b: lax.while_loop(lambda c: c.sum() < 5, lambda c: c + lax.ppermute(c, "i", RING), b),
        lambda b: lax.switch(
            lax.axis_index("i"),
            [lambda b: b, lambda b: lax.scan(lambda c, _: (lax.all_gather(c, "i").sum(0), None), b, None, length=2)[0]],
            b,
        ),
        lambda b: lax.fori_loop(0, lax.axis_index("i"), lambda k, c: c + lax.pmax(c, "i"), b),
    ],
)
def test_collectives_that_not_all_instances_meet_are_refused(body: Any) -> None:
    with pytest.raises(
        ValueError, match="collective over 'i' under control flow that depends on a value varying over 'i'"
    ):
        mapped(body, C)


def test_collectives_over_other_axes_are_met() -> None:
    mesh = mesh_of(("i", 2), ("j", 2))
    x = np.arange(8, dtype=F32).reshape(2, 4)

    def body(b: Any) -> Any:  # both instances along j decide alike
        return lax.cond(lax.psum(b.sum(), "j") > 10, lambda b: b - lax.psum(b, "j"), lambda b: b, b)

    (got,), *_ = mapped(body, x, in_specs=P("i", "j"), out_specs=P("i", "j"), mesh=mesh)
    rows = [r - np.tile(r.reshape(2, 2).sum(0), 2) if r.sum() > 10 else r for r in x]
    np.testing.assert_allclose(got, rows)


def test_types_of_carries_and_branches_in_bodies() -> None:
    with pytest.raises(TypeError) as found:
        mapped(lambda b: lax.scan(lambda total, r: (total + r, None), jnp.float32(0), b)[0][None], C)
    for part in (
        "The input carry total has type float32[]",
        "float32[]{V:i}",
        "the manual axis types do not match",
        "jax.lax.pcast(..., ('i',), to='varying')",
    ):
        assert part in str(found.value)
    with pytest.raises(TypeError, match=r"loop_carry\[1\] has type float32\[2\] but.*float32\[2\]\{V:i\}"):
        mapped(lambda b: lax.fori_loop(0, 3, lambda k, v: v + b, jnp.zeros(2)), C)
    with pytest.raises(TypeError, match=r"while_loop body function(.|\n)*val has type float32\[2\] but.*\{V:i\}"):
        mapped(lambda b: lax.while_loop(lambda val: val.sum() < 3, lambda val: val + b, jnp.zeros(2)), C)
    with pytest.raises(TypeError, match=r"branches must have equal output types(.|\n)*pcast"):
        mapped(lambda b: lax.cond(b.sum() > 0, lambda: b, lambda: jnp.zeros(2)), C)
    seen = {}

    def body(b: Any) -> Any:
        last, rows = lax.scan(lambda c, v: (c * v, c + b), 1.0, jnp.arange(3.0) + 1)
        seen["types"] = jax.typeof(last).str_short(), jax.typeof(rows).str_short()
        return last, rows

    mapped(body, C, out_specs=(P(), P(None, "i")))
    assert seen["types"] == ("float32[]", "float32[3,2]{V:i}")


def test_gradients_of_loops_in_bodies() -> None:
    def body(b: Any, w: Any) -> Any:
        def step(c: Any, v: Any) -> Any:
            return jnp.sin(lax.ppermute(c, "i", RING) * v) + lax.pmean(c, "i"), None

        return lax.psum((lax.scan(step, b, w)[0] ** 2).sum(), "i")

    f = jax.shard_map(body, in_specs=(P("i"), P()), out_specs=P())
    w = np.array([0.5, 1.5, 0.7], F32)
    got, *_ = run(lambda b, w: jax.grad(f, argnums=(0, 1))(b, w), [C, w], [P("i"), P()], MAP)

    def whole(b: Any, w: Any) -> Any:
        c = b.reshape(4, 2)
        for k in range(3):
            c = jnp.sin(jnp.roll(c, 1, 0) * w[k]) + c.mean(0)
        return (c**2).sum()

    for g, want in zip(got, jax.grad(whole, argnums=(0, 1))(C, w)):
        np.testing.assert_allclose(g, np.asarray(want), rtol=1e-4, atol=1e-5)


def test_maps_in_loops() -> None:
    shift = jax.shard_map(lambda b: lax.ppermute(b, "i", RING) + 1, in_specs=P("i"), out_specs=P("i"))

    def f(x: Any) -> list[Any]:
        x = lax.fori_loop(0, 3, lambda k, c: shift(c), x)
        x, ys = lax.scan(lambda c, w: (shift(c) * w, c.sum()), x, 1.0 - jnp.arange(2.0) / 2)
        return [lax.cond(x.sum() > 0, shift, lambda v: v, x), ys]

    (got, ys), *_ = run(f, [C], [P("i")], MAP)
    move = lambda c: np.roll(c.reshape(4, 2), 1, 0).reshape(-1) + 1
    want = move(move(move(C)))
    sums = [want.sum()]
    want = move(want)
    sums.append(want.sum())
    want = move(move(want) * 0.5)
    np.testing.assert_allclose(got, want)
    np.testing.assert_allclose(ys, sums)


def test_gradients_of_what_a_loop_closes_over_are_summed_once() -> None:
    """Casts of invariant values are made outside of the loop, so that their transposes are not in it."""

    def body(b: Any, w: Any) -> Any:
        return lax.psum(lax.scan(lambda c, _: (jnp.sin(c * w), None), b, None, length=5)[0].sum(), "i")

    f = jax.shard_map(body, in_specs=(P("i"), P()), out_specs=P())
    (got,), _, _, world = run(lambda b, w: [jax.grad(f, argnums=1)(b, w)], [C, F32(0.7)], [P("i"), P()], MAP)
    assert world.calls["all_reduce"] <= 2 * 4, "one for the gradient, at most one for the value"

    def whole(w: Any) -> Any:
        c = C
        for _ in range(5):
            c = jnp.sin(c * w)
        return c.sum()

    np.testing.assert_allclose(got, np.asarray(jax.grad(whole)(F32(0.7))), rtol=1e-5)


def test_gradients_of_branches_that_instances_choose_for_themselves() -> None:
    def body(b: Any, w: Any, v: Any) -> Any:
        y = lax.cond(b.sum() > 1, lambda b: b * w, lambda b: jnp.sin(b) * v + w, b)
        y = lax.switch(lax.axis_index("i") % 2, [lambda y, v: y * v, lambda y, v: y + w * v], y, v)
        return lax.psum((y**2).sum(), "i")

    f = jax.shard_map(body, in_specs=(P("i"), P(), P()), out_specs=P())
    args = [C, F32(0.7), F32(1.3)]
    got, *_ = run(lambda *xs: jax.grad(f, argnums=(0, 1, 2))(*xs), args, [P("i"), P(), P()], MAP)

    def whole(x: Any, w: Any, v: Any) -> Any:
        total = 0.0
        for i in range(4):
            b = x[2 * i : 2 * i + 2]
            y = b * w if C[2 * i : 2 * i + 2].sum() > 1 else jnp.sin(b) * v + w
            y = y + w * v if i % 2 else y * v
            total += (y**2).sum()
        return total

    for g, want in zip(got, jax.grad(whole, argnums=(0, 1, 2))(*args)):
        np.testing.assert_allclose(g, np.asarray(want), rtol=1e-5)
