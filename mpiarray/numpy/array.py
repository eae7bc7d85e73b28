"""`jax.Array`: the operators and methods that concrete arrays and tracers share.

Methods delegate to the functions of the same name, so that there is one implementation of each.  The modules of these
functions cannot import this one; they know arrays as `core.value.Value`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mpiarray.core.value import Value
from mpiarray.numpy import (
    arithmetic,
    choices,
    comparison,
    complex_numbers,
    creation,
    cumulative,
    editing,
    indexing,
    manipulation,
    matrices,
    nonzeros,
    positions,
    products,
    reductions,
    selection,
    sorting,
    taking,
)
from mpiarray.numpy.host import place
from mpiarray.numpy.promotion import ARRAY_LIKE
from mpiarray.types.aval import ShapedArray


def _known(x: Any) -> bool:
    """Whether an operator applies to `x`; else Python asks the other operand."""
    return isinstance(x, ARRAY_LIKE) or hasattr(x, "__jax_array__")


def _forward(f: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return f(self, other) if _known(other) else NotImplemented

    return operator


def _reflected(f: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return f(other, self) if _known(other) else NotImplemented

    return operator


class Array(Value):
    """An array: concrete, or a tracer of a function that is being transformed."""

    __slots__ = ()
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    aval: ShapedArray

    # -- what its type says -----------------------------------------------------------------------

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

    def __len__(self) -> int:
        if not self.aval.ndim:
            raise TypeError(f"len() of unsized object: got {self.aval.str_short()}")
        return self.aval.shape[0]

    # -- indexing -----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        return indexing.getitem(self, index)

    def __iter__(self) -> Iterator[Any]:
        return iter(indexing.rows(self))

    @property
    def at(self) -> indexing.At:
        """`x.at[index].set(v)`, `.add(v)`, ...: a copy with some elements changed."""
        return indexing.At(self)

    def take(
        self,
        indices: Any,
        axis: int | None = None,
        out: None = None,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
        fill_value: Any = None,
    ) -> Any:
        """The slices at integer indices along `axis` (None: elements of the flattened array)."""
        return taking.take(self, indices, axis, out, mode, unique_indices, indices_are_sorted, fill_value)

    def nonzero(self, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
        """The indices of elements that are not zero, one array per dim."""
        return nonzeros.nonzero(self, size=size, fill_value=fill_value)

    def compress(
        self, condition: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0, out: None = None
    ) -> Any:
        """The slices along `axis` where the 1-D condition holds."""
        return nonzeros.compress(condition, self, axis, size=size, fill_value=fill_value, out=out)

    # -- operators ----------------------------------------------------------------------------------

    __add__ = _forward(arithmetic.add)
    __radd__ = _reflected(arithmetic.add)
    __sub__ = _forward(arithmetic.subtract)
    __rsub__ = _reflected(arithmetic.subtract)
    __mul__ = _forward(arithmetic.multiply)
    __rmul__ = _reflected(arithmetic.multiply)
    __truediv__ = _forward(arithmetic.divide)
    __rtruediv__ = _reflected(arithmetic.divide)
    __floordiv__ = _forward(arithmetic.floor_divide)
    __rfloordiv__ = _reflected(arithmetic.floor_divide)
    __mod__ = _forward(arithmetic.remainder)
    __rmod__ = _reflected(arithmetic.remainder)
    __divmod__ = _forward(arithmetic.divmod)
    __rdivmod__ = _reflected(arithmetic.divmod)
    __rpow__ = _reflected(arithmetic.power)
    __matmul__ = _forward(products.matmul)
    __rmatmul__ = _reflected(products.matmul)
    __and__ = _forward(comparison.bitwise_and)
    __rand__ = _reflected(comparison.bitwise_and)
    __or__ = _forward(comparison.bitwise_or)
    __ror__ = _reflected(comparison.bitwise_or)
    __xor__ = _forward(comparison.bitwise_xor)
    __rxor__ = _reflected(comparison.bitwise_xor)
    __lshift__ = _forward(comparison.left_shift)
    __rlshift__ = _reflected(comparison.left_shift)
    __rshift__ = _forward(comparison.right_shift)
    __rrshift__ = _reflected(comparison.right_shift)
    __eq__ = _forward(comparison.equal)
    __ne__ = _forward(comparison.not_equal)
    __lt__ = _forward(comparison.less)
    __le__ = _forward(comparison.less_equal)
    __gt__ = _forward(comparison.greater)
    __ge__ = _forward(comparison.greater_equal)

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        if modulo is not None:
            raise TypeError("pow() of an array with a modulo is not supported; use `x ** y % m`")
        return arithmetic.power(self, other) if _known(other) else NotImplemented

    def __neg__(self) -> Any:
        return arithmetic.negative(self)

    def __pos__(self) -> Any:
        return arithmetic.positive(self)

    def __abs__(self) -> Any:
        return arithmetic.absolute(self)

    def __invert__(self) -> Any:
        return comparison.bitwise_not(self)

    def __round__(self, ndigits: int | None = None) -> Any:
        return choices.round(self, ndigits or 0)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "JAX arrays are immutable and do not support in-place item assignment. Instead of x[idx] = y, use "
            "x = x.at[idx].set(y); got an "
            f"array of type {self.aval.str_short()}"
        )

    # -- methods: elementwise -------------------------------------------------------------------------

    @property
    def real(self) -> Any:
        """The real part."""
        return complex_numbers.real(self)

    @property
    def imag(self) -> Any:
        """The imaginary part; zeros for real numbers."""
        return complex_numbers.imag(self)

    def choose(self, choices: Any, out: None = None, mode: str = "raise") -> Any:
        """For each number the element of the choice with that number."""
        return selection.choose(self, choices, out, mode)

    def conj(self) -> Any:
        """The complex conjugate."""
        return complex_numbers.conjugate(self)

    def conjugate(self) -> Any:
        """The complex conjugate."""
        return complex_numbers.conjugate(self)

    def round(self, decimals: int = 0, out: None = None) -> Any:
        """Rounded to `decimals` places, half-way cases to the even digit."""
        return choices.round(self, decimals, out)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """Values limited to `min` and `max`."""
        return choices.clip(self, min, max)

    # -- methods: shapes and dtypes ---------------------------------------------------------------------

    @property
    def T(self) -> Any:
        """With its dims reversed."""
        return manipulation.transpose(self)

    @property
    def mT(self) -> Any:
        """With its last two dims swapped."""
        return manipulation.matrix_transpose(self)

    def reshape(self, *args: Any, order: str = "C", copy: bool | None = None, out_sharding: Any = None) -> Any:
        """In another shape, given as one sequence or as several ints; see `jnp.reshape`."""
        sizes = args[0] if len(args) == 1 else args
        return manipulation.reshape(self, sizes, order, copy=copy, out_sharding=out_sharding)

    def ravel(self, order: str = "C", *, out_sharding: Any = None) -> Any:
        """As 1-D."""
        return manipulation.ravel(self, order, out_sharding=out_sharding)

    def flatten(self, order: str = "C", *, out_sharding: Any = None) -> Any:
        """As 1-D."""
        return manipulation.ravel(self, order, out_sharding=out_sharding)

    def transpose(self, *args: Any) -> Any:
        """With its dims in another order, given as one sequence or as several ints (default: reversed)."""
        axes = (
            None
            if not args or args == (None,)
            else args[0]
            if len(args) == 1 and not isinstance(args[0], int)
            else args
        )
        return manipulation.transpose(self, axes)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """With two dims swapped."""
        return manipulation.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> Any:
        """Without dims of size 1."""
        return manipulation.squeeze(self, axis)

    def astype(self, dtype: Any, copy: bool = False, device: Any = None) -> Any:
        """Converted to a dtype."""
        return manipulation.astype(self, dtype, copy=copy, device=device)

    def view(self, dtype: Any = None, type: None = None) -> Any:
        """Its bits read as another dtype."""
        if type is not None:
            raise NotImplementedError("`type` argument of array.view() is not supported.")
        return manipulation.view(self, dtype)

    def to_device(self, device: Any, *, stream: None = None) -> Any:
        """On a device, or by a sharding, as `jax.device_put`."""
        if stream is not None:
            raise NotImplementedError("stream argument of array.to_device() is not supported")
        return place(self, device)

    def copy(self) -> Any:
        """An array of its own with the same values."""
        return creation.copy(self)

    def repeat(
        self, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out_sharding: Any = None
    ) -> Any:
        """Each element repeated; see `jnp.repeat`."""
        return editing.repeat(self, repeats, axis, total_repeat_length=total_repeat_length, out_sharding=out_sharding)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """The diagonals along two axes."""
        return matrices.diagonal(self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
        """The sum of the diagonal."""
        return matrices.trace(self, offset, axis1, axis2, dtype, out)

    # -- methods: reductions -----------------------------------------------------------------------------

    def sum(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
        promote_integers: bool = True,
    ) -> Any:
        """The sum over `axis` (None: all)."""
        return reductions.sum(self, axis, dtype, out, keepdims, initial, where, promote_integers)

    def prod(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
        promote_integers: bool = True,
    ) -> Any:
        """The product over `axis` (None: all)."""
        return reductions.prod(self, axis, dtype, out, keepdims, initial, where, promote_integers)

    def max(
        self, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        """The largest element over `axis` (None: all)."""
        return reductions.max(self, axis, out, keepdims, initial, where)

    def min(
        self, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Any:
        """The smallest element over `axis` (None: all)."""
        return reductions.min(self, axis, out, keepdims, initial, where)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
    ) -> Any:
        """The mean over `axis` (None: all)."""
        return reductions.mean(self, axis, dtype, out, keepdims, where=where)

    def var(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        ddof: int = 0,
        keepdims: bool = False,
        *,
        where: Any = None,
        correction: int | float | None = None,
    ) -> Any:
        """The variance over `axis` (None: all)."""
        return reductions.var(self, axis, dtype, out, ddof, keepdims, where=where, correction=correction)

    def std(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        ddof: int = 0,
        keepdims: bool = False,
        *,
        where: Any = None,
        correction: int | float | None = None,
    ) -> Any:
        """The standard deviation over `axis` (None: all)."""
        return reductions.std(self, axis, dtype, out, ddof, keepdims, where=where, correction=correction)

    def all(self, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
        """Whether all elements over `axis` (None: all) are unequal to 0."""
        return reductions.all(self, axis, out, keepdims, where=where)

    def any(self, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
        """Whether an element over `axis` (None: all) is unequal to 0."""
        return reductions.any(self, axis, out, keepdims, where=where)

    def ptp(self, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
        """The largest minus the smallest element over `axis` (None: all)."""
        return reductions.ptp(self, axis, out, keepdims)

    def argmax(self, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
        """The position of the largest element over `axis` (None: in the flattened array)."""
        return positions.argmax(self, axis, out, keepdims)

    def argmin(self, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
        """The position of the smallest element over `axis` (None: in the flattened array)."""
        return positions.argmin(self, axis, out, keepdims)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
        """Sums up to each element along `axis` (None: flattened)."""
        return cumulative.cumsum(self, axis, dtype, out)

    def cumprod(self, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
        """Products up to each element along `axis` (None: flattened)."""
        return cumulative.cumprod(self, axis, dtype, out)

    # -- methods: order ------------------------------------------------------------------------------------

    def sort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
    ) -> Any:
        """Sorted along `axis` (None: flattened)."""
        return sorting.sort(self, axis, kind=kind, order=order, stable=stable, descending=descending)

    def argsort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
    ) -> Any:
        """The positions that sort along `axis` (None: flattened)."""
        return sorting.argsort(self, axis, kind=kind, order=order, stable=stable, descending=descending)

    def argpartition(self, kth: int, axis: int = -1) -> Any:
        """The positions that partition along `axis`."""
        return sorting.argpartition(self, kth, axis)

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Any:
        """Where elements of `v` go in this sorted array."""
        return sorting.searchsorted(self, v, side, sorter, method=method)

    def dot(
        self, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
    ) -> Any:
        """The dot product with `b`."""
        return products.dot(
            self, b, precision=precision, preferred_element_type=preferred_element_type, out_sharding=out_sharding
        )
