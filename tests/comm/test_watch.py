"""MPIARRAY_CHECK: what diverging ranks are told.  (The watchdog ends jobs: tests/failures.)"""

from __future__ import annotations

import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import watch
from mpiarray.config import config


@pytest.fixture
def checked():
    with config.override("check", True):
        yield comm.world_group() if comm.started() or comm.size() else None


def told(call) -> str:
    """The message of the error that every rank must get."""
    with pytest.raises(RuntimeError, match="ranks have diverged") as caught:
        call()
    text = str(caught.value)
    assert set(comm.agree(comm.world_group(), text)) == {text}
    return text


@pytest.mark.mpi(min_size=2)
def test_different_collectives(checked):
    x = np.ones((2, 3), np.float32)
    last = checked.size - 1

    def call():
        if checked.rank == last:
            watch.describe("all_gather(f32[2,3]{V:i})")
            comm.all_gather(checked, x, 1)
        else:
            comm.all_reduce(checked, x, "max")

    text = told(call)
    assert f"rank {last} is at all_gather(f32[2,3]{{V:i}}) at test_watch.py:" in text
    assert "all_reduce(float32[2, 3], max) at test_watch.py:" in text


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["shape", "dtype", "parameter", "line"])
def test_different_arguments(checked, what):
    first = checked.rank == 0
    x = np.ones((2, 3), np.float32)

    def call():
        if what == "shape":
            comm.all_reduce(checked, x[0] if first else x)
        elif what == "dtype":
            comm.all_reduce(checked, x.astype(np.int32) if first else x)
        elif what == "parameter":
            comm.all_gather(checked, x, 0 if first else 1)
        elif first:
            comm.all_reduce(checked, x)
        else:
            comm.all_reduce(checked, x)

    assert "rank 0 is at" in told(call)
    same = comm.all_reduce(checked, x)
    np.testing.assert_array_equal(same, np.full((2, 3), checked.size))


@pytest.mark.mpi(min_size=2)
def test_different_bits(checked, monkeypatch):
    """A result that must be equal on all members is compared."""
    with pytest.raises(RuntimeError, match=r"all_reduce.* received different bits"):
        watch.run("all_reduce", checked, np.ones(2), ("sum",), lambda: np.array([1.0, checked.rank]))


@pytest.mark.mpi
def test_nan_of_either_sign_is_equal(checked):
    if checked.size > 1:
        nan = np.copysign(np.nan, -1.0 if checked.rank else 1.0)
        watch.run("all_reduce", checked, np.ones(1), ("sum",), lambda: np.array([nan]))
        watch.run("all_reduce", checked, np.ones(1), ("sum",), lambda: np.array([nan], np.float16))


@pytest.mark.mpi
def test_all_is_well(checked):
    n = checked.size
    x = np.ones((n, 2), np.float32)
    comm.all_reduce(checked, x)
    comm.reduce_scatter(checked, x)
    comm.permute(checked, x, [(0, n - 1)])
    comm.exchange(checked, [(k, x[k]) for k in range(n)], [(k, np.empty_like(x[k])) for k in range(n)])
    comm.broadcast(checked, x if checked.rank == 0 else None, 0, (x.shape, x.dtype))
    assert comm.agree(checked, comm.rank()) == list(range(n))


@pytest.mark.mpi(min_size=2)
def test_description_is_used_once(checked):
    def lazy():
        raise AssertionError("called although nobody needs it")

    watch.describe("psum(f32[2])")
    comm.all_reduce(checked, np.ones(2))
    text = told(lambda: comm.all_reduce(checked, np.ones(2 + (checked.rank == 0))))
    assert "psum" not in text
    watch.describe(lazy)
    comm.all_reduce(comm.device_group((comm.rank(),)), np.ones(2))
    comm.all_reduce(checked, np.ones(2))


def test_call_site_is_the_users_line():
    site = watch.call_site()
    assert site.startswith("test_watch.py:")
    found = []
    np.apply_along_axis(lambda row: found.append(watch.call_site()) or row, 0, np.ones(2))
    assert found[0].startswith("test_watch.py:")


def test_ranks_in_words():
    assert watch._ranks((0, 1, 2, 3)) == "0-3"
    assert watch._ranks((4,)) == "4"
    assert watch._ranks((1, 0, 2)) == "1, 0, 2"
