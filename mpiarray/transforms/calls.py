"""Derivative rules of ops that only call a jaxpr: the derivative of a call is the call of the derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.op import Linear, Op, Zero
from mpiarray.ops.linear import tangent_aval
from mpiarray.transforms.jvp import jvp_jaxpr
from mpiarray.transforms.tangents import cotangent_aval
from mpiarray.transforms.transpose import transpose_jaxpr


def call_jvp(name: str = "jaxpr") -> Callable[..., Any]:
    """The jvp rule of an op that calls the jaxpr in its parameter `name`."""

    def rule(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
        nonzero = [not isinstance(t, Zero) for t in tangents]
        derived = jvp_jaxpr(params[name], nonzero)
        live = [t for t in tangents if not isinstance(t, Zero)]
        outs = op(*derived.consts, *primals, *live, **params | {name: derived.jaxpr})
        return with_zeros(outs, derived.nonzero, params[name].out_avals)

    return rule


def with_zeros(outs: Sequence[Any], nonzero: Sequence[bool], avals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(results, tangents) of a derived jaxpr's flat results."""
    n = len(nonzero)
    live = iter(outs[n:])
    return list(outs[:n]), [
        next(live) if flag else Zero(tangent_aval(a)) for flag, a in zip(nonzero, avals, strict=True)
    ]


def call_transpose(name: str = "jaxpr") -> Callable[..., Any]:
    """The transpose rule of an op that calls the jaxpr in its parameter `name`."""

    def rule(op: Op, cts: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
        linear = [isinstance(a, Linear) for a in args]
        derived = transpose_jaxpr(params[name], linear, [not isinstance(ct, Zero) for ct in cts])
        known = [a for a in args if not isinstance(a, Linear)]
        live = [ct for ct in cts if not isinstance(ct, Zero)]
        outs = op(*derived.consts, *known, *live, **params | {name: derived.jaxpr})
        return cotangents_of(outs, derived.nonzero, args)

    return rule


def cotangents_of(outs: Sequence[Any], nonzero: Sequence[bool], args: Sequence[Any]) -> list[Any]:
    """One cotangent per linear operand, None for the others, from the nonzero ones."""
    live, flags = iter(outs), iter(nonzero)
    return [
        (next(live) if next(flags) else Zero(cotangent_aval(a.aval))) if isinstance(a, Linear) else None for a in args
    ]
