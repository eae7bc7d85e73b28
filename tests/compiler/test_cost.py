"""Costs of compiled programs, on AbstractMeshes larger than the job, against formulas."""

from __future__ import annotations

import math

import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from mpiarray.types.mesh import AbstractMesh, AxisType

SIZES = [8, 32, 128, 512]
F32 = 4


def mesh_of(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), (AxisType.Explicit,) * len(axes))


def struct(mesh: AbstractMesh, shape: tuple[int, ...], *spec: object, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, P(*spec)))


def compiled(mesh: AbstractMesh, f, *args):
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(f).lower(*args).compile()


@pytest.mark.parametrize("n", SIZES)
def test_a_sum_over_a_sharded_dim(n):
    mesh = mesh_of(x=n)
    cost = compiled(mesh, lambda x: x.sum(0), struct(mesh, (4 * n, 100), "x")).cost_analysis()
    assert cost["communication bytes"] == pytest.approx(2 * 100 * F32 * (n - 1) / n)
    assert cost["communication messages"] == 2 * math.log2(n)
    assert cost["communication bytes all-reduce"] == cost["communication bytes over x"]
    assert cost["flops"] == 4 * 100
    block, row = 4 * 100 * F32, 100 * F32
    assert cost["bytes accessed"] == block + row + row + row


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("source", "target", "kind", "moved", "messages"),
    [
        ((None, None), ("x", None), None, lambda block, n: 0, lambda n: 0),
        (("x", None), (None, None), "all-gather", lambda block, n: block * (n - 1), math.log2),
        (("x", None), (None, "x"), "all-to-all", lambda block, n: block * (n - 1) / n, lambda n: n - 1),
    ],
)
def test_reshards(n, source, target, kind, moved, messages):
    mesh = mesh_of(x=n)
    size = 2 * n * n * 3 * F32
    made = compiled(mesh, lambda x: jax.reshard(x, P(*target)), struct(mesh, (2 * n, 3 * n), *source))
    cost = made.cost_analysis()
    block = size / n if source != (None, None) else size
    assert cost["communication bytes"] == moved(block, n)
    assert cost["communication messages"] == messages(n)
    if kind:
        assert cost[f"communication bytes {kind}"] == moved(block, n)
        assert made.as_text().count(f"{kind}(") == 1


@pytest.mark.parametrize("n", SIZES)
def test_a_sum_that_lands_sharded_is_a_reduce_scatter(n):
    mesh = mesh_of(x=n)
    x, w = struct(mesh, (8, 4 * n), None, "x"), struct(mesh, (4 * n, 2 * n), "x", None)
    made = compiled(mesh, lambda x, w: jnp.einsum("ij,jk->ik", x, w, out_sharding=P(None, "x")), x, w)
    cost = made.cost_analysis()
    assert cost["communication bytes reduce-scatter"] == 8 * 2 * n * F32 * (n - 1) / n
    assert "communication bytes all-reduce" not in cost
    assert cost["flops"] == 2 * 4 * 8 * 2 * n


def test_a_dot_counts_multiplications_and_additions_of_the_blocks():
    mesh = mesh_of(x=16, y=16)
    x, w = struct(mesh, (1600, 320), "x", None), struct(mesh, (320, 640), None, "y")
    cost = compiled(mesh, jnp.dot, x, w).cost_analysis()
    assert cost["flops"] == 2 * 100 * 320 * 40
    assert cost["communication bytes"] == 0
    assert cost["bytes accessed"] == F32 * (100 * 320 + 320 * 40 + 100 * 40)


def test_bytes_over_each_axis():
    mesh = mesh_of(x=8, y=4)
    cost = compiled(mesh, lambda x: (x.sum(0), x.sum(1)), struct(mesh, (16, 16), "x", "y")).cost_analysis()
    assert cost["communication bytes over x"] == 2 * 4 * F32 * 7 / 8
    assert cost["communication bytes over y"] == 2 * 2 * F32 * 3 / 4
    assert cost["communication bytes"] == cost["communication bytes over x"] + cost["communication bytes over y"]


def test_dtypes_have_their_sizes():
    mesh = mesh_of(x=8)
    for dtype, size in (("bfloat16", 2), ("int8", 1), ("float32", 4), ("complex64", 8)):
        x = struct(mesh, (8, 64), "x", dtype=dtype)
        cost = compiled(mesh, lambda x: jax.reshard(x, P(None, None)), x).cost_analysis()
        assert cost["communication bytes"] == 7 * 64 * size


def test_elementwise_work_costs_no_communication():
    mesh = mesh_of(x=64)
    x = struct(mesh, (640, 10), "x")
    cost = compiled(mesh, lambda x: jnp.sin(x) * x + 1, x).cost_analysis()
    assert cost["communication bytes"] == cost["communication messages"] == 0
    assert cost["flops"] == 3 * 100


def test_axes_of_one_device_cost_nothing():
    mesh = mesh_of(x=1, y=8)
    cost = compiled(mesh, lambda x: x.sum(0), struct(mesh, (8, 8), "x", None)).cost_analysis()
    assert cost["communication bytes"] == cost["communication messages"] == 0


@pytest.mark.parametrize("n", SIZES)
def test_memory(n):
    mesh = mesh_of(x=n)
    x = struct(mesh, (4 * n, 100), "x")
    memory = compiled(mesh, lambda x: (jnp.sin(x) * 2).sum(1), x).memory_analysis()
    block, row = 400 * F32, 4 * F32
    assert memory.argument_size_in_bytes == block
    assert memory.output_size_in_bytes == row
    assert memory.temp_size_in_bytes == 2 * block
    assert memory.peak_memory_in_bytes == block + row + 2 * block


def test_memory_of_values_that_live_long():
    mesh = mesh_of(x=8)

    def f(x):
        kept = jnp.sin(x)
        y = jnp.cos(jnp.exp(x))
        return y * kept

    memory = compiled(mesh, f, struct(mesh, (80,), "x")).memory_analysis()
    assert memory.temp_size_in_bytes == 3 * 10 * F32


def test_loops_and_conditionals_cost_their_bodies():
    mesh = mesh_of(x=8)
    x = struct(mesh, (80, 10), "x")
    block, row = 10 * 10 * F32, 10 * F32

    @jax.shard_map(in_specs=P("x"), out_specs=P("x"), mesh=mesh)
    def shifted(x):
        return jax.lax.ppermute(x, "x", [(i, (i + 1) % 8) for i in range(8)])

    def repeated(x):
        return jax.lax.scan(lambda c, _: (shifted(jnp.sin(c)), c.sum()), x, None, length=5)[0]

    made = compiled(mesh, repeated, x)
    cost = made.cost_analysis()
    assert cost["communication bytes collective-permute"] == 5 * block
    assert cost["communication messages"] == 5 * (1 + 2 * math.log2(8))
    assert made.memory_analysis().temp_size_in_bytes >= 2 * block  # what the body makes, besides the carry

    branches = jax.jit(lambda i, x: jax.lax.cond(i > 0, lambda x: jnp.sin(x).sum(0), lambda x: jnp.zeros(10), x))
    with jax.sharding.use_abstract_mesh(mesh):
        cost = branches.lower(jax.ShapeDtypeStruct((), "int32"), x).compile().cost_analysis()
    assert cost["communication bytes all-reduce"] == pytest.approx(2 * row * 7 / 8)
