"""Special functions against values of 40-digit arithmetic (special_functions.json), and their limits.

A row of the table holds the arguments, which are float32 numbers, and the value rounded to float64.
"""

import json
import pathlib
import warnings

import ml_dtypes
import numpy as np
import pytest

from mpiarray.ops import special_kernels as kernels

TABLE = json.loads((pathlib.Path(__file__).parent / "special_functions.json").read_text())
FUNCTIONS = [name for name in TABLE if name != "note"]

inf, nan = np.inf, np.nan


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def rows(name):
    columns = np.array(TABLE[name], float).T
    return columns[:-1], columns[-1]


def ulps(got, want):
    """Distance to the float64 values `want` in units of the last place of the dtype of `got`, and no less than that of
    the smallest normal number."""
    info = ml_dtypes.finfo(got.dtype)
    spacing = np.maximum(2.0 ** np.floor(np.log2(np.abs(want) + 1e-320)), float(info.tiny)) * float(info.eps)
    return np.abs(got.astype(float) - want) / spacing


def in_range(want, dtype):
    return np.abs(want) < float(ml_dtypes.finfo(dtype).max)


# erf_inv has the bits of XLA instead (see below), which near the ends are further off.
SINGLE = {"erf": 2.0, "erf_inv": 100.0}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32(name):
    args, want = rows(name)
    got = getattr(kernels, name)(*args.astype(np.float32))
    assert got.dtype == np.float32 and got.shape == want.shape
    ok = in_range(want, np.float32)
    worst = ulps(got[ok], want[ok])
    assert worst.max() <= SINGLE.get(name, 0.51), (args[:, ok][:, worst.argmax()], worst.max())
    assert np.array_equal(got[~ok], np.sign(want[~ok]) * np.float32(inf))


# Relative errors, and the values below which they are absolute: near roots, where a relative error means little.
DOUBLE = {"lgamma": 1e-14, "digamma": 4e-15, "igamma": 5e-11, "igammac": 5e-11, "betainc": 2e-11, "polygamma": 4e-15}
FLOOR = {"lgamma": 1e-3, "digamma": 1.0, "polygamma": 1.0}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64(name):
    args, want = rows(name)
    got = getattr(kernels, name)(*args)
    assert got.dtype == np.float64
    scale = np.maximum(np.abs(want), FLOOR.get(name, 1e-300))
    error = np.abs(got - want) / scale
    assert error.max() <= DOUBLE.get(name, 3e-15), (args[:, error.argmax()], error.max())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_narrow_floats(name, dtype):
    """As if computed in float32 and rounded."""
    with np.errstate(all="ignore"):
        args = [a.astype(np.float32).astype(dtype) for a in rows(name)[0]]
        want = getattr(kernels, name)(*[a.astype(np.float32) for a in args]).astype(dtype)
    got = getattr(kernels, name)(*args)
    assert got.dtype == dtype
    # In float32 the function may have been rounded once more on the way, just at a tie.
    same = (got == want) | ((got != got) & (want != want))
    assert same.mean() > 0.95
    finite = np.isfinite(want.astype(float)) & np.isfinite(got.astype(float))
    close = ulps(got[finite], want[finite].astype(float)) <= 1
    assert close.all()


SPECIAL = {
    "erf": [(0, 0), (-0.0, -0.0), (inf, 1), (-inf, -1), (nan, nan), (100, 1), (1e-40, 1.1283791670955126e-40)],
    "erfc": [(0, 1), (inf, 0), (-inf, 2), (nan, nan), (30, 0), (-10, 2)],
    "erf_inv": [(0, 0), (-0.0, -0.0), (1, inf), (-1, -inf), (1.5, nan), (-inf, nan), (nan, nan)],
    "lgamma": [(1, 0), (2, 0), (0, inf), (-0.0, inf), (-3, inf), (inf, inf), (-inf, inf), (nan, nan), (-1e10, inf)],
    "digamma": [(0, nan), (-1, nan), (-1e10, nan), (inf, inf), (-inf, nan), (nan, nan)],
    "bessel_i0e": [(0, 1), (inf, 0), (-inf, 0), (nan, nan)],
    "bessel_i1e": [(0, 0), (-0.0, -0.0), (inf, 0), (-inf, -0.0), (nan, nan)],
    "igamma": [
        (0, 0, nan),
        (0, 1, 1),
        (1, 0, 0),
        (-1, 1, nan),
        (1, -1, nan),
        (inf, 1, nan),
        (1, inf, 1),
        (0, inf, 1),
        (nan, 1, nan),
        (1, nan, nan),
        (1e-3, 1e-30, 0.933792377658672992),
        (1e8, 1e8, 0.50001329807601),
        (1e30, 2e30, 1),
    ],
    "igammac": [
        (0, 0, nan),
        (0, 1, 0),
        (1, 0, 1),
        (-1, 1, nan),
        (1, -1, nan),
        (1, inf, 0),
        (nan, 1, nan),
        (1, nan, nan),
        (1, 1000, 0),
        (1e30, 1e30, 0.5),
    ],
    "betainc": [
        (1, 1, 0, 0),
        (1, 1, 1, 1),
        (0, 1, 0.5, 1),
        (1, 0, 0.5, 0),
        (0, 1, 0, 0),
        (1, 0, 1, 1),
        (0, 0, 0.5, nan),
        (-1, 1, 0.5, nan),
        (1, 1, -1, nan),
        (1, 1, 2, nan),
        (inf, 1, 0.5, 0),
        (1, inf, 0.5, 1),
        (nan, 1, 0.5, nan),
        (1, 1, nan, nan),
    ],
    "zeta": [
        (1, 1, inf),
        (0.5, 1, nan),
        (2, 0, inf),
        (4, -2, inf),
        (2.5, -0.5, nan),
        (2, inf, 0),
        (inf, 2, 0),
        (inf, 1, 1),
        (nan, 1, nan),
        (2, nan, nan),
        (1, nan, nan),
        (2, -2000.5, nan),
    ],
    "polygamma": [
        (0, 0, nan),
        (1, 0, inf),
        (1, -1, inf),
        (-1, 1, nan),
        (1.5, 1, nan),
        (1, inf, 0),
        (0, inf, inf),
        (nan, 1, nan),
        (1, nan, nan),
        (inf, 1, nan),
    ],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_limits_and_domains(name, dtype):
    columns = np.array(SPECIAL[name], float).T
    with np.errstate(over="ignore"):
        *args, want = [c.astype(dtype) for c in columns]
    got = getattr(kernels, name)(*args)
    tolerance = {"rtol": 1e-6 if dtype == np.float32 else 1e-13, "atol": 1e-15}
    np.testing.assert_allclose(got, want, **tolerance)
    signs = ~np.isnan(want) & (want == 0) & (name in ("erf", "erf_inv", "bessel_i1e"))
    assert np.array_equal(np.signbit(got[signs]), np.signbit(want[signs]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_and_memory_order(name):
    f = getattr(kernels, name)
    args, _ = rows(name)
    args = [a.astype(np.float32) for a in args]
    flat = f(*args)
    n = len(flat) // 6 * 6
    blocks = [a[:n].reshape(-1, 2, 3) for a in args]
    assert np.array_equal(f(*blocks), flat[:n].reshape(-1, 2, 3), equal_nan=True)
    column_major = f(*[np.asfortranarray(b) for b in blocks])
    assert column_major.flags.f_contiguous
    assert np.array_equal(column_major, flat[:n].reshape(-1, 2, 3), equal_nan=True)
    assert np.array_equal(f(*[b[::-1, :, ::2] for b in blocks]), f(*blocks)[::-1, :, ::2], equal_nan=True)
    scalar = f(*[np.array(a[0]) for a in args])
    assert isinstance(scalar, np.ndarray) and scalar.shape == () and scalar == flat[0]
    empty = f(*[np.zeros((3, 0), np.float32)] * len(args))
    assert empty.shape == (3, 0) and empty.dtype == np.float32
    before = [a.copy() for a in args]
    f(*args)
    assert all(np.array_equal(a, b) for a, b in zip(args, before, strict=True))


def test_blocks_of_many_tiles():
    x = np.random.default_rng(0).uniform(-3, 3, 3 * kernels._TILE + 5).astype(np.float32)
    for f in (kernels.erf, kernels.lgamma):
        whole = f(x)
        parts = np.concatenate([f(part) for part in np.array_split(x, 7)])
        assert np.array_equal(whole, parts)


def test_relations():
    rng = np.random.default_rng(1)
    x = rng.uniform(0.05, 20, 500)
    a = rng.uniform(0.05, 20, 500)
    u = rng.uniform(-0.999, 0.999, 500)
    np.testing.assert_allclose(kernels.erf(kernels.erf_inv(u)), u, rtol=1e-14)
    np.testing.assert_allclose(kernels.erf(x) + kernels.erfc(x), 1, rtol=1e-15)
    np.testing.assert_allclose(kernels.lgamma(x + 1) - kernels.lgamma(x), np.log(x), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernels.digamma(x + 1) - kernels.digamma(x), 1 / x, rtol=1e-11)
    np.testing.assert_allclose(kernels.igamma(a, x) + kernels.igammac(a, x), 1, rtol=1e-13)
    np.testing.assert_allclose(kernels.betainc(a, x, (u + 1) / 2) + kernels.betainc(x, a, (1 - u) / 2), 1, rtol=1e-11)
    np.testing.assert_allclose(kernels.polygamma(np.full(500, 1.0), x), kernels.zeta(np.full(500, 2.0), x), rtol=1e-15)


def test_erf_inv_has_the_bits_of_the_reference():
    """Recorded from JAX: jax.lax.erf_inv of float32 on CPU."""
    x = np.array([-0.9, -0.5, -0.1, 1e-3, 0.2, 0.6, 0.95, 0.99, 0.9999], np.float32)
    recorded = [
        -1.163087010383606,
        -0.4769362807273865,
        -0.08885598927736282,
        0.0008862271206453443,
        0.17914347350597382,
        0.5951160788536072,
        1.3859037160873413,
        1.821386694908142,
        2.7510268688201904,
    ]
    want = np.array(recorded, np.float32)
    assert np.abs(kernels.erf_inv(x).view(np.int32) - want.view(np.int32)).max() <= 3
    assert (kernels.erf_inv(x) == want).mean() > 0.7


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"one float dtype and one shape, got int32\[2\]"):
        kernels.erf(np.ones(2, np.int32))
    with pytest.raises(TypeError, match=r"got float32\[2\], float64\[2\]"):
        kernels.igamma(np.ones(2, np.float32), np.ones(2))
    with pytest.raises(TypeError, match=r"got float64\[2\], float64\[3\]"):
        kernels.zeta(np.ones(2), np.ones(3))
