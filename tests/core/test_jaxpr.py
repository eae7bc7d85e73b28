"""Jaxprs as data."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var, subjaxprs
from mpiarray.core.op import OPS
from mpiarray.core.trace import bind
from mpiarray.core.value import Literal, aval_of, literal
from mpiarray.errors import UnexpectedTracerError
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH

F32 = np.dtype("float32")
X = ShapedArray((3,), F32)


def test_parts_are_immutable_and_replaced():
    a, b = Var(X), Var(X)
    eqn = Eqn(OPS["sin"], [a], [b], {}, EMPTY_ABSTRACT_MESH, "here:1")
    jaxpr = Jaxpr((), [a], [b], [eqn], "f")
    other = eqn.replace(op=OPS["cos"])
    assert (other.op.name, other.source, eqn.op.name) == ("cos", "here:1", "sin")
    changed = jaxpr.replace(eqns=[other])
    assert [e.op.name for e in jaxpr.eqns] == ["sin"]
    assert [e.op.name for e in changed.eqns] == ["cos"]
    assert isinstance(jaxpr.eqns, tuple)
    assert jaxpr.in_avals == (X,)
    assert eqn.primitive is OPS["sin"]


def test_variables_are_equal_only_to_themselves():
    a, b = Var(X), Var(X)
    assert a != b
    assert len({a, b, a}) == 2


def test_staging_records_constants_once_and_in_order():
    c, d = np.arange(3, dtype=F32), np.ones(3, F32)
    closed = trace_to_jaxpr(lambda x: [OPS["add"](OPS["mul"](x, d), c), OPS["mul"](d, d)], [X])
    assert [id(v) for v in closed.consts] == [id(d), id(c)]
    assert closed.out_avals == (X, X)


def test_scalars_become_literals():
    closed = trace_to_jaxpr(lambda x: [OPS["add"](x, literal(2, F32)), 1.5, np.float32(3)], [X])
    assert isinstance(closed.eqns[0].invars[1], Literal)
    assert [v.val for v in closed.jaxpr.outvars[1:]] == [1.5, 3.0]
    assert not closed.consts


def test_source_lines_are_the_users():
    closed = jax.make_jaxpr(lambda x: jnp.where(x > 0, x, -x))(jax.ShapeDtypeStruct((2,), F32))
    assert closed.eqns
    for eqn in closed.eqns:
        assert eqn.source.split(":")[0].endswith("test_jaxpr.py")


def test_subjaxprs_are_found():
    inner = jax.jit(jnp.sin)
    closed = jax.make_jaxpr(lambda x: inner(x))(jax.ShapeDtypeStruct((2,), F32))
    assert [j.eqns[0].op.name for j in subjaxprs(closed.eqns[0].params)] == ["sin"]
    first = closed.eqns[0].params["jaxpr"]
    assert isinstance(first, ClosedJaxpr)
    assert len(list(subjaxprs({"branches": (first, first), "other": 3}))) == 2


def test_a_tracer_that_escapes_is_found():
    kept = []
    trace_to_jaxpr(lambda x: [kept.append(x) or x], [X], name="f")
    with pytest.raises(UnexpectedTracerError, match="finished tracing"):
        trace_to_jaxpr(lambda x: [bind(OPS["add"], (x, kept[0]), {})], [X], name="g")


def test_a_tracer_of_the_enclosing_function_is_a_constant():
    def outer(x):
        inner = trace_to_jaxpr(lambda y: [bind(OPS["add"], (x, y), {})], [X], name="inner")
        assert inner.consts == (x,)
        return [x]

    trace_to_jaxpr(outer, [X], name="outer")


def test_types_of_operands():
    assert str(aval_of(2.0)) == "~float32[]"
    assert str(aval_of(np.ones(3))) == "float32[3]"
    assert str(aval_of(literal(1, np.dtype("int32")))) == "int32[]"
    for wrong in ([1.0], "a", None, object()):
        with pytest.raises(TypeError, match="not a valid JAX type"):
            aval_of(wrong)
