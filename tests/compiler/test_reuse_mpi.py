"""What is written over on real ranks, of which some hold nothing of an update."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from tests.runtime.on_ranks import Auto, line, placed, ranks, values

pytestmark = pytest.mark.mpi


def test_an_updated_array_is_no_view_of_a_donated_one():
    """Ranks that hold no updated row gave the operand back, and its last reader wrote over both."""
    x = values(150 * ranks(), 256) - 40

    def f(x):
        updated = x.at[0].set(x[1])
        return updated, jax.lax.fori_loop(0, 2, lambda _, c: c * 0.5 + jnp.abs(x), updated)

    wanted = x.copy()
    wanted[0] = x[1]
    found, _ = jax.jit(f, donate_argnums=0)(placed(x, line(Auto), "x"))
    np.testing.assert_array_equal(np.asarray(found), wanted)
    found, absolute = jax.jit(lambda x: (x.at[0].set(x[1]), jnp.abs(x)), donate_argnums=0)(placed(x, line(Auto), "x"))
    np.testing.assert_array_equal(np.asarray(found), wanted)
    np.testing.assert_array_equal(np.asarray(absolute), np.abs(x))
