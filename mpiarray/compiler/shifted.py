"""Stencils in place: which groups may write over an array of which they read shifted parts (`ops.sweeps`).

An array that a group reads for the last time, and that nobody else can see: one that a group of the program made, an argument
that the program owns, or the carry of a loop from the second iteration on, when it is what the group itself made one iteration
before.  A message from such an array leaves from a copy, and whatever else may be a view of it is no operand of the group
unless it is known where it begins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from mpiarray.compiler.pieces import GROUPS, Pieces, place_of
from mpiarray.compiler.reuse import ends_of, makes_new
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var
from mpiarray.core.value import Literal
from mpiarray.ops.fused_update import fusion_update
from mpiarray.ops.in_place import OVERWRITING
from mpiarray.ops.sweeps import Shifts


class Over(NamedTuple):
    """The array that a group may write over, what it reads of it, and whether only where the caller says that it may."""

    array: Var
    shifts: Shifts
    asks: bool


def find(
    jaxpr: Jaxpr, pieces: Mapping[Var, Pieces], owned: Collection[Any] = (), carries: Mapping[int, int] | None = None
) -> dict[Eqn, Over]:
    """The groups of a program that may.

    owned    arguments that are the program's to write over
    carries  results of the body of a loop, and which arguments they are in the next iteration, by their numbers
    """
    if not any(e.op in GROUPS for e in jaxpr.eqns):
        return {}
    finder = _Finder(jaxpr, pieces, owned, carries or {})
    return {e: over for k, e in enumerate(jaxpr.eqns) if e.op in GROUPS and (over := finder.over(k, e)) is not None}


class _Finder:
    def __init__(self, jaxpr: Jaxpr, pieces: Mapping[Var, Pieces], owned: Collection[Any], carries: Mapping[int, int]):
        self.jaxpr, self.pieces = jaxpr, pieces
        self.ends = ends_of(jaxpr)
        self.makers: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.roots: dict[Any, frozenset[Any]] = {}  # whose memory a value may be
        for eqn in jaxpr.eqns:
            if not makes_new(eqn) and eqn.op not in OVERWRITING:
                found = frozenset(r for v in eqn.invars if not isinstance(v, Literal) for r in self._roots(v))
                self.roots.update(dict.fromkeys(eqn.outvars, found))
        self.own = {*owned, *(v for e in jaxpr.eqns if e.op in GROUPS for v in e.outvars)}
        self.next = {
            jaxpr.invars[a]: v
            for k, a in carries.items()
            if isinstance(v := jaxpr.outvars[k], Var) and sum(v in self._roots(o) for o in jaxpr.outvars) == 1
        }

    def _roots(self, v: Any) -> frozenset[Any]:
        return frozenset() if isinstance(v, Literal) else self.roots.get(v, frozenset((v,)))

    def over(self, k: int, eqn: Eqn) -> Over | None:
        """What equation k may write over."""
        if eqn.params.get("rows"):
            return None
        operands = eqn.invars[eqn.op is fusion_update :]
        if not all(self.pieces[v].copied for v in operands if isinstance(v, Var) and v in self.pieces):
            return None
        places = {n: found for n, v in enumerate(operands) if (found := self._places(v, eqn)) is not None}
        if eqn.op is fusion_update:
            arrays: list[Any] = [eqn.invars[0]]
        else:
            arrays = list(dict.fromkeys(p[0] for found in places.values() for _, p in found if p is not None))
        for array in arrays:
            result = self._result(array, k, eqn)
            reads = None if result is None else self._reads(array, operands, places)
            if result is not None and reads is not None:
                return Over(
                    array, Shifts(result, reads, array.aval.shape, (0,) * array.aval.ndim), array not in self.own
                )
        return None

    def _places(self, v: Any, eqn: Eqn) -> list[tuple[tuple[int, ...], Any]] | None:
        """For each piece of an operand where it begins in the group and where it lies; None where that is not known."""
        if isinstance(v, Literal) or v.aval.shape != eqn.params["shape"]:
            return None
        if v not in self.pieces:
            return [((0,) * v.aval.ndim, place_of(v, (0,) * v.aval.ndim, self.makers, self.pieces))]
        found = self.pieces[v]
        if found.places is None:
            return None
        return [(tuple(s.start for s in box), place) for box, place in zip(found.boxes, found.places)]

    def _result(self, array: Any, k: int, eqn: Eqn) -> int | None:
        """Which result of equation k may be written over an array."""
        if not isinstance(array, Var) or self.ends.get(array) != k or self._roots(array) != {array}:
            return None
        after = self.next.get(array)
        for n, v in enumerate(eqn.outvars):
            like = v.aval.shape == array.aval.shape and v.aval.dtype == array.aval.dtype
            if like and (v is after or array in self.own):
                return n
        return None

    def _reads(self, array: Any, operands: Any, places: Any) -> dict[int, Any] | None:
        """How far what the operands have of an array lies beyond the group's elements; None where something is not known, or
        all of it lies where it is."""
        reads: dict[int, Any] = {}
        for n, v in enumerate(operands):
            if n not in places:
                if array in self._roots(v):
                    return None
                continue
            found: list[tuple[int, ...] | None] = []
            for start, place in places[n]:
                if place is not None and place[0] is array:
                    found.append(tuple(b - a for a, b in zip(start, place[1])))
                elif place is not None and array in self._roots(place[0]):
                    return None
                else:
                    found.append(None)
            if any(r is not None for r in found):
                reads[n] = found
        return reads if any(r is not None and any(r) for found in reads.values() for r in found) else None
