"""Values that are not put together: a shifted array that a group of elementwise equations reads tile by tile.

A rolled or sliced array with the rows of neighbours, and a concatenation, consist of views of what is there already and
of a few received rows.  Where only groups (`fusion`) read such a value, its step gives the list of its pieces, and the
group cuts its tiles where pieces meet, so that each tile lies in one piece of every operand.  A stencil written with
slices or rolls of the whole array then reads its operand in place.

An op says how with `pieces`, an attribute of its `build` or `impl`: `pieces(ctx, avals, **params)` gives an `ops.common.Parts`,
or None.

Pieces that other devices send may be on their way when the group begins.  The group computes the tiles that need none of them, waits, and
computes the others.  The block of a `ppermute` that is only concatenated with others is such a piece as well.

What is being sent is a view of its operand, and so is the value in pieces, for all who ask which blocks may be written over
(`reuse`, `control_flow.in_place`): a block stays as it is until the last group that reads the value is done, and the first one
has waited for the messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from mpiarray.comm.halves import Arriving
from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, readers_of
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import ppermute
from mpiarray.ops.fused_update import fusion_update
from mpiarray.ops.shape import concatenate
from mpiarray.ops.slicing import slice_
from mpiarray.ops.tiles import Box, cuts_of, fusion, needs_whole

GROUPS = frozenset((fusion, fusion_update))
_MOST_REGIONS = 64  # parts into which the pieces' borders may cut the tiles' space


Place = tuple[Var, tuple[int, ...]]  # a value, and where in it a view begins


class Pieces(NamedTuple):
    """The boxes that a value's pieces fill, and what gives the pieces.

    places  for each piece the value that it is a view of, and where it begins there; None: of none, but new memory
            (None for all of them: nothing is known)
    late    the numbers of those that may still be on their way; None where there is nothing to wait for
    copied  whether what is sent meanwhile leaves from copies
    """

    boxes: tuple[Box, ...]
    run: Callable[..., Any]
    places: tuple[Place | None, ...] | None = None
    late: frozenset[int] | None = None
    copied: bool = True


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
    """`wanted`: the values that only groups read, and slices and concatenations that themselves are wanted."""

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
        return _sliced_by(eqn, v) or (_passes_on(eqn) and eqn.outvars[0] in self.wanted)

    def take(self, eqn: Eqn, context: Callable[[Any], DeviceContext]) -> None:
        """Let the result of an equation stay in pieces if it can."""
        (v,) = eqn.outvars
        if _is_plain_slice(eqn):
            whole = self.found.get(eqn.invars[0])
            if whole is not None:
                self.found[v] = _part(whole, eqn.params["start_indices"], eqn.params["limit_indices"])
            return
        if eqn.op is ppermute and any(r is None or r.op is not concatenate for r in self.readers[v]):
            return  # a piece that is all of a value: there would be nothing to do meanwhile
        give = getattr(eqn.op.build or eqn.op.impl, "pieces", None)
        made = None if give is None else give(context(eqn.mesh), [a.aval for a in eqn.invars], **eqn.params)
        if made is not None:
            late = None if made.late is None else frozenset(made.late)
            found = Pieces(tuple(made.boxes), made.run, self._places(eqn, made.places), late, made.copied)
            self.found[v] = _joined(found, [self.found.get(u) for u in eqn.invars]) if eqn.op is concatenate else found

    def _places(self, eqn: Eqn, places: Sequence[Any] | None) -> tuple[Place | None, ...] | None:
        """Where pieces lie in what their operands are slices of."""
        if places is None or any(p is not None and isinstance(eqn.invars[p[0]], Literal) for p in places):
            return None
        return tuple(None if p is None else place_of(eqn.invars[p[0]], p[1], self.makers, self.found) for p in places)

    def drop(self, v: Any) -> None:
        """Put a value together after all, and so what it is a slice of, and what is a slice of it."""
        if self.found.pop(v, None) is None:
            return
        if _passes_on(self.makers[v]):
            for u in self.makers[v].invars:
                self.drop(u)
        for reader in self.readers[v]:
            if reader is not None and _passes_on(reader):
                self.drop(reader.outvars[0])


def _is_plain_slice(eqn: Eqn) -> bool:
    return eqn.op is slice_ and all(s == 1 for s in eqn.params["strides"] or ())


def _passes_on(eqn: Eqn) -> bool:
    """Whether an equation may give pieces of what it reads in pieces."""
    return eqn.op is concatenate or _is_plain_slice(eqn)


def _joined(whole: Pieces, parts: Sequence[Pieces | None]) -> Pieces:
    """A concatenation of values of which some are in pieces themselves."""
    if not any(parts):
        return whole
    boxes: list[Box] = []
    late: set[int] = set()
    places: list[Place | None] | None = None if whole.places is None else []
    for k, (box, part) in enumerate(zip(whole.boxes, parts)):
        if part is not None and part.late is not None:
            late |= {len(boxes) + n for n in part.late}
        inner = [tuple(slice(0, s.stop - s.start) for s in box)] if part is None else part.boxes
        boxes += [tuple(slice(s.start + b.start, s.start + b.stop) for s, b in zip(box, at)) for at in inner]
        own = (
            (whole.places[k],)
            if part is None and whole.places is not None
            else part.places
            if part is not None
            else None
        )
        places = None if places is None or own is None else [*places, *own]
    split = [part is not None for part in parts]
    waits = [k for k, part in enumerate(parts) if part is not None and part.late is not None]

    def run(*blocks: Any) -> Sequence[Any]:
        pieces = [p for block, apart in zip(blocks, split) for p in (block if apart else (block,))]
        return Arriving(pieces, lambda: [blocks[k].wait() for k in waits]) if waits else pieces

    copied = all(part.copied for part in parts if part is not None)
    known = None if places is None else tuple(places)
    return Pieces(tuple(boxes), run, known, frozenset(late) if waits else None, copied)


def _part(whole: Pieces, start: Sequence[int], limit: Sequence[int]) -> Pieces:
    """A slice of a value in pieces: the parts of the pieces that it meets."""
    boxes, parts = [], []
    for k, box in enumerate(whole.boxes):
        ends = [(max(s.start, a), min(s.stop, b)) for s, a, b in zip(box, start, limit)]
        if all(a < b for a, b in ends):
            boxes.append(tuple(slice(a - first, b - first) for (a, b), first in zip(ends, start)))
            parts.append((k, tuple(slice(a - s.start, b - s.start) for (a, b), s in zip(ends, box))))

    def run(pieces: Any) -> Sequence[Any]:
        found = [pieces[k][index] for k, index in parts]
        return found if whole.late is None else Arriving(found, pieces.wait)

    late = None if whole.late is None else frozenset(n for n, (k, _) in enumerate(parts) if k in whole.late)
    places = None if whole.places is None else tuple(_within(whole.places[k], index) for k, index in parts)
    return Pieces(tuple(boxes), run, places, late, whole.copied)


def _within(place: Place | None, index: Box) -> Place | None:
    """The place of a part of a piece."""
    return None if place is None else (place[0], tuple(a + s.start for a, s in zip(place[1], index)))


def place_of(v: Any, start: Sequence[int], makers: Mapping[Any, Eqn], found: Collection[Any] = ()) -> Place:
    """Where the elements from `start` of a value on lie: in the value that it is a plain slice of."""
    while v in makers and v not in found and _is_plain_slice(makers[v]):
        eqn = makers[v]
        start = [a + b for a, b in zip(start, eqn.params["start_indices"])]
        v = eqn.invars[0]
    return v, tuple(start)


def _sliced_by(eqn: Eqn, v: Var) -> bool:
    """Whether an equation is a group that takes tiles of the value (and does not broadcast it, or need whole rows)."""
    if eqn.op not in GROUPS or v.aval.shape != eqn.params["shape"] or needs_whole(eqn):
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


def late_of(eqn: Eqn, found: dict[Var, Pieces]) -> dict[int, frozenset[int]]:
    """For the operands of a group that may be on their way, by their numbers: the numbers of these pieces."""
    operands: Sequence[Any] = eqn.invars[eqn.op is fusion_update :]
    late = {k: found[v].late for k, v in enumerate(operands) if v in found}
    return {k: numbers for k, numbers in late.items() if numbers is not None}


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
