"""Stencils that are written over the array that they read: the values, to the bit, and who may be written over."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.compiler.passes import fuse
from mpiarray.ops import sweeps, tiles
from mpiarray.sharding import AxisType
from tests.peak import peak_of

F = np.float32


@pytest.fixture
def swept(monkeypatch):
    """Small tiles; how often a group wrote over its array is counted."""
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 24)
    monkeypatch.setattr(tiles, "_UNCUT_BYTES", 0)
    monkeypatch.setattr(sweeps, "_LATE", 2)
    called = sweeps.Swept.__call__
    overs = []

    def call(self, *blocks, over=None):
        overs.append(over is not None)
        return called(self, *blocks, over=over)

    monkeypatch.setattr(sweeps.Swept, "__call__", call)
    return overs


def torus(u, xp):
    return F(0.25) * (xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1))


def far(u, xp):
    """Reaches back over more than a tile."""
    return u - F(0.5) * xp.roll(u, 3, 0) + F(0.25) * xp.roll(u, (-2, 2), (0, 1))


def rim(u, xp):
    new = F(0.25) * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    if xp is jnp:
        return u.at[1:-1, 1:-1].set(new)
    u = u.copy()
    u[1:-1, 1:-1] = new
    return u


def surrounded(u, xp):
    wide = xp.pad(u, 1)
    return xp.maximum(wide[:-2, 1:-1] + wide[2:, 1:-1] - u, F(0))


def masked(u, xp):
    rows = xp.arange(u.shape[0])[:, None]
    return xp.where((rows > 1) & (rows < 7), F(0.5) * (xp.roll(u, 1, 0) + xp.roll(u, 1, 1)), u)


FORMS = [torus, far, rim, surrounded, masked]


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(F)


def repeated(f, steps):
    return lambda u: lax.fori_loop(0, steps, lambda _, u: f(u, jnp), u)


def by_hand(f, steps, u):
    for _ in range(steps):
        u = f(u, np)
    return u


@pytest.mark.mpi
@pytest.mark.parametrize("f", FORMS)
@pytest.mark.parametrize("spec", [P("x"), P(None, "x")], ids=str)
@pytest.mark.parametrize("donate", [(), (0,)], ids=["kept", "donated"])
def test_loops(f, spec, donate, swept):
    n = jax.device_count()
    x = numbers(8 * n, 6 * n)
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        u = jax.device_put(x, spec)
        got = jax.jit(repeated(f, 4), donate_argnums=donate)(u)
        np.testing.assert_array_equal(np.asarray(got), by_hand(f, 4, x))
        if not donate:
            np.testing.assert_array_equal(np.asarray(u), x)


@pytest.mark.parametrize("f", FORMS)
def test_a_loop_writes_over_its_carry_but_not_over_its_operand(f, swept):
    x = numbers(30, 6)
    np.testing.assert_array_equal(np.asarray(jax.jit(repeated(f, 4))(x)), by_hand(f, 4, x))
    assert len(swept) == 4
    if f is torus or f is far:  # others are given parts of the array
        assert swept == [False, True, True, True]


def test_a_steady_loop_makes_no_new_array():
    x = jnp.asarray(numbers(1500, 1024))
    f = jax.jit(repeated(rim, 6))
    np.testing.assert_array_equal(np.asarray(f(x)), by_hand(rim, 6, np.asarray(x)))
    _, peak = peak_of(lambda: f(x))
    assert peak <= 1.2 * x.nbytes


def test_carries_that_others_see_are_not_written_over(swept):
    x = numbers(20, 6)

    def step(u, _):
        new = torus(u, jnp)
        return new, u[3]

    last, rows = jax.jit(lambda u: lax.scan(step, u, None, length=3))(x)
    want = [by_hand(torus, k, x) for k in range(4)]
    np.testing.assert_array_equal(np.asarray(last), want[3])
    np.testing.assert_array_equal(np.asarray(rows), [w[3] for w in want[:3]])
    assert not any(swept)


def test_carries_that_change_places(swept):
    """The wave equation: the newest values may not be written over those that are read once more."""
    x = numbers(2, 20, 6)
    step = lambda u, v, xp: (F(2) * u - v + F(0.1) * torus(u, xp), u)
    u, v = x
    for _ in range(4):
        u, v = step(u, v, np)
    got = jax.jit(lambda u, v: lax.fori_loop(0, 4, lambda _, c: step(*c, jnp), (u, v)))(*x)
    for a, b in zip(got, (u, v)):
        np.testing.assert_array_equal(np.asarray(a), b)
    assert not any(swept)


def test_one_carry_twice(swept):
    """Two carries that are one block in the next iteration."""
    x = numbers(20, 6)
    loop = lambda u: lax.fori_loop(0, 3, lambda _, c: (torus(c[0], jnp),) * 2, (u, u))
    for got in jax.jit(loop)(x):
        np.testing.assert_array_equal(np.asarray(got), by_hand(torus, 3, x))
    assert not any(swept)


def test_two_steps_of_a_program_take_one_array(swept):
    x = numbers(20, 6)
    got = jax.jit(lambda u: far(torus(u, jnp), jnp) + 1)(x)
    np.testing.assert_array_equal(np.asarray(got), far(torus(x, np), np) + 1)
    assert swept == [True]  # the second one, over what the first has made


def test_a_value_that_the_group_reads_again_is_written_at_once(swept):
    x = numbers(20, 6)

    def step(c, xp):
        u, _ = c
        new = torus(u, xp)
        return new, xp.max(xp.abs(new - u))

    u, largest = jax.jit(lambda u: lax.fori_loop(0, 3, lambda _, c: step(c, jnp), (u, F(0))))(x)
    want = (x, F(0))
    for _ in range(3):
        want = step(want, np)
    np.testing.assert_array_equal(np.asarray(u), want[0])
    assert float(largest) == want[1]


def test_a_loop_in_a_loop(swept):
    x = numbers(20, 6)
    outer = lambda u: lax.fori_loop(0, 2, lambda _, u: rim(repeated(torus, 2)(u), jnp), u)
    want = x
    for _ in range(2):
        want = rim(by_hand(torus, 2, want), np)
    np.testing.assert_array_equal(np.asarray(jax.jit(outer)(x)), want)
