"""`jax.scipy.stats`: densities and distribution functions, as objects with scipy's function names.

    stats.norm.logpdf(x, loc=0, scale=1)

Outside of a distribution's support densities are 0 (their logarithms minus infinity).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.numpy import linalg, reductions
from mpiarray.numpy.arithmetic import absolute, add, divide, floor, multiply, negative, square, subtract
from mpiarray.numpy.choices import where_op
from mpiarray.numpy.comparison import equal, greater, less, less_equal, logical_and, logical_or
from mpiarray.numpy.elementary import arctan, exp, expm1, log, log1p, tan
from mpiarray.numpy.manipulation import concatenate, expand_dims, squeeze
from mpiarray.numpy.matrices import diagonal
from mpiarray.numpy.promotion import operands, promote_inexact, promote_to_inexact
from mpiarray.scipy import special
from mpiarray.scipy.linalg import solve_triangular

__all__ = [
    "bernoulli", "beta", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "geom", "laplace", "logistic",
    "multivariate_normal", "norm", "pareto", "poisson", "t", "uniform",
]  # fmt: skip

_INF = math.inf


class _Distribution:
    """The functions of one distribution; those that follow from others are made here."""

    def __init__(self, name: str, **functions: Callable[..., Any]):
        self.name = name
        derived: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "pdf": ("logpdf", exp),
            "pmf": ("logpmf", exp),
            "logcdf": ("cdf", log),
            "cdf": ("logcdf", exp),
            "sf": ("cdf", lambda p: subtract(1.0, p)),
            "logsf": ("sf", log),
        }
        for target, (source, f) in derived.items():
            if target not in functions and source in functions:
                functions[target] = _then(functions[source], f)
        for function, value in functions.items():
            value.__name__ = function
            setattr(self, function, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the distribution {self.__dict__.get('name')!r} has no function {name!r}")

    def __repr__(self) -> str:
        return f"<distribution {self.name}>"


def _then(inner: Callable[..., Any], f: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: f(inner(*args, **kwargs))


def _standard(name: str, f: Callable[[Any], Any], *, log_density: bool = False) -> Callable[..., Any]:
    """A function of `(x - loc) / scale`; a density's logarithm loses log(scale)."""

    def function(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
        x, loc, scale = promote_to_inexact(name, x, loc, scale)
        out = f(divide(subtract(x, loc), scale))
        return subtract(out, log(scale)) if log_density else out

    return function


def _quantile(name: str, f: Callable[[Any], Any]) -> Callable[..., Any]:
    def function(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
        q, loc, scale = promote_to_inexact(name, q, loc, scale)
        return add(multiply(f(q), scale), loc)

    return function


# -- on the real line ----------------------------------------------------------------------------------------

norm = _Distribution(
    "norm",
    logpdf=_standard(
        "norm.logpdf", lambda z: subtract(multiply(square(z), -0.5), 0.5 * math.log(2 * math.pi)), log_density=True
    ),
    cdf=_standard("norm.cdf", special.ndtr),
    logcdf=_standard("norm.logcdf", special.log_ndtr),
    sf=_standard("norm.sf", lambda z: special.ndtr(negative(z))),
    logsf=_standard("norm.logsf", lambda z: special.log_ndtr(negative(z))),
    ppf=_quantile("norm.ppf", special.ndtri),
    isf=_quantile("norm.isf", lambda q: negative(special.ndtri(q))),
)

laplace = _Distribution(
    "laplace",
    logpdf=_standard("laplace.logpdf", lambda z: subtract(negative(absolute(z)), math.log(2)), log_density=True),
    cdf=_standard(
        "laplace.cdf",
        lambda z: where_op(
            less(z, 0),
            multiply(exp(negative(absolute(z))), 0.5),
            subtract(1.0, multiply(exp(negative(absolute(z))), 0.5)),
        ),
    ),
)

logistic = _Distribution(
    "logistic",
    logpdf=_standard(
        "logistic.logpdf",
        lambda z: subtract(negative(absolute(z)), multiply(log1p(exp(negative(absolute(z)))), 2.0)),
        log_density=True,
    ),
    cdf=_standard("logistic.cdf", special.expit),
    sf=_standard("logistic.sf", lambda z: special.expit(negative(z))),
    ppf=_quantile("logistic.ppf", special.logit),
    isf=_quantile("logistic.isf", lambda q: negative(special.logit(q))),
)

cauchy = _Distribution(
    "cauchy",
    logpdf=_standard("cauchy.logpdf", lambda z: negative(add(log1p(square(z)), math.log(math.pi))), log_density=True),
    cdf=_standard("cauchy.cdf", lambda z: add(divide(arctan(z), math.pi), 0.5)),
    sf=_standard("cauchy.sf", lambda z: add(divide(arctan(negative(z)), math.pi), 0.5)),
    ppf=_quantile("cauchy.ppf", lambda q: tan(multiply(subtract(q, 0.5), math.pi))),
    isf=_quantile("cauchy.isf", lambda q: tan(multiply(subtract(0.5, q), math.pi))),
)


def _t_logpdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    x, df, loc, scale = promote_to_inexact("t.logpdf", x, df, loc, scale)
    z = divide(subtract(x, loc), scale)
    half, next_half = multiply(df, 0.5), multiply(add(df, 1.0), 0.5)
    size = add(
        add(log(scale), multiply(log(multiply(df, math.pi)), 0.5)),
        subtract(special.gammaln(half), special.gammaln(next_half)),
    )
    return negative(add(size, multiply(next_half, log1p(divide(square(z), df)))))


t = _Distribution("t", logpdf=_t_logpdf)

# -- on half of it ----------------------------------------------------------------------------------------------

expon = _Distribution(
    "expon",
    logpdf=_standard("expon.logpdf", lambda z: where_op(less(z, 0), -_INF, negative(z)), log_density=True),
    cdf=_standard(
        "expon.cdf", lambda z: where_op(less(z, 0), 0.0, negative(expm1(negative(where_op(less(z, 0), 0.0, z)))))
    ),
    sf=_standard("expon.sf", lambda z: where_op(less(z, 0), 1.0, exp(negative(z)))),
    logsf=_standard("expon.logsf", lambda z: where_op(less(z, 0), 0.0, negative(z))),
    ppf=_quantile("expon.ppf", lambda q: negative(log1p(negative(q)))),
)


def _gamma_logpdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    x, a, loc, scale = promote_to_inexact("gamma.logpdf", x, a, loc, scale)
    z = divide(subtract(x, loc), scale)
    inside = less_equal(0, z)
    safe = where_op(inside, z, 1.0)
    out = subtract(special.xlogy(subtract(a, 1.0), safe), add(safe, add(special.gammaln(a), log(scale))))
    return where_op(inside, out, -_INF)


def _gamma_cdf(upper: bool) -> Callable[..., Any]:
    def function(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
        x, a, loc, scale = promote_to_inexact("gamma.cdf", x, a, loc, scale)
        z = divide(subtract(x, loc), scale)
        safe = where_op(greater(z, 0), z, 0.0)
        return (special.gammaincc if upper else special.gammainc)(a, safe)

    return function


gamma = _Distribution("gamma", logpdf=_gamma_logpdf, cdf=_gamma_cdf(False), sf=_gamma_cdf(True))


def _as_gamma(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, df, loc=0, scale=1: f(x, multiply(df, 0.5), loc, multiply(scale, 2.0))


chi2 = _Distribution(
    "chi2", logpdf=_as_gamma(_gamma_logpdf), cdf=_as_gamma(_gamma_cdf(False)), sf=_as_gamma(_gamma_cdf(True))
)


def _pareto_logpdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    x, b, loc, scale = promote_to_inexact("pareto.logpdf", x, b, loc, scale)
    z = divide(subtract(x, loc), scale)
    inside = less_equal(1, z)
    out = subtract(log(divide(b, scale)), multiply(add(b, 1.0), log(where_op(inside, z, 1.0))))
    return where_op(inside, out, -_INF)


pareto = _Distribution("pareto", logpdf=_pareto_logpdf)

# -- on an interval -------------------------------------------------------------------------------------------------


def _uniform_logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    x, loc, scale = promote_to_inexact("uniform.logpdf", x, loc, scale)
    outside = logical_or(greater(x, add(loc, scale)), less(x, loc))
    return where_op(outside, -_INF, negative(log(scale)))


uniform = _Distribution(
    "uniform",
    logpdf=_uniform_logpdf,
    cdf=_standard("uniform.cdf", lambda z: where_op(less(z, 0), 0.0, where_op(greater(z, 1), 1.0, z))),
    ppf=_quantile("uniform.ppf", lambda q: where_op(logical_or(less(q, 0), greater(q, 1)), math.nan, q)),
)


def _beta_logpdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    x, a, b, loc, scale = promote_to_inexact("beta.logpdf", x, a, b, loc, scale)
    z = divide(subtract(x, loc), scale)
    inside = logical_and(less_equal(0, z), less_equal(z, 1))
    safe = where_op(inside, z, 0.5)
    out = add(special.xlogy(subtract(a, 1.0), safe), special.xlog1py(subtract(b, 1.0), negative(safe)))
    return where_op(inside, subtract(out, add(special.betaln(a, b), log(scale))), -_INF)


def _beta_cdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    x, a, b, loc, scale = promote_to_inexact("beta.cdf", x, a, b, loc, scale)
    z = divide(subtract(x, loc), scale)
    return special.betainc(a, b, where_op(less(z, 0), 0.0, where_op(greater(z, 1), 1.0, z)))


beta = _Distribution("beta", logpdf=_beta_logpdf, cdf=_beta_cdf)

# -- on integers ------------------------------------------------------------------------------------------------------


def _whole(k: Any, low: float, high: Any = None) -> Any:
    """Whether k is an integer of the support."""
    inside = logical_and(equal(k, floor(k)), less_equal(low, k))
    return inside if high is None else logical_and(inside, less_equal(k, high))


def _bernoulli_logpmf(k: Any, p: Any, loc: Any = 0) -> Any:
    k, p, loc = promote_to_inexact("bernoulli.logpmf", k, p, loc)
    x = subtract(k, loc)
    inside = logical_or(equal(x, 0), equal(x, 1))
    safe = where_op(inside, x, 0.0)
    return where_op(inside, add(special.xlogy(safe, p), special.xlog1py(subtract(1.0, safe), negative(p))), -_INF)


bernoulli = _Distribution("bernoulli", logpmf=_bernoulli_logpmf)


def _binom_logpmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    k, n, p, loc = promote_to_inexact("binom.logpmf", k, n, p, loc)
    x = subtract(k, loc)
    inside = _whole(x, 0, n)
    safe = where_op(inside, x, 0.0)
    ways = subtract(
        special.gammaln(add(n, 1.0)), add(special.gammaln(add(safe, 1.0)), special.gammaln(add(subtract(n, safe), 1.0)))
    )
    out = add(ways, add(special.xlogy(safe, p), special.xlog1py(subtract(n, safe), negative(p))))
    return where_op(inside, out, -_INF)


binom = _Distribution("binom", logpmf=_binom_logpmf)


def _geom_logpmf(k: Any, p: Any, loc: Any = 0) -> Any:
    k, p, loc = promote_to_inexact("geom.logpmf", k, p, loc)
    x = subtract(k, loc)
    inside = _whole(x, 1)
    return where_op(inside, add(special.xlog1py(subtract(where_op(inside, x, 1.0), 1.0), negative(p)), log(p)), -_INF)


geom = _Distribution("geom", logpmf=_geom_logpmf)


def _poisson_logpmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    k, mu, loc = promote_to_inexact("poisson.logpmf", k, mu, loc)
    x = subtract(k, loc)
    inside = _whole(x, 0)
    safe = where_op(inside, x, 0.0)
    return where_op(inside, subtract(subtract(special.xlogy(safe, mu), special.gammaln(add(safe, 1.0))), mu), -_INF)


def _poisson_cdf(k: Any, mu: Any, loc: Any = 0) -> Any:
    k, mu, loc = promote_to_inexact("poisson.cdf", k, mu, loc)
    x = floor(subtract(k, loc))
    inside = less_equal(0, x)
    return where_op(inside, special.gammaincc(add(where_op(inside, x, 0.0), 1.0), mu), 0.0)


poisson = _Distribution("poisson", logpmf=_poisson_logpmf, cdf=_poisson_cdf)

# -- of vectors -----------------------------------------------------------------------------------------------------


def _multivariate_normal_logpdf(x: Any, mean: Any, cov: Any) -> Any:
    """`x`: vectors in the last dim; `cov`: a scalar (or none of its dims) for a multiple of the unit matrix, or a
    matrix.
    """
    x, mean, cov = promote_inexact(*operands("multivariate_normal.logpdf", x, mean, cov))
    if not aval_of(mean).ndim:
        z = divide(square(subtract(x, mean)), cov)
        return multiply(add(z, add(log(cov), math.log(2 * math.pi))), -0.5)
    n = aval_of(mean).shape[-1]
    off = subtract(x, mean)
    if not aval_of(cov).ndim:
        size = add(multiply(log(cov), n), n * math.log(2 * math.pi))
        return multiply(add(divide(reductions.sum(square(off), axis=-1), cov), size), -0.5)
    if aval_of(cov).ndim < 2 or aval_of(cov).shape[-2:] != (n, n):
        raise ValueError(
            f"multivariate_normal.logpdf got incompatible shapes: mean {aval_of(mean).shape}, cov {aval_of(cov).shape}"
        )
    factor = linalg.cholesky(cov)
    y = squeeze(solve_triangular(factor, expand_dims(off, -1), lower=True), -1)
    size = multiply(reductions.sum(log(diagonal(factor, 0, -2, -1)), axis=-1), 2.0)
    return multiply(add(add(reductions.sum(square(y), axis=-1), size), n * math.log(2 * math.pi)), -0.5)


multivariate_normal = _Distribution("multivariate_normal", logpdf=_multivariate_normal_logpdf)


def _dirichlet_logpdf(x: Any, alpha: Any) -> Any:
    """`x`: the components in the first dim, or all but the last component."""
    x, alpha = promote_inexact(*operands("dirichlet.logpdf", x, alpha))
    shape, count = aval_of(x).shape, aval_of(alpha).shape[0]
    if aval_of(alpha).ndim != 1 or not shape or shape[0] not in (count, count - 1):
        raise ValueError(
            f"`x` must have either the same number of entries as `alpha` or one entry fewer; got x.shape={shape}, alpha.shape=({count},)"
        )
    weights = alpha
    if len(shape) > 1:
        weights = expand_dims(alpha, tuple(range(1, len(shape))))
    parts = x
    if shape[0] == count - 1:
        from_rest = expand_dims(subtract(1.0, reductions.sum(x, axis=0)), 0)
        parts = concatenate([x, from_rest], axis=0)
    size = subtract(reductions.sum(special.gammaln(alpha)), special.gammaln(reductions.sum(alpha)))
    return subtract(reductions.sum(special.xlogy(subtract(weights, 1.0), parts), axis=0), size)


dirichlet = _Distribution("dirichlet", logpdf=_dirichlet_logpdf)
