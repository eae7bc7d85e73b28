"""What reductions and indexing of sharded arrays send, and sharded counting, which JAX does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm
from mpiarray.errors import ShardingTypeError
from mpiarray.types.partition_spec import PartitionSpec as P

pytestmark = pytest.mark.mpi(min_size=4)

X = ((np.arange(8 * 16) * 11 % 137 - 60) / 4).astype(np.float32).reshape(8, 16)


@pytest.fixture
def mesh():
    with jax.set_mesh(jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:4])) as m:
        yield m


def sent(f: Any, *args: Any) -> tuple[Any, dict[str, int], int]:
    """The result, the calls of each kind, and the bytes that this rank gave."""
    f(*args)
    with comm.counting() as counts:
        out = f(*args)
    return out, dict(counts.calls), sum(counts.bytes.values())


@pytest.mark.parametrize(
    ("f", "spec", "calls", "nbytes"),
    [
        (lambda x: x.sum(), P("x", "y"), {"all_reduce": 1}, 4),
        (lambda x: x.sum(0), P("x", "y"), {"all_reduce": 1}, 8 * 4),
        (lambda x: x.sum(1), P("x"), {}, 0),
        (lambda x: x.mean(0), P("x", "y"), {"all_reduce": 1}, 8 * 4),
        (lambda x: x.var(0), P("x", "y"), {"all_reduce": 2}, 2 * 8 * 4),
        (lambda x: x.max((0, 1)), P(("x", "y")), {"all_reduce": 1}, 4),
        (lambda x: jnp.any(x > 3, axis=1), P(None, "y"), {"all_reduce": 1}, 8),
        (lambda x: x.argmax(0), P("x"), {"all_gather": 1}, 16 * 12),
        (lambda x: x.astype(jnp.bfloat16).sum(1), P(None, "y"), {"all_reduce": 1}, 8 * 4),  # partial sums in float32
        (lambda x: x[:, 3], P("x"), {}, 0),
        (lambda x: x[2], P(None, "y"), {}, 0),
        (lambda x: x[:, np.array([1, 5])], P("x"), {}, 0),
        (lambda x: x.at[:, 3].set(1.0), P("x"), {}, 0),
        (lambda x: x.sort(1), P("x"), {}, 0),
        (lambda x: x.cumsum(0), P(None, ("x", "y")), {}, 0),
        (lambda x: jnp.median(x, 0), P(None, "y"), {}, 0),
    ],
)  # fmt: skip
def test_communication(mesh, f, spec, calls, nbytes):
    out, found, given = sent(f, jax.device_put(X, spec))
    if comm.rank() < 4:
        assert (found, given) == (calls, nbytes)
    np.testing.assert_allclose(
        np.asarray(out).astype(np.float32), np.asarray(f(jnp.asarray(X))).astype(np.float32), rtol=1e-5
    )


def test_one_row_moves_only_that_row(mesh):
    x = jax.device_put(X, P("x", "y"))
    row, _, nbytes = sent(lambda x: x.at[5].get(out_sharding=P("y")), x)
    np.testing.assert_array_equal(row, X[5])
    assert nbytes <= 2 * 8 * 4
    rows, _, nbytes = sent(lambda x: x.at[np.array([1, 6])].get(out_sharding=P(None, "y")), x)
    np.testing.assert_array_equal(rows, X[[1, 6]])
    assert nbytes <= 2 * 2 * 8 * 4


def test_a_row_is_written_without_communication(mesh):
    x = jax.device_put(X, P("x", "y"))
    out, calls, _ = sent(lambda x: x.at[5].set(7.0, out_sharding=P("x", "y")), x)
    want = X.copy()
    want[5] = 7
    np.testing.assert_array_equal(out, want)
    assert not calls


def test_counting_where_the_data_are(mesh):
    v = (np.arange(64) * 7 % 11).astype(np.int32)
    x = jax.device_put(v, P(("x", "y")))
    out, calls, nbytes = sent(lambda x: jnp.bincount(x, length=11), x)
    np.testing.assert_array_equal(out, np.bincount(v, minlength=11))
    if comm.rank() < 4:
        assert (calls, nbytes) == ({"all_reduce": 1}, 11 * 4)
    assert out.sharding.is_fully_replicated


@pytest.mark.parametrize("spec", [P("x", "y"), P("y"), P(None, "x"), P(("y", "x"))])
def test_histogram_of_a_sharded_array(mesh, spec):
    counts, edges = jnp.histogram(jax.device_put(X, spec), bins=7)
    want, _ = np.histogram(X, bins=np.asarray(edges))
    np.testing.assert_array_equal(counts, want)
    weighted, _ = jnp.histogram(jax.device_put(X, spec), bins=3, weights=jax.device_put(np.abs(X), spec))
    np.testing.assert_allclose(weighted, np.histogram(X, bins=3, weights=np.abs(X))[0], rtol=1e-5)


def test_tables_on_sharded_queries(mesh):
    x = jax.device_put(X, P("x", "y"))
    table = np.sort(X[0])
    for got, want in (
        (jnp.searchsorted(table, x), np.searchsorted(table, X)),
        (jnp.digitize(x, table), np.digitize(X, table)),
        (jnp.isin(x, X[3]), np.isin(X, X[3])),
        (jnp.interp(x, table, X[1]), np.interp(X, table, X[1])),
    ):
        assert got.sharding.spec.dims == (("x",), ("y",))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_iteration_gives_replicated_rows(mesh):
    x = jax.device_put(X, P("x", "y"))
    rows = list(x)
    assert [str(jax.typeof(r)) for r in rows] == ["float32[16]"] * 8
    np.testing.assert_array_equal(np.stack([np.asarray(r) for r in rows]), X)
    with pytest.raises(ShardingTypeError, match="is not divisible by mesh axes"):
        jax.jit(lambda x: list(x))(x)


def test_errors_name_both_ways_out(mesh):
    x = jax.device_put(X, P("x", "y"))
    for f, phrases in (
        (lambda: x[0], ("is not divisible by mesh axes", ".at[...].get(out_sharding=)")),
        (lambda: x[np.array([0, 1])], ("Use `.at[...].get(out_sharding=)`",)),
        (lambda: x.at[0].set(1.0), ("Use `.at[...].set/add/mul/...(out_sharding=)`",)),
        (lambda: jnp.take_along_axis(x, np.zeros((1, 16), np.int32), 0), ("Use `.at[...].get(out_sharding=)`",)),
        (lambda: jnp.nonzero(x), ("should be fully replicated when axis is not specified",)),
        (lambda: jnp.where(x), ("should be fully replicated when axis is not specified",)),
        (lambda: jnp.cumsum(x), ("should be fully replicated when axis is not specified to cumsum",)),
        (lambda: jnp.unique(x), ("unsharded over the sorting dimension",)),
        (lambda: jnp.sort(x, axis=0), ("unsharded over the sorting dimension",)),
        (lambda: jnp.median(x, axis=0), ("unsharded over the sorting dimension",)),
        (lambda: jnp.cumprod(x, axis=1), ("should be unsharded over the axis being reduced",)),
    ):
        with comm.counting() as counts, pytest.raises(ShardingTypeError) as caught:
            f()
        assert not counts.total_calls
        assert all(p in str(caught.value) for p in phrases), caught.value


def test_masks_of_sharded_arrays(mesh):
    x = jax.device_put(X, P("x", "y"))
    with pytest.raises(ShardingTypeError):
        x.at[x > 3].set(0.0)
    mask = x > 3
    out, calls, _ = sent(lambda x: x.at[mask].set(0.0, out_sharding=P("x", "y")), x)
    assert not calls
    np.testing.assert_array_equal(out, np.where(X > 3, 0, X))
    whole = jax.reshard(x, P())
    np.testing.assert_array_equal(whole[whole > 3], X[X > 3])
    np.testing.assert_array_equal(whole.at[whole > 3].add(1.0), np.where(X > 3, X + 1, X))


@pytest.mark.parametrize("spec", [P("x", "y"), P(None, ("x", "y"))])
def test_counting_on_auto_axes(spec):
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=kinds, devices=jax.devices()[:4])
    x = jax.device_put(X, jax.NamedSharding(mesh, spec))
    for f in (lambda x: jnp.histogram(x, bins=7)[0], jax.jit(lambda x: jnp.histogram(x, bins=7)[0])):
        np.testing.assert_array_equal(f(x), np.histogram(X, bins=7)[0])
    v = jax.device_put((X[0] * 4).astype(np.int32) % 9, jax.NamedSharding(mesh, P("y")))
    np.testing.assert_array_equal(jnp.bincount(v), np.bincount(np.asarray(v)))
    np.testing.assert_array_equal(jnp.unique(x), np.unique(X))
    np.testing.assert_array_equal(jnp.nonzero(x > 3), np.nonzero(X > 3))
    np.testing.assert_array_equal(x[x > 3], X[X > 3])
    np.testing.assert_allclose(jnp.quantile(x, 0.3, axis=0), np.quantile(X, 0.3, axis=0), rtol=1e-5)
