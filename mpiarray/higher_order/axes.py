"""`auto_axes` and `explicit_axes`: functions inside which mesh axes have another type.

Arguments are retyped for the inner mesh (their data stay where they are, or move to `in_sharding`), results go to
`out_sharding` on the outer one.  Both are no more than a change of the context mesh and `reshard` at the borders.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpiarray.core.plan import spec_from
from mpiarray.core.trace import is_evaluating, meshes, state
from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.promotion import out_sharding as explicit_sharding
from mpiarray.ops import placement as ops
from mpiarray.runtime.array import ArrayImpl, from_host, on_context_mesh
from mpiarray.runtime.placed import placed
from mpiarray.types import tree
from mpiarray.types.mesh import AbstractMesh, AxisType, Mesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


def auto_axes(f: Callable[..., Any] | None = None, /, *, axes: Any = None, out_sharding: Any = None) -> Any:
    """Let the compiler choose shardings inside `f`.

    axes: which Explicit axes of the context mesh become Auto (default: all).  out_sharding: P or NamedSharding (pytree prefix of the
    result), here or at the call; required.  Positional arguments are retyped; closures and keyword arguments keep the outer mesh.

        add = jax.sharding.auto_axes(lambda x, y: x + y)
        add(x, y, out_sharding=jax.P('x', None))
    """
    if f is None:
        return functools.partial(auto_axes, axes=axes, out_sharding=out_sharding)
    given = out_sharding

    @functools.wraps(f, updated=())
    def wrapped(*args: Any, out_sharding: Any = None, **kwargs: Any) -> Any:
        wanted = given if out_sharding is None else out_sharding
        if wanted is None:
            raise TypeError("Missing required keyword argument: 'out_sharding' of a function made by `auto_axes`")
        outer = _context("auto_axes")
        inner = _retyped(outer, axes, AxisType.Auto)
        if inner is outer:
            return f(*args, **kwargs)
        retyped = tree.map(lambda x: retype(x, inner), args)
        with _under(inner):
            out = f(*retyped, **kwargs)
        return _leave(out, wanted, outer, "auto_axes out_sharding")

    return wrapped


def explicit_axes(f: Callable[..., Any] | None = None, /, *, axes: Any = None, in_sharding: Any = None) -> Any:
    """Make shardings part of the types inside `f`.

    axes: which Auto axes of the context mesh become Explicit (default: all).  in_sharding: spec of the positional arguments, or a tuple
    of specs (pytree prefixes), here or at the call; required.  Results are retyped for the outer mesh and stay where they are.
    """
    if f is None:
        return functools.partial(explicit_axes, axes=axes, in_sharding=in_sharding)
    given = in_sharding

    @functools.wraps(f, updated=())
    def wrapped(*args: Any, in_sharding: Any = None, **kwargs: Any) -> Any:
        wanted = given if in_sharding is None else in_sharding
        if wanted is None:
            raise TypeError("Missing required keyword argument: 'in_sharding' of a function made by `explicit_axes`")
        outer = _context("explicit_axes")
        inner = _retyped(outer, axes, AxisType.Explicit)
        if inner is outer:
            return f(*args, **kwargs)
        leaves, structure = tree.flatten(args)
        specs = (
            [wanted] * len(leaves)
            if isinstance(wanted, (P, NamedSharding))
            else tree.flatten_prefix(tuple(wanted), args, what="explicit_axes in_sharding")
        )
        with _under(inner):
            moved = [
                ops.reshard(retype(x, inner), dst_sharding=explicit_sharding(s, aval_of(x).shape, "explicit_axes"))
                for x, s in zip(leaves, specs)
            ]
            out = f(*tree.unflatten(structure, moved), **kwargs)
        return tree.map(lambda x: retype(x, outer), out)

    return wrapped


def _context(what: str) -> AbstractMesh:
    mesh = state.abstract_mesh
    if mesh.empty:
        raise ValueError(f"{what}: the context mesh cannot be empty. Use `jax.set_mesh`.")
    return mesh


def _retyped(mesh: AbstractMesh, axes: Any, kind: AxisType) -> AbstractMesh:
    from_kind = AxisType.Explicit if kind is AxisType.Auto else AxisType.Auto
    types = dict(zip(mesh.axis_names, mesh.axis_types))
    names = mesh.axis_names if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    unknown = [a for a in names if a not in types]
    if unknown:
        raise ValueError(f"axes {unknown} are not in the mesh {mesh}")
    manual = [a for a in names if axes is not None and types[a] is AxisType.Manual]
    if manual:
        raise NotImplementedError(
            f"axes {manual} of {mesh} are Manual inside shard_map: they cannot become {kind.name}"
        )
    change = {a: kind for a in names if types[a] is from_kind}
    return mesh.update_axis_types(change) if change else mesh


def _under(mesh: AbstractMesh) -> Any:
    concrete: Mesh = state.mesh
    if not concrete.empty and concrete.axis_names == mesh.axis_names and concrete.axis_sizes == mesh.axis_sizes:
        concrete = concrete.update(axis_types=mesh.axis_types)
    return meshes(mesh, concrete)


def retype(x: Any, mesh: AbstractMesh) -> Any:
    """A value as the mesh `mesh` types it; data stay where they are."""
    if isinstance(x, ArrayImpl) and is_evaluating():
        return _retype_concrete(x, mesh)
    aval = aval_of(x)
    if not isinstance(x, Value) or aval.mesh.empty:
        return x
    dims = [tuple(a for a in axes if a in mesh.explicit_axes) for axes in aval.sharding.spec.dims]
    spec = spec_from(dims, aval.sharding.spec.unreduced, aval.sharding.spec.reduced)
    with meshes(mesh, state.mesh):
        with_mesh = NamedSharding(mesh, spec)
        return _bind_reshard(x, with_mesh)


def _bind_reshard(x: Any, sharding: NamedSharding) -> Any:
    own = aval_of(x).mesh
    with meshes(own, state.mesh):
        return ops.reshard(x, dst_sharding=sharding)


def _retype_concrete(x: ArrayImpl, mesh: AbstractMesh) -> ArrayImpl:
    x._check_alive()
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding):
        return x
    concrete = sharding.mesh.update(axis_types=mesh.axis_types) if sharding.mesh.axis_names == mesh.axis_names else None
    if concrete is None:
        return x
    new = NamedSharding(concrete, sharding.spec)
    dims = [tuple(a for a in axes if a in mesh.explicit_axes) for axes in x._placed.spec.dims]
    aval = x.aval.update(sharding=NamedSharding(mesh, spec_from(dims, x.aval.unreduced, x.aval.reduced)))
    return ArrayImpl(placed(aval, new, True, x._placed.order, x._placed.pinned), x._block)


def _leave(out: Any, wanted: Any, outer: AbstractMesh, what: str) -> Any:
    leaves, structure = tree.flatten(out)
    full = tree.unflatten(structure, range(len(leaves)))
    specs = (
        [wanted] * len(leaves)
        if isinstance(wanted, (P, NamedSharding))
        else tree.flatten_prefix(wanted, full, what=what)
    )
    done = []
    for x, s in zip(leaves, specs):
        sharding = explicit_sharding(s, aval_of(x).shape, "auto_axes")
        assert sharding is not None, "out_sharding is required"
        value = x if isinstance(x, Value) else on_context_mesh(from_host(x))
        done.append(_to_outer(value, sharding, outer))
    return tree.unflatten(structure, done)


def _to_outer(x: Any, sharding: NamedSharding, outer: AbstractMesh) -> Any:
    """Back on the outer mesh: retype what lies there already, then reshard."""
    if aval_of(x).mesh.empty:
        return ops.reshard(x, dst_sharding=sharding)
    if isinstance(x, ArrayImpl) and is_evaluating():
        return ops.reshard(_retype_concrete(x, outer), dst_sharding=sharding)
    return _bind_reshard(x, sharding)
