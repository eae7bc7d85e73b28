"""Partial evaluation: do now what depends on known values only, and record the rest as a jaxpr.

`PartialTrace` is staging with one difference: an op of known operands alone goes to the trace below, and its result
is a constant (a residual) of the jaxpr.  Below may be evaluation (eager `grad`), or staging: that splits a jaxpr in
two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr
from mpiarray.core.op import Op
from mpiarray.core.trace import RuledFunction, current, state
from mpiarray.core.value import Literal
from mpiarray.transforms.evaluate import DerivedCache, dead_code, eval_jaxpr, has_effects, without_constants
from mpiarray.transforms.stage import JitTracer, StageTrace, trace_to_jaxpr
from mpiarray.types.aval import ShapedArray


class PartialTrace(StageTrace):
    """Stages what depends on its arguments; the trace below (`parent`) does everything else."""

    def __init__(self, name: str, parent: Any):
        super().__init__(name, parent, record_source=False)

    def is_unknown(self, x: Any) -> bool:
        return isinstance(x, JitTracer) and x.owner is self

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        unknown = [isinstance(a, JitTracer) and a.owner is self for a in args]
        if not any(unknown):
            with current(self.parent):
                return op(*args, **params)
        if op.partial_eval is not None and not all(unknown):
            return op.partial_eval(op, self, args, unknown, **params)
        return super().process(op, args, params)

    def call(self, function: RuledFunction, args: Sequence[Any]) -> list[Any]:
        if any(self.is_unknown(a) for a in args):
            return function.bind(args)
        with current(self.parent):
            return function(args)

    def stage(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Record an equation, whatever is known."""
        with current(self):
            return super().process(op, tuple(args), params)

    def close(self, args: Sequence[JitTracer], outs: Sequence[Any]) -> ClosedJaxpr:
        """The recorded jaxpr without dead code, and only the constants that it needs."""
        found = self.finish(args, outs)
        jaxpr = dead_code(found.jaxpr)
        used = {v for e in jaxpr.eqns for v in e.invars if not isinstance(v, Literal)} | {
            v for v in jaxpr.outvars if not isinstance(v, Literal)
        }
        kept = [(v, c) for v, c in zip(jaxpr.constvars, found.consts) if v in used]
        return ClosedJaxpr(jaxpr.replace(constvars=[v for v, _ in kept]), [c for _, c in kept])


class Split:
    """A jaxpr in two parts.

    known      (*consts, *known inputs) -> (*known results, *residuals)
    unknown    (*residuals, *forwarded, *unknown inputs) -> unknown results
    out_known  for each result whether the first part gives it
    forwarded  the residuals that are known inputs themselves, by their number among the known inputs
    """

    def __init__(
        self,
        known: ClosedJaxpr,
        unknown: ClosedJaxpr,
        out_known: tuple[bool, ...],
        residuals: int,
        forwarded: tuple[int, ...],
    ):
        self.known, self.consts = without_constants(known), known.consts
        self.unknown, self.out_known, self.residuals, self.forwarded = unknown, out_known, residuals, forwarded

    @property
    def residual_avals(self) -> tuple[ShapedArray, ...]:
        return self.known.out_avals[len(self.known.out_avals) - self.residuals :] if self.residuals else ()

    def merge(self, known: Sequence[Any], unknown: Sequence[Any]) -> list[Any]:
        """The results in their order."""
        k, u = iter(known), iter(unknown)
        return [next(k) if flag else next(u) for flag in self.out_known]


_cache = DerivedCache()


def partial_eval_jaxpr(closed: ClosedJaxpr, unknown: Sequence[bool]) -> Split:
    """Split a jaxpr by which of its inputs are unknown."""
    return _cache.get((closed, tuple(unknown)), lambda: _split(closed, tuple(unknown)))


def _split(closed: ClosedJaxpr, unknown: tuple[bool, ...]) -> Split:
    found: list[tuple[Jaxpr, tuple[bool, ...], int, tuple[int, ...]]] = []
    avals = closed.in_avals

    def f(*known: Any) -> list[Any]:
        trace = PartialTrace(closed.jaxpr.debug_name, state.trace)
        later = [trace.new_arg(a) for a, u in zip(avals, unknown) if u]
        k, u = iter(known), iter(later)
        args = [next(u) if flag else next(k) for flag in unknown]
        with current(trace):
            outs = eval_jaxpr(closed.jaxpr, closed.consts, args)
        flags = tuple(not trace.is_unknown(x) for x in outs)
        rest = trace.close(later, [x for x, flag in zip(outs, flags) if not flag])
        place = {id(x): n for n, x in enumerate(known)}
        made = [(v, c) for v, c in zip(rest.jaxpr.constvars, rest.consts) if id(c) not in place]
        passed = [(v, place[id(c)]) for v, c in zip(rest.jaxpr.constvars, rest.consts) if id(c) in place]
        invars = (*(v for v, _ in made), *(v for v, _ in passed), *rest.jaxpr.invars)
        found.append((rest.jaxpr.replace(constvars=(), invars=invars), flags, len(made), tuple(n for _, n in passed)))
        return [*(x for x, flag in zip(outs, flags) if flag), *(c for _, c in made)]

    known_avals = [a for a, u in zip(avals, unknown) if not u]
    known = trace_to_jaxpr(f, known_avals, name=closed.jaxpr.debug_name, record_source=False)
    later, flags, made, passed = found[0]
    return Split(known, ClosedJaxpr(later), flags, made, passed)


def matters(closed: ClosedJaxpr) -> bool:
    """Whether a jaxpr has a result or an effect."""
    return bool(closed.jaxpr.outvars) or any(has_effects(e) for e in closed.jaxpr.eqns)


def call_partial_eval(name: str = "jaxpr") -> Callable[..., Any]:
    """The partial_eval rule of an op that just calls the jaxpr in its parameter `name`."""

    def rule(op: Op, trace: PartialTrace, args: Sequence[Any], unknown: Sequence[bool], **params: Any) -> list[Any]:
        split = partial_eval_jaxpr(params[name], unknown)
        ins = [a for a, u in zip(args, unknown) if not u]
        with current(trace.parent):
            outs = op(*split.consts, *ins, **params | {name: split.known}) if matters(split.known) else []
        known, residuals = outs[: len(outs) - split.residuals], outs[len(outs) - split.residuals :]
        passed = [ins[n] for n in split.forwarded]
        rest = [a for a, u in zip(args, unknown) if u]
        later = (
            trace.stage(op, [*residuals, *passed, *rest], params | {name: split.unknown})
            if not all(split.out_known)
            else []
        )
        return split.merge(known, later)

    return rule
