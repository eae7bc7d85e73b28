"""Programs of arrays that go wrong on some ranks and do not catch it: each ends soon, by itself, with a message of what happened where.

They run under the plain MPI launcher, so it is the package that ends them. `line(text)` finds the line of a script that
a message must name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mpiarray.tools import environment
from mpiarray.tools.run import launcher_command
from tests.failures.jobs import QUICK, ROOT, Outcome, run_job

pytestmark = pytest.mark.jobs
SOON = 25.0  # seconds; a job that is still there then hangs
HEAD = """
import sys, time
import numpy as np
import mpiarray as jax, mpiarray.numpy as jnp
from mpiarray import P
rank, size = jax.process_index(), jax.process_count()
mesh = jax.make_mesh((size,), ('x',))
jax.set_mesh(mesh)
x = jax.device_put(np.arange(4.0 * size, dtype=np.float32), P('x'))
"""


def end_of(script: str, ranks: int, mpi: str = QUICK, **environ: str) -> Outcome:
    """Run HEAD and `script`; the job must not hang."""
    done = run_job(HEAD + textwrap.dedent(script), ranks, limit=SOON, environ=environ, mpi=mpi)
    assert not done.timed_out, f"the job hangs\n{done}"
    return done


def line(script: str, text: str) -> str:
    """`script.py:n` of the only line that contains `text`."""
    found = [n for n, s in enumerate((HEAD + textwrap.dedent(script)).splitlines(), 1) if text in s]
    assert len(found) == 1, f"{text!r} is on lines {found}"
    return f"script.py:{found[0]}"


def test_a_rank_that_raises_between_two_ops():
    script = """
    y = x.sum()
    if rank == 1:
        raise ValueError('only here')
    print('never', float(y + x.max()))
    """
    done = end_of(script, 4, "auto")
    assert done.status != 0
    assert "[rank 1] ValueError: only here" in done.stderr[1].splitlines(), str(done)
    assert all("Traceback" not in text for rank, text in enumerate(done.stderr) if rank != 1), str(done)
    assert not any("never" in text for text in done.stdout)


def test_jitted_programs_that_diverge_are_told():
    script = """
    f = jax.jit(lambda v: v.sum() if rank else v.sum() + v.max())
    f(x)
    """
    done = end_of(script, 2, MPIARRAY_CHECK="1", MPIARRAY_TIMEOUT="5")
    assert done.status != 0
    assert "ranks have diverged" in done.errors or "all_reduce" in done.errors, str(done)


def test_a_rank_that_prints_a_sharded_array_alone():
    script = """
    print('before', float(x.sum()), flush=True)
    if rank == 0:
        print(x)  # alone
    x.sum()  # others
    time.sleep(60)
    """
    done = end_of(script, 3, MPIARRAY_TIMEOUT="2")
    assert done.status != 0
    assert line(script, "# alone") in done.errors or line(script, "# others") in done.errors, str(done)
    assert all(text.startswith("before") for text in done.stdout), str(done)


def test_a_callback_that_raises_on_one_rank_and_is_not_caught():
    script = """
    def block(index):
        if rank == 1:
            raise KeyError('no such file')
        return np.ones(2, np.float32)
    jax.make_array_from_callback((2 * size,), jax.NamedSharding(mesh, P('x')), block)
    print('never')
    """
    done = end_of(script, 3)
    assert done.status != 0
    assert "no such file" in done.errors, str(done)
    assert done.stdout == ("",) * 3


def test_a_mesh_larger_than_the_job():
    done = end_of("jax.make_mesh((size, 2), ('x', 'y'))", 2)
    assert done.status != 0
    assert "Number of devices 2 must be >= the product of mesh_shape" in done.errors, str(done)


def test_more_devices_than_ranks():
    script = """
    import mpiarray as jax
    jax.config.update('jax_num_cpu_devices', 16)
    jax.devices()
    """
    done = run_job(textwrap.dedent(script), 2, limit=SOON)
    assert done.status != 0
    assert not done.timed_out
    assert "16" in done.errors and "mpirun -n 16" in done.errors, str(done)


def test_host_function_in_a_program_that_raises_on_one_rank():
    script = """
    def host(v):
        if rank == 1:
            raise ValueError('host function failed')
        return v
    f = jax.jit(lambda v: jax.pure_callback(host, jax.ShapeDtypeStruct(v.shape, v.dtype), v) + 1)
    print('never', float(f(x).sum()))
    """
    done = end_of(script, 3)
    assert done.status != 0
    assert "host function failed" in done.errors, str(done)


@pytest.mark.skipif(not environment.find_all(), reason="no MPI here")
def test_ctrl_c_ends_the_job(tmp_path: Path):
    """SIGINT to the launcher's whole process group, as a terminal sends it."""
    cores = len(environment.cores())
    installation = environment.choose(2, cores, "auto")
    variables = environment.job_environment(installation, 2, cores)
    path = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    file = tmp_path / "script.py"
    file.write_text(
        HEAD + f"open({str(tmp_path)!r} + f'/ready{{rank}}', 'w').close()\nwhile True: x.sum(); time.sleep(0.01)\n"
    )
    process = subprocess.Popen(
        [*launcher_command(installation, 2), sys.executable, str(file)],
        env=variables | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + SOON
        while not all((tmp_path / f"ready{k}").exists() for k in range(2)):
            assert time.monotonic() < deadline, "the job does not come up"
            assert process.poll() is None, "the job ended before it was interrupted"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=15)
        assert process.returncode != 0, said.decode(errors="replace")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
