"""How fast the machine is, for the cost model: what a step of a program takes, in seconds.

Apart from `cost`, which counts: here is what the counts are worth. The constants are defaults, or what `measured` found on
this machine and `save` kept; `use` sets them. All ranks must use the same ones, since they choose by them: `load` lets
rank 0 read the file and tells the others. Importing this reads nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from mpiarray import comm
from mpiarray.compiler.cost import Cost
from mpiarray.config import config


@dataclass(frozen=True)
class Machine:
    """What one rank can do, all of them at work.

    flops      floating point operations a second in matrix products
    memory     bytes a second that elementwise work reads and writes
    bandwidth  bytes a second that a rank receives
    latency    seconds from one message to the next
    """

    flops: float = 2e10
    memory: float = 5e9
    bandwidth: float = 1e9
    latency: float = 5e-6

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not (isinstance(value, (int, float)) and 0 < value < float("inf")):
                raise ValueError(f"Machine: {f.name} must be a positive number, got {value!r}")

    def seconds(self, cost: Cost) -> float:
        """What a program of that cost takes, one step after the other."""
        return (
            cost.flops / self.flops
            + cost.bytes_accessed / self.memory
            + cost.communication_bytes / self.bandwidth
            + cost.communication_messages * self.latency
        )


_used = [Machine()]


def machine() -> Machine:
    """The constants that programs are compiled by."""
    return _used[0]


def use(constants: Machine) -> None:
    """Compile by these constants from now on.  Every rank must give the same ones; no communication."""
    _used[0] = constants


def default_path() -> Path:
    """`MPIARRAY_MACHINE_FILE`, or a file in the user's cache folder."""
    if config.machine_file:
        return Path(config.machine_file)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "mpiarray" / "machine.json"


def save(constants: Machine, path: Path | None = None) -> Path:
    """Keep constants for later jobs.  Of one rank: no communication.  Raises OSError where it cannot be written."""
    path = default_path() if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(asdict(constants), indent=1) + "\n")
    draft.replace(path)  # at once: another job may be reading
    return path


def load(path: Path | None = None) -> Machine:
    """Use what is kept on this machine, or the defaults where nothing is.  All ranks must call: rank 0 reads.

    Raises ValueError on all ranks where the file holds something else.
    """
    found: Machine | str = _read(default_path() if path is None else path) if comm.rank() == 0 else ""
    found = comm.agree(comm.world_group(), found)[0]
    if isinstance(found, str):
        raise ValueError(found)
    use(found)
    return found


def _read(path: Path) -> Machine | str:
    """The constants in a file, or what is wrong with it."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Machine()
    except OSError as e:
        return f"machine.load: {path} cannot be read: {e}"
    try:
        return Machine(**json.loads(text))
    except (TypeError, ValueError) as e:
        return f"machine.load: {path} does not hold a machine's constants ({e}). Delete it, or measure again."


# -- measuring ------------------------------------------------------------------------------------------------


def measured(seconds: float = 0.5) -> Machine:
    """The constants of this machine, by short runs of about `seconds` in all.  All ranks must call; all get the same.

    The slowest rank counts.  A job of one rank sends nothing: it keeps the defaults for messages.
    """
    group, each = comm.world_group(), seconds / 4
    n = 384
    a = np.ones((n, n), np.float32)
    product = _time(lambda: a @ a, each)
    x, out = np.ones(1 << 21, np.float32), np.empty(1 << 21, np.float32)
    addition = _time(lambda: np.add(x, 1.0, out=out), each)
    flops, memory = 2.0 * n**3 / product, 2.0 * x.nbytes / addition
    bandwidth, latency = Machine.bandwidth, Machine.latency
    if group.size > 1:
        rounds = 2 * (group.size - 1).bit_length()
        small, large = np.ones(1, np.float32), np.ones(1 << 20, np.float32)
        latency = _time_together(lambda: comm.all_reduce(group, small, "sum"), each) / rounds
        moved = 2 * large.nbytes * (group.size - 1) / group.size
        spent = _time_together(lambda: comm.all_reduce(group, large, "sum"), each)
        bandwidth = moved / max(spent - rounds * latency, 0.1 * spent)
    every = comm.agree(group, (flops, memory, bandwidth, latency))
    flops, memory, bandwidth = (min(row[k] for row in every) for k in range(3))
    return Machine(flops, memory, bandwidth, max(row[3] for row in every))


def _time(f: Callable[[], object], seconds: float) -> float:
    """The best time of a call, in seconds."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        begun = time.perf_counter()
        f()
        now = time.perf_counter()
        best = min(best, now - begun)
        if now > end:
            return best


def _time_together(f: Callable[[], object], seconds: float) -> float:
    """The same for a collective: rank 0 says how often."""
    group = comm.world_group()
    first = _time(f, 0.0)
    count = comm.agree(group, max(3, min(1000, int(seconds / max(first, 1e-7)))))[0]
    return min(_time(f, 0.0) for _ in range(count))
