"""Norms of vectors and matrices, as sums, maxima and singular values; sharded dims of vectors are reduced where
they are.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy import manipulation, reductions
from mpiarray.numpy.arithmetic import absolute, multiply, power, sqrt
from mpiarray.numpy.complex_numbers import conjugate, real
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast, operands, promote_inexact
from mpiarray.ops.spectral import svdvals
from mpiarray.types import dtypes

__all__ = ["matrix_norm", "norm", "vector_norm"]


def norm(x: Any, ord: int | str | None = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of vectors along one axis, or of matrices along two; of all elements when neither is given.

    ord: for vectors None (2), inf, -inf, 0 (how many are not 0) or a number; for matrices None or "fro", "nuc", inf,
    -inf, 1, -1, 2, -2.  Raises ValueError for others, and for more than two axes.
    """
    (a,) = (as_array(v) for v in promote_inexact(*operands("norm", x)))
    ndim = a.aval.ndim
    if axis is None:
        if ord is None:
            return _kept(_euclidean(a, tuple(range(ndim))), ndim, tuple(range(ndim)), keepdims)
        axes = tuple(range(ndim))
    elif isinstance(axis, tuple):
        axes = manipulation.canonical_axes(axis, ndim, "norm")
    else:
        axes = (manipulation.canonical_axis(operator.index(axis), ndim, "norm"),)
    if len(axes) == 1:
        return _of_vectors(a, axes, ord, keepdims)
    if len(axes) == 2:
        return _of_matrices(a, axes, ord, keepdims)
    raise ValueError(
        f"Improper number of axes for norm: axis={axes}. Pass one axis to compute a vector-norm, or two axes to "
        "compute a matrix-norm."
    )


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: int | str = 2) -> Any:
    """The norm of vectors along the axes (None: all), taken together as one."""
    (a,) = (as_array(v) for v in promote_inexact(*operands("vector_norm", x)))
    return _of_vectors(a, reductions.reduced_axes("vector_norm", axis, a.aval.ndim), ord, keepdims)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: int | str = "fro") -> Any:
    """The norms of stacks of matrices."""
    return norm(x, ord, (-2, -1), keepdims)


def _kept(x: Any, ndim: int, axes: tuple[int, ...], keepdims: bool) -> Any:
    return manipulation.expand_dims(x, axes) if keepdims and axes else x


def _squares(a: Any) -> Any:
    return real(multiply(a, conjugate(a))) if dtypes.is_complex(aval_of(a).dtype) else multiply(a, a)


def _euclidean(a: Any, axes: tuple[int, ...]) -> Any:
    return sqrt(reductions.sum(_squares(a), axis=axes))


def _of_vectors(a: Any, axes: tuple[int, ...], ord: Any, keepdims: bool) -> Any:
    ndim = a.aval.ndim
    if ord is None or ord == 2:
        out = _euclidean(a, axes)
    elif ord == np.inf:
        out = reductions.max(absolute(a), axis=axes, initial=0)
    elif ord == -np.inf:
        out = reductions.min(absolute(a), axis=axes, initial=np.inf)
    elif ord == 0:
        out = cast(reductions.count_nonzero(a, axis=axes), dtypes.real_dtype(a.aval.dtype))
    elif ord == 1:
        out = reductions.sum(absolute(a), axis=axes)
    elif isinstance(ord, str):
        raise ValueError(f"Invalid order '{ord}' for vector norm.")
    else:
        out = power(reductions.sum(power(absolute(a), ord), axis=axes), 1.0 / ord)
    return _kept(out, ndim, axes, keepdims)


def _of_matrices(a: Any, axes: tuple[int, int], ord: Any, keepdims: bool) -> Any:
    rows, columns = axes
    if rows == columns:
        raise ValueError(f"norm: the two axes must differ, got {axes}")
    if ord in (None, "fro"):
        out = _euclidean(a, axes)
    elif ord in ("nuc", 2, -2):
        s = svdvals(manipulation.moveaxis(a, axes, (-2, -1)))
        if ord == "nuc":
            out = reductions.sum(s, axis=-1)
        else:
            out = reductions.max(s, axis=-1, initial=0) if ord == 2 else reductions.min(s, axis=-1, initial=np.inf)
    elif ord in (np.inf, -np.inf, 1, -1):
        summed, left = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = reductions.sum(absolute(a), axis=summed)
        left -= left > summed
        biggest = ord > 0
        out = reductions.max(sums, axis=left, initial=0) if biggest else reductions.min(sums, axis=left, initial=np.inf)
    else:
        raise ValueError(f"Invalid order '{ord}' for matrix norm.")
    return _kept(out, a.aval.ndim, tuple(sorted(axes)), keepdims)
