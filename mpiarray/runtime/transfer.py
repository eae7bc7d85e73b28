"""Moving arrays between placements: any two shardings, also on different meshes and devices.

Planned as data (`core.redistribution`), then run step by step; every rank of the union of the two device sets must
call.  From host values nothing is sent: each rank cuts its block out of its own copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray import comm, memory
from mpiarray.config import config
from mpiarray.core import redistribution as rd
from mpiarray.core.device import DeviceContext, coordinates
from mpiarray.core.op import Op
from mpiarray.ops.redistribute import StepOp, exchanger, step_ops
from mpiarray.runtime.array import ArrayImpl, relaid
from mpiarray.runtime.placed import Order, Placed, placed
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding, Sharding, check_rank, divisible_or_raise


def target_aval(aval: ShapedArray, sharding: Sharding) -> ShapedArray:
    """The type of a value placed by `sharding`.  Raises for specs that are too long or do not divide."""
    if isinstance(sharding, NamedSharding):
        check_rank(sharding.spec, aval.ndim, f"Sharding {sharding}")
        divisible_or_raise(aval.shape, sharding, where="device_put: ")
        spec = sharding.spec.padded(aval.ndim)
        return ShapedArray(aval.shape, aval.dtype, aval.weak_type, NamedSharding(sharding.mesh.abstract_mesh, spec))
    return ShapedArray(aval.shape, aval.dtype, aval.weak_type)


def move(x: ArrayImpl, sharding: Sharding, order: Order | None = None, pinned: bool = False) -> ArrayImpl:
    """`x` placed by `sharding`, in the memory order `order` (None: row-major).

    Collective over the union of both device sets when data moves; local from uncommitted arrays.
    """
    x._check_alive()
    where = placed(target_aval(x.aval, sharding), sharding, True, order, pinned)
    source = x._placed
    if source is where:
        return ArrayImpl(where, x._block)
    if not source.committed:
        if config.check:
            check_equal_copies(x, where)
        block = own_part(x._block, where) if where.member else None
    else:
        block = _run(rd.plan(x.shape, dtypes.storage(x.dtype).itemsize, source.sharding, sharding), x._block, x.dtype)
    if block is not None:
        block = relaid(block, where.order)
    return ArrayImpl(where, block)


def own_part(value: np.ndarray, where: Placed) -> np.ndarray:
    """This rank's block of a value that it holds whole."""
    if not isinstance(where.sharding, NamedSharding):
        return memory.copied(np.asarray(value))
    mesh: Any = where.sharding.mesh
    spec = where.sharding.spec
    position = mesh.flat_ids.index(comm.rank())
    part = value[where.sharding.index_of(position, where.aval.shape)]
    if spec.unreduced:
        coords = coordinates(mesh.abstract_mesh, position)
        if any(coords[a] for a in spec.unreduced):
            return np.zeros(part.shape, part.dtype)
    return memory.copied(np.asarray(part))


def _run(plan: rd.Redistribution, block: np.ndarray | None, dtype: Any) -> np.ndarray | None:
    rank = comm.rank()
    if rank not in plan.members:
        return None
    if not plan.steps:
        return block if rank in plan.target.ids else None
    storage = dtypes.storage(dtype)
    for step in _prepared(plan, rank):
        block = step(block, storage)
    return block if rank in plan.target.ids else None


Step = Callable[[Any, Any], Any]


@lru_cache(maxsize=1024)
def _prepared(plan: rd.Redistribution, rank: int) -> tuple[Step, ...]:
    """What this rank does for each step of a plan."""
    out: list[Step] = []
    by_axes = {
        id(step): op for step, op in zip([s for s in plan.steps if not isinstance(s, rd.Relabel)], step_ops(plan))
    }
    for step, before in zip(plan.steps, plan.states):
        match step:
            case rd.Relabel():
                continue
            case rd.Exchange():
                out.append(_boxes(step, rank))
            case rd.Permute(pairs=pairs):
                out.append(_whole_blocks(step, pairs, before.block_shape(plan.shape), rank))
            case _:
                if rank in before.ids:
                    out.append(_local(by_axes[id(step)], before.ids, rank))
    return tuple(out)


def _local(found: StepOp, ids: tuple[int, ...], rank: int) -> Step:
    op: Op = found.op
    if op.build is not None:
        run = op.build(DeviceContext(ids, found.mesh, rank), **found.params)
        return lambda x, dtype: run(x)
    raise TypeError(f"redistribution: {op.name} has no build")


def _boxes(step: rd.Exchange, rank: int) -> Step:
    members = step.members()
    if rank not in members:
        return lambda x, dtype: None
    return exchanger(step.for_rank(rank), comm.device_group(members), {m: k for k, m in enumerate(members)})


def _whole_blocks(step: rd.Permute, pairs: tuple[tuple[int, int], ...], shape: tuple[int, ...], rank: int) -> Step:
    members = step.members()
    if rank not in members:
        return lambda x, dtype: None
    group = comm.device_group(members)
    place = {m: k for k, m in enumerate(members)}
    perm = tuple((place[a], place[b]) for a, b in pairs)
    gets = any(b == rank for _, b in pairs)

    def run(x: Any, dtype: Any) -> Any:
        given = np.zeros(shape, dtype) if x is None else np.asarray(x)
        out = comm.permute(group, given, perm, (shape, dtype))
        return out if gets else None

    return run


def digest(block: Any) -> bytes:
    """A fingerprint of a block's bytes.  Python's own `hash` of bytes differs from process to process."""
    return hashlib.blake2b(np.ascontiguousarray(block).tobytes(), digest_size=16).digest()


def check_equal_copies(x: ArrayImpl, where: Placed) -> None:
    """MPIARRAY_CHECK: raise ValueError on all ranks unless all hold the same host value.  Collective over the target's ranks."""
    if not where.member or where.ids is None or len(where.ids) == 1:
        return
    told = comm.compare(comm.device_group(where.ids), (digest(x._block), x.shape, str(x.dtype)))
    if len(set(told)) > 1:
        odd = [r for r, t in zip(where.ids, told) if t != told[0]]
        raise ValueError(
            f"device_put: the host value of type {x.aval.str_short()} is not the same on each process: ranks {odd} hold another one than rank "
            f"{where.ids[0]}. Use `jax.make_array_from_process_local_data` for data that differs by design."
        )
