"""Concrete arrays: metadata that every rank knows and this rank's block.

Reading a value is here (`np.asarray`, `float`, `print`, ...): it is a collective over the world unless the rank can form
the value alone, and it gives every rank the same value.  `repr` and everything about types never communicates.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.comm.collectives import all_gather_varied
from mpiarray.comm.groups import world_group
from mpiarray.config import config
from mpiarray.core.trace import state
from mpiarray.core.value import is_python_scalar
from mpiarray.numpy.array import Array
from mpiarray.numpy.host import set_from_host
from mpiarray.runtime.placed import Placed, on_device, on_mesh, row_major, uncommitted
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.layout import Format, Layout
from mpiarray.types.mesh import Device
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding, Sharding


class Shard:
    """One device's part of an array: `device`, `index` (slices of the global array), `replica_id`, `data` (None if it is elsewhere)."""

    __slots__ = ("data", "device", "index", "replica_id")

    def __init__(self, device: Device, index: tuple[slice, ...], replica_id: int, data: ArrayImpl | None):
        self.device, self.index, self.replica_id, self.data = device, index, replica_id, data

    def __repr__(self) -> str:
        data = None if self.data is None else np.asarray(self.data)
        return f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}, data={data})"


class ArrayImpl(Array):
    """A concrete array."""

    __slots__ = ("__weakref__", "_block", "_host", "_placed", "aval")

    _placed: Placed
    _block: Any
    _host: np.ndarray | None

    def __init__(self, where: Placed, block: Any):
        self._placed = where
        self.aval = where.aval
        self._block = block
        self._host = None

    # -- metadata: known on every rank --------------------------------------------------------------

    @property
    def sharding(self) -> Sharding:
        return self._placed.sharding

    @property
    def committed(self) -> bool:
        return self._placed.committed

    @property
    def format(self) -> Format:
        """Memory order of the blocks and sharding."""
        return Format(Layout(self._placed.order), self._placed.sharding)

    def devices(self) -> set[Device]:
        return set(self._placed.sharding.device_set)

    @property
    def device(self) -> Any:
        found = self._placed.sharding.device_set
        return next(iter(found)) if len(found) == 1 else self._placed.sharding

    @property
    def is_fully_replicated(self) -> bool:
        return self._placed.sharding.is_fully_replicated

    @property
    def is_fully_addressable(self) -> bool:
        """True when the array is on one device only, this rank's (or on every rank as its own copy)."""
        return self._placed.ids is None or self._placed.ids == (comm.rank(),)

    def is_deleted(self) -> bool:
        return isinstance(self._placed, _Deleted)

    def is_ready(self) -> bool:
        return True

    def on_device_size_in_bytes(self) -> int:
        """Bytes of all blocks together."""
        return (
            int(np.prod(self._placed.sharding.shard_shape(self.shape))) * self.itemsize * len(self._placed.ids or (0,))
        )

    # -- lifetime -------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Forget the data; later uses raise.  All ranks must do it."""
        if not self.is_deleted():
            self._placed = _deleted(self._placed)
            self._block = self._host = None

    def _check_alive(self) -> None:
        if isinstance(self._placed, _Deleted):
            raise RuntimeError(
                f"Array has been deleted with shape={self.aval.str_short()}: it was donated to a jitted function, or `.delete()` was called"
            )

    def block_until_ready(self) -> ArrayImpl:
        """This array: everything that made it has finished."""
        self._check_alive()
        return self

    def copy_to_host_async(self) -> None:
        """Nothing to do: reading is synchronous."""
        self._check_alive()

    # -- blocks -----------------------------------------------------------------------------------------

    @property
    def addressable_shards(self) -> list[Shard]:
        """This rank's shard; empty on a rank outside the mesh."""
        self._check_alive()
        rank = comm.rank()
        return [
            s
            for s in self.global_shards
            if s.data is not None and s.device.id == (rank if self._placed.ids is not None else 0)
        ]

    @property
    def global_shards(self) -> list[Shard]:
        """One entry per device, with `data` None where it is another rank's."""
        self._check_alive()
        where = self._placed.sharding
        rank = comm.rank() if self._placed.ids is not None else 0
        counts: dict[Any, int] = {}
        out = []
        for device, index in where.devices_indices_map(self.shape).items():
            key = tuple((s.start, s.stop) for s in index)
            replica = counts.get(key, 0)
            counts[key] = replica + 1
            out.append(Shard(device, index, replica, self._local() if device.id == rank else None))
        return out

    def _local(self) -> ArrayImpl:
        """This rank's block as an array on its device; its value is known here, so reading it is local."""
        aval = ShapedArray(np.shape(self._block), self.aval.dtype, self.aval.weak_type)
        shard = ArrayImpl(on_device(aval, comm.rank()), self._block)
        shard._host = read_only(self._block)
        return shard

    def addressable_data(self, index: int) -> ArrayImpl:
        """This rank's block as an array on its device; IndexError beyond index 0 and on ranks outside the mesh."""
        return self.addressable_shards[index].data  # type: ignore[return-value]

    # -- values -----------------------------------------------------------------------------------------

    def _readable_alone(self) -> bool:
        """Whether this rank (and so every rank) can form the value without communicating."""
        where = self._placed
        if self._host is not None or where.ids is None:
            return True
        if comm.size() == 1:
            return where.member and (not where.sharding.is_fully_replicated or True)
        return where.sharding.is_fully_replicated and len(where.ids) == comm.size()

    def _value(self) -> np.ndarray:
        """The whole value, read-only, the same on every rank.  Collective over the world unless `_readable_alone()`."""
        if self._host is None:
            self._check_alive()
            unreduced = self._placed.spec.unreduced
            if unreduced:
                raise ValueError(
                    f"cannot read {self.aval.str_short()}: it is unreduced over {tuple(sorted(unreduced))}: reshard it first, for example "
                    "`jax.reshard(x, jax.P())`; its value is the sum of the blocks over these axes"
                )
            self._host = read_only(self._block if self._readable_alone() else self._assemble())
        return self._host

    def _assemble(self) -> np.ndarray:
        nbytes = self.size * self.itemsize
        if nbytes > config.gather_warn_bytes:
            warnings.warn(
                f"reading an array of type {self.aval.str_short()} forms all of its {nbytes / 2**20:.0f} MiB in the memory of every rank "
                "(MPIARRAY_GATHER_WARN_BYTES sets the size from which this is said)",
                stacklevel=4,
            )
        firsts = {s.device.id: s.index for s in self.global_shards if s.replica_id == 0}
        dtype = dtypes.storage(self.dtype)
        shape = self._placed.sharding.shard_shape(self.shape)
        nothing = (0,) * max(len(shape), 1)
        group = world_group()
        shapes = [shape if r in firsts else nothing for r in range(group.size)]
        mine = np.asarray(self._block, order="C") if comm.rank() in firsts else None
        parts = all_gather_varied(group, mine, shapes, dtype)
        if self.ndim == 0:
            return parts[next(iter(firsts))].reshape(())
        out = np.empty(self.shape, dtype)
        for r, index in firsts.items():
            out[index] = parts[r]
        return out

    def _numbers(self) -> np.ndarray:
        """`_value()` where it is numbers: TypeError for keys."""
        if dtypes.is_key(self.dtype):
            raise TypeError(
                "JAX array with PRNGKey dtype cannot be converted to a NumPy array or to numbers: "
                f"got {self.aval.str_short()}. Use `jax.random.key_data`."
            )
        return self._value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self._numbers()
        if dtype is not None and np.dtype(dtype) != value.dtype:
            return value.astype(dtype)
        return value.copy() if copy else value

    def __repr__(self) -> str:
        return text.array_repr(self)

    def __str__(self) -> str:
        return text.array_str(self)

    def __format__(self, spec: str) -> str:
        if self.ndim == 0 and not dtypes.is_key(self.dtype):
            return format(self._value()[()], spec)
        if spec:
            raise TypeError(
                f"unsupported format string {spec!r} passed to Array.__format__ for {self.aval.str_short()}"
            )
        return str(self)

    def __reduce__(self) -> Any:
        return _rebuild, (np.asarray(self), self.aval.weak_type)

    def __deepcopy__(self, memo: Any) -> ArrayImpl:
        return self.copy()

    def __copy__(self) -> ArrayImpl:
        return self.copy()

    def _scalar(self, what: str) -> Any:
        if self.size != 1 or self.ndim:
            raise TypeError(
                f"Only scalar arrays can be converted to Python scalars by {what}; got {self.aval.str_short()}"
            )
        return self._numbers()[()]

    def __bool__(self) -> bool:
        if self.size != 1:
            word = "empty array" if not self.size else "array with more than one element"
            raise ValueError(
                f"The truth value of an {word} is ambiguous: got {self.aval.str_short()}. Use a.any() or a.all()"
            )
        return bool(self._numbers().reshape(())[()])

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __index__(self) -> int:
        if not dtypes.is_int(self.dtype) and not dtypes.is_bool(self.dtype):
            raise TypeError(
                f"Only integer scalar arrays can be converted to a scalar index; got {self.aval.str_short()}"
            )
        return int(self._scalar("__index__()"))

    def item(self, *args: int) -> Any:
        """A Python scalar.  Collective as reading is."""
        if not args and self.size != 1:
            raise ValueError(f"can only convert an array of size 1 to a Python scalar; got {self.aval.str_short()}")
        return self._numbers().item(*args)

    def tolist(self) -> Any:
        return self._numbers().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self._numbers().tobytes(order)  # type: ignore[arg-type]


class _Deleted(Placed):
    """Metadata of an array whose data is gone: types and shapes still answer."""

    __slots__ = ()


def _deleted(where: Placed) -> _Deleted:
    gone = _Deleted()
    for name in Placed.__slots__:
        setattr(gone, name, getattr(where, name))
    return gone


def read_only(value: Any) -> np.ndarray:
    view = np.asarray(value).view()
    view.flags.writeable = False
    return view


def from_host(x: Any, dtype: Any = None, weak_type: bool | None = None, *, copy: bool = True) -> ArrayImpl:
    """A host value (numpy array, Python scalar) as an uncommitted array: every rank keeps its own, equal copy."""
    found, weak = dtypes.dtype_of(x)
    target = found if dtype is None else dtype
    block = dtypes.cast(np.asarray(x), target)
    if copy and (block is x or block.base is not None) and not is_python_scalar(x):
        block = np.array(block, order="C")
    elif not block.flags.c_contiguous:
        block = np.asarray(block, order="C")
    aval = ShapedArray(block.shape, target, weak if weak_type is None else weak_type)
    return ArrayImpl(uncommitted(aval), block)


def on_context_mesh(x: ArrayImpl) -> ArrayImpl:
    """A host array as creation functions return it: replicated on the context mesh when there is one."""
    if state.mesh.empty or state.trace is not None or x.committed:
        return x
    mesh = state.abstract_mesh
    spec = P() if mesh.are_all_axes_auto else P(*(None,) * x.ndim)
    aval = x.aval.update(sharding=NamedSharding(mesh, P(*(None,) * x.ndim)))
    concrete = state.mesh
    if concrete.abstract_mesh is not mesh:
        concrete = concrete.update(axis_types=mesh.axis_types) if concrete.axis_names == mesh.axis_names else concrete
    where = on_mesh(aval, NamedSharding(concrete, spec))
    return ArrayImpl(where, x._block if where.member else None)


set_from_host(lambda value, dtype, weak_type: on_context_mesh(from_host(value, dtype, weak_type)))


def host_sized(shape: Sequence[int]) -> int:
    return int(np.prod(shape)) if shape else 1


def _rebuild(value: np.ndarray, weak_type: bool) -> ArrayImpl:
    return from_host(value, weak_type=weak_type)


def relaid(block: Any, order: Sequence[int]) -> np.ndarray:
    """A block in the memory order `order` (major to minor)."""
    block = np.asarray(block)
    if tuple(order) == row_major(block.ndim):
        return np.asarray(block, order="C")
    inverse = np.argsort(order)
    return np.ascontiguousarray(block.transpose(tuple(order))).transpose(tuple(int(i) for i in inverse))


# printing asks arrays for their values, so its module comes after the class
from mpiarray.runtime import text  # noqa: E402
