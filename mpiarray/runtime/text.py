"""`str` and `repr` of arrays.

`str` shows numpy's text of the value; a large sharded array fetches only the elements that numpy would show.  `repr` never
communicates: where a rank cannot form the value alone it shows type, sharding and this rank's block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.runtime.parts import rows_of
from mpiarray.types import dtypes


def array_str(x: Any) -> str:
    """numpy's text.  Collective as reading is."""
    x._check_alive()
    if x._placed.spec.unreduced:
        return _unreadable(x)
    if dtypes.is_key(x.dtype):
        return f"Array({x.shape}, dtype={x.dtype}) overlaying:\n{_words(x._value())}"
    if x.ndim == 0:
        return str(x._value()[()])
    return str(shown(x))


def array_repr(x: Any) -> str:
    """Never communicates."""
    x._check_alive()
    if x._placed.spec.unreduced:
        return _unreadable(x)
    if not x._readable_alone():
        block = "none on this rank" if x._block is None else "\n" + np.array2string(x._block, threshold=100)
        return (
            f"Array(shape={x.shape}, dtype={dtypes.name(x.dtype)}, sharding={x.sharding}, this rank's block: {block})"
        )
    if dtypes.is_key(x.dtype):
        return f"Array({x.shape}, dtype={x.dtype}) overlaying:\n{_words(x._value())}"
    value = x._value()
    weak = ", weak_type=True" if x.weak_type else ""
    dtype = f"dtype={dtypes.name(x.dtype)}{weak})"
    if value.size == 0:
        return f"Array([], shape={value.shape}, {dtype}"
    body = np.array2string(value, prefix="Array(", suffix=",", separator=", ")
    width = np.get_printoptions()["linewidth"]
    last = len(body) - (body.rfind("\n") + 1) + (len("Array(") if "\n" not in body else 0)
    gap = ",\n" + " " * len("Array(") if last + len(dtype) + 2 > width else ", "
    return f"Array({body}{gap}{dtype}"


def _unreadable(x: Any) -> str:
    return f"Array(shape={x.shape}, dtype={dtypes.name(x.dtype)}, sharding={x.sharding})"


def _words(value: np.ndarray) -> str:
    return str(np.ascontiguousarray(value).view(np.uint32).reshape(*value.shape, 2))


def shown(x: Any) -> Any:
    """What numpy needs to print: the value, or for a large sharded array its text from the edges alone."""
    options = np.get_printoptions()
    edge = options["edgeitems"]
    if x.size <= options["threshold"] or x._readable_alone() or all(n <= 2 * edge for n in x.shape):
        return x._value()
    return EdgeText(edges(x, edge))


class EdgeText:
    """Prints the edges of an array as numpy prints the whole: summarised."""

    def __init__(self, value: np.ndarray):
        self.value = value

    def __str__(self) -> str:
        return np.array2string(self.value, threshold=0)


def edges(x: Any, edge: int) -> np.ndarray:
    """The elements at the edges of each dim, and one more between them that stands for what is left out.

    numpy prints `edge` items, dots, `edge` items; an array of 2 * edge + 1 items summarised prints the same text.
    """
    return rows_of(x, [np.r_[0 : edge + 1, n - edge : n] if n > 2 * edge + 1 else np.arange(n) for n in x.shape])
