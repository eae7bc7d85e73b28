"""One running job: starts the MPI launcher, shows the ranks' output line by line, ends all, gives the exit status.

Apart from `run`, which reads options and builds the command. A job knows nothing of MPI families: it sees a process
(the MPI launcher) and the pipes that `rank.py` writes into (one per rank and stream, and one for reports). A rank's
failure, a time limit, ctrl-C and a closed terminal all lead to the same end: the launcher is told to stop, and what
still runs after a grace period is killed, found by the job's folder in its environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from mpiarray.tools.rank import DUMP_SIGNAL

STDOUT_MODES = ("all", "root", "tag")
GRACE = (
    3.0  # seconds that the others get to end by themselves when a rank has failed, and that they get to obey SIGTERM
)
DRAIN = 1.0  # seconds to wait for output of processes that outlive their rank
DUMP_TIME = 1.0  # seconds for the ranks to write where they are
TIMED_OUT = 124  # as timeout(1)
LONG_LINE = 1 << 20
PR_SET_PDEATHSIG = 1


class Stream:
    """Output of one rank on its way to the user: bytes in, whole lines (with the rank's tag) out."""

    def __init__(self, descriptor: int, target: int, tag: bytes = b"", whole_lines: bool = True) -> None:
        self.descriptor = descriptor
        self.target = target
        self.tag = tag
        self.whole_lines = whole_lines
        self.pending = b""

    def read(self) -> bytes | None:
        """What is there now; b"" at the end, None when there is nothing yet."""
        try:
            return os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return None

    def lines(self, data: bytes) -> bytes:
        """Take `data` in and return what can be shown: whole lines, or everything where nothing can be mixed up."""
        data = self.pending + data
        # a carriage return ends a line too: that is how progress bars write
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not self.whole_lines or (cut == 0 and len(data) > LONG_LINE):
            cut = len(data)
        self.pending = data[cut:]
        return self.tagged(data[:cut])

    def rest(self) -> bytes:
        """The last line, which had no end."""
        data, self.pending = self.pending, b""
        return self.tagged(data + b"\n") if data else b""

    def tagged(self, data: bytes) -> bytes:
        """`data` with the tag before each line."""
        if not self.tag or not data:
            return data
        return b"".join(self.tag + line for line in data.splitlines(keepends=True))


def _die_with_parent() -> None:
    # in the child, before exec: a launcher that is killed outright must not leave its job behind
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Job:
    """A job from start to end; `run()` returns its exit status.

    command: the MPI launcher's whole command line. environ: the job's environment. ranks: how many. stdout: "all" shows
    every rank's lines, "root" rank 0's alone, "tag" every rank's with `[rank] ` before each; stderr is always shown.
    timeout: seconds after which the job is ended with status 124, each rank having said where it was. own_streams:
    a single rank that writes to the terminal itself.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        ranks: int,
        stdout: str = "all",
        timeout: float | None = None,
        own_streams: bool = False,
    ) -> None:
        self.command = list(command)
        self.environ = dict(environ)
        self.ranks = ranks
        self.stdout = stdout
        self.timeout = timeout
        self.own_streams = own_streams
        self.pids: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.status: int | None = None  # set by the first thing that decides how the job ends
        self.stop_at: float | None = None  # when to tell the launcher to stop
        self.kill_at: float | None = None  # when to kill what did not obey
        self.streams: list[Stream] = []
        self.errors: dict[int, Stream] = {}  # each rank's stderr
        self.reports = -1
        self.report_text = b""
        self.remarks: list[str] = []  # our own words, said after the output that came before them
        self.folder = ""
        self.process: subprocess.Popen[bytes] | None = None

    # -------------------------------------------------------- life

    def run(self) -> int:
        """Start the job, see it through and return the exit status."""
        self.folder = tempfile.mkdtemp(prefix="mpiarray-")
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        old_wakeup = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
        old = {number: signal.signal(number, self._on_signal) for number in caught}
        try:
            self._make_pipes()
            self._start()
            self._loop(wake_read)
            return self._final_status()
        finally:
            self._end_all()
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_wakeup)
            for stream in self.streams:
                os.close(stream.descriptor)
            for descriptor in (wake_read, wake_write, self.reports):
                os.close(descriptor)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _make_pipes(self) -> None:
        path = os.path.join(self.folder, "reports")
        os.mkfifo(path)
        self.reports = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # write end kept: it never comes to its end
        if self.own_streams:
            return
        for rank in range(self.ranks):
            tag = f"[{rank}] ".encode() if self.stdout == "tag" else b""
            if rank == 0 or self.stdout != "root":
                self._add_pipe(f"out.{rank}", 1, tag, whole_lines=self.stdout != "root")
            self.errors[rank] = self._add_pipe(f"err.{rank}", 2, tag, whole_lines=self.ranks > 1)

    def _add_pipe(self, name: str, target: int, tag: bytes, whole_lines: bool) -> Stream:
        path = os.path.join(self.folder, name)
        os.mkfifo(path)
        self.streams.append(Stream(os.open(path, os.O_RDONLY | os.O_NONBLOCK), target, tag, whole_lines))
        return self.streams[-1]

    def _start(self) -> None:
        shown = "own" if self.own_streams else self.stdout
        environ = self.environ | {"MPIARRAY_RUN_DIR": self.folder, "MPIARRAY_RUN_STDOUT": shown}
        pipe = None if self.own_streams else subprocess.PIPE
        # a terminal stays a terminal only for a single rank: MPI launchers read ahead from it
        stdin = None if self.own_streams or not sys.stdin or not sys.stdin.isatty() else subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command, env=environ, stdin=stdin, stdout=pipe, stderr=pipe, preexec_fn=_die_with_parent
        )
        for output, target in ((self.process.stdout, 1), (self.process.stderr, 2)):
            if output:
                self._add_launcher_stream(output, target)

    def _add_launcher_stream(self, output: IO[bytes], target: int) -> None:
        descriptor = os.dup(output.fileno())
        output.close()
        os.set_blocking(descriptor, False)
        self.streams.append(LauncherStream(self, descriptor, target))

    def _loop(self, wake: int) -> None:
        assert self.process is not None, "the loop runs after the start"
        selector = selectors.DefaultSelector()
        selector.register(wake, selectors.EVENT_READ)
        selector.register(self.reports, selectors.EVENT_READ)
        for stream in self.streams:
            selector.register(stream.descriptor, selectors.EVENT_READ, stream)
        limit = None if self.timeout is None else time.monotonic() + self.timeout
        with selector:
            while self.process.poll() is None:
                self._pump(selector, 0.2)
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                now = time.monotonic()
                if limit is not None and now >= limit and self.status is None:
                    self._time_out()
                self._keep_time(now)
            self._drain(selector)

    def _pump(self, selector: selectors.BaseSelector, wait: float) -> bool:
        """Handle what is ready; True when some output came."""
        ready = [key for key, _ in selector.select(wait)]
        self._read_reports()  # first: a report explains what the launcher is about to say
        came = False
        for key in ready:
            stream = key.data
            if stream is None:
                continue
            data = stream.read()
            if data == b"":
                self._show(stream.target, stream.rest())
                selector.unregister(stream.descriptor)
            elif data:
                came = True
                self._show(stream.target, stream.lines(data))
        self._show_remarks()
        return came

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Show what the ranks wrote before they ended; wait a little for processes that they left behind."""
        until = time.monotonic() + DRAIN
        silent = 0
        while silent < 2 and time.monotonic() < until:
            open_streams = [key for key in selector.get_map().values() if key.data is not None]
            if not open_streams:
                break
            silent = 0 if self._pump(selector, 0.05) else silent + 1
        self._pump(selector, 0.0)
        for stream in self.streams:
            self._show(stream.target, stream.rest())

    # -------------------------------------------------------- what happens

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGCHLD:
            return  # it only ends the waiting
        if self.own_streams and number == signal.SIGINT and self.process:
            # a single rank shows where it was; the terminal has told it already, `kill -INT` has not
            if not sys.stdin.isatty():
                self.process.send_signal(number)
            self._decide(128 + number, stop_after=GRACE)
            return
        self._decide(128 + number, stop_after=0.0)

    def _decide(self, status: int, stop_after: float) -> None:
        """The first decision gives the exit status; each can only make the end come sooner."""
        if self.status is None:
            self.status = status
        at = time.monotonic() + stop_after
        self.stop_at = at if self.stop_at is None else min(self.stop_at, at)

    def _read_reports(self) -> None:
        while True:
            try:
                data = os.read(self.reports, 1 << 16)
            except BlockingIOError:
                break
            *lines, self.report_text = (self.report_text + data).split(b"\n")
            for line in lines:
                kind, rank, number = line.decode().split()
                self._report(kind, int(rank), int(number))

    def _report(self, kind: str, rank: int, number: int) -> None:
        if kind == "start":
            self.pids[rank] = number
        elif kind == "end" and rank not in self.ended:
            self.ended[rank] = number
            if number != 0 and self.status is None:
                if self.ranks > 1:
                    self._say(f"rank {rank} ended with exit status {number}; ending the job")
                self._decide(number, stop_after=GRACE)

    def _time_out(self) -> None:
        running = sorted(set(self.pids) - set(self.ended))
        self._say(
            f"time limit of {self.timeout:g} s reached; ranks still running: {_ranges(running) or 'none started'}"
        )
        self._decide(TIMED_OUT, stop_after=DUMP_TIME)
        self._show_remarks()
        for rank, stream in self.errors.items():  # from here on it matters whose line it is
            stream.tag = stream.tag or f"[{rank}] ".encode()
        for rank in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pids[rank], DUMP_SIGNAL)

    def _keep_time(self, now: float) -> None:
        assert self.process is not None, "time is kept after the start"
        if self.stop_at is not None and now >= self.stop_at and self.kill_at is None:
            self.process.terminate()
            self.kill_at = now + GRACE
        if self.kill_at is not None and now >= self.kill_at:
            self._kill_members()
            self.process.kill()

    # -------------------------------------------------------- the end

    def _final_status(self) -> int:
        assert self.process is not None, "there is a status after the start"
        code = self.process.returncode
        own = code if code >= 0 else 128 - code
        return self.status if self.status is not None else own

    def _end_all(self) -> None:
        if self.process is None:
            return
        failed = self.process.poll() != 0 or self.status is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if failed:
            self._kill_members()

    def _kill_members(self) -> None:
        """Kill every process that has this job's folder in its environment, except the launcher and this one."""
        mark = f"MPIARRAY_RUN_DIR={self.folder}".encode()
        keep = {os.getpid(), self.process.pid if self.process else -1}
        for entry in Path("/proc").glob("[0-9]*"):
            if int(entry.name) in keep:
                continue
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)

    # -------------------------------------------------------- output

    def _show(self, target: int, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(target, data) :]
        except BrokenPipeError:  # the reader has gone, as in `... | head`
            self._decide(128 + signal.SIGPIPE, stop_after=0.0)

    def _say(self, text: str) -> None:
        self.remarks.append(text)

    def _show_remarks(self) -> None:
        for remark in self.remarks:
            self._show(2, f"mpiarray run: {remark}\n".encode())
        self.remarks.clear()


class LauncherStream(Stream):
    """What the MPI launcher itself writes: shown, unless the job's end is decided and explained already."""

    def __init__(self, job: Job, descriptor: int, target: int) -> None:
        super().__init__(descriptor, target)
        self.job = job

    def tagged(self, data: bytes) -> bytes:
        """Nothing once the end is explained: the banners of MPI launchers would bury the rank's own message."""
        explained = self.job.status is not None and len(self.job.pids) == self.job.ranks
        return b"" if explained else data


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
