"""What Python may do with values in an eager body of shard_map, and what the body may close over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import errors, lax
from mpiarray.comm.stats import counting
from mpiarray.types.mesh import AxisType

pytestmark = pytest.mark.mpi

P = jax.P
X = np.arange(48, dtype=np.float32).reshape(24, 2)


def mesh_of(kind: AxisType = AxisType.Explicit) -> jax.Mesh:
    return jax.make_mesh((jax.device_count(),), ("x",), (kind,))


def test_what_all_instances_agree_on_can_be_read() -> None:
    """Integers and `.item()` of scalars that do not vary, as branches on them; text is formatted as text."""
    if 24 % jax.device_count():
        pytest.skip("24 rows")
    seen: list[Any] = []

    def body(b):
        total = lax.psum(b.sum(), "x")
        seen.append((int(total), total.item(), [0, 1, 2][lax.psum(jnp.int32(1), "x") - jax.device_count() + 1]))
        for f in (int, lambda v: v.item(), float, lambda v: [0][v.astype(int)]):
            with pytest.raises(TypeError, match=r"varies over \['x'\]"):
                f(b[0, 0])
        with pytest.raises(errors.ConcretizationTypeError, match="several|concrete value"):
            b.item()
        with pytest.raises(TypeError, match="unsupported format string '.3f'"):
            f"{total:.3f}"
        assert f"{total!s:>5}" == str(total)
        return b * int(total)

    with jax.set_mesh(mesh_of()):
        got = jax.shard_map(body, in_specs=P("x"), out_specs=P("x"))(jax.device_put(X, P("x")))
        np.testing.assert_array_equal(got, X * X.sum())
        assert seen == [(int(X.sum()), float(X.sum()), 1)]
        unread = jax.shard_map(
            lambda b: b * int(lax.psum(b.sum(), "x")), in_specs=P("x"), out_specs=P("x"), check_vma=False
        )
        with pytest.raises(errors.ConcretizationTypeError, match=r"int\(\)"):  # without types nobody knows what varies
            unread(jax.device_put(X, P("x")))


def test_arrays_on_auto_axes_are_closed_over_whole() -> None:
    """Wherever they lie, gathered once for a call."""
    n = jax.device_count()
    if 24 % n:
        pytest.skip("24 rows")
    w = np.random.default_rng(0).standard_normal((24, 2)).astype(np.float32)
    mesh = mesh_of(AxisType.Auto)
    with jax.set_mesh(mesh):
        held = jax.device_put(w, jax.NamedSharding(mesh, P("x")))
        f = jax.shard_map(lambda b: (b @ held.T) @ held + held.sum(), in_specs=P("x"), out_specs=P("x"))
        with counting() as counts:
            got = f(X)
        assert counts.calls.get("all_gather", 0) == (n > 1)
        for result in (got, jax.jit(f)(X)):
            np.testing.assert_allclose(result, X @ w.T @ w + w.sum(), rtol=1e-4)


@pytest.mark.parametrize("outer", [True, False])
def test_inner_maps_check_types_as_the_outer_one_does(outer: bool) -> None:
    with jax.set_mesh(jax.make_mesh((jax.device_count(), 1), ("x", "y"))):
        inner = jax.shard_map(lambda c: c, in_specs=P("y"), out_specs=P("y"), axis_names={"y"}, check_vma=not outer)
        f = jax.shard_map(inner, in_specs=P(), out_specs=P(), axis_names={"x"}, check_vma=outer)
        for g in (f, jax.jit(f)):
            with pytest.raises(ValueError, match="check_vma must be the same inside and outside"):
                g(jnp.ones(2))
