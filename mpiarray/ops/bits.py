"""Integers as bits: logic, shifts, counts, and reading the bits of one dtype as another.

Shifts by the width or more give 0 (arithmetic shifts to the right: copies of the sign); numpy's do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.plan import Plan, dims_of, require_unsharded, spec_from
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.elementwise import nary, unary, wrapped
from mpiarray.ops.linear import move_dim, zero_jvp
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_NONE = (None, None)

not_ = unary("not", "bi", wrapped(np.invert), None, code=lambda b, x: b.invert(x))
and_ = nary("and", "bi", wrapped(np.bitwise_and), _NONE, code=lambda b, x, y: b.bits("and", x, y))
or_ = nary("or", "bi", wrapped(np.bitwise_or), _NONE, code=lambda b, x, y: b.bits("or", x, y))
xor = nary("xor", "bi", wrapped(np.bitwise_xor), _NONE, code=lambda b, x, y: b.bits("xor", x, y))


def _unsigned(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def _right_logical(x: Any, n: Any) -> np.ndarray:
    dtype = x.dtype
    return np.right_shift(_unsigned(x), _unsigned(n)).view(dtype)


def _right_arithmetic(x: Any, n: Any) -> Any:
    """Copies of the highest bit come in, of unsigned integers too."""
    if x.dtype.kind == "i":
        return np.right_shift(x, n)
    signed = f"i{x.dtype.itemsize}"
    return np.right_shift(np.asarray(x).view(signed), np.asarray(n).view(signed)).view(x.dtype)


def _of_nibbles(f: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """For bit functions whose result depends on the width: 2- and 4-bit integers are widened without their sign."""

    def impl(*blocks: Any) -> np.ndarray:
        dtype = blocks[0].dtype
        if dtype.kind in "iu":
            return f(*blocks, dtypes.bit_width(dtype))
        width = dtypes.bit_width(dtype)
        wide = [np.asarray(b).astype(np.int8).view(np.uint8) & np.uint8(2**width - 1) for b in blocks]
        return f(*wide, width).astype(np.int8).astype(dtype)

    return impl


shift_left = nary("shift_left", "i", wrapped(np.left_shift), _NONE, hlo_name="shift-left")
shift_right_arithmetic = nary(
    "shift_right_arithmetic", "i", wrapped(_right_arithmetic), _NONE, hlo_name="shift-right-arithmetic"
)
shift_right_logical = nary(
    "shift_right_logical",
    "i",
    _of_nibbles(lambda x, n, width: _right_logical(x, n)),
    _NONE,
    hlo_name="shift-right-logical",
)

_ONES = np.array([bin(i).count("1") for i in range(256)], np.uint8)


def _count_ones(x: Any, width: int) -> np.ndarray:
    x = np.asarray(x, order="C")
    return _ONES[x.reshape(*x.shape, 1).view(np.uint8)].sum(axis=-1, dtype=x.dtype)


def _bit_length(x: np.ndarray) -> np.ndarray:
    """The position of the highest set bit, counted from 1; exact for 32 bits and less, where float64 is."""
    return np.frexp(x.astype(np.float64))[1]


def _leading_zeros(x: Any, width: int) -> np.ndarray:
    dtype, bits = x.dtype, _unsigned(x)
    if width <= 32:
        return (width - _bit_length(bits)).astype(dtype)
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return (64 - np.where(high > 0, 32 + _bit_length(high), _bit_length(low))).astype(dtype)


population_count = unary("population_count", "i", _of_nibbles(_count_ones), None, hlo_name="popcnt")
clz = unary("clz", "i", _of_nibbles(_leading_zeros), None, hlo_name="count-leading-zeros")

# -- bitcast_convert_type -----------------------------------------------------------------------------


def _ratio(old: Any, new: Any) -> int:
    """How many new elements one old is read as (> 1), or minus how many old ones make one new (< -1), or 1."""
    a, b = dtypes.storage(old).itemsize, dtypes.storage(new).itemsize
    return a // b if a > b else -(b // a) if b > a else 1


def _bitcast_type(x: ShapedArray, *, new_dtype: Any) -> Out:
    for dtype in (x.dtype, new_dtype):
        if dtypes.is_key(dtype) or dtypes.is_complex(dtype) or dtype == dtypes.float0:
            if x.dtype != new_dtype:
                raise TypeError(
                    f"bitcast_convert_type does not support {x.str_short()} to {new_dtype}: complex numbers and "
                    "keys have no bit pattern"
                )
    if x.dtype != new_dtype and (dtypes.is_bool(x.dtype) or dtypes.is_bool(new_dtype)):
        raise TypeError(
            f"bitcast_convert_type for bool is only possible to bool itself, got {x.str_short()} to {new_dtype}"
        )
    if (
        dtypes.bit_width(x.dtype) != dtypes.bit_width(new_dtype)
        and min(dtypes.bit_width(x.dtype), dtypes.bit_width(new_dtype)) < 8
    ):
        raise TypeError(
            f"bitcast_convert_type between {x.dtype} and {new_dtype} is not supported: "
            "blocks hold 4-bit elements one per byte"
        )
    k = _ratio(x.dtype, new_dtype)
    if k > 1:
        return Out((*x.shape, k), new_dtype)
    if k < -1:
        if not x.ndim or x.shape[-1] != -k:
            raise ValueError(
                f"bitcast_convert_type: attempting to convert {x.str_short()} to {new_dtype}: its last dimension "
                f"must be {-k}, "
                "the number of elements that make one new one"
            )
        return Out(x.shape[:-1], new_dtype)
    return Out(x.shape, new_dtype)


def _bitcast_plan(avals: tuple[ShapedArray, ...], *, new_dtype: Any) -> Plan:
    (x,) = avals
    dims, k = dims_of(x), _ratio(x.dtype, new_dtype)
    if k < -1:
        require_unsharded(
            "bitcast_convert_type",
            x,
            (x.ndim - 1,),
            "the last dimension, which is packed into one element, should be unsharded",
        )
    return Plan((spec_from(dims),), (spec_from((*dims, ()) if k > 1 else dims[:-1] if k < -1 else dims),))


def _bitcast_impl(x: Any, *, new_dtype: Any) -> np.ndarray:
    x, k = np.asarray(x), _ratio(x.dtype, new_dtype)
    if k == 1:
        return x.view(new_dtype)
    shape = (*x.shape, k) if k > 1 else x.shape[:-1]
    return np.ascontiguousarray(x).reshape(-1).view(new_dtype).reshape(shape)


def _bitcast_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], *, new_dtype: Any
) -> tuple[Any, int]:
    return op(move_dim(args[0], dims[0], 0), new_dtype=new_dtype), 0


bitcast_convert_type = define(
    "bitcast_convert_type",
    type_rule=_bitcast_type,
    plan=_bitcast_plan,
    impl=_bitcast_impl,
    jvp=zero_jvp,
    transpose=Undefined("reading bits is not linear"),
    batch=_bitcast_batch,
    hlo_name="bitcast-convert",
)
