"""Sorts of blocks against numpy's stable sorts: order of zeros and NaN, all dtypes, all dims, tiles, long rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mpiarray.ops import sort_kernel
from mpiarray.ops.searching import _top_k_impl
from mpiarray.ops.sort_kernel import order_of, sort_bits, sorted_block

DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16]  # fmt: skip


def _values(shape, dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(-40 if np.dtype(dtype).kind != "u" else 0, 40, shape)
    if dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        x = x / 4
        flat = x.reshape(-1)
        flat[::7], flat[::11], flat[::13], flat[3::17], flat[5::17] = -0.0, 0.0, np.nan, np.inf, -np.inf
    return x.astype(dtype)


def _bits(x):
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") if x.dtype != bool else x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), [((5000,), 0), ((40, 60), 1), ((60, 40), 0), ((3, 70, 20), 1), ((4, 3), 1)])
def test_order(shape, dim, dtype, monkeypatch):
    monkeypatch.setattr(sort_kernel, "_TILE", 300)
    monkeypatch.setattr(sort_kernel, "_LONG", 50)
    x = _values(shape, dtype)
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x
    want = np.argsort(wide, axis=dim, kind="stable")
    for kind in (np.int32, np.intp):
        order = order_of([x], dim, kind)
        assert order.dtype == kind
        np.testing.assert_array_equal(order, want)
    np.testing.assert_array_equal(_bits(sorted_block(x, dim)), _bits(np.take_along_axis(x, want, dim)))
    bits = sort_bits(x)
    np.testing.assert_array_equal(np.argsort(bits, axis=dim, kind="stable"), want)


def test_several_keys():
    x, y = _values((50, 40), np.int32) % 3, _values((50, 40), np.float32)
    order = order_of([x, y], 1)
    np.testing.assert_array_equal(order, np.lexsort([y, x], axis=1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [0, 1, 5, 40, 1500])
def test_top_k(dtype, k):
    x = _values((4, 1500), dtype)
    values, places = _top_k_impl(x, axis=1, k=k)
    key = x.astype(np.float64).astype(object) if x.dtype.kind not in "iub" else x.astype(object)
    for row, found, at in zip(key, values, places):
        # NaN is the largest; 0.0 is larger than -0.0; of equal ones the first comes first
        rank = lambda i, row=row: (
            int(row[i] != row[i]),
            row[i] if row[i] == row[i] else 0,
            int(not np.signbit(float(row[i]))),
        )
        want = sorted(range(len(row)), key=lambda i: (*(-v for v in rank(i)), i))[:k]
        assert at.tolist() == want
        np.testing.assert_array_equal(found.astype(np.float64), row[want].astype(np.float64))
