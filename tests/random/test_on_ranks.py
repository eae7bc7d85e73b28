"""Draws on the ranks of a real job: the numbers of one process, blocks only, and nothing sent."""

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import comm
from tests.peak import peak_of

pytestmark = pytest.mark.mpi


@pytest.fixture
def mesh():
    size = comm.size()
    shape = (size // 2, 2) if size % 2 == 0 else (size, 1)
    with jax.set_mesh(jax.make_mesh(shape, ("x", "y"))):
        yield shape


def block_of(x, mesh, spec_dims):
    """The part of a whole array that this rank should hold."""
    rank = comm.rank()
    coords = {"x": rank // mesh[1], "y": rank % mesh[1]}
    sizes = dict(zip("xy", mesh))
    index = []
    for n, axes in zip(x.shape, spec_dims):
        number, count = 0, 1
        for a in axes:
            number, count = number * sizes[a] + coords[a], count * sizes[a]
        index.append(slice(number * n // count, (number + 1) * n // count))
    return x[tuple(index)]


DRAWS = {
    "bits": lambda k, **o: jax.random.bits(k, (24, 12), **o),
    "normal": lambda k, **o: jax.random.normal(k, (24, 12), **o),
    "randint": lambda k, **o: jax.random.randint(k, (24, 12), 0, 1000, **o),
    "gamma": lambda k, **o: jax.random.gamma(k, 0.7, (24, 12), **o),
    "poisson": lambda k, **o: jax.random.poisson(k, 25.0, (24, 12), **o),
    "binomial": lambda k, **o: jax.random.binomial(k, 90.0, 0.3, (24, 12), **o),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dims", [(("x",), ()), ((), ("y",)), (("x",), ("y",)), (("y", "x"), ())], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_every_rank_makes_its_block(mesh, name, dims, compiled):
    draw = DRAWS[name]
    k = jax.random.key(33)
    whole = np.asarray(draw(k))
    spec = jax.P(*(d or None for d in dims))

    def sharded(k):
        return draw(k, out_sharding=spec)

    f = jax.jit(sharded) if compiled else sharded
    f(k)
    with comm.counting() as counts:
        x = f(k)
    if name in ("poisson", "binomial"):
        assert counts.total_calls <= 1
    else:
        assert counts.total_calls == 0
    assert x.sharding.spec == spec
    assert np.array_equal(np.asarray(x.addressable_data(0)), block_of(whole, mesh, dims))
    assert np.array_equal(np.asarray(x), whole)


def test_memory_of_a_sharded_draw_is_that_of_blocks(mesh):
    rows = 1 << 11
    k = jax.random.key(1)
    f = jax.jit(lambda k: jax.random.normal(k, (rows * comm.size(), 256), out_sharding=jax.P(("x", "y"), None)))
    f(k)
    x, peak = peak_of(lambda: f(k))
    block = rows * 256 * 4
    assert x.addressable_data(0).nbytes == block
    assert peak < 5 * block


def test_values_do_not_depend_on_the_number_of_ranks(mesh):
    """The recorded draw of one process (test_draws.py) once more, sharded."""
    x = jax.random.bits(jax.random.key(0), (24,), out_sharding=jax.P("x"))
    assert np.asarray(x)[:3].tolist() == [4070199207, 4202968722, 1427181096]
    assert np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0)))).tolist() == [
        [1797259609, 2579123966],
        [928981903, 3453687069],
    ]
