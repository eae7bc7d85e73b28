"""`auto_axes` and `explicit_axes`: functions inside which mesh axes have another type."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from mpiarray.types.mesh import AxisType
from tests.runtime.on_ranks import Auto, Explicit, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi
SPECS = [P(None, None), P("x", None), P("x", "y"), P("y", "x"), P(None, ("x", "y"))]


@pytest.mark.parametrize("compiled", [False, True])
@under(grid)
def test_operands_that_do_not_fit_meet_on_auto_axes(compiled: bool) -> None:
    v = values(4 * ranks(), 4 * ranks())
    for a in SPECS:
        for b in SPECS:
            for out in (P("x", "y"), P(None, None), P("y", None)):
                f = jax.sharding.auto_axes(lambda x, y: x + y.T, out_sharding=out)
                x, y = placed(v, grid(), *a), placed(v, grid(), *b)
                got = (jax.jit(f) if compiled else f)(x, y)
                assert jax.typeof(got).sharding.spec == out
                same(got, v + v.T)


@under(grid)
def test_types_inside_hide_the_axes() -> None:
    seen = []

    def f(x):
        seen.append((str(jax.typeof(x)), jax.sharding.get_abstract_mesh().axis_types))
        return x

    x = placed(values(4 * ranks(), 2), grid(), "x", None)
    jax.sharding.auto_axes(f, out_sharding=P("x", None))(x)
    jax.jit(lambda x: jax.sharding.auto_axes(f, axes="x", out_sharding=P(None, None))(x))(x)
    assert seen[0] == (f"float32[{4 * ranks()},2]", (Auto, Auto))
    assert seen[1] == (f"float32[{4 * ranks()},2]", (Auto, Explicit))
    assert jax.sharding.get_abstract_mesh().axis_types == (Explicit, Explicit)


@under(grid)
def test_some_axes_stay_explicit() -> None:
    v = values(4 * ranks(), 4 * ranks())
    x = placed(v, grid(), "x", "y")

    def f(x):
        assert str(jax.typeof(x)) == f"float32[{4 * ranks()}@x,{4 * ranks()}]"
        return x * 2

    for g in (f, jax.jit(f)):
        out = jax.sharding.auto_axes(g, axes=("y",), out_sharding=P("x", "y"))(x)
        same(out, 2 * v)
        assert jax.typeof(out).sharding.spec == P("x", "y")


@under(grid)
def test_out_sharding_may_come_with_the_call_and_is_required() -> None:
    x = placed(values(4 * ranks()), grid(), "x")
    f = jax.sharding.auto_axes(lambda x: {"a": x, "b": x.sum()})
    out = f(x, out_sharding={"a": P(None), "b": P()})
    same(out["a"], values(4 * ranks()))
    assert jax.typeof(out["a"]).sharding.spec == P(None)
    with pytest.raises(TypeError, match="Missing required keyword argument: 'out_sharding'"):
        f(x)

    @jax.sharding.auto_axes(out_sharding=P())
    def g(x):
        return x.sum()

    same(g(x), values(4 * ranks()).sum())


def test_bad_axes() -> None:
    with pytest.raises(ValueError, match="the context mesh cannot be empty"):
        jax.sharding.auto_axes(lambda x: x, out_sharding=P())(jnp.ones(2))
    with jax.set_mesh(grid()), pytest.raises(ValueError, match="are not in the mesh"):
        jax.sharding.auto_axes(lambda x: x, axes="q", out_sharding=P())(jnp.ones(2))


@under(lambda: grid(Auto))
def test_explicit_axes() -> None:
    v = values(4 * ranks(), 4 * ranks())
    seen = []

    def f(x, y):
        seen.append([str(jax.typeof(x)), str(jax.typeof(y)), jax.sharding.get_abstract_mesh().axis_types])
        return x @ y

    g = jax.sharding.explicit_axes(f, in_sharding=(P("x", None), P(None, "y")))
    for x in (placed(v, grid(Auto), "y", "x"), jnp.asarray(v)):
        for h in (g, jax.jit(g)):
            out = h(x, x)
            same(out, v @ v)
            n = 4 * ranks()
            assert seen[-1] == [f"float32[{n}@x,{n}]", f"float32[{n},{n}@y]", (Explicit, Explicit)]
            assert str(jax.typeof(out)) == f"float32[{n},{n}]"
    with pytest.raises(TypeError, match="Missing required keyword argument: 'in_sharding'"):
        jax.sharding.explicit_axes(f)(v, v)


@under(lambda: jax.make_mesh((ranks(), 1), ("x", "y"), axis_types=(Explicit, Auto)))
def test_mixed_meshes() -> None:
    v = values(4 * ranks(), 2)
    x = jax.device_put(v, P("x", "y"))
    assert str(jax.typeof(x)) == f"float32[{4 * ranks()}@x,2]"
    same(jax.sharding.auto_axes(lambda x: x + x[::-1], axes="x", out_sharding=P("x"))(x), v + v[::-1])
    out = jax.sharding.explicit_axes(lambda x: x * 2, axes="y", in_sharding=P("x", "y"))(x)
    same(out, 2 * v)


@under(grid)
def test_nothing_changes_where_the_axes_have_the_type() -> None:
    x = placed(values(4 * ranks()), grid(), "x")
    out = jax.sharding.explicit_axes(lambda x: x + 1, in_sharding=P("x"))(x)
    same(out, values(4 * ranks()) + 1)


@under(line)
def test_errors_leave_the_mesh_as_it_was() -> None:
    with pytest.raises(KeyError):
        jax.sharding.auto_axes(lambda x: {}[x.ndim], out_sharding=P())(jnp.ones(3))
    assert jax.sharding.get_abstract_mesh().axis_types == (AxisType.Explicit,)
    assert jax.sharding.get_mesh() is line()


@under(line)
def test_ops_that_explicit_axes_refuse() -> None:
    """The documented way out of a ShardingTypeError."""
    v = values(4 * ranks())
    x = placed(v, line(), "x")
    for f, want in (
        (lambda x: jnp.sort(x), np.sort(v)),
        (lambda x: jnp.cumsum(x), v.cumsum()),
        (lambda x: x[1:3], v[1:3]),
        (lambda x: x[::-1], v[::-1]),
        (lambda x: jnp.concatenate([x, x]), np.concatenate([v, v])),
        (lambda x: x.reshape(2, -1), v.reshape(2, -1)),
    ):
        for g in (f, jax.jit(f)):
            same(jax.sharding.auto_axes(g, out_sharding=P(*(None,) * want.ndim))(x), want)
