"""`jnp.linalg`: factors, solutions, spectra and norms of matrices and stacks of matrices.

The last two dims are the matrix and must be unsharded (ShardingTypeError "must be unsharded on non-batch dimensions");
the dims before them may be sharded and stay where they are.  Integers and bools become floats.  Matrices for which
LAPACK fails (singular, not positive definite, not finite) give NaN or infinities, no exception.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.numpy import manipulation, reductions
from mpiarray.numpy.arithmetic import divide, multiply, subtract
from mpiarray.numpy.choices import where_op
from mpiarray.numpy.comparison import greater, isnan, logical_and, logical_not
from mpiarray.numpy.complex_numbers import conjugate
from mpiarray.numpy.einsum import einsum
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import broadcast_to, matrix_transpose
from mpiarray.numpy.matrices import diagonal as _diagonal
from mpiarray.numpy.matrices import trace as _trace
from mpiarray.numpy.norms import matrix_norm, norm, vector_norm
from mpiarray.numpy.products import cross as _cross
from mpiarray.numpy.products import matmul, tensordot, vecdot
from mpiarray.numpy.products import outer as _outer
from mpiarray.numpy.promotion import cast, operands, promote_inexact
from mpiarray.ops import elimination, spectral, triangular
from mpiarray.ops.matrices import adjoint, identity_like
from mpiarray.ops.slicing import slice_
from mpiarray.types import dtypes

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet",
    "solve", "svd",
    "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class EigResult(NamedTuple):
    eigenvalues: Value
    eigenvectors: Value


class EighResult(NamedTuple):
    eigenvalues: Value
    eigenvectors: Value


class QRResult(NamedTuple):
    Q: Value
    R: Value


class SlogdetResult(NamedTuple):
    sign: Value
    logabsdet: Value


class SVDResult(NamedTuple):
    U: Value
    S: Value
    Vh: Value


# -- operands ----------------------------------------------------------------------------------------------


def inexact(name: str, *args: Any) -> list[Any]:
    """The operands as arrays of one floating or complex dtype, each of its own rank."""
    return [as_array(x) for x in promote_inexact(*operands(name, *args))]


def matrices(name: str, a: Any, *, square: bool = False) -> Any:
    """One operand: a stack of (square) matrices of floats.  Raises ValueError naming the shape otherwise."""
    (x,) = inexact(name, a)
    shape = x.aval.shape
    if len(shape) < 2 or (square and shape[-1] != shape[-2]):
        raise ValueError(
            f"Argument to {name} must have shape [..., {'n, n' if square else 'm, n'}], got {shape} "
            f"({x.aval.str_short()})."
        )
    return x


def same_stacks(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two stacks of matrices with their batch dims broadcast against each other."""
    left, right = aval_of(a).shape, aval_of(b).shape
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise ValueError(
            f"{name}: batch dimensions do not broadcast: {aval_of(a).str_short()} and {aval_of(b).str_short()}"
        ) from None
    return tuple(x if s[:-2] == batch else broadcast_to(x, (*batch, *s[-2:])) for x, s in ((a, left), (b, right)))


# -- factors -------------------------------------------------------------------------------------------------


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    """The triangular factor of positive definite matrices: `L @ L^H`, or `U^H @ U` for `upper`; NaN where there is
    none.
    """
    x = matrices("cholesky", a, square=True)
    if symmetrize_input:
        x = triangular.symmetrized(x)
    factor = triangular.cholesky(x)
    return adjoint(factor) if upper else factor


def qr(a: Any, mode: str = "reduced") -> Any:
    """Orthonormal columns Q and upper triangular R with `Q @ R == a`; `mode`: "reduced", "complete", or "r" for R
    alone.
    """
    x = matrices("qr", a)
    if mode not in ("reduced", "complete", "r", "full"):
        raise ValueError(f"Unsupported QR decomposition mode '{mode}': use 'reduced', 'complete' or 'r'")
    q, r = spectral.qr(x, full_matrices=mode in ("complete", "full"))
    return r if mode == "r" else QRResult(q, r)


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Eigenvalues (ascending) and eigenvectors of Hermitian matrices.

    UPLO: the triangle that is read, "L" (the default) or "U", unless the input is symmetrized first.
    """
    if UPLO not in (None, "L", "U"):
        raise ValueError(f"UPLO must be one of None, 'L', or 'U', got {UPLO}")
    x = matrices("eigh", a, square=True)
    if symmetrize_input:
        x = triangular.symmetrized(x)
    v, w = spectral.eigh(x, lower=UPLO != "U")
    return EighResult(w, v)


def eigvalsh(a: Any, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Any:
    """Eigenvalues of Hermitian matrices, ascending."""
    return eigh(a, UPLO, symmetrize_input).eigenvalues


def eig(a: Any) -> EigResult:
    """Eigenvalues and eigenvectors of square matrices, complex always."""
    return EigResult(*spectral.eig(matrices("eig", a, square=True)))


def eigvals(a: Any) -> Any:
    """Eigenvalues of square matrices, complex always."""
    return spectral.eigvals(matrices("eigvals", a, square=True))


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """Singular values (descending) and vectors: `U * S @ Vh == a`; only the values without `compute_uv`.

    subset_by_index: (start, end) of the values and vectors to give; then `full_matrices` must be False.
    """
    x = matrices("svd", a)
    if subset_by_index is not None and compute_uv and full_matrices:
        raise NotImplementedError("full_matrices and subset_by_index cannot be both be set")
    if not compute_uv:
        s = spectral.svdvals(x)
        return s if subset_by_index is None else _columns(s, subset_by_index)
    s, u, vh = spectral.svd(x, full_matrices=full_matrices)
    if subset_by_index is not None:
        s, u = _columns(s, subset_by_index), _columns(u, subset_by_index)
        vh = matrix_transpose(_columns(matrix_transpose(vh), subset_by_index))
    return SVDResult(u, s, vh)


def _columns(x: Any, span: tuple[int, int]) -> Any:
    shape = aval_of(x).shape
    start, stop = span
    return slice_(
        x,
        start_indices=(*(0,) * (len(shape) - 1), start),
        limit_indices=(*shape[:-1], min(stop, shape[-1])),
        strides=None,
    )


def svdvals(x: Any, /) -> Any:
    """Singular values, descending."""
    return svd(x, compute_uv=False)


# -- solutions, inverses -----------------------------------------------------------------------------------------


def solve(a: Any, b: Any) -> Any:
    """`x` with `a @ x == b` for square `a`; a 1-D `b` is one vector, else its last two dims are a matrix of columns."""
    x, y = inexact("solve", a, b)
    matrices("solve", x, square=True)
    vector = aval_of(y).ndim == 1
    if not aval_of(y).ndim or aval_of(y).shape[0 if vector else -2] != aval_of(x).shape[-1]:
        raise ValueError(
            f"solve: the right side must have as many rows as the matrix, got {aval_of(x).str_short()} and "
            f"{aval_of(y).str_short()}"
        )
    if vector:
        y = manipulation.expand_dims(y, 1)
    out = elimination.linear_solve(*same_stacks("solve", x, y))
    return manipulation.squeeze(out, -1) if vector else out


def inv(a: Any) -> Any:
    """The inverses of square matrices."""
    return elimination.inverse(matrices("inv", a, square=True))


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Any:
    """The pseudo-inverses; singular values below `rtol` (`rcond` is its old name) times the largest one count as 0.

    rtol: default `10 * max(m, n) * eps`.
    """
    x = matrices("pinv", a)
    if rcond is not None:
        if rtol is not None:
            raise ValueError("pinv: only one of rtol and rcond may be specified.")
        rtol = rcond
    aval = x.aval
    real = dtypes.real_dtype(aval.dtype)
    limit = 10.0 * max(aval.shape[-2:]) * float(dtypes.finfo(real).eps) if rtol is None else rtol
    limit = cast(operands("pinv", limit)[0], real)
    if aval_of(limit).shape != aval.shape[:-2]:
        limit = broadcast_to(limit, aval.shape[:-2])
    return spectral.pinv(x, limit)


def lstsq(a: Any, b: Any, rcond: float | None = None, *, numpy_resid: bool = False) -> tuple[Any, Any, Any, Any]:
    """The least-squares solution of `a @ x == b`, the sums of squared residuals, the rank of `a` and its singular
    values.

    rcond: singular values below it times the largest one count as 0 (default `eps * max(m, n)`).
    numpy_resid: give no residuals where numpy gives none (rank not full, or no more rows than columns); then `a` must
    be concrete.
    """
    x, y = inexact("lstsq", a, b)
    if aval_of(x).ndim != 2:
        raise TypeError(
            f"{aval_of(x).ndim}-dimensional array given. Array must be two-dimensional: lstsq got "
            f"{aval_of(x).str_short()}"
        )
    vector = aval_of(y).ndim == 1
    y = manipulation.expand_dims(y, 1) if vector else y
    if aval_of(y).ndim != 2 or aval_of(y).shape[0] != aval_of(x).shape[0]:
        raise ValueError(
            f"Leading dimensions of input arrays must match: lstsq got {aval_of(x).str_short()} and "
            f"{aval_of(y).str_short()}"
        )
    m, n = aval_of(x).shape
    if not m or not n:
        out = as_array(cast(np.zeros((n, aval_of(y).shape[1])), aval_of(x).dtype))
        return (
            (manipulation.squeeze(out, 1) if vector else out),
            reductions.sum(multiply(y, conjugate(y)), 0),
            as_array(np.int32(0)),
            svdvals(x),
        )
    real = dtypes.real_dtype(aval_of(x).dtype)
    limit = float(dtypes.finfo(real).eps) * max(m, n) if rcond is None else max(rcond, 0)
    u, s, vh = svd(x, full_matrices=False)
    used = greater(s, multiply(cast(limit, real), reductions.max(s)))
    rank = reductions.sum(cast(used, np.dtype(np.int32)))
    inverse = where_op(used, divide(1, where_op(used, s, 1)), 0)
    coordinates = matmul(adjoint(u), y)
    out = matmul(adjoint(vh), multiply(manipulation.expand_dims(cast(inverse, aval_of(x).dtype), 1), coordinates))
    off = subtract(y, matmul(x, out))
    residuals = reductions.sum(cast(multiply(off, conjugate(off)), real), 0)
    if numpy_resid and (int(np.asarray(rank)) < n or m <= n):
        residuals = as_array(np.zeros(0, real))
    return (manipulation.squeeze(out, 1) if vector else out), residuals, rank, s


def matrix_power(a: Any, n: int) -> Any:
    """The n-th power of square matrices; of their inverses for negative `n`."""
    (x,) = (as_array(v) for v in operands("matrix_power", a))
    shape = x.aval.shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise TypeError(f"Last 2 dimensions of the array must be square: matrix_power got {x.aval.str_short()}")
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"exponent must be an integer, got {n}") from None
    if n == 0:
        return identity_like(x.aval)
    if n < 0:
        x, n = inv(x), -n
    out = None
    while True:
        if n % 2:
            out = x if out is None else matmul(out, x)
        n //= 2
        if not n:
            return out
        x = matmul(x, x)


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Any:
    """The product of several matrices in the cheapest order; the first and the last may be vectors."""
    items = [as_array(x) for x in operands("multi_dot", *arrays)]
    count = len(items)
    if count < 2:
        raise ValueError(f"multi_dot requires at least two arrays; got len(arrays)={count}")
    ndims = [x.aval.ndim for x in items]
    if ndims[0] not in (1, 2) or ndims[-1] not in (1, 2) or any(d != 2 for d in ndims[1:-1]):
        raise ValueError(
            "multi_dot: input arrays must all be two-dimensional, except for the first and last array which may be "
            "1 or 2 dimensional. "
            f"Got array shapes {[x.aval.shape for x in items]}"
        )
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    terms = [letters[k : k + 2] for k in range(count)]
    terms[0] = terms[0] if ndims[0] == 2 else terms[0][1:]
    terms[-1] = terms[-1] if ndims[-1] == 2 else terms[-1][:1]
    result = (letters[0] if ndims[0] == 2 else "") + (letters[count] if ndims[-1] == 2 else "")
    return einsum(f"{','.join(terms)}->{result}", *items, optimize="optimal", precision=precision)


def tensorinv(a: Any, ind: int = 2) -> Any:
    """The inverse of a tensor with respect to `tensordot(a, b, ind)`."""
    (x,) = inexact("tensorinv", a)
    if ind <= 0:
        raise ValueError(f"ind must be a positive integer; got ind={ind}")
    shape = x.aval.shape
    n = int(np.prod(shape[ind:]))
    if int(np.prod(shape[:ind])) != n:
        raise ValueError(
            f"product of dimensions before and after ind={ind} must match: tensorinv got {x.aval.str_short()}"
        )
    return manipulation.reshape(inv(manipulation.reshape(x, (n, n))), (*shape[ind:], *shape[:ind]))


def tensorsolve(a: Any, b: Any, axes: tuple[int, ...] | None = None) -> Any:
    """`x` with `tensordot(a, x, x.ndim) == b`; `axes` of `a` are moved to its end first."""
    x, y = inexact("tensorsolve", a, b)
    if axes is not None:
        x = manipulation.moveaxis(x, axes, tuple(range(len(aval_of(x).shape) - len(axes), len(aval_of(x).shape))))
    shape = aval_of(x).shape[aval_of(y).ndim :]
    n = aval_of(y).size
    if aval_of(x).shape[: aval_of(y).ndim] != aval_of(y).shape or int(np.prod(shape)) != n:
        raise ValueError(
            f"tensorsolve: a must have the dims of b, then dims of the same product, got {aval_of(x).str_short()} "
            f"and {aval_of(y).str_short()}"
        )
    return manipulation.reshape(solve(manipulation.reshape(x, (n, n)), manipulation.ravel(y)), shape)


# -- numbers -----------------------------------------------------------------------------------------------------


def det(a: Any) -> Any:
    """The determinants of square matrices."""
    return elimination.det(matrices("det", a, square=True))


def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """The signs (phases) of determinants and the logarithms of their absolute values.  `method` changes nothing."""
    if method not in (None, "lu", "qr"):
        raise ValueError(f"Unknown slogdet method '{method}'. Supported methods are 'lu' and 'qr'.")
    return SlogdetResult(*elimination.slogdet(matrices("slogdet", a, square=True)))


def matrix_rank(M: Any, rtol: Any = None, *, hermitian: bool = False, tol: Any = None) -> Any:
    """How many singular values are above `rtol` (`tol` is its old name) times the largest, as int32.

    rtol: default `max(m, n) * eps`.
    """
    (x,) = inexact("matrix_rank", M)
    if x.aval.ndim < 2:
        return cast(reductions.any(x), np.dtype(np.int32))
    rtol = tol if rtol is None else rtol
    s = spectral.svdvals(x)
    real = dtypes.real_dtype(x.aval.dtype)
    rtol = max(x.aval.shape[-2:]) * float(dtypes.finfo(real).eps) if rtol is None else rtol
    limit = multiply(cast(operands("matrix_rank", rtol)[0], real), reductions.max(s, axis=-1))
    return reductions.sum(cast(greater(s, manipulation.expand_dims(limit, -1)), np.dtype(np.int32)), axis=-1)


def cond(x: Any, p: Any = None) -> Any:
    """The condition numbers in the norm `p` (None: the ratio of the largest to the smallest singular value)."""
    (a,) = inexact("cond", x)
    if a.aval.ndim < 2:
        raise ValueError(f"jnp.linalg.cond: input array must be at least 2D; got arr.shape={a.aval.shape}")
    if p in (None, 2, -2):
        s = spectral.svdvals(a)
        first, last = (manipulation.squeeze(_columns(s, (k, k + 1)), -1) for k in (0, s.aval.shape[-1] - 1))
        out = divide(last, first) if p == -2 else divide(first, last)
    else:
        matrices("cond", a, square=True)
        out = multiply(matrix_norm(a, ord=p), matrix_norm(inv(a), ord=p))
    given = reductions.any(isnan(a), axis=(-2, -1))
    return where_op(logical_and(isnan(out), logical_not(given)), cast(np.inf, aval_of(out).dtype), out)


# -- numpy's functions with the signatures of the array API ---------------------------------------------------------


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices, as the last dim."""
    return _diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sums of the diagonals of matrices."""
    return _trace(x, offset, -2, -1, dtype)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The vector product of vectors of 3 components along an axis."""
    x, y = (as_array(v) for v in operands("cross", x1, x2))
    if x.aval.shape[axis] != 3 or y.aval.shape[axis] != 3:
        raise ValueError(
            f"Both input arrays must be (arrays of) 3-dimensional vectors, but they have "
            f"x1.shape[axis]={x.aval.shape[axis]} and "
            f"x2.shape[axis]={y.aval.shape[axis]}"
        )
    return _cross(x, y, axis=axis)


def outer(x1: Any, x2: Any, /) -> Any:
    """All products of an element of one vector with an element of another."""
    x, y = (as_array(v) for v in operands("outer", x1, x2))
    if x.aval.ndim != 1 or y.aval.ndim != 1:
        raise ValueError(
            f"Input arrays must be one-dimensional, but they are x1.ndim={x.aval.ndim} x2.ndim={y.aval.ndim}"
        )
    return _outer(x, y)
