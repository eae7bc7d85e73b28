"""Boxes cut out of arrays and put into them: slice, pad, dynamic_slice, dynamic_update_slice.

Slices and pads are each other's transposes, as the dynamic pair are.  Along a sharded dim that changes, every
rank receives from the owners what its own result block needs (`ops.boxes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpiarray.core.op import NONE, Linear, Op, Out, PartialSums, Undefined, Zero, define, pass_through, refuse
from mpiarray.core.plan import Dims, LocalContext, Plan, dims_of, local_shape, mesh_order, replicated, spec_from
from mpiarray.core.value import aval_of, literal
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.arithmetic import sub
from mpiarray.ops.boxes import (
    blocks_of,
    box_plan,
    changed_dims,
    move_boxes_at,
    moves_of,
    padded,
    rest_of,
    sizes_of,
    sliced,
    slices_of,
)
from mpiarray.ops.common import BatchAxis, Parts, check_kind
from mpiarray.ops.gather import gather, natural_sharding, operand_sums, operand_type, scatter
from mpiarray.ops.linear import (
    batch_to,
    broadcast_in_dim,
    full_of,
    instantiate,
    linear_jvp,
    move_dim,
    reduce_sum,
    sharding_of,
    tangent_aval,
    transpose,
    zero_jvp,
)
from mpiarray.ops.select import select_n
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

# -- slice -----------------------------------------------------------------------------------------


def _strides(strides: tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    return (1,) * ndim if strides is None else strides


def _slice_type(x: ShapedArray, *, start_indices: tuple[int, ...], limit_indices: tuple[int, ...], strides: Any) -> Out:
    steps = _strides(strides, x.ndim)
    if not len(start_indices) == len(limit_indices) == len(steps) == x.ndim:
        raise TypeError(
            f"slice: start_indices {start_indices}, limit_indices {limit_indices} and strides {strides} must have one "
            f"entry per dim of {x.str_short()}"
        )
    for start, limit, step, n in zip(start_indices, limit_indices, steps, x.shape):
        if not 0 <= start <= limit <= n or step < 1:
            raise TypeError(
                f"slice: needs 0 <= start_indices <= limit_indices <= shape and strides >= 1, got start_indices "
                f"{start_indices}, limit_indices {limit_indices} and strides {strides} for {x.str_short()}"
            )
    return Out(_slice_shape(start_indices, limit_indices, steps), x.dtype, x.weak_type)


def _slice_shape(starts: Sequence[int], limits: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-(limit - start) // step) for start, limit, step in zip(starts, limits, steps))


def _slice_plan(
    avals: tuple[ShapedArray, ...], *, start_indices: tuple[int, ...], limit_indices: tuple[int, ...], strides: Any
) -> Plan:
    (x,) = avals
    mesh, dims, steps = x.sharding.mesh, dims_of(x), _strides(strides, x.ndim)
    shape = _slice_shape(start_indices, limit_indices, steps)
    outs = changed_dims("slice", mesh, x.shape, shape, dims, "slicing on sharded dims")
    if all(n == m or not axes for n, m, axes in zip(x.shape, shape, dims)):
        local = local_shape(mesh, x.shape, dims)
        limits = tuple(n if axes else limit for n, axes, limit in zip(local, dims, limit_indices))
        return Plan((spec_from(dims),), (spec_from(outs),), params={"limit_indices": limits})
    moves = moves_of([(sliced(start, step, n),) for start, step, n in zip(start_indices, steps, shape)])
    return box_plan(avals, [dims], [moves], [shape], [outs])


def _slice_impl(x: Any, *, start_indices: tuple[int, ...], limit_indices: tuple[int, ...], strides: Any) -> np.ndarray:
    return x[tuple(map(slice, start_indices, limit_indices, strides or (None,) * len(start_indices)))]


def _slice_transpose(
    op: Op, ct: Any, x: Linear, *, start_indices: tuple[int, ...], limit_indices: tuple[int, ...], strides: Any
) -> list[Any]:
    aval = x.aval
    config = []
    for start, step, n, m in zip(start_indices, _strides(strides, aval.ndim), aval.shape, aval_of(ct).shape):
        used = start + (m - 1) * step + 1 if m else 0
        config.append((start, n - used, step - 1) if m else (0, n, 0))
    return [pad(ct, literal(0, aval.dtype), padding_config=tuple(config))]


def _slice_batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    start_indices: Any,
    limit_indices: Any,
    strides: Any,
) -> tuple[Any, int]:
    (x,), (d,) = args, dims

    def put(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:d], value, *values[d:])

    steps = None if strides is None else put(strides, 1)
    starts, limits = put(start_indices, 0), put(limit_indices, axis.size)
    return op(x, start_indices=starts, limit_indices=limits, strides=steps), d


slice_ = define(
    "slice",
    type_rule=_slice_type,
    plan=_slice_plan,
    impl=_slice_impl,
    jvp=linear_jvp,
    transpose=_slice_transpose,
    batch=_slice_batch,
    partial_sums=pass_through,
)

# -- pad -------------------------------------------------------------------------------------------

Config = tuple[tuple[int, int, int], ...]


def _pad_shape(shape: Sequence[int], config: Config) -> tuple[int, ...]:
    return tuple(lo + hi + n + max(n - 1, 0) * inner for n, (lo, hi, inner) in zip(shape, config))


def _pad_type(x: ShapedArray, value: ShapedArray, *, padding_config: Config) -> Out:
    if value.ndim:
        raise TypeError(f"pad: padding_value must be a scalar, got {value.str_short()}")
    if value.dtype != x.dtype:
        raise TypeError(
            f"pad: operand and padding_value must have one dtype, got {x.str_short()} and {value.str_short()}"
        )
    if len(padding_config) != x.ndim or any(len(c) != 3 for c in padding_config):
        raise TypeError(
            f"pad: padding_config must have one (low, high, interior) per dim of {x.str_short()}, got {padding_config}"
        )
    shape = _pad_shape(x.shape, padding_config)
    if any(inner < 0 for _, _, inner in padding_config) or min(shape, default=0) < 0:
        raise ValueError(
            f"pad: interior padding must be at least 0, and so must the result's sizes {shape}, got padding_config "
            f"{padding_config} for {x.str_short()}"
        )
    return Out(shape, x.dtype, x.weak_type and value.weak_type)


def _pad_plan(avals: tuple[ShapedArray, ...], *, padding_config: Config) -> Plan:
    x = avals[0]
    mesh, dims = x.sharding.mesh, dims_of(x)
    shape = _pad_shape(x.shape, padding_config)
    outs = changed_dims("pad", mesh, x.shape, shape, dims, "padding on sharded dims")
    if not x.unreduced and all(c == (0, 0, 0) or not axes for c, axes in zip(padding_config, dims)):
        return Plan((spec_from(dims), replicated(0)), (spec_from(outs),))
    runs = [(padded(n, lo, inner, m),) for n, m, (lo, _, inner) in zip(x.shape, shape, padding_config)]
    # an unreduced value is the sum over devices: only one of them may put the padding value in
    masked = mesh_order(mesh, x.unreduced)
    return box_plan(avals, [dims, ()], [moves_of(runs)], [shape], [outs], base=1, masked=masked)


def _pad_impl(x: Any, value: Any, *, padding_config: Config) -> np.ndarray:
    shape = _pad_shape(x.shape, padding_config)
    runs = [padded(n, lo, inner, m) for n, m, (lo, _, inner) in zip(x.shape, shape, padding_config)]
    out = np.full(shape, value, x.dtype)
    if all(r.size for r in runs):
        source, target = slices_of(runs)
        out[target] = x[source]
    return out


def _pad_pieces(ctx: Any, avals: Sequence[ShapedArray], *, padding_config: Config) -> Any:
    """A view of the operand, and the padding value around it."""
    x, _ = avals
    shape = _pad_shape(x.shape, padding_config)
    runs = [padded(n, lo, inner, m) for n, m, (lo, _, inner) in zip(x.shape, shape, padding_config)]
    if not all(r.size for r in runs) or any(inner for _, _, inner in padding_config):
        return None
    source, target = slices_of(runs)
    around = rest_of(shape, target)
    sizes = [sizes_of(box) for box in around]
    places = [(0, tuple(s.start for s in source)), *(None for _ in around)]
    return Parts([target, *around], lambda x, value: [x[source], *(np.broadcast_to(value, n) for n in sizes)], places)


_pad_impl.pieces = _pad_pieces  # type: ignore[attr-defined]


def _pad_sums(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> PartialSums:
    """The operand's pass through; the padding value is a plain scalar, or like the operand."""
    if sums[1] != NONE and sums[0] != sums[1]:
        return pass_through(op, sums, avals, params)
    return sums[0]


def _pad_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, padding_config: Config) -> tuple[Any, Any]:
    out = op(*primals, padding_config=padding_config)
    if all(isinstance(t, Zero) for t in tangents):
        return out, Zero(tangent_aval(out.aval))
    x, value = tangents
    value = literal(0, out.aval.dtype) if isinstance(value, Zero) else value
    return out, op(instantiate(x), value, padding_config=padding_config)


def _unpad(ct: Any, aval: ShapedArray, config: Config) -> Any:
    """The part of a cotangent that belongs to the operand: crop what was added, put zeros where it was cropped."""
    have = aval_of(ct)
    taken: list[tuple[int, int, int]] = []  # start, limit and stride per dim
    crop: Config = ()
    for n, m, (lo, hi, inner) in zip(aval.shape, have.shape, config):
        run = padded(n, lo, inner, m)
        if run.size == 0:
            cut, widths = (0, 0, 1), (0, n, 0)
        elif run.size < n and inner == 0:  # one pad does both, and keeps a sharded dim divisible on the way
            cut, widths = (0, m, 1), (-lo, -hi, 0)
        else:
            cut = (run.target, run.target + (run.size - 1) * run.target_step + 1, run.target_step)
            widths = (run.source, n - run.source - run.size, 0)
        taken.append(cut)
        crop = (*crop, widths)
    if taken != [(0, m, 1) for m in have.shape]:
        starts, limits, steps = zip(*taken)
        ct = slice_(ct, start_indices=starts, limit_indices=limits, strides=None if set(steps) == {1} else steps)
    if any(widths != (0, 0, 0) for widths in crop):
        ct = pad(ct, literal(0, aval.dtype), padding_config=crop)
    return ct


def _pad_transpose(op: Op, ct: Any, x: Any, value: Any, *, padding_config: Config) -> list[Any]:
    ct_x = ct_value = None
    aval = operand_type(x)
    if isinstance(x, Linear):
        ct_x = _unpad(ct, aval, padding_config)
    if isinstance(value, Linear):
        inside = _unpad(ct, aval, padding_config)
        everything, used = (reduce_sum(t, axes=tuple(range(aval.ndim)), out_sharding=None) for t in (ct, inside))
        ct_value = sub(everything, used)
    return [ct_x, ct_value]


def _pad_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], *, padding_config: Config
) -> tuple[Any, int]:
    (x, value), (d, dv) = args, dims
    if dv is None and d is not None:
        return op(x, value, padding_config=(*padding_config[:d], (0, 0, 0), *padding_config[d:])), d
    x = batch_to(x, axis, d, 0)
    config = ((0, 0, 0), *padding_config)
    aval = aval_of(x)
    is_operand = pad(
        full_of(aval.update(dtype=np.dtype(bool), weak_type=False), True),
        literal(False, np.dtype(bool)),
        padding_config=config,
    )
    out = op(x, literal(0, aval.dtype), padding_config=config)
    fill = broadcast_in_dim(
        value, shape=aval_of(out).shape, broadcast_dimensions=(0,), sharding=sharding_of(aval_of(out))
    )
    return select_n(is_operand, fill, out), 0


pad = define(
    "pad",
    type_rule=_pad_type,
    plan=_pad_plan,
    impl=_pad_impl,
    jvp=_pad_jvp,
    transpose=_pad_transpose,
    batch=_pad_batch,
    partial_sums=_pad_sums,
)

# -- dynamic_slice ---------------------------------------------------------------------------------


def check_starts(name: str, x: ShapedArray, starts: Sequence[ShapedArray]) -> None:
    """Raise TypeError unless there is one integer scalar per dim."""
    if len(starts) != x.ndim:
        raise TypeError(f"{name}: needs one start index per dim of {x.str_short()}, got {len(starts)}")
    for s in starts:
        if s.ndim:
            raise TypeError(f"{name}: start indices must be scalars, got {s.str_short()} for operand {x.str_short()}")
        check_kind(f"{name} start index", s.dtype, "i")


def _dynamic_slice_type(x: ShapedArray, *starts: ShapedArray, slice_sizes: tuple[int, ...]) -> Out:
    check_starts("dynamic_slice", x, starts)
    if len(slice_sizes) != x.ndim or any(not 0 <= m <= n for m, n in zip(slice_sizes, x.shape)):
        raise TypeError(
            f"dynamic_slice: slice_sizes {slice_sizes} must have one entry per dim of {x.str_short()}, none larger "
            "than the dim"
        )
    return Out(tuple(slice_sizes), x.dtype, x.weak_type)


def _dynamic_slice_plan(avals: tuple[ShapedArray, ...], *, slice_sizes: tuple[int, ...]) -> Plan:
    x, *starts = avals
    mesh, dims = x.sharding.mesh, dims_of(x)
    outs = changed_dims("dynamic_slice", mesh, x.shape, slice_sizes, dims, "dynamic_slice on sharded dims")
    ins = (spec_from(dims), *(replicated(0) for _ in starts))
    if all(n == m or not axes for n, m, axes in zip(x.shape, slice_sizes, dims)):
        return Plan(ins, (spec_from(outs),), params={"slice_sizes": local_shape(mesh, slice_sizes, dims)})
    return Plan(ins, (spec_from(outs),), local=_SliceBoxes(x.shape, dims, outs))


@dataclass(frozen=True)
class _SliceBoxes:
    """A window of a sharded dim: every rank gets its part of it from the owners."""

    shape: tuple[int, ...]
    dims: Dims
    outs: Dims

    def __call__(self, ctx: LocalContext, x: Any, *starts: Any, slice_sizes: tuple[int, ...]) -> Any:
        source, target = blocks_of(ctx.mesh, self.shape, self.dims), blocks_of(ctx.mesh, slice_sizes, self.outs)
        return move_boxes_at(
            x, x, *starts, take=True, source_shape=self.shape, target_shape=slice_sizes, source=source, target=target
        )


def _dynamic_slice_impl(x: Any, *starts: Any, slice_sizes: tuple[int, ...]) -> np.ndarray:
    return x[tuple(map(window, starts, x.shape, slice_sizes))]


_ALL = slice(None)


def window(start: Any, size: int, count: int) -> slice:
    """The window of `count` at `start`, moved into range as dynamic_slice does."""
    if size == count:
        return _ALL
    at = int(start)
    if at < 0:
        at = 0
    elif at > size - count:
        at = size - count
    return slice(at, at + count)


def _dynamic_slice_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = op(*primals, **params)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, op(tangents[0], *primals[1:], **params)


def _dynamic_slice_transpose(op: Op, ct: Any, x: Linear, *starts: Any, slice_sizes: tuple[int, ...]) -> list[Any]:
    return [dynamic_update_slice(full_of(x.aval, 0), ct, *starts), *(None for _ in starts)]


def _dynamic_slice_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], *, slice_sizes: tuple[int, ...]
) -> tuple[Any, int]:
    (x, *starts), (d, *start_dims) = args, dims
    if d is not None and all(s is None for s in start_dims):
        starts.insert(d, literal(0, aval_of(starts[0]).dtype if starts else np.dtype("int32")))
        return op(x, *starts, slice_sizes=(*slice_sizes[:d], axis.size, *slice_sizes[d:])), d
    return _windows_read(axis, x, d, starts, start_dims, slice_sizes), 0


dynamic_slice = define(
    "dynamic_slice",
    type_rule=_dynamic_slice_type,
    plan=_dynamic_slice_plan,
    impl=_dynamic_slice_impl,
    jvp=_dynamic_slice_jvp,
    transpose=_dynamic_slice_transpose,
    batch=_dynamic_slice_batch,
    partial_sums=operand_sums,
    hlo_name="dynamic-slice",
)

# -- dynamic_update_slice --------------------------------------------------------------------------


def _update_type(x: ShapedArray, update: ShapedArray, *starts: ShapedArray) -> Out:
    check_starts("dynamic_update_slice", x, starts)
    if update.ndim != x.ndim or any(m > n for m, n in zip(update.shape, x.shape)):
        raise TypeError(
            f"dynamic_update_slice: update must have the operand's rank and be no larger than it, got update "
            f"{update.str_short()} for operand {x.str_short()}"
        )
    if update.dtype != x.dtype:
        raise TypeError(
            f"dynamic_update_slice: operand and update must have one dtype, got {x.str_short()} and "
            f"{update.str_short()}"
        )
    return Out(x.shape, x.dtype, x.weak_type and update.weak_type)


def _update_plan(avals: tuple[ShapedArray, ...]) -> Plan:
    x, update, *starts = avals
    dims = dims_of(x)
    if dims_of(update) != dims:
        raise ShardingTypeError(
            f"dynamic_update_slice: operand sharding must be equal to update sharding, got operand {x.short()} and "
            f"update {update.short()}. Use `jax.reshard` on one of them."
        )
    specs = (spec_from(dims), spec_from(dims), *(replicated(0) for _ in starts))
    if all(n == m or not axes for n, m, axes in zip(x.shape, update.shape, dims)):
        return Plan(specs, (spec_from(dims),))
    return Plan(specs, (spec_from(dims),), local=_UpdateBoxes(x.shape, update.shape, dims))


@dataclass(frozen=True)
class _UpdateBoxes:
    """An update of a sharded dim: its elements go to their owners."""

    shape: tuple[int, ...]
    window: tuple[int, ...]
    dims: Dims

    def __call__(self, ctx: LocalContext, x: Any, update: Any, *starts: Any) -> Any:
        source, target = blocks_of(ctx.mesh, self.window, self.dims), blocks_of(ctx.mesh, self.shape, self.dims)
        return move_boxes_at(
            x,
            update,
            *starts,
            take=False,
            source_shape=self.window,
            target_shape=self.shape,
            source=source,
            target=target,
        )


def _update_impl(x: Any, update: Any, *starts: Any) -> np.ndarray:
    out = np.array(x, order="C")
    out[tuple(window(s, n, m) for s, n, m in zip(starts, out.shape, np.shape(update)))] = update
    return out


def _update_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    out = op(*primals)
    if isinstance(tangents[0], Zero) and isinstance(tangents[1], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, op(instantiate(tangents[0]), instantiate(tangents[1]), *primals[2:])


def _update_transpose(op: Op, ct: Any, x: Any, update: Any, *starts: Any) -> list[Any]:
    aval = operand_type(update)
    ct_x = op(ct, full_of(aval, 0), *starts) if isinstance(x, Linear) else None
    ct_update = dynamic_slice(ct, *starts, slice_sizes=aval.shape) if isinstance(update, Linear) else None
    return [ct_x, ct_update, *(None for _ in starts)]


def _update_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, int]:
    (x, update, *starts), (d, du, *start_dims) = args, dims
    x, update = batch_to(x, axis, d, 0), batch_to(update, axis, du, 0)
    if all(s is None for s in start_dims):
        return op(x, update, literal(0, aval_of(starts[0]).dtype if starts else np.dtype("int32")), *starts), 0
    return _windows_write(axis, x, update, starts, start_dims), 0


def _update_sums(
    op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]
) -> PartialSums:
    """Linear in operand and update together."""
    if any(s != NONE for s in sums[2:]):
        return refuse(op, sums, avals, params)
    return pass_through(op, sums[:2], avals[:2], params)


dynamic_update_slice = define(
    "dynamic_update_slice",
    type_rule=_update_type,
    plan=_update_plan,
    impl=_update_impl,
    jvp=_update_jvp,
    transpose=_update_transpose,
    batch=_update_batch,
    partial_sums=_update_sums,
    hlo_name="dynamic-update-slice",
)

# -- windows that differ from example to example -----------------------------------------------------


def _window_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
    return op(*args, **params), dims[0]


# start[...] -> the indices start, start + 1, ... of a window of `count` in a dim of `size`, in a new last dim
window_indices = define(
    "window_indices",
    type_rule=lambda start, *, size, count: Out((*start.shape, count), start.dtype),
    plan=lambda avals, **params: Plan((spec_from(dims_of(avals[0])),), (spec_from([*dims_of(avals[0]), ()]),)),
    impl=lambda start, *, size, count: (np.clip(start, 0, size - count)[..., None] + np.arange(count)).astype(
        start.dtype
    ),
    jvp=zero_jvp,
    transpose=Undefined("indices have no derivative"),
    batch=_window_batch,
)


def _window_places(
    axis: BatchAxis, starts: Sequence[Any], start_dims: Sequence[int | None], shape: Sequence[int], sizes: Sequence[int]
) -> tuple[tuple[int, ...], list[Any]]:
    """The dims whose windows move, and for each an index array of shape (batch, window sizes of these dims)."""
    moving = tuple(k for k, (n, m) in enumerate(zip(shape, sizes)) if n != m)
    widths = tuple(sizes[k] for k in moving)
    out = []
    for position, k in enumerate(moving):
        at = window_indices(batch_to(starts[k], axis, start_dims[k], 0), size=shape[k], count=sizes[k])
        aval = aval_of(at)
        sharding = None
        if not aval.sharding.mesh.empty:
            sharding = NamedSharding(aval.sharding.mesh, spec_from([dims_of(aval)[0], *((),) * len(widths)]))
        full = (axis.size, *widths)
        out.append(broadcast_in_dim(at, shape=full, broadcast_dimensions=(0, position + 1), sharding=sharding))
    return moving, out


def _window_order(ndim: int, moving: Sequence[int]) -> list[int]:
    """The dims of (batch, moving windows, other dims) in the operand's order, behind the batch dim."""
    others = [k for k in range(ndim) if k not in moving]
    place = {k: n for n, k in enumerate([*moving, *others])}
    return [0, *(place[k] + 1 for k in range(ndim))]


def _windows_read(
    axis: BatchAxis,
    x: Any,
    d: int | None,
    starts: Sequence[Any],
    start_dims: Sequence[int | None],
    sizes: tuple[int, ...],
) -> Any:
    """dynamic_slice with a start per example: a gather; the mapped dim of the result is its first."""
    aval = aval_of(x)
    shape = [n for k, n in enumerate(aval.shape) if k != d]
    moving, places = _window_places(axis, starts, start_dims, shape, sizes)
    if not moving:
        return batch_to(x, axis, d, 0)
    if d is None:
        sharding = natural_sharding(x, places, moving, 0) if axis.spec else None
        out = gather(x, *places, dims=moving, batch_dims=0, mode="clip", fill_value=None, out_sharding=sharding)
    else:
        dims = tuple(k + 1 for k in moving)
        x = move_dim(x, d, 0)
        out = gather(x, *places, dims=dims, batch_dims=1, mode="clip", fill_value=None, out_sharding=None)
    return transpose(out, permutation=tuple(_window_order(len(shape), moving)))


def _windows_write(
    axis: BatchAxis, x: Any, update: Any, starts: Sequence[Any], start_dims: Sequence[int | None]
) -> Any:
    """dynamic_update_slice with a start per example: a scatter.  `x` and `update` are mapped in their first dim."""
    shape, sizes = aval_of(x).shape[1:], aval_of(update).shape[1:]
    moving, places = _window_places(axis, starts, start_dims, shape, sizes)
    if not moving:
        return update
    order = _window_order(len(shape), moving)
    update = transpose(update, permutation=tuple(int(k) for k in np.argsort(order)))
    dims = tuple(k + 1 for k in moving)
    return scatter(x, update, *places, dims=dims, batch_dims=1, mode="clip", combine="set", out_sharding=None)
