"""A mesh of threads: a compiled program runs on every device of it in one process; collectives meet in memory.

Everything but MPI itself is the real thing: staging, propagation, partition, and each rank's prepared steps.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections import Counter
from contextlib import contextmanager

import numpy as np

from mpiarray.comm import collectives as mpi
from mpiarray.compiler.executable import Executable
from mpiarray.compiler.pipeline import lower
from mpiarray.core import device
from mpiarray.core.device import mixed_radix
from mpiarray.core.trace import abstract_mesh
from mpiarray.ops import redistribute
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


def mesh_of(*axes, kind=AxisType.Explicit):
    """mesh_of(('x', 4), ('y', 2))"""
    return AbstractMesh(tuple(n for _, n in axes), tuple(a for a, _ in axes), (kind,) * len(axes))


class _Meeting:
    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=20)
        self.slots = [None] * size


class _Group:
    comm = None

    def __init__(self, world, members, me):
        self.members, self.size, self.rank = members, len(members), members.index(me)
        self.meeting = world.meeting(members)

    def share(self, value):
        """Every member's value."""
        m = self.meeting
        m.slots[self.rank] = value
        m.barrier.wait()
        out = list(m.slots)
        m.barrier.wait()
        return out


class World:
    def __init__(self):
        self.lock = threading.Lock()
        self.meetings = {}
        self.calls = Counter()
        self.bytes = Counter()
        self.failed = False
        self.queues = {}
        self.own = threading.local()

    def meeting(self, members):
        with self.lock:
            found = self.meetings.setdefault(members, _Meeting(len(members)))
            if self.failed:
                found.barrier.abort()
            return found

    def queue(self, members, source, target):
        with self.lock:
            return self.queues.setdefault((members, source, target), queue.Queue())

    def receive(self, members, source, target):
        for _ in range(200):
            with contextlib.suppress(queue.Empty):
                return self.queue(members, source, target).get(timeout=0.1)
            if self.failed:
                break
        raise threading.BrokenBarrierError(f"device {target} waits for a message from {source}")

    def fail(self):
        """A device has raised: nobody waits for it."""
        with self.lock:
            self.failed = True
            for m in self.meetings.values():
                m.barrier.abort()

    def count(self, kind, nbytes):
        with self.lock:
            self.calls[kind] += 1
            self.bytes[kind] += nbytes


def _ctx_group(world):
    def group(self, axes, groups=None):
        assert groups is None
        mine = []
        for k in range(len(self.device_ids)):
            coords = device.coordinates(self.mesh, k)
            if all(coords[a] == self.coords[a] for a in coords if a not in axes):
                mine.append((mixed_radix(self.mesh, coords, axes), self.device_ids[k]))
        return _Group(world, tuple(i for _, i in sorted(mine)), self.device_ids[self.position])

    return group


_REDUCE = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "or": np.bitwise_or,
    "and": np.bitwise_and,
    "xor": np.bitwise_xor,
    "prod": np.multiply,
}


@contextmanager
def pretended(world):
    """Collectives meet in memory inside the block."""

    def all_reduce(group, x, op="sum", *, out=None):
        world.count("all_reduce", x.nbytes)
        parts = group.share(np.array(x))
        total = parts[0].astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iub" else parts[0]
        for p in parts[1:]:
            total = _REDUCE[op](total, p)
        if out is None:
            return total.astype(x.dtype)
        out[...] = total
        return out

    def all_reduce_many(group, blocks, op="sum", *, packed=None):
        world.count("all_reduce", sum(x.nbytes for x in blocks))
        parts = group.share([np.array(x) for x in blocks])
        return [functools.reduce(_REDUCE[op], xs) for xs in zip(*parts)]

    def all_gather(group, x, dim, tiled=True, *, out=None):
        world.count("all_gather", x.nbytes)
        parts = group.share(np.array(x))
        return np.concatenate(parts, dim, out=out) if tiled else np.stack(parts, dim, out=out)

    def reduce_scatter(group, x, dim, op="sum", tiled=True, *, out=None):
        world.count("reduce_scatter", x.nbytes)
        total = sum(group.share(np.array(x))).astype(x.dtype)
        return np.split(total, group.size, dim)[group.rank] if tiled else total.take(group.rank, dim)

    def all_to_all(group, x, split, concat, tiled=True, *, out=None):
        world.count("all_to_all", x.nbytes)
        parts = group.share(np.array(x))
        if not tiled:
            return np.stack([p.take(group.rank, split) for p in parts], concat)
        return np.concatenate([np.split(p, group.size, split)[group.rank] for p in parts], concat)

    def broadcast(group, x, root=0, shape_dtype=None, *, out=None):
        world.count("broadcast", x.nbytes)
        return group.share(np.array(x))[root]

    def permute(group, x, perm, shape_dtype=None, *, out=None):
        world.count("permute", x.nbytes)
        parts = group.share(np.array(x))
        sources = [s for s, d in perm if d == group.rank]
        return parts[sources[0]] if sources else np.zeros_like(x)

    def exchange(group, sends, recvs):
        world.count("exchange", sum(b.nbytes for _, b in sends))
        for peer, block in sends:
            world.queue(group.members, group.rank, peer).put(np.array(block))
        for peer, target in recvs:
            block = world.receive(group.members, peer, group.rank)
            assert block.shape == target.shape
            target[...] = block

    saved = {
        name: getattr(mpi, name)
        for name in (
            "all_reduce",
            "all_reduce_many",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
            "permute",
            "exchange",
        )
    }
    group, all_devices, device_group = (
        device.DeviceContext.group,
        device.DeviceContext.all_devices,
        redistribute.device_group,
    )
    fakes = locals()
    try:
        for name in saved:
            setattr(mpi, name, fakes[name])
        device.DeviceContext.group = _ctx_group(world)
        device.DeviceContext.all_devices = lambda self: _Group(world, self.device_ids, self.device_ids[self.position])
        redistribute.device_group = lambda ids: _Group(world, ids, world.own.device)
        yield world
    finally:
        for name, f in saved.items():
            setattr(mpi, name, f)
        device.DeviceContext.group, device.DeviceContext.all_devices = group, all_devices
        redistribute.device_group = device_group


def blocks_of(x, mesh, spec):
    """The block of each device."""
    sharding = NamedSharding(mesh, spec)
    return [x[sharding.index_of(k, x.shape)] for k in range(mesh.size)]


def typed(x, mesh, spec, dtype=None):
    return ShapedArray(x.shape, dtype or x.dtype, False, NamedSharding(mesh, spec))


def lowered(f, args, specs, mesh, keys=()):
    """The compiled program of `f` for operands laid out by `specs`, which are as long as their ranks."""
    return _lowered(f, args, specs, mesh, keys)[0]


def _lowered(f, args, specs, mesh, keys):
    """The program, and the constants that are its first operands."""
    avals = [typed(x, mesh, s, dtypes.key_dtype if i in keys else None) for i, (x, s) in enumerate(zip(args, specs))]
    with abstract_mesh(mesh):
        jaxpr = trace_to_jaxpr(f, avals)
        specs = [*(P().padded(np.ndim(c)) for c in jaxpr.consts), *specs]
        return lower("test", jaxpr, specs, [None] * len(jaxpr.jaxpr.outvars), mesh, mesh.size), jaxpr.consts


def run(f, args, specs, mesh, keys=()):
    """`f(*arrays)` (a sequence of values) on every device; the operands numbered in `keys` are keys, held as uint64.

    Returns (global results, their types, their specs, World with the counts).  Replicas are compared bit by bit.
    """
    padded = [s.padded(np.ndim(x)) for x, s in zip(args, specs)]
    program, consts = _lowered(f, args, padded, mesh, keys)
    inputs = [[np.asarray(c)] * mesh.size for c in consts]
    inputs += [blocks_of(np.asarray(x), mesh, s) for x, s in zip(args, padded)]
    results, errors = [None] * mesh.size, []
    world = World()

    def work(k):
        world.own.device = k
        try:
            with np.errstate(all="ignore"):
                executable = Executable(program.local, tuple(range(mesh.size)), k)
                results[k] = [np.asarray(r) for r in executable.run(*(blocks[k] for blocks in inputs))]
        except BaseException as e:
            errors.append(e)
            world.fail()

    with pretended(world):
        threads = [threading.Thread(target=work, args=(k,)) for k in range(mesh.size)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    assert all(q.empty() for q in world.queues.values()), "a message that nobody receives"
    outs = []
    for i, (v, spec) in enumerate(zip(program.jaxpr.outvars, program.out_specs)):
        sharding = NamedSharding(mesh, spec)
        whole = np.zeros(v.aval.shape, results[0][i].dtype)
        written = np.zeros(v.aval.shape, bool)
        for k in range(mesh.size):
            index = sharding.index_of(k, v.aval.shape)
            block = results[k][i]
            assert block.shape == whole[index].shape, f"block {block.shape} of {v.aval} at {spec}"
            assert block.dtype == dtypes.storage(v.aval.dtype)
            if written[index].all() and block.size:
                same = block.tobytes() == whole[index].tobytes()
                assert same, f"replicas differ: {block} on device {k}, {whole[index]} before"
            whole[index] = block
            written[index] = True
        outs.append(whole)
    return outs, [v.aval for v in program.jaxpr.outvars], program.out_specs, world


def draw_spec(data, mesh, shape):
    """A spec whose axes divide the shape: hypothesis chooses."""
    from hypothesis import strategies as st

    left = list(data.draw(st.permutations(mesh.axis_names)))
    dims = []
    for n in shape:
        axes = ()
        while left and data.draw(st.booleans()) and n % (size_of(mesh, axes) * mesh.shape[left[-1]]) == 0:
            axes += (left.pop(),)
        dims.append(axes)
    return P.from_dims(tuple(dims))


def size_of(mesh, axes):
    return int(np.prod([mesh.shape[a] for a in axes], dtype=int))
