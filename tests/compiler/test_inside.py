"""Updates of the inside of an array lie like the array, on any number of ranks: the values, and that nothing is gathered."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.compiler.passes import fuse
from mpiarray.ops import tiles
from mpiarray.sharding import AbstractMesh, AxisType
from tests.peak import peak_of


@pytest.fixture(params=["groups", "single"])
def grouped(request, monkeypatch):
    """All elementwise work in groups of small tiles, or none."""
    monkeypatch.setattr(fuse, "_SMALLEST", 0 if request.param == "groups" else 1 << 60)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 13)
    monkeypatch.setattr(tiles, "_LONG", 2)


def put(u, box, new):
    """`u` with a box replaced, in numpy and here."""
    if isinstance(u, np.ndarray):
        u = u.copy()
        u[box] = new
        return u
    return u.at[box].set(new)


IN = (slice(1, -1), slice(1, -1))


def heat(u, xp):
    return put(u, IN, u[IN] + 0.125 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[IN]))


def nine_points(u, xp):
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return put(u, IN, 0.25 * around + 0.0625 * (u[:-2, :-2] * u[2:, 2:] - u[:-2, 2:] * u[2:, :-2]))


def with_edges(u, xp):
    """Rolls everywhere, then values at the four edges; the last one is the neighbour's."""
    u = 0.25 * (xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1))
    u = put(u, (0, slice(None)), 0)
    u = put(u, (-1, slice(None)), xp.arange(u.shape[1]).astype(u.dtype))
    u = put(u, (slice(None), 0), 1)
    return put(u, (slice(None), -1), u[:, -2])


def weighted(u, xp):
    """A row, a column and a scalar that the inside is multiplied by; margins of several sizes."""
    rows, columns = xp.arange(u.shape[0] - 5).astype(u.dtype)[:, None], xp.arange(u.shape[1] - 1).astype(u.dtype)
    return put(u, (slice(3, -2), slice(None, -1)), rows * u[5:, 1:] + columns * u[:-5, :-1] - u[0, 0])


def twice(u, xp):
    """An update of an update, and one with another box."""
    u = heat(heat(u, xp), xp)
    return put(u, (slice(2, None), slice(None, -2)), u[:-2, 2:] * 2 + u[1:-1, 1:-1])


def around_zeros(u, xp):
    return xp.pad(u[2:, 1:-1] * 2 - u[:-2, 1:-1], ((1, 1), (1, 1))) + u


def chosen(u, xp):
    new = u[2:, 1:-1] - u[:-2, 1:-1]
    return put(u, IN, xp.where(new > 0, new, u[IN]))


def read_elsewhere(u, xp):
    new = 0.5 * (u[2:, 1:-1] + u[:-2, 1:-1])
    return put(u, IN, new) * xp.max(xp.abs(new - u[IN]))


def slices_of_pad(u, xp):
    p = xp.pad(u, 1)
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] - p[1:-1, 2:]


FORMS = [heat, nine_points, with_edges, weighted, twice, around_zeros, chosen, read_elsewhere]


def numbers(shape, dtype=np.float32):
    return np.random.default_rng(0).integers(-8, 9, shape).astype(dtype)


@pytest.mark.mpi
@pytest.mark.parametrize("f", FORMS)
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
def test_on_ranks(f, spec, grouped):
    n = jax.device_count()
    x = numbers((4 * n, 6 * n if n > 1 else 7))
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        g = jax.jit(lambda x: lax.with_sharding_constraint(f(x, jnp), spec))
        got = g(jax.device_put(x, spec))
        np.testing.assert_array_equal(np.asarray(got), f(x, np).astype(np.float32))
        assert got.sharding.spec == spec


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.int32, np.complex64, np.float16])
@pytest.mark.parametrize("shape", [(4,), (4, 5, 6)], ids=str)
def test_other_shapes_and_dtypes(shape, dtype, grouped):
    n = jax.device_count()
    x = numbers((shape[0] * n, *shape[1:]), dtype)
    box = (slice(1, -1),) * len(shape)

    def f(u, xp):
        total = -2 * u[box]
        for d in range(len(shape)):
            for low in (0, 2):
                total = (
                    total + u[tuple(slice(low, low - 2 or None) if k == d else slice(1, -1) for k in range(len(shape)))]
                )
        return put(u, box, total)

    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        g = jax.jit(lambda x: lax.fori_loop(0, 2, lambda _, u: f(u, jnp), x))
        np.testing.assert_array_equal(np.asarray(g(jax.device_put(x, P("x")))), f(f(x, np), np))


@pytest.mark.parametrize("devices", [3, 4, 8])
@pytest.mark.parametrize("f", [heat, nine_points, with_edges, twice, around_zeros, chosen, slices_of_pad])
def test_nothing_is_gathered(f, devices):
    """Each device has its rows, and gets those next to them."""
    mesh = AbstractMesh((devices,), ("x",), (AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, P("x"))
    x = jax.ShapeDtypeStruct((16 * devices, 64), np.float32, sharding=sharding)
    text = jax.jit(lambda x: lax.with_sharding_constraint(f(x, jnp), sharding)).lower(x).compile().as_text()
    assert "num_partitions" in text and "all-gather(" not in text and "all-to-all(" not in text
    assert f"f32[{16 * devices},64]" not in text and f"f32[{16 * devices - 2},62]" not in text


@pytest.mark.parametrize("shape", [(5, 7), (8, 8)])
def test_slopes(shape):
    """Through the update; on one device the program is as it was written."""
    x = numbers(shape).astype(np.float64)
    with jax.enable_x64(True):
        slope = np.asarray(jax.jit(jax.grad(lambda u: (heat(u, jnp) ** 2).sum()))(x))
    h = 1e-3
    for k in range(x.size):
        step = np.zeros(x.size)
        step[k] = h
        step = step.reshape(shape)
        want = ((heat(x + step, np) ** 2).sum() - (heat(x - step, np) ** 2).sum()) / (2 * h)
        np.testing.assert_allclose(slope.reshape(-1)[k], want, rtol=1e-6, atol=1e-6)


@pytest.mark.mpi
def test_slopes_on_ranks(grouped):
    n = jax.device_count()
    x = numbers((4 * n, 5))
    slope = lambda u: jax.grad(lambda u: (heat(u, jnp) ** 2).sum())(u)
    want = np.asarray(jax.jit(slope)(jnp.asarray(x)))
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        np.testing.assert_allclose(np.asarray(jax.jit(slope)(jax.device_put(x, P("x")))), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("f", [heat, nine_points, with_edges, twice, around_zeros, chosen, slices_of_pad])
def test_a_step_makes_its_result_and_nothing_else_that_is_large(f):
    """Where an update comes after another, it is written into the same new block."""
    x = numbers((1024, 1024))
    g = jax.jit(lambda x: f(x, jnp))
    u = jnp.asarray(x)
    np.testing.assert_array_equal(np.asarray(g(u)), f(x, np).astype(np.float32))
    result, peak = peak_of(lambda: g(u))
    assert result.shape == x.shape
    assert peak <= (2.3 if f is twice else 1.3) * x.nbytes  # the second of two steps reads what the first has made


@pytest.mark.mpi
def test_slices_of_padded_arrays(grouped):
    n = jax.device_count()
    x = numbers((4 * n, 5))
    with jax.set_mesh(jax.make_mesh((n,), ("x",), (AxisType.Auto,))):
        got = jax.jit(lambda u: slices_of_pad(slices_of_pad(u, jnp), jnp))(jax.device_put(x, P("x")))
        np.testing.assert_array_equal(np.asarray(got), slices_of_pad(slices_of_pad(x, np), np))
        assert got.sharding.spec == P("x")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_updates_by_parts_of_what_they_write_over(at, grouped):
    """The block of the sum is the program's own, so that the updates after it are written there."""
    x = numbers((9, 12))

    def f(u, xp):
        u = u * 2 + xp.roll(u, 1, 0)
        u = put(u, (slice(1, None), slice(None)), u[:-1])
        u = put(u, (slice(None), slice(at, at + 10)), u[:, 1:11])
        return put(u, (slice(0, 8), slice(None, None)), u[::-1][:8])

    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x: f(x, jnp))(x)), f(x, np))
