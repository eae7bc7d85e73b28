"""repeat, pad, insert, delete, trim_zeros against numpy."""

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

N = np.arange(12, dtype=np.float32).reshape(3, 4)


def same(got, want, atol=1e-6):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6, atol=atol)


MODES = [
    ("constant", {}), ("constant", {"constant_values": 9}), ("constant", {"constant_values": ((1, 2), (3, 4))}), ("edge", {}), ("reflect", {}),
    ("reflect", {"reflect_type": "odd"}), ("symmetric", {}), ("symmetric", {"reflect_type": "odd"}), ("wrap", {}), ("linear_ramp", {}),
    ("linear_ramp", {"end_values": ((5, -5), (7, 0))}), ("maximum", {}), ("maximum", {"stat_length": 2}), ("minimum", {}), ("mean", {}),
    ("mean", {"stat_length": ((1, 2), (3, 1))}), ("median", {}), ("median", {"stat_length": 2}),
]  # fmt: skip
WIDTHS = [0, 1, (2, 1), ((1, 1), (2, 1)), ((0, 3), (5, 0)), (7, 2), ((1,), (2,)), ((9, 0), (0, 11))]


@pytest.mark.parametrize("mode, words", MODES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_pad(mode, words, dtype):
    x = N.astype(dtype)
    for width in WIDTHS:
        want = np.pad(x, width, mode=mode, **words)
        got = jnp.pad(jnp.asarray(x), width, mode=mode, **words)
        # ramps of integers are rounded down from float32, where numpy has float64
        same(got, want, atol=1 if mode == "linear_ramp" and dtype == "int32" else 1e-6)
        assert got.dtype == dtype
    staged = jax.jit(lambda x: jnp.pad(x, ((1, 1), (2, 1)), mode=mode, **words))(x)
    same(staged, np.pad(x, ((1, 1), (2, 1)), mode=mode, **words))


def test_pad_by_dict_and_by_function():
    same(jnp.pad(N, {-1: (1, 2)}), np.pad(N, ((0, 0), (1, 2))))
    same(jnp.pad(N, {0: 1}), np.pad(N, ((1, 1), (0, 0))))

    def ours(vector, width, axis, kwargs):
        return vector.at[: width[0]].set(kwargs.get("padder", 7)) if width[0] else vector

    def numpys(vector, width, axis, kwargs):
        vector[: width[0]] = kwargs.get("padder", 7)

    same(jnp.pad(N, ((1, 0), (2, 0)), ours), np.pad(N, ((1, 0), (2, 0)), numpys))
    same(jnp.pad(N, ((1, 0), (2, 0)), ours, padder=3), np.pad(N, ((1, 0), (2, 0)), numpys, padder=3))


def test_pad_errors():
    for f, error in (
        (lambda: jnp.pad(N, -1), ValueError), (lambda: jnp.pad(N, 1.5), TypeError), (lambda: jnp.pad(N, ((1, 2, 3),)), ValueError),
        (lambda: jnp.pad(N, 1, mode="no"), NotImplementedError), (lambda: jnp.pad(N, 1, mode="edge", end_values=3), ValueError),
        (lambda: jnp.pad(jnp.zeros((0, 3)), 1, mode="edge"), ValueError), (lambda: jnp.pad([1, 2], 1), TypeError),
        (lambda: jnp.pad(N, 1, mode="mean", stat_length=0), ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            f()


def test_repeat():
    for repeats, axis in (
        (2, 0),
        (3, 1),
        (0, 1),
        (2, None),
        (1, -1),
        ([1, 0, 2], 0),
        (np.array([2, 1, 0, 3]), 1),
        ([2], 0),
    ):
        same(
            jnp.repeat(jnp.asarray(N), repeats if not isinstance(repeats, list) else np.array(repeats), axis),
            np.repeat(N, repeats, axis),
        )
    same(jnp.asarray(N).repeat(2, 1), N.repeat(2, 1))
    same(jnp.repeat(5, 3), np.repeat(5, 3))
    counts = jnp.array([1, 0, 2])
    same(jnp.repeat(jnp.arange(3), counts, total_repeat_length=3), np.array([0, 2, 2]))
    same(jnp.repeat(jnp.arange(3), counts, total_repeat_length=5), np.array([0, 2, 2, 2, 2]))
    same(jnp.repeat(jnp.arange(3), np.array([2, 2, 2]), total_repeat_length=4), np.array([0, 0, 1, 1]))
    traced = jax.jit(lambda c: jnp.repeat(jnp.asarray(N), c, axis=0, total_repeat_length=4))
    same(traced(counts), np.repeat(N, [1, 0, 3], axis=0))
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda c: jnp.repeat(jnp.arange(3), c))(counts)
    for bad in (lambda: jnp.repeat(N, -1), lambda: jnp.repeat(N, np.array([1, 2]), 0), lambda: jnp.repeat(N, 2, 5)):
        with pytest.raises(ValueError):
            bad()


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("obj", [0, -1, [0, 2], [], slice(0, 2), slice(None, None, 2), [1, 1]], ids=str)
def test_delete(obj, axis):
    index = np.array(obj, int) if isinstance(obj, list) else obj
    same(jnp.delete(jnp.asarray(N), index, axis), np.delete(N, index, axis))


def test_delete_by_mask_and_outside():
    same(jnp.delete(N, np.array([True, False, True]), 0), np.delete(N, np.array([True, False, True]), 0))
    same(jnp.delete(N, jnp.array([1]), 0), np.delete(N, [1], 0))
    for bad in (7, -5, [0, 9]):
        with pytest.raises(IndexError, match="out of bounds"):
            jnp.delete(N, np.array(bad), 0)
    with pytest.raises(ValueError):
        jnp.delete(N, np.array([True]), 0)
    with pytest.raises(ValueError):
        jnp.delete(N, 1.5, 0)


@pytest.mark.parametrize(
    "obj, values, axis",
    [
        (1, 7.0, None), ([0, 2], 5.0, None), ([0, 0, 3], [1, 2, 3], None), (-1, 2.0, None), (12, 2.0, None), (1, np.arange(4.0), 0), (1, np.arange(3.0), 1),
        ([1, 3], np.ones((3, 2)), 1), ([3, 1], np.arange(6.0).reshape(3, 2), 1), (slice(0, 2), 9.0, 0), ([1], [[1.0], [2], [3]], 1), (0, 3, 1),
        (1, np.arange(6.0), None),
    ],
    ids=str,
)  # fmt: skip
def test_insert(obj, values, axis):
    index = np.array(obj) if isinstance(obj, list) else obj
    got = jnp.insert(jnp.asarray(N), index, np.asarray(values, np.float32), axis)
    same(got, np.insert(N, index, values, axis))


def test_insert_errors():
    with pytest.raises(IndexError, match="out of bounds"):
        jnp.insert(N, 9, 1.0, 0)
    with pytest.raises(ValueError, match="integer"):
        jnp.insert(N, 1.5, 1.0, 0)


def test_trim_zeros():
    for values in ([0, 1, 2, 0], [0, 0], [1], [], [0, 0, 3], [4, 0]):
        x = np.array(values)
        for trim in ("fb", "f", "b"):
            same(jnp.trim_zeros(jnp.asarray(x), trim), np.trim_zeros(x, trim))
    with pytest.raises(ValueError):
        jnp.trim_zeros(jnp.arange(3), "x")
    with pytest.raises(TypeError):
        jax.jit(jnp.trim_zeros)(jnp.arange(3))
