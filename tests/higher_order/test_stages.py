"""Ahead of time: trace, lower, compile, for arrays and for meshes larger than the job (spec transforms.md 1)."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from mpiarray.types.mesh import AbstractMesh
from tests.runtime.on_ranks import Auto, Explicit, close, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi
LARGE = AbstractMesh((16, 32), ("x", "y"), (Explicit, Explicit))
LARGE_AUTO = AbstractMesh((16, 32), ("x", "y"), (Auto, Auto))


def struct(
    shape: tuple[int, ...], spec: P | None = None, mesh: AbstractMesh = LARGE, dtype: str = "float32"
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=None if spec is None else jax.NamedSharding(mesh, spec))


def work(x, y=2.0):
    """Documented."""
    return {"sum": jnp.sin(x).sum(0) * y, "same": x}


def test_traced() -> None:
    traced = jax.jit(work, donate_argnums=0).trace(struct((8, 4)), y=jnp.float32(1))
    assert traced.fun_name == "work"
    assert [str(a) for a in traced.in_avals] == ["float32[8,4]", "float32[]"]
    assert {str(a) for a in traced.out_avals} == {"float32[4]", "float32[8,4]"}
    assert traced.out_info["sum"].shape == (4,)
    assert traced.jaxpr.eqns[0].op.name == "sin"
    assert traced.donate_argnums == (0,)
    args, kwargs = traced.args_info
    assert (args[0].shape, args[0].dtype, args[0].donated) == ((8, 4), np.float32, True)
    assert not kwargs["y"].donated
    assert traced.in_tree.num_leaves == 2
    assert traced.out_tree.num_leaves == 2


def test_lowered() -> None:
    lowered = jax.jit(work).lower(struct((8, 4)))
    assert "sin" in lowered.as_text()
    assert lowered.cost_analysis()["flops"] > 0
    assert lowered.out_info["same"].shape == (8, 4)
    assert lowered.compile().in_tree == lowered.in_tree


@under(grid)
def test_compiled_functions_run() -> None:
    v = values(4 * ranks(), 2 * ranks())
    x = placed(v, grid(), "x", "y")
    compiled = jax.jit(work).lower(x, 3.0).compile()
    with comm.counting() as counts:
        out = compiled(x, 3.0)
    close(out["sum"], np.sin(v).sum(0) * 3)
    assert counts.total_calls == compiled.as_text().count("all-reduce(")
    same(out["same"], v)
    assert compiled.input_shardings == ((x.sharding, compiled.input_shardings[0][1]), {})
    assert compiled.output_shardings["same"].spec == P("x", "y")
    assert compiled.output_shardings["sum"].spec == P("y")
    assert compiled.input_formats[0][0].layout.major_to_minor == (0, 1)
    assert compiled.as_text().startswith(f"HloModule jit_work, num_partitions={ranks()}\n")
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes >= v.nbytes // ranks()
    assert memory.output_size_in_bytes >= v.nbytes // ranks()


@under(line)
def test_compiled_functions_take_just_their_types() -> None:
    x = jax.device_put(values(4 * ranks()), P("x"))
    compiled = jax.jit(lambda x, t: x + t["a"]).lower(x, {"a": 1.0}).compile()
    close(compiled(x, {"a": 2.0}), values(4 * ranks()) + 2)
    with pytest.raises(TypeError, match=rf"Argument types differ.*float32\[{4 * ranks()}.*float32\[3\]"):
        compiled(jnp.ones(3), {"a": 1.0})
    with pytest.raises(TypeError, match="Argument types differ"):
        compiled(x.astype(jnp.int32), {"a": 1.0})
    with pytest.raises(TypeError, match="compiled with input pytree does not match"):
        compiled(x, {"b": 1.0})
    with pytest.raises(TypeError, match="compiled with input pytree does not match"):
        compiled(x)
    if ranks() > 1:
        with pytest.raises(ValueError, match="does not match the sharding"):
            compiled(jax.device_put(values(4 * ranks()), P()), {"a": 1.0})


def test_static_arguments_stay_out() -> None:
    compiled = jax.jit(lambda n, x: x * n, static_argnums=0).lower(3, struct((2,))).compile()
    same(compiled(3, np.ones(2, np.float32)), [3, 3])


def test_donation_ahead_of_time() -> None:
    with jax.set_mesh(line()):
        x = jax.device_put(values(2 * ranks()), P("x"))
        compiled = jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()
        same(compiled(x), values(2 * ranks()) + 1)
        assert x.is_deleted()


def test_a_mesh_larger_than_the_job_can_be_examined() -> None:
    x, w = struct((1600, 320), P("x", None)), struct((320, 640), P(None, "y"))
    with comm.counting() as counts, jax.sharding.use_abstract_mesh(LARGE):
        lowered = jax.jit(lambda x, w: jnp.tanh(x @ w).sum(0)).lower(x, w)
        compiled = lowered.compile()
        text = compiled.as_text()
        cost = compiled.cost_analysis()
        memory = compiled.memory_analysis()
        assert compiled.output_shardings.spec == P("y")
        assert str(jax.typeof(lowered.out_info)) == "float32[640@y]"
    assert counts.total_calls == 0
    assert text.startswith("HloModule jit_<lambda>, num_partitions=512\n")
    assert text.count("all-reduce(") == 1
    assert "f32[100,320] parameter(0)" in text
    assert cost["communication bytes"] == pytest.approx(2 * 20 * 4 * 15 / 16)
    assert cost["flops"] >= 2 * 100 * 320 * 20
    assert memory.argument_size_in_bytes == 4 * (100 * 320 + 320 * 20)
    if ranks() < 512:
        with pytest.raises(ValueError, match="it can be examined, not called"):
            compiled(np.ones((1600, 320), np.float32), np.ones((320, 640), np.float32))


def test_a_larger_mesh_without_a_context() -> None:
    compiled = jax.jit(lambda x: x.sum(1)).lower(struct((160, 320), P("x", "y"))).compile()
    assert compiled.as_text().count("all-reduce(") == 1
    assert compiled.in_avals[0].str_short() == "float32[160@x,320@y]"


def test_auto_axes_of_a_larger_mesh() -> None:
    x, w = struct((1600, 3200), P("x", "y"), LARGE_AUTO), struct((3200, 64), P("y", None), LARGE_AUTO)
    with jax.sharding.use_abstract_mesh(LARGE_AUTO):
        compiled = jax.jit(lambda x, w: x @ w).lower(x, w).compile()
    assert compiled.output_shardings.spec[0] == "x"
    assert "all-reduce(" in compiled.as_text() or "reduce-scatter(" in compiled.as_text()
    assert "dot_general" in compiled.explain()


def test_types_are_checked_on_larger_meshes() -> None:
    with jax.sharding.use_abstract_mesh(LARGE):
        with pytest.raises(ValueError, match="partitioned 16 times"):
            jax.jit(lambda x: x).lower(struct((8,), P("x")))
        with pytest.raises(jax.errors.ShardingTypeError):
            jax.jit(lambda x, y: x + y).lower(struct((32, 32), P("x")), struct((32, 32), P("y")))


def test_eval_shape() -> None:
    with comm.counting() as counts:
        out = jax.eval_shape(lambda x: {"a": x.sum(0), "b": (x, x > 0)}, struct((8, 4)))
        assert repr(out["a"]) == "ShapeDtypeStruct(shape=(4,), dtype=float32)"
        assert out["b"][1].dtype == np.bool_
        sharded = jax.eval_shape(lambda x: x.T, struct((16, 32), P("x", "y")))
        assert sharded.sharding.spec == P("y", "x")
        assert jax.jit(work).eval_shape(struct((3, 2)))["sum"].shape == (2,)
    assert counts.total_calls == 0


def test_make_jaxpr() -> None:
    jaxpr, shapes = jax.make_jaxpr(lambda x, n: {"a": x * n}, static_argnums=1, return_shape=True)(struct((3,)), 2)
    assert len(jaxpr.jaxpr.invars) == 1
    assert shapes["a"].shape == (3,)
    f = jax.jit(lambda x: x + 1)
    assert [e.op.name for e in jax.make_jaxpr(f)(1.0).eqns] == ["jit"]
    with pytest.raises(TypeError, match="callable"):
        jax.make_jaxpr(3)
    assert jax.make_jaxpr(lambda: 1.0)().out_avals[0].shape == ()


def test_typeof() -> None:
    with comm.counting() as counts:
        assert str(jax.typeof(1.0)) == "~float32[]"
        assert str(jax.typeof(np.ones((2, 3)))) == "float32[2,3]"
        assert str(jax.typeof(struct((16,), P("x")))) == "float32[16@x]"
        x = placed(values(4 * ranks()), line(), "x")
        assert str(jax.typeof(x)) == f"float32[{4 * ranks()}@x]"
    assert counts.total_calls == 0
    with pytest.raises(TypeError):
        jax.typeof("a")


def test_lowering_and_calling_agree() -> None:
    """The text of a program is that of the call: each collective that is executed has one line."""
    with jax.set_mesh(grid()):
        v = values(4 * ranks(), 4 * ranks())
        x = placed(v, grid(), "x", "y")
        dot = lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=P("y", None))
        f = jax.jit(lambda x: (dot(jax.reshard(x, P("y", "x")), jax.reshard(x, P("x", None))), x.max(), x.sum(1)))
        compiled = f.lower(x).compile()
        f(x)
        with comm.counting() as counts:
            f(x)
        words = ("all-reduce(", "all-gather(", "reduce-scatter(", "all-to-all(", "collective-permute(")
        assert counts.total_calls == sum(compiled.as_text().count(w) for w in words)
