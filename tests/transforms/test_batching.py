"""The trace of vmap: every op over a mapped dim that is sharded, against examples one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpiarray.core.op import OPS
from mpiarray.core.value import aval_of
from mpiarray.ops.common import BatchAxis
from mpiarray.transforms.batching import batch_flat, to_front
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.core.op_table import TABLE, Row, impl_of
from tests.core.test_op_completeness import _other, same
from tests.ops.pretended_mesh import mesh_of, run

SIZE = 4
MESH = mesh_of(("x", 2), ("y", 2))
ROWS = [
    pytest.param(name, row, id=f"{name}-{i}")
    for name, rows in TABLE.items()
    for i, row in enumerate(rows)
    if row.batch and row.args and OPS[name].impl is not None
]


def ways(row: Row) -> list[tuple[int | None, ...]]:
    """All operands mapped, and each alone."""
    count = len(row.args)
    alone = [tuple(0 if i == k else None for i in range(count)) for k in range(count)]
    return list(dict.fromkeys([(0,) * count, *alone]))


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_sharded_mapped_dim(name: str, row: Row) -> None:
    op = OPS[name]
    axis = BatchAxis(SIZE, None, ("x",), MESH)
    examples = [row.args, *([_other(a, k) for a in row.args] for k in range(1, SIZE))]
    for dims in ways(row):
        stacked = [
            a if d is None else np.stack([np.asarray(e[i]) for e in examples])
            for i, (a, d) in enumerate(zip(row.args, dims))
        ]
        seen: list[Any] = []

        def one(*xs: Any, seen: Any = seen, dims: Any = dims) -> list[Any]:
            seen[:] = [aval_of(x).dims for x, d in zip(xs, dims) if d is not None]
            out = op(*xs, **row.params)
            return list(out) if op.multiple_results else [out]

        def f(*xs: Any, dims: Any = dims, one: Any = one) -> list[Any]:
            outs, places = batch_flat(one, axis, xs, list(dims))
            return [to_front(x, axis, d) for x, d in zip(outs, places)]

        got, avals, specs, _ = run(f, stacked, [P() if d is None else P("x") for d in dims], MESH, row.keys)
        assert all("x" not in entry for entries in seen for entry in entries), (
            "an example sees the axis of the mapped dim"
        )
        for aval, spec in zip(avals, specs):
            assert aval.dims[0] == ("x",) == spec.dims[0], f"{name} mapped at {dims} gives {aval}"
        for k in range(SIZE):
            args = [a if d is None else examples[k][i] for i, (a, d) in enumerate(zip(row.args, dims))]
            for g, w in zip(got, impl_of(name, args, row.params), strict=True):
                same(g[k], w, row.tol, f"{name}: example {k} of operands mapped at {dims}")
