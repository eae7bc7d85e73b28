"""`x[index]`, `x.at[index]` and iteration.

`x.at[index].set(v)` and its like return a changed copy; arrays themselves never change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpiarray.core.plan import dims_of, spec_from
from mpiarray.core.trace import Tracer, is_evaluating
from mpiarray.core.value import aval_of
from mpiarray.numpy import arithmetic
from mpiarray.numpy.creation import ones_like
from mpiarray.numpy.host import as_array
from mpiarray.numpy.index_reads import read, read_static
from mpiarray.numpy.index_updates import write
from mpiarray.ops.placement import reshard
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

__all__: list[str] = []


def getitem(x: Any, index: Any) -> Any:
    """`x[index]`, for what numpy takes as an index (but lists).

    Raises the errors of `index_parts.parts_of`, and ShardingTypeError where the result of a sharded dim would not
    divide.
    """
    return read_static(as_array(x), index)


class At:
    """`x.at`, to be indexed: `x.at[index]`."""

    __slots__ = ("array",)

    def __init__(self, array: Any):
        self.array = array

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self.array, index)

    def __repr__(self) -> str:
        return f"_IndexUpdateHelper({self.array!r})"


class AtIndex:
    """`x.at[index]`: reads and updates of the elements at an index.

    Keywords that all updates take: `mode` ("drop", the default: updates out of bounds are left out; "clip": they go to
    the edge; "promise_in_bounds"), `out_sharding` (how the result is sharded; needed where a sharded dim is indexed),
    `wrap_negative_indices` (False: they are out of bounds); `indices_are_sorted` and `unique_indices` are promises
    that nothing depends on.

    Where index arrays name a place twice, `set` lets the last one win, the others combine all.
    Updates are cast to the array's dtype, with a FutureWarning when it cannot hold them.

    Raises ShardingTypeError where a dim that is sharded over Explicit axes is indexed, without `out_sharding`.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any):
        self.array, self.index = array, index

    def __repr__(self) -> str:
        return f"_IndexUpdateRef({self.array!r}, {self.index!r})"

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | None = None,
        fill_value: Any = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """The elements.  Out of bounds: the edge; with mode "fill": `fill_value`.

        The default of `fill_value` is NaN, the smallest signed or the largest unsigned integer, True.  With
        `out_sharding` any index reads any sharding, and the result is laid out as said.
        """
        return read(as_array(self.array), self.index, mode, fill_value, out_sharding, wrap_negative_indices)

    def _write(self, combine: str, values: Any, base: Any = None, **options: Any) -> Any:
        return write(as_array(self.array if base is None else base), self.index, values, combine, **_options(**options))

    def set(self, values: Any, **options: Any) -> Any:
        """With the elements replaced."""
        return self._write("set", values, **options)

    def add(self, values: Any, **options: Any) -> Any:
        """With `values` added to the elements."""
        return self._write("add", values, **options)

    def subtract(self, values: Any, **options: Any) -> Any:
        """With `values` subtracted from the elements."""
        return self._write("sub", values, **options)

    sub = subtract

    def multiply(self, values: Any, **options: Any) -> Any:
        """With the elements multiplied by `values`."""
        return self._write("mul", values, **options)

    mul = multiply

    def min(self, values: Any, **options: Any) -> Any:
        """With the smaller of each element and its value."""
        return self._write("min", values, **options)

    def max(self, values: Any, **options: Any) -> Any:
        """With the larger of each element and its value."""
        return self._write("max", values, **options)

    def divide(self, values: Any, **options: Any) -> Any:
        """With the elements divided by `values`; integers become floats."""
        return arithmetic.divide(self.array, self._write("mul", values, base=ones_like(self.array), **options))

    def power(self, values: Any, **options: Any) -> Any:
        """With the elements raised to the powers `values`."""
        return arithmetic.power(self.array, self._write("mul", values, base=ones_like(self.array), **options))

    def apply(self, func: Callable[[Any], Any], **options: Any) -> Any:
        """With `func` applied to the elements, once each, as an array of the index's shape."""
        given = options.get("out_sharding")
        everywhere = given if given is None else P() if isinstance(given, P) else given.update(spec=P())
        return self._write("set", func(self.get(out_sharding=everywhere)), **options)


def _options(
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | None = None,
    out_sharding: Any = None,
    wrap_negative_indices: bool = True,
) -> dict[str, Any]:
    return {"mode": mode, "out_sharding": out_sharding, "wrap": wrap_negative_indices}


# -- iteration -------------------------------------------------------------------------------------------


def rows(x: Any) -> list[Any]:
    """The parts of an array along its first dim.  Raises TypeError for scalars.

    A concrete array whose first dim is sharded is read as a whole first, so that the parts are replicated; under a
    transformation that is the slicing error.
    """
    aval = aval_of(x)
    if not aval.ndim:
        raise TypeError(f"iteration over a 0-d array: got {aval.str_short()}")
    if dims_of(aval)[0] and is_evaluating() and not isinstance(x, Tracer):
        x = reshard(x, dst_sharding=NamedSharding(aval.sharding.mesh, spec_from(((),) * aval.ndim)))
    return [getitem(x, k) for k in range(aval.shape[0])]
