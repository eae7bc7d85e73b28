"""Forward derivatives: values that carry a tangent, and the trace that applies the ops' jvp rules to them.

The rules bind their ops under the trace below (`parent`): evaluation gives numbers, staging a jaxpr, the trace of
`transforms.partial_eval` splits what depends on tangents from what does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.op import Op, Zero
from mpiarray.core.trace import RuledFunction, Trace, Tracer, current, leaked, state
from mpiarray.core.value import Value, aval_of
from mpiarray.errors import TracerArrayConversionError
from mpiarray.numpy.array import Array
from mpiarray.ops.linear import tangent_aval
from mpiarray.ops.manual import align
from mpiarray.transforms.evaluate import Derived, DerivedCache, eval_jaxpr
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.transforms.tangents import as_value, filled, is_float0, vary_like


class JVPTracer(Array, Tracer):
    """A value and its tangent.  Python may read the value where it is concrete: `if x > 0` works in `grad`."""

    __slots__ = ("aval", "primal", "tangent", "owner")

    def __init__(self, trace: JVPTrace, primal: Value, tangent: Any):
        self.owner, self.primal, self.tangent = trace, primal, tangent
        self.aval = primal.aval

    @property
    def sharding(self) -> Any:
        return self.primal.sharding  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"JVPTracer({self.aval}, primal={self.primal!r})"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self.primal)

    def __float__(self) -> float:
        return float(self.primal)  # type: ignore[arg-type]

    def __int__(self) -> int:
        return int(self.primal)  # type: ignore[call-overload]

    def __complex__(self) -> complex:
        return complex(self.primal)  # type: ignore[call-overload]

    def __index__(self) -> int:
        return self.primal.__index__()  # type: ignore[attr-defined]

    def item(self, *args: Any) -> Any:
        return self.primal.item(*args)  # type: ignore[attr-defined]

    def tolist(self) -> Any:
        return self.primal.tolist()  # type: ignore[attr-defined]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TracerArrayConversionError(
            "The numpy.ndarray conversion method __array__() was called on traced array with shape "
            f"{self.aval.short()}: numpy cannot "
            "differentiate. Use the functions of `mpiarray.numpy` instead of numpy's."
        )


class JVPTrace(Trace):
    """Applies jvp rules.  Values without a tangent of this trace are constants."""

    def __init__(self, parent: Trace | None):
        self.parent = parent
        self.alive = True

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if state.abstract_mesh.manual_axes:
            args = tuple(align(op, args))
        active = False
        for a in args:
            if isinstance(a, Tracer):
                if a.owner is self:
                    active = True
                elif not a.owner.alive:
                    raise leaked(a, op.name)
        with current(self.parent):
            if not active:
                return op(*args, **params)
            primals, tangents = self.split(args)
            outs, out_tangents = op.jvp(op, primals, tangents, **params)
            if op.multiple_results:
                return [self.pair(x, t) for x, t in zip(outs, out_tangents, strict=True)]
            return self.pair(outs, out_tangents)

    def call(self, function: RuledFunction, args: Sequence[Any]) -> list[Any]:
        """A function with rules of its own: they are used instead of those of its ops."""
        if not any(isinstance(a, JVPTracer) and a.owner is self for a in args):
            with current(self.parent):
                return function(args)
        primals, tangents = self.split(args)
        with current(self.parent):
            outs, out_tangents = function.derive(primals, tangents)
            return [self.pair(x, t) for x, t in zip(outs, out_tangents, strict=True)]

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The values and their tangents; symbolic zeros for constants."""
        primals, tangents = [], []
        for a in args:
            if isinstance(a, JVPTracer) and a.owner is self:
                primals.append(a.primal)
                tangents.append(a.tangent)
            else:
                a = as_value(a)
                primals.append(a)
                tangents.append(Zero(tangent_aval(a.aval)))
        return primals, tangents

    def pair(self, primal: Any, tangent: Any) -> Any:
        """A value with its tangent; just the value where the tangent is zero."""
        if isinstance(tangent, Zero):
            return primal
        primal = as_value(primal)
        if primal.aval.manual:
            tangent = vary_like(tangent, primal.aval.manual)
        return JVPTracer(self, primal, tangent)

    def part(self, x: Any) -> tuple[Any, Any]:
        """A result of the traced function as (value, tangent)."""
        if isinstance(x, JVPTracer) and x.owner is self:
            return x.primal, x.tangent
        return x, Zero(tangent_aval(aval_of(x)))

    def primal_of(self, x: Any) -> Any:
        return x.primal if isinstance(x, JVPTracer) and x.owner is self else x


def jvp_flat(
    f: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Results of `f(*primals)` and their tangents (some may be Zero); `f` takes and returns flat values."""
    trace = JVPTrace(state.trace)
    args = [
        x if isinstance(t, Zero) else JVPTracer(trace, as_value(x), t) for x, t in zip(primals, tangents, strict=True)
    ]
    try:
        with current(trace):
            outs = f(*args)
    finally:
        trace.alive = False
    pairs = [trace.part(x) for x in outs]
    return [p for p, _ in pairs], [t for _, t in pairs]


# -- of jaxprs -----------------------------------------------------------------------------------------

_cache = DerivedCache()


class JvpJaxpr(Derived):
    """`(*consts, *primals, *nonzero tangents) -> (*results, *nonzero result tangents)`; `nonzero[i]` for each
    result.
    """

    def __init__(self, closed: ClosedJaxpr, nonzero: tuple[bool, ...]):
        super().__init__(closed)
        self.nonzero = nonzero


def jvp_jaxpr(
    closed: ClosedJaxpr, nonzero: Sequence[bool], instantiate_results: bool | Sequence[bool] = False
) -> JvpJaxpr:
    """The derivative of a jaxpr by the inputs whose `nonzero` is set.

    instantiate_results: which results must have a tangent although it is zero (all, none, or one flag each).
    """
    outs = len(closed.jaxpr.outvars)
    forced = (instantiate_results,) * outs if isinstance(instantiate_results, bool) else tuple(instantiate_results)
    return _cache.get((closed, tuple(nonzero), forced), lambda: _make(closed, tuple(nonzero), forced))


def _make(closed: ClosedJaxpr, nonzero: tuple[bool, ...], forced: Sequence[bool]) -> JvpJaxpr:
    avals = closed.in_avals
    found: list[tuple[bool, ...]] = []

    def f(*flat: Any) -> list[Any]:
        primals, live = flat[: len(avals)], iter(flat[len(avals) :])
        tangents = [next(live) if n else Zero(tangent_aval(a)) for n, a in zip(nonzero, avals, strict=True)]
        outs, out_tangents = jvp_flat(lambda *args: eval_jaxpr(closed.jaxpr, closed.consts, args), primals, tangents)
        wanted = [
            filled(t.aval, 0) if isinstance(t, Zero) and force and not is_float0(t.aval) else t
            for t, force in zip(out_tangents, forced)
        ]
        found.append(tuple(not isinstance(t, Zero) for t in wanted))
        return [*outs, *(t for t in wanted if not isinstance(t, Zero))]

    tangent_avals = [tangent_aval(a) for n, a in zip(nonzero, avals) if n]
    jaxpr = trace_to_jaxpr(f, [*avals, *tangent_avals], name=closed.jaxpr.debug_name, record_source=False)
    return JvpJaxpr(jaxpr, found[0])
