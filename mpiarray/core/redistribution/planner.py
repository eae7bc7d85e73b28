"""Plans how an array gets from one placement to another, by bytes moved under a memory bound.

How a plan is found. On one mesh (or two meshes with a common refinement) the axis steps are searched. Any
placement is also reached by boxes between devices (`Exchange`) or by whole blocks (`Permute`), with sums finished
before it and copies made after it: a device that sends one block to many others would be the bottleneck, so scattered
pieces and an all-gather are tried too. The cheapest plan wins: bytes received by the busiest rank, then bytes
sent, then messages, then steps; structured steps before boxes when all are equal.

Memory. A rank may hold its source block (the caller keeps it), its target block and one message buffer. Plans
that need an intermediate block fit if that block and the buffer together stay within the buffer's limit. If no
plan fits, the smallest is taken and its `reason` says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from mpiarray.config import config
from mpiarray.core.redistribution.exchange import Exchange, Traffic, exchange_traffic, permutation
from mpiarray.core.redistribution.placement import Placement, common_mesh, same_data
from mpiarray.core.redistribution.search import Move, Problem, Reorder, edge_memory, edge_traffic, search
from mpiarray.core.redistribution.steps import AllGather, AllReduce, Permute, ReduceScatter, Relabel, Slice, Step, Widen
from mpiarray.errors import IndivisibleError, InternalError
from mpiarray.types.mesh import Mesh
from mpiarray.types.partition_spec import UNCONSTRAINED
from mpiarray.types.sharding import SingleDeviceSharding


@dataclass(frozen=True)
class Redistribution:
    """A plan: what every rank does to turn its source block into its target block.

    shape, itemsize: of the global array (bytes per element).
    source, target: where the blocks are, as given.
    steps: in order; empty if nothing changes at all. After the last the value has the target's type.
    states: len(steps) + 1 placements; step k turns states[k] into states[k + 1]. The axes of step k are those of
        `states[k].axes`, its groups are those of the devices `states[k].ids`. When meshes of other shapes meet these
        are axes of their common refinement. Axes of size 1 are left out of the dims.
    bytes_moved, messages: received by the busiest rank of each step, summed over the steps (they follow each other),
        by the usual algorithms. bytes_sent: the same for what is sent.
    peak_bytes: the largest sum of blocks and message buffer on a rank, source block included throughout.
    bound_bytes: source block + target block + message buffer of the rank for which that is most.
    reason: why a rank must pass its bound, '' if none does.
    """

    shape: tuple[int, ...]
    itemsize: int
    source: Placement
    target: Placement
    steps: tuple[Step, ...]
    states: tuple[Placement, ...]
    bytes_moved: int
    bytes_sent: int
    messages: int
    peak_bytes: int
    bound_bytes: int
    reason: str = ""

    @property
    def members(self) -> tuple[int, ...]:
        """Sorted ids of all devices that hold a block before or after."""
        return tuple(sorted({*self.source.ids, *self.target.ids}))

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        lines = [f"redistribute {size} ({_bytes(math.prod(self.shape) * self.itemsize)})"]
        lines.append(f"  from {self.source} on {self.source.mesh_text()}")
        lines.append(f"  to   {self.target} on {self.target.mesh_text()}")
        for k, step in enumerate(self.steps):
            before, after = self.states[k], self.states[k + 1]
            moved = step_traffic(self, k)[0]
            shapes = f"{before.block_shape(self.shape)} -> {after.block_shape(self.shape)}"
            lines.append(f"  {k + 1}. {step}: {before} -> {after}, block {shapes}, {_bytes(moved)} received")
        if not self.steps:
            lines.append("  nothing to do")
        lines.append(
            f"  {_bytes(self.bytes_moved)} and {self.messages} messages received, {_bytes(self.bytes_sent)} sent, "
            f"peak {_bytes(self.peak_bytes)} of {_bytes(self.bound_bytes)} per rank at most"
        )
        if self.reason:
            lines.append(f"  over the bound: {self.reason}")
        return "\n".join(lines)


def plan(
    shape: tuple[int, ...], itemsize: int, source: Any, target: Any, *, limit: int | None = None
) -> Redistribution:
    """The cheapest plan from `source` to `target` under the memory bound. Pure, no communication, cached.

    Args:
      shape: of the global array.
      itemsize: bytes per element.
      source, target: a NamedSharding, a SingleDeviceSharding, a pair (mesh, spec) or a Placement. Meshes may differ in
        shape, names, device order and device set. An AbstractMesh stands for positions 0..n-1; if just one side is
        abstract, it takes the other's devices in the same flat order. Leave Manual axes out of the mesh (blocks
        may differ over them): the plan then holds within each group of the other axes.
      limit: bytes of one message buffer; `config.exchange_bytes` (64 MB) if None.

    Raises:
      IndivisibleError: a dimension is not divisible by its axes.
      ValueError: a spec longer than the array has dimensions, or with UNCONSTRAINED.
    """
    return _plan(tuple(shape), itemsize, _key(source), _key(target), config.exchange_bytes if limit is None else limit)


def _key(sharding: Any) -> Any:
    if isinstance(sharding, (tuple, Placement, SingleDeviceSharding)):
        return sharding
    return sharding.mesh, sharding.spec


@lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], itemsize: int, source: Any, target: Any, limit: int) -> Redistribution:
    ndim = len(shape)
    held, wanted = placement(source, ndim), placement(target, ndim)
    if not isinstance(source, Placement) and not isinstance(target, Placement):
        held, wanted = _same_devices(source, held, target, wanted)
    for side in (held, wanted):
        _check_divisible(shape, side)
    return _Planner(shape, itemsize, held, wanted, limit).best()


def placement(sharding: Any, ndim: int) -> Placement:
    """The Placement of an array with `ndim` dimensions under a sharding, a pair (mesh, spec) or itself."""
    if isinstance(sharding, Placement):
        return sharding
    if isinstance(sharding, SingleDeviceSharding):
        return Placement((), (next(iter(sharding.device_set)).id,), ((),) * ndim)
    mesh, spec = sharding if isinstance(sharding, tuple) else (sharding.mesh, sharding.spec)
    if UNCONSTRAINED in spec.dims:
        raise ValueError(f"redistribution: {spec} leaves a dimension open (UNCONSTRAINED): say where it goes")
    if len(spec.dims) > ndim:
        raise ValueError(
            f"redistribution: spec {spec} is only valid for values of rank at least {len(spec.dims)}, "
            f"but was applied to a value of rank {ndim}"
        )
    axes = tuple(zip(mesh.axis_names, mesh.axis_sizes))
    ids = mesh.flat_ids if isinstance(mesh, Mesh) else tuple(range(math.prod(mesh.axis_sizes)))
    dims = spec.dims + ((),) * (ndim - len(spec.dims))
    ordered = [tuple(name for name in mesh.axis_names if name in labels) for labels in (spec.unreduced, spec.reduced)]
    return Placement(axes, ids or (0,), dims, *ordered)


def _same_devices(source: Any, held: Placement, target: Any, wanted: Placement) -> tuple[Placement, Placement]:
    """If one mesh is abstract and the other is not, give it the other's devices."""
    abstract = [
        not isinstance(side, SingleDeviceSharding) and not isinstance(side[0], Mesh) for side in (source, target)
    ]
    if abstract[0] == abstract[1]:
        return held, wanted
    if len(held.ids) != len(wanted.ids):
        raise ValueError(
            f"redistribution: an abstract mesh of {len(held.ids if abstract[0] else wanted.ids)} devices and a mesh of "
            f"{len(wanted.ids if abstract[0] else held.ids)} devices: which devices are meant is not known"
        )
    if abstract[0]:
        return Placement(held.axes, wanted.ids, held.dims, held.unreduced, held.reduced), wanted
    return held, Placement(wanted.axes, held.ids, wanted.dims, wanted.unreduced, wanted.reduced)


def _check_divisible(shape: tuple[int, ...], side: Placement) -> None:
    for d, (size, count) in enumerate(zip(shape, side.counts)):
        if size % count:
            raise IndivisibleError(
                f"redistribution of an array of shape {shape}: {side} implies that array axis {d} is partitioned "
                f"{count} times, but the dimension size is {size}"
            )


class _Planner:
    """One planning problem; `best` tries all kinds of plans."""

    def __init__(self, shape: tuple[int, ...], itemsize: int, source: Placement, target: Placement, limit: int):
        self.shape, self.itemsize, self.limit = shape, itemsize, limit
        self.given_source, self.given_target = source, target
        self.source, self.target = source.plain(), target.plain()
        held = math.prod(self.source.block_shape(shape)) * itemsize
        wanted = math.prod(self.target.block_shape(shape)) * itemsize
        self.source_bytes, self.target_bytes = held, wanted

    def best(self) -> Redistribution:
        if same_data(self.source, self.target):
            same = self.given_source == self.given_target
            steps, states = ((), [self.source]) if same else ((Relabel(),), [self.source, self.target])
            return self.result(steps, states)
        shared = common_mesh(self.source, self.target)
        candidates: list[Redistribution] = []
        if shared is not None:
            found = self.axis_plan(*shared, self.least(), bounded=True)
            if found is not None:
                if self.unbeatable(found):
                    return found
                candidates.append(found)
        candidates += self.crossings()
        if shared is not None and self.direct is None:
            for bounded in (True, False):
                found = self.axis_plan(*shared, self.ceiling(candidates), bounded)
                if found is not None:
                    candidates.insert(0, found)
                if any(not c.reason for c in candidates):
                    break
        fitting = [c for c in candidates if not c.reason]
        if fitting:
            return min(fitting, key=_cost)
        if not candidates:
            raise InternalError(f"redistribution: no plan from {self.given_source} to {self.given_target}")
        return min(candidates, key=lambda c: (c.peak_bytes, *_cost(c)))

    @cached_property
    def direct(self) -> Traffic | None:
        """Traffic of boxes straight from source to target if nothing is unreduced: no plan receives less."""
        if self.source.partials > 1 or self.target.partials > 1:
            return None
        return exchange_traffic(self.exchange(self.source, self.target))

    def least(self) -> int:
        """What the first search may receive: the least possible, or nothing at all if that is not known."""
        return 0 if self.direct is None else self.direct.received

    def unbeatable(self, found: Redistribution) -> bool:
        if self.direct is None or found.bytes_moved == 0:
            return found.bytes_moved == 0
        direct = self.direct
        return _cost(found) <= (direct.received, direct.sent, direct.messages, len(found.steps))

    def ceiling(self, candidates: list[Redistribution]) -> int | None:
        moved = [c.bytes_moved for c in candidates if not c.reason]
        return min(moved) if moved else None

    def exchange(self, source: Placement, target: Placement) -> Exchange:
        return Exchange(self.shape, self.itemsize, source, target, self.limit)

    def axis_plan(
        self, source: Placement, target: Placement, ceiling: int | None, bounded: bool
    ) -> Redistribution | None:
        """The plan in axis steps on a common mesh, if there is one within the limits."""
        room = self.target_bytes + self.limit if bounded else None
        moves = search(Problem(self.shape, self.itemsize, source, target, ceiling, room, self.limit))
        if moves is None:
            return None
        steps, states = self.written(source, moves)
        return self.result(tuple(steps), states)

    def written(self, source: Placement, moves: list[Move]) -> tuple[list[Step], list[Placement]]:
        """Moves as steps, with the placements between them."""
        steps: list[Step] = []
        states = [source]
        for move in moves:
            before = states[-1]
            dims, unreduced = move.after((before.dims, frozenset(before.unreduced)))
            after = before.moved(dims, unreduced)
            if isinstance(move, Reorder):
                pairs = permutation(before, after)
                if pairs is None:
                    raise InternalError(f"redistribution: {before} -> {after} is no permutation of blocks")
                steps.append(Permute(pairs))
            else:
                steps.append(move)
            states.append(after)
        return steps, states

    def crossings(self) -> Iterator[Redistribution]:
        """Plans that cross by whole blocks or boxes: [finish sums] cross [gather | widen]."""
        for first, held in self.starts():
            for wanted, last in self.ends():
                if held.partials > wanted.partials:
                    continue
                pairs = permutation(held, wanted)
                cross: list[Step] = []
                if not same_data(held, wanted):
                    cross = [Permute(pairs)] if pairs is not None else [self.exchange(held, wanted)]
                elif held != wanted:
                    cross = [Relabel()]
                states = [self.source] if first else []
                states += [held, wanted] if cross else [held]
                if last:
                    states.append(self.target)
                yield self.result((*first, *cross, *last), states)

    def starts(self) -> Iterator[tuple[tuple[Step, ...], Placement]]:
        source = self.source
        if source.partials <= self.target.partials:
            yield (), source
        if source.partials == 1:
            return
        axes = source.unreduced
        yield (AllReduce(axes),), source.moved(source.dims)
        for d, cur in enumerate(source.dims):
            if self.shape[d] % source.product(cur + axes) == 0:
                yield (ReduceScatter(d, axes),), source.moved(_put(source.dims, d, cur + axes))

    def ends(self) -> Iterator[tuple[Placement, tuple[Step, ...]]]:
        target = self.target
        yield target, ()
        for axes, step, left in ((target.unused, AllGather, target.unreduced), (target.unreduced, Widen, ())):
            for d, cur in enumerate(target.dims):
                fitting = axes
                while fitting and self.shape[d] % target.product(cur + fitting):
                    fitting = fitting[1:]
                if fitting and (step is AllGather or fitting == axes):
                    yield target.moved(_put(target.dims, d, cur + fitting), left), (step(d, fitting),)
                    break

    def result(self, steps: tuple[Step, ...], states: list[Placement]) -> Redistribution:
        """A plan with its costs."""
        draft = Redistribution(
            self.shape, self.itemsize, self.given_source, self.given_target, steps, tuple(states), 0, 0, 0, 0, 0
        )
        received = sent = messages = 0
        for k in range(len(steps)):
            got, gave, count = step_traffic(draft, k)
            received, sent, messages = received + got, sent + gave, messages + count
        peak, bound, reason = self.memory(draft)
        return Redistribution(
            self.shape, self.itemsize, self.given_source, self.given_target, steps, tuple(states),
            received, sent, messages, peak, bound, reason,
        )  # fmt: skip

    def memory(self, draft: Redistribution) -> tuple[int, int, str]:
        """Peak and bound of the fullest rank, and why a rank is over its bound.

        Ranks differ: those in both meshes hold two blocks, the others one, and none takes part in the steps on
        the other mesh.
        """
        source, target = set(self.source.ids), set(self.target.ids)
        peaks, bounds, reason = [0], [0], ""
        for kind in {(device in source, device in target) for device in source | target}:
            held, wanted = self.source_bytes * kind[0], self.target_bytes * kind[1]
            peaks.append(held + self.rank_peak(draft, *kind))
            bounds.append(held + wanted + self.limit)
            if peaks[-1] > bounds[-1]:
                between = ", ".join(map(str, draft.states[1:-1]))
                reason = f"needs {_bytes(peaks[-1])}, the bound is {_bytes(bounds[-1])}: " + (
                    f"a block of {between} is held besides source and target" if between else "one step needs more"
                )
        return max(peaks), max(bounds), reason

    def rank_peak(self, draft: Redistribution, in_source: bool, in_target: bool) -> int:
        """Bytes beside the source block on a rank of one kind: blocks in between, target block, message buffer."""
        peak = live = 0
        for k, step in enumerate(draft.steps):
            before, after = draft.states[k], draft.states[k + 1]
            here = [in_source if state.ids == self.source.ids else in_target for state in (before, after)]
            block = math.prod(after.block_shape(self.shape)) * self.itemsize * here[1]
            if isinstance(step, Relabel) or not any(here):
                live *= here[1]
                continue
            if isinstance(step, Permute):
                packed = block if k and isinstance(draft.steps[k - 1], Slice) else 0
                now, live = live + block + min(packed, self.limit), block
            elif isinstance(step, Exchange):
                moved = block + math.prod(before.block_shape(self.shape)) * self.itemsize * here[0]
                now, live = live + block + min(moved, self.limit), block
            else:
                problem = Problem(self.shape, self.itemsize, before, after, None, None, self.limit)
                now, live = edge_memory(problem, (before.dims, frozenset(before.unreduced)), step, live)  # type: ignore
                if isinstance(step, Slice) and k == len(draft.steps) - 1:
                    now += block  # the result is no view
            peak = max(peak, now)
        return peak


def _cost(plan: Redistribution) -> tuple[int, int, int, int]:
    return plan.bytes_moved, plan.bytes_sent, plan.messages, len(plan.steps)


def step_traffic(plan: Redistribution, k: int) -> tuple[int, int, int]:
    """Bytes received, bytes sent and messages received by the busiest rank in step k."""
    step, before = plan.steps[k], plan.states[k]
    block = math.prod(before.block_shape(plan.shape)) * plan.itemsize
    if isinstance(step, Relabel):
        return 0, 0, 0
    if isinstance(step, Permute):
        moved = any(a != b for a, b in step.pairs)
        return (block, block, 1) if moved else (0, 0, 0)
    if isinstance(step, Exchange):
        traffic = exchange_traffic(step)
        return traffic.received, traffic.sent, traffic.messages
    problem = Problem(plan.shape, plan.itemsize, before, before, None, None, 0)
    got, count = edge_traffic(problem, (before.dims, frozenset(before.unreduced)), step)  # type: ignore[arg-type]
    return got, got, count


def _put(dims: tuple, dim: int, axes: tuple[str, ...]) -> tuple:
    return dims[:dim] + (axes,) + dims[dim + 1 :]


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1024 or unit == "TB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"
