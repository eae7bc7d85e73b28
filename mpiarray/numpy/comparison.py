"""Comparisons, logic, bits, and questions about numbers (`isnan`, `signbit`, `iscomplex`, ...).

Complex numbers compare by their real parts, then by their imaginary parts, as in numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast, operands, promote, promote_dtypes, promote_ranks
from mpiarray.ops import bits, comparison, complex_parts
from mpiarray.ops.common import const_like
from mpiarray.ops.linear import full_of
from mpiarray.types import dtypes

__all__ = [
    "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_right_shift", "equal", "greater",
    "greater_equal", "invert", "iscomplex", "iscomplexobj", "isfinite", "isinf", "isnan", "isneginf", "isposinf",
    "isreal", "isrealobj", "isscalar", "left_shift", "less", "less_equal", "logical_not", "not_equal", "right_shift",
    "signbit",
]  # fmt: skip

_BOOL = np.dtype(np.bool_)


def equal(x: Any, y: Any, /) -> Any:
    """`x == y`, element by element."""
    return comparison.eq(*promote("equal", x, y))


def not_equal(x: Any, y: Any, /) -> Any:
    """`x != y`, element by element."""
    return comparison.ne(*promote("not_equal", x, y))


def _ordering(name: str, op: Any, strict: Any, sign: str) -> Callable[[Any, Any], Any]:
    def f(x: Any, y: Any, /) -> Any:
        x, y = promote(name, x, y)
        if not dtypes.is_complex(aval_of(x).dtype):
            return op(x, y)
        a, b = complex_parts.real(x), complex_parts.real(y)
        tie = bits.and_(comparison.eq(a, b), op(complex_parts.imag(x), complex_parts.imag(y)))
        return bits.or_(strict(a, b), tie)

    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"`x {sign} y`, element by element."
    return f


less = _ordering("less", comparison.lt, comparison.lt, "<")
less_equal = _ordering("less_equal", comparison.le, comparison.lt, "<=")
greater = _ordering("greater", comparison.gt, comparison.gt, ">")
greater_equal = _ordering("greater_equal", comparison.ge, comparison.gt, ">=")

# -- logic ---------------------------------------------------------------------------------------------------


def truth(x: Any) -> Any:
    """Whether an operand is unequal to 0, as bool."""
    return x if dtypes.is_bool(aval_of(x).dtype) else comparison.ne(x, const_like(x, 0))


def _logical(name: str, op: Any, doc: str) -> Callable[[Any, Any], Any]:
    def f(x: Any, y: Any, /) -> Any:
        x, y = promote_ranks(name, *operands(name, x, y))
        return op(truth(x), truth(y))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


logical_and = _logical("logical_and", bits.and_, "Whether both are unequal to 0.")
logical_or = _logical("logical_or", bits.or_, "Whether one or both are unequal to 0.")
logical_xor = _logical("logical_xor", bits.xor, "Whether just one is unequal to 0.")


def logical_not(x: Any, /) -> Any:
    """Whether `x` is 0."""
    return bits.not_(truth(*operands("logical_not", x)))


# -- bits ------------------------------------------------------------------------------------------------------


def _bitwise(name: str, op: Any, doc: str) -> Callable[[Any, Any], Any]:
    def f(x: Any, y: Any, /) -> Any:
        return op(*promote(name, x, y))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


bitwise_and = _bitwise("bitwise_and", bits.and_, "And of the bits of integers, or of bools.")
bitwise_or = _bitwise("bitwise_or", bits.or_, "Or of the bits of integers, or of bools.")
bitwise_xor = _bitwise("bitwise_xor", bits.xor, "Exclusive or of the bits of integers, or of bools.")


def bitwise_not(x: Any, /) -> Any:
    """The bits of integers, or bools, inverted."""
    return bits.not_(*promote_dtypes(*operands("bitwise_not", x)))


invert = bitwise_invert = bitwise_not


def bitwise_count(x: Any, /) -> Any:
    """How many bits of the absolute value are 1, as uint8."""
    (x,) = promote_dtypes(*operands("bitwise_count", x))
    if dtypes.is_bool(aval_of(x).dtype):
        return as_array(cast(x, np.dtype(np.uint8)))
    if dtypes.is_signed(aval_of(x).dtype):
        x = complex_parts.abs_(x)
    return cast(bits.population_count(x), np.dtype(np.uint8))


def _shift(name: str, x: Any, y: Any) -> Any:
    x, y = promote(name, x, y)
    dtype = aval_of(x).dtype
    if dtypes.is_bool(dtype):
        x, y = (cast(a, dtypes.default_dtype(int)) for a in (x, y))
    return x, y


def left_shift(x: Any, y: Any, /) -> Any:
    """`x * 2**y`, for integers, with the bits that leave at the left dropped."""
    return bits.shift_left(*_shift("left_shift", x, y))


def right_shift(x1: Any, x2: Any, /) -> Any:
    """`x1 // 2**x2` for integers: signed ones keep their sign."""
    x, y = _shift("right_shift", x1, x2)
    return bits.shift_right_logical(x, y) if dtypes.is_unsigned(aval_of(x).dtype) else bits.shift_right_arithmetic(x, y)


bitwise_left_shift, bitwise_right_shift = left_shift, right_shift

# -- questions -----------------------------------------------------------------------------------------------


def all_false(x: Any) -> Any:
    """False in every element of an operand's shape and sharding."""
    return as_array(full_of(aval_of(x).update(dtype=_BOOL, weak_type=False), False))


def all_true(x: Any) -> Any:
    return as_array(full_of(aval_of(x).update(dtype=_BOOL, weak_type=False), True))


def isfinite(x: Any, /) -> Any:
    """Whether each element is neither infinite nor NaN."""
    (x,) = operands("isfinite", x)
    dtype = aval_of(x).dtype
    if dtypes.is_float(dtype):
        return comparison.is_finite(*promote_dtypes(x))
    if dtypes.is_complex(dtype):
        return bits.and_(comparison.is_finite(complex_parts.real(x)), comparison.is_finite(complex_parts.imag(x)))
    return all_true(x)


def isnan(x: Any, /) -> Any:
    """Whether each element is NaN."""
    (x,) = operands("isnan", x)
    return comparison.ne(x, x) if dtypes.is_inexact(aval_of(x).dtype) else all_false(x)


def isinf(x: Any, /) -> Any:
    """Whether each element is infinite, of either sign."""
    (x,) = operands("isinf", x)
    dtype = aval_of(x).dtype
    if dtypes.is_float(dtype):
        return comparison.eq(complex_parts.abs_(*promote_dtypes(x)), const_like(x, math.inf))
    if dtypes.is_complex(dtype):
        return bits.or_(isinf(complex_parts.real(x)), isinf(complex_parts.imag(x)))
    return all_false(x)


def _infinite(name: str, x: Any, value: float, out: Any) -> Any:
    if out is not None:
        raise NotImplementedError(f"The 'out' argument to jnp.{name} is not supported.")
    (x,) = operands(name, x)
    dtype = aval_of(x).dtype
    if dtypes.is_complex(dtype):
        raise ValueError(f"{name} is not well defined for complex numbers, got {aval_of(x).str_short()}")
    return comparison.eq(x, const_like(x, value)) if dtypes.is_float(dtype) else all_false(x)


def isposinf(x: Any, /, out: None = None) -> Any:
    """Whether each element is positive infinity."""
    return _infinite("isposinf", x, math.inf, out)


def isneginf(x: Any, /, out: None = None) -> Any:
    """Whether each element is negative infinity."""
    return _infinite("isneginf", x, -math.inf, out)


def signbit(x: Any, /) -> Any:
    """Whether each element is negative, or -0.0, or a NaN with a sign."""
    (x,) = promote_dtypes(*operands("signbit", x))
    dtype = aval_of(x).dtype
    if dtypes.is_bool(dtype) or dtypes.is_unsigned(dtype):
        return all_false(x)
    if dtypes.is_int(dtype):
        return comparison.lt(x, const_like(x, 0))
    if dtypes.is_complex(dtype):
        raise ValueError(f"jax.numpy.signbit is not well defined for {aval_of(x).str_short()}")
    pattern = np.dtype(f"int{dtypes.bit_width(dtype)}")
    read = bits.bitcast_convert_type(x, new_dtype=pattern)
    return comparison.lt(read, const_like(read, 0))


def iscomplex(x: Any) -> Any:
    """Whether each element has an imaginary part that is not 0."""
    (x,) = operands("iscomplex", x)
    if not dtypes.is_complex(aval_of(x).dtype):
        return all_false(x)
    part = complex_parts.imag(x)
    return comparison.ne(part, const_like(part, 0))


def isreal(x: Any) -> Any:
    """Whether each element has the imaginary part 0."""
    (x,) = operands("isreal", x)
    if not dtypes.is_complex(aval_of(x).dtype):
        return all_true(x)
    part = complex_parts.imag(x)
    return comparison.eq(part, const_like(part, 0))


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex, whatever the values are."""
    if x is None:
        return False
    try:
        return bool(dtypes.is_complex(aval_of(x).dtype))
    except TypeError:
        return bool(np.iscomplexobj(x))


def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Whether `element` is a number or an array without dims."""
    if isinstance(element, (np.ndarray, Value)) or hasattr(element, "__jax_array__"):
        return np.ndim(element) == 0 if not isinstance(element, Value) else element.aval.ndim == 0
    return bool(np.isscalar(element))
