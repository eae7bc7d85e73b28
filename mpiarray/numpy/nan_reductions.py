"""Reductions that skip NaN.  Of integers and bools they are the plain ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpiarray.core.value import aval_of, literal
from mpiarray.numpy import reductions as plain
from mpiarray.numpy.choices import where_op
from mpiarray.numpy.comparison import isnan, logical_and
from mpiarray.numpy.promotion import operands
from mpiarray.ops import reductions
from mpiarray.ops.bits import not_
from mpiarray.types import dtypes

__all__ = ["nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar"]


def _skipping(
    name: str,
    x: Any,
    plain_function: Callable[..., Any],
    neutral: Callable[[Any], Any],
    axis: Any,
    keepdims: bool,
    **options: Any,
) -> Any:
    (x,) = operands(name, x)
    dtype = aval_of(x).dtype
    if not dtypes.is_inexact(dtype):
        return plain_function(x, axis, keepdims=keepdims, **options)
    lost = isnan(x)
    out = plain_function(plain.masked(x, not_(lost), neutral(dtype)), axis, keepdims=keepdims, **options)
    if name in ("nansum", "nanprod"):
        return out
    return where_op(plain.all(lost, axis, keepdims=keepdims), literal(math.nan, out.aval.dtype), out)


def nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """Sum of what is not NaN; 0 where nothing is left."""
    plain.no_out("nansum", out)
    return _skipping("nansum", a, plain.sum, lambda d: 0, axis, keepdims, dtype=dtype, initial=initial, where=where)


def nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """Product of what is not NaN; 1 where nothing is left."""
    plain.no_out("nanprod", out)
    return _skipping("nanprod", a, plain.prod, lambda d: 1, axis, keepdims, dtype=dtype, initial=initial, where=where)


def nanmax(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest element that is not NaN; NaN where all are."""
    plain.no_out("nanmax", out)
    return _skipping("nanmax", a, plain.max, reductions.lowest, axis, keepdims, initial=initial, where=where)


def nanmin(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest element that is not NaN; NaN where all are."""
    plain.no_out("nanmin", out)
    return _skipping("nanmin", a, plain.min, reductions.highest, axis, keepdims, initial=initial, where=where)


def _counted(name: str, x: Any, where: Any) -> tuple[Any, Any]:
    """The operand, and the mask of what counts."""
    (x,) = operands(name, x)
    if not dtypes.is_inexact(aval_of(x).dtype):
        return x, where
    valid = not_(isnan(x))
    return x, valid if where is None else logical_and(valid, where)


def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, where: Any = None
) -> Any:
    """Mean of what is not NaN; NaN where all are."""
    plain.no_out("nanmean", out)
    x, valid = _counted("nanmean", a, where)
    return plain.mean(x, axis, dtype, keepdims=keepdims, where=valid)


def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """Variance of what is not NaN; NaN where no more than `ddof` elements are left."""
    plain.no_out("nanvar", out)
    x, valid = _counted("nanvar", a, where)
    return plain.var(x, axis, dtype, None, ddof, keepdims, where=valid, mean=mean, correction=correction)


def nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """Standard deviation of what is not NaN."""
    plain.no_out("nanstd", out)
    x, valid = _counted("nanstd", a, where)
    return plain.std(x, axis, dtype, None, ddof, keepdims, where=valid, mean=mean, correction=correction)
