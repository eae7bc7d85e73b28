"""Fourier transforms over the last dims.

A transform of several dims is a sequence of transforms along one, so a sharded dim needs to be whole only when its turn
comes: its axes then move to another dim that they divide, by one all-to-all.  Only where no dim can take them is the
dim gathered.  The result lies like the operand (but for a dim whose new size its axes do not divide).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpiarray.comm import collectives as mpi
from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Linear, Op, Out, Undefined, define, pass_through
from mpiarray.core.plan import Dims, LocalContext, Plan, axes_size, dims_of, spec_from
from mpiarray.core.value import aval_of, literal
from mpiarray.ops.arithmetic import mul
from mpiarray.ops.bits import or_
from mpiarray.ops.collectives import gather
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.comparison import eq
from mpiarray.ops.complex_parts import conj, real
from mpiarray.ops.fft_kernel import FftType, result_dtype, result_size, transform
from mpiarray.ops.linear import broadcast_in_dim, convert_element_type, linear_jvp, move_dim, sharding_of
from mpiarray.ops.select import where
from mpiarray.ops.shape import iota
from mpiarray.ops.slicing import pad
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


def _operand_size(kind: FftType, n: int) -> int:
    return n // 2 + 1 if kind == FftType.IRFFT else n


def _type(x: ShapedArray, *, fft_type: FftType, fft_lengths: tuple[int, ...]) -> Out:
    count = len(fft_lengths)
    if x.ndim < count:
        raise ValueError(f"fft requires input shape to have at least {count} dimensions, got {x.str_short()}")
    if not count or any(n < 0 for n in fft_lengths):
        raise ValueError(f"fft: fft_lengths must be one or more sizes, got {fft_lengths}")
    wanted = "f" if fft_type == FftType.RFFT else "c"
    if (wanted == "f") != dtypes.is_float(x.dtype) or (wanted == "c" and not dtypes.is_complex(x.dtype)):
        kinds = "float32 or float64" if wanted == "f" else "complex64 or complex128"
        raise TypeError(f"{fft_type.name} requires {kinds} inputs, got {x.str_short()}.")
    expected = (*fft_lengths[:-1], _operand_size(fft_type, fft_lengths[-1]))
    if x.shape[x.ndim - count :] != expected:
        raise ValueError(
            f"{fft_type.name} of lengths {fft_lengths} requires the last dimensions of its input to be {expected}, "
            f"got {x.str_short()}"
        )
    return Out((*x.shape[:-1], result_size(fft_type, fft_lengths[-1])), result_dtype(fft_type, x.dtype))


# -- on blocks -----------------------------------------------------------------------------------------------


class Transform(NamedTuple):
    """One dim's turn."""

    dim: int
    kind: FftType
    length: int


Transforms = tuple[Transform, ...]


def _transformed(x: ShapedArray, shape: Sequence[int], transforms: Transforms) -> Out:
    sizes, dtype = list(shape), x.dtype
    for dim, kind, length in transforms:
        sizes[dim], dtype = result_size(kind, length), result_dtype(kind, dtype)
    return Out(tuple(sizes), dtype)


def _run(x: Any, transforms: Transforms, *, overwrite: bool) -> np.ndarray:
    """One transform after the other; `overwrite` says that nobody else has this block."""
    x = np.asarray(x)
    for dim, kind, length in transforms:
        x = transform(x, kind, length, dim, overwrite=overwrite)
        overwrite = True
    return x


_COMPILED_ONLY = Undefined("it only stands in compiled programs, after derivatives are taken")

fft_along = define(
    "fft_along",
    type_rule=lambda x, *, transforms: _transformed(x, x.shape, transforms),
    plan=lambda avals, *, transforms: Plan((avals[0].sharding.spec,), (spec_from(dims_of(avals[0])),)),
    impl=lambda x, *, transforms: _run(x, transforms, overwrite=False),
    jvp=_COMPILED_ONLY,
    transpose=_COMPILED_ONLY,
    batch=_COMPILED_ONLY,
    hlo_name="fft",
)


def _moved_type(
    x: ShapedArray, *, axis_name: tuple[str, ...], axis_size: int, split: int, concat: int, transforms: Transforms
) -> Out:
    shape = list(x.shape)
    shape[split] //= axis_size
    shape[concat] *= axis_size
    return _transformed(x, shape, transforms)


def _moved_build(
    ctx: DeviceContext,
    *,
    axis_name: tuple[str, ...],
    axis_size: int,
    split: int,
    concat: int,
    transforms: Transforms,
) -> Callable[..., Any]:
    group = ctx.group(axis_name)
    return lambda x: _run(mpi.all_to_all(group, np.asarray(x), split, concat), transforms, overwrite=True)


moved_fft = define(
    "moved_fft",  # a dim made whole by an all-to-all, and transformed in the memory that was received
    type_rule=_moved_type,
    plan=lambda avals, **params: Plan((avals[0].sharding.spec,), (spec_from(dims_of(avals[0])),)),
    build=_moved_build,
    jvp=_COMPILED_ONLY,
    transpose=_COMPILED_ONLY,
    batch=_COMPILED_ONLY,
    hlo_name="all-to-all",
)

# -- the order of work -----------------------------------------------------------------------------------------


class _Move(NamedTuple):
    """Make a dim whole: its axes go to the dim `to` (None: it is gathered)."""

    axes: tuple[str, ...]
    dim: int
    to: int | None


def _schedule(
    mesh: Any, shape: Sequence[int], dims: Dims, kind: FftType, lengths: Sequence[int]
) -> tuple[list[_Move | Transform], Dims]:
    """What to do in order, and how the result then lies."""
    ndim, first = len(shape), len(shape) - len(lengths)
    sizes, lies = list(shape), list(dims)
    steps: list[_Move | Transform] = []
    waiting = list(range(first, ndim))
    while waiting:
        d = _next(waiting, lies, kind)
        waiting.remove(d)
        if lies[d]:
            axes = lies[d]
            to = _taker(mesh, sizes, lies, axes, d, waiting)
            steps.append(_Move(axes, d, to))
            lies[d] = ()
            if to is not None:
                lies[to] = (*lies[to], *axes)
        length = lengths[d - first]
        real_kind = d == ndim - 1
        own = kind if real_kind else {FftType.RFFT: FftType.FFT, FftType.IRFFT: FftType.IFFT}.get(kind, kind)
        steps.append(Transform(d, own, length))
        sizes[d] = result_size(own, length)
    return steps, tuple(lies)


def _next(waiting: Sequence[int], lies: Sequence[tuple[str, ...]], kind: FftType) -> int:
    """The dim of real values goes first (or last, on the way back); of the others the whole ones do."""
    last = max(waiting)
    if kind == FftType.RFFT and len(waiting) > 1 and last == len(lies) - 1:
        return last
    others = [d for d in waiting if d != last] if kind == FftType.IRFFT and len(waiting) > 1 else list(waiting)
    return min(others, key=lambda d: (bool(lies[d]), -d))


def _taker(
    mesh: Any,
    sizes: Sequence[int],
    lies: Sequence[tuple[str, ...]],
    axes: tuple[str, ...],
    dim: int,
    waiting: Sequence[int],
) -> int | None:
    """The dim that takes the axes: one that needs not be whole any more if there is one."""
    parts = axes_size(mesh, axes)
    fits = [d for d, n in enumerate(sizes) if d != dim and n and n % (parts * axes_size(mesh, lies[d])) == 0]
    return min(fits, key=lambda d: (d in waiting, bool(lies[d]), -sizes[d], d), default=None)


def _plan(avals: tuple[Any, ...], *, fft_type: FftType, fft_lengths: tuple[int, ...]) -> Plan:
    (x,) = avals
    mesh, dims = x.sharding.mesh, dims_of(x)
    first = x.ndim - len(fft_lengths)
    spec = spec_from(dims)
    if not any(dims[first:]):
        return Plan((spec,), (spec,))
    shape = (*x.shape[:-1], result_size(fft_type, fft_lengths[-1]))
    kept = tuple(axes if n % axes_size(mesh, axes) == 0 else () for n, axes in zip(shape, dims))
    steps, lies = _schedule(mesh, x.shape, dims, fft_type, fft_lengths)

    turns = _turns(steps)

    def program(ctx: LocalContext, block: Any, **params: Any) -> Any:
        for move, transforms in turns:
            if move is None or move.to is None:
                whole = block if move is None else gather(block, move.axes, move.dim)
                block = fft_along(whole, transforms=transforms)
            else:
                size = ctx.size(move.axes)
                block = moved_fft(
                    block, axis_name=move.axes, axis_size=size, split=move.to, concat=move.dim, transforms=transforms
                )
        return block

    return Plan((spec,), (spec_from(lies),), result=(spec_from(kept),), local=program)


def _turns(steps: Sequence[_Move | Transform]) -> list[tuple[_Move | None, Transforms]]:
    """Each move with the transforms that follow it."""
    out: list[tuple[_Move | None, Transforms]] = []
    for step in steps:
        if isinstance(step, _Move):
            out.append((step, ()))
        elif out:
            out[-1] = (out[-1][0], (*out[-1][1], step))
        else:
            out.append((None, (step,)))
    return out


def _impl(x: Any, *, fft_type: FftType, fft_lengths: tuple[int, ...]) -> np.ndarray:
    x = np.asarray(x)
    steps, _ = _schedule(None, x.shape, ((),) * x.ndim, fft_type, fft_lengths)
    return _run(x, tuple(step for step in steps if isinstance(step, Transform)), overwrite=False)


# -- derivatives --------------------------------------------------------------------------------------------------


def _transpose(op: Op, ct: Any, x: Linear, *, fft_type: FftType, fft_lengths: tuple[int, ...]) -> list[Any]:
    if fft_type in (FftType.FFT, FftType.IFFT):  # symmetric matrices
        return [op(ct, fft_type=fft_type, fft_lengths=fft_lengths)]
    if fft_type == FftType.RFFT:
        return [_transpose_rfft(op, ct, fft_lengths)]
    return [_transpose_irfft(op, ct, fft_lengths)]


def _transpose_rfft(op: Op, ct: Any, lengths: tuple[int, ...]) -> Any:
    """The missing frequencies are zero; the real part is what a real operand has."""
    aval = aval_of(ct)
    config = (*((0, 0, 0),) * (aval.ndim - 1), (0, lengths[-1] - aval.shape[-1], 0))
    full = pad(ct, literal(0, aval.dtype), padding_config=config)
    return real(op(full, fft_type=FftType.FFT, fft_lengths=lengths))


def _transpose_irfft(op: Op, ct: Any, lengths: tuple[int, ...]) -> Any:
    """Frequencies that stand for their conjugates too count twice."""
    out = op(ct, fft_type=FftType.RFFT, fft_lengths=lengths)
    aval = aval_of(out)
    n, size = lengths[-1], aval.shape[-1]
    number = iota(dtype=np.dtype(np.int32), shape=aval.shape, dimension=aval.ndim - 1, sharding=sharding_of(aval))
    flat = aval_of(number)

    def at(k: int) -> Any:
        k_all = broadcast_in_dim(
            literal(k, np.dtype(np.int32)), shape=flat.shape, broadcast_dimensions=(), sharding=sharding_of(flat)
        )
        return eq(number, k_all)

    once = at(0) if n % 2 else or_(at(0), at(size - 1))
    dtype = dtypes.real_dtype(aval.dtype)
    share = 1.0 / math.prod(lengths)
    weights = where(once, literal(share, dtype), literal(2 * share, dtype), aval.update(dtype=dtype))
    return mul(conj(out), convert_element_type(weights, new_dtype=aval.dtype, weak_type=False))


def _batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
    return op(move_dim(args[0], dims[0], 0), **params), 0


fft = define(
    "fft",
    type_rule=_type,
    plan=_plan,
    impl=_impl,
    jvp=linear_jvp,
    transpose=_transpose,
    batch=_batch,
    partial_sums=pass_through,
)
