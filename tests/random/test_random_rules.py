"""Derivative and batching rules of the ops of random numbers, and how their equations print."""

import numpy as np
import pytest

import mpiarray.runtime.eager  # noqa: F401 - evaluation
from mpiarray import random
from mpiarray.core.jaxpr import Var
from mpiarray.core.op import OPS, Zero
from mpiarray.core.printer import jaxpr_text
from mpiarray.ops import random as ops
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.gamma_slope import gamma_slope
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray
from tests.ops.pretended_mesh import P, mesh_of, run

KEYS = random.split(random.key(7), 5)
A = np.linspace(0.3, 20, 15, dtype=np.float32).reshape(5, 3)
ONE = mesh_of(("x", 1))


def batched(name, args, dims, **params):
    op = OPS[name]
    out, dim = op.batch(op, BatchAxis(5), args, dims, **params)
    return np.moveaxis(np.asarray(random.key_data(out) if out.dtype == KEYS.dtype else out), dim, 0)


def looped(name, args, dims, **params):
    rows = []
    for i in range(5):
        picked = [a if d is None else example(a, i, d) for a, d in zip(args, dims)]
        out = OPS[name](*picked, **params)
        rows.append(np.asarray(random.key_data(out) if out.dtype == KEYS.dtype else out))
    return np.stack(rows)


def example(x, i, dim):
    if isinstance(x, np.ndarray):
        return np.take(x, i, dim)
    return ops.random_wrap(np.take(np.asarray(random.key_data(x)), i, dim), impl="fry")


CASES = [
    ("random_seed", [np.arange(5, dtype=np.int32)], [0], {"impl": "fry"}),
    ("random_wrap", [np.arange(30, dtype=np.uint32).reshape(3, 5, 2)], [1], {"impl": "fry"}),
    ("random_unwrap", [KEYS], [0], {}),
    ("random_clone", [KEYS], [0], {}),
    ("random_split", [KEYS], [0], {"shape": (2, 3)}),
    ("random_fold_in", [KEYS, np.arange(5, dtype=np.uint32)], [0, 0], {}),
    ("random_fold_in", [KEYS, np.array(3, np.uint32)], [0, None], {}),
    ("random_fold_in", [random.key(1), np.arange(5, dtype=np.uint32)], [None, 0], {}),
    ("random_bits", [KEYS], [0], {"bit_width": 32, "shape": (4, 2), "sharding": None, "block": None}),
    ("random_bits", [KEYS], [0], {"bit_width": 8, "shape": (), "sharding": None, "block": None}),
    ("random_gamma", [KEYS, A], [0, 0], {"log_space": False, "block": None}),
    ("random_gamma", [random.key(1), A], [None, 0], {"log_space": True, "block": None}),
    ("random_gamma", [KEYS, A], [0, None], {"log_space": False, "block": None}),
    ("random_gamma", [random.key(1), A.T.copy()], [None, 1], {"log_space": False, "block": None}),
    ("random_trips", [KEYS, A], [0, 0], {"distribution": "poisson", "block": None}),
    ("random_trips", [KEYS, A, A[0] / 40], [0, 0, None], {"distribution": "binomial", "block": None}),
    ("random_gamma_grad", [A, A + 1], [0, 0], {"log_space": False}),
    ("random_gamma_grad", [A, A[0] + 1], [0, None], {"log_space": False}),
]


@pytest.mark.parametrize("name, args, dims, params", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_batching(name, args, dims, params):
    assert np.array_equal(batched(name, args, dims, **params), looped(name, args, dims, **params))


@pytest.mark.parametrize("dims", [[0, 0], [0, None], [None, 0]])
def test_batches_of_rejection_draws(dims):
    """Every key of a batch takes its own number of trips, as draws one by one do."""
    rates = A * 3
    trips = OPS["random_trips"].batch(
        OPS["random_trips"], BatchAxis(5), [KEYS, rates], [0, 0], distribution="poisson", block=None
    )[0]
    key = KEYS if dims[0] == 0 else random.key(7)
    rate = rates if dims[1] == 0 else rates[0]
    first = OPS["random_trips"].batch(
        OPS["random_trips"], BatchAxis(5), [key, rate], dims, distribution="poisson", block=None
    )[0]
    got = batched("random_sample", [key, first, rate], [dims[0], 0, dims[1]], distribution="poisson", block=None)
    want = [
        random.poisson(example(key, i, 0) if dims[0] == 0 else key, rate[i] if dims[1] == 0 else rate, (3,))
        for i in range(5)
    ]
    assert np.array_equal(got, np.stack([np.asarray(w) for w in want]))
    assert trips.shape == (5,)


@pytest.mark.parametrize("log_space", [False, True])
def test_derivative_of_gamma(log_space):
    k, a, t = random.key(3), A[0], np.array([1.0, -2.0, 0.5], np.float32)
    op = OPS["random_gamma"]
    out, tangent = op.jvp(op, (k, a), (Zero(k.aval), t), log_space=log_space, block=None)
    assert np.array_equal(out, op(k, a, log_space=log_space, block=None))
    np.testing.assert_allclose(tangent, t * gamma_slope(a, np.asarray(out), log_space=log_space), rtol=1e-6)
    _, none = op.jvp(op, (k, a), (Zero(k.aval), Zero(ShapedArray((3,), a.dtype))), log_space=log_space, block=None)
    assert isinstance(none, Zero)


def test_derivative_of_the_sharded_gamma():
    mesh = mesh_of(("x", 4), ("y", 2))
    a = np.linspace(0.3, 20, 8, dtype=np.float32)
    op = OPS["random_gamma"]

    def f(words, a, t):
        return op.jvp(op, (ops.random_wrap(words, impl="fry"), a), (None, t), log_space=False, block=None)

    words = np.array([0, 3], np.uint32)
    (out, tangent), avals, _, world = run(f, [words, a, np.ones_like(a)], [P(), P("x"), P("x")], mesh)
    assert [v.short() for v in avals] == ["f32[8@x]", "f32[8@x]"] and not world.calls
    np.testing.assert_allclose(tangent, gamma_slope(a, out, log_space=False), rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in OPS if n.startswith("random_")])
def test_bits_and_keys_have_zero_derivative(name):
    if name in ("random_gamma", "random_gamma_grad", "random_sample"):
        return
    case = next((c for c in CASES if c[0] == name), None)
    assert case is not None, f"{name} has no row in CASES"
    op = OPS[name]
    out, tangent = op.jvp(op, case[1], [None] * len(case[1]), **case[3])
    assert isinstance(tangent, Zero) and tangent.aval.shape == out.aval.shape


def test_text():
    def draw(words):
        k = random.wrap_key_data(words)
        return [ops.draw_bits(k, (3,), 32), random.key_data(random.split(random.fold_in(k, 7)))]

    jaxpr = trace_to_jaxpr(draw, [ShapedArray((2,), np.dtype(np.uint32))])
    text = jaxpr_text(jaxpr)
    assert isinstance(jaxpr.jaxpr.eqns[0].outvars[0], Var)
    assert "b:key<fry>[] = random_wrap[impl=fry] a" in text
    assert "u32[3] = random_bits[bit_width=32 shape=(3,)] b" in text
    assert "key<fry>[] = random_fold_in b 7:u32[]" in text
    assert "key<fry>[2] = random_split[shape=(2,)] d" in text
    assert "u32[2,2] = random_unwrap e" in text
