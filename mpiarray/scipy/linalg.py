"""`jax.scipy.linalg`: factors as scipy gives them, solutions from factors, functions of matrices, special matrices.

As in `jnp.linalg` matrix dims must be unsharded, batch dims may be sharded.  The arguments `overwrite_*`,
`check_finite`, `lwork`, `debug` are accepted and change nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of, literal
from mpiarray.numpy import linalg, manipulation
from mpiarray.numpy.arithmetic import add, divide, multiply, negative
from mpiarray.numpy.complex_numbers import conjugate
from mpiarray.numpy.creation import array
from mpiarray.numpy.host import as_array
from mpiarray.numpy.linalg import inexact, matrices, same_stacks
from mpiarray.numpy.matrices import eye, tril, triu
from mpiarray.numpy.products import matmul
from mpiarray.numpy.promotion import operands, promote_dtypes
from mpiarray.ops import elimination, matrix_exponential, spectral, triangular
from mpiarray.ops.gather import gather
from mpiarray.ops.matrices import adjoint, as_dtype, is_diagonal, product, swapped
from mpiarray.ops.shape import rev
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "companion", "det", "dft", "eigh", "expm",
    "expm_frechet",
    "hadamard", "hankel", "hilbert", "inv", "lu", "lu_factor", "lu_solve", "polar", "qr", "solve",
    "solve_triangular", "svd", "toeplitz",
]  # fmt: skip


# -- Cholesky ------------------------------------------------------------------------------------------------


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The triangular factor of positive definite matrices, upper unless `lower`."""
    return linalg.cholesky(a, upper=not lower)


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """What `cho_solve` needs: the factor and whether it is the lower one."""
    return linalg.cholesky(a, upper=not lower), lower


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """The solution of `a @ x == b` from the Cholesky factor of `a`."""
    c, lower = c_and_lower
    factor, y, vector = _system("cho_solve", c, b)
    y = triangular.solve(factor, y, lower=lower, adjoint_a=not lower)
    y = triangular.solve(factor, y, lower=lower, adjoint_a=lower)
    return manipulation.squeeze(y, -1) if vector else y


def _system(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Matrices and right sides of one batch shape; whether `b` is one vector."""
    x, y = inexact(name, a, b)
    matrices(name, x, square=True)
    vector = aval_of(y).ndim == 1
    y = manipulation.expand_dims(y, 1) if vector else y
    if aval_of(y).ndim < 2 or aval_of(y).shape[-2] != aval_of(x).shape[-1]:
        raise ValueError(
            f"{name}: the right side must have as many rows as the matrix, got {aval_of(x).str_short()} and "
            f"{aval_of(y).str_short()}"
        )
    return *same_stacks(name, x, y), vector


# -- LU --------------------------------------------------------------------------------------------------------


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, Any]:
    """Both factors in one matrix, and the pivots: row k was exchanged with row `pivots[k]`."""
    factors, pivots, _ = elimination.lu(matrices("lu_factor", a))
    return factors, pivots


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """The solution of `a @ x == b` from `lu_factor(a)`; `trans` 1: with the transpose of `a`, 2: with its adjoint."""
    factors, pivots = lu_and_piv
    if trans not in (0, 1, 2):
        raise ValueError(f"lu_solve: 'trans' value must be 0, 1, or 2, got {trans}")
    x, y, vector = _system("lu_solve", factors, b)
    order = product_of_exchanges(as_array(pivots), x)
    if trans == 0:
        y = product(order, y)
        y = triangular.solve(x, y, lower=True, unit=True)
        y = triangular.solve(x, y, lower=False)
    else:
        conj = trans == 2 and dtypes.is_complex(aval_of(x).dtype)
        params = {"left_side": True, "transpose_a": True, "conjugate_a": conj}
        y = triangular.triangular_solve(x, y, lower=False, unit_diagonal=False, **params)
        y = triangular.triangular_solve(x, y, lower=True, unit_diagonal=True, **params)
        y = product(swapped(order), y)
    return manipulation.squeeze(y, -1) if vector else y


def product_of_exchanges(pivots: Any, like: Any) -> Any:
    """The matrices that exchange rows as pivots say."""
    permutation = elimination.pivots_to_permutation(pivots, size=aval_of(like).shape[-2])
    return elimination.rows_permuted(permutation, aval_of(like))


def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """`P, L, U` with `P @ L @ U == a`; or `P @ L` and `U` for `permute_l`."""
    x = matrices("lu", a)
    factors, _, permutation = elimination.lu(x)
    m, n = x.aval.shape[-2:]
    k = min(m, n)
    low = tril(_leading(factors, m, k), -1)
    low = add(low, _unit(aval_of(low)))
    up = triu(_leading(factors, k, n))
    p = swapped(elimination.rows_permuted(permutation, aval_of(factors)))
    return (matmul(p, low), up) if permute_l else (p, low, up)


def _leading(x: Any, rows: int, columns: int) -> Any:
    shape = aval_of(x).shape
    return slice_(x, start_indices=(0,) * len(shape), limit_indices=(*shape[:-2], rows, columns), strides=None)


def _unit(aval: Any) -> Any:
    return as_dtype(is_diagonal(aval), aval.dtype)


# -- other factors -------------------------------------------------------------------------------------------


def qr(
    a: Any,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> Any:
    """`Q, R` with `Q @ R == a`; mode "full", "economic", or "r" for `(R,)`."""
    if pivoting:
        raise NotImplementedError("The pivoting=True case of qr is not implemented.")
    if mode not in ("full", "r", "economic"):
        raise ValueError(f"Unsupported QR decomposition mode '{mode}'")
    q, r = spectral.qr(matrices("qr", a), full_matrices=mode != "economic")
    return (r,) if mode == "r" else (q, r)


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False, check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:  # fmt: skip
    """Singular values and vectors, as `jnp.linalg.svd`."""
    out = linalg.svd(a, full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(out) if compute_uv else out


def eigh(
    a: Any,
    b: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    """Eigenvalues and eigenvectors of Hermitian matrices, of which one triangle is read."""
    if b is not None:
        raise NotImplementedError("Only the b=None case of eigh is implemented")
    if type != 1:
        raise NotImplementedError("Only the type=1 case of eigh is implemented.")
    if eigvals is not None:
        raise NotImplementedError("Only the eigvals=None case of eigh is implemented.")
    w, v = linalg.eigh(a, UPLO="L" if lower else "U", symmetrize_input=False)
    return w if eigvals_only else (w, v)


def polar(
    a: Any, side: str = "right", *, method: str = "svd", eps: float | None = None, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """Factors of which one has orthonormal columns (rows) and the other is positive semidefinite: `u @ p`, or `p @
    u` for "left".
    """
    if side not in ("right", "left"):
        raise ValueError(f"The argument `side` of polar must be either 'right' or 'left', got {side!r}")
    (x,) = inexact("polar", a)
    if x.aval.ndim != 2:
        raise ValueError(f"The input `a` of polar must be a 2-D array, got {x.aval.str_short()}")
    u, s, vh = linalg.svd(x, full_matrices=False)
    scale = as_dtype(s, x.aval.dtype)
    if side == "right":
        return matmul(u, vh), matmul(multiply(adjoint(vh), scale), vh)
    return matmul(u, vh), matmul(multiply(u, scale), adjoint(u))


# -- solutions, inverses -----------------------------------------------------------------------------------------


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The determinants of square matrices."""
    return linalg.det(a)


def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The inverses of square matrices."""
    return linalg.inv(a)


def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False, debug: bool = False,
    check_finite: bool = True, assume_a: str = "gen",
) -> Any:  # fmt: skip
    """The solution of `a @ x == b`; `assume_a` "pos" uses the Cholesky factor, of which one triangle of `a` is read."""
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ValueError(f"Expected assume_a to be one of ['gen', 'sym', 'her', 'pos']; got {assume_a!r}")
    if assume_a != "pos":
        return linalg.solve(a, b)
    x, _, _ = _system("solve", a, b)
    whole = x if lower else adjoint(x)
    factor = triangular.cholesky(whole)
    return cho_solve((factor, True), b)


def solve_triangular(
    a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False,
    debug: Any = None, check_finite: bool = True,
) -> Any:  # fmt: skip
    """The solution of `a @ x == b` for triangular `a`; `trans` "T" (1): with its transpose, "C" (2): with its
    adjoint.
    """
    kinds = {0: "N", "N": "N", 1: "T", "T": "T", 2: "C", "C": "C"}
    if trans not in kinds:
        raise ValueError(f"Invalid 'trans' value {trans} of solve_triangular: use 0 or 'N', 1 or 'T', 2 or 'C'")
    x, y, vector = _system("solve_triangular", a, b)
    kind = kinds[trans]
    out = triangular.triangular_solve(
        x, y, left_side=True, lower=lower, transpose_a=kind != "N", unit_diagonal=unit_diagonal,
        conjugate_a=kind == "C" and dtypes.is_complex(aval_of(x).dtype),
    )  # fmt: skip
    return manipulation.squeeze(out, -1) if vector else out


# -- functions of matrices ------------------------------------------------------------------------------------


def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Any:
    """The exponential of square matrices; NaN where more than `max_squarings` squarings are needed."""
    return matrix_exponential.expm(matrices("expm", A, square=True), max_squarings=int(max_squarings))


def expm_frechet(A: Any, E: Any, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """The exponential and its derivative in the direction E (only the latter without `compute_expm`)."""
    x, e = inexact("expm_frechet", A, E)
    matrices("expm_frechet", x, square=True)
    if x.aval.shape != e.aval.shape:
        raise ValueError(f"expected A and E to be the same shape, got {x.aval.str_short()} and {e.aval.str_short()}")
    slope = matrix_exponential.expm_frechet(x, e, max_squarings=16)
    return (expm(x), slope) if compute_expm else slope


# -- special matrices -------------------------------------------------------------------------------------------


def block_diag(*arrs: Any) -> Any:
    """Matrices along the diagonal of a larger one, zero elsewhere; scalars and vectors count as one row."""
    items = [as_array(x) for x in promote_dtypes(*operands("block_diag", *(arrs or (np.zeros((1, 0)),))))]
    if any(x.aval.ndim > 2 for x in items):
        raise ValueError(
            f"Arguments to jax.scipy.linalg.block_diag must have at most 2 dimensions, got "
            f"{[x.aval.str_short() for x in items]}"
        )
    items = [x if x.aval.ndim == 2 else manipulation.atleast_2d(x) for x in items]
    width = sum(x.aval.shape[1] for x in items)
    rows, left = [], 0
    for x in items:
        n = x.aval.shape[1]
        config = ((0, 0, 0), (left, width - left - n, 0))
        rows.append(pad(x, literal(0, x.aval.dtype), padding_config=config))
        left += n
    return manipulation.concatenate(rows, axis=0)


def _taken(values: Any, places: np.ndarray) -> Any:
    """Elements of the last dim at a matrix of positions, as the last two dims."""
    x = as_array(values)
    last = x.aval.ndim - 1
    flat = array(places.reshape(-1).astype(np.int32))
    out = gather(x, flat, dims=(last,), batch_dims=0, mode="clip", fill_value=None, out_sharding=None)
    out = manipulation.moveaxis(out, 0, -1)
    return manipulation.reshape(out, (*x.aval.shape[:-1], *places.shape))


def toeplitz(c: Any, r: Any = None) -> Any:
    """The matrix with constant diagonals, first column `c` and first row `r` (default: the conjugate of `c`)."""
    columns, rows = operands("toeplitz", c, c if r is None else r)
    column, row = promote_dtypes(columns, conjugate(rows) if r is None else rows)
    column, row = manipulation.atleast_1d(column, row)
    n, m = aval_of(column).shape[-1], aval_of(row).shape[-1]
    last = aval_of(column).ndim - 1
    tail = _after_first(row)
    values = manipulation.concatenate([rev(column, dimensions=(last,)), tail], axis=-1)
    return _taken(values, n - 1 - np.arange(n)[:, None] + np.arange(m))


def _after_first(x: Any) -> Any:
    shape = aval_of(x).shape
    return slice_(x, start_indices=(*(0,) * (len(shape) - 1), 1), limit_indices=shape, strides=None)


def hankel(c: Any, r: Any = None) -> Any:
    """The matrix with constant antidiagonals, first column `c` and last row `r` (default: zeros)."""
    (column,) = operands("hankel", c)
    row = multiply(column, 0) if r is None else r
    column, row = manipulation.atleast_1d(*promote_dtypes(column, *operands("hankel", row)))
    n, m = aval_of(column).shape[-1], aval_of(row).shape[-1]
    values = manipulation.concatenate([column, _after_first(row)], axis=-1)
    return _taken(values, np.arange(n)[:, None] + np.arange(m))


def circulant(c: Any) -> Any:
    """The matrix whose columns are `c`, shifted down by one more each."""
    column = manipulation.atleast_1d(*operands("circulant", c))
    n = aval_of(column).shape[-1]
    return _taken(column, (np.arange(n)[:, None] - np.arange(n)) % max(n, 1))


def companion(a: Any) -> Any:
    """The matrix whose characteristic polynomial has the coefficients `a`, the highest power first."""
    (x,) = inexact("companion", a)
    if x.aval.ndim != 1 or x.aval.size < 2:
        raise ValueError(
            f"companion: the coefficients must be a vector of at least 2 elements, got {x.aval.str_short()}"
        )
    n = x.aval.size - 1
    first = divide(negative(_after_first(x)), slice_(x, start_indices=(0,), limit_indices=(1,), strides=None))
    first = manipulation.expand_dims(first, 0)
    return manipulation.concatenate([first, eye(n - 1, n, dtype=x.aval.dtype)], axis=0)


def _constant(values: np.ndarray, dtype: Any = None) -> Any:
    own = dtypes.requested(dtype, "jax.scipy.linalg") if dtype is not None else dtypes.canonicalize(values.dtype)
    return array(dtypes.cast(values, own))


def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Any:
    """The matrix of the Fourier transform of length n; `scale` is None, "sqrtn" or "n"."""
    if scale not in (None, "sqrtn", "n"):
        raise ValueError(f"scale must be None, 'sqrtn', or 'n'; got {scale!r}")
    out = np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / max(n, 1))
    out = out / {None: 1, "sqrtn": math.sqrt(max(n, 1)), "n": max(n, 1)}[scale]
    return _constant(out, dtype)


def hilbert(n: int) -> Any:
    """The matrix with elements 1 / (i + j + 1)."""
    return _constant(1.0 / (np.arange(n)[:, None] + np.arange(n) + 1))


def hadamard(n: int, dtype: Any = int) -> Any:
    """Sylvester's matrix of 1 and -1 with orthogonal rows; n is a power of 2."""
    if n < 1 or n & (n - 1):
        raise ValueError(f"n must be a positive integer and a power of 2; got n={n}")
    out = np.ones((1, 1), np.int64)
    while len(out) < n:
        out = np.block([[out, out], [out, -out]])
    return _constant(out, dtype)
