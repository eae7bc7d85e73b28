"""First and second derivatives of every differentiable op, through `grad`, `jvp` and `jit`, against differences in float64.

The examples are those of `tests/core/op_table`.  The rules alone are tested there; here they are composed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.core.op import OPS
from mpiarray.types import dtypes
from tests.core.op_table import TABLE, Row

CASES = [
    pytest.param(name, row, id=f"{name}-{i}")
    for name, rows in TABLE.items()
    for i, row in enumerate(rows)
    if row.diff and not row.keys
]
# their derivative by the first operand is no elementary function and has no derivative itself
ONCE = {"igamma", "igammac"}
H = 1e-5


def wide(x: Any) -> Any:
    kinds = {"f": np.float64, "c": np.complex128}
    x = np.asarray(x)
    return x.astype(kinds[x.dtype.kind]) if x.dtype.kind in kinds else x


def direction(x: np.ndarray, row: Row, seed: int) -> np.ndarray:
    t = np.cos(np.arange(x.size) * (1.3 + seed) + seed).reshape(x.shape)
    if x.dtype.kind == "c":
        t = t + 1j * np.sin(np.arange(x.size) * 0.7 + seed).reshape(x.shape)
    return row.space(t).astype(x.dtype)


def loss_of(name: str, row: Row) -> tuple[Any, list[np.ndarray]]:
    """A real function of the op's differentiable operands, and these; not linear, so that second derivatives see the op's."""
    op, args = OPS[name], [wide(a) for a in row.args]
    params = {
        k: np.dtype(np.float64) if k in ("preferred_element_type", "new_dtype") and v == np.dtype(np.float32) else v
        for k, v in row.params.items()
    }

    def loss(*xs: Any) -> Any:
        full: list[Any] = list(args)
        for n, x in zip(row.diff, xs, strict=True):
            full[n] = x
        out = op(*full, **params)
        total = 0.0
        for y in out if op.multiple_results else [out]:
            if dtypes.is_complex(y.dtype):
                w = np.cos(np.arange(y.size) + 0.5).reshape(y.shape)
                total = total + (jnp.real(y) * w + jnp.imag(y) * w[::-1]).sum()
            elif dtypes.is_float(y.dtype):
                total = total + (y * np.cos(np.arange(y.size) + 0.5).reshape(y.shape)).sum()
        return total

    return loss, [args[n] for n in row.diff]


def inner(a: Any, b: Any) -> Any:
    return sum((jnp.real(x * y)).sum() for x, y in zip(a, b, strict=True))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def close(got: Any, want: Any, scale: float) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=2e-6 * max(1.0, scale))


@pytest.mark.parametrize(("name", "row"), CASES)
def test_first_derivative(name: str, row: Row) -> None:
    loss, xs = loss_of(name, row)
    vs = [direction(x, row, 1) for x in xs]
    nums = tuple(range(len(xs)))
    slope = (float(loss(*(x + H * v for x, v in zip(xs, vs)))) - float(loss(*(x - H * v for x, v in zip(xs, vs))))) / (
        2 * H
    )
    scale = sum(float(np.abs(v).sum()) for v in vs)
    for gradient in (jax.grad(loss, nums), jax.jit(jax.grad(loss, nums))):
        g = gradient(*xs)
        assert all(a.dtype == x.dtype and a.shape == x.shape for a, x in zip(g, xs, strict=True))
        close(inner(g, vs), slope, scale)
    close(jax.jvp(loss, tuple(xs), tuple(vs))[1], slope, scale)


@pytest.mark.parametrize(("name", "row"), CASES)
def test_second_derivative(name: str, row: Row) -> None:
    if name in ONCE or row.params.get("combine") == "mul":
        pytest.skip("its derivative is written with ops that have none")
    loss, xs = loss_of(name, row)
    nums = tuple(range(len(xs)))
    vs, us = [direction(x, row, 1) for x in xs], [direction(x, row, 2) for x in xs]
    gradient = jax.grad(loss, nums)
    ahead, behind = (gradient(*(x + s * H * u for x, u in zip(xs, us))) for s in (1, -1))
    want = float(inner([(a - b) / (2 * H) for a, b in zip(ahead, behind, strict=True)], vs))
    scale = sum(float(np.abs(v).sum()) for v in vs)
    over = jax.jvp(gradient, tuple(xs), tuple(us))[1]
    close(inner(over, vs), want, scale)
    back = jax.jit(jax.grad(lambda *xs: inner(jax.grad(loss, nums)(*xs), vs), nums))(*xs)
    close(inner(back, us), want, scale)
