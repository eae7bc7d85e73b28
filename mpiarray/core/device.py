"""Where this rank stands: its coordinates on a mesh and the groups that it communicates with.

Ops that communicate or depend on the rank are built against a `DeviceContext` (`Op.build`): groups and coordinates
are looked up once, when a program is prepared, and not at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.comm.groups import Group, axis_group, device_group
from mpiarray.errors import InternalError
from mpiarray.types.mesh import AbstractMesh


class DeviceContext:
    """One device of a mesh: `device_ids` are the world ranks in the mesh's flat order, `rank` is this process's.

    compile  what prepares a jaxpr of blocks (`compile(closed)(*blocks)` gives a list), for ops that carry one; also told
             which results of a loop's body are which of its next arguments (`compiler.executable`)
    """

    __slots__ = ("compile", "coords", "device_ids", "mesh", "position")

    def __init__(
        self,
        device_ids: tuple[int, ...],
        mesh: AbstractMesh,
        rank: int,
        compile: Callable[..., Callable[..., Any]] | None = None,
    ):
        if rank not in device_ids:
            raise InternalError(f"rank {rank} is not one of the devices {device_ids}")
        self.device_ids = device_ids
        self.mesh = mesh
        self.compile = compile
        self.position = device_ids.index(rank)
        self.coords = coordinates(mesh, self.position)

    def group(self, axes: Sequence[str], groups: tuple[tuple[int, ...], ...] | None = None) -> Group:
        """The ranks that differ from this one only along `axes`, the first axis most significant."""
        return axis_group(self.device_ids, self.mesh.shape_tuple, tuple(axes), groups)

    def all_devices(self) -> Group:
        """All ranks of the mesh, in its flat order."""
        return device_group(self.device_ids)

    def index(self, axes: Sequence[str]) -> int:
        """This rank's position in `group(axes)`."""
        return mixed_radix(self.mesh, self.coords, axes)

    def size(self, axes: Sequence[str]) -> int:
        n = 1
        for a in axes:
            n *= self.mesh.shape[a]
        return n


def coordinates(mesh: AbstractMesh, position: int) -> dict[str, int]:
    """Mesh coordinates by axis name of a flat (row-major) position."""
    out: dict[str, int] = {}
    for name, size in reversed(mesh.shape_tuple):
        position, out[name] = divmod(position, size)
    return out


def mixed_radix(mesh: AbstractMesh, coords: dict[str, int], axes: Sequence[str]) -> int:
    """The number of a block along axes, the first axis most significant (sharding.md 6)."""
    k = 0
    for a in axes:
        k = k * mesh.shape[a] + coords[a]
    return k
