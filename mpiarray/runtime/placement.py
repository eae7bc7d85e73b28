"""`device_put`, `reshard`, `with_sharding_constraint`: where values go, for arrays and tracers, leaf by leaf of a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.trace import is_evaluating, state
from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.host import set_place
from mpiarray.numpy.promotion import out_sharding
from mpiarray.ops import placement as ops
from mpiarray.runtime.array import ArrayImpl, from_host
from mpiarray.runtime.context import resolve
from mpiarray.runtime.transfer import move
from mpiarray.types import tree
from mpiarray.types.layout import Format, Layout
from mpiarray.types.mesh import Device
from mpiarray.types.partition_spec import UNCONSTRAINED
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding, Sharding, SingleDeviceSharding, check_rank, check_spec

_ACCEPTED = "a PartitionSpec, a Sharding, a Format (layout and sharding), a device, None, or a pytree of these that is a prefix of the value"


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """The value placed on devices.

    x: array, numpy array, scalar, or a pytree of them.  device: where, see below, or a pytree prefix of such.  `P` needs a context
    mesh; a NamedSharding may be on any mesh; a device or SingleDeviceSharding holds the whole array; a Format also says
    the memory order; None keeps arrays where they are.  donate: delete `x` afterwards.

    Collective over the union of both device sets when data moves between ranks; from host values nothing is sent (they must be
    equal on all ranks).  Raises ValueError for what is no placement, sizes that do not divide, unknown or repeated axes.
    """
    leaves, structure = tree.flatten(x)
    targets = _prefix(device, x, "device_put")
    out = [_put(leaf, target) for leaf, target in zip(leaves, targets)]
    if donate:
        for leaf, new in zip(leaves, out):
            if isinstance(leaf, ArrayImpl) and leaf is not new and leaf._placed is not new._placed:
                leaf.delete()
    return tree.unflatten(structure, out)


set_place(device_put)


def _is_target(t: Any) -> bool:
    return t is None or isinstance(t, (P, Sharding, Format, Device, Layout))


def _prefix(targets: Any, full: Any, what: str) -> list[Any]:
    if _is_target(targets):
        return [targets] * len(tree.leaves(full))
    return tree.flatten_prefix(targets, full, what=what, is_leaf=lambda t: t is None)


def _put(x: Any, target: Any) -> Any:
    sharding, layout = _target(target, "device_put")
    if not is_evaluating() or (isinstance(x, Value) and not isinstance(x, ArrayImpl)):
        return _put_traced(x, sharding, layout, target)
    concrete = x if isinstance(x, ArrayImpl) else from_host(x)
    if sharding is None:
        return concrete
    order = None
    if layout is not None:
        order = _order(layout, concrete.ndim, concrete.shape)
    elif isinstance(target, (Device, SingleDeviceSharding)):
        order = concrete._placed.order
    return move(concrete, sharding, order, pinned=True)


def _order(layout: Any, ndim: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if layout is Layout.AUTO:
        raise ValueError("device_put: sharding and layout in `Layout` instance should be concrete. Got Layout.AUTO")
    if len(layout.major_to_minor) != ndim:
        raise ValueError(
            "device_put: Length of major_to_minor and the rank of the value should match. "
            f"Got major_to_minor={layout.major_to_minor} and shape={shape}"
        )
    return tuple(layout.major_to_minor)


def _target(target: Any, what: str) -> tuple[Any, Any]:
    """What a user's placement means: a sharding and a layout."""
    if target is None:
        return None, None
    if isinstance(target, P):
        return resolve(target, what), None
    if isinstance(target, Device):
        return SingleDeviceSharding(target), None
    if isinstance(target, Format):
        if target.sharding is None:
            raise ValueError(f"{what}: sharding and layout in `Layout` instance should be concrete. Got {target}")
        return target.sharding, target.layout
    if isinstance(target, Sharding):
        return target, None
    raise ValueError(f"{what} takes {_ACCEPTED}. Got {target!r} of type {type(target)}")


def _put_traced(x: Any, sharding: Any, layout: Any, target: Any) -> Any:
    """Under a transformation device_put is a reshard, or a constraint on Auto axes."""
    if sharding is None:
        return x
    if isinstance(sharding, SingleDeviceSharding):
        if any(True for _ in state.abstract_mesh.manual_axes):
            raise ValueError(f"device_put with an explicit device is not allowed within shard_map: got {target}")
        return x
    if sharding.mesh.are_all_axes_explicit:
        x = reshard(x, target if isinstance(target, P) else sharding)
    else:
        x = with_sharding_constraint(x, sharding)
    if layout is not None:
        _order(layout, aval_of(x).ndim, aval_of(x).shape)
        x = ops.layout_constraint(x, layout=layout)
    return x


def reshard(xs: Any, out_shardings: Any) -> Any:
    """The values with another sharding in their types, over Explicit axes; data moves as needed.

    xs: array or pytree; out_shardings: P, NamedSharding, or a pytree prefix of them.  Differentiable.  Collective when data moves.
    Raises ValueError for Auto or Manual axes, a missing mesh, sizes that do not divide; TypeError for what is no sharding.
    """
    leaves, structure = tree.flatten(xs)
    targets = _prefix(out_shardings, xs, "reshard")
    return tree.unflatten(structure, [_reshard(x, t) for x, t in zip(leaves, targets)])


def _reshard(x: Any, target: Any) -> Any:
    aval = aval_of(x)
    if target is None:
        raise ValueError("reshard: the sharding cannot be None; pass a PartitionSpec or a NamedSharding")
    if isinstance(target, NamedSharding) and is_evaluating() and isinstance(x, (ArrayImpl, np.ndarray, np.generic)):
        other = not state.abstract_mesh.empty and not target.mesh.abstract_mesh.same_axes(state.abstract_mesh)
        if other or state.abstract_mesh.empty:
            wanted = NamedSharding(
                target.mesh, target.spec.padded(aval.ndim) if len(target.spec.dims) <= aval.ndim else target.spec
            )
            _explicit_only(wanted, "reshard")
            return move(x if isinstance(x, ArrayImpl) else from_host(x), wanted)
    if isinstance(target, P) and state.abstract_mesh.empty:
        raise ValueError(
            f"reshard: got {target}, but you are not under a mesh context. Use `jax.set_mesh`, or pass a NamedSharding."
        )
    return ops.reshard(x, dst_sharding=out_sharding(target, aval.shape, "reshard"))


def _explicit_only(sharding: NamedSharding, what: str) -> None:
    bad = [a for axes in sharding.spec.dims for a in axes if a not in sharding.mesh.explicit_axes]
    if bad:
        raise ValueError(
            f"PartitionSpec {sharding.spec} passed to {what} cannot contain axis names that are of type Auto or Manual: {bad}"
        )


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """On Auto axes: lay the values out so.  On Explicit ones: assert that their types say so.

    x: array or pytree; shardings: P, NamedSharding (or a pytree prefix); `P.UNCONSTRAINED` leaves a dim as it is.
    Raises AssertionError where an Explicit type differs, ValueError for axes of the wrong kind.
    """
    leaves, structure = tree.flatten(x)
    targets = _prefix(shardings, x, "with_sharding_constraint")
    return tree.unflatten(structure, [_constrain(leaf, t) for leaf, t in zip(leaves, targets)])


def _constrain(x: Any, target: Any) -> Any:
    if target is None:
        return x
    layout = None
    if isinstance(target, Format):
        target, layout = target.sharding, target.layout
    aval = aval_of(x)
    mesh = state.abstract_mesh
    if isinstance(target, SingleDeviceSharding):
        return x
    if isinstance(target, NamedSharding):
        given, spec = target.mesh.abstract_mesh, target.spec
        mesh = given if mesh.empty or not given.same_axes(mesh) else mesh
    elif isinstance(target, P):
        spec = target
        if mesh.empty:
            raise RuntimeError(
                f"with_sharding_constraint requires a non-empty mesh in context if you are passing PartitionSpecs: got {target}. Use `jax.set_mesh`."
            )
    else:
        raise ValueError(
            f"with_sharding_constraint takes a PartitionSpec or a NamedSharding. Got {target!r} of type {type(target)}"
        )
    check_spec(mesh, spec, where="with_sharding_constraint: ")
    check_rank(spec, aval.ndim, "with_sharding_constraint: spec")
    padded = spec.padded(aval.ndim)
    if mesh.are_all_axes_explicit:
        return _assert_sharding(x, padded)
    _auto_only(mesh, spec)
    free = frozenset(d for d, axes in enumerate(padded.dims) if axes is UNCONSTRAINED)
    wanted = NamedSharding(
        mesh,
        P.from_dims(
            tuple(() if d in free else axes for d, axes in enumerate(padded.dims)), spec.unreduced, spec.reduced
        ),
    )
    own = aval.dims if aval.mesh.shape_tuple == mesh.shape_tuple else ((),) * aval.ndim
    together = [tuple(a for a in have if a not in want) + want for have, want in zip(own, wanted.spec.dims)]
    NamedSharding(mesh, P.from_dims(tuple(together))).shard_shape(aval.shape)  # raises where a dim does not divide
    if isinstance(x, np.ndarray) or (
        isinstance(x, ArrayImpl) and is_evaluating() and state.mesh.empty and isinstance(target, NamedSharding)
    ):
        return move(x if isinstance(x, ArrayImpl) else from_host(x), target)
    out = ops.sharding_constraint(
        x, sharding=wanted, unconstrained_dims=free, layout=None, context_mesh=state.abstract_mesh
    )
    return out if layout is None else ops.layout_constraint(out, layout=layout)


def _auto_only(mesh: Any, spec: P) -> None:
    bad = [a for axes in spec.dims if axes is not UNCONSTRAINED for a in axes if a not in mesh.auto_axes]
    if bad:
        raise ValueError(
            f"with_sharding_constraint: the spec {spec} can only refer to Auto axes, got {bad} in {mesh}. Use `jax.reshard` for Explicit axes."
        )


def _assert_sharding(x: Any, spec: P) -> Any:
    have = aval_of(x).sharding.spec
    for mine, want in zip(have.dims, spec.dims):
        if (want is not UNCONSTRAINED and mine != want) or (have.unreduced, have.reduced) != (
            spec.unreduced,
            spec.reduced,
        ):
            raise AssertionError(
                f"`with_sharding_constraint` acts as an assert when all axes of mesh are of type `Explicit`. The array sharding: {have} did not match "
                f"the sharding provided: {spec}. Please use `jax.reshard` to reshard your input to the sharding you want."
            )
    return x
