"""Casts along manual axes of what a body is given from outside, made before it.

Casts are free, but their transposes communicate.  Outside of a loop that is once, not once in each iteration, and outside
of a conditional all instances take part, whichever branch they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var, subjaxprs
from mpiarray.core.value import Literal
from mpiarray.higher_order.control_flow.bodies import Body
from mpiarray.transforms.evaluate import dead_code
from mpiarray.transforms.interning import intern, rearranged


class Cast(NamedTuple):
    """A cast of a body's input number `number`."""

    op: Any
    params: tuple[tuple[str, Any], ...]
    number: int

    def bind(self, operands: Sequence[Any]) -> Any:
        return self.op(operands[self.number], **dict(self.params))


def without_casts(closed: ClosedJaxpr, count: int) -> tuple[ClosedJaxpr, list[Cast]]:
    """A body without the casts of its first `count` inputs: it takes their results as inputs behind these.

    Where it casts what it computes from these inputs alone, it computes that from cast inputs instead.
    """
    moving = _Moving(closed.jaxpr, count)
    if not moving.casts:
        return closed, []
    return intern(ClosedJaxpr(dead_code(moving.jaxpr))), list(moving.casts)


class _Moving:
    """One body: `casts` of its inputs with the variables for their results, and the `jaxpr` that takes these."""

    def __init__(self, jaxpr: Jaxpr, count: int):
        self.place = {v: n for n, v in enumerate(jaxpr.invars[:count])}
        self.made_by: dict[Any, Eqn] = {}
        self.casts: dict[Cast, Var] = {}
        self.eqns: list[Eqn] = []
        self.names: dict[Any, Any] = {}
        self.again: dict[Any, Any] = {}  # what is computed again from cast inputs
        for e in jaxpr.eqns:
            if self.is_cast(e) and self.movable(e.invars[0], direct=not self.only_varies(e)):
                self.names[e.outvars[0]] = self.cast(e.invars[0], e)
                continue
            self.eqns.append(e.replace(invars=[self.names.get(v, v) for v in e.invars]))
            if self.repeatable(e):
                self.made_by.update((v, e) for v in e.outvars)
        outvars = [self.names.get(v, v) for v in jaxpr.outvars]
        invars = [*jaxpr.invars[:count], *self.casts.values(), *jaxpr.invars[count:]]
        self.jaxpr = jaxpr.replace(invars=invars, eqns=self.eqns, outvars=outvars)

    def is_cast(self, e: Eqn) -> bool:
        return e.op.casts and e.op.impl is not None and not isinstance(e.invars[0], Literal)

    def only_varies(self, e: Eqn) -> bool:
        """Whether a cast just adds axes that its result varies over: then ops may come before or after it."""
        before, after = e.invars[0].aval.manual, e.outvars[0].aval.manual
        return (
            (before.unreduced, before.reduced) == (after.unreduced, after.reduced)
            and not before.unreduced
            and not before.reduced
        )

    def repeatable(self, e: Eqn) -> bool:
        op = e.op
        own = op.build is None and op.infer is None and not (op.effects or op.casts or op.multiple_results)
        return (
            own
            and bool(e.invars)
            and not any(True for _ in subjaxprs(e.params))
            and all(self.movable(v) for v in e.invars)
        )

    def movable(self, atom: Any, direct: bool = False) -> bool:
        return atom in self.place or (not direct and (isinstance(atom, Literal) or atom in self.made_by))

    def cast(self, atom: Any, e: Eqn) -> Any:
        """The variable that holds a movable value after the cast `e`."""
        if not isinstance(atom, Literal) and atom in self.place:
            key = Cast(e.op, tuple(e.params.items()), self.place[atom])
            if key not in self.casts:
                self.casts[key] = Var(self.after(atom, e))
            return self.casts[key]
        known = (id(atom) if isinstance(atom, Literal) else atom, e.op, tuple(e.params.items()))
        if known not in self.again:
            self.again[known] = Var(self.after(atom, e))
            if isinstance(atom, Literal):
                self.eqns.append(e.replace(invars=[atom], outvars=[self.again[known]]))
            else:
                source = self.made_by[atom]
                ins = [self.cast(v, e) for v in source.invars]
                self.eqns.append(source.replace(invars=ins, outvars=[self.again[known]]))
        return self.again[known]

    def after(self, atom: Any, e: Eqn) -> Any:
        """The type of a value after a cast like `e`."""
        if atom is e.invars[0]:
            return e.outvars[0].aval
        before, target = e.invars[0].aval.manual, e.outvars[0].aval.manual
        mesh = e.outvars[0].aval.sharding
        aval = atom.aval
        aval = aval if not aval.mesh.empty or aval.ndim else aval.update(sharding=mesh.update(spec=type(mesh.spec)()))
        return aval.update(manual=aval.manual.update(varying=aval.vma | (target.varying - before.varying)))


def lifted(body: Body) -> Body:
    """A loop's body with the casts of what it closes over made outside, without the constants that nobody needs then."""
    closed, casts = without_casts(body.jaxpr, len(body.consts))
    if not casts:
        return body
    consts = [*body.consts, *(c.bind(body.consts) for c in casts)]
    inner = closed.jaxpr
    used = {v for e in inner.eqns for v in e.invars} | set(inner.outvars)
    kept = [n for n in range(len(consts)) if inner.invars[n] in used]
    rest = range(len(consts), len(inner.invars))
    jaxpr = rearranged(closed, (*kept, *rest), tuple(range(len(inner.outvars))))
    return Body(jaxpr, tuple(consts[n] for n in kept), body.structure)
