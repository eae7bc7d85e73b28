"""Derivative rules of elementwise ops, reductions and ops along a dim, against central differences in float64,
and transposes against inner products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray.ops.special
import mpiarray.ops.transcendental  # noqa: F401
from mpiarray.core.op import OPS, Linear, Undefined, Zero
from mpiarray.core.value import aval_of
from mpiarray.ops import cumulative, reductions, searching, sorting
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, run

ONE = mesh_of(("x", 1))
F64 = np.dtype(np.float64)

INSIDE = np.array([[0.31, -0.42, 0.77], [-0.83, 0.12, -0.05]])
POSITIVE = np.array([[0.31, 1.42, 2.77], [3.83, 0.62, 5.05]])
ANY = np.array([[0.31, -1.42, 2.77], [-3.83, 0.62, -5.05]])
UNARY = {
    "inside": ["asin", "acos", "atanh", "erf_inv"],
    "positive": ["log", "log1p", "sqrt", "rsqrt", "lgamma", "digamma", "cbrt"],
    "above one": ["acosh"],
    "any": [
        "neg", "exp", "exp2", "expm1", "tanh", "logistic", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh",
        "square", "abs", "erf", "erfc", "bessel_i0e", "bessel_i1e", "sign", "floor", "ceil",
    ],
}  # fmt: skip
POINTS = {"inside": INSIDE, "positive": POSITIVE, "above one": POSITIVE + 1, "any": ANY}
OTHER = np.array([[1.31, 0.42, -1.77], [2.83, -1.62, 2.05]])
BINARY = {
    "add": (ANY, OTHER),
    "sub": (ANY, OTHER),
    "mul": (ANY, OTHER),
    "div": (ANY, OTHER),
    "rem": (ANY, OTHER),
    "max": (ANY, OTHER),
    "min": (ANY, OTHER),
    "pow": (POSITIVE, OTHER),
    "atan2": (ANY, OTHER),
    "igamma": (POSITIVE + 0.5, abs(OTHER)),
    "igammac": (POSITIVE + 0.5, abs(OTHER)),
}


def jvp_of(op: Any, primals: list[np.ndarray], tangents: list[np.ndarray | None], **params: Any) -> list[np.ndarray]:
    """Results and tangents of the op's rule; a tangent of None is a symbolic zero."""
    live = [t for t in tangents if t is not None]

    def f(*values: Any) -> list[Any]:
        xs, ts = values[: len(primals)], iter(values[len(primals) :])
        full = [Zero(aval_of(x)) if t is None else next(ts) for x, t in zip(xs, tangents)]
        out, tangent = op.jvp(op, xs, full, **params)
        outs = [*out, *tangent] if op.multiple_results else [out, tangent]
        return [v for v in outs if not isinstance(v, Zero)]

    args = [*primals, *live]
    return run(f, args, [P()] * len(args), ONE)[0]


def difference(op: Any, primals: list[np.ndarray], tangents: list[np.ndarray | None], **params: Any) -> Any:
    h = 1e-6
    moved = [[x if t is None else x + s * h * t for x, t in zip(primals, tangents)] for s in (1, -1)]
    up, down = (op.impl(*m, **params) for m in moved)
    first = lambda v: v[0] if op.multiple_results else v
    return (np.asarray(first(up)) - np.asarray(first(down))) / (2 * h)


def check(op: Any, primals: list[np.ndarray], tangents: list[np.ndarray | None], **params: Any) -> None:
    got = jvp_of(op, primals, tangents, **params)
    out = op.impl(*primals, **params)
    np.testing.assert_allclose(got[0], out[0] if op.multiple_results else out, rtol=1e-12)
    want = difference(op, primals, tangents, **params)
    if len(got) == 1:
        assert not np.any(want), f"{op.name}: the rule says zero"
        return
    np.testing.assert_allclose(got[-1], want, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize(("domain", "name"), [(d, n) for d, names in UNARY.items() for n in names])
def test_of_one_operand(domain: str, name: str) -> None:
    check(OPS[name], [POINTS[domain]], [np.cos(np.arange(6.0)).reshape(2, 3) + 0.3])


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("which", [0, 1])
def test_of_two_operands(name: str, which: int) -> None:
    x, y = BINARY[name]
    t = np.cos(np.arange(6.0)).reshape(2, 3) + 0.3
    check(OPS[name], [x, y], [t, None] if which == 0 else [None, t])
    small = [x, y]
    small[which] = small[which][:1]  # a dim that is broadcast
    check(OPS[name], small, [t[:1], None] if which == 0 else [None, t[:1]])
    check(OPS[name], small, [t if which else t[:1], t[:1] if which else t])


@pytest.mark.parametrize("y", [0, 1, 2, 3, -1, -2])
def test_integer_pow(y: int) -> None:
    check(OPS["integer_pow"], [ANY], [np.ones((2, 3))], y=y)


@pytest.mark.parametrize(
    ("name", "which"), [("polygamma", 1), ("zeta", 1), ("regularized_incomplete_beta", 2)]
)  # fmt: skip
def test_of_the_last_operand_only(name: str, which: int) -> None:
    operands = {
        "polygamma": [np.full((2, 3), 2.0), POSITIVE],
        "zeta": [POSITIVE + 1.2, POSITIVE],
        "regularized_incomplete_beta": [POSITIVE, POSITIVE[::-1].copy(), abs(INSIDE)],
    }[name]
    tangents: list[Any] = [None] * len(operands)
    tangents[which] = np.ones((2, 3))
    check(OPS[name], operands, tangents)
    with pytest.raises(NotImplementedError, match="stop_gradient"):
        jvp_of(OPS[name], operands, [np.ones((2, 3))] * len(operands))


def test_clamp_and_select() -> None:
    low, high = np.full((2, 3), -1.0), np.full((2, 3), 2.0)
    t = np.cos(np.arange(6.0)).reshape(2, 3)
    for k in range(3):
        check(OPS["clamp"], [low, ANY, high], [t if i == k else None for i in range(3)])
    which = ANY > 0
    check(OPS["select_n"], [which, ANY, OTHER], [None, t, None])
    check(OPS["select_n"], [which, ANY, OTHER], [None, t, 2 * t])


def test_conventions_at_ties() -> None:
    x = np.array([1.0, 2.0])
    t = np.ones(2)
    np.testing.assert_array_equal(jvp_of(OPS["max"], [x, x], [t, None])[1], [0.5, 0.5])
    np.testing.assert_array_equal(jvp_of(OPS["abs"], [np.array([0.0, -0.0])], [t])[1], [1, 1])
    np.testing.assert_array_equal(jvp_of(OPS["sqrt"], [np.zeros(2)], [t])[1], [np.inf, np.inf])
    np.testing.assert_array_equal(jvp_of(OPS["clamp"], [np.zeros(2), np.zeros(2), t], [None, t, None])[1], [0, 0])
    out = jvp_of(reductions.reduce_max, [np.array([3.0, 1, 3, 2])], [np.array([1.0, 10, 100, 1000])], axes=(0,))
    assert out[1] == 50.5
    np.testing.assert_allclose(
        jvp_of(cumulative.cummax, [np.array([1.0, 1, 1, 0])], [np.array([1.0, 0, 0, 0])], axis=0, reverse=False)[1][2:],
        [0.25, 0.25],
    )
    np.testing.assert_array_equal(jvp_of(OPS["pow"], [np.zeros(2), np.array([0.0, 2])], [None, t])[1], [0, 0])


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), ()], ids=str)
@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_prod"])
def test_of_reductions(name: str, axes: tuple[int, ...]) -> None:
    x = np.cos(np.arange(30.0) * 3).reshape(2, 3, 5)
    check(OPS[name], [x], [np.sin(np.arange(30.0)).reshape(2, 3, 5)], axes=axes)


def test_product_with_zeros() -> None:
    for x in ([0.0, 2, 3], [0.0, 0, 3], [0.0, 0, 0, 1, 2]):
        a = np.array(x)
        grads = [jvp_of(reductions.reduce_prod, [a], [np.eye(len(a))[i]], axes=(0,))[1] for i in range(len(a))]
        np.testing.assert_allclose(grads, [np.prod(np.delete(a, i)) for i in range(len(a))])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
def test_of_cumulative_ops(name: str, reverse: bool, n: int) -> None:
    x = np.cos(np.arange(2.0 * n) * 3).reshape(2, n)
    check(OPS[name], [x], [np.sin(np.arange(2.0 * n)).reshape(2, n)], axis=1, reverse=reverse)


def test_cumulative_logsumexp_of_infinities() -> None:
    x = np.array([-np.inf, 1.0, -np.inf, 2.0])
    got = jvp_of(cumulative.cumlogsumexp, [x], [np.ones(4)], axis=0, reverse=False)[1]
    np.testing.assert_allclose(got[1:], [1, 1, 1])


def test_of_sorts() -> None:
    x = np.cos(np.arange(12.0) * 3).reshape(3, 4)
    t = np.arange(12.0).reshape(3, 4)
    check(sorting.sort, [x], [t], dimension=1, is_stable=True, num_keys=1)
    got = jvp_of(sorting.sort, [x, x + 1], [t, None], dimension=0, is_stable=True, num_keys=1)
    np.testing.assert_array_equal(got[2], np.take_along_axis(t, np.argsort(x, axis=0), 0))
    got = jvp_of(searching.top_k, [x], [t], axis=1, k=2)
    np.testing.assert_array_equal(got[2], np.take_along_axis(t, np.argsort(-x, axis=1)[:, :2], 1))


def test_product_over_sharded_dims() -> None:
    x = np.cos(np.arange(32.0) * 3).reshape(8, 4)
    t = np.sin(np.arange(32.0)).reshape(8, 4)
    mesh = mesh_of(("x", 4), ("y", 2), kind=AxisType.Explicit)
    op = reductions.reduce_prod
    for axes in ((0,), (1,), (0, 1)):
        (got,), _, _, _ = run(lambda v, s, a=axes: [op.jvp(op, [v], [s], axes=a)[1]], [x, t], [P("x", "y")] * 2, mesh)
        np.testing.assert_allclose(got, difference(op, [x], [t], axes=axes), rtol=1e-5)


# -- transposes -----------------------------------------------------------------------------------------------


def transposed(op: Any, ct: np.ndarray, args: list[Any], **params: Any) -> np.ndarray:
    """The cotangent of the operand that stands as a type among the arguments."""
    linear = next(i for i, a in enumerate(args) if isinstance(a, ShapedArray))
    others = [a for a in args if not isinstance(a, ShapedArray)]

    def f(c: Any, *values: Any) -> list[Any]:
        it = iter(values)
        full = [Linear(a) if isinstance(a, ShapedArray) else next(it) for a in args]
        return [op.transpose(op, c, *full, **params)[linear]]

    return run(f, [ct, *others], [P()] * (1 + len(others)), ONE)[0][0]


LINEAR: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("neg", [None], {}),
    ("add", [None, OTHER], {}),
    ("add", [OTHER, None], {}),
    ("sub", [None, OTHER], {}),
    ("sub", [OTHER, None], {}),
    ("mul", [None, OTHER], {}),
    ("mul", [OTHER, None], {}),
    ("div", [None, OTHER], {}),
    ("select_n", [OTHER > 0, None, OTHER * 0], {}),
    ("select_n", [OTHER > 0, OTHER * 0, None], {}),
    ("cumsum", [None], {"axis": 1, "reverse": False}),
    ("cumsum", [None], {"axis": 0, "reverse": True}),
    ("reduce_precision", [None], {"exponent_bits": 11, "mantissa_bits": 52}),
    ("take_along", [None, np.array([[2, 0], [1, 1]], np.int32)], {"dimension": 1}),
]


@pytest.mark.parametrize("case", LINEAR, ids=lambda c: f"{c[0]}-{[a is None for a in c[1]].index(True)}")
@pytest.mark.parametrize("shape", [(2, 3), (1, 3), ()], ids=str)
def test_transposes(case: Any, shape: tuple[int, ...]) -> None:
    name, args, params = case
    broadcasts = name in ("add", "sub", "mul", "div")
    if shape != (2, 3) and not broadcasts:
        shape = (2, 3)
    at = [a is None for a in args].index(True)
    t = np.asarray(np.sin(np.arange(float(np.prod(shape))))).reshape(shape)
    fixed = [np.zeros((2, 3)) if broadcasts and a is not None and name in ("add", "sub") else a for a in args]
    out = np.asarray(OPS[name].impl(*[t if i == at else a for i, a in enumerate(fixed)], **params))
    ct = np.cos(np.arange(float(out.size)) + 1).reshape(out.shape)
    back = transposed(OPS[name], ct, [ShapedArray(shape, F64) if i == at else a for i, a in enumerate(fixed)], **params)
    assert back.shape == shape
    np.testing.assert_allclose(np.sum(back * t), np.sum(ct * out), rtol=1e-10)


def test_complex_parts() -> None:
    z = ANY + 1j * OTHER
    t = np.cos(ANY) + 1j * np.sin(OTHER)
    for name in ("real", "imag"):
        got = jvp_of(OPS[name], [z], [t])
        np.testing.assert_array_equal(got[1], getattr(t, name))
        back = transposed(OPS[name], ANY, [ShapedArray((2, 3), np.dtype(np.complex128))])
        want = ANY + 0j if name == "real" else -1j * ANY  # linear maps transpose without conjugation
        np.testing.assert_array_equal(back, want)
    got = jvp_of(OPS["complex"], [ANY, OTHER], [OTHER, ANY])
    np.testing.assert_array_equal(got[1], OTHER + 1j * ANY)
    for name in ("exp", "sin", "log", "sqrt", "tanh", "square", "logistic"):
        check_complex(name, z, t)
    h = 1e-7
    slope = (abs(z + h * t) - abs(z - h * t)) / (2 * h)
    np.testing.assert_allclose(jvp_of(OPS["abs"], [z], [t])[1], slope, rtol=1e-5)


def check_complex(name: str, z: np.ndarray, t: np.ndarray) -> None:
    h, op = 1e-6, OPS[name]
    np.testing.assert_allclose(jvp_of(op, [z], [t])[1], (op.impl(z + h * t) - op.impl(z - h * t)) / (2 * h), rtol=1e-6)


def test_ops_without_a_transpose_say_so() -> None:
    assert isinstance(OPS["sin"].transpose, Undefined)
    with pytest.raises(NotImplementedError, match="Transpose rule for 'sin' not implemented"):
        OPS["sin"].transpose(OPS["sin"], None, None)
