"""Shardings on Auto axes: right values for all layouts of the operands, the cheapest plan, whatever the order."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.compiler.cost import program_cost
from mpiarray.compiler.pipeline import explain
from mpiarray.errors import ShardingTypeError
from mpiarray.types.mesh import AbstractMesh, AxisType
from tests.failures.jobs import ROOT
from tests.ops.pretended_mesh import lowered, mesh_of, run

AUTO = mesh_of(("x", 2), ("y", 4), kind=AxisType.Auto)
MIXED = AbstractMesh((2, 4), ("x", "y"), (AxisType.Explicit, AxisType.Auto))
constrain = lax.with_sharding_constraint
SPECS = [P(), P("x"), P("y"), P(None, "x"), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x"))]
A = np.arange(8 * 8, dtype=np.float32).reshape(8, 8) % 11
B = np.arange(8 * 8, dtype=np.float32).reshape(8, 8) % 7
FUNCTIONS = {
    "add": (lambda a, b: a + b, np.add),
    "dot": (lambda a, b: a @ b, np.matmul),
    "outer join": (lambda a, b: a[:, None] * b[None], lambda a, b: a[:, None] * b[None]),
    "sum of both": (lambda a, b: (a * b).sum(0), lambda a, b: (a * b).sum(0)),
    "where": (lambda a, b: jnp.where(a > b, a, b.T), lambda a, b: np.where(a > b, a, b.T)),
    "concatenate": (lambda a, b: jnp.concatenate([a, b], 1), lambda a, b: np.concatenate([a, b], 1)),
    "chain": (lambda a, b: (jnp.sin(a) @ b.T).max(1), lambda a, b: (np.sin(a) @ b.T).max(1)),
    "reshape": (lambda a, b: (a + b).reshape(4, 16) + 1, lambda a, b: (a + b).reshape(4, 16) + 1),
    "cumsum": (lambda a, b: jnp.cumsum(a, 0) + jnp.cumsum(b, 1), lambda a, b: a.cumsum(0) + b.cumsum(1)),
}


def bytes_of(f: Any, specs: list[P], *args: np.ndarray) -> float:
    """Bytes that the busiest rank receives."""
    program = lowered(lambda *v: [f(*v)], args, [s.padded(a.ndim) for s, a in zip(specs, args)], AUTO)
    return program_cost(program).communication_bytes


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_for_all_layouts(name):
    f, want = FUNCTIONS[name]
    expected = want(A, B)
    for specs in itertools.product(SPECS, SPECS):
        (got,), _, _, _ = run(lambda *v: [f(*v)], [A, B], list(specs), AUTO)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=f"{name} at {specs}")


@pytest.mark.parametrize("name", ["add", "where", "sum of both"])
def test_the_order_of_operands_does_not_matter(name):
    for left, right in itertools.product(SPECS, SPECS):
        if name == "where":
            one = bytes_of(lambda a, b: jnp.where(a > 0, a, b), [left, right], A, B)
            two = bytes_of(lambda b, a: jnp.where(a > 0, a, b), [right, left], B, A)
        else:
            f, _ = FUNCTIONS[name]
            one, two = bytes_of(f, [left, right], A, B), bytes_of(lambda b, a, f=f: f(a, b), [right, left], B, A)
        assert one == two, (left, right)


def test_the_order_in_a_sum_does_not_matter():
    for left, right in itertools.product(SPECS, SPECS):
        assert bytes_of(lambda a, b: a + b, [left, right], A, B) == bytes_of(lambda a, b: b + a, [left, right], A, B)


def test_no_operand_moves_where_none_must():
    """The smaller bill wins: never more than bringing either operand to the other, or both to nothing."""
    for left, right in itertools.product(SPECS, SPECS):
        chosen = bytes_of(lambda a, b: a + b, [left, right], A, B)
        for target in (left, right, P()):
            forced = lambda a, b, t=target: constrain(a, t.padded(2)) + constrain(b, t.padded(2))
            assert chosen <= bytes_of(forced, [left, right], A, B), (left, right, target)


def test_dots_are_no_dearer_than_simple_ways():
    for left, right in itertools.product(SPECS, SPECS):
        chosen = bytes_of(jnp.matmul, [left, right], A, B)
        for a_to, b_to in ((P(), P()), (left, P()), (P(), right)):
            forced = lambda a, b, s=a_to, t=b_to: constrain(a, s.padded(2)) @ constrain(b, t.padded(2))
            assert chosen <= bytes_of(forced, [left, right], A, B), (left, right, a_to, b_to)


def test_a_large_operand_stays():
    """The row goes to the matrix, not the matrix to the row, on either side of the sum."""
    large, row = np.ones((64, 64), np.float32), np.ones((1, 64), np.float32)
    specs = [P("x", None), P(None, "x")]
    for f, args, laid in (
        (lambda a, b: [a + b], [large, row], specs),
        (lambda b, a: [b + a], [row, large], specs[::-1]),
    ):
        (got,), _, (spec,), world = run(f, args, laid, AUTO)
        np.testing.assert_array_equal(got, large + row)
        assert spec == P("x", None)
        assert sum(world.bytes.values()) == 8 * row.nbytes / 2


def test_constraints_are_obeyed():
    for source, target in itertools.product(SPECS, SPECS):
        f = lambda a, t=target: [constrain(jnp.sin(a), t.padded(2)) * 1.0]
        (got,), (aval,), (spec,), _ = run(f, [A], [source], AUTO)
        np.testing.assert_allclose(got, np.sin(A), rtol=1e-6)
        assert spec == target.padded(2)
        assert aval.short() == "f32[8,8]", "Auto axes never show in types"


def test_a_dim_left_open_stays():
    free = P(P.UNCONSTRAINED, None)
    f = lambda a: [constrain(a, free) + 1]
    (got,), _, (spec,), _ = run(f, [A], [P("x", "y")], AUTO)
    np.testing.assert_array_equal(got, A + 1)
    assert spec == P("x", None)


def test_a_wish_comes_from_a_later_constraint():
    """The product is reduced straight to where it is wanted, and new values are made in place."""
    f = lambda a, b: [constrain(a @ b, P("x", None))]
    (got,), _, (spec,), world = run(f, [A, B], [P(None, "x"), P("x", None)], AUTO)
    np.testing.assert_array_equal(got, A @ B)
    assert spec == P("x", None)
    assert set(world.calls) == {"reduce_scatter"}

    made = lowered(lambda: [constrain(jnp.zeros((8, 8)) + 1, P("x", "y"))], [], [], AUTO)
    assert all(v.aval.size <= 8 for e in made.local.jaxpr.eqns for v in e.outvars), str(made.local)


def test_results_are_left_where_they_fall():
    _, _, (spec,), world = run(lambda a: [jnp.sin(a).T], [A], [P("x", "y")], AUTO)
    assert spec == P("y", "x")
    assert not world.calls


def test_sharded_sums_of_auto_axes_are_reduced():
    (got,), _, (spec,), world = run(lambda a: [a.sum(0)], [A], [P("x", "y")], AUTO)
    np.testing.assert_array_equal(got, A.sum(0))
    assert spec == P("y")
    assert world.calls["all_reduce"] == 8


def test_explicit_axes_beside_auto_ones():
    """The Explicit axis follows its rules; the Auto one goes where it likes."""
    for source in (P("x", "y"), P("x"), P(None, "y"), P()):
        (got,), (aval,), _, _ = run(lambda a: [a + a.T.T], [A], [source], MIXED)
        np.testing.assert_array_equal(got, 2 * A)
        assert aval.short() == ("f32[8@x,8]" if source[:1] == ("x",) else "f32[8,8]")
    with pytest.raises(ShardingTypeError):
        run(lambda a: [a + a.T], [A], [P("x")], MIXED)


def test_decisions_are_told():
    program = lowered(lambda a, b: [a + b], [A, B], [P("x", None), P(None, "x")], AUTO)
    text = explain(program)
    assert text.startswith("add:")
    assert "bytes moved" in text
    nothing = lowered(lambda a: [a + 1], [A], [P("x", None)], AUTO)
    assert "nothing was left to choose" in explain(nothing)


def test_choices_do_not_depend_on_hashes():
    """Every rank must choose alike: the program is the same in every process."""
    script = """
import numpy as np
from tests.compiler.test_propagate import *
f = lambda a, b: [constrain((a @ b + b.T) * jnp.cumsum(a, 1), P("y")), (a + b).sum(0)]
print(lowered(f, [A, B], [P("x", "y"), P(None, ("y", "x"))], AUTO).local)
"""
    texts = set()
    for seed in ("1", "2", "77"):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        texts.add(done.stdout)
    assert len(texts) == 1
    assert "all_" in texts.pop()


def test_auto_axes_inside_explicit_code():
    explicit = mesh_of(("x", 2), ("y", 4))

    def f(a, b):
        return [jax.sharding.auto_axes(lambda u, v: u @ v + u, out_sharding=P("x", None))(a, b)]

    for left, right in ((P("x", "y"), P("y", "x")), (P(None, "x"), P("y")), (P(), P(("x", "y")))):
        (got,), (aval,), _, _ = run(f, [A, B], [left, right], explicit)
        np.testing.assert_array_equal(got, A @ B + A)
        assert aval.short() == "f32[8@x,8]"
