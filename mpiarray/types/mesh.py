"""Devices and meshes: the grid of devices that arrays are spread over, and its description without devices.

Device `k` is MPI rank `k` of the world. A `Mesh` is an array of devices with named axes; an `AbstractMesh` has
the same axes and no devices, and is what array types refer to. Both are interned: structurally equal meshes are
the same object.

This module knows no rank and no context. The two things that it needs from above are hooks, set once by
the parts that know: `process_rank` (by comm, when MPI starts) and `mesh_context` (by core).
"""

from __future__ import annotations

import enum
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mpiarray.types.interned import Interned, fill

__all__ = [
    "AbstractDevice",
    "AbstractMesh",
    "AxisType",
    "Device",
    "EMPTY_ABSTRACT_MESH",
    "EMPTY_MESH",
    "Mesh",
    "make_mesh",
]


def _no_context(mesh: Mesh) -> AbstractContextManager:
    raise RuntimeError("`with mesh:` is not available here; use `with jax.set_mesh(mesh):`")


def _rank_zero() -> int:
    return 0


process_rank: Callable[[], int] = _rank_zero  # world rank of this process
mesh_context: Callable[[Mesh], AbstractContextManager] = _no_context  # what `with mesh:` enters

_entered = threading.local()  # the contexts of `with mesh:` that are open in this thread


class AxisType(enum.Enum):
    """Who decides how arrays are partitioned over a mesh axis."""

    Auto = enum.auto()  #: the compiler; the axis does not show in types
    Explicit = enum.auto()  #: the types; rules follow them or raise
    Manual = enum.auto()  #: the user, inside shard_map; shapes are those of the blocks

    def __repr__(self) -> str:
        return self.name


class Device(Interned):
    """One device: the memory and the processor time of MPI rank `id`. Attributes: `id, process_index,
    platform, device_kind`. One instance per id."""

    __slots__ = ("id",)
    id: int

    platform = "cpu"
    device_kind = "cpu"

    def __new__(cls, id: int) -> Device:
        device = _devices.get(id)
        if device is None:
            device = object.__new__(cls)
            fill(device, id=int(id))
            device = _devices.setdefault(device.id, device)
        return device

    @property
    def process_index(self) -> int:
        """World rank of the process that owns the device."""
        return self.id

    def __reduce__(self) -> tuple:
        return Device, (self.id,)

    def __str__(self) -> str:
        return f"cpu:{self.id}"

    def __repr__(self) -> str:
        return f"CpuDevice(id={self.id})"


class AbstractDevice(Interned):
    """What an abstract mesh tells about the devices it stands for."""

    __slots__ = ("device_kind", "num_cores", "platform")
    device_kind: str
    num_cores: int | None
    platform: str

    def __new__(cls, device_kind: str, num_cores: int | None = None, platform: str = "cpu") -> AbstractDevice:
        key = (device_kind, num_cores, platform)
        device = _abstract_devices.get(key)
        if device is None:
            device = object.__new__(cls)
            fill(device, device_kind=device_kind, num_cores=num_cores, platform=platform)
            device = _abstract_devices.setdefault(key, device)
        return device

    def __reduce__(self) -> tuple:
        return AbstractDevice, (self.device_kind, self.num_cores, self.platform)

    def _text(self) -> str:
        return f"device_kind={self.device_kind}, num_cores={self.num_cores}, platform={self.platform}"

    def __repr__(self) -> str:
        return f"AbstractDevice({self._text()})"


class _Axes(Interned):
    """The named axes that Mesh and AbstractMesh have in common."""

    __slots__ = (
        "_order",
        "_strides",
        "are_all_axes_auto",
        "are_all_axes_explicit",
        "are_all_axes_manual",
        "auto_axes",
        "axis_names",
        "axis_sizes",
        "axis_types",
        "empty",
        "explicit_axes",
        "manual_axes",
        "shape",
        "shape_tuple",
        "size",
    )
    axis_names: tuple
    axis_sizes: tuple[int, ...]
    axis_types: tuple[AxisType, ...]
    size: int  #: number of devices; 0 for an empty mesh
    shape: OrderedDict[Any, int]  #: axis name -> size, in mesh order
    shape_tuple: tuple[tuple[Any, int], ...]
    explicit_axes: tuple
    auto_axes: tuple
    manual_axes: tuple
    are_all_axes_explicit: bool
    are_all_axes_auto: bool
    are_all_axes_manual: bool
    empty: bool
    _order: dict[Any, int]
    _strides: tuple[int, ...]

    def _fill_axes(self, sizes: tuple[int, ...], names: tuple, types: tuple[AxisType, ...]) -> None:
        def of(kind: AxisType) -> tuple:
            return tuple(n for n, t in zip(names, types) if t is kind)

        fill(
            self,
            axis_names=names,
            axis_sizes=sizes,
            axis_types=types,
            size=math.prod(sizes) if sizes else 0,
            shape=OrderedDict(zip(names, sizes)),
            shape_tuple=tuple(zip(names, sizes)),
            explicit_axes=of(AxisType.Explicit),
            auto_axes=of(AxisType.Auto),
            manual_axes=of(AxisType.Manual),
            are_all_axes_explicit=bool(types) and all(t is AxisType.Explicit for t in types),
            are_all_axes_auto=bool(types) and all(t is AxisType.Auto for t in types),
            are_all_axes_manual=bool(types) and all(t is AxisType.Manual for t in types),
            empty=not sizes,
            _order={name: i for i, name in enumerate(names)},
            _strides=tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes))),
        )

    @property
    def axis_type_of(self) -> dict[Any, AxisType]:
        """Axis name -> AxisType (a copy)."""
        return dict(zip(self.axis_names, self.axis_types))

    def same_axes(self, other: _Axes) -> bool:
        """Whether sizes, names and types agree, whatever devices there are."""
        return self is other or (
            self.axis_sizes == other.axis_sizes
            and self.axis_names == other.axis_names
            and self.axis_types == other.axis_types
        )

    def ordered(self, axes: Iterable) -> tuple:
        """The given axis names in mesh order; names that the mesh does not have come last, by name."""
        order = self._order
        return tuple(sorted(axes, key=lambda name: (order.get(name, len(order)), str(name))))

    def coords(self, position: int) -> tuple[int, ...]:
        """Mesh coordinates of the device at a row-major flat position, one per axis."""
        return tuple(position // stride % size for stride, size in zip(self._strides, self.axis_sizes))

    def _with_types(self, changes: dict) -> tuple[AxisType, ...]:
        for name, kind in changes.items():
            if not isinstance(kind, AxisType):
                raise TypeError(f"update_axis_types: {name!r} must be of type `jax.sharding.AxisType`. Got {kind!r}")
        return tuple(changes.get(n, t) for n, t in zip(self.axis_names, self.axis_types))


class AbstractMesh(_Axes):
    """A mesh without devices: sizes, names and types of axes, and perhaps a description of the devices.

    Args:
      axis_sizes: tuple of ints.
      axis_names: tuple of names, as many.
      axis_types: tuple of AxisType, as many (one AxisType when there is one axis). Default: all Auto.
      abstract_device: AbstractDevice or None.
    """

    __slots__ = ("abstract_device",)
    abstract_device: AbstractDevice | None

    def __new__(
        cls,
        axis_sizes: Sequence[int],
        axis_names: Any,
        axis_types: Any = None,
        *,
        abstract_device: AbstractDevice | None = None,
    ) -> AbstractMesh:
        names = _names(axis_names)
        sizes = _sizes(axis_sizes, "AbstractMesh")
        if len(sizes) != len(names):
            raise ValueError(
                f"AbstractMesh needs as many axis_names as axis_sizes. Got axis_sizes={sizes} and axis_names={names}"
            )
        types = _check_axes(names, axis_types, AxisType.Auto, "AbstractMesh")
        key = (sizes, names, types, abstract_device)
        mesh = _abstract_meshes.get(key)
        if mesh is None:
            mesh = object.__new__(cls)
            mesh._fill_axes(sizes, names, types)
            fill(mesh, abstract_device=abstract_device)
            mesh = _abstract_meshes.setdefault(key, mesh)
        return mesh

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh itself."""
        return self

    def update(
        self, axis_sizes: Any = None, axis_names: Any = None, axis_types: Any = None, abstract_device: Any = None
    ) -> AbstractMesh:
        """A mesh with the named parts replaced."""
        return AbstractMesh(
            self.axis_sizes if axis_sizes is None else axis_sizes,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
            abstract_device=self.abstract_device if abstract_device is None else abstract_device,
        )

    def update_axis_types(self, changes: dict[Any, AxisType]) -> AbstractMesh:
        """A mesh in which the named axes have other types; names that the mesh does not have are ignored."""
        return self.update(axis_types=self._with_types(changes))

    @property
    def devices(self) -> Any:
        raise _no_devices("devices")

    @property
    def device_ids(self) -> Any:
        raise _no_devices("device_ids")

    @property
    def is_multi_process(self) -> Any:
        raise _no_devices("is_multi_process")

    @property
    def local_mesh(self) -> Any:
        raise _no_devices("local_mesh")

    @property
    def local_devices(self) -> Any:
        raise _no_devices("local_devices")

    def __reduce__(self) -> tuple:
        return _load_abstract_mesh, (self.axis_sizes, self.axis_names, self.axis_types, self.abstract_device)

    def __repr__(self) -> str:
        axes = ", ".join(f"{n!r}: {s}" for n, s in self.shape_tuple) or "()"
        device = "" if self.abstract_device is None else f", {self.abstract_device._text()}"
        return f"AbstractMesh({axes}, axis_types={self.axis_types}{device})"


class Mesh(_Axes):
    """An array of devices with a name for each dimension.

    Args:
      devices: numpy array (or nested list) of Device objects.
      axis_names: one name per dimension of `devices`; a plain string when there is one dimension.
      axis_types: one AxisType per name (one AxisType when there is one axis). Default: all Auto.

    Raises:
      ValueError: numbers of dimensions, names and types differ; a name or a device occurs twice.
      TypeError: an element of `axis_types` is not an AxisType, or one of `devices` is not a device.
    """

    __slots__ = ("_positions", "abstract_mesh", "devices", "flat_ids")
    devices: np.ndarray  #: object array, read-only
    flat_ids: tuple[int, ...]  #: world ranks, row-major
    abstract_mesh: AbstractMesh
    _positions: dict[int, int]

    def __new__(cls, devices: Any, axis_names: Any, axis_types: Any = None) -> Mesh:
        grid = np.array(devices, dtype=object)
        names = _names(axis_names)
        if grid.ndim != len(names):
            raise ValueError(
                f"Mesh requires the ndim of its first argument (`devices`) to equal the length of its second argument "
                f"(`axis_names`), but got devices.ndim == {grid.ndim} and len(axis_names) == {len(names)}: {names}"
            )
        types = _check_axes(names, axis_types, AxisType.Auto, "Mesh")
        ids = _ids(grid) if names else ()
        key = (ids, grid.shape, names, types)
        mesh = _meshes.get(key)
        if mesh is None:
            mesh = object.__new__(cls)
            mesh._fill_axes(grid.shape, names, types)
            grid.flags.writeable = False
            device = AbstractDevice("cpu", None, "cpu") if names else None
            fill(
                mesh,
                devices=grid,
                flat_ids=ids,
                abstract_mesh=AbstractMesh(grid.shape, names, types, abstract_device=device),
                _positions={k: position for position, k in enumerate(ids)},
            )
            mesh = _meshes.setdefault(key, mesh)
        return mesh

    @property
    def device_ids(self) -> np.ndarray:
        """World ranks of the devices, an int array of the mesh's shape."""
        return np.array(self.flat_ids, dtype=np.int64).reshape(self.axis_sizes)

    @property
    def is_multi_process(self) -> bool:
        """Whether the mesh has more than one device (each rank owns one)."""
        return self.size > 1

    @property
    def local_devices(self) -> list[Device]:
        """This rank's device if it is in the mesh, else nothing."""
        rank = process_rank()
        return [Device(rank)] if rank in self._positions else []

    @property
    def local_mesh(self) -> Mesh:
        """The mesh of this rank's device alone, with axes of size 1 and type Auto; empty on a rank outside."""
        local = self.local_devices
        if not local:
            return EMPTY_MESH
        return Mesh(np.array(local, dtype=object).reshape((1,) * len(self.axis_names)), self.axis_names)

    def position(self, rank: int) -> int | None:
        """Row-major flat position of a world rank's device, None for a rank outside the mesh."""
        return self._positions.get(rank)

    def update(self, devices: Any = None, axis_names: Any = None, axis_types: Any = None) -> Mesh:
        """A mesh with the named parts replaced."""
        return Mesh(
            self.devices if devices is None else devices,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
        )

    def update_axis_types(self, changes: dict[Any, AxisType]) -> Mesh:
        """A mesh in which the named axes have other types; names that the mesh does not have are ignored."""
        return self.update(axis_types=self._with_types(changes))

    def __enter__(self) -> Mesh:
        if not self.are_all_axes_auto:
            raise RuntimeError(
                f"`with mesh:` is for meshes whose axes are all of type Auto; use `with jax.set_mesh(mesh):` for {self}"
            )
        warnings.warn("`with mesh:` is deprecated; use `with jax.set_mesh(mesh):`", DeprecationWarning, stacklevel=2)
        context = mesh_context(self)
        context.__enter__()
        if not hasattr(_entered, "contexts"):
            _entered.contexts = []
        _entered.contexts.append(context)
        return self

    def __exit__(self, *exc: Any) -> None:
        _entered.contexts.pop().__exit__(*exc)

    def __reduce__(self) -> tuple:
        return _load_mesh, (self.flat_ids, self.axis_sizes, self.axis_names, self.axis_types)

    def __str__(self) -> str:
        if self.empty:
            return "Mesh()"
        axes = ", ".join(f"{n!r}: {s}" for n, s in self.shape_tuple)
        return f"Mesh({axes}, axis_types={self.axis_types})"

    def __repr__(self) -> str:
        if self.empty:
            return "Mesh(axis_sizes=(), axis_names=())"
        return f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names}, axis_types={self.axis_types})"


def make_mesh(axis_sizes: Sequence[int], axis_names: Any, axis_types: Any = None, *, devices: Sequence[Device]) -> Mesh:
    """A mesh of the first `prod(axis_sizes)` of the given devices, row-major, all axes Explicit by default.

    Raises:
      ValueError: fewer devices than the mesh needs, or numbers of sizes, names and types differ.
    """
    sizes = _sizes(axis_sizes, "make_mesh")
    names = _names(axis_names)
    if len(sizes) != len(names):
        raise ValueError(f"make_mesh needs as many axis_names as axis_sizes. Got sizes {sizes} and names {names}")
    types = _check_axes(names, axis_types, AxisType.Explicit, "make_mesh")
    needed = math.prod(sizes)
    if needed > len(devices):
        raise ValueError(
            f"Number of devices {len(devices)} must be >= the product of mesh_shape {sizes}, which is {needed}. "
            f"Each MPI rank is one device: start more with `mpirun -n {needed} python ...`"
        )
    grid = np.empty(needed, dtype=object)
    grid[:] = list(devices)[:needed]
    return Mesh(grid.reshape(sizes), names, types)


def _names(axis_names: Any) -> tuple:
    return (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)


def _sizes(axis_sizes: Any, who: str) -> tuple[int, ...]:
    sizes = tuple(int(s) for s in axis_sizes)
    if any(s < 1 for s in sizes):
        raise ValueError(f"{who}: axis sizes must be at least 1. Got {sizes}")
    return sizes


def _check_axes(names: tuple, axis_types: Any, default: AxisType, who: str) -> tuple[AxisType, ...]:
    """Check the names; return the axis types as a tuple."""
    if any(name is None for name in names):
        raise ValueError(f"{who}: mesh axis names cannot be None. Got {names}")
    if len(set(names)) != len(names):
        raise ValueError(f"{who}: mesh axis names must be unique. Got {names}")
    if axis_types is None:
        return (default,) * len(names)
    types = (axis_types,) if isinstance(axis_types, AxisType) else tuple(axis_types)
    if not all(isinstance(t, AxisType) for t in types):
        raise TypeError(f"axis_types passed to {who} must be of type `jax.sharding.AxisType`. Got {types}")
    if len(types) != len(names):
        raise ValueError(
            f"{who}: Number of axis names should match the number of axis_types. "
            f"Got axis_names={names} and axis_types={types}"
        )
    return types


def _ids(grid: np.ndarray) -> tuple[int, ...]:
    for device in grid.flat:
        if not isinstance(device, Device):
            raise TypeError(f"Mesh: `devices` must hold devices, as from jax.devices(). Got {device!r}")
    ids = tuple(device.id for device in grid.flat)
    if len(set(ids)) != len(ids):
        twice = sorted({k for k in ids if ids.count(k) > 1})
        raise ValueError(f"Mesh: a device can occur only once. Devices {twice} occur more often in {ids}")
    return ids


def _no_devices(what: str) -> ValueError:
    return ValueError(f"AbstractMesh does not implement {what}: it stands for no particular devices")


def _load_mesh(ids: tuple[int, ...], sizes: tuple[int, ...], names: tuple, types: tuple) -> Mesh:
    if not names:
        return EMPTY_MESH
    grid = np.empty(len(ids), dtype=object)
    grid[:] = [Device(k) for k in ids]
    return Mesh(grid.reshape(sizes), names, types)


def _load_abstract_mesh(sizes: tuple, names: tuple, types: tuple, device: AbstractDevice | None) -> AbstractMesh:
    return AbstractMesh(sizes, names, types, abstract_device=device)


_devices: dict[int, Device] = {}
_abstract_devices: dict[tuple, AbstractDevice] = {}
_abstract_meshes: dict[tuple, AbstractMesh] = {}
_meshes: dict[tuple, Mesh] = {}

EMPTY_ABSTRACT_MESH = AbstractMesh((), ())
EMPTY_MESH = Mesh(np.empty((), dtype=object), ())
