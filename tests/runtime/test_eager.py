"""Eager ops: operands of all kinds and places, caches, errors."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from mpiarray.runtime import eager
from tests.runtime.on_ranks import Auto, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi


@under(grid)
def test_operands_in_different_places_meet() -> None:
    mesh = grid()
    v = values(4 * ranks(), 2 * ranks())
    x = placed(v, mesh, "x", "y")
    for other in (placed(v, mesh), v, jnp.asarray(v), placed(v, mesh, "x"), placed(v, mesh, None, "y")):
        out = x + other
        same(out, 2 * v)
        assert out.sharding.spec == P("x", "y")
    same(x + 1, v + 1)
    same(2 - x, 2 - v)
    same(x * np.float32(3), v * 3)
    same(x + placed(v[:1], mesh, None, "y"), v + v[:1])
    with pytest.raises(jax.errors.ShardingTypeError, match="incompatible shardings"):
        x + placed(np.ones((4 * ranks(), 2 * ranks()), np.float32), mesh, "y", None)


@under(lambda: grid(Auto))
def test_on_auto_axes_all_places_meet() -> None:
    mesh = grid(Auto)
    v = values(4 * ranks(), 4 * ranks())
    specs = [P(), P("x"), P("y"), P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x"))]
    for a in specs:
        for b in specs:
            same(placed(v, mesh, *a) + placed(v, mesh, *b), 2 * v)
    same(placed(v, mesh, "x") @ placed(v, mesh, "x"), v @ v)


def test_the_mesh_of_the_operands_is_enough() -> None:
    x = placed(values(2 * ranks()), line(), "x")
    assert str(jax.typeof(x + 1)) == f"float32[{2 * ranks()}@x]"
    same(x.sum(), values(2 * ranks()).sum())


@under(grid)
def test_another_mesh_than_the_context_is_refused() -> None:
    x = placed(values(2 * ranks()), line(), "x")
    if line().axis_sizes == grid().axis_sizes:
        pytest.skip("the same mesh")
    with pytest.raises(ValueError, match=r"For primitive \w+, context mesh .* should match the aval mesh"):
        x + 1
    assert repr(x)
    same(x, values(2 * ranks()))
    same(jax.device_put(x, P("x")) * 2, 2 * values(2 * ranks()))


@pytest.mark.mpi(min_size=2)
def test_incompatible_devices() -> None:
    first, second = (jax.device_put(np.ones(3), d) for d in jax.devices()[:2])
    with pytest.raises(ValueError, match=r"Received incompatible devices for jitted computation") as e:
        first + second
    assert "[0]" in str(e.value)
    assert "[1]" in str(e.value)
    mesh = placed(np.ones(ranks()), line(), "x")
    with pytest.raises(ValueError, match="incompatible devices"):
        mesh + jax.device_put(np.ones(ranks()), jax.devices()[0])
    with jax.set_mesh(line()), pytest.raises(ValueError, match="incompatible devices"):
        first + 1
    same(second * 2, [2, 2, 2])
    assert (second * 2).device.id == 1


def test_numpy_operands_of_all_kinds() -> None:
    v = values(2 * ranks())
    x = placed(v, line(), "x")
    for other in (np.int8(3), np.float64(0.5), np.bool_(True), np.arange(2 * ranks()), v[::-1], np.asfortranarray(v)):
        same(x + other, (v + np.asarray(other)).astype(np.float32))
    for wrong in ("a", None, object()):
        with pytest.raises(TypeError):
            x + wrong
    with pytest.raises(TypeError):
        jnp.add(x, [1, 2])


def test_a_view_does_not_keep_a_large_block() -> None:
    x = jnp.asarray(np.ones((1000, 1000), np.float32))
    small = x[0, :10]
    base = small._block
    while getattr(base, "base", None) is not None:
        base = base.base
    assert base.nbytes <= 4096
    same(small, np.ones(10))


def test_results_are_row_major() -> None:
    x = placed(values(4 * ranks(), 3), line(), "x")
    for out in (x.T, x[:, ::-1], jnp.swapaxes(x, 0, 1), jnp.moveaxis(x[None], 0, 2)):
        assert out._block.flags.c_contiguous
        assert out.format.layout.major_to_minor == tuple(range(out.ndim))


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_CACHE_SIZE", 16)
    eager._cache.clear()
    x = jnp.arange(100.0)
    for n in range(1, 60):
        same(x[:n] + 1, np.arange(100.0)[:n] + 1)
        assert len(eager._cache) <= 16
    jax.clear_caches()
    assert not eager._cache
    same(x[:3] * 2, [0, 2, 4])


def test_a_second_call_does_no_type_work(monkeypatch: pytest.MonkeyPatch) -> None:
    x = placed(values(2 * ranks()), line(), "x")
    jnp.sin(x).sum()
    calls = []
    monkeypatch.setattr(eager, "infer", lambda *a: calls.append(a))
    monkeypatch.setattr(eager, "lower", lambda *a: calls.append(a))
    jnp.sin(x).sum()
    assert not calls


def test_errors_are_not_remembered() -> None:
    x = jnp.ones(3)
    size = len(eager._cache)
    for _ in range(2):
        with pytest.raises(TypeError, match="incompatible shapes"):
            jnp.add(x, jnp.ones(4))
    assert len(eager._cache) <= size + 1


def test_nans_are_found_where_asked() -> None:
    x = placed(np.arange(2.0 * ranks(), dtype=np.float32), line(), "x")
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(FloatingPointError, match="nan"):
            jnp.sqrt(x - 1)
        with pytest.raises(FloatingPointError, match="nan"):
            jax.jit(lambda x: jnp.log(x - 1))(x)
        jnp.sqrt(x)
        jnp.sqrt(x.astype(jnp.int32))
    finally:
        jax.config.update("jax_debug_nans", False)
    assert np.isnan(np.asarray(jnp.sqrt(x - 1))).sum() == 1


def test_numbers_that_overflow_are_values_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    x = jnp.float32(3e38) * 10
    assert np.isinf(float(x))
    assert float(jnp.float32(1) / 0) == np.inf
    assert np.isnan(float(jnp.float32(0) / 0))
    assert not recwarn.list


def test_empty_arrays() -> None:
    mesh = line()
    x = placed(np.zeros((0, 3), np.float32), mesh, "x")
    same(x + 1, np.ones((0, 3)))
    same(x.sum(0), np.zeros(3))
    same(jax.jit(lambda x: x * 2)(x), np.zeros((0, 3)))
    same(jax.device_put(x, jax.NamedSharding(mesh, P())), np.zeros((0, 3)))


def test_64_bit_types_where_asked() -> None:
    assert jnp.arange(3).dtype == np.int32
    with jax.enable_x64(True):
        x = placed(np.arange(2.0 * ranks()), line(), "x")
        assert x.dtype == np.float64
        assert jnp.sin(x).dtype == np.float64
        same(x.sum(), np.arange(2.0 * ranks()).sum())
    assert jnp.asarray(np.arange(3.0)).dtype == np.float32
