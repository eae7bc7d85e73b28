"""Positions of extremes: argmax and argmin.

Ties go to the smaller index, and NaN wins, as in numpy.  Along a sharded dim every rank finds the extreme of its block;
pairs of value and global index, packed in bytes, are gathered (a few bytes per element of the result and rank), and
every rank picks the same winner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.plan import LocalContext, Plan, dims_of, spec_from
from mpiarray.core.value import aval_of
from mpiarray.ops.collectives import gather, position
from mpiarray.ops.common import BatchAxis, check_kind
from mpiarray.ops.linear import move_dim, reduced_shape, zero_jvp
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.ops.sort_kernel import comparable
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_FINDERS: dict[str, Callable[..., Any]] = {"argmax": np.argmax, "argmin": np.argmin}
_INDEX = np.dtype("<i8")
_COMPILED_ONLY = Undefined("it only stands in compiled programs, after derivatives are taken")


def _type_of(name: str) -> Callable[..., Out]:
    def rule(x: ShapedArray, *, axes: tuple[int, ...], index_dtype: Any) -> Out:
        check_kind(name, x.dtype, "bifc")
        if len(axes) != 1:
            raise ValueError(f"{name}: axes must name one dim, got {axes} for {x.str_short()}")
        if not dtypes.is_int(np.dtype(index_dtype)):
            raise TypeError(f"{name}: index_dtype must be an integer type, got {np.dtype(index_dtype)}")
        shape = reduced_shape(name, x, axes)
        if x.shape[axes[0]] < 1:
            raise ValueError(
                f"attempt to get {name} of an empty sequence: {name} of {x.str_short()} along axis {axes[0]}"
            )
        return Out(shape, np.dtype(index_dtype))

    return rule


def _plan_of(name: str) -> Callable[..., Plan]:
    def plan(avals: tuple[ShapedArray, ...], *, axes: tuple[int, ...], index_dtype: Any) -> Plan:
        dims = dims_of(avals[0])
        kept = spec_from([a for d, a in enumerate(dims) if d not in axes])
        return Plan((spec_from(dims),), (kept,), local=program if dims[axes[0]] else None)

    def program(ctx: LocalContext, x: Any, *, axes: tuple[int, ...], index_dtype: Any) -> Any:
        over = dims_of(ctx.ins[0])[axes[0]]
        pairs = extreme_pair(x, position(over), name=name, axis=axes[0])
        return extreme_of_pairs(
            gather(pairs, over, 0, tiled=False), name=name, dtype=aval_of(x).dtype, index_dtype=index_dtype
        )

    return plan


def _batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, axes: Any, index_dtype: Any) -> Any:
    return op(move_dim(args[0], dims[0], 0), axes=(axes[0] + 1,), index_dtype=index_dtype), 0


argmax, argmin = (
    define(
        name,
        type_rule=_type_of(name),
        plan=_plan_of(name),
        impl=lambda x, *, axes, index_dtype, find=find: np.asarray(find(comparable(x), axis=axes[0])).astype(
            index_dtype
        ),
        jvp=zero_jvp,
        transpose=Undefined("positions have no derivative"),
        batch=_batch,
        partial_sums=refuse_unreduced,
    )
    for name, find in _FINDERS.items()
)

# -- pairs of value and index -------------------------------------------------------------------------


def _pair_type(x: ShapedArray, number: ShapedArray, *, name: str, axis: int) -> Out:
    return Out((*reduced_shape(name, x, (axis,)), x.dtype.itemsize + _INDEX.itemsize), np.dtype(np.uint8))


def _bytes(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, order="C")
    return x.reshape(*x.shape, 1).view(np.uint8)


def _make_pair(x: Any, number: Any, *, name: str, axis: int) -> np.ndarray:
    x = np.asarray(x)
    if x.ndim == 1:
        at = int(_FINDERS[name](comparable(x)))
        overall = np.array([at + int(number) * len(x)], _INDEX)
        return np.concatenate([x[at : at + 1].view(np.uint8), overall.view(np.uint8)])
    index = np.expand_dims(_FINDERS[name](comparable(x), axis=axis), axis)
    value = np.take_along_axis(x, index, axis).squeeze(axis)
    overall = index.squeeze(axis).astype(_INDEX) + int(number) * x.shape[axis]
    return np.concatenate([_bytes(value), _bytes(overall)], axis=-1)


def _choose(pairs: Any, *, name: str, dtype: Any, index_dtype: Any) -> np.ndarray:
    values = np.ascontiguousarray(pairs[..., : dtype.itemsize]).view(dtype)[..., 0]
    indices = np.ascontiguousarray(pairs[..., dtype.itemsize :]).view(_INDEX)[..., 0]
    if indices.ndim == 1:
        return np.asarray(indices[_FINDERS[name](comparable(values))], index_dtype)
    winner = np.expand_dims(_FINDERS[name](comparable(values), axis=0), 0)
    return np.take_along_axis(indices, winner, 0)[0].astype(index_dtype)


extreme_pair = define(
    "extreme_pair",
    type_rule=_pair_type,
    plan=lambda avals, *, name, axis: Plan(
        tuple(a.sharding.spec for a in avals),
        (spec_from([*(e for d, e in enumerate(dims_of(avals[0])) if d != axis), ()]),),
    ),
    impl=_make_pair,
    jvp=_COMPILED_ONLY,
    transpose=_COMPILED_ONLY,
    batch=_COMPILED_ONLY,
)

extreme_of_pairs = define(
    "extreme_of_pairs",
    type_rule=lambda pairs, *, name, dtype, index_dtype: Out(pairs.shape[1:-1], np.dtype(index_dtype)),
    plan=lambda avals, **params: Plan((avals[0].sharding.spec,), (spec_from(dims_of(avals[0])[1:-1]),)),
    impl=_choose,
    jvp=_COMPILED_ONLY,
    transpose=_COMPILED_ONLY,
    batch=_COMPILED_ONLY,
)
