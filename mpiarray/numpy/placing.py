"""The keywords `out_sharding=` and `device=` of functions that make arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.trace import is_evaluating, meshes, state
from mpiarray.numpy.host import place
from mpiarray.numpy.promotion import out_sharding as as_parameter
from mpiarray.types.mesh import AxisType, Device, Mesh
from mpiarray.types.partition_spec import PartitionSpec
from mpiarray.types.sharding import NamedSharding, Sharding

Make = Callable[[NamedSharding | None], Any]


def made(name: str, shape: Sequence[int], make: Make, device: Any = None, out_sharding: Any = None) -> Any:
    """`make(sharding)`, laid out as the user's keywords say; `sharding` is what ops take for `sharding=`.

    Raises TypeError for what is no sharding or device, ValueError when both keywords are given, and the errors of
    `promotion.out_sharding`.
    """
    if device is None and out_sharding is None:
        return make(None)
    if device is not None and out_sharding is not None:
        raise ValueError(
            f"{name}: only one of the arguments `device` and `out_sharding` can be given, got {device} and "
            f"{out_sharding}"
        )
    if out_sharding is not None:
        if _needs_context(out_sharding):
            with meshes(out_sharding.mesh.abstract_mesh, out_sharding.mesh):
                return make(as_parameter(out_sharding, shape, name))
        return make(as_parameter(out_sharding, shape, name))
    if isinstance(device, PartitionSpec):
        raise TypeError(
            f"{name}: `device` takes a device or a Sharding, got the PartitionSpec {device}. Use "
            f"`out_sharding={device}`."
        )
    if not isinstance(device, (Device, Sharding)):
        raise TypeError(f"{name}: `device` takes a device or a Sharding, got {device!r} of type {type(device)}")
    if (
        isinstance(device, NamedSharding)
        and isinstance(device.mesh, Mesh)
        and is_evaluating()
        and not device.spec.unreduced
    ):
        # each rank makes its own block; the array is then seen as the user's mesh shows it, and nothing moves
        mesh = device.mesh.update_axis_types(dict.fromkeys(device.mesh.axis_names, AxisType.Explicit))
        with meshes(mesh.abstract_mesh, mesh):
            x = make(as_parameter(NamedSharding(mesh, device.spec), shape, name))
        return x if mesh is device.mesh else place(x, device)
    return place(make(None), device)


def _needs_context(sharding: Any) -> bool:
    """Whether the devices that a sharding names are known from it alone."""
    return (
        isinstance(sharding, NamedSharding)
        and isinstance(sharding.mesh, Mesh)
        and state.abstract_mesh.empty
        and is_evaluating()
    )
