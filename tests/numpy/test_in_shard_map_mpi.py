"""Reductions, order and indexing in the body of shard_map: on each block what the same expression gives for that block alone."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.types.partition_spec import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parent))
from sharded_expressions import EXPRESSIONS

pytestmark = [pytest.mark.mpi(min_size=4), pytest.mark.limit(240)]

X = ((np.arange(16 * 8) * 11 % 137 - 60) / 4).astype(np.float32).reshape(16, 8)
R = ((np.arange(32) * 7 % 41 - 20) / 2).astype(np.float32).reshape(8, 4)
I = np.array([1, 0], np.int32)
Q = (np.arange(32) * 5 % 4).astype(np.int32).reshape(8, 4)
AXES = ("x", "y")


def evaluate(text: str, x: Any, r: Any, i: Any, q: Any) -> list[Any]:
    out = eval(text, {"jnp": jnp, "jax": jax, "np": np, "P": P, "x": x, "r": r, "i": i, "q": q})
    return list(out) if isinstance(out, (tuple, list)) else [out]


def varying(v: Any) -> Any:
    """A block of the result, whatever axes it varies over."""
    missing = tuple(a for a in AXES if a not in jax.typeof(v).vma)
    return (jax.lax.pcast(v, missing, to="varying") if missing else v)[None, None]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_values(part, staged):
    wrong = []
    mesh = jax.make_mesh((2, 2), AXES, devices=jax.devices()[:4])
    for text in [t for t in EXPRESSIONS if "out_sharding" not in t][part::4]:
        with warnings.catch_warnings(), jax.set_mesh(mesh):
            warnings.simplefilter("ignore")
            body = lambda *args: [varying(v) for v in evaluate(text, *args)]  # noqa: B023
            f = jax.shard_map(body, in_specs=(P(*AXES), P(), P(), P()), out_specs=P(*AXES))
            args = [jax.device_put(v, s) for v, s in ((X, P(*AXES)), (R, P()), (I, P()), (Q, P()))]
            try:
                got = [np.asarray(v) for v in (jax.jit(f) if staged else f)(*args)]
            except Exception as e:
                wrong.append(f"{text}: {type(e).__name__}: {e}")
                continue
        for a, b in np.ndindex(2, 2):
            block = X[8 * a : 8 * a + 8, 4 * b : 4 * b + 4]
            want = evaluate(text, *(jnp.asarray(v) for v in (block, R, I, Q)))
            for g, w in zip(got, want, strict=True):
                if not np.allclose(g[a, b], w, rtol=1e-5, atol=1e-5, equal_nan=True):
                    wrong.append(f"{text} on block {a, b}: {g[a, b]} instead of {w}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
