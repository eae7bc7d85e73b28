"""Choices between a value and 0: made by one product of integers, with the bits that choosing gives."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5, -2.5]


def text_of(f, *args) -> str:
    return jax.jit(f).lower(*args).compile().as_text()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int8", "complex64", "bool"])
@pytest.mark.parametrize("shape", [(8,), (40, 64)])
def test_the_bits_are_those_of_the_choice(dtype, shape):
    x = jnp.asarray(np.resize(np.asarray(SPECIAL, "f4" if dtype not in ("int32", "int8", "bool") else "i4"), shape) if "int" not in dtype and dtype != "bool" else np.arange(np.prod(shape)).reshape(shape) - 3).astype(dtype)  # fmt: skip
    mask = jnp.asarray(np.arange(np.prod(shape)).reshape(shape) % 3 > 0)
    f = lambda mask, x: jnp.where(mask, x, 0 if x.dtype != bool else False)
    found = np.asarray(jax.jit(f)(mask, x))
    wanted = np.where(np.asarray(mask), np.asarray(x), np.zeros((), np.asarray(x).dtype))
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()
    turned = jax.jit(lambda mask, x: f(mask, x.T.copy().T) if x.ndim > 1 else f(mask, x))(mask, x)
    assert np.asarray(turned).tobytes() == wanted.tobytes()


def test_which_choices_are_made_so():
    mask, x = jnp.ones((4, 4), bool), jnp.ones((4, 4))
    ops = lambda f, *args: [line for line in text_of(f, *args).splitlines() if "select(" in line]
    (row,) = ops(lambda m, x: jnp.where(m, x, 0), mask, x)
    assert row.count("%") == 3  # the result, the mask and x
    (row,) = ops(jax.grad(lambda x: jnp.sum(jax.nn.relu(x) * x)), x)
    assert row.count("%") == 3
    for other in (
        lambda m, x: jnp.where(m, x, -0.0),
        lambda m, x: jnp.where(m, 0, x),
        lambda m, x: jnp.where(m, x, 2 * x),
    ):
        assert "select(" in text_of(other, mask, x)
        np.testing.assert_array_equal(jax.jit(other)(mask, x), other(mask, x))
    zero = np.asarray(jax.jit(lambda m, x: jnp.where(m, x, -0.0))(~mask, x))
    assert np.signbit(zero).all()


def test_masks_that_are_broadcast():
    x = jnp.arange(4096.0 * 4).reshape(64, 256) + 1
    for mask in (
        jnp.arange(64)[:, None] % 2 > 0,
        jnp.arange(256)[None] > 100,
        jnp.asarray(True),
        jnp.asarray([[False]]),
    ):
        f = lambda m, x: jnp.sum(jnp.where(m, x, 0), axis=0)
        np.testing.assert_allclose(jax.jit(f)(mask, x), np.where(np.asarray(mask), np.asarray(x), 0).sum(0), rtol=1e-6)
