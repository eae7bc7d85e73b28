"""Incomplete gamma and beta functions of float64 variables, on flat arrays.

They are apart from `special_cores.py` because they iterate: a series or continued fraction runs until every element has
converged, and elements that have are dropped from the work. Blocks are contiguous 1-D float64 arrays of equal size.

Sources: Numerical Recipes 6.2 and 6.4 (series, continued fractions by Lentz's method); N. M. Temme, "The asymptotic
expansion of the incomplete gamma functions", SIAM J. Math. Anal. 10 (1979); the prefactors are Loader's ("Fast and
accurate computation of binomial probabilities", 2000), which do not cancel when the parameters are large.
"""

from __future__ import annotations

import numpy as np

from mpiarray.ops.special_cores import erfc, lgamma, polynomial, stirling_error

_EPS = 2.0**-53
_TINY = 1e-300
_LIMIT = 20_000


def _log_minus(t: np.ndarray, u: np.ndarray) -> np.ndarray:
    """log(t) - u for t = 1 + u, without cancellation near 0. Both are given, as either may lack digits of the other."""
    r = u / (1 + t)
    z = r * r
    near = r * (2 * z * polynomial([1 / k for k in range(25, 2, -2)], z) - u)
    return np.where(np.abs(u) < 0.4, near, np.log(t) - u)


# ---------------------------------------------------------------------------------------------------------------------
# Incomplete gamma

# The expansion coefficients c_k(eta) of Temme's uniform expansion as power series in eta, computed for this file.
_TEMME = (
    (
        -0.3333333333333333,
        0.08333333333333333,
        -0.014814814814814815,
        0.0011574074074074073,
        0.0003527336860670194,
        -0.0001787551440329218,
        3.919263178522438e-05,
        -2.185448510679992e-06,
        -1.85406221071516e-06,
        8.296711340953087e-07,
        -1.7665952736826078e-07,
        6.707853543401498e-09,
        1.0261809784240309e-08,
        -4.382036018453353e-09,
        9.14769958223679e-10,
        -2.5514193994946248e-11,
        -5.830772132550426e-11,
        2.4361948020667415e-11,
    ),
    (
        -0.001851851851851852,
        -0.003472222222222222,
        0.0026455026455026454,
        -0.0009902263374485596,
        0.00020576131687242798,
        -4.018775720164609e-07,
        -1.8098550334489977e-05,
        7.64916091608111e-06,
        -1.6120900894563446e-06,
        4.647127802807434e-09,
        1.378633446915721e-07,
        -5.752545603517705e-08,
        1.1951628599778148e-08,
        -1.7543241719747647e-11,
        -1.0091543710600413e-09,
    ),
    (
        0.004133597883597883,
        -0.0026813271604938273,
        0.0007716049382716049,
        2.0093878600823047e-06,
        -0.0001073665322636516,
        5.2923448829120125e-05,
        -1.2760635188618728e-05,
        3.423578734096138e-08,
        1.3721957309062934e-06,
        -6.298992138380055e-07,
        1.4280614206064242e-07,
        -2.0477098421990866e-10,
    ),
    (
        0.0006494341563786008,
        0.00022947209362139917,
        -0.0004691894943952557,
        0.00026772063206283885,
        -7.561801671883977e-05,
        -2.396505113867297e-07,
        1.1082654115347302e-05,
        -5.6749528269915965e-06,
        1.4230900732435883e-06,
    ),
    (
        -0.0008618882909167117,
        0.0007840392217200666,
        -0.0002990724803031902,
        -1.4638452578843418e-06,
        6.641498215465122e-05,
        -3.968365047179435e-05,
    ),
)


def _prefactor(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x**a * exp(-x) / gamma(a + 1)."""
    small = a * np.log(x) - x - lgamma(a + 1)
    large = a * _log_minus(x / a, (x - a) / a) - 0.5 * np.log(2 * np.pi * a) - stirling_error(a)
    return np.exp(np.where(a < 10, small, large))


def _lower_series(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """P(a, x), for x up to about a."""
    total, index = np.ones_like(a), np.arange(a.size)
    term, n, z = np.ones_like(a), a.copy(), x
    for _ in range(_LIMIT):
        n = n + 1
        term = term * (z / n)
        total[index] += term
        active = term > _EPS * total[index]
        if not active.any():
            break
        index, term, n, z = index[active], term[active], n[active], z[active]
    return _prefactor(a, x) * total


def _upper_fraction(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Q(a, x), for x above 1 and a."""
    result, index = np.zeros_like(a), np.arange(a.size)
    s, b = a, x + 1 - a
    c, d = np.full_like(a, 1 / _TINY), 1 / b
    h = d
    for i in range(1, _LIMIT):
        step = -i * (i - s)
        b = b + 2
        d = step * d + b
        d = 1 / np.where(np.abs(d) < _TINY, _TINY, d)
        c = b + step / c
        c = np.where(np.abs(c) < _TINY, _TINY, c)
        change = d * c
        h = h * change
        active = np.abs(change - 1) > _EPS
        result[index] = h
        if not active.any():
            break
        index, s, b, c, d, h = (v[active] for v in (index, s, b, c, d, h))
    return a * _prefactor(a, x) * result


def _upper_series(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Q(a, x) for small x, where 1 - P would cancel."""
    term, total = np.ones_like(a), np.zeros_like(a)
    for n in range(1, 30):
        term = term * (-x / n)
        total = total + term / (a + n)
    log = a * np.log(x) - lgamma(1 + a)
    return -np.expm1(log) - np.exp(log) * a * total


def _uniform(a: np.ndarray, x: np.ndarray, upper: bool) -> np.ndarray:
    """P or Q by Temme's expansion, for a >= 100 and x within 30 % of a."""
    mu = (x - a) / a
    half_square = -_log_minus(x / a, mu)
    eta = np.copysign(np.sqrt(2 * half_square), mu)
    total = np.zeros_like(a)
    for coefficients in _TEMME[::-1]:
        total = total / a + polynomial(coefficients[::-1], eta)
    rest = np.exp(-a * half_square) / np.sqrt(2 * np.pi * a) * total
    sign = 1 if upper else -1
    return 0.5 * erfc(sign * np.copysign(np.sqrt(a * half_square), mu)) + sign * rest


def igamma(a: np.ndarray, x: np.ndarray, upper: bool) -> np.ndarray:
    """The regularized incomplete gamma function: P(a, x), or Q(a, x) = 1 - P(a, x) if `upper`."""
    out = np.full_like(a, np.nan)
    valid = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    uniform = valid & (a >= 100) & (np.abs(x - a) <= 0.3 * a)
    # For small x, 1 - P loses the digits of a small Q; the bound is where the two ways lose equally many.
    bound = np.where(x <= 0.5, -0.4 / np.log(np.minimum(x, 0.5)), 1.1 * x)
    tiny = valid & (x <= 1.1) & (a <= bound) & upper
    lower = valid & ~uniform & ~tiny & ((x <= 1) | (x <= a))
    fraction = valid & ~uniform & ~tiny & ~lower
    for mask, f, gives_upper in (
        (lower, _lower_series, False),
        (fraction, _upper_fraction, True),
        (tiny, _upper_series, True),
    ):
        if mask.any():
            value = f(a[mask], x[mask])
            out[mask] = value if gives_upper == upper else 1 - value
    if uniform.any():
        out[uniform] = _uniform(a[uniform], x[uniform], upper)
    zero, one = (1.0, 0.0) if upper else (0.0, 1.0)
    out[(a > 0) & np.isfinite(a) & (x == 0)] = zero
    out[(a == 0) & (x > 0)] = one
    out[(a >= 0) & (x == np.inf)] = one
    return np.clip(out, 0, 1)


# ---------------------------------------------------------------------------------------------------------------------
# Incomplete beta


def _log_gamma_ratio(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    """log(gamma(a + b) / gamma(b)) for b >= 10, also when b is so large that the two logarithms agree."""
    total = a + b
    return a * np.log(total) + (b - 0.5) * np.log1p(a / b) - a + stirling_error(total) - stirling_error(b)


def _log_density(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log(x**a * y**b / B(a, b)), y = 1 - x."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    plain = a * np.log(x) + b * np.where(x < 0.5, np.log1p(-x), np.log(y))
    small = lgamma(a + b) - lgamma(high) - lgamma(low)
    medium = _log_gamma_ratio(high, low) - lgamma(low)
    total = a + b
    u, v = (x * total - a) / a, (y * total - b) / b
    errors = stirling_error(total) - stirling_error(a) - stirling_error(b)
    large = (
        a * _log_minus(x / (a / total), u)
        + b * _log_minus(y / (b / total), v)
        + 0.5 * np.log(a / (2 * np.pi) * (b / total))
        + errors
    )
    return np.where(low >= 10, large, plain + np.where(high >= 10, medium, small))


def _beta_fraction(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The continued fraction of the incomplete beta function, for x < (a + 1) / (a + b + 2)."""

    def nonzero(v: np.ndarray) -> np.ndarray:
        return np.where(np.abs(v) < _TINY, _TINY, v)

    result, index = np.ones_like(a), np.arange(a.size)
    c, d = np.ones_like(a), 1 / nonzero(1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, _LIMIT):
        step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / nonzero(1 + step * d)
        c = nonzero(1 + step / c)
        h = h * (d * c)
        step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / nonzero(1 + step * d)
        c = nonzero(1 + step / c)
        change = d * c
        h = h * change
        result[index] = h
        active = np.abs(change - 1) > 2 * _EPS
        if not active.any():
            break
        index, a, b, x, c, d, h = (v[active] for v in (index, a, b, x, c, d, h))
    return result


def betainc(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The regularized incomplete beta function I_x(a, b)."""
    out = np.full_like(a, np.nan)
    finite = np.isfinite(a) & np.isfinite(b)
    inside = (a > 0) & (b > 0) & finite & (x > 0) & (x < 1)
    if inside.any():
        p, q, u = a[inside], b[inside], x[inside]
        swap = u > (p + 1) / (p + q + 2)
        # 1 - x is rounded, x is not, so both travel together.
        p, q = np.where(swap, q, p), np.where(swap, p, q)
        u, v = np.where(swap, 1 - u, u), np.where(swap, u, 1 - u)
        part = np.exp(_log_density(p, q, u, v)) * _beta_fraction(p, q, u) / p
        out[inside] = np.where(swap, 1 - part, part)
    range_ = (x >= 0) & (x <= 1)
    out[range_ & (a > 0) & (b > 0) & (x == 0)] = 0
    out[range_ & (a > 0) & (b > 0) & (x == 1)] = 1
    # All the weight sits at 0 or at 1.
    at_0, at_1 = (a == 0) & (b > 0) | (b == np.inf) & (a > 0), (b == 0) & (a > 0) | (a == np.inf) & (b > 0)
    out[range_ & at_0 & ~at_1 & (x > 0)] = 1
    out[range_ & at_0 & ~at_1 & (x == 0)] = 0
    out[range_ & at_1 & ~at_0 & (x < 1)] = 0
    out[range_ & at_1 & ~at_0 & (x == 1)] = 1
    return np.clip(out, 0, 1)
