"""Element types: promotion and conversion against values recorded from JAX, the rest against written expectations.

promotion.json: dtypes of every pair with every combination of strong and weak; null where JAX refuses.
casts.json: values of one dtype and what they are in every other.
"""

import copy
import json
import math
import pathlib
import pickle
import warnings

import ml_dtypes
import numpy as np
import pytest

from mpiarray.config import config
from mpiarray.errors import TypePromotionError
from mpiarray.types import dtypes

HERE = pathlib.Path(__file__).parent
PROMOTION = json.loads((HERE / "promotion.json").read_text())
CASTS = json.loads((HERE / "casts.json").read_text())


def x64(on):
    return config.override("jax_enable_x64", on)


# --- promotion -------------------------------------------------------------------------------------------------------


def outcome(f, *args):
    try:
        return f(*args)
    except TypePromotionError:
        return None


def promoted(a, b):
    return dtypes.promote_types(a, b).name


@pytest.mark.parametrize("mode", ["x32", "x64"])
def test_promote_types_of_every_pair(mode):
    names, table = PROMOTION["names"], PROMOTION[f"promote_{mode}"]
    with x64(mode == "x64"):
        for a, row in zip(names, table, strict=True):
            for b, want in zip(names, row, strict=True):
                assert outcome(promoted, a, b) == want, (a, b)


@pytest.mark.parametrize("mode", ["x32", "x64"])
@pytest.mark.parametrize("kinds", ["strong_strong", "strong_weak", "weak_weak"])
def test_result_of_every_pair(mode, kinds):
    part = PROMOTION[mode]
    left, right = kinds.split("_")

    def result(a, b):
        dtype, weak = dtypes.promote_pairs((dtypes.as_dtype(a), left == "weak"), (dtypes.as_dtype(b), right == "weak"))
        return "~" * weak + dtype.name

    checked = 0
    with x64(mode == "x64"):
        for a, row in zip(part[left], part[kinds], strict=True):
            for b, want in zip(part[right], row, strict=True):
                assert outcome(result, a, b) == want, (a, b)
                if left == right:
                    assert outcome(result, b, a) == want, (b, a)
                checked += 1
    assert checked == len(part[left]) * len(part[right])


def test_promotion_does_not_depend_on_the_order_of_three():
    with x64(True):
        u8, i8, f16 = (dtypes.as_dtype(n) for n in ("uint8", "int8", "float16"))
        weak = (dtypes.as_dtype("float64"), True)
        assert dtypes.promote_pairs((u8, False), (i8, False), weak) == (np.dtype("float64"), True)
        assert dtypes.promote_pairs((u8, False), weak, (f16, False)) == (np.dtype("float16"), False)
        assert dtypes.promote_pairs((f16, False), (i8, False), weak) == (np.dtype("float16"), False)


class Weak:
    """Has what promotion looks at in an array."""

    dtype = np.dtype("float32")
    weak_type = True


@pytest.mark.parametrize(
    ("args", "want"),
    [
        ((1,), "~int32"),
        ((True,), "bool"),
        ((1.5,), "~float32"),
        ((1j,), "~complex64"),
        ((1, 2.0), "~float32"),
        ((True, 1), "~int32"),
        ((np.int8(1), 1), "int8"),
        ((np.int8(1), 1.0), "~float32"),
        (("int32", "float16"), "float16"),
        ((dtypes.bfloat16, "float16"), "float32"),
        ((np.float64(1), np.float32(1)), "float32"),
        ((np.float64(1), dtypes.bfloat16), "float32"),
        ((np.ones(1, "uint8"), -1), "uint8"),
        ((np.arange(2),), "int32"),
        ((float, "bfloat16"), "bfloat16"),
        (("float", "bfloat16"), "float32"),
        ((int, float), "~float32"),
        ((np.ones(2, "int32"), 1.5), "~float32"),
        ((Weak(), np.ones(2, "bfloat16")), "bfloat16"),
        ((Weak(), 1), "~float32"),
        (((np.dtype("float16"), False), (np.dtype("int32"), True)), "float16"),
    ],
)
def test_result_type(args, want):
    dtype, weak = dtypes.result_pair(*args)
    assert "~" * weak + dtype.name == want
    assert dtypes.result_type(*args) == dtype


def test_result_type_in_64_bits():
    with x64(True):
        assert dtypes.result_type(1) == np.int64
        assert dtypes.result_type(np.int32(1), np.uint32(1)) == np.int64
        assert dtypes.result_pair(np.uint64(1), np.int64(1)) == (np.dtype("float64"), True)
        assert dtypes.result_type(np.float32(1), 1.0) == np.float32
        assert dtypes.result_type(np.float32(1), np.float64(1)) == np.float64


def test_what_cannot_be_promoted():
    with pytest.raises(ValueError, match="at least one array or dtype"):
        dtypes.result_type()
    with pytest.raises(TypeError, match="Cannot determine dtype of"):
        dtypes.result_type([1, 2])
    with pytest.raises(TypeError, match="Cannot determine dtype of None"):
        dtypes.result_type(None)
    with pytest.raises(TypePromotionError, match="bfloat16, float8_e5m2 have no common dtype"):
        dtypes.result_type("bfloat16", "float8_e5m2")
    with pytest.raises(TypePromotionError, match="key<fry> cannot be promoted"):
        dtypes.result_type(dtypes.key_dtype, 1)
    assert dtypes.result_type(dtypes.key_dtype, dtypes.key_dtype) is dtypes.key_dtype


# --- which dtypes there are ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "narrow", "wide"),
    [
        (float, "float32", "float64"),
        (int, "int32", "int64"),
        (complex, "complex64", "complex128"),
        (bool, "bool", "bool"),
        (None, "float32", "float64"),
        ("float", "float32", "float64"),
        ("i8", "int32", "int64"),
        ("uint64", "uint32", "uint64"),
        (np.float64, "float32", "float64"),
        (np.dtype(">f4"), "float32", "float32"),
        (np.dtype(">i8"), "int32", "int64"),
        ("bfloat16", "bfloat16", "bfloat16"),
        (ml_dtypes.bfloat16, "bfloat16", "bfloat16"),
        ("int4", "int4", "int4"),
        ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"),
        ("float16", "float16", "float16"),
    ],
)
def test_canonicalize(spec, narrow, wide):
    assert dtypes.canonicalize(spec).name == narrow
    assert dtypes.canonicalize(spec).isnative
    with x64(True):
        assert dtypes.canonicalize(spec).name == wide


@pytest.mark.parametrize("spec", ["float99", "text", "S3", object, "datetime64", "V4", [1, 2], np.floating, 3, np.ones])
def test_what_is_no_dtype(spec):
    with pytest.raises(TypeError, match="zeros"):
        dtypes.canonicalize(spec, where="zeros")


@pytest.mark.parametrize("spec", ["float64", "int64", np.complex128, np.dtype("uint64")])
def test_asking_for_64_bits_warns(spec):
    with pytest.warns(UserWarning, match=r"Explicitly requested dtype \w+64|128 in ones is not available"):
        narrow = dtypes.requested(spec, "ones")
    assert narrow.itemsize * 2 == np.dtype(spec).itemsize
    with x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dtypes.requested(spec, "ones") == spec


@pytest.mark.parametrize("spec", [float, int, complex, bool, None, "float32", "bfloat16", np.int8])
def test_no_width_asked_no_warning(spec):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dtypes.requested(spec, "ones") == dtypes.canonicalize(spec)


def test_short_and_long_names():
    short = {dtypes.short_name(d) for d in dtypes.ALL_DTYPES}
    assert len(short) == len(dtypes.ALL_DTYPES)
    for long, want in {
        "bool": "bool",
        "int8": "i8",
        "uint32": "u32",
        "bfloat16": "bf16",
        "float16": "f16",
        "float32": "f32",
        "complex64": "c64",
        "int4": "i4",
        "float8_e4m3fn": "f8_e4m3fn",
    }.items():
        assert dtypes.short_name(dtypes.as_dtype(long)) == want
        assert dtypes.name(dtypes.as_dtype(long)) == long
    assert dtypes.short_name(dtypes.key_dtype) == dtypes.name(dtypes.key_dtype) == "key<fry>"
    assert dtypes.short_name(dtypes.float0) == dtypes.name(dtypes.float0) == "float0"


def test_key_dtype():
    key = dtypes.key_dtype
    assert dtypes.KeyDtype("fry") is key
    assert str(key) == repr(key) == key.name == "key<fry>"
    assert key == dtypes.KeyDtype("fry") and key != np.dtype("uint64") and hash(key) == hash(dtypes.KeyDtype("fry"))
    assert pickle.loads(pickle.dumps(key)) is key and copy.deepcopy(key) is key
    assert key.itemsize == 8 and dtypes.storage(key) == np.uint64
    assert dtypes.canonicalize(key) is key
    assert dtypes.issubdtype(key, dtypes.prng_key) and dtypes.issubdtype(key, dtypes.extended)
    assert not dtypes.issubdtype(key, np.number)
    assert not any(f(key) for f in (dtypes.is_int, dtypes.is_float, dtypes.is_number, dtypes.is_bool))


def test_categories_part_the_dtypes():
    tests = (dtypes.is_bool, dtypes.is_signed, dtypes.is_unsigned, dtypes.is_float, dtypes.is_complex, dtypes.is_key)
    for dtype in (*dtypes.ALL_DTYPES, dtypes.key_dtype):
        assert [test(dtype) for test in tests].count(True) == 1, dtype
    assert not any(test(dtypes.float0) for test in tests)
    assert dtypes.tangent_dtype(np.dtype("int32")) == dtypes.float0
    assert dtypes.tangent_dtype(np.dtype(ml_dtypes.bfloat16)) == ml_dtypes.bfloat16
    assert dtypes.to_inexact(np.dtype("int8")) == np.float32
    assert dtypes.to_inexact(np.dtype("float16")) == np.float16
    assert dtypes.real_dtype(np.dtype("complex64")) == np.float32
    assert dtypes.complex_dtype(np.dtype("float64")) == np.complex128


@pytest.mark.parametrize(
    ("dtype", "classes"),
    [
        ("bool", {np.bool_, np.generic}),
        ("int8", {np.signedinteger, np.integer, np.number, np.generic}),
        ("int4", {np.signedinteger, np.integer, np.number, np.generic}),
        ("uint2", {np.unsignedinteger, np.integer, np.number, np.generic}),
        ("bfloat16", {np.floating, np.inexact, np.number, np.generic}),
        ("float8_e5m2", {np.floating, np.inexact, np.number, np.generic}),
        ("float32", {np.floating, np.inexact, np.number, np.generic, np.float32}),
        ("complex64", {np.complexfloating, np.inexact, np.number, np.generic}),
    ],
)
def test_issubdtype(dtype, classes):
    everything = classes | {
        np.bool_,
        np.signedinteger,
        np.unsignedinteger,
        np.integer,
        np.floating,
        np.complexfloating,
        np.inexact,
        np.number,
        np.generic,
        dtypes.prng_key,
        dtypes.extended,
        np.float64,
    }
    assert {c for c in everything if dtypes.issubdtype(dtype, c)} == classes


def test_issubdtype_of_classes():
    assert dtypes.issubdtype(np.floating, np.inexact)
    assert not dtypes.issubdtype(np.floating, np.integer)
    assert not dtypes.issubdtype(np.floating, np.float32)
    assert dtypes.issubdtype(dtypes.bfloat16, "bfloat16")


def test_limits():
    assert [float(dtypes.finfo(d).max) for d in ("float16", "float32")] == [65504.0, 3.4028234663852886e38]
    assert float(dtypes.finfo("bfloat16").max) == 3.3895313892515355e38
    assert float(dtypes.finfo("bfloat16").eps) == 0.0078125
    assert dtypes.finfo("complex64").bits == 32
    assert float(dtypes.finfo("float8_e4m3fn").max) == 448
    assert (dtypes.iinfo("int4").min, dtypes.iinfo("int4").max) == (-8, 7)
    assert int(dtypes.iinfo(np.uint32).max) == 2**32 - 1
    assert dtypes.finfo(np.ones(2, np.float16)).bits == 16
    with pytest.raises(ValueError, match="int32 is not a floating-point dtype"):
        dtypes.finfo("int32")
    with pytest.raises(ValueError, match="float32 is not an integer dtype"):
        dtypes.iinfo("float32")
    assert [dtypes.bit_width(d) for d in ("int4", "uint2", "bfloat16", "complex64", "bool")] == [4, 2, 16, 64, 8]


# --- host values -----------------------------------------------------------------------------------------------------


class Flag(int):
    """A Python int by inheritance."""


def test_dtype_of_values():
    assert dtypes.dtype_of(True) == (np.dtype("bool"), False)
    assert dtypes.dtype_of(3) == (np.dtype("int32"), True)
    assert dtypes.dtype_of(Flag(3)) == (np.dtype("int32"), True)
    assert dtypes.dtype_of(np.float64(3)) == (np.dtype("float32"), False)
    assert dtypes.dtype_of(np.bool_(True)) == (np.dtype("bool"), False)
    assert dtypes.dtype_of(np.arange(3)) == (np.dtype("int32"), False)
    assert dtypes.dtype_of(Weak()) == (np.dtype("float32"), True)
    with x64(True):
        assert dtypes.dtype_of(3) == (np.dtype("int64"), True)
        assert dtypes.dtype_of(np.float64(3)) == (np.dtype("float64"), False)
    for bad in ("a", [1], {}, None, float, np.array(["a"]), np.array([{}])):
        with pytest.raises(TypeError):
            dtypes.dtype_of(bad)
    assert dtypes.is_python_scalar(1.0) and dtypes.is_python_scalar(Flag(1))
    assert not dtypes.is_python_scalar(np.float64(1)) and not dtypes.is_python_scalar("1")
    assert [dtypes.scalar_type_of(v) for v in (True, 1, np.uint8(1), np.ones(1), 1j)] == [
        bool,
        int,
        int,
        float,
        complex,
    ]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, "uint8"), (-1, "uint8"), (200, "int8"), (2**31, "int32"), (2**40, "int32"), (8, "int4"), (2**64, "uint64")],
)
def test_python_ints_that_do_not_fit(value, dtype):
    dtype = dtypes.as_dtype(dtype)
    with pytest.raises(OverflowError, match=f"Python integer {value} out of bounds for {dtype.name}"):
        dtypes.scalar_array(value, dtype)
    with pytest.raises(OverflowError, match="too large to convert"):
        dtypes.check_python_int(value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (127, "int8", 127),
        (-(2**31), "int32", -(2**31)),
        (2**64 - 1, "uint64", 2**64 - 1),
        (-8, "int4", -8),
        (2**70, "float32", 2.0**70),
        (2**200, "float32", math.inf),
        (1.5, "int32", 1),
        (1e10, "int32", 2**31 - 1),
        (True, "float32", 1.0),
        (2, "bool", True),
        (1e30, "float16", math.inf),
        (3.3, "bfloat16", 3.296875),
        (1 + 2j, "complex64", 1 + 2j),
        (2, "complex64", 2),
    ],
)
def test_scalar_array(value, dtype, want):
    block = dtypes.scalar_array(value, dtypes.as_dtype(dtype))
    assert isinstance(block, np.ndarray) and block.shape == () and block.dtype == dtypes.as_dtype(dtype)
    assert block[()] == want
    assert block.tolist() == want or block.dtype.kind == "V"


def test_no_complex_number_in_a_real_array():
    with pytest.raises(TypeError, match="complex number"):
        dtypes.scalar_array(1j, np.dtype("float32"))


# --- conversion of blocks --------------------------------------------------------------------------------------------


def block(dtype_name, values):
    dtype = dtypes.as_dtype(dtype_name)
    if dtype.kind == "c":
        return np.array([complex(*v) for v in values], dtype)
    if dtypes.is_int(dtype) and dtype_name not in ("int4", "uint4"):
        return np.array(values, dtype)
    return np.array(values, bool if dtype_name == "bool" else np.int8 if "int" in dtype_name else float).astype(dtype)


@pytest.mark.parametrize("pair", list(CASTS["results"]))
def test_cast(pair):
    source, target = pair.split(">")
    got = dtypes.cast(block(source, CASTS["sources"][source]), dtypes.as_dtype(target))
    want = block(target, CASTS["results"][pair])
    assert got.dtype == want.dtype and got.shape == want.shape
    if dtypes.is_inexact(want.dtype):
        same = (got == want) | ((got != got) & (want != want))
        if dtypes.is_float(want.dtype):
            assert (np.signbit(got) == np.signbit(want))[want == want].all()
    else:
        same = got.astype(object) == want.astype(object)
    assert same.all(), [(a, b) for a, b, ok in zip(got.tolist(), want.tolist(), same) if not ok]


def test_cast_keeps_a_block_that_needs_nothing():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert dtypes.cast(x, np.dtype("float32")) is x
    keys = np.arange(3, dtype=np.uint64)
    assert dtypes.cast(keys, dtypes.key_dtype) is keys


@pytest.mark.parametrize("target", ["bool", "int32", "int4", "float16", "float8_e5m2", "complex64", "uint8"])
@pytest.mark.parametrize("source", ["float64", "float32", "complex64", "int32", "bfloat16", "bool"])
def test_cast_keeps_shapes(source, target):
    for shape in ((), (0,), (2, 0, 3), (2, 3)):
        x = np.ones(shape, dtypes.as_dtype(source))
        got = dtypes.cast(x, dtypes.as_dtype(target))
        assert isinstance(got, np.ndarray) and got.shape == shape and got.dtype == dtypes.as_dtype(target)
        assert (got == 1).all()
    column_major = np.asfortranarray(np.arange(6.0).reshape(2, 3).astype(dtypes.as_dtype(source)))
    want = (column_major != 0) if target == "bool" else column_major.real.astype(float)
    assert (dtypes.cast(column_major, dtypes.as_dtype(target)).real.astype(float) == want).all()


def test_cast_of_nan_inf_and_large_floats_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in (np.float32, np.float64):
            x = np.array([np.nan, np.inf, -np.inf, 1e30], source)
            assert dtypes.cast(x, np.dtype("int32")).tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1]
            assert dtypes.cast(x, np.dtype("bool")).tolist() == [True] * 4
            assert dtypes.cast(x, np.dtype("float16"))[3] == np.inf
        z = np.array([1 + 2j, 3 - 4j], np.complex64)
        assert dtypes.cast(z, np.dtype("float32")).tolist() == [1, 3]


def test_cast_to_8_bits_rounds_once():
    """float64 to float32 to float8 would round a value just above a tie down to the tie, and then to even."""
    dtype = dtypes.as_dtype("float8_e4m3fn")
    just_above, tie, just_below = 1 + 2.0**-4 + 2.0**-40, 1 + 2.0**-4, 1 + 2.0**-4 - 2.0**-40
    x = np.array([just_above, tie, just_below, -just_above, -just_below, np.nan, 0.0])
    assert dtypes.cast(x, dtype).astype(float)[:5].tolist() == [1.125, 1.0, 1.0, -1.125, -1.0]


def test_floats_of_integers_have_64_bits_only_where_the_integers_do():
    small = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32")
    assert {dtypes.to_inexact(np.dtype(d)) for d in small} == {np.dtype("float32")}
    assert dtypes.to_inexact(np.dtype("float16")) == np.float16
    config.update("jax_enable_x64", True)
    try:
        assert {dtypes.to_inexact(np.dtype(d)) for d in small} == {np.dtype("float32")}
        assert {dtypes.to_inexact(np.dtype(d)) for d in ("int64", "uint64")} == {np.dtype("float64")}
    finally:
        config.update("jax_enable_x64", False)
