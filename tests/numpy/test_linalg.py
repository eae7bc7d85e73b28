"""jnp.linalg against numpy: values of matrices and stacks, shardings of stacks, errors."""

import itertools

import numpy as np
import pytest

from mpiarray.errors import ShardingTypeError
from mpiarray.numpy import linalg
from mpiarray.runtime import eager  # noqa: F401  (ops run at once)
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, run

EXPLICIT = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
STACKS = [(4, 4), (2, 3, 4, 4)]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def square(*shape):
    return normal(*shape) + 4 * np.eye(shape[-1], dtype=np.float32)


def close(got, wanted, tol=1e-3):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=tol, atol=tol * max(1, np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize("shape", STACKS)
def test_solutions_and_numbers(shape):
    x, b = square(*shape), normal(4, 3, seed=1)
    close(linalg.solve(x, b), np.linalg.solve(x, b))
    close(linalg.inv(x), np.linalg.inv(x))
    close(linalg.det(x), np.linalg.det(x))
    sign, logarithm = linalg.slogdet(x)
    close(sign, np.linalg.slogdet(x)[0])
    close(logarithm, np.linalg.slogdet(x)[1])
    close(linalg.pinv(x), np.linalg.pinv(x))
    close(linalg.matrix_rank(x), np.linalg.matrix_rank(x))
    for p in (None, 2, -2, 1, -1, np.inf, -np.inf, "fro"):
        close(linalg.cond(x, p), np.linalg.cond(x, p), 5e-3)
    for n in (0, 1, 2, 3, 7, -2):
        close(linalg.matrix_power(x, n), np.linalg.matrix_power(x, n), 5e-3)


def test_vectors_as_right_sides():
    x = square(4, 4)
    close(linalg.solve(x, normal(4)), np.linalg.solve(x, normal(4)))
    stack = square(2, 3, 4, 4)
    close(linalg.solve(stack, normal(4)), np.linalg.solve(stack, normal(4, 1).reshape(4, 1))[..., 0])


@pytest.mark.parametrize("shape", STACKS)
def test_factors(shape):
    x = normal(*shape)
    h = x + np.swapaxes(x, -1, -2)
    definite = x @ np.swapaxes(x, -1, -2) + 4 * np.eye(4, dtype=np.float32)
    close(linalg.cholesky(definite), np.linalg.cholesky(definite))
    close(linalg.cholesky(definite, upper=True), np.swapaxes(np.linalg.cholesky(definite), -1, -2))
    w, v = linalg.eigh(h)
    close(w, np.linalg.eigvalsh(h))
    close(np.asarray(v) * np.asarray(w)[..., None, :] @ np.swapaxes(np.asarray(v), -1, -2), h)
    close(linalg.eigvalsh(h), np.linalg.eigvalsh(h))
    u, s, vh = (np.asarray(a) for a in linalg.svd(x))
    close(u * s[..., None, :] @ vh, x)
    close(linalg.svdvals(x), np.linalg.svd(x, compute_uv=False))
    two = linalg.svd(x, full_matrices=False, subset_by_index=(1, 3))
    close(np.abs(np.asarray(two.U)), np.abs(u[..., 1:3]))
    close(np.abs(np.asarray(two.Vh)), np.abs(vh[..., 1:3, :]))
    q, r = linalg.qr(x)
    close(np.asarray(q) @ np.asarray(r), x)
    close(linalg.qr(x, mode="r"), r)
    w, v = (np.asarray(a) for a in linalg.eig(x))
    close(x @ v, v * w[..., None, :])
    close(linalg.eigvals(x), w)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (4, 4)])
def test_least_squares(shape):
    x = normal(*shape)
    for b in (normal(shape[0], seed=1), normal(shape[0], 2, seed=1)):
        got = linalg.lstsq(x, b, numpy_resid=True)
        for one, wanted in zip(got, np.linalg.lstsq(x, b, rcond=None)):
            close(one, wanted)
    deficient = np.ones((4, 2), np.float32)
    solution, _, rank, _ = linalg.lstsq(deficient, normal(4))
    assert int(rank) == 1
    close(solution, np.linalg.lstsq(deficient, normal(4), rcond=None)[0])


def test_products_of_several_and_tensors():
    a, b = normal(4, 4), normal(4, 3)
    close(linalg.multi_dot([b.T, a, a, b]), np.linalg.multi_dot([b.T, a, a, b]))
    close(linalg.multi_dot([b[:, 0], a, b[:, 1]]), np.linalg.multi_dot([b[:, 0], a, b[:, 1]]))
    t = normal(4, 6, 8, 3)
    close(linalg.tensorinv(t), np.linalg.tensorinv(t), 1e-2)
    t, c = normal(2, 3, 6), normal(2, 3)
    close(linalg.tensorsolve(t, c), np.linalg.tensorsolve(t, c), 1e-2)
    x = normal(3, 4, 5)
    close(linalg.trace(x), np.linalg.trace(x))
    close(linalg.diagonal(x, offset=-1), np.linalg.diagonal(x, offset=-1))
    close(linalg.cross(x[..., :3], x[..., 1:4]), np.linalg.cross(x[..., :3], x[..., 1:4]))
    close(linalg.outer(x[0, 0], x[0, 1]), np.outer(x[0, 0], x[0, 1]))


MATRIX_ORDERS = [None, "fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf]
VECTOR_ORDERS = [None, 2, 1, 3, 0, -1, np.inf, -np.inf, 0.5]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int32])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_norms(dtype, keepdims):
    x = (10 * normal(3, 4, 5)).astype(dtype)
    for order, axes in itertools.product(MATRIX_ORDERS, [(0, 1), (2, 0), (-1, -2)]):
        close(linalg.norm(x, order, axes, keepdims), np.linalg.norm(x, order, axes, keepdims))
    for order, axis in itertools.product(VECTOR_ORDERS, [0, 1, -1]):
        close(linalg.norm(x, order, axis, keepdims), np.linalg.norm(x, order, axis, keepdims))
    close(linalg.norm(x, keepdims=keepdims), np.linalg.norm(x, keepdims=keepdims))
    close(linalg.matrix_norm(x, keepdims=keepdims), np.linalg.matrix_norm(x, keepdims=keepdims))
    close(
        linalg.vector_norm(x, axis=(0, 2), keepdims=keepdims), np.linalg.vector_norm(x, axis=(0, 2), keepdims=keepdims)
    )


def test_stacks_may_be_sharded_and_matrices_not():
    x = square(4, 2, 3, 3)

    def program(a):
        return [
            linalg.inv(a),
            linalg.det(a),
            *linalg.qr(a),
            linalg.cholesky(linalg.matmul(a, linalg.matrix_transpose(a))),
        ]

    outs, avals, _, world = run(program, [x], [P("x", "y")], EXPLICIT)
    close(outs[0], np.linalg.inv(x))
    close(outs[1], np.linalg.det(x))
    assert [a.short() for a in avals[:2]] == ["f32[4@x,2@y,3,3]", "f32[4@x,2@y]"]
    assert not world.calls
    for f in (linalg.inv, linalg.det, linalg.cholesky, linalg.svdvals, linalg.eigvalsh, linalg.eigvals):
        with pytest.raises(ShardingTypeError):
            run(lambda a, f=f: [f(a)], [square(8, 8)], [P(None, "x")], EXPLICIT)
    with pytest.raises(ShardingTypeError, match="Input 0 to svd must be unsharded on non-batch dimensions"):
        run(lambda a: [linalg.svd(a).S], [square(8, 8)], [P("x", None)], EXPLICIT)
    (got,), _, _, world = run(lambda a: [linalg.inv(a)], [square(8, 8)], [P("x", "y")], AUTO)
    close(got, np.linalg.inv(square(8, 8)))


def test_norms_of_sharded_vectors_are_one_all_reduce():
    x = normal(8, 4)
    (got,), (aval,), _, world = run(lambda a: [linalg.norm(a, axis=0)], [x], [P("x", "y")], EXPLICIT)
    close(got, np.linalg.norm(x, axis=0))
    assert aval.short() == "f32[4@y]" and dict(world.calls) == {"all_reduce": 8}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.inv(np.ones(3)), ValueError, r"Argument to inv must have shape \[..., n, n\], got \(3,\)"),
        (lambda: linalg.det(np.ones((3, 2))), ValueError, r"must have shape \[..., n, n\], got \(3, 2\)"),
        (lambda: linalg.norm(np.ones((2, 3, 4)), 2), ValueError, "Improper number of axes for norm"),
        (lambda: linalg.norm(np.ones((2, 3)), "x"), ValueError, "Invalid order 'x' for matrix norm"),
        (lambda: linalg.norm(np.ones(3), "fro"), ValueError, "Invalid order 'fro' for vector norm"),
        (lambda: linalg.qr(np.ones((3, 3)), mode="x"), ValueError, "Unsupported QR decomposition mode 'x'"),
        (lambda: linalg.eigh(np.ones((3, 3)), UPLO="x"), ValueError, "UPLO must be one of"),
        (lambda: linalg.matrix_power(np.ones((2, 3)), 2), TypeError, "must be square"),
        (lambda: linalg.multi_dot([np.ones((2, 2))]), ValueError, "at least two arrays"),
        (lambda: linalg.cross(np.ones(4), np.ones(4)), ValueError, "3-dimensional vectors"),
        (lambda: linalg.solve(np.ones((3, 3)), np.ones(2)), ValueError, "as many rows as the matrix"),
        (lambda: linalg.inv([[1.0]]), TypeError, "requires ndarray or scalar arguments"),
    ],
)  # fmt: skip
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
