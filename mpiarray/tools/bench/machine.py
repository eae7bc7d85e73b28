"""What the machine gives, measured in a second: latency and bandwidth between ranks, memory, new memory, and matrix products.

All ranks measure at the same time, as programs load a machine; the figures are the slowest rank's.
"""

from __future__ import annotations

import mmap
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpiarray import comm

MB = 2**20


@dataclass(frozen=True)
class Machine:
    """latency: seconds of an empty message.  network, memory: bytes per second of a large message and of a large copy.
    page: seconds that the first touch of a new page costs.  flops: per second and rank, in a product of float32 matrices.
    """

    latency: float
    network: float
    memory: float
    page: float
    flops: float

    def text(self) -> str:
        """One line for people."""
        network = f"messages {self.latency * 1e6:.2f} us and {self.network / 1e9:.1f} GB/s, " if self.network else ""
        new = self.page * 32 * MB / mmap.PAGESIZE
        return (
            f"{network}copies {self.memory / 1e9:.1f} GB/s, first touch of a new page {self.page * 1e6:.2f} us "
            f"(32 MB: {new * 1e3:.1f} ms), matrix products {self.flops / 1e9:.0f} GFLOP/s; each rank, all at once"
        )


def machine(small: bool = False) -> Machine:
    """Measure; all ranks must call."""
    large = MB if small else 32 * MB
    latency = message = 0.0
    if comm.size() > 1:
        latency, message = _ping_pong(np.zeros(1, np.uint8), 200), _ping_pong(np.zeros(large, np.uint8), 3)
    copy, touch, product = _copy(large), _touch(large), _product(128 if small else 1024)
    told = comm.agree(comm.world_group(), (latency, message, copy, touch, product))
    latency, message, slowest_copy, slowest_touch, slowest_product = map(max, zip(*told))
    network = large / message if message else 0.0
    return Machine(latency, network, large / slowest_copy, slowest_touch, 1 / slowest_product)


def _ping_pong(block: np.ndarray, times: int) -> float:
    """Seconds of a message between the first and the last rank; 0 on the ranks between."""
    raw, last = comm.world().comm, comm.size() - 1
    comm.barrier(comm.world_group())
    if comm.rank() not in (0, last):
        return 0.0
    other, found = last - comm.rank(), []
    for _ in range(times + 2):
        start = time.perf_counter()
        if comm.rank() == 0:
            raw.Send(block, other)
            raw.Recv(block, other)
        else:
            raw.Recv(block, other)
            raw.Send(block, other)
        found.append((time.perf_counter() - start) / 2)
    return statistics.median(found[2:])


def _seconds(f: Callable[[], Any], times: int = 5) -> float:
    found = []
    for _ in range(times):
        comm.barrier(comm.world_group())
        start = time.perf_counter()
        f()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def _copy(nbytes: int) -> float:
    """Seconds."""
    a, b = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    return _seconds(lambda: np.copyto(b, a))


def _touch(nbytes: int) -> float:
    """Seconds for a page of memory that comes from the system, not from an allocator that kept it."""
    used = np.ones(nbytes, np.uint8)

    def new() -> None:
        with mmap.mmap(-1, nbytes) as memory:
            view = np.frombuffer(memory, np.uint8)
            view.fill(1)
            del view

    return max(0.0, _seconds(new) - _seconds(lambda: used.fill(1))) / (nbytes / mmap.PAGESIZE)


def _product(size: int) -> float:
    """Seconds of one operation."""
    a, b, out = (np.ones((size, size), np.float32) for _ in range(3))
    return _seconds(lambda: np.matmul(a, b, out=out), 3) / (2.0 * size**3)
