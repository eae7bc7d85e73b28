"""Moving arrays: between any shardings, meshes and device orders, and in how much memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import P, comm
from tests.peak import peak_of
from tests.runtime.on_ranks import Auto, Explicit, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi


def specs(ndim: int = 2) -> list[P]:
    entries: list[Any] = [None, "x", "y", ("x", "y"), ("y", "x")]
    found = []
    for chosen in itertools.product(entries, repeat=ndim):
        flat = [a for e in chosen for a in (e if isinstance(e, tuple) else (e,)) if a]
        if len(flat) == len(set(flat)):
            found.append(P(*chosen))
    return found


def blocks_are_right(x: jax.Array, v: np.ndarray) -> None:
    """This rank's block is the part of the whole that its index says."""
    for s in x.addressable_shards:
        np.testing.assert_array_equal(np.asarray(s.data), v[s.index])


@pytest.mark.parametrize("source", specs(), ids=str)
def test_between_all_shardings_of_a_mesh(source: P) -> None:
    v = values(2 * ranks(), 4 * ranks())
    x = placed(v, grid(), *source)
    blocks_are_right(x, v)
    for target in specs():
        y = jax.device_put(x, jax.NamedSharding(grid(), target))
        assert y.sharding.spec == target
        blocks_are_right(y, v)
    same(x, v)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "float64", "complex64"])
def test_dtypes(dtype: str) -> None:
    with jax.enable_x64(True):
        import ml_dtypes

        v = (values(2 * ranks(), 2 * ranks()) % 2).astype(getattr(ml_dtypes, dtype, None) or dtype)
        x = placed(v, line(), "x", None)
        for target in (P(None, "x"), P(), P("x")):
            y = jax.device_put(x, jax.NamedSharding(line(), target))
            assert y.dtype == v.dtype
            blocks_are_right(y, v)


def test_meshes_of_other_shapes_and_orders() -> None:
    n = ranks()
    v = values(4 * n, 2 * n)
    devices = np.array(jax.devices())
    meshes = [
        (line(), [P("x"), P(None, "x"), P()]),
        (grid(), [P("x", "y"), P("y"), P(("y", "x"))]),
        (jax.Mesh(devices[::-1], ("r",), (Explicit,)), [P("r"), P(None, "r"), P()]),
        (jax.Mesh(np.roll(devices, 1), ("s",), (Auto,)), [P("s"), P()]),
    ]
    places = [jax.NamedSharding(m, s) for m, ss in meshes for s in ss]
    for a, b in itertools.product(places, places):
        x = jax.device_put(v, a)
        y = jax.device_put(x, b)
        assert y.sharding == b
        blocks_are_right(y, v)


@pytest.mark.mpi(min_size=2)
def test_meshes_of_fewer_devices() -> None:
    n = ranks()
    v = values(4 * n, 2)
    devices = np.array(jax.devices())
    half = n // 2
    one = jax.Mesh(devices[:half], ("a",), (Explicit,))
    other = jax.Mesh(devices[half : 2 * half], ("b",), (Explicit,))
    places = [
        jax.NamedSharding(line(), P("x")),
        jax.NamedSharding(one, P()),
        jax.NamedSharding(one, P("a") if 4 * n % half == 0 else P()),
        jax.NamedSharding(other, P("b") if 4 * n % half == 0 else P()),
        jax.sharding.SingleDeviceSharding(jax.devices()[-1]),
        jax.sharding.SingleDeviceSharding(jax.devices()[0]),
    ]
    for a, b in itertools.product(places, places):
        y = jax.device_put(jax.device_put(v, a), b)
        assert {d.id for d in y.devices()} == {d.id for d in b.device_set}
        blocks_are_right(y, v)
    for a in places:
        same(jax.device_put(v, a), v)


@pytest.mark.mpi(min_size=2)
def test_disjoint_meshes_move_on_the_ranks_concerned_only() -> None:
    devices = np.array(jax.devices())
    two = jax.Mesh(devices[:2], ("a",), (Explicit,))
    x = jax.device_put(values(8), jax.NamedSharding(two, P("a")))
    whole = jax.NamedSharding(two, P())
    jax.device_put(x, whole)
    with comm.counting() as counts:
        jax.device_put(x, whole)
    assert bool(counts.total_calls) == (comm.rank() < 2)


def test_unreduced_values() -> None:
    mesh = grid()
    v = values(2 * ranks(), 4 * ranks())
    for kept, axes in ((P("x"), {"y"}), (P(None, "y"), {"x"}), (P(), {"x", "y"}), (P(), {"x"})):
        target = jax.NamedSharding(mesh, P(*kept, unreduced=axes))
        for source in specs():
            y = jax.device_put(placed(v, mesh, *source), target)
            assert str(jax.typeof(y)).endswith("}")
            for back in (P(), P("x", "y"), kept):
                blocks_are_right(jax.device_put(y, jax.NamedSharding(mesh, back)), v)


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (lambda x: jax.device_put(x, P("x")), ValueError, "Please set a mesh"),
        (lambda x: jax.device_put(x, "x"), ValueError, "device_put takes"),
        (lambda x: jax.device_put(x, jax.NamedSharding(line(), P("x", None, None))), ValueError, "rank"),
        (lambda x: jax.device_put(np.float32(1), jax.NamedSharding(line(), P("x"))), ValueError, "rank|scalar"),
        (lambda x: jax.NamedSharding(line(), P("q")), ValueError, "is not found in mesh"),
        (lambda x: jax.device_put(x, jax.NamedSharding(line(), P("x", "x"))), jax.errors.DuplicateSpecError, "duplicate"),
        (lambda x: jax.reshard(x, P("x")), ValueError, "not under a mesh context"),
        (lambda x: jax.reshard(x, jax.NamedSharding(line(Auto), P("x"))), ValueError, "Auto or Manual"),
        (lambda x: jax.lax.with_sharding_constraint(x, jax.NamedSharding(line(), P(None, "x"))), AssertionError, "acts as an assert"),
        (lambda x: jax.lax.with_sharding_constraint(x, 3), ValueError, "PartitionSpec"),
        (lambda x: jax.reshard(x, None), ValueError, "cannot be None"),
        (lambda x: jax.device_put({"a": x}, {"b": P()}), ValueError, "pytree"),
    ],
)  # fmt: skip
def test_bad_places(wrong: Any, error: type[Exception], match: str) -> None:
    x = placed(values(2 * ranks(), 2 * ranks()), line(), "x")
    with comm.counting() as counts, pytest.raises(error, match=match):
        wrong(x)
    assert counts.total_calls == 0


@pytest.mark.mpi(min_size=2)
@under(line)
def test_sizes_that_do_not_divide() -> None:
    v = np.ones((ranks() + 1, 2), np.float32)
    words = f"implies that array axis 0 is partitioned {ranks()} times"
    for wrong in (
        lambda: jax.device_put(v, P("x")),
        lambda: jax.reshard(v, P("x")),
        lambda: jax.jit(lambda v: jax.reshard(v, P("x")))(v),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    with jax.set_mesh(line(Auto)):
        with pytest.raises(jax.errors.IndivisibleError, match=words):
            jax.device_put(v, P("x"))
        with pytest.raises(ValueError, match=words):
            jax.lax.with_sharding_constraint(v, P("x"))


def test_trees_and_prefixes() -> None:
    n = ranks()
    tree = {"a": values(2 * n), "b": [values(2 * n, 3), values(4 * n)]}
    with jax.set_mesh(line()):
        out = jax.device_put(tree, {"a": P(), "b": P("x")})
        assert out["a"].sharding.spec == P()
        assert [x.sharding.spec for x in out["b"]] == [P("x")] * 2
        moved = jax.reshard(out, P("x"))
        assert [x.sharding.spec for x in (moved["a"], *moved["b"])] == [P("x"), P("x", None), P("x")]
        same(moved["b"][0], tree["b"][0])
        assert jax.device_put(out["a"]) is not None
        assert jax.device_put(out, None)["b"][0].sharding.spec == P("x")


@under(lambda: line(Auto))
def test_constraints_move_on_auto_axes() -> None:
    x = jax.device_put(values(2 * ranks(), 2 * ranks()), P("x", None))
    y = jax.lax.with_sharding_constraint(x, P(None, "x"))
    blocks_are_right(y, values(2 * ranks(), 2 * ranks()))
    assert y.sharding.spec == P(None, "x")
    assert jax.lax.with_sharding_constraint(x, P("x", None)).sharding.spec == P("x")


@pytest.mark.mpi(min_size=2)
def test_constraints_beside_explicit_axes() -> None:
    if ranks() % 2:
        pytest.skip("an even number of ranks makes a grid")
    kinds = (Explicit, Auto)
    with jax.set_mesh(jax.make_mesh((2, ranks() // 2), ("x", "y"), axis_types=kinds)):
        v = values(2 * ranks(), 3)
        x = jax.device_put(v, P("x"))
        for f in (
            lambda x: jax.lax.with_sharding_constraint(x, P("y")),
            jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("y"))),
        ):
            y = f(x)
            assert str(jax.typeof(y)) == f"float32[{2 * ranks()}@x,3]"
            assert y.addressable_data(0).shape == (2, 3)
            same(y, v)
            with pytest.raises(ValueError, match="can only refer to Auto axes"):
                jax.lax.with_sharding_constraint(x, P("x"))
        if ranks() > 2:
            small = jax.device_put(values(2, 3), P("x"))
            with pytest.raises(jax.errors.IndivisibleError, match=f"partitioned {ranks()} times"):
                jax.lax.with_sharding_constraint(small, P("y"))


def test_plans_can_be_printed() -> None:
    x = placed(values(2 * ranks(), 2 * ranks()), line(), "x", None)
    with comm.counting() as counts:
        text = jax.debug.redistribution_plan(x, jax.NamedSharding(line(), P(None, "x")))
    assert counts.total_calls == 0
    assert ("all-to-all" in text) == (ranks() > 1)


@pytest.mark.mpi(min_size=2, max_size=4)
@pytest.mark.parametrize("call", ["reshard", "device_put", "jit"])
def test_memory_of_a_large_reshard(call: str) -> None:
    """Beyond the source block, which is alive before: the target block and a message buffer of at most 64 MB."""
    if 4096 % ranks():
        pytest.skip("4096 does not divide")
    with jax.set_mesh(line()):
        x = jax.device_put(np.ones((4096, 4096), np.float32), P("x", None))
        target = jax.NamedSharding(line(), P(None, "x"))
        moves = {
            "reshard": lambda: jax.reshard(x, P(None, "x")),
            "device_put": lambda: jax.device_put(x, target),
            "jit": jax.jit(lambda x: jax.reshard(x, P(None, "x"))).__call__,
        }
        move = (lambda: moves["jit"](x)) if call == "jit" else moves[call]
        block = x.nbytes // ranks()
        assert peak_of(move)[1] <= block + 64 * 2**20
        y = move()
        assert y.addressable_data(0).shape == (4096, 4096 // ranks())


@pytest.mark.mpi(min_size=2, max_size=4)
def test_memory_of_an_exchange_between_meshes() -> None:
    devices = np.array(jax.devices())
    x = jax.device_put(np.ones((4096, 1024 * ranks()), np.float32), jax.NamedSharding(line(), P(None, "x")))
    back = jax.NamedSharding(jax.Mesh(devices[::-1], ("r",), (Explicit,)), P(None, "r"))
    block = x.nbytes // ranks()
    assert peak_of(lambda: jax.device_put(x, back))[1] <= block + 64 * 2**20
