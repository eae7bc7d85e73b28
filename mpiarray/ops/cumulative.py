"""Cumulative sums, products, maxima, minima and log-sum-exps along a dim.

Along a dim that Auto axes shard, every rank accumulates its block, the blocks' totals are gathered (one element of the
dim per rank), and what comes before is combined in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import OPS, Op, Out, Undefined, Zero, define
from mpiarray.core.plan import LocalContext, Plan, dims_of, spec_from
from mpiarray.core.value import aval_of
from mpiarray.ops.along_dim import refuse_explicit
from mpiarray.ops.arithmetic import add, max_, min_, mul, select_share, sub
from mpiarray.ops.collectives import gather, position
from mpiarray.ops.common import BatchAxis, check_kind, const_like
from mpiarray.ops.comparison import is_finite
from mpiarray.ops.elementwise import NOT_LINEAR
from mpiarray.ops.linear import add_any, instantiate, linear_jvp, move_dim, tangent_aval
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.ops.scan_along import scan_along
from mpiarray.ops.select import where
from mpiarray.ops.slicing import slice_
from mpiarray.ops.transcendental import exp, log1p
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_UFUNCS: dict[str, Any] = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumlogsumexp": np.logaddexp,
}
_COMPILED_ONLY = Undefined("it only stands in compiled programs, after derivatives are taken")


def _accumulate(name: str, x: Any, axis: int, reverse: bool) -> np.ndarray:
    """Of the operand's dtype; 16-bit floats accumulate in float32."""
    x = np.asarray(x)
    dtype, ufunc = x.dtype, _UFUNCS[name]
    if dtype.kind not in "biufc" or dtype == np.float16:
        x = x.astype(np.float32 if dtypes.is_float(dtype) else np.int8)
    if reverse:
        x = np.flip(x, axis)
    if name == "cumlogsumexp" and x.dtype.kind == "c":
        out = _complex_logsumexp(x, axis)
    else:
        out = ufunc.accumulate(x, axis=axis, dtype=x.dtype)
    return (np.flip(out, axis) if reverse else out).astype(dtype, copy=False)


def _complex_logsumexp(x: np.ndarray, axis: int) -> np.ndarray:
    top = np.max(x.real, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return (np.log(np.cumsum(np.exp(x - top), axis=axis)) + top).astype(x.dtype)


def _type_of(name: str) -> Callable[..., Out]:
    def rule(x: ShapedArray, *, axis: int, reverse: bool) -> Out:
        check_kind(name, x.dtype, "fc" if name == "cumlogsumexp" else "ifc")
        if not 0 <= axis < x.ndim:
            raise ValueError(f"{name}: axis {axis} is out of bounds for {x.str_short()}")
        return Out(x.shape, x.dtype, x.weak_type)

    return rule


def _plan_of(name: str) -> Callable[..., Plan]:
    def plan(avals: tuple[ShapedArray, ...], *, axis: int, reverse: bool) -> Plan:
        (x,) = avals
        over = refuse_explicit(name, x, axis, "Input should be unsharded over the axis being reduced")
        spec = spec_from(dims_of(x))
        return Plan((spec,), (spec,), local=program if over else None)

    def program(ctx: LocalContext, x: Any, *, axis: int, reverse: bool) -> Any:
        op, over = OPS[name], dims_of(ctx.ins[0])[axis]
        part = op(x, axis=axis, reverse=reverse)
        totals = gather(_total(part, axis, reverse), over, axis)
        return after_others(part, totals, position(over), name=name, axis=axis, reverse=reverse)

    return plan


def _total(part: Any, axis: int, reverse: bool) -> Any:
    """The last element of an accumulated block: all of it combined."""
    shape = aval_of(part).shape
    at = 0 if reverse else shape[axis] - 1
    starts = tuple(at if d == axis else 0 for d in range(len(shape)))
    limits = tuple(at + 1 if d == axis else n for d, n in enumerate(shape))
    return slice_(part, start_indices=starts, limit_indices=limits, strides=None)


def _after_others(part: Any, totals: Any, number: Any, *, name: str, axis: int, reverse: bool) -> Any:
    """An accumulated block combined with the totals of the blocks before it (after it: `reverse`)."""
    number, count = int(number), totals.shape[axis]
    before = slice(number + 1, count) if reverse else slice(0, number)
    if before.start >= before.stop:
        return part
    ends = totals[(slice(None),) * axis + (before,)]
    sums = _accumulate(name, ends, axis, reverse)
    prefix = np.take(sums, [0 if reverse else sums.shape[axis] - 1], axis)
    pair = np.concatenate(np.broadcast_arrays(prefix[None], part[None]), axis=0)
    return _accumulate(name, pair, 0, False)[1]


after_others = define(
    "after_others",
    type_rule=lambda part, totals, number, *, name, axis, reverse: Out(part.shape, part.dtype, part.weak_type),
    plan=lambda avals, **params: Plan(tuple(a.sharding.spec for a in avals), (spec_from(dims_of(avals[0])),)),
    impl=_after_others,
    jvp=_COMPILED_ONLY,
    transpose=_COMPILED_ONLY,
    batch=_COMPILED_ONLY,
)


def _batch(op: Op, axis_: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, axis: int, reverse: bool) -> Any:
    return op(move_dim(args[0], dims[0], 0), axis=axis + 1, reverse=reverse), 0


# -- derivatives --------------------------------------------------------------------------------------------
#
# Each is the derivative of the function of two operands, carried along by a scan over pairs (value, tangent).


def _scan_jvp(combine: Callable[[Any, Any, Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, axis: int, reverse: bool) -> tuple[Any, Any]:
        out = op(*primals, axis=axis, reverse=reverse)
        if isinstance(tangents[0], Zero):
            return out, Zero(tangent_aval(out.aval))
        pairs = [primals[0], instantiate(tangents[0])]
        return out, scan_along(lambda a, b: combine(a[0], a[1], b[0], b[1]), pairs, axis, reverse)[1]

    return jvp


def _of_product(a: Any, da: Any, b: Any, db: Any) -> tuple[Any, Any]:
    return mul(a, b), add_any(mul(da, b), mul(a, db))


def _of_choice(choose: Op) -> Callable[..., tuple[Any, Any]]:
    def combine(a: Any, da: Any, b: Any, db: Any) -> tuple[Any, Any]:
        out = choose(a, b)
        return out, add_any(mul(da, select_share(a, out, b)), mul(db, select_share(b, out, a)))

    return combine


def _of_logsumexp(a: Any, da: Any, b: Any, db: Any) -> tuple[Any, Any]:
    top = max_(a, b)
    finite = where(is_finite(top), top, const_like(top, 0), aval_of(top))
    apart = sub(min_(a, b), finite)
    out = add(top, log1p(exp(where(is_finite(top), apart, const_like(top, -np.inf), aval_of(top)))))
    shift = where(is_finite(out), out, const_like(out, 0), aval_of(out))
    return out, add_any(mul(da, exp(sub(a, shift))), mul(db, exp(sub(b, shift))))


def _define(name: str, jvp: Callable[..., Any], transpose: Any = NOT_LINEAR) -> Op:
    return define(
        name,
        type_rule=_type_of(name),
        plan=_plan_of(name),
        impl=lambda x, *, axis, reverse: _accumulate(name, x, axis, reverse),
        jvp=jvp,
        transpose=transpose,
        batch=_batch,
        partial_sums=refuse_unreduced,
    )


cumsum = _define(
    "cumsum", linear_jvp, lambda op, ct, x, *, axis, reverse: [op(ct, axis=axis, reverse=not reverse)]
)  # fmt: skip
cumprod = _define("cumprod", _scan_jvp(_of_product))
cummax = _define("cummax", _scan_jvp(_of_choice(max_)))
cummin = _define("cummin", _scan_jvp(_of_choice(min_)))
cumlogsumexp = _define("cumlogsumexp", _scan_jvp(_of_logsumexp))
