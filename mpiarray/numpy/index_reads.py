"""Reading at indices.

Numbers and slices become slices, reversals and squeezes; numbers that are not static become dynamic slices; index
arrays become gathers.  Numbers out of bounds go to the edge, as do those of index arrays, unless `mode="fill"`.

A dim that is sharded over Explicit axes can be cut where the result still divides, and nowhere else; with
`.at[index].get(out_sharding=)` any index reads any sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.plan import axes_size, dims_of, spec_from
from mpiarray.core.trace import is_evaluating
from mpiarray.core.value import aval_of
from mpiarray.numpy.index_parts import INDEX, Cut, Parts, parts_of
from mpiarray.numpy.placing import made
from mpiarray.ops.gather import gather
from mpiarray.ops.linear import expand_dims, full_of, squeeze, transpose
from mpiarray.ops.placement import reshard
from mpiarray.ops.shape import rev
from mpiarray.ops.slicing import dynamic_slice, slice_
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

_READ_MODES = {None: "clip", "clip": "clip", "promise_in_bounds": "clip", "fill": "fill", "drop": "fill"}


def read(
    x: Any,
    index: Any,
    mode: str | None = None,
    fill_value: Any = None,
    out_sharding: Any = None,
    wrap: bool = True,
) -> Any:
    """`x.at[index].get(...)`."""
    parts = parts_of(x.aval, index, wrap)
    if mode not in _READ_MODES:
        raise ValueError(f'Unknown gather mode "{mode}": it must be one of {", ".join(map(repr, _READ_MODES))}')
    if parts.extra:
        x = expand_dims(x, parts.extra)
    if out_sharding is None:
        return _read(x, parts, _READ_MODES[mode], fill_value, None)
    shape = parts.sizes(x.aval.shape)
    return made(
        "get", shape, lambda sharding: _read(x, parts, _READ_MODES[mode], fill_value, sharding), None, out_sharding
    )


def _read(x: Any, parts: Parts, mode: str, fill: Any, sharding: NamedSharding | None) -> Any:
    """`sharding`: of the result, or None where the operand's decides."""
    if parts.picked and 0 in parts.sizes(x.aval.shape):
        return _nothing(x.aval, parts, sharding)
    parts, beyond = _in_bounds(x.aval.shape, parts, mode)
    if beyond:
        parts = _as_places(parts, beyond)
    fixed = dict(parts.fixed)
    cuts = tuple(Cut(fixed[d], 1, 1) if d in fixed else c for d, c in enumerate(parts.cuts))
    x = cut(x, cuts, sharding is not None)
    scalars = bool(parts.picked) and INDEX not in parts.order and mode != "fill" and sharding is None
    gone = sorted(fixed)
    if scalars:
        starts = dict(zip(parts.picked, parts.places))
        x = apply([_window_step(aval_of(x).shape, starts, dict.fromkeys(starts, 1))], x)
        gone = sorted([*gone, *starts])
    if gone:
        x = squeeze(x, dimensions=tuple(gone))
    if parts.picked and not scalars:
        kept = [d for d in range(len(cuts)) if d not in fixed]
        dims = tuple(kept.index(d) for d in parts.picked)
        rest = [d for d in kept if d not in parts.picked]
        target = None if sharding is None else _before_order(sharding, parts, rest)
        x = gather(x, *parts.places, dims=dims, batch_dims=0, mode=mode, fill_value=_host(fill), out_sharding=target)
    x = _in_order(x, parts)
    if sharding is not None and aval_of(x).sharding is not sharding:
        x = reshard(x, dst_sharding=sharding)
    return x


def _nothing(aval: ShapedArray, parts: Parts, sharding: NamedSharding | None) -> Any:
    """What index arrays without elements read: nothing, in the sharding of the dims that are not indexed."""
    shape = parts.sizes(aval.shape)
    mesh = aval.sharding.mesh
    if sharding is None and not mesh.empty:
        sharding = NamedSharding(mesh, spec_from(entries_at(aval, parts)))
    return full_of(ShapedArray(shape, aval.dtype, aval.weak_type, sharding), 0)


def entries_at(aval: ShapedArray, parts: Parts) -> list[tuple[str, ...]]:
    """The axes of the elements at an index, per dim of the result: those of dims that are not indexed."""
    out: list[tuple[str, ...]] = []
    for token in parts.order:
        if token == INDEX:
            out.extend([()] * len(parts.shape))
        else:
            out.append(() if token is None or parts.cuts[token] is not None else aval.dims[token])
    return out


def _in_bounds(shape: Sequence[int], parts: Parts, mode: str) -> tuple[Parts, list[int]]:
    """Static numbers at the edge where they are beyond it; in mode 'fill', the dims at which they are beyond."""
    if all(0 <= i < shape[d] for d, i in parts.fixed):
        return parts, []
    if mode == "fill":
        return parts, [d for d, i in parts.fixed if not 0 <= i < shape[d]]
    return parts._replace(fixed=tuple((d, min(max(i, 0), shape[d] - 1)) for d, i in parts.fixed)), []


def _as_places(parts: Parts, dims: Sequence[int]) -> Parts:
    """Static numbers at `dims` as index arrays of the common shape."""
    more = [(d, np.full(parts.shape, min(max(i, -1), 2**31 - 1), np.int32)) for d, i in parts.fixed if d in dims]
    return parts._replace(
        fixed=tuple(f for f in parts.fixed if f[0] not in dims),
        picked=(*parts.picked, *(d for d, _ in more)),
        places=(*parts.places, *(i for _, i in more)),
    )


def _host(fill: Any) -> Any:
    """A fill value as a number that can be a parameter."""
    return fill if fill is None else np.asarray(fill)[()]


# -- slices --------------------------------------------------------------------------------------------

Step = tuple[Any, tuple[Any, ...], dict[str, Any]]  # an op, its other operands, its parameters


def apply(steps: Sequence[Step], x: Any) -> Any:
    for op, args, params in steps:
        x = op(x, *args, **params)
    return x


def cut(x: Any, cuts: Sequence[Cut | None], any_sharding: bool = False) -> Any:
    """What slices leave of an array.  With `any_sharding`, dims that do not divide afterwards become unsharded."""
    if any_sharding:
        x, cuts = _unshard_cut(x, cuts)
    return apply(_cut_steps(aval_of(x), cuts), x)


def _cut_steps(aval: ShapedArray, cuts: Sequence[Cut | None]) -> list[Step]:
    if all(c is None for c in cuts):
        return []
    steps: list[Step] = []
    shape, dims = aval.shape, dims_of(aval)
    low = [0 if c is None else c.start if c.step > 0 else c.start + (c.count - 1) * c.step for c in cuts]
    counts = [n if c is None else c.count for c, n in zip(cuts, shape)]
    strides = [1 if c is None else abs(c.step) for c in cuts]
    cutting = [d for d, (n, m) in enumerate(zip(shape, counts)) if n != m]
    if cutting and is_evaluating() and all(strides[d] == 1 and not dims[d] and counts[d] for d in cutting):
        # one prepared program for all places, as loops over rows want it
        starts = {d: np.int32(low[d]) if shape[d] < 2**31 else np.int64(low[d]) for d in cutting}
        steps.append(_window_step(shape, starts, {d: counts[d] for d in cutting}))
    elif cutting:
        limits = tuple(lo + (m - 1) * step + 1 if m else lo for lo, m, step in zip(low, counts, strides))
        params = {
            "start_indices": tuple(low),
            "limit_indices": limits,
            "strides": tuple(strides) if any(s != 1 for s in strides) else None,
        }
        steps.append((slice_, (), params))
    back = tuple(d for d, c in enumerate(cuts) if c is not None and c.step < 0)
    if back:
        steps.append((rev, (), {"dimensions": back}))
    return steps


def _window_step(shape: Sequence[int], starts: dict[int, Any], sizes: dict[int, int]) -> Step:
    """A dynamic slice that cuts only some dims."""
    zero = np.int32(0)
    at = tuple(starts.get(d, zero) for d in range(len(shape)))
    return dynamic_slice, at, {"slice_sizes": tuple(sizes.get(d, n) for d, n in enumerate(shape))}


_prepared: dict[Any, tuple[Step, ...]] = {}


def read_static(x: Any, index: Any) -> Any:
    """`x[index]`; an index of numbers, slices, None and ellipses alone is taken apart once for each type."""
    key = _static_key(index)
    if key is None:
        return read(x, index)
    key = (x.aval, key, is_evaluating())
    steps = _prepared.get(key)
    if steps is None:
        if len(_prepared) >= 4096:
            _prepared.clear()
        _prepared[key] = steps = tuple(_static_steps(x.aval, parts_of(x.aval, index)))
    return apply(steps, x)


def _static_key(index: Any) -> Any:
    key: list[Any] = []
    for i in index if type(index) is tuple else (index,):
        if type(i) is int or i is None or i is Ellipsis:
            key.append(i)
        elif type(i) is slice and all(v is None or type(v) is int for v in (i.start, i.stop, i.step)):
            key.append((i.start, i.stop, i.step))
        else:
            return None
    return tuple(key)


def _static_steps(aval: ShapedArray, parts: Parts) -> list[Step]:
    parts, _ = _in_bounds(aval.shape, parts, "clip")
    fixed = dict(parts.fixed)
    steps = _cut_steps(aval, tuple(Cut(fixed[d], 1, 1) if d in fixed else c for d, c in enumerate(parts.cuts)))
    if fixed:
        steps.append((squeeze, (), {"dimensions": tuple(sorted(fixed))}))
    new = new_dims(parts)
    if new:
        steps.append((expand_dims, (new,), {}))
    return steps


def _unshard_cut(x: Any, cuts: Sequence[Cut | None]) -> tuple[Any, tuple[Cut | None, ...]]:
    """Cut the dims whose results do not divide, by reading at the numbers of the rows: only these move."""
    left = list(cuts)
    for d, c in enumerate(cuts):
        aval = aval_of(x)
        axes = dims_of(aval)[d]
        if c is None or not axes or c.count % axes_size(aval.sharding.mesh, axes) == 0:
            continue
        rows = np.arange(c.start, c.start + c.count * c.step, c.step, dtype=np.int64)
        rows = rows.astype(np.int32) if aval.shape[d] < 2**31 else rows
        entries = [e for k, e in enumerate(dims_of(aval)) if k != d]
        target = NamedSharding(aval.sharding.mesh, spec_from([(), *entries]))
        x = gather(x, rows, dims=(d,), batch_dims=0, mode="clip", fill_value=None, out_sharding=target)
        x = transpose(x, permutation=(*range(1, d + 1), 0, *range(d + 1, aval.ndim)))
        left[d] = None
    return x, tuple(left)


# -- the result's dims -----------------------------------------------------------------------------------


def gathered_dims(parts: Parts, rest: Sequence[int]) -> list[int]:
    """For each dim of the result that is not new, its place among the dims of the index arrays and `rest`."""
    n = len(parts.shape)
    out: list[int] = []
    for token in parts.order:
        if token == INDEX:
            out.extend(range(n))
        elif token is not None:
            out.append(n + rest.index(token))
    return out


def new_dims(parts: Parts) -> tuple[int, ...]:
    """The places of new dims in the result."""
    out, at = [], 0
    for token in parts.order:
        if token is None:
            out.append(at)
        at += len(parts.shape) if token == INDEX else 1
    return tuple(out)


def _in_order(x: Any, parts: Parts) -> Any:
    """Index dims followed by the rest, brought in the result's order."""
    permutation = gathered_dims(parts, parts.rest())
    if permutation != sorted(permutation):
        x = transpose(x, permutation=tuple(permutation))
    new = new_dims(parts)
    return expand_dims(x, new) if new else x


def _before_order(sharding: NamedSharding, parts: Parts, rest: Sequence[int]) -> NamedSharding:
    """The sharding that a gather's result must have to end up with the one that is wanted."""
    new = new_dims(parts)
    wanted = [axes for d, axes in enumerate(sharding.spec.dims) if d not in new]
    dims: list[tuple[str, ...]] = [()] * len(wanted)
    for axes, place in zip(wanted, gathered_dims(parts, rest)):
        dims[place] = axes
    return NamedSharding(sharding.mesh, spec_from(dims))
