"""Slices, joins, indexing and windows on real ranks: the messages of `ops.boxes`, and owners of indexed rows."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import comm
from mpiarray.ops import conv, gather, pooling, shape, slicing
from mpiarray.types.mesh import AxisType

pytestmark = pytest.mark.mpi


def mesh_of_all(kind: AxisType = AxisType.Explicit) -> jax.Mesh:
    n = jax.device_count()
    sizes = (n // 2, 2) if n % 2 == 0 else (n, 1)
    return jax.make_mesh(sizes, ("x", "y"), axis_types=(kind, kind))


def values(*sizes: int) -> np.ndarray:
    return (np.arange(np.prod(sizes)) * 7 % 101).astype(np.float32).reshape(sizes)


def placed(x: np.ndarray, mesh: jax.Mesh, *spec: object) -> jax.Array:
    return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))


SPECS = [("x", "y"), (("x", "y"), None), (None, "x"), ("y", None)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=str)
def test_elements_that_change_owner(spec: tuple, kind: AxisType) -> None:
    n = 4 * jax.device_count()
    v = values(n, n)
    x = placed(v, mesh_of_all(kind), *spec)
    same = np.testing.assert_array_equal
    same(np.asarray(shape.roll(x, shift=(3, -1), axis=(0, 1))), np.roll(v, (3, -1), (0, 1)))
    same(np.asarray(shape.rev(x, dimensions=(0, 1))), v[::-1, ::-1])
    same(np.asarray(shape.concatenate(x, x, dimension=0)), np.concatenate([v, v]))
    half = slicing.slice_(x, start_indices=(n // 2, 0), limit_indices=(n, n), strides=(1, 2))
    same(np.asarray(half), v[n // 2 :, ::2])
    wide = slicing.pad(x, np.float32(-1), padding_config=((0, n, 0), (n // 2, n // 2, 0)))
    same(np.asarray(wide), np.pad(v, ((0, n), (n // 2, n // 2)), constant_values=-1))
    for piece, want in zip(shape.split(x, sizes=(n // 2, n // 2), axis=0), np.split(v, 2)):
        same(np.asarray(piece), want)
    start = (np.int32(2), np.int32(1))
    got = slicing.dynamic_slice(x, *start, slice_sizes=(n // 2, n // 2))
    same(np.asarray(got), v[2 : 2 + n // 2, 1 : 1 + n // 2])
    want = v.copy()
    want[2 : 2 + n // 2, 1 : 1 + n // 2] = 0
    same(np.asarray(slicing.dynamic_update_slice(x, got * 0, *start)), want)


def test_rows_by_number_and_back() -> None:
    n = 4 * jax.device_count()
    mesh = mesh_of_all()
    v, ids = values(n, 4), (np.arange(2 * n) * 5 % n).astype(np.int32)
    x, i = placed(v, mesh, ("x", "y")), placed(ids, mesh, "x")
    where = jax.NamedSharding(mesh.abstract_mesh, jax.P(("x", "y"), None))
    params = {"dims": (0,), "batch_dims": 0, "mode": "clip", "out_sharding": where}
    rows = gather.gather(x, i, fill_value=None, **params)
    np.testing.assert_array_equal(np.asarray(rows), v[ids])
    total = gather.scatter(x, rows, i, combine="add", **params)
    want = v.copy()
    np.add.at(want, ids, v[ids])
    np.testing.assert_array_equal(np.asarray(total), want)
    assert total.sharding.spec == jax.P(("x", "y"), None)


def test_windows_fetch_a_halo() -> None:
    n = jax.device_count()
    mesh = mesh_of_all()
    rng = np.random.default_rng(0)
    v, w = rng.integers(-3, 4, (2, 3, 4 * n)), rng.integers(-3, 4, (2, 3, 3))
    x = placed(v.astype(np.float32), mesh, None, None, ("x", "y"))
    params = {
        "window_strides": (1,), "padding": ((1, 1),), "lhs_dilation": (1,), "rhs_dilation": (1,),
        "dimension_numbers": conv.conv_dimension_numbers(3, None), "feature_group_count": 1, "batch_group_count": 1,
        "precision": None, "preferred_element_type": None, "out_sharding": None,
    }  # fmt: skip
    kernel = placed(w.astype(np.float32), mesh)
    with comm.counting() as counts:
        out = conv.conv_general_dilated(x, kernel, **params)
    framed = np.pad(v, ((0, 0), (0, 0), (1, 1)))
    want = sum(np.einsum("nci,oc->noi", framed[..., k : k + 4 * n], w[..., k]) for k in range(3))
    np.testing.assert_array_equal(np.asarray(out), want)
    assert counts.total_calls == (n > 1)
    pooled = pooling.reduce_window_max(
        x, window_dimensions=(1, 1, 3), window_strides=(1, 1, 1), padding=((0, 0), (0, 0), (1, 1)),
        base_dilation=(1, 1, 1), window_dilation=(1, 1, 1),
    )  # fmt: skip
    framed = np.pad(v, ((0, 0), (0, 0), (1, 1)), constant_values=-99)
    np.testing.assert_array_equal(np.asarray(pooled), np.max([framed[..., k : k + 4 * n] for k in range(3)], 0))


def test_errors_come_before_any_message() -> None:
    n = jax.device_count()
    if n == 1:
        pytest.skip("an axis of one device divides everything")
    x = placed(values(4 * n, 4), mesh_of_all(), ("x", "y"), None)
    with comm.counting() as counts, pytest.raises(jax.errors.ShardingTypeError, match="is not divisible by mesh axes"):
        slicing.slice_(x, start_indices=(0, 0), limit_indices=(1, 4), strides=None)
    assert not counts.total_calls
