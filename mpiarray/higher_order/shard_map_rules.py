"""Derivatives of `shard_map` equations: the map of the derived body.

Residuals leave the forward map and enter the backward one with a spec that concatenates, along their first dim, the
blocks of all instances between which they vary.  With `check_vma` the body's types say where sums over instances are
needed, and each parameter that enters replicated is summed once, by the transpose of its cast to varying.  Without it
nothing is known: cotangents of results that a spec leaves unsplit are divided among the instances, and cotangents of
inputs are summed over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Var
from mpiarray.core.op import Linear, Op, Zero
from mpiarray.core.plan import axes_size, mesh_order
from mpiarray.core.trace import abstract_mesh, checking_vma, current, state
from mpiarray.core.value import literal
from mpiarray.higher_order.kept import Kept, Policy, kept_body
from mpiarray.ops.arithmetic import div
from mpiarray.ops.collectives import psum
from mpiarray.ops.linear import reshape
from mpiarray.transforms.calls import cotangents_of, with_zeros
from mpiarray.transforms.evaluate import Derived, DerivedCache, dividing_axes, eval_jaxpr
from mpiarray.transforms.jvp import jvp_jaxpr
from mpiarray.transforms.partial_eval import PartialTrace, Split, matters, partial_eval_jaxpr
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.transforms.tangents import cotangent_aval
from mpiarray.transforms.transpose import TransposedJaxpr, transpose_call
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P

Specs = tuple[P, ...]


@contextmanager
def inside(mesh: AbstractMesh, manual: frozenset[str], check_vma: bool) -> Iterator[None]:
    """Type ops as in the body of a map."""
    with abstract_mesh(mesh.update_axis_types(dict.fromkeys(manual, AxisType.Manual))), checking_vma(check_vma):
        yield


def map_jvp(
    op: Op,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    newly_manual_axes: frozenset[str],
    check_vma: bool,
    in_specs: Specs,
    out_specs: Specs,
) -> tuple[list[Any], list[Any]]:
    nonzero = [not isinstance(t, Zero) for t in tangents]
    with inside(mesh, newly_manual_axes, check_vma):
        derived = jvp_jaxpr(jaxpr, nonzero)
    outs = op(
        *derived.consts,
        *primals,
        *(t for t in tangents if not isinstance(t, Zero)),
        jaxpr=derived.jaxpr,
        mesh=mesh,
        newly_manual_axes=newly_manual_axes,
        check_vma=check_vma,
        in_specs=(*_whole(derived.consts), *in_specs, *_chosen(in_specs, nonzero)),
        out_specs=(*out_specs, *_chosen(out_specs, derived.nonzero)),
    )
    return with_zeros(outs, derived.nonzero, _global_types(outs[: len(out_specs)]))


def _global_types(outs: Sequence[Any]) -> list[ShapedArray]:
    return [x.aval for x in outs]


def _whole(consts: Sequence[Any]) -> Specs:
    return (P(),) * len(consts)


def _chosen(specs: Sequence[P], flags: Sequence[bool]) -> Specs:
    return tuple(s for s, flag in zip(specs, flags, strict=True) if flag)


# -- known and unknown -------------------------------------------------------------------------------------


def map_partial_eval(
    op: Op,
    trace: PartialTrace,
    args: Sequence[Any],
    unknown: Sequence[bool],
    *,
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    newly_manual_axes: frozenset[str],
    check_vma: bool,
    in_specs: Specs,
    out_specs: Specs,
) -> list[Any]:
    with inside(mesh, newly_manual_axes, check_vma):
        found = _split(jaxpr, tuple(unknown), mesh, newly_manual_axes)
    split, residual_specs = found.split, found.residual_specs
    fixed = {"mesh": mesh, "newly_manual_axes": newly_manual_axes, "check_vma": check_vma}
    ins = [a for a, u in zip(args, unknown) if not u]
    known_specs = _chosen(in_specs, [not u for u in unknown])
    outs: Sequence[Any] = ()
    if matters(found.known):
        with current(trace.parent):
            outs = op(
                *found.consts,
                *ins,
                jaxpr=found.known,
                in_specs=(*_whole(found.consts), *known_specs),
                out_specs=(*_chosen(out_specs, split.out_known), *residual_specs),
                **fixed,
            )
    count = len(outs) - split.residuals
    later: Sequence[Any] = ()
    if not all(split.out_known):
        operands = [*outs[count:], *(ins[n] for n in split.forwarded), *(a for a, u in zip(args, unknown) if u)]
        forwarded = (known_specs[n] for n in split.forwarded)
        params = fixed | {
            "jaxpr": found.unknown,
            "in_specs": (*residual_specs, *forwarded, *_chosen(in_specs, unknown)),
            "out_specs": _chosen(out_specs, [not k for k in split.out_known]),
        }
        later = trace.stage(op, operands, params)
    return split.merge(outs[:count], later)


class _MapSplit:
    """A split body whose residuals have a first dim to be concatenated along."""

    def __init__(self, split: Split, mesh: AbstractMesh, manual: frozenset[str]):
        self.split, self.consts = split, split.consts
        avals = split.residual_avals
        axes = [_residual_axes(a, mesh, manual) for a in avals]
        scalars = [bool(over) and not a.ndim for over, a in zip(axes, avals)]
        self.residual_specs = tuple(_residual_spec(over, a) for over, a in zip(axes, avals))
        self.known, self.unknown = split.known, split.unknown
        if any(scalars):
            self.known = _grown(split.known, [False] * (len(split.known.out_avals) - len(avals)) + scalars)
            self.unknown = _shrunk(split.unknown, scalars)


def _residual_axes(aval: ShapedArray, mesh: AbstractMesh, manual: frozenset[str]) -> tuple[str, ...]:
    """The axes over which instances' residuals are concatenated."""
    return mesh_order(mesh, manual & aval.vma if state.check_vma else manual - dividing_axes())


def _residual_spec(axes: tuple[str, ...], aval: ShapedArray) -> P:
    kinds = aval.manual
    return P.from_dims((axes,) if axes else (), kinds.unreduced, kinds.reduced)


def _grown(closed: ClosedJaxpr, scalars: Sequence[bool]) -> ClosedJaxpr:
    """The jaxpr with some scalar results as vectors of length one."""

    def f(*args: Any) -> list[Any]:
        outs = eval_jaxpr(closed.jaxpr, closed.consts, args)
        return [
            reshape(x, new_sizes=(1,), dimensions=None, sharding=None) if flag else x
            for x, flag in zip(outs, scalars, strict=True)
        ]

    return _again(f, closed.in_avals, closed)


def _shrunk(closed: ClosedJaxpr, scalars: Sequence[bool]) -> ClosedJaxpr:
    """The jaxpr that takes its first scalar inputs as vectors of length one."""
    flags = [*scalars, *[False] * (len(closed.in_avals) - len(scalars))]

    def f(*args: Any) -> list[Any]:
        scalar = [
            reshape(x, new_sizes=(), dimensions=None, sharding=None) if flag else x for x, flag in zip(args, flags)
        ]
        return eval_jaxpr(closed.jaxpr, closed.consts, scalar)

    avals = [a.update(shape=(1,)) if flag else a for a, flag in zip(closed.in_avals, flags)]
    return _again(f, avals, closed)


def _again(f: Any, avals: Sequence[ShapedArray], closed: ClosedJaxpr) -> ClosedJaxpr:
    return Derived(trace_to_jaxpr(f, avals, name=closed.jaxpr.debug_name, record_source=False)).jaxpr


_cache = DerivedCache()


def _split(jaxpr: ClosedJaxpr, unknown: tuple[bool, ...], mesh: AbstractMesh, manual: frozenset[str]) -> _MapSplit:
    key = ("split", jaxpr, unknown, mesh, manual)
    return _cache.get(key, lambda: _MapSplit(partial_eval_jaxpr(jaxpr, unknown), mesh, manual))


def map_kept(eqn: Eqn, policy: Policy, needed: Sequence[bool]) -> Kept | None:
    """What a policy keeps in the body leaves the map, and enters it again, as residuals do."""
    params = eqn.params
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    found = kept_body(params["jaxpr"], policy, needed)
    if found is None:
        return None
    forward, again = found.forward, found.again
    avals = [v.aval for v in found.saved]
    with inside(mesh, manual, params["check_vma"]):
        axes = [_residual_axes(a, mesh, manual) for a in avals]
        specs = tuple(_residual_spec(over, a) for over, a in zip(axes, avals))
        scalars = [bool(over) and not a.ndim for over, a in zip(axes, avals)]
        if any(scalars):
            forward = _grown(forward, [False] * len(eqn.outvars) + scalars)
            again = _shrunk(again, scalars)
    now = params | {"jaxpr": forward, "out_specs": (*params["out_specs"], *specs)}
    assert eqn.op.infer is not None, "maps have types of their own"
    types = eqn.op.infer([v.aval for v in eqn.invars], mesh, **now)[len(eqn.outvars) :]
    saved = tuple(Var(a) for a in types)
    outs = [v for v, flag in zip(eqn.outvars, needed) if flag]
    then = params | {
        "jaxpr": again, "in_specs": (*specs, *params["in_specs"]), "out_specs": _chosen(params["out_specs"], needed),
    }  # fmt: skip
    return Kept(
        eqn.replace(outvars=(*eqn.outvars, *saved), params=now),
        eqn.replace(invars=(*saved, *eqn.invars), outvars=outs, params=then),
        saved,
    )


# -- backwards -------------------------------------------------------------------------------------------------


def map_transpose(
    op: Op,
    cts: Sequence[Any],
    *args: Any,
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    newly_manual_axes: frozenset[str],
    check_vma: bool,
    in_specs: Specs,
    out_specs: Specs,
) -> list[Any]:
    linear = tuple(isinstance(a, Linear) for a in args)
    nonzero = tuple(not isinstance(ct, Zero) for ct in cts)
    with inside(mesh, newly_manual_axes, check_vma):
        body = _Body(jaxpr, linear, nonzero, mesh, newly_manual_axes, in_specs, out_specs)
        key = ("transpose", jaxpr, linear, nonzero, mesh, newly_manual_axes, in_specs, out_specs)
        derived = _cache.get(key, body.transposed)
    ct_in = tuple(s.to_ct_spec() for s in _chosen(out_specs, nonzero))
    ct_out = _chosen(tuple(s.to_ct_spec() for s in _chosen(in_specs, linear)), derived.nonzero)
    outs = op(
        *derived.consts,
        *(a for a in args if not isinstance(a, Linear)),
        *(ct for ct in cts if not isinstance(ct, Zero)),
        jaxpr=derived.jaxpr,
        mesh=mesh,
        newly_manual_axes=newly_manual_axes,
        check_vma=check_vma,
        in_specs=(*_whole(derived.consts), *_chosen(in_specs, [not flag for flag in linear]), *ct_in),
        out_specs=ct_out,
    )
    return cotangents_of(outs, derived.nonzero, args)


class _Body:
    """The transposed body of a map."""

    def __init__(
        self,
        jaxpr: ClosedJaxpr,
        linear: tuple[bool, ...],
        nonzero: tuple[bool, ...],
        mesh: AbstractMesh,
        manual: frozenset[str],
        in_specs: Specs,
        out_specs: Specs,
    ):
        self.jaxpr, self.linear, self.nonzero = jaxpr, linear, nonzero
        self.mesh, self.manual, self.in_specs, self.out_specs = mesh, manual, in_specs, out_specs

    def transposed(self) -> TransposedJaxpr:
        avals, out_avals = self.jaxpr.in_avals, self.jaxpr.out_avals
        known = [a for a, flag in zip(avals, self.linear) if not flag]
        live = [cotangent_aval(a) for a, flag in zip(out_avals, self.nonzero) if flag]
        found: list[tuple[bool, ...]] = []

        def f(*flat: Any) -> list[Any]:
            given = iter(flat[len(known) :])
            cts = [
                self.entering(next(given), s) if flag else Zero(cotangent_aval(a))
                for flag, a, s in zip(self.nonzero, out_avals, self.out_specs)
            ]
            outs = transpose_call(self.jaxpr, self.linear, flat[: len(known)], cts)
            found.append(tuple(not isinstance(ct, Zero) for ct in outs))
            specs = _chosen(self.in_specs, self.linear)
            return [self.leaving(ct, s) for ct, s in zip(outs, specs) if not isinstance(ct, Zero)]

        closed = trace_to_jaxpr(f, [*known, *live], name=self.jaxpr.jaxpr.debug_name, record_source=False)
        return TransposedJaxpr(closed, found[0])

    def unmentioned(self, spec: P) -> tuple[str, ...]:
        mentioned = {a for axes in spec.dims for a in axes} | spec.unreduced | spec.reduced
        return mesh_order(self.mesh, self.manual - mentioned)

    def entering(self, ct: Any, spec: P) -> Any:
        """Without types: an unsplit result's cotangent counts once, not once on each instance."""
        axes = () if state.check_vma else self.unmentioned(spec)
        return div(ct, literal(axes_size(self.mesh, axes), ct.aval.dtype, True)) if axes else ct

    def leaving(self, ct: Any, spec: P) -> Any:
        """Without types: an input that is the same on instances gets the sum of their cotangents."""
        axes = () if state.check_vma else self.unmentioned(spec)
        return psum(ct, axes=axes, axis_index_groups=None) if axes else ct
