"""The devices that share one instance of a partial manual shard_map, as a mesh of the axes that are not manual."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mpiarray.core.device import coordinates
from mpiarray.core.trace import meshes
from mpiarray.runtime.placed import Placed, placed
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AxisType, Device, Mesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


class SubMesh:
    """The mesh of the remaining axes at this rank's manual coordinates."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.ids = mesh.flat_ids

    @staticmethod
    def of(mesh: Any, ids: tuple[int, ...], rank: int) -> SubMesh | None:
        """None when every axis is manual."""
        others = [a for a, t in zip(mesh.axis_names, mesh.axis_types) if t is not AxisType.Manual]
        if not others:
            return None
        coords = coordinates(mesh, ids.index(rank))
        grid = np.array([Device(i) for i in ids], dtype=object).reshape(mesh.axis_sizes)
        cut = grid[tuple(slice(None) if a in others else coords[a] for a in mesh.axis_names)]
        types = [t for t in mesh.axis_types if t is not AxisType.Manual]
        return SubMesh(Mesh(cut, tuple(others), tuple(types)))

    def context(self) -> AbstractContextManager[None]:
        return meshes(self.mesh.abstract_mesh, self.mesh)

    def placed(self, aval: ShapedArray, spec: P) -> Placed:
        """A value of the body as an array on this mesh."""
        inner = ShapedArray(
            aval.shape,
            aval.dtype,
            aval.weak_type,
            NamedSharding(self.mesh.abstract_mesh, aval.sharding.spec.padded(aval.ndim)),
        )
        return placed(inner, NamedSharding(self.mesh, spec), True)
