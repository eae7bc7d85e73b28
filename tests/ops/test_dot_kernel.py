"""Products of blocks: results in given memory, narrow floats panel by panel, against numpy in double precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.ops import dot_kernel
from mpiarray.ops.dot_kernel import product

#: dims of both sides and of the result as letters; sizes by letter
FORMS = ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn", "bmk,bkn->bmn", "bkm,nbk->bmn", "mkj,jnk->mn", "bmkc,bnkc->bmnc", "k,kn->n", "mk,k->m"]  # fmt: skip
SIZES = {"m": 70, "k": 90, "n": 50, "b": 3, "j": 4, "c": 2}


def _numbers(form):
    x, rest = form.split(",")
    y, out = rest.split("->")
    batch = [c for c in x if c in y and c in out]
    summed = [c for c in x if c in y and c not in out]
    found = tuple(tuple(side.index(c) for c in which) for which in (summed, batch) for side in (x, y))
    letters = [*batch, *(c for c in x if c in out and c not in batch), *(c for c in y if c in out and c not in batch)]
    return (found[:2], found[2:]), x, y, "".join(letters)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.complex64, np.int32, np.float16, ml_dtypes.bfloat16, bool]
)
@pytest.mark.parametrize("form", FORMS)
def test_product(form, dtype, monkeypatch):
    numbers, x_dims, y_dims, out_dims = _numbers(form)
    rng = np.random.default_rng(0)
    make = lambda dims: rng.integers(-3, 4, [SIZES[c] for c in dims]).astype(dtype)
    x, y = make(x_dims), make(y_dims)
    exact = np.complex128 if dtype == np.complex64 else np.int64  # the elements are small integers
    want = np.einsum(f"{x_dims},{y_dims}->{out_dims}", x.astype(exact), y.astype(exact)).astype(dtype)
    np.testing.assert_array_equal(product(x, y, numbers, np.dtype(dtype)), want)
    room = np.full(want.shape, 1, dtype)
    assert product(x, y, numbers, np.dtype(dtype), out=room) is room
    np.testing.assert_array_equal(room, want)
    monkeypatch.setattr(dot_kernel, "_PANELS", 1 << 12)
    monkeypatch.setattr(dot_kernel, "_INNER", 32)
    np.testing.assert_array_equal(product(x, y, numbers, np.dtype(dtype)), want)


def test_narrow_floats_are_widened_in_parts(monkeypatch):
    largest = []
    real = dot_kernel.matrices
    monkeypatch.setattr(dot_kernel, "_PANELS", 1 << 21)

    def watched(x, y, dtype, out=None):
        if dtype == np.float32:
            largest.append((x.size + y.size) * 4 + x.shape[-2] * y.shape[-1] * 4)
        return real(x, y, dtype, out)

    monkeypatch.setattr(dot_kernel, "matrices", watched)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((900, 900)).astype(ml_dtypes.bfloat16) for _ in range(2))
    out = product(x, y, (((1,), (0,)), ((), ())), np.dtype(ml_dtypes.bfloat16))
    wide = x.astype(np.float64) @ y.astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), wide, rtol=2**-8, atol=1e-2)
    assert len(largest) > 1 and max(largest) < 8 << 20


def test_slopes_of_weights_need_no_transpose():
    f = lambda w, x: jnp.sin(x @ w).sum()
    for argnums in (0, 1):
        jaxpr = jax.make_jaxpr(jax.grad(f, argnums))(np.ones((3, 4), np.float32), np.ones((5, 3), np.float32))
        assert "transpose[" not in str(jaxpr)
    batched = lambda w, x: jnp.sin(jnp.einsum("bij,bjk->bik", x, w)).sum()
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((2, 3, 4), np.float32), rng.standard_normal((2, 5, 3), np.float32)
    assert "transpose[" not in str(jax.make_jaxpr(jax.grad(batched))(w, x))
    want = np.einsum("bij,bik->bjk", x, np.cos(x @ w))
    np.testing.assert_allclose(np.asarray(jax.grad(batched)(w, x)), want, rtol=1e-5)
