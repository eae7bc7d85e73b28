"""`jax.profiler`: one file that shows, for all ranks on one line of time, what ran when, and who waited for whom.

    with jax.profiler.trace("trace.json"):
        step(params, batch)

The file is in Chrome's trace format: open it with https://ui.perfetto.dev or chrome://tracing.  Each rank is a process in it.
Within the call of a jitted function are its steps, each with types, flops and bytes; eager operations are steps of their own;
within a step that communicates is its collective, in two parts: `wait`, until the last member of the group has come, and
`transfer`.  Clocks of ranks are compared at the start and the end of a trace.

Apart from a trace nothing is measured: programs are prepared again, with steps that are timed, when a trace starts, and the
former ones are back when it ends.  Tracing adds about a microsecond to each step.  Functions that were compiled ahead of time
(`lower().compile()`) show their collectives alone.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, TypeVar

from mpiarray import comm
from mpiarray.comm import timeline
from mpiarray.comm.timeline import Event, Meeting, Recording
from mpiarray.compiler import observe

__all__ = ["StepTraceAnnotation", "TraceAnnotation", "annotate_function", "start_trace", "stop_trace", "trace"]

F = TypeVar("F", bound=Callable[..., Any])

MAX_EVENTS = 500_000
_NAME = "perfetto_trace.json.gz"
_TEXT = 2**19  # characters of JSON that a rank hands on at once


class _State:
    """The trace that is being recorded, if any: where it goes, and rank 0's file."""

    recording: Recording | None = None
    path: str = ""
    file: IO[bytes] | None = None


_state = _State()


def start_trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: Any = None,
    *,
    max_events: int = MAX_EVENTS,
) -> None:
    """Start to record a trace.  All ranks must call it, as they do everything else.

    log_dir: the file, if it ends in `.json` or `.json.gz`; else a folder, in which `perfetto_trace.json.gz` is made.  Rank 0
        writes it.  What else JAX can be asked for (links, options of XLA's profiler) is accepted and ignored.
    max_events: each rank keeps so many events; what happens later is counted, and not shown.

    Raises RuntimeError where a trace is being recorded, ValueError for `max_events` below 1, OSError where rank 0 cannot
    write the file (RuntimeError on the other ranks).
    """
    if _state.recording is not None:
        raise RuntimeError(
            "jax.profiler.start_trace: Profile has already been started. Only one trace may be recorded at a time."
        )
    if max_events < 1:
        raise ValueError(f"jax.profiler.start_trace: max_events must be at least 1, got {max_events}")
    path, problem = os.fspath(log_dir), None
    if not path.endswith((".json", ".json.gz")):
        path = os.path.join(path, _NAME)
    if comm.rank() == 0:
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            _state.file = _opened(path)
        except OSError as error:
            problem = error
    comm.raise_together(comm.world_group(), problem)
    _state.path = path
    observe.switch(True)
    _state.recording = timeline.begin(max_events)


def _opened(path: str) -> IO[bytes]:
    return gzip.open(path, "wb") if path.endswith(".gz") else open(path, "wb")  # type: ignore[return-value]


def stop_trace() -> None:
    """End the trace and write its file; all ranks must call.  RuntimeError where none is being recorded."""
    recording, file = _state.recording, _state.file
    if recording is None:
        raise RuntimeError("jax.profiler.stop_trace: No profile started: call jax.profiler.start_trace first.")
    timeline.end(recording)
    observe.switch(False)
    _state.recording = _state.file = None
    met = timeline.meetings(recording)
    zero = comm.agree(comm.world_group(), recording.began[0])[0]
    problem: OSError | None = None
    try:
        for text in timeline.told_to_root(_texts(recording, met, zero)):
            if file is not None and problem is None:
                try:
                    file.write(text)
                except OSError as error:  # the others still send: take what they have, then say it on all ranks
                    problem = error
        if file is not None and problem is None:
            file.write(json.dumps({"ph": "M", "name": "trace_end", "pid": 0, "args": {}}).encode() + b"\n]}\n")
    finally:
        if file is not None:
            file.close()
    comm.raise_together(comm.world_group(), problem)


@contextmanager
def trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: Any = None,
    *,
    max_events: int = MAX_EVENTS,
) -> Iterator[None]:
    """Record a trace of what runs inside the block: see `start_trace`.

    An exception that leaves the block ends the trace without a file: other ranks may not have met it.
    """
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options, max_events=max_events)
    try:
        yield
    except BaseException:
        _drop()
        raise
    stop_trace()


def _drop() -> None:
    """Forget the trace, without a word to other ranks."""
    timeline.forget()
    observe.switch(False)
    if _state.file is not None:
        _state.file.close()
        os.unlink(_state.path)
    _state.recording = _state.file = None


class TraceAnnotation:
    """A name for a piece of the user's program: `with jax.profiler.TraceAnnotation("load", file=name): ...`.

    It is shown around what runs inside, on the rank and the thread that runs it, with the keywords as its facts.  Outside a
    trace it does nothing.
    """

    def __init__(self, name: str, **facts: Any):
        self.name, self.facts = name, facts
        self._start = 0

    def __enter__(self) -> TraceAnnotation:
        self._start = timeline.now() if timeline.active is not None else 0
        return self

    def __exit__(self, *error: object) -> None:
        recording = timeline.active
        if recording is not None and self._start:
            main = threading.current_thread() is threading.main_thread()
            thread = 0 if main else threading.get_native_id()
            recording.add(Event(self._start, timeline.now(), self.name, "annotation", thread, self.facts))


class StepTraceAnnotation(TraceAnnotation):
    """One step of training: `with jax.profiler.StepTraceAnnotation("train", step_num=k): ...`."""

    def __init__(self, name: str, **facts: Any):
        number = facts.get("step_num")
        super().__init__(name if number is None else f"{name} {number}", **facts)


def annotate_function(func: F, name: str | None = None, **facts: Any) -> F:
    """A function whose calls are shown in traces, under its own name or the one that is given."""
    shown = str(name or getattr(func, "__qualname__", type(func).__name__))

    @functools.wraps(func)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(shown, **facts):
            return func(*args, **kwargs)

    return annotated  # type: ignore[return-value]


# -- the file -------------------------------------------------------------------------------------------------------------


def _texts(recording: Recording, met: list[Meeting | None], zero: int) -> Iterator[bytes]:
    """This rank's part of the file, in pieces; times are counted from `zero` of rank 0's clock."""
    rank = comm.rank()
    if rank == 0:
        yield b'{"displayTimeUnit": "ns", "traceEvents": [\n'
    facts = {
        "name": f"rank {rank} on {platform.node()}", "pid of the system": os.getpid(), "events dropped": recording.dropped,
        "clock ahead of rank 0, ns": recording.began[1], "at the end": recording.ended[1],
    }  # fmt: skip
    pieces = [
        json.dumps({"ph": "M", "name": "process_name", "pid": rank, "args": facts}),
        json.dumps({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}),
    ]
    size = 0
    written: dict[int, str] = {}  # the facts of events of one step, as JSON
    for event, meeting in zip(recording.events, met):
        line = _lines(event, meeting, recording, rank, zero, written)
        pieces.append(line)
        size += len(line)
        if size >= _TEXT:
            yield _joined(pieces)
            pieces, size = [], 0
    if pieces:
        yield _joined(pieces)


def _joined(lines: list[str]) -> bytes:
    return (",\n".join(lines) + ",\n").encode()


def _lines(
    event: Event, meeting: Meeting | None, recording: Recording, rank: int, zero: int, written: dict[int, str]
) -> str:
    """An event as JSON; a collective is three: itself, its wait and its transfer."""
    start, end = recording.common(event.start) - zero, recording.common(event.end) - zero
    facts = written.get(id(event.facts))
    if facts is None:
        facts = json.dumps(event.facts, default=str)[1:-1]
        if event.category == "step":  # the only facts that many events share, and that live as long as the recording
            written[id(event.facts)] = facts
    if meeting is None:
        return _line(event.name, event.category, start, end, rank, event.thread, facts)
    wait = min(meeting.wait, end - start)
    more = f'"wait us": {wait / 1e3}, "transfer us": {(end - start - wait) / 1e3}, "skew us": {meeting.skew / 1e3}'
    lines = [_line(event.name, event.category, start, end, rank, event.thread, f"{facts}, {more}")]
    if wait:
        lines.append(_line("wait", "wait", start, start + wait, rank, event.thread, ""))
    if start + wait < end:
        lines.append(_line("transfer", "transfer", start + wait, end, rank, event.thread, ""))
    return ",\n".join(lines)


def _line(name: str, category: str, start: int, end: int, rank: int, thread: int, facts: str) -> str:
    return (
        f'{{"ph": "X", "name": {json.dumps(name)}, "cat": "{category}", "ts": {start / 1e3:.3f}, "dur": {(end - start) / 1e3:.3f}, '
        f'"pid": {rank}, "tid": {thread}, "args": {{{facts}}}}}'
    )
