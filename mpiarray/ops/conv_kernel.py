"""The convolution of blocks: a product of matrices, made of windows copied side by side, or sums of shifted blocks.

Ways, chosen by shape (measured against each other):

by points    a column for each place of the result, a row for each element of a window: mostly
by windows   a place of the result at a time, where windows are larger than the result, as in the slopes of kernels
rows         with features last in memory (NHWC): windows as they lie, times kernels; the result has features last too
shifted      one multiplication and addition per element of the window, where a product would have next to no rows or
             columns: depthwise convolutions, filters of one feature

Copies of windows are made for a part of the result at a time, so that they stay near the cache and their memory is
bounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from mpiarray.ops.windows import windows_of

_COLUMNS = 1 << 21  # elements of the largest matrix of windows that is made at a time
_SHIFTED = 4  # features in times features out of a group up to which blocks are shifted
_TILE = 1 << 16  # elements of a result that is summed at a time
_NARROW = 192  # places of a result below which several examples make one matrix


def convolve(
    x: np.ndarray, w: np.ndarray, strides: Sequence[int], dilations: Sequence[int], groups: int, batch_groups: int
) -> np.ndarray:
    """(N, C, space) and (O, I, window) -> (N, O, space)."""
    n = len(x) // batch_groups
    o, i, *sizes = w.shape
    k, parts = len(sizes), groups * batch_groups
    view = windows_of(x, (1, 1, *sizes), (1, 1, *strides), (1, 1, *dilations))
    view = np.squeeze(view, (2 + k, 3 + k))
    space = view.shape[2 : 2 + k]
    features_last = i > 1 and x.strides[1] == x.itemsize and not x.flags.c_contiguous
    out = _empty((n, o, *space), np.result_type(x, w), features_last)
    if not out.size:
        return out
    if not view.size:
        out[...] = 0
        return out
    if i * (o // parts) <= _SHIFTED and batch_groups == 1:
        _shifted(view, w, out, groups)
        return out
    kernels = w.reshape(parts, o // parts, i, *sizes)
    for part in range(parts):
        if batch_groups > 1:
            mine = view[part * n : (part + 1) * n]
        else:
            mine = view[:, part * i : (part + 1) * i]
        target = out[:, part * (o // parts) : (part + 1) * (o // parts)]
        if math.prod(sizes) > math.prod(space):
            _by_windows(mine, kernels[part].reshape(o // parts, -1), target)
        elif features_last:
            _rows(mine, kernels[part], target)
        else:
            _product(mine, kernels[part].reshape(o // parts, -1), target)
    return out


def _empty(shape: tuple[int, ...], dtype: np.dtype, features_last: bool) -> np.ndarray:
    n, o, *space = shape
    return np.moveaxis(np.empty((n, *space, o), dtype), -1, 1) if features_last else np.empty(shape, dtype)


def _rows(view: np.ndarray, kernels: np.ndarray, out: np.ndarray) -> None:
    """(n, i, space, window) times (o, i, window) to (n, o, space), where features are last in memory: nothing is turned."""
    k = out.ndim - 2
    order = (0, *range(2, 2 + 2 * k), 1)  # n, space, window, i
    right = np.ascontiguousarray(np.moveaxis(kernels, 1, -1)).reshape(len(kernels), -1).T
    room = np.empty(0, view.dtype)
    for place in _parts(out.shape, math.prod(out.shape[2:]), len(right)):
        some, target = view[place].transpose(order), np.moveaxis(out[place], 1, -1)
        if not some.flags.c_contiguous:
            if room.size < some.size:
                room = np.empty(some.size, view.dtype)
            columns = room[: some.size].reshape(some.shape)
            np.copyto(columns, some)
            some = columns
        left = some.reshape(-1, len(right))
        if target.flags.c_contiguous:
            np.matmul(left, right, out=target.reshape(-1, len(kernels)))
        else:
            target[...] = (left @ right).reshape(target.shape)


def _by_windows(view: np.ndarray, kernels: np.ndarray, out: np.ndarray) -> None:
    """(n, i, space, window) times (o, i window) to (n, o, space), for few places and large windows."""
    n, k = len(view), out.ndim - 2
    turned = view.strides[0] == view.itemsize and n > 1  # examples lie side by side in memory
    order = (*range(1, 2 + k), 0) if turned else tuple(range(2 + k))  # i, window, n or n, i, window
    rows = kernels.shape[1]
    step = max(1, _COLUMNS // rows)
    room = np.empty(min(step, n) * rows, view.dtype)
    for place in np.ndindex(*out.shape[2:]):
        for start in range(0, n, step):
            some = slice(start, start + step)
            columns = view[(some, slice(None), *place)].transpose(order)
            if not columns.flags.c_contiguous:
                copy = room[: columns.size].reshape(columns.shape)
                np.copyto(copy, columns)
                columns = copy
            found = (kernels @ columns.reshape(rows, -1)).T if turned else columns.reshape(-1, rows) @ kernels.T
            out[(some, slice(None), *place)] = found


def _product(view: np.ndarray, kernels: np.ndarray, out: np.ndarray) -> None:
    """(n, i, space, window) times (o, i window) to (n, o, space)."""
    k = out.ndim - 2
    space, window = range(2, 2 + k), range(2 + k, 2 + 2 * k)
    points = math.prod(out.shape[2:])
    room = np.empty(0, view.dtype)
    for place in _parts(out.shape, points, kernels.shape[1]):
        some, target = view[place], out[place]
        n, shape = len(some), target.shape[2:]
        joined = points < _NARROW and n > 1
        columns = some.transpose((1, *window, 0, *space) if joined else (0, 1, *window, *space))
        if not columns.flags.c_contiguous:
            if room.size < some.size:
                room = np.empty(some.size, view.dtype)
            np.copyto(room[: some.size].reshape(columns.shape), columns)
            columns = room[: some.size]
        if joined:
            found = kernels @ columns.reshape(kernels.shape[1], -1)
            target[...] = np.swapaxes(found.reshape(len(kernels), n, *shape), 0, 1)
        else:
            columns = columns.reshape(n, kernels.shape[1], -1)
            if target.flags.c_contiguous:
                np.matmul(kernels, columns, out=target.reshape(n, len(kernels), -1))
            else:
                target[...] = (kernels @ columns).reshape(target.shape)


def _parts(shape: tuple[int, ...], points: int, rows: int) -> Iterator[tuple[slice, ...]]:
    """Parts of a result (examples, and places along its first spatial dim) whose windows do not exceed the bound."""
    n, _, *space = shape
    whole = rows * points
    step, cut = max(1, _COLUMNS // whole), space[0] if space else 1
    if whole > _COLUMNS and space:
        cut = max(1, _COLUMNS // (whole // space[0]))
    for start in range(0, n, step):
        some = slice(start, start + step)
        if not space:
            yield (some,)
        for first in range(0, space[0] if space else 0, cut):
            yield some, slice(None), slice(first, first + cut)


def _shifted(view: np.ndarray, w: np.ndarray, out: np.ndarray, groups: int) -> None:
    """Sums of shifted blocks, times one element of the kernels each."""
    n, o, *space = out.shape
    i, sizes = w.shape[1], w.shape[2:]
    k = len(space)
    deep = view.reshape(n, groups, i, *view.shape[2:]) if i == 1 or groups == 1 else None
    if deep is None:
        deep = np.lib.stride_tricks.as_strided(
            view, (n, groups, i, *view.shape[2:]), (view.strides[0], i * view.strides[1], *view.strides[1:])
        )
    result, factors = out.reshape(n, groups, o // groups, *space), w.reshape(groups, o // groups, i, *sizes)
    tail = (1,) * k
    one = math.prod(space)
    examples, features = max(1, _TILE // (groups * one)), max(1, min(groups, _TILE // one))
    cut = max(1, _TILE // max(1, one // space[0])) if space and one > _TILE else (space[0] if space else 1)
    for start, group, first in itertools.product(
        range(0, n, examples), range(0, groups, features), range(0, space[0] if space else 1, cut)
    ):
        some, mine = slice(start, start + examples), slice(group, group + features)
        rows = (slice(first, first + cut),) if space else ()
        for feature in range(o // groups):
            target = result[(some, mine, feature, *rows)]
            total = np.zeros(target.shape, out.dtype)
            term = np.empty(target.shape, out.dtype)
            for source in range(i):
                taken = deep[(some, mine, source, *rows)]
                for tap in np.ndindex(*sizes):
                    factor = factors[(mine, feature, source, *tap)].reshape(-1, *tail)
                    np.multiply(taken[(..., *tap)], factor, out=term)
                    total += term
            target[...] = total
