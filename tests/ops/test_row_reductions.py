"""Sums and extremes of rows: as exact as numpy's, the same numbers for a row wherever it stands."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mpiarray.ops import row_reductions
from mpiarray.ops.linear import reduce_sum
from mpiarray.ops.reductions import reduce_max, reduce_min

RNG = np.random.default_rng(0)
LENGTHS = [2, 7, 64, 1000, 2048, 3000, 4099, 8192, 20000]  # 4099 is a prime: no pieces


def sums(x, axes):
    return reduce_sum.impl(x, axes=axes, out_sharding=None)


def error_of(found, terms):
    """The largest error, in units of the last place of the sum of the sizes."""
    exact = terms.astype(np.float64)
    scale = np.abs(exact).sum(-1) * np.finfo(terms.dtype).eps
    return np.abs((found - exact.sum(-1)) / scale).max()


@pytest.mark.parametrize("n", LENGTHS)
def test_sums_are_as_exact_as_numpys(n):
    for x in (RNG.random((40, n)), np.exp(3 * RNG.standard_normal((40, n)))):
        x = x.astype(np.float32)
        assert sums(x, (1,)).dtype == np.float32
        assert error_of(sums(x, (1,)), x) <= max(3.0, 2 * error_of(np.add.reduce(x, axis=1), x))


@pytest.mark.parametrize("n", LENGTHS)
def test_sums_of_products(n):
    a, b = RNG.random((2, 20, n)).astype(np.float32)
    found = row_reductions.sum_of_products(a, b, (1,))
    exact = (a.astype(np.float64) * b).sum(1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=6e-7)
    np.testing.assert_allclose(
        row_reductions.sum_of_products(a.T.copy().T, b, (1,)), exact, rtol=6e-7, err_msg="columns side by side"
    )


@pytest.mark.parametrize("shape", [(1, 7), (50, 1000), (128, 64), (3, 5, 33), (131, 797)])
def test_sums_of_tiles(shape):
    x = np.exp(3 * RNG.standard_normal(shape)).astype(np.float32)
    for axes in [tuple(range(k)) for k in range(1, len(shape) + 1)]:
        for a in (x, np.asfortranarray(x), x[..., ::-1]):
            found = row_reductions.sum_of_tile(a, axes)
            assert np.asarray(found).dtype == np.float32
            np.testing.assert_allclose(found, a.astype(np.float64).sum(axes), rtol=1e-6)


def test_a_row_is_summed_alike_in_every_block():
    x = RNG.standard_normal((37, 5, 130)).astype(np.float32)
    whole = sums(x, (2,))
    for part in (slice(0, 1), slice(3, 10), slice(36, 37)):
        np.testing.assert_array_equal(sums(x[part].copy(), (2,)), whole[part])
        np.testing.assert_array_equal(sums(x[part], (2,)), whole[part])


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint64]
)
def test_extremes_and_sums_of_each_dtype(dtype):
    x = (RNG.standard_normal((6, 4, 33)) * 50).astype(dtype)
    for axes in ((2,), (1, 2), (0,), (0, 2), (0, 1, 2)):
        for op, f in ((reduce_max, np.max), (reduce_min, np.min)):
            found = op.impl(x, axes=axes)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, f(x.astype(np.float64 if x.dtype.kind not in "iu" else dtype), axes))
        exact = np.sum(x.astype(np.float64), axes)
        found = sums(x, axes)
        assert found.dtype == dtype and found.shape == exact.shape
        if dtype not in (np.int8, np.uint64):
            eps = 2.0 ** {np.float16: -10, ml_dtypes.bfloat16: -7}.get(dtype, -20)
            np.testing.assert_allclose(found.astype(np.float64), exact, rtol=eps, atol=eps * 400)


def test_nan_and_infinities():
    x = RNG.standard_normal((5, 100)).astype(np.float32)
    x[1, 40], x[2, 3], x[3, [7, 8]] = np.nan, np.inf, [np.inf, -np.inf]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(reduce_max.impl(x, axes=(1,)), x.max(1))
        np.testing.assert_array_equal(reduce_min.impl(x, axes=(1,)), x.min(1))
        np.testing.assert_allclose(sums(x, (1,)), x.sum(1), rtol=1e-5)


@pytest.mark.parametrize("order", ["F", "reversed", "broadcast", "part"])
def test_rows_that_do_not_lie_side_by_side(order):
    x = RNG.standard_normal((12, 40)).astype(np.float32)
    x = {
        "F": np.asfortranarray(x),
        "reversed": x[:, ::-1],
        "broadcast": np.broadcast_to(x[:, :1], x.shape),
        "part": x[:, 1:-1],
    }[order]
    np.testing.assert_allclose(sums(x, (1,)), x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(reduce_max.impl(x, axes=(1,)), x.max(1))
    found = row_reductions.sum_of_products(x, x, (1,))
    np.testing.assert_allclose(found, (x.astype(np.float64) ** 2).sum(1), rtol=1e-5)


def test_without_blas_per_row(monkeypatch):
    """numpy 1.26 has no vecdot."""
    x = RNG.standard_normal((12, 40)).astype(np.float32)
    monkeypatch.setattr(row_reductions, "_vecdot", None)
    np.testing.assert_array_equal(sums(x, (1,)), np.add.reduce(x, axis=1))
    np.testing.assert_array_equal(row_reductions.sum_of_products(x, x, (1,)), np.add.reduce(x * x, axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6, 40), (4, 3, 64), (5, 2048)])
def test_prepared_ones_give_the_same_bits(shape, dtype):
    """Also for fewer rows, for rows that are not side by side, and for NaN."""
    x, y = RNG.standard_normal(shape).astype(dtype), RNG.standard_normal(shape).astype(dtype)
    x[0, 2] = np.nan
    axes = (len(shape) - 1,)
    for a, b in ((x, y), (x[1:], y[1:]), (np.asarray(x, order="F"), y), (x[..., ::2], y[..., ::2])):
        for name, ufunc in (("maximum", np.maximum), ("minimum", np.minimum)):
            found = row_reductions.prepared(name, a.shape, a.dtype, axes, 1)
            np.testing.assert_array_equal(found(a), ufunc.reduce(a, axis=-1))
        plain = row_reductions.sum_of_rows(a, axes)
        want = np.add.reduce(a, axis=-1) if plain is None else plain
        for rows in (shape[0], 9):  # found out for as many, or for a tile of more
            whole = (rows, *a.shape[1:])
            run = row_reductions.prepared("add", whole, a.dtype, axes, 1)
            if run is not None:  # numpy 2
                np.testing.assert_array_equal(run(a), want)
                products = row_reductions.prepared("add", whole, a.dtype, axes, 2)
                np.testing.assert_array_equal(products(a, b), row_reductions.sum_of_products(a, b, axes))


def test_what_is_not_prepared():
    for shape, dtype, axes in (((4, 5), np.int32, (1,)), ((4, 5), np.float32, (0,)), ((4, 1), np.float32, (1,)),
                               ((2, 3, 4), np.float32, (1, 2)), ((3, 5000), np.float32, (1,))):  # fmt: skip
        assert row_reductions.prepared("add", shape, np.dtype(dtype), axes, 1) is None
