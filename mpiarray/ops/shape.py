"""Ops that put elements in other places: rev, concatenate, split, roll, iota (pad and slice are in `ops.slicing`).

Along dims that are not sharded they are numpy on the blocks.  Along sharded ones, elements move straight to the
rank that owns their new place (`ops.boxes`), and to no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Linear, Op, Out, Undefined, Zero, define, pass_through
from mpiarray.core.plan import (
    Dims,
    LocalContext,
    Plan,
    axes_size,
    dims_of,
    local_shape,
    mesh_order,
    replicated,
    spec_from,
)
from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.boxes import (
    Box,
    Move,
    box_plan,
    changed_dims,
    explicit_axes,
    moves_of,
    placed,
    reversed_,
    rolled,
    sliced,
    whole,
)
from mpiarray.ops.common import BatchAxis, Parts
from mpiarray.ops.gather import operand_type
from mpiarray.ops.linear import batch_to, instantiate, linear_jvp, mask_replicas, move_dim, zero_jvp
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

__all__ = ["concatenate", "iota", "pad", "rev", "roll", "slice_", "split"]


def _check_dims(name: str, x: ShapedArray, dims: Sequence[int]) -> None:
    if len(set(dims)) != len(dims) or any(not 0 <= d < x.ndim for d in dims):
        raise TypeError(f"{name}: dims {tuple(dims)} must be distinct dims of {x.str_short()}")


# -- rev -------------------------------------------------------------------------------------------


def _rev_type(x: ShapedArray, *, dimensions: tuple[int, ...]) -> Out:
    _check_dims("rev", x, dimensions)
    return Out(x.shape, x.dtype, x.weak_type)


def _rev_plan(avals: tuple[ShapedArray, ...], *, dimensions: tuple[int, ...]) -> Plan:
    (x,) = avals
    dims = dims_of(x)
    if not any(dims[d] for d in dimensions):
        return Plan((spec_from(dims),), (spec_from(dims),))
    runs = [(reversed_(n) if d in dimensions else whole(n),) for d, n in enumerate(x.shape)]
    return box_plan(avals, [dims], [moves_of(runs)], [x.shape], [dims])


rev = define(
    "rev",
    type_rule=_rev_type,
    plan=_rev_plan,
    impl=lambda x, *, dimensions: np.flip(x, dimensions),
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, dimensions: [op(ct, dimensions=dimensions)],
    batch=lambda op, axis, args, dims, *, dimensions: (
        op(args[0], dimensions=tuple(d + (d >= dims[0]) for d in dimensions)),
        dims[0],
    ),
    partial_sums=pass_through,
    hlo_name="reverse",
)

# -- roll ------------------------------------------------------------------------------------------


def _roll_type(x: ShapedArray, *, shift: tuple[int, ...], axis: tuple[int, ...]) -> Out:
    if len(shift) != len(axis) or any(not 0 <= d < x.ndim for d in axis):
        raise TypeError(f"roll: needs one shift per axis, got shift={shift} and axis={axis} for {x.str_short()}")
    return Out(x.shape, x.dtype, x.weak_type)


def _shifts(ndim: int, shift: tuple[int, ...], axis: tuple[int, ...]) -> list[int]:
    out = [0] * ndim
    for s, d in zip(shift, axis):
        out[d] += s
    return out


def _roll_plan(avals: tuple[ShapedArray, ...], *, shift: tuple[int, ...], axis: tuple[int, ...]) -> Plan:
    """Along a sharded dim only what crosses the border of a block is sent: a halo exchange for small shifts.

    JAX refuses this; the sharding of the result is not in doubt, so it is allowed here.
    """
    (x,) = avals
    dims, shifts = dims_of(x), _shifts(x.ndim, shift, axis)
    if not any(axes and s for axes, s in zip(dims, shifts)):
        return Plan((spec_from(dims),), (spec_from(dims),))
    runs = [rolled(n, s) for n, s in zip(x.shape, shifts)]
    return box_plan(avals, [dims], [moves_of(runs)], [x.shape], [dims])


@lru_cache(maxsize=1024)
def _rolled_parts(shape: tuple[int, ...], shift: tuple[int, ...], axis: tuple[int, ...]) -> list[tuple[Box, Box]]:
    """(source, target) boxes: what moves past the end of a dim, and the rest."""
    parts = []  # for each dim (source, target) of its parts
    for n, s in zip(shape, _shifts(len(shape), shift, axis)):
        s = s % n if n else 0
        cut = n - s
        parts.append([(slice(0, cut), slice(s, n)), (slice(cut, n), slice(0, s))] if s else [(slice(0, n),) * 2])
    return [(sources, targets) for sources, targets in (zip(*p) for p in itertools.product(*parts))] if shape else []


def _roll_impl(x: Any, *, shift: tuple[int, ...], axis: tuple[int, ...]) -> np.ndarray:
    x = np.asarray(x)  # np.roll does the same, and takes 8 us to begin
    if not x.ndim:
        return x.copy()
    out = memory.empty(x.shape, x.dtype)
    for source, target in _rolled_parts(x.shape, shift, axis):
        out[target] = x[source]
    return out


def _roll_pieces(ctx: Any, avals: Sequence[ShapedArray], *, shift: tuple[int, ...], axis: tuple[int, ...]) -> Any:
    """Views of the operand."""
    parts = _rolled_parts(avals[0].shape, shift, axis)
    sources = [source for source, _ in parts]
    places = [(0, tuple(s.start for s in i)) for i in sources]
    return Parts([target for _, target in parts], lambda x: [x[i] for i in sources], places)


_roll_impl.pieces = _roll_pieces  # type: ignore[attr-defined]

roll = define(
    "roll",
    type_rule=_roll_type,
    plan=_roll_plan,
    impl=_roll_impl,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, shift, axis: [op(ct, shift=tuple(-s for s in shift), axis=axis)],
    batch=lambda op, axis_, args, dims, *, shift, axis: (
        op(args[0], shift=shift, axis=tuple(d + (d >= dims[0]) for d in axis)),
        dims[0],
    ),
    partial_sums=pass_through,
)

# -- concatenate -----------------------------------------------------------------------------------


def _concatenate_type(*avals: ShapedArray, dimension: int) -> Out:
    if not avals:
        raise TypeError("concatenate: needs at least one operand")
    first, shown = avals[0], ", ".join(str(a.shape) for a in avals)
    if not 0 <= dimension < first.ndim:
        raise TypeError(f"concatenate: dimension {dimension} is not a dim of the operands, which have shapes {shown}")
    for a in avals:
        same = a.ndim == first.ndim and all(
            n == m or d == dimension for d, (n, m) in enumerate(zip(a.shape, first.shape))
        )
        if not same:
            raise TypeError(
                f"Cannot concatenate arrays with shapes that differ in dimensions other than the one being concatenated"
                f": concatenating along dimension {dimension} for shapes {shown}."
            )
        if a.dtype != first.dtype:
            raise TypeError(f"concatenate: operands must have one dtype, got {', '.join(a.str_short() for a in avals)}")
    shape = list(first.shape)
    shape[dimension] = sum(a.shape[dimension] for a in avals)
    return Out(tuple(shape), first.dtype, all(a.weak_type for a in avals))


def _concatenate_plan(avals: tuple[ShapedArray, ...], *, dimension: int) -> Plan:
    first = avals[0]
    mesh = first.sharding.mesh
    kept = {tuple(explicit_axes(mesh, axes) for axes in dims_of(a)) for a in avals}
    if len(kept) > 1:
        raise ShardingTypeError(
            f"All operands should have the same sharding, got {', '.join(a.short() for a in avals)} for concatenate "
            f"along dimension {dimension}. Use `jax.reshard` to bring them to one sharding."
        )
    dims = dims_of(first)
    if any(dims_of(a) != dims for a in avals):  # Auto axes only: the first operand whose axes fit all decides
        dims = next((dims_of(a) for a in avals if any(dims_of(a)) and _fits(mesh, avals, dims_of(a))), kept.pop())
    specs = (spec_from(dims),) * len(avals)
    if not dims[dimension]:
        return Plan(specs, (spec_from(dims),))
    shape = list(first.shape)
    shape[dimension] = sum(a.shape[dimension] for a in avals)
    moves, start = [], 0
    for k, a in enumerate(avals):
        along = [placed(start, n) if d == dimension else whole(n) for d, n in enumerate(a.shape)]
        moves.append(Move(k, tuple(along)))
        start += a.shape[dimension]
    return box_plan(avals, [dims] * len(avals), [moves], [tuple(shape)], [dims])


def _fits(mesh: Any, avals: Sequence[ShapedArray], dims: Dims) -> bool:
    return all(n % axes_size(mesh, axes) == 0 for a in avals for n, axes in zip(a.shape, dims))


def _concatenate_transpose(op: Op, ct: Any, *args: Any, dimension: int) -> list[Any]:
    out, start = [], 0
    shape = aval_of(ct).shape
    for x in args:
        n = operand_type(x).shape[dimension]
        starts, limits = [0] * len(shape), list(shape)
        starts[dimension], limits[dimension] = start, start + n
        start += n
        part = slice_(ct, start_indices=tuple(starts), limit_indices=tuple(limits), strides=None)
        out.append(part if isinstance(x, Linear) else None)
    return out


def _concatenate_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], *, dimension: int
) -> tuple[Any, int]:
    to = next(d for d in dims if d is not None)
    moved = [batch_to(x, axis, d, to) for x, d in zip(args, dims)]
    return op(*moved, dimension=dimension + (to <= dimension)), to


def _concatenate_impl(*blocks: Any, dimension: int) -> np.ndarray:
    return np.concatenate(blocks, dimension)


def _concatenate_pieces(ctx: Any, avals: Sequence[ShapedArray], *, dimension: int) -> Any:
    """The operands as they are."""
    boxes, start = [], 0
    for a in avals:
        box = [slice(0, n) for n in a.shape]
        box[dimension] = slice(start, start + a.shape[dimension])
        start = box[dimension].stop
        boxes.append(tuple(box))
    return Parts(boxes, lambda *blocks: blocks, [(k, (0,) * a.ndim) for k, a in enumerate(avals)])


_concatenate_impl.pieces = _concatenate_pieces  # type: ignore[attr-defined]

concatenate = define(
    "concatenate",
    type_rule=_concatenate_type,
    plan=_concatenate_plan,
    impl=_concatenate_impl,
    jvp=linear_jvp,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    partial_sums=pass_through,
)

# -- split -----------------------------------------------------------------------------------------


def _split_type(x: ShapedArray, *, sizes: tuple[int, ...], axis: int) -> list[Out]:
    if not 0 <= axis < x.ndim:
        raise ValueError(f"split: axis {axis} is not a dim of {x.str_short()}")
    if any(n < 0 for n in sizes) or sum(sizes) != x.shape[axis]:
        raise ValueError(
            f"split: sizes {sizes} must be at least 0 and sum up to the size {x.shape[axis]} of axis {axis} of "
            f"{x.str_short()}"
        )
    return [Out((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype, x.weak_type) for n in sizes]


def _split_plan(avals: tuple[ShapedArray, ...], *, sizes: tuple[int, ...], axis: int) -> Plan:
    (x,) = avals
    dims, mesh = dims_of(x), x.sharding.mesh
    if not dims[axis] or sizes == (x.shape[axis],):
        local = {"sizes": sizes if not dims[axis] else (x.shape[axis] // axes_size(mesh, dims[axis]),)}
        return Plan((spec_from(dims),), (spec_from(dims),) * len(sizes), params=local)
    shapes = [(*x.shape[:axis], n, *x.shape[axis + 1 :]) for n in sizes]
    outs = [changed_dims("split", mesh, x.shape, s, dims, "split on sharded dims") for s in shapes]
    starts = [0, *itertools.accumulate(sizes)]
    moves = [
        moves_of([(sliced(start, 1, n) if d == axis else whole(m),) for d, m in enumerate(x.shape)])
        for start, n in zip(starts, sizes)
    ]
    return box_plan(avals, [dims], moves, shapes, outs, multiple=True)


def _split_impl(x: Any, *, sizes: tuple[int, ...], axis: int) -> list[np.ndarray]:
    return np.split(x, list(itertools.accumulate(sizes))[:-1], axis)


def _split_transpose(op: Op, cts: Sequence[Any], x: Linear, *, sizes: tuple[int, ...], axis: int) -> list[Any]:
    if all(isinstance(ct, Zero) for ct in cts):
        return [Zero(x.aval)]
    return [concatenate(*(instantiate(ct) for ct in cts), dimension=axis)]


split = define(
    "split",
    type_rule=_split_type,
    plan=_split_plan,
    impl=_split_impl,
    jvp=linear_jvp,
    transpose=_split_transpose,
    batch=lambda op, axis_, args, dims, *, sizes, axis: (
        op(move_dim(args[0], dims[0], 0), sizes=sizes, axis=axis + 1),
        [0] * len(sizes),
    ),
    multiple_results=True,
    partial_sums=pass_through,
    hlo_name="slice",
)

# -- iota ------------------------------------------------------------------------------------------


def _iota_type(*, dtype: Any, shape: tuple[int, ...], dimension: int, sharding: NamedSharding | None) -> Out:
    if not 0 <= dimension < len(shape):
        raise ValueError(f"iota: dimension must be between 0 and {len(shape)}, got {dimension} for shape {shape}")
    if not (dtypes.is_int(dtype) or dtypes.is_float(dtype) or dtypes.is_complex(dtype)):
        raise TypeError(
            f"iota does not accept dtype {dtype}. Accepted dtypes are of kinds: integer, floating, complex."
        )
    return Out(tuple(shape), dtype)


def _iota_plan(
    avals: tuple[ShapedArray, ...],
    *,
    dtype: Any,
    shape: tuple[int, ...],
    dimension: int,
    sharding: NamedSharding | None,
) -> Plan:
    if sharding is None:
        return Plan((), (replicated(len(shape)),))
    return Plan((), (sharding.spec.padded(len(shape)),), local=_local_iota)


def _local_iota(
    ctx: LocalContext, *, dtype: Any, shape: tuple[int, ...], dimension: int, sharding: NamedSharding
) -> Any:
    spec = sharding.spec.padded(len(shape))
    block = iota_block(
        dtype=dtype, shape=local_shape(ctx.mesh, shape, spec.dims), dimension=dimension, axes=spec.dims[dimension]
    )
    axes = mesh_order(ctx.mesh, spec.unreduced)
    return mask_replicas(block, axes=axes) if axes else block


def _numbers(start: int, dtype: Any, shape: tuple[int, ...], dimension: int) -> np.ndarray:
    n = shape[dimension]
    line = np.arange(start, start + n).astype(dtype).reshape((n,) + (1,) * (len(shape) - dimension - 1))
    return line if len(shape) == 1 else np.broadcast_to(line, shape)


iota = define(
    "iota",
    type_rule=_iota_type,
    plan=_iota_plan,
    impl=lambda *, dtype, shape, dimension, sharding: _numbers(0, dtype, shape, dimension),
    jvp=zero_jvp,
    transpose=Undefined("it has no operand"),
    batch=Undefined("it has no operand to map"),
)


def _iota_build(
    ctx: DeviceContext, *, dtype: Any, shape: Any, dimension: int, axes: tuple[str, ...]
) -> Callable[..., Any]:
    block = _numbers(ctx.index(axes) * shape[dimension], dtype, shape, dimension)
    return lambda: block


# a block of an iota that is sharded over `axes` along its dimension
iota_block = define(
    "iota_block",
    type_rule=lambda *, dtype, shape, dimension, axes: Out(shape, dtype),
    plan=lambda avals, *, shape, **params: Plan((), (replicated(len(shape)),)),
    build=_iota_build,
    jvp=zero_jvp,
    transpose=Undefined("it has no operand"),
    batch=Undefined("it has no operand to map"),
    hlo_name="iota",
)
