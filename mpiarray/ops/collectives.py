"""Communication between the blocks of a mesh's devices: the one kind that compiled programs know.

Each op is one MPI operation on the sub-communicator of its axes.  `jax.lax`'s names for users stand in `lax.py`
and `higher_order/`; here are the records, and short functions for local programs (`core.plan`):

    total = psum(block, axes=("x",))
    whole = gather(block, axes=("x",), dim=0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.comm import collectives as mpi
from mpiarray.comm import halves, prepared, repeated
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.plan import Plan, axes_size, dims_of, spec_from
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of
from mpiarray.ops import mapped_axis, mixed_axes
from mpiarray.ops.common import BatchAxis, Parts, same_plan
from mpiarray.ops.linear import linear_jvp, move_dim, zero_jvp
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

Groups = tuple[tuple[int, ...], ...] | None


def _same(x: ShapedArray, **params: Any) -> Out:
    return Out(x.shape, x.dtype, x.weak_type)


def _carried(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
    """Batching of collectives that act on every element alike: the mapped dim is carried along."""
    return op(*args, **params), dims[0]


def _without(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> frozenset[str]:
    return avals[0].vma - frozenset(params["axes"])


def _reduce_build(kind: str) -> Callable[..., Any]:
    def build(ctx: DeviceContext, *, axes: tuple[str, ...], axis_index_groups: Groups) -> Callable[..., Any]:
        group = ctx.group(axes, axis_index_groups)
        return prepared.all_reduce(group, kind)

    return build


psum = define(
    "psum",
    type_rule=_same,
    plan=same_plan,
    build=_reduce_build("sum"),
    jvp=linear_jvp,
    transpose=lambda op, ct, x, **params: [op(ct, **params)],
    batch=mapped_axis.over(mapped_axis.summed, _carried, mixed_axes.reduced(mapped_axis.summed), "axes"),
    vma=_without,
    hlo_name="all-reduce",
)


class _Many:
    """Sums of several blocks in one message, for programs that are run often: the message's memory is kept.

    What is computed in the message need not be copied: after `lay_out`, `take` gives the arrays in which blocks of these
    shapes lie, and a call with them as `message` sends it.  `give` puts a message back.  Whoever comes when it is taken
    (another thread, or a callback that runs the program again) gets a new one.
    """

    def __init__(self, group: Any):
        self.group = group
        self.shapes: Sequence[tuple[int, ...]] | None = None
        self.dtype: Any = None
        self.free: list[list[np.ndarray]] = []

    def lay_out(self, shapes: Sequence[tuple[int, ...]], dtype: Any) -> None:
        self.shapes, self.dtype = shapes, dtype

    def take(self) -> list[np.ndarray]:
        """The place of each block, and the whole message."""
        try:
            return self.free.pop()
        except IndexError:
            assert self.shapes is not None, "lay_out comes first"
            packed = memory.empty((sum(map(math.prod, self.shapes)),), self.dtype)
            return [*mpi.places(packed, self.shapes), packed]

    def give(self, message: list[np.ndarray]) -> None:
        self.free.append(message)

    def __call__(self, *blocks: Any, message: list[np.ndarray] | None = None) -> list[np.ndarray]:
        arrays = [np.asarray(x) for x in blocks]
        if self.shapes is None:
            self.lay_out([x.shape for x in arrays], arrays[0].dtype)
        taken = self.take() if message is None else message
        out = mpi.all_reduce_many(self.group, arrays, packed=taken[-1])
        self.give(taken)
        return out

    def in_place(self, *blocks: Any, message: list[np.ndarray], copied: Sequence[int] = ()) -> list[np.ndarray]:
        """The sums in the message itself, for who gives it back when they are read; copies of those with these numbers."""
        packed = mpi.pack_many([np.asarray(x) for x in blocks], message[-1])
        mpi.all_reduce(self.group, packed, out=packed)
        sums = message[:-1]
        for k in copied:
            sums[k] = sums[k].copy()
        return sums


def _many_build(ctx: DeviceContext, *, axes: tuple[str, ...], axis_index_groups: Groups) -> Callable[..., Any]:
    return _Many(ctx.group(axes, axis_index_groups))


_COMPILED_ONLY = "it only stands in compiled programs, after derivatives are taken"
_NEVER = Undefined(_COMPILED_ONLY)

psum_many = define(
    "psum_many",  # sums of blocks of one dtype over the same axes, in one message
    type_rule=lambda *xs, **params: [_same(x) for x in xs],
    plan=lambda avals, **params: Plan(*(2 * (tuple(spec_from(dims_of(a)) for a in avals),))),
    build=_many_build,
    jvp=_NEVER,
    transpose=_NEVER,
    batch=_NEVER,
    multiple_results=True,
    vma=_without,
    hlo_name="all-reduce",
)

_NO_DERIVATIVE = "maxima over devices have no derivative rule; use `all_gather` and a local maximum"

pmax, pmin = (
    define(
        name,
        type_rule=_same,
        plan=same_plan,
        build=_reduce_build(kind),
        jvp=Undefined(_NO_DERIVATIVE),
        transpose=Undefined(_NO_DERIVATIVE),
        batch=mapped_axis.over(local, _carried, mixed_axes.reduced(local), "axes"),
        vma=_without,
        hlo_name="all-reduce",
    )
    for name, kind, local in (("pmax", "max", mapped_axis.largest), ("pmin", "min", mapped_axis.smallest))
)

# the pending reductions of plans that have no name of their own in JAX
preduce_prod, preduce_and, preduce_or, preduce_xor = (
    define(
        f"preduce_{kind}",
        type_rule=_same,
        plan=same_plan,
        build=_reduce_build(kind),
        jvp=_NEVER,
        transpose=_NEVER,
        batch=_carried,
        vma=_without,
        hlo_name="all-reduce",
    )
    for kind in ("prod", "and", "or", "xor")
)

REDUCERS: dict[str, Op] = {
    "sum": psum, "max": pmax, "min": pmin, "prod": preduce_prod, "and": preduce_and, "or": preduce_or, "xor": preduce_xor,
}  # fmt: skip


def reduce_over(x: Any, kind: str, axes: Sequence[str]) -> Any:
    """Reduce blocks over mesh axes; every rank of the group gets the result."""
    return REDUCERS[kind](x, axes=tuple(axes), axis_index_groups=None) if axes else x


def total(x: Any, axes: Sequence[str]) -> Any:
    """The sum of blocks over mesh axes."""
    return reduce_over(x, "sum", axes)


# -- all_gather, reduce_scatter, all_to_all ------------------------------------------------------------


def _gather_type(
    x: ShapedArray,
    *,
    all_gather_dimension: int,
    axis_name: tuple[str, ...],
    axis_size: int,
    axis_index_groups: Groups,
    tiled: bool,
) -> Out:
    shape = list(x.shape)
    if tiled:
        shape[all_gather_dimension] *= axis_size
    else:
        shape.insert(all_gather_dimension, axis_size)
    return Out(tuple(shape), x.dtype, x.weak_type)


def _inserted(tiled: str, position: str) -> Callable[..., Plan]:
    """The result's dims keep their axes; a dim that an untiled op inserts has none."""

    def plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
        dims = list(dims_of(avals[0]))
        if not params[tiled]:
            dims.insert(params[position], ())
        return Plan((spec_from(dims_of(avals[0])),), (spec_from(dims),))

    return plan


def _gather_build(
    ctx: DeviceContext,
    *,
    all_gather_dimension: int,
    axis_name: tuple[str, ...],
    axis_size: int,
    axis_index_groups: Groups,
    tiled: bool,
) -> Callable[..., Any]:
    group = ctx.group(axis_name, axis_index_groups)
    return prepared.all_gather(group, all_gather_dimension, tiled)


def _gather_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
    return op(move_dim(args[0], dims[0], 0), **params | {"all_gather_dimension": params["all_gather_dimension"] + 1}), 0


all_gather: Op = define(
    "all_gather",
    type_rule=_gather_type,
    plan=_inserted("tiled", "all_gather_dimension"),
    build=_gather_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, all_gather_dimension, **params: [
        reduce_scatter(ct, scatter_dimension=all_gather_dimension, **params)
    ],
    batch=mapped_axis.over(mapped_axis.gathered, _gather_batch, mixed_axes.gathered),
    hlo_name="all-gather",
)


def _scatter_type(
    x: ShapedArray,
    *,
    scatter_dimension: int,
    axis_name: tuple[str, ...],
    axis_size: int,
    axis_index_groups: Groups,
    tiled: bool,
) -> Out:
    shape = list(x.shape)
    if tiled:
        if shape[scatter_dimension] % axis_size:
            raise ValueError(
                f"psum_scatter operand scatter dimension size {shape[scatter_dimension]} must be divisible by shard_count {axis_size}, "
                f"got {x.str_short()} and scatter_dimension={scatter_dimension}"
            )
        shape[scatter_dimension] //= axis_size
    elif shape.pop(scatter_dimension) != axis_size:
        raise ValueError(
            f"psum_scatter operand scatter dimension size {x.shape[scatter_dimension]} must match shard count {axis_size} when tiled=False, "
            f"got {x.str_short()} and scatter_dimension={scatter_dimension}"
        )
    return Out(tuple(shape), x.dtype, x.weak_type)


def _scatter_plan(avals: tuple[ShapedArray, ...], *, scatter_dimension: int, tiled: bool, **params: Any) -> Plan:
    dims = list(dims_of(avals[0]))
    if not tiled:
        dims.pop(scatter_dimension)
    return Plan((spec_from(dims_of(avals[0])),), (spec_from(dims),))


def _scatter_build(
    ctx: DeviceContext,
    *,
    scatter_dimension: int,
    axis_name: tuple[str, ...],
    axis_size: int,
    axis_index_groups: Groups,
    tiled: bool,
) -> Callable[..., Any]:
    group = ctx.group(axis_name, axis_index_groups)
    return prepared.reduce_scatter(group, scatter_dimension, "sum", tiled)


def _scatter_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
    return op(move_dim(args[0], dims[0], 0), **params | {"scatter_dimension": params["scatter_dimension"] + 1}), 0


reduce_scatter: Op = define(
    "reduce_scatter",
    type_rule=_scatter_type,
    plan=_scatter_plan,
    build=_scatter_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, scatter_dimension, **params: [
        all_gather(ct, all_gather_dimension=scatter_dimension, **params)
    ],
    batch=mapped_axis.over(mapped_axis.scattered, _scatter_batch, mixed_axes.scattered),
    hlo_name="reduce-scatter",
)


def _exchange_type(
    x: ShapedArray,
    *,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    axis_index_groups: Groups,
    tiled: bool,
    axis_size: int,
) -> Out:
    shape = list(x.shape)
    if tiled:
        if shape[split_axis] % axis_size:
            raise ValueError(
                f"all_to_all: the size of split_axis {split_axis} of {x.str_short()} has to be divisible by the size of the named axis "
                f"{axis_name} ({axis_size})"
            )
        shape[split_axis] //= axis_size
        shape[concat_axis] *= axis_size
    else:
        if shape.pop(split_axis) != axis_size:
            raise ValueError(
                f"all_to_all requires the size of the mapped axis {axis_name} ({axis_size}) to equal x.shape[split_axis] "
                f"({x.shape[split_axis]}), got {x.str_short()}"
            )
        shape.insert(concat_axis, axis_size)
    return Out(tuple(shape), x.dtype, x.weak_type)


def _exchange_plan(
    avals: tuple[ShapedArray, ...], *, split_axis: int, concat_axis: int, tiled: bool, **params: Any
) -> Plan:
    dims = list(dims_of(avals[0]))
    if not tiled:
        dims.insert(concat_axis, dims.pop(split_axis))
    return Plan((spec_from(dims_of(avals[0])),), (spec_from(dims),))


def _exchange_build(
    ctx: DeviceContext,
    *,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    axis_index_groups: Groups,
    tiled: bool,
    axis_size: int,
) -> Callable[..., Any]:
    group = ctx.group(axis_name if isinstance(axis_name, tuple) else (axis_name,), axis_index_groups)
    return prepared.all_to_all(group, split_axis, concat_axis, tiled)


def _all_to_all_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], **params: Any
) -> tuple[Any, int]:
    moved = {"split_axis": params["split_axis"] + 1, "concat_axis": params["concat_axis"] + 1}
    return op(move_dim(args[0], dims[0], 0), **params | moved), 0


all_to_all = define(
    "all_to_all",
    type_rule=_exchange_type,
    plan=_exchange_plan,
    build=_exchange_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, split_axis, concat_axis, **params: [
        op(ct, split_axis=concat_axis, concat_axis=split_axis, **params)
    ],
    batch=mapped_axis.over(mapped_axis.exchanged, _all_to_all_batch, mixed_axes.exchanged),
    hlo_name="all-to-all",
)

# -- ppermute, axis_index, slices by position --------------------------------------------------------


def _permute_build(
    ctx: DeviceContext, *, axis_name: tuple[str, ...], perm: tuple[tuple[int, int], ...]
) -> Callable[..., Any]:
    # the group is numbered in mesh order, whatever the order of the names (shard_map.md 7)
    group = ctx.group(tuple(a for a in ctx.mesh.axis_names if a in axis_name))
    return prepared.permute(group, perm)


def _permute_pieces(
    ctx: DeviceContext, avals: Sequence[ShapedArray], *, axis_name: tuple[str, ...], perm: tuple[tuple[int, int], ...]
) -> Any:
    """The block that comes, as one piece that may be on its way."""
    group = ctx.group(tuple(a for a in ctx.mesh.axis_names if a in axis_name))
    start = repeated.permute(group, perm, avals[0].shape, dtypes.storage(avals[0].dtype))

    def run(x: Any) -> halves.Arriving:
        started = start((np.asarray(x),))
        return halves.Arriving([started.result], started.wait)

    return Parts([tuple(slice(0, n) for n in avals[0].shape)], run, (None,), (0,))


_permute_build.pieces = _permute_pieces  # type: ignore[attr-defined]

ppermute = define(
    "ppermute",
    type_rule=_same,
    plan=same_plan,
    build=_permute_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, axis_name, perm: [op(ct, axis_name=axis_name, perm=tuple((d, s) for s, d in perm))],
    batch=mapped_axis.over(mapped_axis.permuted, _carried, mixed_axes.permuted),
    hlo_name="collective-permute",
)


def _index_build(ctx: DeviceContext, *, axis_name: Any) -> Callable[..., Any]:
    index = np.int32(ctx.index(axis_name if isinstance(axis_name, tuple) else (axis_name,)))
    return lambda: index


axis_index = define(
    "axis_index",
    type_rule=lambda *, axis_name: Out((), np.dtype("int32")),
    plan=lambda avals, *, axis_name: Plan((), (spec_from(()),)),
    build=_index_build,
    jvp=zero_jvp,
    transpose=Undefined("it has no operand"),
    batch=mapped_axis.over(mapped_axis.numbered, Undefined("it has no operand to map"), mixed_axes.numbered),
    vma=lambda avals, params: frozenset(
        params["axis_name"] if isinstance(params["axis_name"], tuple) else (params["axis_name"],)
    ),
    hlo_name="partition-id",
)


def _slice_type(x: ShapedArray, *, axes: tuple[str, ...], axes_size: int, dim: int) -> Out:
    shape = list(x.shape)
    shape[dim] //= axes_size
    return Out(tuple(shape), x.dtype, x.weak_type)


def _slice_build(ctx: DeviceContext, *, axes: tuple[str, ...], axes_size: int, dim: int) -> Callable[..., Any]:
    index = ctx.index(axes)

    def run(x: np.ndarray) -> np.ndarray:
        n = x.shape[dim] // axes_size
        return x[(slice(None),) * dim + (slice(index * n, (index + 1) * n),)]

    return run


shard_slice = define(
    "shard_slice",
    type_rule=_slice_type,
    plan=same_plan,
    build=_slice_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, **params: [shard_widen(ct, **params)],
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="slice",
)


def _widen_type(x: ShapedArray, *, axes: tuple[str, ...], axes_size: int, dim: int) -> Out:
    shape = list(x.shape)
    shape[dim] *= axes_size
    return Out(tuple(shape), x.dtype, x.weak_type)


def _widen_build(ctx: DeviceContext, *, axes: tuple[str, ...], axes_size: int, dim: int) -> Callable[..., Any]:
    index = ctx.index(axes)

    def run(x: np.ndarray) -> np.ndarray:
        n = x.shape[dim]
        out = np.zeros((*x.shape[:dim], n * axes_size, *x.shape[dim + 1 :]), x.dtype)
        out[(slice(None),) * dim + (slice(index * n, (index + 1) * n),)] = x
        return out

    return run


shard_widen: Op = define(
    "shard_widen",
    type_rule=_widen_type,
    plan=same_plan,
    build=_widen_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, **params: [shard_slice(ct, **params)],
    batch=Undefined(_COMPILED_ONLY),
    hlo_name="pad",
)

# -- for local programs --------------------------------------------------------------------------------


def _size(axes: Sequence[str]) -> int:
    return axes_size(state.abstract_mesh, axes)


def gather(x: Any, axes: Sequence[str], dim: int, *, tiled: bool = True) -> Any:
    """Blocks of a group side by side along `dim` (or stacked in a new dim), on every rank of the group."""
    if not axes:
        return x
    return all_gather(
        x, all_gather_dimension=dim, axis_name=tuple(axes), axis_size=_size(axes), axis_index_groups=None, tiled=tiled
    )


def scatter_sum(x: Any, axes: Sequence[str], dim: int) -> Any:
    """The sum of blocks, of which each rank gets its part along `dim`."""
    return reduce_scatter(
        x, scatter_dimension=dim, axis_name=tuple(axes), axis_size=_size(axes), axis_index_groups=None, tiled=True
    )


def swap(x: Any, axes: Sequence[str], split: int, concat: int) -> Any:
    """Unshard dim `concat` and shard dim `split` over the same axes (all-to-all, tiled)."""
    return all_to_all(
        x, axis_name=tuple(axes), split_axis=split, concat_axis=concat, axis_index_groups=None, tiled=True, axis_size=_size(axes)
    )  # fmt: skip


def permute(x: Any, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> Any:
    """Send blocks along (source, destination) pairs of group positions; zeros where nothing arrives."""
    return ppermute(x, axis_name=tuple(axes), perm=tuple((int(s), int(d)) for s, d in pairs))


def position(axes: Sequence[str]) -> Any:
    """This rank's number along axes, an int32 scalar."""
    return axis_index(axis_name=tuple(axes))


def own_slice(x: Any, axes: Sequence[str], dim: int) -> Any:
    """This rank's part of a replicated block along `dim`."""
    return shard_slice(x, axes=tuple(axes), axes_size=_size(axes), dim=dim) if axes else x


def own_widened(x: Any, axes: Sequence[str], dim: int) -> Any:
    """This rank's part in a block of zeros of the whole size along `dim`."""
    return shard_widen(x, axes=tuple(axes), axes_size=_size(axes), dim=dim) if axes else x


def block_shape(x: Any) -> tuple[int, ...]:
    return aval_of(x).shape
