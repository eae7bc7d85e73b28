"""Global arrays from data that each rank has: callbacks, process-local data, blocks.

User code runs per rank here, so every function agrees over the mesh before it returns or raises: what fails on one rank
is an error on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray import comm, memory
from mpiarray.config import config
from mpiarray.core.plan import axes_size
from mpiarray.runtime.array import ArrayImpl
from mpiarray.runtime.context import resolve
from mpiarray.runtime.placed import Placed, placed
from mpiarray.runtime.transfer import digest, target_aval
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.partition_spec import PartitionSpec
from mpiarray.types.sharding import NamedSharding, Sharding


def make_array_from_callback(
    shape: Sequence[int], sharding: Any, data_callback: Callable[[Any], Any], dtype: Any = None
) -> ArrayImpl:
    """A global array whose blocks a function makes: `data_callback(index)` gets this rank's tuple of slices and returns its block.

    shape: global.  sharding: a Sharding.  The callback runs once on each rank of the mesh.  Collective over all ranks (outside
    ranks learn the dtype).  Raises on all ranks when a callback raises or returns another shape or dtype.
    """
    if not isinstance(sharding, Sharding):
        raise TypeError(
            f"sharding should be an instance of `jax.sharding.Sharding`. Got {sharding!r} of type {type(sharding)}"
        )
    shape = tuple(int(n) for n in shape)
    block_shape = sharding.shard_shape(shape)
    block, error = None, None
    index = sharding.addressable_devices_indices_map(shape)
    try:
        for where in index.values():
            block = _checked(data_callback(where), block_shape, dtype)
    except Exception as e:
        error = e
    return _agreed(shape, sharding, block, dtype, error, "make_array_from_callback")


def _checked(data: Any, block_shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    block = np.asarray(data)
    found = dtypes.canonicalize(block.dtype)
    if block.shape != block_shape:
        raise ValueError(
            f"Expected shard shape {block_shape} doesn't match the single device array shape {block.shape}"
        )
    if dtype is not None and dtypes.canonicalize(dtype) != found:
        raise ValueError(
            f"If `dtype` is provided to `jax.make_array_from_callback`, it must match the dtype of the addressable shards: {dtype} against {found}"
        )
    return memory.copied(dtypes.cast(block, found))


def _agreed(
    shape: tuple[int, ...], sharding: Sharding, block: Any, dtype: Any, error: Exception | None, what: str
) -> ArrayImpl:
    """Agree over all ranks on errors and on the dtype, then make the array."""
    group = comm.world_group()
    comm.raise_together(group, error)
    found = None if dtype is None else dtypes.canonicalize(dtype)
    if found is None:
        told = [d for d in comm.agree(group, None if block is None else str(block.dtype)) if d is not None]
        if len(set(told)) > 1:
            raise ValueError(f"{what}: the ranks' blocks have different dtypes: {sorted(set(told))}")
        if not told:
            raise ValueError(f"{what}: no rank holds a block, so the dtype must be given")
        found = dtypes.as_dtype(told[0])
    where = _where(shape, found, sharding)
    if config.check:
        _check_replicas(where, block, what)
    return ArrayImpl(where, block if where.member else None)


def _where(shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> Placed:
    return placed(target_aval(ShapedArray(shape, dtype), sharding), sharding, True)


def _check_replicas(where: Placed, block: Any, what: str) -> None:
    """MPIARRAY_CHECK: devices of one index must hold equal blocks."""
    mine = None
    if block is not None and isinstance(where.sharding, NamedSharding) and where.ids is not None:
        index = where.sharding.index_of(where.ids.index(comm.rank()), where.aval.shape)
        mine = (tuple((s.start, s.stop) for s in index), digest(block))
    seen: dict[Any, bytes] = {}
    for told in comm.compare(comm.world_group(), mine):
        if told is not None and seen.setdefault(told[0], told[1]) != told[1]:
            raise ValueError(
                f"{what}: ranks that hold the same part {told[0]} of the array returned different data for it"
            )


def make_array_from_process_local_data(sharding: Any, local_data: Any, global_shape: Any = None) -> ArrayImpl:
    """A global array from what each rank holds.

    sharding: a Sharding, or P with a context mesh.  local_data: this rank's block, or in dims where its size is the global one the whole.
    global_shape: None infers it: a dim's local size times the number of its blocks; entries may be None.  Collective over all ranks.
    """
    if isinstance(sharding, PartitionSpec):
        sharding = resolve(sharding, "make_array_from_process_local_data")
    local = np.asarray(local_data)
    error: Exception | None = None
    block = None
    shape: tuple[int, ...] = ()
    try:
        shape = _global_shape(sharding, local, global_shape)
        if sharding.addressable_devices:
            block = _own(sharding, local, shape)
    except ValueError as e:
        error = e
    return _agreed(shape, sharding, block, None, error, "make_array_from_process_local_data")


def _blocks(sharding: Sharding, d: int) -> int:
    if not isinstance(sharding, NamedSharding) or d >= len(sharding.spec.dims):
        return 1
    return axes_size(sharding.mesh, sharding.spec.dims[d])


def _global_shape(sharding: Sharding, local: np.ndarray, given: Any) -> tuple[int, ...]:
    inferred = tuple(n * _blocks(sharding, d) for d, n in enumerate(local.shape))
    if given is None:
        return inferred
    if len(given) != local.ndim:
        raise ValueError(
            f"make_array_from_process_local_data: global_shape {tuple(given)} and local data of shape {local.shape} differ in rank"
        )
    return tuple(i if g is None else int(g) for g, i in zip(given, inferred))


def _own(sharding: Sharding, local: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    wanted = sharding.shard_shape(shape)
    (index,) = sharding.addressable_devices_indices_map(shape).values()
    cut = []
    for d, (n, g, b) in enumerate(zip(local.shape, shape, wanted)):
        if n == g:
            cut.append(index[d])
        elif n == b:
            cut.append(slice(None))
        else:
            raise ValueError(
                f"make_array_from_process_local_data: each dimension should match either global or process shape: dim {d} of the local data has size {n}, "
                f"the global shape is {shape} and a block has shape {wanted}"
            )
    block = local[tuple(cut)]
    return memory.copied(dtypes.cast(block, dtypes.canonicalize(block.dtype)))


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *, dtype: Any = None
) -> ArrayImpl:
    """A global array from the block that each rank has: `arrays` holds one array on this rank's device, or none outside the mesh.

    Collective over all ranks.  Raises on all ranks when a count or a shape is wrong.
    """
    if not isinstance(sharding, Sharding):
        raise TypeError(
            f"sharding should be an instance of `jax.sharding.Sharding`. Got {sharding!r} of type {type(sharding)}"
        )
    shape = tuple(int(n) for n in shape)
    error: Exception | None = None
    block = None
    try:
        expected = len(sharding.addressable_devices)
        mine = [a for a in arrays if not isinstance(a, ArrayImpl) or a._placed.member]
        if len(mine) != expected:
            raise ValueError(
                f"Expected {expected} per-device arrays (this is how many devices are addressable by the sharding), but got {len(mine)}"
            )
        if mine:
            data = mine[0]._block if isinstance(mine[0], ArrayImpl) else np.asarray(mine[0])
            block = _checked(data, sharding.shard_shape(shape), dtype)
    except ValueError as e:
        error = e
    return _agreed(shape, sharding, block, dtype, error, "make_array_from_single_device_arrays")
