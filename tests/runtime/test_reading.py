"""Reading values: who takes part, what is fetched, what is refused (spec spmd.md 3)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from mpiarray.config import config
from tests.runtime.on_ranks import Auto, Explicit, grid, line, placed, ranks, same, values

pytestmark = pytest.mark.mpi

READS = [
    np.asarray, np.array, str, format, lambda x: x.tolist(), jax.device_get, lambda x: x.tobytes(), lambda x: [float(e) for e in x], lambda x: x.__array__(),
]  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_every_way_gives_every_rank_the_same(read: object) -> None:
    v = values(4 * ranks())
    for x in (placed(v, line(), "x"), placed(v, line()), jnp.asarray(v), jax.device_put(v, jax.devices()[-1])):
        got = read(x)
        told = comm.agree(comm.world_group(), str(got))
        assert len(set(told)) == 1


def test_values_of_all_placements() -> None:
    v = values(4 * ranks(), 2 * ranks(), 2)
    for mesh in (grid(), grid(Auto)):
        for spec in (P(), P("x"), P("y", "x"), P(("x", "y")), P(None, ("y", "x")), P("x", None, None)):
            x = placed(v, mesh, *spec)
            same(x, v)
            assert str(x) == str(v)


@pytest.mark.mpi(min_size=2)
def test_values_on_one_device_are_broadcast() -> None:
    v = values(5)
    for k in (0, ranks() - 1):
        x = jax.device_put(v, jax.devices()[k])
        assert x.devices() == {jax.devices()[k]}
        with comm.counting() as counts:
            same(x, v)
            same(x * 2, v * 2)
        assert counts.total_calls == 2
        assert float(x[2]) == v[2]


@pytest.mark.mpi(min_size=3)
def test_values_on_some_ranks() -> None:
    mesh = jax.Mesh(np.array(jax.devices()[1:3]), ("x",), (Explicit,))
    v = values(6, 2)
    for spec in (P("x"), P(), P(None, "x")):
        same(placed(v, mesh, *spec), v)
        assert float(placed(v, mesh, *spec).sum()) == v.sum()


def test_reading_once_is_enough_and_deletion_drops_it() -> None:
    x = placed(values(4 * ranks()), line(), "x")
    first = np.asarray(x)
    assert np.asarray(x) is first or np.shares_memory(np.asarray(x), first)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(x)
    assert first[1] == values(4 * ranks())[1]


def test_a_large_read_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "gather_warn_bytes", 64)
    x = placed(values(32 * ranks()), line(), "x")
    if ranks() == 1:
        same(x, values(32))
        return
    with pytest.warns(UserWarning, match="MPIARRAY_GATHER_WARN_BYTES"):
        same(x, values(32 * ranks()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(x, values(32 * ranks()))


def test_branches_agree() -> None:
    """Host control flow uses values: replicas are equal bit by bit on all ranks."""
    v = (np.arange(1000 * ranks()) / 7).astype(np.float32)
    x = placed(v, line(), "x")
    for f in (jnp.sum, jnp.mean, jnp.std, lambda x: (x * x).sum(), jnp.prod):
        got = float(f(x))
        assert len(set(comm.agree(comm.world_group(), np.float32(got).tobytes()))) == 1
    steps = 0
    while float((x / 2**steps).max()) > 1:
        steps += 1
    assert len(set(comm.agree(comm.world_group(), steps))) == 1


def test_iteration() -> None:
    v = values(2 * ranks(), 3)
    x = placed(v, line(), None, None)
    rows = list(x)
    assert len(rows) == 2 * ranks()
    for row, want in zip(rows, v):
        same(row, want)


def test_blocks_are_read_locally() -> None:
    x = placed(values(4 * ranks()), line(), "x")
    with comm.counting() as counts:
        block = np.asarray(x.addressable_data(0))
        text = str(x.addressable_data(0)), repr(x.addressable_shards[0])
    assert counts.total_calls == 0
    assert text[0] == str(block)
    np.testing.assert_array_equal(block, values(4 * ranks())[4 * comm.rank() :][:4])
