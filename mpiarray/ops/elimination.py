"""Elimination with pivots: LU factors, solutions of square systems, determinants.

The LU factors are ours, because numpy keeps LAPACK's to itself: panels of columns are eliminated one by one for all
matrices of a stack at once, the rest is matrix products.  Solutions and determinants come from LAPACK.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, Zero
from mpiarray.core.plan import spec_from
from mpiarray.core.value import aval_of, literal
from mpiarray.ops.arithmetic import mul, neg, sub
from mpiarray.ops.comparison import eq
from mpiarray.ops.complex_parts import real
from mpiarray.ops.linear import (
    add_tangents,
    broadcast_in_dim,
    broadcast_like,
    expand_dims,
    instantiate,
    reduce_sum,
    sharding_of,
    tangent_aval,
    zero_jvp,
)
from mpiarray.ops.matrices import (
    as_dtype,
    as_rows,
    check_matrix,
    diagonal,
    guarded,
    identity_like,
    lower,
    matrix_op,
    product,
    same_type,
    swapped,
    upper,
    wide,
)
from mpiarray.ops.shape import iota
from mpiarray.ops.slicing import pad, slice_
from mpiarray.ops.triangular import solve as solve_triangular
from mpiarray.ops.triangular import solve_triangle
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

_PANEL = 32
_INDEX = np.dtype(np.int32)

# -- LU ----------------------------------------------------------------------------------------------------


def factorized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both factors in one matrix, the pivots (row k was exchanged with row pivots[k]) and the permutation of the
    rows.
    """
    x = np.array(x, order="C")
    *batch, m, n = x.shape
    flat = x.reshape(math.prod(batch), m, n)
    count, least = len(flat), min(m, n)
    pivots = np.zeros((count, least), _INDEX)
    permutation = np.broadcast_to(np.arange(m, dtype=_INDEX), (count, m)).copy()
    every = np.arange(count)
    for start in range(0, least, _PANEL):
        end = min(start + _PANEL, least)
        for k in range(start, end):
            # NaN counts as largest, so that it comes out
            p = k + np.argmax(np.abs(flat[:, k:, k]), axis=1)
            pivots[:, k] = p
            flat[every, k], flat[every, p] = flat[every, p], flat[every, k].copy()
            permutation[every, k], permutation[every, p] = permutation[every, p], permutation[every, k].copy()
            pivot = flat[:, k, k, None]
            flat[:, k + 1 :, k] = np.where(
                pivot == 0, flat[:, k + 1 :, k], flat[:, k + 1 :, k] / np.where(pivot == 0, 1, pivot)
            )
            flat[:, k + 1 :, k + 1 : end] -= flat[:, k + 1 :, k, None] * flat[:, k, None, k + 1 : end]
        if end < n:
            panel = flat[:, start:end, start:end]
            right = solve_triangle(panel, flat[:, start:end, end:], lower=True, unit=True)
            flat[:, start:end, end:] = right
            flat[:, end:, end:] -= np.matmul(flat[:, end:, start:end], right)
    return flat.reshape(x.shape), pivots.reshape(*batch, least), permutation.reshape(*batch, m)


def _lu_type(x: ShapedArray) -> list[Out]:
    check_matrix("lu", x)
    *batch, m, n = x.shape
    return [Out(x.shape, x.dtype), Out((*batch, min(m, n)), _INDEX), Out((*batch, m), _INDEX)]


def _lu_impl(x: Any) -> list[np.ndarray]:
    factors, pivots, permutation = factorized(wide(x))
    return [dtypes.cast(factors, x.dtype), pivots, permutation]


def _lu_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """L^-1 P dA U^-1 is split in a strictly lower and an upper part."""
    factors, pivots, permutation = op(*primals)
    none = [Zero(tangent_aval(aval_of(v))) for v in (factors, pivots, permutation)]
    if isinstance(tangents[0], Zero):
        return [factors, pivots, permutation], none
    aval = aval_of(factors)
    m, n = aval.shape[-2:]
    k = min(m, n)
    left = _padded(_part(factors, m, k, strict=True), m, m, aval)
    left = add_tangents([lower(left, -1), identity_like(aval_of(left))], aval_of(left))
    right = _padded(_part(factors, k, n, strict=False), n, n, aval)
    if n > k:
        right = add_tangents([right, _lower_right_unit(right, k)], aval_of(right))
    moved = product(rows_permuted(permutation, aval), instantiate(tangents[0]))
    middle = solve_triangular(left, moved, lower=True, unit=True)
    middle = solve_triangular(right, middle, lower=False, left=False)
    change = add_tangents([product(left, lower(middle, -1)), product(upper(middle), right)], aval)
    return [factors, pivots, permutation], [change, none[1], none[2]]


def _part(factors: Any, rows: int, columns: int, *, strict: bool) -> Any:
    """The leading rows and columns of the lower (strictly) or the upper factor."""
    shape = aval_of(factors).shape
    part = slice_(
        factors, start_indices=(0,) * len(shape), limit_indices=(*shape[:-2], rows, columns), strides=None
    )  # fmt: skip
    return lower(part, -1) if strict else upper(part)


def _padded(x: Any, rows: int, columns: int, aval: ShapedArray) -> Any:
    shape = aval_of(x).shape
    config = (*((0, 0, 0),) * (len(shape) - 2), (0, rows - shape[-2], 0), (0, columns - shape[-1], 0))
    return pad(x, literal(0, aval.dtype), padding_config=config) if any(c != (0, 0, 0) for c in config) else x


def _lower_right_unit(x: Any, start: int) -> Any:
    """Unit matrices without the first `start` rows."""
    one = identity_like(aval_of(x))
    shape = aval_of(x).shape
    inner = slice_(
        one, start_indices=(*(0,) * (len(shape) - 2), start, start), limit_indices=shape, strides=None
    )  # fmt: skip
    config = (*((0, 0, 0),) * (len(shape) - 2), (start, 0, 0), (start, 0, 0))
    return pad(inner, literal(0, aval_of(x).dtype), padding_config=config)


def rows_permuted(permutation: Any, aval: ShapedArray) -> Any:
    """Matrices whose product with a matrix takes its rows in the order of the permutation."""
    p = aval_of(permutation)
    shape = (*p.shape, p.shape[-1])
    wanted = as_rows(permutation)
    square = broadcast_in_dim(
        wanted, shape=shape, broadcast_dimensions=tuple(range(len(shape))), sharding=_square_sharding(p)
    )  # fmt: skip
    columns = iota(dtype=_INDEX, shape=shape, dimension=len(shape) - 1, sharding=sharding_of(aval_of(square)))
    return as_dtype(eq(square, columns), aval.dtype)


def _square_sharding(p: ShapedArray) -> NamedSharding | None:
    """The sharding of an array with one more dim, unsharded, at the end."""
    return None if p.mesh.empty else NamedSharding(p.mesh, spec_from([*p.dims, ()]))


lu = matrix_op("lu", (2,), (2, 1, 1), type_rule=_lu_type, impl=_lu_impl, jvp=_lu_jvp)


def _permutation_type(pivots: ShapedArray, *, size: int) -> Out:
    if pivots.dtype != _INDEX or not pivots.ndim or pivots.shape[-1] > size:
        raise TypeError(
            f"lu_pivots_to_permutation: pivots must be int32 vectors of at most {size} elements, got "
            f"{pivots.str_short()}"
        )
    return Out((*pivots.shape[:-1], size), _INDEX)


def _permutation_impl(pivots: Any, *, size: int) -> np.ndarray:
    pivots = np.asarray(pivots)
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    out = np.broadcast_to(np.arange(size, dtype=_INDEX), (len(flat), size)).copy()
    every = np.arange(len(flat))
    for k in range(flat.shape[1]):
        p = flat[:, k]
        out[every, k], out[every, p] = out[every, p], out[every, k].copy()
    return out.reshape(*pivots.shape[:-1], size)


lu_pivots_to_permutation = matrix_op(
    "lu_pivots_to_permutation", (1,), (1,), type_rule=_permutation_type, impl=_permutation_impl, jvp=zero_jvp
)  # fmt: skip


def pivots_to_permutation(pivots: Any, size: int) -> Any:
    """The order of the rows after exchanges of row k with row `pivots[k]`."""
    return lu_pivots_to_permutation(pivots, size=size)


# -- solutions -----------------------------------------------------------------------------------------------


def _solve_type(a: ShapedArray, b: ShapedArray) -> Out:
    check_matrix("solve", a, square=True)
    check_matrix("solve", b)
    if a.dtype != b.dtype or a.shape[:-1] != b.shape[:-1]:
        raise TypeError(
            f"solve: matrices and right sides of equal dtypes, batch dimensions and rows are needed, got "
            f"{a.str_short()} and {b.str_short()}"
        )
    return Out(b.shape, b.dtype)


def _solve_impl(a: Any, b: Any) -> np.ndarray:
    wide_a, wide_b = wide(a), wide(b)
    try:
        out = np.linalg.solve(wide_a, wide_b)
    except np.linalg.LinAlgError:
        out = _by_factors(wide_a, wide_b)
    return dtypes.cast(out, b.dtype)


def _by_factors(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solutions of a stack that has singular matrices: infinities and NaN come out where there is none."""
    factors, _, permutation = factorized(a)
    moved = np.take_along_axis(b, permutation[..., None].astype(np.intp), axis=-2)
    y = solve_triangle(factors, moved, lower=True, unit=True)
    return solve_triangle(factors, y, lower=False, unit=False)


def _solve_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (a, b), (da, db) = primals, tangents
    x = op(a, b)
    right = [t for t in (db,) if not isinstance(t, Zero)]
    if not isinstance(da, Zero):
        right.append(neg(product(da, x)))
    if not right:
        return x, Zero(tangent_aval(x.aval))
    return x, op(a, add_tangents(right, x.aval))


def _solve_transpose(op: Op, ct: Any, a: Any, b: Any) -> list[Any]:
    assert isinstance(b, Linear) and not isinstance(a, Linear), "a solution is linear in the right side only"
    return [None, op(swapped(a), ct)]


linear_solve = matrix_op(
    "linear_solve", (2, 2), (2,), type_rule=_solve_type, impl=_solve_impl, jvp=_solve_jvp, transpose=_solve_transpose
)  # fmt: skip


def inverse(a: Any) -> Any:
    """The inverses of square matrices."""
    return linear_solve(a, identity_like(aval_of(a)))


# -- determinants ----------------------------------------------------------------------------------------------


def trace(x: Any) -> Any:
    d = diagonal(x)
    return reduce_sum(d, axes=(aval_of(d).ndim - 1,), out_sharding=None)


def _slogdet_type(x: ShapedArray) -> list[Out]:
    check_matrix("slogdet", x, square=True)
    return [Out(x.shape[:-2], x.dtype), Out(x.shape[:-2], dtypes.real_dtype(x.dtype))]


def _slogdet_impl(x: Any) -> list[np.ndarray]:
    sign, logarithm = np.linalg.slogdet(wide(x))
    return [dtypes.cast(np.asarray(sign), x.dtype), dtypes.cast(np.asarray(logarithm), dtypes.real_dtype(x.dtype))]


def _slogdet_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    sign, logarithm = op(*primals)
    nothing = [Zero(tangent_aval(aval_of(v))) for v in (sign, logarithm)]
    if isinstance(tangents[0], Zero):
        return [sign, logarithm], nothing
    slope = trace(linear_solve(primals[0], instantiate(tangents[0])))
    if not dtypes.is_complex(aval_of(sign).dtype):
        return [sign, logarithm], [nothing[0], slope]
    turn = sub(slope, as_dtype(real(slope), aval_of(slope).dtype))
    return [sign, logarithm], [mul(turn, sign), real(slope)]


slogdet = matrix_op("slogdet", (2,), (0, 0), type_rule=_slogdet_type, impl=_slogdet_impl, jvp=_slogdet_jvp)


def _det_type(x: ShapedArray) -> Out:
    check_matrix("det", x, square=True)
    return Out(x.shape[:-2], x.dtype)


def _det_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Jacobi's formula, with the adjugate, which singular matrices have too."""
    out = op(*primals)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, trace(product(adjugate(primals[0]), instantiate(tangents[0])))


det = matrix_op(
    "det", (2,), (0,), type_rule=_det_type, jvp=_det_jvp,
    impl=lambda x: dtypes.cast(np.asarray(np.linalg.det(wide(x))), x.dtype),
)  # fmt: skip


def _adjugate_type(x: ShapedArray) -> Out:
    check_matrix("adjugate", x, square=True)
    return same_type(x)


def _adjugate_impl(x: Any) -> np.ndarray:
    """From the singular values: of each the product of the others."""
    u, s, vh = guarded(np.linalg.svd, wide(x), core=(2,))
    n = s.shape[-1]
    others = np.stack([np.prod(np.delete(s, k, axis=-1), axis=-1) for k in range(n)], axis=-1) if n else s
    turn = np.linalg.det(u) * np.linalg.det(vh)
    out = turn[..., None, None] * np.matmul(
        np.swapaxes(vh, -1, -2).conj() * others[..., None, :], np.swapaxes(u, -1, -2).conj()
    )
    return dtypes.cast(np.asarray(out), x.dtype)


def _adjugate_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """For matrices that have an inverse."""
    out = op(*primals)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    moved = linear_solve(primals[0], instantiate(tangents[0]))
    whole = expand_dims(trace(moved), (out.aval.ndim - 2, out.aval.ndim - 1))
    return out, sub(mul(broadcast_like(whole, out.aval), out), product(moved, out))


adjugate = matrix_op(
    "adjugate", (2,), (2,), type_rule=_adjugate_type, impl=_adjugate_impl, jvp=_adjugate_jvp
)  # fmt: skip
