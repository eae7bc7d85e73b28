"""Redistribution between any two shardings, planned as data.

    found = plan((8, 4), 4, (mesh, P('x', None)), (mesh, P(None, 'x')))
    print(found)                 # one line per step: axes, dims, block shapes, bytes
    for step, before, after in zip(found.steps, found.states, found.states[1:]):
        ...                      # what to do is defined in steps.py

Pure data, the same on every rank, no MPI and no arrays: see planner.py for how a plan is chosen, steps.py for what
each step means, exchange.py for the general step, simulate.py for all of it in numpy on one process.
"""

from mpiarray.core.redistribution.exchange import Exchange, RankTable, Round, Transfer
from mpiarray.core.redistribution.placement import Placement
from mpiarray.core.redistribution.planner import Redistribution, placement, plan, step_traffic
from mpiarray.core.redistribution.simulate import simulate
from mpiarray.core.redistribution.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    AxisStep,
    Mask,
    Permute,
    ReduceScatter,
    Relabel,
    Slice,
    Step,
    Widen,
)

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AxisStep",
    "Exchange",
    "Mask",
    "Permute",
    "Placement",
    "RankTable",
    "Redistribution",
    "ReduceScatter",
    "Relabel",
    "Round",
    "Slice",
    "Step",
    "Transfer",
    "Widen",
    "placement",
    "plan",
    "simulate",
    "step_traffic",
]
