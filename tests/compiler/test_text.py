"""Compiled programs as text: the first line, one line for each step, collectives in the words of HLO."""

from __future__ import annotations

import re

import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from tests.compiler.test_cost import compiled, mesh_of, struct

MESH = mesh_of(x=8, y=4)
LINE = re.compile(r"^%\w+(, %\w+)* = .+ [\w-]+\(.*\)(, .*)?$")
COLLECTIVES = ("all-reduce(", "all-gather(", "reduce-scatter(", "all-to-all(", "collective-permute(")


def text(f, *args) -> str:
    return compiled(MESH, f, *args).as_text()


def counts(f, *args) -> dict[str, int]:
    found = text(f, *args)
    return {c[:-1]: found.count(c) for c in COLLECTIVES if c in found}


X = struct(MESH, (32, 32), "x", "y")


def test_form():
    def work(x):
        return jnp.sin(x).sum(0) + 1

    lines = text(work, X).splitlines()
    assert lines[0] == "HloModule jit_work, num_partitions=32"
    assert lines[1] == "%a = f32[4,8] parameter(0)"
    assert lines[-1].startswith("ROOT (%")
    assert all(LINE.match(line) for line in lines[1:-1]), lines
    assert [line.split(" = ")[0] for line in lines[1:-1]] == ["%a", "%b", "%c", "%d", "%e"]
    assert "all-reduce(%c), axes=('x',)" in lines[4]


@pytest.mark.parametrize(
    ("f", "want"),
    [
        (lambda x: x + x, {}),
        (lambda x: x.T, {}),
        (lambda x: x.sum(0), {"all-reduce": 1}),
        (lambda x: x.sum(), {"all-reduce": 1}),
        (lambda x: x.max(1), {"all-reduce": 1}),
        (lambda x: x.mean(), {"all-reduce": 1}),
        (lambda x: jax.reshard(x, P(None, "y")), {"all-gather": 1}),
        (lambda x: jax.reshard(x, P("x", None)), {"all-gather": 1}),
        (lambda x: jax.reshard(x, P("y", "x")), None),
        (lambda x: jax.reshard(x, P(("x", "y"), None)), {"all-to-all": 1}),
        (lambda x: jax.reshard(x.sum(0), P(("y", "x"))), {"reduce-scatter": 1}),
        (lambda x: jax.reshard(x, P("x", "y")), {}),
        (lambda x: jnp.einsum("ij,kj->ik", x, x, out_sharding=P("x", None)), None),
    ],
)
def test_collectives(f, want):
    found = counts(f, X)
    if want is None:
        assert found
        return
    assert found == want


def test_what_nobody_uses_does_not_run():
    def f(x):
        jax.reshard(x, P(None, None))
        x.sum()
        return x + 1

    assert counts(f, X) == {}


def test_nested_jits_are_inlined():
    inner = jax.jit(lambda x: x.sum(0))
    assert counts(lambda x: inner(x) + inner(x * 2), X) == {"all-reduce": 1}  # two sums, together
    assert "jit(" not in text(lambda x: inner(x), X)


def test_constants_and_literals():
    import numpy as np

    found = text(lambda x: x * 2.5 + np.arange(32, dtype=np.float32), X)
    assert "multiply(%b, 2.5)" in found or ", 2.5)" in found
    assert found.count("parameter(") == 2


def test_the_text_is_the_same_every_time():
    f = lambda x: (jnp.sin(x).sum(0), x.max(1))
    assert text(f, X) == text(f, X)
