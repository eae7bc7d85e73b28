"""Positions of extremes: argmax, argmin, and those that skip NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.numpy.choices import where_op
from mpiarray.numpy.comparison import isnan
from mpiarray.numpy.manipulation import canonical_axis, ravel
from mpiarray.numpy.promotion import operands
from mpiarray.numpy.reductions import all, kept, masked, no_out
from mpiarray.ops import extremes, reductions
from mpiarray.ops.bits import not_
from mpiarray.ops.linear import reshape
from mpiarray.types import dtypes

__all__ = ["argmax", "argmin", "nanargmax", "nanargmin"]

_OPS = {"argmax": extremes.argmax, "argmin": extremes.argmin}


def _position(name: str, x: Any, axis: Any, out: Any, keepdims: bool | None) -> Any:
    no_out(name, out)
    (x,) = operands(name, x)
    aval = aval_of(x)
    if dtypes.is_complex(aval.dtype):
        raise TypeError(
            f"{name} does not accept dtype {aval.dtype}: complex numbers have no order, got {aval.str_short()}"
        )
    index = dtypes.default_dtype(int)
    if axis is None:
        found = _OPS[name](ravel(x), axes=(0,), index_dtype=index)
        return reshape(found, new_sizes=(1,) * aval.ndim, dimensions=None, sharding=None) if keepdims else found
    dim = canonical_axis(axis, aval.ndim, name)
    return kept(_OPS[name](x, axes=(dim,), index_dtype=index), (dim,), bool(keepdims))


def argmax(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
    """The position of the largest element, the first of equal ones; of the first NaN if there is one.

    With `axis=None` it is a position in the flattened array, whose sharding rule is that of `reshape`.
    Raises ValueError for nothing to choose from, TypeError for complex numbers.
    """
    return _position("argmax", a, axis, out, keepdims)


def argmin(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
    """The position of the smallest element, the first of equal ones; of the first NaN if there is one.

    With `axis=None` it is a position in the flattened array, whose sharding rule is that of `reshape`.
    Raises ValueError for nothing to choose from, TypeError for complex numbers.
    """
    return _position("argmin", a, axis, out, keepdims)


def _without_nan(name: str, x: Any, axis: Any, out: Any, keepdims: bool | None) -> Any:
    (x,) = operands(f"nan{name}", x)
    aval = aval_of(x)
    if not dtypes.is_inexact(aval.dtype):
        return _position(name, x, axis, out, keepdims)
    lost = isnan(x)
    worst = reductions.lowest(aval.dtype) if name == "argmax" else reductions.highest(aval.dtype)
    found = _position(name, masked(x, not_(lost), worst), axis, out, keepdims)
    return where_op(all(lost, axis, keepdims=bool(keepdims)), literal(np.int64(-1), found.aval.dtype), found)


def nanargmax(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
    """As `argmax`, without NaN; -1 where all elements are NaN."""
    return _without_nan("argmax", a, axis, out, keepdims)


def nanargmin(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
    """As `argmin`, without NaN; -1 where all elements are NaN."""
    return _without_nan("argmin", a, axis, out, keepdims)
