"""Boxes of arrays that move between blocks: slice, pad, concatenate, roll, rev, split, updates and halos share it.

Each of these ops says, in global numbers and without looking at any sharding, where elements go: a `Move` takes
the elements `source + i * source_step` of an operand's dim to the places `target + i * target_step` of the result's.
A progression of indices cut by a source block and a target block is a progression again, so the pieces that two ranks
exchange are found dim by dim, by division, and are strided views of both blocks: nothing is packed by hand, only what
changes owner is sent, and no rank ever holds more than its blocks.

Target blocks may overlap (`Blocks.step` less than `Blocks.length`): that is a halo exchange.

It stands apart from `core.redistribution`, which keeps every element's index and changes placements only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mpiarray.comm import collectives as mpi
from mpiarray.comm import halves, repeated
from mpiarray.config import config
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Out, Undefined, define, pass_through
from mpiarray.core.plan import Dims, LocalContext, Plan, axes_size, mesh_order, replicated, require_divisible, spec_from
from mpiarray.errors import InternalError
from mpiarray.ops.common import Parts
from mpiarray.ops.linear import mask_replicas
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AxisType

_SHORT = 8  # a message is short where the block is at least so many times as long

MeshShape = tuple[tuple[str, int], ...]
Coords = dict[str, int]
Box = tuple[slice, ...]  # slices with a start and a stop
Swap = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


class Along(NamedTuple):
    """Along one dim: element `source + i * source_step` goes to `target + i * target_step` for i < size.

    `target_step` is at least 1, `source_step` is not 0.
    """

    source: int
    source_step: int
    target: int
    target_step: int
    size: int


class Move(NamedTuple):
    """A box of operand number `operand`, and where it goes: one `Along` per dim."""

    operand: int
    dims: tuple[Along, ...]


class Blocks(NamedTuple):
    """How a dim is cut: block k along `axes` holds the indices from `start + k * step`, `length` of them."""

    axes: tuple[str, ...]
    step: int
    start: int
    length: int


class Piece(NamedTuple):
    """A part of a Move between two blocks: slices of the source block and of the target block."""

    peer: int
    operand: int
    source: tuple[slice, ...]
    target: tuple[slice, ...]


class Table(NamedTuple):
    """What one device copies, sends and receives.  `peer` counts positions in the group of `axes`."""

    axes: tuple[str, ...]
    copies: tuple[Piece, ...]
    sends: tuple[Piece, ...]
    recvs: tuple[Piece, ...]


# -- moves -----------------------------------------------------------------------------------------


def whole(n: int) -> Along:
    """A dim that stays as it is."""
    return Along(0, 1, 0, 1, n)


def sliced(start: int, stride: int, count: int) -> Along:
    """`x[start::stride][:count]`."""
    return Along(start, stride, 0, 1, count)


def placed(start: int, n: int) -> Along:
    """All n elements, from index `start` on."""
    return Along(0, 1, start, 1, n)


def padded(n: int, low: int, interior: int, size: int) -> Along:
    """Element i goes to `low + i * (interior + 1)`, where that is one of the result's `size` places."""
    step = interior + 1
    first = max(0, -(low // step)) if low < 0 else 0
    last = min(n - 1, (size - 1 - low) // step)
    return Along(first, 1, low + first * step, step, max(0, last - first + 1))


def reversed_(n: int) -> Along:
    """The elements in reverse order."""
    return Along(n - 1, -1, 0, 1, n)


def rolled(n: int, shift: int) -> tuple[Along, ...]:
    """`np.roll` along one dim: two runs, or one."""
    shift = shift % n if n else 0
    return (Along(0, 1, shift, 1, n - shift), Along(n - shift, 1, 0, 1, shift)) if shift else (whole(n),)


def moves_of(dims: Sequence[Sequence[Along]], operand: int = 0) -> tuple[Move, ...]:
    """Every combination of the runs of each dim."""
    return tuple(Move(operand, combination) for combination in itertools.product(*dims))


# -- blocks ----------------------------------------------------------------------------------------


def blocks_of(mesh: Any, shape: Sequence[int], dims: Dims) -> tuple[Blocks, ...]:
    """The blocks of an array laid out by `dims`: they tile each dim."""
    sizes = [n // axes_size(mesh, axes) for n, axes in zip(shape, dims)]
    return tuple(Blocks(axes, n, 0, n) for n, axes in zip(sizes, dims))


def cut(along: Along, source: tuple[int, int], target: tuple[int, int]) -> Along | None:
    """The part of a progression from one block to another, as (start, length) each, in numbers within the blocks."""
    (s, ss, t, ts, count), (s0, sn), (t0, tn) = along, source, target
    low, high = 0, count - 1
    low = max(low, -((t - t0) // ts))
    high = min(high, (t0 + tn - 1 - t) // ts)
    if ss > 0:
        low = max(low, -((s - s0) // ss))
        high = min(high, (s0 + sn - 1 - s) // ss)
    else:
        low = max(low, -((s0 + sn - 1 - s) // -ss))
        high = min(high, (s - s0) // -ss)
    if low > high:
        return None
    return Along(s + low * ss - s0, ss, t + low * ts - t0, ts, high - low + 1)


def slices_of(dims: Sequence[Along]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The slices of the source and of the target that a box stands for."""
    return tuple(_slice(a.source, a.source_step, a.size) for a in dims), tuple(
        _slice(a.target, a.target_step, a.size) for a in dims
    )


def _slice(start: int, step: int, count: int) -> slice:
    if step > 0:
        return slice(start, start + step * (count - 1) + 1, step)
    stop = start + step * (count - 1) - 1
    return slice(start, stop if stop >= 0 else None, step)


def table(
    mesh_shape: MeshShape,
    coords: Coords,
    moves: Sequence[Move],
    sources: Sequence[Sequence[Blocks]],
    target: Sequence[Blocks],
) -> Table:
    """The part of the device at mesh coordinates `coords`.

    Sender and receiver derive the same pieces in the same order.

    A box that several devices hold comes from the one that shares the receiver's coordinates on all axes that do not
    shard the operand, so replicas of a mesh work side by side and what a rank holds itself is never sent.
    """
    sizes = dict(mesh_shape)
    named = {a for dims in (*sources, target) for blocks in dims for a in blocks.axes}
    axes = tuple(name for name, _ in mesh_shape if name in named)
    here = _place(sizes, coords, axes)
    mine = [range_of(sizes, coords, b) for b in target]
    copies: list[Piece] = []
    recvs: list[Piece] = []
    sends: list[Piece] = []
    for move in moves:
        blocks = sources[move.operand]
        for holder, parts in _incoming(sizes, coords, move, blocks, mine):
            piece = Piece(_place(sizes, holder, axes), move.operand, *slices_of(parts))
            (copies if piece.peer == here else recvs).append(piece)
        for receiver, parts in _outgoing(sizes, coords, move, blocks, target):
            piece = Piece(_place(sizes, receiver, axes), move.operand, *slices_of(parts))
            if piece.peer != here:
                sends.append(piece)
    return Table(axes, tuple(copies), tuple(sends), tuple(recvs))


def _place(sizes: dict[str, int], coords: Coords, axes: Sequence[str]) -> int:
    k = 0
    for a in axes:
        k = k * sizes[a] + coords[a]
    return k


def range_of(sizes: dict[str, int], coords: Coords, blocks: Blocks) -> tuple[int, int]:
    """The first index of the block of the device at `coords` along one dim, and how many it holds."""
    return blocks.start + _place(sizes, coords, blocks.axes) * blocks.step, blocks.length


def _incoming(
    sizes: dict[str, int], coords: Coords, move: Move, source: Sequence[Blocks], mine: Sequence[tuple[int, int]]
) -> Iterator[tuple[Coords, list[Along]]]:
    """(coordinates of the sender, parts per dim) of each box that makes up the device's own target block."""
    options = []
    for along, blocks, target in zip(move.dims, source, mine):
        found = []
        for k in _candidates(along, blocks, target, math.prod(sizes[a] for a in blocks.axes)):
            part = cut(along, (blocks.start + k * blocks.step, blocks.length), target)
            if part is not None:
                found.append((_digits(sizes, blocks.axes, k), part))
        options.append(found)
    for combination in itertools.product(*options):
        holder = dict(coords)
        for digits, _ in combination:
            holder.update(digits)
        yield holder, [part for _, part in combination]


def _candidates(along: Along, blocks: Blocks, target: tuple[int, int], count: int) -> range:
    """The numbers of the source blocks that can hold what the target block needs (source blocks tile their dim)."""
    if count == 1 or along.size == 0:
        return range(count)
    lowest = min(along.source, along.source + along.source_step * (along.size - 1))
    span = abs(along.source_step) * (along.size - 1) + 1
    part = cut(along, (lowest, span), target)
    if part is None or not blocks.step:
        return range(0)
    first = lowest + part.source
    last = first + part.source_step * (part.size - 1)
    return range(
        max(0, (min(first, last) - blocks.start) // blocks.step),
        min(count, (max(first, last) - blocks.start) // blocks.step + 1),
    )


def _digits(sizes: dict[str, int], axes: Sequence[str], k: int) -> Coords:
    out: Coords = {}
    for a in reversed(axes):
        k, out[a] = divmod(k, sizes[a])
    return out


def _outgoing(
    sizes: dict[str, int], coords: Coords, move: Move, source: Sequence[Blocks], target: Sequence[Blocks]
) -> Iterator[tuple[Coords, list[Along]]]:
    """(coordinates of the receiver, parts per dim) of each box of the device's own source block that a device takes."""
    mine = [range_of(sizes, coords, b) for b in source]
    free = tuple(dict.fromkeys(a for b in source for a in b.axes))
    found: list[dict[int, Along | None]] = [{} for _ in target]
    for numbers in itertools.product(*(range(sizes[a]) for a in free)):
        receiver = coords | dict(zip(free, numbers))
        parts = []
        for d, (along, block) in enumerate(zip(move.dims, target)):
            k = _place(sizes, receiver, block.axes)
            if k not in found[d]:
                found[d][k] = cut(along, mine[d], (block.start + k * block.step, block.length))
            part = found[d][k]
            if part is None:
                break
            parts.append(part)
        else:
            yield receiver, parts


def is_covered(moves: Sequence[Move], shape: Sequence[int]) -> bool:
    """Whether the moves, which never write a place twice, fill the whole result."""
    return sum(math.prod(a.size for a in m.dims) for m in moves) == math.prod(shape)


# -- the op ----------------------------------------------------------------------------------------

_COMPILED_ONLY = "it only stands in compiled programs, after derivatives are taken"


def _type(base: ShapedArray, *blocks: ShapedArray, target: tuple[Blocks, ...], **params: Any) -> Out:
    return Out(tuple(b.length for b in target), blocks[0].dtype, blocks[0].weak_type)


def _manual_plan(avals: tuple[ShapedArray, ...], *, target: tuple[Blocks, ...], **params: Any) -> Plan:
    return Plan(tuple(replicated(a.ndim) for a in avals), (replicated(len(target)),))


def _build(
    ctx: DeviceContext,
    *,
    moves: tuple[Move, ...],
    sources: tuple[tuple[Blocks, ...], ...],
    target: tuple[Blocks, ...],
    covered: bool,
) -> Callable[..., Any]:
    shape_of_mesh = ctx.mesh.shape_tuple
    mine = table(shape_of_mesh, ctx.coords, moves, sources, target)
    busy = bool(mine.sends or mine.recvs) or not is_local(shape_of_mesh, moves, sources, target)
    group = ctx.group(mine.axes) if busy else None
    shape = tuple(b.length for b in target)
    swap = None if group is None else repeated.swap(group, *messages(mine))
    return lambda base, *blocks: run(swap, mine, shape, covered, base, [np.asarray(b) for b in blocks])


def messages(mine: Table) -> tuple[list[repeated.Message], list[repeated.Message]]:
    """Who gets blocks of which shapes from this device, and who sends it such."""
    sends = [(p.peer, tuple(map(_length, p.source))) for p in mine.sends]
    return sends, [(p.peer, sizes_of(p.target)) for p in mine.recvs]


def _pieces(ctx: DeviceContext, avals: Sequence[ShapedArray], *, moves: tuple[Move, ...],
            sources: tuple[tuple[Blocks, ...], ...], target: tuple[Blocks, ...], covered: bool) -> Any:  # fmt: skip
    """Views of this device's blocks, what the others send, and around them the scalar that the result starts from.

    The messages are begun, and waited for by who reads what comes.  Short ones leave from copies; longer ones are read from the
    blocks until that wait.
    """
    if not covered and avals[0].ndim:
        return None
    shape_of_mesh = ctx.mesh.shape_tuple
    mine = table(shape_of_mesh, ctx.coords, moves, sources, target)
    busy = bool(mine.sends or mine.recvs) or not is_local(shape_of_mesh, moves, sources, target)
    group = ctx.group(mine.axes) if busy else None

    def run(base: Any, *blocks: Any) -> Sequence[np.ndarray]:
        arrays = [np.asarray(b) for b in blocks]
        found = [arrays[p.operand][p.source] for p in mine.copies]
        if start is None:
            return [*found, *(np.broadcast_to(base, size) for size in rest)]
        started = start([arrays[p.operand][p.source] for p in mine.sends])
        return halves.Arriving([*found, *started.result, *(np.broadcast_to(base, s) for s in rest)], started.wait)

    boxes = [p.target for p in (*mine.copies, *mine.recvs)]
    if any(s.step not in (None, 1) for box in boxes for s in box):
        return None
    shape = tuple(b.length for b in target)
    others = [] if covered else rest_of(shape, bounds_of(boxes, shape))
    rest = [sizes_of(box) for box in others]
    filled = sum(math.prod(sizes_of(box)) for box in (*boxes, *others)) == math.prod(shape)
    late = range(len(mine.copies), len(boxes)) if group is not None else None
    size = sum(math.prod(b.length for b in blocks) for blocks in sources)
    copied = _SHORT * sum(math.prod(map(_length, p.source)) for p in mine.sends) <= size
    start = None
    if group is not None:
        start = repeated.exchange(group, *messages(mine), dtypes.storage(avals[1].dtype), copied=copied).start
    places = [_place_of(p) for p in mine.copies]
    known = None if None in places else [*places, *(None for _ in (*mine.recvs, *others))]
    return Parts([*boxes, *others], run, known, late, copied) if filled else None


def _length(s: slice) -> int:
    """The number of elements of a slice that may go backwards, to the first element."""
    return len(range(s.start, -1 if s.stop is None else s.stop, s.step or 1))


def _place_of(piece: Piece) -> tuple[int, tuple[int, ...]] | None:
    """Of which operand (after the base) a piece is a view of consecutive elements, and where it begins."""
    if any(s.step not in (None, 1) for s in piece.source):
        return None
    return piece.operand + 1, tuple(s.start for s in piece.source)


def sizes_of(box: Box) -> tuple[int, ...]:
    return tuple(s.stop - s.start for s in box)


def rest_of(shape: Sequence[int], box: Box) -> list[Box]:
    """Boxes that fill what a box leaves of an array."""
    found = []
    inner = [slice(0, n) for n in shape]
    for d, s in enumerate(box):
        for side in (slice(0, s.start), slice(s.stop, shape[d])):
            if side.stop > side.start:
                found.append((*inner[:d], side, *inner[d + 1 :]))
        inner[d] = s
    return found


def bounds_of(boxes: Sequence[Box], shape: Sequence[int]) -> Box:
    """The box around disjoint boxes if they fill it, else an empty one."""
    if not boxes:
        return tuple(slice(0, 0) for _ in shape)
    outer = tuple(slice(min(b[d].start for b in boxes), max(b[d].stop for b in boxes)) for d in range(len(shape)))
    full = sum(math.prod(sizes_of(b)) for b in boxes) == math.prod(sizes_of(outer))
    return outer if full else tuple(slice(0, 0) for _ in shape)


_build.pieces = _pieces  # type: ignore[attr-defined]


def is_local(
    mesh_shape: MeshShape, moves: Sequence[Move], sources: Sequence[Sequence[Blocks]], target: Sequence[Blocks]
) -> bool:
    """Whether no device of the mesh receives anything, which all of them find alike."""
    sizes = dict(mesh_shape)
    axes = [a for a in sizes if any(a in b.axes for dims in (*sources, target) for b in dims)]
    for numbers in itertools.product(*(range(sizes[a]) for a in axes)):
        coords = dict.fromkeys(sizes, 0) | dict(zip(axes, numbers))
        mine = [range_of(sizes, coords, b) for b in target]
        for move in moves:
            if any(holder != coords for holder, _ in _incoming(sizes, coords, move, sources[move.operand], mine)):
                return False
    return True


def run(
    swap: Swap | None, mine: Table, shape: tuple[int, ...], covered: bool, base: Any, blocks: Sequence[np.ndarray]
) -> np.ndarray:
    """Do what a table says.  `base` is the target block to write over (not in place), or a scalar to fill it with.

    `swap` exchanges what is sent for what is received; None where nobody sends anything.
    """
    if covered and not mine.recvs and len(mine.copies) == 1:
        out = blocks[mine.copies[0].operand][mine.copies[0].source]  # a view
    else:
        if covered:
            out = np.empty(shape, blocks[0].dtype)
        elif np.ndim(base):
            out = np.array(base, order="C")
        else:
            out = np.full(shape, base, blocks[0].dtype)
        for p in mine.copies:
            out[p.target] = blocks[p.operand][p.source]
    if swap is not None:
        swap([blocks[p.operand][p.source] for p in mine.sends], [out[p.target] for p in mine.recvs])
    return out


move_boxes = define(
    "move_boxes",
    type_rule=_type,
    plan=_manual_plan,
    build=_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    partial_sums=pass_through,
    hlo_name="collective-permute",
)


# -- moves that depend on values --------------------------------------------------------------------


def _dynamic_type(
    base: ShapedArray, block: ShapedArray, *starts: ShapedArray, target: tuple[Blocks, ...], **params: Any
) -> Out:
    return Out(tuple(b.length for b in target), block.dtype, block.weak_type)


def _dynamic_build(
    ctx: DeviceContext,
    *,
    take: bool,
    source_shape: tuple[int, ...],
    target_shape: tuple[int, ...],
    source: tuple[Blocks, ...],
    target: tuple[Blocks, ...],
) -> Callable[..., Any]:
    axes = mesh_order(ctx.mesh, {a for b in (*source, *target) for a in b.axes})
    group = ctx.group(axes)
    shape = tuple(b.length for b in target)
    window, space = (target_shape, source_shape) if take else (source_shape, target_shape)

    @lru_cache(maxsize=64)
    def table_at(starts: tuple[int, ...]) -> Table:
        dims = tuple(sliced(s, 1, n) if take else placed(s, n) for s, n in zip(starts, window))
        return table(ctx.mesh.shape_tuple, ctx.coords, (Move(0, dims),), (source,), target)

    def run_at(base: Any, block: Any, *starts: Any) -> np.ndarray:
        at = tuple(clamp_start(s, n, m) for s, n, m in zip(starts, space, window))
        mine = table_at(at)

        def swap(blocks: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
            if blocks or targets or config.check:  # a member with nothing to do may stay away, unless all are compared
                given = [(p.peer, x) for p, x in zip(mine.sends, blocks)]
                mpi.exchange(group, given, [(p.peer, x) for p, x in zip(mine.recvs, targets)])

        return run(swap, mine, shape, take, base, [np.asarray(block)])

    return run_at


def clamp_start(start: Any, size: int, count: int) -> int:
    """The start of a window of `count` in a dim of `size`, moved into range as dynamic_slice does."""
    return max(0, min(int(start), size - count))


move_boxes_at = define(
    "move_boxes_at",
    type_rule=_dynamic_type,
    plan=lambda avals, *, target, **params: Plan(tuple(replicated(a.ndim) for a in avals), (replicated(len(target)),)),
    build=_dynamic_build,
    jvp=Undefined(_COMPILED_ONLY),
    transpose=Undefined(_COMPILED_ONLY),
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="collective-permute",
)


# -- for plans -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoxRoutes:
    """A local program of moves (a `Plan.local`): one result per entry of `moves`.

    Operand number `base`, when there is one, is no source: it is the scalar or the block that the result starts from.
    `masked`: mesh axes over which the result is a sum, so that a base scalar counts on one device only.
    """

    moves: tuple[tuple[Move, ...], ...]
    ins: tuple[Dims, ...]
    outs: tuple[Dims, ...]
    in_shapes: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    base: int | None
    masked: tuple[str, ...]
    multiple: bool

    def __call__(self, ctx: LocalContext, *operands: Any, **params: Any) -> Any:
        number = [k for k in range(len(operands)) if k != self.base]
        blocks = [operands[k] for k in number]
        base = blocks[0] if self.base is None else operands[self.base]
        if self.masked:
            base = mask_replicas(base, axes=self.masked)
        sources = tuple(blocks_of(ctx.mesh, self.in_shapes[k], self.ins[k]) for k in number)
        results = []
        for moves, shape, dims in zip(self.moves, self.out_shapes, self.outs):
            target, covered = blocks_of(ctx.mesh, shape, dims), is_covered(moves, shape)
            results.append(move_boxes(base, *blocks, moves=moves, sources=sources, target=target, covered=covered))
        return results if self.multiple else results[0]


def box_plan(
    avals: Sequence[ShapedArray],
    ins: Sequence[Dims],
    moves: Sequence[Sequence[Move]],
    shapes: Sequence[tuple[int, ...]],
    outs: Sequence[Dims],
    *,
    base: int | None = None,
    masked: tuple[str, ...] = (),
    multiple: bool = False,
) -> Plan:
    """The plan of an op whose result blocks are boxes of operand blocks.

    `ins` gives the wanted axes of each operand, `outs` those of each result; moves count the operands without `base`.
    """
    if any(len(d) != a.ndim for a, d in zip(avals, ins)):
        raise InternalError(f"box_plan: {ins} do not fit {avals}")
    program = BoxRoutes(
        tuple(tuple(m) for m in moves),
        tuple(ins),
        tuple(outs),
        tuple(a.shape for a in avals),
        tuple(shapes),
        base,
        masked,
        multiple,
    )
    return Plan(tuple(spec_from(d) for d in ins), tuple(spec_from(d) for d in outs), local=program)


def changed_dims(name: str, mesh: Any, old: Sequence[int], new: Sequence[int], dims: Dims, message: str) -> Dims:
    """The result's axes where some dims change their size: a sharded one keeps its axes when they divide the new size.

    Else ShardingTypeError if an Explicit axis is in the way, and the Auto axes are dropped if only they are.
    """
    out = []
    for n, m, axes in zip(old, new, dims):
        if n == m or not axes or m % axes_size(mesh, axes) == 0:
            out.append(axes)
            continue
        kept = explicit_axes(mesh, axes)
        require_divisible(name, mesh, (m,), (kept,), message)
        out.append(kept)
    return tuple(out)


def explicit_axes(mesh: Any, axes: Sequence[str]) -> tuple[str, ...]:
    """The axes that the user's types show; the others are the compiler's to drop where they are in the way."""
    kinds = mesh.axis_type_of
    return tuple(a for a in axes if kinds[a] is not AxisType.Auto)
