"""Reductions, cumulative ops, sorts and searches on a pretended mesh, against numpy on the whole array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpiarray.core.op import OPS
from mpiarray.core.value import literal
from mpiarray.errors import ShardingTypeError
from mpiarray.ops import bits, extremes, reductions, searching, sorting
from mpiarray.ops.arithmetic import add, max_, mul
from mpiarray.ops.comparison import ge
from mpiarray.ops.reduce_by import known_op, reduce, reduce_with
from mpiarray.ops.select import select_n
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray
from mpiarray.types.dtypes import as_dtype
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, run

EXPLICIT = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
SPECS = [P("x", "y"), P("y", "x"), P("x", None), P(None, "y"), P(("x", "y"), None), P(("y", "x"), None), P(None, None)]
I32 = np.dtype(np.int32)


def jumbled(dtype: str = "float32", shape: tuple[int, ...] = (8, 4)) -> np.ndarray:
    n = int(np.prod(shape))
    return ((np.arange(n) * 13) % 29 - 14).astype(dtype).reshape(shape)


def one(f: Any, x: np.ndarray, spec: P, mesh: Any) -> tuple[np.ndarray, P, Any]:
    outs, _, specs, world = run(lambda v: [f(v)], [x], [spec], mesh)
    return outs[0], specs[0], world


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), ()], ids=str)
def test_reductions(spec: P, axes: tuple[int, ...]) -> None:
    x = jumbled() / 16 + 1.5
    with np.errstate(all="ignore"):
        for op, f in (
            (reductions.reduce_max, np.max),
            (reductions.reduce_min, np.min),
            (reductions.reduce_prod, np.prod),
        ):
            got, out, world = one(lambda v, op=op: op(v, axes=axes), x.astype(np.float32), spec, EXPLICIT)
            np.testing.assert_allclose(got, f(x.astype(np.float32), axis=axes), rtol=1e-5)
            entries = spec.padded(2).dims
            assert out.dims == tuple(e for d, e in enumerate(entries) if d not in axes)
            assert world.calls["all_reduce"] == (8 if any(entries[d] for d in axes) else 0)
    for op, f in ((reductions.reduce_and, np.bitwise_and), (reductions.reduce_or, np.bitwise_or)):
        b = jumbled() > -10
        got, _, _ = one(lambda v, op=op: op(v, axes=axes), b, spec, EXPLICIT)
        np.testing.assert_array_equal(got, f.reduce(b, axis=axes))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16", "bfloat16"])
def test_positions_of_extremes(spec: P, axis: int, dtype: str) -> None:
    x = jumbled("float32") % 5
    x = (x > 2) if dtype == "bool" else x.astype(as_dtype(dtype))
    if dtype == "float32":
        x[3, 1] = x[6, 1] = np.nan
    for op, f in ((extremes.argmax, np.argmax), (extremes.argmin, np.argmin)):
        got, out, world = one(lambda v, op=op: op(v, axes=(axis,), index_dtype=I32), x, spec, EXPLICIT)
        np.testing.assert_array_equal(got, f(x.astype(np.float32) if dtype == "bfloat16" else x, axis=axis))
        assert got.dtype == np.int32
        entries = spec.padded(2).dims
        assert out.dims == (entries[1 - axis],)
        assert dict(world.calls) == ({"all_gather": 8} if entries[axis] else {})


def test_positions_in_one_dim() -> None:
    x = np.array([3, 9, 2, 9, -1, 0, 9, -1], np.float32)
    for spec in (P("x"), P(("y", "x")), P()):
        for op, want in ((extremes.argmax, 1), (extremes.argmin, 4)):
            got, _, _ = one(lambda v, op=op: op(v, axes=(0,), index_dtype=I32), x, spec, EXPLICIT)
            assert got.shape == () and got == want


CUMULATIVE = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
}


@pytest.mark.parametrize("name", [*CUMULATIVE, "cumlogsumexp"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative(name: str, reverse: bool, spec: P, axis: int) -> None:
    x = (jumbled() / 8 + 0.25).astype(np.float32)
    way = np.flip(x, axis) if reverse else x
    want = np.logaddexp.accumulate(way, axis=axis) if name == "cumlogsumexp" else CUMULATIVE[name](way, axis=axis)
    want = np.flip(want, axis) if reverse else want
    op = OPS[name]
    got, out, world = one(lambda v: op(v, axis=axis, reverse=reverse), x, spec, AUTO)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    entries = spec.padded(2).dims
    assert out.dims == entries
    assert dict(world.calls) == ({"all_gather": 8} if entries[axis] else {})
    if entries[axis]:
        with pytest.raises(ShardingTypeError, match="unsharded over the axis being reduced"):
            one(lambda v: op(v, axis=axis, reverse=reverse), x, spec, EXPLICIT)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_sort_and_order(spec: P, dim: int) -> None:
    x = (jumbled(shape=(16, 8)) % 7).astype(np.float32)
    x[5, 3] = np.nan
    position = np.broadcast_to(np.arange(128, dtype=np.int32).reshape(16, 8), x.shape).copy()
    (keys, carried), _, specs, world = run(
        lambda v, w: sorting.sort(v, w, dimension=dim, is_stable=True, num_keys=1), [x, position], [spec, spec], AUTO
    )
    order = np.argsort(x, axis=dim, kind="stable")
    np.testing.assert_array_equal(keys, np.take_along_axis(x, order, dim))
    np.testing.assert_array_equal(carried, np.take_along_axis(position, order, dim))
    entries = spec.padded(2).dims
    assert all(s.dims == entries for s in specs)
    if not entries[dim]:
        assert not world.calls
    got, _, _ = one(lambda v: sorting.sort(v, dimension=dim, is_stable=True, num_keys=1)[0], x, spec, AUTO)
    np.testing.assert_array_equal(got, np.sort(x, axis=dim))
    got, _, _ = one(lambda v: sorting.sort_order(v, dimension=dim), x, spec, AUTO)
    np.testing.assert_array_equal(got, order)


def test_sort_moves_the_sharding_to_another_dim() -> None:
    x = jumbled(shape=(16, 8))
    _, _, specs, world = run(
        lambda v: sorting.sort(v, dimension=0, is_stable=True, num_keys=1), [x], [P("x", "y")], AUTO
    )
    assert specs[0].dims == (("x",), ("y",)) and dict(world.calls) == {"all_to_all": 16}


def test_sort_by_two_keys() -> None:
    x = jumbled() % 3
    y = jumbled()[::-1].copy()
    (a, b), _, _, _ = run(
        lambda v, w: sorting.sort(v, w, dimension=1, is_stable=True, num_keys=2), [x, y], [P("x"), P("x")], EXPLICIT
    )
    order = np.lexsort((y, x), axis=1)
    np.testing.assert_array_equal(a, np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(b, np.take_along_axis(y, order, 1))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_top_k(spec: P, axis: int, dtype: str) -> None:
    x = (jumbled(shape=(32, 16)) % 6).astype(dtype)
    (values, indices), _, specs, _ = run(lambda v: searching.top_k(v, axis=axis, k=5), [x], [spec], AUTO)
    want = np.take(np.argsort(-x.astype(np.float64), axis=axis, kind="stable"), range(5), axis)
    np.testing.assert_array_equal(indices, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, axis))
    entries = list(spec.padded(2).dims)
    entries[axis] = ()
    assert all(s.dims == tuple(entries) for s in specs)


def test_top_k_of_many_goes_by_partition_and_keeps_order() -> None:
    x = (np.arange(4096) * 7919 % 97).astype(np.float32)
    x[[5, 100]] = np.nan, -np.nan
    values, indices = OPS["top_k"].impl(x, axis=0, k=9)
    order = np.argsort(-np.where(np.isnan(x), np.inf * np.where(np.signbit(x), -1, 1), x), kind="stable")[:9]
    np.testing.assert_array_equal(indices, order)
    assert np.isnan(values[0]) and indices[0] == 5


def test_searchsorted() -> None:
    table, queries = np.sort(jumbled().ravel()), jumbled() + 0.5
    for side in ("left", "right"):
        (got,), _, (spec,), world = run(
            lambda t, q, side=side: [searching.searchsorted(t, q, side=side, dtype=I32, batch_dims=0)],
            [table, queries.astype(np.float32)],
            [P(), P("x", "y")],
            EXPLICIT,
        )
        np.testing.assert_array_equal(got, np.searchsorted(table, queries.astype(np.float32), side=side))
        assert spec.dims == (("x",), ("y",)) and not world.calls


def scalar_function(f: Any, dtype: str = "float32") -> Any:
    aval = ShapedArray((), np.dtype(dtype))
    return trace_to_jaxpr(lambda *vs: f(*vs), [aval] * 2)


def test_reductions_by_a_function() -> None:
    both = scalar_function(
        lambda a, b: [add(add(a, b), mul(mul(a, b), literal(0.5, np.dtype("float32"))))]
    )  # associative
    x = (jumbled() / 100).astype(np.float32)
    want = (np.prod(1 + x.astype(np.float64) / 2, axis=0) - 1) * 2
    start = literal(0.0, np.dtype("float32"))
    for spec in SPECS:
        outs, _, specs, _ = run(
            lambda v: reduce(v, start, computation=None, jaxpr=both, dimensions=(0,)), [x], [spec], EXPLICIT
        )
        np.testing.assert_allclose(outs[0], want, rtol=1e-5)
        assert specs[0].dims == (spec.padded(2).dims[1],)


def test_known_functions_are_recognised() -> None:
    assert known_op(scalar_function(lambda a, b: [max_(a, b)]).jaxpr) is max_
    assert known_op(scalar_function(lambda a, b: [add(b, a)]).jaxpr) is add
    assert known_op(scalar_function(lambda a, b: [bits.or_(a, b)], "bool").jaxpr) is bits.or_
    assert known_op(scalar_function(lambda a, b: [add(a, a)]).jaxpr) is None
    assert known_op(scalar_function(lambda a, b: [add(a, mul(a, b))]).jaxpr) is None


def by(f: Any, *inits: Any, dtypes: tuple[str, ...], axes: tuple[int, ...]) -> Any:
    """The reduction by a function of scalars."""
    avals = [ShapedArray((), np.dtype(d)) for d in dtypes]
    starts = [literal(i, a.dtype) for i, a in zip(inits, avals)]
    return lambda *xs: reduce_with(xs, starts, trace_to_jaxpr(f, avals * 2), axes, f)


def test_reduce_starts_from_the_initial_value_once() -> None:
    x = jumbled()
    for f, init, want in (
        (add, 0.0, x.sum(0)),
        (add, 10.0, x.sum(0) + 10),
        (max_, -np.inf, x.max(0)),
        (max_, 5.0, np.maximum(x.max(0), 5)),
        (lambda a, b: add(a, add(b, mul(a, b))), 1.0, 2 * np.prod(1 + x.astype(np.float64), axis=0) - 1),
    ):
        for spec in (P("x", "y"), P()):
            reduced = by(lambda a, b, f=f: [f(a, b)], init, dtypes=("float32",), axes=(0,))
            got, _, _ = one(lambda v, reduced=reduced: reduced(v)[0], x, spec, EXPLICIT)
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_reduce_of_two_operands() -> None:
    """The largest element and where it is, as a reduction over pairs."""
    x, where = jumbled(), np.arange(32, dtype=np.int32).reshape(8, 4)

    def better(a: Any, i: Any, b: Any, j: Any) -> Any:
        first = ge(a, b)
        return select_n(first, b, a), select_n(first, j, i)

    for spec in SPECS:
        f = by(better, -np.inf, 0, dtypes=("float32", "int32"), axes=(1,))
        (best, at), _, _, _ = run(f, [x, where], [spec] * 2, EXPLICIT)
        np.testing.assert_array_equal(best, x.max(1))
        np.testing.assert_array_equal(at, np.take_along_axis(where, x.argmax(1)[:, None], 1)[:, 0])
