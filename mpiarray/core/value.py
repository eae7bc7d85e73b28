"""What an op takes: values that know their type, and literals.

Arrays (`runtime/`) and tracers (`transforms/`) extend `Value`; the layers between here and there only
ask for `.aval`, so they need to know neither.
"""

from __future__ import annotations

import numbers
from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


class Value:
    """Something with a type: a concrete array or a tracer."""

    __slots__ = ()

    aval: ShapedArray


class Literal(Value):
    """A host scalar with its type, as it stands in a jaxpr: `2.0:f32[]`.

    `val` is a numpy scalar of the type's dtype, equal on all ranks.
    """

    __slots__ = ("aval", "val")

    def __init__(self, val: Any, aval: ShapedArray):
        self.val = val
        self.aval = aval

    def __repr__(self) -> str:
        return f"{self.val}:{self.aval.short()}"


@lru_cache(maxsize=512)
def scalar_aval(dtype: Any, weak_type: bool) -> ShapedArray:
    """The type of a host scalar: no shape and no mesh."""
    return ShapedArray((), dtype, weak_type)


def literal(value: Any, dtype: Any, weak_type: bool = False) -> Literal:
    """`value` as a scalar of `dtype` (already canonical)."""
    val = dtypes.cast(np.asarray(value), dtype)[()]
    return Literal(val, scalar_aval(dtype, weak_type))


def is_python_scalar(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic)


def aval_of(x: Any) -> ShapedArray:
    """The type of anything that may be an operand: values, numpy arrays and scalars, Python scalars.

    Raises TypeError for everything else.  Never communicates.
    """
    if isinstance(x, Value):
        return x.aval
    if isinstance(x, (np.ndarray, np.generic, numbers.Number)):
        dtype, weak = dtypes.dtype_of(x)
        return ShapedArray(np.shape(x), dtype, weak)  # type: ignore[arg-type]
    raise TypeError(f"{x!r} of type {type(x)} is not a valid JAX type: expected an array, a numpy array or a number")
