"""dot_general: its types against rows recorded from JAX, its values on a mesh against numpy on global data, what it
communicates, its derivatives, and the products of blocks."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiarray.compiler.pipeline import lower
from mpiarray.core.op import Linear
from mpiarray.core.trace import abstract_mesh
from mpiarray.errors import ShardingTypeError
from mpiarray.numpy.einsum import einsum
from mpiarray.numpy.products import matmul
from mpiarray.ops import dot_kernel
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.dot import dot_general
from mpiarray.ops.linear import transpose
from mpiarray.runtime import eager
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import P, draw_spec, mesh_of, run, size_of

ROWS = json.loads(Path(__file__).with_name("recorded_dot.json").read_text())
MESH = AbstractMesh((2, 2, 2), ("x", "y", "z"), (AxisType.Explicit,) * 3)
EXPLICIT = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
MATRICES = (((1,), (0,)), ((), ()))
F32 = np.dtype(np.float32)


def dot(x, y, numbers=MATRICES, dtype=None, out=None):
    return dot_general(x, y, dimension_numbers=numbers, precision=None, preferred_element_type=dtype, out_sharding=out)


def frozen(v):
    return tuple(frozen(x) for x in v) if isinstance(v, list) else v


# -- types ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dot_general", "matmul", "einsum"])
def test_types_are_the_recorded_ones(kind):
    for row in ROWS:
        name, params, operands, out, result = row
        if name != kind:
            continue
        avals = [ShapedArray(tuple(s), F32, False, NamedSharding(MESH, P.from_dims(frozen(d)))) for s, d in operands]
        spec = None if out is None else P.from_dims(frozen(out[0]), frozenset(out[1]))
        with abstract_mesh(MESH):
            if isinstance(result, dict):
                with pytest.raises((ShardingTypeError, ValueError)) as caught:
                    typed_call(kind, params, avals, spec)
                assert type(caught.value).__name__ in (result["error"], "IndivisibleError"), row
                assert result["phrase"] is None or result["phrase"] in str(caught.value), (row, caught.value)
                continue
            aval = typed_call(kind, params, avals, spec)
        assert list(aval.shape) == result[0], row
        assert [list(d) for d in aval.dims] == result[1], row
        assert sorted(aval.unreduced) == result[2], row


def typed_call(kind, params, avals, spec):
    f = {
        "dot_general": lambda *a: dot(*a, frozen(params), out=None if spec is None else NamedSharding(MESH, spec)),
        "matmul": lambda *a: matmul(*a, out_sharding=spec),
        "einsum": lambda *a: einsum(params, *a, out_sharding=spec),
    }[kind]
    return trace_to_jaxpr(lambda *a: [f(*a)], avals).jaxpr.outvars[0].aval


def test_errors_of_shapes_name_the_operands():
    x, y = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(TypeError, match=r"contracting dimensions to have the same shape, got \(3,\) and \(2,\)"):
        dot(x, y)
    with pytest.raises(TypeError, match="disjoint from contracting"):
        dot(x, y, (((0, 1), (0, 1)), ((0,), (0,))))
    with pytest.raises(TypeError, match="less than the number of axes"):
        dot(x, y, (((2,), (0,)), ((), ())))
    with pytest.raises(ValueError, match="Incompatible types for matmul arguments"):
        matmul(np.ones((3, 2, 2)), np.ones((2, 2, 2)))
    with pytest.raises(ValueError, match="matmul input operand 1 must have ndim at least 1, but it has ndim 0"):
        matmul(x, 2.0)


# -- values on a mesh -------------------------------------------------------------------------------------------


def draw_product(data):
    """Dimension numbers, operands, and numpy's product."""
    kinds = ["b"] * data.draw(st.integers(0, 1)) + ["c"] * data.draw(st.integers(0, 2))
    sizes = {f"{k}{i}": data.draw(st.sampled_from((2, 4, 8))) for i, k in enumerate(kinds)}
    sides = []
    for side in "lr":
        free = [f"{side}{i}" for i in range(data.draw(st.integers(0, 2)))]
        sizes |= {n: data.draw(st.sampled_from((4, 8, 3))) for n in free}
        sides.append(data.draw(st.permutations([*(k for k in sizes if k[0] in "bc"), *free])))
    numbers = tuple(tuple(tuple(s.index(n) for n in sizes if n[0] == k) for s in sides) for k in "cb")
    letters = {n: chr(97 + i) for i, n in enumerate(sizes)}
    order = [n for n in sizes if n[0] == "b"] + [n for s in sides for n in s if n[0] in "lr"]
    terms = ["".join(letters[n] for n in s) for s in sides]
    arrays = [numbers_like([sizes[n] for n in s], k) for k, s in enumerate(sides)]
    text = f"{','.join(terms)}->{''.join(letters[n] for n in order)}"
    return numbers, arrays, np.einsum(text, *arrays)


def numbers_like(shape, seed=0, dtype=np.float32):
    """Small integers, so that sums are exact in any order."""
    return (np.arange(np.prod(shape, dtype=int)) * (7 + 4 * seed) % 13 - 6).reshape(shape).astype(dtype)


@settings(max_examples=120)
@given(st.data())
def test_values_wherever_operands_and_result_lie(data):
    numbers, (x, y), wanted = draw_product(data)
    mesh = data.draw(st.sampled_from((EXPLICIT, AUTO)))
    specs = [draw_spec(data, mesh, x.shape), draw_spec(data, mesh, y.shape)]
    out = None
    if mesh is EXPLICIT and data.draw(st.booleans()):
        out = NamedSharding(mesh, draw_spec(data, mesh, wanted.shape))
    try:
        (got,), (aval,), _, _ = run(lambda a, b: [dot(a, b, numbers, out=out)], [x, y], specs, mesh)
    except ShardingTypeError:
        assert mesh is EXPLICIT and out is None
        return
    np.testing.assert_array_equal(got, wanted)
    if out is not None:
        assert aval.dims == out.spec.dims


@settings(max_examples=40)
@given(st.data())
def test_unreduced_results_add_up_without_communication(data):
    axes = data.draw(st.sampled_from((("x",), ("y",), ("x", "y"), ("y", "x"))))
    x, y = numbers_like((4, 8)), numbers_like((8, 2), 1)
    spec = NamedSharding(EXPLICIT, P.from_dims(((), ()), frozenset(axes)))
    specs = [P.from_dims(((), axes)), P.from_dims((axes, ()))]
    avals = [ShapedArray(v.shape, F32, False, NamedSharding(EXPLICIT, s)) for v, s in zip((x, y), specs)]
    with abstract_mesh(EXPLICIT):
        jaxpr = trace_to_jaxpr(lambda a, b: [dot(a, b, out=spec)], avals)
    with abstract_mesh(EXPLICIT):
        program = lower("test", jaxpr, specs, [None], EXPLICIT, EXPLICIT.size)
    assert [e.op.name for e in program.local.jaxpr.eqns] == ["dot_general"]
    assert jaxpr.jaxpr.outvars[0].aval.unreduced == set(axes)
    parts = size_of(EXPLICIT, axes)
    total = sum(
        np.matmul(x[:, k * 8 // parts : (k + 1) * 8 // parts], y[k * 8 // parts : (k + 1) * 8 // parts])
        for k in range(parts)
    )
    np.testing.assert_array_equal(total, x @ y)


# -- communication ---------------------------------------------------------------------------------------------

TRAFFIC = [
    # left, right, out_sharding, collectives of all 8 devices together
    (P("x", None), P(None, "y"), None, {}),
    (P(("x", "y"), None), P(None, None), None, {}),
    (P("x", "y"), P(None, None), None, {"all_reduce": 8}),
    (P(None, None), P("x", None), None, {"all_reduce": 8}),
    (P(None, "x"), P("x", None), P(None, None), {"all_reduce": 8}),
    (P(None, "x"), P("x", None), P("x", None), {"reduce_scatter": 8}),
    (P(None, "x"), P("x", None), P(None, "x"), {"reduce_scatter": 8}),
    (P("y", "x"), P("x", None), P("y", "x"), {"reduce_scatter": 8}),
    (P("x", "y"), P("y", None), P("x", "y"), {"reduce_scatter": 8}),
    (P("x", "y"), P("y", None), P("x", None), {"all_reduce": 8}),
    (P("x", None), P(None, None), P("x", "y"), {}),
    (P(None, None), P(None, None), P("x", "y"), {}),
    (P("x", None), P(None, "x"), P("x", None), {"all_gather": 8}),
    (P("x", None), P("x", None), None, {"all_gather": 8}),
]


@pytest.mark.parametrize(("left", "right", "out", "calls"), TRAFFIC)
def test_traffic(left, right, out, calls):
    x, y = numbers_like((16, 16)), numbers_like((16, 16), 1)
    sharding = None if out is None else NamedSharding(EXPLICIT, out)
    (got,), _, _, world = run(lambda a, b: [dot(a, b, out=sharding)], [x, y], [left, right], EXPLICIT)
    np.testing.assert_array_equal(got, x @ y)
    assert dict(world.calls) == calls


def test_on_auto_axes_a_sharded_contraction_is_one_all_reduce():
    x, y = numbers_like((8, 4)), numbers_like((4, 16), 1)
    (got,), (aval,), (spec,), world = run(lambda a, b: [dot(a, b)], [x, y], [P(None, "x"), P("x", None)], AUTO)
    np.testing.assert_array_equal(got, x @ y)
    assert spec == P(None, None) and str(aval.dims) == "((), ())"
    assert dict(world.calls) == {"all_reduce": 8}
    assert world.bytes["all_reduce"] == 8 * got.nbytes


def test_on_auto_axes_a_repeated_axis_stays_where_it_is_first():
    x = numbers_like((8, 8))
    (got,), _, (spec,), _ = run(lambda a: [dot(a, transpose(a, permutation=(1, 0)))], [x], [P("x", "y")], AUTO)
    np.testing.assert_array_equal(got, x @ x.T)
    assert spec == P("x", None)


# -- derivatives, batching -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_transposes_are_adjoint(data):
    numbers, (x, y), out = draw_product(data)
    ct = numbers_like(out.shape, 2)
    params = {"dimension_numbers": numbers, "precision": None, "preferred_element_type": None, "out_sharding": None}
    back, none = dot_general.transpose(dot_general, ct, Linear(eager.from_host(x).aval), y, **params)
    assert none is None and back.shape == x.shape
    assert np.sum(ct * out) == np.sum(np.asarray(back) * x)
    none, back = dot_general.transpose(dot_general, ct, x, Linear(eager.from_host(y).aval), **params)
    assert none is None and back.shape == y.shape
    assert np.sum(ct * out) == np.sum(np.asarray(back) * y)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_batches_are_stacks_of_products(data):
    numbers, (x, y), _ = draw_product(data)
    count = 3
    mapped = data.draw(st.sampled_from(((True, True), (True, False), (False, True))))
    args, dims, singles = [], [], []
    for v, m in zip((x, y), mapped):
        d = data.draw(st.integers(0, v.ndim)) if m else None
        stack = [v + k for k in range(count)] if m else [v] * count
        args.append(np.stack(stack, d) if m else v)
        dims.append(d)
        singles.append(stack)
    params = {"dimension_numbers": numbers, "precision": None, "preferred_element_type": None, "out_sharding": None}
    out, d = dot_general.batch(dot_general, BatchAxis(count), args, dims, **params)
    wanted = [np.asarray(dot(a, b, numbers)) for a, b in zip(*singles)]
    np.testing.assert_array_equal(np.moveaxis(np.asarray(out), d, 0), np.stack(wanted))


def test_the_cotangent_of_a_replicated_weight_is_reduced_once():
    """dw of x @ w, with rows of x sharded: its type is w's, by one all-reduce."""
    x, ct = numbers_like((8, 4)), numbers_like((8, 2), 2)
    params = {"dimension_numbers": MATRICES, "precision": None, "preferred_element_type": None, "out_sharding": None}
    aval = ShapedArray((4, 2), F32, False, NamedSharding(EXPLICIT, P(None, None)))

    def back(ct, x):
        return [dot_general.transpose(dot_general, ct, x, Linear(aval), **params)[1]]

    (got,), (out,), _, world = run(back, [ct, x], [P("x", None), P("x", None)], EXPLICIT)
    np.testing.assert_array_equal(got, x.T @ ct)
    assert out.short() == "f32[4,2]" and dict(world.calls) == {"all_reduce": 8}
    unreduced = aval.update(sharding=NamedSharding(EXPLICIT, P.from_dims(((), ()), reduced=frozenset("x"))))
    with abstract_mesh(EXPLICIT):
        typed = [ShapedArray(v.shape, F32, False, NamedSharding(EXPLICIT, P("x", None))) for v in (ct, x)]
        jaxpr = trace_to_jaxpr(
            lambda ct, x: [dot_general.transpose(dot_general, ct, x, Linear(unreduced), **params)[1]], typed
        )
    assert jaxpr.jaxpr.outvars[0].aval.short() == "f32[4,2]{U:x}"


# -- blocks ------------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.data())
def test_blocks_of_any_dtype_and_memory_order(data):
    numbers, (x, y), wanted = draw_product(data)
    dtype = data.draw(
        st.sampled_from(
            (np.int8, np.int32, np.uint8, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64)
        )
    )
    x, y = (ordered(data, v.astype(dtype) if np.dtype(dtype).kind != "u" else abs(v).astype(dtype)) for v in (x, y))
    wanted = (
        dot_kernel.product(x.astype(np.float64), y.astype(np.float64), numbers, np.dtype(np.float64))
        if np.dtype(dtype).kind == "u"
        else wanted
    )
    got = dot_kernel.product(x, y, numbers, np.dtype(dtype))
    assert got.dtype == dtype and got.shape == wanted.shape
    np.testing.assert_array_equal(
        got.astype(np.complex128), wanted.astype(np.int64).astype(dtype).astype(np.complex128)
    )


def ordered(data, x):
    """The same values in another memory order, or with gaps."""
    order = data.draw(st.permutations(range(x.ndim)))
    back = np.argsort(order)
    out = np.ascontiguousarray(x.transpose(order)).transpose(back) if x.ndim else x
    if data.draw(st.booleans()) and x.ndim:
        wide = np.zeros((*out.shape[:-1], 2 * out.shape[-1]), out.dtype)
        wide[..., ::2] = out
        out = wide[..., ::2]
    np.testing.assert_array_equal(out.astype(np.complex128), x.astype(np.complex128))
    return out


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_integers_wrap_around(dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    x = rng.integers(info.min, info.max, (5, 70), dtype=dtype, endpoint=True)
    y = rng.integers(info.min, info.max, (70, 4), dtype=dtype, endpoint=True)
    wanted = (x.astype(object) @ y.astype(object)) % 2 ** (8 * x.itemsize)
    got = dot_kernel.product(x, y, MATRICES, np.dtype(dtype))
    np.testing.assert_array_equal(got.astype(object) % 2 ** (8 * x.itemsize), wanted)


def test_narrow_floats_are_rounded_once():
    rng = np.random.default_rng(1)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x, y = rng.normal(size=(20, 300)).astype(dtype), rng.normal(size=(300, 20)).astype(dtype)
        exact = x.astype(np.float64) @ y.astype(np.float64)
        np.testing.assert_array_equal(
            dot_kernel.product(x, y, MATRICES, np.dtype(dtype)).astype(np.float64), rounded(x, y, dtype)
        )
        wide = dot_kernel.product(x, y, MATRICES, F32)
        np.testing.assert_allclose(wide, exact, rtol=1e-4, atol=1e-4)


def rounded(x, y, dtype):
    return (x.astype(np.float32) @ y.astype(np.float32)).astype(dtype).astype(np.float64)


def test_preferred_dtypes_hold_what_the_operands_cannot():
    x = np.full((1, 1000), 100, np.int8)
    assert dot_kernel.product(x, x.T, MATRICES, np.dtype(np.int32))[0, 0] == 10_000_000
    assert dot_kernel.product(x, x.T, MATRICES, np.dtype(np.int8))[0, 0] == np.int64(10_000_000).astype(np.int8)
    assert dot_kernel.product(x > 0, x.T > 0, MATRICES, np.dtype(bool))[0, 0]


@pytest.mark.parametrize("shape", [(6, 5), (3, 6, 5)])
def test_transposed_and_batched_operands_are_not_copied(shape):
    x = np.zeros(shape, np.float32)
    for view in (
        x,
        np.swapaxes(x, -1, -2),
        x[..., 1:, :],
        np.swapaxes(x[..., :, 1:4], -1, -2),
        x[..., :1],
        x[..., :1, :],
    ):
        assert dot_kernel.blas_ready(view) is view
    for view in (x[..., ::2], np.swapaxes(x[..., ::2], -1, -2), x[..., ::-1], np.broadcast_to(x[..., :1], shape)):
        assert dot_kernel.blas_ready(view).flags.c_contiguous
