"""Orthogonal factors and spectra: QR, eigenvalues and -vectors, singular values, the pseudo-inverse.

Values come from LAPACK through numpy.  Derivatives: Giles, "An extended collection of matrix derivative results", 2008;
of the pseudo-inverse: Golub and Pereyra, 1973.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op, Out, Zero
from mpiarray.core.value import aval_of, literal
from mpiarray.ops.arithmetic import div, mul, neg, sub
from mpiarray.ops.comparison import eq
from mpiarray.ops.complex_parts import real
from mpiarray.ops.elimination import linear_solve
from mpiarray.ops.linear import add_tangents, broadcast_like, instantiate, tangent_aval
from mpiarray.ops.matrices import (
    adjoint,
    as_columns,
    as_dtype,
    as_rows,
    check_matrix,
    diagonal,
    guarded,
    identity_like,
    is_diagonal,
    matrix_op,
    product,
    spread,
    wide,
)
from mpiarray.ops.matrices import (
    lower as lower_part,
)
from mpiarray.ops.select import where
from mpiarray.ops.triangular import solve as solve_triangular
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


def _no_tangents(outs: Sequence[Any]) -> list[Any]:
    return [Zero(tangent_aval(aval_of(v))) for v in outs]


# -- QR --------------------------------------------------------------------------------------------------------


def _qr_type(x: ShapedArray, *, full_matrices: bool) -> list[Out]:
    check_matrix("qr", x)
    *batch, m, n = x.shape
    k = m if full_matrices else min(m, n)
    return [Out((*batch, m, k), x.dtype), Out((*batch, k, n), x.dtype)]


def _qr_impl(x: Any, *, full_matrices: bool) -> list[np.ndarray]:
    a = wide(x)
    q, r = guarded(lambda v: tuple(np.linalg.qr(v, mode="complete" if full_matrices else "reduced")), a, core=(2,))
    return [dtypes.cast(q, x.dtype), dtypes.cast(r, x.dtype)]


def _qr_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, full_matrices: bool) -> tuple[Any, Any]:
    q, r = op(*primals, full_matrices=full_matrices)
    if isinstance(tangents[0], Zero):
        return [q, r], _no_tangents([q, r])
    m, n = aval_of(primals[0]).shape[-2:]
    if m < n or (full_matrices and m != n):
        raise NotImplementedError(
            f"Unimplemented case of QR decomposition derivative: got {aval_of(primals[0]).str_short()} with "
            f"full_matrices={full_matrices}; "
            "it exists for matrices with at least as many rows as columns, and reduced factors"
        )
    scaled_change = solve_triangular(r, instantiate(tangents[0]), lower=False, left=False)
    inner = product(adjoint(q), scaled_change)
    below = lower_part(inner, -1)
    turn = sub(below, adjoint(below))
    if dtypes.is_complex(aval_of(inner).dtype):
        # R has a real diagonal: the imaginary part of the diagonal belongs to Q
        on = where(is_diagonal(aval_of(inner)), inner, literal(0, aval_of(inner).dtype), aval_of(inner))
        turn = add_tangents([turn, sub(on, as_dtype(real(on), aval_of(on).dtype))], aval_of(turn))
    rest = sub(turn, inner)
    dq = add_tangents([product(q, rest), scaled_change], aval_of(q))
    return [q, r], [dq, product(neg(rest), r)]


qr = matrix_op("qr", (2,), (2, 2), type_rule=_qr_type, impl=_qr_impl, jvp=_qr_jvp)

# -- Hermitian matrices ------------------------------------------------------------------------------------------


def _eigh_type(x: ShapedArray, *, lower: bool) -> list[Out]:
    check_matrix("eigh", x, square=True)
    return [Out(x.shape, x.dtype), Out(x.shape[:-1], dtypes.real_dtype(x.dtype))]


def _eigh_impl(x: Any, *, lower: bool) -> list[np.ndarray]:
    w, v = guarded(lambda a: tuple(np.linalg.eigh(a, UPLO="L" if lower else "U")), wide(x), core=(2,))
    return [dtypes.cast(v, x.dtype), dtypes.cast(w, dtypes.real_dtype(x.dtype))]


def _inverse_gaps(w: Any) -> Any:
    """1 / (w_j - w_i), and 0 on the diagonal and where both are equal."""
    aval = aval_of(w)
    square = _square_like(w, aval)
    gap = sub(broadcast_like(as_columns(w), square), broadcast_like(as_rows(w), square))
    zero, one = literal(0, aval.dtype), literal(1, aval.dtype)
    same = eq(gap, spread(zero, square))
    return where(same, zero, div(spread(one, square), where(same, one, gap, square)), square)


def _square_like(w: Any, aval: ShapedArray) -> ShapedArray:
    """The type of `(..., n, n)` for `w` of type `(..., n)`."""
    wide_row = aval_of(as_rows(w))
    return wide_row.update(shape=(*aval.shape, aval.shape[-1]))


def _eigh_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, lower: bool) -> tuple[Any, Any]:
    v, w = op(*primals, lower=lower)
    if isinstance(tangents[0], Zero):
        return [v, w], _no_tangents([v, w])
    change = product(adjoint(v), product(instantiate(tangents[0]), v))
    dw = real(diagonal(change)) if dtypes.is_complex(aval_of(v).dtype) else diagonal(change)
    dv = product(v, mul(as_dtype(_inverse_gaps(w), aval_of(v).dtype), change))
    return [v, w], [dv, dw]


eigh = matrix_op("eigh", (2,), (2, 1), type_rule=_eigh_type, impl=_eigh_impl, jvp=_eigh_jvp)

# -- general matrices ---------------------------------------------------------------------------------------------


def _eig_type(x: ShapedArray) -> list[Out]:
    check_matrix("eig", x, square=True)
    dtype = dtypes.complex_dtype(x.dtype)
    return [Out(x.shape[:-1], dtype), Out(x.shape, dtype)]


def _eig_impl(x: Any) -> list[np.ndarray]:
    dtype = dtypes.complex_dtype(x.dtype)

    def both(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w, v = np.linalg.eig(a)
        return w.astype(dtype), v.astype(dtype)

    return list(guarded(both, wide(x), core=(2,)))


def _eig_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    if isinstance(tangents[0], Zero):
        outs = op(*primals)
        return list(outs), _no_tangents(outs)
    raise NotImplementedError(
        "The derivatives of non-symmetric eigenvectors are not implemented, only those of eigenvalues: use "
        "`jnp.linalg.eigvals`."
    )


eig = matrix_op("eig", (2,), (1, 2), type_rule=_eig_type, impl=_eig_impl, jvp=_eig_jvp)


def _eigvals_type(x: ShapedArray) -> Out:
    return _eig_type(x)[0]


def _eigvals_impl(x: Any) -> np.ndarray:
    dtype = dtypes.complex_dtype(x.dtype)
    return guarded(lambda a: np.linalg.eigvals(a).astype(dtype), wide(x), core=(2,))[0]


def _eigvals_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    if isinstance(tangents[0], Zero):
        w = op(*primals)
        return w, Zero(tangent_aval(w.aval))
    w, v = eig(*primals)
    change = as_dtype(instantiate(tangents[0]), aval_of(v).dtype)
    return w, diagonal(linear_solve(v, product(change, v)))


eigvals = matrix_op("eigvals", (2,), (1,), type_rule=_eigvals_type, impl=_eigvals_impl, jvp=_eigvals_jvp)

# -- singular values ----------------------------------------------------------------------------------------------


def _svd_type(x: ShapedArray, *, full_matrices: bool) -> list[Out]:
    check_matrix("svd", x)
    *batch, m, n = x.shape
    k = min(m, n)
    left, right = (m, n) if full_matrices else (k, k)
    return [
        Out((*batch, k), dtypes.real_dtype(x.dtype)),
        Out((*batch, m, left), x.dtype),
        Out((*batch, right, n), x.dtype),
    ]


def _svd_impl(x: Any, *, full_matrices: bool) -> list[np.ndarray]:
    u, s, vh = guarded(lambda a: tuple(np.linalg.svd(a, full_matrices=full_matrices)), wide(x), core=(2,))
    return [dtypes.cast(s, dtypes.real_dtype(x.dtype)), dtypes.cast(u, x.dtype), dtypes.cast(vh, x.dtype)]


def _svd_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, full_matrices: bool) -> tuple[Any, Any]:
    s, u, vh = op(*primals, full_matrices=full_matrices)
    if isinstance(tangents[0], Zero):
        return [s, u, vh], _no_tangents([s, u, vh])
    m, n = aval_of(primals[0]).shape[-2:]
    if full_matrices and m != n:
        raise NotImplementedError(
            "Singular value decomposition JVP not implemented for full matrices: use full_matrices=False"
        )
    dtype = aval_of(u).dtype
    change = instantiate(tangents[0])
    v = adjoint(vh)
    ds_matrix = product(adjoint(u), product(change, v))
    ds = diagonal(ds_matrix)
    ds_real = real(ds) if dtypes.is_complex(dtype) else ds
    square = _square_like(s, aval_of(s))
    rows, columns = broadcast_like(as_rows(s), square), broadcast_like(as_columns(s), square)
    gaps = mul(_inverse_gaps(s), _inverse(add_tangents([rows, columns], square)))
    gaps, by_columns, by_rows = as_dtype(gaps, dtype), as_dtype(columns, dtype), as_dtype(rows, dtype)
    ds_s = mul(ds_matrix, by_columns)
    s_ds = mul(by_rows, ds_matrix)
    du = [mul(gaps, add_tangents([ds_s, adjoint(ds_s)], aval_of(ds_s)))]
    dv = mul(gaps, add_tangents([s_ds, adjoint(s_ds)], aval_of(s_ds)))
    if dtypes.is_complex(dtype):
        # the phase of a pair of vectors is free: it goes to u
        turn = sub(ds, as_dtype(real(ds), dtype))
        on = mul(broadcast_like(as_columns(turn), aval_of(ds_matrix)), identity_like(aval_of(ds_matrix)))
        du.append(mul(on, as_dtype(_inverse(columns), dtype)))
    du_all = product(u, add_tangents(du, aval_of(ds_matrix)))
    dv_all = product(v, dv)
    inverse_s = as_dtype(as_columns(_inverse(s)), dtype)
    if m > n:
        moved = product(change, v)
        outside = sub(moved, product(u, product(adjoint(u), moved)))
        du_all = add_tangents([du_all, mul(outside, broadcast_like(inverse_s, aval_of(outside)))], aval_of(u))
    if n > m:
        moved = product(adjoint(change), u)
        outside = sub(moved, product(v, product(adjoint(v), moved)))
        dv_all = add_tangents([dv_all, mul(outside, broadcast_like(inverse_s, aval_of(outside)))], aval_of(v))
    return [s, u, vh], [ds_real, du_all, adjoint(dv_all)]


def _inverse(x: Any) -> Any:
    """1 / x, and 0 where x is 0."""
    aval = aval_of(x)
    zero, one = literal(0, aval.dtype), literal(1, aval.dtype)
    none = eq(x, spread(zero, aval))
    return where(none, zero, div(spread(one, aval), where(none, one, x, aval)), aval)


svd = matrix_op("svd", (2,), (1, 2, 2), type_rule=_svd_type, impl=_svd_impl, jvp=_svd_jvp)


def _svdvals_type(x: ShapedArray) -> Out:
    return _svd_type(x, full_matrices=False)[0]


def _svdvals_impl(x: Any) -> np.ndarray:
    s = guarded(lambda a: np.linalg.svd(a, compute_uv=False), wide(x), core=(2,))[0]
    return dtypes.cast(s, dtypes.real_dtype(x.dtype))


def _svdvals_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    if isinstance(tangents[0], Zero):
        s = op(*primals)
        return s, Zero(tangent_aval(s.aval))
    s, u, vh = svd(*primals, full_matrices=False)
    change = diagonal(product(adjoint(u), product(instantiate(tangents[0]), adjoint(vh))))
    return s, real(change) if dtypes.is_complex(aval_of(u).dtype) else change


svdvals = matrix_op("svdvals", (2,), (1,), type_rule=_svdvals_type, impl=_svdvals_impl, jvp=_svdvals_jvp)

# -- pseudo-inverse --------------------------------------------------------------------------------------------


def _pinv_type(x: ShapedArray, rtol: ShapedArray) -> Out:
    check_matrix("pinv", x)
    if rtol.shape != x.shape[:-2]:
        raise ValueError(f"pinv: rtol must have one value per matrix, got {rtol.str_short()} for {x.str_short()}")
    return Out((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)


def _pinv_impl(x: Any, rtol: Any) -> np.ndarray:
    u, s, vh = guarded(lambda a: tuple(np.linalg.svd(a, full_matrices=False)), wide(x), core=(2,))
    limit = np.asarray(rtol)[..., None] * np.max(s, axis=-1, keepdims=True, initial=0)
    kept = s > limit
    inverse = np.where(kept, 1 / np.where(kept, s, 1), np.where(np.isnan(s), s, 0)).astype(s.dtype)
    out = np.matmul(np.swapaxes(vh, -1, -2).conj() * inverse[..., None, :], np.swapaxes(u, -1, -2).conj())
    return dtypes.cast(out, x.dtype)


def _pinv_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    p = op(*primals)
    if isinstance(tangents[0], Zero):
        return p, Zero(tangent_aval(p.aval))
    a, change = primals[0], instantiate(tangents[0])
    first = neg(product(p, product(change, p)))
    changed = adjoint(change)
    # each term with the factor that is a projection multiplied out, so that no unit matrix is made
    second = product(product(p, adjoint(p)), changed)
    second = sub(second, product(product(second, a), p))
    third = product(changed, product(adjoint(p), p))
    third = sub(third, product(p, product(a, third)))
    return p, add_tangents([first, second, third], p.aval)


pinv = matrix_op("pinv", (2, 0), (2,), type_rule=_pinv_type, impl=_pinv_impl, jvp=_pinv_jvp)
