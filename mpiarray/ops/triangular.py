"""Triangular systems and the Cholesky factor.

numpy has no triangular solver: the kernel splits matrices in halves until small blocks are left, so that nearly all of
its work is matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, Zero
from mpiarray.core.value import aval_of
from mpiarray.ops.arithmetic import add, neg, sub
from mpiarray.ops.complex_parts import conj
from mpiarray.ops.linear import add_tangents, instantiate, tangent_aval
from mpiarray.ops.matrices import (
    adjoint,
    check_matrix,
    guarded,
    matrix_op,
    product,
    same_type,
    scaled,
    swapped,
    wide,
)
from mpiarray.ops.matrices import (
    lower as lower_part,
)
from mpiarray.ops.matrices import (
    upper as upper_part,
)
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_SMALL = 32  # rows below which rows are eliminated one by one


def solve_triangle(a: np.ndarray, b: np.ndarray, *, lower: bool, unit: bool) -> np.ndarray:
    """`a x = b` for stacks of triangular `a`; only the triangle that is named is read.  Zeros on the diagonal give
    infinities.
    """
    x = np.array(np.broadcast_to(b, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])))
    _solve_in_place(a, x, lower, unit)
    return x


def _solve_in_place(a: np.ndarray, x: np.ndarray, lower: bool, unit: bool) -> None:
    n = a.shape[-1]
    if n > _SMALL:
        h = n // 2
        first, second = (slice(0, h), slice(h, n)) if lower else (slice(h, n), slice(0, h))
        _solve_in_place(a[..., first, first], x[..., first, :], lower, unit)
        x[..., second, :] -= np.matmul(a[..., second, first], x[..., first, :])
        _solve_in_place(a[..., second, second], x[..., second, :], lower, unit)
        return
    for k in range(n) if lower else range(n - 1, -1, -1):
        if not unit:
            x[..., k, :] /= a[..., k, k, None]
        rest = slice(k + 1, n) if lower else slice(0, k)
        x[..., rest, :] -= a[..., rest, k, None] * x[..., k, None, :]


def _impl(
    a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    dtype = b.dtype
    a, b = wide(a), wide(b)
    if conjugate_a:
        a = a.conj()
    if transpose_a:
        a, lower = np.swapaxes(a, -1, -2), not lower
    if left_side:
        return dtypes.cast(solve_triangle(a, b, lower=lower, unit=unit_diagonal), dtype)
    # x a = b is a^T x^T = b^T
    out = solve_triangle(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2), lower=not lower, unit=unit_diagonal)
    return dtypes.cast(np.swapaxes(out, -1, -2), dtype)


def _type(a: ShapedArray, b: ShapedArray, *, left_side: bool, **params: Any) -> Out:
    check_matrix("triangular_solve", a, square=True)
    check_matrix("triangular_solve", b)
    if a.dtype != b.dtype:
        raise TypeError(f"triangular_solve: operands must have one dtype, got {a.str_short()} and {b.str_short()}")
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2 if left_side else -1]:
        raise TypeError(
            f"triangular_solve requires both arguments to have the same number of dimensions, equal batch "
            "dimensions and a common "
            f"dimension, got {a.str_short()} and {b.str_short()} with left_side={left_side}"
        )
    return Out(b.shape, b.dtype)


def _jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (a, b), (da, db) = primals, tangents
    x = op(a, b, **params)
    terms = []
    if not isinstance(db, Zero):
        terms.append(op(a, db, **params))
    if not isinstance(da, Zero):
        inside = int(params["unit_diagonal"])
        part = lower_part(da, -inside) if params["lower"] else upper_part(da, inside)
        part = neg(part)
        if params["transpose_a"]:
            part = swapped(part)
        if params["conjugate_a"] and dtypes.is_complex(aval_of(part).dtype):
            part = conj(part)
        moved = product(part, x) if params["left_side"] else product(x, part)
        terms.append(op(a, moved, **params))
    return x, add_tangents(terms, x.aval)


def _transpose(op: Op, ct: Any, a: Any, b: Any, *, transpose_a: bool, **params: Any) -> list[Any]:
    assert isinstance(b, Linear) and not isinstance(a, Linear), "a solution is linear in the right side only"
    return [None, op(a, ct, transpose_a=not transpose_a, **params)]


triangular_solve = matrix_op(
    "triangular_solve", (2, 2), (2,), type_rule=_type, impl=_impl, jvp=_jvp, transpose=_transpose,
    hlo_name="triangular-solve",
)  # fmt: skip


def solve(a: Any, b: Any, *, lower: bool, left: bool = True, adjoint_a: bool = False, unit: bool = False) -> Any:
    """`triangular_solve` with its parameters in short, for derivatives."""
    return triangular_solve(
        a, b, left_side=left, lower=lower, transpose_a=adjoint_a, unit_diagonal=unit,
        conjugate_a=adjoint_a and dtypes.is_complex(aval_of(a).dtype),
    )  # fmt: skip


# -- cholesky ----------------------------------------------------------------------------------------------


def _cholesky_type(x: ShapedArray) -> Out:
    check_matrix("cholesky", x, square=True)
    return same_type(x)


def _cholesky_impl(x: Any) -> np.ndarray:
    return dtypes.cast(guarded(np.linalg.cholesky, wide(x), core=(2,))[0], x.dtype)


def _cholesky_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """L^-1 dA L^-H is split in a lower and an upper part (Smith, 1995)."""
    factor = op(*primals)
    if isinstance(tangents[0], Zero):
        return factor, Zero(tangent_aval(factor.aval))
    middle = solve(factor, instantiate(tangents[0]), lower=True, left=False, adjoint_a=True)
    middle = solve(factor, middle, lower=True)
    strict = lower_part(middle, -1)
    half = scaled(sub(lower_part(middle), strict), 0.5)
    return factor, product(factor, add_tangents([strict, half], factor.aval))


cholesky = matrix_op("cholesky", (2,), (2,), type_rule=_cholesky_type, impl=_cholesky_impl, jvp=_cholesky_jvp)


def symmetrized(x: Any) -> Any:
    """The Hermitian part, (x + x^H) / 2."""
    return scaled(add(x, adjoint(x)), 0.5)
