"""Products, solutions and Fourier transforms of arrays that lie on real ranks."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm

pytestmark = pytest.mark.mpi


def ints(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.fixture
def mesh():
    """All devices in one axis x, Explicit."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        yield mesh


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_sharded_contractions(mesh, dtype):
    """One all-reduce, or one reduce-scatter where the result is sharded over the axis."""
    n = 4 * jax.device_count()
    x, y = ints(n, n).astype(dtype), ints(n, 6, seed=1).astype(dtype)
    a, b = jax.device_put(x, jax.P(None, "x")), jax.device_put(y, jax.P("x", None))
    wanted = ints(n, n) @ ints(n, 6, seed=1)
    for spec, kind in ((jax.P(), "all_reduce"), (jax.P("x"), "reduce_scatter")):
        with comm.counting() as c:
            z = jnp.dot(a, b, out_sharding=spec)
        if jax.device_count() > 1:
            assert {k: v for k, v in c.calls.items() if v} == {kind: 1}
        np.testing.assert_allclose(
            np.asarray(z).astype(complex), wanted, rtol=0.02 if dtype == "bfloat16" else 1e-5, atol=1
        )
        assert z.dtype == dtype


def test_free_dims_need_no_communication(mesh):
    n = 2 * jax.device_count()
    a = jax.device_put(ints(n, 3, 8), jax.P("x"))
    b = jax.device_put(ints(n, 8, 5, seed=1), jax.P("x"))
    w = jax.device_put(ints(8, 4, seed=2), jax.P())
    with comm.counting() as c:
        outs = [a @ b, jnp.einsum("bij,jk->bki", a, w), jnp.linalg.inv(a @ jnp.swapaxes(a, 1, 2) + 9 * jnp.eye(3))]
    assert c.total_calls == 0
    np.testing.assert_array_equal(np.asarray(outs[0]), ints(n, 3, 8) @ ints(n, 8, 5, seed=1))
    np.testing.assert_array_equal(np.asarray(outs[1]), np.einsum("bij,jk->bki", ints(n, 3, 8), ints(8, 4, seed=2)))
    gram = ints(n, 3, 8) @ ints(n, 3, 8).swapaxes(1, 2) + 9 * np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(np.asarray(outs[2]), np.linalg.inv(gram), rtol=1e-3, atol=1e-5)


def test_fourier_transforms(mesh):
    n = 2 * jax.device_count()
    x = ints(n, 2 * n)
    a = jax.device_put(x, jax.P("x", None))
    with comm.counting() as c:
        out = jnp.fft.fft2(a)
    if jax.device_count() > 1:
        assert {k: v for k, v in c.calls.items() if v} == {"all_to_all": 2}
    np.testing.assert_allclose(np.asarray(out), np.fft.fft2(x), rtol=1e-4, atol=1e-3)
    assert jax.typeof(out).sharding.spec == jax.P("x", None)
