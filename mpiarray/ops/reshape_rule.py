"""Which sharding a reshape gives, and through which sharding the blocks go.

A reshape in row-major order works block by block exactly when the sharded dims lead their group, a group being
a smallest run of old dims whose sizes multiply to those of a run of new dims: `(8, 4, 3) -> (32, 3)` has the groups
`8*4 -> 32` and `3 -> 3`.  Where the type's rule (sharding_rules.md 4) asks for another placement, as in
`[8@X,4@Y] -> [32@(X,Y)]` whose blocks interleave, the plan moves axes to the leading dims first, by fewest bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from mpiarray.core.plan import Dims, Plan, axes_size, dims_of, local_shape, spec_from
from mpiarray.errors import ShardingTypeError
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

Group = tuple[tuple[int, ...], tuple[int, ...]]  # old dims, new dims; sizes 1 left out


def reshape_dims(x: ShapedArray, new_sizes: tuple[int, ...], sharding: NamedSharding | None) -> Plan:
    """The plan of `reshape(x, new_sizes)`; ShardingTypeError where the result's sharding must be given and is not."""
    mesh, dims = x.sharding.mesh, dims_of(x)
    groups = reshape_groups(x.shape, new_sizes)
    if sharding is not None:
        result = sharding.spec.dims
        mesh = sharding.mesh
        spec = sharding.spec
    else:
        result = _result_dims(x, new_sizes, groups)
        spec = spec_from(result)
    ins, outs = _block_dims(mesh, x.shape, new_sizes, dims, result, groups)
    params = {"new_sizes": local_shape(mesh, new_sizes, outs), "sharding": None}
    return Plan((spec_from(ins),), (spec_from(outs),), (), (spec,), params)


def reshape_groups(old: Sequence[int], new: Sequence[int]) -> tuple[Group, ...] | None:
    """The groups of a reshape, or None when a size is 0 and they say nothing."""
    if 0 in old:
        return None
    olds = [d for d, n in enumerate(old) if n != 1]
    news = [d for d, n in enumerate(new) if n != 1]
    groups, i, j = [], 0, 0
    while i < len(olds):
        i0, j0 = i, j
        a, b = old[olds[i]], new[news[j]]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * old[olds[i]], i + 1
            else:
                b, j = b * new[news[j]], j + 1
        groups.append((tuple(olds[i0:i]), tuple(news[j0:j])))
    return tuple(groups)


def _result_dims(x: ShapedArray, new_sizes: tuple[int, ...], groups: tuple[Group, ...] | None) -> Dims:
    """The spec's table: dims carried over, one dim split, or several merged into one."""
    dims, mesh = dims_of(x), x.sharding.mesh
    if not any(dims):
        return ((),) * len(new_sizes)
    if groups is None:
        if tuple(x.shape) == tuple(new_sizes):
            return dims
        raise _unsupported(x, new_sizes)
    out: list[tuple[str, ...]] = [()] * len(new_sizes)
    irregular = [g for g in groups if len(g[0]) > 1 or len(g[1]) > 1]
    if len(irregular) > 1 or any(len(o) > 1 and len(n) > 1 for o, n in irregular):
        raise _unsupported(x, new_sizes)
    for olds, news in groups:
        merged = [dims[d] for d in olds]
        while merged and not merged[-1]:
            merged.pop()
        if not all(merged):
            raise _unsupported(x, new_sizes)
        axes = tuple(a for entry in merged for a in entry)
        placed = _place(mesh, axes, [new_sizes[d] for d in news])
        if placed is None:
            raise _unsupported(x, new_sizes)
        for d, entry in zip(news, placed):
            out[d] = entry
    return tuple(out)


def _place(mesh: Any, axes: tuple[str, ...], sizes: Sequence[int]) -> list[tuple[str, ...]] | None:
    """Give axes, in order, to dims from the left, each dim until its blocks have size 1; None where it does not divide."""
    left, out = list(axes), []
    for n in sizes:
        mine: list[str] = []
        while left and n > 1:
            size = mesh.shape[left[0]]
            if n % size:
                return None
            n //= size
            mine.append(left.pop(0))
        out.append(tuple(mine))
    return None if left else out


def _unsupported(x: ShapedArray, new_sizes: tuple[int, ...]) -> ShardingTypeError:
    return ShardingTypeError(
        "This reshape is not supported. Please specify the sharding of the output via the `out_sharding` argument of reshape. Got operand: "
        f"{x.str_short()} and new sizes: {tuple(new_sizes)}"
    )


def _block_dims(
    mesh: Any, old: Sequence[int], new: Sequence[int], dims: Dims, result: Dims, groups: tuple[Group, ...] | None
) -> tuple[Dims, Dims]:
    """The shardings before and after the blocks' own reshape, by fewest bytes moved to and from them.

    Each group's axes stand on the leading dims of both sides, so that every block is a contiguous run.
    """
    none_old, none_new = ((),) * len(old), ((),) * len(new)
    if groups is None or mesh.empty:
        return none_old, none_new
    best: tuple[Dims, Dims] = (none_old, none_new)
    best_cost = math.inf
    size = math.prod(old)
    axes = tuple(dict.fromkeys(a for entry in (*dims, *result) for a in entry))
    orders = itertools.permutations(axes) if len(axes) <= 3 else (axes,)
    for order in orders:
        for homes in itertools.product(range(-1, len(groups)), repeat=len(order)):
            pair = _assign(mesh, old, new, groups, order, homes)
            if pair is None:
                continue
            cost = _distance(mesh, size, dims, pair[0]) + _distance(mesh, size, result, pair[1])
            if cost < best_cost:
                best, best_cost = pair, cost
            if cost == 0:
                return best
    return best


def _assign(
    mesh: Any,
    old: Sequence[int],
    new: Sequence[int],
    groups: tuple[Group, ...],
    order: Sequence[str],
    homes: Sequence[int],
) -> tuple[Dims, Dims] | None:
    before: list[tuple[str, ...]] = [()] * len(old)
    after: list[tuple[str, ...]] = [()] * len(new)
    for g, (olds, news) in enumerate(groups):
        mine = tuple(a for a, home in zip(order, homes) if home == g)
        if not mine:
            continue
        left = _place(mesh, mine, [old[d] for d in olds])
        right = _place(mesh, mine, [new[d] for d in news])
        if left is None or right is None:
            return None
        for d, entry in zip(olds, left):
            before[d] = entry
        for d, entry in zip(news, right):
            after[d] = entry
    return tuple(before), tuple(after)


def _distance(mesh: Any, size: int, a: Dims, b: Dims) -> float:
    """Roughly, the elements that a rank receives when blocks go from one sharding to the other."""
    if a == b:
        return 0.0
    kept = 1
    for x, y in zip(a, b):
        shared = list(itertools.takewhile(lambda p: p[0] == p[1], zip(x, y)))
        kept *= axes_size(mesh, [s for s, _ in shared])
    mine = axes_size(mesh, [s for entry in b for s in entry])
    theirs = axes_size(mesh, [s for entry in a for s in entry])
    return size / mine - size / max(mine * theirs / kept, mine)
