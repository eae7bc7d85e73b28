"""Compositions inside shard_map on real ranks, against a reference that slices and loops in numpy.

Every case is a function of several ops and collectives of one axis, and the same function of the blocks of all instances
along that axis at once: a list in, a list out.  Runs on every mesh and spec that fits, eagerly and under jit, with and without check_vma,
and, where it is smooth, its gradient against differences of the reference in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import lax
from tests.runtime.on_ranks import Auto, Explicit, close, grid, line, placed, ranks

pytestmark = pytest.mark.mpi

P = jax.P
Blocks = list[np.ndarray]

# The weight that bodies close over: the same on all ranks.
WEIGHT = (np.arange(36).reshape(6, 6) % 7 - 3).astype(np.float32) / 4


class Case(NamedTuple):
    """body(x, w, axis, n) on the instance's block x [r, 6]; reference(blocks, w) of all blocks along the axis."""

    body: Callable[[Any, Any, str, int], Any]
    reference: Callable[[Blocks, np.ndarray], Blocks]
    smooth: bool = True


def ring(n: int, step: int = 1) -> list[tuple[int, int]]:
    return [(k, (k + step) % n) for k in range(n)]


def scattered(x: Any, axis: str) -> Any:
    return lax.psum_scatter(x, axis, scatter_dimension=0, tiled=True)


def passed_on(x: Any, w: Any, axis: str, n: int, unroll: Any = 1) -> Any:
    """A sum over the ring, one neighbour a time, in a scan."""

    def step(carry: Any, k: Any) -> Any:
        held, total = carry
        held = lax.ppermute(held, axis, ring(n))
        return (held, total + held * (k + 1)), held.sum()

    (_, total), sums = lax.scan(step, (x, jnp.zeros_like(x)), jnp.arange(n, dtype=x.dtype), unroll=unroll)
    return total + sums.sum()


def passed_on_reference(bs: Blocks, w: np.ndarray) -> Blocks:
    n, out = len(bs), []
    for i in range(n):
        total, sums = np.zeros_like(bs[0]), 0.0
        for k in range(n):
            held = bs[(i - k - 1) % n]
            total = total + held * (k + 1)
            sums = sums + held.sum()
        out.append(total + sums)
    return out


def ring_product(x: Any, w: Any, axis: str, n: int) -> Any:
    """x @ (all blocks)ᵀ by rotation: the columns of block j at j."""
    me, r = lax.axis_index(axis), x.shape[0]

    def step(k: Any, carry: Any) -> Any:
        held, out = carry
        part = x @ held.T
        return lax.ppermute(held, axis, ring(n)), lax.dynamic_update_slice(out, part, (0, (me - k) % n * r))

    start = lax.pcast(jnp.zeros((r, n * r), x.dtype), axis, to="varying") if varies(x, axis) else None
    out = jnp.zeros((r, n * r), x.dtype) + 0 * x.sum() if start is None else start + 0 * x.sum()
    return lax.fori_loop(0, n, step, (x, out))[1]


def varies(x: Any, axis: str) -> bool:
    return axis in jax.typeof(x).vma


def softmax_of_all(x: Any, w: Any, axis: str, n: int) -> Any:
    """A softmax along the sharded dim: sums and a maximum that is not differentiated."""
    top = lax.pmax(lax.stop_gradient(x).max(0), axis)
    e = jnp.exp(x - top)
    return e / lax.psum(e.sum(0), axis)


def softmax_reference(bs: Blocks, w: np.ndarray) -> Blocks:
    x = np.concatenate(bs)
    e = np.exp(x - x.max(0))
    return np.split(e / e.sum(0), len(bs))


def exclusive(x: Any, w: Any, axis: str, n: int) -> Any:
    """Sums of the blocks before this one: a select by the index of gathered totals."""
    totals = lax.all_gather(x.sum(0), axis)
    before = jnp.arange(n) < lax.axis_index(axis)
    return x + jnp.where(before[:, None], totals, 0).sum(0)


def branches(x: Any, w: Any, axis: str, n: int) -> Any:
    """A branch that instances agree on: its predicate is a sum over the axis."""
    return lax.cond(lax.psum((x**2).sum(), axis) > 0, lambda v: lax.psum(v, axis) * v, lambda v: v, x)


def once_more(x: Any, w: Any, axis: str, n: int) -> Any:
    f = jax.checkpoint(lambda v: jnp.tanh(lax.all_gather(v, axis, tiled=True) @ w))
    return scattered(f(x) * 2, axis)


def halo(x: Any, w: Any, axis: str, n: int) -> Any:
    left = lax.ppermute(x[-1:], axis, [(k, k + 1) for k in range(n - 1)])
    right = lax.ppermute(x[:1], axis, [(k + 1, k) for k in range(n - 1)])
    y = jnp.concatenate([left, x, right])
    return y[2:] - 2 * y[1:-1] + y[:-2]


def halo_reference(bs: Blocks, w: np.ndarray) -> Blocks:
    x = np.concatenate(bs)
    y = np.concatenate([0 * x[:1], x, 0 * x[:1]])
    return np.split(y[2:] - 2 * y[1:-1] + y[:-2], len(bs))


def looped(x: Any, w: Any, axis: str, n: int) -> Any:
    """A while loop whose end all instances find alike."""
    keep = lambda c: lax.psum(jnp.abs(c).sum(), axis) > 1
    return lax.while_loop(keep, lambda c: c / 2 - lax.pmean(c, axis) / 8, x)


def looped_reference(bs: Blocks, w: np.ndarray) -> Blocks:
    while sum(np.abs(b).sum() for b in bs) > 1:
        mean = sum(bs) / len(bs)
        bs = [b / 2 - mean / 8 for b in bs]
    return bs


def mapped_rows(x: Any, w: Any, axis: str, n: int) -> Any:
    return jax.vmap(lambda row: lax.psum(row @ w, axis) * row + lax.axis_index(axis))(x)


CASES: dict[str, Case] = {
    "psum of a dot": Case(
        lambda x, w, a, n: lax.psum(jnp.tanh(x @ w), a) * x,
        lambda bs, w: [sum(np.tanh(c @ w) for c in bs) * b for b in bs],
    ),
    "gather, elementwise, scatter": Case(
        lambda x, w, a, n: scattered(jnp.sin(lax.all_gather(x, a, tiled=True)) * (lax.axis_index(a) + 1), a),
        lambda bs, w: np.split(np.sin(np.concatenate(bs)) * sum(range(1, len(bs) + 1)), len(bs)),
    ),
    "remat of a gathered dot": Case(
        once_more, lambda bs, w: np.split(2 * len(bs) * np.tanh(np.concatenate(bs) @ w), len(bs))
    ),
    "ppermute in scan": Case(passed_on, passed_on_reference),
    "ppermute in a scan by twos": Case(lambda *args: passed_on(*args, unroll=2), passed_on_reference),
    "ppermute in an unrolled scan": Case(lambda *args: passed_on(*args, unroll=True), passed_on_reference),
    "ring product": Case(ring_product, lambda bs, w: [b @ np.concatenate(bs).T for b in bs]),
    "softmax over blocks": Case(softmax_of_all, softmax_reference),
    "exclusive sums": Case(exclusive, lambda bs, w: [b + sum(c.sum(0) for c in bs[:k]) for k, b in enumerate(bs)]),
    "cond on a sum": Case(branches, lambda bs, w: [sum(bs) * b for b in bs]),
    "halo": Case(halo, halo_reference),
    "while on a sum": Case(looped, looped_reference, smooth=False),
    "vmap of psum": Case(
        mapped_rows, lambda bs, w: [sum(c @ w for c in bs) * b + np.float32(k) for k, b in enumerate(bs)]
    ),
    "all_to_all twice": Case(
        lambda x, w, a, n: lax.all_to_all(
            jnp.cos(lax.all_to_all(jnp.concatenate([x] * n, 1), a, 1, 0, tiled=True)), a, 0, 1, tiled=True
        ),
        lambda bs, w: [np.cos(np.concatenate([b] * len(bs), 1)) for b in bs],
    ),
    "mean and variance": Case(
        lambda x, w, a, n: (
            (x - lax.pmean(x.mean(0), a)) * lax.rsqrt(lax.pmean(((x - lax.pmean(x.mean(0), a)) ** 2).mean(0), a) + 1)
        ),
        lambda bs, w: [(b - np.mean(bs, (0, 1))) / np.sqrt(np.var(bs, (0, 1)) + 1) for b in bs],
    ),
}


def data(rows: int, dtype: Any = np.float32) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.uniform(-1, 1, (rows, 6)).astype(dtype)


def expected(case: Case, x: np.ndarray, sizes: dict[str, int], axis: str) -> np.ndarray:
    """The result, rows split over x and then y, of a body that communicates over one of them."""
    nx, ny = sizes["x"], sizes.get("y", 1)
    blocks = np.array(np.split(x, nx * ny)).reshape(nx, ny, -1, x.shape[1])
    w = WEIGHT.astype(x.dtype)
    if axis == "x":
        columns = [case.reference(list(blocks[:, j]), w) for j in range(ny)]
        return np.concatenate([columns[j][i] for i, j in itertools.product(range(nx), range(ny))])
    return np.concatenate([b for i in range(nx) for b in case.reference(list(blocks[i]), w)])


def runs() -> list[tuple[Any, str, Any]]:
    """(mesh, axis of the collectives, spec of the rows)"""
    found: list[tuple[Any, str, Any]] = [(line(kind), "x", "x") for kind in (Explicit, Auto)]
    return [*found, (grid(), "x", ("x", "y")), (grid(), "y", ("x", "y"))]


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    case = CASES[name]
    x = data(2 * ranks() ** 2)
    for mesh, axis, rows in runs():
        sizes = dict(mesh.shape)
        want = expected(case, x, sizes, axis)
        for check_vma in (True, False):
            weight = placed(WEIGHT, mesh)
            closed = lambda b, weight=weight, axis=axis, n=sizes[axis]: case.body(b, weight, axis, n)
            f = jax.shard_map(closed, mesh=mesh, in_specs=P(rows), out_specs=P(rows), check_vma=check_vma)
            for g in (f, jax.jit(f)):
                got = np.asarray(g(placed(x, mesh, rows)))
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"{axis} of {mesh}, {check_vma=}")


@pytest.mark.parametrize("name", [k for k, c in CASES.items() if c.smooth])
def test_gradients(name: str) -> None:
    """By the rows and by the weight, along one direction, against a difference of the reference in float64."""
    case = CASES[name]
    x = data(2 * ranks() ** 2)
    for mesh, axis, rows in runs():
        sizes = dict(mesh.shape)
        rng = np.random.default_rng(11)
        direction = rng.standard_normal(x.shape)
        factor = rng.standard_normal(expected(case, x, sizes, axis).shape)

        def loss(v: np.ndarray, sizes: Any = sizes, axis: str = axis, factor: Any = factor) -> float:
            return float((expected(case, v, sizes, axis) * factor).sum())

        h = 1e-4
        exact = x.astype(np.float64)
        want = (loss(exact + h * direction) - loss(exact - h * direction)) / (2 * h)
        for check_vma in (True, False):
            body = lambda b, w, axis=axis, n=sizes[axis]: case.body(b, w, axis, n)
            f = jax.shard_map(body, mesh=mesh, in_specs=(P(rows), P()), out_specs=P(rows), check_vma=check_vma)
            scale = placed(factor.astype(np.float32), mesh, rows)
            g = jax.grad(lambda v, w, f=f, scale=scale: (f(v, w) * scale).sum())
            for run in (g, jax.jit(g)):
                slope = np.asarray(run(placed(x, mesh, rows), placed(WEIGHT, mesh)), np.float64)
                np.testing.assert_allclose(
                    (slope * direction).sum(), want, rtol=2e-3, atol=2e-2, err_msg=f"{axis} of {mesh}, {check_vma=}"
                )


# -- maps in maps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("slope", [False, True])
def test_nested_maps(compiled: bool, slope: bool) -> None:
    """A map over y in a map over x: sums over one and over the other."""
    mesh = grid(Auto)
    nx, ny = dict(mesh.shape).values()
    x = data(2 * nx * ny)

    def outer(block: Any) -> Any:
        inner = jax.shard_map(
            lambda b: jnp.tanh(b) * lax.psum(b, "y") + lax.psum(b.sum(), ("x", "y")),
            in_specs=P("y"), out_specs=P("y"), axis_names={"y"},
        )  # fmt: skip
        return inner(block) - lax.pmean(block.mean(), "x")

    def reference(x: np.ndarray) -> np.ndarray:
        out = []
        for block in np.split(x, nx):
            parts = np.split(block, ny)
            out += [np.tanh(p) * sum(parts) + x.sum() - x.mean() for p in parts]
        return np.concatenate(out)

    array = placed(x, mesh, "x")
    f = jax.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    if not slope:
        close((jax.jit(f) if compiled else f)(array), reference(x), 1e-4)
        return
    g = jax.grad(lambda v: (f(v) ** 2).sum())
    got = np.asarray((jax.jit(g) if compiled else g)(array), np.float64)
    direction = np.random.default_rng(2).standard_normal(x.shape)
    h = 1e-5
    exact = x.astype(np.float64)
    loss = lambda v: (reference(v) ** 2).sum()
    want = (loss(exact + h * direction) - loss(exact - h * direction)) / (2 * h)
    np.testing.assert_allclose((got * direction).sum(), want, rtol=1e-3)
