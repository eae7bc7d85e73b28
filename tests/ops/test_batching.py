"""Batching rules against a loop over examples, for every place of the mapped dim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiarray.ops.special
import mpiarray.ops.transcendental  # noqa: F401
from mpiarray.core.op import OPS
from mpiarray.ops import cumulative, reduce_by, searching, sorting  # noqa: F401
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.extremes import argmax
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, run

ONE = mesh_of(("x", 1))
SIZE = 4
I32 = np.dtype(np.int32)
VALUES = np.random.default_rng(3)


def batched(name: str, args: list[np.ndarray], dims: list[int | None], params: dict[str, Any]) -> list[np.ndarray]:
    """Results of the rule, with the mapped dim in front."""
    op = OPS[name]
    out_dims: list[int] = []

    def f(*values: Any) -> list[Any]:
        out, d = op.batch(op, BatchAxis(SIZE), values, dims, **params)
        out_dims[:] = d if op.multiple_results else [d]
        return list(out) if op.multiple_results else [out]

    outs = run(f, args, [P()] * len(args), ONE)[0]
    return [np.moveaxis(o, d, 0) for o, d in zip(outs, out_dims)]


def looped(name: str, args: list[np.ndarray], dims: list[int | None], params: dict[str, Any]) -> list[np.ndarray]:
    op = OPS[name]
    rows = []
    for k in range(SIZE):
        example = [a if d is None else np.take(a, k, d) for a, d in zip(args, dims)]
        with np.errstate(all="ignore"):
            out = op.impl(*example, **params)
        rows.append(list(out) if op.multiple_results else [out])
    return [np.stack([np.asarray(r[i]) for r in rows]) for i in range(len(rows[0]))]


def check(name: str, args: list[np.ndarray], dims: list[int | None], **params: Any) -> None:
    got, want = batched(name, args, dims, params), looped(name, args, dims, params)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-6, err_msg=f"{name} {dims}")


def example(shape: tuple[int, ...], dim: int | None) -> np.ndarray:
    full = list(shape)
    if dim is not None:
        full.insert(dim, SIZE)
    return VALUES.uniform(0.1, 0.9, full).astype(np.float32)


def places(ndim: int) -> list[int | None]:
    return [None, *range(ndim + 1)]


@pytest.mark.parametrize("name", ["sin", "sqrt", "neg", "lgamma", "is_finite", "stop_gradient"])
def test_of_one_operand(name: str) -> None:
    for d in range(3):
        check(name, [example((2, 3), d)], [d])


@pytest.mark.parametrize("name", ["add", "mul", "max", "pow", "lt", "atan2", "igamma"])
def test_of_two_operands(name: str) -> None:
    for shapes in (((2, 3), (2, 3)), ((2, 3), (1, 3)), ((2, 3), ()), ((), (2, 3)), ((), ())):
        for d0 in places(len(shapes[0])):
            for d1 in places(len(shapes[1])):
                if d0 is not None or d1 is not None:
                    check(name, [example(shapes[0], d0), example(shapes[1], d1)], [d0, d1])


def test_of_clamp_and_select() -> None:
    for bound in ((), (2, 3)):
        for d in ([0, 1, None], [None, 1, None], [None, None, 0], [0, None, None], [0, 2, 0]):
            args = [example(s, k) for s, k in zip((bound, (2, 3), bound), d)]
            check("clamp", [args[0] / 2, args[1], args[2]], d)
            which = example(bound, d[0]) > 0.5
            check("select_n", [which, args[1], example((2, 3), d[2])], d)
    for d in ([0, None, None], [None, 0, None], [0, 0, 0]):
        check("select_n", [example((), d[0]) > 0.5, example((), d[1]), example((), d[2])], d)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_prod"])
def test_of_reductions(name: str) -> None:
    for d in range(4):
        for axes in ((0,), (1, 2), ()):
            check(name, [example((2, 3, 2), d)], [d], axes=axes)


def test_of_ops_along_a_dim() -> None:
    for d in range(3):
        for axis in range(2):
            x = example((3, 5), d)
            check("argmax", [x], [d], axes=(axis,), index_dtype=I32)
            for name in ("cumsum", "cumprod", "cummax", "cumlogsumexp"):
                check(name, [x], [d], axis=axis, reverse=True)
            check("sort", [x], [d], dimension=axis, is_stable=True, num_keys=1)
            check("sort_order", [x], [d], dimension=axis)
            check("top_k", [x], [d], axis=axis, k=2)
            check("sort", [x, example((3, 5), None)], [d, None], dimension=axis, is_stable=True, num_keys=1)
            order = np.argsort(example((3, 5), None), axis=axis).astype(np.int32)
            check("take_along", [x, order], [d, None], dimension=axis)
            check("add_along", [x, order], [d, None], dimension=axis, size=6)


def test_of_searchsorted() -> None:
    params = {"side": "left", "dtype": I32, "batch_dims": 0}
    table = np.sort(example((7,), 0), axis=1)
    for d in (None, 0, 1, 2):
        check("searchsorted", [table, example((2, 3), d)], [0, d], **params)
    check("searchsorted", [table[0], example((2, 3), 1)], [None, 1], **params)


def test_of_bits_and_parts() -> None:
    ints = VALUES.integers(-100, 100, (SIZE, 2, 3)).astype(np.int32)
    for name in ("not", "population_count", "clz"):
        check(name, [ints], [0])
    for name in ("shift_left", "and", "xor"):
        check(name, [ints, ints[0] & 7], [0, None])
    check("bitcast_convert_type", [np.moveaxis(ints, 0, 1).copy()], [1], new_dtype=np.dtype(np.int8))
    z = example((2, 3), 1) + 1j * example((2, 3), 1)
    check("conj", [z], [1], input_dtype=z.dtype)
    check("complex", [example((2, 3), 1), example((2, 3), None)], [1, None])
    check("integer_pow", [np.moveaxis(ints, 0, 2).copy()], [2], y=3)


def test_a_sharded_mapped_dim_stays_sharded() -> None:
    mesh = mesh_of(("x", 4), ("y", 2), kind=AxisType.Explicit)
    x, y = example((2, 3), 0), example((2, 3), None)
    axis = BatchAxis(SIZE, None, ("x",))
    for op, params in (
        (OPS["select_n"], {}),
        (OPS["clamp"], {}),
        (OPS["add"], {}),
        (argmax, {"axes": (0,), "index_dtype": I32}),
    ):
        args = {"select_n": [x > 0.5, y, x], "clamp": [y / 2, x, y], "add": [x, y]}.get(op.name, [x])
        dims = [0 if a.ndim == 3 else None for a in args]
        specs = [P("x") if d == 0 else P() for d in dims]
        _, avals, _, world = run(
            lambda *vs, op=op, dims=dims, params=params: [op.batch(op, axis, vs, dims, **params)[0]], args, specs, mesh
        )
        assert avals[0].dims[0] == ("x",) and not world.calls
