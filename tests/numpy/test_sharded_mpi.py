"""numpy functions on sharded arrays of a real job: result types, values, blocks, and what is sent."""

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm
from mpiarray.errors import ShardingTypeError

pytestmark = pytest.mark.mpi

N = np.arange(192, dtype=np.float32).reshape(48, 4) - 90


@pytest.fixture
def sizes():
    size = comm.size()
    shape = (size // 2, 2) if size % 2 == 0 else (size, 1)
    if 48 % size:
        pytest.skip("48 rows do not divide by this number of ranks")
    with jax.set_mesh(jax.make_mesh(shape, ("x", "y"))):
        yield shape


def put(value, *spec):
    return jax.device_put(value, jax.P(*spec))


def check(got, want, spec):
    """Values on every rank, the type's sharding, and this rank's block."""
    want = np.asarray(want)
    assert got.shape == want.shape
    assert got.aval.sharding.spec == jax.P(*spec).padded(want.ndim), (got.aval, spec)
    for shard in got.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data), want[shard.index], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)


SPECS = [("x", "y"), ("x", None), (None, "y"), (("x", "y"), None), (None, None)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_elementwise_functions_send_nothing(sizes, spec):
    x, y = put(N, *spec), put(N[::-1].copy(), *spec)
    r = jnp.asarray(N[0])
    with comm.counting() as count:
        outs = [
            (x + y, N + N[::-1]), (x * 2 - 1, N * 2 - 1), (x / 3, N / 3), (x // 3, N // 3), (x % 3, N % 3), (x % y, np.mod(N, N[::-1])), (-x, -N), (abs(x), abs(N)),
            (jnp.sin(x), np.sin(N)), (jnp.hypot(x, y), np.hypot(N, N[::-1])), (jnp.logaddexp(x, y), np.logaddexp(N, N[::-1])), (jnp.clip(x, -2, 3), np.clip(N, -2, 3)),
            (jnp.where(x > 0, x, 0), np.where(N > 0, N, 0)), (x**2, N**2), (jnp.round(x / 7, 1), np.round(N / 7, 1)), (jnp.nan_to_num(x), N), (jnp.frexp(x)[0], np.frexp(N)[0]),
            (jnp.zeros_like(x), 0 * N), (jnp.full_like(x, 3), 0 * N + 3), (jnp.tril(x), np.tril(N)), (jnp.select([x > 3, x < 0], [x, -x], 9), np.select([N > 3, N < 0], [N, -N], 9)),
            (jnp.floor_divide(x, 2.5), np.floor_divide(N, 2.5)), (jnp.isnan(x), np.isnan(N)), (jnp.fmax(x, y), np.fmax(N, N[::-1])),
        ]  # fmt: skip
        assert count.total_calls == 0
    for got, want in outs:
        check(got, want, spec)
    if spec[1] is None:
        check(x + r, N + N[0], spec)


def test_shardings_of_different_dims_join(sizes):
    x, y = put(N, "x", None), put(N, None, "y")
    with comm.counting() as count:
        outs = [
            (x + y, N + N), (jnp.divmod(x, y)[0], np.divmod(N, np.where(N == 0, 1, N))[0]), (x % y, np.mod(N, np.where(N == 0, 1, N))),
            (jnp.fmin(x, y), N), (jnp.heaviside(x, y), np.heaviside(N, N)), (jnp.copysign(x, y), N),
        ]  # fmt: skip
        assert count.total_calls == 0
    for k, (got, want) in enumerate(outs):
        if k in (1, 2):  # 0 divided by 0
            got, want = jnp.where(got == got, got, 0), np.where(N == 0, 0, want)
        check(got, want, ("x", "y"))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shapes_that_follow(sizes, spec):
    x = put(N, *spec)
    a, b = spec
    with comm.counting() as count:
        check(x.T, N.T, (b, a))
        check(x[None], N[None], (None, a, b))
        check(jnp.expand_dims(x, (1, -1)), N[:, None, :, None], (a, None, b))
        check(jnp.moveaxis(x[None], 0, 2), N[..., None], (a, b))
        check(jnp.rot90(put(N, a, None) if b is None else put(N, None, None), 0), N, (a, None) if b is None else ())
        check(x.astype("int32"), N.astype("int32"), spec)
        check(jnp.broadcast_to(x, (3, 48, 4)), np.broadcast_to(N, (3, 48, 4)), (None, a, b))
        check(jnp.stack([x, x + 1], 1), np.stack([N, N + 1], 1), (a, None, b))
        reads = count.total_calls
    assert reads <= 8  # one read of each result, to compare it


def test_shapes_that_move_data(sizes):
    for spec in SPECS:
        x = put(N, *spec)
        check(jnp.flip(x), N[::-1, ::-1], spec)
        check(jnp.concatenate([x, x + 100]), np.concatenate([N, N + 100]), spec)
        check(jnp.pad(x, ((24, 0), (0, 4)), constant_values=7), np.pad(N, ((24, 0), (0, 4)), constant_values=7), spec)
        for k, part in enumerate(jnp.split(x, 1, 0)):
            check(part, N, spec)
            assert k == 0
        check(jnp.roll(x, 3, 0), np.roll(N, 3, 0), spec)
        check(jnp.reshape(x, (24, 8), out_sharding=jax.P()), N.reshape(24, 8), ())
        check(jnp.ravel(x, out_sharding=jax.P("y")), N.ravel(), ("y",))


def test_errors_come_before_anything_is_sent(sizes):
    if sizes[0] < 2:
        pytest.skip("nothing is sharded")
    x, y = put(N, "x", None), put(N[:, :1].repeat(48, 1), None, "x")
    v = put(np.arange(48.0), "x")
    with comm.counting() as count:
        for f in (
            lambda: x + put(N, ("x", "y"), None) if sizes[1] > 1 else jnp.reshape(x, (2, 96)), lambda: jnp.where(x > 0, x, jnp.asarray(N)), lambda: jnp.tile(x, (2, 1)),
            lambda: jnp.unstack(x), lambda: jnp.concatenate([x, jnp.asarray(N)]), lambda: jnp.delete(v, 0), lambda: jnp.insert(v, 0, 1.0), lambda: jnp.diagonal(y),
            lambda: jnp.trim_zeros(v),
        ):  # fmt: skip
            with pytest.raises(ShardingTypeError):
                f()
        with pytest.raises(ValueError, match="out_sharding"):
            jnp.repeat(x, 2, axis=0)
        assert count.total_calls == 0
    check(jnp.repeat(x, 2, axis=0, out_sharding=jax.P("x")), np.repeat(N, 2, axis=0), ("x", None))
    check(jnp.repeat(x, np.arange(48), axis=0, out_sharding=jax.P()), np.repeat(N, np.arange(48), axis=0), ())
    check(jnp.repeat(x, 2, axis=1), np.repeat(N, 2, axis=1), ("x", None))
    check(jnp.tile(x, (1, 3)), np.tile(N, (1, 3)), ("x", None))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_creation_makes_blocks_only(sizes, spec):
    P = jax.P(*spec)
    with comm.counting() as count:
        outs = [
            (jnp.zeros((48, 4), out_sharding=P), np.zeros((48, 4))), (jnp.full((48, 4), 2.5, out_sharding=P), np.full((48, 4), 2.5)),
            (jnp.array(N, out_sharding=P), N), (jnp.asarray(N.tolist(), device=jax.NamedSharding(jax.sharding.get_mesh(), P)), N),
            (jnp.ones((48, 4), "int8", device=jax.NamedSharding(jax.sharding.get_mesh(), P)), np.ones((48, 4))), (jnp.eye(48, 4, out_sharding=P), np.eye(48, 4)),
            (jnp.tri(48, 4, 1, out_sharding=P), np.tri(48, 4, 1)), (jnp.broadcast_to(jnp.float32(3), (48, 4), out_sharding=P), np.full((48, 4), 3)),
        ]  # fmt: skip
        lines = [
            (jnp.arange(48, out_sharding=jax.P(spec[0])), np.arange(48)), (jnp.arange(1, 97, 2.0, out_sharding=jax.P(spec[0])), np.arange(1, 97, 2.0)),
            (jnp.linspace(0, 3, 48, out_sharding=jax.P(spec[0])), np.linspace(0, 3, 48)),
        ]  # fmt: skip
        assert count.total_calls == 0
    for got, want in outs:
        check(got, want, spec)
    for got, want in lines:
        check(got, want, spec[:1])


def test_without_a_context_mesh():
    mesh = jax.make_mesh((comm.size(),), ("i",))
    where = jax.NamedSharding(mesh, jax.P("i"))
    n = 2 * comm.size()
    for x in (
        jnp.zeros(n, out_sharding=where),
        jnp.arange(n, out_sharding=where),
        jnp.ones(n, device=where),
        jnp.array(np.arange(n), device=where),
    ):
        assert x.aval.sharding.spec == jax.P("i")
        assert x.addressable_shards[0].data.shape == (2,)
    auto = jax.make_mesh((comm.size(),), ("i",), (jax.sharding.AxisType.Auto,))
    x = jnp.zeros(n, device=jax.NamedSharding(auto, jax.P("i")))
    assert x.sharding == jax.NamedSharding(auto, jax.P("i"))
    assert x.addressable_shards[0].data.shape == (2,)


def test_iteration_and_unpacking(sizes):
    x = put(N, "x", None)
    for row, want in zip(x, N, strict=True):
        np.testing.assert_array_equal(np.asarray(row), want)


def test_in_jit(sizes):
    x = put(N, "x", None)

    def f(x):
        return (
            jnp.where(x > 0, x, -x) % 3,
            jnp.flip(x, 0),
            jnp.concatenate([x, x], 1),
            jnp.pad(x, ((0, 0), (1, 1))),
            jnp.zeros_like(x),
            jnp.arange(4.0) + x,
        )

    for got, want in zip(jax.jit(f)(x), f(x), strict=True):
        assert got.aval is want.aval
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
