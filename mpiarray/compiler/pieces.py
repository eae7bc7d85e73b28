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
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, readers_of
from mpiarray.core.value import Literal
from mpiarray.ops.fused_update import fusion_update
from mpiarray.ops.slicing import slice_
from mpiarray.ops.tiles import Box, cuts_of, fusion

GROUPS = frozenset((fusion, fusion_update))
_MOST_REGIONS = 64  # parts into which the pieces' borders may cut the tiles' space


class Pieces(NamedTuple):
    """The boxes that a value's pieces fill, and what gives the pieces."""

    boxes: tuple[Box, ...]
    run: Callable[..., Any]


def find(jaxpr: Jaxpr, context: Callable[[Any], DeviceContext]) -> dict[Var, Pieces]:
    """The values of a program that stay in pieces."""
    if not any(e.op in GROUPS for e in jaxpr.eqns):
        return {}
    finder = _Finder(jaxpr)
    for eqn in jaxpr.eqns:
        if len(eqn.outvars) == 1 and eqn.outvars[0] in finder.wanted:
            finder.take(eqn, context)
    for eqn in jaxpr.eqns:
        if eqn.op in GROUPS:
            boxes = list(boxes_of(eqn, finder.found).values())
            if math.prod(len(c) + 1 for c in cuts_of(eqn.params["shape"], boxes)) > _MOST_REGIONS:
                for v in eqn.invars:
                    finder.drop(v)
    return finder.found


class _Finder:
    """`wanted`: the values that only groups read, and slices that themselves are wanted."""

    def __init__(self, jaxpr: Jaxpr):
        self.found: dict[Any, Pieces] = {}
        self.makers: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.readers = readers_of(jaxpr)
        self.wanted: set[Any] = set()
        for eqn in reversed(jaxpr.eqns):
            for v in eqn.outvars:
                readers = self.readers[v]
                if readers and all(r is not None and self._reads_parts(r, v) for r in readers):
                    self.wanted.add(v)

    def _reads_parts(self, eqn: Eqn, v: Var) -> bool:
        return _sliced_by(eqn, v) or (_is_plain_slice(eqn) and eqn.outvars[0] in self.wanted)

    def take(self, eqn: Eqn, context: Callable[[Any], DeviceContext]) -> None:
        """Let the result of an equation stay in pieces if it can."""
        (v,) = eqn.outvars
        if _is_plain_slice(eqn):
            whole = self.found.get(eqn.invars[0])
            if whole is not None:
                self.found[v] = _part(whole, eqn.params["start_indices"], eqn.params["limit_indices"])
            return
        give = getattr(eqn.op.build or eqn.op.impl, "pieces", None)
        made = None if give is None else give(context(eqn.mesh), [a.aval for a in eqn.invars], **eqn.params)
        if made is not None:
            self.found[v] = Pieces(tuple(made[0]), made[1])

    def drop(self, v: Any) -> None:
        """Put a value together after all, and so what it is a slice of, and what is a slice of it."""
        if self.found.pop(v, None) is None:
            return
        if _is_plain_slice(self.makers[v]):
            self.drop(self.makers[v].invars[0])
        for reader in self.readers[v]:
            if reader is not None and _is_plain_slice(reader):
                self.drop(reader.outvars[0])


def _is_plain_slice(eqn: Eqn) -> bool:
    return eqn.op is slice_ and all(s == 1 for s in eqn.params["strides"] or ())


def _part(whole: Pieces, start: Sequence[int], limit: Sequence[int]) -> Pieces:
    """A slice of a value in pieces: the parts of the pieces that it meets."""
    boxes, parts = [], []
    for k, box in enumerate(whole.boxes):
        ends = [(max(s.start, a), min(s.stop, b)) for s, a, b in zip(box, start, limit)]
        if all(a < b for a, b in ends):
            boxes.append(tuple(slice(a - first, b - first) for (a, b), first in zip(ends, start)))
            parts.append((k, tuple(slice(a - s.start, b - s.start) for (a, b), s in zip(ends, box))))
    return Pieces(tuple(boxes), lambda pieces: [pieces[k][index] for k, index in parts])


def _sliced_by(eqn: Eqn, v: Var) -> bool:
    """Whether an equation is a group that takes tiles of the value (and does not broadcast it, or need whole rows)."""
    if eqn.op not in GROUPS or v.aval.shape != eqn.params["shape"] or eqn.params.get("rows"):
        return False
    operands = eqn.invars[eqn.op is fusion_update :]
    if eqn.op is fusion_update and eqn.invars[0] is v:
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


def origins_of(jaxpr: Jaxpr, found: dict[Var, Pieces]) -> dict[Any, Any]:
    """For plain slices and values in pieces: the array that they are, for the most part, a view of."""
    origins: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        if _is_plain_slice(eqn) or (len(eqn.outvars) == 1 and eqn.outvars[0] in found):
            largest = max(eqn.invars, key=lambda v: v.aval.size)
            origins[eqn.outvars[0]] = origins.get(largest, largest)
    return origins


def sources_of(eqn: Eqn, origins: dict[Any, Any]) -> list[Any]:
    """For each operand of a group the array that it is a part of."""
    return [origins.get(v, v) for v in eqn.invars[eqn.op is fusion_update :]]
