"""Sums and gathers in shard_map of which a rank reads its own part: what is sent, on a mesh of threads, and that values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.compiler.machine import Machine, machine, use
from mpiarray.compiler.passes.parts import parts
from tests.ops.pretended_mesh import lowered, mesh_of, run

SIZES = {"x": 2, "y": 4}
MESH = mesh_of(*SIZES.items())
X = np.arange(64 * 16, dtype=np.float32).reshape(64, 16) % 37
BLOCK = X.nbytes // 8  # of f32[8,16]
W = np.arange(8 * 16, dtype=np.float32).reshape(8, 16) / 64


def sent(body: Any, *more: Any, x: Any = X) -> tuple[np.ndarray, dict[str, float], dict[str, float]]:
    """The results of all ranks, one after the other in mesh order; collectives and bytes for each rank."""

    def f(x: Any, *more: Any) -> list[Any]:
        specs = (P(("x", "y")), *(P() for _ in more))
        return [jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P(("x", "y")))(x, *more)]

    specs = [P(("x", "y"), None), *(P(*(None,) * np.ndim(m)) for m in more)]
    (got,), _, _, world = run(f, [x, *more], specs, MESH)
    return got, {k: n / 8 for k, n in world.calls.items()}, {k: n / 8 for k, n in world.bytes.items()}


def expected(of_rank: Any, x: np.ndarray = X) -> np.ndarray:
    """`of_rank(blocks, coordinates)` of every rank, where blocks[i, j] is that of the rank at x=i, y=j."""
    blocks = x.reshape(2, 4, 8, *x.shape[1:])
    return np.concatenate([of_rank(blocks, {"x": i, "y": j}) for i in range(2) for j in range(4)])


def summed(blocks: np.ndarray, at: dict[str, int], axes: tuple[str, ...]) -> np.ndarray:
    """The sum over axes that the rank at these coordinates has."""
    own = blocks if "x" in axes else blocks[at["x"], None]
    return (own if "y" in axes else own[:, at["y"], None]).sum((0, 1))


def number(at: dict[str, int], axes: tuple[str, ...]) -> int:
    k = 0
    for a in axes:
        k = k * SIZES[a] + at[a]
    return k


def count(axes: tuple[str, ...]) -> int:
    return int(np.prod([SIZES[a] for a in axes]))


AXES = [("x",), ("y",), ("x", "y"), ("y", "x")]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("write", ["in_dim", "starts", "brackets"])
def test_a_sum_is_scattered(axes, dim, write):
    n = count(axes)
    k = (8, 16)[dim] // n

    def body(x: Any) -> Any:
        y, i = lax.psum(x, axes), lax.axis_index(axes)
        if write == "in_dim":
            return lax.dynamic_slice_in_dim(y, i * k, k, dim)
        if write == "starts":
            return lax.dynamic_slice(y, (i * k, 0) if dim == 0 else (0, k * i), (k, 16) if dim == 0 else (8, k))
        y = y.reshape(*y.shape[:dim], n, k, *y.shape[dim + 1 :])
        return lax.dynamic_index_in_dim(y, i, dim, keepdims=False)

    def of_rank(blocks: Any, at: Any) -> Any:
        return np.split(summed(blocks, at, axes), n, dim)[number(at, axes)]

    got, calls, nbytes = sent(body)
    np.testing.assert_array_equal(got, expected(of_rank))
    if write == "brackets":  # a reshape is no part of it
        assert calls == {"all_reduce": 1}
    else:
        assert calls == {"reduce_scatter": 1} and nbytes == {"reduce_scatter": BLOCK}


def test_a_sum_over_axes_in_another_order_than_the_slice():
    body = lambda x: lax.dynamic_slice_in_dim(lax.psum(x, ("x", "y")), lax.axis_index(("y", "x")), 1)
    of_rank = lambda blocks, at: summed(blocks, at, ("x", "y"))[number(at, ("y", "x"))][None]
    got, calls, _ = sent(body)
    np.testing.assert_array_equal(got, expected(of_rank))
    assert calls == {"reduce_scatter": 1}


def own(y: Any, k: int = 2, dim: int = 0) -> Any:
    return lax.dynamic_slice_in_dim(y, lax.axis_index("y") * k, k, dim)


def part(v: np.ndarray, at: dict[str, int], k: int = 2) -> np.ndarray:
    return v[at["y"] * k : at["y"] * k + k]


BETWEEN = [
    ("mean", lambda x, w: own(lax.pmean(x, "y")), lambda s, w: s / 4),
    ("decay", lambda x, w: own(lax.pmean(x, "y") + 0.5 * w), lambda s, w: s / 4 + 0.5 * w),
    ("update", lambda x, w: own(w - jnp.sqrt(lax.psum(x, "y")) * w), lambda s, w: w - np.sqrt(s) * w),
    ("a row that goes with all", lambda x, w: own(lax.psum(x, "y") * w[:1]), lambda s, w: s * w[:1]),
    ("a cast", lambda x, w: own(lax.psum(x, "y").astype(jnp.int32)), lambda s, w: s.astype(np.int32)),
    ("its square", lambda x, w: own((lambda y: y * y)(lax.psum(x, "y"))), lambda s, w: s * s),
    ("a choice", lambda x, w: own(jnp.where(w > 1, lax.psum(x, "y"), w)), lambda s, w: np.where(w > 1, s, w)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "want"), BETWEEN, ids=[n for n, _, _ in BETWEEN])
def test_work_between_the_sum_and_the_slice_is_done_on_parts(name, body, want):
    got, calls, nbytes = sent(body, W)
    of_rank = lambda blocks, at: part(want(summed(blocks, at, ("y",)), W), at)
    np.testing.assert_allclose(got, expected(of_rank), rtol=1e-6)
    assert calls == {"reduce_scatter": 1} and nbytes == {"reduce_scatter": BLOCK}


def step(x: Any, w: Any) -> Any:
    """Two sums that end in one part."""
    return own(lax.psum(x, "y") + lax.psum(x * w, "y"))


@pytest.mark.parametrize(("columns", "op"), [(16, "all_reduce"), (1 << 14, "reduce_scatter")])
def test_small_sums_travel_together_and_large_ones_are_scattered(columns, op):
    x = np.resize(X, (64, columns))
    w = np.full((8, columns), 2, np.float32)
    got, calls, _ = sent(step, w, x=x)
    of_rank = lambda blocks, at: part(3 * summed(blocks, at, ("y",)), at)
    np.testing.assert_array_equal(got, expected(of_rank, x))
    assert calls == {op: 1 if op == "all_reduce" else 2}


@pytest.mark.parametrize(("dim", "op"), [(0, "reduce_scatter"), (1, "all_reduce")])
def test_columns_are_not_packed_where_the_network_is_faster_than_memory(dim, op):
    before = machine()
    use(Machine(memory=1e9, bandwidth=1e12))
    try:
        got, calls, _ = sent(lambda x: own(lax.psum(x, "y"), (2, 4)[dim], dim))
    finally:
        use(before)
    of_rank = lambda blocks, at: np.split(summed(blocks, at, ("y",)), 4, dim)[at["y"]]
    np.testing.assert_array_equal(got, expected(of_rank))
    assert calls == {op: 1}


WHOLE = [
    ("beside another sum", lambda x: own(lax.psum(x, "y")) + lax.psum(x, "y")[0, 0]),
    ("read twice", lambda x: (lambda y: own(y) + y.sum())(lax.psum(x, "y"))),
    ("backwards", lambda x: lax.dynamic_slice_in_dim(lax.psum(x, "y"), (3 - lax.axis_index("y")) * 2, 2)),
    ("another axis", lambda x: lax.dynamic_slice_in_dim(lax.psum(x, "y"), lax.axis_index("x") * 4, 4)),
    ("shifted", lambda x: lax.dynamic_slice_in_dim(lax.psum(x, "y"), lax.axis_index("y") * 2 + 1, 1)),
    ("overlapping", lambda x: lax.dynamic_slice_in_dim(lax.psum(x, "y"), lax.axis_index("y") * 2, 3)),
    ("a start that data choose", lambda x: lax.dynamic_slice_in_dim(lax.psum(x, "y"), x[0, 0].astype(jnp.int32) % 4, 2)),
    ("a maximum", lambda x: own(lax.pmax(x, "y"))),
    ("over more axes", lambda x: own(lax.psum(x, ("x", "y")))),
    ("sums along the dim between", lambda x: own(jnp.cumsum(lax.psum(x, "y"), 0))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body"), WHOLE, ids=[n for n, _ in WHOLE])
def test_what_stays_whole(name, body):
    """Against the same body with a sum that is gathered and added up by everyone."""
    got, calls, _ = sent(body)
    assert set(calls) == {"all_reduce"}
    real = lax.psum, lax.pmax
    gathered = lambda x, axes: lax.all_gather(x, axes)
    try:
        lax.psum = lambda x, axes: gathered(x, axes).sum(0)
        lax.pmax = lambda x, axes: gathered(x, axes).max(0)
        want, _, _ = sent(body)
    finally:
        lax.psum, lax.pmax = real
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("tiled", [False, True])
def test_the_own_part_of_a_gather_is_no_message(axes, dim, tiled):
    def body(x: Any) -> Any:
        y, i = lax.all_gather(x, axes, axis=dim, tiled=tiled), lax.axis_index(axes)
        if not tiled:
            return lax.dynamic_index_in_dim(y, i, dim, keepdims=False) * 2
        return lax.dynamic_slice_in_dim(y * 2, i * x.shape[dim], x.shape[dim], dim)

    got, calls, _ = sent(body)
    np.testing.assert_array_equal(got, 2 * X)
    assert not calls


def test_the_part_of_another_rank_is_sent():
    def body(x: Any) -> Any:
        return lax.dynamic_slice_in_dim(lax.all_gather(x, "y", tiled=True), (lax.axis_index("y") + 1) % 4 * 8, 8)

    got, calls, _ = sent(body)
    np.testing.assert_array_equal(got, expected(lambda blocks, at: blocks[at["x"], (at["y"] + 1) % 4]))
    assert calls == {"all_gather": 1}


@pytest.mark.parametrize("dim", [0, 1])
def test_a_scattered_sum_that_is_gathered_is_a_sum(dim):
    def body(x: Any) -> Any:
        y = lax.psum_scatter(x, "y", scatter_dimension=dim, tiled=True)
        return lax.all_gather(y, "y", axis=dim, tiled=True)

    got, calls, nbytes = sent(body)
    np.testing.assert_array_equal(got, expected(lambda blocks, at: summed(blocks, at, ("y",))))
    assert calls == {"all_reduce": 1} and nbytes == {"all_reduce": BLOCK}


def test_a_scattered_sum_that_others_read_is_gathered():
    """The optimizer works on parts: what it makes is gathered, and so is a part that stays."""

    def body(x: Any) -> Any:
        y = lax.psum_scatter(x, "y", tiled=True)
        return lax.all_gather(y, "y", tiled=True) + lax.all_gather(y * 2, "y", tiled=True) + y[0, 0]

    got, calls, _ = sent(body)

    def of_rank(blocks: Any, at: Any) -> Any:
        total = summed(blocks, at, ("y",))
        return 3 * total + part(total, at)[0, 0]

    np.testing.assert_array_equal(got, expected(of_rank))
    assert calls == {"reduce_scatter": 1, "all_gather": 2}


def test_bodies_of_loops():
    def body(x: Any) -> Any:
        def again(total: Any, k: Any) -> Any:
            return total + own(lax.psum(x * k, "y")), None

        return lax.scan(again, own(x), jnp.arange(3, dtype=jnp.float32))[0]

    got, calls, _ = sent(body)
    of_rank = lambda blocks, at: part(blocks[at["x"], at["y"]] + 3 * summed(blocks, at, ("y",)), at)
    np.testing.assert_array_equal(got, expected(of_rank))
    assert calls == {"reduce_scatter": 3}


@pytest.mark.parametrize(("axes", "op"), [(("y",), "reduce_scatter"), (("x", "y"), "all_reduce")], ids=str)
def test_a_replicated_sum_that_is_placed_by_rows(axes, op):
    """The slice is that of `reshard`, the sum that of a shard_map; what is cut along fewer axes than it is summed over is whole."""

    def f(x: Any) -> list[Any]:
        sum_of = jax.shard_map(lambda b: lax.psum(b, axes), mesh=MESH, in_specs=P(axes, None), out_specs=P(None, None))
        return [jax.reshard(sum_of(x), P("y", None))]

    (got,), _, _, world = run(f, [X], [P(axes, None)], MESH)
    np.testing.assert_array_equal(got, X.reshape(count(axes), -1, 16).sum(0))
    assert {k: n / 8 for k, n in world.calls.items()} == {op: 1}


def test_programs_without_such_reads_are_left_alone():
    body = lambda x: lax.psum(x, "y") + lax.axis_index("y")
    f = lambda x: [jax.shard_map(body, mesh=MESH, in_specs=P("y"), out_specs=P("y"))(x)]
    local = lowered(f, [X], [P("y", None)], MESH).local.jaxpr
    assert parts(local) is local


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dim", [0, 1])
def test_on_ranks(dim):
    n = jax.device_count()
    mesh = jax.make_mesh((n,), ("i",))
    x = np.arange(n * 2 * n * 3 * n, dtype=np.float32).reshape(n * 2 * n, 3 * n) % 29

    def body(x: Any) -> Any:
        k = x.shape[dim] // n
        return lax.dynamic_slice_in_dim(lax.psum(x, "i"), lax.axis_index("i") * k, k, dim)

    specs = [P("i"), P("i") if dim == 0 else P(None, "i")]
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs[0], out_specs=specs[1]))
    placed = jax.device_put(x, jax.NamedSharding(mesh, P("i")))
    np.testing.assert_array_equal(np.asarray(step(placed)), x.reshape(n, 2 * n, 3 * n).sum(0))
    text = step.lower(placed).compile().as_text()
    assert "reduce-scatter(" in text and "all-reduce(" not in text
