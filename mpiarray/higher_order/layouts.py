"""Memory orders that the compiler chooses: `Layout.AUTO` (spec layout.md 5).

From the jaxpr and shapes alone: each reader of an input votes, weighted by the elements it touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, callee
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


class _Readers:
    """Who reads each variable of a jaxpr, found once: (equation, or None for a result), in the order of the program."""

    def __init__(self) -> None:
        self._found: dict[Jaxpr, dict[Atom, list[Eqn | None]]] = {}

    def of(self, jaxpr: Jaxpr, var: Var) -> list[Eqn | None]:
        readers = self._found.get(jaxpr)
        if readers is None:
            readers = self._found[jaxpr] = {}
            for v in dict.fromkeys(v for v in jaxpr.outvars if not isinstance(v, Literal)):
                readers.setdefault(v, []).append(None)
            for eqn in jaxpr.eqns:
                for v in dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)):
                    readers.setdefault(v, []).append(eqn)
        return readers.get(var, [])


def input_orders(jaxpr: Jaxpr, which: Sequence[int]) -> dict[int, Order]:
    """The preferred orders of some inputs, by their numbers."""
    readers = _Readers()
    return {k: _preferred(jaxpr, jaxpr.invars[k], readers) for k in which}


def _preferred(jaxpr: Jaxpr, var: Var, readers: _Readers) -> Order:
    votes = _votes(jaxpr, var, readers)
    default = row_major(var.aval.ndim)
    if not votes:
        return default
    most = max(votes.values())
    winners = [o for o, n in votes.items() if n == most]
    return winners[0] if len(winners) == 1 else default


def _votes(jaxpr: Jaxpr, var: Var, readers: _Readers) -> Counter[Order]:
    """What the readers of an input want, those behind calls and elementwise chains included."""
    votes: Counter[Order] = Counter()
    todo, seen = [(jaxpr, var)], {var}
    while todo:
        within, held = todo.pop()
        for eqn in readers.of(within, held):
            if eqn is None:
                votes[row_major(held.aval.ndim)] += held.aval.size
                continue
            if eqn.op.inlines:
                inner = callee(eqn.params).jaxpr
                follow = [(inner, v) for v, outer in zip(inner.invars, eqn.invars) if outer is held]
            elif _carries(eqn, held):
                follow = [(within, eqn.outvars[0])]
            else:
                order, weight = _vote(eqn, held)
                votes[order] += weight
                continue
            todo += [(j, v) for j, v in follow if v not in seen]
            seen.update(v for _, v in follow)
    return votes


def _carries(eqn: Eqn, var: Var) -> bool:
    """Whether a result has its operand's elements one by one, so that its readers speak for it."""
    arrays = [v for v in eqn.invars if not isinstance(v, Literal) and v.aval.ndim == var.aval.ndim]
    return eqn.op.name in _CARRIES or (
        len(arrays) == 1 and eqn.outvars[0].aval.shape == var.aval.shape and not _has_shape_params(eqn.params)
    )


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


def auto_result_orders(jaxpr: Jaxpr, which: Sequence[int]) -> dict[int, Order]:
    """The orders in which the ops that make some results yield their data without a copy, by the results' numbers."""
    wanted = {jaxpr.outvars[k] for k in which}
    made: dict[Atom, Order] = {}
    for eqn in jaxpr.eqns if wanted else ():
        if eqn.op.name == "transpose" and eqn.outvars[0] in wanted:
            made[eqn.outvars[0]] = tuple(int(i) for i in np.argsort(eqn.params["permutation"]))
    return {k: made.get(jaxpr.outvars[k], row_major(jaxpr.outvars[k].aval.ndim)) for k in which}
