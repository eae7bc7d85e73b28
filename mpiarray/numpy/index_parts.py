"""What an index means: `x[1, ..., ::2, None, i, mask]` taken apart.

Only shapes, types and, for masks, values on the host are used; reading and writing (index_reads.py, index_updates.py)
stand on the same parts, so they cannot disagree about numpy's rules.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.core.value import Literal, Value, aval_of
from mpiarray.errors import NonConcreteBooleanIndexError, TracerIntegerConversionError
from mpiarray.numpy.creation import asarray
from mpiarray.numpy.promotion import cast, join
from mpiarray.ops import arithmetic, comparison
from mpiarray.ops.common import const_like
from mpiarray.ops.select import select_n
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_I32, _I64 = np.dtype(np.int32), np.dtype(np.int64)
INDEX = "*"  # in Parts.order: here stand the dims of the index arrays


class Cut(NamedTuple):
    """Elements start, start + step, ... of a dim, `count` of them; the step may be negative."""

    start: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    step: int


class Parts(NamedTuple):
    """An index taken apart, for an operand with `extra` dims of size 1 put in.

    cuts    per dim of the operand, what a slice leaves of it; None: all of it
    fixed   (dim, number): dims at which a static number stands, counted from 0, perhaps out of bounds
    picked  dims at which index arrays (or scalars that are not static) stand
    places  the index arrays, one per picked dim, of one shape `shape`; they are not counted from the end
    order   the result's dims: numbers of the operand's dims, "*" for the dims of the index arrays, None for a new dim
    """

    extra: tuple[int, ...]
    cuts: tuple[Cut | None, ...]
    fixed: tuple[tuple[int, int], ...]
    picked: tuple[int, ...]
    places: tuple[Any, ...]
    shape: tuple[int, ...]
    order: tuple[Any, ...]

    def rest(self) -> tuple[int, ...]:
        """The operand's dims that are dims of the result."""
        gone = {d for d, _ in self.fixed}.union(self.picked)
        return tuple(d for d in range(len(self.cuts)) if d not in gone)

    def sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The result's sizes for an operand of that shape (extra dims included)."""
        out: list[int] = []
        for token in self.order:
            if token is None:
                out.append(1)
            elif token == INDEX:
                out.extend(self.shape)
            else:
                cut = self.cuts[token]
                out.append(shape[token] if cut is None else cut.count)
        return tuple(out)


def parts_of(aval: ShapedArray, index: Any, wrap: bool = True) -> Parts:
    """Take an index of a value apart.  With `wrap`, negative numbers count from the end.

    Raises TypeError for lists, floats and strings, IndexError for too many indices, two ellipses, masks of another
    shape and slices that are not static, NonConcreteBooleanIndexError for masks whose values are not known yet.
    """
    items = [_item(i, k) for k, i in enumerate(_as_tuple(index))]
    items = _fill_up(aval, items)
    extra = _extra_dims(items)
    shape = list(aval.shape)
    for d in extra:
        shape.insert(d, 1)
    advanced = any(_is_array(i) and _ndim(i) for i in items) or bool(extra)
    cuts: list[Cut | None] = []
    fixed, picked, places = [], [], []
    order: list[Any] = []
    numbered: list[int] = []  # where in the index numbers and arrays stand
    where = 0  # the place in `order` of the first of them
    for position, item in enumerate(items):
        if item is None:
            order.append(None)
        elif item is Ellipsis:
            continue
        elif isinstance(item, slice):
            order.append(len(cuts))
            cuts.append(_cut(item, shape[len(cuts)], position))
        else:
            if not numbered:
                where = len(order)
            numbered.append(position)
            for d, i in enumerate(_numbers(aval, item, len(cuts), shape, wrap), len(cuts)):
                if isinstance(i, int):
                    fixed.append((d, i))
                else:
                    picked.append(d)
                    places.append(i)
                cuts.append(None)
    places = join("indexing", *places) if len(places) > 1 else places
    index_shape = aval_of(places[0]).shape if places else ()
    if advanced:
        together = numbered == list(range(numbered[0], numbered[0] + len(numbered)))
        order.insert(where if together else 0, INDEX)
    return Parts(extra, tuple(cuts), tuple(fixed), tuple(picked), tuple(places), index_shape, tuple(order))


def is_mask(index: Any) -> bool:
    """Whether an index is one boolean array, and nothing else."""
    return isinstance(index, Value) and dtypes.is_bool(index.aval.dtype) and index.aval.ndim > 0


# -- items --------------------------------------------------------------------------------------------


def _as_tuple(index: Any) -> tuple[Any, ...]:
    if isinstance(index, tuple):
        return index
    if isinstance(index, str):
        raise TypeError(f"JAX does not support string indexing; got idx={index!r}")
    if isinstance(index, Sequence):
        raise TypeError(
            "Using a non-tuple sequence for multidimensional indexing is not allowed; use `arr[array(seq)]` instead of "
            f"`arr[seq]`: got {index!r}"
        )
    return (index,)


def _item(i: Any, position: int) -> Any:
    """An item of an index in one of the forms None, Ellipsis, slice, bool, int, numpy array, array."""
    if i is None or i is Ellipsis or isinstance(i, (slice, bool)):
        return i
    if type(i) is int:
        return i
    if hasattr(i, "__jax_array__") and not isinstance(i, Value):
        i = i.__jax_array__()
    if isinstance(i, (list, tuple)):
        i = asarray(i) if any(isinstance(v, Value) for v in i) else np.asarray(i)
        if not aval_of(i).size:
            i = np.zeros(np.shape(i), np.int32)
    if isinstance(i, Literal):
        i = i.val
    if isinstance(i, (Value, np.ndarray, np.generic)):
        dtype = aval_of(i).dtype
        if not (dtypes.is_int(dtype) or dtypes.is_bool(dtype)):
            raise TypeError(
                f"Indexer must have integer or boolean type, got indexer with type {dtypes.name(dtype)} at position "
                f"{position}"
            )
        if isinstance(i, Value) and not i.aval.ndim and dtypes.is_bool(dtype):
            return bool(mask_value(i, (), position))
        if isinstance(i, Value) or i.ndim:
            return i
        return bool(i) if i.dtype == np.bool_ else int(i)
    if isinstance(i, (float, complex)):
        raise TypeError(f"Indexer must have integer or boolean type, got indexer with type {type(i).__name__}: {i}")
    if isinstance(i, str):
        raise TypeError(f"JAX does not support string indexing; got idx={i!r}")
    try:
        return operator.index(i)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), newaxis (`None`) and integer or boolean arrays are valid "
            f"indices. Got {i!r} at position {position}"
        ) from None


def _is_array(item: Any) -> bool:
    return isinstance(item, (Value, np.ndarray))


def _ndim(item: Any) -> int:
    return item.aval.ndim if isinstance(item, Value) else item.ndim


def _is_mask(item: Any) -> bool:
    if isinstance(item, bool):
        return True
    return _is_array(item) and dtypes.is_bool(item.aval.dtype if isinstance(item, Value) else item.dtype)


def _dims_used(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return _ndim(item) if _is_mask(item) else 1


def _fill_up(aval: ShapedArray, items: list[Any]) -> list[Any]:
    """The items with whole slices for the dims that are not mentioned.

    The ellipsis stays: even one that stands for nothing parts index arrays.
    """
    if sum(i is Ellipsis for i in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(map(_dims_used, items))
    if used > aval.ndim:
        raise IndexError(
            f"Too many indices: array is {aval.ndim}-dimensional, but {used} were indexed, of {aval.str_short()}"
        )
    missing = [slice(None)] * (aval.ndim - used)
    for k, i in enumerate(items):
        if i is Ellipsis:
            return [*items[: k + 1], *missing, *items[k + 1 :]]
    return [*items, *missing]


def _extra_dims(items: Sequence[Any]) -> tuple[int, ...]:
    """Where the operand gets a dim of size 1 for True and False to choose from."""
    out, used = [], 0
    for i in items:
        if isinstance(i, bool):
            out.append(used)
            used += 1
        else:
            used += _dims_used(i)
    return tuple(out)


def _cut(s: slice, n: int, position: int) -> Cut | None:
    try:
        start, stop, step = slice(
            *(None if v is None else operator.index(v) for v in (s.start, s.stop, s.step))
        ).indices(n)
    except TracerIntegerConversionError:
        raise IndexError(
            f"Slice entries must be static integers. Got {s} at position {position}. Use `lax.dynamic_slice` or "
            "`lax.dynamic_update_slice` for a part of static size at a dynamic place, or `jnp.where` with a mask."
        ) from None
    count = len(range(start, stop, step))
    if count == n and step == 1:
        return None
    return Cut(start, count, step) if count else Cut(0, 0, 1)


def _numbers(aval: ShapedArray, item: Any, dim: int, shape: Sequence[int], wrap: bool) -> list[Any]:
    """The numbers or index arrays of an item, one per dim that it indexes from `dim` on, counted from 0."""
    if isinstance(item, bool):
        return [np.zeros(int(item), _I32)]
    if isinstance(item, int):
        n = shape[dim]
        if not n:
            raise IndexError(f"index is out of bounds for axis {dim} with size 0: got {item} for {aval.str_short()}")
        return [item + n if wrap and item < 0 else item]
    if _is_mask(item):
        found = np.nonzero(mask_value(item, shape[dim : dim + _ndim(item)], dim))
        return [np.asarray(i, _index_dtype(n)) for i, n in zip(found, shape[dim:])]
    return [from_start(item, shape[dim], wrap)]


def mask_value(mask: Any, shape: Sequence[int], dim: int) -> np.ndarray:
    """A mask's values on the host; a collective read.  Raises for tracers and shapes that differ from the operand's."""
    aval = aval_of(mask)
    if isinstance(mask, Tracer):
        raise NonConcreteBooleanIndexError(
            f"Array boolean indices must be concrete; got {aval.str_short()}. The result's shape would depend on "
            "values that are not known while a function is traced: use `jnp.where` with three arguments."
        )
    for n, m in zip(aval.shape, shape):
        if n != m:
            raise IndexError(
                f"boolean index did not match shape of indexed array in index {dim}: got {aval.shape}, expected "
                f"{list(shape)}"
            )
    return np.asarray(mask)


def _index_dtype(n: int) -> np.dtype:
    return _I32 if n < 2**31 else _I64


def from_start(i: Any, n: int, wrap: bool = True) -> Any:
    """An index array of numbers counted from the start of a dim of size n, in 32 bits where that is enough.

    Numbers out of bounds stay so.
    """
    own = _index_dtype(n)
    if isinstance(i, np.ndarray):
        i = i.astype(np.int64) if i.dtype != np.uint64 else np.minimum(i, np.uint64(n)).astype(np.int64)
        return np.clip(np.where(i < 0, i + n, i) if wrap else i, -1, n).astype(own)
    dtype = i.aval.dtype
    i = cast(i, dtype if dtypes.bit_width(dtype) >= 8 * own.itemsize else own)
    if not wrap or dtypes.is_unsigned(dtype):
        return i
    return select_n(comparison.lt(i, const_like(i, 0)), i, arithmetic.add(i, const_like(i, n)))
