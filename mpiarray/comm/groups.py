"""Which ranks communicate: mesh axes and device tuples turned into communicators.

A group is an ordered tuple of world ranks; positions in it, not world ranks, are what the collectives count by.
Communicators are made with Create_group, which only the members call, in an order that every member derives alike, and
are kept until MPI is finalised (freeing one is collective, so the garbage collector may not do it).  Two meshes or axis
tuples with the same members in the same order share one communicator.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.comm import datatypes, watch
from mpiarray.comm.world import world
from mpiarray.errors import InternalError, JaxRuntimeError

_TAGS = 32768  # every MPI allows at least these tags


class Group:
    """Ranks that communicate with each other.

    comm: mpi4py communicator, None for a single member (then every collective is a local operation).
    rank: this rank's position in the group.  size: number of members.  members: world ranks, in group order.
    ordered: sums are made in rank order, because MPI's own were seen to give the members different bits.
    steady: whether non-blocking sums give all members the same bits; None until `sums_agree` has tried.
    number: how many watched collectives this rank has started on the group (only counted under CHECK or TIMEOUT).
    """

    __slots__ = ("comm", "members", "number", "ordered", "rank", "size", "steady")

    def __init__(self, comm: Any, rank: int, members: tuple[int, ...], ordered: bool = False) -> None:
        self.comm = comm
        self.rank = rank
        self.size = len(members)
        self.members = members
        self.ordered = ordered
        self.number = 0
        self.steady: bool | None = True if self.size < 3 else None  # two addends commute

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.members})"


_by_members: dict[tuple[int, ...], Group] = {}
_by_axes: dict[tuple, Group] = {}


def world_group() -> Group:
    """The group of all ranks of the job, in world order."""
    return device_group(tuple(range(world().size)))


def device_group(ids: tuple[int, ...]) -> Group:
    """The group of the ranks of devices `ids`, in that order; the first call is collective over them."""
    group = _by_members.get(ids)
    return group if group is not None else _make(ids)


def axis_group(
    device_ids: tuple[int, ...],
    mesh_shape: tuple[tuple[str, int], ...],
    axes: tuple[str, ...],
    groups: tuple[tuple[int, ...], ...] | None = None,
) -> Group:
    """The ranks of a mesh that differ from this one only along `axes`, ordered by their index along them.

    device_ids: the mesh's device ids, row-major.  mesh_shape: (name, size) of each axis.  The first of `axes` counts
    most in the order, so ('i', 'j') and ('j', 'i') are different groups.  `groups` (axis_index_groups) divides the
    indices along `axes`; the group is then the part that contains this rank, in the order listed.
    Collective over the members the first time.  InternalError on a rank outside the mesh.
    """
    key = (device_ids, mesh_shape, axes, groups)
    group = _by_axes.get(key)
    if group is None:
        members = axis_members(device_ids, mesh_shape, axes, world().rank, groups)
        group = _by_axes[key] = device_group(members)
    return group


def axis_members(
    device_ids: tuple[int, ...],
    mesh_shape: tuple[tuple[str, int], ...],
    axes: tuple[str, ...],
    rank: int,
    groups: tuple[tuple[int, ...], ...] | None = None,
) -> tuple[int, ...]:
    """World ranks of the group that `axis_group` gives to `rank`; a pure function, for any rank of the mesh."""
    names = [name for name, _ in mesh_shape]
    sizes = [size for _, size in mesh_shape]
    if rank not in device_ids:
        raise InternalError(f"axis_group: rank {rank} is not in the mesh of devices {device_ids}")
    if not set(axes) <= set(names) or len(set(axes)) != len(axes):
        raise InternalError(f"axis_group: axes {axes} are not different axes of the mesh {mesh_shape}")
    if math.prod(sizes) != len(device_ids):
        raise InternalError(f"axis_group: mesh {mesh_shape} does not hold {len(device_ids)} devices")
    place = np.unravel_index(device_ids.index(rank), sizes) if sizes else ()
    fixed = [n for n, name in enumerate(names) if name not in axes]
    along = [names.index(name) for name in axes]
    ranks = np.array(device_ids, dtype=int).reshape(sizes).transpose(fixed + along)
    members = tuple(int(r) for r in ranks[tuple(place[n] for n in fixed)].reshape(-1))
    if groups is None:
        return members
    index = members.index(rank)
    for part in groups:
        if index in part:
            return tuple(members[n] for n in part)
    raise InternalError(f"axis_group: index {index} along {axes} is in none of the groups {groups}")


def _make(members: tuple[int, ...]) -> Group:
    here = world()
    if here.rank not in members:
        raise InternalError(f"rank {here.rank} asked for the group of ranks {members}, to which it does not belong")
    if len(set(members)) != len(members) or not all(0 <= rank < here.size for rank in members):
        raise InternalError(f"a group needs different ranks below {here.size}, got {members}")
    if len(members) == 1:
        comm = None
    elif members == tuple(range(here.size)):
        comm = here.comm
    else:
        comm = _create(here.comm, members)
    mine = members.index(here.rank)
    ordered = len(members) > 2 and _sums_differ(comm, mine)
    group = _by_members[members] = Group(comm, mine, members, ordered)
    return group


def _create(parent: Any, members: tuple[int, ...]) -> Any:
    """A communicator of `members`, made by them alone; the tag keeps overlapping groups apart while they are made."""
    everyone = parent.Get_group()
    chosen = everyone.Incl(list(members))
    try:
        with watch.waiting(f"the first use of the group of ranks {members}"):
            return parent.Create_group(chosen, tag=zlib.crc32(repr(members).encode()) % _TAGS)
    except RuntimeError as error:  # mpi4py's exceptions are RuntimeErrors; MPI libraries can make some thousands
        made = sum(group.comm is not None for group in _by_members.values())
        raise JaxRuntimeError(f"MPI made {made} communicators, but none for ranks {members}: {error}") from error
    finally:
        chosen.Free()
        everyone.Free()


def sums_agree(group: Group) -> bool:
    """Whether MPI's Iallreduce gives all members the same bits.  The first call is collective over the group."""
    if group.steady is None:
        group.steady = not _sums_differ(group.comm, group.rank, lambda *spec: group.comm.Iallreduce(*spec).Wait())
    return group.steady


def _sums_differ(comm: Any, rank: int, reduce: Callable[..., Any] | None = None) -> bool:
    """Whether MPI's Allreduce (or `reduce`) gives the members different bits: a few sums whose rounding shows their order.

    MPI forbids it (4.0, section 6.9.6), but MPICH's recursive exchange does it when a site tunes it to three or more
    partners per step.  Two addends commute, so groups of two need no test; long blocks are cut by all implementations,
    and each part is summed in one place.
    """
    checksum = 0
    for code in ("f4", "f8", "c8", "c16"):
        datatype, add = datatypes.native("sum", np.dtype(code))  # type: ignore[misc]
        for count in (1, 700):
            place = np.arange(count)
            given = (np.sin((rank + 1.0) * (place + 1)) * 1e3 ** (place % 3)).astype(code)
            total = np.empty_like(given)
            (reduce or comm.Allreduce)((given, count, datatype), (total, count, datatype), add)
            checksum = zlib.crc32(total, checksum)
    return not watch.all_equal(comm, checksum)
