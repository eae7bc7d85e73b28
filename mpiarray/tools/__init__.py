"""The commands of `python -m mpiarray`: each module here with a `main(arguments) -> exit status` is one.

Kept apart from the library: nothing in the package imports the tools, and the tools start no MPI in their own
process unless they were started by an MPI launcher themselves.
"""

from collections.abc import Callable, Sequence

from mpiarray.tools import bench, doctor, run

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "run": (run.main, "run a script on local MPI ranks"),
    "doctor": (doctor.main, "say whether MPI works here, and what to do if it does not"),
    "bench": (bench.main, "time this library beside hand-written numpy and MPI"),
}


def usage() -> str:
    """The text that tells which commands there are."""
    lines = ["usage: python -m mpiarray COMMAND ...", ""]
    lines += [f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join([*lines, "", "python -m mpiarray COMMAND --help tells the options of one."])


def main(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name; return its exit status (2: no such command)."""
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return COMMANDS[name][0](arguments[1:])
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name:
        print(f"python -m mpiarray: no command {name!r}", flush=True)
    print(usage())
    return 2
