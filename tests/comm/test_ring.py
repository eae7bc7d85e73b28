"""Reductions around the ring: values, the order in which sums are made, equal bits, memory, and which blocks take it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import datatypes, halves, prepared, ring, stats
from mpiarray.config import config
from tests.comm.cases import DTYPES, OnMesh, OnOneself, OnParity, OnReversed, OnWorld, block, exact, same, strided
from tests.comm.test_reductions import rounding
from tests.peak import peak_of

pytestmark = pytest.mark.mpi

UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@pytest.fixture(autouse=True)
def all_blocks_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ring, "_PIECE_BYTES", 256)
    monkeypatch.setattr(ring, "_USED_BYTES", 256)
    monkeypatch.setattr(ring, "SWAPPED_BYTES", (2**13, 1000))  # of two members: both ways
    with config.override("sums", "ring"):
        yield


def ring_order(ufunc: np.ufunc, parts: list[np.ndarray], k: int) -> np.ndarray:
    """The members' blocks of part k combined in the order k + 1, k + 2, ..., k."""
    n = len(parts)
    total = parts[(k + 1) % n].copy()
    for step in range(2, n + 1):
        total = ufunc(total, parts[(k + step) % n])
    return total


class Cases:
    """Each case runs on the group of the class that mixes this in."""

    def test_all_reduce(self):
        group = self.group()
        for dtype, size in itertools.product(DTYPES, (0, 1, 15, 16 * group.size + 1, 403)):
            for op, ufunc in (BITS if dtype.kind in "b" else UFUNCS | (BITS if dtype.kind in "iu" else {})).items():
                if dtype.kind == "c" and op != "sum":  # the sign of zero in a product depends on the order
                    continue
                blocks = [block(k, (size,), dtype, spread=2 if op == "prod" else 3) for k in range(group.size)]
                wanted = ufunc.reduce(np.stack(blocks), 0) if op in BITS else exact(ufunc, blocks)
                same(comm.all_reduce(group, blocks[group.rank], op), wanted)

    def test_reduce_scatter(self):
        """Along every dimension, whatever the strides: of this member's block and, unlike them, of the others'."""
        group = self.group()
        n, me = group.size, group.rank
        for dtype, shape in itertools.product(DTYPES, ((2 * n, 3, 37), (3, 40 * n), (70, n), (5, n, 90), (n,), (0, n))):
            blocks = [block(k, shape, dtype, spread=3) for k in range(n)]
            total = exact(np.add, blocks)
            x = [blocks[me], np.asfortranarray(blocks[me]), strided(blocks[me])][me % 3]
            for dim, size in enumerate(shape):
                if size % n == 0:
                    same(comm.reduce_scatter(group, x, dim), np.split(total, n, dim)[me].copy())
                if size == n:
                    same(comm.reduce_scatter(group, x, dim, "sum", False), np.take(total, me, dim))

    def test_the_order_of_a_sum(self):
        """Exactly as documented, part by part; parts are cut where cache lines begin."""
        group = self.group()
        n, me = group.size, group.rank
        for dtype, op in (("f4", "sum"), ("f4", "prod"), ("f8", "sum"), ("c8", "sum")):
            size = 200 * n // np.dtype(dtype).itemsize + 5  # no more than n pieces
            blocks = [rounding(k, size, dtype) for k in range(n)]
            line = 64 // np.dtype(dtype).itemsize
            length = -(-size // (n * line)) * line
            cuts = [min(k * length, size) for k in range(n + 1)]
            parts = [[x[cuts[k] : cuts[k + 1]] for x in blocks] for k in range(n)]
            wanted = np.concatenate([ring_order(UFUNCS[op], part, k) for k, part in enumerate(parts)])
            same(comm.all_reduce(group, blocks[me], op), wanted)
            rows = [rounding(k, n * 501, dtype).reshape(n, 501) for k in range(n)]
            same(
                comm.reduce_scatter(group, rows[me], 0, op, False),
                ring_order(UFUNCS[op], [row[me] for row in rows], me),
            )
            columns = [np.moveaxis(row, 0, 1).copy() for row in rows]
            same(
                comm.reduce_scatter(group, columns[me], 1, op, False),
                ring_order(UFUNCS[op], [row[me] for row in rows], me),
            )

    def test_members_get_equal_bits(self):
        group = self.group()
        for dtype, op, size in itertools.product(("f4", "c16"), ("sum", "prod"), (1, 333, 5_003)):
            found = comm.all_reduce(group, rounding(group.rank, size, dtype), op)
            assert len(set(comm.agree(group, zlib.crc32(found.tobytes())))) == 1
            again = comm.all_reduce(group, rounding(group.rank, size, dtype), op)
            same(again, found)

    def test_nan_wins(self):
        group = self.group()
        n = group.size
        for dtype, op in itertools.product(("f4", "f8", "f2", ml_dtypes.bfloat16), ("max", "min")):
            rows = np.tile(np.arange(n, dtype=np.float64)[:, None], (1, 300))
            rows[np.arange(n), np.arange(n) * 7] = np.nan
            found = comm.all_reduce(group, rows[group.rank].astype(dtype), op).astype(np.float64)
            np.testing.assert_array_equal(found, UFUNCS[op].reduce(rows, 0))

    def test_overflow_is_a_result(self):
        group = self.group()
        with np.errstate(all="raise"):
            found = comm.all_reduce(group, np.full(50, 3e38, np.float32))
        np.testing.assert_array_equal(found, np.float32(3e38) if group.size == 1 else np.inf)

    def test_in_place(self):
        group = self.group()
        for size in (5, 4_001):
            blocks = [block(k, (size,), np.dtype("f4"), spread=3) for k in range(group.size)]
            x = blocks[group.rank].copy()
            assert comm.all_reduce(group, x, out=x) is x
            same(x, exact(np.add, blocks))

    def test_small_floats_round_once(self):
        """They do not take the ring, on which they would be rounded at each step."""
        group = self.group()
        for dtype, large in ((ml_dtypes.bfloat16, 256), (np.float16, 2048)):
            x = np.full(300, large if group.rank == 0 else 1, dtype)
            wanted = np.full(300, large + group.size - 1, np.float32).astype(dtype)
            same(comm.all_reduce(group, x), wanted)

    def test_deterministic_sums_are_in_rank_order(self):
        group = self.group()
        blocks = [rounding(k, 777, "f4") for k in range(group.size)]
        wanted = blocks[0].copy()
        for other in blocks[1:]:
            wanted += other
        with config.override("deterministic", True):
            same(comm.all_reduce(group, blocks[group.rank]), wanted)

    def test_it_is_one_collective(self):
        group = self.group()
        n = group.size
        x = block(group.rank, (64 * n,), np.dtype("f4"))
        with comm.counting() as counts:
            comm.all_reduce(group, x)
            comm.reduce_scatter(group, x)
        assert dict(counts.calls) == ({"all_reduce": 1, "reduce_scatter": 1} if n > 1 else {})
        assert counts.total_bytes == (2 * x.nbytes if n > 1 else 0)

    def test_messages_of_others_pass(self):
        """A permute that was started before, and whose messages come in the middle, gets its own."""
        group = self.group()
        n, me = group.size, group.rank
        x = block(me, (300,), np.dtype("f4"))
        started = halves.permute(group, [(k, (k + 1) % n) for k in range(n)])(x)
        same(comm.all_reduce(group, x), exact(np.add, [block(k, (300,), np.dtype("f4")) for k in range(n)]))
        same(started.wait(), block((me - 1) % n, (300,), np.dtype("f4")))

    def test_memory(self, monkeypatch):
        """The result and two pieces: no packed copy, nothing of the size of the block."""
        group = self.group()
        n = group.size
        monkeypatch.setattr(ring, "_PIECE_BYTES", 2**16)
        x = np.ones((512, 256 * n), np.float32)
        for call in (
            lambda: comm.reduce_scatter(group, x, 1),
            lambda: comm.reduce_scatter(group, x, 0) if 512 % n == 0 else x[:1],
            lambda: comm.all_reduce(group, x),
        ):
            with config.override("check", False):  # which would look at the bytes of the result, in a copy
                call()
                result, peak = peak_of(call)
            assert peak <= result.nbytes + 2 * 2**16 + 2**16  # what Python itself allocates

    def test_prepared(self, monkeypatch):
        """Plans do as the plain collectives do, also when the setting changes after they were made."""
        monkeypatch.setattr(stats, "active", 0)
        group = self.group()
        n, me = group.size, group.rank
        if config.check:
            pytest.skip("MPIARRAY_CHECK takes no plans")
        blocks = [rounding(k, 700 * n, "f4") for k in range(n)]
        summed, scattered = prepared.all_reduce(group, "sum"), prepared.reduce_scatter(group)
        for sums in ("ring", "mpi", "ring"):
            with config.override("sums", sums):
                same(summed(blocks[me]), comm.all_reduce(group, blocks[me]))
                same(scattered(blocks[me]), comm.reduce_scatter(group, blocks[me]))
        rows = [x.reshape(n, -1)[me] for x in blocks]
        same(scattered(blocks[me]), ring_order(np.add, rows, me))


class TestWorld(OnWorld, Cases):
    pass


class TestOneself(OnOneself, Cases):
    pass


class TestReversed(OnReversed, Cases):
    pass


class TestParity(OnParity, Cases):
    pass


class TestMesh(OnMesh, Cases):
    pass


def test_which_blocks_take_the_ring():
    group = comm.world_group()
    n = group.size
    f4, i8, bf16 = np.dtype("f4"), np.dtype("i8"), np.dtype(ml_dtypes.bfloat16)
    large = ring.PART_BYTES[n > 2] * n
    with config.override("sums", "auto"):
        assert ring.takes(group, "sum", f4, large // 4)
        assert not ring.takes(group, "sum", f4, large // 4 - 1)
        assert ring.takes(group, "xor", i8, large // 8)
        assert not ring.takes(group, "sum", bf16, large)
        assert ring.takes(group, "max", bf16, large // 2)
        with config.override("deterministic", True):
            assert not ring.takes(group, "sum", f4, large)
            assert ring.takes(group, "sum", i8, large)
            assert ring.takes(group, "max", f4, large)
    with config.override("sums", "mpi"):
        assert not ring.takes(group, "sum", f4, datatypes.MAX_COUNT)
        assert ring.takes(group, "sum", f4, datatypes.MAX_COUNT + 1)
    assert ring.takes(group, "sum", f4, 1)


def test_the_default_takes_it_for_large_blocks(monkeypatch):
    """Both sides of the threshold, counted in messages."""
    group = comm.world_group()
    n = group.size
    monkeypatch.setattr(ring, "PART_BYTES", (1024, 1024))
    monkeypatch.setattr(ring, "SWAPPED_BYTES", (2**20, 0))
    taken = []
    monkeypatch.setattr(ring, "_combine", lambda *args, done=ring._combine: (taken.append(1), done(*args)))
    with config.override("sums", "auto"):
        for size in (256 * n - 1, 256 * n):
            blocks = [block(k, (size,), np.dtype("f4")) for k in range(n)]
            same(comm.all_reduce(group, blocks[group.rank]), exact(np.add, blocks))
            assert bool(taken) == (n > 1 and size == 256 * n)


def test_two_members_swap_smaller_blocks(monkeypatch):
    """One message each way, from a few KB on; in place too; not around the ring, and not of more than two."""
    group = comm.world_group()
    n, me = group.size, group.rank
    monkeypatch.setattr(ring, "SWAPPED_BYTES", (2**13, 2**21))
    monkeypatch.setattr(ring, "_combine", None)
    swapped = []
    monkeypatch.setattr(ring, "_swap", lambda *args, done=ring._swap: (swapped.append(1), done(*args)))
    with config.override("sums", "auto"):
        for op, dtype, size in itertools.product(("sum", "max"), ("f4", "i8"), (100, 5_000)):
            blocks = [block(k, (size,), np.dtype(dtype), spread=3) for k in range(n)]
            wanted = exact(UFUNCS[op], blocks)
            same(comm.all_reduce(group, blocks[me], op), wanted)
            x = blocks[me].copy()
            comm.all_reduce(group, x, op, out=x)
            same(x, wanted)
            assert len(swapped) == (2 if n == 2 and size == 5_000 else 0)
            swapped.clear()
        with config.override("deterministic", True):
            assert not ring.takes_whole(group, "sum", np.dtype("f4"), 5_000)


def test_settings_have_names():
    with pytest.raises(ValueError, match="supported: 'auto', 'mpi', 'ring'"):
        config.update("sums", "fast")
