"""The linear ops that other ops' derivatives and batching rules stand on: casts, broadcasts, reshapes,
transposes, sums; and the makers of such rules.

`jvp=by_argument(lambda t, out, x: mul(t, cos(x)))` reads as a table; `t` is the argument's tangent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import OPS, Linear, Op, Out, Zero, define, pass_through
from mpiarray.core.plan import Pending, Plan, dims_of, local_shape, mesh_order, require_divisible, spec_from
from mpiarray.core.trace import state
from mpiarray.core.value import Value, aval_of, literal
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.common import BatchAxis, join_plan, nary_type, same_plan
from mpiarray.ops.partial_sums import add_sums
from mpiarray.ops.reshape_rule import reshape_dims
from mpiarray.ops.row_reductions import sum_of_rows
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

# -- makers of derivative rules --------------------------------------------------------------------


def by_argument(*rules: Callable[..., Any] | None) -> Callable[..., Any]:
    """A jvp from one rule per argument: `rule(tangent, out, *primals, **params)`; None where the derivative is zero."""

    def jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = op(*primals, **params)
        return out, add_tangents(
            [
                rule(t, out, *primals, **params)
                for rule, t in zip(rules, tangents)
                if rule is not None and not isinstance(t, Zero)
            ],
            out.aval,
        )

    return jvp


def add_tangents(terms: Sequence[Any], aval: ShapedArray) -> Any:
    """The sum of tangents, each broadcast to the result's shape; Zero when there are none."""
    terms = [t for t in terms if not isinstance(t, Zero)]
    if not terms:
        return Zero(tangent_aval(aval))
    total = broadcast_like(terms[0], aval)
    for t in terms[1:]:
        total = add_any(total, broadcast_like(t, aval))
    return total


def broadcast_like(x: Any, aval: ShapedArray) -> Any:
    """`x` (of the same rank, or a scalar) broadcast to the shape and sharding of a type."""
    mine = aval_of(x)
    if mine.shape == aval.shape:
        return x
    dims = tuple(range(aval.ndim - mine.ndim, aval.ndim)) if mine.ndim else ()
    return broadcast_in_dim(x, shape=aval.shape, broadcast_dimensions=dims, sharding=sharding_of(aval))


def linear_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """For ops that are linear in all their array operands together (one operand, concatenate, ...)."""
    out = op(*primals, **params)
    if all(isinstance(t, Zero) for t in tangents):
        return out, [Zero(tangent_aval(o.aval)) for o in out] if op.multiple_results else Zero(tangent_aval(out.aval))
    return out, op(*(instantiate(t) for t in tangents), **params)


def zero_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """For ops whose derivative is zero everywhere (comparisons, rounding, integers)."""
    out = op(*primals, **params)
    return out, [Zero(tangent_aval(o.aval)) for o in out] if op.multiple_results else Zero(tangent_aval(out.aval))


def tangent_aval(aval: ShapedArray) -> ShapedArray:
    """The type of a value's tangent: itself for floats and complex, float0 for the rest."""
    if dtypes.is_float(aval.dtype) or dtypes.is_complex(aval.dtype):
        return aval
    return aval.update(dtype=dtypes.float0, weak_type=False)


def instantiate(t: Any) -> Any:
    """A symbolic zero as an array."""
    return full_of(t.aval, 0) if isinstance(t, Zero) else t


def sharding_of(aval: ShapedArray) -> NamedSharding | None:
    """What to pass as `sharding=` so that a result has the sharding of a type."""
    return None if aval.mesh.empty else aval.sharding


def full_of(aval: ShapedArray, value: Any) -> Value:
    """An array of a type (sharding included) filled with one host scalar."""
    scalar = literal(value, aval.dtype, aval.weak_type)
    return (
        scalar
        if not aval.ndim
        else broadcast_in_dim(scalar, shape=aval.shape, broadcast_dimensions=(), sharding=sharding_of(aval))
    )


def unbroadcast(ct: Any, aval: ShapedArray) -> Any:
    """Transpose of the broadcasting of elementwise ops: sum a cotangent down to an operand's type."""
    have = aval_of(ct)
    if have.shape == aval.shape:
        if have.dims == aval.dims or aval.mesh.empty or have.unreduced or have.reduced:
            return ct
        # an operand that was replicated where the other one is sharded has a replicated cotangent
        return broadcast_in_dim(
            ct, shape=aval.shape, broadcast_dimensions=tuple(range(aval.ndim)), sharding=sharding_of(aval)
        )
    if not aval.ndim:
        return reduce_sum(ct, axes=tuple(range(have.ndim)), out_sharding=None)
    axes = tuple(d for d, (n, m) in enumerate(zip(have.shape, aval.shape)) if n != m)
    return reshape(
        reduce_sum(ct, axes=axes, out_sharding=None), new_sizes=aval.shape, dimensions=None, sharding=sharding_of(aval)
    )


# -- makers of batching rules ------------------------------------------------------------------------


def nary_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    """Elementwise ops: the mapped dim goes first, operands without it broadcast."""
    avals = [aval_of(a) for a in args]
    ndim = max(a.ndim - (d is not None) for a, d in zip(avals, dims))
    if len({(a.shape, d) for a, d in zip(avals, dims) if d is not None}) == 1 and all(
        d is not None or not a.ndim for a, d in zip(avals, dims)
    ):
        return op(*args, **params), next(d for d in dims if d is not None)
    moved = []
    for x, a, d in zip(args, avals, dims):
        if d is None:
            moved.append(x if not a.ndim else expand_dims(x, (0,)))
        else:
            x = move_dim(x, d, 0)
            missing = ndim - (a.ndim - 1)
            moved.append(expand_dims(x, tuple(range(1, 1 + missing))) if missing else x)
    return op(*moved, **params), 0


def move_dim(x: Any, source: int, target: int) -> Any:
    """Transpose one dim to another position."""
    if source == target:
        return x
    order = [d for d in range(aval_of(x).ndim) if d != source]
    order.insert(target, source)
    return transpose(x, permutation=tuple(order))


def expand_dims(x: Any, positions: Sequence[int]) -> Any:
    """Insert dims of size 1 at the positions (of the result)."""
    aval = aval_of(x)
    ndim = aval.ndim + len(positions)
    kept = tuple(d for d in range(ndim) if d not in positions)
    shape = [1] * ndim
    for d, n in zip(kept, aval.shape):
        shape[d] = n
    return broadcast_in_dim(x, shape=tuple(shape), broadcast_dimensions=kept, sharding=None)


def batch_to(x: Any, axis: BatchAxis, dim: int | None, target: int) -> Any:
    """`x` with its mapped dim at `target`, made by broadcasting when it is not mapped."""
    if dim is not None:
        return move_dim(x, dim, target)
    aval = aval_of(x)
    shape = list(aval.shape)
    shape.insert(target, axis.size)
    sharding = None
    mesh = axis.mesh if aval.mesh.empty and axis.spec else aval.mesh
    if not mesh.empty:
        spec = list(dims_of(aval))
        spec.insert(target, axis.spec)
        sharding = NamedSharding(mesh, spec_from(spec, aval.sharding.spec.unreduced, aval.sharding.spec.reduced))
    if axis.split and state.check_vma and not aval.vma.issuperset(axis.split):
        x = OPS["pvary"](x, axes=mesh_order(state.abstract_mesh, set(axis.split) - aval.vma))
    kept = tuple(d for d in range(len(shape)) if d != target)
    return broadcast_in_dim(x, shape=tuple(shape), broadcast_dimensions=kept, sharding=sharding)


def with_batch_entry(sharding: NamedSharding | None, axis: BatchAxis, position: int) -> NamedSharding | None:
    """A per-example sharding parameter with the mapped dim's entry put in."""
    if sharding is None:
        return None
    dims = list(sharding.spec.dims)
    dims.insert(position, axis.spec)
    return NamedSharding(sharding.mesh, spec_from(dims, sharding.spec.unreduced, sharding.spec.reduced))


# -- convert_element_type, copy ------------------------------------------------------------------------


def _convert_type(x: ShapedArray, *, new_dtype: Any, weak_type: bool) -> Out:
    if dtypes.is_key(x.dtype) != dtypes.is_key(new_dtype):
        raise TypeError(
            f"convert_element_type: cannot convert {x.str_short()} to {new_dtype}: keys are not numbers; see `jax.random.key_data`"
        )
    return Out(x.shape, new_dtype, weak_type)


def _convert_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = op(*primals, **params)
    differentiable = tangent_aval(out.aval) is out.aval and not isinstance(tangents[0], Zero)
    return out, op(tangents[0], **params) if differentiable else Zero(tangent_aval(out.aval))


convert_element_type = define(
    "convert_element_type",
    type_rule=_convert_type,
    plan=same_plan,
    impl=lambda x, *, new_dtype, weak_type: dtypes.cast(x, new_dtype),
    jvp=_convert_jvp,
    transpose=lambda op, ct, x, **params: [op(ct, new_dtype=x.aval.dtype, weak_type=x.aval.weak_type)],
    batch=nary_batch,
    partial_sums=pass_through,
    hlo_name="convert",
    elementwise=True,
    code=lambda b, x, *, new_dtype, weak_type: b.cast(x, dtypes.storage(new_dtype)),
)

copy = define(
    "copy",
    type_rule=lambda x: Out(x.shape, x.dtype, x.weak_type),
    plan=same_plan,
    impl=lambda x: np.array(x, copy=True, order="C"),
    jvp=linear_jvp,
    transpose=lambda op, ct, x: [ct],
    batch=nary_batch,
    partial_sums=pass_through,
)


def _transpose_add(op: Op, ct: Any, x: Any, y: Any) -> list[Any]:
    return [unbroadcast(ct, a.aval) if isinstance(a, Linear) else None for a in (x, y)]


add_any = define(
    "add_any",
    type_rule=nary_type("add_any"),
    plan=join_plan("add_any"),
    impl=np.add,
    jvp=linear_jvp,
    transpose=_transpose_add,
    batch=nary_batch,
    partial_sums=add_sums,
    hlo_name="add",
    elementwise=True,
    code=lambda b, x, y: b.add(x, y),
)

# -- broadcast_in_dim ----------------------------------------------------------------------------------


def _broadcast_type(
    x: ShapedArray, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], sharding: Any
) -> Out:
    if len(broadcast_dimensions) != x.ndim:
        raise TypeError(
            f"broadcast_in_dim: broadcast_dimensions {broadcast_dimensions} must name one result dim per dim of {x.str_short()}"
        )
    if any(b >= len(shape) or (i and b <= broadcast_dimensions[i - 1]) for i, b in enumerate(broadcast_dimensions)):
        raise TypeError(
            f"broadcast_in_dim: broadcast_dimensions {broadcast_dimensions} must be increasing and less than {len(shape)}"
        )
    if any(n not in (1, shape[b]) for n, b in zip(x.shape, broadcast_dimensions)):
        raise TypeError(
            f"broadcast_in_dim: cannot broadcast {x.str_short()} to shape {shape} by dimensions {broadcast_dimensions}"
        )
    return Out(shape, x.dtype, x.weak_type)


def _broadcast_plan(
    avals: tuple[ShapedArray, ...], *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], sharding: Any
) -> Plan:
    (x,) = avals
    own: list[tuple[str, ...]] = [()] * len(shape)
    for d, b in enumerate(broadcast_dimensions):
        own[b] = dims_of(x)[d] if x.shape[d] == shape[b] else ()
    dims = own if sharding is None else list(sharding.spec.dims)
    sources = [dims[b] if x.shape[d] == shape[b] else () for d, b in enumerate(broadcast_dimensions)]
    mesh = x.sharding.mesh if sharding is None else sharding.mesh
    spec = sharding.spec if sharding is not None else spec_from(dims)
    if sharding is not None and (spec.unreduced or spec.reduced):
        return Plan(
            (spec_from(sources),),
            (spec,),
            params={"shape": local_shape(mesh, shape, tuple(dims))},
            local=_broadcast_unreduced,
        )
    return Plan(
        (spec_from(sources),), (spec,), params={"shape": local_shape(mesh, shape, tuple(dims)), "sharding": None}
    )


def _broadcast_unreduced(ctx: Any, x: Any, *, shape: Any, broadcast_dimensions: Any, sharding: Any) -> Any:
    block = broadcast_in_dim(
        x,
        shape=local_shape(ctx.mesh, shape, sharding.spec.dims),
        broadcast_dimensions=broadcast_dimensions,
        sharding=None,
    )
    axes = mesh_order(ctx.mesh, sharding.spec.unreduced)
    return mask_replicas(block, axes=axes) if axes else block


def _broadcast_transpose(op: Op, ct: Any, x: Any, *, shape: Any, broadcast_dimensions: Any, sharding: Any) -> list[Any]:
    aval = x.aval
    new = tuple(d for d in range(len(shape)) if d not in broadcast_dimensions)
    grown = tuple(b for d, b in enumerate(broadcast_dimensions) if aval.shape[d] != shape[b])
    out = reduce_sum(ct, axes=tuple(sorted(new + grown)), out_sharding=None) if new or grown else ct
    return [reshape(out, new_sizes=aval.shape, dimensions=None, sharding=sharding_of(aval)) if grown else out]


def _broadcast_batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int],
    *,
    shape: Any,
    broadcast_dimensions: Any,
    sharding: Any,
) -> tuple[Any, int]:
    x = move_dim(args[0], dims[0], 0)
    out = op(
        x, shape=(axis.size, *shape), broadcast_dimensions=(0, *(b + 1 for b in broadcast_dimensions)), sharding=with_batch_entry(sharding, axis, 0)
    )  # fmt: skip
    return out, 0


def _broadcast_impl(
    x: Any, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], sharding: Any
) -> np.ndarray:
    x = np.asarray(x)
    inner = [1] * len(shape)
    for n, b in zip(x.shape, broadcast_dimensions):
        inner[b] = n
    found = x.reshape(inner)
    return found if found.shape == shape else np.broadcast_to(found, shape)


broadcast_in_dim = define(
    "broadcast_in_dim",
    type_rule=_broadcast_type,
    plan=_broadcast_plan,
    impl=_broadcast_impl,
    jvp=linear_jvp,
    transpose=_broadcast_transpose,
    batch=_broadcast_batch,
    partial_sums=pass_through,
    hlo_name="broadcast",
)


def _mask_build(ctx: Any, *, axes: tuple[str, ...]) -> Callable[..., Any]:
    return (lambda x: x) if ctx.index(axes) == 0 else np.zeros_like


mask_replicas = define(
    "mask_replicas",
    type_rule=lambda x, *, axes: Out(x.shape, x.dtype, x.weak_type),
    plan=same_plan,
    build=_mask_build,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, axes: [op(ct, axes=axes)],
    batch=nary_batch,
)

# -- reshape, squeeze, transpose -----------------------------------------------------------------------


def _reshape_type(x: ShapedArray, *, new_sizes: tuple[int, ...], dimensions: Any, sharding: Any) -> Out:
    if math.prod(new_sizes) != x.size or any(n < 0 for n in new_sizes):
        raise TypeError(
            f"cannot reshape array of shape {x.shape} (size {x.size}) into shape {tuple(new_sizes)} (size {math.prod(new_sizes)})"
        )
    return Out(tuple(new_sizes), x.dtype, x.weak_type)


def _reshape_plan(
    avals: tuple[ShapedArray, ...], *, new_sizes: tuple[int, ...], dimensions: Any, sharding: Any
) -> Plan:
    (x,) = avals
    return reshape_dims(x, new_sizes, sharding)


def _reshape_impl(x: Any, *, new_sizes: tuple[int, ...], dimensions: Any, sharding: Any) -> np.ndarray:
    return np.reshape(x, new_sizes)


def _reshape_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, new_sizes: Any, dimensions: Any, sharding: Any
) -> Any:
    x = move_dim(args[0], dims[0], 0)
    return op(x, new_sizes=(axis.size, *new_sizes), dimensions=None, sharding=with_batch_entry(sharding, axis, 0)), 0


reshape = define(
    "reshape",
    type_rule=_reshape_type,
    plan=_reshape_plan,
    impl=_reshape_impl,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, **params: [
        op(ct, new_sizes=x.aval.shape, dimensions=None, sharding=sharding_of(x.aval))
    ],
    batch=_reshape_batch,
    partial_sums=pass_through,
)


def _squeeze_type(x: ShapedArray, *, dimensions: tuple[int, ...]) -> Out:
    if any(x.shape[d] != 1 for d in dimensions):
        raise ValueError(
            f"cannot select an axis to squeeze out which has size not equal to one, got {x.str_short()} and dimensions={dimensions}"
        )
    return Out(tuple(n for d, n in enumerate(x.shape) if d not in dimensions), x.dtype, x.weak_type)


def _squeeze_plan(avals: tuple[ShapedArray, ...], *, dimensions: tuple[int, ...]) -> Plan:
    (x,) = avals
    kept = spec_from([axes for d, axes in enumerate(dims_of(x)) if d not in dimensions])
    return Plan((spec_from(dims_of(x)),), (kept,))


def _squeeze_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, dimensions: tuple[int, ...]
) -> tuple[Any, int]:
    return op(move_dim(args[0], dims[0], 0), dimensions=tuple(d + 1 for d in dimensions)), 0


squeeze = define(
    "squeeze",
    type_rule=_squeeze_type,
    plan=_squeeze_plan,
    impl=lambda x, *, dimensions: np.squeeze(x, dimensions),
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, dimensions: [
        reshape(ct, new_sizes=x.aval.shape, dimensions=None, sharding=sharding_of(x.aval))
    ],
    batch=_squeeze_batch,
    partial_sums=pass_through,
    hlo_name="reshape",
)


def _transpose_type(x: ShapedArray, *, permutation: tuple[int, ...]) -> Out:
    if sorted(permutation) != list(range(x.ndim)):
        raise TypeError(
            f"transpose permutation isn't a permutation of operand dimensions, got permutation {permutation} for {x.str_short()}"
        )
    return Out(tuple(x.shape[p] for p in permutation), x.dtype, x.weak_type)


def _transpose_plan(avals: tuple[ShapedArray, ...], *, permutation: tuple[int, ...]) -> Plan:
    (x,) = avals
    return Plan((spec_from(dims_of(x)),), (spec_from([dims_of(x)[p] for p in permutation]),))


def _transpose_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, permutation: tuple[int, ...]
) -> tuple[Any, int]:
    return op(move_dim(args[0], dims[0], 0), permutation=(0, *(p + 1 for p in permutation))), 0


transpose = define(
    "transpose",
    type_rule=_transpose_type,
    plan=_transpose_plan,
    impl=lambda x, *, permutation: np.transpose(x, permutation),
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, permutation: [op(ct, permutation=tuple(int(i) for i in np.argsort(permutation)))],
    batch=_transpose_batch,
    partial_sums=pass_through,
)

# -- reduce_sum ----------------------------------------------------------------------------------------


def reduced_shape(name: str, x: ShapedArray, axes: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
        raise ValueError(f"{name}: axes {axes} must be distinct dims of {x.str_short()}")
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def reduction_plan(kind: str, avals: tuple[ShapedArray, ...], axes: tuple[int, ...], out_sharding: Any = None) -> Plan:
    """Reduce blocks, then over the mesh axes of the reduced dims; `out_sharding` may leave some unreduced."""
    (x,) = avals
    mesh = x.sharding.mesh
    dims = dims_of(x)
    kept = spec_from([a for d, a in enumerate(dims) if d not in axes])
    summed = mesh_order(mesh, {a for d in axes for a in dims[d]})
    if out_sharding is None:
        return Plan((spec_from(dims),), (kept,), (Pending(kind, summed),) if summed else ())
    spec = out_sharding.spec
    left = frozenset(spec.unreduced)
    if not left <= frozenset(summed) | x.unreduced:
        raise ShardingTypeError(
            f"reduce_sum: the unreduced axes {sorted(left)} of out_sharding {spec} should be in operand's specs that were summed over, {summed}, "
            f"got operand {x.short()} and axes {axes}"
        )
    require_divisible("reduce_sum", mesh, [n for d, n in enumerate(x.shape) if d not in axes], spec.dims, "reduce_sum")
    now = mesh_order(mesh, set(summed) - left)
    outs, result = spec_from(kept.dims, left - x.unreduced), spec_from(spec.dims, left - x.unreduced, spec.reduced)
    return Plan((spec_from(dims),), (outs,), (Pending(kind, now),) if now else (), (result,))


def _sum_impl(x: Any, *, axes: tuple[int, ...], out_sharding: Any) -> Any:
    """numpy's sum, of the operand's dtype; 16-bit floats are added up in float32."""
    if x.dtype.itemsize <= 2 and dtypes.is_float(x.dtype):
        return np.asarray(_sum_impl(x.astype(np.float32), axes=axes, out_sharding=None)).astype(x.dtype)
    found = sum_of_rows(x, axes)
    return np.add.reduce(x, axis=axes, dtype=x.dtype) if found is None else found


reduce_sum = define(
    "reduce_sum",
    type_rule=lambda x, *, axes, out_sharding: Out(reduced_shape("reduce_sum", x, axes), x.dtype, x.weak_type),
    plan=lambda avals, *, axes, out_sharding: reduction_plan("sum", avals, axes, out_sharding),
    impl=_sum_impl,
    jvp=linear_jvp,
    transpose=lambda op, ct, x, *, axes, out_sharding: [
        broadcast_in_dim(
            ct,
            shape=x.aval.shape,
            broadcast_dimensions=tuple(d for d in range(x.aval.ndim) if d not in axes),
            sharding=sharding_of(x.aval),
        )
    ],
    batch=lambda op, axis, args, dims, *, axes, out_sharding: (
        op(
            move_dim(args[0], dims[0], 0),
            axes=tuple(a + 1 for a in axes),
            out_sharding=with_batch_entry(out_sharding, axis, 0),
        ),
        0,
    ),
    partial_sums=pass_through,
    hlo_name="reduce",
)
