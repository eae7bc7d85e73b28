"""Backward derivatives: cotangents of a linear jaxpr's results carried back to its inputs, equation by equation.

Zeros are kept symbolic: equations whose results have no cotangent are skipped, and nothing is added to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.core.op import Linear, Zero
from mpiarray.core.trace import abstract_mesh, current, state
from mpiarray.core.value import Literal, aval_of
from mpiarray.errors import InternalError
from mpiarray.ops.linear import add_any
from mpiarray.transforms.evaluate import Derived, DerivedCache, eval_jaxpr
from mpiarray.transforms.partial_eval import PartialTrace
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.transforms.tangents import cotangent_aval, fit_cotangent


def backward_pass(jaxpr: Jaxpr, consts: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents of a jaxpr's inputs (values or Zero), which must be linear in all of them.

    consts: values of the constvars, the residuals.  cotangents: one per result, values or Zero.
    """
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    cts: dict[Var, Any] = {}
    for atom, ct in zip(jaxpr.outvars, cotangents, strict=True):
        if not isinstance(atom, Literal) and atom not in known and not isinstance(ct, Zero):
            _accumulate(cts, atom, ct)
    for eqn in reversed(jaxpr.eqns):
        outs = [cts.pop(v, None) for v in eqn.outvars]
        if any(ct is not None for ct in outs):
            if eqn.mesh is state.abstract_mesh:
                _transpose(eqn, outs, known, cts)
            else:
                with abstract_mesh(eqn.mesh):
                    _transpose(eqn, outs, known, cts)
    return [cts[v] if v in cts else Zero(cotangent_aval(v.aval)) for v in jaxpr.invars]


def _transpose(eqn: Eqn, outs: Sequence[Any], known: dict[Any, Any], cts: dict[Var, Any]) -> None:
    op = eqn.op
    args = [v if isinstance(v, Literal) else known[v] if v in known else Linear(v.aval) for v in eqn.invars]
    given = [Zero(cotangent_aval(v.aval)) if ct is None else ct for v, ct in zip(eqn.outvars, outs)]
    found = op.transpose(op, given if op.multiple_results else given[0], *args, **eqn.params)
    if len(found) != len(args):
        raise InternalError(f"transpose of {op.name}: {len(found)} cotangents for {len(args)} operands")
    for v, arg, ct in zip(eqn.invars, args, found):
        if isinstance(arg, Linear) and isinstance(v, Var) and ct is not None and not isinstance(ct, Zero):
            _accumulate(cts, v, ct)


def _accumulate(cts: dict[Var, Any], v: Var, ct: Any) -> None:
    want = cotangent_aval(v.aval)
    if aval_of(ct).shape != want.shape:
        raise InternalError(f"a cotangent of a value of type {v.aval.str_short()} has type {aval_of(ct).str_short()}")
    ct = fit_cotangent(ct, want)
    have = cts.get(v)
    cts[v] = ct if have is None else add_any(have, ct)


# -- of jaxprs -----------------------------------------------------------------------------------------

_cache = DerivedCache()


class TransposedJaxpr(Derived):
    """`(*consts, *known inputs, *nonzero cotangents) -> nonzero cotangents of the linear inputs`; `nonzero[i]` for
    each linear input.
    """

    def __init__(self, closed: ClosedJaxpr, nonzero: tuple[bool, ...]):
        super().__init__(closed)
        self.nonzero = nonzero


def transpose_jaxpr(closed: ClosedJaxpr, linear: Sequence[bool], nonzero: Sequence[bool]) -> TransposedJaxpr:
    """Transpose a jaxpr by the inputs whose `linear` is set, for the cotangents whose `nonzero` is set.

    What does not depend on linear inputs is computed on the way.
    """
    key = (closed, tuple(linear), tuple(nonzero))
    return _cache.get(key, lambda: _transposed(closed, tuple(linear), tuple(nonzero)))


def _transposed(closed: ClosedJaxpr, linear: tuple[bool, ...], nonzero: tuple[bool, ...]) -> TransposedJaxpr:
    found: list[tuple[bool, ...]] = []
    avals = closed.in_avals
    known_avals = [a for a, flag in zip(avals, linear, strict=True) if not flag]
    ct_avals = [cotangent_aval(a) for a, n in zip(closed.out_avals, nonzero, strict=True) if n]

    def f(*flat: Any) -> list[Any]:
        known, live = flat[: len(known_avals)], iter(flat[len(known_avals) :])
        cts = [next(live) if n else Zero(cotangent_aval(a)) for n, a in zip(nonzero, closed.out_avals)]
        outs = transpose_call(closed, linear, known, cts)
        found.append(tuple(not isinstance(ct, Zero) for ct in outs))
        return [ct for ct in outs if not isinstance(ct, Zero)]

    jaxpr = trace_to_jaxpr(f, [*known_avals, *ct_avals], name=closed.jaxpr.debug_name, record_source=False)
    return TransposedJaxpr(jaxpr, found[0])


def transpose_call(
    closed: ClosedJaxpr, linear: Sequence[bool], known: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Cotangents of a jaxpr's linear inputs, under the current trace."""
    trace = PartialTrace(closed.jaxpr.debug_name, state.trace)
    args = [trace.new_arg(a) for a, flag in zip(closed.in_avals, linear, strict=True) if flag]
    k, u = iter(known), iter(args)
    with current(trace):
        outs = eval_jaxpr(closed.jaxpr, closed.consts, [next(u) if flag else next(k) for flag in linear])
    program = trace.close(args, outs)
    return backward_pass(program.jaxpr, program.consts, cotangents)
