"""Masks that are made of rows and columns choose one after the other: the values, bit for bit, and that no mask is made whole."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from mpiarray.compiler.passes import fuse
from mpiarray.ops import tiles
from mpiarray.sharding import AxisType

ROWS, COLUMNS = 24, 32


@pytest.fixture(params=["groups", "single"])
def grouped(request, monkeypatch):
    monkeypatch.setattr(fuse, "_SMALLEST", 0 if request.param == "groups" else 1 << 60)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 100)


def mask_of(tree, parts):
    """A tree of ("&", a, b), ("|", a, b), ("~", a) and numbers of parts."""
    if isinstance(tree, int):
        return parts[tree]
    op, *terms = tree
    found = [mask_of(t, parts) for t in terms]
    return ~found[0] if op == "~" else found[0] & found[1] if op == "&" else found[0] | found[1]


def some_tree(rng, depth):
    kind = rng.integers(4) if depth else 0
    if kind == 0:
        return int(rng.integers(6))
    if kind == 1:
        return ("~", some_tree(rng, depth - 1))
    return ("&" if kind == 2 else "|", some_tree(rng, depth - 1), some_tree(rng, depth - 1))


def parts_of(u, xp):
    """Of rows, of columns, of both, of all elements, and of one."""
    i, j = xp.arange(ROWS)[:, None], xp.arange(COLUMNS)[None, :]
    return [i > 0, i < ROWS - 1, j > 2, xp.broadcast_to(j < 30, (ROWS, COLUMNS)), u > 0, u[3:4, 3:4] > 0]


@pytest.mark.parametrize("seed", range(40))
def test_trees_of_masks(seed, grouped):
    rng = np.random.default_rng(seed)
    tree = some_tree(rng, 4)
    u = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    u[rng.integers(ROWS, size=9), rng.integers(COLUMNS, size=9)] = np.nan

    def f(u, xp):
        return xp.where(mask_of(tree, parts_of(u, xp)), u * 2 - 1, xp.where(mask_of(tree, parts_of(-u, xp)), u, -u))

    want = f(u, np)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda u: f(u, jnp))(u)).view(np.uint32), want.view(np.uint32))


def inner(u, xp):
    i, j = xp.arange(u.shape[0])[:, None], xp.arange(u.shape[1])
    return (i > 0) & (i < u.shape[0] - 1) & (j > 0) & (j < u.shape[1] - 1)


def rim(u, xp):
    i, j = xp.arange(u.shape[0])[:, None], xp.arange(u.shape[1])
    return ~((i == 0) | (i == u.shape[0] - 1) | (j == 0) | (j == u.shape[1] - 1))


@pytest.mark.parametrize("mask", [inner, rim])
def test_no_mask_is_made_of_all_elements(mask):
    u = np.zeros((1024, 1024), np.float32)
    text = jax.jit(lambda u: jnp.where(mask(u, jnp), u * 2 + 1, u)).lower(u).compile().as_text()
    made = [line for line in text.splitlines() if "= bool[1024,1024]" in line]
    assert made and all(" broadcast(" in line for line in made)


@pytest.mark.mpi
@pytest.mark.parametrize("mask", [inner, rim])
@pytest.mark.parametrize("spec", [P("x"), P(None, "x")], ids=str)
def test_on_ranks(mask, spec, grouped):
    n = jax.device_count()
    u = np.random.default_rng(0).integers(-9, 9, (4 * n, 8 * n)).astype(np.float32)

    def f(u, xp):
        return xp.where(mask(u, xp), xp.roll(u, 1, 0) + xp.roll(u, -1, 1), u)

    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        got = jax.jit(lambda u: f(f(u, jnp), jnp))(jax.device_put(u, spec))
        np.testing.assert_array_equal(np.asarray(got), f(f(u, np), np))
