"""Instances that may not meet: collectives under control flow that depends on values which differ between instances.

An instance that takes another branch, or leaves a loop earlier, does not come to the collective that the others wait in.
The types say over which manual axes a predicate varies, so that this is an error before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from mpiarray.core.trace import state
from mpiarray.transforms.batching import axis_names

COMMUNICATES = frozenset(
    ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
)


@lru_cache(maxsize=2048)
def communicating_axes(jaxpr: Jaxpr) -> frozenset[Any]:
    """The axes that collectives in a jaxpr, and in those that it carries, are over."""
    found: set[Any] = set()
    for e in jaxpr.eqns:
        if e.op.hlo_name in COMMUNICATES:
            found.update(axis_names(e.params))
        for inner in subjaxprs(e.params):
            found |= communicating_axes(inner)
    return frozenset(found)


def check_meeting(what: str, varying: frozenset[str], bodies: Iterable[ClosedJaxpr]) -> None:
    """Raise ValueError when bodies communicate over an axis that the predicate varies over."""
    if not varying or not state.check_vma:
        return
    for body in bodies:
        for axis in sorted(communicating_axes(body.jaxpr) & varying):
            raise ValueError(
                f"{what}: collective over {axis!r} under control flow that depends on a value varying over {axis!r}: instances that decide otherwise "
                f"would never come to it. Make the predicate invariant first (`lax.pmax`, `lax.psum`), or communicate outside of the {what}; for derivatives, "
                "cast what its body closes over with `lax.pcast(..., to='varying')` before it."
            )
