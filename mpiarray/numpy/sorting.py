"""Sorting, and positions in sorted order.

The dim that is sorted must not be sharded over Explicit axes (ShardingTypeError); other dims keep their entries.
NaN comes last; equal elements keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.arithmetic import subtract
from mpiarray.numpy.index_reads import read
from mpiarray.numpy.manipulation import canonical_axis, one, ravel
from mpiarray.numpy.promotion import cast, operands, promote_dtypes
from mpiarray.ops import searching
from mpiarray.ops import sorting as ops
from mpiarray.ops.common import const_like
from mpiarray.ops.shape import rev
from mpiarray.types import dtypes

__all__ = ["argpartition", "argsort", "lexsort", "partition", "searchsorted", "sort", "sort_complex"]


def _along(name: str, a: Any, axis: int | None) -> tuple[Any, int]:
    """The array and its dim to sort; None: the flattened array."""
    x = one(name, a)
    if axis is None:
        return ravel(x), 0
    return x, canonical_axis(axis, aval_of(x).ndim, name)


def _no_numpy_options(name: str, kind: Any, order: Any) -> None:
    if kind is not None:
        raise TypeError(
            f"'kind' argument to {name} is not supported. Use stable=True or stable=False to specify sort stability."
        )
    if order is not None:
        raise TypeError(f"'order' argument to {name} is not supported.")


def sort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Any:
    """Sorted along `axis` (None: flattened)."""
    _no_numpy_options("sort", kind, order)
    x, dim = _along("sort", a, axis)
    (out,) = ops.sort(x, dimension=dim, is_stable=stable, num_keys=1)
    return rev(out, dimensions=(dim,)) if descending else out


def _order(x: Any, dim: int, descending: bool = False) -> Any:
    if not descending:
        found = ops.sort_order(x, dimension=dim)
    else:  # backwards twice, so that equal elements keep their order
        found = rev(ops.sort_order(rev(x, dimensions=(dim,)), dimension=dim), dimensions=(dim,))
        found = subtract(const_like(found, aval_of(x).shape[dim] - 1), found)
    return cast(found, dtypes.default_dtype(int))


def argsort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Any:
    """The positions that sort along `axis` (None: the flattened array), as int32."""
    _no_numpy_options("argsort", kind, order)
    x, dim = _along("argsort", a, axis)
    return _order(x, dim, descending)


def lexsort(keys: Any, axis: int = -1) -> Any:
    """The positions that sort by several keys, the last one most important.

    keys: a sequence of arrays of one shape, or an array of them along its first dim.
    """
    if isinstance(keys, (Value, np.ndarray)):
        items = [read(one("lexsort", keys), k) for k in range(aval_of(keys).shape[0])]
    else:
        items = [one("lexsort", k) for k in keys]
    if not items:
        raise TypeError("need sequence of keys with len > 0 in lexsort")
    if len({aval_of(k).shape for k in items}) > 1:
        raise ValueError(f"all keys need to be the same shape, got {', '.join(aval_of(k).str_short() for k in items)}")
    if not aval_of(items[0]).ndim:
        return one("lexsort", np.zeros((), dtypes.default_dtype(int)))
    dim = canonical_axis(axis, aval_of(items[0]).ndim, "lexsort")
    return cast(ops.sort_order(*items[::-1], dimension=dim), dtypes.default_dtype(int))


def _kth(name: str, x: Any, kth: int, dim: int) -> None:
    if dtypes.is_complex(aval_of(x).dtype):
        raise NotImplementedError(f"jnp.{name} for complex dtype is not implemented: got {aval_of(x).str_short()}")
    canonical_axis(kth, aval_of(x).shape[dim], f"{name}: kth={kth} along axis {dim} of {aval_of(x).str_short()}")


def partition(a: Any, kth: int, axis: int = -1) -> Any:
    """With the element `kth` of the sorted order in its place, smaller ones before and larger ones behind it."""
    x, dim = _along("partition", a, axis)
    _kth("partition", x, kth, dim)
    return sort(x, dim)


def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """The positions that partition along `axis`, as int32."""
    x, dim = _along("argpartition", a, axis)
    _kth("argpartition", x, kth, dim)
    return _order(x, dim)


def sort_complex(a: Any) -> Any:
    """Sorted along the last dim, as complex numbers: by real, then by imaginary part."""
    x = one("sort_complex", a)
    wide = dtypes.complex_dtype(dtypes.to_inexact(aval_of(x).dtype))
    return sort(cast(x, wide))


_METHODS = ("compare_all", "scan", "scan_unrolled", "sort")


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Any:
    """Where elements of `v` go in the sorted array `a` so that it stays sorted, as int32; `v` keeps its sharding.

    side: before ("left") or behind ("right") equal elements.  sorter: positions that sort `a`.  `method` is for
    JAX's compilers and has no effect.
    """
    if sorter is None:
        a, v = operands("searchsorted", a, v)
    else:
        a, v, sorter = operands("searchsorted", a, v, sorter)
    if side not in ("left", "right"):
        raise ValueError(f"invalid argument {side=}, expected 'left' or 'right'")
    if method not in _METHODS:
        raise ValueError(f"invalid argument {method=}, expected one of {list(_METHODS)}")
    if aval_of(a).ndim != 1:
        raise ValueError(f"a should be 1-dimensional, got {aval_of(a).str_short()} in searchsorted")
    a, v = promote_dtypes(a, v)
    if sorter is not None:
        a = read(one("searchsorted", a), sorter)
    dtype = np.dtype(np.int32 if aval_of(a).shape[0] < 2**31 else np.int64)
    return searching.searchsorted(a, v, side=side, dtype=dtype, batch_dims=0)


def order_by(keys: Sequence[Any], dim: int) -> Any:
    """Positions that sort by keys, the first one most important."""
    return ops.sort_order(*keys, dimension=dim)
