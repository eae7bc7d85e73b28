"""Diagonals, triangles and their indices against numpy."""

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

N = np.arange(12, dtype=np.float32).reshape(3, 4)
T = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
OFFSETS = range(-5, 6)


def same(got, want):
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("k", OFFSETS)
def test_by_offset(k):
    same(jnp.eye(3, 4, k), np.eye(3, 4, k))
    same(jnp.tri(3, 4, k), np.tri(3, 4, k))
    for x in (N, T):
        same(jnp.tril(x, k), np.tril(x, k))
        same(jnp.triu(jnp.asarray(x), k), np.triu(x, k))
    same(jnp.diagonal(N, k), np.diagonal(N, k))
    same(jnp.trace(N, k), np.trace(N, k))
    same(jnp.diag(np.arange(3), k), np.diag(np.arange(3), k))
    same(jnp.diag(N, k), np.diag(N, k))
    same(jnp.diagflat(N[:2, :2], k), np.diagflat(N[:2, :2], k))
    for a, b in zip(jnp.tril_indices(3, k, 4), np.tril_indices(3, k, 4), strict=True):
        same(a, b)
    for a, b in zip(jnp.triu_indices_from(N, k), np.triu_indices_from(N, k), strict=True):
        same(a, b)


def test_diagonals_of_other_axes():
    for axes in ((0, 1), (1, 2), (2, 0), (-1, 0)):
        for k in (-1, 0, 2):
            same(jnp.diagonal(T, k, *axes), np.diagonal(T, k, *axes))
            same(jnp.asarray(T).trace(k, *axes), np.trace(T, k, *axes))
    assert jnp.trace(jnp.ones((2, 2), "int8")).dtype == "int32"
    assert jnp.trace(jnp.ones((2, 2), "int8"), dtype="float32").dtype == "float32"


def test_dtypes():
    assert jnp.eye(2, dtype=int).dtype == "int32"
    assert jnp.identity(2).dtype == "float32"
    assert jnp.tril(jnp.ones((2, 2), bool)).dtype == "bool"
    assert jnp.vander(jnp.arange(3)).dtype == "int32"


def test_vander():
    for x in (np.arange(4.0), np.arange(3), np.array([1.5])):
        for n in (None, 0, 1, 5):
            for increasing in (True, False):
                same(jnp.vander(x, n, increasing), np.vander(x, n, increasing))


def test_fill_diagonal():
    for value in (5.0, np.array([7.0, 8.0])):
        want = N.copy()
        np.fill_diagonal(want, value)
        same(jnp.fill_diagonal(jnp.asarray(N), value, inplace=False), want)
    cube = np.zeros((3, 3, 3), np.float32)
    want = cube.copy()
    np.fill_diagonal(want, 1)
    same(jnp.fill_diagonal(cube, 1, inplace=False), want)
    with pytest.raises(NotImplementedError, match="inplace=False"):
        jnp.fill_diagonal(N, 1.0)


def test_other_indices():
    for a, b in zip(jnp.diag_indices(3, 3), np.diag_indices(3, 3), strict=True):
        same(a, b)
    for a, b in zip(jnp.diag_indices_from(N[:, :3]), np.diag_indices_from(N[:, :3]), strict=True):
        same(a, b)
    for a, b in zip(jnp.mask_indices(3, np.triu, 1), np.mask_indices(3, np.triu, 1), strict=True):
        same(a, b)


def test_in_jit():
    got = jax.jit(lambda x: (jnp.tril(x), jnp.diagonal(x, 1), jnp.diag(x[0]), jnp.eye(2), jnp.trace(x)))(N)
    for a, b in zip(got, (np.tril(N), np.diagonal(N, 1), np.diag(N[0]), np.eye(2), np.trace(N)), strict=True):
        same(a, b)


def test_errors():
    for f, error in (
        (lambda: jnp.eye(-1), ValueError), (lambda: jnp.eye(2.5), TypeError), (lambda: jnp.tri(2.5), TypeError), (lambda: jnp.tril(jnp.arange(3)), ValueError),
        (lambda: jnp.diagonal(jnp.arange(3)), ValueError), (lambda: jnp.diagonal(N, 0, 0, 0), ValueError), (lambda: jnp.diag(T), ValueError),
        (lambda: jnp.vander(N), ValueError), (lambda: jnp.diag_indices_from(N), ValueError), (lambda: jnp.trace([[1]]), TypeError),
    ):  # fmt: skip
        with pytest.raises(error):
            f()
