"""Whether arrays are equal, or close to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy.arithmetic import absolute, add, multiply, subtract
from mpiarray.numpy.comparison import equal, isfinite, isnan, less_equal, logical_and, logical_or
from mpiarray.numpy.creation import asarray
from mpiarray.numpy.promotion import cast, promote_to_inexact
from mpiarray.numpy.reductions import all
from mpiarray.types import dtypes

__all__ = ["allclose", "array_equal", "array_equiv", "isclose"]


def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Whether `abs(a - b) <= atol + rtol * abs(b)`, element by element.  Infinities are close to themselves only."""
    a, b = promote_to_inexact("isclose", a, b)
    real = dtypes.real_dtype(aval_of(a).dtype)
    bound = add(cast(atol, real), multiply(cast(rtol, real), absolute(b)))
    near = less_equal(absolute(subtract(a, b)), bound)
    out = logical_or(equal(a, b), logical_and(logical_and(isfinite(a), isfinite(b)), near))
    return logical_or(out, logical_and(isnan(a), isnan(b))) if equal_nan else out


def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Whether all elements are close; see `isclose`."""
    return all(isclose(a, b, rtol, atol, equal_nan))


def _equal(a: Any, b: Any, equal_nan: bool) -> Any:
    same = equal(a, b)
    if equal_nan and dtypes.is_inexact(aval_of(a).dtype) and dtypes.is_inexact(aval_of(b).dtype):
        same = logical_or(same, logical_and(isnan(a), isnan(b)))
    return all(same)


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether shapes and all elements are equal."""
    a, b = asarray(a1), asarray(a2)
    return _equal(a, b, equal_nan) if aval_of(a).shape == aval_of(b).shape else asarray(False)


def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether all elements are equal after broadcasting; False where shapes do not broadcast."""
    a, b = asarray(a1), asarray(a2)
    try:
        np.broadcast_shapes(aval_of(a).shape, aval_of(b).shape)
    except ValueError:
        return asarray(False)
    return _equal(a, b, False)
