"""`jax.lax.linalg`: the ops of linear algebra with JAX's signatures: strict about dtypes, results in the ops' order."""

from __future__ import annotations

from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.lax.elementwise import operands
from mpiarray.numpy import linalg
from mpiarray.numpy.host import as_array
from mpiarray.ops import elimination, spectral, triangular
from mpiarray.ops.linear import expand_dims, squeeze
from mpiarray.types import dtypes

__all__ = ["cholesky", "eig", "eigh", "lu", "lu_pivots_to_permutation", "qr", "svd", "triangular_solve"]


def _array(name: str, x: Any) -> Any:
    (x,) = operands(name, x)
    return as_array(x)


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangular factor of positive definite matrices; NaN where there is none."""
    x = _array("cholesky", x)
    return triangular.cholesky(triangular.symmetrized(x) if symmetrize_input else x)


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """`op(a) @ x == b`, or `x @ op(a) == b` unless `left_side`; a `b` with one dim less than `a` is one vector.

    Raises TypeError where dtypes or dims do not fit.
    """
    a, b = _array("triangular_solve", a), _array("triangular_solve", b)
    vector = aval_of(b).ndim == aval_of(a).ndim - 1
    extra = aval_of(b).ndim if left_side else aval_of(b).ndim - 1
    out = triangular.triangular_solve(
        a,
        expand_dims(b, (extra,)) if vector else b,
        left_side=bool(left_side),
        lower=bool(lower),
        transpose_a=bool(transpose_a),
        conjugate_a=bool(conjugate_a) and dtypes.is_complex(aval_of(a).dtype),
        unit_diagonal=bool(unit_diagonal),
    )
    return squeeze(out, dimensions=(extra,)) if vector else out


def lu(x: Any) -> tuple[Any, Any, Any]:
    """Both factors in one matrix, the pivots, and the permutation of the rows."""
    return tuple(elimination.lu(_array("lu", x)))


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of the rows after exchanges of row k with row `pivots[k]`."""
    return elimination.pivots_to_permutation(_array("lu_pivots_to_permutation", pivots), size=int(permutation_size))


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True) -> tuple[Any, Any]:
    """Orthonormal columns Q and upper triangular R."""
    if pivoting:
        raise NotImplementedError("The pivoting=True case of qr is not implemented.")
    return tuple(spectral.qr(_array("qr", x), full_matrices=bool(full_matrices)))


def eigh(
    x: Any,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: None = None,
) -> tuple[Any, Any]:
    """Eigenvectors and eigenvalues (ascending) of Hermitian matrices, in this order."""
    if subset_by_index is not None:
        raise NotImplementedError("eigh: subset_by_index is not implemented")
    x = _array("eigh", x)
    return tuple(spectral.eigh(triangular.symmetrized(x) if symmetrize_input else x, lower=bool(lower)))


def eig(x: Any, *, compute_left_eigenvectors: bool = False, compute_right_eigenvectors: bool = True) -> list[Any]:
    """Eigenvalues and, if wanted, right eigenvectors of square matrices, complex always."""
    if compute_left_eigenvectors:
        raise NotImplementedError("eig: left eigenvectors are not implemented; take the right ones of the adjoint")
    x = _array("eig", x)
    return list(spectral.eig(x)) if compute_right_eigenvectors else [spectral.eigvals(x)]


def svd(
    x: Any, *, full_matrices: bool = True, compute_uv: bool = True, subset_by_index: tuple[int, int] | None = None
) -> Any:
    """Singular vectors and values, `u, s, vh`; the values alone without `compute_uv`."""
    x = _array("svd", x)
    out = linalg.svd(x, full_matrices=full_matrices, compute_uv=compute_uv, subset_by_index=subset_by_index)
    return tuple(out) if compute_uv else out
