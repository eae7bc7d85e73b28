"""jax.ops: reductions by segments, against loops."""

import numpy as np
import pytest

import mpiarray as jax
from tests.ops.pretended_mesh import P, mesh_of, run

DATA = (np.arange(24.0) * 7 % 11).astype(np.float32).reshape(8, 3)
IDS = np.array([0, 2, 2, 0, 3, 9, -1, 2], np.int32)
CASES = {
    "sum": (jax.ops.segment_sum, 0.0, np.add),
    "prod": (jax.ops.segment_prod, 1.0, np.multiply),
    "max": (jax.ops.segment_max, -np.inf, np.maximum),
    "min": (jax.ops.segment_min, np.inf, np.minimum),
}


def loop(start, f, count):
    out = np.full((count, 3), start)
    for row, k in zip(DATA, IDS):
        if 0 <= k < count:
            out[k] = f(out[k], row)
    return out


@pytest.mark.parametrize("kind", CASES)
def test_values_and_rows_that_are_dropped(kind):
    function, start, f = CASES[kind]
    np.testing.assert_array_equal(np.asarray(function(DATA, IDS, 5)), loop(start, f, 5))
    np.testing.assert_array_equal(np.asarray(function(DATA, IDS)), loop(start, f, 10))
    flat = function(DATA[:, 0], IDS, num_segments=4)
    np.testing.assert_array_equal(np.asarray(flat), loop(start, f, 4)[:, 0])


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("data, ids", [(P("x"), P("x")), (P(), P("x")), (P("x"), P())])
def test_sharded_rows(kind, data, ids):
    function, start, f = CASES[kind]
    (got,), (aval,), _, _ = run(lambda d, i: [function(d, i, 5)], [DATA, IDS], [data, ids], mesh_of(("x", 4)))
    np.testing.assert_array_equal(got, loop(start, f, 5))
    assert aval.short() == "f32[5,3]"


def test_integers_keep_their_dtype():
    got = jax.ops.segment_max(np.array([3, 1], np.int8), np.array([1, 1]), 3)
    assert np.asarray(got).tolist() == [-128, 3, -128] and got.dtype == np.int8


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match="segment_ids does not accept dtype float32"):
        jax.ops.segment_sum(DATA, DATA[:, 0], 3)
    with pytest.raises(ValueError, match="one entry per row"):
        jax.ops.segment_sum(DATA, IDS[:4], 3)
    with pytest.raises(ValueError, match="num_segments must be given"):
        jax.jit(lambda i: jax.ops.segment_sum(DATA, i))(IDS)
