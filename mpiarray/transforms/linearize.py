"""Linearization: run a function once, on values with unknown tangents; what is done with the tangents is the linear
program.

Forwards it is `jax.linearize`, transposed it is `jax.vjp` and `jax.grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.op import Zero
from mpiarray.core.trace import current, state
from mpiarray.ops.linear import tangent_aval
from mpiarray.transforms.evaluate import eval_jaxpr
from mpiarray.transforms.jvp import JVPTrace, JVPTracer
from mpiarray.transforms.partial_eval import PartialTrace
from mpiarray.transforms.tangents import as_value, cotangent_aval, is_float0
from mpiarray.transforms.transpose import backward_pass
from mpiarray.types.aval import ShapedArray


class LinearProgram:
    """The derivative of a function at a point.

    program   a jaxpr from the tangents of the differentiable inputs to those of the results that depend on them; its
              constants are the residuals
    in_avals, out_avals   types of the function's inputs and results
    """

    def __init__(
        self,
        program: ClosedJaxpr,
        in_avals: Sequence[ShapedArray],
        active: Sequence[bool],
        out_avals: Sequence[ShapedArray],
        live: Sequence[bool],
    ):
        self.program, self.in_avals, self.out_avals = program, tuple(in_avals), tuple(out_avals)
        self.active, self.live = tuple(active), tuple(live)

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """Tangents of the results; Zero where none depends on the inputs."""
        given = [t for t, a in zip(tangents, self.active, strict=True) if a]
        outs = iter(eval_jaxpr(self.program.jaxpr, self.program.consts, given))
        return [next(outs) if live else Zero(tangent_aval(a)) for live, a in zip(self.live, self.out_avals)]

    def pull(self, cotangents: Sequence[Any]) -> list[Any]:
        """Cotangents of the inputs; Zero where no result depends on them."""
        given = [ct for ct, live in zip(cotangents, self.live, strict=True) if live]
        found = iter(backward_pass(self.program.jaxpr, self.program.consts, given))
        return [next(found) if a else Zero(cotangent_aval(v)) for a, v in zip(self.active, self.in_avals)]


def linearize_flat(
    f: Callable[..., Any], primals: Sequence[Any], name: str = "linear"
) -> tuple[list[Any], LinearProgram, Any]:
    """(results, their derivative, aux): `f` takes flat values and returns (flat results, aux function of
    `primal_of`).
    """
    partial = PartialTrace(name, state.trace)
    trace = JVPTrace(partial)
    primals = [as_value(x) for x in primals]
    avals = [x.aval for x in primals]
    active = [not is_float0(tangent_aval(a)) for a in avals]
    tangents = [partial.new_arg(tangent_aval(a)) for a, flag in zip(avals, active) if flag]
    live = iter(tangents)
    args = [JVPTracer(trace, x, next(live)) if flag else x for x, flag in zip(primals, active)]
    try:
        with current(trace):
            outs, finish_aux = f(*args)
        pairs = [trace.part(x) for x in outs]
        aux = finish_aux(trace.primal_of)
        flags = [not isinstance(t, Zero) for _, t in pairs]
        program = partial.close(tangents, [t for _, t in pairs if not isinstance(t, Zero)])
    finally:
        trace.alive = partial.alive = False
    values = [as_value(x) for x, _ in pairs]
    return values, LinearProgram(program, avals, active, [x.aval for x in values], flags), aux
