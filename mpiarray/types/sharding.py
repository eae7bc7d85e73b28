"""Shardings: which device holds which slice of an array, and the checks that a spec fits a mesh and a shape.

The one rule behind everything here: along a dimension that is partitioned over axes `(a1, ..., ak)` of sizes
`(n1, ..., nk)`, the device with mesh coordinates `c` holds block `((c[a1] * n2 + c[a2]) * n3 + c[a3]) ...` of
`n1 * ... * nk` equal blocks (`block_number`): the first axis is the most significant. Axes that the spec does
not name do not matter: those devices hold equal copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mpiarray.errors import DuplicateSpecError, IndivisibleError
from mpiarray.types import mesh as meshes
from mpiarray.types.interned import Interned, fill
from mpiarray.types.mesh import AbstractMesh, AxisType, Device, Mesh
from mpiarray.types.partition_spec import UNCONSTRAINED, PartitionSpec

__all__ = [
    "NamedSharding",
    "Sharding",
    "SingleDeviceSharding",
    "block_number",
    "check_rank",
    "check_spec",
    "divisible_or_raise",
]

Index = tuple[slice, ...]

_MEMORY_KINDS = (None, "device", "pinned_host", "unpinned_host")


class Sharding(Interned):
    """Base class: a placement of an array of any shape on a set of devices."""

    __slots__ = ()

    memory_kind: str | None

    @property
    def device_set(self) -> set[Device]:
        """The devices that hold a block."""
        raise NotImplementedError(f"{type(self).__name__}.device_set")

    @property
    def num_devices(self) -> int:
        """Number of devices that hold a block."""
        raise NotImplementedError(f"{type(self).__name__}.num_devices")

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole value."""
        raise NotImplementedError(f"{type(self).__name__}.is_fully_replicated")

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the block that each device holds of an array of `global_shape`."""
        raise NotImplementedError(f"{type(self).__name__}.shard_shape")

    def devices_indices_map(self, global_shape: Sequence[int]) -> Mapping[Device, Index]:
        """Device -> the slices of the global array that it holds."""
        raise NotImplementedError(f"{type(self).__name__}.devices_indices_map")

    @property
    def addressable_devices(self) -> set[Device]:
        """This rank's device if it holds a block, else the empty set."""
        mine = Device(meshes.process_rank())
        return {mine} if mine in self.device_set else set()

    def addressable_devices_indices_map(self, global_shape: Sequence[int]) -> Mapping[Device, Index]:
        """`devices_indices_map` restricted to this rank's device."""
        mine = self.addressable_devices
        return {d: index for d, index in self.devices_indices_map(global_shape).items() if d in mine}

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this rank holds the whole array: True only for one device, this rank's."""
        return self.device_set == self.addressable_devices

    def with_memory_kind(self, kind: str) -> Sharding:
        """This sharding; there is one kind of memory, and other names of it are aliases."""
        _check_memory_kind(kind)
        return self

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether the same devices hold the same slices of any array with `ndim` dimensions."""
        if not isinstance(other, Sharding):
            raise TypeError(f"is_equivalent_to: `other` must be a Sharding. Got {other!r} of type {type(other)}")
        return self is other or self._placement(ndim) == other._placement(ndim)

    def _placement(self, ndim: int) -> tuple:
        """A value that is equal for equivalent shardings: (blocks per dimension, device -> its part)."""
        raise NotImplementedError(f"{type(self).__name__}._placement")


class NamedSharding(Sharding):
    """Placement by a PartitionSpec over the axes of a mesh. Interned.

    Args:
      mesh: Mesh or AbstractMesh. On an abstract mesh, what needs devices raises ValueError.
      spec: PartitionSpec; trailing None are significant for equality.
      memory_kind: None or 'device'; 'pinned_host' and 'unpinned_host' are aliases of the same memory.

    Raises:
      TypeError: `mesh` is not a mesh or `spec` is not a PartitionSpec.
      ValueError, DuplicateSpecError: the spec does not fit the mesh (see `check_spec`).
    """

    __slots__ = ("dims", "factors", "memory_kind", "mesh", "num_shards", "spec")
    mesh: Mesh | AbstractMesh
    spec: PartitionSpec
    dims: tuple  #: `spec.dims`
    factors: tuple[int, ...]  #: number of blocks along each dimension of the spec
    num_shards: int  #: number of different blocks: the product of `factors`

    def __new__(
        cls, mesh: Mesh | AbstractMesh, spec: PartitionSpec, *, memory_kind: str | None = None
    ) -> NamedSharding:
        if memory_kind is not None:
            _check_memory_kind(memory_kind)
        found = _named.get((mesh, spec))
        return _make_named(mesh, spec) if found is None else found

    def update(self, *, spec: Any = None, mesh: Any = None, memory_kind: str | None = None) -> NamedSharding:
        """A sharding with the named parts replaced."""
        return NamedSharding(
            self.mesh if mesh is None else mesh, self.spec if spec is None else spec, memory_kind=memory_kind
        )

    @property
    def device_set(self) -> set[Device]:
        return set(self._devices("device_set").flat)

    @property
    def num_devices(self) -> int:
        return self.mesh.size

    @property
    def is_fully_replicated(self) -> bool:
        """True when no dimension is really divided and nothing is unreduced. Axes of size 1 divide nothing."""
        return self.mesh.size == 1 or (not self.spec.unreduced and self.num_shards == 1)

    @property
    def is_fully_addressable(self) -> bool:
        devices = self._devices("is_fully_addressable")
        return devices.size == 1 and devices.item() is Device(meshes.process_rank())

    @property
    def addressable_devices(self) -> set[Device]:
        self._devices("addressable_devices")
        return set(self.mesh.local_devices)

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        return _shard_shape(self, tuple(global_shape))

    def indices(self, global_shape: Sequence[int]) -> tuple[Index, ...]:
        """The slices of each device, by row-major position in the mesh. Works on abstract meshes."""
        return _indices(self, tuple(global_shape))

    def index_of(self, position: int, global_shape: Sequence[int]) -> Index:
        """The slices of the device at a row-major position in the mesh; `slice(None)` for undivided ones."""
        return _indices(self, tuple(global_shape))[position]

    def replica_id(self, position: int, global_shape: Sequence[int]) -> int:
        """How many devices before `position` hold the same slices as the one there."""
        indices = _indices(self, tuple(global_shape))
        return indices[:position].count(indices[position])

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Device, Index]:
        """Device -> slices of the partitioned dimensions; over unreduced axes, devices have partial sums of them."""
        devices = self._devices("devices_indices_map")
        return dict(zip(devices.flat, _indices(self, tuple(global_shape))))

    def _devices(self, what: str) -> Any:
        if isinstance(self.mesh, AbstractMesh):
            raise ValueError(f"{what} is not implemented for `jax.sharding.AbstractMesh`: {self.mesh} has no devices")
        return self.mesh.devices

    def _placement(self, ndim: int) -> tuple:
        check_rank(self.spec, ndim, f"Sharding {self}")
        return _named_placement(self, ndim)

    def __reduce__(self) -> tuple:
        return NamedSharding, (self.mesh, self.spec)

    def __repr__(self) -> str:
        memory = "" if self.memory_kind is None else f", memory_kind={self.memory_kind}"
        return f"NamedSharding(mesh={self.mesh!s}, spec={self.spec}{memory})"


class SingleDeviceSharding(Sharding):
    """The whole array on one device. Interned."""

    __slots__ = ("device", "memory_kind")
    device: Device

    def __new__(cls, device: Device, *, memory_kind: str | None = None) -> SingleDeviceSharding:
        _check_memory_kind(memory_kind)
        found = _single.get(device)
        if found is None:
            if not isinstance(device, Device):
                raise TypeError(
                    f"SingleDeviceSharding: `device` must be a device, as from jax.devices(). Got {device!r}"
                )
            found = object.__new__(cls)
            fill(found, device=device, memory_kind="device")
            found = _single.setdefault(device, found)
        return found

    @property
    def device_set(self) -> set[Device]:
        return {self.device}

    @property
    def num_devices(self) -> int:
        return 1

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(global_shape)

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Device, Index]:
        return {self.device: (slice(None),) * len(global_shape)}

    def _placement(self, ndim: int) -> tuple:
        return (1,) * ndim, ((self.device, (0,) * ndim, ()),)

    def __reduce__(self) -> tuple:
        return SingleDeviceSharding, (self.device,)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r}, memory_kind={self.memory_kind})"


def block_number(mesh_shape: Mapping[Any, int], coords: Mapping[Any, int], axes: Sequence) -> int:
    """Which block along a dimension partitioned over `axes` the device at mesh coordinates `coords` holds.

    Args:
      mesh_shape: axis name -> size.
      coords: axis name -> coordinate of the device.
      axes: names, most significant first.
    """
    number = 0
    for axis in axes:
        number = number * mesh_shape[axis] + coords[axis]
    return number


def check_spec(mesh: Mesh | AbstractMesh, spec: PartitionSpec, *, where: str = "") -> None:
    """Raise unless `spec` can be bound to `mesh`.

    Args:
      where: put in front of the message, e.g. "reshard: ".

    Raises:
      DuplicateSpecError: an axis occurs twice.
      ValueError: an axis is not in the mesh, an unreduced or reduced axis is not Explicit, or UNCONSTRAINED is used
        without an Auto axis.
    """
    axes = spec.axes
    if len(set(axes)) != len(axes):
        twice = next(axis for i, axis in enumerate(axes) if axis in axes[:i])
        raise DuplicateSpecError(
            f"{where}A single NamedSharding spec can map every mesh axis to at most one positional dimension, "
            f"but {spec} has duplicate entries for `{twice}`"
        )
    for axis in axes:
        if axis not in mesh.shape:
            raise ValueError(f"{where}Resource axis: {axis} of {spec} is not found in mesh: {mesh.axis_names}.")
    _check_sum_axes(mesh, spec, spec.unreduced, "Unreduced", where)
    _check_sum_axes(mesh, spec, spec.reduced, "Reduced", where)
    if UNCONSTRAINED in spec.partitions and not mesh.auto_axes:
        raise ValueError(
            f"{where}{spec} cannot contain `P.UNCONSTRAINED` when no mesh axis_types are `Auto`. "
            f"Got mesh axis_types: {mesh.axis_types}"
        )


def _check_sum_axes(mesh: Mesh | AbstractMesh, spec: PartitionSpec, axes: frozenset, what: str, where: str) -> None:
    if not axes:
        return
    for axis in mesh.ordered(axes):
        if axis not in mesh.shape:
            raise ValueError(
                f"{where}{what} axes {axis} is not found in mesh.axis_names={mesh.axis_names}. Got pspec={spec}"
            )
    types = dict(zip(mesh.axis_names, mesh.axis_types))
    wrong = [axis for axis in mesh.ordered(axes) if types[axis] is not AxisType.Explicit]
    if wrong:
        raise ValueError(
            f"{where}{what} axes can only refer to mesh axes that is of type `Explicit`. "
            f"Got {', '.join(f'{a!r} of type {types[a]!r}' for a in wrong)} in {spec} and mesh: {mesh}"
        )


def check_rank(spec: PartitionSpec, ndim: int, what: str = "") -> None:
    """Raise ValueError when `spec` has more entries than an array with `ndim` dimensions.

    Args:
      what: what the message calls the spec; default "PartitionSpec P(...)".
    """
    if len(spec.partitions) > ndim:
        hint = " For scalars the spec should be P()." if ndim == 0 else ""
        raise ValueError(
            f"{what or f'PartitionSpec {spec}'} (spec {spec}) is only valid for values of rank at least "
            f"{len(spec.partitions)}, but was applied to a value of rank {ndim}.{hint}"
        )


def divisible_or_raise(shape: Sequence[int], sharding: Sharding, *, where: str = "") -> None:
    """Raise unless each dimension of `shape` is divisible by the axes that partition it.

    Args:
      where: put in front of the message, e.g. "device_put: ".

    Raises:
      ValueError: the spec has more entries than `shape` has dimensions.
      IndivisibleError: (a ValueError) a dimension is not divisible.
    """
    if not isinstance(sharding, NamedSharding):
        return
    check_rank(sharding.spec, len(shape), f"{where}Sharding {sharding}")
    for dim, (size, factor) in enumerate(zip(shape, sharding.factors)):
        if size % factor:
            raise IndivisibleError(
                f"{where}Sharding spec {sharding.spec} implies that array axis {dim} is partitioned {factor} times, "
                f"but does not evenly divide the dimension size {size}. Got shape: {tuple(shape)} and {sharding}"
            )


def _make_named(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> NamedSharding:
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"NamedSharding: `mesh` must be a Mesh or an AbstractMesh. Got {mesh!r} of type {type(mesh)}")
    if not isinstance(spec, PartitionSpec):
        raise TypeError(f"NamedSharding: `spec` must be a PartitionSpec. Got {spec!r} of type {type(spec)}")
    check_spec(mesh, spec)
    sizes = mesh.shape
    factors = tuple(1 if dim is UNCONSTRAINED else math.prod(sizes[axis] for axis in dim) for dim in spec.dims)
    sharding = object.__new__(NamedSharding)
    fill(
        sharding,
        mesh=mesh,
        spec=spec,
        memory_kind="device" if isinstance(mesh, Mesh) else None,
        dims=spec.dims,
        factors=factors,
        num_shards=math.prod(factors),
    )
    return _named.setdefault((mesh, spec), sharding)


def _check_memory_kind(kind: str | None) -> None:
    if kind not in _MEMORY_KINDS:
        raise ValueError(
            f"Could not find memory addressable by device cpu. Device cpu can address the following memory kinds: "
            f"device, pinned_host, unpinned_host. Got memory kind: {kind}"
        )


@lru_cache(maxsize=4096)
def _shard_shape(sharding: NamedSharding, shape: tuple[int, ...]) -> tuple[int, ...]:
    check_rank(sharding.spec, len(shape), f"Sharding {sharding}")
    factors = sharding.factors
    for dim, (size, factor) in enumerate(zip(shape, factors)):
        if size % factor:
            raise IndivisibleError(
                f"Sharding {sharding} implies that array axis {dim} is partitioned {factor} times, but the dimension "
                f"size is {size} (full shape: {shape}, per-dimension tiling factors: {list(factors)} should evenly "
                f"divide the shape)"
            )
    return tuple(size // factor for size, factor in zip(shape, factors)) + shape[len(factors) :]


@lru_cache(maxsize=1024)
def _indices(sharding: NamedSharding, shape: tuple[int, ...]) -> tuple[Index, ...]:
    block_shape = _shard_shape(sharding, shape)
    whole = (slice(None),) * (len(shape) - len(sharding.factors))
    return tuple(
        tuple(
            slice(b * n, (b + 1) * n) if factor > 1 else slice(None)
            for b, n, factor in zip(numbers, block_shape, sharding.factors)
        )
        + whole
        for numbers in _block_numbers(sharding)
    )


@lru_cache(maxsize=1024)
def _block_numbers(sharding: NamedSharding) -> tuple[tuple[int, ...], ...]:
    """Per mesh position, the block number along each dimension of the spec."""
    mesh = sharding.mesh
    numbers = []
    for position in range(mesh.size):
        coords = dict(zip(mesh.axis_names, mesh.coords(position)))
        numbers.append(
            tuple(0 if dim is UNCONSTRAINED else block_number(mesh.shape, coords, dim) for dim in sharding.dims)
        )
    return tuple(numbers)


@lru_cache(maxsize=1024)
def _named_placement(sharding: NamedSharding, ndim: int) -> tuple:
    mesh, missing = sharding.mesh, ndim - len(sharding.factors)
    devices = list(mesh.devices.flat) if isinstance(mesh, Mesh) else list(range(mesh.size))
    parts = [
        (device, numbers + (0,) * missing, summed)
        for device, numbers, summed in zip(devices, _block_numbers(sharding), _sum_groups(sharding, devices))
    ]
    parts.sort(key=lambda part: part[0] if isinstance(part[0], int) else part[0].id)
    return sharding.factors + (1,) * missing, tuple(parts)


def _sum_groups(sharding: NamedSharding, devices: list) -> list[tuple]:
    """Per mesh position, the devices whose blocks have to be added to get the value; `()` if it is the value."""
    mesh = sharding.mesh
    unreduced = {axis for axis in sharding.spec.unreduced if mesh.shape[axis] > 1}  # the sum of one block is the block
    if not unreduced:
        return [()] * len(devices)
    groups: dict[tuple, list] = {}
    keys = []
    for position, device in enumerate(devices):
        coords = zip(mesh.axis_names, mesh.coords(position))
        keys.append(tuple(c for name, c in coords if name not in unreduced))
        groups.setdefault(keys[-1], []).append(device)
    return [tuple(sorted(groups[key], key=str)) for key in keys]


_named: dict[tuple, NamedSharding] = {}
_single: dict[Any, SingleDeviceSharding] = {}
