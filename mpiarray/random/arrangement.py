"""Permutations and choices from given values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of, literal
from mpiarray.numpy.promotion import cast, check_arraylike
from mpiarray.ops import random as ops
from mpiarray.ops.arithmetic import add, log, mul, sub
from mpiarray.ops.cumulative import cumsum
from mpiarray.ops.gather import gather
from mpiarray.ops.linear import reshape, transpose
from mpiarray.ops.searching import searchsorted, top_k
from mpiarray.ops.shape import iota, slice_
from mpiarray.ops.sorting import sort
from mpiarray.random.arguments import item, moved_to, one_key, shape_of
from mpiarray.random.continuous import standard_gumbel
from mpiarray.random.keys import subkeys
from mpiarray.random.uniform import randint, unit
from mpiarray.types import dtypes


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False, *, out_sharding: Any = None) -> Any:
    """`x` in random order along `axis`; for an integer `x`, the numbers below it in random order.

    independent: True orders every line along `axis` by itself.
    Raises ShardingTypeError where `axis` is sharded (reshard first).
    """
    key = one_key("permutation", key)
    check_arraylike("permutation", x)
    aval = aval_of(x)
    if not aval.ndim:
        if not dtypes.is_int(aval.dtype):
            raise TypeError(f"permutation: x must be an integer or at least 1-dimensional, got {aval.str_short()}")
        return moved_to(shuffle(key, counting(int(x)), 0), out_sharding, "permutation")
    axis = _axis("permutation", axis, aval.ndim)
    if independent or aval.ndim == 1:
        return moved_to(shuffle(key, x, axis), out_sharding, "permutation")
    order = shuffle(key, counting(aval.shape[axis]), 0)
    return moved_to(take(x, order, axis), out_sharding, "permutation")


def _axis(name: str, axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"{name}: axis {axis} is out of bounds for array of dimension {ndim}")
    return axis % ndim


def counting(n: int) -> Any:
    """0, 1, ..., n - 1."""
    return iota(dtype=dtypes.canonicalize(int), shape=(max(n, 0),), dimension=0, sharding=None)


def shuffle(key: Any, x: Any, axis: int) -> Any:
    """`x` sorted along `axis` by random 32-bit numbers, often enough for equal numbers not to matter."""
    aval = aval_of(x)
    rounds = math.ceil(3 * math.log(max(1, aval.size)) / math.log(np.iinfo(np.uint32).max))
    for _ in range(rounds):
        key, drawn = subkeys(key, 2)
        order = ops.draw_bits(drawn, aval.shape, 32, None if aval.sharding.mesh.empty else aval.sharding)
        _, x = sort(order, x, dimension=axis, is_stable=True, num_keys=1)
    return x


def choice(
    key: Any,
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str | None = None,
) -> Any:
    """Elements of `a` along `axis` (for an integer `a`, numbers below it): `shape` takes the place of that dim.

    replace: whether an element can be chosen more than once.  p: probabilities of the elements (default: all alike).
    Raises ValueError for more choices than elements without replacement, and for probabilities of another length.
    """
    key = one_key("choice", key)
    check_arraylike("choice", a, *(() if p is None else (p,)))
    shape = shape_of("choice", shape)
    aval = aval_of(a)
    if not aval.ndim and not dtypes.is_int(aval.dtype):
        raise TypeError(f"choice: a must be an integer or at least 1-dimensional, got {aval.str_short()}")
    axis = _axis("choice", axis, max(aval.ndim, 1))
    population = aval.shape[axis] if aval.ndim else int(a)
    count = math.prod(shape)
    if count == 0:
        return _taken(a, _zeros(shape), axis)
    if population <= 0:
        raise ValueError(f"choice: a must be greater than 0 unless no samples are taken, got {population} elements")
    if not replace and count > population:
        raise ValueError(
            f"choice: Cannot take a larger sample (size {count}) than population (size {population}) "
            "when 'replace=False'"
        )
    if p is not None:
        if aval_of(p).shape != (population,):
            raise ValueError(
                "choice: p must be None or a 1D vector with the same size as a.shape[axis]. "
                f"p has shape {aval_of(p).shape} and a.shape[axis] is {population}."
            )
        return _taken(a, _by_probability(key, shape, count, p, replace, mode), axis)
    if replace:
        return _taken(a, randint(key, shape, 0, population), axis)
    source = a if isinstance(a, (Value, np.ndarray)) and aval.ndim else counting(population)
    return _prefix(permutation(key, source, axis), axis, count, shape)


def _zeros(shape: tuple[int, ...]) -> Any:
    return reshape(counting(0), new_sizes=shape, dimensions=None, sharding=None)


def _taken(a: Any, index: Any, axis: int) -> Any:
    return take(a, index, axis) if aval_of(a).ndim else index


def take(a: Any, index: Any, axis: int) -> Any:
    """`a[..., index, ...]` at a dim, for an index array whose numbers are all inside."""
    rows = gather(a, index, dims=(axis,), batch_dims=0, mode="promise_in_bounds", fill_value=None, out_sharding=None)
    if axis == 0:
        return rows
    ndim, count = aval_of(rows).ndim, aval_of(index).ndim
    before, places = range(count, count + axis), range(count)
    return transpose(rows, permutation=(*before, *places, *range(count + axis, ndim)))


def _prefix(x: Any, axis: int, count: int, shape: tuple[int, ...]) -> Any:
    sizes = aval_of(x).shape
    limits = tuple(count if d == axis else n for d, n in enumerate(sizes))
    part = slice_(x, start_indices=(0,) * len(sizes), limit_indices=limits, strides=None)
    new = (*sizes[:axis], *shape, *sizes[axis + 1 :])
    return part if new == aval_of(part).shape else reshape(part, new_sizes=new, dimensions=None, sharding=None)


def _by_probability(key: Any, shape: tuple[int, ...], count: int, p: Any, replace: bool, mode: str | None) -> Any:
    dtype = aval_of(p).dtype
    if not dtypes.is_float(dtype):
        dtype = dtypes.canonicalize(float)
    p = cast(p, dtype)
    index = dtypes.canonicalize(int)
    if not replace:
        score = add(standard_gumbel(key, aval_of(p).shape, dtype, None, mode), log(p))
        _, places = top_k(score, axis=0, k=count)
        return reshape(places, new_sizes=shape, dimensions=None, sharding=None)
    total = cumsum(p, axis=0, reverse=False)
    level = mul(item(total, aval_of(p).size - 1), sub(literal(1, dtype), unit(key, shape, dtype, None)))
    return searchsorted(total, level, side="left", dtype=index, batch_dims=0)
