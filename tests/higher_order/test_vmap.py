"""vmap: axes, trees, shardings, errors, collectives over the mapped axis, maps inside it; against loops over examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import lax
from mpiarray.errors import DuplicateSpecError
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, run

F32 = np.float32
A, B = np.arange(6, dtype=F32).reshape(2, 3), np.arange(6, dtype=F32).reshape(2, 3) * 10 + 1


def close(got: Any, want: Any, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tol, atol=tol)


# -- axes and trees ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_axes", [(0, 0), (0, -2), (1, 1), (0, None), (None, 1), [0, 0]])
@pytest.mark.parametrize("out_axes", [0, 1, -1])
def test_axes(in_axes: Any, out_axes: int) -> None:
    f = lambda x, y: jnp.stack([x.sum() * y, y])
    got = jax.vmap(f, in_axes, out_axes)(A, B)
    size = next(v.shape[d] for v, d in zip((A, B), in_axes) if d is not None)
    rows = []
    for k in range(size):
        x, y = (v if d is None else np.take(v, k, d) for v, d in zip((A, B), in_axes))
        rows.append(np.stack([x.sum() * y, y]))
    close(got, np.stack(rows, out_axes))
    close(jax.jit(jax.vmap(f, in_axes, out_axes))(A, B), got)
    close(jax.vmap(jax.jit(f), in_axes, out_axes)(A, B), got)


def test_trees_keywords_and_unmapped_results() -> None:
    f = lambda p, x: {"y": p["w"] * x + p["b"], "n": 1.0}
    got = jax.vmap(f, in_axes=({"w": 0, "b": None}, None), out_axes={"y": 1, "n": None})(
        {"w": A[:, 0], "b": F32(2)}, A[1]
    )
    close(got["y"], (A[:, :1] * A[1] + 2).T)
    assert got["n"] == 1.0 and isinstance(got["n"], float)
    close(jax.vmap(lambda x, *, y: x + y)(A, y=B), A + B)
    close(jax.vmap(lambda: jnp.arange(2.0), axis_size=3)(), [[0, 1]] * 3)
    close(jax.vmap(lambda x: jnp.arange(2.0))(A), [[0, 1]] * 2)
    assert jax.vmap(lambda x: (x, None))(A)[1] is None


def test_nested() -> None:
    outer = jax.vmap(jax.vmap(jnp.dot, in_axes=(None, 0)), in_axes=(0, None))
    close(outer(A, B), A @ B.T)
    cube = np.arange(24, dtype=F32).reshape(2, 3, 4)
    close(jax.vmap(jax.vmap(lambda t: t.sum(), in_axes=1), in_axes=0)(cube), cube.sum(1))


def test_of_derivatives_and_derivatives_of_it() -> None:
    f = lambda x: (jnp.sin(x) * x.sum()).sum()
    close(jax.vmap(jax.grad(f))(A), np.stack([jax.grad(f)(r) for r in A]))
    close(jax.grad(lambda a: jax.vmap(f)(a).sum())(A), np.stack([jax.grad(f)(r) for r in A]))
    close(jax.vmap(jax.hessian(f))(A), np.stack([jax.hessian(f)(r) for r in A]))
    close(jax.vmap(lambda t: jax.jvp(f, (A[0],), (t,))[1])(np.eye(3, dtype=F32)), jax.grad(f)(A[0]))
    close(jax.vmap(jax.vjp(jnp.sin, A[0])[1])(np.eye(3, dtype=F32))[0], np.diag(np.cos(A[0])))


CONTROL: dict[str, Callable[..., Any]] = {
    "cond": lambda t, k: lax.cond(t > 0, lambda t: t * 2, lambda t: -t - k, t),
    "cond not mapped": lambda t, k: lax.cond(True, lambda t: (t * 2, 1.0), lambda t: (t, 0.0), t)[0],
    "switch": lambda t, k: lax.switch(k, [lambda t: t, lambda t: t + 10, lambda t: jnp.sin(t)], t),
    "switch of constants": lambda t, k: lax.switch(k, [lambda: 1.0, lambda: 2.0]),
    "while": lambda t, k: lax.while_loop(lambda c: c < 100, lambda c: c * 3 + 1, jnp.abs(t)),
    "while of several": lambda t, k: lax.while_loop(lambda c: c[0] < k, lambda c: (c[0] + 1, c[1] * 2 + t, c[2]), (0, 1.0, 7.0))[1],
    "fori": lambda t, k: lax.fori_loop(0, 4, lambda i, c: c * 0.5 + i * t, t),
    "dynamic fori": lambda t, k: lax.fori_loop(0, k, lambda i, c: c + t * i, 0.0),
    "scan": lambda t, k: lax.scan(lambda c, v: (c * 0.5 + v, c), t, jnp.arange(3.0))[1].sum(),
    "scan that becomes mapped": lambda t, k: lax.scan(lambda c, v: (c + t * v, c), 0.0, jnp.arange(3.0))[1].sum(),
    "scan of mapped slices": lambda t, k: lax.scan(lambda c, v: (c + v, v), 0.0, jnp.stack([t, t * 2]))[0],
    "map": lambda t, k: lax.map(lambda v: v * t, jnp.arange(2.0)).sum(),
    "associative": lambda t, k: lax.associative_scan(jnp.multiply, jnp.stack([t, t + 1, t + 2]))[2],
}  # fmt: skip


@pytest.mark.parametrize("name", CONTROL)
def test_of_control_flow(name: str) -> None:
    f = CONTROL[name]
    t, k = np.array([-1.5, 0.5, 2.0, 0.0], F32), np.array([2, 0, 1, 3], np.int32)
    want = [f(*row) for row in zip(t, k)]
    close(jax.vmap(f)(t, k), want)
    close(jax.jit(jax.vmap(f))(t, k), want)
    close(jax.vmap(f, in_axes=(0, None))(t, 2), [f(v, 2) for v in t])


# -- errors --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "sizes": (
        lambda: jax.vmap(lambda x, y: x)(A, np.ones((4, 2))), ValueError,
        ("vmap got inconsistent sizes for array axes to be mapped", "size 2", "size 4", "float32[4,2]", "'y'"),
    ),
    "axis_size": (lambda: jax.vmap(lambda x: x, axis_size=5)(A), ValueError, ("inconsistent sizes", "axis_size was given as 5")),
    "rank": (lambda: jax.vmap(lambda x: x)(F32(1)), ValueError, ("axis 0", "implies that its rank should be at least 1", "only 0")),
    "negative": (lambda: jax.vmap(lambda x: x, in_axes=-3)(A), ValueError, ("axis -3", "rank should be at least 3")),
    "nothing mapped": (lambda: jax.vmap(lambda x: x, in_axes=None)(A), ValueError, ("must have at least one non-None value in in_axes",)),
    "no arguments": (lambda: jax.vmap(lambda: 1.0)(), ValueError, ("at least one argument",)),
    "number of axes": (lambda: jax.vmap(lambda x, y: x, in_axes=(0,))(A, B), ValueError, ("in_axes", "len(in_axes)=1", "len(args)=2")),
    "axes of a tree": (lambda: jax.vmap(lambda d: d, in_axes=({"a": 0},))({"b": A}), ValueError, ("in_axes", "tree prefix")),
    "kind of axes": (lambda: jax.vmap(lambda x: x, in_axes="0")(A), TypeError, ("in_axes", "'0'")),
    "leaf of axes": (lambda: jax.vmap(lambda x: x, in_axes=(0.5,))(A), TypeError, ("in_axes", "0.5")),
    "out_axes None": (lambda: jax.vmap(lambda x: x, out_axes=None)(A), ValueError, ("got axis spec None but output was batched on axis 0", "out_axes")),
    "out of bounds": (lambda: jax.vmap(lambda x: x, out_axes=2)(A), ValueError, ("out_axes", "axis 2", "out of bounds")),
    "out_axes of a tree": (lambda: jax.vmap(lambda x: {"a": x}, out_axes={"b": 0})(A), ValueError, ("out_axes", "tree prefix")),
    "no array": (lambda: jax.vmap(lambda x: x)("text"), TypeError, ("<class 'str'>", "args[0]")),
    "no function": (lambda: jax.vmap(3), TypeError, ("callable", "3")),
    "a Python branch": (lambda: jax.vmap(lambda x: x if x.sum() > 0 else -x)(A), jax.errors.TracerBoolConversionError, ("boolean", "vmap", "lax.cond")),
    "a Python float": (lambda: jax.vmap(lambda x: float(x.sum()))(A), jax.errors.ConcretizationTypeError, ("float()", "f32[]")),
    "a Python index": (lambda: jax.vmap(lambda k: [1, 2][k])(np.arange(2)), jax.errors.TracerIntegerConversionError, ("__index__", "i32[]")),
    "numpy": (lambda: jax.vmap(lambda x: np.sin(np.asarray(x)))(A), jax.errors.TracerArrayConversionError, ("__array__", "mpiarray.numpy")),
    "unbound": (lambda: jax.vmap(lambda x: lax.psum(x, "c"), axis_name="b")(A), NameError, ("unbound axis name: c", "psum")),
    "no name": (lambda: jax.vmap(lambda x: lax.psum(x, "b"))(A), NameError, ("unbound axis name: b",)),
    "left": (lambda: (jax.vmap(lambda x: x, axis_name="b")(A), lax.axis_index("b")), NameError, ("unbound axis name: b",)),
    "groups": (lambda: jax.vmap(lambda x: lax.all_gather(x, "b", axis_index_groups=[[0], [1]]), axis_name="b")(A), NotImplementedError, ("axis_index_groups",)),
    "casts": (lambda: jax.vmap(lambda x: lax.pcast(x, "b", to="varying"), axis_name="b")(A), NotImplementedError, ("pcast", "'b'")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_errors_say_who_what_and_why(name: str) -> None:
    call, kind, parts = REFUSED[name]
    with pytest.raises(kind) as found:
        call()
    for part in parts:
        assert part in str(found.value), f"{part!r} is not in: {found.value}"


def test_tracers_do_not_outlive_it() -> None:
    leaked: list[Any] = []
    jax.vmap(lambda x: leaked.append(x) or x)(A)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        leaked[0] + 1


# -- collectives over the mapped axis ---------------------------------------------------------------------------------

X = (np.cos(np.arange(4 * 8)) * 4).astype(F32).reshape(4, 8)
PERM = [(0, 2), (2, 1), (3, 0)]
SUM = X.sum(0)
OVER: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "psum": (lambda r: lax.psum(r, "b"), np.tile(SUM, (4, 1))),
    "psum of a constant": (lambda r: lax.psum(1, "b") * r, X * 4),
    "psum of the same": (lambda r: lax.psum(jnp.arange(2.0), "b"), np.tile([0.0, 4.0], (4, 1))),
    "pmean": (lambda r: r - lax.pmean(r, "b"), X - X.mean(0)),
    "pmax": (lambda r: lax.pmax(r, "b"), np.tile(X.max(0), (4, 1))),
    "pmin": (lambda r: lax.pmin(r, "b"), np.tile(X.min(0), (4, 1))),
    "all_gather": (lambda r: lax.all_gather(r, "b"), np.tile(X, (4, 1, 1))),
    "all_gather along 1": (lambda r: lax.all_gather(r, "b", axis=1), np.tile(X.T, (4, 1, 1))),
    "all_gather tiled": (lambda r: lax.all_gather(r, "b", tiled=True), np.tile(X.reshape(-1), (4, 1))),
    "all_gather of the same": (lambda r: lax.all_gather(jnp.arange(2.0), "b"), np.tile([0.0, 1.0], (4, 4, 1))),
    "psum_scatter": (lambda r: lax.psum_scatter(r[:4], "b"), SUM[:4]),
    "psum_scatter tiled": (lambda r: lax.psum_scatter(r, "b", tiled=True), SUM.reshape(4, 2)),
    "ppermute": (lambda r: lax.ppermute(r, "b", PERM), np.stack([X[3], X[2], X[0], 0 * X[0]])),
    "pshuffle": (lambda r: lax.pshuffle(r, "b", [3, 1, 0, 2]), X[[3, 1, 0, 2]]),
    "all_to_all": (lambda r: lax.all_to_all(r.reshape(4, 2), "b", 0, 1), X.reshape(4, 4, 2).transpose(1, 2, 0)),
    "all_to_all tiled": (lambda r: lax.all_to_all(r, "b", 0, 0, tiled=True), X.reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8)),
    "pbroadcast": (lambda r: lax.pbroadcast(r, "b", 2), np.tile(X[2], (4, 1))),
    "axis_index": (lambda r: r * 0 + lax.axis_index("b"), np.tile(np.arange(4.0)[:, None], (1, 8))),
    "axis_size": (lambda r: r * lax.axis_size("b"), X * 4),
    "in scan": (lambda r: lax.scan(lambda c, _: (c - lax.pmean(c, "b"), None), r, None, length=2)[0], X - X.mean(0)),
    "in jit": (lambda r: jax.jit(lambda v: v - lax.pmean(v, "b"))(r), X - X.mean(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", OVER)
def test_collectives_over_the_mapped_axis(name: str) -> None:
    f, want = OVER[name]
    mapped = jax.vmap(f, axis_name="b")
    close(mapped(X), want)
    close(jax.jit(mapped)(X), want)
    close(jax.vmap(f, in_axes=1, axis_name="b")(X.T), want)


@pytest.mark.parametrize("name", OVER)
def test_collectives_over_a_mapped_axis_that_is_sharded(name: str) -> None:
    f, want = OVER[name]
    for mesh, spec in (
        (mesh_of(("x", 2), ("y", 2)), P("x")),
        (mesh_of(("x", 4)), P("x")),
        (mesh_of(("x", 2), ("y", 2), kind=AxisType.Auto), P("x", "y")),
    ):
        (got,), (aval,), _, world = run(lambda x: [jax.vmap(f, axis_name="b")(x)], [X], [spec], mesh)
        close(got, want)
        if mesh.are_all_axes_explicit:
            assert aval.dims[0] == ("x",), "results are sharded as the mapped dim is"
            if name in ("psum", "pmax"):
                assert set(world.calls) == {"all_reduce"}


def test_two_mapped_axes_and_their_derivatives() -> None:
    cube = np.sin(np.arange(24, dtype=F32)).reshape(4, 3, 2)
    f = lambda r: r * lax.psum(r**2, ("rows", "columns")) + lax.axis_index(("rows", "columns"))
    both = jax.vmap(jax.vmap(f, axis_name="columns"), axis_name="rows")
    plain = lambda x: x * (x**2).sum((0, 1)) + jnp.arange(12.0).reshape(4, 3, 1)
    close(both(cube), plain(cube))
    close(jax.grad(lambda x: (both(x) ** 2).sum())(cube), jax.grad(lambda x: (plain(x) ** 2).sum())(cube), 1e-3)
    gather = lambda r: lax.all_gather(r, ("rows", "columns")).sum((1,))
    close(jax.vmap(jax.vmap(gather, axis_name="columns"), axis_name="rows")(cube)[1, 2], cube.reshape(12, 2).sum(1))
    scatter = lambda r: lax.psum_scatter(jnp.arange(12.0) * r.sum(), ("rows", "columns"))
    close(
        jax.vmap(jax.vmap(scatter, axis_name="columns"), axis_name="rows")(cube),
        (np.arange(12) * cube.sum()).reshape(4, 3),
        1e-4,
    )


def test_derivatives_of_examples_through_collectives() -> None:
    """The derivative of one example's function: cotangents of all examples are summed, as in JAX."""
    f = lambda r: (r * lax.psum(r, "b")).sum()
    got = jax.vmap(jax.grad(f), axis_name="b")(X)
    close(got, np.tile(X.sum(0) * 2, (4, 1)))


# -- shardings -----------------------------------------------------------------------------------------------------------

MESH = mesh_of(("x", 2), ("y", 2))


def types_of(f: Callable[..., Any], *avals: tuple[tuple[int, ...], P]) -> list[str]:
    args = [np.arange(np.prod(shape), dtype=F32).reshape(shape) for shape, _ in avals]
    return [a.short() for a in run(lambda *xs: jax.tree.leaves(f(*xs)), args, [s for _, s in avals], MESH)[1]]


def test_results_are_sharded_as_the_mapped_dim() -> None:
    x = ((4, 6), P("x", "y"))
    assert types_of(jax.vmap(lambda v: v * 2), x) == ["f32[4@x,6@y]"]
    assert types_of(jax.vmap(jnp.sum), x) == ["f32[4@x]"]
    assert types_of(jax.vmap(jnp.sum, in_axes=1), x) == ["f32[6@y]"]
    assert types_of(jax.vmap(lambda v: v + 1, in_axes=0, out_axes=1), x) == ["f32[6@y,4@x]"]
    assert types_of(jax.vmap(lambda v: jnp.zeros(3)), x) == ["f32[4@x,3]"]
    assert types_of(jax.vmap(lambda v: (v, jnp.zeros(3)), out_axes=(0, None)), x) == ["f32[4@x,6@y]", "f32[3]"]
    assert types_of(jax.vmap(lambda v: jnp.zeros(4, out_sharding=P("y"))), x) == ["f32[4@x,4@y]"]
    assert types_of(jax.vmap(lambda v, w: v @ w, in_axes=(0, None)), ((4, 6), P("x")), ((6, 2), P(None, "y"))) == [
        "f32[4@x,2@y]"
    ]
    assert types_of(jax.vmap(lambda v: jax.reshard(v, P(None))), x) == ["f32[4@x,6]"]
    assert types_of(jax.vmap(jax.vmap(lambda a: a * 3)), x) == ["f32[4@x,6@y]"]
    assert types_of(jax.vmap(lambda v: lax.scan(lambda c, r: (c + r, c), v.sum() * 0, v)), ((4, 6), P("x"))) == [
        "f32[4@x]",
        "f32[4@x,6]",
    ]
    assert types_of(jax.vmap(lambda v: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, v)), x) == [
        "f32[4@x,6@y]"
    ]
    assert types_of(jax.vmap(lambda v: lax.cond(v.sum() > 9, jnp.sin, jnp.cos, v)), x) == ["f32[4@x,6@y]"]


def test_the_axis_of_the_mapped_dim_is_taken() -> None:
    x = ((4, 6), P("x", None))
    with pytest.raises(DuplicateSpecError):
        types_of(jax.vmap(lambda v: jax.reshard(v, P("x"))), x)
    with pytest.raises(ValueError, match=r"should be sharded the same. Got inconsistent axis specs: 'x' vs None"):
        types_of(jax.vmap(jnp.add), x, ((4, 6), P(None, "x")))
    assert types_of(jax.vmap(jnp.add, in_axes=(0, None)), x, ((6,), P(None))) == ["f32[4@x,6]"]


# -- maps inside ----------------------------------------------------------------------------------------------------------

LINE = mesh_of(("i", 4))


def body(b: Any) -> Any:
    return b - lax.pmean(b.mean(), "i") + lax.axis_index("i")


def by_hand(r: np.ndarray) -> np.ndarray:
    return r - r.mean() + np.repeat(np.arange(4), r.size // 4)


@pytest.mark.parametrize("out_axes", [0, 1])
def test_maps_inside(out_axes: int) -> None:
    f = jax.shard_map(body, in_specs=P("i"), out_specs=P("i"))
    (got,), (aval,), *_ = run(lambda x: [jax.vmap(f, out_axes=out_axes)(x)], [X], [P(None, "i")], LINE)
    close(got, np.stack([by_hand(r) for r in X], out_axes))
    assert aval.short() == ("f32[4,8@i]", "f32[8@i,4]")[out_axes]


def test_maps_inside_with_derivatives() -> None:
    loss = jax.shard_map(lambda w, b: lax.psum(jnp.sin(b * w).sum(), "i"), in_specs=(P(), P("i")), out_specs=P())
    ws = np.array([0.5, 1.0, 2.0], F32)
    (got, outer), *_ = run(
        lambda w, x: [
            jax.vmap(jax.grad(loss), (0, None))(w, x),
            jax.grad(lambda w: jax.vmap(loss, (0, None))(w, x).sum())(w),
        ],
        [ws, X[0]],
        [P(), P("i")],
        LINE,
    )
    want = [(X[0] * np.cos(X[0] * w)).sum() for w in ws]
    close(got, want, 1e-4)
    close(outer, want, 1e-4)


def test_a_mapped_dim_that_is_sharded_is_not_manual_inside() -> None:
    seen: list[str] = []

    def row(b: Any) -> Any:
        seen.append(str(jax.typeof(b)))
        return b - lax.pmean(b.mean(), "y")

    f = jax.shard_map(row, in_specs=P("y"), out_specs=P("y"))
    (got,), (aval,), *_ = run(lambda x: [jax.vmap(f)(x)], [X], [P("x", "y")], MESH)
    close(got, X - X.mean(1, keepdims=True))
    assert aval.short() == "f32[4@x,8@y]"
    assert seen[0] == "float32[4]{V:y}"
    for bad in (
        jax.shard_map(row, in_specs=P("x"), out_specs=P("x")),
        jax.shard_map(row, in_specs=P("y"), out_specs=P("y"), axis_names={"x", "y"}),
    ):
        with pytest.raises(ValueError, match="marked as manual"):
            run(lambda x, bad=bad: [jax.vmap(bad)(x)], [X], [P("x", "y")], MESH)


def test_spmd_axis_name() -> None:
    mesh = mesh_of(("x", 2), ("y", 2), kind=AxisType.Auto)
    f = jax.shard_map(lambda b: b * 2 + lax.axis_index("y") + lax.psum(b.sum(), "y"), in_specs=P("y"), out_specs=P("y"))
    (got,), _, (spec,), _ = run(lambda x: [jax.vmap(f, spmd_axis_name="x")(x)], [X], [P()], mesh)
    close(got, X * 2 + np.repeat([0, 1], 4) + X.sum(1, keepdims=True))
    assert spec == P("x", "y")
    g = jax.shard_map(lambda b: lax.psum((b**2).sum(), "y"), in_specs=P("y"), out_specs=P())
    (grads,), *_ = run(lambda x: [jax.grad(lambda x: jax.vmap(g, spmd_axis_name="x")(x).sum())(x)], [X], [P()], mesh)
    close(grads, 2 * X)
    with pytest.raises(ValueError, match="vmap spmd_axis_name cannot appear in shard_map in_specs"):
        run(lambda x: [jax.vmap(f, spmd_axis_name="y")(x)], [X], [P()], mesh)


def test_over_both_kinds_of_axes() -> None:
    for check_vma in (True, False):
        f = jax.shard_map(
            lambda b: jax.vmap(lambda c: c / lax.psum(c, ("b", "i")) + lax.pmax(lax.pmin(c, "b"), "i"), in_axes=1, out_axes=1, axis_name="b")(b),
            in_specs=P("i", None), out_specs=P("i", None), check_vma=check_vma,
        )  # fmt: skip
        (got,), *_ = run(lambda x, f=f: [f(x)], [X], [P("i")], LINE)
        close(got, X / X.sum() + X.min(1).max(), 1e-3)


AMONG: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "psum": (lambda r: lax.psum(r, "i"), lambda b: [b.sum(0)] * 4),
    "pmax": (lambda r: lax.pmax(r, "i"), lambda b: [b.max(0)] * 4),
    "all_gather": (lambda r: lax.all_gather(r, "i", axis=1), lambda b: [b.transpose(1, 0, 2)] * 4),
    "all_gather tiled": (
        lambda r: lax.all_gather(r, "i", axis=1, tiled=True),
        lambda b: [b.transpose(1, 0, 2).reshape(4, -1)] * 4,
    ),
    "psum_scatter": (
        lambda r: lax.psum_scatter(r, "i", scatter_dimension=0, tiled=True),
        lambda b: list(b.sum(0).reshape(4, 1, 8)),
    ),
    "psum_scatter along 1": (
        lambda r: lax.psum_scatter(r, "i", scatter_dimension=1, tiled=True),
        lambda b: list(b.sum(0).reshape(4, 4, 2).transpose(1, 0, 2)),
    ),
    "all_to_all": (
        lambda r: lax.all_to_all(r, "i", 1, 0, tiled=True),
        lambda b: list(b.reshape(4, 4, 4, 2).transpose(2, 0, 1, 3).reshape(4, 16, 2)),
    ),
    "ppermute": (lambda r: lax.ppermute(r, "i", PERM), lambda b: [b[3], b[2], b[0], b[0] * 0]),
    "axis_index": (lambda r: r + lax.axis_index("i"), lambda b: [b[k] + k for k in range(4)]),
}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", AMONG)
def test_collectives_among_instances_carry_the_mapped_dim(name: str, dim: int) -> None:
    """Every example by itself, wherever the mapped dim is: blocks of 4 x 8, three examples each."""
    f, by_hand = AMONG[name]
    x = np.random.default_rng(0).standard_normal((4, 3, 4, 8)).astype(F32)  # instance, example, block
    whole = np.concatenate([np.moveaxis(b, 0, dim) for b in x], 0 if dim else 1)
    spec = P("i") if dim else P(None, "i")
    g = jax.shard_map(
        lambda b: jax.vmap(f, in_axes=dim)(b)[None],
        in_specs=spec,
        out_specs=P("i"),
        check_vma=name not in ("psum", "pmax"),
    )
    (got,), *_ = run(lambda x: [g(x)], [whole], [spec], LINE)
    for e in range(3):
        for k, want in enumerate(by_hand(x[:, e])):
            close(got[k, e], want)


def test_maps_around_it() -> None:
    seen: list[str] = []

    def rows(b: Any) -> Any:
        def one(c: Any) -> Any:
            seen.append(str(jax.typeof(c)))
            return c - lax.pmean(c, "i") + lax.all_gather(c, "i", tiled=True)[:2].sum()

        return jax.vmap(one, in_axes=1, out_axes=1)(b)

    f = jax.shard_map(rows, in_specs=P("i", None), out_specs=P("i", None))
    (got,), *_ = run(lambda x: [f(x)], [X.T.copy()], [P("i")], LINE)
    close(got, X.T - np.tile(X.T.reshape(4, 2, 4).mean(0), (4, 1)) + X.T[:2].sum(0))
    assert seen == ["float32[2]{V:i}"]
