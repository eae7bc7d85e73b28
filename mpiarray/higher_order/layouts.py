"""Memory orders that the compiler chooses: `Layout.AUTO` (spec layout.md 5).

From the jaxpr and shapes alone: each reader of an input votes, weighted by the elements it touches.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from mpiarray.core.jaxpr import Jaxpr, Var
from mpiarray.core.value import Literal

Order = tuple[int, ...]

_CARRIES = {
    "convert_element_type",
    "copy",
    "reshard",
    "sharding_constraint",
    "neg",
    "sin",
    "cos",
    "exp",
    "log",
    "tanh",
    "abs",
    "sqrt",
}


def row_major(ndim: int) -> Order:
    return tuple(range(ndim))


def input_orders(jaxpr: Jaxpr, first: int = 0) -> list[Order]:
    """The preferred order of each input from the `first` on."""
    return [_preferred(jaxpr, v) for v in jaxpr.invars[first:]]


def _preferred(jaxpr: Jaxpr, var: Var) -> Order:
    votes: Counter[Order] = Counter()
    _collect(jaxpr, var, votes, set())
    default = row_major(var.aval.ndim)
    if not votes:
        return default
    most = max(votes.values())
    winners = [o for o, n in votes.items() if n == most]
    return winners[0] if len(winners) == 1 else default


def _collect(jaxpr: Jaxpr, var: Var, votes: Counter[Order], seen: set[Any]) -> None:
    if var in seen:
        return
    seen.add(var)
    ndim = var.aval.ndim
    if any(v is var for v in jaxpr.outvars):
        votes[row_major(ndim)] += var.aval.size
    for eqn in jaxpr.eqns:
        if not any(v is var for v in eqn.invars):
            continue
        name, params = eqn.op.name, eqn.params
        if eqn.op.inlines:
            inner = params["jaxpr"].jaxpr
            for v, outer in zip(inner.invars, eqn.invars):
                if outer is var:
                    _collect(inner, v, votes, seen)
            continue
        arrays = [v for v in eqn.invars if not isinstance(v, Literal) and v.aval.ndim == ndim]
        if name in _CARRIES or (
            len(arrays) == 1 and eqn.outvars[0].aval.shape == var.aval.shape and not _has_shape_params(params)
        ):
            _collect(jaxpr, eqn.outvars[0], votes, seen)
            continue
        order, weight = _vote(eqn, var)
        votes[order] += weight


def _has_shape_params(params: dict[str, Any]) -> bool:
    return any(
        k in params
        for k in (
            "permutation",
            "dimensions",
            "shape",
            "new_sizes",
            "axes",
            "dimension_numbers",
            "start_indices",
            "axis",
            "dimension",
        )
    )


def _vote(eqn: Any, var: Var) -> tuple[Order, int]:
    ndim, shape = var.aval.ndim, var.aval.shape
    params = eqn.params
    match eqn.op.name:
        case "slice":
            extents = [b - a for a, b in zip(params["start_indices"], params["limit_indices"])]
            return _narrow_first(extents, shape), int(np.prod(extents))
        case "dynamic_slice":
            extents = list(params["slice_sizes"])
            return _narrow_first(extents, shape), int(np.prod(extents))
        case "transpose":
            return tuple(params["permutation"]), var.aval.size
        case "dot_general" if eqn.invars[0] is var:
            (contract, _), _ = params["dimension_numbers"]
            return tuple(d for d in range(ndim) if d not in contract) + tuple(contract), var.aval.size
        case name if name.startswith("reduce_") and "axes" in params:
            axes = params["axes"]
            return tuple(d for d in range(ndim) if d not in axes) + tuple(axes), var.aval.size
    return row_major(ndim), var.aval.size


def _narrow_first(extents: list[int], shape: tuple[int, ...]) -> Order:
    narrow = [d for d, (e, n) in enumerate(zip(extents, shape)) if e == 1 and n > 1]
    return tuple(narrow + [d for d in range(len(shape)) if d not in narrow])


def auto_result_order(jaxpr: Jaxpr, k: int) -> Order:
    """The order in which the op that makes result `k` yields its data without a copy."""
    out = jaxpr.outvars[k]
    for eqn in jaxpr.eqns:
        if eqn.op.name == "transpose" and out in eqn.outvars:
            return tuple(int(i) for i in np.argsort(eqn.params["permutation"]))
    return row_major(out.aval.ndim)
