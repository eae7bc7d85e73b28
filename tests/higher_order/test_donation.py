"""Donated arrays: results in their memory, and never in memory that somebody else sees."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from mpiarray.runtime.alone import is_alone
from tests.peak import peak_of

BIG = (128, 256)  # of a rank, 128 KB of float32


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(jax.make_mesh((comm.size(),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))):
        yield


def placed(shape=BIG, seed=0, spec=("x",)):
    whole = np.random.default_rng(seed).standard_normal((shape[0] * comm.size(), *shape[1:])).astype(np.float32)
    return jax.device_put(whole, P(*spec)), whole


def address(x) -> int:
    return x._block.__array_interface__["data"][0]


def descend(p, g):
    return p - 0.5 * g


@pytest.mark.parametrize("shape", [BIG, (3,), (40, 40)], ids=str)
def test_a_step_stays_in_its_memory(shape):
    step = jax.jit(descend, donate_argnums=0)
    p, want = placed(shape)
    g, slope = placed(shape, 1)
    p = step(p, g)
    here = address(p)
    for _ in range(4):
        before, p = p, step(p, g)
        assert address(p) == here
        assert before.is_deleted()
    for _ in range(5):
        want = want - np.float32(0.5) * slope
    np.testing.assert_array_equal(np.asarray(p), want)
    np.testing.assert_array_equal(np.asarray(g), slope)


def seen(how, x):
    """Something that shows the memory of an array, and what it must go on to say."""
    match how:
        case "shard":
            return x.addressable_data(0)
        case "numpy of a shard":
            return np.asarray(x.addressable_data(0))
        case "part":
            return np.asarray(x.addressable_data(0))[3:, ::2]
        case "memoryview":
            return memoryview(np.asarray(x.addressable_data(0)))
        case "block":
            return x._block
        case "view of the block":
            return x._block.reshape(-1)[5:9]
        case "iterator":
            return np.nditer(x._block)
        case "dlpack":
            return np.from_dlpack(x._block)
        case "another array":
            return jax.jit(lambda v: v)(x)
        case "an object array":
            return np.array([x._block, None], dtype=object)
        case _:
            return (lambda kept: lambda: kept)(x._block)


HOLDERS = [
    "shard", "numpy of a shard", "part", "memoryview", "block", "view of the block", "iterator", "dlpack", "another array",
    "an object array", "closure",
]  # fmt: skip


def values_of(holder):
    if isinstance(holder, np.nditer):
        return np.array(holder.operands[0])
    if isinstance(holder, np.ndarray) and holder.dtype == object:
        return np.array(holder[0])
    if hasattr(holder, "addressable_data"):
        return np.array(holder.addressable_data(0))
    return np.array(holder() if callable(holder) else holder)


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("made_by_a_program", [False, True])
def test_what_others_see_is_never_written_over(how, made_by_a_program):
    step = jax.jit(descend, donate_argnums=0)
    p, want = placed()
    g, slope = placed(seed=1)
    if made_by_a_program:
        p, want = step(p, g), want - np.float32(0.5) * slope
    holder = seen(how, p)
    before = values_of(holder).copy()
    p = step(p, g)
    np.testing.assert_array_equal(values_of(holder), before)
    np.testing.assert_array_equal(np.asarray(p), want - np.float32(0.5) * slope)
    here = address(p)
    del holder
    gc.collect()
    assert address(step(p, g)) == here, "nobody else sees the copy"


def test_an_array_passed_twice_is_read_as_it_was():
    step = jax.jit(descend, donate_argnums=0)
    p, want = placed()
    np.testing.assert_array_equal(np.asarray(step(p, p)), want - np.float32(0.5) * want)


def test_constants_of_a_program_stay():
    table = np.arange(BIG[0] * BIG[1], dtype=np.float32).reshape(BIG)
    make = jax.jit(lambda: jnp.asarray(table), out_shardings=jax.NamedSharding(jax.sharding.get_mesh(), P()))
    double = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(double(make())), table * 2 + 1)


def test_a_result_that_is_also_read_elsewhere():
    step = jax.jit(lambda a, b: (b * 2 + a, a * 3 - b, jnp.sum(a @ b.T)), donate_argnums=(0, 1))
    a, x = placed((64, 64), spec=())
    b, y = placed((64, 64), 1, spec=())
    a, b, s = step(a, b)
    np.testing.assert_allclose(np.asarray(a), y * 2 + x, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(b), x * 3 - y, rtol=1e-6)
    np.testing.assert_allclose(float(s), np.sum(x @ y.T), rtol=1e-3, atol=1e-2)


def test_donated_arrays_are_gone_when_a_callback_raises():
    def trouble(x):
        raise OSError("no")

    def step(p):
        jax.debug.callback(trouble, p[0, 0])
        return p * 2 + 1

    p, _ = placed(spec=())
    if comm.size() == 1:
        with pytest.raises(OSError, match="no"):
            jax.jit(step, donate_argnums=0)(p)
        assert p.is_deleted()


def test_updates_of_donated_arrays_are_in_place():
    """A cache that is written at one place per step."""
    write = jax.jit(lambda c, row, k: jax.lax.dynamic_update_slice(c, row, (k, 0)), donate_argnums=0)
    cache, want = placed(spec=())
    row = jax.device_put(np.ones((1, BIG[1]), np.float32), P())
    cache = write(cache, row, 0)
    here = address(cache)
    for k in range(1, 5):
        cache = write(cache, row, k)
        assert address(cache) == here
    want[:5] = 1
    np.testing.assert_array_equal(np.asarray(cache), want)


def adam(params, slopes, m, v):
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, slopes)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, slopes)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, m, v


def momentum(params, slopes, m, v):
    m = jax.tree.map(lambda m, g: 0.9 * m + g, m, slopes)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, params, m), m, v


@pytest.mark.parametrize("optimizer", [adam, momentum], ids=lambda f: f.__name__)
def test_optimizers_allocate_no_new_state(optimizer):
    step = jax.jit(optimizer, donate_argnums=(0, 2, 3))
    names = ("a", "b")
    made = [{n: placed(seed=10 * k + i, spec=()) for i, n in enumerate(names)} for k in range(4)]
    state, slopes, m, v = [{n: x for n, (x, _) in d.items()} for d in made]
    v = {n: jax.device_put(np.abs(np.asarray(x)), P()) for n, x in v.items()}
    want = [{n: w.astype(np.float64) for n, (_, w) in d.items()} for d in made]
    want[3] = {n: np.abs(w) for n, w in want[3].items()}
    state, m, v = step(state, slopes, m, v)
    places = {address(x) for d in (state, m, v) for x in d.values()}
    (state, m, v), peak = peak_of(lambda: step(state, slopes, m, v))
    assert {address(x) for d in (state, m, v) for x in d.values()} == places
    size = next(iter(state.values()))._block.nbytes
    assert peak < 3 * size, "buffers of tiles, not new arrays for all of the state"
    for n in names:
        p, g, mm, vv = (w[n] for w in want)
        for _ in range(2):
            mm = 0.9 * mm + (0.1 if optimizer is adam else 1.0) * g
            if optimizer is adam:
                vv = 0.999 * vv + 0.001 * g * g
            p = p - 1e-3 * (mm / (np.sqrt(vv) + 1e-8) if optimizer is adam else mm)
        np.testing.assert_allclose(np.asarray(state[n]), p, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.asarray(m[n]), mm, rtol=1e-4, atol=1e-5)


def test_who_is_alone():
    blocks = [np.ones(4), np.ones(8)[:4], np.ones((4, 4)).T, np.float32(1), np.frombuffer(bytes(32))]
    assert [is_alone(blocks, k) for k in range(5)] == [True, True, False, False, False]
    also = blocks[0]
    view = blocks[1][1:]
    assert not is_alone(blocks, 0)
    assert not is_alone(blocks, 1)
    del also, view
    assert is_alone(blocks, 0)
    assert is_alone(blocks, 1)
    blocks[0].flags.writeable = False
    assert not is_alone(blocks, 0)
