"""Printing large arrays: numpy's text of the whole, from a few elements of each block."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import comm
from mpiarray.types.mesh import AxisType

pytestmark = pytest.mark.mpi(min_size=4)

MATRIX = (np.arange(400 * 300, dtype=np.float32) * 7919 % 100003).reshape(400, 300)
LINE = (np.arange(12000) * 7919 % 100003).astype(np.int32)
KINDS = [(AxisType.Explicit,) * 2, (AxisType.Auto,) * 2, (AxisType.Auto, AxisType.Explicit)]


def mesh_of(kinds, ids=(0, 1, 2, 3)):
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=kinds, devices=[jax.devices()[k] for k in ids])


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("spec", [jax.P("x", "y"), jax.P("y"), jax.P(None, "x"), jax.P(("x", "y")), jax.P(("y", "x"))])
def test_matrix(kinds, spec):
    x = jax.device_put(MATRIX, jax.NamedSharding(mesh_of(kinds), spec))
    with comm.counting() as counts:
        shown = str(x)
    assert shown == str(MATRIX)
    assert counts.total_calls <= 1
    assert sum(counts.bytes.values()) <= 7 * 7 * 4


def test_line_in_another_order_of_devices():
    x = jax.device_put(LINE, jax.NamedSharding(mesh_of(KINDS[0], (3, 1, 2, 0)), jax.P(("y", "x"))))
    assert str(x) == str(LINE)


def test_on_one_device_of_many():
    x = jax.device_put(MATRIX, jax.devices()[1])
    with comm.counting() as counts:
        assert str(x) == str(MATRIX)
    assert sum(counts.bytes.values()) <= 7 * 7 * 4


def test_other_numbers_of_edge_items():
    x = jax.device_put(MATRIX, jax.NamedSharding(mesh_of(KINDS[0]), jax.P("x", "y")))
    with np.printoptions(edgeitems=5):
        assert str(x) == str(MATRIX)
    with np.printoptions(threshold=10, edgeitems=1):
        assert str(x[:, :4]) == str(MATRIX[:, :4])
