"""A jaxpr split in a known and an unknown part, where some results must be unknown although they could be known.

The carry of a loop is unknown as a whole once any iteration makes it so, and a conditional's result once any branch does;
then the known part hands its value on as a residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Var
from mpiarray.core.value import Literal
from mpiarray.transforms.evaluate import DerivedCache
from mpiarray.transforms.partial_eval import Split, partial_eval_jaxpr
from mpiarray.types.aval import ShapedArray

_cache = DerivedCache()


class Parts:
    """As `transforms.partial_eval.Split`, after moving results to the unknown part.

    known      (*consts, *known inputs) -> (*known results, *residuals)
    unknown    (*residuals, *forwarded, *unknown inputs) -> unknown results
    """

    def __init__(self, split: Split, may_be_known: Sequence[bool]):
        self.consts, self.forwarded = split.consts, split.forwarded
        inner, rest = split.known.jaxpr, split.unknown.jaxpr
        count = len(inner.outvars) - split.residuals
        known_outs = iter(inner.outvars[:count])
        residuals = list(inner.outvars[count:])
        unknown_outs = iter(rest.outvars)
        kept: list[Any] = []
        outs: list[Any] = []
        more: list[Var] = []
        for known, allowed in zip(split.out_known, may_be_known, strict=True):
            if not known:
                outs.append(next(unknown_outs))
                continue
            v = next(known_outs)
            if allowed:
                kept.append(v)
            elif isinstance(v, Literal):
                outs.append(v)
            else:
                more.append(Var(v.aval))
                residuals.append(v)
                outs.append(more[-1])
        self.out_known = tuple(k and a for k, a in zip(split.out_known, may_be_known))
        self.residuals = len(residuals)
        self.known = ClosedJaxpr(inner.replace(outvars=[*kept, *residuals]))
        self.unknown = ClosedJaxpr(
            rest.replace(invars=[*rest.invars[: split.residuals], *more, *rest.invars[split.residuals :]], outvars=outs)
        )

    @property
    def residual_avals(self) -> tuple[ShapedArray, ...]:
        outs = self.known.out_avals
        return outs[len(outs) - self.residuals :] if self.residuals else ()


def parts_of(closed: ClosedJaxpr, unknown: Sequence[bool], may_be_known: Sequence[bool]) -> Parts:
    """Split a jaxpr by which of its inputs are unknown; results whose `may_be_known` is not set are unknown."""
    split = partial_eval_jaxpr(closed, unknown)
    return _cache.get((split, tuple(may_be_known)), lambda: Parts(split, may_be_known))
