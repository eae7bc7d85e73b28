"""The calls of special functions whose values are recorded: key -> (name, arguments, keywords)."""

import numpy as np

X = np.array([-3.5, -1.2, -0.3, 0.0, 0.3, 1.5, 2.5, 7.0, 30.0], np.float32)
TAILS = np.array([-30.0, -12.0, -9.0, -5.0, 0.5, 4.0, 6.0, 9.0], np.float32)
Y = np.array([0.5, 1.0, 2.0, 0.0, 1.0, 0.2, 3.0, 4.0, 5.0], np.float32)
PROBABILITIES = np.array([0.0, 1e-30, 1e-6, 0.01, 0.3, 0.5, 0.7, 0.99, 0.999999, 1.0, -0.1, 1.1, np.nan], np.float32)
SIZE = abs(X)
WEIGHTS = np.array([[1.0], [-0.5]], np.float32)

CALLS = {
    name: (name, (X,), {})
    for name in (
        "erf",
        "erfc",
        "gammaln",
        "loggamma",
        "gammasgn",
        "gamma",
        "digamma",
        "expit",
        "entr",
        "ndtr",
        "log_ndtr",
        "i0",
        "i0e",
        "i1",
        "i1e",
        "factorial",
        "softmax",
        "log_softmax",
        "logsumexp",
    )
} | {name: (name, (PROBABILITIES,), {}) for name in ("logit", "ndtri")}
CALLS |= {
    name: (name, (SIZE, Y), {})
    for name in ("xlogy", "xlog1py", "rel_entr", "kl_div", "betaln", "beta", "poch", "boxcox", "boxcox1p", "comb")
}
CALLS |= {
    "log_ndtr, tails": ("log_ndtr", (TAILS,), {}),
    "erfinv": ("erfinv", (2 * PROBABILITIES - 1,), {}),
    "gammainc": ("gammainc", (Y + 0.1, SIZE), {}),
    "gammaincc": ("gammaincc", (Y + 0.1, SIZE), {}),
    "betainc": ("betainc", (Y + 0.1, 2.0, SIZE / 31), {}),
    "polygamma": ("polygamma", (1, SIZE + 0.1), {}),
    "zeta": ("zeta", (SIZE + 1.1, 2.0), {}),
    "multigammaln": ("multigammaln", (Y + 3, 3), {}),
    "bernoulli": ("bernoulli", (14,), {}),
    "comb, repetition": ("comb", (5, Y), {"repetition": True}),
    "logsumexp, weights": ("logsumexp", (np.stack([X, Y]),), {"axis": 0, "b": WEIGHTS}),
    "logsumexp, keepdims": ("logsumexp", (np.stack([X, Y]),), {"axis": 1, "keepdims": True}),
    "logsumexp, infinities": ("logsumexp", (np.array([[-np.inf, -np.inf], [np.inf, 0]], np.float32),), {"axis": 1}),
    "rel_entr, edges": ("rel_entr", (np.float32([0, 0, 1, -1]), np.float32([0, 1, 0, 1])), {}),
}

# -- distributions ----------------------------------------------------------------------------------------------

Z = np.array([-2.0, -0.5, 0.0, 0.3, 1.0, 2.0, 3.0, 7.0], np.float32)
Q = np.array([0.1, 0.5, 0.9], np.float32)
K = np.array([-1.0, 0.0, 1.0, 2.0, 5.0], np.float32)
CONTINUOUS = {
    "norm": ((0.5, 2.0), "logpdf pdf cdf logcdf sf logsf"),
    "laplace": ((0.5, 2.0), "logpdf pdf cdf"),
    "logistic": ((0.5, 2.0), "logpdf pdf cdf sf"),
    "cauchy": ((0.5, 2.0), "logpdf pdf cdf logcdf sf logsf"),
    "t": ((3.0, 0.5, 2.0), "logpdf pdf"),
    "expon": ((0.5, 2.0), "logpdf pdf cdf logcdf sf logsf"),
    "gamma": ((1.5, 0.5, 2.0), "logpdf pdf cdf logcdf sf logsf"),
    "chi2": ((3.0, 0.5, 2.0), "logpdf pdf cdf logcdf sf logsf"),
    "pareto": ((1.5, 0.5, 1.0), "logpdf pdf"),
    "uniform": ((0.2, 3.0), "logpdf pdf cdf"),
    "beta": ((1.5, 2.5, 0.2, 3.0), "logpdf pdf cdf logcdf sf logsf"),
}
DISCRETE = {"bernoulli": (0.3,), "binom": (4.0, 0.3), "geom": (0.3,), "poisson": (2.5,)}
COVARIANCE = np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)
POINTS = np.array([[1.0, 2.0], [0.0, 0.5], [3.0, 1.0]], np.float32)
SHARES = np.array([[0.2, 0.3], [0.3, 0.3], [0.5, 0.4]], np.float32)

DISTRIBUTIONS = {f"{n}.{f}": (f"{n}.{f}", (Z, *a)) for n, (a, fs) in CONTINUOUS.items() for f in fs.split()}
DISTRIBUTIONS |= {
    f"{n}.{f}": (f"{n}.{f}", (Q, 0.5, 2.0)) for n in ("norm", "logistic", "cauchy") for f in ("ppf", "isf")
}
DISTRIBUTIONS |= {f"{n}.{f}": (f"{n}.{f}", (K, *a)) for n, a in DISCRETE.items() for f in ("logpmf", "pmf")}
DISTRIBUTIONS |= {
    "poisson.cdf": ("poisson.cdf", (K, 2.5)),
    "multivariate_normal, matrix": ("multivariate_normal.logpdf", (POINTS, POINTS[0], COVARIANCE)),
    "multivariate_normal, scalar": ("multivariate_normal.pdf", (POINTS, POINTS[0], 2.0)),
    "multivariate_normal, one": ("multivariate_normal.logpdf", (1.0, 0.5, 2.0)),
    "dirichlet": ("dirichlet.logpdf", (SHARES, np.float32([1.5, 2.0, 3.0]))),
    "dirichlet, shorter": ("dirichlet.pdf", (SHARES[:2], np.float32([1.5, 2.0, 3.0]))),
}
