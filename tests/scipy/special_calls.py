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
