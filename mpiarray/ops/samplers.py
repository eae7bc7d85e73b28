"""Rejection samplers on numpy blocks: gamma, Poisson and binomial variates from threefry bits.

Numpy only, like `ops.threefry`: a block of parameters, the keys, and where the block stands in the draw.  They
are apart from the ops because a sampler is a loop whose length depends on the values.  Each element has
its own stream of bits (a function of the key, of the trip round the loop and of the element's global index),
so a rank samples its own block, and only elements that are still undecided cost anything.

Poisson (rate >= 10) and binomial (n q > 10) loops go on for all elements of a draw until every one has accepted a
candidate, and an element's value is the *last* candidate that it accepted; that makes the values those of JAX.  The
number of trips is therefore a property of the whole draw: `poisson_trips` and `binomial_trips` give a block's, the
ops take the maximum over all blocks, and the samplers then work backwards from the last trip.

Sources: G. Marsaglia, W. W. Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000);
W. Hörmann, "The transformed rejection method for generating Poisson random variables", Insurance: Math. and
Economics 12 (1993); W. Hörmann, "The generation of binomial random variates", J. Stat. Comput. Simul. 46 (1993);
D. E. Knuth, TAOCP vol. 2, 3.4.1; M. Giles, "Approximating the erfinv function", GPU Computing Gems (2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpiarray.ops import threefry
from mpiarray.ops.special_cores import erf_inv, erf_inv_single, lgamma

__all__ = ["Place", "binomial_block", "binomial_trips", "gamma_block", "poisson_block", "poisson_trips"]

# Elements that go through a loop together: enough to drown numpy's call overhead, few enough for the cache.
_CHUNK = 1 << 14


class Place(NamedTuple):
    """Where a block stands in its draw: the draw's shape, and the block's first index along each dim."""

    global_shape: tuple[int, ...]
    start: tuple[int, ...]


class _Elements:
    """Some elements of a block: the key and the counter of each."""

    def __init__(self, keys: np.ndarray, which: np.ndarray | None, counters: np.ndarray):
        self.keys = keys  # the keys of these elements, 1-d
        self.which = which  # number of each element's key; None: there is one key
        self.counters = counters

    def part(self, chosen: np.ndarray) -> _Elements:
        which = None if self.which is None else self.which[chosen]
        return _Elements(self.keys, which, self.counters[chosen])

    def with_keys(self, keys: np.ndarray) -> _Elements:
        return _Elements(keys, self.which, self.counters)

    def uniform(self, keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Uniform on [0, 1): what a draw of the whole array has here; `keys` takes the place of my keys."""
        words = threefry.key_words(keys[0] if self.which is None else keys[self.which])
        hi, lo = _halves(self.counters)
        return _to_uniform(*threefry.threefry(words, hi, lo), dtype)


def _halves(counters: np.ndarray) -> tuple[Any, np.ndarray]:
    hi = counters >> np.uint64(32)
    one = hi.size and hi[0] == hi[-1] and not np.any(hi != hi[0])
    return (hi[0] if one else hi).astype(np.uint32), counters.astype(np.uint32)


def _to_uniform(y0: np.ndarray, y1: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats in [0, 1) from the leading bits of random words."""
    if dtype == np.float64:
        bits = (y0.astype(np.uint64) << np.uint64(32) | y1) >> np.uint64(12) | np.uint64(0x3FF0000000000000)
        return bits.view(np.float64) - 1.0
    bits = (y0 ^ y1) >> np.uint32(9) | np.uint32(0x3F800000)
    return bits.view(np.float32) - np.float32(1)


def _chunks(
    keys: np.ndarray, place: Place, block_shape: Sequence[int], params: Sequence[np.ndarray]
) -> Iterator[tuple[slice, slice, _Elements, list[np.ndarray]]]:
    """(positions, keys, elements, parameters) of pieces of a block of `keys.shape + block_shape`, flattened."""
    size = math.prod(block_shape)
    flat_keys = keys.reshape(-1)
    flat = [np.broadcast_to(p, keys.shape + tuple(block_shape)).reshape(-1) for p in params]
    runs = threefry.Runs(*place, block_shape)
    if size == 0 or flat_keys.size == 0:
        return
    for k in range(0, flat_keys.size, max(1, _CHUNK // size)):
        mine = slice(k, min(k + max(1, _CHUNK // size), flat_keys.size))
        count = mine.stop - mine.start
        for first in range(0, size, _CHUNK):
            n = min(_CHUNK, size - first)
            counters = runs.counters(first, n)
            which = None
            if count > 1:
                counters, which = np.tile(counters, count), np.repeat(np.arange(count), n)
            at = slice(mine.start * size + first, mine.start * size + first + n * count)
            yield at, mine, _Elements(flat_keys[mine], which, counters), [p[at] for p in flat]


# ------------------------------------------------------------------------------------------------- gamma


def gamma_block(keys: np.ndarray, a: np.ndarray, place: Place, *, log_space: bool) -> np.ndarray:
    """Gamma variates of shape parameter `a` (block of `keys.shape + ...`) and scale 1, or their logarithms.

    Parameters below 1 are sampled at `a + 1` and brought down by a power of a uniform variate.
    """
    work = a if a.dtype == np.float64 else a.astype(np.float32)
    out = np.empty(a.size, work.dtype)
    with np.errstate(all="ignore"):
        for at, _, elements, (alpha,) in _chunks(keys, place, a.shape[keys.ndim :], [work]):
            out[at] = _gamma(_own_keys(elements), alpha, log_space)
    return out.reshape(a.shape).astype(a.dtype)


def _own_keys(elements: _Elements) -> np.ndarray:
    """Each element of a gamma draw has a key of its own, split from the draw's key."""
    keys = elements.keys[0] if elements.which is None else elements.keys[elements.which]
    return threefry.pack_words(*threefry.threefry(threefry.key_words(keys), *_halves(elements.counters)))


def _child(keys: np.ndarray, i: int) -> np.ndarray:
    """The i-th of the keys that each key splits into."""
    return threefry.pack_words(*threefry.threefry(threefry.key_words(keys), 0, i))


def _scalar_uniform(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return _to_uniform(*threefry.threefry(threefry.key_words(keys), 0, 0), dtype)


def _scalar_normal(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    lo = np.nextafter(dtype.type(-1), dtype.type(0))
    u = np.maximum(lo, _scalar_uniform(keys, dtype) * (dtype.type(1) - lo) + lo)
    return dtype.type(math.sqrt(2)) * (erf_inv(u) if dtype == np.float64 else erf_inv_single(u))


def _gamma(keys: np.ndarray, alpha: np.ndarray, log_space: bool) -> np.ndarray:
    one = alpha.dtype.type(1)
    boosted = ~(alpha >= one)
    third = alpha.dtype.type(1 / 3)
    d = np.where(boosted, alpha + one, alpha) - third
    v = _marsaglia_tsang(_child(keys, 0), d, third / np.sqrt(d))
    u = np.zeros_like(alpha)
    u[boosted] = _scalar_uniform(_child(keys[boosted], 1), alpha.dtype)
    if log_space:
        log_u = np.log1p(-u)
        boost = np.where(~boosted | (log_u == 0), 0, log_u * (one / alpha))
        return np.log(d) + np.log(v) + boost
    return d * v * np.where(boosted, (one - u) ** (one / alpha), one)


def _marsaglia_tsang(keys: np.ndarray, d: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The accepted v = (1 + c x)**3 of every element."""
    out = np.ones_like(d)
    todo = np.arange(d.size)
    while todo.size:
        keys, normal_keys, uniform_keys = (_child(keys, i) for i in range(3))
        x, v = _positive_cubes(normal_keys, c[todo])
        u = _scalar_uniform(uniform_keys, d.dtype)
        squared = x * x
        cubed = v * v * v
        half, one = d.dtype.type(0.5), d.dtype.type(1)
        again = (u >= one - d.dtype.type(0.0331) * (squared * squared)) & (
            np.log(u) >= squared * half + d[todo] * (one - cubed + np.log(cubed))
        )
        out[todo] = cubed
        todo, keys = todo[again], keys[again]
    return out


def _positive_cubes(keys: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normal x with v = 1 + c x > 0, and v."""
    x, v = np.zeros_like(c), np.full_like(c, -1)
    todo = np.arange(c.size)
    while todo.size:
        keys, drawn = _child(keys, 0), _child(keys, 1)
        x[todo] = _scalar_normal(drawn, c.dtype)
        v[todo] = 1 + x[todo] * c[todo]
        again = v[todo] <= 0
        todo, keys = todo[again], keys[again]
    return x, v


# ------------------------------------------------------------------------- loops that end for all at once

# (u, v, constants) -> (candidate, accepted)
Candidate = Callable[[np.ndarray, np.ndarray, Sequence[np.ndarray]], tuple[np.ndarray, np.ndarray]]


def _candidates(elements: _Elements, keys: np.ndarray, candidate: Candidate, constants: Sequence[np.ndarray]) -> Any:
    """Candidates of one trip whose loop keys are `keys`."""
    dtype = constants[0].dtype
    u = elements.uniform(_child(keys, 1), dtype) - dtype.type(0.5)
    v = elements.uniform(_child(keys, 2), dtype)
    return candidate(u, v, constants)


def _count_trips(elements: _Elements, candidate: Candidate, constants: Sequence[np.ndarray]) -> np.ndarray:
    """How many trips each key's elements need until all have accepted."""
    trips = np.zeros(elements.keys.size, np.int32)
    keys = elements.keys
    while elements.counters.size:
        _, accepted = _candidates(elements, keys, candidate, constants)
        trips[0 if elements.which is None else np.unique(elements.which)] += 1
        elements = elements.part(~accepted)
        constants = [c[~accepted] for c in constants]
        keys = _child(keys, 0)
    return trips


def _last_accepted(
    elements: _Elements, trips: np.ndarray, candidate: Candidate, constants: Sequence[np.ndarray]
) -> np.ndarray:
    """Each element's last accepted candidate among its key's trips; -1 if there is none."""
    out = np.full(elements.counters.size, -1, constants[0].dtype)
    chain = [elements.keys]
    for _ in range(int(trips.max(initial=0)) - 1):
        chain.append(_child(chain[-1], 0))
    links = np.stack(chain)
    todo = np.arange(out.size)
    for back in range(1, len(chain) + 1):
        number = trips - back
        keys = links[np.maximum(number, 0), np.arange(trips.size)]
        value, accepted = _candidates(elements, keys, candidate, constants)
        accepted &= (number if elements.which is None else number[elements.which]) >= 0
        out[todo[accepted]] = value[accepted]
        if accepted.all():
            break
        todo, elements = todo[~accepted], elements.part(~accepted)
        constants = [c[~accepted] for c in constants]
    return out


def _trips_of_block(
    keys: np.ndarray,
    place: Place,
    block_shape: Sequence[int],
    params: Sequence[np.ndarray],
    candidate: Candidate,
    prepare: Any,
) -> np.ndarray:
    out = np.zeros(keys.size, np.int32)
    with np.errstate(all="ignore"):
        for _, mine, elements, values in _chunks(keys, place, block_shape, params):
            out[mine] = np.maximum(out[mine], _count_trips(elements, candidate, prepare(*values)))
    return out.reshape(keys.shape)


# ------------------------------------------------------------------------------------------------ Poisson


def poisson_trips(keys: np.ndarray, rate: np.ndarray, place: Place) -> np.ndarray:
    """The trips that this block's elements need (int32, one number a key)."""
    return _trips_of_block(keys, place, rate.shape[keys.ndim :], [rate], _poisson_candidate, _poisson_constants)


def poisson_block(keys: np.ndarray, rate: np.ndarray, trips: np.ndarray, place: Place) -> np.ndarray:
    """Poisson variates as floats, for float32 rates of `keys.shape + ...`; NaN and negative rates give -1."""
    out = np.empty(rate.size, rate.dtype)
    all_trips = np.asarray(trips).reshape(-1)
    with np.errstate(all="ignore"):
        for at, mine, elements, (lam,) in _chunks(keys, place, rate.shape[keys.ndim :], [rate]):
            small = _is_small_rate(lam)
            part = np.empty_like(lam)
            part[small] = _poisson_by_products(elements.part(small), lam[small])
            part[~small] = _last_accepted(
                elements.part(~small), all_trips[mine], _poisson_candidate, _poisson_constants(lam[~small])
            )
            out[at] = np.where(lam == 0, 0, part)
    return out.reshape(rate.shape)


def _is_small_rate(lam: np.ndarray) -> np.ndarray:
    return np.isnan(lam) | (lam < 10)


def _poisson_by_products(elements: _Elements, lam: np.ndarray) -> np.ndarray:
    """Count uniform variates until their product falls below exp(-rate)."""
    count, log_product = np.zeros_like(lam), np.zeros_like(lam)
    keys = elements.keys
    todo = np.flatnonzero(log_product > -lam)
    elements = elements.part(todo)
    while todo.size:
        keys, drawn = _child(keys, 0), _child(keys, 1)
        count[todo] += 1
        log_product[todo] += np.log(elements.uniform(drawn, lam.dtype))
        again = log_product[todo] > -lam[todo]
        todo, elements = todo[again], elements.part(again)
    return count - 1


def _poisson_constants(lam: np.ndarray) -> list[np.ndarray]:
    # a small rate takes part in counting trips as this large one does in JAX
    lam = np.where(_is_small_rate(lam), lam.dtype.type(1e5), lam)
    b = 0.931 + 2.53 * np.sqrt(lam)
    a = -0.059 + 0.02483 * b
    return [a, b, lam, np.log(lam), 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)]


def _poisson_candidate(u: np.ndarray, v: np.ndarray, constants: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    a, b, lam, log_lam, inv_alpha, v_r = constants
    us = u.dtype.type(0.5) - np.abs(u)
    k = np.floor((2 * a / us + b) * u + lam + u.dtype.type(0.43))
    quick = (us >= u.dtype.type(0.07)) & (v <= v_r)
    outside = (k < 0) | ((us < u.dtype.type(0.013)) & (v > us))
    s = np.log(v * inv_alpha / (a / (us * us) + b))
    return k, quick | (~outside & (s <= -lam + k * log_lam - _log_factorial(k)))


def _log_factorial(k: np.ndarray) -> np.ndarray:
    return lgamma(k.astype(np.float64) + 1).astype(k.dtype)


# ----------------------------------------------------------------------------------------------- binomial


class _Binomial(NamedTuple):
    """Counts and probabilities (at most 1/2) as the two methods see them, and which elements are special."""

    by_inversion: np.ndarray
    trials: np.ndarray
    q: np.ndarray
    invalid: np.ndarray
    flipped: np.ndarray


def binomial_trips(keys: np.ndarray, n: np.ndarray, p: np.ndarray, place: Place) -> np.ndarray:
    """The trips that this block's elements need (int32, one number a key)."""
    return _trips_of_block(keys, place, n.shape[keys.ndim :], [n, p], _binomial_candidate, _binomial_constants)


def binomial_block(keys: np.ndarray, n: np.ndarray, p: np.ndarray, trips: np.ndarray, place: Place) -> np.ndarray:
    """Binomial variates as floats for blocks `n`, `p` of `keys.shape + ...`; impossible parameters give NaN."""
    out = np.empty(n.size, n.dtype)
    all_trips = np.asarray(trips).reshape(-1)
    with np.errstate(all="ignore"):
        for at, mine, elements, (count, prob) in _chunks(keys, place, n.shape[keys.ndim :], [n, p]):
            b = _binomial_cases(count, prob)
            small, large = b.by_inversion, ~b.by_inversion
            part = np.empty_like(count)
            part[small] = _binomial_by_inversion(elements.part(small), b.trials[small], b.q[small])
            constants = _binomial_constants(count[large], prob[large])
            part[large] = _last_accepted(elements.part(large), all_trips[mine], _binomial_candidate, constants)
            part = np.where(b.invalid, np.nan, part)
            part = np.where(np.isinf(count) & ~b.invalid, np.inf, part)
            out[at] = np.where(b.flipped, b.trials - part, part)
    return out.reshape(n.shape)


def _binomial_cases(n: np.ndarray, p: np.ndarray) -> _Binomial:
    q = np.where(p < 0.5, p, 1 - p)
    bad_count = np.isnan(n) | (n < 0)
    bad_q = np.isnan(q) | (q < 0)
    flipped = ~((p < 0.5) | bad_count | np.isnan(q) | np.isinf(n))
    q = np.where(bad_q, q.dtype.type(0.01), q)
    return _Binomial(bad_count | (n * q <= 10), np.floor(n), q, bad_q | bad_count, flipped)


def _binomial_by_inversion(elements: _Elements, n: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Count the successes before trial n: waiting times are geometric."""
    count, time = np.zeros_like(n), np.zeros_like(n)
    keys = elements.keys
    todo = np.flatnonzero(time <= n)
    elements = elements.part(todo)
    log_failure = np.log1p(-q)
    while todo.size:
        drawn, keys = _child(keys, 0), _child(keys, 1)
        count[todo] += 1
        time[todo] += np.ceil(np.log(elements.uniform(drawn, n.dtype)) / log_failure[todo])
        again = time[todo] <= n[todo]
        todo, elements = todo[again], elements.part(again)
    return count - 1


def _binomial_constants(n: np.ndarray, p: np.ndarray) -> list[np.ndarray]:
    cases = _binomial_cases(n, p)
    # elements that inversion samples take part in counting trips as JAX's do
    n = np.where(cases.by_inversion, n.dtype.type(10000), cases.trials)
    q = np.where(cases.by_inversion, n.dtype.type(0.5), cases.q)
    deviation = np.sqrt(n * q * (1 - q))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * q
    alpha = (2.83 + 5.1 / b) * deviation
    return [a, b, n * q + n.dtype.type(0.5), n, alpha, np.floor((n + 1) * q), q / (1 - q), 0.92 - 4.2 / b]


def _binomial_candidate(u: np.ndarray, v: np.ndarray, constants: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    a, b, c, n, alpha, m, r, v_r = constants
    us = u.dtype.type(0.5) - np.abs(u)
    k = np.floor((2 * a / us + b) * u + c)
    quick = (us >= u.dtype.type(0.07)) & (v <= v_r)
    outside = (k < 0) | (k > n)
    log_v = np.log(v * alpha / (a / (us * us) + b))
    half = u.dtype.type(0.5)
    bound = (
        (m + half) * np.log((m + 1) / (r * (n - m + 1)))
        + (n + 1) * np.log((n - m + 1) / (n - k + 1))
        + (k + half) * np.log(r * (n - k + 1) / (k + 1))
        + _stirling_tail(m)
        + _stirling_tail(n - m)
        - _stirling_tail(k)
        - _stirling_tail(n - k)
    )
    return k, quick | (~outside & (log_v <= bound))


# log(k!) - (log(2 pi)/2 + (k + 1/2) log(k + 1) - (k + 1)) for k = 0..9
_TAIL = np.array(
    [math.lgamma(k + 1) - (0.5 * math.log(2 * math.pi) + (k + 0.5) * math.log(k + 1) - (k + 1)) for k in range(10)]
)


def _stirling_tail(k: np.ndarray) -> np.ndarray:
    """The error of Stirling's formula for log k!."""
    square = (k + 1) * (k + 1)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (k + 1)
    table = _TAIL.astype(k.dtype)[np.clip(np.nan_to_num(k), 0, 9).astype(np.int64)]
    return np.where(k <= 9, table, series.astype(k.dtype))
