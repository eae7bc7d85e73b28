"""MPI: ranks, groups of ranks, and collectives on numpy blocks.  The only package that imports mpi4py.

world        starts MPI at the first need; ends the job when one rank fails
groups       mesh axes and device tuples -> communicators
collectives  all_reduce, all_gather, ... on numpy blocks of any dtype, size and memory order
prepared     the same collectives for blocks of one type, called many times
halves       the same collectives, started now and waited for later
repeated     exchanges that are done many times, by persistent requests
reductions   the reductions that MPI does not do itself, in rank order
ways         which way large strided blocks are exchanged
pairwise     blocks from rank to rank with bounded buffers
agreement    small Python values and errors
datatypes    numpy dtypes -> MPI datatypes and operations
stats        counts of collectives and bytes
timeline     what a trace records: events, clocks, who waited for whom
watch        MPIARRAY_CHECK and MPIARRAY_TIMEOUT
"""

from __future__ import annotations

from mpiarray.comm.agreement import agree, any_failed, barrier, compare, raise_together
from mpiarray.comm.collectives import (
    all_gather,
    all_gather_varied,
    all_reduce,
    all_reduce_many,
    all_to_all,
    broadcast,
    exchange,
    gather_to,
    permute,
    places,
    reduce_scatter,
)
from mpiarray.comm.groups import Group, axis_group, axis_members, device_group, world_group
from mpiarray.comm.stats import Counts, counting
from mpiarray.comm.world import World, abort, rank, rank_hint, size, size_hint, started, tell, world

__all__ = [
    "Counts",
    "Group",
    "World",
    "abort",
    "agree",
    "all_gather",
    "all_gather_varied",
    "all_reduce",
    "all_reduce_many",
    "all_to_all",
    "any_failed",
    "axis_group",
    "axis_members",
    "barrier",
    "broadcast",
    "compare",
    "counting",
    "device_group",
    "exchange",
    "gather_to",
    "permute",
    "places",
    "raise_together",
    "rank",
    "rank_hint",
    "reduce_scatter",
    "size",
    "size_hint",
    "started",
    "tell",
    "world",
    "world_group",
]
