"""Programs of arrays that go wrong on some ranks, catch the error and go on: what each rank is told, and that all still agree.

All scripts are parts of two jobs, with and without MPIARRAY_CHECK: to start one takes longer than they do.
"""

from __future__ import annotations

import textwrap

import pytest

from tests.failures.jobs import QUICK, run_job
from tests.failures.test_arrays import HEAD, SOON

pytestmark = pytest.mark.jobs
RANKS = 3
TYPES = """
for wrong in (lambda: x + jnp.arange(3.0), lambda: jax.device_put(np.ones(size + 1), P('x')), lambda: jnp.sort(x),
              lambda: jax.reshard(x, P('z')), lambda: jax.make_mesh((size + 1,), ('x',))):
    try:
        wrong()
    except Exception as e:
        print(type(e).__name__, e)
    else:
        print('no error')
"""
CALLBACK = """
def block(index):
    if rank == 1:
        raise KeyError('no such file')
    return np.ones(2, np.float32)
s = jax.NamedSharding(mesh, P('x'))
try:
    jax.make_array_from_callback((2 * size,), s, block)
except KeyError as e:
    print('own:', e)
except RuntimeError as e:
    print('other:', e)
"""
NAN = """
jax.config.update('jax_debug_nans', True)
try:
    jnp.sqrt(x - 1)
except FloatingPointError as e:
    print(e)
jax.config.update('jax_debug_nans', False)
"""
DELETED = """
gone = x + 0
f = jax.jit(lambda v: v + 1, donate_argnums=0)
y = f(gone)
for use in (lambda: gone + 1, lambda: print(gone), lambda: repr(gone), lambda: gone.sum(),
            lambda: jax.device_put(gone, P()), lambda: f(gone)):
    try:
        use()
    except RuntimeError as e:
        print(e)
    else:
        print('no error')
print(float(y.sum()))
"""
REPR = """
if rank == 0:
    text = repr(x), repr(x + 1), str(jax.typeof(x)), str(x.sharding), f'{x.shape} {x.format}'
"""
HOST_VALUES = """
try:
    jax.device_put(np.full(size, rank, np.float32), P('x'))
except ValueError as e:
    print(e)
"""
DIVERGE = """
try:
    if rank == 2:
        x.max()  # here
    else:
        x.sum()  # there
except RuntimeError as e:
    print(e)
"""
BOTH = (TYPES, CALLBACK, NAN, DELETED, REPR)
CHECKED = (HOST_VALUES, DIVERGE)


class Told:
    """A job of scripts, one after the other, and what each rank was told by each of them."""

    def __init__(self, check: bool):
        parts = [*BOTH, *(CHECKED if check else ())]
        after = "\nprint('alive', float(x.sum()))\nprint('===', flush=True)\n"
        self.script = HEAD + after.join([*parts, ""])
        limits = {"MPIARRAY_CHECK": str(int(check)), "MPIARRAY_TIMEOUT": "15"}
        self.done = run_job(self.script, RANKS, limit=SOON, environ=limits, mpi=QUICK)
        assert not self.done.timed_out and self.done.status == 0, str(self.done)
        self.told = dict(zip(parts, zip(*(text.split("===\n") for text in self.done.stdout), strict=False)))

    def by(self, part: str, alike: bool = True) -> tuple[str, ...]:
        """What each rank was told, the same (unless not `alike`) on all; after it, they still work together."""
        told = self.told[part]
        assert all(text.endswith("alive 66.0\n") for text in told), str(self.done)
        assert not alike or len(set(told)) == 1, str(self.done)
        return tuple(text.removesuffix("alive 66.0\n") for text in told)

    def line(self, text: str) -> str:
        """`script.py:n` of the only line that contains `text`."""
        found = [n for n, s in enumerate(textwrap.dedent(self.script).splitlines(), 1) if text in s]
        assert len(found) == 1, f"{text!r} is on lines {found}"
        return f"script.py:{found[0]}"


@pytest.fixture(scope="module")
def checked() -> Told:
    return Told(check=True)


@pytest.fixture(scope="module", params=["unchecked", "checked"])
def job(request: pytest.FixtureRequest) -> Told:
    return request.getfixturevalue("checked") if request.param == "checked" else Told(check=False)


def test_an_error_of_types_is_the_same_on_all_ranks_and_can_be_caught(job: Told):
    assert [s.split()[0] for s in job.by(TYPES)[0].splitlines() if s[:1].isupper() and "Error" in s.split()[0]] == [
        "TypeError", "IndivisibleError", "ShardingTypeError", "ValueError", "ValueError",
    ]  # fmt: skip
    assert "no error" not in job.by(TYPES)[0]


def test_a_callback_that_raises_on_one_rank(job: Told):
    told = job.by(CALLBACK, alike=False)
    assert told[1].startswith("own: 'no such file'")
    for rank in (0, 2):
        assert told[rank].startswith("other:")
        assert "rank 1" in told[rank] and "no such file" in told[rank], str(job.done)


def test_nan_on_one_rank_is_an_error_on_all(job: Told):
    text = job.by(NAN)[0]
    assert "nan" in text and "sqrt" in text, str(job.done)


def test_deleted_arrays_raise_on_all_ranks(job: Told):
    lines = job.by(DELETED)[0].splitlines()
    assert all("Array has been deleted with shape=float32[12" in text for text in lines[:6]), str(job.done)
    assert lines[6:] == ["78.0"]


def test_repr_on_one_rank_is_safe(job: Told):
    assert job.by(REPR) == ("",) * RANKS


def test_host_values_that_differ_are_told_under_check(checked: Told):
    assert "not the same on each process" in checked.by(HOST_VALUES)[0]


def test_ranks_that_diverge_are_told_what_each_does(checked: Told):
    text = checked.by(DIVERGE)[0]
    assert "ranks have diverged" in text, str(checked.done)
    assert checked.line("# here") in text and checked.line("# there") in text, str(checked.done)
