"""Where the blocks of an array are, as pure data: the planner's own form of (mesh, spec).

A `Placement` names, for each device of a mesh, the index box that it holds. It stands apart from
`types.sharding` because plans also pass through placements that no user wrote: meshes whose axes
are split into factors, axis tuples in temporary dimensions, sums that are still pending. It holds
no data and knows no rank: everything here is computed from tuples, alike on every rank.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Placement:
    """One block per device of a mesh.

    axes: (name, size) of each mesh axis; the last varies fastest.
    ids: device ids in row-major mesh order. A mesh without devices has ids 0..n-1: its positions.
    dims: for each dimension of the array the mesh axes that partition it, most significant first.
    unreduced: axes, in mesh order, over which the value is the sum of the blocks.
    reduced: axes, in mesh order, with that label. It does not change which data a device holds.
    """

    axes: tuple[tuple[str, int], ...]
    ids: tuple[int, ...]
    dims: Dims
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis name -> size."""
        return dict(self.axes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of blocks along each dimension of the array."""
        return tuple(self.product(axes) for axes in self.dims)

    @cached_property
    def partials(self) -> int:
        """How many blocks must be added to get the value: 1 if nothing is unreduced."""
        return self.product(self.unreduced)

    @cached_property
    def replicas(self) -> int:
        """How many devices hold the same block (and, if unreduced, the same summand)."""
        return len(self.ids) // (math.prod(self.counts) * self.partials)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """Axes of size above 1, in mesh order, over which the blocks are equal copies."""
        taken = set(self.unreduced).union(*self.dims)
        return tuple(name for name, size in self.axes if size > 1 and name not in taken)

    @cached_property
    def position(self) -> dict[int, int]:
        """Device id -> flat mesh position."""
        return {device: k for k, device in enumerate(self.ids)}

    @cached_property
    def coordinates(self) -> dict[str, np.ndarray]:
        """Axis name -> coordinate of each flat position along it."""
        if not self.axes:
            return {}
        grid = np.unravel_index(np.arange(len(self.ids)), [size for _, size in self.axes])
        return {name: c for (name, _), c in zip(self.axes, grid)}

    @cached_property
    def numbers(self) -> np.ndarray:
        """Block number along each dimension (rows) of each flat position (columns)."""
        rows = [self.number(axes) for axes in self.dims]
        return np.stack(rows) if rows else np.zeros((0, len(self.ids)), np.int64)

    @cached_property
    def summand(self) -> np.ndarray:
        """Which summand of an unreduced value each flat position holds; zeros otherwise."""
        return self.number(self.unreduced)

    @cached_property
    def shards(self) -> np.ndarray:
        """One number for the pair (block, summand) of each flat position."""
        return np.asarray(self.shard(tuple(self.numbers), self.summand))

    @cached_property
    def holders(self) -> np.ndarray:
        """Flat positions that hold each shard number: row = shard, in replica_id order."""
        order = np.argsort(self.shards, kind="stable")
        return order.reshape(-1, self.replicas)

    def shard(self, numbers: Any, summand: Any) -> Any:
        """The shard number of block numbers (one per dimension) and a summand; also on arrays."""
        total = summand
        for number, count in zip(numbers, self.counts):
            total = total * count + number
        return total

    def product(self, axes: tuple[str, ...]) -> int:
        """Number of devices along `axes` together."""
        return math.prod(self.sizes[name] for name in axes)

    def number(self, axes: tuple[str, ...]) -> np.ndarray:
        """Mixed-radix number of each flat position's coordinates over `axes`, first most significant."""
        total = np.zeros(len(self.ids), np.int64)
        for name in axes:
            total = total * self.sizes[name] + self.coordinates[name]
        return total

    def block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the block that each device holds of an array of `shape`."""
        return tuple(size // count for size, count in zip(shape, self.counts))

    def box(self, device: int, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """The index box that `device` holds of an array of `shape`."""
        column = self.numbers[:, self.position[device]]
        return tuple(slice(int(k) * n, (int(k) + 1) * n) for k, n in zip(column, self.block_shape(shape)))

    def moved(self, dims: Dims, unreduced: tuple[str, ...] | frozenset[str] = ()) -> Placement:
        """The same mesh with other dims and unreduced axes; labels (`reduced`) are dropped."""
        ordered = tuple(name for name, _ in self.axes if name in unreduced)
        return Placement(self.axes, self.ids, dims, ordered)

    def plain(self) -> Placement:
        """Without axes of size 1 in dims and unreduced, and without labels: the data alone."""
        dims = tuple(tuple(name for name in axes if self.sizes[name] > 1) for axes in self.dims)
        return self.moved(dims, tuple(name for name in self.unreduced if self.sizes[name] > 1))

    def __str__(self) -> str:
        parts = [repr(axes[0] if len(axes) == 1 else axes or None) for axes in self.dims]
        for label, axes in (("unreduced", self.unreduced), ("reduced", self.reduced)):
            if axes:
                parts.append(f"{label}={{{', '.join(map(repr, sorted(axes)))}}}")
        return f"P({', '.join(parts)})"

    def mesh_text(self) -> str:
        """The mesh for people: `x=4, y=2` and the device ids if they are not 0..n-1."""
        text = ", ".join(f"{name}={size}" for name, size in self.axes) or "one device"
        if self.ids != tuple(range(len(self.ids))):
            shown = ", ".join(map(str, self.ids[:16])) + (", ..." if len(self.ids) > 16 else "")
            text += f"; devices {shown}"
        return text


def same_data(source: Placement, target: Placement) -> bool:
    """True if every device of `target` already holds, in `source`, just the block that it must hold."""
    if source.counts != target.counts or source.partials != target.partials:
        return False
    if source.ids == target.ids:
        return bool(np.array_equal(source.shards, target.shards))
    if not set(target.ids) <= set(source.ids):
        return False
    at = [source.position[device] for device in target.ids]
    return bool(np.array_equal(source.shards[at], target.shards))


def common_mesh(source: Placement, target: Placement) -> tuple[Placement, Placement] | None:
    """Both placements on one mesh over the same devices, or None if there is no such mesh.

    Meshes with the same axes need no work. Meshes over the same devices in the same flat order have a
    common refinement when the boundaries of their axes nest: (4, 2) and (2, 4) both split into
    (2, 2, 2), while (3, 2) and (2, 3) do not. Pieces of a source axis `x` are called `x.0`, `x.1`,
    most significant first. A fully replicated side fits any mesh over the same device set.
    """
    source, target = source.plain(), target.plain()
    if source.ids == target.ids:
        return (source, target) if source.axes == target.axes else _refined(source, target) or _free(source, target)
    return _free(source, target)


def _free(source: Placement, target: Placement) -> tuple[Placement, Placement] | None:
    """The common mesh if one side is replicated everywhere: the other side's mesh."""
    held, wanted = set(source.ids), set(target.ids)
    if source.replicas == len(source.ids) and wanted <= held:
        return target.moved(((),) * len(target.dims)), target
    if target.replicas == len(target.ids) and wanted == held:
        return source, source.moved(((),) * len(source.dims))
    return None


def _refined(source: Placement, target: Placement) -> tuple[Placement, Placement] | None:
    bounds = sorted(set(_suffix_products(source)) | set(_suffix_products(target)))
    if any(high % low for low, high in itertools.pairwise(bounds)):
        return None
    pieces = _pieces(source, bounds)
    names: list[str] = []
    taken = set(source.sizes)
    renamed: dict[str, tuple[str, ...]] = {}
    axes: list[tuple[str, int]] = []
    for name, factors in pieces:
        parts = [name] if len(factors) == 1 else [f"{name}.{k}" for k in range(len(factors))]
        while len(parts) > 1 and taken.intersection(parts):
            parts = [part + "'" for part in parts]
        taken.update(parts)
        renamed[name] = tuple(parts)
        names += parts
        axes += zip(parts, factors)
    flat = iter(names)
    wanted = {name: tuple(next(flat) for _ in factors) for name, factors in _pieces(target, bounds)}
    mesh = Placement(tuple(axes), source.ids, ())
    return _translated(mesh, source, renamed), _translated(mesh, target, wanted)


def _translated(mesh: Placement, old: Placement, names: dict[str, tuple[str, ...]]) -> Placement:
    def new(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for name in axes for part in names[name])

    return mesh.moved(tuple(new(axes) for axes in old.dims), new(old.unreduced))


def _suffix_products(placement: Placement) -> list[int]:
    products = [1]
    for _, size in reversed(placement.axes):
        products.append(products[-1] * size)
    return products


def _pieces(placement: Placement, bounds: list[int]) -> list[tuple[str, list[int]]]:
    """The factors of each axis of size above 1, most significant first."""
    found: list[tuple[str, list[int]]] = []
    low = len(placement.ids)
    for name, size in placement.axes:
        high, low = low, low // size
        inside = [b for b in bounds if low <= b <= high]
        factors = [b // a for a, b in itertools.pairwise(inside)][::-1]
        if factors:
            found.append((name, factors))
    return found
