"""All that is known of an array besides its data: its type, where its blocks are, in which memory order.

Interned, so that the caches of eager ops and of jitted functions compare one identity per argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray import comm
from mpiarray.core.plan import replicated
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import Device
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding, Sharding, SingleDeviceSharding

Order = tuple[int, ...]


class Placed:
    """Metadata of an array, equal on all ranks.

    aval       its type
    sharding   where it is, as the user sees it
    committed  False: made without a mesh and a device; every rank holds a copy
    order      major_to_minor of its blocks
    pinned     whether `order` came from the user (then jit compares it)
    ids        world ranks of its devices in flat order; None: a copy on every rank
    member     whether this rank holds a block
    spec       where it lies over all axes of its mesh, Auto ones included, padded
    """

    __slots__ = ("aval", "committed", "ids", "member", "order", "pinned", "sharding", "spec")

    aval: ShapedArray
    sharding: Sharding
    committed: bool
    order: Order
    pinned: bool
    ids: tuple[int, ...] | None
    member: bool
    spec: P

    @property
    def mesh(self) -> Any:
        """The concrete mesh, None for one device."""
        return self.sharding.mesh if isinstance(self.sharding, NamedSharding) else None


_table: dict[Any, Placed] = {}
_latest: dict[
    tuple[tuple[str, int], ...], tuple[int, ...]
] = {}  # a mesh's axes -> the devices that arrays on such a mesh are on


def row_major(ndim: int) -> Order:
    return tuple(range(ndim))


def placed(
    aval: ShapedArray, sharding: Sharding, committed: bool, order: Order | None = None, pinned: bool = False
) -> Placed:
    """The metadata with these parts."""
    if order is None:
        order = row_major(aval.ndim)
    key = (aval, sharding, committed, order, pinned)
    found = _table.get(key)
    if found is None:
        found = Placed()
        found.aval, found.sharding, found.committed, found.order, found.pinned = key
        if isinstance(sharding, NamedSharding):
            mesh: Any = sharding.mesh
            found.ids, found.spec = mesh.flat_ids, sharding.spec.padded(aval.ndim)
        else:
            found.ids = (next(iter(sharding.device_set)).id,) if committed else None
            found.spec = replicated(aval.ndim)
        found.member = found.ids is None or comm.rank() in found.ids
        _table[key] = found
    if found.ids is not None and isinstance(sharding, NamedSharding):
        _latest[sharding.mesh.shape_tuple] = found.ids
    return found


def devices_of(avals: Sequence[ShapedArray]) -> tuple[int, ...] | None:
    """The devices for values of these types that come from no array and under no context mesh, such as zeros like an array:
    those of the latest arrays on a mesh of these axes, else the first ones.  None where no type is on a mesh.

    Raises ValueError where the job has too few.
    """
    for aval in avals:
        mesh = aval.sharding.mesh
        if mesh.empty:
            continue
        found = _latest.get(mesh.shape_tuple)
        if found is None and mesh.size > comm.size() and any(aval.dims):
            raise ValueError(
                f"a value of type {aval.str_short()} on {mesh} needs {mesh.size} devices, and this job has {comm.size()} ranks: "
                "it can be traced, lowered and examined, not computed"
            )
        return found or (tuple(range(mesh.size)) if mesh.size <= comm.size() else None)
    return None


def uncommitted(aval: ShapedArray) -> Placed:
    """A copy on every rank, which follows whatever it meets; it reports device 0."""
    return placed(aval, SingleDeviceSharding(Device(0)), False)


def on_device(aval: ShapedArray, rank: int) -> Placed:
    return placed(aval, SingleDeviceSharding(Device(rank)), True)


def on_mesh(aval: ShapedArray, sharding: NamedSharding) -> Placed:
    return placed(aval, sharding, True)
