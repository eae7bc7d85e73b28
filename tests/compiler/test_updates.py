"""Sums that take the elementwise work after them along: which do, what they give, and what they send."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.comm import ring
from mpiarray.config import config
from tests.runtime.on_ranks import line, ranks

MESH = jax.sharding.AbstractMesh((2,), ("x",), (jax.sharding.AxisType.Explicit,))
SIDE = 512  # of matrices of 1 MB: their halves are worth messages of their own


def lowered(body, *shapes, specs=None, outs=None, check=True):
    """The text of `body` mapped over two devices: the first argument varies, the others are alike, unless `specs` says otherwise."""
    specs = specs or (P("x"), *(P() for _ in shapes[1:]))
    args = [
        jax.ShapeDtypeStruct((s[0] * (2 if spec else 1), *s[1:]) if s else s, np.float32, sharding=jax.NamedSharding(MESH, spec))
        for s, spec in zip(shapes, specs)
    ]  # fmt: skip
    mapped = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P() if outs is None else outs, check_vma=check)
    return jax.jit(mapped).lower(*args).compile().as_text()


def taken(text: str) -> list[str]:
    """The operations of each update in a text."""
    found = []
    for part in text.split("  update:\n")[1:]:
        body = part.split("ROOT")[0].splitlines()
        found.append(
            " ".join(row.split("] ", 1)[1].split("(")[0] for row in body if "parameter(" not in row and row.strip())
        )
    return found


SQUARE = (SIDE, SIDE)


def test_a_step_of_descent():
    text = lowered(lambda g, p: p - 0.1 * lax.psum(g, "x"), SQUARE, SQUARE)
    assert taken(text) == ["multiply subtract"]
    assert text.count("all-reduce(") == 1


def test_what_is_made_for_the_sum_alone_comes_along():
    """An old value is scaled where it is added; the new one is read twice, so that it is what is sent."""

    def body(g, p, v):
        new = 0.9 * v + lax.psum(g, "x")
        return p @ new, new

    text = lowered(body, SQUARE, SQUARE, SQUARE, outs=(P(), P()))
    assert taken(text) == ["multiply add"]


def test_scalars_that_are_alike():
    body = lambda g, p, rate: p - rate * lax.psum(g, "x") / (1 + lax.pmax(jnp.max(g), "x"))
    assert taken(lowered(body, SQUARE, SQUARE, ())) == ["multiply divide subtract"]


@pytest.mark.parametrize(
    ("body", "shapes", "specs"),
    [
        (lambda g, p: p - 0.1 * lax.psum(g, "x"), ((64, 64), (64, 64)), None),  # small: it travels with others
        (lambda g, p: p[0] - lax.psum(g, "x"), (SQUARE, SQUARE), None),  # broadcast
        (lambda g, p: (lambda total: (p - total) @ total)(lax.psum(g, "x")), (SQUARE, SQUARE), None),  # read twice
        (lambda g, p: lax.psum(g, "x") @ p, (SQUARE, SQUARE), None),  # no function of elements
        (
            lambda g, p: (lambda new: (p - new, new))(0.9 * p + lax.psum(g, "x")),
            (SQUARE, SQUARE),
            None,
        ),  # one pass for all
        (lambda g, p: jnp.sum(p * lax.psum(g, "x"), axis=0), (SQUARE, SQUARE), None),
    ],
)
def test_what_stays_as_it_is(body, shapes, specs):
    text = lowered(body, *shapes, specs=specs)
    assert taken(text) == []
    assert "all-reduce(" in text


def test_operands_that_vary_stay_outside():
    body = lambda g, h, p: (p - 0.1 * lax.psum(g, "x")) @ h
    text = lowered(body, SQUARE, SQUARE, SQUARE, specs=(P("x"), P("x"), P()), outs=P("x"))
    assert taken(text) == ["multiply subtract"]  # h may be what it likes
    index = lambda g, p: lax.psum(g, "x") * lax.axis_index("x")
    assert taken(lowered(index, SQUARE, SQUARE, outs=P("x"))) == []


def test_wider_results_are_not_sent():
    with config.override("jax_enable_x64", True):
        body = lambda g, p: (0.5 * lax.psum(g, "x")).astype(jnp.float64) * 2.0
        assert taken(lowered(body, SQUARE, SQUARE)) == []


def test_small_sums_wait_for_the_large_ones():
    """Gradients of biases and the loss: one message, next to that of the weights, and not before the last product."""

    def body(x, w, b, v, c):
        out = jnp.tanh(x @ w + b) @ v + c
        return lax.psum(jnp.sum(out**2), "x")

    def step(x, w, b, v, c):
        mapped = jax.shard_map(body, mesh=MESH, in_specs=(P("x"), P(), P(), P(), P()), out_specs=P())
        value, slopes = jax.value_and_grad(mapped, argnums=(1, 2, 3, 4))(x, w, b, v, c)
        return value, [p - 0.1 * s for p, s in zip((w, b, v, c), slopes)]

    shapes = ((256, SIDE), SQUARE, (SIDE,), SQUARE, (SIDE,))
    args = [jax.ShapeDtypeStruct(s, np.float32, sharding=jax.NamedSharding(MESH, P("x" if s[0] == 256 else None))) for s in shapes]  # fmt: skip
    with jax.sharding.use_abstract_mesh(MESH):
        text = jax.jit(step).lower(*args).compile().as_text()
    assert taken(text) == ["multiply subtract"] * 2
    rows = [row for row in text.splitlines() if " dot(" in row or " all-reduce(" in row]
    assert [" dot(" in row for row in rows] == [True] * 5 + [False] * 3
    assert rows[5].count("f32[") == 3


@pytest.mark.mpi
@pytest.mark.parametrize("shape", [(1,), (3, 5), (130, 77)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_values(shape, dtype):
    """Of every size, with the sum's own memory and without; the same on all ranks, and what numpy gives."""
    with config.override("jax_enable_x64", dtype == "float64"):
        check_values(shape, dtype)


def check_values(shape, dtype):
    n = ranks()
    mesh = line()
    one = lambda k, scale=5: (np.arange(np.prod(shape)).reshape(shape) * (k + 2) % 11 - scale).astype(dtype)
    gs, p, v = np.concatenate([one(k) for k in range(n)]), one(7), one(9)

    def body(g, p, v):
        made = g * 2  # the program's own memory
        new = 3 * v + lax.psum(made, "x")
        return (
            p - lax.psum(g, "x") * 2,
            new,
            p + new,
            lax.psum(made, "x").astype(jnp.int32) if made.dtype != np.complex64 else p,
        )

    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P()))
    args = [jax.device_put(a, jax.NamedSharding(mesh, s)) for a, s in ((gs, P("x")), (p, P()), (v, P()))]
    total = sum(one(k) for k in range(n))
    wanted = [
        p - total * 2,
        3 * v + total * 2,
        p + 3 * v + total * 2,
        (2 * total).astype(np.int32) if dtype != "complex64" else p,
    ]
    for swapped in (ring.SWAPPED_BYTES[1], -1, ring.SWAPPED_BYTES[1]):  # two ranks whole blocks, or parts of them
        with config.override("sums", "ring"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(ring, "SWAPPED_BYTES", (0, swapped))
            for found, value in zip(f(*args), wanted, strict=True):
                assert found.dtype == value.dtype
                np.testing.assert_array_equal(np.asarray(found), value)
    with config.override("sums", "mpi"):  # a program that is there already
        for found, value in zip(f(*args), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(found), value)
    np.testing.assert_array_equal(np.asarray(args[0]), gs)
    np.testing.assert_array_equal(np.asarray(args[1]), p)


@pytest.mark.mpi
def test_a_training_loop_with_donated_parameters():
    """Parameters that are donated, and the same ones held by the user: what he holds is never written over."""
    n, mesh = ranks(), line()
    rng = np.random.default_rng(3)
    w0 = rng.normal(size=(24, 16)).astype("f4")
    x, y = rng.normal(size=(8 * n, 24)).astype("f4"), rng.normal(size=(8 * n, 16)).astype("f4")

    def loss(w, x, y):
        return lax.pmean(jnp.mean((jnp.dot(x, w) - y) ** 2), "x")

    def step(w, x, y):
        g = jax.grad(jax.shard_map(loss, mesh=mesh, in_specs=(P(), P("x"), P("x")), out_specs=P()))(w, x, y)
        return w - 0.5 * g

    put = lambda a, s: jax.device_put(a, jax.NamedSharding(mesh, s))
    with config.override("sums", "ring"):
        f = jax.jit(step, donate_argnums=0)
        w, xs, ys, held = put(w0, P()), put(x, P("x")), put(y, P("x")), []
        expected = w0.astype("f8")
        for k in range(4):
            if k % 2:
                held.append((np.asarray(w.addressable_data(0)), expected.copy()))
            w = f(w, xs, ys)
            r = x @ expected - y
            expected = expected - 0.5 * (2 / r.size) * x.T @ r
            np.testing.assert_allclose(np.asarray(w), expected, rtol=1e-4, atol=1e-5)
    for view, value in held:
        np.testing.assert_allclose(view, value, rtol=1e-4, atol=1e-5)
