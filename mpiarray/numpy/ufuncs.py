"""The functions of two arguments that have the methods of ufuncs: `jnp.add.reduce`, `jnp.maximum.accumulate`, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.numpy import arithmetic, choices, comparison, elementary, reductions
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.ufunc_class import ufunc
from mpiarray.ops import cumulative
from mpiarray.ops.reductions import reduce_and, reduce_or, reduce_xor
from mpiarray.types import dtypes

__all__ = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "logaddexp", "logaddexp2", "logical_and", "logical_or",
    "logical_xor", "maximum", "minimum", "multiply", "negative", "subtract",
]  # fmt: skip


def _without_dtype(f: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, *, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        if dtype is not None:
            x = cast(x, dtypes.requested(dtype, "reduce"))
        return f(x, axis=axis, keepdims=keepdims, initial=initial, where=where)

    return reduce


def _logic(f: Callable[..., Any], combine: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, *, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        out = f(x, axis=axis, keepdims=keepdims, where=where)
        out = out if initial is None else combine(out, initial)
        return out if dtype is None else as_array(cast(out, dtypes.requested(dtype, "reduce")))

    return reduce


def _bits(op: Any, binary: Callable[..., Any], identity: int) -> Callable[..., Any]:
    def reduce(x: Any, *, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        if dtype is not None:
            x = cast(x, dtypes.requested(dtype, "reduce"))
        neutral = identity if dtypes.is_int(aval_of(x).dtype) else bool(identity)
        if where is not None:
            x = choices.where_op(
                where,
                x,
                cast(neutral, aval_of(x).dtype) if neutral >= 0 else comparison.bitwise_not(cast(0, aval_of(x).dtype)),
            )
        axes = reductions.reduced_axes("reduce", axis, aval_of(x).ndim)
        out = reductions.kept(op(x, axes=axes), axes, keepdims)
        return out if initial is None else binary(out, initial)

    return reduce


def _running(op: Any, sums: bool = False) -> Callable[..., Any]:
    def accumulate(x: Any, axis: int) -> Any:
        aval = aval_of(x)
        if aval.dims[axis]:
            raise ShardingTypeError(
                f"accumulate: Input should be unsharded over the axis being reduced, got axis {axis} of "
                f"{aval.str_short()}"
            )
        if sums and dtypes.is_bool(aval.dtype):
            x = cast(x, dtypes.default_dtype(int))
        return op(x, axis=axis, reverse=False)

    return accumulate


add = ufunc(
    arithmetic.add,
    2,
    1,
    name="add",
    identity=0,
    call=arithmetic.add,
    reduce=reductions.sum,
    accumulate=_running(cumulative.cumsum, True),
    at=lambda place, v: place.add(v),
)
multiply = ufunc(
    arithmetic.multiply,
    2,
    1,
    name="multiply",
    identity=1,
    call=arithmetic.multiply,
    reduce=reductions.prod,
    accumulate=_running(cumulative.cumprod, True),
    at=lambda place, v: place.multiply(v),
)
subtract = ufunc(
    arithmetic.subtract, 2, 1, name="subtract", call=arithmetic.subtract, at=lambda place, v: place.subtract(v)
)
maximum = ufunc(
    choices.maximum,
    2,
    1,
    name="maximum",
    call=choices.maximum,
    reduce=_without_dtype(reductions.max),
    accumulate=_running(cumulative.cummax),
    at=lambda place, v: place.max(v),
)
minimum = ufunc(
    choices.minimum,
    2,
    1,
    name="minimum",
    call=choices.minimum,
    reduce=_without_dtype(reductions.min),
    accumulate=_running(cumulative.cummin),
    at=lambda place, v: place.min(v),
)
logical_and = ufunc(
    comparison.logical_and,
    2,
    1,
    name="logical_and",
    identity=True,
    call=comparison.logical_and,
    reduce=_logic(reductions.all, comparison.logical_and),
)
logical_or = ufunc(
    comparison.logical_or,
    2,
    1,
    name="logical_or",
    identity=False,
    call=comparison.logical_or,
    reduce=_logic(reductions.any, comparison.logical_or),
)
logical_xor = ufunc(comparison.logical_xor, 2, 1, name="logical_xor", identity=False, call=comparison.logical_xor)
bitwise_and = ufunc(
    comparison.bitwise_and,
    2,
    1,
    name="bitwise_and",
    identity=-1,
    call=comparison.bitwise_and,
    reduce=_bits(reduce_and, comparison.bitwise_and, -1),
)
bitwise_or = ufunc(
    comparison.bitwise_or,
    2,
    1,
    name="bitwise_or",
    identity=0,
    call=comparison.bitwise_or,
    reduce=_bits(reduce_or, comparison.bitwise_or, 0),
)
bitwise_xor = ufunc(
    comparison.bitwise_xor,
    2,
    1,
    name="bitwise_xor",
    identity=0,
    call=comparison.bitwise_xor,
    reduce=_bits(reduce_xor, comparison.bitwise_xor, 0),
)
logaddexp = ufunc(elementary.logaddexp, 2, 1, name="logaddexp", identity=-math.inf, call=elementary.logaddexp)
logaddexp2 = ufunc(elementary.logaddexp2, 2, 1, name="logaddexp2", identity=-math.inf, call=elementary.logaddexp2)
negative = ufunc(arithmetic.negative, 1, 1, name="negative", call=arithmetic.negative)
