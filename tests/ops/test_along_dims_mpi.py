"""Ops along a dim that is sharded over real ranks: reductions, positions, scans, sorts, top_k."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import lax
from mpiarray.errors import ShardingTypeError
from mpiarray.types.mesh import AxisType

pytestmark = pytest.mark.mpi


def placed(x: np.ndarray, kind: AxisType, *spec: str | None) -> jax.Array:
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(kind,))
    return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))


def values(dtype: str = "float32") -> np.ndarray:
    n = 4 * jax.device_count()
    return ((np.arange(3 * n) * 13) % 29 - 14).astype(dtype).reshape(n, 3)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_reductions_and_positions(kind: AxisType) -> None:
    v = values()
    x = placed(v, kind, "x", None)
    np.testing.assert_array_equal(np.asarray(lax.reduce_max(x, axes=(0,))), v.max(0))
    np.testing.assert_array_equal(np.asarray(lax.reduce_min(x, axes=(0, 1))), v.min())
    small = (v / 64 + 1).astype(np.float32)
    np.testing.assert_allclose(
        np.asarray(lax.reduce_prod(placed(small, kind, "x", None), axes=(0,))), small.prod(0), rtol=1e-5
    )
    np.testing.assert_array_equal(np.asarray(lax.argmax(x, 0, np.int32)), v.argmax(0))
    np.testing.assert_array_equal(np.asarray(lax.argmin(x, 0, np.int32)), v.argmin(0))
    assert np.asarray(lax.reduce_or(placed(v > 13, kind, "x", None), axes=(0,))).tolist() == (v > 13).any(0).tolist()


def test_scans_and_sorts_on_auto_axes() -> None:
    v = values()
    x = placed(v, AxisType.Auto, "x", None)
    np.testing.assert_allclose(np.asarray(lax.cumsum(x, axis=0)), np.cumsum(v, 0), rtol=1e-5)
    np.testing.assert_array_equal(
        np.asarray(lax.cummax(x, axis=0, reverse=True)), np.maximum.accumulate(v[::-1], 0)[::-1]
    )
    out = lax.sort(x, dimension=0)
    np.testing.assert_array_equal(np.asarray(out), np.sort(v, 0))
    assert out.sharding.is_equivalent_to(x.sharding, 2)
    best, at = lax.top_k(x, 3, axis=0)
    want = np.argsort(-v, axis=0, kind="stable")[:3]
    np.testing.assert_array_equal(np.asarray(at), want)
    np.testing.assert_array_equal(np.asarray(best), np.take_along_axis(v, want, 0))


def test_a_sharded_explicit_dim_is_refused_on_all_ranks() -> None:
    x = placed(values(), AxisType.Explicit, "x", None)
    if jax.device_count() == 1:
        pytest.skip("an axis of one device")
    for f in (lambda: lax.cumsum(x, axis=0), lambda: lax.sort(x, dimension=0), lambda: lax.top_k(x, 1, axis=0)):
        with pytest.raises(ShardingTypeError, match="unsharded"):
            f()


def _hard(count: int, dtype: str) -> np.ndarray:
    """Many equal elements, both zeros, NaN, infinities; most of the large ones on one rank."""
    rng = np.random.default_rng(5)
    v = np.sort(rng.integers(-50, 50, count))[::-1] / 4
    v[: count // 3] = rng.integers(0, 3, count // 3)
    if dtype.startswith("float"):
        v[::7], v[::11], v[::13], v[3::17], v[5::17] = -0.0, 0.0, np.nan, np.inf, -np.inf
    return np.ascontiguousarray(v.astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "int64"])
def test_large_blocks_are_sorted_where_they_are(dtype: str) -> None:
    with jax.enable_x64(True):
        v = _hard(jax.device_count() * (1 << 14), dtype)
        x = placed(v, AxisType.Auto, "x")
        want = np.argsort(v, kind="stable")
        out = lax.sort(x)
        assert out.sharding.is_equivalent_to(x.sharding, 1)
        bits = f"u{v.dtype.itemsize}"
        np.testing.assert_array_equal(np.asarray(out).view(bits), v[want].view(bits))
        np.testing.assert_array_equal(np.asarray(jax.numpy.argsort(x)), want)
        number = placed(np.arange(v.size, dtype=np.int32), AxisType.Auto, "x")
        key, moved = jax.jit(lambda a, b: lax.sort((a, b), num_keys=1))(x, number)
        np.testing.assert_array_equal(np.asarray(moved), want)
        np.testing.assert_array_equal(np.asarray(key), v[want])


def test_rows_of_large_blocks() -> None:
    v = _hard(3 * jax.device_count() * (1 << 14), "float32").reshape(3, -1)
    x = placed(v.T.copy(), AxisType.Auto, "x", None)
    np.testing.assert_array_equal(np.asarray(lax.sort(x, dimension=0)), np.sort(v.T, 0))
    np.testing.assert_array_equal(np.asarray(jax.numpy.argsort(x, axis=0)), np.argsort(v.T, 0, kind="stable"))


def test_one_value_everywhere() -> None:
    n = jax.device_count() * (1 << 14)
    x = placed(np.full(n, 2.5, np.float32), AxisType.Auto, "x")
    np.testing.assert_array_equal(np.asarray(jax.numpy.argsort(x)), np.arange(n))
