"""Draws against values recorded from JAX (recorded_random.json), and sharded draws against whole ones."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import mpiarray.runtime.eager  # noqa: F401 - evaluation
from mpiarray import random
from mpiarray.ops import random as ops
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import P, mesh_of, run
from tests.random.random_table import CLOSE, EXACT, f32

RECORDED = json.loads((Path(__file__).parent / "recorded_random.json").read_text())
MESH = mesh_of(("x", 4), ("y", 2))
SEED = np.array(3, np.int32)


def value(x):
    assert x.dtype == x._block.dtype and x.shape == x._block.shape
    return np.asarray(x)


def check(name, x, rtol, atol):
    entry = RECORDED[name]
    got = value(x)
    assert got.dtype.name == entry["dtype"] and list(got.shape) == entry["shape"]
    flat = got.view(np.float32).ravel() if got.dtype.kind == "c" else got.astype(np.float64).ravel()
    np.testing.assert_allclose(flat[:60], entry["values"], rtol, atol)
    np.testing.assert_allclose(flat.sum(dtype=float), entry["sum"], max(rtol, 1e-12), atol * max(flat.size, 1))


@pytest.mark.parametrize("name", EXACT)
def test_equal_to_recorded(name):
    check(name, EXACT[name](random, random.key(33)), 0, 0)


@pytest.mark.parametrize("name", CLOSE)
def test_close_to_recorded(name):
    check(name, CLOSE[name](random, random.key(33)), 5e-6, 2e-6)


@pytest.mark.parametrize("name", ["bits", "normal", "randint", "permutation", "poisson", "gamma"])
def test_raw_keys_draw_the_same(name):
    draw = {**EXACT, **CLOSE}[name]
    assert np.array_equal(value(draw(random, random.PRNGKey(33))), value(draw(random, random.key(33))))


def test_prefix_and_reshape_of_a_longer_draw():
    k = random.key(1)
    whole = value(random.bits(k, (12,)))
    assert np.array_equal(value(random.bits(k, (5,))), whole[:5])
    assert np.array_equal(value(random.bits(k, (3, 4))), whole.reshape(3, 4))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_normals(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    got = value(random.normal(random.key(2), (4000,), dtype))
    assert got.dtype == kind
    assert abs(got.astype(float).mean()) < 0.05 and abs(got.astype(float).std() - 1) < 0.05


# -- moments ---------------------------------------------------------------------------------------------

EULER = 0.5772156649015329
MOMENTS = {  # mean, variance
    "uniform": (lambda k, s: random.uniform(k, s, minval=-1.0, maxval=3.0), 1, 16 / 12),
    "normal": (random.normal, 0, 1),
    "exponential": (random.exponential, 1, 1),
    "gumbel": (random.gumbel, EULER, np.pi**2 / 6),
    "gumbel high": (lambda k, s: random.gumbel(k, s, mode="high"), EULER, np.pi**2 / 6),
    "laplace": (random.laplace, 0, 2),
    "logistic": (random.logistic, 0, np.pi**2 / 3),
    "rademacher": (random.rademacher, 0, 1),
    "bernoulli": (lambda k, s: random.bernoulli(k, 0.2, s), 0.2, 0.16),
    "bernoulli high": (lambda k, s: random.bernoulli(k, 0.2, s, mode="high"), 0.2, 0.16),
    "randint": (lambda k, s: random.randint(k, s, 3, 13), 7.5, 99 / 12),
    "rayleigh": (lambda k, s: random.rayleigh(k, 2.0, s), 2 * np.sqrt(np.pi / 2), (4 - np.pi) * 2),
    "weibull_min": (lambda k, s: random.weibull_min(k, 2.0, 1.0, s), 2, 4),
    "pareto": (lambda k, s: random.pareto(k, 6.0, s), 6 / 5, 6 / 25 / 4),
    "maxwell": (random.maxwell, 2 * np.sqrt(2 / np.pi), 3 - 8 / np.pi),
    "triangular": (lambda k, s: random.triangular(k, 0.0, 1.0, 5.0, s), 2, 21 / 18),
    "wald": (lambda k, s: random.wald(k, 1.5, s), 1.5, 1.5**3),
    "geometric": (lambda k, s: random.geometric(k, 0.25, s), 4, 12),
    "truncated_normal": (lambda k, s: random.truncated_normal(k, -1.0, 1.0, s), 0, 0.29112509),
    "lognormal": (lambda k, s: random.lognormal(k, 0.5, s), np.exp(0.125), (np.exp(0.25) - 1) * np.exp(0.25)),
    "poisson": (lambda k, s: random.poisson(k, 17.0, s), 17, 17),
    "binomial": (lambda k, s: random.binomial(k, 60, 0.3, s), 18, 12.6),
    "gamma": (lambda k, s: random.gamma(k, 0.7, s), 0.7, 0.7),
    "beta": (lambda k, s: random.beta(k, 2.0, 3.0, s), 0.4, 0.04),
    "chisquare": (lambda k, s: random.chisquare(k, 3.0, s), 3, 6),
    "t": (lambda k, s: random.t(k, 12.0, s), 0, 1.2),
    "f": (lambda k, s: random.f(k, 8.0, 20.0, s), 20 / 18, 2 * 400 * 26 / (8 * 18**2 * 16)),
    "generalized_normal": (lambda k, s: random.generalized_normal(k, 2.0, s), 0, 0.5),
    "double_sided_maxwell": (lambda k, s: random.double_sided_maxwell(k, 1.0, 2.0, s), 1, 12),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_variance(name):
    draw, mean, variance = MOMENTS[name]
    x = value(draw(random.key(5), (100_000,))).astype(float)
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / x.size)
    assert abs(x.var() / variance - 1) < 0.1


def test_dirichlet_and_ball_and_multinomial_stay_inside():
    k = random.key(4)
    x = value(random.dirichlet(k, f32(0.01, 0.5, 3), (500,)))
    np.testing.assert_allclose(x.sum(-1), 1, rtol=1e-5)
    assert (x >= 0).all()
    for p in (1, 2, 3.5):
        inside = value(random.ball(k, 4, p, (500,)))
        assert inside.shape == (500, 4) and ((np.abs(inside) ** p).sum(-1) <= 1 + 1e-5).all()
    counts = value(random.multinomial(k, 30, f32(1, 2, 3), shape=(200, 3)))
    assert np.array_equal(counts.sum(-1), np.full(200, 30)) and (counts >= 0).all()
    assert np.abs(counts.mean(0) - [5, 10, 15]).max() < 1


def test_permutations_are_permutations():
    for n in (2, 10, 2000):
        assert np.array_equal(np.sort(value(random.permutation(random.key(n), n))), np.arange(n))
    rows = np.arange(40).reshape(8, 5)
    mixed = value(random.permutation(random.key(1), rows, axis=0, independent=True))
    assert np.array_equal(np.sort(mixed, 0), rows) and not (np.diff(mixed, axis=1) == 1).all()


# -- sharded draws -----------------------------------------------------------------------------------------

SPECS = [P("x", None), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y"), None), P(None, ("y", "x"))]
LINE = np.linspace(0.05, 40, 16, dtype=np.float32)
PART = np.linspace(0, 1, 16, dtype=np.float32)
# draws of (key, shape, *arrays): arrays are arguments of the program that runs on the mesh
SHARDED = {
    "bits": random.bits,
    "bits 8": lambda k, s, **o: random.bits(k, s, "uint8", **o),
    "uniform": random.uniform,
    "normal": random.normal,
    "normal complex": lambda k, s, **o: random.normal(k, s, "complex64", **o),
    "randint": lambda k, s, **o: random.randint(k, s, 0, 1000, **o),
    "randint array": (lambda k, s, a, **o: random.randint(k, s, a, 1000, **o), np.arange(16, dtype=np.int32)),
    "bernoulli": lambda k, s, **o: random.bernoulli(k, 0.3, s, **o),
    "bernoulli high": lambda k, s, **o: random.bernoulli(k, 0.3, s, mode="high", **o),
    "truncated_normal": (lambda k, s, a, **o: random.truncated_normal(k, -1, a, s, **o), PART),
    "exponential": random.exponential,
    "gumbel": random.gumbel,
    "gumbel high": lambda k, s, **o: random.gumbel(k, s, mode="high", **o),
    "laplace": random.laplace,
    "logistic": random.logistic,
    "cauchy": random.cauchy,
    "maxwell": random.maxwell,
    "rademacher": random.rademacher,
    "pareto": lambda k, s, **o: random.pareto(k, 2.0, s, **o),
    "weibull_min": lambda k, s, **o: random.weibull_min(k, 2.0, 1.5, s, **o),
    "triangular": lambda k, s, **o: random.triangular(k, 0.0, 0.3, 1.0, s, **o),
    "wald": lambda k, s, **o: random.wald(k, 2.0, s, **o),
    "gamma": (lambda k, s, a, **o: random.gamma(k, a, s, **o), LINE),
    "beta": lambda k, s, **o: random.beta(k, 0.5, 2.0, s, **o),
    "t": lambda k, s, **o: random.t(k, 3.0, s, **o),
    "f": lambda k, s, **o: random.f(k, 3.0, 5.0, s, **o),
    "generalized_normal": lambda k, s, **o: random.generalized_normal(k, 1.5, s, **o),
    "geometric": lambda k, s, **o: random.geometric(k, 0.2, s, **o),
    "double_sided_maxwell": lambda k, s, **o: random.double_sided_maxwell(k, 1.0, 2.0, s, **o),
    "dirichlet": (lambda k, s, a, **o: random.dirichlet(k, a, s[:1], **o), LINE),
    "ball": lambda k, s, **o: random.ball(k, 16, 2, s[:1], **o),
    "poisson": (lambda k, s, a, **o: random.poisson(k, a, s, **o), LINE),
    "binomial": (lambda k, s, a, **o: random.binomial(k, 50, a, s, **o), PART),
}
ONE_NUMBER = {"poisson", "binomial"}
SUMS_OVER_THE_LAST_DIM = {"dirichlet": 2, "ball": 1}  # collectives when that dim is sharded


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_sharded_draws_hold_the_same_numbers_and_send_nothing(name, spec):
    draw, *arrays = SHARDED[name] if isinstance(SHARDED[name], tuple) else (SHARDED[name],)
    whole = value(draw(random.key(3), (8, 16), *arrays))

    def sharded(seed, *arrays):
        return [draw(ops.random_seed(seed, impl="fry"), (8, 16), *arrays, out_sharding=spec)]

    (got,), (aval,), _, world = run(sharded, [SEED, *arrays], [P()] * (1 + len(arrays)), MESH)
    assert aval.sharding.spec == spec.padded(2)
    if name in SUMS_OVER_THE_LAST_DIM:
        np.testing.assert_allclose(got, whole, rtol=1e-6)
        last_sharded = spec.padded(2).dims[1] != ()
        assert sum(world.calls.values()) <= 8 * SUMS_OVER_THE_LAST_DIM[name] * last_sharded
        return
    assert np.array_equal(got, whole)
    if name in ONE_NUMBER:
        assert world.calls == {"all_reduce": 8} and world.bytes["all_reduce"] == 8 * 4
    else:
        assert not world.calls


@pytest.mark.parametrize("spec", [P("x"), P("y"), P(("y", "x"))], ids=str)
def test_many_sharded_keys(spec):
    keys = ops.random_split(random.key(6), shape=(8,))
    words, numbers = value(random.key_data(keys)), np.arange(8, dtype=np.uint32)

    def draw(words, numbers):
        k = ops.random_wrap(words, impl="fry")
        free = [a for a in ("x", "y") if (a,) not in spec.dims and spec.dims[0] != ("y", "x")]
        inner = NamedSharding(MESH, P(free[0] if free else None, None))
        return [
            ops.random_bits(k, bit_width=32, shape=(4, 3), sharding=inner, block=None),
            random.key_data(ops.random_split(k, shape=(3,))),
            random.key_data(ops.random_fold_in(k, numbers)),
        ]

    (bits, split, folded), _, _, world = run(draw, [words, numbers], [spec, P()], MESH)
    one = [ops.random_bits(keys, bit_width=32, shape=(4, 3), sharding=None, block=None)]
    one += [random.key_data(ops.random_split(keys, shape=(3,)))]
    one += [random.key_data(ops.random_fold_in(keys, numbers))]
    for got, whole in zip((bits, split, folded), one):
        assert np.array_equal(got, value(whole))
    assert not world.calls


def test_a_draw_lies_where_its_parameters_lie():
    rate = np.linspace(0.5, 30, 16, dtype=np.float32)

    def draw(seed, rate):
        k = ops.random_seed(seed, impl="fry")
        return [
            random.gamma(k, rate),
            random.poisson(k, rate, (8, 16)),
            random.bernoulli(k, rate / 31),
            random.uniform(k, (8, 16), minval=rate, maxval=31.0),
            random.gamma(k, rate, out_sharding=P("y")),
        ]

    outs, avals, _, world = run(draw, [SEED, rate], [P(), P("x")], MESH)
    assert [a.short() for a in avals] == ["f32[16@x]", "i32[8,16@x]", "bool[16@x]", "f32[8,16@x]", "f32[16@y]"]
    k = random.key(3)
    want = [
        random.gamma(k, rate),
        random.poisson(k, rate, (8, 16)),
        random.bernoulli(k, rate / 31),
        random.uniform(k, (8, 16), minval=rate, maxval=31.0),
        random.gamma(k, rate),
    ]
    for got, whole in zip(outs, want):
        np.testing.assert_array_equal(got, value(whole))
    assert world.calls["all_reduce"] == 8  # the trips of the Poisson draw; the rest is the reshard of `rate`


def test_permutations_and_choices_are_moved_to_their_sharding():
    logits = np.zeros((8, 3), np.float32)

    def draw(seed, logits):
        k = ops.random_seed(seed, impl="fry")
        x = random.permutation(k, 8, out_sharding=P("x"))
        return [x, random.categorical(k, logits, out_sharding=P("x"))]

    outs, avals, _, world = run(draw, [SEED, logits], [P(), P()], MESH)
    assert [a.short() for a in avals] == ["i32[8@x]", "i32[8@x]"]
    assert np.array_equal(outs[0], value(random.permutation(random.key(3), 8)))
    assert np.array_equal(outs[1], value(random.categorical(random.key(3), logits)))
    assert not world.calls


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
def test_sharded_vectors_of_given_covariance(spec, method):
    root = np.tril(np.random.default_rng(0).normal(size=(16, 16)) * 0.1 + np.eye(16)).astype(np.float32)
    mean, cov = np.arange(16, dtype=np.float32), root @ root.T

    def draw(seed, mean, cov):
        k = ops.random_seed(seed, impl="fry")
        return [random.multivariate_normal(k, mean, cov, (8,), method=method, out_sharding=spec)]

    (got,), (aval,), _, world = run(draw, [SEED, mean, cov], [P()] * 3, MESH)
    assert aval.sharding.spec == spec.padded(2) and not world.calls
    whole = value(random.multivariate_normal(random.key(3), mean, cov, (8,), method=method))
    np.testing.assert_allclose(got, whole, 1e-5, 1e-5)


@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
def test_covariance(method):
    mean, cov = f32(1, -1), np.array([[2, 0.5], [0.5, 1]], np.float32)
    x = value(random.multivariate_normal(random.key(0), mean, cov, (50_000,), method=method)).astype(float)
    np.testing.assert_allclose(x.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(x.T), cov, atol=0.05)


@pytest.mark.parametrize("n, m", [(3, 3), (2, 5), (5, 2)])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_orthogonal_matrices(n, m, dtype):
    def draw(seed):
        return [random.orthogonal(ops.random_seed(seed, impl="fry"), n, (8,), dtype, m=m, out_sharding=P("x"))]

    (q,), (aval,), _, world = run(draw, [SEED], [P()], MESH)
    assert aval.shape == (8, n, m) and aval.sharding.spec.dims == (("x",), (), ()) and not world.calls
    product = q @ q.swapaxes(1, 2).conj() if n <= m else q.swapaxes(1, 2).conj() @ q
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(min(n, m)), product.shape), atol=1e-5)
    np.testing.assert_allclose(q, value(random.orthogonal(random.key(3), n, (8,), dtype, m=m)), 1e-5, 1e-6)


def test_what_vectors_of_given_covariance_refuse():
    k = random.key(0)
    for mean, cov, options, message in [
        (np.float32(1), np.eye(2), {}, "mean.ndim >= 1"),
        (np.zeros(2), np.zeros(2), {}, "cov.ndim >= 2"),
        (np.zeros(2), np.eye(3), {}, r"\(\.\.\., n, n\) for n=2"),
        (np.zeros((4, 2)), np.eye(2), {"shape": (3,)}, "Incompatible shapes"),
        (np.zeros(2), np.eye(2), {"method": "qr"}, "method must be one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            random.multivariate_normal(k, mean, cov, **options)
