"""Groups that run tile by tile give what the same equations give one by one: programs made up at random, and edges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.passes import fuse
from mpiarray.ops import tiles

SHAPES = [(13,), (1000,), (7, 9), (40, 25), (3, 1, 17), (5, 4, 6, 2), (64, 1)]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.bool_, np.complex64]


@pytest.fixture
def small_tiles(monkeypatch):
    """Every group is fused, and tiles are of a few elements."""
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 11)
    monkeypatch.setattr(tiles, "_UNCUT_BYTES", 0)


def unfused(f, args, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(fuse, "_SMALLEST", 1 << 60)
        g = jax.jit(lambda *xs: f(*xs))
        out = g(*args)
        assert "fusion(" not in g.lower(*args).compile().as_text()
    return out


def values(rng, shape, dtype):
    x = rng.standard_normal(shape) * 3
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return jnp.asarray((x > 0) if dtype == np.bool_ else x.astype(dtype))


def random_program(rng, shape):
    """A function of (array, a row that is broadcast, a scalar), made of a few random steps; several results."""
    steps = rng.integers(0, 12, size=rng.integers(3, 9))
    picks = rng.integers(0, 1 << 30, size=(len(steps), 2))
    axis = int(rng.integers(0, len(shape)))

    def f(x, row, scalar):
        found = [x, x * scalar]
        sums = []
        for step, (i, j) in zip(steps, picks):
            a, b = found[i % len(found)], found[j % len(found)]
            match int(step):
                case 0:
                    found.append(a + b)
                case 1:
                    found.append(a * row)
                case 2:
                    found.append(jnp.where(a == b, a, b))
                case 3:
                    found.append(jnp.abs(a).astype(a.dtype))
                case 4:
                    found.append(a.astype(jnp.float32).astype(a.dtype))
                case 5:
                    sums.append(a.sum(axis))
                case 6:
                    sums.append(jnp.max(jnp.real(a) if jnp.iscomplexobj(a) else a))
                case 7:
                    found.append(a - a.sum(axis, keepdims=True).astype(a.dtype) if a.dtype != bool else a)
                case 8:
                    found.append(jnp.square(a).astype(a.dtype))
                case 9:
                    found.append(a + jnp.broadcast_to(row, shape))
                case 10:
                    sums.append(jnp.sum(a.astype(jnp.float32)))
                case _:
                    found.append(jnp.where(row != 0, a, b))
        return found[2:] + sums or [x + x]

    return f


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.filterwarnings("ignore")
def test_random_programs(shape, dtype, small_tiles, monkeypatch):
    fused = 0
    for seed in range(4):
        rng = np.random.default_rng([seed, *shape])
        f = random_program(rng, shape)
        args = (values(rng, shape, dtype), values(rng, shape[-1:], dtype), values(rng, (), dtype))
        g = jax.jit(f)
        fused += "fusion(" in g.lower(*args).compile().as_text()
        for got, want in zip(g(*args), unfused(f, args, monkeypatch), strict=True):
            got, want = np.asarray(got), np.asarray(want)
            assert got.dtype == want.dtype and got.shape == want.shape
            if dtype in (np.float32, np.complex64):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_allclose(got.astype(np.complex128), want.astype(np.complex128), rtol=1e-5)
    assert fused, "none of the programs had a group: the test looks at nothing"


def test_elementwise_groups_are_bit_identical(small_tiles, monkeypatch):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((37, 11)).astype(np.float32))
    f = lambda x: jnp.sin(x) * jnp.exp(-(x**2)) + jnp.sqrt(jnp.abs(x))
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(x)), np.asarray(unfused(f, (x,), monkeypatch)))


@pytest.mark.parametrize("axes", [None, 0, 1, 2, (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "any", "all"])
def test_reductions_end_groups(axes, kind, small_tiles):
    x = np.random.default_rng(1).uniform(0.5, 1.5, (6, 5, 7)).astype(np.float32)
    f = lambda x, xp: getattr(xp, kind)(
        (x * 2 - 1.5) * 0.75 > 0.1 if kind in ("any", "all") else (x * 2 - 1.5) * 0.75, axes
    )
    g = jax.jit(lambda x: f(x, jnp))
    text = g.lower(jnp.asarray(x)).compile().as_text()
    assert text.count("fusion(") == 1 and "\n%a = f32[6,5,7] parameter(0)\n" in text
    got = np.asarray(g(jnp.asarray(x)))
    np.testing.assert_allclose(got, f(x, np), rtol=1e-5)


def test_a_sum_over_many_tiles_is_more_exact_than_in_its_own_precision(small_tiles):
    x = np.full(100_000, 0.1, np.float32)
    got = float(jax.jit(lambda x: jnp.sum(x * 1.0 + 0.0 * x))(x))
    assert abs(got - 100_000 * float(np.float32(0.1))) < 1e-3


def test_nan_and_infinity_pass_through(small_tiles):
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0] * 5, np.float32)
    got = jax.jit(lambda x: (jnp.maximum(x, 0) * 2, jnp.max(x * 1 + 0), jnp.sum(jnp.where(x == 1, x, 0) * 3)))(x)
    np.testing.assert_array_equal(np.asarray(got[0]), np.maximum(x, 0) * 2)
    assert np.isnan(got[1]) and float(got[2]) == 15


def test_strided_and_transposed_operands(small_tiles):
    x = np.random.default_rng(2).standard_normal((24, 18)).astype(np.float32)
    f = lambda x, xp: (x[1:-1, 2:] * 2 + x[:-2, :-2], x.T * x.T + 1, (x[::3, ::2] - 1) * x[::3, 1::2])
    for got, want in zip(jax.jit(lambda x: f(x, jnp))(x), f(x, np)):
        np.testing.assert_array_equal(np.asarray(got), want)
        assert got.addressable_data(0)._block.flags.c_contiguous


def test_operands_are_not_written(small_tiles):
    x = np.arange(50, dtype=np.float32)
    a = jnp.asarray(x)
    jax.jit(lambda a: ((a + 1) * 2 - 3) * a)(a)
    np.testing.assert_array_equal(np.asarray(a), x)


def test_a_value_that_is_viewed_keeps_its_buffer(small_tiles):
    """`real` of a real array, and casts to the same dtype, are views: the buffer below must not be used again."""
    x = np.linspace(-1, 1, 40, dtype=np.float32)

    def f(x, xp):
        a = x * 2 + 1
        b = jax.lax.stop_gradient(a) if xp is jnp else a
        c = xp.sin(x) * 3
        return b * c + xp.cos(c) - b

    np.testing.assert_allclose(np.asarray(jax.jit(lambda x: f(x, jnp))(x)), f(x, np), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "size"), [((5,), 2), ((4, 6), 6), ((4, 6), 5), ((4, 6), 13), ((2, 3, 4), 100), ((0, 3), 4)]
)
def test_tiles_cover_each_element_once(shape, size):
    seen = np.zeros(shape, int)
    scan = tiles.scan(shape, size)
    for index, part in zip(scan.indices, scan.shapes):
        seen[index] += 1
        assert seen[index].shape == part
        assert np.prod(part) <= max(size, 1) or part[-1] == 1
    assert (seen == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_products(dtype, small_tiles):
    """A product that only a sum reads is not made; the others are."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 17, 5)).astype(dtype)

    def f(x, y, xp):
        d = x - y
        kept = d * y
        return xp.sum(d * d), xp.sum((x + 1) * d) + xp.sum(kept), kept, xp.sum(d**2), xp.sum(d * 3)

    with jax.enable_x64():
        for got, want in zip(jax.jit(lambda x, y: f(x, y, jnp))(x, y), f(x, y, np)):
            assert np.asarray(got).dtype == dtype
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)


@pytest.mark.parametrize("which", ["mask", "cases", "one case", "scalars"])
def test_choosing_with_operands_that_are_broadcast(which, monkeypatch):
    """Rows long enough that values are chosen by their bits."""
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    rng = np.random.default_rng(4)
    x, y, mask = (rng.standard_normal((3, 4096)).astype(np.float32) for _ in range(3))
    row, scalar = x[0] + 1, np.float32(3)

    def f(x, y, mask, row, scalar, xp):
        cases = {
            "mask": (row > 0, x * 2, y),
            "cases": (mask > 0, row, row * 2),
            "one case": (row > 0, x, row),
            "scalars": (mask > 0, scalar, scalar + 1),
        }
        return xp.where(*cases[which]) + x

    args = (x, y, mask, row, scalar)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda *a: f(*a, jnp))(*args)), f(*args, np))


@pytest.mark.parametrize("shape", [(), (7,), (5, 1)], ids=str)
def test_sums_count_elements_that_are_broadcast(shape, small_tiles):
    """Functions that are no ufuncs give a tile what they are given: a number, a row."""
    x = np.random.default_rng(5).integers(1, 4, shape).astype(np.float32)
    wide = np.broadcast_to(x, (5, 7))

    def f(x):
        wide = jnp.broadcast_to(x, (5, 7))
        whole = jax.lax.mul(wide.astype(jnp.int32), wide.astype(jnp.int32))
        return wide.astype(jnp.int32).sum(0), wide.astype(jnp.int32).sum(), jnp.sum(jax.lax.square(wide)), whole.sum(1)

    for got, want in zip(jax.jit(f)(x), (wide.sum(0), wide.sum(), (wide**2).sum(), (wide**2).sum(1))):
        np.testing.assert_array_equal(np.asarray(got), want)
