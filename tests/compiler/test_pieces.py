"""Shifted arrays and concatenations that groups read in pieces: the values, and that nothing is put together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from mpiarray.comm import collectives, halves
from mpiarray.compiler.passes import fuse
from mpiarray.ops import shape as shape_ops
from mpiarray.ops import tiles
from mpiarray.sharding import AxisType


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 13)
    monkeypatch.setattr(tiles, "_LONG", 2)  # the few columns at a border are copied


def rolled(x, xp):
    around = xp.roll(x, 1, 0) + xp.roll(x, -1, 0) + xp.roll(x, 2, 1) + xp.roll(x, -1, 1)
    return 0.25 * around - xp.roll(x, (1, -2), (0, 1)) * x


def sliced(x, xp):
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    return 0.25 * around * x[1:-1, 1:-1]


def joined(x, xp):
    wide = xp.concatenate([x[-1:], x, x[:1]], 0)
    return xp.concatenate([x, x * 2, x[:2]], 0) * xp.concatenate([wide, wide], 0)[: 2 * x.shape[0] + 2] + 1


def padded(x, xp):
    """Slices of what was put together from three parts, and a slice of a slice."""
    wide = xp.concatenate([x[-1:], x, x[:1]], 0)
    inner = wide[1:, 1:]
    return wide[:-2] * 2 + wide[2:] - wide[1:-1] * x + xp.concatenate([inner[:-1], inner[:-1]], 1)[:, : x.shape[1]]


def turned(x, xp):
    """Rows backwards: what other ranks send begins at their last row."""
    return x[::-1] * 2 + x + xp.roll(x, 1, 0)


STENCILS = [rolled, sliced, joined, padded]


@pytest.mark.parametrize("f", STENCILS)
@pytest.mark.parametrize("shape", [(6, 7), (3, 3), (17, 5)])
def test_on_one_device(f, shape, small_tiles):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(np.asarray(jax.jit(lambda x: f(x, jnp))(x)), f(x, np), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex64])
def test_columns_at_a_border_are_copied_or_not(columns, dtype, small_tiles, monkeypatch):
    """With sums and a row that is broadcast."""
    monkeypatch.setattr(tiles, "_NARROW", columns)
    x = np.random.default_rng(10).integers(-9, 9, (14, 6)).astype(dtype)

    def f(x, xp):
        y = xp.roll(x, 1, 1) * x[0] + xp.roll(x, -2, (0, 1))
        return (
            y,
            xp.roll(x, 2, 1) - x,
            (y * x).sum(0),
            xp.where(x == x[3], y, x).max() if x.dtype != np.complex64 else y,
        )

    for got, want in zip(jax.jit(lambda x: f(x, jnp))(x), f(x, np)):
        np.testing.assert_allclose(np.asarray(got), want.astype(got.dtype), rtol=1e-5)


@pytest.mark.parametrize("shifts", [1, 4])
def test_shifted_parts_of_one_array_are_counted_once_in_the_cache(shifts, monkeypatch):
    sizes = []
    made = tiles.Tiled.__init__
    monkeypatch.setattr(
        tiles.Tiled, "__init__", lambda self, *args, **kw: (made(self, *args, **kw), sizes.append(self.size))[0]
    )
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    monkeypatch.setattr(tiles, "_MOST", 1 << 40)
    f = jax.jit(lambda x: sum(x[:, k : k + 20] for k in range(shifts)) * x[:, 4:24] + 1)
    f(np.ones((30, 30), np.float32))
    assert sizes == [2 * tiles.CACHE_BYTES // 8]


def test_rolls_are_not_put_together(small_tiles, monkeypatch):
    x = jnp.asarray(np.random.default_rng(1).standard_normal((8, 9)).astype(np.float32))
    want = rolled(np.asarray(x), np)
    monkeypatch.setattr(shape_ops.roll, "impl", shape_ops.roll.impl)
    called = []
    monkeypatch.setattr(shape_ops.np, "roll", lambda *args: called.append(args))
    got = jax.jit(lambda x: rolled(x, jnp))(x)
    assert not called
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)


def test_a_value_that_others_read_is_put_together(small_tiles):
    x = np.random.default_rng(2).standard_normal((6, 5)).astype(np.float32)

    def f(x, xp):
        r = xp.roll(x, 1, 0)
        return r * 2 + x, r, xp.sort(r, 0)

    for got, want in zip(jax.jit(lambda x: f(x, jnp))(x), f(x, np)):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


def test_too_many_pieces_are_put_together(small_tiles):
    x = np.random.default_rng(3).standard_normal((30, 4)).astype(np.float32)

    def f(x, xp):
        return (
            xp.concatenate([x[k : k + 1] for k in reversed(range(30))], 0) * x + 1 + xp.roll(x, 1, 1) + xp.roll(x, 2, 1)
        )

    np.testing.assert_allclose(np.asarray(jax.jit(lambda x: f(x, jnp))(x)), f(x, np), rtol=1e-6)


@pytest.mark.parametrize("cuts", [(), ((2,), ()), ((1, 4), (3,)), ((), (1, 6))])
def test_tiles_do_not_cross_cuts(cuts):
    shape = (5, 7)
    seen = np.zeros(shape, int)
    for index in tiles.scan(shape, 6, cuts).indices:
        seen[index] += 1
        for s, places in itertools.zip_longest(index, cuts, fillvalue=()):
            assert not any(s.start < c < s.stop for c in places)
    assert (seen == 1).all()


@pytest.mark.mpi
@pytest.mark.parametrize("f", [rolled, sliced, turned])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [P("x", None), P(None, "x"), P()], ids=str)
def test_on_ranks(f, axis_type, spec, small_tiles):
    if f is sliced and axis_type is AxisType.Explicit and spec != P():
        pytest.skip("slices of sharded Explicit dims do not divide")
    n = jax.device_count()
    x = np.random.default_rng(4).standard_normal((4 * n, 4 * n)).astype(np.float32)
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (axis_type,))):
        y = jax.jit(lambda x: f(x, jnp))(jax.device_put(x, spec))
        np.testing.assert_allclose(np.asarray(y), f(x, np), rtol=1e-5, atol=1e-6)


@pytest.mark.mpi
@pytest.mark.parametrize("steps", [1, 3])
def test_iterations_in_a_loop(steps, small_tiles):
    n = jax.device_count()
    x = np.random.default_rng(5).standard_normal((4 * n, 6)).astype(np.float32)

    def step(u, xp):
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        if xp is jnp:
            return u.at[1:-1, 1:-1].set(0.25 * around) + 0.1 * jnp.roll(u, 1, 0)
        new = u.copy()
        new[1:-1, 1:-1] = np.float32(0.25) * around
        return new + np.float32(0.1) * np.roll(u, 1, 0)

    want = x
    for _ in range(steps):
        want = step(want, np)
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        f = jax.jit(lambda u: jax.lax.fori_loop(0, steps, lambda _, u: step(u, jnp), u))
        np.testing.assert_allclose(np.asarray(f(jax.device_put(x, P("x", None)))), want, rtol=1e-5, atol=1e-6)


def test_a_group_that_replaces_a_box_is_written_there(small_tiles):
    x = np.random.default_rng(6).standard_normal((9, 8)).astype(np.float32)

    def f(u, xp):
        new = 0.5 * (u[2:, 2:] + u[:-2, :-2])
        if xp is jnp:
            return u.at[1:-1, 1:-1].set(new)
        u = u.copy()
        u[1:-1, 1:-1] = new
        return u

    g = jax.jit(lambda u: f(u, jnp))
    np.testing.assert_array_equal(np.asarray(g(x)), f(x, np))
    text = g.lower(x).compile().as_text()
    assert "dynamic-update-slice(" not in text and text.count(" fusion(") == 1


def test_a_group_that_others_read_too_is_not_written_into_an_update(small_tiles):
    x = np.random.default_rng(7).standard_normal((9,)).astype(np.float32)
    f = jax.jit(lambda u: (new := u[1:] * 2 + 1, u.at[1:].set(new)))
    new, u = f(x)
    np.testing.assert_array_equal(np.asarray(u)[1:], np.asarray(new))
    np.testing.assert_allclose(np.asarray(new), x[1:] * 2 + 1, rtol=1e-6)


@pytest.mark.mpi
@pytest.mark.parametrize("margins", [(1, 1), (2, 0), (0, 3), (3, 2)])
@pytest.mark.parametrize("spec", [P("x", None), P(None, "x")], ids=str)
def test_boxes_that_cross_ranks_are_written_and_sent(margins, spec, small_tiles):
    n = jax.device_count()
    x = np.random.default_rng(8).standard_normal((4 * n, 4 * n)).astype(np.float32)
    a, b = margins
    inside = (slice(a, 4 * n - b), slice(1, 4 * n - 1))
    want = x.copy()
    want[inside] = x[inside] * 2 + 1
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        f = jax.jit(lambda u: u.at[inside].set(u[inside] * 2 + 1))
        np.testing.assert_allclose(np.asarray(f(jax.device_put(x, spec))), want, rtol=1e-6)


def test_an_array_that_is_updated_as_a_whole_is_put_together(small_tiles):
    x = np.random.default_rng(9).standard_normal((6, 5)).astype(np.float32)

    def f(x):
        r = jnp.roll(x, 1, 0)
        return jax.lax.dynamic_update_slice(r, r * 2 + 1, (0, 0))

    np.testing.assert_allclose(np.asarray(jax.jit(f)(x)), np.roll(x, 1, 0) * 2 + 1, rtol=1e-6)


def test_bounds_of_values_in_pieces():
    """A tile of an array in pieces may be narrower than the array: so must be what it is compared with."""
    x = np.random.default_rng(3).normal(size=(300, 512)).astype(np.float32)
    padded = np.clip(np.pad(x[1:-1, 1:-1], 1), -0.5, 1)
    f = jax.jit(lambda x: (p := jnp.clip(jnp.pad(x[1:-1, 1:-1], 1), -0.5, 1), p * x))
    for found, want in zip(f(jnp.asarray(x)), (padded, padded * x)):
        np.testing.assert_array_equal(np.asarray(found), want)


# -- pieces that are on their way ---------------------------------------------------------------------------------------------


class Late:
    """A message that comes, and leaves, at the last moment: what is read before is a NaN, what is sent is what lies there then
    (but where it should leave from a copy)."""

    def __init__(self, finish, result=None):
        self.finish, self.result, self.done = finish, result, False

    def wait(self):
        if not self.done:
            self.finish()
        self.done = True
        Late.waits += 1


@pytest.fixture
def late_messages(monkeypatch):
    Late.waits = 0

    def exchange(group, sends, recvs, *, copied=False):
        sends = [(peer, x.copy() if copied else x) for peer, x in sends]
        for _, x in recvs:
            x.fill(np.nan)
        return Late(lambda: collectives.exchange(group, sends, recvs), [x for _, x in recvs])

    def permute(group, perm, *, copied=False):
        def start(x):
            x, out = x.copy() if copied else x, np.full_like(x, np.nan)
            return Late(lambda: collectives.permute(group, x, perm, out=out), out)

        return start

    monkeypatch.setattr(halves, "exchange", exchange)
    monkeypatch.setattr(halves, "permute", permute)


def wave(step):
    """Two arrays that change places: the new one may lie where the older one was."""
    return lambda u, xp: (2 * u[0] - u[1] + 0.1 * step(u[0], xp), u[0])


def heat(step):
    """One array, which is written over while its own values are under way."""
    return lambda u, xp: (step(u[0], xp), u[1])


def rolled_twice(x, xp):
    return 0.25 * (xp.roll(x, 1, 0) + xp.roll(x, -1, 0) - 2 * x)


def inner(x, xp):
    new = 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
    if xp is jnp:
        return x.at[1:-1, 1:-1].set(new)
    x = x.copy()
    x[1:-1, 1:-1] = new
    return x


@pytest.mark.mpi
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("f", [rolled_twice, inner])
@pytest.mark.parametrize("equation", [wave, heat])
@pytest.mark.parametrize("steps", [1, 4])
def test_halos_come_while_inner_tiles_are_computed(late, f, equation, steps, small_tiles, request):
    """In a loop that swaps two arrays, both donated: nothing that is being sent is written over."""
    if late:
        request.getfixturevalue("late_messages")
    n = jax.device_count()
    x = np.random.default_rng(11).standard_normal((2, 4 * n, 6)).astype(np.float32)
    want = x
    for _ in range(steps):
        want = equation(f)(want, np)
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        loop = lambda *u: jax.lax.fori_loop(0, steps, lambda _, u: equation(f)(u, jnp), u)
        found = jax.jit(loop, donate_argnums=(0, 1))(*(jax.device_put(u, P("x", None)) for u in x))
        for a, b in zip(found, want):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)
    assert not late or n == 1 or Late.waits > 0


@pytest.mark.mpi
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ring", [False, True])
def test_permuted_rows_come_while_inner_tiles_are_computed(late, ring, small_tiles, request):
    if late:
        request.getfixturevalue("late_messages")
    n = jax.device_count()
    x = np.random.default_rng(12).standard_normal((4 * n, 6)).astype(np.float32)
    down = [(k, (k + 1) % n) for k in range(n if ring else n - 1)]
    up = [(b, a) for a, b in down]

    def step(_, u):
        tall = jnp.concatenate([jax.lax.ppermute(u[-1:], "x", down), u, jax.lax.ppermute(u[:1], "x", up)])
        return 0.5 * (tall[:-2] + tall[2:]) - u

    def by_hand(u):
        ends = (u[-1:], u[:1]) if ring else (0 * u[-1:], 0 * u[:1])
        tall = np.concatenate([ends[0], u, ends[1]])
        return np.float32(0.5) * (tall[:-2] + tall[2:]) - u

    want = by_hand(by_hand(by_hand(x)))
    with jax.set_mesh(jax.make_mesh((n,), ("x",))):
        f = jax.shard_map(lambda u: jax.lax.fori_loop(0, 3, step, u), in_specs=P("x"), out_specs=P("x"))
        found = jax.jit(f, donate_argnums=0)(jax.device_put(x, P("x")))
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5, atol=1e-5)
    assert not late or n == 1 or Late.waits > 0
