"""Arrays from what each rank has (spec spmd.md 9): callbacks, process-local data, blocks; errors are on all ranks."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import P, comm
from mpiarray.config import config
from tests.runtime.on_ranks import Explicit, grid, line, ranks, same, under, values

pytestmark = pytest.mark.mpi


def test_callback() -> None:
    v = values(4 * ranks(), 2 * ranks())
    for spec in (P("x", "y"), P("y"), P(), P(("y", "x")), P(None, "x")):
        calls = []

        def block(index: tuple[slice, ...], calls: list = calls) -> np.ndarray:
            calls.append(index)
            return v[index]

        x = jax.make_array_from_callback(v.shape, jax.NamedSharding(grid(), spec), block)
        assert len(calls) == 1
        assert x.sharding.spec == spec
        assert x.committed
        same(x, v)
        same(x + 1, v + 1)


def test_callback_of_other_dtypes() -> None:
    s = jax.NamedSharding(line(), P("x"))
    shape = (2 * ranks(),)
    assert jax.make_array_from_callback(shape, s, lambda i: np.zeros(2)).dtype == np.float32
    assert jax.make_array_from_callback(shape, s, lambda i: np.zeros(2, np.int8), dtype=np.int8).dtype == np.int8
    x = jax.make_array_from_callback((), jax.NamedSharding(line(), P()), lambda i: 3)
    assert x.dtype == np.int32
    assert int(x) == 3


@pytest.mark.parametrize(
    ("callback", "dtype", "match"),
    [
        (lambda i: np.zeros(3, np.float32), None, r"Expected shard shape \(2,\) doesn't match"),
        (lambda i: np.zeros(2, np.float32), np.int32, "must match the dtype of the addressable shards"),
    ],
)
def test_callback_that_returns_something_else(callback: object, dtype: object, match: str) -> None:
    s = jax.NamedSharding(line(), P("x"))
    with pytest.raises(ValueError, match=match):
        jax.make_array_from_callback((2 * ranks(),), s, callback, dtype=dtype)


@pytest.mark.mpi(min_size=2)
def test_callback_that_fails_on_one_rank() -> None:
    s = jax.NamedSharding(line(), P("x"))

    def wrong_shape(index: object) -> np.ndarray:
        return np.zeros(2 + (comm.rank() == 1), np.float32)

    def raises(index: object) -> np.ndarray:
        if comm.rank() == 1:
            raise KeyError("missing")
        return np.zeros(2, np.float32)

    def another_dtype(index: object) -> np.ndarray:
        return np.zeros(2, np.float32 if comm.rank() else np.int32)

    with pytest.raises(ValueError if comm.rank() == 1 else RuntimeError, match="Expected shard shape"):
        jax.make_array_from_callback((2 * ranks(),), s, wrong_shape)
    with pytest.raises(KeyError if comm.rank() == 1 else RuntimeError, match="missing"):
        jax.make_array_from_callback((2 * ranks(),), s, raises)
    with pytest.raises(ValueError, match="different dtypes"):
        jax.make_array_from_callback((2 * ranks(),), s, another_dtype)
    same(jax.make_array_from_callback((2 * ranks(),), s, lambda i: np.ones(2)), np.ones(2 * ranks()))


def test_bad_arguments_are_found_without_calling() -> None:
    def never(index: object) -> None:
        raise AssertionError("called")

    with pytest.raises(TypeError, match="Sharding"):
        jax.make_array_from_callback((8,), P("x"), never)
    if ranks() > 1:
        with pytest.raises(jax.errors.IndivisibleError):
            jax.make_array_from_callback((2 * ranks() + 1,), jax.NamedSharding(line(), P("x")), never)


@pytest.mark.mpi(min_size=2)
def test_ranks_outside_learn_the_dtype() -> None:
    mesh = jax.make_mesh((1,), ("x",))
    x = jax.make_array_from_callback((2,), jax.NamedSharding(mesh, P("x")), lambda i: np.zeros(2, np.int16))
    assert x.dtype == np.int16
    same(x, [0, 0])


@pytest.mark.mpi(min_size=2)
def test_replicas_that_differ_are_found_under_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "check", True)
    s = jax.NamedSharding(line(), P())
    with pytest.raises(ValueError, match="returned different data"):
        jax.make_array_from_callback((2,), s, lambda i: np.full(2, comm.rank(), np.float32))
    same(jax.make_array_from_callback((2,), s, lambda i: np.full(2, 3, np.float32)), [3, 3])


@under(grid)
def test_process_local_data() -> None:
    v = values(4 * ranks(), 2 * ranks())
    for spec in (P("x", "y"), P("x"), P(None, "y"), P(("x", "y")), P()):
        s = jax.NamedSharding(grid(), spec)
        (index,) = s.addressable_devices_indices_map(v.shape).values()
        for given in (None, v.shape, (None, v.shape[1])):
            x = jax.make_array_from_process_local_data(s, v[index], given)
            assert x.shape == v.shape
            same(x, v)
        same(jax.make_array_from_process_local_data(spec, v[index]), v)
        same(jax.make_array_from_process_local_data(s, v, v.shape), v)


@pytest.mark.mpi(min_size=2)
def test_process_local_data_of_a_wrong_size() -> None:
    s = jax.NamedSharding(line(), P("x"))
    with pytest.raises(ValueError, match="each dimension should match either global or process shape"):
        jax.make_array_from_process_local_data(s, np.ones(3, np.float32), (2 * ranks(),))
    with pytest.raises(ValueError, match="differ in rank"):
        jax.make_array_from_process_local_data(s, np.ones(3, np.float32), (3, 3))
    with pytest.raises(ValueError, match="set a mesh"):
        jax.make_array_from_process_local_data(P("x"), np.ones(3, np.float32))


def test_single_device_arrays() -> None:
    v = values(4 * ranks())
    s = jax.NamedSharding(line(), P("x"))
    mine = jax.device_put(v, s).addressable_data(0)
    same(jax.make_array_from_single_device_arrays(v.shape, s, [mine]), v)
    same(jax.make_array_from_single_device_arrays(v.shape, s, [mine * 2]), v * 2)
    with pytest.raises(ValueError, match="Expected 1 per-device arrays"):
        jax.make_array_from_single_device_arrays(v.shape, s, [])
    with pytest.raises(ValueError, match="Expected shard shape"):
        jax.make_array_from_single_device_arrays((8 * ranks(),), s, [mine])
    with pytest.raises(TypeError, match="Sharding"):
        jax.make_array_from_single_device_arrays(v.shape, P("x"), [mine])


@pytest.mark.mpi(min_size=3)
def test_meshes_of_some_ranks() -> None:
    mesh = jax.Mesh(np.array(jax.devices()[1:3]), ("x",), (Explicit,))
    s = jax.NamedSharding(mesh, P("x"))
    member = comm.rank() in (1, 2)
    x = jax.make_array_from_callback((4,), s, lambda i: np.arange(4.0)[i])
    same(x, np.arange(4.0))
    own = [x.addressable_data(0)] if member else []
    same(jax.make_array_from_single_device_arrays((4,), s, own), np.arange(4.0))
    local = np.arange(4.0, dtype=np.float32)[2 * (comm.rank() == 2) :][:2]
    same(jax.make_array_from_process_local_data(s, local), np.arange(4.0))


def test_what_all_ranks_do_together() -> None:
    """`jax.experimental.multihost_utils`."""
    from mpiarray.experimental import multihost_utils as together

    told = together.broadcast_one_to_all({"a": np.float32(comm.rank() + 3), "b": np.arange(3) + comm.rank()})
    assert told["a"] == 3
    assert told["b"].tolist() == [0, 1, 2]
    together.assert_equal({"a": np.ones(3), "b": np.nan})
    together.sync_global_devices("here")
    assert together.process_allgather(np.float32(comm.rank())).tolist() == list(range(ranks()))
    assert together.process_allgather(np.full(2, comm.rank()), tiled=True).shape == (2 * ranks(),)
    x = jax.device_put(values(2 * ranks()), jax.NamedSharding(line(), P("x")))
    np.testing.assert_array_equal(together.process_allgather(x), values(2 * ranks()))
    if ranks() > 1:
        with pytest.raises(AssertionError, match="not the same"):
            together.assert_equal(comm.rank(), "seeds:")
        with pytest.raises(ValueError, match="name mismatch"):
            together.sync_global_devices(f"rank {comm.rank()}")
