"""Result types of slicing, joining, indexing and window ops, against rows recorded from JAX (record_shape_rules.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

import mpiarray.ops.pooling
import mpiarray.ops.shape  # noqa: F401
from mpiarray.core.infer import infer
from mpiarray.core.op import OPS
from mpiarray.core.trace import abstract_mesh
from mpiarray.errors import ShardingTypeError
from mpiarray.ops import conv
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

ROWS = json.loads(Path(__file__).with_name("recorded_shape_rules.json").read_text())
MESH = AbstractMesh((2, 2, 2), ("x", "y", "z"), (AxisType.Explicit,) * 3)
F32, I32 = np.dtype("float32"), np.dtype("int32")


def typed(shape, dims, dtype=F32):
    return ShapedArray(tuple(shape), dtype, False, NamedSharding(MESH, P.from_dims(tuple(tuple(d) for d in dims))))


def frozen(value):
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


def call(kind, params, operands):
    """The op's name, operands' types and parameters."""
    avals = [typed(*o) for o in operands]
    params = {k: frozen(v) for k, v in params.items()}
    ndim, scalar = avals[0].ndim, ShapedArray((), I32)
    if kind == "pad":
        avals.append(ShapedArray((), F32))
    if kind in ("dynamic_slice", "dynamic_update_slice"):
        avals += [scalar] * ndim
    if kind in ("gather", "scatter"):
        avals[1] = typed(*operands[1], I32)
        params |= {"mode": "clip", "out_sharding": None}
    if kind == "gather":
        params["fill_value"] = None
    if kind == "scatter":
        params["combine"] = "add"
        # jnp broadcasts the updates to the operand's slices
        index, rest = operands[1], operands[0]
        updates = typed([*index[0], *rest[0][1:]], [*[[] for _ in index[0]], *rest[1][1:]])
        avals.insert(1, updates)
    if kind == "reduce_window_max":
        params |= {"base_dilation": (1,) * ndim, "window_dilation": (1,) * ndim}
    if kind == "conv":
        kind = "conv_general_dilated"
        params |= {
            "lhs_dilation": (1,),
            "rhs_dilation": (1,),
            "dimension_numbers": conv.conv_dimension_numbers(3, None),
            "feature_group_count": 1,
            "batch_group_count": 1,
            "precision": None,
            "preferred_element_type": None,
            "out_sharding": None,
        }
    return OPS[kind], avals, params


@pytest.mark.parametrize("kind", sorted({r[0] for r in ROWS}))
def test_rows_recorded_from_jax(kind):
    rows = [r for r in ROWS if r[0] == kind]
    assert len(rows) >= 15
    wrong = []
    for _, params, operands, want in rows:
        op, avals, all_params = call(kind, params, operands)
        shown = f"{kind}({', '.join(a.short() for a in avals)}) {params}"
        try:
            with abstract_mesh(MESH):
                outs = infer(op, avals, all_params)
            got = [[list(o.shape), [list(d) for d in o.dims]] for o in outs]
        except ShardingTypeError as e:
            if not (isinstance(want, dict) and want["phrase"] in str(e)):
                wrong.append(f"{shown}: {e}, recorded {want}")
            continue
        if got != want:
            wrong.append(f"{shown} -> {got}, recorded {want}")
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n" + "\n".join(wrong)
