"""Chains of operations as machine code give what numpy gives, to the last bit; and what is done where they cannot be compiled."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm, memory
from mpiarray.compiler.passes import fuse
from mpiarray.config import config
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var
from mpiarray.core.op import OPS
from mpiarray.core.value import literal
from mpiarray.ops import compiled_chains, machine_code, tiles
from mpiarray.ops.tile_steps import kernel_of
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh
from tests.ops.test_tiles import random_program, unfused, values

MISSING = machine_code.available()
compiling = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")

EVERYWHERE = AbstractMesh((), ())
F16, F32, F64, BF16 = (np.dtype(d) for d in ("f2", "f4", "f8", ml_dtypes.bfloat16))
FLOATS = [F32, F64, F16, BF16]
INTEGERS = [np.dtype(d) for d in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
BOOL = np.dtype(bool)
COUNT = 1003  # some vectors, and a part of one


def edges(dtype: np.dtype, rng: np.random.Generator, count: int = COUNT) -> np.ndarray:
    """Numbers of all sizes, and the ones at which functions change."""
    if dtype == BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        special = np.array([0, 1, info.max, info.min, info.max - 1, info.min + 1, 2, 3], dtype)
        found = rng.integers(info.min, info.max, count, dtype, endpoint=True)
        found[: count // 3] >>= dtype.type(4 * dtype.itemsize)
    else:
        info = ml_dtypes.finfo(dtype)
        limits = [float(2**k) + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0)]
        special = np.array(
            [0.0, -0.0, np.nan, np.inf, -np.inf, 1, -1, 0.5, -0.5, 1.5, info.max, info.min, info.tiny, -info.tiny]
            + [info.smallest_subnormal, 3 * float(info.smallest_subnormal), *limits, *(-x for x in limits)],
            np.float64,
        )
        with np.errstate(all="ignore"):
            special = special.astype(dtype)
            found = (rng.standard_normal(count) * 2.0 ** rng.integers(-160, 160, count)).astype(dtype)
        found[: count // 3] = rng.standard_normal(count // 3) * 3
    places = rng.random(count) < 0.4
    found[places] = rng.choice(special, np.count_nonzero(places))
    return found


def bits(x: np.ndarray) -> np.ndarray:
    if x.dtype == BF16:
        x = np.where(np.isnan(x), np.array(np.nan, BF16), x)  # the signs of ml_dtypes' NaNs are its compiler's choice
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def equation(name: str, dtypes: list[np.dtype], /, **params) -> Eqn:
    avals = [ShapedArray((COUNT,), d) for d in dtypes]
    out = OPS[name].type_rule(*avals, **params)
    return Eqn(OPS[name], [Var(a) for a in avals], (Var(ShapedArray(out.shape, out.dtype)),), params, EVERYWHERE)


def cases():
    """(op, dtypes of its operands, params): all ops that have code, for all dtypes that they take."""
    number = [*FLOATS, *INTEGERS]
    for d in number:
        yield from ((name, [d, d], {}) for name in ("add", "sub", "mul", "add_any", "max", "min"))
        yield from ((name, [d], {}) for name in ("neg", "square", "sign", "stop_gradient"))
        yield from ((name, [d, d], {}) for name in ("eq", "ne", "lt", "le", "gt", "ge"))
        yield "clamp", [d, d, d], {}
        yield "select_n", [BOOL, d, d], {}
        yield "masked", [BOOL, d], {}
        yield from (("integer_pow", [d], {"y": y}) for y in (0, 1, 2, 3, 7, 10))
        if d.kind != "u":
            yield "abs", [d], {}
    for d in FLOATS:
        yield "div", [d, d], {}
        yield from ((name, [d], {}) for name in ("sqrt", "rsqrt", "floor", "ceil", "is_finite"))
        yield from (("integer_pow", [d], {"y": y}) for y in (-1, -2, -5))
        yield "name", [d], {"name": "a"}
    for d in [BOOL, *INTEGERS]:
        yield from ((name, [d, d], {}) for name in ("and", "or", "xor", "max", "min", "eq", "ne", "lt", "ge"))
        yield "not", [d], {}
    yield "select_n", [np.dtype("i4"), *[np.dtype("f4")] * 2], {}
    yield "select_n", [np.dtype("i4"), *[np.dtype("i2")] * 4], {}
    for source, target in itertools.product([BOOL, *number], repeat=2):
        if source == F64 and target in (F16, BF16):
            continue
        yield "convert_element_type", [source], {"new_dtype": target, "weak_type": False}


CASES = list(cases())


@compiling
@pytest.mark.parametrize("name", sorted({name for name, *_ in CASES}))
def test_every_operation(name):
    rng = np.random.default_rng(0)
    for _, kinds, params in (c for c in CASES if c[0] == name):
        eqn = equation(name, kinds, **params)
        assert compiled_chains.has_code(eqn), f"{name} of {kinds} is left to numpy"
        function = compiled_chains.compiled([eqn]).params["function"]
        blocks = [edges(d, rng) for d in kinds]
        with np.errstate(all="ignore"):
            if name == "clamp":
                blocks[0], blocks[2] = np.fmin(blocks[0], blocks[2]), np.fmax(blocks[0], blocks[2])
            for parts in (blocks, [b[:5] for b in blocks], [b[::3] for b in blocks]):
                got, want = function(*parts), np.asarray(kernel_of(eqn)(*parts))
                assert got.dtype == want.dtype
                wrong = np.flatnonzero(bits(got) != bits(want))
                found = [(*(p[k] for p in parts), got[k], want[k]) for k in wrong[:3]]
                assert not found, f"{name} of {kinds}, {params}: operands, result, numpy's: {found}"


def test_every_op_with_code_is_compared():
    assert {name for name, op in OPS.items() if op.code is not None} == {name for name, *_ in CASES}


@compiling
@pytest.mark.parametrize("name", ["div", "rem", "exp", "population_count"])
def test_what_has_no_code_is_left_to_numpy(name):
    kinds = [np.dtype("f4" if name == "exp" else "i4")] * (2 if name in ("div", "rem") else 1)
    assert not compiled_chains.has_code(equation(name, kinds))
    if name == "exp":
        for other in (np.complex64, ml_dtypes.float8_e5m2, ml_dtypes.int4):
            assert not compiled_chains.has_code(equation("mul", [np.dtype(other)] * 2))
        cast = equation("convert_element_type", [F64], new_dtype=BF16, weak_type=False)
        assert not compiled_chains.has_code(cast), "it is rounded by way of another format"


@compiling
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32, 100])
def test_strides_broadcasts_and_overlaps(count):
    """Every memory order, operands of one element, and results in the place of operands."""
    f4 = np.dtype("f4")
    text = machine_code.text_of([f4, f4], f4, lambda b, v: b.mul(b.add(v[0], v[1]), v[0]))
    f = machine_code.ufunc(text, (f4, f4), f4)
    x = np.random.default_rng(0).standard_normal((6, 3 * count)).astype("f4")
    want = lambda a, b: (a + b) * a
    for a in (x[0, :count], x[0, ::3], x[0, ::-3], x[:, :count], x[:, ::3], x[:, :count].T, x[:, 1::3].T[::-1]):
        for b in (a, np.float32(2), a[..., :1], np.asfortranarray(a), a[:1]):
            np.testing.assert_array_equal(f(a, b), want(a, b))
    y = x[:, :count].copy()
    f(y, x[:, :count], out=y)
    np.testing.assert_array_equal(y, want(x[:, :count], x[:, :count]))
    z = x[0].copy()
    if count > 1:
        f(z[1:count], z[: count - 1], out=z[1:count])  # numpy takes care of parts that overlap
        np.testing.assert_array_equal(z[1:count], want(x[0, 1:count], x[0, : count - 1]))


@compiling
@pytest.mark.parametrize("kind", [F32, F64, BF16, BOOL], ids=str)
def test_large_results_are_written_past_the_caches(kind):
    """From a size on, if they are aligned and not in an operand's place: the same numbers."""
    body = lambda b, v: b.compare("lt", *v) if kind == BOOL else b.add(b.mul(*v), v[0])
    operand = F32 if kind == BOOL else kind
    text = machine_code.text_of([operand] * 2, kind, body, streamed_from=1000)
    assert ("!nontemporal" in text) == (kind != BOOL), "parts of a line are not"
    f = machine_code.ufunc(text, (operand,) * 2, kind)
    rng = np.random.default_rng(0)
    whole = memory.empty((3000,), kind)
    for count, first in itertools.product((10, 999, 1000, 1064, 2001), (0, 1, 7)):
        x, y = rng.standard_normal((2, count)).astype(operand)
        want = x < y if kind == BOOL else x * y + x
        out = whole[first : first + count]
        assert f(x, y, out=out) is out
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(f(x, y[:1]), x < y[:1] if kind == BOOL else x * y[:1] + x)
        if kind != BOOL:
            np.testing.assert_array_equal(f(x, y, out=x), want)


@compiling
def test_nothing_is_contracted_folded_or_reordered():
    """Products that are added round before; constants take part as if they were not known."""
    f8 = np.dtype("f8")
    rng = np.random.default_rng(0)
    x, y, z = (rng.standard_normal(COUNT) for _ in range(3))
    f = machine_code.ufunc(
        text := machine_code.text_of([f8] * 3, f8, lambda b, v: b.sub(b.mul(v[0], v[1]), v[2])), (f8,) * 3, f8
    )
    np.testing.assert_array_equal(f(x, y, x * y), np.zeros(COUNT))
    assert f is machine_code.ufunc(text, (f8,) * 3, f8), "equal texts are compiled once"
    far = machine_code.text_of([f8], f8, lambda b, v: b.sub(b.add(v[0], b.constant(1e17, f8)), b.constant(1e17, f8)))
    np.testing.assert_array_equal(machine_code.ufunc(far, (f8,), f8)(x), (x + 1e17) - 1e17)
    flip = machine_code.text_of([f8], f8, lambda b, v: b.sub(b.constant(-0.0, f8), v[0]))
    nan = np.array([np.nan, 0.0, -0.0])
    np.testing.assert_array_equal(bits(machine_code.ufunc(flip, (f8,), f8)(nan)), bits(-0.0 - nan))


def steps_of(f, *args):
    """The names of the steps of the one group of a jitted function."""
    groups = []

    class Seen(tiles.Tiled):
        def __init__(self, *args, **params):
            super().__init__(*args, **params)
            groups.append(self)

    with pytest.MonkeyPatch.context() as m:
        m.setattr("mpiarray.ops.sweeps.Tiled", Seen)
        jax.jit(f)(*args)
    (group,) = groups
    return [e.op.name for e in group.steps]


@pytest.fixture
def all_chains(monkeypatch):
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    with config.override("llvm", True):
        yield


@compiling
def test_which_equations_are_one(all_chains):
    x = jnp.asarray(np.arange(64, dtype=np.float32))
    assert steps_of(lambda x: ((x * 0.5 + 1) * x - 3) * x, x) == ["chain"]
    assert steps_of(lambda x: jnp.exp(x * 2 - 1) * x + 1, x) == ["chain", "exp", "chain"]
    assert steps_of(lambda x: jnp.exp(x * 2), x) == ["mul", "exp"], "numpy has loops for single operations"
    narrow = jnp.asarray(np.arange(64), jnp.bfloat16)
    assert steps_of(lambda x: [x * 2, x + 1], narrow) == ["chain", "chain"], "but not for vectors of 16-bit floats"
    two = lambda x: [(y := x * 2 - 1) * x + 1, y]
    assert steps_of(two, x) == ["chain", "chain"], "what is a result, too, ends a chain"
    assert steps_of(lambda x: ((y := x * 2 - 1) * y).sum(), x) == ["chain", "reduce_sum"], "BLAS adds the products"
    assert steps_of(lambda x: jnp.where(x > 1, x, 2) * 3, x) == ["chain"]
    assert steps_of(lambda x: jnp.exp(jax.lax.stop_gradient(x)), x) == ["stop_gradient", "exp"], (
        "which only passes it on"
    )
    assert steps_of(lambda x: jnp.exp(jax.lax.rsqrt(x)), x) == ["chain", "exp"]


@compiling
def test_chains_have_a_limit(all_chains):
    xs = [jnp.asarray(np.full(64, k, np.float32)) for k in range(22)]
    f = lambda *xs: sum(xs[1:], xs[0]) * 2
    assert set(steps_of(f, *xs)) == {"chain"} and len(steps_of(f, *xs)) > 1
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(*xs)), np.full(64, 2 * sum(range(22)), np.float32))


@compiling
@pytest.mark.parametrize(
    "dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16, "i1", "i4", "?"], ids=lambda d: np.dtype(d).name
)
@pytest.mark.parametrize("shape", [(1000,), (40, 25), (3, 1, 17)], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_random_programs(shape, dtype, all_chains, monkeypatch):
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 77)
    monkeypatch.setattr(tiles, "_UNCUT_BYTES", 0)
    dtype = np.dtype(dtype)
    with config.override("jax_enable_x64", True):
        for seed in range(3):
            rng = np.random.default_rng([seed, *shape])
            f = random_program(rng, shape)
            args = (values(rng, shape, dtype), values(rng, shape[-1:], dtype), values(rng, (), dtype))
            results = []
            for on in (True, False):
                with config.override("llvm", on):
                    results.append(jax.jit(lambda *xs, f=f: f(*xs))(*args))
            for got, numpys, want in zip(*results, unfused(f, args, monkeypatch), strict=True):
                np.testing.assert_array_equal(bits(np.asarray(got)), bits(np.asarray(numpys)))
                assert got.dtype == want.dtype and got.shape == want.shape


@compiling
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_functions_of_narrow_floats_are_cast_in_chains(dtype, all_chains):
    """What numpy computes in float32 meets its casts' neighbours in one chain; numbers and rows are as they were."""
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(edges(dtype, rng).reshape(17, 59)) for _ in range(2))

    def f(x, y, scalar):
        a = jnp.exp(jnp.tanh(x * 2 + y) - 1) + jnp.arctan2(x, y)
        b = jnp.power(jnp.abs(x), 1.5) + jnp.power(jnp.abs(x), scalar) + jnp.arctan2(x, y[:1])
        return a, b, jnp.log(jnp.abs(x) + 1) / 3, jnp.exp(x - x.max(-1, keepdims=True))

    results = []
    for on in (True, False):
        with config.override("llvm", on):
            results.append(jax.jit(lambda *xs: f(*xs))(x, y, jnp.asarray(1.25, dtype)))
    for got, want in zip(*results, strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(bits(np.asarray(got)), bits(np.asarray(want)))
    assert steps_of(lambda x: jnp.exp(x * 2) * 3, x) == ["chain", "exp", "chain"]


SUMS = {
    "over tiles": lambda x: jnp.sum(jnp.sqrt(jnp.abs(x * 2 + 1)) * (x - 1) + x),
    "of columns": lambda x: jnp.sum((x * 2 + 1) * (x - 1) + x, axis=0),
    "of rows": lambda x: x * 3 - jnp.sum((x * 2 + 1) * (x - 1) + x, axis=1, keepdims=True),
    "moments": lambda x: jnp.var((x * 2 + 1) * (x - 1)),
    "of what has no place": lambda x: jnp.sum(jnp.clip(x, -1, 1)) + jnp.sum(x.astype(jnp.bfloat16).astype(x.dtype)),
    "of a column": lambda x: jnp.sum(jnp.clip(jnp.broadcast_to(x[:, :1], x.shape), -1, 1) + x * 2 * x),
}


@compiling
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_do_not_depend_on_the_compiler(name, order, all_chains, monkeypatch):
    """The parts that are added up, and their order, are those without chains: ranks with and without llvmlite agree."""
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_UNCUT_BYTES", 0)
    monkeypatch.setattr(tiles, "CACHE_BYTES", 20_000)
    monkeypatch.setattr(tiles, "_ROWS_BYTES", 60_000)
    x = np.random.default_rng(0).standard_normal((301, 203)).astype(np.float32)
    f = SUMS[name]
    for k in range(5):
        y = jnp.asarray(np.roll(x, k).copy())
        found = []
        for on in (True, False):
            with config.override("llvm", on):
                found.append(np.asarray(jax.jit(lambda y: f(y.T) if order == "F" else f(y))(y)))
        np.testing.assert_array_equal(*map(bits, found))


@compiling
def test_the_default_is_for_large_blocks(monkeypatch):
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    small, large = (jnp.ones(n, np.float32) for n in (1000, 1 << 16))
    f = lambda x: x * 2 + 1
    assert config.llvm == "auto"
    assert steps_of(f, small) == ["mul", "add"] and steps_of(f, large) == ["chain"]
    with config.override("llvm", False):
        assert steps_of(lambda x: f(x), large) == ["mul", "add"]


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    monkeypatch.setattr(machine_code, "available", lambda: "llvmlite is not installed")
    x = jnp.ones(1 << 16, np.float32)
    assert steps_of(lambda x: x * 2 + 1, x) == ["mul", "add"]
    with config.override("llvm", True), pytest.raises(ImportError, match="MPIARRAY_LLVM. is on, but llvmlite is not"):
        jax.jit(lambda x: x * 2 + 1)(x)


def test_where_it_is_said(monkeypatch):
    machine_code.available.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "pip install llvmlite" in machine_code.available()
    machine_code.available.cache_clear()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "x86-64 only" in machine_code.available()
    machine_code.available.cache_clear()


@compiling
def test_a_compiler_that_does_not_work_is_not_used(monkeypatch):
    def broken(*args):
        raise RuntimeError("LLVM IR parsing error")

    with monkeypatch.context() as m:
        m.setattr(machine_code, "compiled", broken)
        machine_code.available.cache_clear()
        assert "does not work here (RuntimeError: LLVM IR parsing error)" in machine_code.available()
        assert not compiled_chains.wanted((1 << 20,)) and not compiled_chains.are_on()
    machine_code.available.cache_clear()
    assert compiled_chains.are_on()


@compiling
@pytest.mark.mpi
def test_ranks_with_and_without_a_compiler_agree(monkeypatch):
    """Results that all ranks hold are equal to the last bit, though only some have chains."""
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    n = jax.device_count()
    mesh = jax.make_mesh((n,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = np.random.default_rng(0).standard_normal((4 * n, 1001)).astype(np.float32)

    def f(x, w):
        y = jnp.where(x > 0.1, x * w + 0.3, x / (w * w + 1)) - jnp.sqrt(jnp.abs(x))
        w = w - 0.1 * jnp.sum(y * y * x, axis=0) / (1 + w * w)
        return w * 0.7 + w * w, jnp.sum(y * 3 - y * y)

    with config.override("llvm", comm.rank() % 2 == 0):
        w = jax.device_put(x[0], jax.NamedSharding(mesh, jax.P()))
        found = jax.jit(f)(jax.device_put(x, jax.NamedSharding(mesh, jax.P("x", None))), w)
    group = comm.world_group()
    for array in found:
        bytes_of = comm.agree(group, np.asarray(array.addressable_shards[0].data).tobytes())
        assert len(set(bytes_of)) == 1


def test_a_group_of_constants_alone():
    x = Var(ShapedArray((4,), np.dtype("f4")))
    eqn = equation("add", [np.dtype("f4")] * 2).replace(invars=[literal(1, np.dtype("f4"))] * 2, outvars=(x,))
    assert not compiled_chains.has_code(eqn)
    assert tiles.Tiled(Jaxpr((), (), (x,), [eqn]), (4,)).steps == [eqn]
