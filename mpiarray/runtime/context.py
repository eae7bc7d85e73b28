"""Devices and the context mesh: `jax.devices`, `set_mesh`, `get_mesh`, `use_abstract_mesh`.

Nothing here communicates, but the number of devices is the number of ranks, so asking for them starts MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpiarray import comm
from mpiarray.config import config
from mpiarray.core.trace import is_evaluating, meshes, state
from mpiarray.types import aval as avals
from mpiarray.types import mesh as mesh_types
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, EMPTY_MESH, AbstractMesh, AxisType, Device, Mesh
from mpiarray.types.partition_spec import PartitionSpec
from mpiarray.types.sharding import NamedSharding


def devices(backend: str | None = None) -> list[Device]:
    """All devices: one per rank, `devices()[k]` belongs to rank k.  Starts MPI."""
    _check_backend(backend)
    return list(_device_tuple())


def _device_tuple() -> tuple[Device, ...]:
    ranks = comm.size()
    wanted = config.jax_num_cpu_devices
    config.fix_devices()
    if wanted in (-1, None):
        wanted = ranks
    if wanted > ranks:
        raise RuntimeError(
            f"jax_num_cpu_devices is {wanted}, but this job has {ranks} rank(s), and each is one device. "
            f"Start it on more: `mpirun -n {wanted} python script.py` or `python -m mpiarray run -n {wanted} script.py`"
        )
    return tuple(Device(k) for k in range(wanted))


def _check_backend(backend: str | None) -> None:
    if backend not in (None, "cpu"):
        raise RuntimeError(f"Unknown backend {backend!r}: mpiarray has one, 'cpu'")


def local_devices(process_index: int | None = None, backend: str | None = None) -> list[Device]:
    """The device of this rank (or of another one); empty on ranks beyond `jax_num_cpu_devices`."""
    _check_backend(backend)
    rank = comm.rank() if process_index is None else process_index
    return [d for d in _device_tuple() if d.id == rank]


def device_count(backend: str | None = None) -> int:
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    return len(local_devices(None, backend))


def process_index(backend: str | None = None) -> int:
    """This rank in the job."""
    return comm.rank()


def process_count(backend: str | None = None) -> int:
    """The number of ranks in the job."""
    return comm.size()


def default_backend() -> str:
    return "cpu"


def make_mesh(
    axis_shapes: Sequence[int], axis_names: Any, axis_types: Any = None, *, devices: Sequence[Device] | None = None
) -> Mesh:
    """A mesh of devices, by default of the first ranks in order, with Explicit axes.

    axis_shapes: size of each axis; their product may be smaller than the job.  axis_names: their names.
    axis_types: AxisType of each.  devices: which devices, row-major.
    Raises ValueError when there are too few devices.  No communication.
    """
    return mesh_types.make_mesh(
        axis_shapes, axis_names, axis_types, devices=_device_tuple() if devices is None else devices
    )


class set_mesh:
    """Set the context mesh: at once, and until the end of the `with` block when used in one.

    Must be the same on all ranks.  No communication.

        jax.set_mesh(jax.make_mesh((4, 2), ('x', 'y')))
        with jax.set_mesh(other):
            ...
    """

    def __init__(self, mesh: Mesh | None):
        if mesh is None:
            mesh = EMPTY_MESH
        if not isinstance(mesh, Mesh):
            raise ValueError(f"Expected mesh of type `jax.sharding.Mesh`. Got {mesh!r} of type {type(mesh)}")
        if not is_evaluating():
            raise ValueError(
                "`set_mesh` can only be used outside of `jax.jit`, `jax.shard_map` and other transformations"
            )
        if any(t is AxisType.Manual for t in mesh.axis_types):
            raise ValueError(f"set_mesh: mesh {mesh} has axes of type Manual, which only `jax.shard_map` makes")
        self.previous = state.abstract_mesh, state.mesh
        state.abstract_mesh, state.mesh = mesh.abstract_mesh if not mesh.empty else EMPTY_ABSTRACT_MESH, mesh

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: Any) -> None:
        state.abstract_mesh, state.mesh = self.previous


def get_mesh() -> Mesh:
    """The concrete context mesh; an empty one when none is set."""
    if not is_evaluating():
        raise ValueError(
            "`get_mesh` can only be used outside of `jax.jit`. Use `jax.sharding.get_abstract_mesh` instead."
        )
    return state.mesh


def get_abstract_mesh() -> AbstractMesh:
    """The context mesh as types see it, also while tracing."""
    return state.abstract_mesh


@contextmanager
def use_abstract_mesh(mesh: AbstractMesh) -> Iterator[None]:
    """Type the block's ops under another mesh of the same number of devices (the same devices, in the same flat order)."""
    if not isinstance(mesh, AbstractMesh):
        raise ValueError(f"Expected mesh of type `jax.sharding.AbstractMesh`. Got {mesh!r} of type {type(mesh)}")
    before = state.abstract_mesh
    if not before.empty and not mesh.empty and before.size != mesh.size:
        raise ValueError(
            f"use_abstract_mesh cannot change the size of the mesh: the context mesh is {before}, got {mesh}"
        )
    with meshes(mesh, state.mesh):
        yield


def resolve(spec: Any, what: str) -> NamedSharding:
    """A bare spec on the concrete context mesh, as a sharding."""
    if state.mesh.empty:
        raise ValueError(
            f"Please set a mesh via `jax.set_mesh` if a PartitionSpec is passed to {what}: got {spec}, but there is no context mesh"
        )
    return NamedSharding(state.mesh, spec)


_without_mesh = avals.resolve_spec


def _resolve_struct(spec: PartitionSpec) -> NamedSharding:
    return _without_mesh(spec) if state.mesh.empty else NamedSharding(state.mesh, spec)


@contextmanager
def _mesh_block(mesh: Mesh) -> Iterator[None]:
    with set_mesh(mesh):
        yield


avals.resolve_spec = _resolve_struct
mesh_types.mesh_context = _mesh_block
mesh_types.process_rank = comm.rank
