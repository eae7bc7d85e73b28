"""How host values become arrays, and arrays what `mpiarray.numpy` hands back.

Concrete arrays live in `runtime/`, above this layer, which says here how it makes them from numpy arrays.  It stands
apart from the class `Array`, whose methods need everything that needs this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.value import Literal, Value
from mpiarray.errors import InternalError
from mpiarray.types import dtypes


def _not_set(value: Any, dtype: Any, weak_type: bool) -> Value:
    raise InternalError("a host value was made an array before the runtime was imported")


_from_host: Callable[[Any, Any, bool], Value] = _not_set


def set_from_host(make: Callable[[Any, Any, bool], Value]) -> None:
    """Say how numpy arrays become arrays: `make(value, dtype, weak_type)`.  The runtime does so when it is imported."""
    global _from_host
    _from_host = make


def from_host(value: Any, dtype: Any, weak_type: bool = False) -> Value:
    """A concrete array of `dtype` with the host value, replicated on the context mesh; it does not communicate."""
    return _from_host(value, dtype, weak_type)


def as_array(x: Any) -> Any:
    """An operand (array, literal, numpy array, scalar) as an array that can be given to the user."""
    if isinstance(x, Literal):
        return from_host(x.val, x.aval.dtype, x.aval.weak_type)
    if isinstance(x, Value):
        return x
    if hasattr(x, "__jax_array__"):
        return x.__jax_array__()
    dtype, weak = dtypes.dtype_of(x)
    return from_host(dtypes.scalar_array(x, dtype) if dtypes.is_python_scalar(x) else np.asarray(x), dtype, weak)


def _no_place(x: Value, where: Any) -> Value:
    raise InternalError("an array was placed before the runtime was imported")


_place: Callable[[Any, Any], Value] = _no_place


def set_place(place: Callable[[Any, Any], Value]) -> None:
    """Say how arrays are put on devices: `place(x, sharding or device)`.  The runtime does so when it is imported."""
    global _place
    _place = place


def place(x: Any, where: Any) -> Value:
    """`x` on a device or by a sharding, as `jax.device_put`."""
    return _place(x, where)
