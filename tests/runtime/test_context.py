"""Devices and the context mesh (spec sharding.md 1-3)."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from mpiarray.core.trace import state
from mpiarray.types.mesh import AbstractMesh, AxisType
from tests.runtime.on_ranks import Auto, Explicit, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi


def test_devices_are_ranks() -> None:
    assert [d.id for d in jax.devices()] == list(range(ranks()))
    assert jax.devices("cpu") == jax.devices()
    assert jax.device_count() == jax.process_count() == comm.size()
    assert jax.local_devices() == [jax.devices()[comm.rank()]]
    assert jax.local_device_count() == 1
    assert jax.process_index() == comm.rank()
    assert jax.default_backend() == "cpu"
    device = jax.devices()[-1]
    assert (str(device), repr(device)) == (f"cpu:{ranks() - 1}", f"CpuDevice(id={ranks() - 1})")
    assert (device.process_index, device.platform) == (ranks() - 1, "cpu")
    with pytest.raises(RuntimeError, match="Unknown backend"):
        jax.devices("gpu")
    jax.distributed.initialize(coordinator_address="anything")


def test_settings_that_come_too_late() -> None:
    jax.devices()
    with pytest.raises(RuntimeError, match="should be updated before backends are initialized"):
        jax.config.update("jax_num_cpu_devices", 3)
    with pytest.raises(AttributeError, match="Unrecognized config option"):
        jax.config.update("jax_no_such_thing", 3)


def test_meshes_know_this_rank() -> None:
    mesh = line()
    assert mesh.local_devices == [jax.devices()[comm.rank()]] or list(mesh.local_devices) == [
        jax.devices()[comm.rank()]
    ]
    assert mesh.local_mesh.size == 1
    assert mesh.is_multi_process == (ranks() > 1)
    first = jax.make_mesh((1,), ("x",))
    assert bool(first.local_devices) == (comm.rank() == 0)


def test_a_mesh_larger_than_the_job() -> None:
    with pytest.raises(ValueError, match=f"Number of devices {ranks()} must be >= the product of mesh_shape"):
        jax.make_mesh((ranks() + 1,), ("x",))


def test_set_mesh_at_once_and_in_a_block() -> None:
    assert jax.sharding.get_mesh().empty
    with jax.set_mesh(line()) as nothing:
        assert nothing is None
        assert jax.sharding.get_mesh() is line()
        assert jax.sharding.get_abstract_mesh() is line().abstract_mesh
        with jax.set_mesh(grid()):
            assert jax.sharding.get_mesh() is grid()
        assert jax.sharding.get_mesh() is line()
        with pytest.raises(KeyError), jax.set_mesh(grid()):
            raise KeyError
        assert jax.sharding.get_mesh() is line()
    assert jax.sharding.get_mesh().empty
    jax.set_mesh(line())
    assert jax.sharding.get_mesh() is line()
    jax.set_mesh(None)
    assert jax.sharding.get_mesh().empty
    assert jax.sharding.get_abstract_mesh().empty


def test_what_set_mesh_refuses() -> None:
    for wrong in (line().abstract_mesh, "x", 3):
        with pytest.raises(ValueError, match=r"Expected mesh of type `jax.sharding.Mesh`"):
            jax.set_mesh(wrong)
    with pytest.raises(ValueError, match=r"can only be used outside of `jax.jit`"):
        jax.jit(lambda x: (jax.set_mesh(line()), x)[1])(1.0)
    manual = jax.Mesh(np.array(jax.devices()), ("x",), (AxisType.Manual,))
    with pytest.raises(ValueError, match="shard_map"):
        jax.set_mesh(manual)
    assert jax.sharding.get_mesh().empty


def test_get_mesh_while_tracing() -> None:
    with jax.set_mesh(line()):
        with pytest.raises(ValueError, match="get_abstract_mesh"):
            jax.jit(lambda x: (jax.sharding.get_mesh(), x)[1])(1.0)
        seen = []
        jax.jit(lambda x: (seen.append(jax.sharding.get_abstract_mesh()), x)[1])(1.0)
        assert seen == [line().abstract_mesh]


@under(grid)
def test_use_abstract_mesh() -> None:
    """Spec sharding.md 3: another view of the same devices, in the same flat order."""
    outer = grid()
    v = values(4 * ranks(), 2 * ranks())
    x = placed(v, outer, "x", "y")
    flat = AbstractMesh((ranks(),), ("f",), (Explicit,))
    with jax.sharding.use_abstract_mesh(flat):
        assert jax.sharding.get_abstract_mesh() is flat
        assert jax.sharding.get_mesh() is outer
        if outer.axis_names != ("f",):
            with pytest.raises(ValueError, match="should match the aval mesh"):
                x + 1
        y = jax.reshard(x, P("f", None)) * 2
        assert str(jax.typeof(y)) == f"float32[{4 * ranks()}@f,{2 * ranks()}]"
        same(y, 2 * v)
    assert y.sharding.mesh.flat_ids == outer.flat_ids
    with pytest.raises(ValueError, match="should match the aval mesh"):
        y + x
    same(jax.reshard(y, jax.NamedSharding(outer, P("x", "y"))) + x, 3 * v)

    @jax.jit
    def f(x):
        with jax.sharding.use_abstract_mesh(flat):
            return jax.reshard(x, P("f", None)).sum(0)

    same(f(x), v.sum(0))
    with (
        pytest.raises(ValueError, match="cannot change the size of the mesh"),
        jax.sharding.use_abstract_mesh(AbstractMesh((64,), ("q",))),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"Expected mesh of type `jax.sharding.AbstractMesh`"),
        jax.sharding.use_abstract_mesh(outer),
    ):
        pass


def test_a_mesh_as_a_block() -> None:
    with pytest.warns(DeprecationWarning), line(Auto):
        assert jax.sharding.get_mesh() is line(Auto)
    with pytest.raises(RuntimeError, match=r"jax.set_mesh"), line():
        pass
    assert jax.sharding.get_mesh().empty


def test_errors_leave_the_context_as_it_was() -> None:
    with jax.set_mesh(line()):
        before = state.abstract_mesh, state.mesh, state.trace
        with pytest.raises(TypeError):
            jax.jit(lambda x: jnp.sin("a"))(1.0)
        assert (state.abstract_mesh, state.mesh, state.trace) == before


@under(grid)
def test_creation_under_a_mesh() -> None:
    for x in (jnp.ones((4, 3)), jnp.arange(5), jnp.zeros(()), jnp.asarray([1.0, 2.0]), jnp.full((2,), 3)):
        assert x.sharding.mesh is grid()
        assert x.is_fully_replicated
        assert x.committed
    x = jnp.zeros((4 * ranks(), 2), out_sharding=P(("x", "y"), None))
    assert x.addressable_data(0).shape == (4, 2)
