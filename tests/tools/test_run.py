"""`python -m mpiarray run`: whose output is shown, how a job ends, what wrong options get. Scripts use mpi4py only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpiarray.tools import environment
from tests.failures.jobs import QUICK, ROOT, members

pytestmark = pytest.mark.jobs
LIMIT = 60
MARK = "RUN_TEST_MARK"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mpiarray", "run", *arguments]


def environ(**extra: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}  # the launcher's to care for
    return environment.without_job(own) | {"PYTHONPATH": str(ROOT)} | extra


def run(*arguments: str, stdin: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environ(**extra),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path):
    """Write a script whose `rank` and `size` are known, and give its path."""

    def write(text: str, name: str = "script.py") -> str:
        path = tmp_path / name
        path.write_text("import sys, os, time\nfrom mpi4py import MPI\nc = MPI.COMM_WORLD\n" + text)
        return str(path)

    return write


SPEAKING = """
print("line", c.rank, c.size, *sys.argv[1:])
print("warning", c.rank, file=sys.stderr)
"""


def test_all_ranks_output(script):
    done = run("-n", "3", script(SPEAKING), "a", "--stdout", "b c")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"line {rank} 3 a --stdout b c" for rank in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"warning {rank}" for rank in range(3)]


def test_output_of_rank_0_alone(script):
    done = run("-n", "3", "--mpi", QUICK, "--stdout", "root", script(SPEAKING))
    assert done.stdout == "line 0 3\n"
    assert sorted(done.stderr.splitlines()) == [f"warning {rank}" for rank in range(3)]


def test_tagged_output(script):
    done = run("-n", "3", "--mpi", QUICK, "--stdout", "tag", script(SPEAKING))
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] line {rank} 3" for rank in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"[{rank}] warning {rank}" for rank in range(3)]


def test_lines_stay_whole_and_none_is_lost(script):
    text = "for i in range(2000):\n    print(f'{c.rank}:{i}:' + 'x' * 200)\nsys.stdout.write(f'end {c.rank}')\n"
    lines = run("-n", "4", script(text)).stdout.splitlines()
    for rank in range(4):
        own = [line for line in lines if line.startswith(f"{rank}:")]
        assert own == [f"{rank}:{i}:" + "x" * 200 for i in range(2000)]
    assert sorted(line for line in lines if line.startswith("end")) == [f"end {rank}" for rank in range(4)]


def test_one_rank_needs_no_launcher(script):
    done = run("-n", "1", script(SPEAKING), "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "line 0 1 x\n", "warning 0\n")


def test_stdin_reaches_rank_0(script):
    done = run("-n", "2", "--stdout", "root", script("print(sys.stdin.read() if c.rank == 0 else '')"), stdin="given")
    assert done.stdout == "given\n"


def test_module_script(script, tmp_path):
    script("print(__name__, c.size, sys.argv[1:], __spec__.name)", "some_module.py")
    done = subprocess.run(
        command("-n", "2", "--stdout", "root", "-m", "some_module", "--flag", "v"),
        env=environ(PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}"),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout == "__main__ 2 ['--flag', 'v'] some_module\n", done.stderr


def test_script_sees_what_python_gives_it(script):
    text = """
import __main__, pickle
class Own: pass
assert __name__ == '__main__' and __main__.Own is Own and __file__ == sys.argv[0]
assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
assert type(pickle.loads(pickle.dumps(Own()))) is Own
assert not any(name.startswith('MPIARRAY_RUN_BIND') for name in os.environ)
print('fine')
"""
    done = run("-n", "2", script(text))
    assert (done.stdout, done.stderr) == ("fine\nfine\n", "")


def test_threads_and_cores(script):
    text = "print(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'], sorted(os.sched_getaffinity(0)))"
    cores = environment.cores()
    unset = {name: value for name, value in environ().items() if name not in environment.THREAD_VARIABLES}
    arguments = command("-n", str(len(cores) + 1), "--stdout", "root", script(text))
    done = subprocess.run(arguments, env=unset, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout == f"1 1 {environment.allowed_cpus()}\n", "more ranks than cores: one thread each, no binding"
    done = run("-n", "1", "--threads", "3", script(text))
    assert done.stdout.startswith("3 3 ")


@pytest.mark.skipif(len(environment.cores()) < 2, reason="needs a core for each of two ranks")
def test_ranks_are_bound_to_cores_of_their_own(script):
    done = run("-n", "2", "--bind", "on", "--stdout", "tag", script("print(sorted(os.sched_getaffinity(0)))"))
    cores = environment.cores()
    expected = [f"[{rank}] {sorted(environment.cpus_of_rank(rank, 2, cores))}" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == expected
    assert not environment.cpus_of_rank(0, 2, cores) & environment.cpus_of_rank(1, 2, cores)


ALONE, MANY, QUICK_MANY = ("1", "auto"), ("3", "auto"), ("3", QUICK)


@pytest.mark.parametrize(
    ("failure", "status", "said", "ranks", "mpi"),
    [
        (*failure, *job)
        for *failure, jobs in (
            ("raise ValueError('boom')", 1, "ValueError: boom", (ALONE, MANY, QUICK_MANY)),
            ("sys.exit(7)", 7, "", (ALONE, MANY)),
            ("sys.exit('a last word')", 1, "a last word", (ALONE, QUICK_MANY)),
            ("os._exit(9)", 9, "", (ALONE, MANY, QUICK_MANY)),
            ("c.Abort(5)", 5, "", (ALONE, MANY, QUICK_MANY)),
        )
        for job in jobs
    ],
)
def test_a_failing_rank_ends_the_job_with_its_status(script, failure, status, said, ranks, mpi):
    text = f"print('before', c.rank)\nif c.rank == c.size - 1: {failure}\nc.recv(source=c.size - 1)\n"
    begun = time.monotonic()
    done = run("-n", ranks, "--mpi", mpi, script(text), **{MARK: f"fail-{os.getpid()}"})
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert f"before {int(ranks) - 1}" in done.stdout
    assert time.monotonic() - begun < 20
    assert not members(f"{MARK}=fail-{os.getpid()}"), "processes of the job are left"


def test_traceback_starts_in_the_script(script):
    path = script("def f():\n    raise KeyError('here')\nf()\n")
    done = run("-n", "1", path)
    assert done.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{path}", line 6, in <module>',
    ]
    assert "rank.py" not in done.stderr
    path = script("if True\n    pass\n")
    assert "SyntaxError" in run("-n", "1", path).stderr


WAITING = "print('up', c.rank, flush=True)\nif c.rank: c.recv(source=0)\nwhile True: time.sleep(0.05)\n"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_job_ends_and_leaves_nothing(script, ranks, number, status):
    mark = f"{number}-{ranks}-{os.getpid()}"
    with subprocess.Popen(
        command("-n", str(ranks), script(WAITING)),
        env=environ(**{MARK: mark}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        for _ in range(ranks):
            assert process.stdout.readline().startswith(b"up")
        process.send_signal(number)
        process.communicate(timeout=15)
        assert process.returncode == status
    assert not members(f"{MARK}={mark}")


def test_killed_launcher_takes_its_job_with_it(script, tmp_path):
    mark = f"kill-{os.getpid()}"
    with subprocess.Popen(
        command("-n", "2", script(WAITING)),
        env=environ(**{MARK: mark}, TMPDIR=str(tmp_path)),  # nobody is left to remove the job's folder
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        process.stdout.readline()
        process.kill()
    until = time.monotonic() + 15
    while members(f"{MARK}={mark}") and time.monotonic() < until:
        time.sleep(0.1)
    assert not members(f"{MARK}={mark}")


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_time_limit_says_where_each_rank_is(script, ranks):
    done = run("-n", ranks, "--timeout", "3", script("def waits_here():\n" + "    time.sleep(100)\nwaits_here()\n"))
    assert done.returncode == 124
    assert "time limit of 3 s" in done.stderr
    assert done.stderr.count("in waits_here") == int(ranks), done.stderr


def test_reader_that_goes_away_ends_the_job(script):
    with subprocess.Popen(
        command("-n", "2", script("while True: print('again', flush=True)\n")), env=environ(), stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=20) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0", "x.py"], "'0' is not a whole number of at least 1"),
        (["-n", "two", "x.py"], "'two' is not a whole number"),
        (["x.py"], "required: -n/--ranks"),
        (["-n", "2"], "no script given"),
        (["-n", "2", "no-such-file.py"], "no file 'no-such-file.py'"),
        (["-n", "2", "-m"], "no module given"),
        (["-n", "2", "--stdout", "some", "x.py"], "invalid choice: 'some'"),
        (["-n", "2", "--timeout", "-1", "x.py"], "not a number of seconds"),
        (["-n", "2", "--mpi", "other", "x.py"], "invalid choice: 'other'"),
        (["-n", "100000", "--bind", "on", __file__], "--bind on: 100000 ranks cannot have a core each"),
    ],
)
def test_wrong_options(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_wrong_mpi_is_named(script):
    done = run("-n", "2", script(SPEAKING), MPIARRAY_MPI="/no/such/folder")
    assert done.returncode == 2
    assert "MPIARRAY_MPI=/no/such/folder: no MPI launcher there" in done.stderr


def test_dry_run_shows_the_command(script):
    done = run("-n", "3", "--dry-run", "--threads", "2", script(SPEAKING), "arg")
    assert done.returncode == 0
    assert "OMP_NUM_THREADS=2" in done.stdout
    assert " -n 3 " in done.stdout
    assert done.stdout.rstrip().endswith("script.py arg")


def test_commands_are_listed():
    done = subprocess.run(
        [sys.executable, "-m", "mpiarray"], env=environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "run" in done.stdout
    assert "doctor" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "mpiarray", "nothing"], env=environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no command 'nothing'" in done.stdout
