"""How a gamma variate moves with its shape parameter, at a fixed quantile.

The derivative that makes gamma samples (and beta, Dirichlet, chi-square, t, ... which are made of them) differentiable:
with P the distribution function, dx/da = -(dP/da) / (dP/dx).  Apart from the samplers because it has its own
numerics: a power series for parameters up to 200, and beyond them the expansion of the quantile in powers of
1/sqrt(a).  Everything is computed in float64.

Sources: M. Figurnov, S. Mohamed, A. Mnih, "Implicit reparameterization gradients", NeurIPS 2018; E. A. Cornish,
R. A. Fisher (1938), with the coefficients for the gamma distribution of Abramowitz and Stegun 26.4.
"""

from __future__ import annotations

import numpy as np

from mpiarray.ops.special_cores import digamma

__all__ = ["gamma_slope"]

_LARGE = 200.0
_CHUNK = 1 << 14


def gamma_slope(a: np.ndarray, sample: np.ndarray, *, log_space: bool) -> np.ndarray:
    """dx/da of gamma variates x of shape parameter `a`; with `log_space`, `sample` is log x and the result d(log x)/da.

    Blocks that broadcast, of one float dtype; returns a new block.
    """
    a, sample = np.broadcast_arrays(a, sample)
    out = np.empty(sample.shape, np.float64)
    flat, flat_a, flat_sample = (x.reshape(-1) for x in (out, a, sample))
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            alpha, given = flat_a[part].astype(np.float64), flat_sample[part].astype(np.float64)
            log_x = given if log_space else np.log(given)
            slope = np.empty_like(alpha)
            large = alpha > _LARGE
            slope[~large] = _by_series(alpha[~large], log_x[~large])
            slope[large] = _by_quantile(alpha[large], np.exp(log_x[large]))
            flat[part] = slope if log_space else np.where(given == 0, 0, slope * given)
    return out.astype(sample.dtype)


def _by_series(a: np.ndarray, log_x: np.ndarray) -> np.ndarray:
    """d(log x)/da = -(1/a) sum_n c_n (log x - psi(a + 1 + n)), where c_n = x**n / ((a + 1) ... (a + n))."""
    x = np.exp(log_x)
    factor = log_x - digamma(a + 1)
    term, total = np.ones_like(a), factor.copy()
    todo = np.arange(a.size)
    n = 0
    while todo.size:
        n += 1
        denominator = a[todo] + n
        term[todo] *= x[todo] / denominator
        factor[todo] -= 1 / denominator
        added = term[todo] * factor[todo]
        total[todo] += added
        # terms grow while n < x - a; after that they fall faster and faster
        more = (denominator <= x[todo]) | (np.abs(added) > 1e-17 * np.abs(total[todo]))
        todo = todo[more & (n < 100_000)]
    return -total / a


def _by_quantile(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """d(log x)/da of x = a + z sqrt(a) + ..., where z is the normal quantile of x."""
    root = np.sqrt(a)
    z = (x - a) / root
    for _ in range(6):
        z -= (_quantile(a, root, z) - x) / (root + 2 * z / 3 + (z * z - 7 / 3) / (12 * root))
    slope = 1 + z / (2 * root) - (z**3 - 7 * z) / (72 * a * root) + (3 * z**4 + 7 * z**2 - 16) / (810 * a**2)
    slope -= 1.5 * (9 * z**5 + 256 * z**3 - 433 * z) / (38880 * a**2 * root)
    return slope / x


def _quantile(a: np.ndarray, root: np.ndarray, z: np.ndarray) -> np.ndarray:
    out = a + z * root + (z * z - 1) / 3 + (z**3 - 7 * z) / (36 * root) - (3 * z**4 + 7 * z**2 - 16) / (810 * a)
    return out + (9 * z**5 + 256 * z**3 - 433 * z) / (38880 * a * root)
