"""`grad`, `jvp`, `vjp`, `linearize` on plain arrays: values against formulas and against each other, types, and errors."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

X = np.array([0.3, -1.2, 2.5, 0.9], np.float32)


def f(x):
    return (jnp.sin(x) * x**2).sum()


def slope(x):
    return 2 * x * np.sin(x) + x**2 * np.cos(x)


def curvature(x):
    return 2 * np.sin(x) + 4 * x * np.cos(x) - x**2 * np.sin(x)


@pytest.mark.parametrize(
    "gradient",
    [
        jax.grad(f),
        jax.grad(jax.jit(f)),
        jax.jit(jax.grad(f)),
        jax.jit(jax.grad(jax.jit(f))),
        lambda x: jax.value_and_grad(f)(x)[1],
        lambda x: jax.vjp(f, x)[1](np.float32(1))[0],
        lambda x: jnp.stack([jax.jvp(f, (x,), (e,))[1] for e in jnp.eye(4)]),
        lambda x: jnp.stack([jax.linearize(f, x)[1](e) for e in jnp.eye(4)]),
    ],
)
def test_first_derivative(gradient):
    np.testing.assert_allclose(gradient(jnp.asarray(X)), slope(X), rtol=1e-5)


@pytest.mark.parametrize(
    "second",
    [
        lambda x, v: jax.grad(lambda x: (jax.grad(f)(x) * v).sum())(x),
        lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1],
        lambda x, v: jax.grad(lambda x: jax.jvp(f, (x,), (v,))[1])(x),
        jax.jit(lambda x, v: jax.grad(lambda x: (jax.grad(jax.jit(f))(x) * v).sum())(x)),
        lambda x, v: jax.vjp(jax.jit(jax.grad(jax.jit(f))), x)[1](v)[0],
    ],
)
def test_second_derivative(second):
    v = np.array([1.0, 2.0, -1.0, 0.5], np.float32)
    np.testing.assert_allclose(second(jnp.asarray(X), jnp.asarray(v)), curvature(X) * v, rtol=1e-4)


def test_fourth_derivative_of_a_scalar():
    g = lambda t: jnp.exp(2 * t)
    for k in range(5):
        np.testing.assert_allclose(g(jnp.float32(0.3)), 2**k * np.exp(0.6), rtol=1e-5)
        g = jax.grad(g)


def test_function_runs_once():
    calls = []

    def g(x):
        calls.append(1)
        return (x * x).sum()

    jax.grad(g)(jnp.ones(3))
    assert len(calls) == 1


def test_python_branches_on_concrete_values():
    g = lambda x: x * x if x > 0 else -x
    assert float(jax.grad(g)(2.0)) == 4 and float(jax.grad(g)(-2.0)) == -1
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(jax.grad(g))(2.0)
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.grad(lambda x: jnp.asarray(np.sin(x)).sum())(jnp.ones(2))


def test_trees_aux_and_argnums():
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": [jnp.ones(3), None], "unused": jnp.zeros(2)}

    def loss(p, x, scale):
        y = x @ p["w"] + p["b"][0]
        return (y**2).sum() * scale, {"y": y, "n": 3}

    x = jnp.array([1.0, 2.0])
    (value, aux), (g, gx) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x, 2.0)
    y = np.array([1.0, 2.0]) @ np.arange(6.0).reshape(2, 3) + 1
    assert aux["n"] == 3 and isinstance(aux["y"], jax.Array)
    np.testing.assert_allclose(value, 2 * (y**2).sum())
    np.testing.assert_allclose(g["w"], np.outer([1, 2], 4 * y))
    np.testing.assert_allclose(g["b"][0], 4 * y)
    np.testing.assert_array_equal(g["unused"], np.zeros(2))
    np.testing.assert_allclose(gx, np.arange(6.0).reshape(2, 3) @ (4 * y))
    assert g["b"][1] is None


def test_types():
    assert jax.grad(lambda x: x * 2)(1.0).aval.weak_type
    assert not jax.grad(lambda x: x * 2.0)(jnp.float32(1)).aval.weak_type
    g = jax.grad(lambda x: (x.astype(jnp.float32) * 1.5).sum())(jnp.ones(2, jnp.bfloat16))
    assert g.dtype == jnp.bfloat16
    g = jax.grad(lambda x, n: (x**2 * n).sum(), argnums=(0, 1), allow_int=True)(jnp.arange(3.0), jnp.arange(3))
    assert g[1].dtype == jax.dtypes.float0 and g[1].shape == (3,)
    out, t = jax.jvp(lambda x: (x, jnp.argmax(x)), (jnp.ones(3),), (jnp.ones(3),))
    assert t[1].dtype == jax.dtypes.float0


def test_complex():
    z = jnp.array([1 + 2j, 3 - 1j], jnp.complex64)
    np.testing.assert_allclose(jax.grad(lambda v: (jnp.abs(v) ** 2).sum())(z), [2 - 4j, 6 + 2j], rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(lambda v: (v**3).sum(), holomorphic=True)(z), 3 * np.array([1 + 2j, 3 - 1j]) ** 2, rtol=1e-5
    )


def test_linear_transpose():
    x = jnp.arange(4.0)
    (t,) = jax.linear_transpose(lambda v: 3 * v + v.sum(), x)(jnp.array([1.0, 2.0, 0.0, -1.0]))
    np.testing.assert_allclose(t, [5, 8, 2, -1])
    (t,) = jax.linear_transpose(jax.jit(lambda v: jnp.cos(2.0) * v[1:]), jax.ShapeDtypeStruct((3,), jnp.float32))(x[:2])
    np.testing.assert_allclose(t, [0, 0, np.cos(2.0)], rtol=1e-6)
    with pytest.raises(TypeError, match=r"Expected cotangent type float32\[4\] but got float32\[3\]"):
        jax.linear_transpose(lambda v: 2 * v, x)(jnp.ones(3))


x4 = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: jax.grad(jnp.sin)(x4), TypeError, r"scalar-output functions. Output had shape: \(4,\)"),
        (lambda: jax.grad(lambda v: v.sum())(np.arange(4)), TypeError, "real- or complex-valued inputs.*int32"),
        (lambda: jax.grad(lambda v: (v > 1).sum())(x4), TypeError, "requires real-valued outputs.*int32"),
        (lambda: jax.grad(lambda v: (v * 1j).sum())(x4), TypeError, "real-valued outputs.*complex64"),
        (lambda: jax.grad(lambda v: (v, v))(1.0), TypeError, "scalar-output functions. Output was"),
        (lambda: jax.grad(f, argnums=2)(x4), TypeError, "argnums=2 requires at least 3 positional"),
        (lambda: jax.grad(f, has_aux=True)(x4), TypeError, "two-element tuple"),
        (lambda: jax.grad(lambda v: v)("a"), TypeError, "not a valid JAX type"),
        (lambda: jax.jvp(jnp.sin, (x4,), (np.arange(4),)), TypeError, "primal and tangent arguments to jax.jvp do not"),
        (lambda: jax.jvp(jnp.sin, (x4,), (np.ones(3, np.float32),)), ValueError, "shape"),
        (lambda: jax.jvp(jnp.sin, (x4,), ({"a": x4},)), TypeError, "tree structure"),
        (lambda: jax.vjp(jnp.sin, x4)[1](np.ones(3, np.float32)), ValueError, "unexpected JAX type"),
        (lambda: jax.vjp(jnp.sin, x4)[1]((x4, x4)), ValueError, "tree structure"),
        (lambda: jax.grad(f, holomorphic=True)(x4), TypeError, "requires inputs with complex dtype"),
    ],
)
def test_errors(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_leaked_tracer():
    kept = []
    jax.grad(lambda x: kept.append(x) or (x * x).sum())(jnp.ones(2))
    with pytest.raises(jax.errors.UnexpectedTracerError):
        kept[0] + 1
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda y: y + kept[0])(1.0)


def test_types_of_given_tangents_and_cotangents():
    """Nothing is moved silently: what a user gives must lie as its value does; host arrays are cut."""
    mesh = jax.make_mesh((1,), ("x",), (jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(4.0), jax.P("x"))
        whole = jnp.ones(4)
        _, pull = jax.vjp(jnp.sin, x)
        _, push = jax.linearize(jnp.sin, x)
        with pytest.raises(ValueError, match=r"got float32\[4\], but expected float32\[4@x\]"):
            pull(whole)
        with pytest.raises(ValueError, match=r"got tangent float32\[4\] for primal float32\[4@x\]"):
            push(whole)
        with pytest.raises(TypeError, match=r"Expected cotangent type float32\[4@x\] but got float32\[4\]"):
            jax.linear_transpose(lambda v: v * 2, x)(whole)
        ones = np.ones(4, np.float32)
        for found in (pull(ones)[0], push(ones), pull(jnp.ones_like(x))[0]):
            assert jax.typeof(found) == jax.typeof(x)
            np.testing.assert_allclose(found, np.cos(np.arange(4.0)), rtol=1e-6)


def test_cotangents_of_custom_rules_inside_a_body():
    @jax.custom_vjp
    def scale(w, x):
        return w * x

    def bwd(saved, g):
        w, x = saved
        return (g * x).sum() if kind == "wrong" else jax.lax.psum((g * x).sum(), "x"), g * w

    scale.defvjp(lambda w, x: (w * x, (w, x)), bwd)
    mesh = jax.make_mesh((1,), ("x",), (jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(4.0), jax.P("x"))
        f = jax.shard_map(
            lambda w, x: jax.grad(lambda w: scale(w, x).sum())(w), in_specs=(jax.P(), jax.P("x")), out_specs=jax.P()
        )
        for kind in ("right", "wrong"):
            if kind == "right":
                assert float(f(jnp.float32(2), x)) == 6
            else:
                with pytest.raises(ValueError, match="manual axis types do not match"):
                    f(jnp.float32(2), x)
