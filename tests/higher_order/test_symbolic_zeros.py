"""Rules with `symbolic_zeros=True`: which tangents and cotangents come as symbols, and what rules may return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.custom_derivatives import (
    CustomVJPPrimal,
    SymbolicZero,
    custom_vjp_primal_tree_values,
    zero_from_primal,
)


def kinds(xs: Any) -> list[bool]:
    return [isinstance(x, SymbolicZero) for x in xs]


def product(seen: list[Any]) -> Any:
    """(x * y, x + y) with a jvp rule that records which tangents are symbols."""

    @jax.custom_jvp
    def f(x, y):
        return x * y, x + y

    def rule(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        seen.append(kinds(tangents))
        assert all(t.shape == p.shape and t.dtype == p.dtype for t, p in zip(tangents, primals, strict=True))
        zero = jnp.zeros_like(x)
        term = lambda t, other: zero if isinstance(t, SymbolicZero) else t * other
        total = tx if isinstance(ty, SymbolicZero) else ty if isinstance(tx, SymbolicZero) else tx + ty
        return f(x, y), (term(tx, y) + term(ty, x), total)

    f.defjvp(rule, symbolic_zeros=True)
    return f


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_tangents_that_are_known_to_be_zero(wrap):
    seen: list[Any] = []
    f = product(seen)
    run = wrap(lambda x: f(x, jnp.float32(3)))
    out, tangent = jax.jvp(run, (2.0,), (1.0,))
    assert [float(v) for v in (*out, *tangent)] == [6, 5, 3, 1]
    assert seen == [[False, True]]
    assert float(jax.grad(lambda x: run(x)[0])(2.0)) == 3
    both = jax.grad(lambda x, y: wrap(f)(x, y)[0], (0, 1))(2.0, 3.0)
    assert [float(v) for v in both] == [3, 2]
    assert seen[-1] == [False, False]


def test_all_symbols_and_vmap():
    seen: list[Any] = []
    f = product(seen)
    _, tangent = jax.jvp(lambda x: f(jax.lax.stop_gradient(x), 1.0)[1] + x, (2.0,), (1.0,))
    assert float(tangent) == 1
    xs = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: f(x, 3.0)[0]))(xs), [3, 3, 3])
    np.testing.assert_array_equal(jax.grad(lambda x: jax.vmap(lambda v: f(v, 3.0)[0])(x).sum())(xs), [3, 3, 3])
    assert seen[-1] == [False, True]


def test_integers_have_symbols_too():
    seen: list[Any] = []

    @jax.custom_jvp
    def f(x, n):
        return x * n

    @f.defjvp
    def plain(primals, tangents):
        raise AssertionError("replaced below")

    def rule(primals, tangents):
        seen.append([(type(t).__name__, str(t.dtype) if isinstance(t, SymbolicZero) else "") for t in tangents])
        return f(*primals), tangents[0] * primals[1]

    f.defjvp(rule, symbolic_zeros=True)
    assert float(jax.grad(f)(2.0, jnp.int32(3))) == 3
    assert seen[0][1][0] == "SymbolicZero"
    assert "float0" in seen[0][1][1] or "V" in seen[0][1][1]


def test_a_symbol_of_another_type_is_refused():
    f = product([])
    f.defjvp(lambda p, t: (f(*p), (SymbolicZero(jax.typeof(jnp.zeros(3))), t[0])), symbolic_zeros=True)
    with pytest.raises(TypeError, match=r"corresponding shapes and dtypes.*SymbolicZero"):
        jax.jvp(lambda x: f(x, 1.0), (2.0,), (1.0,))


def backwards(seen: list[Any]) -> Any:
    @jax.custom_vjp
    def f(x, tree):
        return x * tree["a"], x + tree["b"]

    def fwd(x, tree):
        assert isinstance(x, CustomVJPPrimal)
        seen.append(("fwd", x.perturbed, tree["a"].perturbed, tree["b"].perturbed))
        value, parts = custom_vjp_primal_tree_values((x, tree))
        return f(value, parts), (value, parts)

    def bwd(residuals, cotangents):
        x, parts = residuals
        u, v = cotangents
        seen.append(("bwd", *kinds(cotangents)))
        zero = jnp.zeros_like(x)
        u_, v_ = (zero if isinstance(c, SymbolicZero) else c for c in (u, v))
        return u_ * parts["a"] + v_, {"a": u_ * x, "b": v}

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_primals_that_nobody_differentiates_by(wrap):
    seen: list[Any] = []
    f = backwards(seen)
    tree = {"a": jnp.float32(3), "b": jnp.float32(5)}
    run = wrap(lambda x: f(x, tree))
    assert float(jax.grad(lambda x: run(x)[0])(2.0)) == 3
    assert ("fwd", True, False, False) in seen
    assert ("bwd", False, True) in seen
    assert float(jax.grad(lambda x: run(x)[1])(2.0)) == 1
    assert ("bwd", True, False) in seen
    slopes = jax.grad(lambda x, t: sum(wrap(f)(x, t)), (0, 1))(2.0, tree)
    assert float(slopes[0]) == 4
    assert [float(v) for v in slopes[1].values()] == [2, 1]
    assert seen[-1] == ("bwd", False, False)


def test_mapped_rules_get_symbols_of_one_example():
    f = backwards(seen := [])
    shapes: list[Any] = []

    @jax.custom_vjp
    def g(x):
        return x.sum(), x

    def bwd(residuals, cotangents):
        shapes.append((cotangents[1].shape, isinstance(cotangents[1], SymbolicZero)))
        return (jnp.broadcast_to(cotangents[0], (2,)),)

    g.defvjp(lambda x: (g(x.value), None), bwd, symbolic_zeros=True)
    rows = jnp.ones((3, 2))
    np.testing.assert_array_equal(jax.grad(lambda x: jax.vmap(g)(x)[0].sum())(rows), np.ones((3, 2)))
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: g(x)[0]))(rows), np.ones((3, 2)))
    assert shapes == [((2,), True)] * 2
    tree = {"a": jnp.float32(3), "b": jnp.float32(5)}
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: f(x, tree)[0]))(jnp.arange(2.0)), [3, 3])
    assert ("bwd", False, True) in seen


def test_the_zeros_of_values():
    zero = zero_from_primal(jnp.ones((2, 3)), symbolic_zeros=True)
    assert (type(zero), zero.shape, zero.dtype, repr(zero)) == (SymbolicZero, (2, 3), np.float32, "SymbolicZero")
    np.testing.assert_array_equal(zero_from_primal(jnp.ones(2)), [0, 0])
    with pytest.raises(TypeError, match="CustomVJPPrimal"):
        custom_vjp_primal_tree_values((1.0,))
