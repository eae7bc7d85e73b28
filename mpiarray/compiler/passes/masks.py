"""Masks of rows and columns choose one after the other.

`where((i > 0) & (j > 0), new, old)`, with i a column of row numbers and j a row of column numbers, would make a mask of every
element and then look at each.  `where(i > 0, where(j > 0, new, old), old)` is the same, and a mask that is broadcast
costs nothing where it is the same for all rows of a tile, and a copy of the few rows or columns where it is not
(`ops.select.choose`).  So conjunctions and disjunctions of such masks, and their negations, are taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var
from mpiarray.core.op import Op
from mpiarray.ops.bits import and_, not_, or_
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.select import select_n
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_FEW = 8  # a mask is small where each of its elements counts for so many of what is chosen
_MOST = 8  # masks of one choice


def masks(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such choices taken apart, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, masks)
    rewriter = _Rewriter(jaxpr)
    if not any(map(rewriter.applies, jaxpr.eqns)):
        return jaxpr
    return rewriter.run()


class _Rewriter:
    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr
        self.makers: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.out: list[Eqn] = []
        self.made: set[Any] = set()  # masks that are not looked into again

    def run(self) -> Jaxpr:
        for eqn in self.jaxpr.eqns:
            if self.applies(eqn):
                mask, no, yes = eqn.invars
                self._choose(mask, no, yes, eqn, eqn.outvars[0])
            else:
                self.out.append(eqn)
        return dead_code(self.jaxpr.replace(eqns=self.out))

    def applies(self, eqn: Eqn) -> bool:
        """Whether an equation chooses by a mask that is made of small ones, among others."""
        if eqn.op is not select_n or len(eqn.invars) != 3 or not eqn.invars[0].aval.ndim:
            return False
        terms = self._terms(eqn.invars[0])
        return 1 < len(terms) <= _MOST and any(self._is_small(t, eqn.outvars[0]) for t in terms)

    def _terms(self, mask: Atom) -> list[Atom]:
        """What a mask is made of by and, or, not; no more than one too many."""
        found: list[Atom] = []
        todo = [mask]
        while todo and len(found) + len(todo) <= _MOST + 1:
            v = todo.pop()
            eqn = self._logical(v)
            if eqn is None:
                found.append(v)
            else:
                todo += eqn.invars
        return found + todo

    def _logical(self, mask: Atom) -> Eqn | None:
        eqn = None if mask in self.made else self.makers.get(mask)
        return eqn if eqn is not None and eqn.op in (and_, or_, not_) and dtypes.is_bool(mask.aval.dtype) else None

    def _is_small(self, mask: Atom, result: Var) -> bool:
        return self._origin(mask)[0].aval.size * _FEW <= result.aval.size

    def _origin(self, mask: Atom) -> tuple[Atom, tuple[int, ...]]:
        """What a mask is a broadcast of, and along which dims of what is chosen it lies."""
        eqn = self.makers.get(mask)
        if eqn is not None and eqn.op is broadcast_in_dim:
            return eqn.invars[0], eqn.params["broadcast_dimensions"]
        return mask, tuple(range(mask.aval.ndim))

    def _choose(self, mask: Atom, no: Atom, yes: Atom, origin: Eqn, out: Var | None = None) -> Atom:
        """`yes` where the mask is True, else `no`."""
        eqn = self._logical(mask)
        (result,) = origin.outvars
        if eqn is None:
            return self._emit(select_n, (self._whole(mask, origin), no, yes), {}, origin, out)
        if eqn.op is not_:
            return self._choose(eqn.invars[0], yes, no, origin, out)
        terms = self._alike(mask, eqn.op)
        small = [t for t in terms if self._is_small(t, result) and self._logical(t) is None]
        steps = [
            *self._one_by_one([t for t in terms if t not in small], eqn.op, origin),
            *self._joined(small, eqn.op, origin),
        ]
        found = yes if eqn.op is and_ else no
        for k, step in enumerate(steps):
            at = out if k == len(steps) - 1 else None
            pair = (no, found) if eqn.op is and_ else (found, yes)
            found = self._choose(step, *pair, origin, at)
        return found

    def _alike(self, mask: Atom, op: Op) -> list[Atom]:
        """The terms of a conjunction, or of a disjunction."""
        eqn = self._logical(mask)
        return [t for v in eqn.invars for t in self._alike(v, op)] if eqn is not None and eqn.op is op else [mask]

    def _one_by_one(self, terms: Sequence[Atom], op: Op, origin: Eqn) -> list[Atom]:
        """Those that are made of small masks by themselves; the others as one mask."""
        (result,) = origin.outvars
        nested = [t for t in terms if self._logical(t) and any(self._is_small(u, result) for u in self._terms(t))]
        plain = [t for t in terms if t not in nested]
        while len(plain) > 1:
            plain[:2] = [self._emit(op, plain[:2], {}, origin)]
        self.made.update(plain)
        return plain + nested

    def _joined(self, small: Sequence[Atom], op: Op, origin: Eqn) -> list[Atom]:
        """Those that are broadcast along the same dims as one."""
        groups: dict[Any, list[Atom]] = {}
        for mask in dict.fromkeys(small):
            x, dims = self._origin(mask)
            groups.setdefault((x.aval.shape, dims), []).append(x)
        found: list[Atom] = []
        for (_, dims), (mask, *more) in groups.items():
            for other in more:
                mask = self._emit(op, (mask, other), {}, origin)
            found.append(self._whole(mask, origin, dims))
        return found

    def _whole(self, mask: Atom, origin: Eqn, dims: tuple[int, ...] | None = None) -> Atom:
        """A mask of the shape of what is chosen."""
        shape = origin.outvars[0].aval.shape
        if mask.aval.shape == shape:
            return mask
        dims = tuple(range(len(shape))) if dims is None else dims
        params = {"shape": shape, "broadcast_dimensions": dims, "sharding": None}
        whole = self._emit(broadcast_in_dim, (mask,), params, origin)
        self.made.add(whole)
        return whole

    def _emit(self, op: Op, invars: Sequence[Atom], params: dict[str, Any], origin: Eqn, out: Var | None = None) -> Var:
        if out is None:
            made: Any = op.type_rule(*(v.aval for v in invars), **params)
            out = Var(ShapedArray(tuple(made.shape), made.dtype, made.weak_type))
        eqn = Eqn(op, invars, (out,), params, origin.mesh, origin.source)
        self.makers[out] = eqn
        self.out.append(eqn)
        return out
