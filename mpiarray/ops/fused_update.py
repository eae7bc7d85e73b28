"""`fusion_update`: a group whose result replaces a box of an array, written where it belongs.

`u.at[1:-1, 1:-1].set(0.25 * around)` would compute the interior, copy `u`, and copy the interior into the copy.  Here the
new array is made, only what the box leaves of `u` is copied, and the group's tiles are written into the box; rows that
belong to other ranks are computed where they are sent from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.comm import repeated
from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import Jaxpr
from mpiarray.core.op import Out, Undefined, define
from mpiarray.core.plan import Plan, mesh_order, replicated
from mpiarray.ops import sweeps
from mpiarray.ops.boxes import (
    Blocks,
    Box,
    Move,
    Piece,
    Table,
    bounds_of,
    clamp_start,
    is_local,
    messages,
    placed,
    rest_of,
    sizes_of,
    table,
)
from mpiarray.ops.inside import own_part
from mpiarray.ops.tiles import Shape

_NEVER = Undefined("groups are made after differentiation and batching, of blocks")

#: sizes and blocks of update and array over the mesh: (source_shape, target_shape, source, target) of `move_boxes_at`
Moves = tuple[Shape, Shape, tuple[Blocks, ...], tuple[Blocks, ...]]
#: where the group computes on all of the array, and a box of it is written: start, limit and blocks of `update_inside`
Part = tuple[Shape, Shape, tuple[Blocks, ...]]


def _length(s: slice) -> int:
    return s.stop - s.start


def each_once(boxes: Sequence[Box], shape: Shape) -> bool:
    """Whether boxes fill an array without meeting."""
    apart = all(
        any(a[d].stop <= b[d].start or b[d].stop <= a[d].start for d in range(len(shape)))
        for k, a in enumerate(boxes)
        for b in boxes[:k]
    )
    return apart and sum(math.prod(sizes_of(b)) for b in boxes) == math.prod(shape)


def _table(
    ctx: DeviceContext, base: Shape, shape: Shape, starts: tuple[int, ...], moves: Moves | None, part: Part | None
) -> tuple[Table, Any]:
    """What this device writes, sends and receives, and the group that it does this with (None: nobody sends anything)."""
    if part is not None:
        box = own_part(ctx, *part)
        return Table((), (Piece(0, 0, box, box),) if all(map(_length, box)) else (), (), ()), None
    if moves is None:
        at = [clamp_start(s, n, m) for s, n, m in zip(starts, base, shape)]
        target = tuple(slice(a, a + n) for a, n in zip(at, shape))
        return Table((), (Piece(0, 0, tuple(slice(0, n) for n in shape), target),), (), ()), None
    source_shape, target_shape, source, targets = moves
    at = [clamp_start(s, n, m) for s, n, m in zip(starts, target_shape, source_shape)]
    move = Move(0, tuple(placed(s, n) for s, n in zip(at, source_shape)))
    mine = table(ctx.mesh.shape_tuple, ctx.coords, (move,), (source,), targets)
    axes = mesh_order(ctx.mesh, {a for b in (*source, *targets) for a in b.axes})
    return mine, None if is_local(ctx.mesh.shape_tuple, (move,), (source,), targets) else ctx.group(axes)


def _shifts(mine: Table, base: Shape, reads: Mapping[int, Any]) -> sweeps.Shifts | None:
    """How far from the elements that are written those lie that are read; None where more than one box of this device is written."""
    if mine.sends or mine.recvs or len(mine.copies) != 1:
        return None
    (piece,) = mine.copies
    moved = [t.start - s.start for s, t in zip(piece.source, piece.target)]
    parts = {
        k: [None if r is None else tuple(a - b for a, b in zip(r, moved)) for r in found] for k, found in reads.items()
    }
    return sweeps.Shifts(0, parts, base, tuple(moved))


def prepare(
    ctx: DeviceContext,
    *,
    jaxpr: Jaxpr,
    shape: Shape,
    base: Shape,
    starts: tuple[int, ...],
    moves: Moves | None,
    part: Part | None = None,
    pieces: Any = None,
    sources: Any = None,
    late: Any = None,
    reads: Any = None,
) -> Callable[..., Any]:
    """The function of (array, operands of the group); `over=array` writes over it.

    `reads`, where that is wanted: for the operands that are parts of the array how far their elements lie beyond the group's.
    """
    mine, group = _table(ctx, base, shape, starts, moves, part)
    boxes = [p.source for p in (*mine.copies, *mine.sends)]
    direct = part is not None or each_once(boxes, shape)
    shifts = _shifts(mine, base, reads) if direct and reads is not None else None
    tiled = sweeps.tiled(
        jaxpr, shape, shifts, pieces=pieces, targets=boxes if direct else None, sources=sources, late=late
    )
    written = [p.target for p in (*mine.copies, *mine.recvs)]
    kept = rest_of(base, bounds_of(written, base))
    lengths = [sizes_of(p.source) for p in mine.sends]
    swap = None if group is None else repeated.swap(group, *messages(mine))

    if isinstance(tiled, sweeps.Swept):
        swept = tiled

        def run_over(array: Any, *blocks: Any, over: Any = None) -> np.ndarray:
            if over is None:
                over = memory.empty(base, array.dtype)
                for box in kept:
                    over[box] = array[box]
            swept(*blocks, [over[p.target] for p in mine.copies], over=over)
            return over

        return sweeps.overwriting(run_over)

    def run(array: Any, *blocks: Any) -> np.ndarray:
        out = memory.empty(base, array.dtype)
        for box in kept:
            out[box] = array[box]
        if direct:
            sent = [np.empty(n, array.dtype) for n in lengths]
            tiled(*blocks, [*(out[p.target] for p in mine.copies), *sent])
        else:
            (whole,) = tiled(*blocks)
            for p in mine.copies:
                out[p.target] = whole[p.source]
            sent = [whole[p.source] for p in mine.sends]
        if swap is not None:
            swap(sent, [out[p.target] for p in mine.recvs])
        return out

    return run


fusion_update = define(
    "fusion_update",
    type_rule=lambda array, *xs, base, **params: Out(base, array.dtype, array.weak_type),
    plan=lambda avals, *, base, **params: Plan(tuple(replicated(a.ndim) for a in avals), (replicated(len(base)),)),
    build=prepare,
    jvp=_NEVER,
    transpose=_NEVER,
    batch=_NEVER,
    hlo_name="fusion",
)
