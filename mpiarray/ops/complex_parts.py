"""What takes complex numbers apart and puts them together; and absolute value and sign, of all numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, pass_through
from mpiarray.core.value import aval_of
from mpiarray.ops.arithmetic import div, mul, neg
from mpiarray.ops.common import broadcast_shape, check_kind, const_like, same_dtype
from mpiarray.ops.comparison import eq, ge
from mpiarray.ops.elementwise import by_kind, elementwise_type, nary, unary, wrapped
from mpiarray.ops.linear import full_of, unbroadcast
from mpiarray.ops.select import where
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


def _zero_like(x: Any) -> Any:
    return full_of(aval_of(x), 0)


real: Op = unary(
    "real",
    "c",
    np.real,
    lambda t, out, x: real(t),
    result=dtypes.real_dtype,
    transpose=lambda op, ct, x: [complex_(ct, _zero_like(ct))],
    partial_sums=pass_through,
)
imag: Op = unary(
    "imag",
    "c",
    np.imag,
    lambda t, out, x: imag(t),
    result=dtypes.real_dtype,
    transpose=lambda op, ct, x: [complex_(_zero_like(ct), neg(ct))],
    partial_sums=pass_through,
)


def _complex_type(x: ShapedArray, y: ShapedArray) -> Out:
    dtype = same_dtype("complex", (x, y))
    if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"complex does not accept dtype {dtype}. Accepted dtypes are float32 and float64.")
    return Out(broadcast_shape("complex", (x, y)), dtypes.complex_dtype(dtype), x.weak_type and y.weak_type)


def _make_complex(x: Any, y: Any) -> np.ndarray:
    """Part by part: x + 1j*y would turn infinities into NaN."""
    out = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), dtypes.complex_dtype(x.dtype))
    out.real, out.imag = x, y
    return out


complex_: Op = nary(
    "complex",
    "f",
    _make_complex,
    (
        lambda t, out, x, y: complex_(t, const_like(y, 0)),
        lambda t, out, x, y: complex_(const_like(x, 0), t),
    ),
    type_rule=_complex_type,
    transpose=lambda op, ct, x, y: [
        unbroadcast(real(ct), x.aval) if isinstance(x, Linear) else None,
        unbroadcast(neg(imag(ct)), y.aval) if isinstance(y, Linear) else None,
    ],
)


def _conj_type(x: ShapedArray, *, input_dtype: Any) -> Out:
    if x.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        check_kind("conj", x.dtype, "c")
    return Out(x.shape, dtypes.complex_dtype(x.dtype), x.weak_type)


def _conj_transpose(op: Op, ct: Any, x: Linear, *, input_dtype: Any) -> list[Any]:
    out = conj(ct)
    return [out if dtypes.is_complex(input_dtype) else real(out)]


conj_op: Op = nary(
    "conj",
    "fc",
    lambda x, *, input_dtype: np.conj(x).astype(dtypes.complex_dtype(x.dtype), copy=False),
    (lambda t, out, x, *, input_dtype: conj_op(t, input_dtype=input_dtype),),
    type_rule=_conj_type,
    transpose=_conj_transpose,
    partial_sums=pass_through,
)


def conj(x: Any) -> Any:
    """The complex conjugate; of a real array too the result is complex."""
    return conj_op(x, input_dtype=aval_of(x).dtype)


# -- absolute value and sign ------------------------------------------------------------------------------


def _abs_type(x: ShapedArray) -> Out:
    if dtypes.is_unsigned(x.dtype):
        raise TypeError(
            f"abs does not accept dtype {x.dtype}. Accepted dtypes are signed integers, floating and complex."
        )
    return elementwise_type("abs", "ifc", dtypes.real_dtype)(x)


def _abs_jvp(t: Any, out: Any, x: Any) -> Any:
    """The slope at 0 is 1 for real numbers, and 0 for complex ones."""
    if not dtypes.is_complex(aval_of(x).dtype):
        return where(ge(x, const_like(x, 0)), t, neg(t), out.aval)
    length = where(eq(out, const_like(out, 0)), const_like(out, 1), out, out.aval)
    return real(mul(t, div(conj(x), complex_(length, _zero_like(length)))))


abs_ = nary("abs", "ifc", wrapped(np.abs), (_abs_jvp,), type_rule=_abs_type, code=lambda b, x: b.abs(x))


def _float_sign(x: Any) -> Any:
    """-1 or 1; zeros keep their sign, and NaN stays."""
    if x.dtype.kind == "c":
        length = np.abs(x)
        return np.where(length == 0, x, x / np.where(length == 0, np.ones((), length.dtype), length))
    return np.where((x == 0) | np.isnan(x), x, np.copysign(np.ones((), x.dtype), x))


sign = unary("sign", "ifc", by_kind(wrapped(np.sign), _float_sign), None, code=lambda b, x: b.sign(x))
