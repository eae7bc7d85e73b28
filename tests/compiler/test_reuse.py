"""Results written over blocks that are read for the last time: where they may be, where not, and what is allocated."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.executable import Executable
from mpiarray.compiler.passes import fuse
from mpiarray.compiler.passes.fuse import fuse as fused
from mpiarray.compiler.passes.simplify import closed
from mpiarray.compiler.reuse import ends_of, overwritable
from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.ops.collectives import _Many
from tests.peak import peak_of

BIG = (256, 256)  # 256 KB of float32
X = np.random.default_rng(0).standard_normal(BIG).astype(np.float32)


def jaxpr_of(f, *args):
    return fused(closed(jax.make_jaxpr(f)(*args)))


def names(f, *args, owned=()):
    jaxpr = jaxpr_of(f, *args)
    return {(e.op.name, n) for e, dead in overwritable(jaxpr, owned).items() for n in dead.over}


def layer(x, w, b):
    return jnp.maximum(x @ w + b, 0) * 2


def test_a_group_writes_over_a_product_that_it_reads_last():
    assert names(layer, X, X, X[0]) == {("fusion", 1)}


def test_arguments_are_the_callers():
    assert names(lambda x: x * 2 + 1, X) == set()
    assert names(lambda x: x * 2 + 1, X, owned=(0,)) == {("fusion", 0)}


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (lambda y: (y * 2 + 1, y))(x @ x),  # a result
        lambda x: (lambda y: (y * 2 + 1, y.T))(x @ x),  # a view of it is a result
        lambda x: (lambda y: (y * 2 + 1, y.reshape(-1)[:70_000]))(x @ x),
        lambda x: (lambda y: (y * 2 + 1) @ y)(x @ x),  # read again
        lambda x: (lambda y: (y * 2 + 1) @ y[:, ::-1])(x @ x),
        lambda x: (lambda y: y * 2 + y.T)(x @ x),  # a view of it is read in the same step
        lambda x: jnp.ones(BIG) * 2 + jnp.zeros(BIG),
    ],
)
def test_not_where_somebody_sees_it(f):
    assert not any(op == "fusion" for op, _ in names(f, X))
    got = jax.jit(f)(X)
    want = f(jnp.asarray(X))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-4)


def test_what_reads_a_value_after_it_was_a_view_ends_it():
    jaxpr = jaxpr_of(lambda x: jnp.sum(jnp.transpose(x @ x)[::-1] @ x), X)
    ends = ends_of(jaxpr)
    product = jaxpr.eqns[0]
    last_dot = max(k for k, e in enumerate(jaxpr.eqns) if e.op.name == "dot_general")
    assert ends[product.outvars[0]] >= last_dot > 0


def test_owned_blocks_are_written_over_and_others_never():
    jaxpr = jaxpr_of(lambda p, g: (p - 0.5 * g, jnp.sum(g)), X, X)
    p, g = X.copy(), X.copy()
    assert jaxpr.invars[0].aval.shape == BIG
    owned = Executable(ClosedJaxpr(jaxpr), None, 0, complete=True, owned=(0,)).run(p, g)
    assert np.shares_memory(owned[0], p)
    np.testing.assert_array_equal(g, X)
    np.testing.assert_array_equal(owned[0], X - np.float32(0.5) * X)
    q = X.copy()
    free = Executable(ClosedJaxpr(jaxpr), None, 0, complete=True).run(q, g)
    assert not np.shares_memory(free[0], q)
    np.testing.assert_array_equal(q, X)
    np.testing.assert_array_equal(free[0], owned[0])


def test_a_layer_makes_one_array(monkeypatch):
    """The product's memory takes the bias and the activation too: nothing else of its size is made."""
    f = jax.jit(layer)
    args = [jnp.asarray(a) for a in (X, X, X[0])]
    f(*args)
    out, peak = peak_of(lambda: f(*args))
    assert X.nbytes <= peak < 1.25 * X.nbytes
    np.testing.assert_allclose(np.asarray(out), np.maximum(X @ X + X[0], 0) * 2, rtol=1e-4, atol=1e-3)


def random_step(rng):
    """A few products, groups, views and results in random order, for whoever reads what."""
    picks = rng.integers(0, 1 << 30, size=(9, 3))

    def f(x, y):
        found = [x, y]
        for kind, i, j in picks:
            a, b = found[i % len(found)], found[j % len(found)]
            match kind % 8:
                case 0 | 1:
                    found.append(a @ b * 0.1)
                case 2:
                    found.append(jnp.maximum(a, 0) - b)
                case 3:
                    found.append(jnp.where(a > b, a, 0.5 * b))
                case 4:
                    found.append(a.T)
                case 5:
                    found.append(jnp.roll(a, 1, 0) + b)
                case 6:
                    found.append(a.at[2:5].set(b[1:4] * 2))
                case _:
                    found.append(a * 2 + 1)
        return found[-1], found[-3], jnp.sum(found[-2])

    return f


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_with_and_without_owned_arguments(seed, monkeypatch):
    monkeypatch.setattr(fuse, "_SMALLEST", 0)
    monkeypatch.setattr("mpiarray.memory.ALIGNED_FROM", 0)
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, 12, 12)).astype(np.float32)
    f = random_step(rng)
    want = [np.asarray(v) for v in f(jnp.asarray(x), jnp.asarray(y))]
    jaxpr = jaxpr_of(f, x, y)
    for owned in ((), (0,), (0, 1)):
        a, b = x.copy(), y.copy()
        got = Executable(ClosedJaxpr(jaxpr), None, 0, complete=True, owned=owned).run(a, b)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
        if 0 not in owned:
            np.testing.assert_array_equal(a, x)
        if 1 not in owned:
            np.testing.assert_array_equal(b, y)


def test_a_message_that_is_taken_is_not_given_to_others():
    many = _Many(None)
    many.lay_out([(2, 3), (4,)], np.dtype(np.float32))
    first, second = many.take(), many.take()
    assert [v.shape for v in first] == [(2, 3), (4,), (10,)]
    assert not any(np.shares_memory(a, b) for a in first for b in second)
    many.give(second)
    assert many.take() is second
    assert many.take() is not first
