"""Batching of `shard_map` equations: the map of the batched body.

The mapped dim goes in front of every block.  It is split over vmap's `spmd_axis_name`; otherwise each instance has all examples,
except that a dim which is sharded over Explicit axes stays so: these axes are not manual inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from mpiarray.core.op import Op
from mpiarray.core.plan import axes_size, entry, mesh_order
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of
from mpiarray.higher_order.shard_map_rules import inside
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.manual import pvary
from mpiarray.transforms.batching import axis_names, batch_flat, batched_aval, front, to_front
from mpiarray.transforms.evaluate import Derived, DerivedCache, eval_jaxpr
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P

Specs = tuple[P, ...]

_cache = DerivedCache()


def map_batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    newly_manual_axes: frozenset[str],
    check_vma: bool,
    in_specs: Specs,
    out_specs: Specs,
) -> tuple[list[Any], list[int | None]]:
    spmd = _checked(axis, mesh, newly_manual_axes, in_specs, out_specs)
    mapped = tuple(d is not None for d in dims)
    _refuse_mixing(jaxpr.jaxpr, spmd)
    with inside(mesh, newly_manual_axes, check_vma):
        inner = axis._replace(
            size=axis.size // axes_size(mesh, spmd),
            mesh=state.abstract_mesh if axis.spec else None,
            spmd=(),
            split=spmd,
        )
        key = (jaxpr, inner, mapped, spmd, state.abstract_mesh, state.mapped)
        body = _cache.get(key, lambda: _Body(jaxpr, inner, mapped, spmd))
    outs = op(
        *body.consts,
        *front(args, dims),
        jaxpr=body.jaxpr,
        mesh=mesh,
        newly_manual_axes=newly_manual_axes,
        check_vma=check_vma,
        in_specs=(*(P() for _ in body.consts), *_batched(in_specs, mapped, spmd)),
        out_specs=_batched(out_specs, body.mapped, spmd),
    )
    return list(outs), [0 if m else None for m in body.mapped]


def _checked(
    axis: BatchAxis, mesh: AbstractMesh, manual: frozenset[str], in_specs: Specs, out_specs: Specs
) -> tuple[str, ...]:
    """The axes that the mapped dim is split over.  Raises ValueError where they are used already."""
    for what, specs in (("in_specs", in_specs), ("out_specs", out_specs)):
        for spec in specs:
            used = {a for axes in spec.dims for a in axes} | spec.unreduced | spec.reduced
            if used & set(axis.spmd):
                raise ValueError(
                    f"vmap spmd_axis_name cannot appear in shard_map {what}: got {entry(axis.spmd)!r} and the spec {spec}"
                )
    taken = manual & set(axis.spec)
    if taken:
        raise ValueError(
            f"vmap of shard_map: the mapped dimension is sharded over {sorted(taken)}, so that these axes cannot be marked as manual in the shard_map; "
            "reshard the mapped dimension, or name other axes in axis_names"
        )
    if not set(axis.spmd) <= manual:
        raise ValueError(
            f"vmap spmd_axis_name must refer to an axis marked as manual in the shard_map inside: got {entry(axis.spmd)!r} and manual axes {sorted(manual)}"
        )
    size = axes_size(mesh, axis.spmd)
    if axis.size % size:
        raise ValueError(
            f"vmap of shard_map: the mapped dimension of size {axis.size} is not divisible by spmd_axis_name={entry(axis.spmd)!r} of size {size}"
        )
    return axis.spmd


def _refuse_mixing(jaxpr: Jaxpr, spmd: tuple[str, ...]) -> None:
    """Where devices along an axis have different examples, an example has no instances along it; only its sum over them is known."""
    for e in jaxpr.eqns if spmd else ():
        if e.op.build is not None and e.op.name not in _KNOWN and (found := set(spmd) & set(axis_names(e.params))):
            raise ValueError(
                f"vmap of shard_map: {e.op.name} over {sorted(found)} in the body, where spmd_axis_name={entry(spmd)!r} gives the devices along it "
                "different examples. Name another axis in one of them."
            )
        for inner in subjaxprs(e.params):
            _refuse_mixing(inner, spmd)


_KNOWN = ("psum", "psum_invariant", "pmax", "pmin")


def _batched(specs: Sequence[P], mapped: Sequence[bool], spmd: tuple[str, ...]) -> Specs:
    return tuple(
        P.from_dims((spmd, *s.dims), s.unreduced, s.reduced) if m else s for s, m in zip(specs, mapped, strict=True)
    )


class _Body(Derived):
    """The body on all of an instance's examples; `mapped[i]` for each result."""

    def __init__(self, closed: ClosedJaxpr, axis: BatchAxis, mapped: Sequence[bool], spmd: tuple[str, ...]):
        avals = [batched_aval(a, axis, 0) if m else a for a, m in zip(closed.in_avals, mapped, strict=True)]
        found: list[tuple[bool, ...]] = []

        def f(*args: Any) -> list[Any]:
            run = lambda *examples: eval_jaxpr(closed.jaxpr, closed.consts, examples)
            outs, dims = batch_flat(run, axis, args, [0 if m else None for m in mapped])
            found.append(tuple(d is not None for d in dims))
            return [x if d is None else self._result(to_front(x, axis, d), spmd) for x, d in zip(outs, dims)]

        super().__init__(trace_to_jaxpr(f, avals, name=closed.jaxpr.debug_name, record_source=False))
        self.mapped = found[0]

    def _result(self, x: Any, spmd: tuple[str, ...]) -> Any:
        """A result is concatenated over the axes of its examples, so that it counts as varying over them."""
        missing = mesh_order(state.abstract_mesh, set(spmd) - aval_of(x).vma) if state.check_vma else ()
        return pvary(x, axes=missing) if missing else x
