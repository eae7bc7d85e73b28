"""Choosing between whole values by a predicate per example: what conditionals become under vmap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.ops.linear import broadcast_in_dim, sharding_of
from mpiarray.ops.reductions import reduce_or
from mpiarray.ops.select import select_n


def choose(which: Any, cases: Sequence[Any]) -> Any:
    """`cases[which[k]][k]` for every example k, the first dim of all."""
    aval = aval_of(cases[0])
    if aval.ndim > 1:
        sharding = sharding_of(aval)
        which = broadcast_in_dim(which, shape=aval.shape, broadcast_dimensions=(0,), sharding=sharding)
    return select_n(which, *cases)


def any_of(going: Any) -> Any:
    """Whether any example goes on; the same on all devices."""
    return reduce_or(going, axes=(0,))
