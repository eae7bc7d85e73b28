"""Repeated exchanges: from the third call on by persistent requests, with the same results, counts and freedoms as before."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import halves, repeated
from mpiarray.config import config
from tests.comm.cases import DTYPES, OnMesh, OnOneself, OnParity, OnReversed, OnWorld, block, same, strided

pytestmark = pytest.mark.mpi
CALLS = 7
SHAPE = (4, 3)


def around(group) -> list[tuple[int, tuple[int, ...]]]:
    """Messages for the members on both sides, of different shapes."""
    n, k = group.size, group.rank
    return [((k + 1) % n, SHAPE), ((k - 1) % n, (5,))] if n > 1 else []


def coming(group) -> list[tuple[int, tuple[int, ...]]]:
    n, k = group.size, group.rank
    return [((k - 1) % n, SHAPE), ((k + 1) % n, (5,))] if n > 1 else []


def sent(k: int, call: int, messages, dtype) -> list[np.ndarray]:
    return [block(k + 2 * call + len(shape), shape, dtype) for _, shape in messages]


def persistent(exchange: repeated.Repeated) -> bool:
    return bool(exchange.outgoing)


class Cases:
    """Each case runs on the group of the class that mixes this in."""

    def wanted(self, group, call, dtype):
        return [sent(peer, call, [(0, shape)], dtype)[0] for peer, shape in coming(group)]

    def usual(self, group) -> bool:
        """Whether requests are kept: not alone, and not where somebody watches."""
        return group.size > 1 and not halves.watched(group)

    def test_what_comes(self):
        """Each call sends what is there then, packed or not, and gives what comes; nobody is kept from writing over the blocks."""
        for dtype in DTYPES:
            group = self.group()
            exchange = repeated.exchange(group, around(group), coming(group), dtype)
            for call in range(CALLS):
                blocks = [strided(x) if call % 2 else x for x in sent(group.rank, call, around(group), dtype)]
                with comm.counting() as counts:
                    started = exchange.start(blocks)
                    for x in blocks:
                        x[...] = 0
                    found = started.wait()
                for a, b in zip(found, self.wanted(group, call, dtype), strict=True):
                    same(a, b)
                assert counts.calls["exchange"] == (group.size > 1)
                assert counts.bytes["exchange"] == sum(x.nbytes for x in blocks)
                del started
            assert persistent(exchange) == self.usual(group)

    def test_into(self):
        """Blocks are filled whatever their strides, for each dtype that one function sees."""
        group = self.group()
        swap = repeated.swap(group, around(group), coming(group))
        for call in range(CALLS):
            for dtype in map(np.dtype, ("f4", "i8")):
                blocks = sent(group.rank, call, around(group), dtype)
                targets = [strided(np.zeros(shape, dtype)) for _, shape in coming(group)]
                swap(blocks, targets)
                for a, b in zip(targets, self.wanted(group, call, dtype), strict=True):
                    np.testing.assert_array_equal(a, b)

    def test_what_is_held_stays(self):
        """While somebody holds what a call gave, the next one takes new memory."""
        group, dtype = self.group(), np.dtype("f4")
        exchange = repeated.exchange(group, around(group), coming(group), dtype)
        held = []
        for call in range(CALLS):
            started = exchange.start(sent(group.rank, call, around(group), dtype))
            held.append((started, started.wait(), self.wanted(group, call, dtype)))
        for _, found, wanted in held:
            for a, b in zip(found, wanted, strict=True):
                same(a, b)

    def test_ahead(self):
        """A rank may be ahead of who takes its messages."""
        group, dtype = self.group(), np.dtype("f8")
        n, k = group.size, group.rank
        perm = [(j, j + 1) for j in range(n - 1)]
        start = repeated.permute(group, perm, (300,), dtype)
        for call in range(CALLS):
            if k == n - 1:
                time.sleep(0.002)
            with comm.counting() as counts:
                found = start((block(k + call, (300,), dtype),)).wait()
            same(found, block(k - 1 + call, (300,), dtype) if k else np.zeros(300))
            assert counts.bytes["permute"] == (2400 if n > 1 or halves.watched(group) else 0) or n == 1

    def test_rings_and_oneself(self):
        group, dtype = self.group(), np.dtype("i4")
        n, k = group.size, group.rank
        for perm in ([(j, (j + 1) % n) for j in range(n)], [(j, j) for j in range(n)], [(0, n - 1)], []):
            start = repeated.permute(group, perm, SHAPE, dtype)
            source = {b: a for a, b in perm}.get(k, -1)
            for call in range(4):
                found = start((block(k + call, SHAPE, dtype),)).wait()
                same(found, block(source + call, SHAPE, dtype) if source >= 0 else np.zeros(SHAPE, dtype))

    def test_settings_in_between(self):
        """Some calls are by pieces, some by requests, and ranks need not agree on it: messages stay in order."""
        group, dtype = self.group(), np.dtype("f4")
        exchange = repeated.exchange(group, around(group), coming(group), dtype)
        for call in range(12):
            blocks = sent(group.rank, call, around(group), dtype)
            if (call + group.rank) % 3 == 0:
                exchange.calls = 0
            with config.override("exchange_bytes", 16 if call % 5 == 4 else 64 << 20):
                started = exchange.start(blocks)
                found = started.wait()
            for a, b in zip(found, self.wanted(group, call, dtype), strict=True):
                same(a, b)
            del started

    def test_failures_and_ends(self):
        """What is never waited for is finished; an exchange that goes lets its messages leave; the next one works."""
        for _ in range(3):
            group, dtype = self.group(), np.dtype("f4")
            exchange = repeated.exchange(group, around(group), coming(group), dtype)
            for call in range(CALLS):
                exchange.start(sent(group.rank, call, around(group), dtype))
            started = exchange.start(sent(group.rank, CALLS, around(group), dtype))
            assert halves.in_flight() == self.usual(group)
            del exchange
            gc.collect()
            for a, b in zip(started.wait(), self.wanted(group, CALLS, dtype), strict=True):
                same(a, b)
            del started
            gc.collect()
            assert halves.in_flight() == 0


class TestWorld(OnWorld, Cases):
    pass


class TestReversed(OnReversed, Cases):
    pass


class TestParity(OnParity, Cases):
    pass


class TestMesh(OnMesh, Cases):
    pass


class TestOneself(OnOneself, Cases):
    pass
