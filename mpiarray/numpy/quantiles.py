"""Quantiles: median, quantile, percentile, and those that skip NaN.

They sort the reduced dims, which must not be sharded over Explicit axes (ShardingTypeError).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.numpy.arithmetic import add, ceil, divide, floor, multiply, subtract
from mpiarray.numpy.choices import clip, maximum, where_op
from mpiarray.numpy.comparison import isnan, less_equal
from mpiarray.numpy.index_reads import read
from mpiarray.numpy.manipulation import broadcast_to, expand_dims, moveaxis, ravel, reshape
from mpiarray.numpy.promotion import cast, operands, promote_inexact
from mpiarray.numpy.reductions import computed_in, reduced_axes, sum
from mpiarray.numpy.sorting import sort
from mpiarray.ops.bits import not_
from mpiarray.ops.sorting import take_along
from mpiarray.types import dtypes

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """The values below which the parts `q` (0 to 1) of the elements lie; NaN where an element is.

    q: a number, or a 1-D array whose dim comes first in the result.  method: what to take between two elements.
    Raises ValueError for complex numbers, an unknown method or `q` of more dims.
    """
    return _quantile("quantile", a, q, axis, out, overwrite_input, method, keepdims)


def nanquantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """As `quantile`, without NaN; NaN where all elements are."""
    return _quantile("nanquantile", a, q, axis, out, overwrite_input, method, keepdims)


def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """As `quantile`, with `q` from 0 to 100."""
    return _quantile("percentile", a, q, axis, out, overwrite_input, method, keepdims, 100)


def nanpercentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """As `nanquantile`, with `q` from 0 to 100."""
    return _quantile("nanpercentile", a, q, axis, out, overwrite_input, method, keepdims, 100)


def median(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle element, or the mean of the two; NaN where an element is."""
    return _quantile("median", a, 0.5, axis, out, overwrite_input, "midpoint", keepdims)


def nanmedian(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle of the elements that are not NaN; NaN where all are."""
    return _quantile("nanmedian", a, 0.5, axis, out, overwrite_input, "midpoint", keepdims)


def _quantile(
    name: str, a: Any, q: Any, axis: Any, out: Any, overwrite: bool, method: str, keepdims: bool, unit: int = 1
) -> Any:
    if overwrite or out is not None:
        raise ValueError(f"jax.numpy.{name} does not support overwrite_input=True or out != None")
    if method not in _METHODS:
        raise ValueError(
            "method can only be 'linear', 'lower', 'higher', 'midpoint', 'nearest' or 'inverted_cdf', got "
            f"{method!r} in {name}"
        )
    a, q = operands(name, a, q)
    (x,), (q,) = promote_inexact(a), promote_inexact(q)
    own = aval_of(x).dtype
    if dtypes.is_complex(own):
        raise ValueError(
            f"{name} does not support complex input, as the operation is poorly defined: got {aval_of(x).str_short()}"
        )
    if aval_of(q).ndim > 1:
        raise ValueError(f"q must be have rank <= 1, got shape {aval_of(q).shape} in {name}")
    inside = computed_in(own)
    q = cast(q, inside)
    q = divide(q, unit) if unit != 1 else q
    x, axes = cast(x, own), reduced_axes(name, axis, aval_of(x).ndim)
    line = _lines(x, axes)
    if not aval_of(line).shape[-1]:
        raise ValueError(f"{name}: cannot take a quantile of an empty axis: got {aval_of(a).str_short()} and {axis=}")
    found = (_skipping_nan if name.startswith("nan") else _of_all)(line, q, inside, method)
    found = cast(found, own)
    if keepdims:
        first = aval_of(q).ndim
        found = expand_dims(found, tuple(first + d for d in sorted(axes)))
    return found


def _lines(x: Any, axes: tuple[int, ...]) -> Any:
    """The operand with the reduced dims as one last dim, so that their shardings are seen by sort."""
    ndim = aval_of(x).ndim
    if len(axes) == ndim:
        return ravel(x)
    x = moveaxis(x, axes, tuple(range(ndim - len(axes), ndim)))
    shape = aval_of(x).shape[: ndim - len(axes)]
    return x if len(axes) == 1 else reshape(x, (*shape, math.prod(aval_of(x).shape[ndim - len(axes) :])))


def _of_all(x: Any, q: Any, inside: Any, method: str) -> Any:
    aval = aval_of(x)
    last = aval.ndim - 1
    x = sort(x, last)
    n = aval.shape[last]
    lost = isnan(read(x, (Ellipsis, n - 1)))  # NaN comes last
    low, high, weight = _places(q, literal(n - 1, inside), literal(n, inside), method)
    whole = (slice(None),) * last

    def at(place: Any) -> Any:
        value = read(x, (*whole, cast(place, np.dtype(np.int32))), "clip")
        return moveaxis(value, last, 0) if aval_of(q).ndim else value

    weight = _first_dim(weight, last)
    out = _between(cast(at(low), inside), cast(at(high), inside), weight, method)
    return where_op(lost, literal(math.nan, inside), out)


def _skipping_nan(x: Any, q: Any, inside: Any, method: str) -> Any:
    last = aval_of(x).ndim - 1
    x = sort(x, last)  # NaN comes last
    count = sum(not_(isnan(x)), last, inside)
    top = maximum(subtract(count, 1), 0)
    low, high, weight = _places(_first_dim(q, last), top, count, method)
    shape = aval_of(low).shape

    def at(place: Any) -> Any:
        place = cast(place, np.dtype(np.int32))
        if not aval_of(q).ndim:
            return _squeezed(take_along(x, expand_dims(place, -1), dimension=last))
        many = moveaxis(broadcast_to(place, shape), 0, -1)
        return moveaxis(take_along(x, many, dimension=last), -1, 0)

    return _between(cast(at(low), inside), cast(at(high), inside), weight, method)


def _squeezed(x: Any) -> Any:
    shape = aval_of(x).shape
    return reshape(x, shape[:-1])


def _first_dim(q: Any, ndim: int) -> Any:
    """A 1-D array with dims of size 1 behind, to broadcast against that many dims."""
    return q if not aval_of(q).ndim or not ndim else expand_dims(q, tuple(range(1, ndim + 1)))


def _places(q: Any, top: Any, count: Any, method: str) -> tuple[Any, Any, Any]:
    """Two neighbouring positions in sorted order and the weight of the second."""
    if method == "inverted_cdf":
        place = clip(subtract(ceil(multiply(q, count)), 1), 0, top)
        return place, place, literal(0, aval_of(place).dtype)
    place = multiply(q, top)
    low, high = floor(place), ceil(place)
    weight = subtract(place, low)
    return clip(low, 0, top), clip(high, 0, top), weight


def _between(low: Any, high: Any, weight: Any, method: str) -> Any:
    if method in ("lower", "inverted_cdf"):
        return low
    if method == "higher":
        return high
    if method == "nearest":
        low, high, half = low, high, less_equal(weight, 0.5)
        return where_op(half, *_same(low, high))
    if method == "midpoint":
        return multiply(add(low, high), 0.5)
    rest = subtract(literal(1, aval_of(low).dtype), weight)
    mixed = add(multiply(low, rest), multiply(high, weight))
    return where_op(less_equal(weight, 0), *_same(low, mixed))


def _same(x: Any, y: Any) -> tuple[Any, Any]:
    shape = np.broadcast_shapes(aval_of(x).shape, aval_of(y).shape)
    return tuple(v if aval_of(v).shape == shape else broadcast_to(v, shape) for v in (x, y))
