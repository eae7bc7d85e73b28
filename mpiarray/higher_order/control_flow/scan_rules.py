"""Batching and derivatives of `scan`.

The derivative of a loop is the loop of the derivative; backwards it runs the other way, with the cotangents of the
constants summed in the carry.  Residuals leave the forward loop stacked, but what depends on constants alone is computed once, outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Var
from mpiarray.core.op import Linear, Op, Zero
from mpiarray.core.trace import current
from mpiarray.core.value import Literal
from mpiarray.higher_order.control_flow.splits import Parts, parts_of
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import add_any, batch_to, move_dim, tangent_aval
from mpiarray.transforms.batching import batch_jaxpr, front
from mpiarray.transforms.evaluate import Derived, DerivedCache, eval_jaxpr
from mpiarray.transforms.interning import rearranged
from mpiarray.transforms.jvp import JvpJaxpr, jvp_jaxpr
from mpiarray.transforms.partial_eval import PartialTrace
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.transforms.tangents import cotangent_aval, filled, instantiate
from mpiarray.transforms.transpose import transpose_call

Flags = tuple[bool, ...]


def three(values: Sequence[Any], num_consts: int, num_carry: int) -> tuple[list[Any], list[Any], list[Any]]:
    """(constants, carry, xs)."""
    n = num_consts + num_carry
    return list(values[:num_consts]), list(values[num_consts:n]), list(values[n:])


def _either(a: Sequence[bool], b: Sequence[bool]) -> list[bool]:
    return [x or y for x, y in zip(a, b, strict=True)]


# -- batching ------------------------------------------------------------------------------------------------


def batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[int | None]]:
    consts, carry, xs = three([d is not None for d in dims], num_consts, num_carry)
    ys = len(jaxpr.jaxpr.outvars) - num_carry
    while True:
        derived = batch_jaxpr(jaxpr, axis, [*consts, *carry, *xs], [*carry, *(False,) * ys])
        grown = _either(carry, derived.mapped[:num_carry])
        if grown == carry:
            break
        carry = grown
    c_args, k_args, x_args = three(args, num_consts, num_carry)
    c_dims, k_dims, x_dims = three(dims, num_consts, num_carry)
    operands = [
        *derived.consts,
        *front(c_args, c_dims),
        *(batch_to(x, axis, d, 0) if m else x for x, d, m in zip(k_args, k_dims, carry)),
        *(x if d is None else move_dim(x, d, 1) for x, d in zip(x_args, x_dims)),
    ]
    outs = op(
        *operands, jaxpr=derived.jaxpr, num_consts=num_consts + len(derived.consts), num_carry=num_carry, **params
    )
    found = derived.mapped
    return list(outs), [*(0 if m else None for m in found[:num_carry]), *(1 if m else None for m in found[num_carry:])]


# -- forward derivatives ---------------------------------------------------------------------------------------


def jvp(
    op: Op,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    consts, carry, xs = three([not isinstance(t, Zero) for t in tangents], num_consts, num_carry)
    ys = len(jaxpr.jaxpr.outvars) - num_carry
    while True:
        derived = jvp_jaxpr(jaxpr, [*consts, *carry, *xs], [*carry, *(False,) * ys])
        grown = _either(carry, derived.nonzero[:num_carry])
        if grown == carry:
            break
        carry = grown
    body = _in_order(derived, [*consts, *carry, *xs], num_consts, num_carry)
    carry_avals = jaxpr.in_avals[num_consts : num_consts + num_carry]
    c, k, x = three(primals, num_consts, num_carry)
    tc, tk, tx = three(tangents, num_consts, num_carry)
    live = [_instantiated(t, a) for t, a, flag in zip(tk, carry_avals, carry) if flag]
    c_live, x_live = ([t for t in ts if not isinstance(t, Zero)] for ts in (tc, tx))
    outs = op(
        *derived.consts, *c, *c_live, *k, *live, *x, *x_live,
        jaxpr=body, num_consts=len(derived.consts) + len(c) + len(c_live), num_carry=num_carry + sum(carry), **params,
    )  # fmt: skip
    n, m = num_carry, num_carry + sum(carry)
    rest = iter([*outs[n:m], *outs[m + ys :]])
    zeros = [Zero(tangent_aval(o.aval)) for o in (*outs[:n], *outs[m : m + ys])]
    return [*outs[:n], *outs[m : m + ys]], [
        next(rest) if flag else z for flag, z in zip(derived.nonzero, zeros, strict=True)
    ]


def _instantiated(t: Any, aval: Any) -> Any:
    return filled(tangent_aval(aval), 0) if isinstance(t, Zero) else t


def _in_order(derived: JvpJaxpr, nonzero: Sequence[bool], num_consts: int, num_carry: int) -> ClosedJaxpr:
    """The derivative's inputs and results as a loop wants them: constants, carries, xs; carries, ys; each with its tangents behind."""
    extra, total = len(derived.consts), len(nonzero)
    place = iter(range(extra + total, len(derived.jaxpr.in_avals)))
    tangent = [next(place) if flag else None for flag in nonzero]
    parts = zip(three(range(extra, extra + total), num_consts, num_carry), three(tangent, num_consts, num_carry))
    ins = [*range(extra), *(i for primal, ts in parts for i in (*primal, *(t for t in ts if t is not None)))]
    n = len(derived.nonzero)
    place = iter(range(n, len(derived.jaxpr.out_avals)))
    out_tangent = [next(place) if flag else None for flag in derived.nonzero]
    carries = [*range(num_carry), *(t for t in out_tangent[:num_carry] if t is not None)]
    ys = [*range(num_carry, n), *(t for t in out_tangent[num_carry:] if t is not None)]
    return rearranged(derived.jaxpr, tuple(ins), (*carries, *ys))


# -- known and unknown -------------------------------------------------------------------------------------------


def partial_eval(
    op: Op,
    trace: PartialTrace,
    args: Sequence[Any],
    unknown: Sequence[bool],
    *,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> list[Any]:
    consts, carry, xs = three(unknown, num_consts, num_carry)
    ys = len(jaxpr.jaxpr.outvars) - num_carry
    while True:
        parts = parts_of(jaxpr, (*consts, *carry, *xs), (*(not u for u in carry), *(True,) * ys))
        grown = _either(carry, [not k for k in parts.out_known[:num_carry]])
        if grown == carry:
            break
        carry = grown
    c, k, x = three(args, num_consts, num_carry)
    known = [[v for v, u in zip(vs, us) if not u] for vs, us in ((c, consts), (k, carry), (x, xs))]
    rest = [[v for v, u in zip(vs, us) if u] for vs, us in ((c, consts), (k, carry), (x, xs))]
    loop = _Residuals(parts, [len(v) for v in known])
    with current(trace.parent):
        fixed = [*parts.consts, *known[0]]
        hoisted = eval_jaxpr(loop.hoisted, (), fixed)
        outs = op(
            *fixed, *known[1], *known[2], jaxpr=loop.known, num_consts=len(fixed), num_carry=len(known[1]), **params
        )
    stacked = outs[len(outs) - loop.stacked :] if loop.stacked else []
    results = outs[: len(outs) - loop.stacked]
    later: list[Any] = []
    if not all(parts.out_known):
        operands = [
            *hoisted, *(known[0][n] for n in loop.forwarded_consts), *rest[0], *rest[1],
            *stacked, *(known[2][n] for n in loop.forwarded_xs), *rest[2],
        ]  # fmt: skip
        body, count = loop.unknown([len(v) for v in rest]), len(hoisted) + len(loop.forwarded_consts) + len(rest[0])
        later = trace.stage(op, operands, params | {"jaxpr": body, "num_consts": count, "num_carry": len(rest[1])})
    k_iter, u_iter = iter(results), iter(later)
    return [next(k_iter) if flag else next(u_iter) for flag in parts.out_known]


class _Residuals:
    """How the residuals of a body go from the known loop to the unknown one.

    hoisted    the jaxpr of those that depend on constants alone: the same in every iteration
    known      the body of the known loop, which gives the others as ys, carries that are needed among them
    """

    def __init__(self, parts: Parts, counts: Sequence[int]):
        self.parts = parts
        inner = parts.known.jaxpr
        extra = len(parts.consts)
        consts = inner.invars[: extra + counts[0]]
        found = _fixed_results(inner, consts)
        residuals = inner.outvars[len(inner.outvars) - parts.residuals :] if parts.residuals else ()
        self.fixed = [n for n, v in enumerate(residuals) if isinstance(v, Literal) or v in found]
        self.moving = [n for n in range(parts.residuals) if n not in self.fixed]
        needed = [residuals[n] for n in self.fixed]
        eqns = [e for e in inner.eqns if e.outvars and all(v in found for v in e.outvars)]
        self.hoisted = inner.replace(invars=consts, outvars=needed, eqns=_live(eqns, needed))
        # inputs that the unknown loop uses too, by what they are: (its number among the forwarded, its number among its kind)
        kinds: list[list[tuple[int, int]]] = [[], [], []]
        for n, i in enumerate(parts.forwarded):
            kind = 0 if i < counts[0] else 1 if i < counts[0] + counts[1] else 2
            kinds[kind].append((n, i - sum(counts[:kind])))
        self.kinds = kinds
        carries = [inner.invars[extra + counts[0] + i] for _, i in kinds[1]]
        results = inner.outvars[: len(inner.outvars) - parts.residuals]
        self.known = _known_body(parts.known, (*results, *(residuals[n] for n in self.moving), *carries))
        self.stacked = len(self.moving) + len(carries)

    @property
    def forwarded_consts(self) -> list[int]:
        return [i for _, i in self.kinds[0]]

    @property
    def forwarded_xs(self) -> list[int]:
        return [i for _, i in self.kinds[2]]

    def unknown(self, counts: Sequence[int]) -> ClosedJaxpr:
        """The body of the unknown loop, its inputs in the order of a loop."""
        r, f = self.parts.residuals, len(self.parts.forwarded)
        c, k, x = three(range(r + f, r + f + sum(counts)), counts[0], counts[1])
        ins = [
            *self.fixed, *(r + n for n, _ in self.kinds[0]), *c, *k,
            *self.moving, *(r + n for n, _ in self.kinds[1]), *(r + n for n, _ in self.kinds[2]), *x,
        ]  # fmt: skip
        return rearranged(self.parts.unknown, tuple(ins), tuple(range(len(self.parts.unknown.out_avals))))


_bodies: dict[tuple[ClosedJaxpr, tuple[Any, ...]], ClosedJaxpr] = {}


def _known_body(closed: ClosedJaxpr, outvars: tuple[Any, ...]) -> ClosedJaxpr:
    key = (closed, outvars)
    found = _bodies.get(key)
    if found is None:
        if len(_bodies) >= 2048:
            _bodies.clear()
        found = _bodies[key] = ClosedJaxpr(closed.jaxpr.replace(outvars=outvars))
    return found


def _fixed_results(jaxpr: Any, consts: Sequence[Var]) -> set[Any]:
    """The variables that depend on constants alone."""
    found: set[Any] = set(consts)
    for e in jaxpr.eqns:
        if not e.op.effects and e.op.build is None and all(isinstance(v, Literal) or v in found for v in e.invars):
            found.update(e.outvars)
    return found


def _live(eqns: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    live = {v for v in outs if isinstance(v, Var)}
    kept = []
    for e in reversed(eqns):
        if any(v in live for v in e.outvars):
            kept.append(e)
            live.update(v for v in e.invars if isinstance(v, Var))
    return kept[::-1]


# -- backward derivatives ------------------------------------------------------------------------------------------

_cache = DerivedCache()


class _Backward(Derived):
    """(*consts, *known constants, *sums, *carry cotangents, *ys cotangents, *known xs) -> (*sums, *carry cotangents, *xs cotangents)."""


def transpose(
    op: Op,
    cts: Sequence[Any],
    *args: Any,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    reverse: bool,
    **params: Any,
) -> list[Any]:
    c, k, x = three(args, num_consts, num_carry)
    c_linear, x_linear = tuple(isinstance(a, Linear) for a in c), tuple(isinstance(a, Linear) for a in x)
    live = tuple(not isinstance(ct, Zero) for ct in cts[num_carry:])
    derived = _cache.get(
        (jaxpr, c_linear, x_linear, live), lambda: _backward(jaxpr, c_linear, x_linear, num_carry, live)
    )
    avals = jaxpr.in_avals
    sums = [filled(cotangent_aval(a), 0) for a, flag in zip(avals, c_linear) if flag]
    carry_cts = [instantiate(ct) for ct in cts[:num_carry]]
    known_c = [a for a in c if not isinstance(a, Linear)]
    outs = op(
        *derived.consts, *known_c, *sums, *carry_cts, *(ct for ct in cts[num_carry:] if not isinstance(ct, Zero)), *(a for a in x if not isinstance(a, Linear)),
        jaxpr=derived.jaxpr, num_consts=len(derived.consts) + len(known_c), num_carry=len(sums) + num_carry, reverse=not reverse, **params,
    )  # fmt: skip
    found = iter(outs)
    c_cts = [next(found) if flag else None for flag in c_linear]
    k_cts = [ct if isinstance(a, Linear) else None for a, ct in zip(k, [next(found) for _ in k])]
    return [*c_cts, *k_cts, *(next(found) if flag else None for flag in x_linear)]


def _backward(jaxpr: ClosedJaxpr, c_linear: Flags, x_linear: Flags, num_carry: int, live: Flags) -> _Backward:
    consts, carry, xs = three(jaxpr.in_avals, len(c_linear), num_carry)
    ys = jaxpr.out_avals[num_carry:]
    avals = [
        [a for a, flag in zip(consts, c_linear) if not flag],
        [cotangent_aval(a) for a, flag in zip(consts, c_linear) if flag],
        [cotangent_aval(a) for a in carry],
        [cotangent_aval(a) for a, flag in zip(ys, live, strict=True) if flag],
        [a for a, flag in zip(xs, x_linear) if not flag],
    ]

    def f(*flat: Any) -> list[Any]:
        values, at = [], 0
        for part in avals:
            values.append(list(flat[at : at + len(part)]))
            at += len(part)
        known, sums, carry_cts, live_cts, known_xs = values
        ct_iter = iter(live_cts)
        cts = [*carry_cts, *(next(ct_iter) if flag else Zero(cotangent_aval(a)) for a, flag in zip(ys, live))]
        linear = (*c_linear, *(True,) * num_carry, *x_linear)
        found = transpose_call(jaxpr, linear, [*known, *known_xs], cts)
        n = len(sums)
        added = [s if isinstance(ct, Zero) else add_any(s, ct) for s, ct in zip(sums, found[:n])]
        return [*added, *(instantiate(ct) for ct in found[n:])]

    flat_avals = [a for part in avals for a in part]
    return _Backward(trace_to_jaxpr(f, flat_avals, name=jaxpr.jaxpr.debug_name, record_source=False))
