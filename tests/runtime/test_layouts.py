"""Memory orders of blocks: the checklist of spec layout.md 9."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from mpiarray.experimental.layout import Format, Layout, with_layout_constraint
from tests.runtime.on_ranks import grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi


def in_order(x: jax.Array, order: tuple[int, ...]) -> None:
    """Declared and real order of this rank's block."""
    assert x.format.layout.major_to_minor == order
    for s in x.addressable_shards:
        assert s.data._block.transpose(order).flags.c_contiguous


def columns(v: np.ndarray, mesh: jax.Mesh | None = None, *spec: object) -> jax.Array:
    """`v` in column order."""
    where = jax.NamedSharding(line() if mesh is None else mesh, P(*spec))
    return jax.device_put(v, Format(Layout(tuple(range(v.ndim))[::-1]), where))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_every_order_of_three_dims(order: tuple[int, ...]) -> None:
    v = values(2 * ranks(), 3, 4)
    for spec in (P(), P("x")):
        x = jax.device_put(v, Format(Layout(order), jax.NamedSharding(line(), spec)))
        in_order(x, order)
        same(x, v)
        same(x * 2, v * 2)
    one = jax.device_put(v, Format(Layout(order), jax.sharding.SingleDeviceSharding(jax.devices()[0])))
    in_order(one, order)
    same(one, v)


def test_results_are_row_major_and_right() -> None:
    v = values(4 * ranks(), 2 * ranks())
    for spec in ((), ("x",), (None, "x")):
        x = columns(v, None, *spec)
        for out, want in (
            (x * 2, v * 2),
            (jax.jit(lambda x: x + 1)(x), v + 1),
            (x.T, v.T),
            (jax.device_put(x, jax.NamedSharding(line(), P(None, "x"))), v),
            (jax.reshard(x, jax.NamedSharding(line(), P())), v),
            (x.sum(0), v.sum(0)),
            (x.sum(1), v.sum(1)),
            (x.max(), v.max()),
            (x @ x.T if spec == () else x, v @ v.T if spec == () else v),
        ):
            same(out, want)
            if out is not x:
                in_order(out, tuple(range(out.ndim)))


def test_reads_and_updates_of_columns() -> None:
    v = values(4 * ranks(), 6)
    x = columns(v)
    for f in (
        lambda a: a[1:3, ::2],
        lambda a: a[0],
        lambda a: a[:, 1],
        lambda a: a[np.array([0, 2])],
        lambda a: a[1, 2],
        lambda a: a.reshape(-1),
        lambda a: a.argmax(1),
        lambda a: a.cumsum(0),
        lambda a: a.T @ a,
    ):
        same(f(x), f(v))
    want = v.copy()
    want[1, 2] = 9
    want[:, 3] += 1
    same(x.at[1, 2].set(9).at[:, 3].add(1), want)
    same(pickle.loads(pickle.dumps(x)), v)
    assert np.asarray(x).flags.f_contiguous or v.shape[0] == 1
    same(jnp.concatenate([x, columns(v + 1)]), np.concatenate([v, v + 1]))
    same(jnp.sort(x, 1), np.sort(v, 1))


def test_what_keeps_and_what_drops_a_layout() -> None:
    v = values(4 * ranks(), 3)
    x = columns(v, None, "x")
    in_order(jax.device_put(x, x.format), (1, 0))
    in_order(jax.device_put(x), (1, 0))
    in_order(jax.device_put(x, jax.NamedSharding(line(), P())), (0, 1))
    one = jax.device_put(v, Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.devices()[0])))
    in_order(jax.device_put(one, jax.devices()[-1]), (1, 0))
    in_order(jnp.asarray(np.asfortranarray(v)), (0, 1))
    assert str(jax.typeof(x)) == f"float32[{4 * ranks()}@x,3]", "the type does not show it"


def test_aot_takes_its_layouts() -> None:
    v = values(4, 6)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    f = jax.jit(lambda x: x * 2)
    x = jax.device_put(v, Format(Layout((1, 0)), one))
    compiled = f.lower(x).compile()
    assert compiled.input_formats[0][0].layout.major_to_minor == (1, 0)
    assert compiled.output_formats.layout.major_to_minor == (0, 1)
    same(compiled(x), v * 2)
    same(compiled(v), v * 2)
    same(compiled(jnp.asarray(v)), v * 2)
    with comm.counting() as counts, pytest.raises(ValueError, match="does not match"):
        compiled(jax.device_put(v, Format(Layout((0, 1)), one)))
    assert counts.total_calls == 0
    with pytest.raises(TypeError, match="Argument types differ"):
        compiled(jax.device_put(v[:2], Format(Layout((0, 1)), one)))


def test_auto_layouts_follow_their_readers() -> None:
    f = jax.jit(lambda x, y: (x[0, :], y[:, 0]), in_shardings=Format(Layout.AUTO), out_shardings=Format(Layout.AUTO))
    shape = jax.ShapeDtypeStruct((512, 1024), np.float32)
    compiled = f.lower(shape, shape).compile()
    formats, named = compiled.input_formats
    assert [g.layout.major_to_minor for g in formats] == [(0, 1), (1, 0)]
    assert named == {}
    assert [g.layout.major_to_minor for g in compiled.output_formats] == [(0,), (0,)]
    v = values(512, 1024)
    a, b = compiled(*(jax.device_put(v, g) for g in formats))
    same(a, v[0])
    same(b, v[:, 0])
    make = jax.jit(lambda: (jnp.ones((512, 1024)), jnp.zeros((512, 1024))), out_shardings=formats).lower().compile()
    assert make.output_formats == formats
    in_order(make()[1], (1, 0))
    transposed = jax.jit(lambda x: x.T, out_shardings=Format(Layout.AUTO)).lower(shape).compile()
    assert transposed.output_formats.layout.major_to_minor == (1, 0)


def test_jit_with_formats() -> None:
    v = values(4 * ranks(), 6)
    where = jax.NamedSharding(line(), P("x"))
    order = Format(Layout((1, 0)), where)
    f = jax.jit(lambda x: x + 1, in_shardings=order, out_shardings=order)
    with jax.set_mesh(line()):
        same(f(v), v + 1)
        x = columns(v, None, "x")
        out = f(x)
        in_order(out, (1, 0))
        same(out, v + 1)
        with pytest.raises(ValueError, match="Layout passed to jit does not match the layout on the respective arg"):
            f(placed(v, line(), "x"))
        with pytest.raises(ValueError, match="Length of major_to_minor"):
            f(v[0])
    assert str(jax.typeof(out)) == f"float32[{4 * ranks()}@x,6]"


@under(grid)
def test_layout_constraints() -> None:
    v = values(4 * ranks(), 2 * ranks())
    x = placed(v, grid(), "x", "y")
    y = with_layout_constraint(x, Layout((1, 0)))
    in_order(y, (1, 0))
    same(y, v)
    f = jax.jit(lambda x: with_layout_constraint(x.T, Layout((0, 1))) * 2)
    same(f(x), 2 * v.T)
    assert "layout_constraint[" in str(jax.make_jaxpr(lambda x: with_layout_constraint(x, Layout((1, 0))))(x))
    in_order(jax.jit(lambda x: with_layout_constraint(x, Layout((1, 0))) + 1)(x), (0, 1))
    tree = with_layout_constraint({"a": x, "b": [x, x]}, {"a": Layout((1, 0)), "b": Layout((0, 1))})
    in_order(tree["a"], (1, 0))
    in_order(tree["b"][1], (0, 1))
    for wrong in (Layout.AUTO, Format(Layout((1, 0)), x.sharding), None, "x"):
        with pytest.raises((ValueError, TypeError), match=r"must be of type `Layout`|pytree"):
            with_layout_constraint(x, wrong)
    with pytest.raises(ValueError, match="One of with_layout_constraint arguments is incompatible"):
        with_layout_constraint(x, Layout((0, 1, 2)))


def test_what_formats_refuse() -> None:
    where = jax.NamedSharding(line(), P())
    v = values(4, 6)
    with pytest.raises(ValueError, match="should be concrete"):
        jax.device_put(v, Format(Layout.AUTO, where))
    with pytest.raises(
        ValueError, match=r"Length of major_to_minor .* Got major_to_minor=\(0, 1, 2\) and shape=\(4, 6\)"
    ):
        jax.device_put(v, Format(Layout((0, 1, 2)), where))
    with pytest.raises(ValueError, match="device_put takes"):
        jax.device_put(v, Layout((0, 1)))
    same(jax.device_put(v, Format(None, where)), v)
    with pytest.raises(ValueError, match="permutation"):
        Layout((0, 0))
    with pytest.raises(NotImplementedError):
        Layout((0, 1), tiling=((2,),))
    with pytest.raises(TypeError, match="Invalid value received for the sharding argument"):
        Format(Layout((0, 1)), P())
    with pytest.raises(ValueError, match="Sharding has to be concrete"):
        Format(Layout((0, 1)))
    with pytest.raises(TypeError, match="Invalid value received for the layout argument"):
        Format("C", where)


@pytest.mark.mpi(min_size=2)
def test_collectives_of_column_blocks() -> None:
    group = comm.world_group()
    n = ranks()
    block = np.asfortranarray(values(2 * n, 3 * n) + comm.rank())
    plain = np.ascontiguousarray(block)
    for f in (
        lambda b: comm.all_reduce(group, b),
        lambda b: comm.all_gather(group, b, 1, True),
        lambda b: comm.reduce_scatter(group, b, 0),
        lambda b: comm.all_to_all(group, b, 1, 0, True),
        lambda b: comm.permute(group, b, [(0, n - 1), (n - 1, 0)]),
        lambda b: comm.broadcast(group, b if comm.rank() == 0 else None, 0, (b.shape, b.dtype)),
    ):
        got = f(block)
        np.testing.assert_array_equal(got, f(plain))
        assert got.flags.c_contiguous


@under(line)
def test_layout_constraints_under_transformations() -> None:
    v = values(4 * ranks(), 3)
    x = placed(v, line(), "x", None)
    f = lambda x: (with_layout_constraint(x * 2, Layout((1, 0))) ** 2).sum()
    for g in (f, jax.jit(f)):
        same(jax.grad(g)(x), 8 * v)
        out, slope = jax.jvp(g, (x,), (x,))
        np.testing.assert_allclose([float(out), float(slope)], [4 * (v**2).sum(), 8 * (v**2).sum()], rtol=1e-6)
    stack = jnp.stack([jnp.asarray(v), jnp.asarray(v) + 1])
    same(jax.vmap(lambda x: with_layout_constraint(x, Layout((1, 0))) + 1)(stack), np.stack([v, v + 1]) + 1)
    text = str(jax.make_jaxpr(jax.vmap(lambda x: with_layout_constraint(x, Layout((1, 0)))))(stack))
    assert "major_to_minor=(0, 2, 1)" in text

    @jax.shard_map(in_specs=P("x", None), out_specs=P("x", None))
    def body(block):
        return with_layout_constraint(block, Layout((1, 0))) * 3

    for g in (body, jax.jit(body)):
        out = g(x)
        same(out, v * 3)
        in_order(out, (0, 1))


def test_the_document_s_cells_with_a_mesh_still_set() -> None:
    """Spec layout.md 4: what names one device runs there, whatever mesh is set."""
    v = values(4, 6)
    with jax.set_mesh(line()):
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        columns_there = jax.device_put(v, Format(Layout((1, 0)), one))
        same(jax.jit(lambda x: x + 1)(columns_there), v + 1)
        out = jax.jit(lambda x: x * 2, out_shardings=Format(Layout((1, 0)), one))(v)
        assert out.devices() == {jax.devices()[0]}
        in_order(out, (1, 0))
        same(out, 2 * v)
        f = jax.jit(lambda x: x.sum(0)).lower(jax.ShapeDtypeStruct((4, 6), np.float32)).compile()
        same(f(jax.device_put(v, one)), v.sum(0))
        same(f(jnp.ones((4, 6))), np.full(6, 4))
