"""How much operations send on real ranks: kinds of collectives, their number, and the bytes each rank hands in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm, lax, random
from tests.runtime.on_ranks import Auto, close, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi


def sent(f: Callable[..., Any], *args: Any) -> tuple[Any, comm.Counts]:
    """`f(*args)` and what it sent the second time: the first call makes communicators."""
    f(*args)
    with comm.counting() as counts:
        out = f(*args)
    return out, counts


def expect(counts: comm.Counts, calls: dict[str, int], nbytes: int | None = None) -> None:
    """Exactly these collectives; one rank alone sends nothing."""
    if ranks() == 1:
        assert counts.total_calls == 0
        return
    assert dict(counts.calls) == calls
    if nbytes is not None:
        assert counts.total_bytes == nbytes


def matrix(mesh: jax.Mesh, *spec: Any) -> tuple[np.ndarray, jax.Array]:
    v = values(4 * ranks(), 2 * ranks())
    return v, placed(v, mesh, *spec)


@under(line)
def test_a_sum_over_a_sharded_dim_is_one_reduction_of_the_block() -> None:
    v, x = matrix(line(), "x", None)
    out, counts = sent(lambda: x.sum(0))
    expect(counts, {"all_reduce": 1}, 2 * ranks() * 4)
    same(out, v.sum(0))
    out, counts = sent(lambda: x.sum())
    expect(counts, {"all_reduce": 1}, 4)
    same(out, v.sum())
    out, counts = sent(lambda: x.sum(1))
    expect(counts, {})
    same(out, v.sum(1))


@under(line)
@pytest.mark.parametrize(
    "f",
    [lambda x: x + 1, lambda x: jnp.sin(x) * x, lambda x: x > 2, lambda x: x.astype(jnp.int32), lambda x: -x + x.T.T],
)
def test_elementwise_work_sends_nothing(f: Any) -> None:
    _, x = matrix(line(), "x", None)
    _, counts = sent(f, x)
    expect(counts, {})


@under(line)
def test_shapes_that_keep_blocks_send_nothing() -> None:
    v, x = matrix(line(), "x", None)
    for f, want in (
        (lambda x: x.T, v.T),
        (lambda x: x[:, None], v[:, None]),
        (lambda x: x[:, 1:3], v[:, 1:3]),
        (lambda x: x[:, ::-1], v[:, ::-1]),
        (lambda x: jnp.concatenate([x, x], 1), np.concatenate([v, v], 1)),
        (lambda x: jnp.broadcast_to(x, (3, *x.shape)), np.broadcast_to(v, (3, *v.shape))),
        (lambda x: x.reshape(2 * ranks(), 2, -1), None),
    ):
        out, counts = sent(f, x)
        expect(counts, {})
        if want is not None:
            same(out, want)


@under(line)
def test_creation_and_placement_of_host_values_send_nothing() -> None:
    v = values(4 * ranks(), 3)
    _, counts = sent(lambda: jax.device_put(v, P("x")))
    expect(counts, {})
    _, counts = sent(lambda: (jnp.zeros((8, 8)), jnp.arange(4 * ranks(), out_sharding=P("x")), jnp.ones(3) + 1))
    expect(counts, {})
    _, counts = sent(lambda: random.normal(random.key(0), (4 * ranks(), 3), out_sharding=P("x", None)))
    expect(counts, {})
    whole = jnp.ones((4 * ranks(), 3))
    _, counts = sent(lambda: jax.reshard(whole, P("x", None)))
    expect(counts, {})


@under(line)
def test_metadata_and_repr_send_nothing() -> None:
    _, x = matrix(line(), "x", None)
    with comm.counting() as counts:
        for _ in range(2):
            text = (
                repr(x), str(jax.typeof(x)), str(x.sharding), str(x.format), x.shape, x.dtype, x.nbytes, x.is_fully_replicated, x.committed,
                x.addressable_shards, x.global_shards, repr(x.global_shards[0]), x.devices(), x.device, x.weak_type, x.is_deleted(), x.ndim,
                x.block_until_ready(), x.on_device_size_in_bytes(), hash(x.sharding),
            )  # fmt: skip
            assert text
        jax.make_jaxpr(lambda x: x.sum())(x)
        jax.eval_shape(lambda x: x.sum(0), x)
        jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text()
        x.addressable_data(0)
    assert counts.total_calls == 0


@under(line)
@pytest.mark.parametrize(
    ("source", "target", "want", "blocks"),
    [
        (P("x", None), P(None, None), {"all_gather": 1}, 1),
        (P("x", None), P(None, "x"), {"all_to_all": 1}, 1),
        (P(None, "x"), P("x", None), {"all_to_all": 1}, 1),
        (P(None, None), P("x", None), {}, 0),
        (P("x", None), P("x", None), {}, 0),
        (P(None, None), P(None, None, unreduced={"x"}), {}, 0),
        (P("x", None), P(None, None, unreduced={"x"}), {}, 0),
        (P(None, None, unreduced={"x"}), P(None, None), {"all_reduce": 1}, "whole"),
        (P(None, None, unreduced={"x"}), P("x", None), {"reduce_scatter": 1}, "whole"),
    ],
    ids=str,
)
def test_reshards(source: P, target: P, want: dict[str, int], blocks: Any) -> None:
    v = values(4 * ranks(), 2 * ranks())
    x = jax.device_put(v, source)
    _, counts = sent(lambda: jax.reshard(x, target))
    nbytes = v.nbytes if blocks == "whole" else blocks * v.nbytes // ranks()
    expect(counts, want, nbytes)
    _, counts = sent(lambda: jax.device_put(x, target))
    expect(counts, want, nbytes)


@under(line)
def test_dots() -> None:
    n = ranks()
    a, b = values(2 * n, 4 * n), values(4 * n, 2 * n)
    rows, columns = placed(a, line(), "x", None), placed(b, line(), None, "x")
    long, tall = placed(a, line(), None, "x"), placed(b, line(), "x", None)
    out, counts = sent(lambda: rows @ b)
    expect(counts, {})
    close(out, a @ b)
    _, counts = sent(lambda: jnp.einsum("ij,jk->ik", long, tall, out_sharding=P(None, None)))
    expect(counts, {"all_reduce": 1}, 4 * n * n * 4)
    out, counts = sent(lambda: jnp.einsum("ij,jk->ik", long, tall, out_sharding=P("x", None)))
    expect(counts, {"reduce_scatter": 1}, 4 * n * n * 4)
    close(out, a @ b)
    _, counts = sent(lambda: jnp.einsum("ij,jk->ik", long, tall, out_sharding=P(None, None, unreduced={"x"})))
    expect(counts, {})
    assert columns.sharding.spec == P(None, "x")


@under(line)
def test_positions_of_extremes_send_a_pair_for_each_result() -> None:
    v, x = matrix(line(), "x", None)
    out, counts = sent(lambda: x.argmax(0))
    expect(counts, {"all_gather": 1})
    assert counts.total_bytes <= 2 * ranks() * 16
    same(out, v.argmax(0))


@under(line)
def test_statistics_are_a_reduction_or_two() -> None:
    v, x = matrix(line(), "x", None)
    out, counts = sent(lambda: x.mean(0))
    expect(counts, {"all_reduce": 1}, 2 * ranks() * 4)
    close(out, v.mean(0))
    out, counts = sent(lambda: x.var(0))
    expect(counts, {"all_reduce": 2}, 2 * 2 * ranks() * 4)
    close(out, v.var(0), 1e-4)
    out, counts = sent(lambda: x.max())
    expect(counts, {"all_reduce": 1}, 4)


@under(lambda: line(Auto))
def test_ops_along_a_sharded_dim_do_not_build_the_array() -> None:
    """On Auto axes, where they are allowed: no rank hands in more than a few blocks."""
    v = values(4 * ranks(), 2 * ranks())
    x = jax.device_put(v, P("x", None))
    block = v.nbytes // ranks()
    for f, want, most in (
        (lambda x: jnp.cumsum(x, 0), v.cumsum(0), block),
        (lambda x: jnp.sort(x, 0), np.sort(v, 0), 2 * block),
        (lambda x: jnp.roll(x, 1, 0), np.roll(v, 1, 0), block // 4),
        (lambda x: jnp.flip(x, 0), v[::-1], block),
        (lambda x: jnp.fft.fft(x, axis=0).real.round(2), np.fft.fft(v, axis=0).real.round(2), 4 * block),
    ):
        out, counts = sent(f, x)
        assert counts.total_bytes <= most, dict(counts.bytes)
        close(out, want, 1e-2)


@under(line)
def test_reading_a_value_is_one_collective_and_the_second_time_none() -> None:
    v, x = matrix(line(), "x", None)
    with comm.counting() as first:
        same(x, v)
    assert first.total_calls == (1 if ranks() > 1 else 0)
    assert first.total_bytes <= v.nbytes // ranks()
    with comm.counting() as again:
        same(x, v)
        float(x[0, 0].sum()) if ranks() == 1 else str(x)
    assert again.total_calls == 0


@under(line)
def test_replicated_values_are_read_locally() -> None:
    x = jnp.arange(6.0)
    with comm.counting() as counts:
        assert float(x.sum()) == 15.0
        str(x), np.asarray(x), x.tolist(), bool(x[1] > 0)
    assert counts.total_calls == 0


@under(line)
def test_large_prints_fetch_only_their_edges() -> None:
    n = 1024 * ranks()
    v = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
    for spec in (P("x", None), P(None, "x") if 4 % ranks() == 0 else P("x", None)):
        x = jax.device_put(v, spec)
        with comm.counting() as counts:
            text = str(x)
        assert text == str(v)
        assert counts.total_bytes < 2000, dict(counts.bytes)
    whole = jax.device_put(np.arange(1000 * ranks()), P("x"))
    with comm.counting() as counts:
        assert str(whole) == str(np.arange(1000 * ranks()))


@under(grid)
def test_axes_of_a_grid_are_separate() -> None:
    mesh = grid()
    sizes = mesh.shape
    v = values(4 * ranks(), 2 * ranks())
    x = placed(v, mesh, "x", "y")
    _, counts = sent(lambda: x.sum(1))
    assert dict(counts.groups) == ({("all_reduce", sizes["y"]): 1} if sizes["y"] > 1 else {})
    _, counts = sent(lambda: x.sum(0))
    assert dict(counts.groups) == ({("all_reduce", sizes["x"]): 1} if sizes["x"] > 1 else {})
    out, counts = sent(lambda: x.sum())
    assert dict(counts.groups) == ({("all_reduce", ranks()): 1} if ranks() > 1 else {})
    same(out, v.sum())


@under(line)
def test_jit_sends_what_the_ops_send() -> None:
    v, x = matrix(line(), "x", None)
    f = jax.jit(lambda x: (jnp.sin(x) * 2).sum(0) + 1)
    out, counts = sent(f, x)
    expect(counts, {"all_reduce": 1}, 2 * ranks() * 4)
    close(out, (np.sin(v) * 2).sum(0) + 1)
    assert f.lower(x).compile().as_text().count("all-reduce(") == (ranks() > 1)


@under(line)
def test_rows_by_number() -> None:
    v, x = matrix(line(), "x", None)
    ids = np.arange(3) * ranks()
    out, counts = sent(lambda: x.at[ids].get(out_sharding=P(None, None)))
    same(out, v[ids])
    expect(counts, {"all_reduce": 1}, 3 * v.shape[1] * 4)


@under(line)
def test_errors_come_before_any_message() -> None:
    if ranks() == 1:
        pytest.skip("an axis of one device divides everything")
    _, x = matrix(line(), "x", None)
    with comm.counting() as counts:
        for wrong in (
            lambda: jax.device_put(np.ones(ranks() + 1), P("x")),
            lambda: x + jnp.ones(3),
            lambda: jnp.sort(x, axis=0),
            lambda: lax.cumsum(x, axis=0),
            lambda: jax.reshard(x, P("z")),
            lambda: x @ x.T,
            lambda: x.T.reshape(-1),
            lambda: jax.jit(lambda x: x.reshape(7, -1))(x),
        ):
            with pytest.raises((ValueError, TypeError, jax.errors.ShardingTypeError)):
                wrong()
    assert counts.total_calls == 0
