"""Arrays without a value: what Python must not ask of a tracer, and the errors that say so.

One class for all interpreters whose values are unknown or differ between instances; each says in `_why()` what its value is.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)
from mpiarray.numpy.array import Array


class TracedArray(Array, Tracer):
    """A tracer that Python cannot read."""

    __slots__ = ()

    def _why(self) -> str:
        """A sentence on what the value is and what to do, for the end of every message."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise TracerBoolConversionError(
            f"Attempted boolean conversion of traced array with shape {self.aval.short()}: a Python branch cannot depend on it. {self._why()} "
            "Use `jnp.where` or `lax.cond`."
        )

    def _concretize(self, what: str) -> NoReturn:
        raise ConcretizationTypeError(
            f"Abstract tracer value encountered where concrete value is expected: {what} of traced array with shape {self.aval.short()}. {self._why()}"
        )

    def __float__(self) -> float:
        self._concretize("`float()`")

    def __int__(self) -> int:
        self._concretize("`int()`")

    def __complex__(self) -> complex:
        self._concretize("`complex()`")

    def item(self, *args: Any) -> Any:
        self._concretize("`.item()`")

    def tolist(self) -> Any:
        self._concretize("`.tolist()`")

    def __index__(self) -> int:
        raise TracerIntegerConversionError(
            f"The __index__() method was called on traced array with shape {self.aval.short()}: a Python index or range cannot depend on it. "
            f"{self._why()} Use `lax.dynamic_slice` or `lax.fori_loop`."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TracerArrayConversionError(
            f"The numpy.ndarray conversion method __array__() was called on traced array with shape {self.aval.short()}. {self._why()} Use the "
            "functions of `mpiarray.numpy` instead of numpy's."
        )
