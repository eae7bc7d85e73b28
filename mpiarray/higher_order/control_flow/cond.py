"""`lax.cond` and `lax.switch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.config import config
from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.plan import mesh_order
from mpiarray.core.trace import state
from mpiarray.core.value import Literal, aval_of, literal
from mpiarray.higher_order.control_flow.bodies import Body, join_constants, name_of, placed_aval, trace_body, values_of
from mpiarray.higher_order.control_flow.carries import avals_of, differences
from mpiarray.higher_order.control_flow.casts import Cast, without_casts
from mpiarray.higher_order.control_flow.cond_op import cond_op
from mpiarray.numpy.promotion import cast
from mpiarray.ops.common import const_like
from mpiarray.ops.comparison import ne
from mpiarray.ops.select import clamp
from mpiarray.transforms.interning import rearranged, widened
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapedArray

_INDEX = np.dtype("int32")
_UNSET = object()


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any, operand: Any = _UNSET
) -> Any:
    """`true_fun(*operands)` if `pred` holds, else `false_fun(*operands)`; only the chosen one is run.

    pred: a boolean scalar, or a number (true when it is not zero).  Both functions must return trees of the same types.
    operand: a single operand, for older programs.

    Raises TypeError for other predicates and results.  In shard_map, a predicate that varies over an axis allows no
    collectives over it (ValueError).  Under vmap with a predicate per example both are run.
    """
    if operand is not _UNSET:
        operands = (operand,)
    if not callable(true_fun) or not callable(false_fun):
        raise TypeError("lax.cond: true_fun and false_fun arguments should be callable.")
    (value,), structure = _scalar("cond", "pred", pred)
    aval = aval_of(value)
    if not tree.treedef_is_leaf(structure) or aval.ndim:
        raise TypeError(
            f"Pred must be a scalar, got {pred} of type {aval.str_short()}: of shape {aval.shape}. Reduce it with `.all()` or `.any()`."
        )
    if not (dtypes.is_bool(aval.dtype) or dtypes.is_int(aval.dtype) or dtypes.is_float(aval.dtype)):
        raise TypeError(f"Pred type must be either boolean or number, got {aval.str_short()}")
    if config.jax_disable_jit and not isinstance(value, Literal):
        return true_fun(*operands) if pred else false_fun(*operands)
    if not dtypes.is_bool(aval.dtype):
        value = (
            literal(value.val != 0, np.dtype(bool)) if isinstance(value, Literal) else ne(value, const_like(value, 0))
        )
    index = literal(value.val, _INDEX) if isinstance(value, Literal) else cast(value, _INDEX)
    return _choose("cond", index, (false_fun, true_fun), ("false_fun", "true_fun"), operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`, the index clamped into range; only the chosen branch is run.

    index: an integer scalar.  All branches must return trees of the same types.  See `cond`.
    """
    if not branches:
        raise ValueError("Empty branch sequence: lax.switch needs at least one branch")
    if not all(callable(b) for b in branches):
        raise TypeError("lax.switch: branches argument should be a sequence of callables.")
    (value,), structure = _scalar("switch", "index", index)
    aval = aval_of(value)
    if not tree.treedef_is_leaf(structure) or aval.ndim:
        raise TypeError(f"Branch index must be scalar, got {index} of shape {aval.shape}.")
    if not dtypes.is_int(aval.dtype):
        raise TypeError(f"Index type must be an integer, got {aval.str_short()}")
    if len(branches) == 1:
        return branches[0](*operands)
    last = len(branches) - 1
    if isinstance(value, Literal):
        chosen: Any = literal(min(max(int(value.val), 0), last), _INDEX)
    else:
        value = cast(value, _INDEX)
        chosen = clamp(literal(0, _INDEX), value, literal(last, _INDEX))
    return _choose("switch", chosen, branches, tuple(f"branches[{k}]" for k in range(len(branches))), operands)


def _scalar(what: str, name: str, x: Any) -> tuple[list[Any], Any]:
    values, structure = values_of(what, name, x)
    if len(values) != 1:
        raise TypeError(f"lax.{what}: {name} must be a scalar, got {x!r} of structure {structure}")
    return values, structure


def _choose(
    what: str, index: Any, functions: Sequence[Callable[..., Any]], names: Sequence[str], operands: tuple[Any, ...]
) -> Any:
    values, structure = values_of(what, "operands", operands)
    avals = [placed_aval(a) for a in avals_of(values)]
    bodies = [trace_body(what, f, structure, avals) for f in functions]
    order = slice(None, None, -1) if what == "cond" else slice(None)  # messages speak of true_fun first
    _check_alike(what, bodies[order], functions[order], names[order])
    jaxprs, consts = join_constants(bodies)
    given = [*consts, *values]
    parts = [without_casts(j, len(given)) for j in jaxprs]
    casts = list(dict.fromkeys(c for _, own in parts for c in own))
    cast = {c: c.bind(given) for c in casts}
    branches = tuple(_with_all(j, own, {c: aval_of(x) for c, x in cast.items()}, len(given)) for j, own in parts)
    outs = cond_op(index, *given, *cast.values(), branches=branches)
    return tree.unflatten(bodies[0].structure, outs)


def _with_all(branch: ClosedJaxpr, own: Sequence[Cast], casts: dict[Cast, ShapedArray], count: int) -> ClosedJaxpr:
    """A branch that takes the results of all branches' casts, where it took those of its own."""
    missing = [c for c in casts if c not in own]
    wide = widened(branch, tuple(casts[c] for c in missing), len(branch.in_avals)) if missing else branch
    place = {c: count + n for n, c in enumerate([*own, *missing])}
    return rearranged(wide, (*range(count), *(place[c] for c in casts)), tuple(range(len(wide.out_avals))))


def _check_alike(what: str, bodies: Sequence[Body], functions: Sequence[Any], names: Sequence[str]) -> None:
    """Raise TypeError unless all branches return trees of the same types; weak types give way."""
    first = bodies[0]
    for body, function, name in zip(bodies[1:], functions[1:], names[1:]):
        if body.structure != first.structure:
            raise TypeError(
                f"{what} branch outputs must have the same pytree structure, but they differ: {names[0]} ({name_of(functions[0])}) returns {first.structure} and "
                f"{name} ({name_of(function)}) returns {body.structure}."
            )
        lines, hints = [], []
        for path, a, b in zip(tree.paths(first.structure), first.out_avals, body.out_avals):
            found = differences(a, b)
            if not found:
                continue
            part = f" at path {tree.keystr(path)}" if path else ""
            lines.append(
                f"the output of {names[0]}{part} has type {a.str_short()} but the output of {name}{part} has type {b.str_short()}, so {', and '.join(found)}."
            )
            hints += _hints(a, b, names[0], name)
        if lines:
            shown = "\n\n".join(["; ".join(lines), *hints])
            raise TypeError(
                f"{what} branches must have equal output types but they differ: {shown}\n\nRevise the branches so that all return the same types."
            )


def _hints(a: ShapedArray, b: ShapedArray, first: str, second: str) -> list[str]:
    out = []
    for have, want, name in ((a, b, first), (b, a, second)):
        missing = mesh_order(state.abstract_mesh, want.vma - have.vma) if state.check_vma else ()
        if missing:
            out.append(
                f"This might be fixed by applying `jax.lax.pcast(..., {missing}, to='varying')` to the output of {name}."
            )
    return out
