"""Draws that are recorded from JAX and compared with ours: name -> function of (the random module, a key).

Arguments are numpy arrays and numbers, which both take.
"""

import numpy as np


def f32(*values):
    return np.array(values, np.float32)


def i32(*values):
    return np.array(values, np.int32)


COLUMN = np.array([[0.5], [2.0]], np.float32)
LOGITS = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]], np.float32))
GRID = np.arange(12, dtype=np.int32).reshape(3, 4)
COV = np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)

# equal bit by bit
EXACT = {
    "bits": lambda r, k: r.bits(k, (2, 5)),
    "bits scalar": lambda r, k: r.bits(k),
    "bits 8": lambda r, k: r.bits(k, (5,), "uint8"),
    "bits 16": lambda r, k: r.bits(k, (5,), "uint16"),
    "uniform": lambda r, k: r.uniform(k, (3, 4)),
    "uniform bfloat16": lambda r, k: r.uniform(k, (6,), "bfloat16"),
    "uniform float16": lambda r, k: r.uniform(k, (6,), "float16"),
    "uniform float8": lambda r, k: r.uniform(k, (6,), "float8_e4m3fn"),
    "uniform backwards": lambda r, k: r.uniform(k, (4,), minval=3, maxval=-7),
    "randint": lambda r, k: r.randint(k, (8,), 0, 10),
    "randint power of two": lambda r, k: r.randint(k, (8,), -64, 64),
    "randint wide": lambda r, k: r.randint(k, (4,), -(2**31), 2**31 - 1),
    "randint above 2**16": lambda r, k: r.randint(k, (6,), 0, 100_000),
    "randint empty range": lambda r, k: r.randint(k, (3,), 10, 5),
    "randint int8": lambda r, k: r.randint(k, (6,), -128, 128, "int8"),
    "randint int8 beyond": lambda r, k: r.randint(k, (6,), -1000, 1000, "int8"),
    "randint uint8": lambda r, k: r.randint(k, (6,), 0, 256, "uint8"),
    "randint uint8 negative": lambda r, k: r.randint(k, (6,), -5, 256, "uint8"),
    "randint uint16": lambda r, k: r.randint(k, (6,), 0, 2**16, "uint16"),
    "randint arrays": lambda r, k: r.randint(k, (2, 3), i32(0, 5)[:, None], i32(10, 20, 30)),
    "randint uint32": lambda r, k: r.randint(
        k, (3,), np.array([0, 1, 2], "uint32"), np.uint32(4_000_000_000), "uint32"
    ),
    "randint beyond int32": lambda r, k: r.randint(k, (3,), np.array([0, 1, 2], "uint32"), np.uint32(4_000_000_000)),
    "randint floats": lambda r, k: r.randint(k, (3,), 0.5, 10.7),
    "permutation": lambda r, k: r.permutation(k, 8),
    "permutation of one": lambda r, k: r.permutation(k, 1),
    "permutation of none": lambda r, k: r.permutation(k, 0),
    "permutation in one round": lambda r, k: r.permutation(k, 1625),
    "permutation in two rounds": lambda r, k: r.permutation(k, 1626),
    "permutation of rows": lambda r, k: r.permutation(k, GRID),
    "permutation of columns": lambda r, k: r.permutation(k, GRID, axis=-1),
    "permutation independent": lambda r, k: r.permutation(k, GRID, axis=1, independent=True),
    "permutation independent, long": lambda r, k: r.permutation(
        k, np.arange(2000, dtype=np.int32).reshape(40, 50), independent=True
    ),
    "choice": lambda r, k: r.choice(k, 10, (5,)),
    "choice scalar": lambda r, k: r.choice(k, 5),
    "choice of columns": lambda r, k: r.choice(k, GRID, axis=1),
    "choice of columns, many": lambda r, k: r.choice(k, GRID, (2, 2), axis=1),
    "choice without replacement": lambda r, k: r.choice(k, f32(*range(20, 30)), (4,), replace=False),
    "choice without replacement, columns": lambda r, k: r.choice(k, GRID, (2,), axis=1, replace=False),
    "choice without replacement, square": lambda r, k: r.choice(k, 5, (2, 2), replace=False),
    "choice by p": lambda r, k: r.choice(k, 4, (6,), p=f32(0.1, 0.2, 0.3, 0.4)),
    "choice by p, without replacement": lambda r, k: r.choice(k, 4, (3,), replace=False, p=f32(0.1, 0.2, 0.3, 0.4)),
    "choice by p, high": lambda r, k: r.choice(k, 5, (3,), replace=False, p=f32(0.2, 0.2, 0.2, 0.2, 0.2), mode="high"),
    "bernoulli": lambda r, k: r.bernoulli(k, 0.3, (8,)),
    "bernoulli array": lambda r, k: r.bernoulli(k, f32(0.1, 0.9)),
    "bernoulli default": lambda r, k: r.bernoulli(k),
    "bernoulli high": lambda r, k: r.bernoulli(k, 0.3, (8,), mode="high"),
    "rademacher": lambda r, k: r.rademacher(k, (6,)),
    "rademacher float": lambda r, k: r.rademacher(k, (6,), "float32"),
    "categorical": lambda r, k: r.categorical(k, LOGITS),
    "categorical axis": lambda r, k: r.categorical(k, LOGITS, axis=0, shape=(4, 3)),
    "categorical shape": lambda r, k: r.categorical(k, LOGITS, shape=(5, 2)),
    "categorical high": lambda r, k: r.categorical(k, LOGITS, shape=(5, 2), mode="high"),
    "categorical without replacement": lambda r, k: r.categorical(k, LOGITS, shape=(2, 2), replace=False),
    "categorical without replacement, axis": lambda r, k: r.categorical(
        k, np.zeros((4, 3), np.float32), axis=0, shape=(2, 3), replace=False
    ),
    "geometric": lambda r, k: r.geometric(k, f32(0.1, 0.5, 1.0), (4, 3)),
    "poisson": lambda r, k: r.poisson(k, f32(0.0, 2.0, 20.0), (5, 3)),
    "poisson narrow": lambda r, k: r.poisson(k, 3.0, (6,), "uint8"),
    "binomial": lambda r, k: r.binomial(k, f32(5, 20, 100), f32(0.1, 0.5, 0.3), (5, 3)),
    "multinomial": lambda r, k: r.multinomial(k, 20.0, f32(0.1, 0.2, 0.3, 0.4)),
    "multinomial batch": lambda r, k: r.multinomial(k, f32(20, 200), np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0]], "f4")),
    "multinomial shape": lambda r, k: r.multinomial(k, 20.0, f32(0.1, 0.2, 0.7), shape=(3, 3)),
}

# equal up to the rounding of logarithms, of error functions and of fused multiply-adds
CLOSE = {
    "uniform range": lambda r, k: r.uniform(k, (3, 4), minval=-3, maxval=7),
    "uniform arrays": lambda r, k: r.uniform(k, (2, 3), minval=f32(0, 1, 2), maxval=10.0),
    "normal": lambda r, k: r.normal(k, (3, 4)),
    "normal scalar": lambda r, k: r.normal(k),
    "normal complex": lambda r, k: r.normal(k, (4,), "complex64"),
    "truncated_normal": lambda r, k: r.truncated_normal(k, -1, f32(1, 2)),
    "truncated_normal shape": lambda r, k: r.truncated_normal(k, -2, 2, (5,)),
    "exponential": lambda r, k: r.exponential(k, (5,)),
    "gumbel": lambda r, k: r.gumbel(k, (5,)),
    "gumbel high": lambda r, k: r.gumbel(k, (5,), mode="high"),
    "laplace": lambda r, k: r.laplace(k, (5,)),
    "logistic": lambda r, k: r.logistic(k, (5,)),
    "cauchy": lambda r, k: r.cauchy(k, (5,)),
    "maxwell": lambda r, k: r.maxwell(k, (5,)),
    "double_sided_maxwell": lambda r, k: r.double_sided_maxwell(k, 1.0, 2.0, (5,)),
    "lognormal": lambda r, k: r.lognormal(k, 0.5, (5,)),
    "lognormal default": lambda r, k: r.lognormal(k),
    "pareto": lambda r, k: r.pareto(k, f32(1, 2)),
    "rayleigh": lambda r, k: r.rayleigh(k, f32(1, 2)),
    "weibull_min": lambda r, k: r.weibull_min(k, f32(1, 2), f32(2, 3), (2,)),
    "triangular": lambda r, k: r.triangular(k, 0.0, 0.3, 1.0, (5,)),
    "wald": lambda r, k: r.wald(k, 2.0, (5,)),
    "gamma": lambda r, k: r.gamma(k, f32(0.1, 1, 30), (4, 3)),
    "gamma scalar": lambda r, k: r.gamma(k, 2),
    "loggamma": lambda r, k: r.loggamma(k, f32(0.1, 1, 30), (4, 3)),
    "beta": lambda r, k: r.beta(k, f32(0.1, 2, 30), 2.0, (4, 3)),
    "dirichlet": lambda r, k: r.dirichlet(k, f32(0.5, 2, 30), (4,)),
    "dirichlet batch": lambda r, k: r.dirichlet(k, np.ones((2, 3), np.float32)),
    "chisquare": lambda r, k: r.chisquare(k, f32(1, 2)),
    "f": lambda r, k: r.f(k, 3.0, 5.0, (4,)),
    "t": lambda r, k: r.t(k, f32(0.5, 2, 30), (4, 3)),
    "generalized_normal": lambda r, k: r.generalized_normal(k, 1.5, (4,)),
    "ball": lambda r, k: r.ball(k, 3, 2, (4,)),
    "ball of the 1-norm": lambda r, k: r.ball(k, 2, 1.0, (3,)),
    "orthogonal": lambda r, k: r.orthogonal(k, 3),
    "orthogonal wide": lambda r, k: r.orthogonal(k, 2, m=3),
    "orthogonal tall": lambda r, k: r.orthogonal(k, 3, (2,), m=2),
    "orthogonal complex": lambda r, k: r.orthogonal(k, 2, dtype="complex64"),
    "multivariate_normal": lambda r, k: r.multivariate_normal(k, f32(1, -1), COV, (3,)),
    "multivariate_normal batch": lambda r, k: r.multivariate_normal(k, np.zeros((4, 2), np.float32), COV),
}
