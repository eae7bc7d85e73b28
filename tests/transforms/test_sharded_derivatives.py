"""Derivatives of functions of sharded arrays: the gradient has the primal's type (sharding_rules.md 18), on Explicit and Auto
axes alike it has the values that it has without a mesh, and the backward pass communicates no more than it has to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm
from mpiarray.types.mesh import AxisType

pytestmark = pytest.mark.mpi
P = jax.P


def mesh_of(kind: AxisType = AxisType.Explicit) -> jax.Mesh:
    n = jax.device_count()
    return jax.make_mesh((n // 2, 2) if n % 2 == 0 else (n, 1), ("x", "y"), (kind, kind))


def weighted(y: Any) -> Any:
    return (y * jnp.cos(jnp.arange(float(y.size))).reshape(y.shape)).sum()


W = np.sin(np.arange(36.0, dtype=np.float32)).reshape(12, 3)
# each takes x of shape (4n, 12), which all meshes divide, and gives a scalar; on Explicit axes it must be allowed for every layout of x
FUNCTIONS = {
    "elementwise": lambda x: (jnp.sin(x) * jnp.exp(-(x**2))).sum(),
    "broadcast": lambda x: ((x - x.mean(axis=1, keepdims=True)) ** 2).sum(),
    "sum": lambda x: (x.sum(axis=0) ** 2).sum() + (x.sum(axis=1) ** 3).sum(),
    "max": lambda x: (x.max(axis=0) ** 2).sum() + x.min(),
    "variance": lambda x: jnp.var(x, axis=0).sum() + jnp.std(x),
    "softmax": lambda x: (jax.nn.softmax(x, axis=1) ** 2).sum() + (jax.nn.log_softmax(x, axis=0) ** 2).sum(),
    "prod": lambda x: jnp.prod(1 + x / 10, axis=1).sum(),
    "transpose": lambda x: (x.T**2 * jnp.arange(12.0)[:, None]).sum(),
    "expand": lambda x: (x[:, None, :] * jnp.ones((1, 3, 1))).sum() + (x[None] ** 2).sum(),
    "where": lambda x: jnp.where(x > 0, x**2, -x).sum(),
    "cast": lambda x: (x.astype(jnp.bfloat16).astype(jnp.float32) * x).sum(),
    "gram": lambda x: (jax.sharding.auto_axes(lambda x: x.T @ x, out_sharding=P(None, None))(x) ** 2).sum(),
    "product": lambda x: (jax.reshard(x, P(jax.typeof(x).sharding.spec[0], None)) @ W).sum(),
    "reshard": lambda x: (jax.reshard(x**2, P(None, "y")) * x.sum()).sum(),
    "reshard twice": lambda x: (jax.reshard(jax.reshard(x, P("y", "x")) ** 2, P(None, None)) ** 2).sum(),
    "jit": lambda x: jax.jit(lambda x: (jnp.tanh(x) * x).sum())(x),
    "remat": lambda x: jax.remat(lambda x: (jnp.tanh(x) * x).sum())(x),
    "vmap": lambda x: jax.vmap(lambda r: (jnp.sin(r) * r.sum()).sum())(x).sum(),
    "stack": lambda x: (jnp.stack([x, 2 * x, x**2], axis=1) ** 2).sum(),
    "custom": lambda x: straight_through(x).sum(),
    "abs of complex": lambda x: (jnp.abs(x + 1j * x**2) ** 2).sum(),
}
SPECS = [P("x", "y"), P("y", "x"), P(("x", "y"), None), P(None, "y"), P("x", None), P(None, None)]
WITHOUT_MESH = {"gram": lambda x: ((x.T @ x) ** 2).sum(), "product": lambda x: (x @ W).sum()}
WITHOUT_MESH |= {"reshard": lambda x: (x**2 * x.sum()).sum(), "reshard twice": lambda x: (x**4).sum()}


@jax.custom_vjp
def straight_through(x: Any) -> Any:
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), x), lambda x, g: (g * x,))


def value() -> np.ndarray:
    n = jax.device_count()
    return np.sin(np.arange(48.0 * n, dtype=np.float32) * 1.7).reshape(4 * n, 12)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_has_the_type_of_the_primal(name: str, spec: P) -> None:
    v = value()
    want = np.asarray(jax.grad(WITHOUT_MESH.get(name, FUNCTIONS[name]))(v))
    f = FUNCTIONS[name]
    with jax.set_mesh(mesh_of()):
        x = jax.device_put(v, spec)
        for gradient in (jax.grad(f), jax.jit(jax.grad(f))):
            g = gradient(x)
            assert jax.typeof(g) == jax.typeof(x)
            np.testing.assert_allclose(g, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in WITHOUT_MESH])
def test_on_auto_axes(name: str) -> None:
    v = value()
    f = FUNCTIONS[name]
    want = np.asarray(jax.grad(f)(v))
    with jax.set_mesh(mesh_of(AxisType.Auto)):
        x = jax.device_put(v, P("x", "y"))
        np.testing.assert_allclose(jax.grad(f)(x), want, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(jax.jit(jax.grad(f))(x), want, rtol=2e-4, atol=2e-5)


def test_weights_of_a_data_parallel_product() -> None:
    """The weights' gradient is summed inside the backward product; weights typed reduced leave it unreduced."""
    with jax.set_mesh(mesh_of()):
        n = jax.device_count()
        d = jax.device_put(value(), P(("x", "y"), None))
        w = jax.device_put(W, P(None, None))
        f = lambda w, d: (jnp.dot(d, w) ** 2).sum()
        want = jax.grad(f)(W, value())
        step = jax.jit(jax.grad(f))
        np.testing.assert_allclose(step(w, d), want, rtol=1e-4)
        with comm.counting() as c:
            step(w, d)
        assert c.total_calls == (n > 1)
        r = jax.reshard(w, P(None, None, reduced={"x", "y"}))
        g = step(r, d)
        assert jax.typeof(g).unreduced == {"x", "y"}
        with comm.counting() as c:
            step(r, d)
        assert c.total_calls == 0
        np.testing.assert_allclose(jax.reshard(g, P(None, None)), want, rtol=1e-4)


def test_jacobians_of_sharded_values() -> None:
    with jax.set_mesh(mesh_of()):
        n = jax.device_count()
        v = np.arange(2.0 * n, dtype=np.float32) / n
        x = jax.device_put(v, P(("x", "y")))
        f = lambda v: (jnp.sin(v) ** 2).sum() * v.sum()
        h = jax.jacfwd(jax.grad(f))(x)
        assert jax.typeof(h).dims == (("x", "y"), ())
        want = np.diag(2 * np.cos(2 * v) * v.sum()) + np.sin(2 * v)[:, None] + np.sin(2 * v)[None, :]
        np.testing.assert_allclose(h, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(jax.jacrev(jax.grad(f))(x), want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(jax.jit(jax.hessian(f))(x), want, rtol=1e-4, atol=1e-4)


def test_linear_transpose_of_unreduced() -> None:
    with jax.set_mesh(mesh_of()):
        n = jax.device_count()
        x = jax.ShapeDtypeStruct(
            (2 * n, 4), np.float32, sharding=jax.NamedSharding(jax.sharding.get_abstract_mesh(), P(("x", "y"), None))
        )
        ones = jax.device_put(np.ones(2 * n, np.float32), P(("x", "y")))
        f = lambda v: jnp.einsum("ij,i->j", v, ones, out_sharding=P(None, unreduced={"x", "y"}))
        back = jax.linear_transpose(f, x)
        with pytest.raises(ValueError, match=r"Expected cotangent type float32\[4\]\{R:\(x,y\)\} but got float32\[4\]"):
            back(jnp.ones(4))
        (ct,) = back(jax.reshard(jnp.ones(4), P(None, reduced={"x", "y"})))
        assert jax.typeof(ct).dims == (("x", "y"), ())
        np.testing.assert_allclose(ct, np.ones((2 * n, 4)))
