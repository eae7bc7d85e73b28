"""`scan(unroll=n)` in compiled programs: a loop over groups of n iterations, or none at all where n is the whole length.

An unrolled loop is written as data before the compiler's passes see it, so that these work across iterations: equal work is
done once, elementwise work of neighbours is fused, sums that do not wait for each other travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from mpiarray.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.core.op import Op
from mpiarray.core.value import Literal
from mpiarray.higher_order.control_flow.lowering import stacked_aval
from mpiarray.ops.linear import broadcast_in_dim, reshape, squeeze
from mpiarray.ops.shape import concatenate
from mpiarray.ops.slicing import slice_
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh


def unrolled(eqn: Eqn) -> Jaxpr | None:
    """The program that a `scan` equation stands for when it says `unroll`; None for a loop that stays as it is."""
    params = eqn.params
    if params["unroll"] < 2 or params["length"] < 2:
        return None
    return _unrolled(eqn.op, eqn.mesh, **params)


@lru_cache(maxsize=256)
def _unrolled(
    op: Op, mesh: AbstractMesh, *, jaxpr: ClosedJaxpr, length: int, num_carry: int, num_consts: int, reverse: bool, unroll: int
) -> Jaxpr:  # fmt: skip
    body, first = jaxpr.jaxpr, num_consts + num_carry
    if jaxpr.consts or body.constvars:
        raise ValueError("scan: a jaxpr must take its constants as operands")
    consts, carry = ([Var(a) for a in part] for part in (body.in_avals[:num_consts], body.in_avals[num_consts:first]))
    xs = [Var(stacked_aval(a, length)) for a in body.in_avals[first:]]
    write = _Writer(mesh)
    if unroll >= length:
        outs, rows = write.iterations(body, consts, carry, xs, range(length)[::-1] if reverse else range(length))
        ys = [write.stacked(parts, a) for parts, a in zip(rows, body.out_avals[num_carry:])]
        return Jaxpr((), [*consts, *carry, *xs], [*outs, *ys], write.eqns, body.debug_name)
    whole = length - length % unroll
    loop = {
        "length": whole // unroll,
        "num_carry": num_carry,
        "num_consts": num_consts,
        "reverse": reverse,
        "unroll": 1,
    }
    group = _unrolled(
        op, mesh, jaxpr=jaxpr, length=unroll, num_carry=num_carry, num_consts=num_consts, reverse=reverse, unroll=unroll
    )
    rest = range(whole, length)
    values: Sequence[Atom] = carry
    last: list[list[Atom]] = []
    if reverse and rest:
        values, last = write.iterations(body, consts, values, xs, rest[::-1])
    grouped = [
        write.grouped(write.rows(x, a, 0, whole), a, whole // unroll, unroll) for x, a in zip(xs, body.in_avals[first:])
    ]
    outvars = [*(Var(a) for a in body.out_avals[:num_carry])]
    stacks = [Var(stacked_aval(stacked_aval(a, unroll), whole // unroll)) for a in body.out_avals[num_carry:]]
    write.eqns.append(
        Eqn(op, [*consts, *values, *grouped], [*outvars, *stacks], {"jaxpr": ClosedJaxpr(group), **loop}, mesh)
    )
    values = outvars
    if not reverse and rest:
        values, last = write.iterations(body, consts, values, xs, rest)
    ys = [write.flat(s, a, whole) for s, a in zip(stacks, body.out_avals[num_carry:])]
    if rest:
        ys = [write.together([y, write.stacked(r, a)], a) for y, r, a in zip(ys, last, body.out_avals[num_carry:])]
    return Jaxpr((), [*consts, *carry, *xs], [*values, *ys], write.eqns, body.debug_name)


class _Writer:
    """Appends equations whose types are known."""

    def __init__(self, mesh: AbstractMesh):
        self.mesh = mesh
        self.eqns: list[Eqn] = []

    def add(self, op: Op, ins: Sequence[Atom], aval: ShapedArray, **params: Any) -> Var:
        out = Var(aval)
        self.eqns.append(Eqn(op, ins, [out], params, self.mesh))
        return out

    def iterations(
        self, body: Jaxpr, consts: Sequence[Atom], carry: Sequence[Atom], xs: Sequence[Var], order: Iterable[int]
    ) -> tuple[Sequence[Atom], list[list[Atom]]]:
        """The body once for each number: (the last carry, for every y its values by number)."""
        avals, n = body.in_avals[len(consts) + len(carry) :], len(carry)
        found: dict[int, list[Atom]] = {}
        for i in order:
            parts = [
                self.add(squeeze, [self.rows(x, a, i, i + 1)], a, dimensions=(0,))
                for x, a in zip(xs, avals, strict=True)
            ]
            outs = self.copy(body, [*consts, *carry, *parts])
            carry, found[i] = outs[:n], outs[n:]
        return carry, [list(values) for values in zip(*(found[i] for i in sorted(found)))]

    def copy(self, body: Jaxpr, args: Sequence[Atom]) -> list[Atom]:
        """The equations of a body with variables of their own; its results."""
        env: dict[Atom, Atom] = dict(zip(body.invars, args, strict=True))
        for eqn in body.eqns:
            fresh = [Var(v.aval) for v in eqn.outvars]
            ins = [v if isinstance(v, Literal) else env[v] for v in eqn.invars]
            self.eqns.append(eqn.replace(invars=ins, outvars=fresh))
            env.update(zip(eqn.outvars, fresh))
        return [v if isinstance(v, Literal) else env[v] for v in body.outvars]

    def rows(self, x: Var, aval: ShapedArray, start: int, stop: int) -> Var:
        shape = x.aval.shape
        if (start, stop) == (0, shape[0]):
            return x
        starts, limits = (start, *(0 for _ in shape[1:])), (stop, *shape[1:])
        out = stacked_aval(aval, stop - start)
        return self.add(slice_, [x], out, start_indices=starts, limit_indices=limits, strides=None)

    def stacked(self, values: Sequence[Atom], aval: ShapedArray) -> Atom:
        """Values of one type side by side along a new first dim."""
        one = stacked_aval(aval, 1)
        dims = tuple(range(1, one.ndim))
        rows = [
            self.add(broadcast_in_dim, [v], one, shape=one.shape, broadcast_dimensions=dims, sharding=None)
            for v in values
        ]
        return self.together(rows, aval)

    def together(self, parts: Sequence[Atom], aval: ShapedArray) -> Atom:
        if len(parts) == 1:
            return parts[0]
        total = stacked_aval(aval, sum(p.aval.shape[0] for p in parts))
        return self.add(concatenate, parts, total, dimension=0)

    def grouped(self, x: Var, aval: ShapedArray, groups: int, size: int) -> Var:
        return self._reshaped(x, stacked_aval(stacked_aval(aval, size), groups))

    def flat(self, x: Var, aval: ShapedArray, length: int) -> Var:
        return self._reshaped(x, stacked_aval(aval, length))

    def _reshaped(self, x: Var, aval: ShapedArray) -> Var:
        return self.add(reshape, [x], aval, new_sizes=aval.shape, dimensions=None, sharding=None)
