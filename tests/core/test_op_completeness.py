"""Every op has each rule or says why not; its type rule and its numpy agree; its plan gives the whole's values on
blocks, for any shardings; its derivative, transpose and batching rules are right.  Examples: `op_table`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import mpiarray.numpy as jnp
from mpiarray import lax
from mpiarray.core.jaxpr import subjaxprs
from mpiarray.core.op import OPS, Linear, Undefined, Zero
from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.higher_order.control_flow.in_place import overwriting
from mpiarray.ops.common import BatchAxis
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding
from tests.core.op_table import COLLECTIVES, COMPILED_ONLY, ELSEWHERE, F64, TABLE, Row, impl_of
from tests.ops.pretended_mesh import lowered, mesh_of, run, size_of

RULES = ("type_rule", "plan", "jvp", "transpose", "batch")
EXPLICIT = mesh_of(("x", 2), ("y", 4))
AUTO = mesh_of(("x", 2), ("y", 4), kind=AxisType.Auto)
ONE = mesh_of(("x", 1))
CASES = [pytest.param(name, row, id=f"{name}-{i}") for name, rows in TABLE.items() for i, row in enumerate(rows)]
COMPLEX = np.dtype("complex128")


# -- nothing is left out -----------------------------------------------------------------------------


def test_every_op_has_an_example() -> None:
    known = set(TABLE) | COMPILED_ONLY | COLLECTIVES | set(ELSEWHERE)
    assert set(OPS) - known == set(), "add a row to tests/core/op_table.py"
    assert known - set(OPS) == set(), "these ops do not exist"


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_has_every_rule(name: str) -> None:
    op = OPS[name]
    for rule in RULES:
        found = getattr(op, rule)
        assert callable(found), rule
        if isinstance(found, Undefined):
            assert len(found.reason.split()) > 2, f"{rule}: a reason that says nothing: {found.reason!r}"
            with pytest.raises(NotImplementedError, match=f"'{name}'"):
                found()
    assert callable(op.partial_sums)
    assert callable(op.vma)
    runs = [kind for kind in ("impl", "build", "lower") if getattr(op, kind) is not None]
    assert runs or op.inlines, "nothing runs it"
    if isinstance(op.type_rule, Undefined) or isinstance(op.plan, Undefined):
        assert op.infer is not None, "no rule gives its type"


# -- types and blocks ------------------------------------------------------------------------------------


def avals_of(row: Row, args: Any = None) -> list[ShapedArray]:
    out = []
    for i, a in enumerate(row.args if args is None else args):
        out.append(ShapedArray(np.shape(a), dtypes.key_dtype if i in row.keys else np.asarray(a).dtype))
    return out


def result_types(name: str, row: Row) -> list[ShapedArray]:
    op = OPS[name]
    avals = avals_of(row)
    if op.infer is not None:
        return [op.infer(tuple(avals), EXPLICIT, **row.params)]
    out = op.type_rule(*avals, **row.params)
    return [ShapedArray(tuple(o.shape), o.dtype) for o in (out if op.multiple_results else [out])]


def same(got: Any, want: Any, tol: float, what: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if want.dtype.kind in "fc":
        size = np.abs(want[np.isfinite(want)]).max(initial=0.0)
        np.testing.assert_allclose(got, want, rtol=tol, atol=tol * max(size, 1e-3), err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


@pytest.mark.parametrize(("name", "row"), CASES)
def test_types_and_numpy_agree(name: str, row: Row) -> None:
    op = OPS[name]
    if op.impl is None:
        pytest.skip("it is built for a device: its shapes are checked on the pretended mesh")
    got = impl_of(name, row.args, row.params)
    types = result_types(name, row)
    assert len(got) == len(types)
    for g, t in zip(got, types):
        assert g.shape == t.shape, f"impl {g.shape}, type rule {t}"
        assert g.dtype == dtypes.storage(t.dtype), f"impl {g.dtype}, type rule {t}"
    if row.want is not None:
        want = row.want(*row.args)
        want = list(want) if op.multiple_results else [want]
        for g, w in zip(got, want, strict=True):
            same(g, np.asarray(w).astype(g.dtype), row.tol, f"{name} and numpy")


def specs_of(row: Row, mesh: Any, name: str, count: int) -> list[list[P]]:
    """Ways to lay the operands out: equal ones for equal shapes first, then any; the same on every run."""
    draw = random.Random(name)
    arrays = [np.shape(a) for a in row.args]
    found: list[list[P]] = []

    def spec(shape: tuple[int, ...]) -> P:
        left = draw.sample(mesh.axis_names, len(mesh.axis_names))
        dims: list[tuple[str, ...]] = []
        for n in shape:
            axes: tuple[str, ...] = ()
            while left and draw.random() < 0.6 and n % (size_of(mesh, axes) * mesh.shape[left[-1]]) == 0:
                axes += (left.pop(),)
            dims.append(axes)
        order = draw.sample(range(len(dims)), len(dims))  # do not always fill the first dims first
        trial = [dims[k] for k in order]
        fits = all(n % size_of(mesh, axes) == 0 for n, axes in zip(shape, trial))
        return P.from_dims(tuple(trial if fits else dims))

    for k in range(count):
        by_shape: dict[tuple[int, ...], P] = {}
        alike = k < count // 2
        specs = [by_shape.setdefault(s, spec(s)) if alike else spec(s) for s in arrays]
        if any(s.dims != ((),) * len(s.dims) for s in specs) and specs not in found:
            found.append(specs)
    return found or [[P.from_dims(((),) * len(s)) for s in arrays]]


def bound(name: str, row: Row) -> Any:
    op = OPS[name]

    def f(*args: Any) -> list[Any]:
        out = op(*args, **row.params)
        return list(out) if op.multiple_results else [out]

    return f


def unsharded(name: str, row: Row) -> list[np.ndarray]:
    if OPS[name].impl is not None:
        return impl_of(name, row.args, row.params)
    return run(bound(name, row), row.args, [P()] * len(row.args), ONE, row.keys)[0]


@pytest.mark.parametrize(("name", "row"), CASES)
def test_blocks_give_the_values_of_the_whole(name: str, row: Row) -> None:
    """On Auto axes every layout of the operands is accepted; Explicit ones may be refused, for a reason."""
    want = unsharded(name, row)
    for mesh in (AUTO, EXPLICIT):
        for specs in specs_of(row, mesh, name, 6):
            try:
                got, avals, out_specs, _ = run(bound(name, row), row.args, specs, mesh, row.keys)
            except ShardingTypeError as refusal:
                assert mesh is EXPLICIT, f"{name} refuses {specs} on Auto axes: {refusal}"
                assert any(word in str(refusal) for word in (name, "Use `", "`out_sharding`")), (
                    f"{name} does not say how to go on: {refusal}"
                )
                continue
            for g, w in zip(got, want, strict=True):
                same(g, w, row.tol, f"{name} at {specs} on {mesh.axis_types[0]} axes")
            if mesh is EXPLICIT:
                assert [a.sharding.spec for a in avals] == list(out_specs), "the type and the blocks disagree"


def moves() -> list[Any]:
    """Reshards that need the rarer steps: (from, to) of an 8 x 16 array."""
    pairs = [
        (P("x", "y"), P("y", "x")), (P(("x", "y")), P(("y", "x"))), (P(None, "y"), P("x", unreduced={"y"})),
        (P("x"), P(None, "x")), (P(), P(unreduced={"x"})), (P("x"), P(unreduced={"x"})), (P(unreduced={"x"}), P("x")),
        (P(), P("x", "y")),
    ]  # fmt: skip
    return [(a.padded(2), NamedSharding(EXPLICIT, b.padded(2))) for a, b in pairs]


def test_steps_of_compiled_programs_are_met() -> None:
    """Each op that only compiled programs contain is in the program of some row or of some redistribution."""
    met: set[str] = set()
    for name, rows in TABLE.items():
        for row in rows:
            for mesh in (AUTO, EXPLICIT):
                for specs in specs_of(row, mesh, name, 6):
                    try:
                        program = lowered(bound(name, row), row.args, specs, mesh, row.keys)
                    except ShardingTypeError:
                        continue
                    met |= {e.op.name for e in program.local.jaxpr.eqns}
    x = np.zeros((8, 16), np.float32)
    for source, target in moves():
        program = lowered(lambda v, t=target: [OPS["reshard"](v, dst_sharding=t)], [x], [source], EXPLICIT)
        met |= {e.op.name for e in program.local.jaxpr.eqns}
    whole = NamedSharding(EXPLICIT, P("x", "y"))
    extra = (
        lambda v: [OPS["iota"](dtype=np.dtype(np.int32), shape=(8, 16), dimension=0, sharding=whole)],
        lambda v: [lax.reduce(v, np.float32(0), lambda a, b: a + b * a, (0,))],
    )
    for f in extra:
        met |= {e.op.name for e in lowered(f, [x], [P("x", "y")], EXPLICIT).local.jaxpr.eqns}
    places = np.zeros(8, np.int32)
    rows = lambda v, i: [jnp.take(v, i, axis=0)]
    met |= {e.op.name for e in lowered(rows, [x, places], [P("x", None), P("x")], AUTO).local.jaxpr.eqns}
    large = np.zeros((2048, 1024), np.float32)
    met |= {e.op.name for e in lowered(lambda v: [v * v + v], [large], [P("x", "y")], AUTO).local.jaxpr.eqns}
    inside = lambda v: [v.at[1:-1].set(v[2:] + v[:-2] * 2).at[0].set(0)]
    met |= {e.op.name for e in lowered(inside, [large], [P("x", "y")], AUTO).local.jaxpr.eqns}
    variance = lowered(lambda v: [jnp.var(v)], [large], [P("x", "y")], AUTO).local.jaxpr
    met |= {e.op.name for j in (variance, *(i for e in variance.eqns for i in subjaxprs(e.params))) for e in j.eqns}
    flat = np.zeros(1 << 18, np.float32)
    met |= {e.op.name for e in lowered(lambda v: [lax.sort(v)], [flat], [P("x")], AUTO).local.jaxpr.eqns}
    updates = (lambda v, i: [v.at[i].set(v)], lambda v, i: [lax.dynamic_update_slice(v, v[:1], (i[0], 0))])
    for f in updates:
        body = lowered(f, [x, places], [P(None, None), P(None)], EXPLICIT).local
        met |= {e.op.name for e in overwriting(body, 0, 1)[0].jaxpr.eqns}
    body = lowered(lambda v: [v.at[0].set(0)], [large], [P("x", "y")], AUTO).local
    met |= {e.op.name for e in overwriting(body, 0, 1)[0].jaxpr.eqns}
    chosen = lambda m, v: [jnp.where(m, v, 0)]
    met |= {e.op.name for e in lowered(chosen, [x > 1, x], [P(None, None)] * 2, AUTO).local.jaxpr.eqns}
    assert COMPILED_ONLY - met == set(), "no program contains these"


# -- derivatives, transposes, maps -------------------------------------------------------------------------


def in_double(row: Row) -> list[Any]:
    wide = {"f": F64, "c": COMPLEX}
    return [np.asarray(a).astype(wide.get(np.asarray(a).dtype.kind, np.asarray(a).dtype)) for a in row.args]


def double_params(row: Row) -> dict[str, Any]:
    """Parameters that name the operands' dtype follow it."""
    return row.params | ({"input_dtype": COMPLEX} if "input_dtype" in row.params else {})


def directions(row: Row, which: tuple[int, ...], seed: int) -> dict[int, np.ndarray]:
    draw = np.random.default_rng(seed)
    found = {i: row.space(draw.standard_normal(np.shape(row.args[i]))) for i in which}
    return {i: t - 1j * np.flip(t) if np.iscomplexobj(row.args[i]) else t for i, t in found.items()}


DIFF = [c for c in CASES if c.values[1].diff]
LINEAR = [pytest.param(n, r, g, id=f"{c.id}-{g}") for c in CASES for n, r in [c.values] for g in r.linear]


@pytest.mark.parametrize(("name", "row"), DIFF)
def test_derivative_rule_against_differences(name: str, row: Row) -> None:
    op, args, params = OPS[name], in_double(row), double_params(row)
    for which in {row.diff, *((i,) for i in row.diff)}:
        ts = directions(row, which, 1)
        moving: list[int] = []

        def f(*values: Any, ts: Any = ts, moving: Any = moving) -> list[Any]:
            xs, live = values[: len(args)], iter(values[len(args) :])
            full = [next(live) if i in ts else Zero(aval_of(x)) for i, x in enumerate(xs)]
            out, tangent = op.jvp(op, xs, full, **params)
            outs, tangents = (out, tangent) if op.multiple_results else ([out], [tangent])
            moving.clear()
            moving.extend(k for k, t in enumerate(tangents) if not isinstance(t, Zero))
            return [*outs, *(tangents[k] for k in moving)]

        got = run(f, [*args, *ts.values()], [P()] * (len(args) + len(ts)), ONE)[0]
        h = 1e-6
        moved = [[np.asarray(a) + s * h * ts[i] if i in ts else a for i, a in enumerate(args)] for s in (1, -1)]
        plain = impl_of(name, args, params)
        up, down = (impl_of(name, m, params) for m in moved)
        for g, w in zip(got, plain):
            same(g, w, 1e-9, f"{name}: the result beside the derivative")
        tangents = dict(zip(moving, got[len(plain) :]))
        for k, w in enumerate(plain):
            if w.dtype.kind not in "fc":
                assert k not in tangents or tangents[k].dtype == dtypes.float0 or not np.any(tangents[k]), (
                    f"{name}: result {k} is no float"
                )
                continue
            slope = (up[k] - down[k]) / (2 * h)
            same(
                tangents.get(k, np.zeros_like(w)),
                slope.astype(w.dtype),
                1e-5,
                f"{name}: tangent of result {k} for operands {which}",
            )


@pytest.mark.parametrize(("name", "row", "which"), LINEAR)
def test_transpose_rule_by_inner_products(name: str, row: Row, which: tuple[int, ...]) -> None:
    """<ct, A t> = <A^T ct, t>, the other operands being fixed; operands of the map that are missing count as zero."""
    op, args, params = OPS[name], in_double(row), double_params(row)
    ts = directions(row, which, 2)
    fixed = [np.asarray(ts.get(i, a), np.asarray(a).dtype) for i, a in enumerate(args)]
    out = impl_of(name, fixed, params)
    base = impl_of(name, [np.zeros_like(np.asarray(a)) if i in ts else a for i, a in enumerate(args)], params)
    cts = [np.random.default_rng(3 + k).standard_normal(o.shape).astype(o.dtype) for k, o in enumerate(out)]
    cts = [c + 1j * c[::-1] if c.dtype.kind == "c" else c for c in cts]
    given = [a for i, a in enumerate(args) if i not in ts]
    used: list[int] = []

    def f(*values: Any) -> list[Any]:
        ct, rest = values[: len(cts)], iter(values[len(cts) :])
        operands = [
            Linear(ShapedArray(np.shape(a), np.asarray(a).dtype)) if i in ts else next(rest) for i, a in enumerate(args)
        ]
        back = op.transpose(op, list(ct) if op.multiple_results else ct[0], *operands, **params)
        assert len(back) == len(args)
        assert all(back[i] is None for i in range(len(args)) if i not in ts), "a cotangent for a fixed operand"
        used.clear()
        used.extend(i for i in ts if back[i] is not None and not isinstance(back[i], Zero))
        return [back[i] for i in used]

    got = run(f, [*cts, *given], [P()] * (len(cts) + len(given)), ONE)[0]
    for i, g in zip(used, got):
        assert g.shape == np.shape(args[i]), f"operand {i}: {g.shape}"
        assert g.dtype == np.asarray(args[i]).dtype, f"operand {i}: {g.dtype}"
    left = sum(np.sum(c * (o - b)) for c, o, b in zip(cts, out, base))
    right = sum(np.sum(g * ts[i]) for i, g in zip(used, got))
    if all(np.asarray(args[i]).dtype.kind == "f" for i in ts):  # real operands take the real part of the pairing
        left = np.real(left)
    np.testing.assert_allclose(right, left, rtol=1e-9, atol=1e-9)


MAPPED = [c for c in CASES if c.values[1].batch and OPS[c.values[0]].impl is not None]


@pytest.mark.parametrize(("name", "row"), MAPPED)
def test_batching_rule_against_a_loop(name: str, row: Row) -> None:
    """Every operand mapped at its first dim, each alone, and at the last dim."""
    op, size = OPS[name], 3
    examples = [row.args, *([_other(a, k) for a in row.args] for k in (1, 2))]
    count = len(row.args)
    ways = {tuple(0 for _ in range(count)), *(tuple(0 if i == k else None for i in range(count)) for k in range(count))}
    ways.add(tuple(np.ndim(a) for a in row.args))
    for dims in sorted(ways, key=str):
        stacked = [
            a if d is None else np.stack([np.asarray(e[i]) for e in examples], d)
            for i, (a, d) in enumerate(zip(row.args, dims))
        ]
        places: list[Any] = []

        def f(*xs: Any, dims: Any = dims, places: Any = places) -> list[Any]:
            out, at = op.batch(op, BatchAxis(size), xs, list(dims), **row.params)
            places[:] = at if op.multiple_results else [at]
            return list(out) if op.multiple_results else [out]

        got = run(f, stacked, [P()] * count, ONE, row.keys)[0]
        for k in range(size):
            want = impl_of(
                name, [a if d is None else examples[k][i] for i, (a, d) in enumerate(zip(row.args, dims))], row.params
            )
            for g, w, at in zip(got, want, places, strict=True):
                one = g if at is None else np.take(g, k, at)
                assert one.dtype == w.dtype
                same(one, w, row.tol, f"{name}: example {k} of operands mapped at {dims}")


def _other(a: Any, k: int) -> Any:
    """Another operand at which the op is defined: the same values in another order along the first dim."""
    return np.roll(np.asarray(a), k, 0) if np.ndim(a) else a
