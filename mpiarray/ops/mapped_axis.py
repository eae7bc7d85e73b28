"""Collectives over the axis that vmap maps: work on the mapped dim, which all examples share.

Each function takes all examples (`d` is the mapped dim, None when the value is the same for all) and gives (value, mapped dim).
A mapped dim that is sharded is brought together where examples move between devices; sums and extremes communicate
as reductions of a sharded dim do.  Ops of later modules are found by name, since these build on the collectives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import OPS, Op
from mpiarray.core.plan import axes_size, dims_of, spec_from
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of, literal
from mpiarray.ops.common import BatchAxis, const_like
from mpiarray.ops.linear import batch_to, full_of, move_dim, reduce_sum, reshape
from mpiarray.types.sharding import NamedSharding

Batched = tuple[Any, int | None]


def over(
    local: Callable[..., Batched], carried: Callable[..., Any], mixed: Callable[..., Batched], names: str = "axis_name"
) -> Callable[..., Batched]:
    """The batching rule of a collective: `local` when it is over the mapped axis alone, `carried` when it is over others, `mixed` when
    it is over both (`mixed_axes`), as it also is when devices divide the examples between them.
    """

    def rule(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Batched:
        axes = params[names] if isinstance(params[names], tuple) else (params[names],)
        if axis.name is None or axis.name not in axes:
            return undivided(carried, names)(op, axis, args, dims, **params)
        if params.get("axis_index_groups") is not None:
            raise NotImplementedError(
                f"axis_index_groups are not supported in {op.name} over the axis {axis.name!r} of vmap"
            )
        if len(axes) == 1 and not axis.split:
            return local(op, axis, *args, *dims, **params)
        at = axes.index(axis.name)
        everywhere = (*axes[:at], *axis.split, *axes[at:])
        return mixed(op, axis, everywhere, *args, *dims, **params)

    return rule


def undivided(carried: Callable[..., Any], names: str = "axes") -> Callable[..., Any]:
    """A sum or an extreme over axes that divide the examples between devices: every example has one value, though it lies on
    one device, so that there is nothing to communicate.
    """

    def rule(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
        common = [a for a in axis.split if a in params[names]] if axis.split and dims and dims[0] is not None else []
        if not common:
            return carried(op, axis, args, dims, **params)
        (x,), (d,) = args, dims
        x = times(x, axes_size(state.abstract_mesh, common)) if op.name in _SUMS else x
        rest = tuple(a for a in params[names] if a not in common)
        return carried(op, axis, [x], [d], **params | {names: rest}) if rest else (x, d)

    return rule


_SUMS = ("psum", "psum_invariant")


def whole(x: Any, d: int) -> Any:
    """`x` with its dim unsharded."""
    aval = aval_of(x)
    if aval.mesh.empty or not dims_of(aval)[d]:
        return x
    dims = list(dims_of(aval))
    dims[d] = ()
    return OPS["reshard"](x, dst_sharding=NamedSharding(aval.mesh, spec_from(dims, aval.unreduced, aval.reduced)))


def placed(x: Any, axis: BatchAxis, d: int) -> Any:
    """`x` with its dim, the mapped one, sharded as mapped dims are."""
    aval = aval_of(x)
    mesh = axis.mesh if aval.mesh.empty else aval.mesh
    if not axis.spec or dims_of(aval)[d] == axis.spec:
        return x
    dims = list(dims_of(aval))
    dims[d] = axis.spec
    return OPS["reshard"](x, dst_sharding=NamedSharding(mesh, spec_from(dims, aval.unreduced, aval.reduced)))


def times(x: Any, n: int) -> Any:
    return OPS["mul"](x, const_like(x, n))


def summed(op: Op, axis: BatchAxis, x: Any, d: int | None, **params: Any) -> Batched:
    return (times(x, axis.size) if d is None else reduce_sum(x, axes=(d,), out_sharding=None)), None


def largest(op: Op, axis: BatchAxis, x: Any, d: int | None, **params: Any) -> Batched:
    return (x if d is None else OPS["reduce_max"](x, axes=(d,))), None


def smallest(op: Op, axis: BatchAxis, x: Any, d: int | None, **params: Any) -> Batched:
    return (x if d is None else OPS["reduce_min"](x, axes=(d,))), None


def gathered(
    op: Op, axis: BatchAxis, x: Any, d: int | None, *, all_gather_dimension: int, tiled: bool, **params: Any
) -> Batched:
    """The mapped dim becomes a dim of every example."""
    at = all_gather_dimension
    x = batch_to(x, axis._replace(spec=()), None, at) if d is None else move_dim(whole(x, d), d, at)
    return (merged(x, at) if tiled else x), None


def merged(x: Any, d: int) -> Any:
    """Dims d and d + 1 as one."""
    shape = aval_of(x).shape
    return reshape(x, new_sizes=(*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]), dimensions=None, sharding=None)


def cut(x: Any, d: int, n: int) -> Any:
    """Dim d as two, the first of size n."""
    shape = aval_of(x).shape
    return reshape(x, new_sizes=(*shape[:d], n, shape[d] // n, *shape[d + 1 :]), dimensions=None, sharding=None)


def scattered(
    op: Op, axis: BatchAxis, x: Any, d: int | None, *, scatter_dimension: int, tiled: bool, **params: Any
) -> Batched:
    """The sum, whose parts along a dim are the examples' results."""
    at = scatter_dimension
    total, _ = summed(op, axis, x, d)
    total = whole(total, at)
    return placed(cut(total, at, axis.size) if tiled else total, axis, at), at


def exchanged(
    op: Op, axis: BatchAxis, x: Any, d: int | None, *, split_axis: int, concat_axis: int, tiled: bool, **params: Any
) -> Batched:
    """The split dim (or its first part) becomes the mapped one, which becomes a dim of every example."""
    x = batch_to(x, axis._replace(spec=()), None, 0) if d is None else move_dim(whole(x, d), d, 0)
    if not tiled:
        x = move_dim(whole(x, split_axis + 1), split_axis + 1, 0)  # (receiver, sender, ...)
        return placed(move_dim(x, 1, concat_axis + 1), axis, 0), 0
    x = move_dim(cut(whole(x, split_axis + 1), split_axis + 1, axis.size), split_axis + 1, 0)
    return placed(merged(move_dim(x, 1, concat_axis + 1), concat_axis + 1), axis, 0), 0


def permuted(
    op: Op, axis: BatchAxis, x: Any, d: int | None, *, perm: tuple[tuple[int, int], ...], **params: Any
) -> Batched:
    """Examples in another order, zeros where none comes: pieces of consecutive ones side by side."""
    x = batch_to(x, axis._replace(spec=()), None, 0) if d is None else move_dim(whole(x, d), d, 0)
    source = {t: s for s, t in perm}
    return placed(arranged(x, [source.get(k) for k in range(axis.size)]), axis, 0), 0


def arranged(x: Any, source: Sequence[int | None]) -> Any:
    """Rows of `x` as `source` says, zeros for None: pieces of consecutive ones side by side."""
    if list(source) == list(range(aval_of(x).shape[0])):
        return x
    pieces = []
    for start, group in itertools.groupby(enumerate(source), key=lambda p: None if p[1] is None else p[1] - p[0]):
        targets = [k for k, _ in group]
        first = targets[0] + start if start is not None else 0
        part = rows(x, first, first + len(targets)) if start is not None else None
        pieces.append(_zeros(x, len(targets)) if part is None else part)
    return pieces[0] if len(pieces) == 1 else OPS["concatenate"](*pieces, dimension=0)


def _zeros(x: Any, n: int) -> Any:
    aval = aval_of(x)
    return full_of(aval.update(shape=(n, *aval.shape[1:])), 0)


def rows(x: Any, start: int, stop: int) -> Any:
    shape = aval_of(x).shape
    return OPS["slice"](
        x, start_indices=(start, *(0 for _ in shape[1:])), limit_indices=(stop, *shape[1:]), strides=None
    )


def from_one(op: Op, axis: BatchAxis, x: Any, d: int | None, *, source: int, **params: Any) -> Batched:
    if d is None:
        return x, None
    return OPS["squeeze"](rows(move_dim(whole(x, d), d, 0), source, source + 1), dimensions=(0,)), None


def numbered(op: Op, axis: BatchAxis, **params: Any) -> Batched:
    """0, 1, 2, ..."""
    sharding = NamedSharding(axis.mesh, spec_from((axis.spec,))) if axis.spec else None
    if axis.size == 0:
        return literal(0, np.dtype("int32")), None
    return OPS["iota"](dtype=np.dtype("int32"), shape=(axis.size,), dimension=0, sharding=sharding), 0
