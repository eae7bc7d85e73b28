"""jit's `in_shardings` and `out_shardings`: what they ask of arguments and results.

On Explicit axes an `out_sharding` is a reshard that the staged program shows; on Auto axes it is where the compiled program
leaves its results.  Formats also say memory orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpiarray.core.plan import replicated
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of
from mpiarray.higher_order.layouts import auto_result_orders
from mpiarray.numpy.promotion import out_sharding as explicit_sharding
from mpiarray.ops import placement as ops
from mpiarray.runtime.array import ArrayImpl, relaid
from mpiarray.runtime.placed import Placed, placed, row_major
from mpiarray.runtime.transfer import move, target_aval
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray, ShapeDtypeStruct
from mpiarray.types.layout import Format, Layout
from mpiarray.types.mesh import Device
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding, Sharding, SingleDeviceSharding, check_rank, divisible_or_raise

if TYPE_CHECKING:
    from mpiarray.higher_order.jit_function import JitFunction, Staged


class _Unspecified:
    def __repr__(self) -> str:
        return "UNSPECIFIED"


UNSPECIFIED = _Unspecified()


class _Auto:
    """The sharding that the compiler chooses, for the whole program and by its cost model."""

    def __repr__(self) -> str:
        return "AUTO"


AUTO = _Auto()


class Target:
    """One leaf's sharding and layout, either of which may be None; `auto` where the compiler is to choose the sharding."""

    __slots__ = ("auto", "layout", "sharding")

    def __init__(self, sharding: Sharding | None, layout: Any, auto: bool = False):
        self.sharding, self.layout, self.auto = sharding, layout, auto


OPEN = Target(None, None)
CHOSEN = Target(None, None, auto=True)


def is_leaf(t: Any) -> bool:
    return t is None or t is UNSPECIFIED or t is AUTO or isinstance(t, (P, Sharding, Format))


def targets(given: Any, full: Any, what: str) -> list[Target]:
    """A user's prefix tree of shardings as one target per leaf of `full`."""
    if given is UNSPECIFIED or given is None:
        return [OPEN] * len(tree.leaves(full))
    if is_leaf(given):
        found = [given] * len(tree.leaves(full))
    else:
        found = tree.flatten_prefix(given, full, what=what, is_leaf=is_leaf)
    return [_target(t, what) for t in found]


def _target(t: Any, what: str) -> Target:
    if t is None or t is UNSPECIFIED:
        return OPEN
    if t is AUTO:
        return CHOSEN
    if isinstance(t, P):
        if state.mesh.empty:
            if state.abstract_mesh.empty:
                raise RuntimeError(
                    f"{what}: jit requires a non-empty mesh in context if you are passing PartitionSpecs: got {t}. Use `jax.set_mesh`."
                )
            return Target(NamedSharding(state.abstract_mesh, t), None)
        return Target(NamedSharding(state.mesh, t), None)
    if isinstance(t, Format):
        return Target(t.sharding, t.layout)
    if isinstance(t, Sharding):
        return Target(t, None)
    raise ValueError(
        f"{what}: expected a PartitionSpec, a Sharding, a Format, AUTO or None, got {t!r} of type {type(t)}"
    )


# -- arguments ------------------------------------------------------------------------------------------


def argument_targets(function: JitFunction, dynamic: Any, named: Any) -> list[Target]:
    if function._in is UNSPECIFIED:
        return [OPEN] * len(tree.leaves((dynamic, named)))
    if named:
        raise ValueError(
            f"jit of {function._name} does not support kwargs when in_shardings is specified: got {sorted(named)}"
        )
    given = function._in
    return targets(tuple(given) if isinstance(given, list) else given, tuple(dynamic), "jit in_shardings")


def has_auto(given: Any) -> bool:
    """Whether a user's tree of shardings leaves any to the compiler."""
    return given is AUTO or any(t is AUTO for t in tree.leaves(given, is_leaf=is_leaf))


def place_arguments(function: JitFunction, leaves: Sequence[ArrayImpl], dynamic: Any, named: Any) -> list[ArrayImpl]:
    """Committed arguments must be where in_shardings says; others are put there."""
    wanted = argument_targets(function, dynamic, named)
    return [_place(function._name, x, t) for x, t in zip(leaves, wanted)]


def _place(name: str, x: ArrayImpl, t: Target) -> ArrayImpl:
    check_layout(name, x, t.layout, "passed to jit")
    if t.sharding is None:
        return x
    if isinstance(t.sharding, NamedSharding):
        check_rank(t.sharding.spec, x.ndim, f"jit in_shardings: Sharding {t.sharding}")
        divisible_or_raise(x.shape, t.sharding, where="jit in_shardings: ")
    if x.committed:
        if not x.sharding.is_equivalent_to(t.sharding, x.ndim):
            raise ValueError(
                f"Sharding passed to jit does not match the sharding on the respective arg. Got sharding: {t.sharding}, arg sharding: {x.sharding} "
                f"for arg type {x.aval.str_short()} of {name}. Move it with `jax.device_put`, or leave in_shardings out."
            )
        return x
    if isinstance(t.sharding, NamedSharding) and t.sharding.mesh.are_all_axes_explicit:
        return x  # its type stays unsharded (sharding_rules.md 21), so that its data stay whole too
    return move(x, t.sharding, None if t.layout in (None, Layout.AUTO) else tuple(t.layout.major_to_minor))


def check_layout(name: str, x: ArrayImpl, layout: Any, where: str) -> None:
    """Raise ValueError where a layout does not fit an argument's rank, or differs from a pinned one."""
    if layout is None or layout is Layout.AUTO:
        return
    order = tuple(layout.major_to_minor)
    if len(order) != x.ndim:
        raise ValueError(
            f"One of the arguments of {name} is incompatible with its layout annotation {layout}: Length of major_to_minor and the rank of the value "
            f"should match. Got major_to_minor={order} and shape={x.shape}"
        )
    if pinned(x) and order != x._placed.order:
        raise ValueError(
            f"Layout {where} does not match the layout on the respective arg: got layout {layout}, but the argument of type {x.aval.str_short()} has "
            f"{x.format.layout}. Use `jax.device_put` with a Format."
        )


def pinned(x: ArrayImpl) -> bool:
    """Whether an argument's memory order counts: it was asked for, or the array is committed without a mesh."""
    return x._placed.pinned or (x.committed and isinstance(x.sharding, SingleDeviceSharding))


def traced_aval(x: Any) -> ShapedArray:
    """The type that a function is traced for: of an array, or of a ShapeDtypeStruct."""
    if not isinstance(x, ShapeDtypeStruct):
        return aval_of(x)
    plain = ShapedArray(x.shape, x.dtype, x.weak_type)
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding):
        return plain
    divisible_or_raise(x.shape, sharding, where="ShapeDtypeStruct: ")
    return target_aval(plain, sharding)


# -- results ---------------------------------------------------------------------------------------------


def result_targets(function: JitFunction, out_tree: Any) -> list[Target]:
    count = out_tree.num_leaves
    if function._out is UNSPECIFIED or function._out is None:
        return [OPEN] * count
    given = function._out
    full = tree.unflatten(out_tree, range(count))
    if isinstance(given, list) and isinstance(full, tuple):
        given = tuple(given)
    return targets(given, full, "jit out_shardings")


def place_results(function: JitFunction, outs: Sequence[Any], out_tree: Any) -> list[Any]:
    """While tracing: results on Explicit axes are resharded, those with a layout get it."""
    return [_place_result(x, t) for x, t in zip(outs, result_targets(function, out_tree))]


def _place_result(x: Any, t: Target) -> Any:
    aval = aval_of(x)
    s = t.sharding
    if isinstance(s, NamedSharding):
        check_rank(s.spec, aval.ndim, f"jit out_shardings: Sharding {s}")
        divisible_or_raise(aval.shape, s, where="jit out_shardings: ")
        mesh = s.mesh.abstract_mesh
        if mesh.are_all_axes_explicit and (state.abstract_mesh.empty or mesh.same_axes(state.abstract_mesh)):
            x = ops.reshard(x, dst_sharding=explicit_sharding(s, aval.shape, "jit out_shardings"))
    if isinstance(t.layout, Layout) and len(t.layout.major_to_minor) != aval.ndim:
        raise ValueError(
            "jit out_shardings: Length of major_to_minor and the rank of the value should match. "
            f"Got major_to_minor={t.layout.major_to_minor} and shape={aval.shape}"
        )
    return x


def open_layouts(wanted: Sequence[Target]) -> list[int]:
    """The numbers of the results whose memory order is ours to choose."""
    return [k for k, t in enumerate(wanted) if t.layout is Layout.AUTO]


def result_specs(function: JitFunction, staged: Staged) -> list[P | None]:
    """Where the compiled program must leave each result; None: where it falls."""
    out: list[P | None] = []
    for aval, t in zip(staged.out_avals, result_targets(function, staged.out_tree)):
        fixed = isinstance(t.sharding, NamedSharding) and not t.sharding.mesh.are_all_axes_explicit
        out.append(t.sharding.spec.padded(aval.ndim) if fixed else None)  # type: ignore[union-attr]
    return out


def shown_results(function: JitFunction, staged: Staged, outs: Sequence[Placed]) -> tuple[Placed, ...]:
    """Results' metadata with shardings as the user wrote them and the layouts asked for."""
    wanted = result_targets(function, staged.out_tree)
    preferred = auto_result_orders(staged.jaxpr.jaxpr, open_layouts(wanted))
    found = []
    for k, (p, t) in enumerate(zip(outs, wanted)):
        order: tuple[int, ...] = p.order
        if t.layout is Layout.AUTO:
            order = preferred[k]
        elif t.layout is not None:
            order = tuple(t.layout.major_to_minor)
        sharding = p.sharding
        if (
            isinstance(t.sharding, NamedSharding)
            and isinstance(sharding, NamedSharding)
            and t.sharding.mesh.size == sharding.mesh.size
        ):
            sharding = NamedSharding(sharding.mesh, t.sharding.spec)
        found.append(placed(p.aval, sharding, p.committed, order, t.layout is not None))
    return tuple(found)


def in_order(block: np.ndarray, p: Placed) -> np.ndarray:
    """A result block in the memory order of its metadata."""
    return block if p.order == row_major(block.ndim) else relaid(block, p.order)


def devices_for(
    name: str,
    function: JitFunction,
    out_tree: Any,
    args: Sequence[Placed],
    common: Callable[..., tuple[int, ...] | None],
) -> tuple[int, ...] | None:
    """The devices a call runs on.  One device that all placements name wins over the context mesh (layout.md 4)."""
    singles = {p.ids for p in args if p.committed and isinstance(p.sharding, SingleDeviceSharding)}
    named = [p for p in args if p.committed and isinstance(p.sharding, NamedSharding)]
    for t in result_targets(function, out_tree):
        if isinstance(t.sharding, SingleDeviceSharding):
            singles.add((device_id(t.sharding),))
        elif (
            isinstance(t.sharding, NamedSharding)
            and hasattr(t.sharding.mesh, "flat_ids")
            and state.mesh.empty
            and not named
            and not singles
        ):
            return t.sharding.mesh.flat_ids
    if len(singles) == 1 and all(is_spread_copy(p) for p in named):
        return singles.pop()
    return common(name, args)


def one_device(function: JitFunction, leaves: Sequence[Any]) -> int | None:
    """The device that all placements of a call name, where they name just one: it wins over the context mesh (layout.md 4).

    leaves: arrays and ShapeDtypeStructs.
    """
    named: set[int] = set()
    spread: list[Placed] = []
    for x in leaves:
        if isinstance(x, ArrayImpl) and not x.committed:
            continue
        if isinstance(x.sharding, SingleDeviceSharding):
            named.add(device_id(x.sharding))
        elif isinstance(x, ArrayImpl) and is_spread_copy(x._placed):
            spread.append(x._placed)
        elif x.sharding is not None:
            return None
    for given in (function._in, function._out):
        for t in tree.leaves(given, is_leaf=is_leaf):
            sharding = t.sharding if isinstance(t, Format) else t
            if isinstance(sharding, SingleDeviceSharding):
                named.add(device_id(sharding))
            elif sharding is not None and sharding is not UNSPECIFIED and sharding is not AUTO:
                return None
    if len(named) != 1 or not all(named <= set(p.ids or ()) for p in spread):
        return None
    return named.pop()


def device_id(sharding: SingleDeviceSharding) -> int:
    return next(iter(sharding.device_set)).id


def on_one(p: Placed, device: int) -> Placed:
    """The metadata of an argument of a call that runs on one device."""
    if not p.committed:
        return p
    aval = ShapedArray(p.aval.shape, p.aval.dtype, p.aval.weak_type)
    return placed(aval, SingleDeviceSharding(Device(device)), True, p.order, p.pinned)


def is_spread_copy(p: Placed) -> bool:
    """A replicated value that nobody placed by hand: it may be read on any of its devices."""
    return p.sharding.is_fully_replicated and not p.pinned and p.spec == replicated(p.aval.ndim)
