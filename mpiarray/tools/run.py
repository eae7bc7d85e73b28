"""`python -m mpiarray run -n 8 SCRIPT [ARGS]`: a script on local MPI ranks, with everything set that such a run needs.

Which MPI, which variables, how many BLAS threads and which cores is decided here from what `environment` finds; `job`
starts it and sees it through, and `rank.py` is what each rank begins with. For several machines use the batch system's
own starter (launch/slurm.sbatch, launch/pbs.sh).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from mpiarray.tools import environment, rank
from mpiarray.tools.job import STDOUT_MODES, Job

DESCRIPTION = "Run SCRIPT on N local MPI ranks: each rank runs the whole script and owns one device."
EPILOG = """\
exit status: the failing rank's own; 124 after --timeout; 130 after ctrl-C; 2 for wrong options.
MPIARRAY_MPI (a family, an mpirun, or the folder that has bin/mpirun) chooses the MPI when --mpi does not.
"""


def parser() -> argparse.ArgumentParser:
    """The options of `run`."""
    result = argparse.ArgumentParser(
        prog="python -m mpiarray run",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = result.add_argument
    add("-n", "--ranks", type=_positive, required=True, metavar="N", help="how many ranks")
    add("--stdout", choices=STDOUT_MODES, default="all", help="whose output is shown: all ranks', rank 0's, or tagged")
    add("--mpi", choices=("auto", *environment.FAMILIES), default="auto", help="which MPI (default: what suits N)")
    add("--bind", choices=("auto", "on", "off"), default="auto", help="keep each rank on cores of its own")
    add("--threads", type=_positive, metavar="N", help="BLAS threads for each rank (default: cores / ranks)")
    add("--timeout", type=_seconds, metavar="S", help="end the job after S seconds, saying where each rank is")
    add("--dry-run", action="store_true", help="show the command and the variables, and start nothing")
    add("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, as python -m does")
    add("script", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS]", help="the script and its arguments")
    return result


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def program(options: argparse.Namespace) -> list[str]:
    """What each rank runs: [SCRIPT, ARGS...] or ["-m", MODULE, ARGS...]. Raises ValueError when it cannot run."""
    rest: list[str] = options.script[1:] if options.script[:1] == ["--"] else options.script
    if options.module is not None:
        if not options.module:
            raise ValueError("-m: no module given")
        return ["-m", *options.module]
    if not rest:
        raise ValueError("no script given: python -m mpiarray run -n 8 SCRIPT [ARGS]")
    if not os.path.exists(rest[0]):
        raise ValueError(f"no file {rest[0]!r} (to run a module: -m MODULE)")
    return rest


def binding(choice: str, ranks: int) -> str:
    """The CPUs of each rank as rank.py reads them ("0,1;2,3"), or "" for no binding. ValueError when "on" cannot be."""
    cores = environment.cores()
    possible = hasattr(os, "sched_setaffinity") and len(cores) >= ranks
    if choice == "on" and not possible:
        raise ValueError(f"--bind on: {ranks} ranks cannot have a core each, this job may use {len(cores)}")
    if choice == "off" or not possible:
        return ""
    sets = (environment.cpus_of_rank(number, ranks, cores) for number in range(ranks))
    return ";".join(",".join(map(str, sorted(cpus))) for cpus in sets)


def launcher_command(mpi: environment.Mpi, ranks: int) -> list[str]:
    """The MPI launcher's part of the command. Binding is rank.py's: one way for every MPI, also in containers."""
    command = [mpi.launcher, "-n", str(ranks)]
    in_batch_job = any(name in os.environ for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"))
    if mpi.family == "openmpi":
        command += ["--bind-to", "none"]
        command += ["--host", f"localhost:{ranks}"] if in_batch_job else []
    elif in_batch_job:
        command += ["-launcher", "fork", "-hosts", "localhost"]
    return command


def build(options: argparse.Namespace) -> Job:
    """The job that the options ask for. Raises ValueError or MpiNotFound with a text for the user."""
    arguments = program(options)
    ranks, cores = options.ranks, len(environment.cores())
    each = [sys.executable, rank.__file__, *arguments]
    try:
        mpi = environment.choose(ranks, cores, options.mpi)
    except environment.MpiNotFound:
        if ranks > 1 or options.mpi != "auto":
            raise
        mpi = None  # one rank may get by without: only a script that starts MPI will complain
    wrong = environment.mismatch(mpi) if mpi and ranks > 1 else None
    if wrong:
        raise ValueError(wrong)
    variables = environment.job_environment(mpi, ranks, cores, options.threads)
    if cpus := binding(options.bind, ranks):
        variables["MPIARRAY_RUN_BIND"] = cpus
    if ranks == 1:
        variables["MPIARRAY_RUN_RANK"] = "0"
        return Job(each, variables, 1, options.stdout, options.timeout, own_streams=options.stdout != "tag")
    assert mpi is not None, "several ranks have an MPI"
    return Job([*launcher_command(mpi, ranks), *each], variables, ranks, options.stdout, options.timeout)


def explain(job: Job) -> str:
    """The variables that differ from the caller's and the command, as a shell would take them."""
    changed = {k: v for k, v in sorted(job.environ.items()) if os.environ.get(k) != v}
    return shlex.join(["env", *(f"{k}={v}" for k, v in changed.items()), *job.command])


def main(arguments: Sequence[str]) -> int:
    """Run a job; return its exit status."""
    options = parser().parse_args(arguments)
    try:
        job = build(options)
    except (ValueError, environment.MpiNotFound) as error:
        print(f"mpiarray run: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        print(explain(job))
        return 0
    return job.run()
