"""Reductions by any associative function of scalars, given as a jaxpr: what `lax.reduce` is made of.

A function that is one of the usual monoids (add, max, ...) becomes the reduction of that name;
see `known_op`.  Others are evaluated on blocks, by folding neighbours pairwise, in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr
from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.plan import LocalContext, Plan, dims_of, mesh_order, replicated, spec_from
from mpiarray.core.value import Literal, aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.collectives import gather
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import batch_to, nary_batch, reduce_sum, reduced_shape
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.ops.reductions import (
    highest,
    lowest,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_xor,
)
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_DERIVATIVE = "of a reduction by a function of your own; write it as sums, products, maxima and minima, or as a scan"

# -- functions that have a reduction of their own ---------------------------------------------------------------

_Neutral = Callable[[Any], Any]
_KNOWN: dict[str, tuple[Callable[..., Any], _Neutral]] = {
    "add": (lambda x, axes: reduce_sum(x, axes=axes, out_sharding=None), lambda dtype: 0),
    "mul": (lambda x, axes: reduce_prod(x, axes=axes), lambda dtype: 1),
    "max": (lambda x, axes: reduce_max(x, axes=axes), lowest),
    "min": (lambda x, axes: reduce_min(x, axes=axes), highest),
    "and": (lambda x, axes: reduce_and(x, axes=axes), lambda dtype: True if dtypes.is_bool(dtype) else -1),
    "or": (lambda x, axes: reduce_or(x, axes=axes), lambda dtype: 0),
    "xor": (lambda x, axes: reduce_xor(x, axes=axes), lambda dtype: 0),
}


def known_op(function: Jaxpr) -> Op | None:
    """The op that a function of two scalars is, if it is one op with a reduction of its own."""
    if len(function.eqns) != 1 or len(function.invars) != 2 or len(function.outvars) != 1:
        return None
    (eqn,) = function.eqns
    if eqn.op.inlines:
        return known_op(eqn.params["jaxpr"].jaxpr) if eqn.invars == function.invars else None
    if eqn.op.name not in _KNOWN or set(eqn.invars) != set(function.invars):
        return None
    return eqn.op if function.outvars[0] is eqn.outvars[0] else None


def reduce_with(
    operands: Sequence[Any], init_values: Sequence[Any], function: ClosedJaxpr, axes: tuple[int, ...], computation: Any
) -> list[Any]:
    """Fold dims by a traced function of two scalars per operand, starting from the initial values.

    `computation` is the function as the user wrote it, for the jaxpr's text.
    """
    op = known_op(function.jaxpr)
    if op is None:
        return reduce(*operands, *init_values, computation=computation, jaxpr=function, dimensions=axes)
    reduce_known, neutral = _KNOWN[op.name]
    total, dtype = reduce_known(operands[0], axes), aval_of(operands[0]).dtype
    if not _is_value(init_values[0], np.asarray(neutral(dtype)).astype(dtype)):
        total = op(init_values[0], total)
    return [total]


def _is_value(x: Any, value: Any) -> bool:
    x = x.val if isinstance(x, Literal) else x
    return isinstance(x, (bool, int, float, complex, np.generic)) and bool(x == value)


# -- any function --------------------------------------------------------------------------------------------


def apply(function: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """A jaxpr of scalars applied to blocks element by element."""
    if all(_elementwise(e) for e in function.eqns):
        return _evaluate(function.jaxpr, function.consts, operands)
    flat = [np.ravel(x) for x in operands]
    results = [_evaluate(function.jaxpr, function.consts, row) for row in zip(*flat)]
    shape = np.shape(operands[0])
    return [
        np.array([r[k] for r in results], v.aval.dtype).reshape(shape) for k, v in enumerate(function.jaxpr.outvars)
    ]


def _elementwise(eqn: Any) -> bool:
    if eqn.op.inlines:
        return all(_elementwise(e) for e in eqn.params["jaxpr"].eqns)
    return eqn.op.impl is not None and (eqn.op.batch is nary_batch or eqn.op.name in ("select_n", "clamp"))


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    env: dict[Any, Any] = {**dict(zip(jaxpr.invars, operands)), **dict(zip(jaxpr.constvars, consts))}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        ins = [read(a) for a in eqn.invars]
        if eqn.op.inlines:
            inner = eqn.params["jaxpr"]
            outs = _evaluate(inner.jaxpr, inner.consts, ins)
        elif eqn.op.impl is None:
            raise NotImplementedError(f"reduce: the function uses {eqn.op.name}, which cannot stand in a reduction")
        else:
            out = eqn.op.impl(*ins, **eqn.params)
            outs = list(out) if eqn.op.multiple_results else [out]
        env.update(zip(eqn.outvars, outs))
    return [read(a) for a in jaxpr.outvars]


def _fold(function: ClosedJaxpr, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Along the last dim, which stays with size 1 (0 if it has none): neighbours are combined, in order."""
    xs = list(xs)
    while (n := xs[0].shape[-1]) > 1:
        pairs = n // 2
        merged = apply(function, [x[..., 0 : 2 * pairs : 2] for x in xs] + [x[..., 1 : 2 * pairs : 2] for x in xs])
        merged = [np.broadcast_to(m, (*x.shape[:-1], pairs)) for m, x in zip(merged, xs)]
        xs = [np.concatenate([m, x[..., 2 * pairs :]], axis=-1) for m, x in zip(merged, xs)]
    return xs


def _reduce_blocks(*args: Any, function: ClosedJaxpr, axes: tuple[int, ...], started: bool) -> list[np.ndarray]:
    """Blocks (and the initial values, if `started`) reduced over dims."""
    count = len(args) // 2 if started else len(args)
    xs, inits = [np.asarray(a) for a in args[:count]], args[count:]
    kept = [d for d in range(xs[0].ndim) if d not in axes]
    shape = [xs[0].shape[d] for d in kept]
    size = math.prod(xs[0].shape[d] for d in axes)
    flat = [np.transpose(x, kept + list(axes)).reshape(*shape, size) for x in xs]
    parts = _fold(function, flat)
    if not started:
        return [p[..., 0] for p in parts]
    starts = [np.broadcast_to(np.asarray(i, x.dtype), shape) for i, x in zip(inits, xs)]
    outs = apply(function, [*starts, *(p[..., 0] for p in parts)]) if size else starts
    return [np.array(np.broadcast_to(o, shape), x.dtype) for o, x in zip(outs, xs)]


def _check(operands: Sequence[ShapedArray], inits: Sequence[ShapedArray], function: ClosedJaxpr) -> None:
    if any(x.shape != operands[0].shape for x in operands):
        raise TypeError(f"reduce: operands must have equal shapes, got {', '.join(x.str_short() for x in operands)}")
    for x, i in zip(operands, inits):
        if i.ndim or i.dtype != x.dtype:
            raise TypeError(
                f"reduce: init_values must be scalars of the operands' dtypes, got {i.str_short()}, {x.str_short()}"
            )
    wanted = [x.dtype for x in operands]
    got = [a.dtype for a in function.out_avals]
    if got != wanted:
        raise TypeError(f"reduce: computation must return scalars of dtypes {wanted}, it returns {got}")


def _reduce_type(*args: ShapedArray, computation: Any, jaxpr: ClosedJaxpr, dimensions: tuple[int, ...]) -> list[Out]:
    operands, inits = args[: len(args) // 2], args[len(args) // 2 :]
    _check(operands, inits, jaxpr)
    return [Out(reduced_shape("reduce", x, dimensions), x.dtype, x.weak_type) for x in operands]


def _reduce_plan(avals: tuple[ShapedArray, ...], *, computation: Any, jaxpr: Any, dimensions: tuple[int, ...]) -> Plan:
    operands = avals[: len(avals) // 2]
    dims = dims_of(operands[0])
    if any(dims_of(x) != dims for x in operands):
        shown = ", ".join(x.short() for x in operands)
        raise ShardingTypeError(f"reduce: operands must have equal shardings, got {shown}. Use `jax.reshard`.")
    kept = spec_from([e for d, e in enumerate(dims) if d not in dimensions])
    ins = (*(spec_from(dims) for _ in operands), *(replicated(0) for _ in operands))
    over = any(dims[d] for d in dimensions)
    return Plan(ins, (kept,) * len(operands), local=_reduce_program if over else None)


def _reduce_program(
    ctx: LocalContext, *args: Any, computation: Any, jaxpr: Any, dimensions: tuple[int, ...]
) -> list[Any]:
    """Each block without the initial values, then the blocks' results in order of position, then with them."""
    count = len(args) // 2
    dims = dims_of(ctx.ins[0])
    axes = [a for d in dimensions for a in dims[d]]
    parts = reduce_part(*args[:count], function=jaxpr, axes=dimensions)
    if len(dimensions) > 1:  # an order of all elements is not kept anyway
        axes = list(mesh_order(ctx.mesh, axes))
    stacked = [gather(p, axes, 0, tiled=False) for p in parts]
    return reduce(*stacked, *args[count:], computation=computation, jaxpr=jaxpr, dimensions=(0,))


def _reduce_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
    count = len(args) // 2
    if any(d is not None for d in dims[count:]):
        raise NotImplementedError("vmap of reduce with mapped init_values: pass init_values that are not mapped")
    moved = [batch_to(x, axis, d, 0) for x, d in zip(args[:count], dims)]
    params["dimensions"] = tuple(d + 1 for d in params["dimensions"])
    return op(*moved, *args[count:], **params), [0] * count


reduce = define(
    "reduce",
    type_rule=_reduce_type,
    plan=_reduce_plan,
    impl=lambda *args, computation, jaxpr, dimensions: _reduce_blocks(
        *args, function=jaxpr, axes=dimensions, started=True
    ),
    jvp=Undefined(_DERIVATIVE),
    transpose=Undefined(_DERIVATIVE),
    batch=_reduce_batch,
    multiple_results=True,
    partial_sums=refuse_unreduced,
)

_COMPILED_ONLY = Undefined("it only stands in compiled programs, after derivatives are taken")

reduce_part = define(
    "reduce_part",
    type_rule=lambda *xs, function, axes: [Out(reduced_shape("reduce", x, axes), x.dtype, x.weak_type) for x in xs],
    plan=lambda avals, **params: Plan(
        tuple(a.sharding.spec for a in avals),
        tuple(spec_from([e for d, e in enumerate(dims_of(a)) if d not in params["axes"]]) for a in avals),
    ),
    impl=lambda *xs, function, axes: _reduce_blocks(*xs, function=function, axes=axes, started=False),
    jvp=_COMPILED_ONLY,
    transpose=_COMPILED_ONLY,
    batch=_COMPILED_ONLY,
    multiple_results=True,
)
