"""The ways of exchanging large blocks: equal results, and one choice that all members share."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import collectives, pairwise, ways
from mpiarray.config import config
from tests.comm.cases import OnParity, OnReversed, OnWorld, same

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def every_block_is_large(monkeypatch):
    monkeypatch.setattr(collectives, "PACK_BYTES", 0)


WAYS = ("pieces", "long", "packed", "typed")
DTYPES = [np.dtype("f4"), np.dtype("c16"), np.dtype("i1"), np.dtype(ml_dtypes.bfloat16)]


def numbered(position: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return ((np.arange(np.prod(shape)) * 7 + position * 13) % 101).astype(dtype).reshape(shape)


class Cases:
    def check(self, shape, dtype, split, concat, tiled):
        group = self.group()
        n = group.size
        blocks = [numbered(k, shape, dtype) for k in range(n)]
        cut = [np.split(x, n, split)[group.rank] for x in blocks]
        if not tiled:
            cut = [np.expand_dims(x.squeeze(split), concat) for x in cut]
        wanted = np.concatenate(cut, concat)
        for way in WAYS:
            with config.override("exchange", way):
                same(comm.all_to_all(group, blocks[group.rank], split, concat, tiled), wanted)
                backwards = np.asfortranarray(blocks[group.rank])
                same(comm.all_to_all(group, backwards, split, concat, tiled), wanted)
        return wanted

    def test_all_ways_give_the_same(self):
        n = self.group().size
        for dtype in DTYPES:
            self.check((3, 6 * n, 4), dtype, 1, 0, True)
            self.check((6 * n, 3, 4), dtype, 0, 1, True)
            self.check((5, 2 * n, 4), dtype, 1, 2, True)
            self.check((3, n, 40), dtype, 1, 0, False)
            self.check((n, 3, 40), dtype, 0, 2, False)

    def test_pieces_of_both_sizes(self, monkeypatch):
        """Parts that are cut into several messages, twice as many in the usual way as in long pieces."""
        monkeypatch.setattr(pairwise, "_MESSAGE", 64)
        sizes = []
        send = pairwise._send
        monkeypatch.setattr(pairwise, "_send", lambda *args: sizes.append(args[2].nbytes) or send(*args))
        n = self.group().size
        self.check((12, 8 * n, 4), np.dtype("f4"), 1, 0, True)
        assert set(sizes) == (set() if n == 1 else {64, 128})
        self.check((5, 2 * n, 4), np.dtype("i1"), 1, 2, True)

    def test_one_way_is_agreed_on_and_kept(self):
        group = self.group()
        n = group.size
        shape = (160, 64 * n, 32)
        x = numbered(group.rank, shape, np.dtype("f4"))
        ways._trials.clear()
        with config.override("exchange", "pieces"):
            wanted = comm.all_to_all(group, x, 1, 0)
        assert ways.chosen() == {}
        for _ in range(3 * len(WAYS) + 2):
            same(comm.all_to_all(group, x, 1, 0), wanted)
        if n == 1:
            assert ways.chosen() == {}
            return
        ((key, found),) = ways.chosen().items()
        assert key == (group.members, "all_to_all", x.nbytes.bit_length())
        assert found in WAYS
        assert set(comm.agree(group, found)) == {found}

    def test_large_blocks_are_never_packed_whole(self):
        """Above the buffers that an exchange may have, packing whole is not tried."""
        group = self.group()
        x = numbered(group.rank, (64, 32 * group.size, 512), np.dtype("f4"))
        ways._trials.clear()
        with config.override("exchange_bytes", 2**20):
            for _ in range(3 * len(WAYS)):
                comm.all_to_all(group, x, 1, 0)
        assert set(ways.chosen().values()) <= {"pieces", "long", "typed"}
        assert len(ways.chosen()) == (group.size > 1)
        assert all("packed" not in trial.seconds for trial in ways._trials.values())


class TestWorld(OnWorld, Cases):
    pass


class TestReversed(OnReversed, Cases):
    pass


class TestParity(OnParity, Cases):
    pass


def test_a_way_is_taken_only_where_it_gains():
    group = comm.world_group()
    if group.size == 1:
        pytest.skip("nobody to agree with")
    assert ways._agreed(group, ["a", "b", "c"], [1.0, 0.95, 2.0]) == "a"
    assert ways._agreed(group, ["a", "b", "c"], [1.0, 0.5, 2.0]) == "b"
    slow_on_one = [1.0, 0.1 if group.rank else 3.0, 0.8]
    assert ways._agreed(group, ["a", "b", "c"], slow_on_one) == "c"


def test_ways_have_names():
    with pytest.raises(ValueError, match="supported: 'auto', 'pieces', 'long', 'packed', 'typed'"):
        config.update("exchange", "fast")
