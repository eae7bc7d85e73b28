"""What runs first in each rank of `mpiarray run`: ties the rank to its launcher, then becomes the user's script.

A program of its own, started by path and standing on the standard library only, so that it works, and says what is
wrong, when the package or MPI does not. The launcher's folder (MPIARRAY_RUN_DIR) has one named pipe per rank and stream
and one for reports: whole lines reach the launcher in order, and nothing is lost in the MPI launcher's own forwarding
when a job is aborted. On a machine that cannot see the folder, the rank keeps the streams that it was given.

Reports are lines "KIND RANK NUMBER": `start` with the process id, `end` with the exit status.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import signal
import sys
import types

RANK_NAMES = ("MPIARRAY_RUN_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
DUMP_SIGNAL = signal.SIGUSR2


def report(folder: str, kind: str, rank: int, number: int) -> None:
    """Tell the launcher; silent when there is none any more."""
    with contextlib.suppress(OSError):
        handle = os.open(os.path.join(folder, "reports"), os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, f"{kind} {rank} {number}\n".encode())
        os.close(handle)


def redirect(folder: str, rank: int) -> None:
    """Put the rank's output streams on the launcher's pipes; a stream without a pipe goes nowhere."""
    for descriptor, name in ((1, "out"), (2, "err")):
        path = os.path.join(folder, f"{name}.{rank}")
        try:
            handle = os.open(path if os.path.exists(path) else os.devnull, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader
            continue
        os.set_blocking(handle, True)
        os.dup2(handle, descriptor)
        os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def bind(text: str, rank: int) -> None:
    """Keep this process on the CPUs that the launcher chose: `text` is "0,1;2,3", one list for each rank."""
    cpus = {int(cpu) for cpu in text.split(";")[rank].split(",")}
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)


def run_script(script: str) -> None:
    """Run the file as `python SCRIPT` does: as the module __main__, with its folder first on the path."""
    if os.path.isdir(script) or script.endswith((".zip", ".pyz")):
        runpy.run_path(script, run_name="__main__")
        return
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def set_path(first: str) -> None:
    """Put `first` where Python put this file's folder, and see that the launcher's own package can be imported."""
    sys.path[0] = first
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if root not in (os.path.abspath(entry) for entry in sys.path):
        sys.path.insert(1, root)


def user_part(error: BaseException) -> types.TracebackType | None:
    """The traceback from the user's script on, without the frames of this file and of runpy."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def exit_status(code: object) -> int:
    """The process's exit status for SystemExit(code); a text goes to stderr and means 1, as in Python."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def run_user(arguments: list[str]) -> int:
    """Run the script or `-m` module of `arguments`; return the exit status. An uncaught exception is shown as usual."""
    try:
        if arguments[0] == "-m":
            sys.argv[:] = arguments[1:]
            set_path(os.getcwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = arguments
            set_path(os.path.dirname(os.path.abspath(arguments[0])))
            run_script(arguments[0])
    except SystemExit as error:
        return exit_status(error.code)
    except BaseException as error:
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
        tell_end(status)  # before the hook: the package's own ends the process inside it
        error.__traceback__ = user_part(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return status
    return 0


def tell_end(status: int) -> None:
    """Report the exit status of this rank, once the output is on its way."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    folder, rank = os.environ.get("MPIARRAY_RUN_DIR"), _rank()
    if folder and rank is not None:
        report(folder, "end", rank, status)


def _rank() -> int | None:
    return next((int(os.environ[name]) for name in RANK_NAMES if os.environ.get(name, "").isdigit()), None)


def main(arguments: list[str]) -> int:
    """Prepare the rank, run the user's program, report and return its exit status."""
    rank = _rank()
    folder = os.environ.get("MPIARRAY_RUN_DIR")
    if rank is not None and folder and os.path.isdir(folder):
        if os.environ.get("MPIARRAY_RUN_STDOUT") != "own":
            redirect(folder, rank)
        report(folder, "start", rank, os.getpid())
    elif rank and os.environ.get("MPIARRAY_RUN_STDOUT") == "root":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if rank is not None and (text := os.environ.pop("MPIARRAY_RUN_BIND", "")):
        bind(text, rank)
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True, chain=False)
    status = run_user(arguments)
    tell_end(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
