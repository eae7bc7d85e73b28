"""rev, roll, concatenate, split, iota, slice, pad and the dynamic pair on a mesh, against numpy on global data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiarray.core.op import Linear, Zero
from mpiarray.errors import ShardingTypeError
from mpiarray.ops import shape as ops
from mpiarray.ops import slicing
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.placement import reshard
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AxisType
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import P, draw_spec, mesh_of, run, size_of

EXPLICIT = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
SIZES = st.sampled_from((4, 8, 16, 2, 6))


def numbers(shape, dtype=np.float32):
    return (np.arange(np.prod(shape)) * 7 % 251 + 1).astype(dtype).reshape(shape)


def draw_array(data, mesh, ndim=None):
    ndim = data.draw(st.integers(1, 3)) if ndim is None else ndim
    shape = tuple(data.draw(SIZES) for _ in range(ndim))
    return numbers(shape), draw_spec(data, mesh, shape)


def keeps(mesh, spec, old, new):
    """Whether every sharded dim that changes divides."""
    return all(n == m or m % size_of(mesh, axes) == 0 for n, m, axes in zip(old, new, spec.dims))


def check(f, args, specs, wanted, mesh, spec=None, legal=True):
    """The values, and on Explicit axes the sharding, or the error of a type that does not divide."""
    if not legal and mesh is EXPLICIT:
        with pytest.raises(ShardingTypeError, match="is not divisible by mesh axes"):
            run(lambda *a: [f(*a)], args, specs, mesh)
        return None
    (out,), (aval,), _, world = run(lambda *a: [f(*a)], args, specs, mesh)
    np.testing.assert_array_equal(out, wanted)
    assert out.dtype == args[0].dtype
    if mesh is EXPLICIT and spec is not None:
        assert aval.dims == spec.dims
    return world


MESHES = st.sampled_from((EXPLICIT, AUTO))


@settings(max_examples=40)
@given(st.data())
def test_rev_and_roll(data):
    mesh = data.draw(MESHES)
    x, spec = draw_array(data, mesh)
    dims = tuple(d for d in range(x.ndim) if data.draw(st.booleans()))
    check(lambda a: ops.rev(a, dimensions=dims), [x], [spec], np.flip(x, dims), mesh, spec)
    shift = tuple(data.draw(st.integers(-20, 20)) for _ in dims)
    check(lambda a: ops.roll(a, shift=shift, axis=dims), [x], [spec], np.roll(x, shift, dims), mesh, spec)


@settings(max_examples=60)
@given(st.data())
def test_slices_with_strides(data):
    mesh = data.draw(MESHES)
    x, spec = draw_array(data, mesh)
    starts = tuple(data.draw(st.integers(0, n)) for n in x.shape)
    limits = tuple(data.draw(st.integers(s, n)) for s, n in zip(starts, x.shape))
    strides = tuple(data.draw(st.integers(1, 3)) for _ in x.shape)
    wanted = x[tuple(map(slice, starts, limits, strides))]
    f = lambda a: ops.slice_(a, start_indices=starts, limit_indices=limits, strides=strides)
    check(f, [x], [spec], wanted, mesh, spec, keeps(mesh, spec, x.shape, wanted.shape))


def pad_reference(x, value, config):
    """lax.pad, element by element along each dim."""
    for d, (lo, hi, inner) in enumerate(config):
        n = x.shape[d]
        shape = list(x.shape)
        shape[d] = max(n - 1, 0) * inner + n
        spread = np.full(shape, value, x.dtype)
        spread[(slice(None),) * d + (slice(None, None, inner + 1),)] = x
        widths = [(0, 0)] * x.ndim
        widths[d] = (max(lo, 0), max(hi, 0))
        spread = np.pad(spread, widths, constant_values=value)
        cut = slice(max(-lo, 0), spread.shape[d] - max(-hi, 0))
        x = spread[(slice(None),) * d + (cut,)]
    return x


@settings(max_examples=60)
@given(st.data())
def test_pads(data):
    mesh = data.draw(MESHES)
    x, spec = draw_array(data, mesh)
    config = []
    for n in x.shape:
        inner = data.draw(st.integers(0, 2))
        full = n + (n - 1) * inner
        lo = data.draw(st.integers(-full // 2, 8))
        config.append((lo, data.draw(st.integers(-full // 2 + 1, 8)), inner))
    wanted = pad_reference(x, 9, config)
    f = lambda a: ops.pad(a, np.float32(9), padding_config=tuple(config))
    check(f, [x], [spec], wanted, mesh, spec, keeps(mesh, spec, x.shape, wanted.shape))


@settings(max_examples=40)
@given(st.data())
def test_concatenate_and_split_again(data):
    mesh = data.draw(MESHES)
    x, spec = draw_array(data, mesh)
    d = data.draw(st.integers(0, x.ndim - 1))
    parts = size_of(mesh, spec.dims[d])
    shapes = [
        (*x.shape[:d], parts * data.draw(st.integers(0, 3)), *x.shape[d + 1 :])
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    arrays = [x, *(numbers(s) + 1000 * (k + 1) for k, s in enumerate(shapes))]
    wanted = np.concatenate(arrays, d)
    check(lambda *a: ops.concatenate(*a, dimension=d), arrays, [spec] * len(arrays), wanted, mesh, spec)
    sizes = tuple(a.shape[d] for a in arrays)
    pieces, avals, _, _ = run(lambda a: ops.split(a, sizes=sizes, axis=d), [wanted], [spec], mesh)
    for piece, a, aval in zip(pieces, arrays, avals):
        np.testing.assert_array_equal(piece, a)
        assert mesh is AUTO or aval.dims == spec.dims


@settings(max_examples=60)
@given(st.data())
def test_dynamic_slices_and_updates(data):
    mesh = data.draw(MESHES)
    x, spec = draw_array(data, mesh)
    sizes = tuple(data.draw(st.integers(0, n)) for n in x.shape)
    starts = [np.int32(data.draw(st.integers(-3, n + 3))) for n in x.shape]
    at = [max(0, min(int(s), n - m)) for s, n, m in zip(starts, x.shape, sizes)]
    window = tuple(slice(a, a + m) for a, m in zip(at, sizes))
    legal = keeps(mesh, spec, x.shape, sizes)
    read = lambda a, *s: slicing.dynamic_slice(a, *s, slice_sizes=sizes)
    scalars = [P()] * x.ndim
    check(read, [x, *starts], [spec, *scalars], x[window], mesh, spec, legal)
    if any(m % size_of(mesh, axes) for m, axes in zip(sizes, spec.dims)):
        return  # an update cannot lie so
    update = numbers(sizes) + 1000
    wanted = x.copy()
    wanted[window] = update
    check(lambda *a: slicing.dynamic_update_slice(*a), [x, update, *starts], [spec, spec, *scalars], wanted, mesh, spec)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.complex64, np.int8])
@pytest.mark.parametrize("spec", [P(), P("x", "y"), P("y", "x"), P(None, ("x", "y")), P(("y", "x"), None)])
@pytest.mark.parametrize("dimension", [0, 1])
def test_iota_makes_each_block_by_itself(dtype, spec, dimension):
    sharding = NamedSharding(EXPLICIT, spec.padded(2))
    f = lambda: [ops.iota(dtype=np.dtype(dtype), shape=(16, 8), dimension=dimension, sharding=sharding)]
    (out,), (aval,), _, world = run(f, [], [], EXPLICIT)
    np.testing.assert_array_equal(out, np.indices((16, 8))[dimension].astype(dtype))
    assert aval.dims == spec.padded(2).dims and not world.calls


def test_only_what_changes_owner_is_sent():
    x = numbers((16, 4))
    moved = lambda f, spec: run(lambda a: [f(a)], [x], [spec], EXPLICIT)[3]
    row = 4 * x.itemsize
    assert moved(lambda a: ops.roll(a, shift=(1,), axis=(0,)), P("x")).bytes["exchange"] == 8 * row
    assert not moved(lambda a: ops.roll(a, shift=(1,), axis=(1,)), P("x")).calls
    assert not moved(lambda a: ops.rev(a, dimensions=(1,)), P("x")).calls
    first = moved(lambda a: ops.slice_(a, start_indices=(0, 0), limit_indices=(4, 4), strides=None), P("x"))
    assert first.bytes["exchange"] == 2 * 3 * row  # the first owner keeps a row and sends three, for either y
    padded = moved(lambda a: ops.pad(a, np.float32(0), padding_config=((0, 16, 0), (0, 0, 0))), P("x"))
    assert padded.bytes["exchange"] == 2 * 12 * row
    joined = moved(lambda a: ops.concatenate(a, a, dimension=1), P("x"))
    assert not joined.calls


@pytest.mark.parametrize("dim", [None, "y"])
def test_unreduced_operands_pass_through_and_are_padded_once(dim):
    x = numbers((8, 4))
    target = NamedSharding(EXPLICIT, P("y", None))
    spec = P(dim, None, unreduced={"x"})
    config = ((2, 2, 0), (0, 1, 0))

    def f(a):
        outs = [
            ops.pad(a, np.float32(7), padding_config=config),
            ops.concatenate(a, a, dimension=0),
            ops.slice_(a, start_indices=(0, 0), limit_indices=(4, 4), strides=None),
            *ops.split(a, sizes=(4, 4), axis=0),
        ]
        assert all(o.aval.unreduced == {"x"} for o in outs)
        return [reshard(o, dst_sharding=target) for o in outs]

    outs, _, _, _ = run(f, [x], [spec], EXPLICIT)
    total = 4 * x  # every device along x holds x
    wanted = [
        np.pad(total, ((2, 2), (0, 1)), constant_values=7),
        np.concatenate([total, total]),
        total[:4],
        total[:4],
        total[4:],
    ]
    for got, want in zip(outs, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


# -- derivatives and batching ------------------------------------------------------------------------

LINEAR = [
    ("rev", lambda x: ops.rev(x, dimensions=(0,)), {"dimensions": (0,)}, ops.rev),
    ("roll", None, {"shift": (3, 1), "axis": (0, 1)}, ops.roll),
    ("slice", None, {"start_indices": (4, 0), "limit_indices": (12, 3), "strides": (2, 1)}, ops.slice_),
    ("slice", None, {"start_indices": (0, 1), "limit_indices": (16, 4), "strides": (1, 2)}, ops.slice_),
    ("slice", None, {"start_indices": (3, 0), "limit_indices": (3, 4), "strides": None}, ops.slice_),
    ("split", None, {"sizes": (4, 0, 12), "axis": 0}, ops.split),
]


def inner(a, b):
    return sum(float((np.float64(u) * np.float64(v)).sum()) for u, v in zip(a, b))


@pytest.mark.parametrize("spec", [P(), P("x", None), P("y", None), P(None, "y")])
@pytest.mark.parametrize("params, op", [(p, o) for _, _, p, o in LINEAR], ids=lambda v: getattr(v, "name", None))
def test_transposes_of_linear_ops(params, op, spec):
    """<f(x), y> = <x, f^T(y)>, with the cotangent typed like the operand."""
    x = numbers((16, 4))
    apply = lambda a: list(op(a, **params)) if op.multiple_results else [op(a, **params)]
    try:
        outs, avals, _, _ = run(apply, [x], [spec], EXPLICIT)
    except ShardingTypeError:
        pytest.skip("does not divide")
    ys = [numbers(o.shape) % 13 for o in outs]
    specs = [P.from_dims(a.dims) for a in avals]
    aval = ShapedArray(x.shape, x.dtype, False, NamedSharding(EXPLICIT, spec.padded(2)))
    back = lambda *cts: op.transpose(op, list(cts) if op.multiple_results else cts[0], Linear(aval), **params)
    (ct,), (ct_aval,), _, _ = run(back, ys, specs, EXPLICIT)
    assert ct_aval is aval
    assert inner([ct], [x]) == pytest.approx(inner(outs, ys))
    # the derivative of a linear op is the op
    pair = lambda a, t: (lambda o, to: [*to] if op.multiple_results else [to])(*op.jvp(op, [a], [t], **params))
    tangents, _, _, _ = run(pair, [x, x + 1], [spec, spec], EXPLICIT)
    for got, want in zip(tangents, run(apply, [x + 1], [spec], EXPLICIT)[0]):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "config",
    [
        ((4, 0, 0), (0, 0, 0)),
        ((0, 1, 1), (1, 1, 0)),
        ((-4, 8, 0), (-1, 0, 0)),
        ((-3, -2, 2), (0, 0, 3)),
        ((-16, 8, 0), (0, 0, 0)),
    ],
)
def test_transpose_of_pad(config):
    x, v = numbers((16, 4)), np.float32(3)
    spec = (
        P("y", None)
        if (sum(config[0][:2]) + 16 + 15 * config[0][2]) % 2 == 0
        else P(None, "y" if config[1] == (0, 0, 0) else None)
    )
    f = lambda a, b: [ops.pad(a, b, padding_config=config)]
    (out,), (aval,), _, _ = run(f, [x, v], [spec, P()], EXPLICIT)
    y = numbers(out.shape) % 13
    typed = ShapedArray(x.shape, x.dtype, False, NamedSharding(EXPLICIT, spec.padded(2)))
    back = lambda ct: ops.pad.transpose(
        ops.pad, ct, Linear(typed), Linear(ShapedArray((), x.dtype)), padding_config=config
    )
    (cx, cv), (ct_aval, _), _, _ = run(back, [y], [P.from_dims(aval.dims)], EXPLICIT)
    assert ct_aval.shape == x.shape and ct_aval.dims == typed.dims
    assert inner([cx, cv], [x, v]) == pytest.approx(inner([out], [y]))
    only_value = run(
        lambda a, t: [ops.pad.jvp(ops.pad, [a, v], [Zero(typed), t], padding_config=config)[1]],
        [x, v],
        [spec, P()],
        EXPLICIT,
    )
    np.testing.assert_array_equal(only_value[0][0], pad_reference(np.zeros_like(x), 3, config))


def test_transposes_of_concatenate_and_of_the_dynamic_pair():
    x, u = numbers((16, 4)), numbers((8, 4)) + 100
    spec = P("x", None)
    tx, tu = (ShapedArray(a.shape, a.dtype, False, NamedSharding(EXPLICIT, spec)) for a in (x, u))
    y = numbers((24, 4))
    back = lambda ct: ops.concatenate.transpose(ops.concatenate, ct, Linear(tx), Linear(tu), dimension=0)
    (cx, cu), avals, _, _ = run(back, [y], [spec], EXPLICIT)
    np.testing.assert_array_equal(np.concatenate([cx, cu]), y)
    assert avals == [tx, tu]
    start = [np.int32(3), np.int32(0)]
    back = lambda ct, *s: slicing.dynamic_slice.transpose(
        slicing.dynamic_slice, ct, Linear(tx), *s, slice_sizes=(8, 4)
    )[:1]
    (cx,), (aval,), _, _ = run(back, [u, *start], [spec, P(), P()], EXPLICIT)
    wanted = np.zeros_like(x)
    wanted[3:11] = u
    np.testing.assert_array_equal(cx, wanted)
    assert aval is tx
    op = slicing.dynamic_update_slice
    back = lambda ct, *s: op.transpose(op, ct, Linear(tx), Linear(tu), *s)[:2]
    (cx, cu), avals, _, _ = run(back, [x, *start], [spec, P(), P()], EXPLICIT)
    wanted = x.copy()
    wanted[3:11] = 0
    np.testing.assert_array_equal(cx, wanted)
    np.testing.assert_array_equal(cu, x[3:11])
    assert avals == [tx, tu]


def batched(op, args, dims, params, entry=(), specs=None):
    """The op's batch rule on every device: stacked results, mapped dim first."""
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    several = op.multiple_results

    def f(*a):
        out, at = op.batch(op, BatchAxis(size, None, entry), a, dims, **params)
        f.at = list(at) if several else [at]
        return list(out) if several else [out]

    outs, avals, _, _ = run(f, args, specs or [P()] * len(args), EXPLICIT)
    return [np.moveaxis(o, d, 0) for o, d in zip(outs, f.at)], [a.dims[d] for a, d in zip(avals, f.at)]


def example(a, d, k):
    return a if d is None else np.take(a, k, d)


BATCHED = [
    (ops.rev, [(16, 4)], {"dimensions": (0, 1)}, lambda x: np.flip(x)),
    (ops.roll, [(16, 4)], {"shift": (2,), "axis": (1,)}, lambda x: np.roll(x, 2, 1)),
    (ops.slice_, [(16, 4)], {"start_indices": (1, 0), "limit_indices": (9, 4), "strides": (2, 1)}, lambda x: x[1:9:2]),
    (
        ops.pad,
        [(16, 4), ()],
        {"padding_config": ((1, -2, 1), (0, 3, 0))},
        lambda x, v: pad_reference(x, v, ((1, -2, 1), (0, 3, 0))),
    ),
    (ops.concatenate, [(3, 4), (5, 4)], {"dimension": 0}, lambda *x: np.concatenate(x)),
    (ops.split, [(6, 4)], {"sizes": (2, 4), "axis": 0}, lambda x: np.split(x, [2])),
]


@pytest.mark.parametrize("op, shapes, params, reference", BATCHED, ids=lambda v: getattr(v, "name", None))
def test_batching(op, shapes, params, reference):
    size = 3
    for mapped in np.ndindex(*(len(s) + 2 for s in shapes)):
        dims = [None if m == len(s) + 1 else m for m, s in zip(mapped, shapes)]
        if all(d is None for d in dims):
            continue
        args = [
            numbers(s if d is None else (*s[:d], size, *s[d:])) + 50 * k for k, (s, d) in enumerate(zip(shapes, dims))
        ]
        got, _ = batched(op, args, dims, params)
        for k in range(size):
            want = reference(*(example(a, d, k) for a, d in zip(args, dims)))
            for g, w in zip(got, want if op.multiple_results else [want]):
                np.testing.assert_array_equal(g[k], w)


@pytest.mark.parametrize("xd", [None, 0, 2])
@pytest.mark.parametrize("ud", [None, 0, 1])
@pytest.mark.parametrize("sd", [(None, None), (0, None), (0, 0)])
def test_batching_of_the_dynamic_pair(xd, ud, sd):
    size = 3
    starts = [np.array([2, -1, 9], np.int32) if d == 0 else np.int32(1) for d in sd]
    x = numbers((6, 4) if xd is None else ((3, 6, 4), (6, 3, 4), (6, 4, 3))[xd])
    u = numbers((2, 4) if ud is None else ((3, 2, 4), (2, 3, 4))[ud]) + 500
    clip = lambda k: [int(np.clip(example(s, d, k), 0, 4 if i == 0 else 0)) for i, (s, d) in enumerate(zip(starts, sd))]
    if xd is not None or sd[0] is not None:
        (got,), _ = batched(slicing.dynamic_slice, [x, *starts], [xd, *sd], {"slice_sizes": (2, 4)})
        for k in range(size):
            i, j = clip(k)
            np.testing.assert_array_equal(got[k], example(x, xd, k)[i : i + 2, j : j + 4])
    if xd is not None or ud is not None or sd[0] is not None:
        (got,), _ = batched(slicing.dynamic_update_slice, [x, u, *starts], [xd, ud, *sd], {})
        for k in range(size):
            i, j = clip(k)
            want = example(x, xd, k).copy()
            want[i : i + 2, j : j + 4] = example(u, ud, k)
            np.testing.assert_array_equal(got[k], want)


def test_batching_over_a_sharded_dim_keeps_it_sharded():
    x, starts = numbers((8, 6, 4)), np.array([0, 1, 2, 3, 4, 5, 0, 1], np.int32)
    zero = np.int32(0)
    (got,), (entry,) = batched(
        slicing.dynamic_slice, [x, starts, zero], [0, 0, None], {"slice_sizes": (2, 4)}, ("x",), [P("x"), P("x"), P()]
    )
    assert entry == ("x",)
    for k, s in enumerate(np.clip(starts, 0, 4)):
        np.testing.assert_array_equal(got[k], x[k, s : s + 2])
    (got,), (entry,) = batched(
        slicing.dynamic_slice,
        [x[0], starts, zero],
        [None, 0, None],
        {"slice_sizes": (2, 4)},
        ("x",),
        [P(), P("x"), P()],
    )
    assert entry == ("x",)
    for k, s in enumerate(np.clip(starts, 0, 4)):
        np.testing.assert_array_equal(got[k], x[0, s : s + 2])


BAD = [
    (TypeError, "cannot concatenate|Cannot concatenate", lambda x: ops.concatenate(x, numbers((16, 2)), dimension=0)),
    (TypeError, "slice: needs", lambda x: ops.slice_(x, start_indices=(3, 0), limit_indices=(2, 4), strides=None)),
    (ValueError, "split: sizes", lambda x: ops.split(x, sizes=(3, 4), axis=0)),
    (TypeError, "pad: padding_value must be a scalar", lambda x: ops.pad(x, x, padding_config=((0, 0, 0), (0, 0, 0)))),
    (ValueError, "pad: interior", lambda x: ops.pad(x, np.float32(0), padding_config=((-20, 0, 0), (0, 0, 0)))),
    (
        TypeError,
        "dynamic_slice: slice_sizes",
        lambda x: slicing.dynamic_slice(x, np.int32(0), np.int32(0), slice_sizes=(17, 4)),
    ),
    (
        TypeError,
        "start indices must be scalars",
        lambda x: slicing.dynamic_slice(x, np.zeros(2, int), np.int32(0), slice_sizes=(1, 4)),
    ),
    (TypeError, "no larger", lambda x: slicing.dynamic_update_slice(numbers((2, 4)), x, np.int32(0), np.int32(0))),
    (TypeError, "rev: dims", lambda x: ops.rev(x, dimensions=(0, 0))),
    (ValueError, "iota: dimension", lambda x: ops.iota(dtype=np.dtype("f4"), shape=(2,), dimension=1, sharding=None)),
]


@pytest.mark.parametrize("kind, words, call", BAD, ids=[w[:20] for _, w, _ in BAD])
def test_bad_operands_are_named(kind, words, call):
    x = numbers((16, 4))
    with pytest.raises(kind, match=words):
        run(lambda a: [call(a)], [x], [P()], EXPLICIT)
