"""Elementwise equations on large blocks of one shape become groups that run tile by tile (ops.tiles).

The equations are taken in their order.  A group stays open until somebody outside needs one of its values; equations
of its shape that share a value with it join it, and groups that such an equation reads from become one.  Two open
groups never need each other, since reading a value closes its group.  A group stands where it is closed, after all
that it reads.  Broadcasts to the shape of a group are free in it, and sums (and other reductions) of a group's values
end it: their results are there when the group is done.

Groups of one operation (but `moments`), and of blocks that fit into the cache anyway, are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var
from mpiarray.core.value import Literal
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.moments import moments
from mpiarray.ops.tiles import CACHE_BYTES, REDUCTIONS, fusion, joins_over_tiles
from mpiarray.types import dtypes

_MOST_MEMBERS = 256
_MOST_ARRAYS = 24
_SMALLEST = CACHE_BYTES // 4  # bytes of a block of the group


def fuse(jaxpr: Jaxpr) -> Jaxpr:
    """The program with its groups as `fusion` equations, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, fuse)
    if sum((_shape_of(e) is not None) + (e.op is moments) for e in jaxpr.eqns) < 2:
        return jaxpr
    return _Fuser(jaxpr).run()


def _shape_of(eqn: Eqn) -> tuple[int, ...] | None:
    """The shape that an equation works on, if it may be a member of a group."""
    if eqn.op.elementwise and len(eqn.outvars) == 1 and eqn.invars:
        shape = eqn.outvars[0].aval.shape
    elif eqn.op in REDUCTIONS and joins_over_tiles(eqn):
        shape = eqn.invars[0].aval.shape
    else:
        return None
    dtyped = [a.aval.dtype for a in (*eqn.invars, *eqn.outvars)]
    if any(map(dtypes.is_key, dtyped)):
        return None
    return shape if math.prod(shape) * max(d.itemsize for d in dtyped) >= _SMALLEST else None


def _meets(mine: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array goes with those of a group as it stands: each dim is the group's or 1."""
    return len(mine) == len(shape) and all(a in (b, 1) for a, b in zip(mine, shape))


class _Group:
    """Equations that run together: `made` are their values, `reads` the arrays from outside, `ends` results of reductions."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.eqns: list[Eqn] = []
        self.made: set[Var] = set()
        self.ends: set[Var] = set()
        self.reads: dict[Var, None] = {}

    def add(self, eqn: Eqn, ends: bool = False) -> None:
        for v in eqn.invars:
            if not isinstance(v, Literal) and v not in self.made:
                self.reads[v] = None
        self.eqns.append(eqn)
        self.made.update(eqn.outvars)
        if ends:
            self.ends.update(eqn.outvars)

    def join(self, other: _Group) -> None:
        self.eqns += other.eqns
        self.made |= other.made
        self.ends |= other.ends
        self.reads |= other.reads

    @property
    def full(self) -> bool:
        return len(self.eqns) >= _MOST_MEMBERS or len(self.reads) >= _MOST_ARRAYS


class _Fuser:
    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr
        self.readers: dict[Atom, list[Eqn | None]] = {}
        for eqn in jaxpr.eqns:
            for v in dict.fromkeys(eqn.invars):
                self.readers.setdefault(v, []).append(eqn)
        for v in jaxpr.outvars:
            self.readers.setdefault(v, []).append(None)
        self.open: dict[Var, _Group] = {}  # the open group that makes, or reads, a variable
        self.maker: dict[Var, _Group] = {}
        self.broadcasts: dict[Var, Eqn] = {}  # not yet written
        self.out: list[Eqn] = []

    def run(self) -> Jaxpr:
        for eqn in self.jaxpr.eqns:
            if eqn.op is broadcast_in_dim:
                self.broadcasts[eqn.outvars[0]] = eqn
                continue
            shape = _shape_of(eqn)
            if shape is None or (eqn.op in REDUCTIONS and not self._reads_member(eqn)):
                self._outside(eqn)
            else:
                self._member(eqn, shape)
        self._need(self.jaxpr.outvars)
        for group in dict.fromkeys(self.maker.values()):
            self._close(group)
        return self.jaxpr.replace(eqns=self.out)

    def _reads_member(self, eqn: Eqn) -> bool:
        """Whether a reduction gains from tiles."""
        (v,) = eqn.invars
        if eqn.op is moments:
            return True
        group = self.maker.get(v) if isinstance(v, Var) else None
        return group is not None and v not in group.ends

    def _outside(self, eqn: Eqn) -> None:
        self._need(eqn.invars)
        self.out.append(eqn)

    def _need(self, atoms: Sequence[Atom]) -> None:
        """Write what makes these values."""
        for v in atoms:
            if isinstance(v, Literal):
                continue
            if v in self.broadcasts:
                eqn = self.broadcasts.pop(v)
                self._need(eqn.invars)
                self.out.append(eqn)
            elif v in self.maker:
                self._close(self.maker[v])

    def _member(self, eqn: Eqn, shape: tuple[int, ...]) -> None:
        reads = [v for v in dict.fromkeys(eqn.invars) if not isinstance(v, Literal)]
        own = [self.broadcasts[v] for v in reads if v in self.broadcasts and _meets(v.aval.shape, shape)]
        for v in reads:
            made = self.maker.get(v)
            if v in self.broadcasts and _meets(v.aval.shape, shape):
                self._need(self.broadcasts[v].invars)
            elif v in self.broadcasts or (made is not None and (made.shape != shape or v in made.ends)):
                self._need((v,))
        groups = [self.maker[v] for v in reads if v in self.maker]
        groups += [g for v in reads if (g := self.open.get(v)) is not None and g.shape == shape]
        group = self._merged(list(dict.fromkeys(groups)), shape)
        for view in own:
            if view.outvars[0] not in group.made:
                group.add(view)
        group.add(eqn, ends=eqn.op in REDUCTIONS)
        self.maker[eqn.outvars[0]] = group
        for v in reads:
            if v.aval.shape == shape and v not in self.maker:
                self.open[v] = group

    def _merged(self, groups: Sequence[_Group], shape: tuple[int, ...]) -> _Group:
        """One open group for an equation that touches these."""
        usable = []
        for g in groups:
            if g.full:
                self._close(g)
            else:
                usable.append(g)
        first, *others = usable or [_Group(shape)]
        for other in others:
            first.join(other)
            self._forget(other, first)
        return first

    def _forget(self, group: _Group, instead: _Group | None = None) -> None:
        """The variables of a group are another's, or nobody's."""
        for table in (self.maker, self.open):
            for v in [*group.made, *group.reads]:
                if table.get(v) is group:
                    if instead is None:
                        del table[v]
                    else:
                        table[v] = instead

    def _close(self, group: _Group) -> None:
        self._forget(group)
        views = [e for e in group.eqns if e.op is broadcast_in_dim]
        if len(group.eqns) - len(views) < 2 and group.eqns[-1].op is not moments:
            for view in views:
                if self.broadcasts.pop(view.outvars[0], None) is not None:
                    self.out.append(view)
            self.out += [e for e in group.eqns if e.op is not broadcast_in_dim]
            return
        members = set(map(id, group.eqns))
        outs = [
            v
            for e in group.eqns
            if e.op is not broadcast_in_dim
            for v in e.outvars
            if any(r is None or id(r) not in members for r in self.readers.get(v, ()))
        ]
        inner = Jaxpr((), tuple(group.reads), tuple(outs), group.eqns, "fusion")
        renamed = _renamed(inner)
        self.out.append(
            group.eqns[-1].replace(
                op=fusion, invars=tuple(group.reads), outvars=outs, params={"jaxpr": renamed, "shape": group.shape}
            )
        )


def _renamed(jaxpr: Jaxpr) -> Jaxpr:
    """The same jaxpr with variables of its own."""
    new: dict[Any, Any] = {}

    def of(v: Any) -> Any:
        if isinstance(v, Literal):
            return v
        if v not in new:
            new[v] = Var(v.aval)
        return new[v]

    invars = [of(v) for v in jaxpr.invars]
    eqns = [e.replace(invars=[of(v) for v in e.invars], outvars=[of(v) for v in e.outvars]) for e in jaxpr.eqns]
    return jaxpr.replace(invars=invars, eqns=eqns, outvars=[of(v) for v in jaxpr.outvars])
