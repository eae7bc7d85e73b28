"""Makers of elementwise ops: one call per op in the families' files (arithmetic, comparison, bits, ...).

    sin = unary("sin", "fc", np.sin, lambda t, out, x: mul(t, cos(x)))

says it all: the dtypes it takes, what it does to a block, and its derivative.  Type rule, plan (operands meet dim by
dim, no communication), batching, and what it does to partial sums are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.value import aval_of
from mpiarray.ops.common import BatchAxis, broadcast_shape, check_kind, join_plan, same_dtype, same_plan
from mpiarray.ops.linear import batch_to, broadcast_in_dim, by_argument, nary_batch, sharding_of, zero_jvp
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

NOT_LINEAR = Undefined("it is not linear in any operand")

Rule = Callable[..., Any]


def elementwise_type(name: str, kinds: str, result: Callable[[Any], Any] | None = None) -> Callable[..., Out]:
    """Operands of one rank and one dtype of the given kinds: 'b' bool, 'i' integer, 'f' float, 'c' complex, 'k' key."""

    def rule(*avals: ShapedArray, **params: Any) -> Out:
        dtype = same_dtype(name, avals)
        check_kind(name, dtype, kinds)
        out = result(dtype) if result else dtype
        return Out(broadcast_shape(name, avals), out, all(a.weak_type for a in avals))

    return rule


def unary(
    name: str,
    kinds: str,
    impl: Callable[..., Any],
    jvp: Rule | Undefined | None,
    *,
    result: Callable[[Any], Any] | None = None,
    transpose: Rule | Undefined = NOT_LINEAR,
    partial_sums: Rule = refuse_unreduced,
    hlo_name: str | None = None,
    code: Rule | None = None,
) -> Op:
    """An op of one operand.  `jvp(tangent, out, x, **params)`; None: the derivative is zero."""
    return define(
        name,
        type_rule=elementwise_type(name, kinds, result),
        plan=same_plan,
        impl=impl,
        jvp=_jvp(jvp),
        transpose=transpose,
        batch=nary_batch,
        partial_sums=partial_sums,
        hlo_name=hlo_name,
        elementwise=True,
        code=code,
    )


def nary(
    name: str,
    kinds: str,
    impl: Callable[..., Any],
    jvps: Sequence[Rule | None] | Undefined,
    *,
    result: Callable[[Any], Any] | None = None,
    type_rule: Rule | None = None,
    transpose: Rule | Undefined = NOT_LINEAR,
    partial_sums: Rule = refuse_unreduced,
    hlo_name: str | None = None,
    code: Rule | None = None,
) -> Op:
    """An op of several operands that meet dim by dim.  `jvps`: per operand `rule(tangent, out, *operands)`, or None."""
    return define(
        name,
        type_rule=type_rule or elementwise_type(name, kinds, result),
        plan=join_plan(name),
        impl=impl,
        jvp=jvps if isinstance(jvps, Undefined) else by_argument(*jvps) if any(jvps) else zero_jvp,
        transpose=transpose,
        batch=nary_batch,
        partial_sums=partial_sums,
        hlo_name=hlo_name,
        elementwise=True,
        code=code,
    )


def _jvp(rule: Rule | Undefined | None) -> Any:
    return zero_jvp if rule is None else rule if isinstance(rule, Undefined) else by_argument(rule)


def same_shape_batch(like: int) -> Callable[..., tuple[Any, int]]:
    """Batching of ops whose operands must have one shape, or be scalars: all get the mapped dim, in front.

    `like` is the number of an operand that is never a scalar standing for an array.
    """

    def batch(
        op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any
    ) -> tuple[Any, int]:
        target = aval_of(batch_to(args[like], axis, dims[like], 0))
        moved = []
        for x, d in zip(args, dims):
            if d is not None or aval_of(x).ndim or target.ndim == 1:
                x = batch_to(x, axis, d, 0)
                if aval_of(x).ndim < target.ndim:
                    x = broadcast_in_dim(x, shape=target.shape, broadcast_dimensions=(0,), sharding=sharding_of(target))
            moved.append(x)
        return op(*moved, **params), 0

    return batch


def to_bool(dtype: Any) -> Any:
    return np.dtype(np.bool_)


# -- numpy functions for every dtype ---------------------------------------------------------------


# Which function computes a block depends on its dtype alone.  `impl.for_dtype(dtype)` gives that function (often one of
# numpy's ufuncs itself) to programs, whose dtypes are known (`Op.kernel`); where that has `for_params(**params)` in turn,
# this gives the function of the blocks alone.


def _chosen(for_dtype: Callable[[Any], Callable[..., Any]], name: str) -> Callable[..., Any]:
    def impl(*blocks: Any, **params: Any) -> Any:
        return for_dtype(blocks[0].dtype)(*blocks, **params)

    impl.for_dtype = for_dtype  # type: ignore[attr-defined]
    impl.__name__ = name
    return impl


def widened(f: Callable[..., Any]) -> Callable[..., Any]:
    """A numpy function for blocks of any float: 16- and 8-bit floats are computed in float32 and rounded once."""

    def narrow(*blocks: Any, **params: Any) -> Any:
        dtype = blocks[0].dtype
        wide = f(*(b.astype(np.float32) if b.dtype == dtype else b for b in blocks), **params)
        return np.asarray(wide).astype(dtype)

    narrow.widens = True  # type: ignore[attr-defined]  # for those who would rather cast by themselves

    def for_dtype(dtype: Any) -> Callable[..., Any]:
        return f if dtype.itemsize > 2 or not dtypes.is_float(dtype) else narrow

    return _chosen(for_dtype, getattr(f, "__name__", "impl"))


def wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
    """A numpy function for blocks of any integer: those of 2 and 4 bits are computed in 8 and wrap around."""

    def narrow(*blocks: Any, **params: Any) -> Any:
        dtype = blocks[0].dtype
        wide = np.int8 if dtypes.is_signed(dtype) else np.uint8
        return np.asarray(f(*(b.astype(wide) if b.dtype == dtype else b for b in blocks), **params)).astype(dtype)

    def for_dtype(dtype: Any) -> Callable[..., Any]:
        plain = dtype.itemsize > 1 or dtype.kind in "biu" or not dtypes.is_int(dtype)
        return f if plain else narrow

    return _chosen(for_dtype, getattr(f, "__name__", "impl"))


def by_kind(integers: Callable[..., Any], floats: Callable[..., Any]) -> Callable[..., Any]:
    """One numpy function for integers and bool, another for floats and complex."""

    def for_dtype(dtype: Any) -> Callable[..., Any]:
        return floats if dtype.kind in "fc" or dtypes.is_inexact(dtype) else integers

    def impl(*blocks: Any, **params: Any) -> Any:
        return for_dtype(blocks[0].dtype)(*blocks, **params)

    impl.for_dtype = for_dtype  # type: ignore[attr-defined]
    return impl


# -- for derivative rules --------------------------------------------------------------------------


def match(x: Any, aval: ShapedArray) -> Any:
    """`x` (a scalar, or of the same rank) broadcast to the shape of a type, and with its sharding."""
    mine = aval_of(x)
    if mine.shape == aval.shape and (mine.dims == aval.dims or aval.mesh.empty):
        return x
    dims = tuple(range(aval.ndim)) if mine.ndim else ()
    return broadcast_in_dim(x, shape=aval.shape, broadcast_dimensions=dims, sharding=sharding_of(aval))
