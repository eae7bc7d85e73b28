"""lax's elementwise functions: strict about dtypes; Python and numpy scalars take the dtype of the arrays they meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.promotion import cast
from mpiarray.ops import arithmetic, bits, comparison, complex_parts, special, transcendental
from mpiarray.ops import select as selects
from mpiarray.types import dtypes, tree

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e", "bessel_i1e", "betainc",
    "bitcast_convert_type", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cbrt", "ceil", "clamp",
    "clz", "complex", "conj", "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igammac", "imag", "integer_pow", "is_finite",
    "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "optimization_barrier", "polygamma",
    "population_count", "pow", "real", "reciprocal", "reduce_precision", "rem", "round", "rsqrt", "select",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt",
    "square", "stop_gradient", "sub", "tan", "tanh", "zeta",
]  # fmt: skip


def operands(name: str, *args: Any) -> list[Any]:
    """Values; host scalars in the dtype of the arrays (their own where there is none)."""
    for x in args:
        if not isinstance(x, (Value, np.ndarray, np.generic)) and not dtypes.is_python_scalar(x):
            raise TypeError(f"lax.{name} requires arrays or scalars, got {x!r} of type {type(x)}")
    arrays = [x for x in args if not dtypes.is_python_scalar(x)]
    if len(arrays) == len(args):
        return list(args)
    if arrays:
        dtype, weak = aval_of(arrays[0]).dtype, False
    else:
        dtype, weak = dtypes.result_pair(*args)
    return [cast(x, dtype, weak) if dtypes.is_python_scalar(x) else x for x in args]


def _function(op: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return op(*operands(name, *args))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (
        f"{doc}, element by element.  Operands of one dtype and rank (scalars go with any); no communication."
    )
    return call


def _named(name: str) -> str:
    return name.replace("_", " ")


add, sub, mul, div, rem, max, min, pow, nextafter = (
    _function(op, name, doc)
    for op, name, doc in (
        (arithmetic.add, "add", "Sum"), (arithmetic.sub, "sub", "Difference"), (arithmetic.mul, "mul", "Product"),
        (arithmetic.div, "div", "Quotient (integers truncate)"), (arithmetic.rem, "rem", "Remainder with the dividend's sign"),
        (arithmetic.max_, "max", "Larger"), (arithmetic.min_, "min", "Smaller"), (arithmetic.pow_, "pow", "Power"),
        (arithmetic.nextafter, "nextafter", "Next float towards another"),
    )
)  # fmt: skip

neg, floor, ceil, square, sqrt, rsqrt, cbrt, log = (
    _function(op, name, _named(name).capitalize())
    for op, name in (
        (arithmetic.neg, "neg"), (arithmetic.floor, "floor"), (arithmetic.ceil, "ceil"), (arithmetic.square, "square"), (arithmetic.sqrt, "sqrt"),
        (arithmetic.rsqrt, "rsqrt"), (arithmetic.cbrt, "cbrt"), (arithmetic.log, "log"),
    )
)  # fmt: skip

exp, exp2, expm1, log1p, tanh, logistic, sin, cos, tan, asin, acos, atan, atan2, sinh, cosh, asinh, acosh, atanh = (
    _function(getattr(transcendental, name), name, _named(name).capitalize())
    for name in (
        "exp", "exp2", "expm1", "log1p", "tanh", "logistic", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh",
        "acosh", "atanh",
    )
)  # fmt: skip

lgamma, digamma, polygamma, zeta, igamma, igammac, erf, erfc, erf_inv, bessel_i0e, bessel_i1e = (
    _function(getattr(special, name), name, _named(name).capitalize())
    for name in (
        "lgamma",
        "digamma",
        "polygamma",
        "zeta",
        "igamma",
        "igammac",
        "erf",
        "erfc",
        "erf_inv",
        "bessel_i0e",
        "bessel_i1e",
    )
)
betainc = _function(special.regularized_incomplete_beta, "betainc", "Regularized incomplete beta function")

abs, sign, real, imag, complex, conj = (
    _function(op, name, doc)
    for op, name, doc in (
        (complex_parts.abs_, "abs", "Absolute value"), (complex_parts.sign, "sign", "Sign"), (complex_parts.real, "real", "Real part"),
        (complex_parts.imag, "imag", "Imaginary part"), (complex_parts.complex_, "complex", "Complex number of two parts"),
        (complex_parts.conj, "conj", "Conjugate"),
    )
)  # fmt: skip

eq, ne, lt, le, gt, ge, is_finite = (
    _function(getattr(comparison, name), name, "Comparison")
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "is_finite")
)

bitwise_not, bitwise_and, bitwise_or, bitwise_xor = (
    _function(op, name, _named(name).capitalize())
    for op, name in (
        (bits.not_, "bitwise_not"),
        (bits.and_, "bitwise_and"),
        (bits.or_, "bitwise_or"),
        (bits.xor, "bitwise_xor"),
    )
)
shift_left, shift_right_arithmetic, shift_right_logical, population_count, clz = (
    _function(getattr(bits, name), name, _named(name).capitalize())
    for name in ("shift_left", "shift_right_arithmetic", "shift_right_logical", "population_count", "clz")
)


def round(x: Any, rounding_method: int = 0) -> Any:
    """Nearest integer; halves go away from zero (0) or to even (1)."""
    return arithmetic.round_(*operands("round", x), rounding_method=rounding_method)


def integer_pow(x: Any, y: int) -> Any:
    """`x ** y` for a static integer `y`."""
    return arithmetic.integer_pow(*operands("integer_pow", x), y=y)


def reciprocal(x: Any) -> Any:
    """`1 / x`."""
    return integer_pow(x, -1)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """The operand rounded to a float of fewer bits, in its own dtype."""
    return arithmetic.reduce_precision(
        *operands("reduce_precision", operand), exponent_bits=exponent_bits, mantissa_bits=mantissa_bits
    )


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The same bits as another dtype; a narrower one adds a trailing dim."""
    return bits.bitcast_convert_type(
        *operands("bitcast_convert_type", operand), new_dtype=dtypes.canonicalize(new_dtype)
    )


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """The operand as another dtype."""
    return cast(operand, dtypes.requested(new_dtype, "convert_element_type"))


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where `pred`, else `on_false`: all of one shape and sharding (`pred` may be a scalar)."""
    return selects.select_n(pred, *reversed(operands("select", on_true, on_false)))


def select_n(which: Any, *cases: Any) -> Any:
    """`cases[which]`, element by element."""
    return selects.select_n(which, *operands("select_n", *cases))


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` limited to [min, max]; the bounds are scalars or of its shape."""
    return selects.clamp(*operands("clamp", min, x, max))


def stop_gradient(x: Any) -> Any:
    """`x` (or a tree), with zero derivative."""
    return tree.map(selects.stop_gradient, x)


def optimization_barrier(operand: Any) -> Any:
    """The values of a tree; nothing that comes after is computed before all of them are."""
    leaves, structure = tree.flatten(operand)
    return tree.unflatten(structure, selects.optimization_barrier(*leaves)) if leaves else operand
