"""Every plan, executed on pretended ranks, against slices of the global numpy array.

The blocks of the source are made from the global array by the index rule of specs (first axis most
significant), and each target block must be the slice that the rule gives; blocks of an unreduced value must add up to
it. Bytes are counted while the plan runs and compared with what the plan says.
"""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from mpiarray.core.redistribution import Exchange, Placement, Relabel, Slice, plan, simulate

MESHES = {
    "4x2": ((("x", 4), ("y", 2)), tuple(range(8))),
    "2x2x2": ((("x", 2), ("y", 2), ("z", 2)), tuple(range(8))),
    "3x2": ((("x", 3), ("y", 2)), tuple(range(6))),
    "2x3": ((("a", 2), ("b", 3)), tuple(range(6))),
    "8": ((("x", 8),), tuple(range(8))),
    "1x4": ((("x", 1), ("y", 4)), tuple(range(4))),
    "2x4": ((("a", 2), ("b", 4)), tuple(range(8))),
    "4x2 reversed": ((("x", 4), ("y", 2)), tuple(range(7, -1, -1))),
    "2x2 odd devices": ((("x", 2), ("y", 2)), (1, 3, 5, 7)),
    "2x2 beside": ((("x", 2), ("y", 2)), (8, 9, 10, 11)),
    "one": ((), (5,)),
    "2x1x2": ((("x", 2), ("o", 1), ("y", 2)), (3, 2, 1, 0)),
}


def index(placement: Placement, device: int, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The rule of specs, written out once more and apart from the package."""
    flat = placement.ids.index(device)
    at = {}
    for name, size in reversed(placement.axes):
        flat, at[name] = divmod(flat, size)
    sizes = dict(placement.axes)
    box = []
    for axes, size in zip(placement.dims, shape):
        number, count = 0, 1
        for name in axes:
            number, count = number * sizes[name] + at[name], count * sizes[name]
        box.append(slice(number * (size // count), (number + 1) * (size // count)))
    return tuple(box)


def coordinates(placement: Placement, device: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    grid = np.array(placement.ids).reshape([size for _, size in placement.axes])
    where = np.argwhere(grid == device)[0]
    return tuple(int(where[[name for name, _ in placement.axes].index(axis)]) for axis in axes)


def source_blocks(placement: Placement, value: np.ndarray) -> dict[int, np.ndarray]:
    """Blocks of `value`; if unreduced, distinct integer summands that add up to it."""
    blocks = {device: value[index(placement, device, value.shape)] for device in placement.ids}
    count = math.prod(dict(placement.axes)[name] for name in placement.unreduced)
    if count == 1:
        return blocks
    parts = [np.arange(value.size).reshape(value.shape) * (k + 3) % 17 for k in range(count - 1)]
    parts.append(value - sum(parts))
    sizes = dict(placement.axes)
    for device in blocks:
        number = 0
        for name, c in zip(placement.unreduced, coordinates(placement, device, placement.unreduced)):
            number = number * sizes[name] + c
        blocks[device] = parts[number][index(placement, device, value.shape)]
    return blocks


def check_target(placement: Placement, value: np.ndarray, blocks: dict[int, np.ndarray]) -> None:
    assert set(blocks) == set(placement.ids)
    if not placement.unreduced:
        for device in placement.ids:
            np.testing.assert_array_equal(blocks[device], value[index(placement, device, value.shape)])
        return
    kept = tuple(name for name, _ in placement.axes if name not in placement.unreduced)
    groups: dict[tuple, list[int]] = {}
    for device in placement.ids:
        groups.setdefault(coordinates(placement, device, kept), []).append(device)
    for devices in groups.values():
        total = sum(blocks[device] for device in devices)
        np.testing.assert_array_equal(total, value[index(placement, devices[0], value.shape)])
    unused = [a for a, _ in placement.axes if a not in placement.unreduced and a not in sum(placement.dims, ())]
    held = tuple(name for name, _ in placement.axes if name not in unused)
    copies: dict[tuple, np.ndarray] = {}
    for device in placement.ids:
        first = copies.setdefault(coordinates(placement, device, held), blocks[device])
        np.testing.assert_array_equal(blocks[device], first)  # copies must be equal, also of summands


def all_placements(mesh: str, ndim: int, labels: bool = True) -> list[Placement]:
    """Every placement of `ndim` dimensions: each axis in some dim (in every order), unused, unreduced or reduced."""
    axes, ids = MESHES[mesh]
    names = [name for name, _ in axes]
    homes = [*range(ndim), None, *(("U", "R") if labels else ())]
    found = []
    for order in itertools.permutations(names):
        for choice in itertools.product(homes, repeat=len(names)):
            dims = tuple(tuple(n for n, h in zip(order, choice) if h == d) for d in range(ndim))
            at = dict(zip(order, choice))
            unreduced = tuple(n for n in names if at[n] == "U")
            reduced = tuple(n for n in names if at[n] == "R")
            found.append(Placement(axes, ids, dims, unreduced, reduced))
    return list(dict.fromkeys(found))


SHAPES = {1: (24,), 2: (24, 48), 3: (8, 24, 12)}


def fits(placement: Placement, shape: tuple[int, ...]) -> bool:
    return all(size % count == 0 for size, count in zip(shape, placement.counts))


def check(shape: tuple[int, ...], source: Placement, target: Placement, limit: int | None = None) -> None:
    value = np.arange(math.prod(shape), dtype=np.int64).reshape(shape) * 7 + 1
    found = plan(shape, 8, source, target, limit=limit)
    log: list[dict[int, tuple[int, int]]] = []
    blocks = simulate(found, source_blocks(source, value), log)
    check_target(target, value, blocks)
    received = [max((size for size, _ in step.values()), default=0) for step in log]
    messages = [max((count for _, count in step.values()), default=0) for step in log]
    assert found.bytes_moved == sum(received), str(found)
    if limit is None:
        assert sum(messages) <= found.messages, str(found)
    assert found.peak_bytes <= found.bound_bytes or found.reason
    assert len(found.states) == len(found.steps) + 1
    assert found.peak_bytes >= blocks_alive(found), str(found)
    if not source.unreduced and not target.unreduced:
        assert found.bytes_moved == fewest_bytes(source, target, shape), str(found)


def blocks_alive(found) -> int:
    """Bytes of blocks on the fullest device while a plan runs, without message buffers: a view costs nothing."""
    size = [math.prod(state.block_shape(found.shape)) * found.itemsize for state in found.states]
    most = 0
    for device in found.members:
        source = size[0] if device in found.source.ids else 0
        live = 0
        for k, step in enumerate(found.steps):
            if device in found.states[k + 1].ids and not isinstance(step, Slice | Relabel):
                most, live = max(most, source + live + size[k + 1]), size[k + 1]
        most = max(most, source)
    return most


def fewest_bytes(source: Placement, target: Placement, shape: tuple[int, ...]) -> int:
    """No plan can do with less: what the busiest device needs and does not hold."""
    most = 0
    for device in target.ids:
        need = index(target, device, shape)
        volume = math.prod(s.stop - s.start for s in need)
        own = 0
        if device in source.ids:
            have = index(source, device, shape)
            own = math.prod(max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in zip(need, have))
        most = max(most, volume - own)
    return most * 8


def cases(pairs, number: int, seed: int):
    pairs = list(pairs)
    if len(pairs) <= number:
        return pairs
    return random.Random(seed).sample(pairs, number)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_all_spec_pairs_on_one_mesh(mesh, ndim):
    shape = SHAPES[ndim]
    placements = [p for p in all_placements(mesh, ndim) if fits(p, shape)]
    for source, target in cases(itertools.product(placements, placements), 250, ndim):
        check(shape, source, target)


@pytest.mark.parametrize("ends", list(itertools.permutations(MESHES, 2)), ids=" to ".join)
def test_spec_pairs_between_meshes(ends):
    for ndim, number in ((1, 10), (2, 20), (3, 6)):
        shape = SHAPES[ndim]
        sources, targets = ([p for p in all_placements(mesh, ndim) if fits(p, shape)] for mesh in ends)
        for source, target in cases(itertools.product(sources, targets), number, ndim):
            check(shape, source, target)


@pytest.mark.parametrize("limit", [16, 100, 1000])
def test_small_message_buffers(limit):
    placements = [p for p in all_placements("4x2", 2, labels=False) if fits(p, (8, 16))]
    for source, target in itertools.product(placements, placements):
        check((8, 16), source, target, limit)
        found = plan((8, 16), 8, source, target, limit=limit)
        assert found.peak_bytes <= found.bound_bytes, str(found)  # boxes in pieces always fit
        for step in found.steps:
            if isinstance(step, Exchange):
                for device in step.members():
                    table = step.for_rank(device)
                    for transfer in (*table.sends, *table.recvs):
                        assert math.prod(s.stop - s.start for s in transfer.box) * 8 <= max(8, limit // 2)


@pytest.mark.parametrize("shape", [(), (0,), (0, 8), (8, 0)])
def test_scalars_and_empty_arrays(shape):
    for ends in itertools.product(("4x2", "8", "4x2 reversed", "2x2 odd devices", "one"), repeat=2):
        sources, targets = (all_placements(mesh, len(shape)) for mesh in ends)
        for source, target in cases(itertools.product(sources, targets), 40, 1):
            check(shape, source, target)
