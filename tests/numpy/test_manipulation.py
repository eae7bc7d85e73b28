"""Functions that reshape, turn, join and split, against numpy, eagerly and staged; and their errors."""

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

N = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
M = np.arange(12, dtype=np.int32).reshape(3, 4)

# name: (arguments after the array, keywords)
CASES = [
    ("reshape", ((4, -1),), {}), ("reshape", (24,), {}), ("reshape", ((6, 4), "F"), {}), ("reshape", ((4, 3, 2), "F"), {}), ("reshape", ((2, 3, 4, 1),), {}),
    ("reshape", ((1, 2, 3, 1, 4),), {}), ("ravel", (), {}), ("ravel", ("F",), {}), ("transpose", (), {}), ("transpose", ((1, 2, 0),), {}),
    ("moveaxis", (0, -1), {}), ("moveaxis", ((0, 1), (2, 0)), {}), ("rollaxis", (2,), {}), ("rollaxis", (0, 3), {}), ("rollaxis", (1, -1), {}),
    ("swapaxes", (0, -1), {}), ("expand_dims", (0,), {}), ("expand_dims", ((0, -1),), {}), ("expand_dims", ((1, 3),), {}), ("squeeze", (), {}),
    ("flip", (), {}), ("flip", (1,), {}), ("flip", ((0, -1),), {}), ("fliplr", (), {}), ("flipud", (), {}), ("rot90", (), {}), ("rot90", (2,), {}),
    ("rot90", (-1, (1, 2)), {}), ("roll", (5,), {}), ("roll", (-1, 1), {}), ("roll", ((1, 2), (0, 2)), {}), ("roll", (2, (0, 1)), {}), ("roll", ((1, 1), (0, 0)), {}),
    ("tile", (2,), {}), ("tile", ((2, 1, 3),), {}), ("tile", ((2, 1, 1, 2),), {}), ("tile", ((0, 2, 1),), {}), ("broadcast_to", ((5, 2, 3, 4),), {}),
    ("atleast_1d", (), {}), ("atleast_3d", (), {}), ("resize", ((3, 3),), {}), ("resize", ((7, 5),), {}), ("resize", (0,), {}), ("append", (N[:1],), {}),
    ("append", (N[:1], 0), {}), ("size", (), {}), ("size", (1,), {}), ("shape", (), {}), ("ndim", (), {}), ("concatenate", (1,), {}), ("concatenate", (), {}),
    ("stack", (1,), {}), ("vstack", (), {}), ("hstack", (), {}), ("dstack", (), {}), ("matrix_transpose", (), {}),
]  # fmt: skip


def same(got, want):
    got_leaves, want_leaves = (jax.tree.leaves(t) for t in (got, want))
    assert len(got_leaves) == len(want_leaves)
    for a, b in zip(got_leaves, want_leaves, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}{c[1]}")
def test_against_numpy(case):
    name, args, words = case
    if name == "matrix_transpose":
        want = N.swapaxes(-1, -2)
    else:
        want = getattr(np, name)(N, *args, **words)
    x = jnp.asarray(N)
    got = getattr(jnp, name)(x, *args, **words)
    same(got, want)
    if isinstance(got, jax.Array):
        assert got.dtype == "float32"
        staged = jax.jit(lambda x: getattr(jnp, name)(x, *args, **words))(x)
        assert staged.aval is got.aval
        same(staged, want)


def test_atleast():
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        for x in (3.0, np.arange(3.0), M, N):
            same(getattr(jnp, name)(x), getattr(np, name)(x))
        same(getattr(jnp, name)(1, M), list(getattr(np, name)(1, M)))


def test_joins_of_several():
    a, b = np.arange(3), np.ones(3)
    for name in ("vstack", "hstack", "dstack", "column_stack", "stack", "concatenate"):
        same(getattr(jnp, name)([jnp.asarray(a), jnp.asarray(b)]), getattr(np, name)([a, b]))
    same(jnp.concatenate([M, M[:1]]), np.concatenate([M, M[:1]]))
    same(jnp.concatenate([M, M], axis=None), np.concatenate([M, M], axis=None))
    same(jnp.concat([M, M], axis=-1), np.concatenate([M, M], axis=-1))
    same(jnp.hstack([M, M[:, :1]]), np.hstack([M, M[:, :1]]))
    same(jnp.column_stack([a, M[:, :2]]), np.column_stack([a, M[:, :2]]))
    assert jnp.concatenate([jnp.ones(2, "int8"), jnp.ones(2, "uint8")]).dtype == "int16"
    assert jnp.concatenate([jnp.ones(2, "int8")], dtype=float).dtype == "float32"
    assert jnp.stack([1, 2.5]).dtype == "float32"
    assert jnp.append(jnp.arange(3.0), 9).shape == (4,)


def test_block():
    a, b, c, d = np.ones((2, 2)), np.zeros((2, 1)), np.full((1, 2), 5.0), np.full((1, 1), 6.0)
    same(jnp.block([[a, b], [c, d]]), np.block([[a, b], [c, d]]))
    same(jnp.block([a, b]), np.block([a, b]))
    same(jnp.block([1, np.arange(2)]), np.block([1, np.arange(2)]))
    same(jnp.block([[N], [N]]), np.block([[N], [N]]))
    same(jnp.block(a), np.block(a))
    for bad in ((a, b), [], [[a], b]):
        with pytest.raises(ValueError):
            jnp.block(bad)


def test_splits():
    x = np.arange(28).reshape(4, 7)
    for args in ((2,), ([1, 3],), (np.array([1, 3]),), ([0, 0, 9],), ([2, 1],), ([-1],)):
        same(jnp.split(x, *args), np.split(x, *args))
    same(jnp.split(jnp.asarray(x), jnp.array([1, 4]), 1), np.split(x, [1, 4], 1))
    same(jnp.array_split(x, 3, 1), np.array_split(x, 3, 1))
    same(jnp.array_split(x, 9, 0), np.array_split(x, 9, 0))
    same(jnp.vsplit(x, 2), np.vsplit(x, 2))
    same(jnp.hsplit(x, 7), np.hsplit(x, 7))
    same(jnp.hsplit(np.arange(4), 2), np.hsplit(np.arange(4), 2))
    same(jnp.dsplit(N, 2), np.dsplit(N, 2))
    same(jnp.unstack(N, axis=1), [N[:, k] for k in range(3)])
    with pytest.raises(ValueError, match="not divisible"):
        jnp.split(x, 3)
    with pytest.raises(ValueError, match="scalar array was passed"):
        jnp.unstack(3)


def test_broadcasting():
    same(jnp.broadcast_arrays(np.ones((3, 1)), np.arange(4)), np.broadcast_arrays(np.ones((3, 1)), np.arange(4)))
    assert jnp.broadcast_shapes((8, 1), (4,)) == (8, 4)
    assert jnp.broadcast_shapes() == ()
    same(jnp.broadcast_to(2.0, (2, 3)), np.full((2, 3), 2.0))
    for f in (
        lambda: jnp.broadcast_to(M, (3, 8)),
        lambda: jnp.broadcast_to(M, (4,)),
        lambda: jnp.broadcast_shapes((2,), (3,)),
    ):
        with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
            f()


def test_dtypes():
    x = jnp.array([1.9, -1.9, np.nan, 300])
    np.testing.assert_array_equal(np.asarray(x.astype("int8")), [1, -1, 0, 127])
    assert x.astype(bool).dtype == "bool"
    assert jnp.astype(x, None).dtype == "float32"
    assert jnp.astype(jnp.asarray(1.0), "float32").weak_type is False
    assert jnp.astype(x, "float32") is x
    assert jnp.astype(x, "float32", copy=True) is not x
    f = np.array([[1.5, -2.0]], np.float32)
    for dtype in ("int32", "uint8", "uint16", "float16", "bfloat16"):
        got = jnp.asarray(f).view(dtype)
        np.testing.assert_array_equal(np.asarray(got), f.view(jnp.dtype(getattr(jnp, dtype))))
    np.testing.assert_array_equal(
        np.asarray(jnp.array([1, 2, 3, 4], "uint8").view("uint32")), np.array([1, 2, 3, 4], np.uint8).view("uint32")
    )
    np.testing.assert_array_equal(np.asarray(jnp.array([True, False]).view("int8")), [1, 0])
    with pytest.raises(ValueError, match="divisor"):
        jnp.ones(3, "uint8").view("uint16")
    with pytest.raises(ValueError, match="0d"):
        jnp.float32(1).view("uint8")


@pytest.mark.parametrize(
    "f, error",
    [
        (lambda x: jnp.reshape(x, (5, 7)), TypeError), (lambda x: jnp.reshape(x, (-1, 7)), TypeError), (lambda x: jnp.reshape(x, (-1, -1)), ValueError),
        (lambda x: jnp.reshape(x, (3, 4.0)), TypeError), (lambda x: jnp.reshape(x, 12, "X"), ValueError), (lambda x: jnp.transpose(x, (0, 0)), ValueError),
        (lambda x: jnp.transpose(x, (0,)), ValueError), (lambda x: jnp.transpose(x, (0, 2)), ValueError), (lambda x: jnp.moveaxis(x, 3, 0), ValueError),
        (lambda x: jnp.moveaxis(x, (0, 1), (0,)), ValueError), (lambda x: jnp.moveaxis(x, (0, 0), (0, 1)), ValueError), (lambda x: jnp.swapaxes(x, 0, 2), ValueError),
        (lambda x: jnp.expand_dims(x, 4), ValueError), (lambda x: jnp.expand_dims(x, (0, 0)), ValueError), (lambda x: jnp.squeeze(x, 0), ValueError),
        (lambda x: jnp.flip(x, 2), ValueError), (lambda x: jnp.flip(x, 1.0), TypeError), (lambda x: jnp.roll(x, 1.5), ValueError),
        (lambda x: jnp.tile(x, -1), ValueError), (lambda x: jnp.concatenate([x, x[0]]), TypeError), (lambda x: jnp.concatenate([x, x[:, :2]]), TypeError),
        (lambda x: jnp.concatenate([x, x], 2), ValueError), (lambda x: jnp.concatenate([]), ValueError), (lambda x: jnp.concatenate([1, 2]), ValueError),
        (lambda x: jnp.stack([x, x[0]]), ValueError), (lambda x: jnp.stack([]), ValueError), (lambda x: jnp.rot90(x, 1, (0, 0)), ValueError),
        (lambda x: jnp.reshape([1, 2], (2, 1)), TypeError), (lambda x: jnp.transpose([[1]]), TypeError), (lambda x: jnp.concatenate([x, "a"]), TypeError),
        (lambda x: jnp.matrix_transpose(x[0]), ValueError), (lambda x: jnp.resize(x, (-1,)), ValueError), (lambda x: jnp.rollaxis(x, 0, 5), ValueError),
    ],
)  # fmt: skip
def test_errors(f, error):
    with pytest.raises(error):
        f(jnp.asarray(M))


def test_errors_say_what_is_wrong():
    with pytest.raises(TypeError, match=r"cannot reshape array of shape \(3, 4\) \(size 12\) into shape \(5, 7\)"):
        jnp.reshape(M, (5, 7))
    with pytest.raises(TypeError, match="Cannot concatenate arrays with different numbers of dimensions"):
        jnp.concatenate([M, M[0]])
    with pytest.raises(TypeError, match=r"concatenat.*\(3, 4\), \(3, 2\)"):
        jnp.concatenate([M, M[:, :2]])


def test_views_of_complex_numbers():
    z = np.array([[1 + 2j, 3 - 4j]], np.complex64)
    np.testing.assert_array_equal(np.asarray(jnp.asarray(z).view("float32")), z.view(np.float32))
    np.testing.assert_array_equal(np.asarray(jnp.asarray(z).view("uint16")), z.view(np.uint16))
    np.testing.assert_array_equal(np.asarray(jnp.asarray(z.view(np.float32)).view("complex64")), z)
    with pytest.raises(ValueError, match="even"):
        jnp.ones(3).view("complex64")
    with pytest.warns(np.exceptions.ComplexWarning, match="discards the imaginary part"):
        jnp.asarray(z).astype("float32")


def test_rolls_by_traced_shifts():
    by = jax.jit(lambda s: (jnp.roll(M, s), jnp.roll(M, s, 1), jnp.roll(M, s, (0, 1))))
    for s in (0, 1, -5, 7):
        same(by(s), (np.roll(M, s), np.roll(M, s, 1), np.roll(M, s, (0, 1))))
    same(jax.jit(lambda s: jnp.roll(M, s, (0, 1)))(jnp.array([1, -2])), np.roll(M, (1, -2), (0, 1)))


def test_shapes_of_lists():
    assert jnp.shape([[1, 2], [3, 4]]) == (2, 2)
    assert jnp.ndim([1, 2]) == 1
    assert jnp.size([1, 2]) == 2
