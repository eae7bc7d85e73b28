"""Arrays as objects: members, shards, conversions to Python, deletion (spec sharding.md 8, 12, 14)."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm, random
from tests.runtime.on_ranks import Auto, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi

METHODS = {
    "reshape": ((2, -1),), "ravel": (), "flatten": (), "transpose": (), "swapaxes": (0, 1), "sum": (), "prod": (), "max": (), "min": (),
    "mean": (), "std": (), "var": (), "argmax": (), "argmin": (), "cumsum": (), "cumprod": (), "argsort": (), "clip": (1, 3),
    "conj": (), "round": (), "repeat": (2,), "take": (np.array([0, 2]),), "dot": (np.ones((4, 2), np.float32),), "trace": (),
    "diagonal": (), "copy": (), "squeeze": (), "astype": ("int32",), "any": (), "all": (),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_numpys(name: str) -> None:
    v = (values(4, 4) % 5 / 4 + 0.5).astype(np.float32)
    args = METHODS[name]
    want = getattr(v, name)(*args)
    for x in (jnp.asarray(v), placed(v, line())):
        np.testing.assert_allclose(np.asarray(getattr(x, name)(*args)), want, rtol=1e-5)


def test_members() -> None:
    v = values(4 * ranks(), 3)
    x = placed(v, line(), "x", None)
    assert (x.shape, x.ndim, x.size, x.nbytes, x.itemsize, x.dtype) == (v.shape, 2, v.size, v.nbytes, 4, np.float32)
    assert len(x) == 4 * ranks()
    assert x.sharding == jax.NamedSharding(line(), P("x", None))
    assert str(x.aval) == str(jax.typeof(x)) == f"float32[{4 * ranks()}@x,3]"
    assert x.committed
    assert not x.weak_type
    assert x.is_ready()
    assert x.block_until_ready() is x
    assert {d.id for d in x.devices()} == set(range(ranks()))
    assert x.is_fully_replicated == (ranks() == 1)
    assert x.is_fully_addressable == (ranks() == 1)
    assert x.format.layout.major_to_minor == (0, 1)
    assert x.on_device_size_in_bytes() == v.nbytes
    same(x.T, v.T)
    same(x.mT, v.T)
    same(x.real, v)
    same(x.imag, v * 0)
    for name in ("to_device", "view", "searchsorted", "nonzero", "at", "item", "tolist", "tobytes"):
        assert hasattr(x, name), name


@under(line)
def test_shardings_that_are_shown() -> None:
    """Spec sharding.md 8."""
    assert jnp.ones((4, 2)).sharding.spec == P(None, None)
    assert jnp.float32(1).sharding.spec == P()
    assert jax.device_put(np.ones(ranks()), P("x")).sharding.spec == P("x")
    x = jax.device_put(np.ones((ranks(), 2)), P("x"))
    assert x.sharding.spec == P("x"), "as written"
    assert jax.reshard(np.ones((ranks(), 2)), P("x")).sharding.spec == P("x", None)
    assert (x + 1).sharding.spec == P("x", None)
    assert jax.jit(lambda x: x)(x).sharding.spec == P("x", None)
    assert jax.jit(lambda x: x + 1, out_shardings=P("x"))(x).sharding.spec == P("x")


@under(lambda: line(Auto))
def test_shardings_that_are_shown_on_auto_axes() -> None:
    assert jnp.ones((4, 2)).sharding.spec == P()
    x = jax.device_put(np.ones((ranks(), 2)), P("x"))
    assert (x + 1).sharding.spec == P("x")
    assert str(jax.typeof(x)) == f"float32[{ranks()},2]"


def test_without_a_mesh() -> None:
    x = jnp.ones((4, 2))
    assert str(x.sharding) == "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)"
    assert not x.committed
    assert x.device.id == 0
    assert repr(x.sum()) == "Array(8., dtype=float32)"
    y = placed(values(4 * ranks()), line(), "x")
    out = y + jnp.ones(4 * ranks())
    assert out.committed
    assert str(jax.typeof(out)) == f"float32[{4 * ranks()}@x]"


def test_shards() -> None:
    """Spec sharding.md 12: one shard here, the others known."""
    mesh = grid()
    v = values(4 * ranks(), 2 * ranks())
    x = placed(v, mesh, "x", None)
    (mine,) = x.addressable_shards
    assert mine.device.id == comm.rank()
    np.testing.assert_array_equal(np.asarray(mine.data), v[mine.index])
    assert len(x.global_shards) == ranks()
    assert [s.data is None for s in x.global_shards] == [s.device.id != comm.rank() for s in x.global_shards]
    replicas: dict[str, list[int]] = {}
    for s in x.global_shards:
        replicas.setdefault(str(s.index), []).append(s.replica_id)
    assert all(ids == list(range(len(ids))) for ids in replicas.values())
    assert mine.replica_id == comm.rank() % mesh.shape["y"]
    assert "Shard(device=CpuDevice" in repr(mine)
    assert f"replica_id={mine.replica_id}" in repr(mine)
    np.testing.assert_array_equal(np.asarray(x.addressable_data(0)), v[mine.index])
    with pytest.raises(IndexError):
        x.addressable_data(1)


@pytest.mark.mpi(min_size=2)
def test_a_rank_outside_the_mesh() -> None:
    """Spec spmd.md 7: types and errors as everywhere, no data, values by reading."""
    mesh = jax.make_mesh((1,), ("x",))
    v = values(4, 3)
    x = placed(v, mesh, "x", None)
    assert len(x.addressable_shards) == (comm.rank() == 0)
    assert len(x.global_shards) == 1
    if comm.rank():
        with pytest.raises(IndexError):
            x.addressable_data(0)
    assert "float32" in repr(x)
    y = jnp.sin(x) + x.sum(0)
    assert str(jax.typeof(y)) == "float32[4@x,3]"
    np.testing.assert_allclose(np.asarray(y), np.sin(v) + v.sum(0), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(jax.jit(lambda x: x * 2)(x)), v * 2)
    with pytest.raises(TypeError):
        x + jnp.ones((5, 3))
    assert float(x.sum()) == v.sum()


@pytest.mark.mpi(min_size=2)
def test_two_meshes_beside_each_other() -> None:
    half = ranks() // 2
    devices = np.array(jax.devices())
    kinds = (jax.sharding.AxisType.Explicit,)
    left = jax.Mesh(devices[:half], ("x",), kinds)
    right = jax.Mesh(devices[half : 2 * half], ("x",), kinds)
    v = values(4 * half)
    a, b = placed(v, left, "x"), placed(v, right, "x")
    same(a * 2, v * 2)
    same(b.sum(), v.sum())
    moved = jax.device_put(a, jax.NamedSharding(right, P("x")))
    same(moved + b, 2 * v)
    with pytest.raises(ValueError, match="incompatible devices"):
        a + b


def test_arrays_do_not_change() -> None:
    x = jnp.arange(3.0)
    with pytest.raises(TypeError, match=r"\.at"):
        x[0] = 1
    read = np.asarray(x)
    assert not read.flags.writeable
    own = np.array(x)
    own[0] = 7
    same(x, [0, 1, 2])
    data = np.ones(3, np.float32)
    y = jnp.asarray(data)
    data[0] = 5
    same(y, [1, 1, 1])


def test_conversions_to_python() -> None:
    for x in (jnp.float32(2.5), placed(np.float32(2.5), line())):
        assert (float(x), int(x), complex(x), bool(x), x.item()) == (2.5, 2, 2.5 + 0j, True, 2.5)
        assert f"{x:.2f}" == "2.50"
    n = placed(np.int32(3), line())
    assert [10, 20, 30, 40][n] == 40
    assert list(range(n)) == [0, 1, 2]
    v = values(2 * ranks())
    x = placed(v, line(), "x")
    assert x.tolist() == v.tolist()
    assert [float(e) for e in x] == v.tolist()
    assert x.tobytes() == v.tobytes()
    with pytest.raises(TypeError, match="Only scalar arrays can be converted"):
        float(jnp.ones(3))
    with pytest.raises(TypeError, match="Only integer scalar arrays"):
        [1, 2][jnp.float32(1)]
    with pytest.raises(ValueError, match="ambiguous"):
        bool(jnp.ones(3))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(jnp.ones(0))
    with pytest.raises(TypeError, match="unhashable"):
        hash(jnp.ones(3))
    with pytest.raises(TypeError):
        len(jnp.float32(1))
    with pytest.raises(TypeError):
        iter(jnp.float32(1))


def test_copies_and_pickles() -> None:
    v = values(2 * ranks())
    x = placed(v, line(), "x")
    same(pickle.loads(pickle.dumps(x)), v)
    for y in (copy.copy(x), copy.deepcopy(x), x.copy()):
        assert y is not x
        same(y, v)
    w = jnp.asarray(2.0) * 1
    assert pickle.loads(pickle.dumps(w)).weak_type == w.weak_type


def test_numpy_takes_arrays_and_gives_them_back() -> None:
    v = values(2 * ranks())
    x = placed(v, line(), "x")
    np.testing.assert_array_equal(np.add(np.asarray(x), 1), v + 1)
    out = v + x
    assert isinstance(out, jax.Array)
    same(out, 2 * v)
    assert isinstance(np.float32(2) * x, jax.Array)
    assert np.asarray(x, np.float64).dtype == np.float64


def test_repr() -> None:
    """Spec sharding.md 14; a rank that cannot see everything says what it sees."""
    assert repr(jnp.arange(3)) == "Array([0, 1, 2], dtype=int32)"
    assert repr(jnp.asarray(1.0)) in ("Array(1., dtype=float32, weak_type=True)", "Array(1., dtype=float32)")
    assert repr(jnp.ones((0, 3))) == "Array([], shape=(0, 3), dtype=float32)"
    v = values(4 * ranks())
    x = placed(v, line(), "x")
    text = repr(x)
    if ranks() == 1:
        assert text == repr(jnp.asarray(v))
    else:
        assert f"shape=({4 * ranks()},)" in text
        assert "sharding=NamedSharding" in text
        assert str(v[4 * comm.rank() : 4 * comm.rank() + 4])[1:-1].split()[-1] in text
        np.asarray(x)
        assert repr(x) == repr(jnp.asarray(v)), "after it was read"


def test_str_is_numpys() -> None:
    for shape in ((), (3,), (0,), (2 * ranks(), 3), (4 * ranks(), 2, 2)):
        v = values(*shape)
        spec = ("x",) if shape and shape[0] % ranks() == 0 else ()
        x = placed(v, line(), *spec)
        assert str(x) == str(v) == f"{x}"


def test_keys() -> None:
    keys = random.split(random.key(0), 4 * ranks())
    x = placed(keys, line(), "x")
    assert str(jax.typeof(x)) == f"key<fry>[{4 * ranks()}@x]"
    assert "overlaying" in str(x)
    for wrong in (np.asarray, float, lambda x: x.tolist()):
        with pytest.raises(TypeError):
            wrong(x)
    same(random.key_data(x), np.asarray(random.key_data(keys)))


def test_unreduced_values_are_not_read() -> None:
    x = placed(values(4 * ranks()), line(), unreduced={"x"})
    assert "sharding=" in repr(x)
    assert repr(x) == str(x)
    for read in (np.asarray, lambda x: x.tolist(), list):
        with pytest.raises((ValueError, jax.errors.ShardingTypeError), match="unreduced over"):
            read(x)
    assert x.addressable_shards[0].data.shape == (4 * ranks(),)


def test_deleted_arrays() -> None:
    x = placed(values(2 * ranks()), line(), "x")
    other = x + 1
    x.delete()
    x.delete()
    assert x.is_deleted()
    assert not other.is_deleted()
    assert x.shape == (2 * ranks(),)
    message = rf"Array has been deleted with shape=float32\[{2 * ranks()}"
    here = jax.NamedSharding(line(), P())
    uses = [
        lambda: repr(x), lambda: str(x), lambda: x + 1, lambda: np.asarray(x), lambda: x.addressable_shards, lambda: x.sum(),
        lambda: jax.device_put(x, here), lambda: jax.jit(lambda v: v)(x), lambda: x.block_until_ready(), lambda: x[None],
        lambda: pickle.dumps(x), lambda: x.copy(), lambda: jax.reshard(x, here),
    ]  # fmt: skip
    with comm.counting() as counts:
        for use in uses:
            with pytest.raises(RuntimeError, match=message):
                use()
    assert counts.total_calls == 0


def test_donation_by_device_put() -> None:
    x = placed(values(2 * ranks()), line(), "x")
    y = jax.device_put(x, jax.NamedSharding(line(), P()), donate=True)
    same(y, values(2 * ranks()))
    assert x.is_deleted() or ranks() == 1


def test_values_like_an_array_are_where_it_is() -> None:
    """Without a context mesh too: zeros of a type on a mesh are on the devices of the arrays there."""
    x = placed(values(2 * ranks()), line(), "x")
    for zeros in (x.imag, jnp.zeros_like(x), jnp.full_like(x, 0), jax.jit(lambda: jnp.zeros_like(x))()):
        assert jax.typeof(zeros) == jax.typeof(x)
        assert zeros.devices() == x.devices()
        assert zeros.addressable_data(0).shape == (2,)
        same(zeros + x, values(2 * ranks()))


@pytest.mark.mpi(min_size=2)
def test_values_like_an_array_on_devices_in_another_order() -> None:
    for order in (slice(None), slice(None, None, -1), slice(None)):
        mesh = jax.Mesh(np.array(jax.devices())[order], ("k",), (jax.sharding.AxisType.Explicit,))
        x = placed(values(2 * ranks()), mesh, "k")
        same(x + x.imag, values(2 * ranks()))
