"""`lax.map` and `lax.associative_scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.higher_order.control_flow.bodies import values_of
from mpiarray.higher_order.control_flow.scan import scan
from mpiarray.higher_order.vmap import vmap
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import concatenate, flip
from mpiarray.ops.common import const_like
from mpiarray.ops.linear import add_any, reshape
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes, tree


def map(f: Callable[..., Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """`f(x)` for each slice of `xs` along its first dim, one after another, and the results stacked.

    xs: a tree of arrays with one first dim, which must not be sharded.  batch_size: as many slices at once, by vmap.
    """
    if batch_size is None:
        return scan(lambda _, x: ((), f(x)), (), xs)[1]
    if batch_size < 1:
        raise ValueError(f"lax.map: batch_size must be positive, got {batch_size}")
    leaves, structure = values_of("map", "xs", xs)
    for x in leaves:
        if not aval_of(x).ndim:
            raise ValueError(f"lax.map got value with no leading axis to scan over: {aval_of(x).str_short()}")
    sizes = {aval_of(x).shape[0] for x in leaves}
    if len(sizes) != 1:
        raise ValueError(
            f"lax.map got values with different leading axis sizes: {', '.join(str(n) for n in sorted(sizes))}."
        )
    (count,) = sizes
    many, rest = divmod(count, batch_size)
    done = []
    if many:
        batches = [_groups(_rows(x, 0, many * batch_size), many, batch_size) for x in leaves]
        found = scan(lambda _, x: ((), vmap(f)(x)), (), tree.unflatten(structure, batches))[1]
        done.append(tree.map(lambda y: _groups(y, many * batch_size), found))
    if rest or not done:
        done.append(vmap(f)(tree.unflatten(structure, [_rows(x, many * batch_size, count) for x in leaves])))
    return done[0] if len(done) == 1 else tree.map(lambda a, b: concatenate([a, b]), *done)


def _rows(x: Any, start: int, stop: int) -> Any:
    shape = aval_of(x).shape
    return slice_(x, start_indices=(start, *(0 for _ in shape[1:])), limit_indices=(stop, *shape[1:]), strides=None)


def _groups(x: Any, *sizes: int) -> Any:
    """The first dim split into two of these sizes, or the first two joined into one."""
    shape = aval_of(x).shape
    return reshape(x, new_sizes=(*sizes, *shape[3 - len(sizes) :]), dimensions=None, sharding=None)


def associative_scan(fn: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """All prefixes of `elems` along `axis`, combined by an associative function, in about 2 log2(n) combining steps.

    fn: `fn(a, b)` for trees like `elems` in which slices along `axis` stand side by side, combining each pair.
    elems: a tree of arrays of one size n along `axis`, which must not be sharded.  reverse: suffixes, from the end.

    Work: about 2 n combinations (Blelloch, "Prefix sums and their applications", 1990).
    """
    if not callable(fn):
        raise TypeError(f"lax.associative_scan: fn argument should be callable, got {fn!r}")
    leaves, structure = values_of("associative_scan", "elems", elems)
    if not leaves:
        return elems
    axes = [_dim(x, axis) for x in leaves]
    sizes = {aval_of(x).shape[d] for x, d in zip(leaves, axes)}
    if len(sizes) != 1:
        raise ValueError(
            f"Array inputs to associative_scan must have the same first dimension along axis {axis}. (saw: {[aval_of(x).shape for x in leaves]})"
        )
    for x, d in zip(leaves, axes):
        if aval_of(x).dims[d]:
            raise ShardingTypeError(
                f"associative_scan: the scanned dimension {d} must be unsharded, got {aval_of(x).short()}. Use `jax.reshard` first, or scan the blocks in "
                "`jax.shard_map`."
            )
    if reverse:
        leaves = [flip(x, d) for x, d in zip(leaves, axes)]

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        found, out_structure = values_of(
            "associative_scan", "result of fn", fn(tree.unflatten(structure, a), tree.unflatten(structure, b))
        )
        if out_structure != structure:
            raise TypeError(
                f"associative_scan: fn must return a tree like its arguments, {structure}, got {out_structure}"
            )
        return found

    found = _prefixes(combine, leaves, axes)
    if reverse:
        found = [flip(x, d) for x, d in zip(found, axes)]
    return tree.unflatten(structure, [as_array(x) for x in found])


def _dim(x: Any, axis: int) -> int:
    ndim = aval_of(x).ndim
    if not -ndim <= axis < ndim:
        raise ValueError(f"associative_scan: axis {axis} is out of bounds for {aval_of(x).str_short()}")
    return axis % ndim


def _prefixes(combine: Callable[..., list[Any]], xs: list[Any], axes: Sequence[int]) -> list[Any]:
    """Prefixes of pairs give every second result; the others are these combined with one element more."""
    n = aval_of(xs[0]).shape[axes[0]]
    if n < 2:
        return xs
    pairs = combine(
        [_every_second(x, d, 0, n - n % 2) for x, d in zip(xs, axes)],
        [_every_second(x, d, 1, n) for x, d in zip(xs, axes)],
    )
    odd = _prefixes(combine, pairs, axes)
    before = [_every(x, d, 0, aval_of(x).shape[d] - (n % 2 == 0)) for x, d in zip(odd, axes)]
    even = combine(before, [_every_second(x, d, 2, n) for x, d in zip(xs, axes)]) if n > 2 else []
    first = [_every(x, d, 0, 1) for x, d in zip(xs, axes)]
    even = [concatenate([f, e], axis=d) for f, e, d in zip(first, even, axes)] if even else first
    return [_interleaved(e, o, d, n) for e, o, d in zip(even, odd, axes)]


def _every_second(x: Any, d: int, start: int, stop: int) -> Any:
    return _every(x, d, start, stop, 2)


def _every(x: Any, d: int, start: int, stop: int, step: int = 1) -> Any:
    shape = aval_of(x).shape
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[d], limits[d], strides[d] = start, max(stop, start), step
    return slice_(x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides))


def _interleaved(even: Any, odd: Any, d: int, n: int) -> Any:
    """even[0], odd[0], even[1], ... along a dim: both spread with gaps between, and added."""
    dtype = aval_of(even).dtype
    if dtypes.is_bool(dtype) or dtypes.is_key(dtype):
        return _woven(even, odd, d, n)
    return add_any(_spread(even, d, 0, n), _spread(odd, d, 1, n))


def _spread(x: Any, d: int, start: int, n: int) -> Any:
    size = aval_of(x).shape[d]
    config = tuple((start, n - start - (2 * size - 1), 1) if k == d else (0, 0, 0) for k in range(aval_of(x).ndim))
    return pad(x, const_like(x, 0), padding_config=config)


def _woven(even: Any, odd: Any, d: int, n: int) -> Any:
    parts = []
    for k in range(n):
        parts.append(_every(odd if k % 2 else even, d, k // 2, k // 2 + 1))
    return concatenate(parts, axis=d)
