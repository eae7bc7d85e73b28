"""Making arrays: values, dtypes, weak types, errors."""

import warnings

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp


def kind(x):
    """dtype, with ~ for weak."""
    return ("~" if x.weak_type else "") + x.dtype.name


@pytest.mark.parametrize(
    "value, wanted",
    [
        (3, "~int32"), (2.5, "~float32"), (True, "bool"), (1 + 2j, "~complex64"), ([1, 2], "int32"), ([1.0, 2], "float32"), ((1, 2.5), "float32"),
        ([True, False], "bool"), ([], "float32"), ([[]], "float32"), ([1j, 2], "complex64"), (range(3), "int32"), (np.float64(2), "float32"),
        (np.int64(3), "int32"), (np.arange(3), "int32"), (np.arange(3.0), "float32"), (np.array(2.5), "float32"), ([np.float16(1), 2], "float16"),
        ([np.int8(1), 2.5], "float32"), (memoryview(b"abc"), "uint8"), ([[1, 2], [3, 4]], "int32"),
    ],
)  # fmt: skip
def test_array_of_host_values(value, wanted):
    for x in (jnp.array(value), jnp.asarray(value)):
        assert kind(x) == wanted
        np.testing.assert_array_equal(np.asarray(x), np.asarray(value))


def test_array_of_arrays():
    a = jnp.float32(2)
    assert kind(jnp.array([a, 3.0, np.float32(4)])) == "float32"
    np.testing.assert_array_equal(np.asarray(jnp.array([[a, a], [1, 2]])), [[2, 2], [1, 2]])
    np.testing.assert_array_equal(np.asarray(jnp.array([jnp.ones(2), np.zeros(2), [5, 6]])), [[1, 1], [0, 0], [5, 6]])
    weak = jnp.asarray(2.0)
    assert kind(jnp.array(weak)) == "~float32"
    assert kind(jnp.array(weak, dtype="float32")) == "float32"
    assert jnp.asarray(a) is a
    assert jnp.array(a) is not a
    with pytest.raises(ValueError, match="same shape"):
        jnp.array([jnp.ones(2), jnp.ones(3)])


def test_array_takes_a_copy_of_numpy():
    n = np.arange(4.0, dtype=np.float32)
    x, y = jnp.array(n), jnp.asarray(n)
    n[0] = 99
    assert float(x[0]) == float(y[0]) == 0


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        b"bytes",
        object(),
        {1, 2},
        {"a": 1},
        [1, "a"],
        ["a", "b"],
        [{}],
        np.array(["a"]),
        np.array(["2020"], "M8[Y]"),
    ],
)
def test_what_is_no_number(bad):
    with pytest.raises(TypeError, match="not a valid JAX array type"):
        jnp.array(bad)


def test_none_and_ragged_lists():
    for bad in (None, [1, None], [[1, 2], [3]]):
        with pytest.raises(ValueError):
            jnp.array(bad)


def test_integers_that_do_not_fit():
    for f in (
        lambda: jnp.array(2**31), lambda: jnp.array([2**40]), lambda: jnp.array(200, "int8"), lambda: jnp.array([300], "uint8"),
        lambda: jnp.int8(200), lambda: jnp.full(2, -1, "uint8"),
    ):  # fmt: skip
        with pytest.raises(OverflowError):
            f()


def test_explicit_dtypes():
    for dtype in (
        "int8",
        jnp.float32,
        np.float16,
        float,
        int,
        bool,
        complex,
        jnp.bfloat16,
        "uint32",
        jnp.float8_e4m3fn,
    ):
        x = jnp.array([1, 2, 3], dtype=dtype)
        assert not x.weak_type
        np.testing.assert_array_equal(np.asarray(x).astype("complex64"), [1, 1, 1] if dtype is bool else [1, 2, 3])
    np.testing.assert_array_equal(np.asarray(jnp.array([1.9, -1.9], int)), [1, -1])
    assert kind(jnp.array(3, ndmin=2)) == "~int32"
    assert jnp.array(3, ndmin=2).shape == (1, 1)
    with pytest.raises(TypeError, match="not understood"):
        jnp.ones(2, "float99")


def test_wide_dtypes_are_narrowed_with_a_warning():
    for f in (
        lambda: jnp.zeros(2, "float64"),
        lambda: jnp.arange(2, dtype="int64"),
        lambda: jnp.array(1, "complex128"),
        lambda: jnp.ones(2).astype("int64"),
    ):
        with pytest.warns(UserWarning, match="not available, and will be truncated"):
            f()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jnp.zeros(2, float).dtype == "float32"
        assert jnp.asarray(np.arange(2.0)).dtype == "float32"


def test_x64():
    with jax.enable_x64(True):
        assert kind(jnp.zeros(2)) == "float64"
        assert kind(jnp.asarray(1)) == "~int64"
        assert kind(jnp.arange(3)) == "int64"
        assert kind(jnp.array(np.arange(2, dtype=np.uint64))) == "uint64"
    assert kind(jnp.zeros(2)) == "float32"


def test_constants():
    for f, value in ((jnp.zeros, 0), (jnp.ones, 1), (jnp.empty, 0)):
        for shape in ((), 3, (2, 3), [2, 2], (0, 3), np.int64(2), (np.int32(2), 1)):
            x = f(shape)
            assert x.shape == np.zeros(shape).shape
            assert kind(x) == "float32"
            np.testing.assert_array_equal(np.asarray(x), np.full(shape, value))
        assert kind(f(2, "int8")) == "int8"
    assert kind(jnp.full((2, 2), 7)) == "~int32"
    assert kind(jnp.full(3, 2.5, "bfloat16")) == "bfloat16"
    np.testing.assert_array_equal(np.asarray(jnp.full((2, 3), jnp.arange(3))), np.full((2, 3), np.arange(3)))
    with pytest.raises(TypeError, match="requires ndarray or scalar"):
        jnp.full(2, [1, 2])


@pytest.mark.parametrize("shape", [(-1,), (2, 1.5), 3.0, "ab", (2, None), ((1, 2),)])
def test_shapes_that_are_none(shape):
    with pytest.raises(TypeError):
        jnp.zeros(shape)


def test_traced_shapes():
    with pytest.raises(TypeError, match="Shapes must be 1D sequences of concrete values of integer type"):
        jax.jit(lambda n: jnp.zeros(n))(3)
    assert jax.jit(lambda x: jnp.ones(x.shape))(jnp.zeros((2, 3))).shape == (2, 3)


def test_like_functions():
    x = jnp.array([1, 2], "int8")
    assert kind(jnp.zeros_like(x)) == "int8"
    assert kind(jnp.ones_like(x, dtype=float)) == "float32"
    assert jnp.full_like(x, 3, shape=(2, 2)).shape == (2, 2)
    assert kind(jnp.zeros_like(2.0)) == "~float32"
    assert kind(jnp.full_like(jnp.asarray(1.0), 2)) == "~float32"
    np.testing.assert_array_equal(np.asarray(jnp.full_like(x, 2.7)), [2, 2])
    np.testing.assert_array_equal(np.asarray(jnp.full_like(x, jnp.array([3.5, 4]))), [3, 4])
    assert jnp.zeros_like(jax.ShapeDtypeStruct((3, 2), jnp.bfloat16)).aval.str_short() == "bfloat16[3,2]"
    with pytest.raises(TypeError, match="requires ndarray or scalar"):
        jnp.zeros_like([1, 2])


def test_keywords_of_placement():
    for f in (lambda **k: jnp.zeros(2, **k), lambda **k: jnp.arange(2, **k), lambda **k: jnp.array([1, 2], **k)):
        with pytest.raises(TypeError, match="device"):
            f(device=jax.P())
        with pytest.raises(TypeError, match="device"):
            f(device=3)
        with pytest.raises(TypeError, match="out_sharding"):
            f(out_sharding=3)
        with pytest.raises(ValueError, match="mesh context"):
            f(out_sharding=jax.P("x"))
        assert f(device=jax.devices()[0]).committed


def test_buffers_and_texts():
    np.testing.assert_array_equal(np.asarray(jnp.frombuffer(b"\x01\x02\x03", "uint8")), [1, 2, 3])
    np.testing.assert_array_equal(np.asarray(jnp.fromstring("1 2 3", sep=" ", dtype=int)), [1, 2, 3])
    np.testing.assert_array_equal(np.asarray(jnp.from_dlpack(np.arange(3.0, dtype=np.float32))), [0, 1, 2])
    for f in (jnp.fromfile, jnp.fromiter):
        with pytest.raises(NotImplementedError, match="non-pure"):
            f("name", int)


def test_scalar_types():
    assert kind(jnp.float32(2.5)) == "float32"
    assert kind(jnp.bfloat16([1, 2])) == "bfloat16"
    assert kind(jnp.int8(3)) == "int8"
    assert np.dtype(jnp.bfloat16) == jnp.bfloat16 == jnp.zeros(1, jnp.bfloat16).dtype
    assert jnp.float32 == np.float32
    assert jnp.float32 == np.dtype("float32")
    assert jnp.float32 != jnp.float16
    assert {jnp.float32: 1}[jnp.float32] == 1
    assert isinstance(jnp.float32(1), jnp.float32)
    assert not isinstance(jnp.float32(1), jnp.int32)
    assert isinstance(jnp.ones(2), jnp.ndarray)
    assert jnp.issubdtype(jnp.bfloat16, jnp.floating)
    assert jnp.result_type(jnp.int8, 1.0) == "float32"


def test_dtype_queries():
    assert jnp.result_type(jnp.ones(1, "uint8"), -1) == "uint8"
    assert jnp.promote_types("int8", "uint8") == "int16"
    assert jnp.isdtype("float32", "real floating")
    assert jnp.isdtype(jnp.int8, ("bool", "integral"))
    assert not jnp.isdtype("float32", jnp.float16)
    assert jnp.can_cast("int8", "int16")
    assert jnp.finfo(jnp.bfloat16).bits == 16
    assert jnp.iinfo("int8").max == 127
    assert jnp.isscalar(3.0)
    assert jnp.isscalar(jnp.float32(3))
    assert not jnp.isscalar(jnp.ones(1))
    assert jnp.iscomplexobj(jnp.array([1j]))
