"""jax.scipy: special functions against values recorded from JAX (record_special.py), linear algebra against numpy."""

import json
import operator
from pathlib import Path

import numpy as np
import pytest

from mpiarray.runtime import eager  # noqa: F401  (ops run at once)
from mpiarray.scipy import linalg, special, stats
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, run
from tests.scipy.special_calls import CALLS, DISTRIBUTIONS, SIZE

RECORDED = json.loads(Path(__file__).with_name("recorded_special.json").read_text())
EXPLICIT = mesh_of(("x", 4), ("y", 2))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(got, wanted, tol=1e-3):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=tol, atol=tol)


@pytest.mark.parametrize("key", CALLS)
def test_special_functions(key):
    name, args, kwargs = CALLS[key]
    shape, values = RECORDED[key]
    got = np.asarray(getattr(special, name)(*args, **kwargs))
    assert list(got.shape) == shape and got.dtype == np.float32
    np.testing.assert_allclose(got.ravel(), [float(v) for v in values], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("key", DISTRIBUTIONS)
def test_distributions(key):
    name, args = DISTRIBUTIONS[key]
    shape, values = RECORDED[key]
    got = np.asarray(operator.attrgetter(name)(stats)(*args))
    assert list(got.shape) == shape
    np.testing.assert_allclose(got.ravel(), [float(v) for v in values], rtol=1e-4, atol=1e-6)


def test_special_functions_keep_shardings():
    x = np.linspace(0.1, 0.9, 32, dtype=np.float32).reshape(8, 4)
    outs, avals, _, world = run(
        lambda a: [special.ndtri(a), special.xlogy(a, a), special.logsumexp(a, axis=1)], [x], [P("x", None)], EXPLICIT
    )
    assert [a.short() for a in avals] == ["f32[8@x,4]", "f32[8@x,4]", "f32[8@x]"] and not world.calls
    close(outs[2], np.log(np.exp(x).sum(1)))
    close(special.ndtr(outs[0]), x)


def test_logsumexp_gives_signs():
    a = np.array([1.0, 2.0], np.float32)
    value, sign = special.logsumexp(a, b=np.array([1.0, -1.0], np.float32), return_sign=True)
    close(value, np.log(np.exp(2) - np.exp(1)))
    assert float(sign) == -1
    assert np.isnan(float(special.logsumexp(a, b=np.array([1.0, -1.0], np.float32))))
    with pytest.raises(TypeError, match="integer type"):
        special.polygamma(1.5, SIZE)


# -- linear algebra --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [True, False])
def test_systems(lower):
    a, b = normal(2, 4, 4), normal(2, 4, 3, seed=1)
    definite = a @ np.swapaxes(a, 1, 2) + 4 * np.eye(4, dtype=np.float32)
    close(linalg.cholesky(definite, lower=lower), np.linalg.cholesky(definite, upper=not lower))
    close(linalg.cho_solve(linalg.cho_factor(definite, lower), b), np.linalg.solve(definite, b))
    close(linalg.solve(definite, b, assume_a="pos", lower=lower), np.linalg.solve(definite, b))
    triangle = np.tril(definite) if lower else np.triu(definite)
    for trans, matrix in ((0, triangle), ("T", np.swapaxes(triangle, 1, 2)), (2, np.swapaxes(triangle, 1, 2))):
        close(linalg.solve_triangular(definite, b, trans=trans, lower=lower), np.linalg.solve(matrix, b))
    one = linalg.solve_triangular(triangle[0] / 2, b[0, :, 0], lower=lower, unit_diagonal=True)
    unit = triangle[0] / 2 - np.diag(np.diag(triangle[0] / 2)) + np.eye(4)
    close(one, np.linalg.solve(unit, b[0, :, 0]))


def test_lu():
    a, b = normal(2, 4, 4), normal(2, 4, 3, seed=1)
    for trans, matrix in ((0, a), (1, np.swapaxes(a, 1, 2)), (2, np.swapaxes(a, 1, 2))):
        close(linalg.lu_solve(linalg.lu_factor(a), b, trans=trans), np.linalg.solve(matrix, b), 5e-3)
    for shape in ((4, 4), (5, 3), (3, 5)):
        x = normal(*shape)
        p, low, up = (np.asarray(v) for v in linalg.lu(x))
        close(p @ low @ up, x)
        assert np.array_equal(np.tril(low), low) and np.array_equal(np.triu(up), up)
        left, up = linalg.lu(x, permute_l=True)
        close(np.asarray(left) @ np.asarray(up), x)
        u, h = (np.asarray(v) for v in linalg.polar(x))
        close(u @ h, x)
        u, h = (np.asarray(v) for v in linalg.polar(x, "left"))
        close(h @ u, x)


def reference_exponential(a):
    w, v = np.linalg.eig(a.astype(np.complex128))
    return (v * np.exp(w)[..., None, :] @ np.linalg.inv(v)).real


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 3.0, 20.0])
def test_exponentials(scale):
    a = normal(3, 4, 4) * np.float32(scale)
    wanted = reference_exponential(a)
    size = np.abs(wanted).max()
    close(np.asarray(linalg.expm(a)) / size, wanted / size)


def test_exponentials_at_limits():
    assert np.array_equal(np.asarray(linalg.expm(np.zeros((2, 2), np.float32))), np.eye(2))
    assert np.isnan(np.asarray(linalg.expm(np.full((2, 2), 1e8, np.float32)))).all()
    jordan = np.array([[1.0, 1.0], [0.0, 1.0]], np.float32)
    close(linalg.expm(jordan), np.e * jordan)
    a, e = normal(4, 4), normal(4, 4, seed=1)
    slope = linalg.expm_frechet(a, e, compute_expm=False)
    h = 1e-5
    wanted = (reference_exponential(a + h * e.astype(float)) - reference_exponential(a - h * e.astype(float))) / (2 * h)
    close(slope, wanted)


def test_special_matrices():
    c, r = np.float32([0, 1, 2]), np.float32([0, 5, 6, 7])
    close(linalg.toeplitz(c, r), [[0, 5, 6, 7], [1, 0, 5, 6], [2, 1, 0, 5]])
    close(linalg.toeplitz(c), [[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    close(linalg.hankel(c, np.float32([9, 5, 6])), [[0, 1, 2], [1, 2, 5], [2, 5, 6]])
    close(linalg.hankel(c), [[0, 1, 2], [1, 2, 0], [2, 0, 0]])
    close(linalg.circulant(c), [[0, 2, 1], [1, 0, 2], [2, 1, 0]])
    close(linalg.companion(np.float32([1, 2, 3])), [[-2, -3], [1, 0]])
    close(
        linalg.block_diag(np.ones((1, 2)), np.ones((2, 1)), 3.0),
        [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 3]],
    )
    close(linalg.dft(4), np.fft.fft(np.eye(4)))
    close(linalg.hilbert(2), [[1, 0.5], [0.5, 1 / 3]])
    close(np.asarray(linalg.hadamard(4)) @ np.asarray(linalg.hadamard(4)).T, 4 * np.eye(4))
    with pytest.raises(ValueError, match="power of 2"):
        linalg.hadamard(3)
