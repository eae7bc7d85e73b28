"""Special functions of numpy blocks: error, gamma, beta, zeta and Bessel functions, for every float dtype.

Each function takes blocks of one dtype and one shape (no broadcasting) and returns a new block of them, in C or Fortran
order like the arguments. Everything is computed in tiles that stay in cache. float64 blocks go to the float64 cores
(`special_cores.py`, `special_incomplete.py`). float32 blocks go there too and are rounded once, so their results are
nearly always the closest float32; only `erf` and `erf_inv`, which networks and random numbers call on large blocks,
have float32 code of their own. Narrower floats are computed as float32.

Arguments outside a function's domain give NaN, poles give infinities, and nothing warns. None of them communicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.ops import special_cores as cores
from mpiarray.ops import special_incomplete as incomplete

__all__ = [
    "bessel_i0e",
    "bessel_i1e",
    "betainc",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "igamma",
    "igammac",
    "lgamma",
    "polygamma",
    "zeta",
]

Block = np.ndarray[Any, np.dtype[Any]]

# Elements of a tile: a few temporaries of as many float64 fit in a second-level cache.
_TILE = 1 << 15


def _tiled(core: Callable[..., Block], *blocks: Block, single: Callable[..., Block] | None = None) -> Block:
    """`core` of the blocks' elements, in float64, or `single` in float32 if there is one and that is enough."""
    first = blocks[0]
    dtype = first.dtype
    if dtype.kind not in "fV" or any(b.dtype != dtype or b.shape != first.shape for b in blocks):
        raise TypeError(
            "special functions take blocks of one float dtype and one shape, got "
            + ", ".join(f"{b.dtype}{list(b.shape)}" for b in blocks)
        )
    if all(b.flags.f_contiguous and not b.flags.c_contiguous for b in blocks):
        return _tiled(core, *[b.T for b in blocks], single=single).T
    work: type[np.floating[Any]] = np.float64
    if single is not None and dtype != np.float64:
        work, core = np.float32, single
    out = np.empty(first.shape, dtype)
    flat_out, flat = out.reshape(-1), [np.ascontiguousarray(b).reshape(-1) for b in blocks]
    with np.errstate(all="ignore"):
        for start in range(0, out.size, _TILE):
            tile = slice(start, start + _TILE)
            # The narrowest floats cast to float32 and from there only; the others lose nothing on the way.
            values = [
                f[tile].astype(np.float32).astype(work) if dtype.kind == "V" else f[tile].astype(work) for f in flat
            ]
            result = core(*values)
            flat_out[tile] = result.astype(np.float32) if dtype.kind == "V" else result
    return out


# Fitted for this file. erf(x) / x - 1 for |x| < 0.9, in x**2:
_ERF_NEAR = (-0.0006090357783250511, 0.005011964123696089, -0.02677891217172146, 0.11282140761613846,
             -0.3761252463862922, 0.12837915122509003)  # fmt: skip
# log(erfc(x)) for 0.9 <= x <= 4.05, in x:
_ERF_FAR = (0.00019718529074452817, -0.003055642358958721, 0.0222772266715765, -0.10403764992952347,
            -0.6370594501495361, -1.1277498006820679, -0.0001774481643224135)  # fmt: skip


def _erf_single(x: Block) -> Block:
    y = np.minimum(np.abs(x), np.float32(4.05))
    near = x * cores.polynomial(_ERF_NEAR, y * y)
    near += x
    far = np.copysign(np.float32(1) - np.exp(cores.polynomial(_ERF_FAR, y)), x)
    return np.where(y < np.float32(0.9), near, far)


def erf(x: Block) -> Block:
    """The error function, 2/sqrt(pi) times the integral of exp(-t**2) from 0 to x; in float32 within 2 ulp."""
    return _tiled(cores.erf, x, single=_erf_single)


def erfc(x: Block) -> Block:
    """1 - erf(x), accurate also where that is small."""
    return _tiled(cores.erfc, x)


def erf_inv(x: Block) -> Block:
    """The inverse of `erf` on [-1, 1], infinite at the ends.

    For float32 the same polynomials as XLA's, so that normal random numbers mostly have the same bits.
    """
    return _tiled(cores.erf_inv, x, single=cores.erf_inv_single)


def lgamma(x: Block) -> Block:
    """log(abs(gamma(x))); infinite at 0 and the negative integers."""
    return _tiled(cores.lgamma, x)


def digamma(x: Block) -> Block:
    """The derivative of `lgamma`; NaN at 0 and the negative integers."""
    return _tiled(cores.digamma, x)


def zeta(x: Block, q: Block) -> Block:
    """The Hurwitz zeta function, the sum of (q + n)**-x over n = 0, 1, ...

    Defined for x > 1, and for q <= 0 only if x is an integer (infinite when q is one too). q < -1000 gives NaN.
    """
    return _tiled(cores.zeta_everywhere, x, q)


# 170! is the largest finite one.
_FACTORIALS = np.array([float(math.factorial(n)) for n in range(171)])


def _polygamma(n: Block, x: Block) -> Block:
    order = (n >= 0) & (n == np.rint(n)) & np.isfinite(n)
    whole = np.where(order, np.minimum(n, 1e6), 1.0)
    factorial = np.where(whole <= 170, _FACTORIALS[np.minimum(whole, 170).astype(int)], np.inf)
    sign = np.where(whole % 2 == 1, 1.0, -1.0)
    value = sign * factorial * cores.zeta_everywhere(whole + 1, x)
    value = np.where(whole == 0, cores.digamma(x), value)
    return np.where(order, value, np.nan)


def polygamma(n: Block, x: Block) -> Block:
    """The n-th derivative of `digamma`, for integers n >= 0; NaN for other n."""
    return _tiled(_polygamma, n, x)


def igamma(a: Block, x: Block) -> Block:
    """The regularized lower incomplete gamma function P(a, x), for a, x >= 0."""
    return _tiled(lambda a, x: incomplete.igamma(a, x, upper=False), a, x)


def igammac(a: Block, x: Block) -> Block:
    """The regularized upper incomplete gamma function Q(a, x) = 1 - P(a, x), accurate also where that is small."""
    return _tiled(lambda a, x: incomplete.igamma(a, x, upper=True), a, x)


def betainc(a: Block, b: Block, x: Block) -> Block:
    """The regularized incomplete beta function I_x(a, b), for a, b >= 0 and x in [0, 1]."""
    return _tiled(incomplete.betainc, a, b, x)


def bessel_i0e(x: Block) -> Block:
    """exp(-abs(x)) times the modified Bessel function I0(x)."""
    return _tiled(cores.i0e, x)


def bessel_i1e(x: Block) -> Block:
    """exp(-abs(x)) times the modified Bessel function I1(x)."""
    return _tiled(cores.i1e, x)
