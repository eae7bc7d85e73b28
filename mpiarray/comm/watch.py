"""Who is in which collective: fingerprints that find ranks which have diverged, and a watchdog for those that wait.

MPIARRAY_CHECK=1: before every collective the members compare what they are about to do (running number, kind, dtype,
shape, parameters, the user's line) and, after it, the bits of a result that must be equal.  All members raise the same
RuntimeError that names who is where.

MPIARRAY_TIMEOUT=<seconds>: every rank notes what it is doing on a board, memory that the ranks of a node share.  A
thread on each rank looks at the board now and then, without calling MPI; when a collective takes too long, one rank of
the node prints where all of them are and ends the job.

The collectives call `run` only if `stats.active` or `config.check` says that anybody watches.
"""

from __future__ import annotations

import atexit
import faulthandler
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mpiarray.comm import datatypes, stats
from mpiarray.config import config

if TYPE_CHECKING:
    from mpiarray.comm.groups import Group

T = TypeVar("T")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = (os.path.dirname(os.path.dirname(np.__file__)) + os.sep, os.path.dirname(os.__file__) + os.sep)
_SHARED = "/dev/shm"
_ALL_BITS = 0xFFFFFFFFFFFFFFFF
_SLOT = 1024
_HEAD = struct.Struct("<qqqd")
_RUNS, _WAITS, _ENDED = 0, 1, 2
_GRACE = 0.5
_ABORT_SECONDS = 5.0
_STATUS = 124  # what timeout(1) exits with
_EQUAL_RESULTS = ("all_reduce", "all_gather", "broadcast")

_description: str | Callable[[], str] | None = None
_board: Board | None = None


def describe(text: str | Callable[[], str]) -> None:
    """Name the next collective of this rank for messages, e.g. 'psum(f32[4]{V:i})'; a callable is called if needed.

    Call it only when `wanted()`.
    """
    global _description
    _description = text


def wanted() -> bool:
    """Whether descriptions will be used: MPIARRAY_CHECK or MPIARRAY_TIMEOUT is on."""
    return config.check or bool(stats.active & stats.TIMEOUT)


def run(
    kind: str, group: Group, x: np.ndarray | None, params: tuple, body: Callable[[], T], *, nbytes: int | None = None
) -> T:
    """Do one collective (`body`) under the eyes of all observers that are on."""
    global _description
    given, _description = _description, None
    if group.comm is None:
        return body()
    whole = partial(_watched, kind, group, x, params, given, body) if wanted() else body
    if stats.active & (stats.COUNT | stats.RECORD):
        size = nbytes if nbytes is not None else 0 if x is None else x.nbytes
        stats.add(kind, group.size, size, stats.bytes_moved(kind, group.size, size))
        if stats.active & stats.RECORD and stats.recorder is not None:
            # around the comparison too: ranks wait for each other there
            return stats.recorder(kind, group, size, whole)
    return whole()


def _watched(kind: str, group: Group, x: np.ndarray | None, params: tuple, given: Any, body: Callable[[], T]) -> T:
    """Do one collective that others are told about, or that is compared between ranks."""
    group.number += 1
    title = given if isinstance(given, str) else _title(kind, x, params) if given is None else given()
    text = f"{title} at {call_site()}"
    with waiting(f"{text}, collective {group.number} of ranks {_ranks(group.members)}"):
        if config.check:
            _compare(group, text, _title(kind, x, params))
        result = body()
        if config.check and kind in _EQUAL_RESULTS and isinstance(result, np.ndarray):
            _compare_bits(group, text, result)
    return result


def _title(kind: str, x: np.ndarray | None, params: tuple) -> str:
    block = [] if x is None else [f"{x.dtype}{list(x.shape)}"]
    return f"{kind}({', '.join([*block, *map(str, params)])})"


def call_site(frame: FrameType | None = None) -> str:
    """'file.py:12' of the innermost line that belongs neither to this package nor to an installed library."""
    frame = frame or sys._getframe(1)
    outside: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_PACKAGE, "<frozen")):
            outside = outside or frame
            if not name.startswith(_LIBRARIES):
                outside = frame
                break
        frame = frame.f_back
    if outside is None:
        return "an unknown place"
    return f"{os.path.basename(outside.f_code.co_filename)}:{outside.f_lineno}"


def _ranks(members: tuple[int, ...]) -> str:
    """'0-7' or '0, 2, 4, 6'."""
    if len(members) > 2 and members == tuple(range(members[0], members[0] + len(members))):
        return f"{members[0]}-{members[-1]}"
    return ", ".join(map(str, members))


def _compare(group: Group, text: str, operation: str) -> None:
    """RuntimeError on all members unless all are about to do the same operation from the same line."""
    site = text.rpartition(" at ")[2]
    mark = f"{group.number}|{operation}|{site}"
    if all_equal(group.comm, int.from_bytes(blake2b(mark.encode(), digest_size=8).digest(), "little")):
        return
    told = group.comm.allgather((f"{text}, collective {group.number}", mark))
    raise RuntimeError(f"ranks have diverged: {_who_is_where(group, told)}")


def _who_is_where(group: Group, told: list[tuple[str, str]]) -> str:
    places: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    for rank, (text, mark) in zip(group.members, told, strict=True):
        places.setdefault(mark, []).append(rank)
        texts.setdefault(mark, text)
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {_ranks(tuple(ranks))} {'is' if len(ranks) == 1 else 'are'} at "
        f"{texts[mark]}"
        for mark, ranks in places.items()
    )


def _compare_bits(group: Group, text: str, result: np.ndarray) -> None:
    if result.dtype.kind not in "biu":  # the sign of a NaN depends on the order of the operands, and on nothing else
        result = np.where(result != result, np.zeros((), result.dtype), result)
    checksum = zlib.crc32(np.ascontiguousarray(result).reshape(-1).view(np.uint8).data)
    if not all_equal(group.comm, checksum):
        raise RuntimeError(f"{text}: the members of ranks {_ranks(group.members)} received different bits")


def all_equal(comm: Any, number: int) -> bool:
    """Whether all members gave the same unsigned 64-bit number: then the largest and the smallest are the same."""
    ends = np.array([number, number ^ _ALL_BITS], np.uint64)
    found = np.empty_like(ends)
    datatype, largest = datatypes.native("max", ends.dtype)  # type: ignore[misc]
    comm.Allreduce((ends, 2, datatype), (found, 2, datatype), largest)
    return int(found[0]) == int(found[1]) ^ _ALL_BITS


class waiting:
    """Context in which this rank may wait for others; `text` says for what.  Does nothing without a timeout."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> None:
        if _board is not None:
            _board.write(_WAITS, self.text)

    def __exit__(self, *error: object) -> None:
        if _board is not None:
            _board.write(_RUNS, self.text)


def start(mpi: ModuleType, comm: Any, abort: Callable[[int], None]) -> None:
    """Set up the watchdog if a timeout is set; collective over `comm`, called once when MPI starts."""
    global _board
    if config.timeout is None or comm.Get_size() == 1:
        return
    _board = Board(mpi, comm, config.timeout, abort)
    stats.set_bit(stats.TIMEOUT, True)
    threading.Thread(target=_board.guard, name="mpiarray-watchdog", daemon=True).start()
    atexit.register(_board.write, _ENDED, "")


def _shared_memory(node: Any, nbytes: int) -> mmap.mmap | None:
    """Memory that the ranks of `node` share, or None where they do not see each other's files; collective.

    A file that is unlinked at once, not an MPI window: windows need parts of MPI that are not set up everywhere.
    """
    descriptor, path = -1, ""
    if node.Get_rank() == 0:
        descriptor, path = tempfile.mkstemp(prefix="mpiarray-", dir=_SHARED if os.path.isdir(_SHARED) else None)
        os.ftruncate(descriptor, nbytes)
    path = node.bcast(path)
    if descriptor < 0 and os.path.exists(path):
        descriptor = os.open(path, os.O_RDWR)
    everyone = all(node.allgather(descriptor >= 0))
    if node.Get_rank() == 0:
        os.unlink(path)
    memory = mmap.mmap(descriptor, nbytes) if everyone else None
    if descriptor >= 0:
        os.close(descriptor)
    return memory


class Board:
    """What each rank of this node is doing: one slot of shared memory per rank, written by its owner alone.

    Slots are read without locks; a torn text can only spoil a message.
    """

    def __init__(self, mpi: ModuleType, comm: Any, timeout: float, abort: Callable[[int], None]) -> None:
        self.timeout = timeout
        self.abort = abort
        self.rank = comm.Get_rank()
        self.main = threading.main_thread().ident
        node = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.slot, self.size = node.Get_rank(), node.Get_size()
        memory = _shared_memory(node, _SLOT * self.size)
        if memory is None:  # each rank then watches itself only
            self.slot, self.size = 0, 1
            memory = mmap.mmap(-1, _SLOT)
        self.memory = memory
        self.write(_RUNS, "")
        node.Barrier()
        node.Free()

    def write(self, state: int, text: str) -> None:
        """Note in this rank's slot that it entered `state` now; `text` is the collective (the last one outside)."""
        data = text.encode()[: _SLOT - _HEAD.size]
        start = self.slot * _SLOT
        self.memory[start + _HEAD.size : start + _HEAD.size + len(data)] = data
        _HEAD.pack_into(self.memory, start, state, self.rank, len(data), time.monotonic())

    def read(self, slot: int) -> tuple[int, int, float, str]:
        """(state, world rank, seconds in that state, text) of one slot."""
        start = slot * _SLOT
        state, rank, length, since = _HEAD.unpack_from(self.memory, start)
        text = bytes(self.memory[start + _HEAD.size : start + _HEAD.size + length]).decode(errors="replace")
        return state, rank, time.monotonic() - since, text

    def late(self) -> list[int]:
        """Slots of the ranks that have waited too long."""
        found = []
        for slot in range(self.size):
            state, _, seconds, _ = self.read(slot)
            if state == _WAITS and seconds > self.timeout:
                found.append(slot)
        return found

    def guard(self) -> None:
        """Body of the watchdog thread.  It calls no MPI except to abort."""
        pause = min(max(self.timeout / 4, 0.05), 1.0)
        while True:
            time.sleep(pause)
            late = self.late()
            if self.slot in late:
                time.sleep(_GRACE)  # the ranks that do not wait now write where they are
                late = self.late()
                if late and late[0] != self.slot:
                    time.sleep(4 * _GRACE)  # the first one of the node reports and aborts; only if it cannot, this one
                    late = self.late()
                if self.slot in late:
                    self.give_up()
            elif late:
                self.write_place()

    def write_place(self) -> None:
        """Note where the main thread of this rank is, for the report of those that wait for it."""
        state, _, _, text = self.read(self.slot)
        frame = sys._current_frames().get(self.main or 0)
        if state == _RUNS and frame is not None and " now at " not in text:
            start, place = self.slot * _SLOT, f" now at {call_site(frame)};"
            *head, since = _HEAD.unpack_from(self.memory, start)
            data = f"{place} {text}".encode()[: _SLOT - _HEAD.size]
            self.memory[start + _HEAD.size : start + _HEAD.size + len(data)] = data
            _HEAD.pack_into(self.memory, start, head[0], head[1], len(data), since)

    def report(self) -> str:
        """Who waits where, one line per rank of this node."""
        lines = [f"a collective did not finish within MPIARRAY_TIMEOUT={self.timeout:g} seconds; the job ends\n"]
        for slot in range(self.size):
            state, rank, seconds, text = self.read(slot)
            if state == _WAITS:
                line = f"has waited {seconds:.1f} s in {text}"
            elif state == _ENDED:
                line = "has left the program"
            else:
                place, _, last = text.rpartition(";") if " now at " in text else ("", "", text)
                after = f"after {last.strip()}" if last.strip() else "before its first collective"
                line = f"is in no collective,{place or ' at an unknown place,'} for {seconds:.1f} s, {after}"
            lines.append(f"  rank {rank} {line}\n")
        return "".join(f"[rank {self.rank}] {line}" for line in lines)

    def give_up(self) -> None:
        """Tell who waits where and end the job.  If MPI cannot, a C thread that needs no lock ends this process."""
        stream = sys.__stderr__ or sys.stderr
        stream.write(self.report())
        stream.flush()
        faulthandler.dump_traceback_later(_ABORT_SECONDS, exit=True, file=stream)
        self.abort(_STATUS)
        os._exit(_STATUS)
