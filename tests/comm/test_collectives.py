"""Every collective against numpy on all members' blocks: dtypes, shapes, dimensions, memory orders, groups."""

from __future__ import annotations

import numpy as np
import pytest

from mpiarray import comm
from mpiarray.errors import InternalError
from tests.comm.cases import (
    DTYPES,
    SHAPES,
    OnMesh,
    OnMeshBackwards,
    OnOneself,
    OnParity,
    OnReversed,
    OnWorld,
    block,
    exact,
    same,
    strided,
)

pytestmark = pytest.mark.mpi

ORDERS = {"C": np.ascontiguousarray, "F": np.asfortranarray, "strided": strided}


def parts(x: np.ndarray, dim: int, n: int) -> list[np.ndarray]:
    """The n equal parts along dim."""
    return np.split(x, n, dim)


class Cases:
    """Each case runs on the group of the class that mixes this in."""

    def blocks(self, shape, dtype):
        group = self.group()
        return group, [block(k, shape, np.dtype(dtype)) for k in range(group.size)]

    def test_all_gather(self):
        for dtype in DTYPES:
            for shape in SHAPES:
                group, blocks = self.blocks(shape, dtype)
                same(comm.all_gather(group, blocks[group.rank], 0, False), np.stack(blocks))
                for dim in range(len(shape)):
                    for order in ORDERS.values():
                        x = order(blocks[group.rank]).reshape(shape)
                        same(comm.all_gather(group, x, dim, True), np.concatenate(blocks, dim))
                        same(comm.all_gather(group, x, dim + 1, False), np.stack(blocks, dim + 1))
                        same(comm.all_gather(group, x, -1 - dim, True), np.concatenate(blocks, -1 - dim))

    def test_reduce_scatter(self):
        for dtype in DTYPES:
            n = self.group().size
            for shape in ((n,), (2 * n, 3), (0, n), (3, 2 * n), (2, n, 3)):
                group, blocks = self.blocks(shape, dtype)
                total = exact(np.add, blocks)
                for dim, size in enumerate(shape):
                    if size % n:
                        continue
                    for order in ORDERS.values():
                        x = order(blocks[group.rank])
                        same(comm.reduce_scatter(group, x, dim), parts(total, dim, n)[group.rank])
                        if size == n:
                            same(comm.reduce_scatter(group, x, dim, "sum", False), np.take(total, group.rank, dim))

    def test_reduce_scatter_by(self):
        for op in ["max", "min", "prod"]:
            group, blocks = self.blocks((3, 2 * self.group().size), "f4")
            ufunc = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}[op]
            wanted = parts(exact(ufunc, blocks), 1, group.size)[group.rank]
            same(comm.reduce_scatter(group, blocks[group.rank], 1, op), wanted)

    def test_all_to_all(self):
        for dtype in DTYPES:
            n = self.group().size
            for shape in ((n,), (2 * n, 3), (n, 0), (3, n, 2), (2, 3, 2 * n)):
                group, blocks = self.blocks(shape, dtype)
                for split in (d for d, size in enumerate(shape) if size % n == 0):
                    for concat in range(len(shape)):
                        for order in ORDERS.values():
                            wanted = np.concatenate([parts(b, split, n)[group.rank] for b in blocks], concat)
                            same(comm.all_to_all(group, order(blocks[group.rank]), split, concat), wanted)

    def test_all_to_all_untiled(self):
        n = self.group().size
        shape = (3, n, 2)
        group, blocks = self.blocks(shape, "i4")
        for concat in range(3):
            wanted = np.stack([np.take(b, group.rank, 1) for b in blocks], concat)
            same(comm.all_to_all(group, blocks[group.rank], 1, concat, False), wanted)

    def test_permute(self):
        for dtype in DTYPES:
            for shape in SHAPES:
                group, blocks = self.blocks(shape, dtype)
                n, k = group.size, group.rank
                x = strided(blocks[k]) if shape else blocks[k]
                same(comm.permute(group, x, [(j, (j + 1) % n) for j in range(n)]), blocks[k - 1])
                wanted = blocks[k + 1] if k + 1 < n else np.zeros(shape, dtype)
                same(comm.permute(group, x, [(j, j - 1) for j in range(1, n)]), wanted)
                same(comm.permute(group, x, []), np.zeros(shape, dtype))
                same(comm.permute(group, x, [(j, n - 1 - j) for j in range(n)]), blocks[n - 1 - k])

    def test_broadcast(self):
        for dtype in DTYPES:
            for shape in SHAPES:
                group, blocks = self.blocks(shape, dtype)
                for root in {0, group.size - 1}:
                    x = blocks[root] if group.rank == root else None
                    same(comm.broadcast(group, x, root, (shape, dtype)), blocks[root])
                    same(comm.broadcast(group, blocks[group.rank], root), blocks[root])

    def test_gather_to(self):
        group, blocks = self.blocks((2, 3), "f8")
        for root in {0, group.size - 1}:
            found = comm.gather_to(group, np.asfortranarray(blocks[group.rank]), root)
            if group.rank == root:
                same(found, np.stack(blocks))
            else:
                assert found is None

    def test_all_gather_varied(self):
        for dtype in DTYPES:
            group = self.group()
            shapes = [(k % 3, 2) for k in range(group.size)]
            blocks = [block(k, shape, dtype) for k, shape in enumerate(shapes)]
            x = blocks[group.rank] if blocks[group.rank].size else None
            for found, wanted in zip(comm.all_gather_varied(group, x, shapes, dtype), blocks, strict=True):
                same(found, wanted)

    def test_out(self):
        n = self.group().size
        group, blocks = self.blocks((n, 2 * n), "f4")
        x = blocks[group.rank]
        calls = {
            "all_reduce": lambda out: comm.all_reduce(group, x, "sum", out=out),
            "all_reduce max": lambda out: comm.all_reduce(group, x, "max", out=out),
            "all_gather": lambda out: comm.all_gather(group, x, 1, out=out),
            "reduce_scatter": lambda out: comm.reduce_scatter(group, x, 1, out=out),
            "all_to_all": lambda out: comm.all_to_all(group, x, 1, 0, out=out),
            "permute": lambda out: comm.permute(group, x, [(0, n - 1)], out=out),
            "broadcast": lambda out: comm.broadcast(group, x, 0, out=out),
        }
        for name, call in calls.items():
            wanted = call(None)
            given = np.full(wanted.shape, 99, wanted.dtype)
            assert call(given) is given, name
            same(given, wanted)
            with pytest.raises(InternalError, match=f"{name.split()[0]}: out must be"):
                call(np.empty(wanted.shape, np.int32))
            with pytest.raises(InternalError, match="out must be"):
                call(np.empty((*wanted.shape, 1), wanted.dtype))

    def test_inputs_stay(self):
        n = self.group().size
        group, blocks = self.blocks((2 * n, n), "f4")
        x = blocks[group.rank].copy()
        x.flags.writeable = False
        for result in (
            comm.all_reduce(group, x),
            comm.all_reduce(group, x, "max"),
            comm.all_gather(group, x),
            comm.reduce_scatter(group, x),
            comm.all_to_all(group, x, 0, 0),
            comm.permute(group, x, [(k, k) for k in range(n)]),
            comm.broadcast(group, x, 0),
        ):
            assert not np.shares_memory(result, x)
            result[...] = -1
        same(x, blocks[group.rank])

    def test_wrong_arguments(self):
        n = self.group().size
        group, blocks = self.blocks((n + 1, 3), "f4")
        x = blocks[group.rank]
        with pytest.raises(InternalError, match="all_gather: dimension 2 of a block with 2 dimensions"):
            comm.all_gather(group, x, 2)
        if n > 1:
            with pytest.raises(InternalError, match=rf"reduce_scatter: size {n + 1} of dimension 0 is not divisible"):
                comm.reduce_scatter(group, x, 0)
            with pytest.raises(InternalError, match=rf"all_to_all: size {n + 1} of dimension 0 is not divisible"):
                comm.all_to_all(group, x, 0, 1)
        with pytest.raises(InternalError, match="is not the number of members"):
            comm.reduce_scatter(group, x, 0, "sum", False)

    def test_agreement(self):
        group = self.group()
        assert comm.agree(group, ("text", group.rank)) == [("text", k) for k in range(group.size)]
        comm.barrier(group)
        assert comm.any_failed(group, None) is None
        last = group.size - 1
        error = KeyError("gone") if group.rank == last else None
        assert comm.any_failed(group, error) == (group.members[last], "KeyError: 'gone'")
        kind, text = (KeyError, "gone") if error else (RuntimeError, f"failed on rank {group.members[last]}: KeyError")
        with pytest.raises(kind, match=text):
            comm.raise_together(group, error)
        comm.raise_together(group, None)


class TestWorld(Cases, OnWorld):
    pass


class TestOneself(Cases, OnOneself):
    pass


class TestReversed(Cases, OnReversed):
    pass


class TestParity(Cases, OnParity):
    pass


class TestMesh(Cases, OnMesh):
    pass


class TestMeshBackwards(Cases, OnMeshBackwards):
    pass
