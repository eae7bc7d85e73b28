"""Convolutions and pooling on a mesh of devices, against the sums that define them, place by place."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiarray.core.op import Linear
from mpiarray.errors import ShardingTypeError
from mpiarray.ops import conv, conv_kernel, pooling, windows
from mpiarray.ops.common import BatchAxis
from mpiarray.types.mesh import AxisType
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import P, draw_spec, mesh_of, run, typed
from tests.peak import peak_of

MESH = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
FIRST = {n: conv.conv_dimension_numbers(n, None) for n in (2, 3, 4)}


def small(shape, seed=0, dtype=np.float32):
    """Small integers, so that sums are exact in any order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def conv_loop(
    x,
    w,
    *,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
    **_,
):
    lhs, rhs, out_spec = dimension_numbers
    x, w = x.transpose(lhs).astype(np.float64), w.transpose(rhs).astype(np.float64)
    (n, _, *sizes), (o, i, *window) = x.shape, w.shape
    space = []
    for m, k, s, (lo, hi), d, r in zip(sizes, window, window_strides, padding, lhs_dilation, rhs_dilation):
        room = (m - 1) * d + 1 + lo + hi - ((k - 1) * r + 1)
        space.append(room // s + 1 if room >= 0 else 0)
    parts = feature_group_count * batch_group_count
    out = np.zeros((n // batch_group_count, o, *space))
    for f in range(o):
        g = f // (o // parts)
        batch = slice(g * (n // parts), (g + 1) * (n // parts)) if batch_group_count > 1 else slice(None)
        features = slice(None) if batch_group_count > 1 else slice(g * i, (g + 1) * i)
        for j in np.ndindex(*space):
            for k in np.ndindex(*window):
                at = [a * s + b * r - lo for a, s, b, r, (lo, _) in zip(j, window_strides, k, rhs_dilation, padding)]
                if any(a % d or not 0 <= a // d < m for a, d, m in zip(at, lhs_dilation, sizes)):
                    continue
                place = tuple(a // d for a, d in zip(at, lhs_dilation))
                out[(slice(None), f, *j)] += x[(batch, features, *place)] @ w[(f, slice(None), *k)]
    return out.transpose(np.argsort(out_spec))


def draw_conv(data, spatial=None, orders=True):
    spatial = data.draw(st.integers(0, 2)) if spatial is None else spatial
    pick = lambda *v: data.draw(st.sampled_from(v))
    kind = pick("plain", "plain", "features", "batch")
    groups, batch_groups = (2, 1) if kind == "features" else (1, 2) if kind == "batch" else (1, 1)
    n, i, o = pick(2, 4, 8), pick(1, 2), pick(2, 4)
    sizes, window = [pick(4, 8, 3) for _ in range(spatial)], [pick(1, 2, 3) for _ in range(spatial)]
    order = lambda: tuple(data.draw(st.permutations(range(spatial + 2)))) if orders else tuple(range(spatial + 2))
    numbers = conv.ConvDimensionNumbers(order(), order(), order())
    each = lambda *v: tuple(pick(*v) for _ in range(spatial))
    params = {
        "window_strides": each(1, 1, 2, 3),
        "padding": tuple((pick(0, 1, 2, -1), pick(0, 1, 2, -1)) for _ in range(spatial)),
        "lhs_dilation": each(1, 1, 2),
        "rhs_dilation": each(1, 1, 2),
        "dimension_numbers": numbers,
        "feature_group_count": groups,
        "batch_group_count": batch_groups,
        "precision": None,
        "preferred_element_type": None,
        "out_sharding": None,
    }
    place = lambda shape, spec: small(shape).transpose(np.argsort(spec)) + np.float32(0)
    x, w = place((n, i * groups, *sizes), numbers.lhs_spec), place((o, i, *window), numbers.rhs_spec)
    return x, w, params


@settings(max_examples=300)
@given(st.data())
def test_blocks_against_the_definition(data):
    x, w, params = draw_conv(data)
    choices = {"_SHIFTED": (0, 4), "_COLUMNS": (8, 100, 1 << 21), "_NARROW": (0, 192), "_TILE": (4, 1 << 16)}
    with pytest.MonkeyPatch.context() as patch:
        for name, values in choices.items():
            patch.setattr(conv_kernel, name, data.draw(st.sampled_from(values)))
        got = conv._conv_impl(x, w, **params)
    np.testing.assert_array_equal(got, conv_loop(x, w, **params))
    assert got.dtype == x.dtype


def test_large_convolutions_are_made_in_pieces(monkeypatch):
    x, w = small((6, 2, 9, 9)), small((3, 2, 3, 3), 1)
    params = default(2)
    whole = conv._conv_impl(x, w, **params)
    monkeypatch.setattr(conv_kernel, "_COLUMNS", 2 * 49 * 18)
    np.testing.assert_array_equal(conv._conv_impl(x, w, **params), whole)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_memory_for_windows_is_bounded(order):
    """One example whose windows would take 226 MB."""
    shape = (1, 16, 300, 300) if order == "NCHW" else (1, 300, 300, 16)
    x, w = small(shape), small((2, 16, 7, 7) if order == "NCHW" else (7, 7, 16, 2), 1)
    kernel = "OIHW" if order == "NCHW" else "HWIO"
    numbers = conv.conv_dimension_numbers(4, (order, kernel, order))
    out, peak = peak_of(lambda: conv._conv_impl(x, w, **default(2, dimension_numbers=numbers)))
    assert peak < 4 * conv_kernel._COLUMNS + 4 * x.nbytes
    some = (slice(None), slice(None), slice(0, 12), slice(0, 12)) if order == "NCHW" else (slice(None), slice(0, 12), slice(0, 12))  # fmt: skip
    part = conv_loop(x[some], w, **default(2, dimension_numbers=numbers))
    np.testing.assert_array_equal(out[tuple(slice(n) for n in part.shape)], part)


def default(spatial, **change):
    return {
        "window_strides": (1,) * spatial,
        "padding": ((0, 0),) * spatial,
        "lhs_dilation": (1,) * spatial,
        "rhs_dilation": (1,) * spatial,
        "dimension_numbers": FIRST[spatial + 2],
        "feature_group_count": 1,
        "batch_group_count": 1,
        "precision": None,
        "preferred_element_type": None,
        "out_sharding": None,
    } | change


@settings(max_examples=80)
@given(st.data())
def test_any_shardings(data):
    x, w, params = draw_conv(data)
    want = conv_loop(x, w, **params)
    mesh = data.draw(st.sampled_from((MESH, AUTO)))
    specs = [draw_spec(data, mesh, a.shape) for a in (x, w)]
    if mesh is MESH:
        params["out_sharding"] = NamedSharding(mesh, draw_spec(data, mesh, want.shape))
    (got,), (aval,), _, _ = run(lambda a, b: [conv.conv_general_dilated(a, b, **params)], [x, w], specs, mesh)
    np.testing.assert_array_equal(got, want)
    if mesh is MESH:
        assert aval.dims == params["out_sharding"].spec.padded(want.ndim).dims


def test_examples_and_rows_stay_sharded():
    x, w = small((4, 3, 8, 8)), small((2, 3, 3, 3), 1)
    params = default(2, padding=((1, 1), (1, 1)))
    want = conv_loop(x, w, **params)
    f = lambda a, b: [conv.conv_general_dilated(a, b, **params)]
    (got,), (aval,), _, world = run(f, [x, w], [P("x"), P()], MESH)
    np.testing.assert_array_equal(got, want)
    assert aval.short() == "f32[4@x,2,8,8]" and not world.calls
    (got,), (aval,), _, world = run(f, [x, w], [P("x", None, "y"), P()], MESH)
    np.testing.assert_array_equal(got, want)
    assert aval.short() == "f32[4@x,2,8@y,8]"
    assert world.bytes["exchange"] == 8 * 3 * 8 * 4  # one row of each device's block, and nothing else
    assert set(world.calls) == {"exchange"}


def test_the_kernel_gradient_is_one_all_reduce():
    x, w = small((8, 2, 5)), small((3, 2, 3), 1)
    params = default(1)
    ct = small((8, 3, 3), 2)
    back = lambda ct, a: [conv._conv_transpose(None, ct, a, Linear(typed(w, MESH, P())), **params)[1]]
    (got,), (aval,), _, world = run(back, [ct, x], [P("x"), P("x")], MESH)
    assert aval is typed(w, MESH, P())
    assert dict(world.calls) == {"all_reduce": 8} and world.bytes["all_reduce"] == 8 * w.nbytes
    want = np.zeros_like(w)
    for index in np.ndindex(w.shape):
        one = np.zeros_like(w)
        one[index] = 1
        want[index] = (conv_loop(x, one, **params) * ct).sum()
    np.testing.assert_array_equal(got, want)


def inner(a, b):
    return float((np.float64(a) * np.float64(b)).sum())


@settings(max_examples=80)
@given(st.data())
def test_transposes(data):
    x, w, params = draw_conv(data)
    y = conv_loop(x, w, **params)
    ct = small(y.shape, 3)
    mesh = mesh_of(("x", 2))
    tx, tw = typed(x, mesh, P()), typed(w, mesh, P())
    op = conv.conv_general_dilated
    by_x = lambda ct, w: [op.transpose(op, ct, Linear(tx), w, **params)[0]]
    by_w = lambda ct, x: [op.transpose(op, ct, x, Linear(tw), **params)[1]]
    (cx,), (aval,), _, _ = run(by_x, [ct, w], [P(), P()], mesh)
    assert aval is tx
    dx = small(x.shape, 4)
    assert inner(cx, dx) == inner(ct, conv_loop(dx, w, **params))
    (cw,), (aval,), _, _ = run(by_w, [ct, x], [P(), P()], mesh)
    assert aval is tw
    dw = small(w.shape, 5)
    assert inner(cw, dw) == inner(ct, conv_loop(x, dw, **params))


def example(a, d, k):
    return a if d is None else np.take(a, k, d)


@settings(max_examples=60)
@given(st.data())
def test_batching(data):
    x, w, params = draw_conv(data, spatial=1)
    size = 3
    dims = [data.draw(st.sampled_from((None, 0, 1, 3))) for _ in range(2)]
    if dims == [None, None]:
        dims[0] = 0
    args = [a if d is None else np.stack([a * (k + 1) for k in range(size)], d) for a, d in zip((x, w), dims)]
    at = []

    def f(a, b):
        out, d = conv.conv_general_dilated.batch(conv.conv_general_dilated, BatchAxis(size), [a, b], dims, **params)
        at[:] = [d]
        return [out]

    (got,), _, _, _ = run(f, args, [P(), P()], mesh_of(("x", 1)))
    got = np.moveaxis(got, at[0], 0)
    for k in range(size):
        np.testing.assert_array_equal(got[k], conv_loop(*(example(a, d, k) for a, d in zip(args, dims)), **params))


@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("batch", [None, "y"])
def test_batching_over_a_sharded_dim(mapped, batch):
    size = 4
    params = default(1, padding=((1, 1),))
    x, w = small((size, 2, 2, 5)), small((size, 3, 2, 3), 1)
    args = [a if d == 0 else a[0] for a, d in zip((x, w), mapped)]
    specs = [P(*(("x",) if mapped[0] == 0 else ()), batch), P("x") if mapped[1] == 0 else P()]
    at = []

    def f(a, b):
        op = conv.conv_general_dilated
        out, d = op.batch(op, BatchAxis(size, None, ("x",)), [a, b], mapped, **params)
        at[:] = [d]
        return [out]

    (got,), (aval,), _, world = run(f, args, specs, MESH)
    got = np.moveaxis(got, at[0], 0)
    for k in range(size):
        np.testing.assert_array_equal(got[k], conv_loop(*(example(a, d, k) for a, d in zip(args, mapped)), **params))
    assert aval.dims[at[0]] == ("x",)
    assert not world.calls


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.int32, np.complex64, np.float64])
def test_dtypes(dtype):
    x, w = small((2, 3, 6), dtype=dtype), small((4, 3, 3), 1, dtype=dtype)
    got = conv._conv_impl(x, w, **default(1))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, conv_loop(x.real, w.real, **default(1)).astype(dtype))
    wide = np.dtype("f4") if got.dtype.itemsize == 2 else None
    if wide:
        assert conv._conv_impl(x, w, **default(1, preferred_element_type=wide)).dtype == wide


@pytest.mark.parametrize("x, w", [(P(None, "x"), P()), (P(), P("x")), (P("x"), P(None, "y"))])
def test_sharded_features_need_out_sharding(x, w):
    a, b = small((4, 4, 8)), small((4, 4, 3), 1)
    f = lambda a, b: [conv.conv_general_dilated(a, b, **default(1))]
    with pytest.raises(ShardingTypeError, match="Please specify the output sharding via `out_sharding`"):
        run(f, [a, b], [x, w], MESH)


def test_spatial_dims_must_stay_divisible():
    a, b = small((4, 4, 8)), small((4, 4, 3), 1)
    with pytest.raises(ShardingTypeError, match="is not divisible by mesh axes"):
        run(lambda a, b: [conv.conv_general_dilated(a, b, **default(1))], [a, b], [P(None, None, "x"), P()], MESH)


BAD = [
    (ValueError, "feature dimension size", {"feature_group_count": 2}),
    (ValueError, "multiple of feature_group_count", {"batch_group_count": 3}),
    (TypeError, "window_strides", {"window_strides": (1, 1)}),
    (TypeError, "at least 1", {"rhs_dilation": (0,)}),
]


@pytest.mark.parametrize("kind, words, change", BAD)
def test_bad_parameters_are_named(kind, words, change):
    with pytest.raises(kind, match=words):
        conv.conv_general_dilated.type_rule(
            *(typed(a, MESH, P()) for a in (small((4, 4, 8)), small((4, 4, 3)))), **default(1, **change)
        )


def test_dimension_numbers_and_same_padding():
    assert conv.conv_dimension_numbers(4, ("NHWC", "HWIO", "NHWC")) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    for bad in (("NCH", "OIHW", "NCHW"), ("NCHH", "OIHW", "NCHW"), ("NXHW", "OIHW", "NCHW"), ("NCDW", "OIHW", "NCHW")):
        with pytest.raises(ValueError, match="dimension_numbers"):
            conv.conv_dimension_numbers(4, bad)
    assert windows.same_pads((5, 6), (3, 4), (2, 1), "SAME", (1, 1), (1, 1)) == ((1, 1), (1, 2))
    assert windows.same_pads((5, 6), (3, 4), (2, 1), "SAME_LOWER", (1, 1), (1, 1)) == ((1, 1), (2, 1))
    with pytest.raises(ValueError, match="padding type"):
        windows.same_pads((5,), (3,), (1,), "FULL", (1,), (1,))


# -- pooling -------------------------------------------------------------------------------------------

IDENTITY = {"sum": 0.0, "max": -np.inf, "min": np.inf}
REDUCE = {"sum": np.sum, "max": np.max, "min": np.min}


def pool_loop(x, kind, *, window_dimensions, window_strides, padding, base_dilation, window_dilation):
    places = pool_places(x.shape, window_dimensions, window_strides, padding, base_dilation, window_dilation)
    shape, members = places
    out = np.full(shape, IDENTITY[kind])
    for j, inside in members.items():
        if inside:
            out[j] = REDUCE[kind]([x[p] for p in inside])
    return out


def pool_places(shape, sizes, strides, pads, base, dilation):
    """The number of windows per dim, and the operand's places that each one sees, in order."""
    per_dim = []
    for n, k, s, (lo, hi), d, r in zip(shape, sizes, strides, pads, base, dilation):
        room = (n - 1) * d + 1 + lo + hi - ((k - 1) * r + 1)
        count = room // s + 1 if room >= 0 else 0
        per_dim.append(
            [
                [
                    (j * s + a * r - lo) // d
                    for a in range(k)
                    if (j * s + a * r - lo) % d == 0 and 0 <= (j * s + a * r - lo) // d < n
                ]
                for j in range(count)
            ]
        )
    out = {
        j: list(itertools.product(*(p[i] for p, i in zip(per_dim, j)))) for j in np.ndindex(*(len(p) for p in per_dim))
    }
    return tuple(len(p) for p in per_dim), out


def draw_pool(data):
    ndim = data.draw(st.integers(1, 3))
    pick = lambda *v: tuple(data.draw(st.sampled_from(v)) for _ in range(ndim))
    params = {
        "window_dimensions": pick(1, 2, 3),
        "window_strides": pick(1, 2, 3),
        "padding": tuple(zip(pick(0, 1, 2, -1), pick(0, 1, 2))),
        "base_dilation": pick(1, 1, 2),
        "window_dilation": pick(1, 1, 2),
    }
    shape = pick(4, 8, 6)
    x = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(int(np.prod(shape))).reshape(shape)
    return x.astype(np.float32), params


@settings(max_examples=80)
@given(st.data())
def test_pooling_with_any_shardings(data):
    x, params = draw_pool(data)
    kind = data.draw(st.sampled_from(("sum", "max", "min")))
    want = pool_loop(x, kind, **params)
    mesh = data.draw(st.sampled_from((MESH, AUTO)))
    spec = draw_spec(data, mesh, x.shape)
    f = lambda a: [pooling.REDUCERS[kind](a, **params)]
    sizes = [int(np.prod([mesh.shape[a] for a in axes], dtype=int)) for axes in spec.dims]
    if mesh is MESH and any(n != m and m % s for n, m, s in zip(x.shape, want.shape, sizes)):
        with pytest.raises(ShardingTypeError, match="is not divisible by mesh axes"):
            run(f, [x], [spec], mesh)
        return
    (got,), (aval,), _, _ = run(f, [x], [spec], mesh)
    np.testing.assert_array_equal(got, want)
    if mesh is MESH:
        assert aval.dims == spec.padded(x.ndim).dims


@settings(max_examples=80)
@given(st.data())
def test_derivatives_of_pooling(data):
    """The chosen element's tangent, and its transpose; the sum's transpose; no two elements are equal."""
    x, params = draw_pool(data)
    mesh = mesh_of(("x", 2), ("y", 2))
    shape, members = pool_places(x.shape, *(params[k] for k in pooling._FIELDS))
    t = small(x.shape, 7)
    kind = data.draw(st.sampled_from(("sum", "max", "min")))
    op = pooling.REDUCERS[kind]
    want = np.zeros(shape)
    for j, inside in members.items():
        if inside:
            values = [x[p] for p in inside]
            want[j] = (
                sum(t[p] for p in inside)
                if kind == "sum"
                else t[inside[int(np.argmax(values) if kind == "max" else np.argmin(values))]]
            )
    spec = draw_spec(data, mesh, x.shape)
    try:
        (tangent,), avals, _, _ = run(lambda a, t: [op.jvp(op, [a], [t], **params)[1]], [x, t], [spec, spec], mesh)
    except ShardingTypeError:
        spec = P()
        (tangent,), avals, _, _ = run(lambda a, t: [op.jvp(op, [a], [t], **params)[1]], [x, t], [spec, spec], mesh)
    filled = np.array([bool(i) for i in members.values()]).reshape(shape)
    np.testing.assert_array_equal(tangent[filled], want[filled])
    ct = np.where(filled, small(shape, 8), 0).astype(np.float32)
    linear = Linear(typed(x, mesh, spec))
    if kind == "sum":
        back = lambda ct, a: [op.transpose(op, ct, linear, **params)[0]]
    else:
        pick = pooling.select_and_gather_add
        back = lambda ct, a: [
            pick.transpose(pick, ct, linear, a, select_prim="ge" if kind == "max" else "le", **params)[0]
        ]
    (cx,), (aval,), _, _ = run(back, [ct, x], [P.from_dims(avals[0].dims), spec], mesh)
    assert aval is linear.aval
    assert inner(cx, t) == inner(ct, want)


def test_pooling_maps_over_a_dim():
    x = np.random.default_rng(0).permutation(60).reshape(3, 5, 4).astype(np.float32)
    params = {
        "window_dimensions": (2, 2),
        "window_strides": (1, 2),
        "padding": ((1, 0), (0, 0)),
        "base_dilation": (1, 1),
        "window_dilation": (1, 1),
    }
    mesh = mesh_of(("x", 1))
    for op, args in (
        (pooling.reduce_window_max, [x]),
        (pooling.select_and_gather_add, [x * 2, x]),
        (pooling.select_and_scatter_add, [np.ones((3, 5, 2), np.float32), x]),
    ):
        extra = {} if len(args) == 1 else {"select_prim": "ge"}
        f = lambda *a, op=op, extra=extra: [op.batch(op, BatchAxis(3), a, [0] * len(a), **params, **extra)[0]]
        (got,), _, _, _ = run(f, args, [P()] * len(args), mesh)
        for k in range(3):
            one_by_one = lambda *a, op=op, extra=extra: [op(*a, **params, **extra)]
            (one,), _, _, _ = run(one_by_one, [a[k] for a in args], [P()] * len(args), mesh)
            np.testing.assert_array_equal(got[k], one)
