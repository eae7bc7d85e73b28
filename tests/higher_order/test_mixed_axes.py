"""Collectives over an axis that vmap maps together with mesh axes or other mapped ones, and over one whose examples devices divide."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.types.mesh import AxisType
from tests.ops.pretended_mesh import mesh_of, run

RNG = np.random.default_rng(5)
MESH = mesh_of(("x", 2), ("y", 2))
SIZES = {"x": 2, "y": 2, "b": 3, "c": 2}
SHAPE = (12, 24)  # the block of an instance
SHIFT = [(k, (k + 5) % 12) for k in range(12)]
SOME = [(0, 7), (7, 0), (3, 3), (4, 11), (10, 1), (11, 2), (2, 8)]
ANY = list(enumerate(map(int, np.random.default_rng(1).permutation(12))))

Case = tuple[
    Callable[..., Any], Callable[[np.ndarray], np.ndarray]
]  # of a block and axes; of all blocks, in the group's order


def permuted(perm: list[tuple[int, int]]) -> Case:
    def by_hand(b: np.ndarray) -> np.ndarray:
        out = np.zeros_like(b)
        for s, t in perm:
            out[t] = b[s]
        return out

    return lambda v, axes: lax.ppermute(v, axes, perm), by_hand


def exchanged(split: int, concat: int) -> Case:
    def by_hand(b: np.ndarray) -> np.ndarray:
        parts = [np.split(x, len(b), split) for x in b]
        return np.stack([np.concatenate([p[k] for p in parts], concat) for k in range(len(b))])

    return lambda v, axes: lax.all_to_all(v, axes, split, concat, tiled=True), by_hand


def swapped(split: int, concat: int) -> Case:
    def by_hand(b: np.ndarray) -> np.ndarray:
        b = b.reshape(len(b), 12, 4, 6) if split == 0 else b.reshape(len(b), 4, 12, 6)
        return np.stack([np.stack([x.take(k, split) for x in b], concat) for k in range(len(b))])

    shape = (12, 4, 6) if split == 0 else (4, 12, 6)
    return lambda v, axes: lax.all_to_all(v.reshape(shape), axes, split, concat), by_hand


CASES: dict[str, Case] = {
    "shift": permuted(SHIFT),
    "some": permuted(SOME),
    "any": permuted(ANY),
    "exchange 0 1": exchanged(0, 1),
    "exchange 1 0": exchanged(1, 0),
    "exchange 1 1": exchanged(1, 1),
    "swap 0 2": swapped(0, 2),
    "swap 1 0": swapped(1, 0),
    "broadcast": (lambda v, axes: lax.pbroadcast(v, axes, 8), lambda b: np.stack([b[8]] * 12)),
    "index": (lambda v, axes: v + lax.axis_index(axes), lambda b: b + np.arange(12).reshape(-1, 1, 1)),
}
ORDERS = [o for n in (1, 2) for m in itertools.combinations("xy", n) for o in itertools.permutations(("b", *m))]


def in_group_order(x: np.ndarray, axes: tuple[str, ...], have: str, name: str) -> tuple[np.ndarray, Callable[..., Any]]:
    """`x` of shape (*instances along `have`, *block) as (instances that `axes` do not tell apart, group, *block), and the way back."""
    if name in ("shift", "some", "any"):  # ppermute counts mesh axes in mesh order
        meshes = iter(sorted(a for a in axes if a in "xy"))
        axes = tuple(next(meshes) if a in "xy" else a for a in axes)
    rest = [a for a in have if a not in axes]
    order = [have.index(a) for a in (*rest, *axes)]
    moved = x.transpose(*order, *range(len(have), x.ndim))
    n = len(rest)

    def back(y: np.ndarray) -> np.ndarray:
        y = y.reshape(*moved.shape[: len(have)], *y.shape[2:])
        return y.transpose(*np.argsort(order), *range(len(have), y.ndim))

    return moved.reshape(int(np.prod(moved.shape[:n])), -1, *x.shape[len(have) :]), back


def expected(x: np.ndarray, axes: tuple[str, ...], have: str, name: str) -> np.ndarray:
    groups, back = in_group_order(x, axes, have, name)
    return back(np.stack([CASES[name][1](g) for g in groups]))


SIX = ["shift6", "exchange 0 1", "broadcast6", "index6"]
CASES["shift6"] = permuted([(k, (k + 2) % 6) for k in range(6)])
CASES["broadcast6"] = (lambda v, axes: lax.pbroadcast(v, axes, 4), lambda b: np.stack([b[4]] * 6))
CASES["index6"] = (lambda v, axes: v + lax.axis_index(axes), lambda b: b + np.arange(6).reshape(-1, 1, 1))


def applied(name: str, axes: tuple[str, ...], check_vma: bool = True) -> Callable[..., Any]:
    """Of an array (x, y, b, *block)."""
    one = lambda v: CASES[name][0](v, axes)
    body = lambda blocks: jax.vmap(one, in_axes=0, out_axes=1, axis_name="b")(blocks[0, 0])[None, None]
    f = jax.shard_map(body, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=check_vma)
    return lambda x: jnp.moveaxis(f(x), 3, 2)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axes", [("b", "x", "y"), ("y", "b", "x"), ("y", "x", "b")])
@pytest.mark.parametrize("name", [n for n in CASES if n not in SIX or n == "exchange 0 1"])
def test_over_both_mesh_axes(name: str, axes: tuple[str, ...], check_vma: bool) -> None:
    x = RNG.standard_normal((2, 2, 3, *SHAPE)).astype(np.float32)
    (got,), *_ = run(lambda x: [applied(name, axes, check_vma)(x)], [x], [P("x", "y")], MESH)
    np.testing.assert_allclose(got, expected(x, axes, "xyb", name), rtol=1e-6)


@pytest.mark.parametrize("axes", [("b", "x"), ("x", "b"), ("b", "y"), ("y", "b")])
@pytest.mark.parametrize("name", SIX)
def test_over_one_mesh_axis(name: str, axes: tuple[str, ...]) -> None:
    x = RNG.standard_normal((2, 2, 3, *SHAPE)).astype(np.float32)
    (got,), *_ = run(lambda x: [applied(name, axes)(x)], [x], [P("x", "y")], MESH)
    np.testing.assert_allclose(got, expected(x, axes, "xyb", name), rtol=1e-6)


@pytest.mark.parametrize("axes", [("b", "c"), ("c", "b")])
@pytest.mark.parametrize("name", SIX)
def test_over_two_mapped_axes(name: str, axes: tuple[str, ...]) -> None:
    x = RNG.standard_normal((3, 2, *SHAPE)).astype(np.float32)
    one = lambda v: CASES[name][0](v, axes)
    for f in (one, jax.jit(one)):
        got = jax.vmap(jax.vmap(f, axis_name="c"), axis_name="b")(x)
        np.testing.assert_allclose(got, expected(x, axes, "bc", name), rtol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["shift", "some", "exchange 1 0", "swap 0 2", "broadcast"])
def test_transposes(name: str, check_vma: bool) -> None:
    """<f(x), c> = <x, f^T(c)>, taken around the map and for each example in it."""
    axes = ("y", "b", "x")
    x = RNG.standard_normal((2, 2, 3, *SHAPE)).astype(np.float32)
    c = RNG.standard_normal(expected(x, axes, "xyb", name).shape).astype(np.float32)

    def inside(v: Any, w: Any) -> Any:
        return jax.vjp(lambda v: CASES[name][0](v, axes), v)[1](w)[0]

    body = lambda v, w: jax.vmap(inside, axis_name="b")(v[0, 0], w[0, 0])[None, None]
    each = jax.shard_map(body, in_specs=(P("x", "y"),) * 2, out_specs=P("x", "y"), check_vma=check_vma)
    f = applied(name, axes, check_vma)
    (back, same), *_ = run(lambda x, c: [jax.vjp(f, x)[1](c)[0], each(x, c)], [x, c], [P("x", "y")] * 2, MESH)
    np.testing.assert_allclose((x * back).sum(), (c * expected(x, axes, "xyb", name)).sum(), rtol=1e-3)
    np.testing.assert_allclose(same, back, rtol=1e-5)


def test_only_what_moves_travels() -> None:
    """Of three examples per device one goes on; the other two stay."""
    x = RNG.standard_normal((2, 2, 3, 5)).astype(np.float32)
    perm = [(k, (k + 1) % 6) for k in range(6)]
    f = jax.shard_map(
        lambda v: jax.vmap(lambda e: lax.ppermute(e, ("x", "b"), perm), axis_name="b")(v[0, 0])[None, None],
        in_specs=P("x", "y"), out_specs=P("x", "y"),
    )  # fmt: skip
    (got,), _, _, world = run(lambda x: [f(x)], [x], [P("x", "y")], MESH)
    flat = x.transpose(1, 0, 2, 3).reshape(2, 6, 5)
    np.testing.assert_array_equal(got.transpose(1, 0, 2, 3).reshape(2, 6, 5), np.roll(flat, 1, 1))
    assert world.calls["permute"] == 4  # once on each of four devices


def test_sizes_that_do_not_fit() -> None:
    f = lambda v: lax.all_to_all(v, ("b", "c"), 0, 0, tiled=True)
    with pytest.raises(ValueError, match="divisible by the size of the named axis"):
        jax.vmap(jax.vmap(f, axis_name="c"), axis_name="b")(np.ones((3, 2, 4)))


# -- examples divided by spmd_axis_name --------------------------------------------------------------------------------

AUTO = mesh_of(("x", 2), ("y", 2), kind=AxisType.Auto)
X = RNG.standard_normal((4, 8)).astype(np.float32)


def until(c: Any) -> Any:
    return lax.while_loop(lambda c: jnp.abs(c[0]) < 20.0, lambda c: 2 * c + lax.psum(jnp.abs(c), "b"), c)


OVER: dict[str, Callable[..., Any]] = {
    "psum": lambda a: a * lax.psum(a, "b"),
    "psum of the same": lambda a: a * lax.psum(jnp.float32(2), "b"),
    "pmean": lambda a: a - lax.pmean(a, "b"),
    "pmax": lambda a: lax.pmax(a, "b") + lax.pmin(a, "b"),
    "all_gather": lambda a: lax.all_gather(a, "b")[::-1].sum(0) * jnp.arange(4.0),
    "all_gather tiled": lambda a: lax.all_gather(a, "b", axis=0, tiled=True)[3:7],
    "psum_scatter": lambda a: lax.psum_scatter(a, "b", tiled=True) + a,
    "psum_scatter untiled": lambda a: lax.psum_scatter(a, "b") + a,
    "all_to_all": lambda a: lax.all_to_all(a, "b", 0, 0, tiled=True),
    "ppermute": lambda a: lax.ppermute(a, "b", [(0, 1), (1, 3), (3, 2)]),
    "pbroadcast": lambda a: lax.pbroadcast(a, "b", 2) * a,
    "axis_index": lambda a: a * lax.axis_index("b") + lax.axis_size("b"),
    "with y": lambda a: a * lax.psum(lax.psum(a, "b"), "y") + lax.axis_index(("b", "y")),
    "while": until,
    "scan": lambda a: lax.scan(lambda c, _: (c + lax.psum(a, "b") / 4, c.sum()), jnp.zeros_like(a), None, length=3)[0],
    "psum over the dividing axis": lambda a: a * lax.psum(a, "x") + lax.pmax(a, "x"),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", OVER)
def test_examples_that_devices_divide(name: str, check_vma: bool) -> None:
    """The same with and without `spmd_axis_name`, and so are derivatives."""
    f = jax.shard_map(OVER[name], in_specs=P("y"), out_specs=P("y"), check_vma=check_vma)

    def both(x: Any) -> list[Any]:
        maps = [jax.vmap(f, axis_name="b", spmd_axis_name=spmd) for spmd in (None, "x")]
        outs = [m(x) for m in maps]
        if name in ("while", "pmax", "psum over the dividing axis"):
            return outs
        return outs + [jax.grad(lambda x, m=m: (jnp.sin(m(x)) ** 2).sum())(x) for m in maps]

    found, *_ = run(both, [X], [P()], AUTO)
    for plain, divided in zip(found[::2], found[1::2], strict=True):
        assert np.isfinite(plain).all()
        np.testing.assert_allclose(divided, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("check_vma", [True, False])
def test_derivatives_inside_of_divided_examples(check_vma: bool) -> None:
    w = RNG.standard_normal(8).astype(np.float32)
    body = lambda a, w: lax.psum((jnp.sin(a) * w).sum(), "y")
    f = jax.shard_map(body, in_specs=(P("y"), P("y")), out_specs=P(), check_vma=check_vma)
    slopes = lambda x, w: list(jax.vmap(jax.grad(f, (0, 1)), (0, None), spmd_axis_name="x")(x, w))
    (by_x, by_w), *_ = run(slopes, [X, w], [P(), P()], AUTO)
    np.testing.assert_allclose(by_x, np.cos(X) * w, rtol=1e-5)
    np.testing.assert_allclose(by_w, np.sin(X), rtol=1e-5)


def test_an_example_has_no_place_along_the_dividing_axis() -> None:
    for body in (lambda a: a + lax.axis_index("x"), lambda a: lax.ppermute(a, "x", [(0, 1)])):
        f = jax.shard_map(body, in_specs=P("y"), out_specs=P("y"), check_vma=False)
        with pytest.raises(ValueError, match=r"spmd_axis_name='x' gives the devices along it different examples"):
            run(lambda x, f=f: [jax.vmap(f, spmd_axis_name="x")(x)], [X], [P()], AUTO)
