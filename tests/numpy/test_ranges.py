"""Evenly spaced numbers and grids against numpy."""

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp


def same(got, want, rtol=1e-6):
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize(
    "args",
    [(5,), (0,), (5.0,), (3.5,), (2, 9, 3), (5, 0, -2), (4, 4), (0, 1, 0.25), (0, 1, 0.1), (1, -1, -0.5), (-3,), (1.5, 4), (0, 10, 3.5), (7, 2), (np.int8(3),)],
    ids=str,
)  # fmt: skip
def test_arange(args):
    want = np.arange(*args)
    got = jnp.arange(*args)
    same(got, want)
    assert got.dtype == ("float32" if want.dtype.kind == "f" else "int8" if isinstance(args[0], np.int8) else "int32")
    assert not got.weak_type


def test_arange_in_float32_is_numpys_in_float32():
    np.testing.assert_array_equal(np.asarray(jnp.arange(0, 1, 0.1)), np.arange(0, 1, 0.1, dtype=np.float32))
    np.testing.assert_array_equal(np.asarray(jnp.arange(0.3, 99, 0.7)), np.arange(0.3, 99, 0.7, dtype=np.float32))


def test_arange_dtypes_and_keywords():
    assert jnp.arange(3, dtype="int8").dtype == "int8"
    assert jnp.arange(3, dtype=float).dtype == "float32"
    assert jnp.arange(0, 5, dtype=jnp.bfloat16).dtype == "bfloat16"
    same(jnp.arange(5, step=2), [0, 2, 4])
    same(jnp.arange(jnp.asarray(3)), [0, 1, 2])


def test_arange_errors():
    with pytest.raises(ZeroDivisionError):
        jnp.arange(1, 2, 0)
    with pytest.raises(TypeError, match="must be a real number, not"):
        jnp.arange(None)
    with pytest.raises(TypeError):
        jnp.arange("a")
    with pytest.raises(TypeError, match="does not accept dtype bool"):
        jnp.arange(2, dtype=bool)
    with pytest.raises(ValueError, match="complex"):
        jnp.arange(1j)
    with pytest.raises(
        jax.errors.ConcretizationTypeError, match=r"jnp\.arange argument 'stop'|jnp\.arange argument 'start'"
    ):
        jax.jit(lambda n: jnp.arange(n))(3)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("num", [0, 1, 2, 5, 50])
@pytest.mark.parametrize("bounds", [(0, 1), (2, 2), (-3.5, 7), (10, 0), (1 + 1j, 2 - 3j)], ids=str)
def test_linspace(bounds, num, endpoint):
    got, step = jnp.linspace(*bounds, num, endpoint=endpoint, retstep=True)
    want, want_step = np.linspace(*bounds, num, endpoint=endpoint, retstep=True)
    same(got, want, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(step), want_step, rtol=1e-6)
    if num > 1 and endpoint:
        assert complex(got[-1]) == bounds[1]


def test_linspace_of_arrays():
    low, high = np.array([0.0, 1, 2]), np.array([[1.0], [4]])
    for axis in (0, 1, -1):
        same(jnp.linspace(jnp.asarray(low), jnp.asarray(high), 4, axis=axis), np.linspace(low, high, 4, axis=axis))
    same(jnp.linspace(0, 10, 4, dtype=int), np.linspace(0, 10, 4, dtype=int))
    same(jnp.linspace(-1, 2, 7, dtype=int), np.linspace(-1, 2, 7, dtype=int))
    with pytest.raises(ValueError, match="non-negative"):
        jnp.linspace(0, 1, -1)
    with pytest.raises(TypeError):
        jnp.linspace(0, 1, 2.5)


def test_logspace_and_geomspace():
    same(jnp.logspace(0, 2, 5), np.logspace(0, 2, 5), rtol=1e-5)
    same(jnp.logspace(0, 3, 4, base=2), np.logspace(0, 3, 4, base=2), rtol=1e-5)
    same(jnp.logspace(0, 3, 4, endpoint=False, dtype=int), np.logspace(0, 3, 4, endpoint=False, dtype=int))
    same(jnp.geomspace(1, 1000, 4), np.geomspace(1, 1000, 4), rtol=1e-5)
    same(jnp.geomspace(-1, -8, 4), np.geomspace(-1, -8, 4), rtol=1e-5)
    same(jnp.geomspace(jnp.array([1.0, 2]), 16.0, 3, axis=1), np.geomspace([1.0, 2], 16.0, 3, axis=1), rtol=1e-5)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sparse", [True, False])
def test_meshgrid(indexing, sparse):
    for sizes in ((3,), (3, 2), (2, 3, 4), (3, 1)):
        lines = [np.arange(n) * 10**k for k, n in enumerate(sizes)]
        got = jnp.meshgrid(*lines, indexing=indexing, sparse=sparse)
        for a, b in zip(got, np.meshgrid(*lines, indexing=indexing, sparse=sparse), strict=True):
            same(a, b)
    for bad in (
        lambda: jnp.meshgrid(1, 2),
        lambda: jnp.meshgrid(jnp.ones((2, 2))),
        lambda: jnp.meshgrid(jnp.ones(2), indexing="no"),
    ):
        with pytest.raises(ValueError):
            bad()


def test_grids():
    same(jnp.mgrid[0:2, 0:3], np.mgrid[0:2, 0:3])
    same(jnp.mgrid[0:1:5j], np.mgrid[0:1:5j])
    same(jnp.mgrid[-1:1:5j, 0:3], np.mgrid[-1:1:5j, 0:3])
    for a, b in zip(jnp.ogrid[0:2, 0:3], np.ogrid[0:2, 0:3], strict=True):
        same(a, b)
    same(jnp.indices((2, 3)), np.indices((2, 3)))
    for a, b in zip(jnp.indices((2, 3), sparse=True), np.indices((2, 3), sparse=True), strict=True):
        same(a, b)
    same(jnp.fromfunction(lambda i, j: i * 10 + j, (2, 3)), np.fromfunction(lambda i, j: i * 10 + j, (2, 3)))
    assert jnp.fromfunction(lambda i: i, (3,), dtype=int).dtype == "int32"
    for a, b in zip(jnp.ix_(jnp.arange(3), jnp.arange(2)), np.ix_(np.arange(3), np.arange(2)), strict=True):
        same(a, b)


R_CASES = [
    np.s_[1:3, 7], np.s_[0:1:5j, 2], np.s_["0,2", [1, 2], [3, 4]], np.s_["-1", [[1, 2]], [[3, 4]]], np.s_["0,3", [1, 2]], np.s_["0,2,0", [1, 2], [3, 4]],
    np.s_["1,2,0", [1, 2], [3, 4]], np.s_[[1, 2], 0, [3.5]],
]  # fmt: skip


@pytest.mark.parametrize("key", R_CASES, ids=str)
def test_r(key):
    same(jnp.r_[key], np.r_[key])


def test_c_and_s():
    same(jnp.c_[np.arange(2), np.arange(2)], np.c_[np.arange(2), np.arange(2)])
    same(jnp.c_[np.ones((2, 3)), np.arange(2)], np.c_[np.ones((2, 3)), np.arange(2)])
    assert jnp.r_["r", [1, 2]].shape == (1, 2)
    assert jnp.r_["c", [1, 2]].shape == (2, 1)
    assert jnp.s_[1:3, ...] == np.s_[1:3, ...]
    assert jnp.index_exp[1:3] == np.index_exp[1:3]
    with pytest.raises(ValueError, match="directive"):
        jnp.r_["bad", [1]]


def test_in_jit():
    got = jax.jit(lambda a: (jnp.arange(4), jnp.linspace(a, 2 * a, 5), jnp.meshgrid(jnp.arange(2), a[None])))(
        jnp.float32(2)
    )
    same(got[0], np.arange(4))
    same(got[1], np.linspace(2, 4, 5))
    same(got[2][1], [[2, 2]])
