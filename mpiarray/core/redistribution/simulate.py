"""Executes a plan in numpy for all pretended ranks on one process.

The semantics of steps.py as a program: what `runtime` and compiled programs do with MPI must equal this. Tests
run it over generated meshes; tools run it to show what a plan does without a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpiarray.core.redistribution.exchange import Exchange
from mpiarray.core.redistribution.placement import Placement
from mpiarray.core.redistribution.planner import Redistribution
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
    Widen,
)

Blocks = dict[int, np.ndarray]
Receive = Callable[[int, int, int], None]


def simulate(
    plan: Redistribution, blocks: Mapping[int, np.ndarray], log: list[dict[int, tuple[int, int]]] | None = None
) -> Blocks:
    """The target blocks by device id, from the source blocks by device id.

    log: if given, one dict per step is appended: device -> (bytes, messages) that it received from others, counted
    with the usual algorithms for collectives and message by message for Permute and Exchange.
    """
    counts: list[dict[int, tuple[int, int]]] = [] if log is None else log

    def receive(device: int, size: int, messages: int) -> None:
        total, count = counts[-1].get(device, (0, 0))
        counts[-1][device] = (total + size, count + messages)

    for device in plan.source.ids:
        if blocks[device].shape != plan.source.block_shape(plan.shape):
            raise ValueError(f"simulate: device {device} holds a block of shape {blocks[device].shape}")
    held = {device: blocks[device] for device in plan.source.ids}
    for step, before, after in zip(plan.steps, plan.states, plan.states[1:]):
        counts.append({})
        if isinstance(step, Relabel):
            pass
        elif isinstance(step, Permute):
            held = _permuted(step, held, receive)
        elif isinstance(step, Exchange):
            held = _exchanged(step, held, receive)
        elif isinstance(step, AxisStep):
            held = _grouped(step, before, held, receive)
        held = {device: held[device] for device in after.ids}
    return held


def _permuted(step: Permute, held: Blocks, receive: Receive) -> Blocks:
    for a, b in step.pairs:
        if a != b:
            receive(b, held[a].nbytes, 1)
    return {b: held[a] for a, b in step.pairs}


def _exchanged(step: Exchange, held: Blocks, receive: Receive) -> Blocks:
    tables = {device: step.for_rank(device) for device in step.members()}
    posted: dict[Any, Any] = {}
    for device, table in tables.items():
        for transfer in table.sends:
            posted.setdefault((device, transfer.peer), []).append(held[device][transfer.box])
    result = {}
    for device, table in tables.items():
        if table.target_shape is None:
            continue
        dtype = next(iter(held.values())).dtype
        block = np.zeros(table.target_shape, dtype)
        for have, want in table.copies:
            block[want] = held[device][have]
        for transfer in table.recvs:
            message = posted[transfer.peer, device].pop(0)
            if message.shape != block[transfer.box].shape:
                raise ValueError(f"exchange: {device} expects {transfer}, {transfer.peer} sends {message.shape}")
            block[transfer.box] = message
            receive(device, message.nbytes, 1)
        result[device] = block
    left = {pair: len(messages) for pair, messages in posted.items() if messages}
    if left:
        raise ValueError(f"exchange: messages that nobody receives: {left}")
    return result


def _grouped(step: AxisStep, mesh: Placement, held: Blocks, receive: Receive) -> Blocks:
    axes: tuple[str, ...] = step.axes  # type: ignore[attr-defined]
    numbers = mesh.number(axes)
    others = mesh.number(tuple(name for name, _ in mesh.axes if name not in axes))
    result: Blocks = {}
    for group in np.unique(others):
        places = np.flatnonzero(others == group)
        places = places[np.argsort(numbers[places])]
        devices = [mesh.ids[at] for at in places]
        inputs = [held[device] for device in devices]
        for device, block, new in zip(devices, inputs, _group_step(step, inputs)):
            result[device] = new
            received = step.received(block.nbytes, len(devices))
            if received:
                receive(device, received, step.messages(len(devices)))
    return result


def _group_step(step: AxisStep, blocks: list[np.ndarray]) -> list[np.ndarray]:
    """What the members of one group hold afterwards; blocks and result in group order."""
    n = len(blocks)
    if isinstance(step, Slice):
        return [np.split(block, n, step.dim)[k] for k, block in enumerate(blocks)]
    if isinstance(step, AllGather):
        return [np.concatenate(blocks, step.dim)] * n
    if isinstance(step, AllToAll):
        pieces = [np.split(block, n, step.to_dim) for block in blocks]
        return [np.concatenate([piece[k] for piece in pieces], step.from_dim) for k in range(n)]
    if isinstance(step, AllReduce):
        return [sum(blocks[1:], blocks[0])] * n
    if isinstance(step, ReduceScatter):
        return np.split(sum(blocks[1:], blocks[0]), n, step.dim)
    if isinstance(step, Mask):
        return [block if k == 0 else np.zeros_like(block) for k, block in enumerate(blocks)]
    if isinstance(step, Widen):
        return [
            np.concatenate([block if j == k else np.zeros_like(block) for j in range(n)], step.dim)
            for k, block in enumerate(blocks)
        ]
    raise TypeError(f"simulate: unknown step {step}")
