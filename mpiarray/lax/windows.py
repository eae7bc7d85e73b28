"""lax's convolutions and reductions over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import Literal, aval_of
from mpiarray.lax.elementwise import operands
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.promotion import out_sharding as checked_sharding
from mpiarray.ops import arithmetic as ops
from mpiarray.ops import conv as convolutions
from mpiarray.ops import pooling
from mpiarray.ops.conv import ConvDimensionNumbers
from mpiarray.ops.shape import rev
from mpiarray.ops.windows import dilated, same_pads
from mpiarray.types import dtypes

__all__ = [
    "ConvDimensionNumbers",
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_transpose",
    "conv_with_general_padding",
    "padtype_to_pads",
    "reduce_window",
]

Padding = str | Sequence[tuple[int, int]]


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Which dims are batch, feature and spatial, from strings such as ('NHWC', 'HWIO', 'NHWC')."""
    if len(lhs_shape) != len(rhs_shape):
        raise TypeError(
            f"convolution requires lhs and rhs ndim to be equal, got {len(lhs_shape)} and {len(rhs_shape)} "
            f"(shapes {tuple(lhs_shape)} and {tuple(rhs_shape)})."
        )
    return convolutions.conv_dimension_numbers(len(lhs_shape), dimension_numbers)


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: str
) -> list[tuple[int, int]]:
    """The (low, high) padding per dim that 'SAME', 'SAME_LOWER' or 'VALID' stands for."""
    ones = (1,) * len(in_shape)
    return list(same_pads(in_shape, window_shape, window_strides, padding, ones, ones))


def _pads(
    padding: Padding,
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    base: Sequence[int],
    dilation: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    if isinstance(padding, str):
        return same_pads(sizes, windows, strides, padding, base, dilation)
    return tuple((int(lo), int(hi)) for lo, hi in padding)


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Convolution (without flipping the kernel) of any number of spatial dims.

    lhs: by default (batch, feature, spatial...); rhs: (out feature, in feature, spatial...); `dimension_numbers` names
    other orders. padding: 'SAME', 'SAME_LOWER', 'VALID' or (low, high) per spatial dim. The batch and the spatial
    dims of lhs may be sharded; with `out_sharding` all dims of both.

    Raises ValueError or TypeError where shapes, groups or dtypes do not fit, ShardingTypeError where the result's
    sharding must be given.
    """
    a, b = aval_of(lhs), aval_of(rhs)
    numbers = conv_dimension_numbers(a.shape, b.shape, dimension_numbers)
    spatial = a.ndim - 2
    strides = tuple(window_strides)
    base = (1,) * spatial if lhs_dilation is None else tuple(lhs_dilation)
    dilation = (1,) * spatial if rhs_dilation is None else tuple(rhs_dilation)
    sizes, windows = [a.shape[d] for d in numbers.lhs_spec[2:]], [b.shape[d] for d in numbers.rhs_spec[2:]]
    params = {
        "window_strides": strides,
        "padding": _pads(padding, sizes, windows, strides, base, dilation),
        "lhs_dilation": base,
        "rhs_dilation": dilation,
        "dimension_numbers": numbers,
        "feature_group_count": int(feature_group_count),
        "batch_group_count": int(batch_group_count),
        "precision": precision,
        "preferred_element_type": None
        if preferred_element_type is None
        else dtypes.canonicalize(preferred_element_type),
        "out_sharding": None,
    }
    if out_sharding is not None:
        shape = convolutions.conv_type(a, b, **params).shape
        params["out_sharding"] = checked_sharding(out_sharding, shape, "conv_general_dilated")
    return convolutions.conv_general_dilated(lhs, rhs, **params)


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """Convolution with batch and features first and no dilation."""
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """Convolution with batch and features first, with paddings and dilations."""
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


_LAST = {2: ("NC", "IO", "NC"), 3: ("NHC", "HIO", "NHC"), 4: ("NHWC", "HWIO", "NHWC"), 5: ("NHWDC", "HWDIO", "NHWDC")}


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Padding,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Any:
    """Upsampling convolution: the operand is dilated by the strides. Features are last without `dimension_numbers`.

    With `transpose_kernel` it is the derivative of `conv_general_dilated` with the same kernel, strides and padding:
    the kernel is flipped and its in and out features trade places. Paddings given as numbers are those of the dilated
    operand, or with `use_consistent_padding` those of the convolution that this one transposes.
    """
    a, b = aval_of(lhs), aval_of(rhs)
    if a.ndim not in _LAST and dimension_numbers is None:
        raise ValueError(f"conv_transpose: dimension_numbers must be given for {a.ndim} dims, got lhs {a.str_short()}")
    numbers = conv_dimension_numbers(
        a.shape, b.shape, _LAST[a.ndim] if dimension_numbers is None else dimension_numbers
    )
    windows = [b.shape[d] for d in numbers.rhs_spec[2:]]
    dilation = (1,) * len(windows) if rhs_dilation is None else tuple(rhs_dilation)
    seen = [dilated(k, r) for k, r in zip(windows, dilation)]
    if isinstance(padding, str):
        pads = [_upsampling_pads(k, s, padding.upper()) for k, s in zip(seen, strides)]
    elif use_consistent_padding:
        pads = [(k - 1 - lo, k - 1 - hi) for k, (lo, hi) in zip(seen, padding)]
    else:
        pads = [(int(lo), int(hi)) for lo, hi in padding]
    if transpose_kernel:
        rhs = rev(rhs, dimensions=tuple(sorted(numbers.rhs_spec[2:])))
        out, into, *spatial = numbers.rhs_spec
        numbers = numbers._replace(rhs_spec=(into, out, *spatial))
    return conv_general_dilated(
        lhs,
        rhs,
        (1,) * len(windows),
        pads,
        tuple(strides),
        dilation,
        numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _upsampling_pads(k: int, stride: int, how: str) -> tuple[int, int]:
    """Padding of the dilated operand for which the convolution that is transposed has 'SAME' or 'VALID' padding."""
    if how == "VALID":
        return k - 1, stride - 1 + max(k - stride, 0)
    if how != "SAME":
        raise ValueError(f"conv_transpose: padding must be 'SAME', 'VALID' or pairs of numbers, got {how!r}")
    low = k - 1 if stride > k - 1 else math.ceil((k + stride - 2) / 2)
    return low, k + stride - 2 - low


_KINDS: dict[str, tuple[str, ...]] = {"sum": ("add",), "max": ("max", "maximum"), "min": ("min", "minimum")}


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Sums, maxima or minima over windows: `computation` is `lax.add`, `lax.max` or `lax.min` (or numpy's).

    operand: array; all other arguments have one entry per dim. init_value: where every window starts, and the value of
    padding; for sums it must be 0. Sharded dims keep their sharding, and must stay divisible.

    Raises NotImplementedError for other computations.
    """
    (x,) = operands("reduce_window", operand)
    aval = aval_of(x)
    name = getattr(computation, "__name__", "")
    kind = next((k for k, names in _KINDS.items() if name in names), None)
    if kind is None:
        raise NotImplementedError(
            f"reduce_window: computation must be lax.add, lax.max or lax.min, got {computation!r}; others can be "
            "written with slices, or `lax.reduce` over `jnp.stack` of slices"
        )
    ones = (1,) * aval.ndim
    base = ones if base_dilation is None else tuple(base_dilation)
    dilation = ones if window_dilation is None else tuple(window_dilation)
    sizes, strides = tuple(window_dimensions), tuple(window_strides)
    pads = _pads(padding, aval.shape, sizes, strides, base, dilation)
    params = {
        "window_dimensions": sizes,
        "window_strides": strides,
        "padding": pads,
        "base_dilation": base,
        "window_dilation": dilation,
    }
    out = pooling.REDUCERS[kind](x, **params)
    init = cast(init_value, aval.dtype)
    value = init.val if isinstance(init, Literal) else init if isinstance(init, (np.ndarray, np.generic)) else None
    if value is not None and np.asarray(value) == pooling.identity_of(kind, aval.dtype):
        return out
    if kind == "sum":
        raise NotImplementedError(f"reduce_window: sums must start from 0, got init_value {init_value!r}; add it later")
    return (ops.max_ if kind == "max" else ops.min_)(out, init)
