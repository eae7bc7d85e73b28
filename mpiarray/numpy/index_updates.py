"""Writing at indices: `x.at[index].set(v)`, add, mul, min, max.

Slices cut a box out of the array, index arrays scatter into the box, and the box is put back.  Updates first get the
shape and sharding of the elements that they meet.

A dim that is sharded over Explicit axes can be indexed with `out_sharding` only: its slices become index arrays then,
and every rank writes what belongs to its rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.plan import dims_of, spec_from
from mpiarray.core.trace import Tracer
from mpiarray.core.value import Value, aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.numpy.arithmetic import add as add_numbers
from mpiarray.numpy.arithmetic import multiply, negative
from mpiarray.numpy.choices import maximum, minimum, where_op
from mpiarray.numpy.creation import asarray
from mpiarray.numpy.index_parts import Cut, Parts, is_mask, parts_of
from mpiarray.numpy.index_reads import cut, entries_at, gathered_dims, new_dims
from mpiarray.numpy.placing import made
from mpiarray.numpy.promotion import cast, promote_dtypes
from mpiarray.ops.boxes import explicit_axes
from mpiarray.ops.common import const_like
from mpiarray.ops.gather import scatter
from mpiarray.ops.linear import broadcast_in_dim, expand_dims, full_of, squeeze, transpose
from mpiarray.ops.placement import reshard
from mpiarray.ops.select import select_n
from mpiarray.ops.shape import rev
from mpiarray.ops.slicing import dynamic_update_slice, pad
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

_WRITE_MODES = {None: "fill", "fill": "fill", "drop": "fill", "clip": "clip", "promise_in_bounds": "fill"}
_COMBINE = {
    "set": lambda old, new: new,
    "add": add_numbers,
    "mul": multiply,
    "min": minimum,
    "max": maximum,
}


def write(
    x: Any,
    index: Any,
    values: Any,
    combine: str,
    mode: str | None = None,
    out_sharding: Any = None,
    wrap: bool = True,
) -> Any:
    """A copy of `x` with `values` combined into the elements at `index`; see `indexing.AtIndex`."""
    if mode not in _WRITE_MODES:
        raise ValueError(f'Unknown scatter mode "{mode}": it must be one of {", ".join(map(repr, _WRITE_MODES))}')
    aval = x.aval
    values = asarray(values) if isinstance(values, (list, tuple)) else values
    _warn_unsafe(aval, values)
    x, values = promote_dtypes(x, values)
    name = {"set": "scatter", "sub": "sub"}.get(combine, combine)
    if combine in ("add", "sub", "mul") and dtypes.is_bool(aval_of(x).dtype):
        raise TypeError(
            f"{name} does not accept dtype bool: `.at[...]` of {aval.str_short()}; use `set`, `min` or `max`"
        )
    if combine == "sub":
        values, combine = negative(values), "add"
    if is_mask(index) and _can_choose(aval, index, values, out_sharding is not None):
        return made("scatter", aval.shape, lambda s: _chosen(x, aval, index, values, combine, s), None, out_sharding)
    parts = parts_of(aval, index, wrap)
    write_mode = _WRITE_MODES[mode]
    if out_sharding is None:
        return cast(_write(x, parts, values, combine, write_mode, None), aval.dtype, aval.weak_type)

    def make(sharding: NamedSharding | None) -> Any:
        return cast(_write(x, parts, values, combine, write_mode, sharding), aval.dtype, aval.weak_type)

    return made("scatter", aval.shape, make, None, out_sharding)


def _warn_unsafe(x: ShapedArray, values: Any) -> None:
    own = values if dtypes.is_python_scalar(values) else (aval_of(values).dtype, aval_of(values).weak_type)
    if dtypes.result_type((x.dtype, x.weak_type), own) != x.dtype:
        given = dtypes.dtype_of(values)[0] if dtypes.is_python_scalar(values) else aval_of(values).dtype
        warnings.warn(
            "scatter inputs have incompatible types: cannot safely cast value from "
            f"dtype={dtypes.name(given)} to dtype={dtypes.name(x.dtype)}. "
            "In future JAX releases this will result in an error.",
            FutureWarning,
            stacklevel=5,
        )


def _can_choose(x: ShapedArray, mask: Value, values: Any, any_sharding: bool) -> bool:
    """Whether an update by a mask is a choice: one number for all elements, and sharded dims only where that is allowed.

    It needs no value of the mask; tracers are refused all the same, as with other updates.
    """
    same = mask.aval.shape == x.shape and not isinstance(mask, Tracer) and not aval_of(values).ndim
    sharded = any(explicit_axes(a.sharding.mesh, axes) for a in (x, mask.aval) for axes in a.dims)
    return same and (any_sharding or not sharded)


def _chosen(x: Any, aval: ShapedArray, mask: Any, value: Any, combine: str, sharding: NamedSharding | None) -> Any:
    if sharding is not None:
        x, mask = (v if aval_of(v).dims == sharding.spec.dims else reshard(v, dst_sharding=sharding) for v in (x, mask))
    new = _COMBINE[combine](x, cast(value, aval_of(x).dtype, aval_of(x).weak_type))
    return cast(where_op(mask, new, x), aval.dtype, aval.weak_type)


def _write(x: Any, parts: Parts, values: Any, combine: str, mode: str, sharding: NamedSharding | None) -> Any:
    """`sharding`: of the result, or None where it is the operand's."""
    if sharding is not None and dims_of(aval_of(x)) != sharding.spec.dims:
        x = reshard(x, dst_sharding=sharding)
    whole = x
    if parts.extra:
        x = expand_dims(x, parts.extra)
    aval = aval_of(x)
    if sharding is None:
        _check_unsharded(aval, parts, values)
    parts, dropped = _in_bounds(aval.shape, parts, mode)
    values = _spread(values, parts.sizes(aval.shape), entries_at(aval, parts), aval, sharding is not None)
    if dropped or not aval_of(values).size:
        return whole
    values, parts = _as_box(values, parts, aval)
    if sharding is not None:
        parts, values = _rows_of_sharded(parts, values, aval)
    cuts = parts.cuts
    box = cut(x, cuts)
    if parts.picked:
        target = None if sharding is None else aval_of(box).sharding
        box = scatter(
            box, values, *parts.places, dims=parts.picked, batch_dims=0, mode=mode, combine=combine, out_sharding=target
        )
    else:
        box = _COMBINE[combine](box, values)
    out = box if box is x or all(c is None for c in cuts) else _put_back(x, box, cuts)
    return squeeze(out, dimensions=parts.extra) if parts.extra else out


# -- checks ---------------------------------------------------------------------------------------------


def _check_unsharded(aval: ShapedArray, parts: Parts, values: Any) -> None:
    """Raise ShardingTypeError where a dim that Explicit axes shard is indexed."""
    mesh = aval.sharding.mesh
    touched = [*(d for d, c in enumerate(parts.cuts) if c is not None), *(d for d, _ in parts.fixed), *parts.picked]
    for d in touched:
        if explicit_axes(mesh, aval.dims[d]):
            raise ShardingTypeError(
                "Use `.at[...].set/add/mul/...(out_sharding=)` to provide output PartitionSpec for the scatter update "
                "as out sharding could not be resolved unambiguously (or would require collectives on inputs): dim "
                f"{d} of the operand is indexed and sharded. Got operand={aval.short()}, "
                f"updates={aval_of(values).short()}"
            )


def _in_bounds(shape: Sequence[int], parts: Parts, mode: str) -> tuple[Parts, bool]:
    """Static numbers in bounds; True when one is not and the update is therefore left out."""
    if all(0 <= i < shape[d] for d, i in parts.fixed):
        return parts, False
    if mode == "fill":
        return parts, True
    return parts._replace(fixed=tuple((d, min(max(i, 0), shape[d] - 1)) for d, i in parts.fixed)), False


# -- updates ---------------------------------------------------------------------------------------------


def _spread(
    values: Any, shape: tuple[int, ...], entries: Sequence[tuple[str, ...]], like: ShapedArray, any_sharding: bool
) -> Any:
    """Updates in the shape and sharding of what they update."""
    own = aval_of(values)
    missing = len(shape) - own.ndim
    fits = missing >= 0 and all(n in (1, m) for n, m in zip(own.shape, shape[missing:]))
    mesh = like.sharding.mesh
    sharding = None if mesh.empty else NamedSharding(mesh, spec_from(entries))
    if fits and not any_sharding:
        pairs = zip(own.dims, entries[missing:])
        fits = all(not explicit_axes(mesh, a) or a == b for a, b in pairs) if not own.sharding.mesh.empty else True
    if not fits:
        wanted = ShapedArray(shape, own.dtype, sharding=sharding)
        raise ValueError(
            f"Incompatible types for broadcasting: input type={own.str_short()} and requested "
            f"type={wanted.str_short()}, in an update of {like.str_short()}"
        )
    if own.shape == shape and (sharding is None or own.dims == tuple(entries)):
        return values
    if any_sharding and own.ndim and any(own.dims):
        values = reshard(values, dst_sharding=NamedSharding(mesh, spec_from(((),) * own.ndim)))
    return broadcast_in_dim(
        values, shape=shape, broadcast_dimensions=tuple(range(missing, len(shape))), sharding=sharding
    )


def _as_box(values: Any, parts: Parts, aval: ShapedArray) -> tuple[Any, Parts]:
    """Updates in the order of a scatter into the box: index dims, then the operand's other dims; numbers as cuts."""
    new = new_dims(parts)
    if new:
        values = squeeze(values, dimensions=new)
    rest = parts.rest()
    permutation = gathered_dims(parts, rest)
    if permutation != sorted(permutation):
        values = transpose(values, permutation=tuple(int(k) for k in np.argsort(permutation)))
    n = len(parts.shape)
    back = tuple(n + k for k, d in enumerate(rest) if (c := parts.cuts[d]) is not None and c.step < 0)
    if back:
        values = rev(values, dimensions=back)
    fixed = dict(parts.fixed)
    cuts = tuple(Cut(fixed[d], 1, 1) if d in fixed else _forward(c) for d, c in enumerate(parts.cuts))
    boxed = [d for d in range(aval.ndim) if d not in parts.picked]
    if fixed:
        values = expand_dims(values, tuple(n + boxed.index(d) for d in fixed))
    return values, parts._replace(cuts=cuts, fixed=())


def _forward(c: Cut | None) -> Cut | None:
    return c if c is None or c.step > 0 else Cut(c.start + (c.count - 1) * c.step, c.count, -c.step)


def _rows_of_sharded(parts: Parts, values: Any, aval: ShapedArray) -> tuple[Parts, Any]:
    """Cuts of sharded dims as index arrays, whose dims come after those of the other index arrays."""
    cutting = [d for d, c in enumerate(parts.cuts) if c is not None and aval.dims[d]]
    if not cutting:
        return parts, values
    n = len(parts.shape)
    boxed = [d for d in range(aval.ndim) if d not in parts.picked]
    first = [n + boxed.index(d) for d in cutting]
    others = [n + k for k in range(len(boxed)) if n + k not in first]
    values = transpose(values, permutation=(*range(n), *first, *others))
    counts = tuple(parts.cuts[d].count for d in cutting)  # type: ignore[union-attr]
    shape = (*parts.shape, *counts)
    places = [
        broadcast_in_dim(i, shape=shape, broadcast_dimensions=tuple(range(n)), sharding=None) for i in parts.places
    ]
    for k, d in enumerate(cutting):
        c = parts.cuts[d]
        assert c is not None, "only cuts were chosen"
        line = np.arange(c.start, c.start + c.count * c.step, c.step)
        line = line.astype(np.int32 if aval.shape[d] < 2**31 else np.int64)
        line = line.reshape((-1,) + (1,) * (len(counts) - k - 1))
        places.append(np.broadcast_to(line, shape))
    cuts = tuple(None if d in cutting else c for d, c in enumerate(parts.cuts))
    return parts._replace(cuts=cuts, picked=(*parts.picked, *cutting), places=tuple(places), shape=shape), values


# -- the box back -----------------------------------------------------------------------------------------


def _put_back(x: Any, box: Any, cuts: Sequence[Cut | None]) -> Any:
    """`x` with a box, cut out by forward cuts, replaced."""
    aval = aval_of(x)
    if all(c is None or c.step == 1 or c.count == 1 for c in cuts):
        starts = (0 if c is None else c.start for c in cuts)
        return dynamic_update_slice(x, box, *(np.int32(s) if s < 2**31 else np.int64(s) for s in starts))
    config = tuple((0, 0, 0) if c is None else _padding(c, n) for c, n in zip(cuts, aval.shape))
    inside = full_of(aval_of(box).update(dtype=np.dtype(np.bool_), weak_type=False), True)
    mask = pad(inside, np.bool_(False), padding_config=config)
    return select_n(mask, x, pad(box, const_like(box, 0), padding_config=config))


def _padding(c: Cut, n: int) -> tuple[int, int, int]:
    return c.start, n - (c.start + (c.count - 1) * c.step + 1), c.step - 1
