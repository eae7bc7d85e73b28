"""Where a product is computed: the sharding rule of `dot_general` and its communication.

Every mesh axis plays one role in a product: it divides a batch dim, a free dim of one side, a contracting dim (a sum is
then pending), or nothing.  Mostly the operands say which one.  Where they disagree with each other or with the
result's sharding, all roles are tried and the fewest bytes win.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from mpiarray.core import redistribution as rd
from mpiarray.core.plan import (
    Dims,
    Pending,
    Plan,
    axes_size,
    dims_of,
    entry,
    has_duplicates,
    mesh_order,
    spec_from,
    used_axes,
)
from mpiarray.errors import IndivisibleError, ShardingTypeError
from mpiarray.ops.dot_kernel import DimensionNumbers, free_dims
from mpiarray.types import dtypes

_MOST_LAYOUTS = 256
_MESSAGE = 1024  # bytes that could be sent in the time that a message takes to start

Place = tuple[str, int]  # ('batch' | 'sum' | 'left' | 'right', number of the dim of that kind)


class _Product(NamedTuple):
    """What a layout depends on."""

    mesh: Any
    numbers: DimensionNumbers
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    specs: tuple[Any, Any]
    items: tuple[int, int, int]

    def kinds(self, side: int) -> tuple[Place, ...]:
        """What each dim of a side is."""
        contracting, batch = self.numbers[0][side], self.numbers[1][side]
        free = free_dims(len(self.shapes[side]), contracting, batch)
        name = ("left", "right")[side]
        found = {d: ("sum", k) for k, d in enumerate(contracting)}
        found |= {d: ("batch", k) for k, d in enumerate(batch)}
        found |= {d: (name, k) for k, d in enumerate(free)}
        return tuple(found[d] for d in range(len(self.shapes[side])))

    def out_kinds(self) -> tuple[Place, ...]:
        left, right = self.kinds(0), self.kinds(1)
        batch = [("batch", k) for k in range(len(self.numbers[1][0]))]
        return (*batch, *(p for p in left if p[0] == "left"), *(p for p in right if p[0] == "right"))

    def sizes(self) -> dict[Place, int]:
        return {p: n for side in (0, 1) for p, n in zip(self.kinds(side), self.shapes[side])}


class _Layout(NamedTuple):
    ins: tuple[Dims, Dims]
    outs: Dims
    pending: tuple[str, ...]


def dot_plan(
    avals: Sequence[Any],
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
) -> Plan:
    """The plan of dot_general.  Raises ShardingTypeError in the order of checks that the rules give."""
    x, y = avals
    mesh = x.sharding.mesh if not x.sharding.mesh.empty else y.sharding.mesh
    if not y.sharding.mesh.empty and not mesh.same_axes(y.sharding.mesh):
        raise ShardingTypeError(f"dot_general: Mesh of both lhs and rhs should match, got {mesh} and {y.sharding.mesh}")
    result = preferred_element_type if preferred_element_type is not None else x.dtype
    items = (x.dtype.itemsize, y.dtype.itemsize, dtypes.storage(result).itemsize)
    product = _Product(
        mesh, dimension_numbers, (x.shape, y.shape), (spec_from(dims_of(x)), spec_from(dims_of(y))), items
    )
    if out_sharding is None:
        _check(product, avals)
        target = _natural(product)
        if has_duplicates(target):
            return Plan(product.specs, (spec_from(target),))
        layout = _layout(product, target)
        return _plan(product, layout, spec_from(target), frozenset(), {})
    spec = out_sharding.spec
    if spec.unreduced:
        _check_unreduced(product, avals, spec)
    target = _with_auto_axes(product, spec.dims)
    layout = _layout(product, target)
    return _plan(
        product, layout, spec_from(target, spec.unreduced, spec.reduced), spec.unreduced, {"out_sharding": None}
    )


def _plan(product: _Product, layout: _Layout, result: Any, unreduced: frozenset[str], params: dict[str, Any]) -> Plan:
    left = frozenset(unreduced) & frozenset(layout.pending)
    now = mesh_order(product.mesh, set(layout.pending) - left)
    outs = spec_from(layout.outs, left)
    ins = tuple(spec_from(d) for d in layout.ins)
    return Plan(ins, (outs,), (Pending("sum", now),) if now else (), (result,) if result != outs else (), params)


# -- checks ----------------------------------------------------------------------------------------------


def _check(product: _Product, avals: Sequence[Any]) -> None:
    x, y = product.specs[0].dims, product.specs[1].dims
    (lc, rc), (lb, rb) = product.numbers
    shown = f"for operands {avals[0].short()} and {avals[1].short()}"
    explicit = set(product.mesh.explicit_axes)
    for a, b in zip(lb, rb):
        if x[a] and y[b] and x[a] != y[b]:
            raise ShardingTypeError(
                f"dot_general requires lhs batch dimensions and rhs batch dimensions to have the consistent "
                "sharding, got "
                f"{_entries(x, lb)} and {_entries(y, rb)}, {shown}. Use `jax.reshard` on one of them."
            )
    for a, b in zip(lc, rc):
        if x[a] and y[b] and x[a] != y[b]:
            raise ShardingTypeError(
                f"dot_general requires contracting dimensions to have consistent sharding, got {_entries(x, lc)} "
                f"and {_entries(y, rc)}, "
                f"{shown}. Use `jax.reshard` on one of them, or say where the result goes with `out_sharding=`."
            )
    for a, b in zip(lc, rc):
        if explicit & set(x[a]) and explicit & set(y[b]):
            raise ShardingTypeError(
                "Contracting dimensions are sharded and it is ambiguous how the output should be sharded. Please "
                "specify the output "
                f"sharding via the `out_sharding` parameter. Got lhs_contracting_spec={_entries(x, lc)} and "
                f"rhs_contracting_spec={_entries(y, rc)}, {shown}."
            )


def _check_unreduced(product: _Product, avals: Sequence[Any], spec: Any) -> None:
    x, y = product.specs[0].dims, product.specs[1].dims
    lc, rc = product.numbers[0]
    explicit = set(product.mesh.explicit_axes)
    shown = f"for operands {avals[0].short()} and {avals[1].short()} and out_sharding {spec}"
    if any([a for a in x[l] if a in explicit] != [b for b in y[r] if b in explicit] for l, r in zip(lc, rc)):
        raise ShardingTypeError(
            f"dot_general: lhs and rhs contracting dims should be sharded identically to leave a result unreduced, got "
            f"{_entries(x, lc)} and {_entries(y, rc)}, {shown}. Use `jax.reshard` on one of them."
        )
    axes = {a for d in lc for a in x[d]} & explicit
    if axes != set(spec.unreduced):
        raise ShardingTypeError(
            f"dot_general: unreduced axes should be equal to the contracting specs, got "
            f"unreduced={sorted(spec.unreduced)} and contracting "
            f"specs {_entries(x, lc)}, {shown}."
        )


def _entries(dims: Dims, which: Sequence[int]) -> tuple[Any, ...]:
    return tuple(entry(dims[d]) for d in which)


# -- the result's sharding -------------------------------------------------------------------------------


def _natural(product: _Product) -> Dims:
    """Batch entries of the left side (on Auto axes of either), then free entries.

    An Explicit axis that comes twice stays, for the error; an Auto axis stays where it is first.
    """
    x, y = (s.dims for s in product.specs)
    auto = set(product.mesh.auto_axes)
    batch = [x[a] or tuple(e for e in y[b] if e in auto) for a, b in zip(*product.numbers[1])]
    sides = ((x, product.kinds(0)), (y, product.kinds(1)))
    free = [dims[k] for dims, kinds in sides for k, place in enumerate(kinds) if place[0] in ("left", "right")]
    seen: set[str] = set()
    out = []
    for axes in (*batch, *free):
        out.append(tuple(a for a in axes if a not in auto or a not in seen))
        seen.update(axes)
    return tuple(out)


def _with_auto_axes(product: _Product, dims: Dims) -> Dims:
    """A result's Explicit sharding, and the Auto axes that the operands bring where they fit."""
    auto = set(product.mesh.auto_axes)
    if not auto:
        return tuple(dims)
    used, out = used_axes(dims), []
    shape = [product.sizes()[p] for p in product.out_kinds()]
    for n, given, own in zip(shape, dims, _natural(product)):
        axes = list(given)
        for a in own:
            if a in auto and a not in used and n % axes_size(product.mesh, [*axes, a]) == 0:
                axes.append(a)
                used.add(a)
        out.append(tuple(axes))
    return tuple(out)


# -- roles of axes ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _layout(product: _Product, target: Dims) -> _Layout:
    choices = _choices(product, target)
    axes = list(choices)
    count = math.prod(len(c) for c in choices.values())
    if count > _MOST_LAYOUTS:
        choices = {a: (c[0], None) if len(c) > 1 else c for a, c in choices.items()}
    best, best_cost = None, (math.inf, math.inf)
    for roles in itertools.product(*choices.values()):
        layout = _assign(product, dict(zip(axes, roles)), target)
        if layout is None:
            continue
        if count == 1:
            return layout
        try:
            cost = _cost(product, layout, target)
        except IndivisibleError:
            continue
        if cost < best_cost:
            best, best_cost = layout, cost
    if best is None:
        none = _assign(product, dict.fromkeys(axes), target)
        assert none is not None, "a product of whole operands always fits"
        return none
    return best


def _choices(product: _Product, target: Dims) -> dict[str, tuple[Place | None, ...]]:
    """The roles that each axis may play, the preferred one first."""
    where = [_places(product.specs[side].dims, product.kinds(side)) for side in (0, 1)]
    there = _places(target, product.out_kinds())
    out: dict[str, tuple[Place | None, ...]] = {}
    for a in product.mesh.axis_names:
        left, right, result = where[0].get(a), where[1].get(a), there.get(a)
        held = [p for p in dict.fromkeys((left, right)) if p is not None]
        if len(held) == 1 and (held[0][0] == "sum" or held[0] == result):
            out[a] = (held[0],)
        elif held:
            out[a] = (*dict.fromkeys([*held, *([result] if result else [])]), None)
        elif result:
            out[a] = (result,)
    return out


def _places(dims: Dims, kinds: Sequence[Place]) -> dict[str, Place]:
    return {a: place for axes, place in zip(dims, kinds) for a in axes}


def _assign(product: _Product, roles: dict[str, Place | None], target: Dims) -> _Layout | None:
    """The layout in which every axis plays its role; None where a dim is not divisible."""
    dims: dict[Place, tuple[str, ...]] = {}
    for place, n in product.sizes().items():
        axes = {a for a, p in roles.items() if p == place}
        dims[place] = tuple(dict.fromkeys(a for a in _orders(product, target, place) if a in axes))
        if n % axes_size(product.mesh, dims[place]):
            return None
    ins = tuple(tuple(dims[p] for p in product.kinds(side)) for side in (0, 1))
    summed = [a for place, axes in dims.items() if place[0] == "sum" for a in axes]
    return _Layout(ins, tuple(dims[p] for p in product.out_kinds()), mesh_order(product.mesh, summed))  # type: ignore[arg-type]


def _orders(product: _Product, target: Dims, place: Place) -> Iterator[str]:
    """The axes that may divide a dim, in the order in which one of the sides has them."""
    sides = [(target, product.out_kinds())] if place[0] != "sum" else []
    for dims, kinds in (*((product.specs[k].dims, product.kinds(k)) for k in (0, 1)), *sides):
        for axes, p in zip(dims, kinds):
            if p == place:
                yield from axes


def _cost(product: _Product, layout: _Layout, target: Dims) -> tuple[float, float]:
    """Bytes that the busiest rank receives (a message counts as so many more), then the work of a rank."""
    mesh, moved = product.mesh, 0.0
    for side in (0, 1):
        have, want = product.specs[side], spec_from(layout.ins[side])
        if have != want:
            moved += _bytes(rd.plan(product.shapes[side], product.items[side], (mesh, have), (mesh, want)))
    sizes = product.sizes()
    shape = tuple(sizes[p] for p in product.out_kinds())
    computed = spec_from(layout.outs, frozenset(layout.pending))
    wanted = spec_from(target)
    if computed != wanted:
        moved += _bytes(rd.plan(shape, product.items[2], (mesh, computed), (mesh, wanted)))
    used = used_axes(layout.ins[0]) | used_axes(layout.ins[1])
    return moved, 1.0 / axes_size(mesh, used)  # type: ignore[arg-type]


def _bytes(moves: rd.Redistribution) -> float:
    return moves.bytes_moved + _MESSAGE * moves.messages
