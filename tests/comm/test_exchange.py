"""exchange: any pairs, any strides, any number of messages, bounded buffers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import collectives, halves, pairwise
from mpiarray.comm.pairwise import pieces
from mpiarray.config import config
from mpiarray.errors import InternalError
from tests.comm.cases import DTYPES, OnMesh, OnOneself, OnParity, OnReversed, OnWorld, block, same, strided
from tests.peak import peak_of

pytestmark = pytest.mark.mpi


class Cases:
    """Each case runs on the group of the class that mixes this in."""

    def test_everybody_to_everybody(self):
        for dtype in DTYPES:
            group = self.group()
            n, k = group.size, group.rank
            for shape in ((), (0, 2), (4, 3)):
                sends = [(peer, block(10 * k + peer, shape, dtype)) for peer in range(n)]
                recvs = [(peer, np.zeros(shape, dtype)) for peer in range(n)]
                comm.exchange(group, sends, recvs)
                for peer, found in recvs:
                    same(found, block(10 * peer + k, shape, dtype))

    def test_started(self):
        """Blocks that are sent may be written over: at once where they are small, after the wait where they are not."""
        for copied, limit in itertools.product((0, 1 << 20), (16, 64 << 20)):
            group = self.group()
            n, k = group.size, group.rank
            others = [peer for peer in range(n) if peer != k]
            sends = [(peer, strided(block(10 * k + peer, (4, 3), np.dtype("f4")))) for peer in others]
            sends += [(peer, block(k, (), np.dtype("i8"))) for peer in others]
            recvs = [(peer, np.zeros((4, 3), "f4")) for peer in others] + [
                (peer, np.zeros((), "i8")) for peer in others
            ]
            with config.override("exchange_bytes", limit), pytest.MonkeyPatch.context() as patch:
                patch.setattr(halves, "COPIED", copied)
                with comm.counting() as counts:
                    started = halves.exchange(group, sends, recvs)
                    for _, x in sends if copied else ():
                        x[...] = -1
                    received = [x for _, x in recvs]
                    assert all(a is b for a, b in zip(started.wait(), received, strict=True))
                    assert all(a is b for a, b in zip(started.wait(), received, strict=True))
                assert counts.calls["exchange"] == (n > 1)
                assert counts.bytes["exchange"] == (n - 1) * (48 + 8)
            for j, (peer, found) in enumerate(recvs):
                want = block(10 * peer + k, (4, 3), np.dtype("f4")) if j < n - 1 else block(peer, (), np.dtype("i8"))
                same(found, want)

    def test_strides(self):
        """The order of memory on one side says nothing about the other; the results do not depend on the buffers."""
        for limit, given, wanted in itertools.product(
            [1, 40, 1000, 64 << 20], ["C", "F", "strided"], ["C", "F", "strided"]
        ):
            order = {"C": np.ascontiguousarray, "F": np.asfortranarray, "strided": strided}
            group = self.group()
            n, k = group.size, group.rank
            shape = (5, 4, 3)
            with config.override("exchange_bytes", limit):
                sends = [(peer, order[given](block(10 * k + peer, shape, np.dtype("f4")))) for peer in range(n)]
                recvs = [(peer, order[wanted](np.full(shape, -1, "f4"))) for peer in range(n)]
                comm.exchange(group, sends, recvs)
            for peer, found in recvs:
                np.testing.assert_array_equal(found, block(10 * peer + k, shape, np.dtype("f4")))

    def test_several_messages_and_uneven_pairs(self):
        """Member k sends k blocks to each later member and none to earlier ones; they arrive in order."""
        group = self.group()
        n, k = group.size, group.rank

        def sent(source, target):
            return [block(source + j, (j + 1, 3), np.dtype("i4")) for j in range(source + 1)] if source < target else []

        for limit in (16, 64 << 20):
            with config.override("exchange_bytes", limit):
                sends = [(peer, strided(x)) for peer in range(n) for x in sent(k, peer)]
                recvs = [(peer, strided(np.zeros_like(x))) for peer in range(n) for x in sent(peer, k)]
                comm.exchange(group, sends, recvs)
            for (_, found), wanted in zip(recvs, [x for peer in range(n) for x in sent(peer, k)], strict=True):
                np.testing.assert_array_equal(found, wanted)

    def test_members_with_nothing_to_do_may_stay_away(self):
        group = self.group()
        first, last = 0, group.size - 1
        x = block(1, (3,), np.dtype("f8"))
        out = np.zeros(3)
        if config.check:
            pytest.skip("MPIARRAY_CHECK compares all members")
        for _ in range(3):
            if group.rank == first == last:
                comm.exchange(group, [(0, x)], [(0, out)])
            elif group.rank == first:
                comm.exchange(group, [(last, x)], [])
            elif group.rank == last:
                comm.exchange(group, [], [(first, out)])
        if group.rank == last:
            same(out, x)
        comm.barrier(group)

    def test_large_blocks_take_no_more_than_the_message_buffers(self, monkeypatch):
        """A gather along the last dimension and an all_to_all, cut into pieces of 8 bytes."""
        group = self.group()
        n, k = group.size, group.rank
        monkeypatch.setattr(collectives, "PACK_BYTES", 0)
        monkeypatch.setattr(pairwise, "_MESSAGE", 8)
        blocks = [block(j, (2 * n, 3 * n), np.dtype("f4")) for j in range(n)]
        same(comm.all_gather(group, blocks[k], 1), np.concatenate(blocks, 1))
        same(comm.all_gather(group, blocks[k], 2, False), np.stack(blocks, 2))
        for split in (0, 1):
            for concat in (0, 1):
                wanted = np.concatenate([np.split(b, n, split)[k] for b in blocks], concat)
                same(comm.all_to_all(group, blocks[k], split, concat), wanted)
        cubes = [block(j, (3, n, 2), np.dtype("f4")) for j in range(n)]
        for concat in range(3):
            wanted = np.stack([b[:, k] for b in cubes], concat)
            same(comm.all_to_all(group, cubes[k], 1, concat, False), wanted)

    def test_memory(self):
        """Redistributing a large block needs the result and the message buffers, and no packed copy."""
        group = self.group()
        n = group.size
        x = np.zeros((n * 256, 8192 // n * n), np.float64)
        comm.all_to_all(group, x, 1, 0)  # what is made once
        for call in (lambda: comm.all_to_all(group, x, 1, 0), lambda: comm.all_gather(group, x[:32], 1)):
            result, peak = peak_of(call)
            # pieces of twice the usual size are tried, too; beside the blocks: what Python itself allocates
            assert peak <= result.nbytes + 8 * pairwise._MESSAGE + 2**20 + 2**16

    def test_own_blocks_must_match(self):
        group = self.group()
        with pytest.raises(InternalError, match="1 blocks sent to this rank itself, 0 received"):
            comm.exchange(group, [(group.rank, np.ones(2))], [])


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


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (2, 3, 4), (1, 1, 7)])
@pytest.mark.parametrize("limit", [1, 8, 24, 60, 10_000])
def test_pieces_cover_a_block_once(shape, limit):
    x = np.zeros(shape, np.int64)
    found = list(pieces(x, limit))
    for piece in found:
        piece += 1
        assert piece.nbytes <= max(limit, 8)
    assert (x == 1).all()
    assert [p.shape for p in found] == [p.shape for p in pieces(np.asfortranarray(x).reshape(shape), limit)]
