"""Overlapped programs on real ranks: values, counts, order, and steps that fail between the halves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm, lax
from mpiarray.comm import halves, stats
from mpiarray.config import config
from tests.comm.cases import DTYPES, OnOneself, OnParity, OnReversed, OnWorld, block, same, strided
from tests.runtime.on_ranks import line, placed, ranks

pytestmark = pytest.mark.mpi

P = jax.P


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    """Nobody watches: under a watch collectives are whole (and tests run under a watch)."""
    before = stats.active
    stats.active = 0
    with config.override("check", False):
        yield
    stats.active = before
    gc.collect()
    assert halves.in_flight() == 0, "a request was left behind"


# -- the halves themselves -----------------------------------------------------------------------------------


class Cases:
    def blocks(self, *shapes):
        group = self.group()
        found = [block(group.rank, shape, dtype) for shape in shapes for dtype in DTYPES]
        return group, [*found, *(strided(x) for x in found if x.ndim)]

    def check(self, start, plain, blocks):
        """All started, then waited for, the last one first: each gives what the whole collective gives."""
        wanted = [plain(x) for x in blocks]
        given = [start(x) for x in blocks]
        for begun, value in reversed(list(zip(given, wanted, strict=True))):
            same(begun.wait(), value)
            same(begun.wait(), value)

    def test_all_reduce(self):
        for op in ("sum", "max", "prod"):
            group, blocks = self.blocks((), (5,), (0, 3), (2, 3, 5))
            self.check(halves.all_reduce(group, op), lambda x: comm.all_reduce(group, x, op), blocks)  # noqa: B023

    def test_all_reduce_many(self):
        group = self.group()
        blocks = [block(group.rank, shape, np.dtype("f4")) for shape in ((3,), (), (2, 5), (0,))]
        begun = halves.all_reduce_many(group, "sum")(*blocks)
        for found, x in zip(begun.wait(), blocks, strict=True):
            same(found, comm.all_reduce(group, x))

    def test_all_gather(self):
        group, blocks = self.blocks((4,), (0, 3), (2, 3, 5))
        for dim in (0, -1):
            for tiled in (True, False):
                run = halves.all_gather(group, dim, tiled)
                self.check(run, lambda x: comm.all_gather(group, x, dim, tiled), blocks)  # noqa: B023

    def test_reduce_scatter(self):
        n = self.group().size
        group, blocks = self.blocks((n,), (3, 2 * n), (0, n))
        for tiled in (True, False):
            chosen = [x for x in blocks if tiled or x.shape[-1] == n]
            run = halves.reduce_scatter(group, -1, "sum", tiled)
            self.check(run, lambda x: comm.reduce_scatter(group, x, -1, "sum", tiled), chosen)  # noqa: B023

    def test_all_to_all(self):
        n = self.group().size
        group, blocks = self.blocks((n, n), (2 * n, 3), (n, 0), (3 * n, n, 2))
        for concat in (0, 1):
            run = halves.all_to_all(group, 0, concat)
            self.check(run, lambda x: comm.all_to_all(group, x, 0, concat), blocks)  # noqa: B023

    def test_permute(self):
        n = self.group().size
        group, blocks = self.blocks((), (5,), (0, 3), (2, 3))
        ring = [(k, (k + 1) % n) for k in range(n)]
        for perm in (ring, ring[:-1], [(k, k) for k in range(n)], [], [(k, n - 1 - k) for k in range(n)]):
            self.check(halves.permute(group, perm), lambda x: comm.permute(group, x, perm), blocks)  # noqa: B023

    def test_large_blocks(self):
        n = self.group().size
        group = self.group()
        x = (np.arange(2**19 * n, dtype=np.float32) % 4093).reshape(
            n, -1, 512
        ) + group.rank  # sums are exact in any order
        self.check(halves.all_gather(group, 1), lambda x: comm.all_gather(group, x, 1), [x])
        self.check(halves.all_to_all(group, 0, 1), lambda x: comm.all_to_all(group, x, 0, 1), [x])
        self.check(halves.reduce_scatter(group, 0), lambda x: comm.reduce_scatter(group, x, 0), [x])
        self.check(halves.permute(group, [(0, n - 1)]), lambda x: comm.permute(group, x, [(0, n - 1)]), [x])

    def test_what_nobody_waits_for_is_finished(self):
        group = self.group()
        x = block(group.rank, (2**16,), np.dtype("f4"))
        begun = halves.all_reduce(group, "sum")(x)
        assert halves.in_flight() == (group.size > 1)
        del begun
        assert halves.in_flight() == 0
        same(comm.all_reduce(group, x), comm.all_reduce(group, x))

    def test_they_are_counted_as_whole_ones_are(self):
        n, group = self.group().size, self.group()
        x = block(group.rank, (n, 3), np.dtype("f4"))
        ring = [(k, (k + 1) % n) for k in range(n)]
        with comm.counting() as whole:
            comm.all_reduce(group, x), comm.all_gather(group, x), comm.reduce_scatter(group, x)
            comm.all_to_all(group, x, 0, 0), comm.permute(group, x, ring)
        with comm.counting() as cut:
            starts = [halves.all_reduce(group, "sum"), halves.all_gather(group), halves.reduce_scatter(group)]
            for start in [*starts, halves.all_to_all(group, 0, 0), halves.permute(group, ring)]:
                start(x).wait()
        assert cut == whole

    def test_floats_have_the_same_bits_everywhere(self):
        group = self.group()
        for size in (1, 700, 2**17):
            x = (np.sin((group.rank + 1.0) * np.arange(1, size + 1)) * 1e3).astype(np.float32)
            total = halves.all_reduce(group, "sum")(x).wait()
            told = comm.agree(group, total.tobytes())
            assert len(set(told)) == 1

    def test_the_order_of_ranks_counts_when_asked_for(self):
        group = self.group()
        x = (np.float32(1e8) if group.rank == 0 else np.float32(1 + group.rank)) * np.ones(300, np.float32)
        with config.override("deterministic", True):
            same(halves.all_reduce(group, "sum")(x).wait(), comm.all_reduce(group, x))


class TestWorld(OnWorld, Cases):
    pass


class TestOneself(OnOneself, Cases):
    pass


class TestReversed(OnReversed, Cases):
    pass


class TestParity(OnParity, Cases):
    pass


# -- programs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def n() -> Iterator[int]:
    with jax.set_mesh(line()):
        yield ranks()


def work(x):
    return x.T @ x + (x + 1).T @ x


def compiled(body, overlapped: bool):
    """A jitted map of the body, compiled with or without halves."""
    mapped = jax.jit(jax.shard_map(body, in_specs=P("x"), out_specs=P("x")))

    def run(x):
        with config.override("overlap", overlapped):
            text = mapped.lower(x).compile().as_text()
            assert ("-start(" in text) == (overlapped and ranks() > 1)
            return np.asarray(mapped(x))

    return run


def operand(n: int, seed: int = 0):
    host = np.random.default_rng(seed).integers(-3, 4, (n * 512, 512)).astype(np.float32)  # sums of these are exact
    return host, placed(host, line(), "x")


BODIES = {
    "ring": lambda x, n: lax.ppermute(x, "x", [(k, (k + 1) % n) for k in range(n)]) @ work(x),
    "chain": lambda x, n: lax.ppermute(x, "x", [(k, k + 1) for k in range(n - 1)]) @ work(x),
    "sum": lambda x, n: lax.psum(x, "x") + work(x),
    "sums": lambda x, n: lax.psum(x, "x") + lax.psum(2 * x, "x") + work(x),
    "mean": lambda x, n: lax.pmean(x * n, "x") + work(x),
    "max": lambda x, n: lax.pmax(x, "x") + work(x),
    "gather": lambda x, n: lax.all_gather(x, "x", axis=1, tiled=True).reshape(n, 512, 512).sum(0) + work(x),
    "scatter": lambda x, n: jnp.tile(lax.psum_scatter(x.reshape(n, -1), "x"), n).reshape(512, 512) + work(x),
    "exchange": lambda x, n: lax.all_to_all(x.reshape(n, -1), "x", 0, 0).reshape(512, 512) + work(x),
}


@pytest.mark.parametrize("name", BODIES)
def test_values_are_those_of_the_whole_program(n, name):
    if name in ("scatter", "exchange") and 512 * 512 % n:
        pytest.skip("blocks do not divide")
    _, x = operand(n)
    body = lambda b: BODIES[name](b, n)
    with comm.counting() as whole:
        wanted = compiled(body, False)(x)
    run = compiled(body, True)
    run(x)
    with comm.counting() as cut:
        found = run(x)
    np.testing.assert_array_equal(found, wanted)
    assert found.tobytes() == wanted.tobytes()
    for kind in ("all_reduce", "permute", "reduce_scatter", "all_to_all"):
        assert cut.calls[kind] == whole.calls[kind]
        assert cut.bytes[kind] == whole.bytes[kind]


def test_several_under_way_over_both_kinds_of_groups(n):
    if n % 2:
        pytest.skip("needs an even number of ranks")
    mesh = jax.make_mesh((n // 2, 2), ("x", "y"))
    host = np.random.default_rng(1).integers(-3, 4, (n * 256, 512)).astype(np.float32)
    with jax.set_mesh(mesh):
        x = jax.device_put(host, jax.NamedSharding(mesh, P(("x", "y"))))

        def body(b):
            first, second = lax.psum(b, "x"), lax.psum(b, "y")
            third = lax.ppermute(b, "y", [(0, 1), (1, 0)])
            return (first + second + third) @ work(b)

        found = [compiled_on(mesh, body, overlapped)(x) for overlapped in (False, True)]
    np.testing.assert_array_equal(*found)
    per = host.reshape(n // 2, 2, 256, 512)
    wanted = per.sum(0)[None] + per.sum(1)[:, None] + per[:, ::-1]
    products = np.einsum("xyrk,xyrl->xykl", per, 2 * per) + per.sum(2)[:, :, None]
    np.testing.assert_allclose(found[0].reshape(wanted.shape), wanted @ products, rtol=1e-4, atol=1e-1)


def compiled_on(mesh, body, overlapped):
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y"))))

    def run(x):
        with config.override("overlap", overlapped):
            return np.asarray(mapped(x))

    return run


def test_loops(n):
    _, x = operand(n)

    def body(b):
        def step(carry, _):
            moved = lax.ppermute(carry, "x", [(k, (k + 1) % n) for k in range(n)])
            return moved + 0 * work(carry), None

        return lax.scan(step, b, None, length=n + 1)[0]

    whole, cut = compiled(body, False)(x), compiled(body, True)(x)
    np.testing.assert_array_equal(cut, whole)
    np.testing.assert_array_equal(whole, np.roll(np.asarray(x), 512, 0))


def test_a_gradient_step(n):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(4)]
    batch = placed(rng.standard_normal((64 * n, 256)).astype(np.float32), line(), "x")

    @jax.shard_map(in_specs=(P(), P("x")), out_specs=P())
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return lax.pmean(jnp.mean(x * x), "x")

    def slopes(overlapped):
        with config.override("overlap", overlapped):
            return [np.asarray(g) for g in jax.jit(jax.grad(loss))(weights, batch)]

    for found, wanted in zip(slopes(True), slopes(False), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_a_step_that_fails_between_the_halves_leaves_nothing_behind(n):
    _, x = operand(n)
    fails = [False]

    def host(value):
        if fails[0]:
            raise ValueError("the host has failed")
        return value

    def body(b):
        moved = lax.ppermute(b, "x", [(k, (k + 1) % n) for k in range(n)])
        made = jax.pure_callback(host, jax.typeof(b), work(b) + b)
        return moved + lax.psum(b, "x") + work(b) + made

    run = compiled(body, True)
    wanted = compiled(body, False)(x)
    np.testing.assert_array_equal(run(x), wanted)
    fails[0] = True
    for _ in range(3):
        with pytest.raises(Exception, match="the host has failed"):
            run(x)
    gc.collect()
    assert halves.in_flight() == 0
    fails[0] = False
    np.testing.assert_array_equal(run(x), wanted)


def test_effects_keep_their_order(n, capfd):
    _, x = operand(n)

    def body(b):
        jax.debug.print("first {}", b.size)
        moved = lax.ppermute(b, "x", [(k, (k + 1) % n) for k in range(n)])
        jax.debug.print("second {}", moved[0, 0])
        c = work(b)
        jax.debug.print("third {}", c[0, 0])
        return moved + c

    seen = []
    for overlapped in (False, True):
        compiled(body, overlapped)(x)
        out, _ = capfd.readouterr()
        seen.append(out)
    assert seen[0] == seen[1]


def test_under_a_watch_they_are_whole(n):
    group = comm.world_group()
    start = halves.all_reduce(group, "sum")
    with config.override("check", True):
        begun = start(np.ones(3, np.float32))
        assert halves.in_flight() == 0
    same(begun.wait(), np.full(3, n, np.float32))
