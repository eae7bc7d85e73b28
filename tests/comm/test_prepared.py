"""Prepared collectives against the plain ones: every dtype and shape, and blocks whose type changes between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mpiarray import comm, memory
from mpiarray.comm import prepared, stats
from mpiarray.config import config
from tests.comm.cases import DTYPES, SHAPES, OnOneself, OnParity, OnReversed, OnWorld, block, same, strided

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    """Nobody watches: under a watch the plain collectives run (and tests run under a watch)."""
    before = stats.active
    stats.active = 0
    with config.override("check", False):
        yield
    stats.active = before


def twice(run: Callable, plain: Callable, *blocks: np.ndarray) -> None:
    """`run` on all blocks, again and again, does what `plain` does, into memory of its own."""
    for x in (*blocks, *blocks):
        given = x.copy()
        found = run(x)
        same(found, plain(x))
        assert not np.shares_memory(found, x)
        same(x.copy(), given)


class Cases:
    def blocks(self, shape):
        group = self.group()
        return group, [block(group.rank, shape, dtype) for dtype in DTYPES]

    @pytest.mark.parametrize("op", ["sum", "max", "prod", "or"])
    def test_all_reduce(self, op):
        for shape in SHAPES:
            group, blocks = self.blocks(shape)
            blocks = [x for x in blocks if op != "or" or x.dtype.kind in "biu"]
            run = prepared.all_reduce(group, op)
            twice(run, lambda x: comm.all_reduce(group, x, op), *blocks)  # noqa: B023

    def test_results_of_long_blocks_that_somebody_holds(self):
        """Results are given again only when they, and all views of them, are gone; one may be the operand of the next call."""
        group = self.group()
        n, k = group.size, group.rank
        made = {
            "all_reduce": (prepared.all_reduce(group, "max"), lambda x: comm.all_reduce(group, x, "max")),
            "all_gather": (prepared.all_gather(group), lambda x: comm.all_gather(group, x)),
            "reduce_scatter": (prepared.reduce_scatter(group), lambda x: comm.reduce_scatter(group, x, 0)),
            "all_to_all": (prepared.all_to_all(group, 0, 0), lambda x: comm.all_to_all(group, x, 0, 0)),
            "permute": (
                prepared.permute(group, [(j, (j + 1) % n) for j in range(n)]),
                lambda x: comm.permute(group, x, [(j, (j + 1) % n) for j in range(n)]),
            ),
        }
        for name, (run, plain) in made.items():
            held, again = [], []
            x = block(k, (n * 32768,), np.dtype("f4"))
            for call in range(9):
                wanted, found = plain(x), run(x)
                assert not np.shares_memory(found, x)
                same(found, wanted)
                if call % 3 != 2:
                    held.append((found if call % 3 else found[7:], wanted[0 if call % 3 else 7 :]))
                again.append(found.__array_interface__["data"][0])
                kept = memory.ALIGNED_FROM <= found.nbytes <= 2 << 20
                x = found if name in ("all_to_all", "permute", "all_reduce") else x + 1
                del found
            for found, wanted in held:
                np.testing.assert_array_equal(found, wanted)
            short = prepared.for_type(run, x.shape, x.dtype) is not None
            assert not (short and kept) or n == 1 or len(set(again)) < len(again), name

    def test_all_gather(self):
        for shape in SHAPES:
            group, blocks = self.blocks(shape)
            for dim in range(-len(shape), len(shape) + 1):
                for tiled in (True, False)[dim == len(shape) :]:
                    run = prepared.all_gather(group, dim, tiled)
                    twice(run, lambda x: comm.all_gather(group, x, dim, tiled), *blocks)  # noqa: B023

    def test_reduce_scatter(self):
        n = self.group().size
        for shape in ((n,), (2 * n, 3), (0, n), (3, 2 * n), (1, n), (1, n, 2)):
            group, blocks = self.blocks(shape)
            for dim, size in enumerate(shape):
                for tiled in (True, False):
                    if size % n or (not tiled and size != n):
                        continue
                    run = prepared.reduce_scatter(group, dim, "sum", tiled)
                    twice(run, lambda x: comm.reduce_scatter(group, x, dim, "sum", tiled), *blocks)  # noqa: B023

    def test_all_to_all(self):
        n = self.group().size
        for shape in ((n,), (2 * n, 3), (n, 0), (3, n, 2), (1, n, 2)):
            group, blocks = self.blocks(shape)
            for split, size in enumerate(shape):
                for concat in range(len(shape)):
                    for tiled in (True, False):
                        if size % n or (not tiled and size != n):
                            continue
                        run = prepared.all_to_all(group, split, concat, tiled)
                        twice(run, lambda x: comm.all_to_all(group, x, split, concat, tiled), *blocks)  # noqa: B023

    def test_permute(self):
        n = self.group().size
        ring = [(k, (k + 1) % n) for k in range(n)]
        for perm in (ring, ring[:-1], [(k, n - 1 - k) for k in range(n)], [(k, k) for k in range(n)], [], ring[:1]):
            for shape in SHAPES:
                group, blocks = self.blocks(shape)
                twice(prepared.permute(group, perm), lambda x: comm.permute(group, x, perm), *blocks)  # noqa: B023

    def test_types_and_orders_change(self):
        """The same function, given blocks of other shapes, dtypes and memory orders."""
        group, n = self.group(), self.group().size
        shapes = [(n, 3), (2 * n,), (n, 3), (n, 2, 2)]
        blocks = [block(group.rank, shape, np.dtype(code)) for shape in shapes for code in ("f4", "i8", "f4", "f2")]
        blocks += [strided(x) for x in blocks] + [np.asfortranarray(x) for x in blocks]
        twice(prepared.all_reduce(group, "sum"), lambda x: comm.all_reduce(group, x, "sum"), *blocks)
        twice(prepared.all_gather(group), lambda x: comm.all_gather(group, x), *blocks)
        twice(prepared.reduce_scatter(group), lambda x: comm.reduce_scatter(group, x), *blocks)
        twice(prepared.all_to_all(group, 0, 0), lambda x: comm.all_to_all(group, x, 0, 0), *blocks)

    def test_they_are_counted(self):
        group = self.group()
        run = prepared.all_reduce(group, "sum")
        x = block(group.rank, (5,), np.dtype("f4"))
        run(x)
        with comm.counting() as counts:
            run(x)
        assert counts.calls["all_reduce"] == (group.size > 1)
        assert counts.bytes["all_reduce"] == (20 if group.size > 1 else 0)

    def test_numbers_are_blocks(self):
        group = self.group()
        same(prepared.all_reduce(group, "sum")(np.float32(2)), np.float32(2 * group.size))

    def test_the_order_of_ranks_counts_when_asked_for(self):
        group = self.group()
        run = prepared.all_reduce(group, "sum")
        x = (np.float32(1e8) if group.rank == 0 else np.float32(1 + group.rank)) * np.ones(3, np.float32)
        run(x)
        total = np.zeros(3, np.float32)
        for k in range(group.size):
            total += (np.float32(1e8) if k == 0 else np.float32(1 + k)) * np.ones(3, np.float32)
        with config.override("deterministic", True):
            same(run(x), total)


class TestWorld(OnWorld, Cases):
    pass


class TestOneself(OnOneself, Cases):
    pass


class TestReversed(OnReversed, Cases):
    pass


class TestParity(OnParity, Cases):
    pass
