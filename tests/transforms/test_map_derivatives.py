"""Derivatives of shard_map on real ranks: every body and layout against differences in float64, with and without types, eager and
jitted; how often the backward pass communicates; derivatives inside bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm, lax
from mpiarray.types.mesh import AxisType

pytestmark = pytest.mark.mpi
P = jax.P
H = 1e-5


def mesh_of(kind: AxisType = AxisType.Explicit) -> jax.Mesh:
    n = jax.device_count()
    return jax.make_mesh((n // 2, 2) if n % 2 == 0 else (n, 1), ("x", "y"), (kind, kind))


def ring(axis: str) -> list[tuple[int, int]]:
    n = lax.axis_size(axis)
    return [(k, (k + 1) % n) for k in range(n)]


def total(v: Any) -> Any:
    return lax.psum(lax.psum(v, "x"), "y")  # one after the other: it may vary over one of them only


# of the block b of a global array laid by each of LAYOUTS, and of a parameter w that enters whole
BODIES = {
    "local": lambda b, w: total((jnp.sin(b) * w.sum()).sum()),
    "psum": lambda b, w: (total(b * w[0] * (1 + lax.axis_index("x"))) ** 2).sum(),
    "psum over one": lambda b, w: total((lax.psum(b**2, "x") * b * w[1]).sum()),
    "pmean": lambda b, w: total(((b - lax.pmean(b, "x")) ** 2 * jnp.exp(w).sum()).sum()),
    "all_gather": lambda b, w: total((lax.all_gather(jnp.tanh(b), "y", axis=1, tiled=True).sum(0) * w[0]).sum()),
    "all_gather stacked": lambda b, w: total((lax.all_gather(b, ("y", "x")) ** 3 * w[0]).sum() * b.sum()),
    "all_gather invariant": lambda b, w: total((lax.all_gather(b, "y", axis=1, to="invarying") ** 2).sum() * b.sum()),
    "pbroadcast": lambda b, w: total((lax.pbroadcast(b**2, "x", 0) * b * w[1]).sum()),
    "psum_scatter": lambda b, w: total((lax.psum_scatter(b * w[1], "x", tiled=True) ** 2).sum()),
    "ppermute": lambda b, w: total((lax.ppermute(b**2 * w[0], "x", ring("x")) * b).sum()),
    "partial ppermute": lambda b, w: total((lax.ppermute(b * w[1], "x", [(0, 0)]) * b).sum()),
    "all_to_all": lambda b, w: total((lax.all_to_all(b**2, "x", 0, 0, tiled=True) * b * w.sum()).sum()),
    "index": lambda b, w: total((b[0] * w[lax.axis_index("y")] * (1 + lax.axis_index("x"))).sum()),
    "update": lambda b, w: total((b.at[lax.axis_index("y")].add(w[0]) ** 2).sum()),
    "remat": lambda b, w: total(jax.remat(lambda b: jnp.sin(lax.all_gather(b, "x") * w[0]).sum() * b)(b).sum()),
    "jit": lambda b, w: total(jax.jit(lambda b, w: jnp.cos(lax.psum(b, "x")) * w[1] * b)(b, w).sum()),
}
LAYOUTS = {"xy": P("x", "y"), "x": P("x", None), "yx": P(("y", "x"), None), "whole": P(None, None)}


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def arrays(spec: P) -> tuple[Any, Any, Any, Any]:
    n = jax.device_count()
    shape = (n * n, 2 * n)
    place = lambda k: jax.device_put(np.sin(np.arange(shape[0] * shape[1]) + k).reshape(shape) / 2, spec)
    return place(0.0), jnp.array([0.7, -1.2]), place(3.0), jnp.array([1.5, 0.4])


@pytest.mark.parametrize("check_vma", [True, False], ids=["types", "no types"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BODIES)
def test_against_differences(double: Any, name: str, layout: str, check_vma: bool) -> None:
    body, spec = BODIES[name], LAYOUTS[layout]
    with jax.set_mesh(mesh_of()):
        b, w, db, dw = arrays(spec)
        f = jax.shard_map(body, in_specs=(spec, P(None)), out_specs=P(), check_vma=check_vma)
        slope = float(f(b + H * db, w + H * dw) - f(b - H * db, w - H * dw)) / (2 * H)
        inner = lambda gb, gw: float((gb * db).sum() + (gw * dw).sum())
        for gradient in (jax.grad(f, (0, 1)), jax.jit(jax.grad(f, (0, 1)))):
            gb, gw = gradient(b, w)
            assert jax.typeof(gb) == jax.typeof(b) and jax.typeof(gw).dims == ((),)
            np.testing.assert_allclose(inner(gb, gw), slope, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(float(jax.jvp(f, (b, w), (db, dw))[1]), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", ["xy", "yx"])
@pytest.mark.parametrize("name", [n for n in BODIES if n != "index"])
def test_second_derivatives(double: Any, name: str, layout: str) -> None:
    body, spec = BODIES[name], LAYOUTS[layout]
    with jax.set_mesh(mesh_of()):
        b, w, db, _ = arrays(spec)
        f = lambda b: jax.shard_map(body, in_specs=(spec, P(None)), out_specs=P())(b, w)
        ahead, behind = (jax.grad(f)(b + s * H * db) for s in (1, -1))
        want = np.asarray((ahead - behind) / (2 * H))
        scale = max(1.0, float(np.abs(want).max()))
        over = jax.jit(lambda b: jax.jvp(jax.grad(f), (b,), (db,))[1])(b)
        np.testing.assert_allclose(over, want, rtol=1e-5, atol=1e-6 * scale)
        back = jax.grad(lambda b: (jax.grad(f)(b) * db).sum())(b)
        np.testing.assert_allclose(back, want, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("spec", [P("x", "y"), P(("x", "y"), None), P(None, "y"), P(None, None), P("y", "x")], ids=str)
@pytest.mark.parametrize("check_vma", [True, False], ids=["types", "no types"])
def test_results_that_are_split_and_whole(double: Any, spec: P, check_vma: bool) -> None:
    """The result's spec decides which instances' results count."""
    with jax.set_mesh(mesh_of()):
        b, _, db, _ = arrays(P("x", "y"))
        named = {a for axes in spec.dims for a in axes}
        over = tuple(a for a in ("x", "y") if a not in named)
        body = lambda b: lax.pmean(b**3, over) if over else b**3
        f = jax.shard_map(body, in_specs=P("x", "y"), out_specs=spec, check_vma=check_vma)
        loss = lambda b: (f(b) * np.cos(np.arange(f(b).size)).reshape(f(b).shape)).sum()
        slope = float(loss(b + H * db) - loss(b - H * db)) / (2 * H)
        np.testing.assert_allclose(float((jax.grad(loss)(b) * db).sum()), slope, rtol=1e-6)
        np.testing.assert_allclose(float((jax.jit(jax.grad(loss))(b) * db).sum()), slope, rtol=1e-6)


def test_on_auto_axes_and_over_some_axes(double: Any) -> None:
    n = jax.device_count()
    v, w = np.sin(np.arange(n * n * 2.0)).reshape(n * n, 2), np.array([0.5, -1.5])
    want = jax.grad(lambda w, v: (jnp.tanh(v @ w) ** 2).sum(), (0, 1))(w, v)
    body = lambda w, v: lax.psum((jnp.tanh(v @ w) ** 2).sum(), "x")
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.set_mesh(mesh_of(kind)):
            x = jax.device_put(v, P("x", None))
            f = jax.shard_map(body, in_specs=(P(None), P("x", None)), out_specs=P(), axis_names={"x"})
            for gradient in (jax.grad(f, (0, 1)), jax.jit(jax.grad(f, (0, 1)))):
                for g, e in zip(gradient(w, x), want, strict=True):
                    np.testing.assert_allclose(g, e, rtol=1e-9, atol=1e-12)


def test_maximum_without_derivative() -> None:
    """A maximum over devices is a constant to derivatives, behind stop_gradient; by itself it is refused."""
    with jax.set_mesh(mesh_of()):
        b = jax.device_put(np.arange(2.0 * jax.device_count(), dtype=np.float32), P(("x", "y")))
        f = jax.shard_map(
            lambda b: lax.psum((b * lax.pmax(lax.stop_gradient(b).max(), ("x", "y"))).sum(), ("x", "y")),
            in_specs=P(("x", "y")),
            out_specs=P(),
        )
        np.testing.assert_allclose(jax.grad(f)(b), np.full(b.size, b.size - 1.0))
        g = jax.shard_map(lambda b: lax.pmax(b.max(), ("x", "y")), in_specs=P(("x", "y")), out_specs=P())
        with pytest.raises(NotImplementedError, match="Differentiation rule for 'pmax' not implemented"):
            jax.grad(g)(b)


def test_one_sum_per_parameter() -> None:
    """A data parallel step sums each replicated parameter's gradient once, and nothing else but the loss."""
    with jax.set_mesh(mesh_of()):
        n = jax.device_count()
        x = jax.device_put(np.ones((4 * n, 3), np.float32), P(("x", "y"), None))
        params = [(np.ones((3, 3), np.float32), np.ones(3, np.float32)) for _ in range(3)]

        @jax.shard_map(in_specs=(P(), P(("x", "y"), None)), out_specs=P())
        def loss(params: Any, x: Any) -> Any:
            for w, b in params:
                x = jnp.tanh(x @ w + b)
            return lax.pmean((x**2).mean(), ("x", "y"))

        step = jax.jit(jax.value_and_grad(loss))
        text = str(jax.make_jaxpr(jax.value_and_grad(loss))(params, x))
        assert text.count("= psum_invariant") == 1 + 6 and text.count("all_gather") == 0
        step(params, x)
        with comm.counting() as c:
            step(params, x)
        if n > 1:
            assert 1 <= c.total_calls <= 7


def test_reduced_parameters_have_unreduced_gradients() -> None:
    with jax.set_mesh(mesh_of()):
        w = jax.reshard(jnp.array([1.0, 2.0]), P(None, reduced={"x"}))
        n = jax.device_count()
        x = jax.device_put(np.arange(2.0 * n, dtype=np.float32).reshape(n, 2), P(("x", "y"), None))

        @jax.shard_map(in_specs=(P(None, reduced={"x"}), P(("x", "y"), None)), out_specs=P())
        def loss(w: Any, x: Any) -> Any:
            return lax.psum((x * w).sum(), ("x", "y"))

        gradient = jax.jit(jax.grad(loss))
        g = gradient(w, x)
        assert jax.typeof(g).unreduced == {"x"}
        np.testing.assert_allclose(jax.reshard(g, P(None)), np.arange(2.0 * n).reshape(n, 2).sum(0))


def test_inside_a_body(double: Any) -> None:
    with jax.set_mesh(mesh_of()):
        n = jax.device_count()
        v = np.arange(2.0 * n) / 3
        x, w = jax.device_put(v, P(("x", "y"))), jnp.float64(1.5)
        local = lambda w, x: ((w * x) ** 2).sum()

        def body(w: Any, x: Any) -> Any:
            gw, gx = jax.grad(local, (0, 1))(w, x)
            whole = jax.grad(lambda w: total(local(w, x)))(w)
            mine = jax.grad(local)(lax.pcast(w, ("x", "y"), to="varying"), x)
            return gw, gx, whole, mine[None], jax.hessian(local, 0)(w, x)

        specs = (P(), P(("x", "y")), P(), P(("x", "y")), P())
        for wrap in (lambda f: f, jax.jit):
            got = wrap(jax.shard_map(body, in_specs=(P(), P(("x", "y"))), out_specs=specs))(w, x)
            np.testing.assert_allclose(got[0], 3 * (v**2).sum())
            np.testing.assert_allclose(got[1], 4.5 * v)
            np.testing.assert_allclose(got[2], 3 * (v**2).sum())
            np.testing.assert_allclose(got[3], 3 * (v.reshape(n, 2) ** 2).sum(1))
            np.testing.assert_allclose(got[4], 2 * (v**2).sum())
        g = jax.shard_map(
            lambda w, x: jax.grad(local)(w, x)[None],
            in_specs=(P(), P(("x", "y"))),
            out_specs=P(("x", "y")),
            check_vma=False,
        )
        np.testing.assert_allclose(g(w, x), 3 * (v.reshape(n, 2) ** 2).sum(1))
