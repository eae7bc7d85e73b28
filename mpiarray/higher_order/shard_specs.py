"""shard_map's specs: what they must be, what they make of arguments and results, and the errors that say who, what, why, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr
from mpiarray.core.plan import axes_size, mesh_order
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of
from mpiarray.errors import DuplicateSpecError
from mpiarray.ops import manual as casts
from mpiarray.runtime.array import ArrayImpl
from mpiarray.runtime.eager import concrete_mesh
from mpiarray.runtime.placed import Placed
from mpiarray.types import tree
from mpiarray.types.aval import ManualAxisType, ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType, Mesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


class _Infer:
    """Read the specs from the arguments' types."""

    def __repr__(self) -> str:
        return "jax.sharding.Infer"


Infer = _Infer()


# -- meshes and axes ----------------------------------------------------------------------------------------


def map_mesh(mesh: Any, args: Any) -> AbstractMesh:
    """The abstract mesh that a call is over: the context's, which a given one must match."""
    context = state.abstract_mesh
    if mesh is None:
        if context.empty:
            raise ValueError(
                "The context mesh cannot be empty: use `jax.set_mesh(mesh)` before `jax.shard_map`, or pass `mesh=` to it"
            )
        return context
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(
            f"shard_map requires a `jax.sharding.Mesh` or a `jax.sharding.AbstractMesh` for its `mesh` argument, got {mesh!r} of type {type(mesh)}"
        )
    given = mesh.abstract_mesh
    if not context.empty and not given.same_axes(context):
        raise ValueError(f"The context mesh {context} should match the mesh passed to shard_map {mesh}")
    return given if context.empty else context


def manual_axes(mesh: AbstractMesh, names: frozenset[str]) -> tuple[str, ...]:
    """The axes that become manual, in mesh order."""
    taken = {a for axis in state.mapped for a in axis.spec}  # enclosing vmaps' mapped dims are sharded over these
    wanted = names or frozenset(
        a for a, t in zip(mesh.axis_names, mesh.axis_types) if t is not AxisType.Manual and a not in taken
    )
    if not wanted <= set(mesh.axis_names):
        raise ValueError(
            f"shard_map: axis_names={sorted(names)} needs to be a subset of the mesh's axis names {mesh.axis_names}"
        )
    if wanted & taken:
        raise ValueError(
            f"shard_map: axis {sorted(wanted & taken)[0]!r} cannot be marked as manual inside vmap: the mapped dimension is sharded over it; name the other axes"
        )
    again = [a for a in mesh.axis_names if a in wanted and mesh.axis_type_of[a] is AxisType.Manual]
    if again:
        raise ValueError(f"shard_map: axis {again[0]!r} is already manual in {mesh}; name the other axes in axis_names")
    return tuple(a for a in mesh.axis_names if a in wanted)


def concrete_mesh_of(call: Any) -> Mesh:
    """The devices of a call on arrays: the context's, else those of a given concrete mesh or of the arguments."""
    if not state.mesh.empty and state.mesh.size == call.outer.size:
        return concrete_mesh(call.outer, state.mesh.flat_ids)
    if isinstance(call.given_mesh, Mesh):
        return concrete_mesh(call.outer, call.given_mesh.flat_ids)
    for x in call.leaves:
        if isinstance(x, ArrayImpl) and x._placed.mesh is not None and x._placed.mesh.size == call.outer.size:
            return concrete_mesh(call.outer, x._placed.mesh.flat_ids)
    raise ValueError(
        f"shard_map over the abstract mesh {call.outer} needs a context mesh, or arguments that are `jax.Array`s with a `NamedSharding`, to know its devices"
    )


# -- what specs may be -----------------------------------------------------------------------------------------


def check_leaf_specs(found: Any, what: str, mesh: AbstractMesh, manual: Sequence[str]) -> None:
    """Every leaf must be a P that names manual axes only, each once."""
    if found is Infer or found is None:
        return
    for path, leaf in tree.leaves_with_path(found, is_leaf=lambda s: s is None):
        where = f"{what}{tree.keystr(path)}"
        if leaf is None:  # a static argument, or a result that is None
            continue
        if not isinstance(leaf, P):
            raise TypeError(
                f"shard_map {what} argument must be a pytree of `jax.sharding.PartitionSpec` instances, but {where} is {leaf!r} of type {type(leaf)}"
            )
        _check_axes(leaf, where, what, mesh, manual)


def _check_axes(spec: P, where: str, what: str, mesh: AbstractMesh, manual: Sequence[str]) -> None:
    named = [a for axes in spec.dims if isinstance(axes, tuple) for a in axes]
    if len(set(named)) != len(named):
        twice = next(a for a in named if named.count(a) > 1)
        raise DuplicateSpecError(
            f"A single {where} specification can map every mesh axis to at most one positional dimension, but {spec} has duplicate entries for `{twice}`"
        )
    for a in (*named, *sorted(spec.unreduced), *sorted(spec.reduced)):
        if a not in manual:
            raise ValueError(
                f"shard_map {what} specs must refer to an axis marked as manual, which here are {tuple(manual)} of the mesh {mesh}; "
                f"{what} refers to {a!r}, in {where}={spec}"
            )
    if spec.unreduced or spec.reduced:
        if set(manual) != set(mesh.axis_names):
            raise NotImplementedError(
                f"shard_map: unreduced and reduced in {where}={spec} need full manual mode, but only {tuple(manual)} are manual"
            )
        if not mesh.are_all_axes_explicit:
            raise ValueError(
                f"shard_map: unreduced and reduced in {where}={spec} need mesh axes that are all of type `Explicit`, got {mesh}"
            )


def split_static_arguments(args: tuple[Any, ...], in_specs: Any) -> tuple[list[Any], Any, dict[int, Any]]:
    """(leaves, structure, static arguments by position): where in_specs has None, the argument passes as it is."""
    if in_specs is None:
        static = dict(enumerate(args))
    elif isinstance(in_specs, (tuple, list)) and not isinstance(in_specs, P):
        static = {k: a for k, (a, s) in enumerate(zip(args, in_specs)) if s is None}
    else:
        static = {}
    dynamic = tuple(a for k, a in enumerate(args) if k not in static)
    leaves, structure = tree.flatten(dynamic)
    return leaves, structure, static


def join_static(structure: Any, blocks: Sequence[Any], static: dict[int, Any]) -> list[Any]:
    """The call's arguments with blocks in the places of arrays."""
    dynamic = list(tree.unflatten(structure, blocks))
    rest = iter(dynamic)
    return [static[k] if k in static else next(rest) for k in range(len(static) + len(dynamic))]


def argument_specs(call: Any, in_specs: Any) -> list[P]:
    """The spec of every argument leaf, given or inferred, checked against its type."""
    if in_specs is Infer:
        found = [_inferred(call, x) for x in call.leaves]
    else:
        check_leaf_specs(in_specs, "in_specs", call.outer, call.manual)
        found = _given(call, in_specs)
    for k, (x, s) in enumerate(zip(call.leaves, found)):
        _check_argument(call, k, x, s, given=in_specs is not Infer)
    return found


def _inferred(call: Any, x: Any) -> P:
    auto = [a for a in call.manual if call.outer.axis_type_of[a] is AxisType.Auto]
    if auto:
        raise TypeError(
            f"shard_map in_specs argument must be a pytree of `jax.sharding.PartitionSpec` instances, but it was `None` when axis_names={set(call.manual)} are of "
            f"type {AxisType.Auto}. Shardings on Auto axes are not in the types: say in_specs."
        )
    aval = aval_of(x)
    dims = []
    for axes in aval.sharding.spec.dims:
        mine = tuple(a for a in axes if a in call.manual)
        if mine and axes[: len(mine)] != mine:
            raise ValueError(
                f"Invalid spec: the argument of type {aval.str_short()} is sharded over {axes} in one dimension, of which only {mine} is manual and not first; "
                "reshard it, or give in_specs"
            )
        dims.append(mine)
    return P.from_dims(
        tuple(dims), aval.sharding.spec.unreduced & set(call.manual), aval.sharding.spec.reduced & set(call.manual)
    )


def _given(call: Any, in_specs: Any) -> list[P]:
    full = tree.unflatten(call.structure, range(len(call.leaves)))
    if isinstance(in_specs, P):
        return [in_specs] * len(call.leaves)
    if in_specs is None:
        return []
    prefix = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    if isinstance(prefix, tuple):
        total = len(full) + len(call.static)
        if len(prefix) != total:
            raise ValueError(
                f"pytree structure error: different lengths of tuple at key path shard_map in_specs: {len(prefix)} specs for {total} arguments of {call.name}"
            )
        prefix = tuple(s for s in prefix if s is not None)
    return tree.flatten_prefix(prefix, full, what="shard_map in_specs")


def _check_argument(call: Any, k: int, x: Any, spec: P, *, given: bool) -> None:
    aval = aval_of(x)
    if len(spec.dims) > aval.ndim:
        hint = " For a scalar use P()." if aval.ndim == 0 else ""
        raise ValueError(
            f"shard_map applied to the function {call.name!r} was given an in_specs entry which is too long to be compatible with the corresponding input value: "
            f"in_specs {spec} has length {len(spec.dims)}, but {call.argument_name(k)} has shape {aval.str_short()} and rank {aval.ndim}.{hint}"
        )
    own = aval.mesh
    if not own.empty and own.shape_tuple != call.outer.shape_tuple:
        raise ValueError(
            f"Mesh shape of the input {own.shape} does not match the mesh shape passed to shard_map {call.outer.shape} for {aval.str_short()}"
        )
    full = len(call.manual) == len(call.outer.axis_names)
    if given and full and call.outer.are_all_axes_explicit:
        have = aval.sharding.spec
        if have.dims != spec.padded(aval.ndim).dims or (have.unreduced, have.reduced) != (spec.unreduced, spec.reduced):
            raise ValueError(
                f"in_specs passed to shard_map: {spec.padded(aval.ndim)} does not match the specs of the input: {have} for arg: {aval.str_short()} ({call.argument_name(k)}). "
                "`in_specs` is optional on Explicit axes: leave it out, or `jax.reshard` the argument first."
            )
    for d, (n, axes) in enumerate(zip(aval.shape, spec.dims)):
        size = axes_size(call.outer, axes)
        if n % size:
            raise ValueError(
                f"shard_map applied to the function {call.name!r} was given argument arrays with axis sizes that are not evenly divisible by the corresponding mesh axis "
                f"sizes: {call.argument_name(k)} of type {aval.str_short()}, where array axis {d} (of size {n}) would be split over {axes} (of total size {size}) by in_specs {spec}"
            )


# -- types inside and outside ------------------------------------------------------------------------------------


def with_rest(call: Any, have: Placed, spec: P, aval: ShapedArray) -> P:
    """Where an argument must lie over all axes: its in_spec over the manual ones, as it is over the others."""
    dims = []
    for d, own in enumerate(have.spec.dims):
        mine = spec.dims[d] if d < len(spec.dims) else ()
        rest = tuple(a for a in own if a not in call.manual)
        size = axes_size(call.outer, (*mine, *rest))
        dims.append((*mine, *rest) if aval.shape[d] % size == 0 else mine)
    return P.from_dims(tuple(dims), have.spec.unreduced, have.spec.reduced) if have.spec.unreduced or have.spec.reduced else P.from_dims(
        tuple(dims), spec.unreduced, spec.reduced
    )  # fmt: skip


def block_aval(call: Any, aval: ShapedArray, spec: P) -> ShapedArray:
    """The type of an instance's block."""
    shape = list(aval.shape)
    for d, axes in enumerate(spec.dims):
        shape[d] //= axes_size(call.outer, axes)
    rest = (
        tuple(tuple(a for a in axes if a not in call.manual) for axes in aval.sharding.spec.dims)
        if not aval.mesh.empty
        else ((),) * aval.ndim
    )
    outer = aval.manual
    if call.check_vma:
        varying = frozenset(a for axes in spec.dims for a in axes)
        kinds = ManualAxisType(outer.varying | varying, outer.unreduced | spec.unreduced, outer.reduced | spec.reduced)
    else:
        kinds = ManualAxisType()
    return ShapedArray(tuple(shape), aval.dtype, aval.weak_type, NamedSharding(call.inner, P.from_dims(rest)), kinds)


def result_specs(call: Any, out: Any, leaves: Sequence[Any]) -> list[P]:
    if call.out_specs is None:
        if out is not None:
            raise ValueError(
                f"shard_map: out_specs is None, but {call.name} returned {type(out)}; out_specs must be a prefix of the result"
            )
        return []
    if isinstance(call.out_specs, P):
        return [call.out_specs] * len(leaves)
    return tree.flatten_prefix(call.out_specs, out, what="shard_map out_specs")


def check_result(call: Any, x: Any, spec: P, k: int) -> Any:
    """A result as its out_spec says: rank, replication, and casts of what is tiled."""
    aval = aval_of(x)
    if len(spec.dims) > aval.ndim:
        hint = " For scalars use P()." if aval.ndim == 0 and not aval.vma else ""
        hint = (
            " A scalar that varies needs a dimension to be laid out along: add at least one (singleton) axis, `x[None]`."
            if aval.ndim == 0 and aval.vma
            else hint
        )
        raise ValueError(
            f"shard_map applied to the function {call.name!r} was given an out_specs entry which is too long to be compatible with the corresponding output value: "
            f"out_specs {spec} has length {len(spec.dims)}, but the output has shape {aval.str_short()} and rank {aval.ndim}.{hint}"
        )
    if not call.check_vma:
        return x
    return _check_replication(call, x, aval, spec)


def _check_replication(call: Any, x: Any, aval: ShapedArray, spec: P) -> Any:
    mentioned = frozenset(a for axes in spec.dims for a in axes)
    kinds = aval.manual
    mine = frozenset(call.manual)
    present = (kinds.varying | kinds.unreduced | kinds.reduced) & mine
    bad = present - mentioned - spec.unreduced - spec.reduced
    if bad:
        raise ValueError(_replication_error(call, spec, present, bad))
    if spec.reduced - kinds.reduced:
        raise ValueError(
            f"shard_map: reduced in out_specs {spec} should be equal to the reduced present on the out_aval {aval.str_short()}"
        )
    missing = spec.unreduced - kinds.unreduced
    if missing:
        if not missing <= kinds.varying:
            raise ValueError(
                f"shard_map: unreduced in out_specs {spec} only accepts inputs that are varying over {sorted(missing)}, got {aval.str_short()}"
            )
        x = casts.vary_unreduced_cast(x, axes=mesh_order(call.inner, missing))
    tiled = mentioned - aval_of(x).vma
    if tiled:
        reduced = tiled & kinds.reduced
        if reduced:
            x = casts.reduced_vary_cast(x, axes=mesh_order(call.inner, reduced))
        if tiled - reduced:
            x = casts.pvary(x, axes=mesh_order(call.inner, tiled - reduced))
    return x


def _replication_error(call: Any, spec: P, present: frozenset[str], bad: frozenset[str]) -> str:
    ordered = [a for a in call.outer.axis_names if a in bad]
    if len(ordered) == 1 and len(present) == 1:
        what = (
            f"out_specs is {spec} which implies that the corresponding output value is replicated across mesh axis {ordered[0]!r}, but could not infer replication over "
            "any axes"
        )
    else:
        need = tuple(a for a in call.outer.axis_names if a in {x for axes in spec.dims for x in axes})
        got = tuple(a for a in call.outer.axis_names if a in present)
        what = (
            f"out_specs is {spec} which implies that the corresponding output value is only varying across mesh axes {set(need) or '{}'} and not {set(ordered)}, but it was "
            f"inferred to be possibly varying over {got}"
        )
    return (
        f"shard_map applied to the function {call.name!r} was given out_specs which require replication which can't be statically inferred given the mesh: the mesh has "
        f"axis sizes {dict(call.outer.shape)} and axis names {call.outer.axis_names}. {what}. Check that these output values are meant to be replicated over those "
        "axes: sum, gather (`to='invarying'`) or slice them in the body, mention the axes in out_specs, or pass `check_vma=False` to `jax.shard_map`."
    )


def global_result(call: Any, aval: ShapedArray, spec: P, inner: P) -> tuple[ShapedArray, P]:
    """The global type of a result block, and where it lies over all axes (as written when only manual axes count)."""
    shape, dims = [], []
    padded = spec.padded(aval.ndim)
    typed = aval.sharding.spec.padded(aval.ndim) if not aval.mesh.empty else P(*(None,) * aval.ndim)
    for n, mine, rest in zip(aval.shape, padded.dims, inner.dims):
        shape.append(n * axes_size(call.outer, mine))
        dims.append((*mine, *rest))
    shown = tuple((*mine, *rest) for mine, rest in zip(padded.dims, typed.dims))
    kinds = aval.manual.update(
        varying=aval.manual.varying - set(call.manual), unreduced=aval.manual.unreduced - set(call.manual), reduced=aval.manual.reduced - set(call.manual)
    )  # fmt: skip
    sharding = NamedSharding(call.outer, P.from_dims(_explicit(call.outer, shown), spec.unreduced, spec.reduced))
    out = ShapedArray(tuple(shape), aval.dtype, aval.weak_type, sharding, kinds)
    full = spec if not any(inner.dims) else P.from_dims(tuple(dims), spec.unreduced, spec.reduced)
    return out, full


def _explicit(mesh: AbstractMesh, dims: Any) -> Any:
    return tuple(tuple(a for a in axes if mesh.axis_type_of[a] is AxisType.Explicit) for axes in dims)


def closed_constant(call: Any, c: Any) -> Any:
    """A value that a staged body closes over: it must be whole on every instance."""
    aval = aval_of(c)
    if any(a in call.manual for axes in aval.sharding.spec.dims for a in axes) or aval.unreduced:
        raise NotImplementedError(
            f"Closing over inputs to shard_map where the input is sharded on `Explicit` axes is not implemented: got {aval.str_short()}. Pass it as an argument."
        )
    return c


def closed(jaxpr: Jaxpr) -> ClosedJaxpr:
    return ClosedJaxpr(jaxpr)
