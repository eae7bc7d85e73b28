"""where, select, piecewise, choose, ufunc objects and vectorize."""

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

N = (np.arange(12, dtype=np.float32) - 5).reshape(3, 4)


def same(got, want, dtype=None):
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
    assert dtype is None or got.dtype == dtype


def test_where():
    x = jnp.asarray(N)
    same(jnp.where(x > 0, x, -x), np.abs(N))
    same(jnp.where(x > 0, x, 0), np.where(N > 0, N, 0), "float32")
    same(jnp.where(x[0] > -4, x, N[:, :1]), np.where(N[0] > -4, N, N[:, :1]))
    same(jnp.where(True, 1, 2.5), 1.0, "float32")
    same(jnp.where(x, 1, 2), np.where(N, 1, 2), "int32")
    same(jnp.where(jnp.zeros((0, 3)) > 0, 1, 2), np.zeros((0, 3)))
    (found,) = jnp.where(jnp.array([True, False, True]))
    same(found, [0, 2])
    for bad in (lambda: jnp.where(x, 1), lambda: jnp.where([True], 1, 2)):
        with pytest.raises(TypeError):
            bad()
    with pytest.raises(ValueError, match="Incompatible shapes"):
        jnp.where(x > 0, x, jnp.ones(3))
    with pytest.raises(ValueError, match="three-term"):
        jnp.where(x > 0, x, x, size=3)


def test_select():
    x = jnp.asarray(N)
    same(jnp.select([x > 3, x < 0], [x, -x], 9), np.select([N > 3, N < 0], [N, -N], 9), "float32")
    same(jnp.select([x > 3, x > 0], [1, 2]), np.select([N > 3, N > 0], [1, 2]))
    for bad in (lambda: jnp.select([], []), lambda: jnp.select([x > 0], [1, 2]), lambda: jnp.select([x], [1])):
        with pytest.raises(ValueError):
            bad()


def test_piecewise():
    x = jnp.asarray(N)
    cases = [
        ([N < 0], [lambda v: -v, lambda v: v + 1]), ([N < 0, N > 2], [lambda v: v * 0, 7]), ([N < 0, N > 2], [1, 2, 3]),
        ([N < 3, N < 0], [1, 2]),
    ]  # fmt: skip
    for conditions, functions in cases:
        same(jnp.piecewise(x, conditions, functions), np.piecewise(N, conditions, functions), "float32")
    same(jnp.piecewise(x, [N < 0], [lambda v, a, b=1: v * a + b, 0], 3, b=2), np.where(N < 0, N * 3 + 2, 0))
    same(jnp.piecewise(jnp.arange(-2, 3), [np.arange(-2, 3) < 0], [1.5]), [1, 1, 0, 0, 0], "int32")
    same(jnp.piecewise(x, N < 0, [lambda v: v * v]), np.where(N < 0, N * N, 0))
    with pytest.raises(ValueError, match="functions are expected"):
        jnp.piecewise(x, [N < 0], [1, 2, 3])


def test_choose():
    which, choices = np.array([[0, 1], [2, 0]]), [np.arange(2), np.array([[5], [6]]), 9]
    same(jnp.choose(jnp.asarray(which), choices), np.choose(which, choices))
    wild = np.array([-1, 0, 5])
    for mode in ("clip", "wrap"):
        same(jnp.choose(wild, [10, 20, 30], mode=mode), np.choose(wild, [10, 20, 30], mode=mode))
    with pytest.raises(ValueError, match="invalid entry in choice array"):
        jnp.choose(wild, [10, 20, 30])
    with pytest.raises(ValueError, match="integer"):
        jnp.choose(jnp.ones(2), [1, 2])
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda a: jnp.choose(a, [1, 2]))(jnp.array([0, 1]))
    same(jax.jit(lambda a: jnp.choose(a, [1, 2], mode="clip"))(jnp.array([0, 1])), [1, 2])


@pytest.mark.parametrize("name", ["add", "multiply", "subtract", "maximum", "minimum", "logaddexp"])
@pytest.mark.parametrize("axis", [0, 1])
def test_methods_of_ufuncs(name, axis):
    ours, theirs = getattr(jnp, name), getattr(np, name)
    same(ours.reduce(N, axis), theirs.reduce(N, axis))
    same(ours.reduce(N, axis, keepdims=True), theirs.reduce(N, axis, keepdims=True))
    same(ours.accumulate(N, axis), theirs.accumulate(N, axis))
    same(ours.outer(N[0], N), theirs.outer(N[0], N))
    same(ours.reduceat(N, np.array([0, 2, 1]), axis), theirs.reduceat(N, [0, 2, 1], axis))
    changed = N.copy()
    theirs.at(changed, ([0, 1], [1, 2]), 2.0)
    same(ours.at(N, (jnp.array([0, 1]), jnp.array([1, 2])), 2.0, inplace=False), changed)


@pytest.mark.parametrize(
    "name", ["bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"]
)
def test_methods_of_logical_ufuncs(name):
    x = np.array([[7, 3, 5], [1, 0, 4]])
    same(getattr(jnp, name).reduce(x, 1), getattr(np, name).reduce(x, 1))
    same(getattr(jnp, name).reduce(x, None), getattr(np, name).reduce(x, None))


def test_ufunc_attributes_and_errors():
    assert repr(jnp.add) == "<jnp.ufunc 'add'>"
    assert (jnp.add.nin, jnp.add.nout, jnp.add.nargs, jnp.add.identity) == (2, 1, 2, 0)
    same(jnp.add.reduce(N, None, initial=5), N.sum() + 5)
    same(jnp.add.reduce(N, 0, where=N > 0), np.add.reduce(N, 0, where=N > 0))
    same(jnp.negative.at(N, 1, inplace=False), np.concatenate([N[:1], -N[1:2], N[2:]]))
    for f, error in (
        (lambda: jnp.add(1), TypeError), (lambda: jnp.add(1, 2, out=3), NotImplementedError), (lambda: jnp.add.at(N, 0, 1), NotImplementedError),
        (lambda: jnp.subtract.reduce(jnp.ones(0)), ValueError), (lambda: jnp.negative.reduce(N), ValueError), (lambda: jnp.add.accumulate(N, None), ValueError),
        (lambda: jnp.add.reduceat(N, np.array([9])), IndexError), (lambda: jnp.subtract.reduce(N, where=N > 0), ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            f()


def test_frompyfunc():
    f = jnp.frompyfunc(lambda a, b: a * b, 2, 1, identity=1)
    same(f(N, N[0]), N * N[0])
    same(f.reduce(np.arange(1, 5)), 24)
    same(f.accumulate(np.arange(1, 5)), [1, 2, 6, 24])
    same(f.outer(np.arange(3), np.arange(2)), np.outer(np.arange(3), np.arange(2)))
    same(f.reduce(np.ones((2, 0)), axis=1), [1, 1])
    g = jnp.frompyfunc(lambda a: (a + 1, a * 2), 1, 2)
    up, double = g(N)
    same(up, N + 1)
    same(double, N * 2)


def test_vectorize():
    f = jnp.vectorize(lambda a, b: a * 2 + b)
    same(f(N, N[0]), N * 2 + N[0])
    same(f(N, 1.0), N * 2 + 1)
    same(f(N[:, :1], N[:1]), N[:, :1] * 2 + N[:1])
    dot = jnp.vectorize(jnp.dot, signature="(n),(n)->()")
    same(dot(N, N), (N * N).sum(1))
    same(dot(N[:, None], N), N @ N.T)
    matvec = jnp.vectorize(jnp.dot, signature="(m,n),(n)->(m)")
    same(matvec(np.ones((5, 2, 4), np.float32), N[:1]), np.broadcast_to(N[0].sum(), (5, 2)))
    both = jnp.vectorize(lambda x: (x.sum(), x * 2), signature="(n)->(),(n)")
    total, double = both(N)
    same(total, N.sum(1))
    same(double, N * 2)
    power = jnp.vectorize(lambda x, n, scale=1: scale * x**n, excluded={1, "scale"})
    same(power(N, 3, scale=2), 2 * N**3)
    for wrong, error in (
        (lambda: jnp.vectorize(jnp.dot, signature="(n,(n)->()"), ValueError), (lambda: dot(N, N[:, :2]), ValueError), (lambda: dot(N), TypeError),
        (lambda: dot(N, 1.0), ValueError), (lambda: jnp.vectorize(lambda x: x, signature="(n)->()")(N), ValueError), (lambda: f([1], [2]), TypeError),
        (lambda: jnp.vectorize(f, excluded={-1}), ValueError), (lambda: jnp.vectorize(f, excluded={1.5}), TypeError),
    ):  # fmt: skip
        with pytest.raises(error):
            wrong()


def test_along_axes():
    same(jnp.apply_along_axis(jnp.sum, 1, N), N.sum(1))
    same(jnp.apply_along_axis(lambda v: v - v.mean(), 0, N), N - N.mean(0))
    cube = np.arange(24.0).reshape(2, 3, 4)
    for axis in (0, 1, 2, -1):
        same(jnp.apply_along_axis(lambda v: v[:2], axis, cube), np.apply_along_axis(lambda v: v[:2], axis, cube))
        same(
            jnp.apply_along_axis(lambda v: jnp.outer(v[:2], v[:2]), axis, cube),
            np.apply_along_axis(lambda v: np.outer(v[:2], v[:2]), axis, cube),
        )
    same(jnp.apply_over_axes(jnp.sum, cube, (0, 2)), np.apply_over_axes(np.sum, cube, (0, 2)))


def test_unwrap():
    x = np.random.default_rng(0).normal(size=(3, 9)) * 9
    for words in ({}, {"axis": 0}, {"discont": 5}, {"period": 4.0}):
        np.testing.assert_allclose(np.asarray(jnp.unwrap(jnp.asarray(x), **words)), np.unwrap(x, **words), atol=1e-4)
    n = np.array([0, 1, 2, -1, 0, 7])
    np.testing.assert_array_equal(np.asarray(jnp.unwrap(n, period=4)), np.unwrap(n, period=4))
