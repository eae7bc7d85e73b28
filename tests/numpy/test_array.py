"""Operators and methods of arrays, of concrete ones and of tracers."""

import copy
import operator

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

N = (np.arange(12, dtype=np.float32) - 5).reshape(3, 4)
I = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)

BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.lt, operator.le, operator.gt, operator.ge,
          operator.eq, operator.ne, divmod]  # fmt: skip
BITS = [operator.and_, operator.or_, operator.xor]
UNARY = [operator.neg, operator.pos, abs]


def same(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert isinstance(a, jax.Array)
        assert a.shape == np.shape(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


@pytest.mark.parametrize("op", BINARY, ids=lambda f: f.__name__)
def test_binary_operators(op):
    x = jnp.asarray(N)
    other = np.where(N == 0, 2, N)[::-1].copy()
    with np.errstate(all="ignore"):
        for y in (other, 2, 2.5, np.float32(3), other[0]):
            same(op(x, y), op(N, y))
            same(op(x, jnp.asarray(y)), op(N, y))
            same(op(y, x + 6), op(y, N + 6)) if op is divmod or op.__name__ in ("mod", "floordiv", "truediv") else same(
                op(y, x), op(y, N)
            )


@pytest.mark.parametrize("op", BITS, ids=lambda f: f.__name__)
def test_bits(op):
    x = jnp.asarray(I)
    for y in (I[::-1].copy(), 6, I[0]):
        same(op(x, y), op(I, y))
        same(op(y, x), op(y, I))
    same(op(x > 0, x < 3), op(I > 0, I < 3))
    same(x << 2, I << 2)
    same(x >> 1, I >> 1)
    same(1 << jnp.arange(3), 1 << np.arange(3))
    same(~x, ~I)
    with pytest.raises(TypeError):
        op(jnp.ones(2), 1)


@pytest.mark.parametrize("op", UNARY, ids=lambda f: f.__name__)
def test_unary_operators(op):
    same(op(jnp.asarray(N)), op(N))
    same(op(jnp.asarray(I)), op(I))


def test_pow_matmul_round():
    x = jnp.asarray(N)
    same(x**2, N**2)
    same(2.0**x, 2.0**N)
    same(x @ x.T, N @ N.T)
    same(N @ x.T, N @ N.T)
    same(round(x / 7, 2), np.round(N / 7, 2))
    with pytest.raises(TypeError):
        pow(x, 2, 3)


def test_in_place_operators_make_new_arrays():
    x = y = jnp.arange(3.0)
    y += 1
    y *= 2
    same(x, np.arange(3.0))
    same(y, np.array([2, 4, 6]))
    with pytest.raises(TypeError, match=r"x = x.at\[idx\].set\(y\)"):
        x[0] = 1


def test_operands_that_are_none():
    x = jnp.arange(3.0)
    for bad in ("a", [1, 2, 3], None, {}, object()):
        for f in (lambda v: x + v, lambda v: v * x, lambda v: x @ v, lambda v: x < v, lambda v: divmod(x, v)):
            with pytest.raises(TypeError):
                f(bad)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True


def test_other_types_may_answer():
    class Mine:
        def __radd__(self, other):
            return "mine"

    assert jnp.arange(3) + Mine() == "mine"


def test_numpy_meets_arrays():
    x = jnp.asarray(N)
    for f in (lambda: np.float32(3) - x, lambda: N * x, lambda: N[0] < x, lambda: np.int32(2) ** x):
        assert isinstance(f(), jax.Array)
    assert isinstance(np.sin(x), np.ndarray)
    assert isinstance(np.add(np.asarray(x), 1), np.ndarray)
    assert np.concatenate([x, x]).shape == (6, 4)
    assert np.sum(x).item() == N.sum()
    np.testing.assert_allclose(np.mean(x, axis=0), N.mean(0))
    assert np.allclose(x, N)
    assert np.shape(x) == (3, 4)


METHODS = [
    ("sum", (), {}), ("sum", (0,), {}), ("prod", (1,), {}), ("max", (), {}), ("min", (1,), {"keepdims": True}), ("mean", (0,), {}), ("std", (), {}),
    ("var", (1,), {"ddof": 1}), ("any", (), {}), ("all", (0,), {}), ("argmax", (1,), {}), ("argmin", (), {}), ("cumsum", (0,), {}), ("cumprod", (1,), {}),
    ("argsort", (0,), {}), ("clip", (-1, 2), {}), ("conj", (), {}), ("round", (), {}), ("repeat", (2, 1), {}), ("dot", (N.T,), {}), ("trace", (), {}),
    ("diagonal", (1,), {}), ("nonzero", (), {}), ("ravel", (), {}), ("flatten", (), {}), ("reshape", (4, 3), {}), ("reshape", ((2, -1),), {}),
    ("transpose", (), {}), ("transpose", (1, 0), {}), ("transpose", ((1, 0),), {}), ("swapaxes", (0, 1), {}), ("squeeze", (), {}), ("astype", ("int32",), {}),
    ("take", (np.array([1, 5]),), {}), ("compress", (np.array([True, False, True]),), {"axis": 0}), ("copy", (), {}),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m[0]}{m[1]}")
def test_methods(method):
    name, args, words = method
    x = jnp.asarray(N)
    want = getattr(N, name)(*args, **words)
    args = tuple(jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in args)
    same(getattr(x, name)(*args, **words), want)
    if name not in ("nonzero", "compress"):
        same(jax.jit(lambda x: getattr(x, name)(*args, **words))(x), want)


def test_sort_and_searchsorted_and_choose():
    x = jnp.asarray(N)
    same(x.sort(0), np.sort(N, 0))
    same(jnp.arange(5.0).searchsorted(2.5), 3)
    same(jnp.array([0, 1]).choose([jnp.arange(2), jnp.array([7, 8])]), np.array([0, 8]))
    same(x.ptp(), np.ptp(N))


def test_properties():
    x = jnp.asarray(N)
    assert (x.shape, x.ndim, x.size, x.dtype, x.itemsize, x.nbytes, len(x)) == ((3, 4), 2, 12, np.float32, 4, 48, 3)
    same(x.T, N.T)
    same(x.mT, N.T)
    same(x.real, N.real)
    same(x.imag, N.imag)
    with pytest.raises(TypeError, match="unsized"):
        len(jnp.float32(1))
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_iteration_and_membership():
    x = jnp.arange(4.0)
    assert [float(v) for v in x] == [0, 1, 2, 3]
    assert [float(v) for v in reversed(x)] == [3, 2, 1, 0]
    assert 3.0 in x
    assert 7.0 not in x
    a, b = jnp.asarray(N[:2])
    same(a, N[0])
    same(b, N[1])
    with pytest.raises(TypeError):
        iter(jnp.float32(1))


def test_copies():
    x = jnp.arange(3)
    for c in (x.copy(), copy.copy(x), copy.deepcopy(x), jnp.copy(x), jnp.array(x)):
        assert c is not x
        same(c, np.arange(3))


def test_tracers_have_the_operators_and_methods():
    def f(x):
        return (
            x + 1,
            2 - x,
            x**2,
            -x,
            abs(x),
            x > 0,
            x @ x.T,
            x.sum(),
            x.T,
            x.reshape(-1),
            x[0],
            len(x),
            x.astype(int),
            x.at[0].set(1.0),
        )

    x = jnp.asarray(N)
    for got, want in zip(jax.tree.leaves(jax.jit(f)(x)), jax.tree.leaves(f(x)), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
