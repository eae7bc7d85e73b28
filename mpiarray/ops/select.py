"""Choosing between values elementwise: `select_n` and `clamp`; and what passes values on unchanged.

Selection is strict where arithmetic is not: all cases must have one sharding, because a case that is replicated
where another is sharded most often is a mistake (sharding_rules.md 3).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, Zero, define, pass_through
from mpiarray.core.plan import Plan, dims_of, entry, spec_from
from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.bits import and_
from mpiarray.ops.common import const_like, same_dtype
from mpiarray.ops.comparison import gt, lt
from mpiarray.ops.elementwise import NOT_LINEAR, match, same_shape_batch, unary
from mpiarray.ops.linear import by_argument, full_of, instantiate, tangent_aval
from mpiarray.ops.partial_sums import refuse_unreduced, select_sums
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

# -- select_n ---------------------------------------------------------------------------------------


def _select_type(which: ShapedArray, *cases: ShapedArray) -> Out:
    if not cases:
        raise TypeError("select_n: needs at least one case")
    if not (dtypes.is_bool(which.dtype) or which.dtype == np.int32):
        raise TypeError(f"select_n: `which` must be bool or int32, got {which.str_short()}")
    if dtypes.is_bool(which.dtype) and len(cases) > 2:
        raise TypeError(f"select_n: a bool `which` chooses between two cases, got {len(cases)}; use an int32 `which`")
    if any(c.shape != cases[0].shape for c in cases):
        raise TypeError(f"select_n: cases must have the same shapes, got {', '.join(c.str_short() for c in cases)}")
    if which.ndim and which.shape != cases[0].shape:
        raise TypeError(
            f"select_n: `which` must be scalar or have the same shape as cases, "
            f"got {which.str_short()} and {cases[0].str_short()}"
        )
    return Out(cases[0].shape, same_dtype("select_n", cases), all(c.weak_type for c in cases))


def _spec_text(a: ShapedArray) -> str:
    return f"P({', '.join(repr(entry(e)) for e in dims_of(a))})"


def _select_plan(avals: tuple[ShapedArray, ...]) -> Plan:
    which, *cases = avals
    dims = dims_of(cases[0])
    hint = "Use `jax.reshard` to bring them to one sharding, or `jax.sharding.auto_axes`."
    if any(dims_of(c) != dims for c in cases):
        shown = ", ".join(_spec_text(c) for c in cases)
        raise ShardingTypeError(
            f"select_n: select cases must have the same shardings, got [{shown}] "
            f"for {', '.join(c.short() for c in cases)}. {hint}"
        )
    if which.ndim and dims_of(which) != dims:
        raise ShardingTypeError(
            f"select_n: select `which` must be scalar or have the same sharding as cases, "
            f"got {which.short()} and {cases[0].short()}. {hint}"
        )
    spec = spec_from(dims)
    return Plan((which.sharding.spec, *(spec,) * len(cases)), (spec,))


_BLEND_SIZE = 2048  # elements; numpy's `where` has less to set up, and takes ten times as long for each element
_FEW = 8  # a mask has few elements where each counts for as many of the result
_MOST_RUNS = 8  # of equal elements of a mask, for which parts are copied one by one
_BITS = {1: np.dtype(np.int8), 2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}


def choose(mask: Any, no: Any, yes: Any, out: np.ndarray | None = None) -> Any:
    """`yes` where `mask` is True, else `no`; written to `out` if it is given, which may be one of the operands.

    A mask that is broadcast picks parts.  Other large blocks are combined as bits, `no ^ ((no ^ yes) & mask)`, which keeps every NaN and sign as it is.
    """
    size = getattr(mask, "size", 1)
    full = max(_size(no), _size(yes)) if out is None else out.size
    if full >= max(_BLEND_SIZE, _FEW * size):
        return _choose_parts(np.asarray(mask), no, yes, out)
    bits: Any = _BITS.get(yes.dtype.itemsize)
    if size < _BLEND_SIZE or bits is None or type(mask) is not np.ndarray or yes.dtype.hasobject:
        if out is None:
            return np.where(mask, yes, no)
        out[...] = np.where(mask, yes, no)
        return out
    a, b = np.asarray(no).view(bits), np.asarray(yes).view(bits)
    ones = np.negative(mask.view(np.int8))  # all bits set where the mask is True
    if not a.ndim and not a:
        found = np.bitwise_and(b, ones.astype(bits, copy=False), out=None if out is None else out.view(bits))
    elif not b.ndim and not b:
        np.invert(ones, out=ones)
        found = np.bitwise_and(a, ones.astype(bits, copy=False), out=None if out is None else out.view(bits))
    else:
        found = np.bitwise_xor(a, b)
        same = found.shape == mask.shape  # else there are scalars, or dims of size 1 that meet longer ones
        found = np.bitwise_and(found, ones.astype(bits, copy=False), out=found if same else None)
        found = np.bitwise_xor(found, a, out=found if out is None else out.view(bits))
    return found.view(yes.dtype) if out is None else out


def _size(x: Any) -> int:
    return getattr(x, "size", 1)


def _choose_parts(mask: np.ndarray, no: Any, yes: Any, out: np.ndarray | None) -> np.ndarray:
    """For a mask that is broadcast (one row, one column, one number): each part of the result is a copy of one case."""
    if out is None:
        out = np.empty(np.broadcast_shapes(mask.shape, np.shape(no), np.shape(yes)), yes.dtype)
    count = np.count_nonzero(mask)
    if count in (0, mask.size):
        found = yes if count else no
        if found is not out:
            np.copyto(out, found)
        return out
    if np.may_share_memory(out, yes) or (2 * count > mask.size and not np.may_share_memory(out, no)):
        no, yes, mask = yes, no, ~mask
    if no is not out:
        np.copyto(out, no)
    dims = [d for d, n in enumerate(mask.shape) if n > 1]
    flat = mask.reshape(-1)
    ends = (np.flatnonzero(flat[1:] != flat[:-1]) + 1).tolist() if len(dims) == 1 else []
    if not 0 < len(ends) <= _MOST_RUNS:
        np.copyto(out, yes, where=mask)
        return out
    along = (slice(None),) * (dims[0] + out.ndim - mask.ndim)
    yes = np.broadcast_to(yes, out.shape)
    for a, b in itertools.pairwise([0, *ends, flat.size]):
        if flat[a]:
            part = (*along, slice(a, b))
            np.copyto(out[part], yes[part])
    return out


def _select_impl(which: Any, *cases: Any) -> Any:
    if len(cases) == 2:
        if not which.ndim and not cases[0].ndim:  # counters and indices: a number is chosen faster by Python
            return cases[1 if which > 0 else 0][()]
        return choose(which if which.dtype == np.bool_ else np.greater(which, 0), cases[0], cases[1])
    out = cases[0]
    for k, case in enumerate(cases[1:], 1):
        out = choose(np.greater_equal(which, k), out, case)
    return out


def _select_into(which: Any, *cases: Any, out: np.ndarray) -> np.ndarray:
    if len(cases) == 2 and which.dtype == np.bool_:
        return choose(which, cases[0], cases[1], out)
    out[...] = _select_impl(which, *cases)
    return out


_select_impl.into = _select_into  # type: ignore[attr-defined]


def _select_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    out = op(*primals)
    if all(isinstance(t, Zero) for t in tangents[1:]):
        return out, Zero(tangent_aval(out.aval))
    return out, op(primals[0], *(instantiate(t) for t in tangents[1:]))


def _select_transpose(op: Op, ct: Any, which: Any, *cases: Any) -> list[Any]:
    zero = full_of(aval_of(ct), 0)
    out: list[Any] = [None]
    for k, case in enumerate(cases):
        out.append(
            op(which, *(ct if i == k else zero for i in range(len(cases)))) if isinstance(case, Linear) else None
        )
    return out


def _select_code(b: Any, which: Any, *cases: Any) -> Any:
    if len(cases) == 2:
        return b.select(which if which.dtype == np.bool_ else b.compare("gt", which), *cases)
    out = cases[0]
    for k, case in enumerate(cases[1:], 1):
        out = b.select(b.compare("ge", which, b.constant(k, which.dtype)), out, case)
    return out


select_n = define(
    "select_n",
    type_rule=_select_type,
    plan=_select_plan,
    impl=_select_impl,
    jvp=_select_jvp,
    transpose=_select_transpose,
    batch=same_shape_batch(1),
    partial_sums=select_sums,
    hlo_name="select",
    elementwise=True,
    code=_select_code,
)


def where(mask: Any, yes: Any, no: Any, aval: ShapedArray) -> Any:
    """`yes` where `mask`, else `no`: each a scalar or of the shape of `aval` with 1s, brought to its type."""
    return select_n(match(mask, aval), match(no, aval), match(yes, aval))


# -- clamp ------------------------------------------------------------------------------------------


def _clamp_type(low: ShapedArray, x: ShapedArray, high: ShapedArray) -> Out:
    dtype = same_dtype("clamp", (low, x, high))
    if dtypes.is_complex(dtype) or dtypes.is_key(dtype):
        raise TypeError(f"clamp does not accept dtype {dtype}: it has no order")
    for name, bound in (("min", low), ("max", high)):
        if bound.ndim and bound.shape != x.shape:
            raise TypeError(
                f"clamp requires {name}.shape == operand.shape or {name}.shape == (), "
                f"got {bound.str_short()} and {x.str_short()}"
            )
    return Out(x.shape, dtype, low.weak_type and x.weak_type and high.weak_type)


def _clamp_plan(avals: tuple[ShapedArray, ...]) -> Plan:
    low, x, high = avals
    spec = spec_from(dims_of(x))
    return Plan(tuple(spec if a.ndim else a.sharding.spec for a in (low, x, high)), (spec,))


clamp = define(
    "clamp",
    type_rule=_clamp_type,
    plan=_clamp_plan,
    impl=lambda low, x, high: np.minimum(np.maximum(x, low), high),
    jvp=by_argument(
        lambda t, out, low, x, high: where(gt(low, x), t, const_like(out, 0), out.aval),
        lambda t, out, low, x, high: where(and_(gt(x, low), lt(x, high)), t, const_like(out, 0), out.aval),
        lambda t, out, low, x, high: where(lt(high, x), t, const_like(out, 0), out.aval),
    ),
    transpose=NOT_LINEAR,
    batch=same_shape_batch(1),
    partial_sums=refuse_unreduced,
    elementwise=True,
    code=lambda b, low, x, high: b.min(b.max(x, low), high),
)

# -- values unchanged -------------------------------------------------------------------------------

stop_gradient_op = unary("stop_gradient", "bifck", lambda x: x, None, hlo_name="copy", code=lambda b, x: x)


def stop_gradient(x: Any) -> Any:
    """`x`, with derivative zero.  Integers and bool, which have none, are returned as they are."""
    return stop_gradient_op(x) if dtypes.is_inexact(aval_of(x).dtype) else x


def _barrier_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    outs = op(*primals)
    live = [k for k, t in enumerate(tangents) if not isinstance(t, Zero)]
    passed = dict(zip(live, op(*(tangents[k] for k in live)))) if live else {}
    return outs, [passed.get(k, Zero(tangent_aval(o.aval))) for k, o in enumerate(outs)]


def _barrier_transpose(op: Op, cts: Sequence[Any], *args: Any) -> list[Any]:
    live = [k for k, c in enumerate(cts) if not isinstance(c, Zero)]
    passed = dict(zip(live, op(*(cts[k] for k in live)))) if live else {}
    return [passed.get(k, Zero(cts[k].aval)) if isinstance(a, Linear) else None for k, a in enumerate(args)]


optimization_barrier = define(
    "optimization_barrier",
    type_rule=lambda *xs: [Out(x.shape, x.dtype, x.weak_type) for x in xs],
    plan=lambda avals: Plan(tuple(spec_from(dims_of(a)) for a in avals), tuple(spec_from(dims_of(a)) for a in avals)),
    impl=lambda *xs: xs,
    jvp=_barrier_jvp,
    transpose=_barrier_transpose,
    batch=lambda op, axis, args, dims: (op(*args), list(dims)),
    multiple_results=True,
    partial_sums=pass_through,
    hlo_name="opt-barrier",
)
