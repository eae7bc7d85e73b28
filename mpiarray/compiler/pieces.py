"""Values that are not put together: a shifted array that a group of elementwise equations reads tile by tile.

A rolled or sliced array with the rows of neighbours, and a concatenation, consist of views of what is there already and
of a few received rows.  Where only groups (`fusion`) read such a value, its step gives the list of its pieces, and the
group cuts its tiles where pieces meet, so that each tile lies in one piece of every operand.  A stencil written with
slices or rolls of the whole array then reads its operand in place.

An op says how with `pieces`, an attribute of its `build` or `impl`: `pieces(ctx, avals, **params)` gives the boxes of the
result that the pieces fill and the function of blocks that gives the pieces, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var
from mpiarray.core.value import Literal
from mpiarray.ops.fused_update import fusion_update
from mpiarray.ops.tiles import Box, cuts_of, fusion

GROUPS = frozenset((fusion, fusion_update))
_MOST_REGIONS = 64  # parts into which the pieces' borders may cut the tiles' space


class Pieces(NamedTuple):
    """The boxes that a value's pieces fill, and what gives the pieces."""

    boxes: tuple[Box, ...]
    run: Callable[..., Any]


def find(jaxpr: Jaxpr, context: Callable[[Any], DeviceContext]) -> dict[Var, Pieces]:
    """The values of a program that stay in pieces."""
    readers: dict[Any, list[Eqn | None]] = {}
    for eqn in jaxpr.eqns:
        for v in eqn.invars:
            readers.setdefault(v, []).append(eqn)
    for v in jaxpr.outvars:
        readers.setdefault(v, []).append(None)
    found: dict[Var, Pieces] = {}
    for eqn in jaxpr.eqns:
        give = getattr(eqn.op.build or eqn.op.impl, "pieces", None)
        if give is None:
            continue
        (v,) = eqn.outvars
        if not all(r is not None and _sliced_by(r, v) for r in readers.get(v, [None])):
            continue
        made = give(context(eqn.mesh), [a.aval for a in eqn.invars], **eqn.params)
        if made is not None:
            found[v] = Pieces(tuple(made[0]), made[1])
    for eqn in jaxpr.eqns:
        if eqn.op in GROUPS:
            boxes = list(boxes_of(eqn, found).values())
            regions = math.prod(len(c) + 1 for c in cuts_of(eqn.params["shape"], boxes))
            if regions > _MOST_REGIONS:
                operands: Sequence[Any] = eqn.invars
                for v in operands:
                    found.pop(v, None)
    return found


def _sliced_by(eqn: Eqn, v: Var) -> bool:
    """Whether an equation is a group that takes tiles of the value (and does not broadcast it)."""
    if eqn.op not in GROUPS or v.aval.shape != eqn.params["shape"]:
        return False
    operands = eqn.invars[eqn.op is fusion_update :]
    if v in eqn.invars and v not in operands:
        return False
    inner = [w for w, outer in zip(eqn.params["jaxpr"].invars, operands) if outer is v]
    return all(
        e.op.elementwise
        for e in eqn.params["jaxpr"].eqns
        for w in e.invars
        if not isinstance(w, Literal) and w in inner
    )


def boxes_of(eqn: Eqn, found: dict[Var, Pieces]) -> dict[int, tuple[Box, ...]]:
    """For the operands of a group that are in pieces, by their numbers: the boxes."""
    operands: Sequence[Any] = eqn.invars[eqn.op is fusion_update :]
    return {k: found[v].boxes for k, v in enumerate(operands) if v in found}
