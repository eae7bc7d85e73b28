"""Products of arrays: dot, matmul and their relatives.  All but outer, kron and cross are one `dot_general`.

`out_sharding=` says where the result lies; `preferred_element_type=` the dtype of sums and result; `precision=` is
accepted and changes nothing: products are as precise as their dtypes, 16-bit floats accumulate in float32.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.plan import dims_of
from mpiarray.core.value import Value, aval_of
from mpiarray.numpy import arithmetic
from mpiarray.numpy.complex_numbers import conjugate
from mpiarray.numpy.contraction import contract, factors, general, result_pair
from mpiarray.numpy.promotion import add_leading, cast, join, promote_dtypes
from mpiarray.numpy.promotion import out_sharding as sharding_of
from mpiarray.ops.convolution import convolve as convolve_op
from mpiarray.ops.dot_kernel import free_dims
from mpiarray.ops.linear import expand_dims, move_dim, reshape, squeeze
from mpiarray.ops.shape import concatenate, rev
from mpiarray.ops.slicing import slice_
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

__all__ = [
    "convolve", "correlate", "cross", "dot", "inner", "kron", "matmul", "matvec", "outer", "tensordot", "vdot",
    "vecdot", "vecmat",
]  # fmt: skip


_TWO_MATRICES = (((1,), (0,)), ((), ()))


def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None) -> Any:
    """The product over the last dim of `a` and the last but one (or only) dim of `b`; a scalar multiplies.

    Raises:
      TypeError: the dims summed over differ in size.
      ShardingTypeError: they are sharded, and it is not said where the result goes.
    """
    a, b = factors("dot", a, b)
    x, y = aval_of(a), aval_of(b)
    summed = ((x.ndim - 1,), (max(0, y.ndim - 2),)) if x.ndim and y.ndim else ((), ())
    return _product("dot", a, b, summed, precision, preferred_element_type, out_sharding)


def _product(name: str, a: Any, b: Any, summed: Any, precision: Any, preferred: Any, out_sharding: Any) -> Value:
    """A product without batch dims."""
    x, y = aval_of(a), aval_of(b)
    shape = [x.shape[d] for d in free_dims(x.ndim, summed[0], ())] + [
        y.shape[d] for d in free_dims(y.ndim, summed[1], ())
    ]
    dtype, weak = result_pair(name, (a, b), preferred)
    return general(a, b, (summed, ((), ())), dtype, weak, precision, sharding_of(out_sharding, shape, name))


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The scalar product of all elements; `a` is conjugated."""
    a, b = factors("vdot", a, b)
    return dot(_flat(conjugate(a)), _flat(b), precision=precision, preferred_element_type=preferred_element_type)


def _flat(x: Any) -> Any:
    return x if aval_of(x).ndim == 1 else reshape(x, new_sizes=(aval_of(x).size,), dimensions=None, sharding=None)


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The product over the last dims of both; a scalar multiplies."""
    a, b = factors("inner", a, b)
    x, y = aval_of(a), aval_of(b)
    summed = ((x.ndim - 1,), (y.ndim - 1,)) if x.ndim and y.ndim else ((), ())
    return _product("inner", a, b, summed, precision, preferred_element_type, None)


def outer(a: Any, b: Any, out: None = None) -> Any:
    """All products of an element of `a` with an element of `b`, both flattened: `[a.size, b.size]`."""
    _no_out("outer", out)
    a, b = factors("outer", a, b)
    return arithmetic.multiply(expand_dims(_flat(a), (1,)), expand_dims(_flat(b), (0,)))


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise NotImplementedError(f"The 'out' argument to jnp.{name} is not supported: arrays are immutable.")


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The product over several dims: the last `axes` of `a` with the first of `b`, or those of a pair of sequences.

    Raises TypeError where axes do not fit the operands.
    """
    a, b = factors("tensordot", a, b)
    x, y = aval_of(a), aval_of(b)
    return _product("tensordot", a, b, _tensordot_dims(axes, x, y), precision, preferred_element_type, out_sharding)


def _tensordot_dims(axes: Any, x: ShapedArray, y: ShapedArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if np.ndim(axes) == 0 and not isinstance(axes, (tuple, list)):
        n = operator.index(axes)
        if n > min(x.ndim, y.ndim):
            raise TypeError(
                f"Number of tensordot axes (axes {n}) exceeds input ranks ({x.str_short()} and {y.str_short()})"
            )
        return tuple(range(x.ndim - n, x.ndim)), tuple(range(n))
    if len(axes) != 2:
        raise TypeError(f"tensordot axes must be an int or a pair of ints or sequences of ints, got {axes}")
    left, right = ([operator.index(d) for d in np.atleast_1d(np.asarray(side, int))] for side in axes)
    if len(left) != len(right):
        raise TypeError(f"tensordot requires axes lists to have equal length, got {left} and {right}.")
    return tuple(normal_axis("tensordot", d, x.ndim) for d in left), tuple(
        normal_axis("tensordot", d, y.ndim) for d in right
    )


def normal_axis(name: str, axis: Any, ndim: int) -> int:
    """An axis counted from the front.  Raises ValueError when it is out of bounds."""
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise ValueError(f"{name}: axis {axis} is out of bounds for array of dimension {ndim}")
    return axis % ndim


# -- matmul and products of stacks -------------------------------------------------------------------------


def matmul(
    a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Any:
    """The product of matrices or stacks of matrices; batch dims broadcast, vectors gain a dim for the moment.

    Raises:
      ValueError: an operand is a scalar, or batch dims do not fit ("Incompatible types for matmul arguments").
      TypeError: the dims summed over differ in size.
      ShardingTypeError: see `dot`.
    """
    if isinstance(a, Value) and isinstance(b, Value) and preferred_element_type is None and out_sharding is None:
        x, y = a.aval, b.aval
        if x.ndim == y.ndim == 2 and x.dtype == y.dtype and not x.weak_type:  # the common case, and a cheap one
            return general(a, b, _TWO_MATRICES, x.dtype, False, precision, None)
    a, b = factors("matmul", a, b)
    for i, x in enumerate((a, b)):
        if not aval_of(x).ndim:
            raise ValueError(f"matmul input operand {i} must have ndim at least 1, but it has ndim 0")
    left = ("m", "sum") if aval_of(a).ndim > 1 else ("sum",)
    right = ("sum", "n") if aval_of(b).ndim > 1 else ("sum",)
    return _stacked("matmul", a, left, b, right, ("m", "n"), precision, preferred_element_type, out_sharding)


def _stacked(
    name: str,
    a: Any,
    a_core: Sequence[str],
    b: Any,
    b_core: Sequence[str],
    out_core: Sequence[str],
    precision: Any,
    preferred: Any,
    out_sharding: Any,
) -> Value:
    """A product of stacks: `core` names the last dims of each operand, the dims before them broadcast."""
    full = aval_of(a), aval_of(b)
    a, a_batch, b, b_batch, batch = _batch_dims(name, a, len(a_core), b, len(b_core), full)
    out_names = (*batch, *(n for n in out_core if n in a_core or n in b_core))
    sizes = dict(zip((*a_batch, *a_core), aval_of(a).shape)) | dict(zip((*b_batch, *b_core), aval_of(b).shape))
    dtype, weak = result_pair(name, (a, b), preferred)
    sharding = sharding_of(out_sharding, [sizes[n] for n in out_names], name)
    return contract(
        a,
        (*a_batch, *a_core),
        b,
        (*b_batch, *b_core),
        out_names,
        dtype=dtype,
        weak=weak,
        precision=precision,
        sharding=sharding,
    )


def _batch_dims(name: str, a: Any, a_core: int, b: Any, b_core: int, full: tuple[ShapedArray, ShapedArray]) -> Any:
    """Name the batch dims of both sides from the right; dims of size 1 that meet larger ones are squeezed."""
    x, y = full
    counts = x.ndim - a_core, y.ndim - b_core
    most = max(counts)
    names: tuple[list[int], list[int]] = ([], [])
    gone: tuple[list[int], list[int]] = ([], [])
    for k in range(most):
        places = k - (most - counts[0]), k - (most - counts[1])
        sizes = [v.shape[p] if p >= 0 else None for v, p in zip((x, y), places)]
        if sizes[0] is not None and sizes[1] is not None and sizes[0] != sizes[1] and 1 not in sizes:
            raise _incompatible(name, x, y)
        if (
            sizes[0] is not None
            and sizes[0] == sizes[1]
            and sizes[0] != 1
            and dims_of(x)[places[0]] != dims_of(y)[places[1]]
        ):
            raise _incompatible(name, x, y)
        for side in (0, 1):
            n, other = sizes[side], sizes[1 - side]
            if n is None:
                continue
            # of two dims of size 1 the left one stays
            if n == 1 and other is not None and (other != 1 or side == 1):
                gone[side].append(places[side])
            else:
                names[side].append(k)
    a, b = (squeeze(v, dimensions=tuple(g)) if g else v for v, g in zip((a, b), gone))
    return a, tuple(names[0]), b, tuple(names[1]), tuple(range(most))


def _incompatible(name: str, x: ShapedArray, y: ShapedArray) -> ValueError:
    return ValueError(
        f"Incompatible types for {name} arguments: {x.str_short()} and {y.str_short()}: batch dimensions must have "
        "equal sizes and shardings, "
        "or size 1. Use `jax.reshard` to bring them to one sharding."
    )


def matvec(x1: Any, x2: Any, /) -> Any:
    """The product of stacks of matrices and vectors: `(..., m, n), (..., n) -> (..., m)`."""
    x1, x2 = factors("matvec", x1, x2)
    _at_least("matvec", x1, 2, x2, 1)
    return _stacked("matvec", x1, ("m", "sum"), x2, ("sum",), ("m",), None, None, None)


def vecmat(x1: Any, x2: Any, /) -> Any:
    """The product of stacks of vectors (conjugated) and matrices: `(..., m), (..., m, n) -> (..., n)`."""
    x1, x2 = factors("vecmat", x1, x2)
    _at_least("vecmat", x1, 1, x2, 2)
    return _stacked("vecmat", conjugate(x1), ("sum",), x2, ("sum", "n"), ("n",), None, None, None)


def _at_least(name: str, x: Any, m: int, y: Any, n: int) -> None:
    for i, (v, least) in enumerate(((x, m), (y, n))):
        if aval_of(v).ndim < least:
            raise ValueError(
                f"{name} input operand {i} must have ndim at least {least}, but it has ndim {aval_of(v).ndim}"
            )


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Scalar products of vectors along an axis, the first conjugated; the other dims broadcast."""
    x1, x2 = factors("vecdot", x1, x2)
    x, y = aval_of(x1), aval_of(x2)
    _at_least("vecdot", x1, 1, x2, 1)
    x1 = move_dim(x1, normal_axis("vecdot", axis, x.ndim), x.ndim - 1)
    x2 = move_dim(x2, normal_axis("vecdot", axis, y.ndim), y.ndim - 1)
    if x.shape[axis] != y.shape[axis]:
        raise ValueError(
            f"vecdot requires arrays of equal size along axis {axis}, got {x.str_short()} and {y.str_short()}"
        )
    return _stacked("vecdot", conjugate(x1), ("sum",), x2, ("sum",), (), precision, preferred_element_type, None)


# -- products that are not sums --------------------------------------------------------------------------


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product: blocks of `b`, multiplied by the elements of `a`."""
    a, b = (
        reshape(x, new_sizes=(1,), dimensions=None, sharding=None) if not aval_of(x).ndim else x
        for x in promote_dtypes(*factors("kron", a, b))
    )
    ndim = max(aval_of(a).ndim, aval_of(b).ndim)
    a, b = (add_leading(x, ndim - aval_of(x).ndim) for x in (a, b))
    left, right = aval_of(a).shape, aval_of(b).shape
    a = expand_dims(a, tuple(range(1, 2 * ndim, 2)))
    b = expand_dims(b, tuple(range(0, 2 * ndim, 2)))
    out = arithmetic.multiply(a, b)
    return reshape(out, new_sizes=tuple(m * n for m, n in zip(left, right)), dimensions=None, sharding=None)


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The vector product of vectors of 3 (or 2) components along an axis.

    Raises ValueError where there are other numbers of components.
    """
    a, b = promote_dtypes(*factors("cross", a, b))
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = aval_of(a), aval_of(b)
    a = move_dim(a, normal_axis("cross", axisa, x.ndim), x.ndim - 1)
    b = move_dim(b, normal_axis("cross", axisb, y.ndim), y.ndim - 1)
    sizes = aval_of(a).shape[-1], aval_of(b).shape[-1]
    if not set(sizes) <= {2, 3}:
        raise ValueError(f"Dimension must be either 2 or 3 for cross product, got {x.str_short()} and {y.str_short()}")
    (ax, ay, az), (bx, by, bz) = _components(a), _components(b)
    z = arithmetic.subtract(arithmetic.multiply(ax, by), arithmetic.multiply(ay, bx))
    if sizes == (2, 2):
        return z
    parts = [_difference(ay, bz, az, by), _difference(az, bx, ax, bz), z]
    parts = join("cross", *parts)
    out = concatenate(*(expand_dims(p, (aval_of(p).ndim,)) for p in parts), dimension=aval_of(z).ndim)
    return move_dim(out, aval_of(out).ndim - 1, normal_axis("cross", axisc, aval_of(out).ndim))


def _components(x: Any) -> list[Any]:
    """The components along the last dim; None for a third one that is not there."""
    shape = aval_of(x).shape
    out: list[Any] = []
    for k in range(shape[-1]):
        part = slice_(x, start_indices=(0,) * (len(shape) - 1) + (k,), limit_indices=(*shape[:-1], k + 1), strides=None)
        out.append(squeeze(part, dimensions=(len(shape) - 1,)))
    return out if len(out) == 3 else [*out, None]


def _difference(a: Any, b: Any, c: Any, d: Any) -> Any:
    """a * b - c * d, where None is zero."""
    left = None if a is None or b is None else arithmetic.multiply(a, b)
    right = None if c is None or d is None else arithmetic.multiply(c, d)
    if right is None:
        return left
    return arithmetic.negative(right) if left is None else arithmetic.subtract(left, right)


def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The discrete convolution of two 1-D arrays; `mode` is 'full', 'same' or 'valid'.

    Raises:
      ValueError: an operand is not 1-D or empty, or the mode is unknown.
      ShardingTypeError: an operand is sharded.
    """
    return _convolved("convolve", a, v, mode, preferred_element_type)


def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The cross-correlation of two 1-D arrays, `sum_n a[n + k] conj(v[n])`; `mode` is 'valid', 'same' or 'full'.

    Raises:
      As `convolve`.
    """
    a, v = factors("correlate", a, v)
    if aval_of(v).ndim != 1:
        raise ValueError(f"correlate() only support 1-dimensional inputs, got {aval_of(v).str_short()}")
    return _convolved("correlate", a, rev(conjugate(v), dimensions=(0,)), mode, preferred_element_type)


def _convolved(name: str, a: Any, v: Any, mode: str, preferred: Any) -> Any:
    a, v = factors(name, a, v)
    dtype, weak = result_pair(name, (a, v), preferred)
    dtype = dtype if preferred is not None else dtypes.to_inexact(dtype)
    a, v = cast(a, dtype, weak), cast(v, dtype, weak)
    x, y = aval_of(a), aval_of(v)
    if x.ndim != 1 or y.ndim != 1:
        raise ValueError(f"{name}() only support 1-dimensional inputs, got {x.str_short()} and {y.str_short()}")
    if not x.size or not y.size:
        raise ValueError(f"{name}: inputs cannot be empty, got {x.str_short()} and {y.str_short()}")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"mode must be one of ['full', 'same', 'valid'], got {mode!r}")
    out = convolve_op(a, v)
    longer, shorter = max(x.size, y.size), min(x.size, y.size)
    # which side an odd number of extra elements falls on follows numpy, which swaps the operands of correlate
    swapped = name == "correlate" and x.size < y.size
    start, count = {
        "full": (0, longer + shorter - 1),
        "same": (shorter // 2 if swapped else (shorter - 1) // 2, longer),
        "valid": (shorter - 1, longer - shorter + 1),
    }[mode]
    return slice_(out, start_indices=(start,), limit_indices=(start + count,), strides=None)
