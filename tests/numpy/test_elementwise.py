"""The values of elementwise functions against numpy, for broadcasting shapes, special values and scalars."""

import warnings

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

REAL = [
    "abs",
    "arcsin",
    "arccos",
    "arctan",
    "arcsinh",
    "arctanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "negative",
    "positive",
    "rad2deg",
    "reciprocal",
    "rint",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "square",
    "tan",
    "tanh",
    "trunc",
]
POSITIVE = ["log", "log10", "log1p", "log2", "sqrt"]
INTEGERS = ["abs", "bitwise_not", "negative", "sign", "square", "bitwise_count", "invert"]
COMPLEX = [
    "abs",
    "angle",
    "conj",
    "cos",
    "cosh",
    "exp",
    "imag",
    "negative",
    "real",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tanh",
    "isreal",
    "iscomplex",
    "isfinite",
    "isnan",
]
TWO_REAL = [
    "add",
    "arctan2",
    "copysign",
    "divide",
    "equal",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "greater",
    "greater_equal",
    "heaviside",
    "hypot",
    "less",
    "less_equal",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "multiply",
    "not_equal",
    "remainder",
    "subtract",
    "logical_and",
    "logical_or",
    "logical_xor",
]
TWO_INTEGERS = [
    "add",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "floor_divide",
    "fmod",
    "gcd",
    "lcm",
    "left_shift",
    "less",
    "maximum",
    "minimum",
    "multiply",
    "remainder",
    "right_shift",
    "subtract",
]
SHAPES = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((), (2, 3)),
    ((2, 3), ()),
    ((2, 1, 3), (4, 1)),
    ((0, 4), (4,)),
    ((), ()),
]


def numbers(shape, seed=0, low=-4.0, high=4.0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def integers(shape, seed=0, low=-9, high=9):
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def same(got, want, rtol=3e-6, atol=1e-6):
    want = np.asarray(want)
    assert got.shape == want.shape
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(np.asarray(got), want)
    else:
        np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=atol)


def quiet(f, *args):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return f(*args)


@pytest.mark.parametrize("name", REAL + POSITIVE)
def test_of_real_numbers(name):
    x = numbers((5, 7), low=0.1) if name in POSITIVE else numbers((5, 7))
    x = x / 4.5 if name in ("arcsin", "arccos", "arctanh") else x
    want = quiet(getattr(np, name), x.astype(np.float64))
    same(getattr(jnp, name)(jnp.asarray(x)), want, rtol=2e-5)
    assert isinstance(getattr(jnp, name)(0.5), jax.Array)


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "ceil",
        "floor",
        "exp",
        "isfinite",
        "isinf",
        "isnan",
        "negative",
        "rint",
        "sign",
        "signbit",
        "sqrt",
        "trunc",
        "reciprocal",
        "tanh",
    ],
)
def test_of_special_values(name):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, 1e30, -1e-30], np.float32)
    got, want = np.asarray(getattr(jnp, name)(x)), quiet(getattr(np, name), x)
    np.testing.assert_array_equal(got, want)
    if name != "sign":  # ours keeps the sign of zero
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
def test_of_integers(name, dtype):
    x = integers((4, 5), low=0 if dtype[0] == "u" else -9).astype(dtype)
    if name == "bitwise_count" and not hasattr(np, "bitwise_count"):
        pytest.skip("numpy 1 has no bitwise_count")
    got = getattr(jnp, name)(jnp.asarray(x))
    same(got, getattr(np, name)(x))


@pytest.mark.parametrize("name", COMPLEX)
def test_of_complex_numbers(name):
    z = (numbers((4, 5)) + 1j * numbers((4, 5), 1)).astype(np.complex64)
    z[0, 0] = 2
    same(getattr(jnp, name)(jnp.asarray(z)), getattr(np, name)(z), rtol=3e-5, atol=2e-6)


@pytest.mark.parametrize("name", TWO_REAL)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_of_two_real_numbers(name, shapes):
    x, y = numbers(shapes[0]), numbers(shapes[1], 1)
    want = quiet(getattr(np, name), x.astype(np.float64), y.astype(np.float64))
    same(getattr(jnp, name)(jnp.asarray(x), jnp.asarray(y)), want, rtol=2e-5, atol=4e-6)
    same(getattr(jnp, name)(x, jnp.asarray(y)), want, rtol=2e-5, atol=4e-6)


@pytest.mark.parametrize("name", TWO_INTEGERS)
@pytest.mark.parametrize("shapes", SHAPES[:4], ids=str)
def test_of_two_integers(name, shapes):
    x, y = integers(shapes[0]), integers(shapes[1], 1)
    y = np.abs(y) % 5 if "shift" in name else y
    y = np.where(y == 0, 4, y) if name == "floor_divide" else y
    same(
        getattr(jnp, name)(jnp.asarray(x), jnp.asarray(y)),
        quiet(getattr(np, name), x, y).astype(bool if name in ("equal", "less") else np.int32),
    )


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "divide",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "heaviside",
        "hypot",
        "logaddexp",
        "maximum",
        "minimum",
        "remainder",
        "copysign",
    ],
)
def test_pairs_of_special_values(name):
    if name == "floor_divide":  # of infinities numpy and JAX differ: see below
        values = np.array([0.0, -0.0, np.nan, 1.5, -2.5, 7], np.float32)
    else:
        values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5], np.float32)
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    np.testing.assert_allclose(
        np.asarray(getattr(jnp, name)(x, jnp.asarray(y))), quiet(getattr(np, name), x, y), rtol=1e-6
    )


def test_quotients_and_remainders_have_pythons_signs():
    for a in (-7, 7, -6, 6, 0):
        for b in (-3, 3, -2, 2):
            assert int(jnp.int32(a) // b) == a // b
            assert int(jnp.int32(a) % b) == a % b
            assert float(jnp.float32(a) // b) == a // b
            assert float(jnp.float32(a) % b) == a % b
            quotient, rest = divmod(jnp.float32(a), b)
            assert (float(quotient), float(rest)) == divmod(a, b)


def test_integers_by_zero():
    x = jnp.array([5, -5, 0])
    np.testing.assert_array_equal(np.asarray(x % 0), [0, 0, 0])
    np.testing.assert_array_equal(np.asarray(jnp.fmod(x, 0)), [0, 0, 0])
    assert float(jnp.float32(1) // 0.0) == np.inf
    assert np.isnan(float(jnp.float32(0) // 0.0))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, -1, -2])
def test_static_powers(exponent):
    x = numbers((6,), low=0.5)
    same(jnp.asarray(x) ** exponent, x.astype(np.float64) ** exponent, rtol=1e-5)
    if exponent >= 0:
        n = integers((6,))
        same(jnp.asarray(n) ** exponent, n**exponent)
    else:
        with pytest.raises(TypeError, match="Integers cannot be raised to negative powers"):
            jnp.arange(3) ** exponent


def test_powers_of_arrays():
    base, exponent = np.array([-3, -1, 0, 1, 2, 3], np.int32), np.array([0, 1, 2, 5, 7, 30], np.int32)
    with np.errstate(all="ignore"):
        same(jnp.power(base[:, None], exponent), np.power(base[:, None], exponent))
    x = numbers((3, 4), low=0.1)
    same(jnp.power(x, numbers((4,), 1)), np.power(x.astype(np.float64), numbers((4,), 1)), rtol=2e-5)
    same(2.0 ** jnp.arange(4), [1, 2, 4, 8])
    same(jnp.array([-2.0, 0.5]) ** jnp.array([3, -2]), [-8, 4])
    assert jnp.power(2, 3).weak_type


def test_bool_arithmetic():
    a, b = jnp.array([True, True, False]), jnp.array([True, False, False])
    same(a + b, [True, True, False])
    same(a * b, [True, False, False])
    same(jnp.maximum(a, b), [True, True, False])
    for f in (lambda: a - b, lambda: -a):
        with pytest.raises(TypeError, match="bool"):
            f()


def test_frexp_ldexp_modf_spacing():
    x = np.array([0.0, -0.0, 1.0, -3.5, 1e-40, 6e37, np.inf, -np.inf, np.nan, 0.1], np.float32)
    mantissa, exponent = jnp.frexp(x)
    want_mantissa, want_exponent = np.frexp(x)
    finite = np.isfinite(x)
    np.testing.assert_array_equal(np.asarray(mantissa), want_mantissa)
    np.testing.assert_array_equal(np.asarray(exponent)[finite], want_exponent[finite])
    np.testing.assert_array_equal(np.asarray(jnp.ldexp(mantissa, exponent))[finite], x[finite])
    np.testing.assert_array_equal(
        np.asarray(jnp.ldexp(jnp.float32(1), jnp.array([-140, 127, -149]))), np.ldexp(np.float32(1), [-140, 127, -149])
    )
    for got, want in zip(jnp.modf(x), np.modf(x), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
    np.testing.assert_array_equal(np.asarray(jnp.spacing(x[2:6])), np.spacing(x[2:6]))
    np.testing.assert_array_equal(np.asarray(jnp.nextafter(x, jnp.float32(2))), np.nextafter(x, np.float32(2)))


def test_i0_and_sinc():
    x = np.linspace(-30, 30, 101).astype(np.float32)
    np.testing.assert_allclose(np.asarray(jnp.i0(x)), np.i0(x.astype(np.float64)), rtol=2e-5)
    np.testing.assert_allclose(np.asarray(jnp.sinc(x)), np.sinc(x.astype(np.float64)), atol=2e-6)


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
def test_round(decimals):
    x = np.array([0.5, 1.5, 2.5, -0.5, 123.456, -15.0, 25.0], np.float32)
    same(jnp.round(x, decimals), np.round(x, decimals), rtol=1e-6)
    same(jnp.asarray(x).round(decimals), np.round(x, decimals), rtol=1e-6)
    assert int(jnp.round(jnp.int32(7))) == 7


def test_clip():
    x = np.arange(-5, 6)
    for low, high in ((-2, 3), (None, 1), (0, None), (None, None), (np.arange(-5, 6) // 2, 4)):
        want = x if low is None and high is None else np.clip(x, low, high)
        same(jnp.clip(x, low, high), want)
        same(jnp.asarray(x).clip(min=low, max=high), want)
    with pytest.raises(ValueError, match="complex"):
        jnp.clip(jnp.array([1j]), 0, 1)


def test_nan_to_num():
    x = np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)
    same(jnp.nan_to_num(x), np.nan_to_num(x))
    same(jnp.nan_to_num(x, nan=7.0, posinf=1.0, neginf=-1.0), np.nan_to_num(x, nan=7.0, posinf=1.0, neginf=-1.0))
    same(jnp.nan_to_num(x + 1j), np.nan_to_num(x + 1j))


def test_what_is_no_array_is_refused():
    for f in (jnp.sin, jnp.negative, jnp.isnan, jnp.floor, jnp.real, jnp.signbit, jnp.round):
        for x in ([1.0], (1.0,), "a", None, {}):
            with pytest.raises(TypeError, match="requires ndarray or scalar arguments"):
                f(x)
    for f in (jnp.add, jnp.power, jnp.equal, jnp.maximum, jnp.left_shift):
        with pytest.raises(TypeError):
            f([1], 2)


def test_errors_of_shapes():
    with pytest.raises(TypeError, match=r"add got incompatible shapes for broadcasting: \(4,\), \(3,\)"):
        jnp.ones(4) + jnp.ones(3)
    with pytest.raises(TypeError, match="mul got incompatible shapes"):
        jnp.ones((2, 3)) * jnp.ones((2, 2))
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
        jnp.ones((2, 4)) - jnp.ones(3)


def test_integers_that_do_not_fit():
    for f in (lambda: jnp.arange(3) + 2**40, lambda: jnp.ones(2, "uint8") + 256, lambda: jnp.ones(2, "int8") * 200):
        with pytest.raises(OverflowError, match="out of bounds"):
            f()
    assert (jnp.ones(2, "float16") + 2**40).dtype == "float16"


def test_objects_with_jax_array():
    class Wrapped:
        def __jax_array__(self):
            return jnp.arange(3.0)

    same(jnp.sin(Wrapped()), np.sin(np.arange(3)))
    same(jnp.add(Wrapped(), 1), [1, 2, 3])
    same(jnp.ones(3) + Wrapped(), [1, 2, 3])


def test_in_jit():
    def f(x, y):
        return (
            jnp.floor_divide(x, y),
            jnp.remainder(x, y),
            jnp.power(x, 3),
            jnp.logaddexp(x, y),
            jnp.hypot(x, y),
            jnp.clip(x, -1, 1),
            jnp.frexp(x),
        )

    x, y = jnp.asarray(numbers((3, 4))), jnp.asarray(numbers((4,), 1))
    for got, want in zip(jax.tree.leaves(jax.jit(f)(x, y)), jax.tree.leaves(f(x, y)), strict=True):
        assert got.aval is want.aval
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)


def test_static_powers_are_staged_as_such():
    x = jnp.asarray(np.array([-1.5, 0.0, 0.5, 3.0], np.float32))
    text = str(jax.make_jaxpr(lambda a: a**2)(x))
    assert "integer_pow[y=2] a" in text
    assert "square" not in text
    for y in (1, 2):  # no power is left in the derivative
        slope = str(jax.make_jaxpr(lambda a, y=y: jax.jvp(lambda b: b**y, (a,), (a,)))(x))
        assert slope.count("integer_pow") == 1
        assert ("mul 2.0:f32[] a" in slope) == (y == 2)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, -1, -2])
def test_static_powers_in_groups(exponent):
    """Alone, and within a group of elementwise work that is done tile by tile."""
    data = np.linspace(-3, 3, 1 << 16, dtype=np.float32) + np.float32(1e-3)
    want = data.astype(np.float64) ** exponent
    for f in (lambda a: a**exponent, jax.jit(lambda a: a**exponent), jax.jit(lambda a: (a + 0.0) ** exponent * 1.0)):
        np.testing.assert_allclose(np.asarray(f(jnp.asarray(data))), want, rtol=3e-6)
    integers = np.arange(-8, 8, dtype=np.int8)
    if exponent >= 0:
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(np.asarray(jnp.asarray(integers) ** exponent), integers**exponent)
