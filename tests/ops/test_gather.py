"""gather and scatter on a mesh of devices, against loops over the places in plain numpy."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiarray.core.op import Linear
from mpiarray.errors import ShardingTypeError
from mpiarray.ops import indexed
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.gather import gather, scatter
from mpiarray.types.mesh import AxisType
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import P, draw_spec, mesh_of, run, typed

MESH = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
COMBINE = {"set": lambda a, b: b, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def numbers(shape, dtype=np.float32):
    return (np.arange(np.prod(shape)) * 7 % 23 + 1).astype(dtype).reshape(shape)


def places(x, indices, dims, b, mode):
    """(place in S, index into the operand's batch and indexed dims or None when it is outside)."""
    for s in np.ndindex(indices[0].shape):
        at = {d: int(i[s]) for d, i in zip(dims, indices)}
        if mode == "clip":
            at = {d: min(max(i, 0), x.shape[d] - 1) for d, i in at.items()}
        inside = all(0 <= i < x.shape[d] for d, i in at.items())
        key = tuple(s[d] if d < b else at.get(d, slice(None)) for d in range(x.ndim))
        yield s, key if inside else None


def gather_loop(x, indices, dims, b, mode, fill):
    rest = [n for d, n in enumerate(x.shape) if d >= b and d not in dims]
    out = np.full((*indices[0].shape, *rest), fill, x.dtype)
    for s, key in places(x, indices, dims, b, mode):
        if key is not None:
            out[s] = x[key]
    return out


def scatter_loop(x, updates, indices, dims, b, mode, combine):
    out = x.copy()
    for s, key in places(x, indices, dims, b, mode):
        if key is not None:
            out[key] = COMBINE[combine](out[key], updates[s])
    return out


def draw_case(data):
    """Operand, index arrays, dims, batch dims and mode."""
    b = data.draw(st.integers(0, 1))
    ndim = data.draw(st.integers(b + 1, 3))
    shape = tuple(data.draw(st.sampled_from((4, 8, 2))) for _ in range(ndim))
    dims = data.draw(st.permutations(range(b, ndim)))[: data.draw(st.integers(1, ndim - b))]
    tail = tuple(data.draw(st.sampled_from((1, 4, 3))) for _ in range(data.draw(st.integers(0, 2))))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    indices = [rng.integers(-2, shape[d] + 2, shape[:b] + tail).astype(np.int32) for d in dims]
    return numbers(shape), indices, tuple(dims), b, data.draw(st.sampled_from(("clip", "fill")))


@settings(max_examples=150)
@given(st.data())
def test_blocks_against_a_loop(data):
    x, indices, dims, b, mode = draw_case(data)
    got = indexed.take(x, indices, dims, b, mode, -1)
    want = gather_loop(x, indices, dims, b, mode, -1)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == x.dtype
    dtype = data.draw(st.sampled_from((np.float32, np.int32, np.int8, ml_dtypes.bfloat16, np.complex64, np.float64)))
    combine = data.draw(st.sampled_from(list(COMBINE)))
    if dtype is np.complex64 and combine in ("min", "max"):
        combine = "add"
    base = numbers(x.shape, dtype)
    # powers of two multiply exactly, whatever the order
    updates = (2.0 ** (np.arange(want.size) % 2) if combine == "mul" else np.arange(want.size) % 4).astype(dtype)
    updates = updates.reshape(want.shape)
    before = base.copy()
    got = indexed.put(base, updates, indices, dims, b, mode, combine)
    np.testing.assert_array_equal(got, scatter_loop(base, updates, indices, dims, b, mode, combine))
    np.testing.assert_array_equal(base, before)
    last = indexed.last_writers(indices, [*x.shape[:b], *(x.shape[d] for d in dims)], b, mode)
    keys = [(s, str(key)) for s, key in places(x, indices, dims, b, mode) if key is not None]
    wanted = {key: s for s, key in keys}
    assert {s for s in np.ndindex(last.shape) if last[s]} == set(wanted.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, ml_dtypes.bfloat16, bool])
@pytest.mark.parametrize("rows, columns, count", [(10, 1, 1000), (1000, 1, 10), (50, 7, 400), (50, 7, 1)])
def test_adding_many_rows(dtype, rows, columns, count):
    rng = np.random.default_rng(0)
    where = rng.integers(0, rows, count)
    updates = rng.integers(0, 2, (count, columns)).astype(dtype)
    x = np.zeros((rows, columns), dtype)
    wide = np.zeros((rows, columns), np.float64)
    np.add.at(wide, where, updates.astype(np.float64))
    got = indexed.put(x, updates, [where], (0,), 0, "fill", "add")
    np.testing.assert_allclose(got.astype(np.float64), np.minimum(wide, 1) if dtype is bool else wide, rtol=1e-2)


def test_bfloat16_sums_are_rounded_once():
    ones = np.full(1000, 1.0, ml_dtypes.bfloat16)
    got = indexed.put(np.zeros(2, ml_dtypes.bfloat16), ones, [np.zeros(1000, int)], (0,), 0, "fill", "add")
    assert float(got[0]) == 1000.0  # 256 if every sum were rounded


def test_other_factors():
    x, u = np.array([2.0, 3.0, 5.0]), np.array([7.0, 0.0, 11.0, 13.0])
    got = indexed.other_factors(x, u, [np.array([0, 0, 2, 9])], (0,), 0, "fill")
    np.testing.assert_array_equal(got, [2 * 0, 2 * 7, 5, 0])


# -- on a mesh ---------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data())
def test_gather_with_any_shardings(data):
    """With out_sharding (Explicit) or without (Auto), every way of laying out operand, indices and result."""
    x, indices, dims, b, mode = draw_case(data)
    want = gather_loop(x, indices, dims, b, mode, -7)
    mesh = data.draw(st.sampled_from((MESH, AUTO)))
    specs = [draw_spec(data, mesh, a.shape) for a in (x, *indices)]
    out = NamedSharding(mesh, draw_spec(data, mesh, want.shape)) if mesh is MESH else None
    f = lambda a, *i: [gather(a, *i, dims=dims, batch_dims=b, mode=mode, fill_value=-7, out_sharding=out)]
    (got,), (aval,), _, _ = run(f, [x, *indices], specs, mesh)
    np.testing.assert_array_equal(got, want)
    if out is not None:
        assert aval.dims == out.spec.padded(want.ndim).dims


@settings(max_examples=60)
@given(st.data())
def test_scatter_with_any_shardings(data):
    x, indices, dims, b, mode = draw_case(data)
    combine = data.draw(st.sampled_from(("set", "add", "min", "max")))
    updates = numbers(gather_loop(x, indices, dims, b, mode, 0).shape) + 10
    want = scatter_loop(x, updates, indices, dims, b, mode, combine)
    mesh = data.draw(st.sampled_from((MESH, AUTO)))
    specs = [draw_spec(data, mesh, a.shape) for a in (x, updates, *indices)]
    out = NamedSharding(mesh, draw_spec(data, mesh, want.shape)) if mesh is MESH else None
    f = lambda a, u, *i: [scatter(a, u, *i, dims=dims, batch_dims=b, mode=mode, combine=combine, out_sharding=out)]
    (got,), (aval,), _, _ = run(f, [x, updates, *indices], specs, mesh)
    np.testing.assert_array_equal(got, want)
    if out is not None:
        assert aval.dims == out.spec.padded(want.ndim).dims


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint32, np.complex64, ml_dtypes.bfloat16])
def test_gather_from_owners_in_every_dtype(dtype):
    x = numbers((8, 3)).astype(dtype)
    i = np.array([7, 0, 3, 3, 9, -1], np.int32)
    out = NamedSharding(MESH, P(None, None))
    f = lambda a, i: [gather(a, i, dims=(0,), batch_dims=0, mode="fill", fill_value=None, out_sharding=out)]
    (got,), _, _, _ = run(f, [x, i], [P("x"), P()], MESH)
    np.testing.assert_array_equal(got[:4], x[i[:4]])
    nothing = {bool: True, np.int8: -128, np.uint32: 2**32 - 1}.get(dtype, np.nan)
    assert all(v == nothing or (v != v and nothing != nothing) for v in got[4:].reshape(-1))


def test_a_table_that_is_sharded_by_rows_is_never_gathered():
    table, ids = numbers((64, 16)), np.arange(32, dtype=np.int32) * 5 % 64
    for index, result in ((P("x"), P("x", None)), (P(), P("x", None)), (P("x"), P())):
        out = NamedSharding(MESH, result)
        f = lambda t, i, out=out: [
            gather(t, i, dims=(0,), batch_dims=0, mode="clip", fill_value=None, out_sharding=out)
        ]
        (got,), _, _, world = run(f, [table, ids], [P("x"), index], MESH)
        np.testing.assert_array_equal(got, table[ids])
        # every rank asks the owners for its own rows; the 4 ranks along y work twice
        assert set(world.calls) <= {"all_to_all", "exchange", "all_gather"}
        assert world.bytes["exchange"] == 2 * 32 * (8 + 16 * 4)
        assert world.bytes["all_gather"] == (0 if result else 8 * 8 * 16 * 4)  # the result, not the table
    f = lambda t, i: [
        gather(t, i, dims=(0,), batch_dims=0, mode="clip", fill_value=None, out_sharding=NamedSharding(MESH, P()))
    ]
    (got,), _, _, world = run(f, [table, ids], [P("x"), P()], MESH)
    assert dict(world.calls) == {"all_reduce": 8} and world.bytes["all_reduce"] == 8 * 32 * 16 * 4


@settings(max_examples=60)
@given(st.data())
def test_places_that_are_spread_like_the_rows(data):
    """Indices, updates and result are sharded over just the axes of the indexed dims, one or two of them."""
    b = data.draw(st.integers(0, 1))
    two = data.draw(st.booleans())
    shape = (*((4,) if b else ()), 8, 4, 3)
    dims = (b, b + 1) if two else (data.draw(st.sampled_from((b, b + 1))),)
    axes = [("x",), ("y",)] if two else [data.draw(st.sampled_from((("x",), ("x", "y"))))]
    placed = dict(zip(dims, axes))
    if placed.get(b + 1) == ("x", "y"):
        placed[b + 1] = ("x",)
    owners = tuple(a for d in dims for a in placed[d])
    x = numbers(shape)
    tail = data.draw(st.permutations((8, 2)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    indices = [rng.integers(-2, shape[d] + 2, (*shape[:b], *tail)).astype(np.int32) for d in dims]
    at = b + list(tail).index(8)
    entry = data.draw(st.permutations(owners))
    spec = P(*(tuple(entry) if d == at else None for d in range(b + 2)))
    mode = data.draw(st.sampled_from(("clip", "fill")))
    table = P(*(placed.get(d) for d in range(x.ndim)))
    rows = gather_loop(x, indices, dims, b, mode, -7)
    where = NamedSharding(MESH, P(*spec, *(None,) * (rows.ndim - b - 2)))
    params = {"dims": dims, "batch_dims": b, "mode": mode}
    f = lambda a, *i: [gather(a, *i, **params, fill_value=-7, out_sharding=where)]
    (got,), _, _, world = run(f, [x, *indices], [table, *[spec] * len(dims)], MESH)
    np.testing.assert_array_equal(got, rows)
    assert set(world.calls) <= {"all_to_all", "exchange"}
    combine = data.draw(st.sampled_from(list(COMBINE)))
    updates = numbers(rows.shape) % 3 + 1
    f = lambda a, u, *i: [scatter(a, u, *i, **params, combine=combine, out_sharding=NamedSharding(MESH, table))]
    (got,), _, _, world = run(f, [x, updates, *indices], [table, where.spec, *[spec] * len(dims)], MESH)
    np.testing.assert_array_equal(got, scatter_loop(x, updates, indices, dims, b, mode, combine))
    if combine in ("mul", "min", "max"):
        assert set(world.calls) <= {"all_to_all", "exchange"}


def test_a_gradient_of_a_small_table_is_summed_and_not_the_examples_gathered():
    table, ids = np.zeros((8, 4), np.float32), np.arange(64, dtype=np.int32) % 8
    updates = numbers((64, 4))
    out = NamedSharding(MESH, P(None, None))
    f = lambda t, u, i: [scatter(t, u, i, dims=(0,), batch_dims=0, mode="clip", combine="add", out_sharding=out)]
    (got,), _, _, world = run(f, [table, updates, ids], [P(), P("x"), P("x")], MESH)
    np.testing.assert_array_equal(got, scatter_loop(table, updates, [ids], (0,), 0, "clip", "add"))
    assert dict(world.calls) == {"all_reduce": 8} and world.bytes["all_reduce"] == 8 * table.nbytes


ERRORS = [
    (P("x", None), P(), (0,)),  # an indexed dim is sharded
    (P(), P("x"), (0,)),  # an index array is sharded
    (P("x", "y"), P(), (0, 1)),
]


@pytest.mark.parametrize("spec, index, dims", ERRORS)
def test_without_out_sharding_explicit_axes_must_be_out_of_the_way(spec, index, dims):
    x, i = numbers((8, 4)), np.zeros(4, np.int32)
    read = lambda a, i: [
        gather(a, *[i] * len(dims), dims=dims, batch_dims=0, mode="clip", fill_value=None, out_sharding=None)
    ]
    with pytest.raises(
        ShardingTypeError, match=r"Use `.at\[...\].get\(out_sharding=\)` to provide output PartitionSpec for the gather"
    ):
        run(read, [x, i], [spec, index], MESH)
    u = numbers((4, *(n for d, n in enumerate(x.shape) if d not in dims)))
    write = lambda a, u, i: [
        scatter(a, u, *[i] * len(dims), dims=dims, batch_dims=0, mode="clip", combine="set", out_sharding=None)
    ]
    with pytest.raises(ShardingTypeError, match=r"Use `.at\[...\].set/add/mul/...\(out_sharding=\)`"):
        run(write, [x, u, i], [spec, P(), index], MESH)


def test_shardings_that_follow_without_out_sharding():
    x, i = numbers((8, 4)), np.array([3, 0, 0], np.int32)
    read = lambda d: (
        lambda a, i: [gather(a, i, dims=(d,), batch_dims=0, mode="clip", fill_value=None, out_sharding=None)]
    )
    assert run(read(0), [x, i], [P(None, "y"), P()], MESH)[1][0].short() == "f32[3,4@y]"
    assert run(read(1), [x, i], [P("x", None), P()], MESH)[1][0].short() == "f32[3,8@x]"
    along = lambda a, i: [gather(a, i, dims=(1,), batch_dims=1, mode="clip", fill_value=None, out_sharding=None)]
    for index in (P(), P("x", None)):
        (got,), (aval,), _, world = run(along, [x, numbers((8, 2), np.int32) % 4], [P("x", None), index], MESH)
        np.testing.assert_array_equal(got, np.take_along_axis(x, numbers((8, 2), int) % 4, 1))
        assert aval.short() == "f32[8@x,2]" and not world.calls


# -- derivatives and batching --------------------------------------------------------------------------


def inner(a, b):
    return float((np.float64(a) * np.float64(b)).sum())


@settings(max_examples=40)
@given(st.data())
def test_gather_and_scatter_are_each_others_transposes(data):
    x, indices, dims, b, mode = draw_case(data)
    specs = [draw_spec(data, MESH, a.shape) for a in (x, *indices)]
    shape = gather_loop(x, indices, dims, b, mode, 0).shape
    y = numbers(shape) % 5
    params = {"dims": dims, "batch_dims": b, "mode": mode}
    out = NamedSharding(MESH, draw_spec(data, MESH, shape))
    read = params | {"fill_value": 0, "out_sharding": out}
    (forward,), _, _, _ = run(lambda a, *i: [gather(a, *i, **read)], [x, *indices], specs, MESH)
    back = lambda ct, *i: [gather.transpose(gather, ct, Linear(typed(x, MESH, specs[0])), *i, **read)[0]]
    (ct,), (aval,), _, _ = run(back, [y, *indices], [out.spec, *specs[1:]], MESH)
    assert aval is typed(x, MESH, specs[0])
    assert inner(ct, x) == pytest.approx(inner(forward, y))
    for combine in ("add", "set"):
        write = params | {"combine": combine, "out_sharding": NamedSharding(MESH, specs[0])}
        (forward,), _, _, _ = run(
            lambda a, u, *i, write=write: [scatter(a, u, *i, **write)],
            [x, y, *indices],
            [specs[0], out.spec, *specs[1:]],
            MESH,
        )
        tx, ty = typed(x, MESH, specs[0]), typed(y, MESH, out.spec)
        types = Linear(tx), Linear(ty)
        back = lambda ct, *i, types=types, write=write: scatter.transpose(scatter, ct, *types, *i, **write)[:2]
        z = numbers(x.shape) % 11
        (cx, cy), avals, _, _ = run(back, [z, *indices], specs, MESH)
        assert avals == [tx, ty]
        assert inner(cx, x) + inner(cy, y) == pytest.approx(inner(forward, z))


@pytest.mark.parametrize("combine", ["set", "add", "mul", "min", "max"])
def test_tangents_of_scatter_are_differences(combine):
    """Central differences in float64, with duplicates and places outside."""
    rng = np.random.default_rng(3)
    x, u = rng.normal(size=(5, 2)), rng.normal(size=(6, 2))
    i = np.array([0, 3, 3, 4, 9, 0], np.int32)
    dx, du = rng.normal(size=x.shape), rng.normal(size=u.shape)
    params = {"dims": (0,), "batch_dims": 0, "mode": "fill", "combine": combine, "out_sharding": None}
    f = lambda a, b, c, d, i: [scatter.jvp(scatter, [a, b, i], [c, d, None], **params)[1]]
    (got,), _, _, _ = run(f, [x, u, dx, du, i], [P()] * 5, mesh_of(("x", 1)))
    h = 1e-6
    plus, minus = (scatter_loop(x + s * dx, u + s * du, [i], (0,), 0, "fill", combine) for s in (h, -h))
    np.testing.assert_allclose(got, (plus - minus) / (2 * h), rtol=1e-6, atol=1e-8)


def example(a, d, k):
    return a if d is None else np.take(a, k, d)


@pytest.mark.parametrize("b", [0, 1])
@pytest.mark.parametrize(
    "xd, i0, i1",
    [m for m in itertools.product((None, 0, 1, 3), (None, 0, 1), (None, 0)) if any(d is not None for d in m)],
)
def test_batching(b, xd, i0, i1):
    size, shape, index = 3, (4, 5, 2), (4, 6)
    put_in = lambda s, d: s if d is None else (*s[:d], size, *s[d:])
    rng = np.random.default_rng(1)
    x = numbers(put_in(shape, xd))
    dims = (2, 1) if b else (2, 0)
    indices = [rng.integers(-1, 5, put_in(index, d)).astype(np.int32) for d in (i0, i1)]
    params = {"dims": dims, "batch_dims": b, "mode": "fill"}
    at = []

    def mapped(op, args, bdims, params):
        out, d = op.batch(op, BatchAxis(size), args, bdims, **params)
        at[:] = [d]
        return [out]

    read = params | {"fill_value": 0, "out_sharding": None}
    (got,), _, _, _ = run(lambda *a: mapped(gather, a, [xd, i0, i1], read), [x, *indices], [P()] * 3, MESH)
    got = np.moveaxis(got, at[0], 0)
    each = [(example(x, xd, k), [example(i, d, k) for i, d in zip(indices, (i0, i1))]) for k in range(size)]
    for k, (xk, ik) in enumerate(each):
        np.testing.assert_array_equal(got[k], gather_loop(xk, ik, dims, b, "fill", 0))
    for ud in (None, 1):
        result = (*index, *(n for d, n in enumerate(shape) if d >= b and d not in dims))
        u = numbers(put_in(result, ud)) + 30
        write = params | {"combine": "add", "out_sharding": None}
        f = lambda *a, ud=ud, write=write: mapped(scatter, a, [xd, ud, i0, i1], write)
        (got,), _, _, _ = run(f, [x, u, *indices], [P()] * 4, MESH)
        got = np.moveaxis(got, at[0], 0)
        for k, (xk, ik) in enumerate(each):
            np.testing.assert_array_equal(got[k], scatter_loop(xk, example(u, ud, k), ik, dims, b, "fill", "add"))


def test_batching_over_a_sharded_dim():
    table, ids = numbers((6, 4)), np.arange(24, dtype=np.int32).reshape(8, 3) % 6
    read = {"dims": (0,), "batch_dims": 0, "mode": "clip", "fill_value": None, "out_sharding": None}
    f = lambda t, i: [gather.batch(gather, BatchAxis(8, None, ("x",)), [t, i], [None, 0], **read)[0]]
    (got,), (aval,), _, world = run(f, [table, ids], [P(), P("x")], MESH)
    np.testing.assert_array_equal(got, table[ids])
    assert aval.short() == "f32[8@x,3,4]" and not world.calls


BAD = [
    (TypeError, "one index array per indexed dim", {"dims": (0, 1)}),
    (TypeError, "dims must be distinct", {"dims": (2,)}),
    (ValueError, "mode must be one of", {"mode": "wrap"}),
    (TypeError, "leading batch dims", {"dims": (1,), "batch_dims": 1}),
]


@pytest.mark.parametrize("kind, words, change", BAD)
def test_bad_operands_are_named(kind, words, change):
    params = {"dims": (0,), "batch_dims": 0, "mode": "clip", "fill_value": None, "out_sharding": None} | change
    with pytest.raises(kind, match=words):
        run(lambda a, i: [gather(a, i, **params)], [numbers((8, 4)), np.zeros(3, np.int32)], [P(), P()], MESH)


def test_index_arrays_must_be_integers():
    params = {"dims": (0,), "batch_dims": 0, "mode": "clip", "fill_value": None, "out_sharding": None}
    with pytest.raises(TypeError, match="integer"):
        run(lambda a, i: [gather(a, i, **params)], [numbers((8, 4)), np.zeros(3, np.float32)], [P(), P()], MESH)
