"""The ops of linear algebra against numpy on global data, their derivatives against differences.

Vectors and factors are compared where they are determined (products, values, spans), since signs and phases are free.
"""

import numpy as np
import pytest

from mpiarray.config import config
from mpiarray.core.op import Linear
from mpiarray.ops import elimination, spectral, triangular
from mpiarray.runtime import eager

BATCHES = [(), (3,), (2, 3)]
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


@pytest.fixture(autouse=True)
def x64():
    before = config.jax_enable_x64
    config.update("jax_enable_x64", True)
    yield
    config.update("jax_enable_x64", before)


def matrices(batch, m, n, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*batch, m, n))
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * rng.normal(size=x.shape)
    return x.astype(dtype)


def definite(batch, n, dtype, seed=0):
    x = matrices(batch, n, n, dtype, seed)
    return (x @ adjoint(x) + n * np.eye(n)).astype(dtype)


def adjoint(x):
    return np.swapaxes(x, -1, -2).conj()


def close(actual, expected, dtype, scale=100):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    tol = scale * np.finfo(dtype).eps
    np.testing.assert_allclose(actual, expected, rtol=tol, atol=tol * max(1.0, np.abs(expected).max(initial=0)))


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [0, 1, 4, 40, 70])
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_systems(n, batch, dtype, lower):
    a = matrices(batch, n, n, dtype) / max(n, 1) + 2 * np.eye(n, dtype=dtype)
    a = a.astype(dtype)
    used = np.tril(a) if lower else np.triu(a)
    for left, swap, conj, unit in [
        (True, False, False, False),
        (True, True, False, True),
        (False, True, True, False),
        (False, False, False, True),
    ]:
        full = used.copy()
        if unit:
            full[..., range(n), range(n)] = 1
        full = full.conj() if conj else full
        full = np.swapaxes(full, -1, -2) if swap else full
        b = matrices(batch, n, 3, dtype, 1) if left else matrices(batch, 3, n, dtype, 1)
        x = triangular.triangular_solve(
            a, b, left_side=left, lower=lower, transpose_a=swap, conjugate_a=conj, unit_diagonal=unit
        )  # fmt: skip
        x = np.asarray(x)
        assert x.dtype == dtype
        close(full @ x if left else x @ full, b, dtype, 2000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (3, 5), (70, 70), (40, 70), (70, 40), (0, 3)])
def test_lu(shape, batch, dtype):
    x = matrices(batch, *shape, dtype)
    factors, pivots, permutation = (np.asarray(v) for v in elimination.lu(x))
    m, n = shape
    k = min(m, n)
    low = np.tril(factors[..., :, :k], -1) + np.eye(m, k)
    up = np.triu(factors[..., :k, :])
    close(low @ up, np.take_along_axis(x, permutation[..., None].astype(int), -2), dtype, 1000)
    assert np.abs(low).max(initial=0) <= 1 + 1e-5 or np.iscomplexobj(x)
    for b in np.ndindex(*batch):
        order = np.arange(m)
        for i, p in enumerate(pivots[b]):
            order[[i, p]] = order[[p, i]]
        assert np.array_equal(order, permutation[b])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_solutions_and_determinants(batch, dtype):
    a, b = matrices(batch, 5, 5, dtype), matrices(batch, 5, 2, dtype, 1)
    close(elimination.linear_solve(a, b), np.linalg.solve(a, b), dtype, 1000)
    close(elimination.det(a), np.linalg.det(a), dtype, 1000)
    sign, logarithm = elimination.slogdet(a)
    close(sign * np.exp(np.asarray(logarithm)), np.linalg.det(a), dtype, 1000)
    close(elimination.adjugate(a), np.linalg.det(a)[..., None, None] * np.linalg.inv(a), dtype, 1000)


def test_adjugate_of_a_singular_matrix():
    a = np.array([[1.0, 2], [2, 4]])
    close(elimination.adjugate(a), [[4.0, -2], [-2, 1]], np.float64)


def test_singular_matrices_have_no_exception():
    a = np.stack([np.eye(2), np.zeros((2, 2))])
    x = np.asarray(elimination.linear_solve(a, np.ones((2, 2, 1))))
    assert np.array_equal(x[0], np.ones((2, 1))) and not np.isfinite(x[1]).any()
    low = np.asarray(triangular.cholesky(np.stack([4 * np.eye(2), -np.eye(2)])))
    assert np.array_equal(low[0], 2 * np.eye(2)) and np.isnan(low[1]).all()
    assert np.isnan(np.asarray(triangular.cholesky(-np.eye(2)))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_factors(batch, dtype):
    a = definite(batch, 5, dtype)
    low = np.asarray(triangular.cholesky(a))
    close(low, np.linalg.cholesky(a), dtype)
    for m, n in [(5, 5), (5, 3), (3, 5), (4, 0)]:
        x = matrices(batch, m, n, dtype)
        for full in (True, False):
            q, r = (np.asarray(v) for v in spectral.qr(x, full_matrices=full))
            close(q @ r, x, dtype)
            close(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*batch, q.shape[-1], q.shape[-1])), dtype)
            assert np.array_equal(np.triu(r), r)
            if n:
                s, u, vh = (np.asarray(v) for v in spectral.svd(x, full_matrices=full))
                k = min(m, n)
                close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x, dtype)
                close(s, np.linalg.svd(x, compute_uv=False), dtype)
                close(spectral.svdvals(x), s, dtype)
                assert u.shape[-1] == (m if full else k) and vh.shape[-2] == (n if full else k)
        close(
            spectral.pinv(x, np.full(batch, 1e-6, np.float64)),
            np.linalg.pinv(x) if n else np.zeros((*batch, 0, 4)),
            dtype,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_spectra(batch, dtype):
    a = definite(batch, 5, dtype)
    for lower in (True, False):
        triangle = np.tril(a) if lower else np.triu(a)  # the other one is not read
        v, w = (np.asarray(x) for x in spectral.eigh(triangle, lower=lower))
        close(v * w[..., None, :] @ adjoint(v), a, dtype)
        assert (np.diff(w, axis=-1) >= 0).all()
    x = matrices(batch, 5, 5, dtype)
    w, v = (np.asarray(y) for y in spectral.eig(x))
    close(x @ v, v * w[..., None, :], dtype, 1000)
    close(spectral.eigvals(x), np.linalg.eigvals(x), dtype, 1000)


# -- derivatives -------------------------------------------------------------------------------------------


def difference(f, x, t, h=1e-6):
    up, down = f(x + h * t), f(x - h * t)
    return [(np.asarray(u) - np.asarray(d)) / (2 * h) for u, d in zip(up, down)]


def as_list(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]


def check_jvp(op, x, t, *, others=(), **params):
    """The derivative with respect to the first operand."""
    _, tangents = op.jvp(op, [x, *others], [t, *(elimination.Zero(eager.from_host(o).aval) for o in others)], **params)
    expected = difference(lambda y: as_list(op(y, *others, **params)), x, t)
    for got, want in zip(as_list(tangents), expected):
        if not isinstance(got, elimination.Zero):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_derivatives_of_matrix_functions(batch, dtype):
    x, t = matrices(batch, 4, 4, dtype), matrices(batch, 4, 4, dtype, 1)
    b = matrices(batch, 4, 2, dtype, 2)
    check_jvp(elimination.linear_solve, x, t, others=(b,))
    check_jvp(elimination.det, x, t)
    check_jvp(elimination.adjugate, x, t)
    check_jvp(elimination.slogdet, x, t)
    check_jvp(spectral.qr, x, t, full_matrices=False)
    check_jvp(spectral.svdvals, x, t)
    check_jvp(spectral.pinv, x, t, others=(np.full(batch, 1e-9),))
    check_jvp(triangular.cholesky, definite(batch, 4, dtype), t + adjoint(t))
    for m, n in [(5, 3), (3, 5)]:
        x, t = matrices(batch, m, n, dtype), matrices(batch, m, n, dtype, 1)
        check_jvp(elimination.lu, x, t)
        check_jvp(spectral.svdvals, x, t)
        check_jvp(spectral.pinv, x, t, others=(np.full(batch, 1e-9),))
        if m > n:
            check_jvp(spectral.qr, x, t, full_matrices=False)
    for flags in np.ndindex(2, 2, 2, 2):
        left, lower, swap, unit = map(bool, flags)
        right = b if left else np.swapaxes(b, -1, -2)
        params = {"left_side": left, "lower": lower, "transpose_a": swap, "unit_diagonal": unit, "conjugate_a": False}
        x, t = matrices(batch, 4, 4, dtype) + 3 * np.eye(4), matrices(batch, 4, 4, dtype, 1)
        check_jvp(triangular.triangular_solve, x, t, others=(right,), **params)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_derivatives_of_spectra(dtype):
    """Of what does not depend on phases: values, and products of vectors with their adjoints."""
    for m, n in [(4, 4), (5, 3), (3, 5)]:
        x, t = matrices((2,), m, n, dtype), matrices((2,), m, n, dtype, 1)
        (s, u, vh), (ds, du, dvh) = (
            [np.asarray(v) for v in vs] for vs in spectral.svd.jvp(spectral.svd, [x], [t], full_matrices=False)
        )
        whole = du * s[..., None, :] @ vh + u * ds[..., None, :] @ vh + u * s[..., None, :] @ dvh
        np.testing.assert_allclose(whole, t, atol=1e-9)
        for one, change in ((u, du), (adjoint(vh), adjoint(dvh))):  # columns stay orthonormal
            flat = adjoint(one) @ change
            np.testing.assert_allclose(flat + adjoint(flat), np.zeros_like(flat), atol=1e-9)
    a, t = definite((2,), 4, dtype), matrices((2,), 4, 4, dtype, 1)
    t = t + adjoint(t)
    (v, w), (dv, dw) = ([np.asarray(y) for y in ys] for ys in spectral.eigh.jvp(spectral.eigh, [a], [t], lower=True))
    whole = dv * w[..., None, :] @ adjoint(v)
    np.testing.assert_allclose(whole + adjoint(whole) + v * dw[..., None, :] @ adjoint(v), t, atol=1e-9)
    x, t = matrices((2,), 4, 4, dtype), matrices((2,), 4, 4, dtype, 1)
    check_jvp(spectral.eigvals, x, t)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_transposes(dtype):
    """<ct, S b> is <S^T ct, b>."""
    a, b, ct = (
        matrices((3,), 4, 4, dtype) + 3 * np.eye(4),
        matrices((3,), 4, 2, dtype, 1),
        matrices((3,), 4, 2, dtype, 2),
    )
    aval = eager.from_host(b).aval
    for conj in (False, True):
        params = {"left_side": True, "lower": True, "transpose_a": True, "unit_diagonal": False, "conjugate_a": conj}
        out = triangular.triangular_solve(a, b, **params)
        _, back = triangular.triangular_solve.transpose(triangular.triangular_solve, ct, a, Linear(aval), **params)
        np.testing.assert_allclose(np.sum(ct * np.asarray(out)), np.sum(np.asarray(back) * b))
    _, back = elimination.linear_solve.transpose(elimination.linear_solve, ct, a, Linear(aval))
    np.testing.assert_allclose(np.sum(ct * np.asarray(elimination.linear_solve(a, b))), np.sum(np.asarray(back) * b))
