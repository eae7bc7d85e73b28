"""Result types of elementwise ops, reductions and ops along a dim, against recorded ones (record_rules.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiarray.ops.cumulative
import mpiarray.ops.extremes
import mpiarray.ops.reductions
import mpiarray.ops.searching
import mpiarray.ops.sorting
import mpiarray.ops.transcendental  # noqa: F401
from mpiarray.core.infer import infer
from mpiarray.core.op import OPS
from mpiarray.core.trace import abstract_mesh
from mpiarray.errors import ShardingTypeError
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

TABLES = json.loads(Path(__file__).with_name("recorded_rules.json").read_text())
MESH = AbstractMesh((2, 2, 2), ("x", "y", "z"), (AxisType.Explicit,) * 3)
ERRORS = {
    "ShardingTypeError": (ShardingTypeError,),
    "NotImplementedError": (NotImplementedError,),
    "TypeError": (TypeError,),
    "ValueError": (ValueError,),
}


def typed(t: Any) -> ShapedArray:
    shape, dtype, dims, unreduced, reduced = t
    spec = P.from_dims(tuple(tuple(d) for d in dims), frozenset(unreduced), frozenset(reduced))
    return ShapedArray(tuple(shape), np.dtype(dtype), False, NamedSharding(MESH, spec))


def of_params(params: dict[str, Any]) -> dict[str, Any]:
    out = {k: tuple(v) if isinstance(v, list) else v for k, v in params.items()}
    if "index_dtype" in out:
        out["index_dtype"] = np.dtype(out["index_dtype"])
    return out


def check(case: Any) -> str | None:
    name, params, ins, want = case
    avals = [typed(t) for t in ins]
    shown = f"{name}({', '.join(a.short() for a in avals)}) {params}"
    try:
        with abstract_mesh(MESH):
            got = infer(OPS[name], avals, of_params(params))
    except Exception as e:
        if isinstance(want, str) and isinstance(e, ERRORS[want]):
            return None
        return f"{shown}: {type(e).__name__}: {e}, recorded {want}"
    expected = want if isinstance(want, str) else [typed(t) for t in want]
    return None if list(got) == expected else f"{shown}: {got}, recorded {expected}"


@pytest.mark.parametrize("family", TABLES)
def test_types_are_the_recorded_ones(family: str) -> None:
    wrong = [text for case in TABLES[family] if (text := check(case))]
    assert not wrong, f"{len(wrong)} of {len(TABLES[family])}:\n" + "\n".join(wrong[:10])
