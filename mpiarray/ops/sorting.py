"""Sorting: sort, the order of a sort, and what derivatives of sorts need (elements taken along a dim).

Order: NaN is last, -0.0 equals 0.0, complex numbers go by real, then imaginary part.  Sorts are stable.  Along a dim
that only Auto axes shard, the dim is made whole for a moment (`along_dim.WholeDim`) where another dim can take its axes;
else large blocks are sorted where they are, and dealt (`sort_kernel`).  The result lies like the operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Linear, Op, Out, Undefined, Zero, define
from mpiarray.core.plan import LocalContext, Plan, dims_of, require_unsharded, spec_from
from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.along_dim import WholeDim, refuse_explicit, whole_dim
from mpiarray.ops.collectives import gather
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import batch_to, instantiate, tangent_aval, zero_jvp
from mpiarray.ops.partial_sums import join_reduced, refuse_unreduced
from mpiarray.ops.sort_kernel import order_of, sort_over, sorted_block
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


def _sort_impl(*xs: Any, dimension: int, is_stable: bool, num_keys: int) -> list[np.ndarray]:
    if len(xs) == 1:
        return [sorted_block(np.asarray(xs[0]), dimension)]
    order = order_of(xs[:num_keys], dimension)
    return [np.take_along_axis(np.asarray(x), order, dimension) for x in xs]


# -- sort -------------------------------------------------------------------------------------------------


def _check_operands(name: str, xs: Sequence[ShapedArray], dimension: int, num_keys: int) -> None:
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise TypeError(f"Arguments to {name} must have equal shapes, got: {', '.join(x.str_short() for x in xs)}")
    if not 0 <= dimension < xs[0].ndim:
        raise ValueError(f"{name}: dimension {dimension} is out of bounds for {xs[0].str_short()}")
    if not 1 <= num_keys <= len(xs):
        raise ValueError(f"{name}: num_keys must be between 1 and the number of operands {len(xs)}, got {num_keys}")


def _sort_type(*xs: ShapedArray, dimension: int, is_stable: bool, num_keys: int) -> list[Out]:
    _check_operands("sort", xs, dimension, num_keys)
    return [Out(x.shape, x.dtype, x.weak_type) for x in xs]


def _common_dims(name: str, avals: Sequence[ShapedArray], dimension: int) -> tuple[tuple[str, ...], ...]:
    dims = dims_of(avals[0])
    if any(dims_of(a) != dims for a in avals):
        raise ShardingTypeError(
            f"{name}: Arguments to {name} must have equal shardings, got {', '.join(a.short() for a in avals)}. "
            "Use `jax.reshard` to bring them to one."
        )
    for a in avals:
        refuse_explicit(name, a, dimension, f"Arguments to {name} must be unsharded over the sorting dimension")
    return dims


def _sort_plan(avals: tuple[ShapedArray, ...], *, dimension: int, is_stable: bool, num_keys: int) -> Plan:
    dims = _common_dims("sort", avals, dimension)
    spec = (spec_from(dims),) * len(avals)
    return Plan(spec, spec, local=_sort_program if dims[dimension] else None)


def _sort_program(ctx: LocalContext, *blocks: Any, dimension: int, is_stable: bool, num_keys: int) -> list[Any]:
    way = whole_dim(ctx, dimension, blocks[0])
    if _dealt(way, blocks, num_keys):
        return sort_blocks(*blocks, axis_name=way.axes, dimension=dimension, ordered=False)
    whole = [way.whole(b) for b in blocks]
    return [way.back(b) for b in sort(*whole, dimension=dimension, is_stable=is_stable, num_keys=num_keys)]


_LARGE = 1 << 14  # elements of a block along the dim from which on finding the cuts costs less than gathering


def _dealt(way: WholeDim, blocks: Sequence[Any], num_keys: int) -> bool:
    """Whether blocks stay where they are: the dim cannot become whole, and one real key says the order."""
    aval = aval_of(blocks[0])
    if way.other is not None or num_keys > 1 or aval.shape[way.dim] < _LARGE:
        return False
    return aval.size // aval.shape[way.dim] <= 64 and not dtypes.is_complex(aval.dtype)


_COMPILED_ONLY = Undefined("it only stands in compiled programs, after derivatives are taken")


def _blocks_type(*xs: ShapedArray, axis_name: Any, dimension: int, ordered: bool) -> list[Out]:
    return [Out(xs[0].shape, np.dtype(np.int32))] if ordered else [Out(x.shape, x.dtype, x.weak_type) for x in xs]


def _blocks_build(
    ctx: DeviceContext, *, axis_name: tuple[str, ...], dimension: int, ordered: bool
) -> Callable[..., list[np.ndarray]]:
    group = ctx.group(axis_name)
    return lambda *xs: sort_over(group, [np.asarray(x) for x in xs], dimension, ordered=ordered)


sort_blocks = define(
    "sort_blocks",  # a sort along a dim that is cut over ranks
    type_rule=_blocks_type,
    plan=lambda avals, *, ordered, **params: Plan(
        tuple(a.sharding.spec for a in avals), tuple(a.sharding.spec for a in avals[: 1 if ordered else None])
    ),
    build=_blocks_build,
    jvp=_COMPILED_ONLY,
    transpose=_COMPILED_ONLY,
    batch=_COMPILED_ONLY,
    multiple_results=True,
    hlo_name="all-to-all",
)


def _sort_jvp(
    op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int, is_stable: bool, num_keys: int
) -> tuple[list[Any], list[Any]]:
    if all(isinstance(t, Zero) for t in tangents):
        return zero_jvp(op, primals, tangents, dimension=dimension, is_stable=is_stable, num_keys=num_keys)
    order = sort_order(*primals[:num_keys], dimension=dimension)
    outs = [take_along(x, order, dimension=dimension) for x in primals]
    moved = [Zero(t.aval) if isinstance(t, Zero) else take_along(t, order, dimension=dimension) for t in tangents]
    return outs, moved


def _along_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
    moved = [batch_to(x, axis, d, 0) for x, d in zip(args, dims)]
    outs = op(*moved, **params | {"dimension": params["dimension"] + 1})
    return outs, [0] * len(outs) if op.multiple_results else 0


sort = define(
    "sort",
    type_rule=_sort_type,
    plan=_sort_plan,
    impl=_sort_impl,
    jvp=_sort_jvp,
    transpose=Undefined("a sort is not linear; its derivative moves elements by `take_along`"),
    batch=_along_batch,
    multiple_results=True,
    partial_sums=refuse_unreduced,
)


def _order_type(*keys: ShapedArray, dimension: int) -> Out:
    _check_operands("sort_order", keys, dimension, 1)
    return Out(keys[0].shape, np.dtype(np.int32))


def _order_plan(avals: tuple[ShapedArray, ...], *, dimension: int) -> Plan:
    dims = _common_dims("sort", avals, dimension)
    return Plan((spec_from(dims),) * len(avals), (spec_from(dims),), local=_order_program if dims[dimension] else None)


def _order_program(ctx: LocalContext, *blocks: Any, dimension: int) -> Any:
    way = whole_dim(ctx, dimension, blocks[0])
    if _dealt(way, blocks, len(blocks)):
        return sort_blocks(*blocks, axis_name=way.axes, dimension=dimension, ordered=True)[0]
    return way.back(sort_order(*(way.whole(b) for b in blocks), dimension=dimension))


sort_order = define(
    "sort_order",
    type_rule=_order_type,
    plan=_order_plan,
    impl=lambda *keys, dimension: order_of(keys, dimension, np.int32),
    jvp=zero_jvp,
    transpose=Undefined("positions have no derivative"),
    batch=_along_batch,
    partial_sums=refuse_unreduced,
)

# -- elements taken along a dim ---------------------------------------------------------------------------


def _take_type(x: ShapedArray, order: ShapedArray, *, dimension: int) -> Out:
    others = [a.shape[:dimension] + a.shape[dimension + 1 :] for a in (x, order)]
    if others[0] != others[1]:
        raise TypeError(
            f"take_along: shapes must be equal but for dim {dimension}: {x.str_short()}, {order.str_short()}"
        )
    return Out(order.shape, x.dtype, x.weak_type)


def _take_plan(avals: tuple[ShapedArray, ...], *, dimension: int) -> Plan:
    x, order = avals
    over = refuse_explicit("take_along", x, dimension, "the dimension should be unsharded")
    source, target = list(dims_of(x)), list(dims_of(order))
    source[dimension] = ()
    joined = [a or b for a, b in zip(source, target)]
    own = [*joined[:dimension], over, *joined[dimension + 1 :]]
    return Plan((spec_from(own), spec_from(joined)), (spec_from(joined),), local=_take_program if over else None)


def _take_program(ctx: LocalContext, x: Any, order: Any, *, dimension: int) -> Any:
    return take_along(gather(x, dims_of(ctx.ins[0])[dimension], dimension), order, dimension=dimension)


def _take_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int) -> tuple[Any, Any]:
    out = op(*primals, dimension=dimension)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, op(instantiate(tangents[0]), primals[1], dimension=dimension)


def _take_transpose(op: Op, ct: Any, x: Linear, order: Any, *, dimension: int) -> list[Any]:
    return [add_along(ct, order, dimension=dimension, size=x.aval.shape[dimension]), None]


take_along = define(
    "take_along",
    type_rule=_take_type,
    plan=_take_plan,
    impl=lambda x, order, *, dimension: np.take_along_axis(np.asarray(x), order, dimension),
    jvp=_take_jvp,
    transpose=_take_transpose,
    batch=_along_batch,
    partial_sums=lambda op, sums, avals, params: (sums[0][0], join_reduced(op, sums[:1], avals[:1], params)[1]),
    hlo_name="gather",
)


def _add_plan(avals: tuple[ShapedArray, ...], *, dimension: int, size: int) -> Plan:
    ct, order = avals
    for a in avals:
        require_unsharded("add_along", a, (dimension,), "the dimension should be unsharded")
    joined = spec_from([a or b for a, b in zip(dims_of(ct), dims_of(order))])
    return Plan((joined, joined), (joined,))


def _add_impl(ct: Any, order: Any, *, dimension: int, size: int) -> np.ndarray:
    ct = np.asarray(ct)
    wide = np.float32 if dtypes.is_float(ct.dtype) and ct.dtype.itemsize < 4 else ct.dtype
    out = np.zeros((*ct.shape[:dimension], size, *ct.shape[dimension + 1 :]), wide)
    index = list(np.ogrid[tuple(slice(n) for n in ct.shape)])
    index[dimension] = order
    np.add.at(out, tuple(index), ct)
    return out.astype(ct.dtype, copy=False)


def _add_type(ct: ShapedArray, order: ShapedArray, *, dimension: int, size: int) -> Out:
    if ct.shape != order.shape:
        raise TypeError(f"add_along: operands must have equal shapes, got {ct.str_short()} and {order.str_short()}")
    return Out((*ct.shape[:dimension], size, *ct.shape[dimension + 1 :]), ct.dtype, ct.weak_type)


def _add_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = op(*primals, **params)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, op(instantiate(tangents[0]), primals[1], **params)


add_along = define(
    "add_along",
    type_rule=_add_type,
    plan=_add_plan,
    impl=_add_impl,
    jvp=_add_jvp,
    transpose=lambda op, ct, x, order, *, dimension, size: [take_along(ct, order, dimension=dimension), None],
    batch=_along_batch,
    partial_sums=lambda op, sums, avals, params: (sums[0][0], join_reduced(op, sums[:1], avals[:1], params)[1]),
    hlo_name="scatter",
)
