"""The type of an equation's results: shapes from the op's type rule, shardings from its plan, and what
holds for every op alike: one mesh, no axis twice, unreduced and reduced axes, manual axes.

Pure, cached, and the same on every rank: whatever is wrong with an equation is raised here, on all ranks,
before anything is computed or sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core import op as ops
from mpiarray.core.plan import has_duplicates
from mpiarray.core.trace import state
from mpiarray.errors import DuplicateSpecError, ShardingTypeError
from mpiarray.types.aval import ManualAxisType, ShapedArray
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

_cache: dict[Any, tuple[ShapedArray, ...]] = {}
_CACHE_SIZE = 65536


def infer(op: ops.Op, avals: Sequence[ShapedArray], params: dict[str, Any]) -> tuple[ShapedArray, ...]:
    """The results' types under the context mesh.  Raises the errors of the spec's rules."""
    mesh = state.abstract_mesh
    key = (op, tuple(avals), tuple(params.items()), mesh, state.check_vma)
    try:
        found = _cache.get(key)
    except TypeError as e:
        bad = [k for k, v in params.items() if not _hashable(v)]
        raise TypeError(f"{op.name}: parameters {bad} are not hashable: {e}") from None
    if found is None:
        found = _infer(op, tuple(avals), params, mesh)
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[key] = found
    return found


def _hashable(v: Any) -> bool:
    try:
        hash(v)
    except TypeError:
        return False
    return True


def _infer(
    op: ops.Op, avals: tuple[ShapedArray, ...], params: dict[str, Any], context: AbstractMesh
) -> tuple[ShapedArray, ...]:
    if op.infer is not None:  # it may take its operand from one mesh to another
        outs = op.infer(avals, context, **params)
        return tuple(outs) if op.multiple_results else (outs,)
    mesh = common_mesh(op, avals, params, context)
    avals = on_mesh(avals, mesh)
    shapes = op.type_rule(*avals, **params)
    outs = tuple(shapes) if op.multiple_results else (shapes,)
    vma = (
        op.vma(avals, params) & frozenset(mesh.manual_axes) if state.check_vma else frozenset()
    )  # not over the axes of vmaps
    unreduced, reduced = partial_sums(op, avals, params)
    manual = _manual(mesh, vma, unreduced, reduced)
    if mesh.empty:
        return tuple(ShapedArray(tuple(o.shape), o.dtype, o.weak_type, None, manual) for o in outs)
    plan = op.plan(avals, **params)
    named = frozenset(mesh.manual_axes)
    out_specs = [
        P.from_dims(s.dims, s.unreduced | (unreduced - named), s.reduced | (reduced - named))
        for s in plan.result or plan.outs
    ]
    _check_duplicates(op, avals, outs, out_specs, mesh)
    return tuple(
        ShapedArray(tuple(o.shape), o.dtype, o.weak_type, NamedSharding(mesh, s), manual)
        for o, s in zip(outs, out_specs, strict=True)
    )


def _manual(
    mesh: AbstractMesh, vma: frozenset[str], unreduced: frozenset[str], reduced: frozenset[str]
) -> ManualAxisType:
    named = frozenset(mesh.manual_axes)
    return ManualAxisType(vma, unreduced & named, reduced & named)


def partial_sums(op: ops.Op, avals: Sequence[ShapedArray], params: dict[str, Any]) -> ops.PartialSums:
    """What the op makes of unreduced and reduced operands: explicit and manual axes alike."""
    sums = [(a.unreduced | a.manual.unreduced, a.reduced | a.manual.reduced) for a in avals]
    if not op.casts and all(s == ops.NONE for s in sums):
        return ops.NONE
    return op.partial_sums(op, sums, avals, params)


def on_mesh(avals: Sequence[ShapedArray], mesh: AbstractMesh) -> tuple[ShapedArray, ...]:
    """Operands that have no mesh count as replicated on the equation's."""
    if mesh.empty:
        return tuple(avals)
    return tuple(a.update(sharding=NamedSharding(mesh, P(*(None,) * a.ndim))) if a.mesh.empty else a for a in avals)


def common_mesh(
    op: ops.Op, avals: Sequence[ShapedArray], params: dict[str, Any], context: AbstractMesh
) -> AbstractMesh:
    """The mesh that an equation is on: the context's, else the operands', else an `out_sharding`'s."""
    if not context.empty:
        for a in avals:
            mesh = a.mesh
            if mesh is not context and not mesh.empty and not mesh.same_axes(context) and not _both_auto(mesh, context):
                raise ValueError(
                    f"For primitive {op.name}, context mesh {context} should match the aval mesh {mesh} for shape {a.str_short()}. "
                    "Set the operand's mesh with `jax.set_mesh`, or move it with `jax.device_put` or `jax.reshard`."
                )
        return context
    found = EMPTY_ABSTRACT_MESH
    for a in avals:
        mesh = a.mesh
        if mesh.empty or mesh is found:
            continue
        if found.empty:
            found = mesh
        elif _both_auto(mesh, found):
            return EMPTY_ABSTRACT_MESH
        elif not mesh.same_axes(found):
            raise ShardingTypeError(
                f"{op.name}: Mesh for all inputs should be equal. Got one mesh: {found} and another mesh: {mesh}"
            )
    if found.empty:
        for name in ("out_sharding", "sharding"):
            if isinstance(params.get(name), NamedSharding):
                return params[name].mesh
    return found


def _both_auto(a: AbstractMesh, b: AbstractMesh) -> bool:
    return a.are_all_axes_auto and b.are_all_axes_auto


def _check_duplicates(
    op: ops.Op, avals: Sequence[ShapedArray], outs: Sequence[ops.Out], specs: Sequence[P], mesh: AbstractMesh
) -> None:
    for out, spec in zip(outs, specs):
        if not has_duplicates(spec.dims):
            continue
        if op.multiple_results:
            raise DuplicateSpecError(
                f"{op.name}: a sharding can map every mesh axis to at most one positional dimension, but the result's {spec} has duplicate entries"
            )
        bare = ShapedArray(tuple(out.shape), out.dtype).short()
        shown = _show(bare, spec)
        raise ShardingTypeError(
            f"{op.name} operation with inputs: {', '.join(a.short() for a in avals)} produces an illegally sharded result: {shown}: a mesh "
            "axis can shard one dimension only. Use `jax.reshard` on an operand, `out_sharding=`, or `jax.sharding.auto_axes`."
        )


def _show(bare: str, spec: P) -> str:
    """The type with a spec that no NamedSharding can hold."""
    head, _, rest = bare.partition("[")
    sizes = rest.rstrip("]").split(",")
    marks = ["" if not d else f"@{d[0]}" if len(d) == 1 else f"@({','.join(d)})" for d in spec.dims]
    return f"{head}[{','.join(n + m for n, m in zip(sizes, marks))}]"
