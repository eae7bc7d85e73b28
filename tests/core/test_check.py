"""A broken program is found, with the pass that broke it."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
from mpiarray.compiler import pipeline
from mpiarray.config import config
from mpiarray.core.check import check_jaxpr
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var
from mpiarray.core.op import OPS
from mpiarray.core.trace import abstract_mesh
from mpiarray.errors import InternalError
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import mesh_of, typed

F32 = np.dtype("float32")
X, Y = ShapedArray((3,), F32), ShapedArray((4,), F32)
MESH = mesh_of(("x", 2))


def good() -> Jaxpr:
    return trace_to_jaxpr(lambda x, y: [OPS["sin"](OPS["add"](x, y))], [X, X]).jaxpr


def test_a_good_one_passes():
    check_jaxpr(good(), after="nothing")


def test_an_unbound_variable():
    jaxpr = good()
    broken = jaxpr.replace(eqns=jaxpr.eqns[1:])
    with pytest.raises(InternalError, match="after dead_code: .* uses an unbound variable"):
        check_jaxpr(broken, after="dead_code")
    with pytest.raises(InternalError, match="the result uses an unbound variable"):
        check_jaxpr(jaxpr.replace(outvars=[Var(X)]), after="p")


def test_a_use_before_the_definition():
    jaxpr = good()
    with pytest.raises(InternalError, match="uses an unbound variable"):
        check_jaxpr(jaxpr.replace(eqns=jaxpr.eqns[::-1]), after="p")


def test_a_variable_bound_twice():
    jaxpr = good()
    with pytest.raises(InternalError, match="binds a variable twice"):
        check_jaxpr(jaxpr.replace(eqns=[*jaxpr.eqns, jaxpr.eqns[0]]), after="p")
    with pytest.raises(InternalError, match="the head binds a variable twice"):
        check_jaxpr(jaxpr.replace(invars=[jaxpr.invars[0]] * 2), after="p")


@pytest.mark.parametrize("wrong", [Y, ShapedArray((3,), np.dtype("int32"))], ids=str)
def test_a_wrong_type(wrong):
    a, b = Var(X), Var(wrong)
    jaxpr = Jaxpr((), [a], [b], [Eqn(OPS["sin"], [a], [b], {}, EMPTY_ABSTRACT_MESH)])
    with pytest.raises(InternalError, match="sin gives"):
        check_jaxpr(jaxpr, after="p")
    check_jaxpr(jaxpr, after="p", types=False)


def test_a_wrong_sharding():
    """Shapes alone are not enough: what an equation says about where its result lies must be true."""
    x = typed(np.zeros((4, 4), F32), MESH, P("x", None))
    wrong = typed(np.zeros((4, 4), F32), MESH, P(None, "x"))
    a, b = Var(x), Var(wrong)
    jaxpr = Jaxpr((), [a], [b], [Eqn(OPS["sin"], [a], [b], {}, MESH)])
    with pytest.raises(InternalError, match="sin gives"):
        check_jaxpr(jaxpr, after="p")


def test_inner_jaxprs_are_checked():
    jaxpr = jax.make_jaxpr(lambda x: jax.jit(lambda y: y + 1)(x))(jax.ShapeDtypeStruct((2,), F32)).jaxpr
    eqn = jaxpr.eqns[0]
    inner = eqn.params["jaxpr"]
    broken = type(inner)(inner.jaxpr.replace(eqns=()), inner.consts)
    with pytest.raises(InternalError, match="in jit"):
        check_jaxpr(jaxpr.replace(eqns=[eqn.replace(params=eqn.params | {"jaxpr": broken})]), after="p")


def test_passes_are_checked_under_check(monkeypatch):
    def breaks(program):
        return program.update(jaxpr=program.jaxpr.replace(eqns=program.jaxpr.eqns[::-1]))

    monkeypatch.setattr(pipeline, "PASSES", (pipeline.PASSES[0], breaks, *pipeline.PASSES[1:]))
    monkeypatch.setattr(config, "check", True)
    x = typed(np.zeros((4,), F32), MESH, P("x"))
    with abstract_mesh(MESH):
        jaxpr = trace_to_jaxpr(lambda v: [OPS["sin"](OPS["neg"](v))], [x])
        with pytest.raises(InternalError, match="after breaks"):
            pipeline.lower("f", jaxpr, [P("x")], [None], MESH, 2)
