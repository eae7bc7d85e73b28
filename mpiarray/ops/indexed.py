"""numpy at index arrays: the block algorithms of gather and scatter.

numpy's fancy assignment does not add up duplicates, and `ufunc.at` is slow for rows, so writes are brought to one flat
index each: sorted by place, runs of equal places are reduced at once, and every place is written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.types import dtypes

_UFUNC = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def take(x: Any, indices: Sequence[Any], dims: Sequence[int], batch_dims: int, mode: str, fill: Any) -> np.ndarray:
    """Read at index arrays of one shape S: an array of shape S + the remaining dims.

    `fill` stands where an index is outside and `mode='fill'`; otherwise such indices go to the edge.
    """
    x = np.asarray(x)
    indices = [np.asarray(i) for i in indices]
    shape = indices[0].shape
    sizes = [x.shape[d] for d in dims]
    rest = [n for d, n in enumerate(x.shape) if d >= batch_dims and d not in dims]
    if 0 in sizes:
        return np.full((*shape, *rest), fill, x.dtype)
    outside = _outside(indices, sizes) if mode == "fill" else None
    if not batch_dims and len(dims) == 1:
        axis = dims[0]
        out = np.take(x, indices[0], axis=axis, mode="clip")
        if axis:
            out = np.moveaxis(out, range(axis, axis + len(shape)), range(len(shape)))
    else:
        key: list[Any] = [slice(None)] * x.ndim
        key[:batch_dims] = _grid(x.shape[:batch_dims], len(shape))
        for i, d, n in zip(indices, dims, sizes):
            key[d] = np.clip(i, 0, n - 1)
        out = x[tuple(key)]
        first = 0 if batch_dims else _first_index_dim(dims)
        if first:
            out = np.moveaxis(out, range(first, first + len(shape)), range(len(shape)))
    if outside is not None and outside.any():
        if not out.flags.writeable or not out.flags.owndata:
            out = np.array(out)
        out = np.asarray(out)
        out[outside] = fill
    return out


def _outside(indices: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    beyond = [(i < 0) | (i >= n) for i, n in zip(indices, sizes)]
    return beyond[0] if len(beyond) == 1 else np.logical_or.reduce(beyond)


def _grid(sizes: Sequence[int], ndim: int) -> list[np.ndarray]:
    """For each leading dim, its numbers, shaped to broadcast in `ndim` dims."""
    return [np.arange(n).reshape((n,) + (1,) * (ndim - d - 1)) for d, n in enumerate(sizes)]


def _first_index_dim(dims: Sequence[int]) -> int:
    """Where numpy puts the index dims: in place when the indexed dims are neighbours, else first."""
    low, high = min(dims), max(dims)
    return low if high - low + 1 == len(dims) else 0


def put(
    x: Any, updates: Any, indices: Sequence[Any], dims: Sequence[int], batch_dims: int, mode: str, combine: str
) -> np.ndarray:
    """A copy of x with updates of shape S + the remaining dims written at index arrays of shape S."""
    x = np.asarray(x)
    if not batch_dims and all(np.ndim(i) == 0 for i in indices):
        return _put_one(np.array(x, order="C"), updates, indices, dims, mode, combine)
    places, rows = _placed_rows(x, np.asarray(updates), indices, dims, batch_dims, mode)
    return put_rows(x, rows, places, dims, batch_dims, combine)


def overwrite(
    x: np.ndarray, updates: Any, indices: Sequence[Any], dims: Sequence[int], batch_dims: int, mode: str, combine: str
) -> np.ndarray:
    """`put` into x itself, which must be C-contiguous."""
    updates = np.asarray(updates)
    if np.may_share_memory(x, updates):
        updates = updates.copy()
    if not batch_dims and all(np.ndim(i) == 0 for i in indices):
        return _put_one(x, updates, indices, dims, mode, combine)
    places, rows = _placed_rows(x, updates, indices, dims, batch_dims, mode)
    if _heads_order(x.ndim, dims, batch_dims) == list(range(x.ndim)):
        if places.size and x.size:
            width = _row_size(x, dims, batch_dims)
            _write(x.reshape(x.size // width, width), places, rows, combine)
    else:
        np.copyto(x, put_rows(x, rows, places, dims, batch_dims, combine))
    return x


def _put_one(
    x: np.ndarray, update: Any, indices: Sequence[Any], dims: Sequence[int], mode: str, combine: str
) -> np.ndarray:
    """Write at one place, in x itself."""
    key: list[Any] = [slice(None)] * x.ndim
    for d, i in zip(dims, indices):
        at, last = int(i), x.shape[d] - 1
        if not 0 <= at <= last:
            if mode != "clip" or last < 0:
                return x
            at = max(0, min(at, last))
        key[d] = at
    place = tuple(key)
    x[place] = update if combine == "set" else _combined(_UFUNC[combine], x[place], np.asarray(update))
    return x


def _placed_rows(
    x: np.ndarray, updates: np.ndarray, indices: Sequence[Any], dims: Sequence[int], batch_dims: int, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """Flat places, and the row to write at each."""
    heads = (*x.shape[:batch_dims], *(x.shape[d] for d in dims))
    places, keep = flat_places(indices, heads, batch_dims, mode)
    count = math.prod(np.shape(indices[0]))
    rows = (
        updates.reshape(count, updates.size // count) if count else updates.reshape(0, _row_size(x, dims, batch_dims))
    )
    return places, rows if keep is None else rows[keep]


def put_rows(
    x: np.ndarray, rows: np.ndarray, places: np.ndarray, dims: Sequence[int], batch_dims: int, combine: str
) -> np.ndarray:
    """A copy of x with rows (a row per place, the remaining dims flat) written at flat places, in order."""
    order = _heads_order(x.ndim, dims, batch_dims)
    out = np.array(x.transpose(order), order="C")
    if places.size and out.size:
        width = _row_size(x, dims, batch_dims)
        _write(out.reshape(out.size // width, width), places, rows, combine)
    return out.transpose(np.argsort(order))


def heads_first(x: np.ndarray, dims: Sequence[int], batch_dims: int) -> np.ndarray:
    """x as a table: a row for each place of its batch and indexed dims."""
    width = _row_size(x, dims, batch_dims)
    moved = x.transpose(_heads_order(x.ndim, dims, batch_dims))
    return moved.reshape(math.prod(moved.shape[: batch_dims + len(dims)]), width)


def _heads_order(ndim: int, dims: Sequence[int], batch_dims: int) -> list[int]:
    rest = [d for d in range(batch_dims, ndim) if d not in dims]
    return [*range(batch_dims), *dims, *rest]


def _row_size(x: np.ndarray, dims: Sequence[int], batch_dims: int) -> int:
    return math.prod(n for d, n in enumerate(x.shape) if d >= batch_dims and d not in dims)


def flat_places(
    indices: Sequence[Any], sizes: Sequence[int], batch_dims: int, mode: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """The flat number, among the batch and indexed dims of `sizes`, of each place in row-major order of S, and which
    of them are inside (None: all)."""
    indices = [np.asarray(i) for i in indices]
    shape = indices[0].shape
    bounds = sizes[batch_dims:]
    if 0 in bounds:
        return np.zeros(0, np.int64), np.zeros(math.prod(shape), bool)
    keep = None
    if mode != "clip":
        outside = _outside(indices, bounds)
        if outside.any():
            keep = ~outside.reshape(-1)
    places = np.zeros((1,) * len(shape), np.int64)
    for part, n in zip([*_grid(sizes[:batch_dims], len(shape)), *indices], sizes):
        places = places * n + np.clip(part, 0, n - 1).astype(np.int64)
    places = np.broadcast_to(places, shape).reshape(-1)
    return (places, None) if keep is None else (places[keep], keep)


def _write(out: np.ndarray, places: np.ndarray, rows: np.ndarray, combine: str) -> None:
    """Combine rows into out[places], in order."""
    if not places.size:
        return
    if combine == "set":
        out[places] = rows
        return
    ufunc = _UFUNC[combine]
    if len(places) == 1:
        out[places[0]] = _combined(ufunc, out[places[0]], rows[0])
    elif (
        combine == "add" and out.shape[1] == 1 and out.dtype in (np.float32, np.float64) and 4 * len(places) > len(out)
    ):
        out[:, 0] += np.bincount(places, rows[:, 0], len(out)).astype(out.dtype)
    elif out.shape[1] == 1 and out.dtype.kind in "iuf" and out.dtype.itemsize >= 4:
        ufunc.at(out[:, 0], places, rows[:, 0])
    else:
        _write_rows(out, places, rows, ufunc)


_ROUNDS = 16


def _write_rows(out: np.ndarray, places: np.ndarray, rows: np.ndarray, ufunc: np.ufunc) -> None:
    """Combine rows that may meet: sorted by place, the first of each place, then the second, ...; many at once."""
    order = np.argsort(places, kind="stable")
    places = places[order]
    starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
    counts = np.diff(np.r_[starts, len(places)])
    if counts.max() <= _ROUNDS and not _is_small_float(out.dtype):
        for k in range(counts.max()):
            some = starts[counts > k] + k
            out[places[some]] = ufunc(out[places[some]], rows[order[some]])
        return
    rows = rows[order]
    if _is_small_float(out.dtype):
        rows = rows.astype(np.float32)
    reduced = ufunc.reduceat(rows, starts, axis=0, dtype=rows.dtype)
    out[places[starts]] = _combined(ufunc, out[places[starts]], reduced)


def _is_small_float(dtype: Any) -> bool:
    return dtypes.is_float(dtype) and dtype.itemsize < 4


def _combined(ufunc: np.ufunc, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    if _is_small_float(old.dtype):
        return ufunc(old.astype(np.float32), new.astype(np.float32)).astype(old.dtype)
    return ufunc(old, new)


def last_writers(indices: Sequence[Any], sizes: Sequence[int], batch_dims: int, mode: str) -> np.ndarray:
    """A bool array of shape S: is this the last write to its place?  `sizes` are those of batch and indexed dims."""
    shape = np.shape(indices[0])
    places, keep = flat_places(indices, sizes, batch_dims, mode)
    numbers = np.arange(math.prod(shape)) if keep is None else np.flatnonzero(keep)
    last = np.zeros(math.prod(shape), bool)
    # the first of each place in reverse order is the last one
    _, first = np.unique(places[::-1], return_index=True)
    last[numbers[::-1][first]] = True
    return last.reshape(shape)


def other_factors(
    x: Any, updates: Any, indices: Sequence[Any], dims: Sequence[int], batch_dims: int, mode: str
) -> np.ndarray:
    """For each update, the product of the operand's element and of all other updates at its place; 0 if dropped."""
    x, updates = np.asarray(x), np.asarray(updates)
    heads = (*x.shape[:batch_dims], *(x.shape[d] for d in dims))
    flat = heads_first(x, dims, batch_dims)
    places, keep = flat_places(indices, heads, batch_dims, mode)
    rows = updates.reshape(-1, flat.shape[1]) if updates.size else np.zeros((0, 0), updates.dtype)
    out = np.zeros(rows.shape, updates.dtype)
    numbers = np.arange(len(rows)) if keep is None else np.flatnonzero(keep)
    order = np.argsort(places, kind="stable")
    places, numbers = places[order], numbers[order]
    starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]]) if places.size else np.zeros(0, int)
    for start, stop in zip(starts, [*starts[1:], len(places)]):
        group = numbers[start:stop]
        factors = rows[group]
        before = np.cumprod(np.concatenate([flat[places[start]][None], factors[:-1]]), axis=0, dtype=out.dtype)
        after = np.cumprod(np.concatenate([np.ones_like(factors[:1]), factors[:0:-1]]), axis=0, dtype=out.dtype)[::-1]
        out[group] = before * after
    return out.reshape(updates.shape)
