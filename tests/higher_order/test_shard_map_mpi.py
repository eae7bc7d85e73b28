"""shard_map on real ranks: generated bodies against a reference that slices and loops, and what training steps send."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import lax
from mpiarray.comm.stats import counting
from tests.higher_order.tanh_layers import by_hand
from tests.peak import peak_of
from tests.runtime.on_ranks import grid, line, placed, ranks

pytestmark = pytest.mark.mpi

P = jax.P
Coords = tuple[int, int]
Blocks = dict[Coords, np.ndarray]

SPECS = [P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x")), P("x"), P(None, "y"), P()]
AXES = ["x", "y", ("x", "y"), ("y", "x")]


# -- the reference: a dict of blocks, and loops ------------------------------------------------------------


def names_of(axes: Any) -> tuple[str, ...]:
    return axes if isinstance(axes, tuple) else (axes,)


def index_of(coords: Coords, axes: Any, sizes: dict[str, int]) -> int:
    index = 0
    for a in names_of(axes):
        index = index * sizes[a] + coords["xy".index(a)]
    return index


def block_of(x: np.ndarray, spec: Any, coords: Coords, sizes: dict[str, int]) -> np.ndarray:
    for d, axes in enumerate(spec):
        if axes is not None:
            n = int(np.prod([sizes[a] for a in names_of(axes)]))
            x = np.split(x, n, d)[index_of(coords, axes, sizes)]
    return x


def group_of(coords: Coords, axes: Any, sizes: dict[str, int]) -> list[Coords]:
    """The instances that differ from this one only along the axes, in the order of their index."""
    every = itertools.product(range(sizes["x"]), range(sizes["y"]))
    same = [c for c in every if all(c[k] == coords[k] for k, a in enumerate("xy") if a not in names_of(axes))]
    return sorted(same, key=lambda c: index_of(c, axes, sizes))


Reference = Callable[[list[np.ndarray], int], np.ndarray]


def rolled(n: int) -> list[tuple[int, int]]:
    return [(k, (k + 1) % n) for k in range(n)]


BODIES: dict[str, tuple[Callable[[Any, Any, int], Any], Reference, str]] = {
    "psum": (lambda b, a, n: lax.psum(b, a), lambda bs, k: sum(bs), "all_reduce"),
    "pmean": (lambda b, a, n: lax.pmean(b, a), lambda bs, k: sum(bs) / len(bs), "all_reduce"),
    "pmax": (lambda b, a, n: lax.pmax(b, a), lambda bs, k: np.max(bs, 0), "all_reduce"),
    "pmin": (lambda b, a, n: lax.pmin(b, a), lambda bs, k: np.min(bs, 0), "all_reduce"),
    "all_gather": (
        lambda b, a, n: lax.all_gather(b, a, axis=1, tiled=True),
        lambda bs, k: np.concatenate(bs, 1),
        "all_gather",
    ),
    "all_gather stacked": (lambda b, a, n: lax.all_gather(b, a, axis=1), lambda bs, k: np.stack(bs, 1), "all_gather"),
    "psum_scatter": (
        lambda b, a, n: lax.psum_scatter(b, a, scatter_dimension=1, tiled=True),
        lambda bs, k: np.split(sum(bs), len(bs), 1)[k],
        "reduce_scatter",
    ),
    "all_to_all": (
        lambda b, a, n: lax.all_to_all(b, a, 1, 0, tiled=True),
        lambda bs, k: np.concatenate([np.split(b, len(bs), 1)[k] for b in bs], 0),
        "all_to_all",
    ),
    "ppermute": (lambda b, a, n: lax.ppermute(b, a, rolled(n)), lambda bs, k: bs[k - 1], "permute"),
    "axis_index": (lambda b, a, n: b + lax.axis_index(a), lambda bs, k: bs[k] + np.float32(k), ""),
}


def varying(y: Any) -> Any:
    missing = tuple(a for a in ("x", "y") if a not in jax.typeof(y).vma)
    return lax.pcast(y, missing, to="varying") if missing else y


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_collectives(name: str, axes: Any) -> None:
    """Every collective x in_specs x eager or jit x check_vma, one MPI call each."""
    body, reference, kind = BODIES[name]
    mesh = grid()
    sizes = dict(mesh.shape)
    n, size = ranks(), int(np.prod([sizes[a] for a in names_of(axes)]))
    x = np.random.default_rng(3).integers(-9, 9, (2 * n, n * n)).astype(np.float32)
    every = list(itertools.product(range(sizes["x"]), range(sizes["y"])))
    for spec in SPECS:
        blocks = {c: block_of(x, spec, c, sizes) for c in every}
        want = []
        for c in every:
            numbered = tuple(sorted(names_of(axes))) if name == "ppermute" else axes  # it counts in the mesh's order
            group = group_of(c, numbered, sizes)
            want.append(reference([blocks[g] for g in group], group.index(c)))
        array = placed(x, mesh, *spec)
        for check_vma in (True, False):
            run = lambda b, check=check_vma: varying(body(varying(b), axes, size)) if check else body(b, axes, size)
            f = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=P(("x", "y")), check_vma=check_vma)
            for g in (f, jax.jit(f)):
                g(array)
                with counting() as counts:
                    got = g(array)
                assert dict(counts.calls) == ({kind: 1} if kind and size > 1 else {}), (spec, check_vma)
                np.testing.assert_allclose(np.asarray(got), np.concatenate(want), rtol=1e-6, err_msg=str(spec))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_tree_is_one_message_for_each_dtype(compiled: bool) -> None:
    x = np.arange(3 * ranks(), dtype=np.float32)
    f = jax.shard_map(
        lambda b: lax.psum({"a": b, "b": (b * 2, b.astype(np.int32)), "c": b.sum(), "none": b[:0]}, "x"),
        mesh=line(), in_specs=P("x"), out_specs=P(),
    )  # fmt: skip
    f = jax.jit(f) if compiled else f
    array = placed(x, line(), "x")
    f(array)
    with counting() as counts:
        got = f(array)
    total = x.reshape(ranks(), 3).sum(0)
    assert counts.calls["all_reduce"] == (2 if ranks() > 1 else 0)
    np.testing.assert_array_equal(np.asarray(got["a"]), total)
    np.testing.assert_array_equal(np.asarray(got["b"][0]), 2 * total)
    np.testing.assert_array_equal(np.asarray(got["b"][1]), total.astype(np.int32))
    assert np.asarray(got["b"][1]).dtype == np.int32
    assert float(got["c"]) == x.sum()
    assert got["none"].shape == (0,)


# -- what training steps send, and what they hold ----------------------------------------------------------


def parameters(widths: Sequence[int], *spec: Any) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal((a, b)) / a**0.5).astype(np.float32) for a, b in itertools.pairwise(widths)]
    return [(placed(w, line(), *spec), placed(np.zeros(len(w.T), np.float32), line(), *spec)) for w in weights]


def check_gradients(found: Any, params: Any, x: np.ndarray) -> None:
    loss, grads = by_hand([w for w, _ in params], x)
    np.testing.assert_allclose(float(found[0]), loss, rtol=1e-5)
    for (got, _), want in zip(found[1], grads):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-3, atol=1e-6)


def dense(x: Any, w: Any, b: Any) -> Any:
    return jnp.tanh(x @ w + b)


def test_a_data_parallel_step_is_one_allreduce() -> None:
    n = ranks()
    params, x = parameters([8, 16, 16, 8], None), np.random.default_rng(1).standard_normal((2 * n, 8)).astype("f")

    @jax.shard_map(mesh=line(), in_specs=(P(), P("x")), out_specs=P())
    def loss(params: Any, x: Any) -> Any:
        for w, b in params:
            x = dense(x, w, b)
        return lax.pmean((x**2).mean(), "x")

    step = jax.jit(jax.value_and_grad(loss))
    batch = placed(x, line(), "x")
    step(params, batch)
    with counting() as counts:
        found = step(params, batch)
    # the loss does not wait for the gradients nor they for it: seven sums in one message at most in two
    assert set(counts.calls) <= {"all_reduce"}
    assert counts.calls["all_reduce"] <= 2 * (n > 1)
    check_gradients(found, params, x)


def fully_sharded(widths: Sequence[int], batch: int) -> tuple[Any, Any, Any, np.ndarray]:
    params, x = parameters(widths, "x"), np.random.default_rng(1).standard_normal((batch, widths[0])).astype("f")

    @jax.remat
    def layer(x: Any, w: Any, b: Any) -> Any:
        return dense(x, *(lax.all_gather(part, "x", tiled=True) for part in (w, b)))

    @jax.shard_map(mesh=line(), in_specs=(P("x"), P("x")), out_specs=P())
    def loss(params: Any, x: Any) -> Any:
        for w, b in params:
            x = layer(x, w, b)
        return lax.pmean((x**2).mean(), "x")

    return jax.jit(jax.value_and_grad(loss)), params, placed(x, line(), "x"), x


def test_fsdp_gathers_each_weight_once_per_pass() -> None:
    n = ranks()
    step, params, batch, x = fully_sharded([8 * n, 16 * n, 16 * n, 8 * n], 2 * n)
    step(params, batch)
    with counting() as counts:
        found = step(params, batch)
    leaves = 2 * len(params)
    if n > 1:
        whole = sum(w.size + b.size for w, b in params) * 4
        assert (
            whole // n < counts.bytes["all_gather"] <= 2 * whole // n
        )  # forward, and again on the way back where needed
        assert leaves < counts.calls["all_gather"] <= 2 * leaves or n > 2  # then small ones travel in one message
        assert counts.bytes["reduce_scatter"] == whole
        assert counts.calls["reduce_scatter"] == (leaves if n == 2 else 1)
        assert counts.calls["all_reduce"] == 1  # the loss
    assert all(g.sharding.is_equivalent_to(w.sharding, 2) for (g, _), (w, _) in zip(found[1], params))
    check_gradients(found, params, x)


def test_fsdp_never_holds_all_parameters() -> None:
    n = ranks()
    width, depth = 768, 12  # layers that are larger than the pieces of a message
    step, params, batch, _ = fully_sharded([width] * (depth + 1), n)
    whole = depth * width * width * 4
    step(params, batch)
    found, peak = peak_of(lambda: step(params, batch))
    # the gradients' own share, and some gathered layers and their gradients at a time
    assert peak < whole / n + 5 * whole / depth
    assert peak >= whole / n
    del found
