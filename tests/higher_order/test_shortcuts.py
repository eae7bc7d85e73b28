"""Collectives in eager bodies of shard_map, called again: values, types, errors, and calls that only look alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm, lax
from mpiarray.comm.stats import counting
from mpiarray.config import config
from tests.runtime.on_ranks import line, placed, ranks

pytestmark = pytest.mark.mpi

P = jax.P


def mapped(body: Any, x: Any, **kwargs: Any) -> np.ndarray:
    return np.asarray(jax.shard_map(body, in_specs=P("x"), out_specs=P("x"), **kwargs)(x))


@pytest.fixture
def n():
    with jax.set_mesh(line()):
        yield ranks()


def blocks(n: int, length: int = 4, dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 100, (n * length,)).astype(dtype) for _ in range(n)]


def test_each_call_uses_its_own_block(n):
    """Three blocks in one body, and the whole again: every call after the first takes the short way."""
    given = blocks(n)
    x = placed(np.concatenate(given), line(), "x")
    ring = [(k, (k + 1) % n) for k in range(n)]

    def body(b):
        out = []
        for k in range(3):
            c = b + float(k)
            out += [lax.psum(c, "x") + 0 * c, lax.pmean(c, "x") + 0 * c, lax.pmax(c, "x") + 0 * c]
            out += [lax.all_to_all(c, "x", 0, 0, tiled=True), lax.ppermute(c, "x", ring)]
            out += [lax.psum_scatter(lax.all_gather(c, "x", tiled=True), "x", tiled=True)]
        return jnp.stack(out)

    for _ in range(2):
        found = np.asarray(jax.shard_map(body, in_specs=P("x"), out_specs=P(None, "x"))(x))
        for k in range(3):
            now = [g + np.float32(k) for g in given]
            parts = [np.split(g, n) for g in now]
            wanted = [
                [sum(now)] * n, [sum(now) / np.float32(n)] * n, [np.max(now, 0)] * n,
                [np.concatenate([parts[s][d] for s in range(n)]) for d in range(n)],
                [now[d - 1] for d in range(n)], [n * now[d] for d in range(n)],
            ]  # fmt: skip
            for row, parts_of in zip(found[6 * k : 6 * k + 6], wanted, strict=True):
                np.testing.assert_allclose(row, np.concatenate(parts_of), rtol=1e-6)


def test_parameters_that_differ_are_told_apart(n):
    x = placed(np.arange(n * n * n, dtype=np.float32).reshape(n * n, n), line(), "x")

    def body(b):
        shapes = []
        for _ in range(2):
            for axis in (0, 1):
                for tiled in (True, False):
                    shapes.append(lax.all_gather(b, "x", axis=axis, tiled=tiled).shape)
                    shapes.append(lax.all_gather(b, ("x",), axis=axis, tiled=tiled).shape)
            shapes.append(lax.psum_scatter(b, "x", scatter_dimension=1, tiled=True).shape)
            shapes.append(lax.psum_scatter(b, "x", scatter_dimension=0, tiled=True).shape)
            shapes.append(lax.psum_scatter(b, "x").shape)
        first, again = shapes[: len(shapes) // 2], shapes[len(shapes) // 2 :]
        assert first == again
        assert first[0::2][:4] == first[1::2][:4] == [(n * n, n), (n, n, n), (n, n * n), (n, n, n)]
        assert first[8:] == [(n, 1), (1, n), (n,)]
        return b

    mapped(body, x)


def test_types_follow_the_first_call(n):
    x = placed(np.arange(2 * n, dtype=np.int32), line(), "x")
    seen = []

    def body(b):
        for _ in range(2):
            seen.append((jax.typeof(lax.psum(b, "x")), jax.typeof(lax.pmean(b, "x")), jax.typeof(lax.psum(b > 3, "x"))))
            assert lax.psum(b > 3, "x").block.sum() == max(0, 2 * n - 4)
        return b

    mapped(body, x)
    assert seen[0] == seen[1]
    assert [t.dtype for t in seen[0]] == [np.int32, np.float32, np.int32]
    assert not seen[0][0].vma


def test_bools_count_as_the_default_integer_of_the_moment(n):
    x = placed(np.ones(n, bool), line(), "x")
    kinds = []

    def body(b):
        kinds.append(lax.psum(b, "x").dtype)
        return b

    mapped(body, x)
    with config.override("jax_enable_x64", True):
        mapped(body, x)
    mapped(body, x)
    assert kinds == [np.int32, np.int64, np.int32]


def test_wrong_calls_are_wrong_again(n):
    x = placed(np.arange(2.0 * n, dtype=np.float32), line(), "x")

    def body(b):
        lax.psum(b, "x")
        for _ in range(2):
            with pytest.raises(NameError, match="unbound axis name: y"):
                lax.psum(b, "y")
            with pytest.raises(ValueError, match="out of bounds"):
                lax.all_gather(b, "x", axis=3, tiled=True)
            with pytest.raises(ValueError, match="unique"):
                lax.ppermute(b, "x", [(0, 0), (0, 0)])
        return b

    mapped(body, x)


def test_under_vmap_and_grad_the_long_way(n):
    values = np.arange(6.0 * n, dtype=np.float32).reshape(2 * n, 3)
    x = placed(values, line(), "x")

    def body(b):
        lax.psum(b, "x")
        inner = jax.vmap(lambda row: lax.psum(row, "x") + lax.psum(row, "k"), axis_name="k")(b)
        slope = jax.grad(lambda c: jnp.sum(lax.psum(c * c, "x")))(b)
        return inner + slope

    per = values.reshape(n, 2, 3)
    wanted = (per.sum(0)[None] + per.sum(1)[:, None] + 2 * per).reshape(2 * n, 3)
    np.testing.assert_allclose(mapped(body, x), wanted)


def test_pairs_in_lists_and_iterators(n):
    x = placed(np.arange(2.0 * n, dtype=np.float32), line(), "x")

    def body(b):
        for _ in range(2):
            first = lax.ppermute(b, "x", [[k, (k + 1) % n] for k in range(n)])
            second = lax.ppermute(first, "x", ((k, (k - 1) % n) for k in range(n)))
        return second

    np.testing.assert_array_equal(mapped(body, x), np.arange(2.0 * n))


def test_counts_and_no_check_vma(n):
    x = placed(np.arange(2.0 * n, dtype=np.float32), line(), "x")

    def body(b):
        first = lax.psum(b, "x")
        with comm.counting() as counts:
            again = lax.psum(b + 1, "x")
        assert counts.calls["all_reduce"] == (n > 1)
        np.testing.assert_array_equal(np.asarray(again.block), np.asarray(first.block) + n)
        return again

    found = mapped(body, x, check_vma=False)
    np.testing.assert_array_equal(found, np.tile(np.arange(2.0 * n).reshape(n, 2).sum(0) + n, n))


def test_groups_of_indices(n):
    if n % 2:
        pytest.skip("needs an even number of ranks")
    x = placed(np.arange(2.0 * n, dtype=np.float32), line(), "x")
    halves = [list(range(n // 2)), list(range(n // 2, n))]

    def body(b):
        for _ in range(2):
            out = lax.psum(b, "x", axis_index_groups=halves)
        return out

    found = mapped(body, x, check_vma=False)
    half = np.arange(2.0 * n).reshape(2, n // 2, 2).sum(1)
    np.testing.assert_array_equal(found, np.concatenate([np.tile(half[0], n // 2), np.tile(half[1], n // 2)]))


def test_settings_that_change_between_calls(n):
    """Remembered calls hold for the settings under which they were made; who counts sees all of them."""
    given = blocks(n)
    x = placed(np.concatenate(given), line(), "x")
    found = []

    def body(b):
        for deterministic in (False, False, True, True, False, False):
            config.update("deterministic", deterministic)
            found.append(lax.psum(b, "x").block)
        with counting() as counts:
            found.append(lax.psum(b, "x").block)
        assert counts.calls["all_reduce"] == (n > 1)  # a group of one sends nothing
        turned = b.block[::-1]
        found.append(lax.psum(b.owner.tracer(b.aval, turned, b.spec), "x").block[::-1])  # not in C order
        return b

    before = config.deterministic
    try:
        mapped(body, x)
    finally:
        config.update("deterministic", before)
    for total in found:
        np.testing.assert_array_equal(total, sum(given))


ALONE = {
    "ppermute": (
        lambda b: lax.ppermute(b, "x", [(k, (k + 1) % ranks()) for k in range(ranks())]),
        lambda v, n: np.roll(v, len(v) // n),
    ),
    "all_gather": (lambda b: lax.all_gather(b, "x", tiled=True), lambda v, n: np.tile(v, n)),
    "all_to_all": (
        lambda b: lax.all_to_all(b, "x", 0, 0, tiled=True),
        lambda v, n: v.reshape(n, n, -1).transpose(1, 0, 2).reshape(-1),
    ),
    "psum": (lambda b: lax.psum(b, "x"), lambda v, n: sum(np.split(v, n))),
    "psum_scatter": (lambda b: lax.psum_scatter(b, "x", tiled=True), lambda v, n: sum(np.split(v, n))),
}


@pytest.mark.parametrize("name", ALONE)
def test_programs_of_one_collective(n, name):
    """New memory for each result, counted whenever somebody counts, under the settings of each call."""
    body, want = ALONE[name]
    f = jax.jit(jax.shard_map(body, in_specs=P("x"), out_specs=P() if name == "psum" else P("x")))
    values = [np.concatenate(blocks(n, n * 3, seed=seed)) for seed in range(2)]
    x, y = (placed(v, line(), "x") for v in values)
    results = [f(x), f(y), f(x), f(y)]
    with counting() as counts:
        results += [f(x)]
    assert sum(counts.calls.values()) == (n > 1)  # a group of one sends nothing
    with config.override("deterministic", not config.deterministic):
        results += [f(y)]
    results += [f(x)]
    for k, result in enumerate(results):
        np.testing.assert_array_equal(np.asarray(result), want(values[k % 2], n))
        assert result._block.flags.c_contiguous
        assert not any(np.shares_memory(result._block, other._block) for other in (*results[:k], x, y))
