"""all_reduce: arithmetic of every dtype, NaN, rounding, order, and equal bits on all members."""

from __future__ import annotations

import itertools
import zlib

import ml_dtypes
import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import datatypes, reductions
from mpiarray.config import config
from mpiarray.errors import InternalError
from tests.comm.cases import (
    DTYPES,
    SHAPES,
    OnMesh,
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

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BF16, np.dtype(ml_dtypes.float8_e5m2)]
INTEGERS = [dtype for dtype in DTYPES if dtype.kind in "iu"]


class Cases:
    """Each case runs on the group of the class that mixes this in."""

    def test_sum(self):
        for dtype in DTYPES:
            group = self.group()
            for shape in SHAPES:
                blocks = [block(k, shape, dtype, spread=3) for k in range(group.size)]
                x = blocks[group.rank]
                wanted = exact(np.add, blocks)
                same(comm.all_reduce(group, x), wanted)
                same(comm.all_reduce(group, np.asfortranarray(x).reshape(shape)), wanted)
                same(comm.all_reduce(group, strided(x) if shape else x), wanted)

    def test_large_sum(self):
        """Long enough to be cut into parts, and not a multiple of the group's size."""
        for dtype in DTYPES:
            group = self.group()
            blocks = [block(k, (41_003,), dtype, spread=3) for k in range(group.size)]
            same(comm.all_reduce(group, blocks[group.rank]), exact(np.add, blocks))

    def test_max_min(self):
        for dtype, op in itertools.product([dtype for dtype in DTYPES if dtype.kind != "c"], ["max", "min"]):
            group = self.group()
            for shape in (*SHAPES, (30_001,)):
                blocks = [block(k, shape, dtype) for k in range(group.size)]
                wanted = exact({"max": np.maximum, "min": np.minimum}[op], blocks)
                same(comm.all_reduce(group, blocks[group.rank], op), wanted)

    def test_prod(self):
        for dtype in DTYPES:
            group = self.group()
            blocks = [block(k, (11,), dtype, spread=2) for k in range(group.size)]
            same(comm.all_reduce(group, blocks[group.rank], "prod"), exact(np.multiply, blocks))

    def test_bits(self):
        for dtype, op in itertools.product([np.dtype(bool), *INTEGERS], ["and", "or", "xor"]):
            group = self.group()
            blocks = [block(k, (3, 4), dtype) for k in range(group.size)]
            ufunc = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
            same(comm.all_reduce(group, blocks[group.rank], op), ufunc.reduce(np.stack(blocks), 0))

    def test_integers_wrap(self):
        for dtype in INTEGERS:
            group = self.group()
            largest = np.iinfo(dtype).max
            x = np.full(3, largest, dtype)
            wanted = np.array([int(largest) * group.size % 2 ** (8 * dtype.itemsize)], np.uint64).astype(dtype)
            same(comm.all_reduce(group, x), np.repeat(wanted, 3))

    def test_nan_wins(self):
        """Whichever member has it, before or behind the extreme value."""
        for dtype, op in itertools.product(FLOATS, ["max", "min"]):
            group = self.group()
            n = group.size
            for size in (n + 1, 20_000):
                rows = np.tile(np.arange(n, dtype=np.float64)[:, None], (1, size))
                for k in range(n):
                    rows[k, k] = np.nan
                wanted = (np.maximum if op == "max" else np.minimum).reduce(rows, 0)
                found = comm.all_reduce(group, rows[group.rank].astype(dtype), op)
                np.testing.assert_array_equal(found.astype(np.float64), wanted)
                assert np.isnan(wanted[:n]).all()
                assert not np.isnan(wanted[n:]).any()

    def test_infinities(self):
        for dtype in FLOATS:
            group = self.group()
            x = np.array([np.inf, -np.inf, 1, -0.0]).astype(dtype)
            found = comm.all_reduce(group, x).astype(np.float64)
            np.testing.assert_array_equal(found, [np.inf, -np.inf, group.size, -0.0 * group.size])

    def test_small_floats_round_once(self):
        """256 + 1 is 256 in bfloat16; the sum of all is not, since it is made in float32."""
        group = self.group()
        n = group.size
        for size in (3, 30_000):
            x = np.full(size, 256 if group.rank == 0 else 1, BF16)
            same(comm.all_reduce(group, x), np.full(size, 256 + n - 1, np.float32).astype(BF16))
        x = np.full(5, 2048 if group.rank == 0 else 1, np.float16)
        same(comm.all_reduce(group, x), np.full(5, 2048 + n - 1, np.float32).astype(np.float16))

    def test_members_get_equal_bits(self):
        for dtype, deterministic in itertools.product(["f4", "f8", "c8", "c16", "f2", BF16], [False, True]):
            group = self.group()
            with config.override("deterministic", deterministic):
                for size in (1, 2, 3, 10, 333, 1024, 5_000, 70_001):
                    x = rounding(group.rank, size, dtype)
                    for op in ("sum", "prod"):
                        told = comm.agree(group, zlib.crc32(comm.all_reduce(group, x, op).tobytes()))
                        assert len(set(told)) == 1, f"{op} of {size}"

    def test_deterministic_is_in_rank_order(self):
        for dtype in ["f4", "f8", "c8"]:
            group = self.group()
            with config.override("deterministic", True):
                for size in (1, 7, 20_011):
                    blocks = [rounding(k, size, dtype) for k in range(group.size)]
                    wanted = blocks[0].copy()
                    for other in blocks[1:]:
                        wanted += other
                    same(comm.all_reduce(group, blocks[group.rank]), wanted)
                    n = group.size
                    rows = [rounding(k, 5 * n, dtype).reshape(5, n) for k in range(n)]
                    wanted = rows[0][:, group.rank].copy()
                    for other in rows[1:]:
                        wanted += other[:, group.rank]
                    same(comm.reduce_scatter(group, rows[group.rank], 1, "sum", False), wanted)

    def test_in_place(self):
        group = self.group()
        for dtype in ("f4", "f2", "i4"):
            for size in (5, 40_000):
                blocks = [block(k, (size,), np.dtype(dtype), spread=3) for k in range(group.size)]
                x = blocks[group.rank].copy()
                assert comm.all_reduce(group, x, out=x) is x
                same(x, exact(np.add, blocks))

    def test_pieces(self, monkeypatch):
        """The way of very large blocks: many pieces, the last one shorter; from any memory, and in place."""
        group = self.group()
        n, me = group.size, group.rank
        for name, value in {
            "PIECE_BYTES": 1000,
            "LEAST_BYTES": 1,
            "GATHER_BYTES": 0,
            "WHOLE_BYTES": 0,
            "TILE": 37,
        }.items():
            monkeypatch.setattr(reductions, f"_{name}", value)
        blocks = [block(k, (3011,), BF16, spread=5) for k in range(n)]
        same(comm.all_reduce(group, blocks[me]), exact(np.add, blocks))
        blocks = [block(k, (n, 701), BF16, spread=5) for k in range(n)]
        same(comm.reduce_scatter(group, blocks[me]), exact(np.add, blocks)[me : me + 1])
        blocks = [block(k, (30, n, 7), BF16, spread=5) for k in range(n)]
        x = [blocks[me], np.asfortranarray(blocks[me]), strided(blocks[me])][me % 3]
        same(comm.reduce_scatter(group, x, 1), exact(np.add, blocks)[:, me : me + 1].copy())
        same(comm.reduce_scatter(group, x, 1, tiled=False), exact(np.add, blocks)[:, me].copy())
        with config.override("deterministic", True):
            blocks = [rounding(k, 3011, "f4") for k in range(n)]
            wanted = blocks[0].copy()
            for other in blocks[1:]:
                wanted += other
            x = blocks[me].copy()
            same(comm.all_reduce(group, x), wanted)
            same(x, blocks[me])
            same(comm.all_reduce(group, x, out=x), wanted)
            blocks = [rounding(k, 90 * n, "f8").reshape(90, n) for k in range(n)]
            wanted = blocks[0][:, me].copy()
            for other in blocks[1:]:
                wanted += other[:, me]
            same(comm.reduce_scatter(group, blocks[me], 1, tiled=False), wanted)
            same(comm.reduce_scatter(group, strided(blocks[me]), 1, tiled=False), wanted)

    def test_counts_beyond_mpi(self, monkeypatch):
        """The way of blocks with more elements than an MPI count can say, with a smaller limit."""
        group = self.group()
        n = group.size
        monkeypatch.setattr(datatypes, "MAX_COUNT", 100)
        monkeypatch.setattr(datatypes, "_UNIT", 32)
        blocks = [block(k, (4 * n, 91), np.dtype(np.int32)) for k in range(n)]
        x, total = blocks[group.rank], exact(np.add, blocks)
        same(comm.all_reduce(group, x), total)
        same(comm.reduce_scatter(group, x), np.split(total, n)[group.rank])
        same(comm.all_gather(group, x), np.concatenate(blocks))
        same(comm.all_gather(group, x, 1), np.concatenate(blocks, 1))
        same(comm.all_to_all(group, x, 0, 0), np.concatenate([np.split(b, n)[group.rank] for b in blocks]))
        same(comm.permute(group, x, [(k, (k + 1) % n) for k in range(n)]), blocks[group.rank - 1])
        same(comm.broadcast(group, x, n - 1), blocks[n - 1])
        shapes = [b.shape for b in blocks]
        for found, wanted in zip(comm.all_gather_varied(group, x, shapes, x.dtype), blocks, strict=True):
            same(found, wanted)
        y = x.copy()
        same(comm.all_reduce(group, y, out=y), total)

    def test_unknown_op(self):
        with pytest.raises(InternalError, match="no reduction 'mean'"):
            comm.all_reduce(self.group(), np.ones(3), "mean")


def rounding(position: int, size: int, dtype) -> np.ndarray:
    """Values whose sum depends on the order in which it is made."""
    place = np.arange(size)
    values = np.sin((position + 1.0) * (place + 1)) * 10.0 ** (place % 3)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * np.cos((position + 2.0) * (place + 1))
    return values.astype(dtype)


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
