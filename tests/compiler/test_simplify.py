"""Inlining, dead code, common subexpressions."""

from __future__ import annotations

from collections import Counter

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.passes.simplify import closed, common_subexpressions, inline
from mpiarray.core.check import check_jaxpr
from mpiarray.core.jaxpr import Jaxpr
from mpiarray.core.op import OPS
from mpiarray.core.value import Literal
from mpiarray.higher_order.jit_function import eval_jaxpr
from mpiarray.transforms.evaluate import dead_code
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray

X = jax.ShapeDtypeStruct((3,), np.float32)
AVAL = ShapedArray((3,), np.dtype("float32"))


def traced(f, *args) -> Jaxpr:
    return closed(jax.make_jaxpr(f)(*(args or [X])))


def ops(jaxpr: Jaxpr) -> Counter[str]:
    return Counter(e.op.name for e in jaxpr.eqns)


def value(jaxpr: Jaxpr, *args) -> list[np.ndarray]:
    return [np.asarray(v.val if isinstance(v, Literal) else v) for v in eval_jaxpr(jaxpr, (), args)]


def same_program(before: Jaxpr, after: Jaxpr, *args) -> None:
    check_jaxpr(after, after="the pass")
    for a, b in zip(value(before, *args), value(after, *args), strict=True):
        np.testing.assert_array_equal(a, b)


DATA = np.array([0.1, -0.5, 2.0], np.float32)


def test_inlining_nested_calls():
    inner = jax.jit(lambda x: jnp.sin(x) * 2)
    middle = jax.jit(lambda x: inner(x) + inner(x + 1))
    before = traced(lambda x: middle(x) - x)
    after = inline(before)
    assert ops(after) == {"sin": 2, "mul": 2, "add": 2, "sub": 1}
    same_program(before, after, DATA)
    assert inline(after) is after


def test_inlining_results_that_are_arguments_or_constants():
    swap = jax.jit(lambda x, y: (y, x, 3.0))
    before = traced(lambda x: swap(x, x + 1))
    after = inline(before)
    assert ops(after) == {"add": 1}
    same_program(before, after, DATA)
    chained = traced(lambda x: swap(*swap(x, x + 1)[:2]))
    same_program(chained, inline(chained), DATA)


def test_inlining_the_same_jaxpr_twice_gives_different_variables():
    f = jax.jit(jnp.sin)
    after = inline(traced(lambda x: f(f(x))))
    check_jaxpr(after, after="inline")
    assert ops(after) == {"sin": 2}


def test_inlining_closures_over_arrays():
    c = np.arange(3, dtype=np.float32)
    f = jax.jit(lambda x: x + c)
    before = traced(lambda x: f(x) * f(x + 1))
    after = inline(before)
    assert len(before.invars) == len(after.invars) == 2, "one constant, once"
    same_program(before, after, c, DATA)


def test_dead_code():
    before = traced(lambda x: (jnp.sin(x), jnp.cos(jnp.exp(x)))[0])
    after = dead_code(before)
    assert ops(after) == {"sin": 1}
    same_program(before, after, DATA)
    assert dead_code(after) is after


def test_effects_are_not_dead():
    seen = []

    def f(x):
        jax.debug.callback(seen.append, jnp.exp(x))
        jnp.cos(x)
        return x

    after = dead_code(traced(f))
    assert ops(after) == {"exp": 1, "debug_callback": 1}


def test_one_result_of_several_is_enough():
    after = dead_code(traced(lambda x: jax.lax.top_k(x, 2)[1]))
    assert ops(after) == {"top_k": 1}


def test_common_subexpressions():
    before = traced(lambda x: jnp.sin(x) * 2 + jnp.sin(x) * 2)
    after = common_subexpressions(before)
    assert ops(after) == {"sin": 1, "mul": 1, "add": 1}
    same_program(before, after, DATA)
    assert common_subexpressions(after) is after


def test_expressions_that_only_look_common():
    before = traced(lambda x: (x * 2.0, x * 3.0, x + 2.0, x.sum(0), x.max(0), (x * -0.0), (x * 0.0)))
    after = common_subexpressions(before)
    assert ops(after) == ops(before)
    same_program(before, after, DATA)


def test_literals_of_another_type_are_not_equal():
    f = lambda x, i: (x * 1.0, i * 1, x[:1] + 1)
    before = traced(f, X, jax.ShapeDtypeStruct((3,), np.int32))
    assert ops(common_subexpressions(before)) == ops(before)


def test_effects_are_not_common():
    def f(x):
        jax.debug.callback(print, x)
        jax.debug.callback(print, x)
        return x

    assert ops(common_subexpressions(traced(f))) == {"debug_callback": 2}


def test_collectives_are_not_common():
    """How many there are is what a program's text promises."""
    x = ShapedArray((4,), np.dtype("float32"))
    jaxpr = Jaxpr((), (), (), ())
    with_two = trace_to_jaxpr(
        lambda v: [OPS["mask_replicas"](v, axes=("x",)), OPS["mask_replicas"](v, axes=("x",))], [x]
    ).jaxpr
    assert jaxpr.eqns == ()
    assert ops(common_subexpressions(with_two)) == {"mask_replicas": 2}


def test_results_are_renamed():
    before = traced(lambda x: (jnp.sin(x), jnp.sin(x), x))
    after = common_subexpressions(before)
    assert after.outvars[0] is after.outvars[1]
    same_program(before, after, DATA)


def test_constants_are_the_first_inputs():
    c = np.arange(3, dtype=np.float32)
    whole = jax.make_jaxpr(lambda x: x + c)(X)
    jaxpr = closed(whole)
    assert not jaxpr.constvars
    assert jaxpr.invars == (*whole.jaxpr.constvars, *whole.jaxpr.invars)
