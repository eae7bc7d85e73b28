"""Result types of reductions, order and indexing for many shardings, against recorded ones (record_sharded.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.errors import ShardingTypeError
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

sys.path.insert(0, str(Path(__file__).parent))
from sharded_expressions import SPECS

TABLE = json.loads(Path(__file__).with_name("recorded_sharded.json").read_text())
MESH = AbstractMesh((4, 2), ("x", "y"), (AxisType.Explicit,) * 2)
# the result is what the rules say where JAX raises, and `out_sharding` counts also for static indices under jit
OPEN = (
    "jnp.nanmedian(", "jnp.lexsort(", "x[i, :2]", "x[1:3, i]", "jnp.searchsorted(", "jnp.isin(", "jnp.digitize(", "x.at[0].get(out_", "x.at[None, 0].get(",
    "x.at[:4].get(", "x.at[:2].get(", "x.at[:3].get(",
)  # fmt: skip
ERRORS = {"ShardingTypeError": (ShardingTypeError,), "ValueError": (ValueError, ShardingTypeError)}


def struct(shape: tuple[int, ...], dtype: str, dims: Any = ()) -> jax.ShapeDtypeStruct:
    spec = P.from_dims(tuple(tuple(d) for d in dims))
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype), sharding=NamedSharding(MESH, spec.padded(len(shape))))


def result(text: str, dims: Any) -> Any:
    def f(x: Any, r: Any, i: Any, q: Any) -> Any:
        return eval(text, {"jnp": jnp, "jax": jax, "np": np, "P": P, "x": x, "r": r, "i": i, "q": q})

    operands = (
        struct((8, 4), "float32", dims),
        struct((8, 4), "float32"),
        struct((2,), "int32"),
        struct((8, 4), "int32"),
    )
    outs = jax.make_jaxpr(f)(*operands).out_avals
    return [a.str_short() for a in outs]


@pytest.mark.parametrize("text", [t for t in TABLE if not t.startswith(OPEN)])
def test_types(text):
    wrong = []
    with jax.sharding.use_abstract_mesh(MESH):
        for dims, want in zip(SPECS, TABLE[text], strict=True):
            try:
                got = result(text, dims)
            except Exception as e:
                if not (isinstance(want, str) and isinstance(e, ERRORS[want])):
                    wrong.append(f"x at {dims}: {type(e).__name__}: {e}, recorded {want}")
                continue
            if got != want:
                wrong.append(f"x at {dims}: {got}, recorded {want}")
    assert not wrong, "\n".join(wrong)
