"""Groups: which ranks, in which order, and that communicators are made once."""

from __future__ import annotations

import numpy as np
import pytest

from mpiarray import comm
from mpiarray.comm import axis_members
from mpiarray.errors import InternalError

IDS = (0, 1, 2, 3, 4, 5, 6, 7)
MESH = (("x", 4), ("y", 2))


def test_members_along_axes():
    assert axis_members(IDS, MESH, ("x",), 3) == (1, 3, 5, 7)
    assert axis_members(IDS, MESH, ("y",), 3) == (2, 3)
    assert axis_members(IDS, MESH, ("x", "y"), 3) == IDS
    assert axis_members(IDS, MESH, ("y", "x"), 3) == (0, 2, 4, 6, 1, 3, 5, 7)
    assert axis_members(IDS, MESH, (), 3) == (3,)


def test_members_in_device_order():
    ids = (5, 3, 1, 0, 2, 4)
    assert axis_members(ids, (("i", 2), ("j", 3)), ("i",), 2) == (3, 2)
    assert axis_members(ids, (("i", 2), ("j", 3)), ("j",), 2) == (0, 2, 4)


def test_members_of_axis_index_groups():
    """The part that contains the rank, in the listed order (shard_map.md 7)."""
    mesh = (("i", 4),)
    groups = ((0, 2), (3, 1))
    assert axis_members((0, 1, 2, 3), mesh, ("i",), 0, groups) == (0, 2)
    assert axis_members((0, 1, 2, 3), mesh, ("i",), 1, groups) == (3, 1)
    assert axis_members((3, 2, 1, 0), mesh, ("i",), 0, groups) == (0, 2)


def test_members_agree_for_every_rank_and_axes():
    """Each member of a group computes the same group, and the position in it is the index along the axes."""
    mesh = (("a", 2), ("b", 3), ("c", 2))
    ids = tuple(int(k) for k in np.argsort(np.sin(np.arange(12.0))))
    places = np.array(ids).reshape(2, 3, 2)
    for axes in (("a",), ("b", "a"), ("c", "b"), ("c", "a", "b"), ("b",)):
        for rank in ids:
            members = axis_members(ids, mesh, axes, rank)
            assert all(axis_members(ids, mesh, axes, other) == members for other in members)
            place = dict(zip("abc", (int(k[0]) for k in np.nonzero(places == rank)), strict=True))
            index = 0
            for axis in axes:
                index = index * dict(mesh)[axis] + place[axis]
            assert members[index] == rank


def test_wrong_groups():
    with pytest.raises(InternalError, match="rank 9 is not in the mesh"):
        axis_members(IDS, MESH, ("x",), 9)
    with pytest.raises(InternalError, match=r"axes \('z',\) are not different axes"):
        axis_members(IDS, MESH, ("z",), 0)
    with pytest.raises(InternalError, match="not different axes"):
        axis_members(IDS, MESH, ("x", "x"), 0)
    with pytest.raises(InternalError, match="does not hold 7 devices"):
        axis_members(IDS[:7], MESH, ("x",), 0)
    with pytest.raises(InternalError, match="is in none of the groups"):
        axis_members(IDS, MESH, ("x",), 0, ((1, 2),))


@pytest.mark.mpi
def test_world_group():
    group = comm.world_group()
    world = comm.world()
    assert (group.rank, group.size, group.members) == (world.rank, world.size, tuple(range(world.size)))
    assert comm.device_group(group.members) is group
    assert (group.comm is None) == (world.size == 1)


@pytest.mark.mpi
def test_traffic_is_apart_from_the_user():
    """Our communicator is not COMM_WORLD: a message of the user's does not match ours."""
    mpi = pytest.importorskip("mpi4py.MPI")
    world = comm.world()
    assert mpi.Comm.Compare(world.comm, mpi.COMM_WORLD) == mpi.CONGRUENT
    if world.size > 1 and world.rank < 2:
        peer = 1 - world.rank
        request = mpi.COMM_WORLD.Isend(np.full(1, 7.0), peer, tag=1)
        group = comm.device_group((0, 1))
        out = np.zeros(1)
        comm.exchange(group, [(peer, np.full(1, 3.0))], [(peer, out)])
        assert out == 3
        mpi.COMM_WORLD.Recv(out, peer, tag=1)
        request.Wait()
        assert out == 7


@pytest.mark.mpi
def test_single_member_needs_no_communicator():
    group = comm.device_group((comm.rank(),))
    assert group.comm is None
    assert (group.rank, group.size) == (0, 1)


@pytest.mark.mpi(min_size=2)
def test_strangers_may_not_ask():
    others = tuple(k for k in range(comm.size()) if k != comm.rank())
    with pytest.raises(InternalError, match=f"rank {comm.rank()} asked for the group of ranks"):
        comm.device_group(others)
    with pytest.raises(InternalError, match="different ranks below"):
        comm.device_group((comm.rank(), comm.size()))


@pytest.mark.mpi(min_size=4)
def test_overlapping_groups_are_made_by_their_members_alone():
    """Rank 3 takes no part; ranks 0, 1, 2 make three groups that overlap, in the same order of first use."""
    rank = comm.rank()
    for members in ((1, 0), (2, 1), (0, 2), (2, 0, 1)):
        if rank in members:
            group = comm.device_group(members)
            assert group.members[group.rank] == rank
            assert comm.agree(group, rank) == list(members)


@pytest.mark.mpi(min_size=2)
def test_axes_with_the_same_members_share_a_communicator():
    n = comm.size()
    ids = tuple(range(n))
    one = comm.axis_group(ids, (("x", n),), ("x",))
    two = comm.axis_group(ids, (("x", 1), ("y", n)), ("y",))
    assert one is two
    assert one is comm.axis_group(ids, (("x", n),), ("x",))


@pytest.mark.mpi(min_size=2)
def test_order_of_axes_is_the_order_of_members():
    n = comm.size() // 2 * 2
    if comm.rank() >= n:
        return
    ids, mesh = tuple(range(n)), (("x", n // 2), ("y", 2))
    forth = comm.axis_group(ids, mesh, ("x", "y"))
    back = comm.axis_group(ids, mesh, ("y", "x"))
    x = np.array([comm.rank()])
    assert comm.all_gather(forth, x).tolist() == list(range(n))
    assert comm.all_gather(back, x).tolist() == [*range(0, n, 2), *range(1, n, 2)]
