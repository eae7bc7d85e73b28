"""Elementwise equations on large blocks of one shape become groups that run tile by tile (ops.tiles).

The equations are taken in their order.  A group stays open until somebody outside needs one of its values; equations
of its shape that share a value with it join it, and groups that such an equation reads from become one.  Two open
groups never need each other, since reading a value closes its group.  A group stands where it is closed, after all
that it reads.  Broadcasts to the shape of a group are free in it, and sums (and other reductions) of a group's values
end it: their results are there when the group is done.  But a reduction over the last dims, of which tiles can have
whole ones (passes.rows), is done with its tile: what is made of its result for each row belongs to the group, and may meet
the group's arrays again.

Small operations on the results of reductions (a loss that is divided, a gradient that is reshaped) wait until somebody
needs them, so that they do not close a group which others would still join.  So do sums over mesh axes of such results (the slopes of a
norm's scale, which nobody on the way back reads), but only until the groups are closed from which their operands come.

Groups of one operation (but `moments`), and of blocks that fit into the cache anyway, are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.compiler.passes.rows import meets, row_dims, spreads, stays
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, readers_of, subjaxprs
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import pmax, pmin, psum, psum_many
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.manual import psum_invariant, unreduced_psum
from mpiarray.ops.moments import moments
from mpiarray.ops.tiles import CACHE_BYTES, REDUCTIONS, fusion, joins_over_tiles
from mpiarray.types import dtypes

_MOST_MEMBERS = 256
_MOST_ARRAYS = 24
_SMALLEST = CACHE_BYTES // 4  # bytes of a block of the group
_MOST_HELD = 64  # sums over mesh axes that wait at one time
_MESSAGES = (psum, psum_many, psum_invariant, unreduced_psum, pmax, pmin)


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
    elif eqn.op in REDUCTIONS and (joins_over_tiles(eqn) or row_dims(eqn)):
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
    """Equations that run together: `made` are their values, `reads` the arrays from outside, `ends` results of reductions.

    rows      how many of the last dims its tiles have whole: 0 until somebody reads a row's result
    reduced   results of reductions over last dims: over how many
    narrow    what is made of such results, row by row
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.eqns: list[Eqn] = []
        self.made: set[Var] = set()
        self.ends: set[Var] = set()
        self.reads: dict[Var, None] = {}
        self.rows = 0
        self.reduced: dict[Var, int] = {}
        self.narrow: set[Var] = set()

    def add(self, eqn: Eqn, ends: bool = False) -> None:
        for v in eqn.invars:
            if not isinstance(v, Literal) and v not in self.made:
                self.reads[v] = None
        self.eqns.append(eqn)
        self.made.update(eqn.outvars)
        if ends:
            self.ends.update(eqn.outvars)
            self.reduced.update((v, k) for v in eqn.outvars if (k := row_dims(eqn)))

    def join(self, other: _Group) -> None:
        self.eqns += [e for e in other.eqns if e.outvars[0] not in self.made]  # both may repeat the same small array
        self.made |= other.made
        self.ends |= other.ends
        self.reads |= other.reads
        self.reduced |= other.reduced
        self.narrow |= other.narrow

    def is_view(self, eqn: Eqn) -> bool:
        """Whether an equation only repeats its operand, to meet the group's arrays."""
        return eqn.op is broadcast_in_dim and eqn.outvars[0] not in self.narrow

    @property
    def full(self) -> bool:
        return len(self.eqns) >= _MOST_MEMBERS or len(self.reads) >= _MOST_ARRAYS


class _Fuser:
    def __init__(self, jaxpr: Jaxpr, rows: bool = True):
        self.jaxpr = jaxpr
        self.rows = rows  # whether groups may have rows
        self.readers = readers_of(jaxpr)
        self.open: dict[Var, _Group] = {}  # the open group that makes, or reads, a variable
        self.maker: dict[Var, _Group] = {}
        self.broadcasts: dict[Var, Eqn] = {}  # not yet written
        self.later: dict[Var, Eqn] = {}  # small operations that wait
        self.held: dict[Eqn, None] = {}  # sums over mesh axes among them
        self.closed = False  # a group was closed since it was last looked who waits for nothing more
        self.out: list[Eqn] = []

    def run(self) -> Jaxpr:
        for eqn in self.jaxpr.eqns:
            self._take(eqn)
            self._release()
        self._need(self.jaxpr.outvars)
        for group in dict.fromkeys(self.maker.values()):
            self._close(group)
        return self.jaxpr.replace(eqns=self.out)

    def _take(self, eqn: Eqn) -> None:
        if self.rows and self._row_by_row(eqn):
            return
        if eqn.op is broadcast_in_dim:
            self.broadcasts[eqn.outvars[0]] = eqn
            return
        shape = _shape_of(eqn)
        if shape is None or (eqn.op in REDUCTIONS and not self._gains(eqn)):
            self._outside(eqn)
        else:
            self._member(eqn, shape)

    def _gains(self, eqn: Eqn) -> bool:
        """Whether a reduction gains from tiles: it reads a member, or members may read its result."""
        (v,) = eqn.invars
        if eqn.op is moments:
            return True
        if not self.rows and not joins_over_tiles(eqn):
            return False
        group = self.maker.get(v) if isinstance(v, Var) else None
        if group is not None and v not in group.ends and v not in group.narrow:
            return True
        if not self.rows or not isinstance(v, Var) or v in self.broadcasts:
            return False
        return row_dims(eqn) > 0 or self._read_by_others(v, eqn)

    def _read_by_others(self, v: Var, eqn: Eqn) -> bool:
        """Whether members, also later ones, read the array that a reduction reads, so that one pass over memory does for both."""
        return any(r is not None and r is not eqn and _shape_of(r) == v.aval.shape for r in self.readers.get(v, ()))

    def _row_value(self, v: Atom) -> tuple[_Group, int] | None:
        """The open group that makes a value for each row, and how many of the last dims are the row."""
        group = self.maker.get(v) if isinstance(v, Var) else None
        if group is None or not self.rows:
            return None
        k = group.rows if v in group.narrow else group.reduced.get(v, 0)  # type: ignore[arg-type]
        return (group, k) if k and group.rows in (0, k) else None

    def _row_by_row(self, eqn: Eqn) -> bool:
        """Let an equation on values of rows join their group; whether it did."""
        found = {v: r for v in eqn.invars if isinstance(v, Var) and (r := self._row_value(v)) is not None}
        if not found or len(eqn.outvars) != 1:
            return False
        first, k = next(iter(found.values()))
        if not stays(eqn, first.shape, k) or any(v in first.ends and v not in found for v in eqn.invars):
            return False  # also where it waits for a sum that is there when all tiles are done
        mine = [v for v, (g, j) in found.items() if g.shape == first.shape and j == k]
        self._need([v for v in eqn.invars if v not in mine and v not in first.made])
        groups = list(dict.fromkeys(self.maker.get(v) for v in mine))
        if any(g is None or g.full or g.rows not in (0, k) for g in groups):
            return False
        group = self._merged([g for g in groups if g is not None], first.shape, k)
        group.add(eqn)
        group.narrow.update(eqn.outvars)
        self.maker[eqn.outvars[0]] = group
        return True

    def _rows_read(self, reads: Sequence[Var], shape: tuple[int, ...], k: int) -> tuple[dict[Var, Var], int]:
        """Which operands of a member repeat values of rows (of k dims; 0: any), and these values."""
        found: dict[Var, Var] = {}
        for v in reads:
            view = self.broadcasts.get(v) if v.aval.shape == shape else None
            source = v if view is None else view.invars[0]
            group, j = self._row_value(source) or (None, 0)
            if group is None or group.shape != shape or k not in (0, j) or not isinstance(source, Var):
                continue
            if spreads(view, shape, j) if view is not None else meets(v.aval.shape, shape, j):
                found[v], k = source, j
        return found, k

    def _outside(self, eqn: Eqn) -> None:
        if self._may_wait(eqn):
            self.later.update(dict.fromkeys(eqn.outvars, eqn))
            if eqn.op in _MESSAGES:
                self.held[eqn] = None
            return
        self._need(eqn.invars)
        self._release()
        self.out.append(eqn)

    def _may_wait(self, eqn: Eqn) -> bool:
        """Whether an equation reads what is not there yet, is small, and does nothing but compute its result."""
        if not any(v in self.later or v in self.maker for v in eqn.invars if isinstance(v, Var)):
            return False
        if eqn.op in _MESSAGES:
            if len(self.held) >= _MOST_HELD:
                return False
        elif eqn.op.build is not None or eqn.op.effects or len(eqn.outvars) != 1 or any(subjaxprs(eqn.params)):
            return False
        return all(a.aval.size * a.aval.dtype.itemsize < _SMALLEST for a in (*eqn.invars, *eqn.outvars))

    def _need(self, atoms: Sequence[Atom]) -> None:
        """Write what makes these values."""
        todo: list[Any] = list(reversed(atoms))
        while todo:
            v = todo.pop()
            if isinstance(v, Eqn):  # its operands are there
                self.out.append(v)
                continue
            if isinstance(v, Literal):
                continue
            table = self.later if v in self.later else self.broadcasts
            if v in table:
                eqn = table[v]
                for w in eqn.outvars:
                    table.pop(w)
                self.held.pop(eqn, None)
                todo += [eqn, *reversed(eqn.invars)]
            elif v in self.maker:
                self._close(self.maker[v])

    def _release(self) -> None:
        """Write the sums over mesh axes whose operands are there, so that no rank waits for what another one could have sent.

        Between equations: while values are being written, some are nowhere.
        """
        if self.closed:
            self.closed = False
            for eqn in [e for e in self.held if self._is_there(e)]:
                self._need(eqn.outvars)

    def _is_there(self, eqn: Eqn) -> bool:
        """Whether the operands of an equation take no open group, nor many equations that wait."""
        seen: set[Var] = set()
        waiting: list[Any] = list(eqn.invars)
        while waiting:
            v = waiting.pop()
            if isinstance(v, Literal) or v in seen:
                continue
            if v in self.maker or len(seen) > _MOST_HELD:
                return False
            seen.add(v)
            waiting += self.later[v].invars if v in self.later else ()
        return True

    def _member(self, eqn: Eqn, shape: tuple[int, ...]) -> None:
        reads = [v for v in dict.fromkeys(eqn.invars) if not isinstance(v, Literal)]
        own = [self.broadcasts[v] for v in reads if v in self.broadcasts and _meets(v.aval.shape, shape)]
        needs_rows = eqn.op in REDUCTIONS and not joins_over_tiles(eqn)
        repeated, k = self._rows_read(reads, shape, row_dims(eqn) if needs_rows else 0)
        for v in reads:
            if v in repeated:
                continue
            made = self.maker.get(v)
            if v in self.broadcasts and _meets(v.aval.shape, shape):
                self._need(self.broadcasts[v].invars)
            elif (
                v in self.broadcasts
                or v in self.later
                or (made is not None and (made.shape != shape or v in made.ends or v in made.narrow))
            ):
                self._need((v,))
        groups = [self.maker[v] for v in (*reads, *repeated.values()) if v in self.maker]
        groups += [g for v in reads if (g := self.open.get(v)) is not None and g.shape == shape]
        group = self._merged(list(dict.fromkeys(groups)), shape, k)
        for view in own:
            if view.outvars[0] not in group.made:
                group.add(view)
        group.add(eqn, ends=eqn.op in REDUCTIONS)
        self.maker[eqn.outvars[0]] = group
        for v in reads:
            if v.aval.shape == shape and v not in self.maker:
                self.open[v] = group

    def _merged(self, groups: Sequence[_Group], shape: tuple[int, ...], rows: int) -> _Group:
        """One open group for an equation that touches these, and that wants such rows (0: does not care)."""
        usable = []
        for g in groups:
            if g.full or (rows and g.rows not in (0, rows)):
                self._close(g)
            else:
                usable.append(g)
                rows = rows or g.rows
        first, *others = usable or [_Group(shape)]
        for other in others:
            first.join(other)
            self._forget(other, first)
        first.rows = rows
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
        work = [e for e in group.eqns if not group.is_view(e) and e.outvars[0] not in group.narrow]
        outs = self._read_outside(group)
        inner = Jaxpr((), tuple(group.reads), outs, group.eqns, "fusion")
        if len(work) < 2 and not any(e.op is moments for e in work):
            self._write_out(group, inner)
        else:
            rows = {"rows": group.rows} if group.rows else {}
            params = {"jaxpr": _renamed(inner), "shape": group.shape, **rows}
            self.out.append(group.eqns[-1].replace(op=fusion, invars=tuple(group.reads), outvars=outs, params=params))
        self.closed = True

    def _read_outside(self, group: _Group) -> tuple[Var, ...]:
        """The values of a group that others need; broadcasts to the group's shape are made anew where somebody needs them."""
        members = set(map(id, group.eqns))

        def leaves(v: Var) -> bool:
            return any(r is None or id(r) not in members for r in self.readers.get(v, ()))

        repeated = {e.invars[0] for e in group.eqns if group.is_view(e) and leaves(e.outvars[0])}
        made = [v for e in group.eqns if not group.is_view(e) for v in e.outvars]
        return tuple(v for v in made if leaves(v) or v in repeated)

    def _write_out(self, group: _Group, inner: Jaxpr) -> None:
        """A group that is not worth it: its equations, of which those on large values of rows may be groups."""
        eqns = [e for e in group.eqns if not group.is_view(e) or self.broadcasts.pop(e.outvars[0], None) is not None]
        if group.narrow and sum(_shape_of(e) is not None for e in eqns) > 1:
            eqns = list(_Fuser(inner.replace(eqns=eqns), rows=False).run().eqns)
        self.out += eqns


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
