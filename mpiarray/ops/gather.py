"""gather and scatter: reading and writing at index arrays.  Our own records, in numpy's terms, not XLA's.

    gather(operand, *indices, dims, batch_dims, mode, fill_value, out_sharding)

`indices` are integer arrays of one shape S, one for each operand dim of `dims`.  The leading `batch_dims` dims of the
operand and of S are aligned.  The result has the shape S + the operand's remaining dims, in their order:

    result[s, r] = operand[s[:batch_dims], indices[0][s], indices[1][s], ..., r]

    scatter(operand, updates, *indices, dims, batch_dims, mode, combine, out_sharding)

writes updates of that shape at these places, in the order of S.  `combine` is 'set' (the last one wins), 'add', 'mul',
'min' or 'max' (all that meet at one place are combined).

Indices are not counted from the end; outside of the operand they follow `mode`: 'clip' moves them to the edge; 'fill'
reads `fill_value` and drops writes; 'promise_in_bounds' is clip for reads and fill for writes.

Along sharded indexed dims (with `out_sharding`, or Auto axes) rows come from, or go to, the ranks that own them
(`ops.owners`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import NONE, Linear, Op, Out, PartialSums, Undefined, Zero, define, refuse
from mpiarray.core.plan import Dims, Plan, axes_size, dims_of, mesh_order, spec_from
from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.arithmetic import div, mul
from mpiarray.ops.boxes import explicit_axes
from mpiarray.ops.common import BatchAxis, check_kind
from mpiarray.ops.comparison import eq
from mpiarray.ops.indexed import last_writers as find_last_writers
from mpiarray.ops.indexed import other_factors, put, take
from mpiarray.ops.linear import (
    add_any,
    batch_to,
    broadcast_in_dim,
    convert_element_type,
    full_of,
    instantiate,
    move_dim,
    sharding_of,
    tangent_aval,
    with_batch_entry,
    zero_jvp,
)
from mpiarray.ops.owners import (
    FetchRows,
    OwnedGather,
    OwnedScatter,
    SendRows,
    default_fill,
    rest_dims,
    result_shape,
)
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

MODES = ("clip", "fill", "promise_in_bounds")
COMBINE = ("set", "add", "mul", "min", "max")


# -- types -----------------------------------------------------------------------------------------


def operand_type(x: Any) -> ShapedArray:
    """The type of an operand of a transpose rule, linear or not."""
    return x.aval if isinstance(x, Linear) else aval_of(x)


def _check(name: str, x: ShapedArray, indices: Sequence[ShapedArray], dims: tuple[int, ...], b: int, mode: str) -> None:
    shown = f"operand {x.str_short()}, indices {', '.join(i.str_short() for i in indices)}, dims={dims}, batch_dims={b}"
    if not indices or len(indices) != len(dims):
        raise TypeError(f"{name}: needs one index array per indexed dim, got {shown}")
    if len(set(dims)) != len(dims) or any(not b <= d < x.ndim for d in dims):
        raise TypeError(f"{name}: dims must be distinct dims of the operand after its batch dims, got {shown}")
    for i in indices:
        check_kind(f"{name} index", i.dtype, "i")
        if i.shape != indices[0].shape:
            raise TypeError(f"{name}: index arrays must have one shape, got {shown}")
    if indices[0].shape[:b] != x.shape[:b] or b > indices[0].ndim:
        raise TypeError(f"{name}: the leading batch dims of operand and indices must be equal, got {shown}")
    if mode not in MODES:
        raise ValueError(f"{name}: mode must be one of {MODES}, got {mode!r}")


def _gather_type(
    x: ShapedArray,
    *indices: ShapedArray,
    dims: tuple[int, ...],
    batch_dims: int,
    mode: str,
    fill_value: Any,
    out_sharding: NamedSharding | None,
) -> Out:
    _check("gather", x, indices, dims, batch_dims, mode)
    return Out(result_shape(x, indices[0].shape, dims, batch_dims), x.dtype, x.weak_type)


def _scatter_type(
    x: ShapedArray,
    updates: ShapedArray,
    *indices: ShapedArray,
    dims: tuple[int, ...],
    batch_dims: int,
    mode: str,
    combine: str,
    out_sharding: NamedSharding | None,
) -> Out:
    _check("scatter", x, indices, dims, batch_dims, mode)
    shape = result_shape(x, indices[0].shape, dims, batch_dims)
    if updates.shape != shape or updates.dtype != x.dtype:
        raise TypeError(
            f"scatter: updates must have the shape {shape} of the places that indices select and the operand's dtype, "
            f"got updates {updates.str_short()} for operand {x.str_short()}"
        )
    if combine not in COMBINE:
        raise ValueError(f"scatter: combine must be one of {COMBINE}, got {combine!r}")
    return Out(x.shape, x.dtype, x.weak_type and updates.weak_type)


# -- plans -----------------------------------------------------------------------------------------


def _agreed(arrays: Sequence[Dims], d: int) -> tuple[str, ...]:
    """The axes of the first operand that shards dim d."""
    return next((dims[d] for dims in arrays if dims[d]), ())


def _conflict(mesh: Any, arrays: Sequence[Dims], d: int) -> bool:
    return len({dims[d] for dims in arrays if explicit_axes(mesh, dims[d])}) > 1


class _Layout:
    """Gives axes to dims, each axis once; whoever asks first keeps it."""

    def __init__(self, mesh: Any, used: Sequence[str] = ()):
        self.mesh = mesh
        self.used = set(used)

    def give(self, size: int, *wishes: Sequence[str]) -> tuple[str, ...]:
        for axes in wishes:
            if axes and not self.used & set(axes) and size % axes_size(self.mesh, axes) == 0:
                self.used |= set(axes)
                return tuple(axes)
        return ()


def _spread_dim(
    mesh: Any, shape: tuple[int, ...], owners: Sequence[str], layouts: Sequence[Dims], b: int
) -> int | None:
    """The index dim that is, or is to be, sharded over just the owners' axes: each rank then has its own places."""
    if not owners:
        return None
    for d in range(b, len(shape)):
        if shape[d] % axes_size(mesh, owners) == 0 and any(set(dims[d]) == set(owners) for dims in layouts):
            return d
    return None


def _gather_plan(
    avals: tuple[ShapedArray, ...],
    *,
    dims: tuple[int, ...],
    batch_dims: int,
    mode: str,
    fill_value: Any,
    out_sharding: NamedSharding | None,
) -> Plan:
    x, *indices = avals
    mesh = x.sharding.mesh if out_sharding is None else out_sharding.mesh
    own, others = dims_of(x), [dims_of(i) for i in indices]
    rest, b, n_index = rest_dims(x.ndim, dims, batch_dims), batch_dims, indices[0].ndim
    if out_sharding is None:
        _check_gather(x, indices, dims, b)
    result = () if out_sharding is None else (out_sharding.spec.padded(n_index + len(rest)),)
    wanted = result[0].dims if result else ((),) * (n_index + len(rest))
    owners = tuple(a for d in dims for a in own[d])
    layout = _Layout(mesh, owners)
    batch = [layout.give(x.shape[d], own[d], _agreed(others, d), wanted[d]) for d in range(b)]
    tail = [layout.give(x.shape[d], own[d], wanted[n_index + k]) for k, d in enumerate(rest)]
    shape = indices[0].shape
    spread = _spread_dim(mesh, shape, owners, [*others, wanted], b)
    index = [layout.give(shape[d], _agreed(others, d), wanted[d]) for d in range(b, n_index)]
    if spread is not None:
        index[spread - b] = wanted[spread] if set(wanted[spread]) == set(owners) else owners
    placed: list[tuple[str, ...]] = [*batch, *((),) * (x.ndim - b)]
    for d, axes in zip(rest, tail):
        placed[d] = axes
    for d in dims:
        placed[d] = own[d]
    outs = [*batch, *index, *tail]
    ins = (spec_from(placed), *(spec_from([*batch, *index]) for _ in indices))
    if not owners:
        return Plan(ins, (spec_from(outs),), (), result, {"out_sharding": None})
    axes_of_dims = tuple(own[d] for d in dims)
    if spread is not None:
        return Plan(ins, (spec_from(outs),), (), result, local=FetchRows(axes_of_dims))
    routes = OwnedGather(axes_of_dims, *_reduction(x, outs, wanted, owners, mesh))
    return Plan(ins, (spec_from(routes.outs),), (), result, local=routes)


def _check_gather(x: ShapedArray, indices: Sequence[ShapedArray], dims: Sequence[int], b: int) -> None:
    """Without `out_sharding`: no Explicit axis may shard an indexed dim or a dim of the index arrays."""
    mesh = x.sharding.mesh
    own, others = dims_of(x), [dims_of(i) for i in indices]
    blocked = [d for d in dims if explicit_axes(mesh, own[d])]
    sharded = [i for i in indices if any(explicit_axes(mesh, axes) for axes in dims_of(i)[b:])]
    if blocked or sharded or any(_conflict(mesh, [own, *others], d) for d in range(b)):
        why = f"dim {blocked[0]} of the operand is indexed and sharded" if blocked else "an index array is sharded"
        raise ShardingTypeError(
            "Use `.at[...].get(out_sharding=)` to provide output PartitionSpec for the gather indexing as out sharding "
            f"could not be resolved unambiguously: {why}. Got operand={x.short()}, indices="
            f"{', '.join(i.short() for i in indices)}, indexed dims {tuple(dims)}."
        )


def _reduction(
    x: ShapedArray, outs: list[tuple[str, ...]], wanted: Dims, owners: tuple[str, ...], mesh: Any
) -> tuple[Dims, tuple[tuple[tuple[str, ...], int], ...], tuple[str, ...]]:
    """How the owners' parts become the result: (dims after it, reduce-scatters as (axes, dim), axes to sum over)."""
    left, scatters = set(owners), []
    outs = list(outs)
    if not dtypes.is_bool(x.dtype):
        for d, axes in enumerate(wanted):
            if axes and not outs[d] and left >= set(axes):
                scatters.append((axes, d))
                outs[d] = axes
                left -= set(axes)
    return tuple(outs), tuple(scatters), mesh_order(mesh, left)


def _scatter_plan(
    avals: tuple[ShapedArray, ...],
    *,
    dims: tuple[int, ...],
    batch_dims: int,
    mode: str,
    combine: str,
    out_sharding: NamedSharding | None,
) -> Plan:
    x, updates, *indices = avals
    mesh = x.sharding.mesh if out_sharding is None else out_sharding.mesh
    if out_sharding is None:
        _check_scatter(x, updates, indices, dims, batch_dims)
    result = () if out_sharding is None else (out_sharding.spec.padded(x.ndim),)
    outs = result[0].dims if result else dims_of(x)
    rest = rest_dims(x.ndim, dims, batch_dims)
    owners = tuple(outs[d] for d in dims)
    layout = _Layout(mesh, [a for axes in outs for a in axes])
    given = [dims_of(i) for i in (updates, *indices)]
    worth = combine == "add" and updates.size > 2 * x.size  # else gather the updates
    index = [layout.give(n, _agreed(given, d)) if worth else () for d, n in enumerate(indices[0].shape)][batch_dims:]
    batch, tail = outs[:batch_dims], [outs[d] for d in rest]
    summed = tuple(a for axes in index for a in axes)
    entry = None if summed else _own_places(mesh, indices[0].shape, owners, given, batch_dims, combine)
    if entry is not None:
        index[entry[0] - batch_dims] = entry[1]
    places = spec_from([*batch, *index])
    ins = (spec_from(outs), spec_from([*batch, *index, *tail]), *(places for _ in indices))
    if not any(owners) and not summed:
        return Plan(ins, (spec_from(outs),), (), result, {"out_sharding": None})
    local = OwnedScatter(owners, mesh_order(mesh, summed)) if entry is None else SendRows(owners)
    return Plan(ins, (spec_from(outs),), (), result, local=local)


def _own_places(
    mesh: Any, shape: tuple[int, ...], owners: Dims, given: Sequence[Dims], b: int, combine: str
) -> tuple[int, tuple[str, ...]] | None:
    """The index dim that updates or indices spread over just the owners' axes, and its entry, if rows can be exchanged.

    They arrive in the order of the ranks. That is the order of the places, which decides who is last, if the first dim
    is spread in the owners' order.
    """
    axes = tuple(a for entry in owners for a in entry)
    d = _spread_dim(mesh, shape, axes, given, b)
    if d is None:
        return None
    entry = next(dims[d] for dims in given if set(dims[d]) == set(axes))
    return (d, entry) if combine != "set" or (d == b and entry == axes) else None


def _check_scatter(
    x: ShapedArray, updates: ShapedArray, indices: Sequence[ShapedArray], dims: Sequence[int], b: int
) -> None:
    mesh = x.sharding.mesh
    own, new, n_index = dims_of(x), dims_of(updates), indices[0].ndim
    rest = rest_dims(x.ndim, dims, b)
    expected = [*own[:b], *((),) * (n_index - b), *(own[d] for d in rest)]
    wrong = (
        any(explicit_axes(mesh, own[d]) for d in dims)
        or any(explicit_axes(mesh, axes) for i in indices for axes in dims_of(i)[b:])
        or any(_conflict(mesh, [own, *(dims_of(i) for i in indices)], d) for d in range(b))
        or any(axes and explicit_axes(mesh, axes) != explicit_axes(mesh, e) for axes, e in zip(new, expected))
    )
    if wrong:
        raise ShardingTypeError(
            "Use `.at[...].set/add/mul/...(out_sharding=)` to provide output PartitionSpec for the scatter update as "
            "out sharding could not be resolved unambiguously (or would require collectives on inputs). Got "
            f"operand={x.short()}, updates={updates.short()}, indices={', '.join(i.short() for i in indices)}, indexed "
            f"dims {tuple(dims)}."
        )


# -- gather ----------------------------------------------------------------------------------------


def _gather_impl(x: Any, *indices: Any, dims: Any, batch_dims: int, mode: str, fill_value: Any, **_: Any) -> np.ndarray:
    fill = default_fill(x.dtype) if fill_value is None else fill_value
    return take(x, indices, dims, batch_dims, "fill" if mode == "fill" else "clip", fill)


def _gather_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = op(*primals, **params)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, op(tangents[0], *primals[1:], **params | {"fill_value": 0})


def _gather_transpose(
    op: Op, ct: Any, x: Linear, *indices: Any, dims: Any, batch_dims: int, mode: str, fill_value: Any, out_sharding: Any
) -> list[Any]:
    into = full_of(x.aval, 0)
    where = None if out_sharding is None else sharding_of(x.aval)
    # a clipped read is written back to the edge it came from
    write = "fill" if mode == "fill" else "clip"
    total = scatter(into, ct, *indices, dims=dims, batch_dims=batch_dims, mode=write, combine="add", out_sharding=where)
    return [total, *(None for _ in indices)]


def _gather_batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    bdims: Sequence[int | None],
    *,
    dims: Any,
    batch_dims: int,
    **params: Any,
) -> tuple[Any, int]:
    (x, *indices), (d, *index_dims) = args, bdims
    shifted = tuple(k + 1 for k in dims)
    out_sharding = params.pop("out_sharding")
    if d is not None and all(i is None for i in index_dims):
        at = aval_of(indices[0]).ndim  # the mapped dim becomes the first of the remaining ones
        x = move_dim(x, d, batch_dims)
        placed = with_batch_entry(out_sharding, axis, at)
        return op(x, *indices, dims=shifted, batch_dims=batch_dims, out_sharding=placed, **params), at
    if d is None:
        indices = [batch_to(i, axis, k, batch_dims) for i, k in zip(indices, index_dims)]
        placed = with_batch_entry(out_sharding, axis, batch_dims)
        if placed is None and axis.spec:
            placed = natural_sharding(x, indices, dims, batch_dims)
        return op(x, *indices, dims=dims, batch_dims=batch_dims, out_sharding=placed, **params), batch_dims
    indices = [batch_to(i, axis, k, 0) for i, k in zip(indices, index_dims)]
    placed = with_batch_entry(out_sharding, axis, 0)
    return op(move_dim(x, d, 0), *indices, dims=shifted, batch_dims=batch_dims + 1, out_sharding=placed, **params), 0


def natural_sharding(x: Any, indices: Sequence[Any], dims: Sequence[int], batch_dims: int) -> NamedSharding | None:
    """What a gather with sharded index arrays gives, said as `out_sharding`."""
    aval, index = aval_of(x), aval_of(indices[0])
    mesh = index.sharding.mesh
    if mesh.empty:
        return None
    batch = [dims_of(aval)[d] or dims_of(index)[d] for d in range(batch_dims)]
    rest = [dims_of(aval)[d] for d in rest_dims(aval.ndim, dims, batch_dims)]
    return NamedSharding(mesh, spec_from([*batch, *dims_of(index)[batch_dims:], *rest]))


def operand_sums(
    op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]
) -> PartialSums:
    """The operand decides; indices are never sums."""
    if sums[0][0] or any(s != NONE for s in sums[1:]):
        return refuse(op, sums, avals, params)
    return sums[0]


gather = define(
    "gather",
    type_rule=_gather_type,
    plan=_gather_plan,
    impl=_gather_impl,
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    batch=_gather_batch,
    partial_sums=operand_sums,
)

# -- scatter ---------------------------------------------------------------------------------------


def _scatter_impl(
    x: Any, updates: Any, *indices: Any, dims: Any, batch_dims: int, mode: str, combine: str, **_: Any
) -> np.ndarray:
    return put(x, updates, indices, dims, batch_dims, write_mode(mode), combine)


def write_mode(mode: str) -> str:
    return "clip" if mode == "clip" else "fill"


def _scatter_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = op(*primals, **params)
    tx, tu = tangents[:2]
    if isinstance(tx, Zero) and isinstance(tu, Zero):
        return out, Zero(tangent_aval(out.aval))
    rule = {"set": _set_tangent, "add": _set_tangent, "mul": _mul_tangent}.get(params["combine"], _extreme_tangent)
    return out, rule(op, out, primals, tx, tu, params)


def _set_tangent(op: Op, out: Any, primals: Sequence[Any], tx: Any, tu: Any, params: dict[str, Any]) -> Any:
    """Linear in both: the same places are written, in the same order."""
    return op(instantiate(tx), instantiate(tu), *primals[2:], **params)


def _mul_tangent(op: Op, out: Any, primals: Sequence[Any], tx: Any, tu: Any, params: dict[str, Any]) -> Any:
    x, updates, *indices = primals
    terms = []
    if not isinstance(tx, Zero):
        terms.append(op(tx, updates, *indices, **params))
    if not isinstance(tu, Zero):
        where = {k: params[k] for k in ("dims", "batch_dims", "mode")}
        others = scatter_factors(x, updates, *indices, **where)
        terms.append(op(full_of(out.aval, 0), mul(tu, others), *indices, **params | {"combine": "add"}))
    return terms[0] if len(terms) == 1 else add_any(*terms)


def _extreme_tangent(op: Op, out: Any, primals: Sequence[Any], tx: Any, tu: Any, params: dict[str, Any]) -> Any:
    """min and max: the tangent of what won, shared equally where several did."""
    x, updates, *indices = primals
    read = {k: params[k] for k in ("dims", "batch_dims", "mode")}
    sharding = None if params["out_sharding"] is None else sharding_of(aval_of(updates))
    won = gather(out, *indices, **read, fill_value=None, out_sharding=sharding)
    add = params | {"combine": "add"}
    x = _like(x, out.aval)
    mine = convert_element_type(eq(x, out), new_dtype=out.aval.dtype, weak_type=False)
    theirs = convert_element_type(eq(updates, won), new_dtype=out.aval.dtype, weak_type=False)
    count = op(mine, theirs, *indices, **add)
    tangent = op(mul(_like(instantiate(tx), out.aval), mine), mul(instantiate(tu), theirs), *indices, **add)
    # a place where nothing equals the result holds NaN
    return div(tangent, count)


def _like(x: Any, aval: ShapedArray) -> Any:
    """`x` moved to the sharding of a type of its shape."""
    if aval_of(x).sharding is aval.sharding or aval.sharding.mesh.empty:
        return x
    return broadcast_in_dim(x, shape=aval.shape, broadcast_dimensions=tuple(range(aval.ndim)), sharding=aval.sharding)


def _scatter_transpose(
    op: Op,
    ct: Any,
    x: Any,
    updates: Any,
    *indices: Any,
    dims: Any,
    batch_dims: int,
    mode: str,
    combine: str,
    out_sharding: Any,
) -> list[Any]:
    if combine in ("min", "max") or (combine == "mul" and isinstance(updates, Linear)):
        raise NotImplementedError(
            f"Transpose rule for 'scatter' with combine={combine!r} is not defined: it is not linear"
        )
    aval, new = operand_type(x), operand_type(updates)
    where = {"dims": dims, "batch_dims": batch_dims, "mode": write_mode(mode)}
    ct_x = ct_updates = None
    if isinstance(x, Linear):
        ct_x = ct
        if combine == "mul":
            ct_x = op(ct, updates, *indices, **where, combine="mul", out_sharding=out_sharding)
        elif combine == "set":
            ct_x = op(ct, full_of(new, 0), *indices, **where, combine="set", out_sharding=out_sharding)
        ct_x = _like(ct_x, aval)
    if isinstance(updates, Linear):
        sharding = None if out_sharding is None else sharding_of(new)
        read = dict(where)
        if combine == "set":  # what was overwritten had no influence
            sizes = (*aval.shape[:batch_dims], *(aval.shape[d] for d in dims))
            indices = last_writers(*indices, sizes=sizes, batch_dims=batch_dims, mode=where["mode"])
            read["mode"] = "fill"
        ct_updates = gather(ct, *indices, **read, fill_value=0, out_sharding=sharding)
    return [ct_x, ct_updates, *(None for _ in indices)]


def _scatter_batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    bdims: Sequence[int | None],
    *,
    dims: Any,
    batch_dims: int,
    **params: Any,
) -> tuple[Any, int]:
    (x, updates, *indices), (d, du, *index_dims) = args, bdims
    shifted = tuple(k + 1 for k in dims)
    out_sharding = params.pop("out_sharding")
    if all(i is None for i in index_dims):
        x = batch_to(x, axis, d, batch_dims)
        updates = batch_to(updates, axis, du, aval_of(indices[0]).ndim)
        placed = with_batch_entry(out_sharding, axis, batch_dims)
        return op(x, updates, *indices, dims=shifted, batch_dims=batch_dims, out_sharding=placed, **params), batch_dims
    x, updates = batch_to(x, axis, d, 0), batch_to(updates, axis, du, 0)
    indices = [batch_to(i, axis, k, 0) for i, k in zip(indices, index_dims)]
    placed = with_batch_entry(out_sharding, axis, 0)
    return op(x, updates, *indices, dims=shifted, batch_dims=batch_dims + 1, out_sharding=placed, **params), 0


def _scatter_sums(
    op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]
) -> PartialSums:
    """Linear in operand and updates together for 'set' and 'add'; the indices are never sums."""
    if params["combine"] not in ("set", "add") or sums[0] != sums[1] or any(s != NONE for s in sums[2:]):
        return refuse(op, sums, avals, params)
    return sums[0]


scatter = define(
    "scatter",
    type_rule=_scatter_type,
    plan=_scatter_plan,
    impl=_scatter_impl,
    jvp=_scatter_jvp,
    transpose=_scatter_transpose,
    batch=_scatter_batch,
    partial_sums=_scatter_sums,
)

# -- what the derivatives of scatter need ----------------------------------------------------------


def _writers_plan(avals: tuple[ShapedArray, ...], *, batch_dims: int, **params: Any) -> Plan:
    """Who is last depends on all index dims but the batch dims: these are brought together, then spread again."""
    dims = dims_of(avals[0])
    whole = spec_from([*dims[:batch_dims], *((),) * (len(dims) - batch_dims)])
    return Plan((whole,) * len(avals), (whole,) * len(avals), (), (spec_from(dims),) * len(avals))


def _writers_impl(*indices: Any, sizes: tuple[int, ...], batch_dims: int, mode: str) -> list[np.ndarray]:
    sizes = (*np.shape(indices[0])[:batch_dims], *sizes[batch_dims:])
    last = find_last_writers(indices, sizes, batch_dims, mode)
    if mode == "clip":
        indices = tuple(np.clip(i, 0, max(n - 1, 0)) for i, n in zip(indices, sizes[batch_dims:]))
    return [np.where(last, i, -1).astype(i.dtype) for i in indices]


def _writers_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], bdims: Sequence[int | None], *, sizes: Any, batch_dims: int, mode: str
) -> tuple[list[Any], list[int]]:
    moved = [batch_to(i, axis, d, 0) for i, d in zip(args, bdims)]
    return op(*moved, sizes=(axis.size, *sizes), batch_dims=batch_dims + 1, mode=mode), [0] * len(moved)


# Signed index arrays in which every place that is not the last write to its element is -1.
last_writers = define(
    "last_writers",
    type_rule=lambda *indices, **params: [Out(i.shape, i.dtype) for i in indices],
    plan=_writers_plan,
    impl=_writers_impl,
    jvp=zero_jvp,
    transpose=Undefined("indices have no derivative"),
    batch=_writers_batch,
    multiple_results=True,
)


def _factors_plan(avals: tuple[ShapedArray, ...], *, dims: Any, batch_dims: int, mode: str) -> Plan:
    x, updates, *indices = avals
    rest = rest_dims(x.ndim, dims, batch_dims)
    own, n_index = dims_of(updates), indices[0].ndim
    batch, tail = own[:batch_dims], own[n_index:]
    free = ((),) * (n_index - batch_dims)
    placed: list[tuple[str, ...]] = [*batch, *((),) * (x.ndim - batch_dims)]
    for d, axes in zip(rest, tail):
        placed[d] = axes
    whole = spec_from([*batch, *free, *tail])
    places = spec_from([*batch, *free])
    return Plan((spec_from(placed), whole, *(places for _ in indices)), (whole,), (), (spec_from(own),))


# For each update of a scatter with 'mul': what its derivative is multiplied with.
scatter_factors = define(
    "scatter_factors",
    type_rule=lambda x, updates, *indices, **params: Out(updates.shape, updates.dtype),
    plan=_factors_plan,
    impl=lambda x, updates, *indices, dims, batch_dims, mode: other_factors(
        x, updates, indices, dims, batch_dims, write_mode(mode)
    ),
    jvp=Undefined(
        "the second derivative of scatter with combine='mul' with respect to its updates; multiply by gathered values"
    ),
    transpose=Undefined("it is not linear"),
    batch=Undefined(
        "the derivative of scatter with combine='mul' with respect to its updates cannot be mapped; map first"
    ),
)
