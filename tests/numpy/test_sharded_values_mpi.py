"""Values of reductions, order and indexing of sharded arrays: what the same expression gives on one device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm
from mpiarray.errors import ShardingTypeError
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parent))
from sharded_expressions import EXPRESSIONS, SPECS

pytestmark = pytest.mark.mpi(min_size=4)

X = ((np.arange(32) * 11 % 37 - 17) / 4).astype(np.float32).reshape(8, 4)
R = ((np.arange(32) * 7 % 41 - 20) / 2).astype(np.float32).reshape(8, 4)
I = np.array([1, 0], np.int32)
Q = (np.arange(32) * 5 % 4).astype(np.int32).reshape(8, 4)
RANDOM = np.random.default_rng(3)


def mesh_of(kind: AxisType) -> Any:
    sizes = (4, 2) if comm.size() >= 8 else (2, 2)
    return jax.make_mesh(sizes, ("x", "y"), axis_types=(kind,) * 2, devices=jax.devices()[: sizes[0] * sizes[1]])


def evaluate(text: str, x: Any, r: Any, i: Any, q: Any) -> list[Any]:
    out = eval(text, {"jnp": jnp, "jax": jax, "np": np, "P": P, "x": x, "r": r, "i": i, "q": q})
    return list(out) if isinstance(out, (tuple, list)) else [out]


def expected(text: str) -> list[np.ndarray]:
    """Without a mesh."""
    plain = text
    for spec in ("P()", "P('x')", "P('y')", "P('x', 'y')", "P(None, 'x')", "P('y', None)"):
        plain = plain.replace(f", out_sharding={spec}", "").replace(f"out_sharding={spec}", "")
    return [np.asarray(v) for v in evaluate(plain, *(jnp.asarray(v) for v in (X, R, I, Q)))]


def agree(got: list[Any], want: list[np.ndarray]) -> str | None:
    for a, b in zip(got, want, strict=True):
        a = np.asarray(a)
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True):
            return f"{a} instead of {b}"
    return None


@pytest.mark.limit(240)
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("part", range(4))
def test_values(kind, part):
    mesh, wrong, refused = mesh_of(kind), [], 0
    for number, text in enumerate(EXPRESSIONS):
        if number % 4 != part or (kind is AxisType.Auto and "out_sharding" in text):
            continue
        want = expected(text)
        with jax.set_mesh(mesh):
            x = jax.device_put(X, P(*(d if len(d) > 1 else d[0] if d else None for d in SPECS[1 + number % 8])))
            r, i, q = (jax.device_put(v, P()) for v in (R, I, Q))
            try:
                got = evaluate(text, x, r, i, q)
            except (ShardingTypeError, ValueError):
                refused += 1
                if kind is AxisType.Auto:
                    raise
                continue
            found = agree(got, want)
            if found:
                wrong.append(f"{text} with x at {SPECS[1 + number % 8]}: {found}")
    assert not wrong, "\n".join(wrong)
    assert refused < 40
