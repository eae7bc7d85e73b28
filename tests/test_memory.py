"""Memory that is kept for reuse: it is reused, it is bounded, and nobody's values change."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from mpiarray import memory
from mpiarray.config import config
from mpiarray.runtime.alone import is_alone

try:
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as setting:
        LARGE_PAGES = "[madvise]" in setting.read()
except OSError:
    LARGE_PAGES = False
GLIBC = memory.stats()["allocator"] == "glibc"
needs_glibc = pytest.mark.skipif(not GLIBC, reason="another C library than glibc: memory is left as it is")

HEAD = """
import gc, resource
import numpy as np
import mpiarray as jax, mpiarray.numpy as jnp
from mpiarray import memory
MB = 1 << 20
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
"""


def output(code: str, **environment: str) -> list[str]:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code],
        capture_output=True, text=True, timeout=120, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


STEADY = """
f = jax.jit(lambda x: jnp.sin(x) * x + 1)
x = jnp.ones((8 * MB,), jnp.float32)
for _ in range(3):
    y = f(x) + x
before = faults()
for _ in range(10):
    y = f(x) + x
print((faults() - before) // 10)
"""


@needs_glibc
def test_a_steady_loop_takes_no_new_memory():
    (kept,) = output(STEADY)
    (plain,) = output(STEADY, MPIARRAY_POOL_BYTES="0")
    assert int(kept) < 20, "page faults of an iteration"
    assert int(plain) > 100 * (int(kept) + 1), (
        "without memory that is kept each result is new: else this test says nothing"
    )


@needs_glibc
@pytest.mark.parametrize("limit", [64, 256])
def test_what_is_kept_stays_under_the_limit(limit):
    (held, after) = output(
        """
keep = []
for k in range(60):
    x = jnp.ones(((1 + 7 * k % 13) * MB,), jnp.float32) * 2 + 1
    if k % 9 == 0:
        keep.append(jnp.ones(1000) * k)  # small arrays between the large ones, so that the heap has holes
del x
gc.collect()
for k in range(12):
    jnp.ones((9 * MB,), jnp.float32) + 1
print(memory.stats()["held"])
memory.release()
print(resident())
""",
        MPIARRAY_POOL_BYTES=str(limit << 20),
    )
    assert int(held) <= limit << 20
    assert int(after) < 200 << 20, "release() gives everything back"


@needs_glibc
def test_the_peak_does_not_grow_by_more_than_the_limit():
    code = """
for k in range(40):
    n = (1 + (k * 37) % 11) * MB
    a = jnp.ones((n,), jnp.float32)
    b = jnp.sin(a) + a
    c = b[: n // 2] * 2
del a, b, c
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    (plain,) = output(code, MPIARRAY_POOL_BYTES="0")
    (kept,) = output(code, MPIARRAY_POOL_BYTES=str(64 * 2**20))
    assert int(kept) <= int(plain) + 64 + 8


def test_views_that_are_held_keep_their_values():
    """Results, numpy views of them, and views of these, while their origins are dropped and new results are made."""
    (verdict,) = output(
        """
rng = np.random.default_rng(0)
held = []
f = jax.jit(lambda x, k: (x * k + 1, jnp.sum(x * k), (x * 2 - k)[::2]))
for k in range(60):
    n = int(rng.integers(1, 4)) * 300_000
    x = jnp.full((n,), float(k))
    a, s, c = f(x, float(k))
    kind = int(rng.integers(0, 5))
    view = [np.asarray(a)[5:-5], np.asarray(c)[::7], np.asarray(a).reshape(-1, 2).T, memoryview(np.asarray(c)), np.asarray(x)[10:]][kind]
    want = [k * k + 1, 2 * k - k, k * k + 1, 2 * k - k, k][kind]
    held.append((view, want))
    if rng.random() < 0.3:
        held.pop(int(rng.integers(0, len(held))))
    del a, s, c, x, view
    assert all((np.asarray(v) == w).all() for v, w in held), k
print("same")
"""
    )
    assert verdict == "same"


def test_donated_arrays_do_not_change_views_of_them():
    (verdict,) = output(
        """
f = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
x = jnp.arange(float(1 << 20))
view = np.asarray(x)[3:9]
for _ in range(5):
    x = f(x)
print("same" if (view == np.arange(3.0, 9)).all() and float(x[1]) == 63 else "changed")
"""
    )
    assert verdict == "same"


@needs_glibc
def test_the_setting_can_change_while_the_program_runs():
    (held,) = output(
        """
jnp.ones(1)
before = resident()
jax.config.update("pool_bytes", 0)
for _ in range(8):
    x = jnp.ones((32 * MB,), jnp.float32) + 1
del x
print(resident() - before)
"""
    )
    assert int(held) < 32 << 20


@needs_glibc
@pytest.mark.skipif(not LARGE_PAGES, reason="this system has no large pages, or only for all")
@pytest.mark.parametrize("asked", ["1", "0"])
def test_blocks_are_in_large_pages(asked):
    """60 blocks too small for numpy to ask for large pages, on a heap that has grown: all of them, also at its ends, and where
    numpy has been before; but not what lies before the heap's first large page and behind its last one."""
    small, large = output(
        """
keep = []
for k in range(60):
    others = [np.ones((MB // 4,), np.float32) for _ in range(k % 7)]
    keep.append(jnp.ones((MB // 4,), jnp.float32) * k)
    del others
large, touched, heap = 0, 0, False
with open("/proc/self/smaps") as f:
    for line in f:
        if ":" not in line.split()[0]:
            heap = "[heap]" in line
        elif heap and line.startswith("AnonHugePages"):
            large += int(line.split()[1])
        elif heap and line.startswith("Rss"):
            touched += int(line.split()[1])
print((touched - large) / 1024, large / 1024)
""",
        NUMPY_MADVISE_HUGEPAGE=asked,
    )
    assert float(small) < 4.5 if asked == "1" else float(large) == 0


@pytest.mark.parametrize("dtype", ["f4", ">f4", "c16", "?", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4])
def test_large_blocks_of_all_dtypes_begin_at_a_cache_line(dtype):
    for shape in ((100_000,), (100, 1000)):
        x = memory.empty(shape, dtype)
        assert (x.shape, x.dtype) == (shape, np.dtype(dtype))
        assert x.ctypes.data % memory.ALIGNMENT == 0


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.bool_])
@pytest.mark.parametrize("nbytes", [100, memory.ALIGNED_FROM, memory.PAGED_FROM])
def test_where_new_arrays_begin(nbytes, dtype):
    """All at once, so that they lie apart."""
    size = -(-nbytes // np.dtype(dtype).itemsize)
    step = {100: 1, memory.ALIGNED_FROM: 64, memory.PAGED_FROM: 4096}[nbytes]
    made = [memory.empty(shape, dtype) for shape in ((size,), (1, size), (size, 1)) for _ in range(3)]
    for x in made:
        assert x.dtype == dtype and x.size == size and x.flags.c_contiguous and x.ctypes.data % step == 0
    for k, x in enumerate(made):
        x[...] = k % 2
    assert all((x == k % 2).all() for k, x in enumerate(made))


# -- results that a step makes again and again ------------------------------------------------------

NUMBERS = 1 << 18  # float32: 1 MB


def address(x) -> int:
    return x.__array_interface__["data"][0]


def test_a_result_that_nobody_holds_is_given_again():
    take = memory.recycled((NUMBERS,), np.float32)
    first = address(take())
    assert [address(take()) for _ in range(5)] == [first] * 5
    x = take()
    y = take()
    assert address(x) != address(y)
    for _ in range(4):  # in turn, as in x = f(x)
        before = {address(x), address(y)}
        x, y = y, None
        y = take()
        assert {address(x), address(y)} == before


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x,
        lambda x: x[5:9],
        lambda x: x[5:9][1:].reshape(1, 3),
        lambda x: memoryview(x),
        lambda x: memoryview(x[3:]),
        lambda x: x.view(np.int32),
        lambda x: np.frombuffer(x, np.uint8),
        lambda x: np.lib.stride_tricks.as_strided(x, (2, 2), (4, 4)),
        lambda x: np.from_dlpack(x),
        lambda x: iter(x),
        lambda x: x.flat,
        lambda x: x.ctypes,
        lambda x: x.T.base,
    ],
)
def test_what_somebody_holds_is_not(hold):
    take = memory.recycled((NUMBERS,), np.float32)
    held = []
    for k in range(8):
        x = take()
        at = address(x)
        assert all(at != other for _, other, _ in held)
        x[...] = k
        held.append((hold(x), at, k))
        del x
    del held


def test_what_is_kept_is_bounded_and_can_be_let_go():
    memory.release()
    assert not memory._kept
    takers = [memory.recycled((NUMBERS * (1 + k % 4),), np.float32) for k in range(30)]
    for take in takers * 3:
        take()
    assert 0 < sum(nbytes for _, nbytes in memory._kept.values()) <= memory._KEPT_BYTES
    assert all(number in (id(x.now), id(x.before)) for number, (x, _) in memory._kept.items())
    take = memory.recycled((NUMBERS,), np.float32)
    held = [take() for _ in range(1000)]
    assert len({address(x) for x in held}) == 1000
    assert take.__self__.made == 1000 and take.__self__.now is None  # it looks ever more rarely
    memory.release()
    assert not memory._kept
    assert memory.recycled((100,), np.float32)().base is None  # small ones are made each time


def test_no_setting_no_keeping():
    with config.override("pool_bytes", 0):
        memory.apply()
        take = memory.recycled((NUMBERS,), np.float32)
        take()
        assert not memory._kept
    memory.apply()


def test_a_kept_result_may_be_donated():
    """The step lets go; a second reference forbids it as ever."""
    take = memory.recycled((NUMBERS,), np.float32)
    blocks = [take()]
    assert is_alone(blocks, 0) and is_alone(blocks, 0)
    assert address(take()) != address(blocks[0])
    for held in (take(), take()[1:], np.asarray(take())):
        blocks = [held if held.base is None or held.size == NUMBERS else held.base]
        assert not is_alone(blocks, 0)


@pytest.mark.parametrize("count", ["_ONE", "_ONE_TO_BASE"])
def test_a_python_that_counts_otherwise_keeps_nothing(count, monkeypatch):
    assert memory._is_trusted()
    monkeypatch.setattr(memory, count, getattr(memory, count) + 1)
    assert not memory._is_trusted()


def test_what_is_kept_no_more_is_nobodys_to_give():
    """A block that a step has lost, whose number another array may have, is not taken for one that it keeps."""
    take = memory.recycled((NUMBERS,), np.float32)
    block = take()
    recycler, _ = memory._kept[id(block)]
    recycler.now = None
    assert not memory.forget(block) and id(block) not in memory._kept
    assert not memory.forget(np.empty(3))
