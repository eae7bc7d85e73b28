"""Small operands that meet each other before they meet a large array."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.passes.narrow import narrow
from mpiarray.ops.linear import add_any

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 8)).astype(np.float32)
R, S = (RNG.standard_normal((5, 1)).astype(np.float32) for _ in range(2))
C = RNG.standard_normal(8).astype(np.float32)
ONE = np.float32(1.5)


def sizes(f, *args) -> dict[str, int]:
    """How many operations of each kind the compiled program does on the large array."""
    rows = jax.jit(f).lower(*args).compile().as_text().splitlines()
    kinds = [row.split("= ")[1].split("] ")[1].split("(")[0] for row in rows if "= f32[5,8]" in row]
    return {kind: kinds.count(kind) for kind in ("multiply", "add")}


def repeated(a):
    return jnp.broadcast_to(a, X.shape)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, r, s, c: r * (2.0 * x),
        lambda x, r, s, c: (x * 0.5) * r,
        lambda x, r, s, c: c * (4 * x),
        lambda x, r, s, c: 3.0 * (-2 * x),
        lambda x, r, s, c: repeated(r) * (2 * x),
        lambda x, r, s, c: jax.lax.fori_loop(0, 2, lambda i, y: r * (2.0 * y), x),
        lambda x, r, s, c: jnp.sum(r) * (2.0 * x),
    ],
)
def test_powers_of_two_go_to_the_smaller_factor(f):
    args = (X, R, S, C)
    assert sizes(f, *args)["multiply"] == 1
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(*args)), np.asarray(f(*map(jnp.asarray, args))))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, r, s, c: r * (3.0 * x),  # rounds
        lambda x, r, s, c: r * (1024.0 * x),  # may leave the range
        lambda x, r, s, c: x * (2.0 * x),  # nothing small
        lambda x, r, s, c: (r * (y := 2.0 * x), y)[0] + y,  # read twice
        lambda x, r, s, c: r * (s * x),
    ],
)
def test_products_that_stay(f):
    args = (X, R, S, C)
    assert sizes(f, *args)["multiply"] == 2
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(*args)), np.asarray(f(*map(jnp.asarray, args))))


@pytest.mark.parametrize(
    ("f", "dtype"),
    [
        (lambda x, r: r * (2 * x), np.float16),  # r is 40000
        (lambda x, r: 3e38 * (2 * x), np.float32),
        (lambda x, r: 1e-45 * (0.5 * x), np.float32),
        (lambda x, r: 0.0625 * (x / 1e38), np.float32),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_what_would_leave_the_range_stays(f, dtype):
    x, r = (X / 8).astype(dtype), np.full((5, 1), 40000, dtype)
    found = np.asarray(jax.jit(f)(x, r))
    np.testing.assert_array_equal(found, np.asarray(f(jnp.asarray(x), jnp.asarray(r))))
    assert np.isfinite(found).all() or dtype == np.float32


def test_sums_of_cotangents():
    f = lambda x, r, s: add_any(add_any(jnp.sin(x), repeated(r)), repeated(s))
    assert sizes(f, X, R, S)["add"] == 1
    np.testing.assert_allclose(np.asarray(jax.jit(f)(X, R, S)), np.sin(X) + R + S, rtol=1e-6, atol=1e-6)


def test_sums_that_stay():
    """Of arrays that are repeated along different dims, and those that the user wrote."""
    apart = lambda x, r, c: add_any(add_any(jnp.sin(x), repeated(r)), repeated(c))
    written = lambda x, r, s: (jnp.sin(x) + r) + s
    for f, args in ((apart, (X, R, C)), (written, (X, R, S))):
        assert sizes(f, *args)["add"] == 2
        want = np.asarray(f(*map(jnp.asarray, args)))
        np.testing.assert_array_equal(np.asarray(jax.jit(f)(*args)), want)


def test_the_slope_of_a_variance():
    f = jax.grad(lambda x: jnp.sum(jnp.sqrt(jnp.var(x, -1))))
    assert sizes(f, X)["multiply"] == 2, "the square, and one product"
    want = (X - X.mean(-1, keepdims=True)) / X.std(-1, keepdims=True) / 8
    np.testing.assert_allclose(np.asarray(jax.jit(f)(X)), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "kinds"),
    [
        (lambda x: -jnp.sin(x) / 3, []),
        (lambda x: 2 * (jnp.sin(x) / 3), []),
        (lambda x: (jnp.sin(x) / 24) * -0.5, []),
        (lambda x: 3 * (jnp.sin(x) / 24), ["multiply"]),  # rounds twice
        (lambda x: -jnp.sin(x) / x, ["negate"]),
        (lambda x: (y := -jnp.sin(x), y / 3), ["negate"]),  # somebody else reads it
        (lambda x: 2 * (3 / jnp.sin(x)), ["multiply"]),
    ],
)
def test_quotients(f, kinds):
    rows = jax.jit(f).lower(X).compile().as_text().splitlines()
    assert [k for row in rows for k in ("negate", "multiply") if f" {k}(" in row] == kinds
    for got, want in zip(jax.tree.leaves(jax.jit(f)(X)), jax.tree.leaves(f(jnp.asarray(X))), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_integers_and_other_types():
    for x in (np.arange(40, dtype=np.int32).reshape(5, 8), X.astype(np.float16), X.astype(np.complex64)):
        r = x[:, :1]
        f = lambda x, r: r * (2 * x)
        np.testing.assert_array_equal(np.asarray(jax.jit(f)(x, r)), r * (2 * x))


def test_what_has_nothing_of_it_is_returned_as_it_is():
    jaxpr = jax.make_jaxpr(lambda x, r: jnp.sin(x * r) * r)(X, R).jaxpr
    assert narrow(jaxpr) is jaxpr
