"""`pad`: arrays with elements added around them, in all of numpy's modes.

Constants are one op, which moves what a sharded dim needs; the other modes put copies of elements before and after.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.editing import cut
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import (
    astype,
    broadcast_to,
    canonical_axis,
    concatenate,
    expand_dims,
    moveaxis,
    one,
    reshape,
    squeeze,
    stack,
)
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.ranges import linspace
from mpiarray.ops import arithmetic
from mpiarray.ops.common import const_like
from mpiarray.ops.linear import reduce_sum
from mpiarray.ops.reductions import reduce_max, reduce_min
from mpiarray.ops.shape import rev
from mpiarray.ops.slicing import pad as pad_op
from mpiarray.ops.sorting import sort
from mpiarray.types import dtypes

__all__ = ["pad"]

_STATISTICS = ("maximum", "minimum", "mean", "median")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "constant": ("constant_values",),
    "edge": (),
    "empty": (),
    "linear_ramp": ("end_values",),
    "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
    "wrap": (),
} | dict.fromkeys(_STATISTICS, ("stat_length",))


def _pairs(value: Any, ndim: int, name: str) -> list[tuple[Any, Any]]:
    """A number, (number,), (before, after), or one pair per dim, as one pair per dim."""
    found: Any = np.asarray(value) if not isinstance(value, Value) else value
    shape = found.shape
    if shape == () or shape == (1,):
        one_value = found if shape == () else found[0]
        return [(one_value, one_value)] * ndim
    if shape == (2,):
        return [(found[0], found[1])] * ndim
    if shape == (1, 2):
        return [(found[0][0], found[0][1])] * ndim
    if shape == (ndim, 1):
        return [(found[d][0], found[d][0]) for d in range(ndim)]
    if shape == (ndim, 2):
        return [(found[d][0], found[d][1]) for d in range(ndim)]
    raise ValueError(f"jnp.pad: {name} given unexpected structure: {value}. See docstring for valid {name} formats.")


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """`array` with elements added before and after each dim.

    pad_width: a number, (before, after), one such pair per dim, or a dict from axis to pair.
    mode: constant (`constant_values`), edge, reflect and symmetric (`reflect_type`), wrap, linear_ramp (`end_values`),
    maximum, minimum, mean, median (`stat_length`), empty, or a function of a vector, (before, after), axis and kwargs.

    A sharded dim that is padded must keep a size that divides (ShardingTypeError); modes that copy elements need it
    unsharded.
    """
    x = one("pad", array)
    aval = aval_of(x)
    if isinstance(pad_width, dict):
        widths = [(0, 0)] * aval.ndim
        for axis, w in pad_width.items():
            widths[canonical_axis(axis, aval.ndim, "pad")] = _widths(w, 1)[0]
    else:
        widths = _widths(pad_width, aval.ndim)
    if callable(mode):
        return _pad_by_function(x, widths, mode, kwargs)
    if mode not in _KEYWORDS:
        raise NotImplementedError(f"Unimplemented padding mode '{mode}' for np.pad.")
    unknown = set(kwargs) - set(_KEYWORDS[mode])
    if unknown:
        raise ValueError(f"unsupported keyword arguments for mode '{mode}': {unknown}")
    if mode in ("constant", "empty"):
        return _pad_constant(x, widths, kwargs.get("constant_values", 0))
    return _pad_along(x, widths, _PADDERS[mode](aval.ndim, kwargs))


def _widths(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    try:
        pairs = [(operator.index(b), operator.index(a)) for b, a in _pairs(pad_width, ndim, "pad_width")]
    except TypeError:
        raise TypeError(f"`pad_width` must be of integral type, got {pad_width!r}") from None
    if any(w < 0 for pair in pairs for w in pair):
        raise ValueError("index can't contain negative values")
    return pairs


def _pad_constant(x: Any, widths: list[tuple[int, int]], values: Any) -> Any:
    aval = aval_of(x)
    pairs = _pairs(values, aval.ndim, "constant_values")
    fills = [
        [cast(np.asarray(v)[()] if not isinstance(v, Value) else v, aval.dtype, aval.weak_type) for v in pair]
        for pair in pairs
    ]
    if np.ndim(values) == 0:
        return (
            pad_op(x, fills[0][0] if fills else const_like(x, 0), padding_config=tuple((b, a, 0) for b, a in widths))
            if widths
            else x
        )
    for d, (before, after) in enumerate(widths):
        for fill, low, high in ((fills[d][0], before, 0), (fills[d][1], 0, after)):
            if low or high:
                config = [(0, 0, 0)] * aval.ndim
                config[d] = (low, high, 0)
                x = pad_op(x, fill, padding_config=tuple(config))
    return x


Padder = Callable[[Any, int, int, int], tuple[Any, Any]]


def _pad_along(x: Any, widths: list[tuple[int, int]], padder: Padder) -> Any:
    """Dim by dim: `padder(x, axis, before, after)` gives what is put before and after."""
    for d, (before, after) in enumerate(widths):
        if before or after:
            if not aval_of(x).shape[d]:
                raise ValueError(
                    f"Cannot apply padding to empty axis {d} of {aval_of(x).str_short()}: there is nothing to copy"
                )
            first, last = padder(x, d, before, after)
            x = concatenate([p for p in (first, x, last) if aval_of(p).shape[d]], axis=d)
    return x


def _edges(x: Any, axis: int) -> tuple[Any, Any]:
    n = aval_of(x).shape[axis]
    return cut(x, axis, 0, 1), cut(x, axis, n - 1, n)


def _repeated(edge: Any, axis: int, count: int) -> Any:
    sizes = list(aval_of(edge).shape)
    sizes[axis] = count
    return broadcast_to(edge, tuple(sizes))


def _edge(ndim: int, kwargs: Any) -> Padder:
    def padder(x: Any, axis: int, before: int, after: int) -> tuple[Any, Any]:
        first, last = _edges(x, axis)
        return _repeated(first, axis, before), _repeated(last, axis, after)

    return padder


def _mirrored(include_edge: bool) -> Callable[[int, Any], Padder]:
    def make(ndim: int, kwargs: Any) -> Padder:
        kind = kwargs.get("reflect_type", "even")
        if kind not in ("even", "odd"):
            raise ValueError(f"jnp.pad: reflect_type must be 'even' or 'odd', got {kind!r}")

        def part(x: Any, axis: int, count: int, at_start: bool) -> Any:
            """The elements within `count` of an end, in reverse order; odd: mirrored at the end's value too."""
            n = aval_of(x).shape[axis]
            skip = 0 if include_edge else 1
            piece = cut(x, axis, skip, skip + count) if at_start else cut(x, axis, n - skip - count, n - skip)
            piece = rev(piece, dimensions=(axis,))
            if kind == "even":
                return piece
            edge = _edges(x, axis)[0 if at_start else 1]
            return arithmetic.sub(arithmetic.mul(const_like(edge, 2), edge), piece)

        def padder(x: Any, axis: int, before: int, after: int) -> tuple[Any, Any]:
            n = aval_of(x).shape[axis]
            if n == 1 and not include_edge:
                return _edge(ndim, kwargs)(x, axis, before, after)
            grown = x
            period = n if include_edge else n - 1
            left, right = before, after
            while left or right:  # each round mirrors what there is by now at most once
                step_left, step_right = min(left, period), min(right, period)
                parts = [part(grown, axis, step_left, True)] if step_left else []
                parts.append(grown)
                parts += [part(grown, axis, step_right, False)] if step_right else []
                grown = concatenate(parts, axis=axis)
                left, right = left - step_left, right - step_right
                have = aval_of(grown).shape[axis]
                period = have if include_edge else have - 1
            total = aval_of(grown).shape[axis]
            return cut(grown, axis, 0, before), cut(grown, axis, total - after, total)

        return padder

    return make


def _wrap(ndim: int, kwargs: Any) -> Padder:
    def padder(x: Any, axis: int, before: int, after: int) -> tuple[Any, Any]:
        n = aval_of(x).shape[axis]
        left, right = -(-before // n), -(-after // n)
        first = concatenate([x] * left, axis=axis) if left else cut(x, axis, 0, 0)
        last = concatenate([x] * right, axis=axis) if right else cut(x, axis, 0, 0)
        return cut(first, axis, left * n - before, left * n), cut(last, axis, 0, after)

    return padder


def _linear_ramp(ndim: int, kwargs: Any) -> Padder:
    ends = _pairs(kwargs.get("end_values", 0), ndim, "end_values")

    def ramp(edge: Any, end: Any, axis: int, count: int) -> Any:
        """From the end value, included, towards the edge."""
        return linspace(end, squeeze(edge, axis), count, endpoint=False, dtype=aval_of(edge).dtype, axis=axis)

    def padder(x: Any, axis: int, before: int, after: int) -> tuple[Any, Any]:
        first, last = _edges(x, axis)
        return ramp(first, ends[axis][0], axis, before), rev(ramp(last, ends[axis][1], axis, after), dimensions=(axis,))

    return padder


def _statistic(reduce: Callable[[Any, int], Any]) -> Callable[[int, Any], Padder]:
    def make(ndim: int, kwargs: Any) -> Padder:
        given = kwargs.get("stat_length")
        lengths = (
            None if given is None else [tuple(int(v) for v in pair) for pair in _pairs(given, ndim, "stat_length")]
        )
        if lengths is not None and any(v < 1 for pair in lengths for v in pair):
            raise ValueError("stat_length of 0 yields no value for padding")

        def padder(x: Any, axis: int, before: int, after: int) -> tuple[Any, Any]:
            n = aval_of(x).shape[axis]
            first, last = (n, n) if lengths is None else (min(v, n) for v in lengths[axis])
            low = reduce(cut(x, axis, 0, first), axis)
            high = reduce(cut(x, axis, n - last, n), axis)
            return _repeated(low, axis, before), _repeated(high, axis, after)

        return padder

    return make


def _mean(x: Any, axis: int) -> Any:
    """In the dtype of `x`: of integers rounded to the nearest."""
    aval = aval_of(x)
    wide = cast(x, dtypes.to_inexact(aval.dtype))
    out = reduce_sum(wide, axes=(axis,), out_sharding=None)
    out = arithmetic.div(out, const_like(out, aval.shape[axis]))
    out = arithmetic.round_(out, rounding_method=1) if dtypes.is_int(aval.dtype) else out
    return expand_dims(cast(out, aval.dtype, aval.weak_type), axis)


def _median(x: Any, axis: int) -> Any:
    aval = aval_of(x)
    (ordered,) = sort(x, dimension=axis, is_stable=True, num_keys=1)
    n = aval.shape[axis]
    return _mean(cut(ordered, axis, (n - 1) // 2, n // 2 + 1), axis)


def _extreme(op: Any) -> Callable[[Any, int], Any]:
    return lambda x, axis: expand_dims(op(x, axes=(axis,)), axis)


_PADDERS: dict[str, Callable[[int, Any], Padder]] = {
    "edge": _edge,
    "reflect": _mirrored(False),
    "symmetric": _mirrored(True),
    "wrap": _wrap,
    "linear_ramp": _linear_ramp,
    "maximum": _statistic(_extreme(reduce_max)),
    "minimum": _statistic(_extreme(reduce_min)),
    "mean": _statistic(_mean),
    "median": _statistic(_median),
}


def _pad_by_function(
    x: Any, widths: list[tuple[int, int]], function: Callable[..., Any], kwargs: dict[str, Any]
) -> Any:
    """Dim by dim, `function(vector, widths, axis, kwargs)` gives each vector of the padded array anew."""
    out = _pad_constant(x, widths, 0)
    for d, pair in enumerate(widths):
        moved = moveaxis(out, d, -1)
        sizes = aval_of(moved).shape
        rows = reshape(moved, (-1, sizes[-1]))
        vectors = [squeeze(cut(rows, 0, k, k + 1), 0) for k in range(aval_of(rows).shape[0])]
        done = [as_array(function(v, pair, d, kwargs)) for v in vectors]
        out = moveaxis(reshape(astype(stack(done), aval_of(x).dtype), sizes), -1, d) if done else out
    return out
