"""Ops that say where a value lies: `reshard`, `sharding_constraint`, `layout_constraint`.

The first two have no work of their own on blocks: the partition pass sees from their plans that the operand must be
redistributed, and from whose mesh to whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op, Out, define, pass_through
from mpiarray.core.plan import Dims, Laid, Plan, axes_size, spec_from
from mpiarray.ops.common import BatchAxis, same_plan
from mpiarray.ops.linear import linear_jvp, with_batch_entry
from mpiarray.types.aval import ShapedArray
from mpiarray.types.layout import Layout
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


def _identity(x: Any, **params: Any) -> Any:
    return x


def _same_type(x: ShapedArray, **params: Any) -> Out:
    return Out(x.shape, x.dtype, x.weak_type)


def _reshard_infer(avals: tuple[ShapedArray, ...], mesh: AbstractMesh, *, dst_sharding: NamedSharding) -> ShapedArray:
    return avals[0].update(sharding=dst_sharding)


def _reshard_plan(avals: tuple[Any, ...], *, dst_sharding: NamedSharding) -> Plan:
    (x,) = avals
    spec = x.sharding.spec
    dims = _kept(x, dst_sharding)
    target = dst_sharding.spec
    return Plan((spec,), (spec,), (), (P.from_dims(dims, target.unreduced, target.reduced),))


def _kept(x: Any, dst: NamedSharding) -> Dims:
    """The target's dims; on axes that the target's mesh leaves to us (Auto), the data stay where they are if they can."""
    wanted = dst.spec.dims
    mesh, own = dst.mesh, x.sharding.mesh
    auto = frozenset(mesh.auto_axes)
    if not auto or own.empty or own.shape_tuple != mesh.shape_tuple or not isinstance(x, Laid):
        return wanted
    taken = {a for axes in wanted for a in axes}
    out = []
    for n, have, want in zip(x.shape, x.sharding.spec.dims, wanted):
        if tuple(a for a in have if a not in auto) == want:
            out.append(tuple(a for a in have if a not in auto or a not in taken))
            continue
        more = tuple(a for a in have if a in auto and a not in taken)
        out.append(want + more if n % axes_size(mesh, want + more) == 0 else want)
    return tuple(out)


reshard = define(
    "reshard",
    type_rule=_same_type,
    infer=_reshard_infer,
    plan=_reshard_plan,
    impl=_identity,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, dst_sharding: [
        op(ct, dst_sharding=NamedSharding(x.aval.mesh, x.aval.sharding.spec.to_ct_spec()))
        if not x.aval.mesh.empty
        else ct
    ],
    batch=lambda op, axis, args, dims, *, dst_sharding: (
        op(args[0], dst_sharding=with_batch_entry(dst_sharding, axis, dims[0])),
        dims[0],
    ),
)


def _constraint_infer(avals: tuple[ShapedArray, ...], mesh: AbstractMesh, **params: Any) -> ShapedArray:
    return avals[0]


def _constraint_plan(
    avals: tuple[Any, ...], *, sharding: NamedSharding, unconstrained_dims: frozenset[int], **params: Any
) -> Plan:
    (x,) = avals
    have, want = x.sharding.spec.dims, sharding.spec.dims
    explicit = frozenset(x.sharding.mesh.explicit_axes)
    dims = []
    taken = {a for d, axes in enumerate(want) if d not in unconstrained_dims for a in axes}
    for d, own in enumerate(have):
        if d in unconstrained_dims:
            dims.append(tuple(a for a in own if a not in taken))
        else:
            dims.append(tuple(a for a in own if a in explicit and a not in want[d]) + tuple(want[d]))
    spec = spec_from(dims, x.unreduced, x.reduced)
    return Plan((x.sharding.spec,), (x.sharding.spec,), (), (spec,))


def _constraint_batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int],
    *,
    sharding: Any,
    unconstrained_dims: Any,
    **params: Any,
) -> Any:
    moved = frozenset(d + (d >= dims[0]) for d in unconstrained_dims)
    return op(
        args[0], sharding=with_batch_entry(sharding, axis, dims[0]), unconstrained_dims=moved | {dims[0]}, **params
    ), dims[0]


sharding_constraint = define(
    "sharding_constraint",
    type_rule=_same_type,
    infer=_constraint_infer,
    plan=_constraint_plan,
    impl=_identity,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, **params: [op(ct, **params)],
    batch=_constraint_batch,
)


def _in_order(x: Any, *, layout: Layout) -> np.ndarray:
    x = np.asarray(x)
    order = tuple(layout.major_to_minor)
    inverse = tuple(int(i) for i in np.argsort(order))
    return np.ascontiguousarray(x.transpose(order)).transpose(inverse)


def _layout_type(x: ShapedArray, *, layout: Layout) -> Out:
    if len(layout.major_to_minor) != x.ndim:
        raise ValueError(
            "One of with_layout_constraint arguments is incompatible with its layout annotation: Length of major_to_minor and the rank of the "
            f"value should match. Got major_to_minor={layout.major_to_minor} and shape={x.shape}"
        )
    return Out(x.shape, x.dtype, x.weak_type)


def _layout_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, layout: Layout
) -> tuple[Any, int]:
    d = dims[0]
    order = (d, *(m + (m >= d) for m in layout.major_to_minor))
    return op(args[0], layout=Layout(order)), d


layout_constraint = define(
    "layout_constraint",
    type_rule=_layout_type,
    plan=same_plan,
    impl=_in_order,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, layout: [ct],
    batch=_layout_batch,
    partial_sums=pass_through,
    hlo_name="copy",
)
