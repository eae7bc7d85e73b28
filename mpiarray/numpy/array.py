"""`jax.Array`: the operators and methods that concrete arrays and tracers share."""

from __future__ import annotations

from typing import Any

from mpiarray.core.value import Value
from mpiarray.numpy import ufuncs
from mpiarray.types.aval import ShapedArray


class Array(Value):
    """An array: concrete, or a tracer of a function that is being transformed."""

    __slots__ = ()
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    aval: ShapedArray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    @property
    def itemsize(self) -> int:
        return self.aval.itemsize

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    def __add__(self, other: Any) -> Any:
        return ufuncs.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return ufuncs.add(other, self)

    def __mul__(self, other: Any) -> Any:
        return ufuncs.multiply(self, other)

    def __sub__(self, other: Any) -> Any:
        return ufuncs.subtract(self, other)
