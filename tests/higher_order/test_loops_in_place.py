"""Carries that loops update where they lie: the same values as with copies, whatever else holds or reads the block."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import lax
from mpiarray.higher_order.control_flow.in_place import overwriting
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray

N = 6
F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


def _owned(body, *shapes):
    """Which carries of `body(i, *carry) -> carry` may be overwritten."""
    avals = [ShapedArray((), I32), *(ShapedArray(s, F32) for s in shapes)]
    closed = trace_to_jaxpr(lambda i, *carry: [i + 1, *body(i, *carry)], avals, name="body")
    return overwriting(closed, 0, len(avals))[1]


def test_which_carries_are_overwritten():
    put = lambda v, i, x: lax.dynamic_update_slice(v, jnp.reshape(x, (1,)), (i,))
    assert _owned(lambda i, v: [put(v, i, v[i] * 2)], (N,)) == (1,)
    assert _owned(lambda i, v: [v.at[i].set(1.0)], (N,)) == (1,)
    assert _owned(lambda i, v: [v.at[i].add(v[0])], (N,)) == (1,)
    assert _owned(lambda i, v: [put(put(v, i, 1.0), 0, 2.0)], (N,)) == (1,)
    assert _owned(lambda i, v: [v * 2], (N,)) == ()
    assert _owned(lambda i, v: [v], (N,)) == ()
    # an element that is read before the first update and written by the second may be a view
    assert _owned(lambda i, v: [put(put(v, i, v[0]), 0, v[i])], (N,)) == ()
    assert _owned(lambda i, v, w: [put(v, i, 1.0), v[::-1]], (N,), (N,)) == ()  # the old state, as another carry
    assert (
        _owned(lambda i, v, w: [put(v, i, 1.0), v * 2], (N,), (N,)) == ()
    )  # read after the update or fresh: see order
    assert _owned(lambda i, v, w: [put(v, i, 1.0), w.at[i].set(v[i])], (N,), (N,)) in ((), (2,))
    assert _owned(lambda i, v, w: [put(w, i, 1.0), put(v, i, 1.0)], (N,), (N,)) == ()  # they change places
    same = lambda i, v, w: [x := put(v, i, 1.0), x]  # two carries of one value
    assert _owned(same, (N,), (N,)) == ()


def _python(body, n, *carry):
    carry = tuple(np.array(c) for c in carry)
    for i in range(n):
        carry = tuple(np.array(c) for c in body(i, *carry))
    return carry


def _np_put(v, i, x):
    v = v.copy()
    v[i] = x
    return v


CASES = {
    "set": (lambda i, v: (v.at[i].set(v[i - 1] + 1),), lambda i, v: (_np_put(v, i, v[i - 1] + 1),), 1),
    "add": (lambda i, v: (v.at[i].add(v.sum()),), lambda i, v: (_np_put(v, i, v[i] + v.sum()),), 1),
    "outside": (lambda i, v: (v.at[i + 3].set(9.0, mode="drop"),), lambda i, v: (_np_put(v, i + 3, 9.0) if i + 3 < N else v,), 1),
    "swap": (
        lambda i, v: (v.at[i].set(v[0]).at[0].set(v[i]),),
        lambda i, v: (_np_put(_np_put(v, i, v[0]), 0, v[i]),),
        1,
    ),
    "shift": (
        lambda i, v: (lax.dynamic_update_slice(v, v[:-1], (1,)),),
        lambda i, v: (np.concatenate([v[:1], v[:-1]]),),
        1,
    ),
    "old state": (
        lambda i, v, w: (v.at[i].set(7.0), w + v),
        lambda i, v, w: (_np_put(v, i, 7.0), w + v),
        2,
    ),
    "new state": (
        lambda i, v, w: ((u := v.at[i].multiply(3.0)), w + u),
        lambda i, v, w: ((u := _np_put(v, i, v[i] * 3)), w + u),
        2,
    ),
    "change places": (
        lambda i, v, w: (w.at[i].set(1.0), v.at[i].set(2.0)),
        lambda i, v, w: (_np_put(w, i, 1.0), _np_put(v, i, 2.0)),
        2,
    ),
    "rows": (
        lambda i, v: (v.at[jnp.array([2, 0, 2])].add(v[i]),),
        lambda i, v: (_np_put(_np_put(v, 2, v[2] + 2 * v[i]), 0, v[0] + v[i]),),
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ["fori", "while", "scan"])
@pytest.mark.parametrize("case", CASES)
def test_values(case, how):
    body, plain, count = CASES[case]
    rng = np.random.default_rng(0)
    carry = tuple(rng.integers(-4, 5, N).astype(np.float32) for _ in range(count))
    given = tuple(jnp.asarray(c) for c in carry)
    if how == "fori":
        run = lambda *c: lax.fori_loop(0, N, lambda i, c: tuple(body(i, *c)), c)
    elif how == "while":
        run = lambda *c: lax.while_loop(lambda s: s[0] < N, lambda s: (s[0] + 1, tuple(body(s[0], *s[1]))), (0, c))[1]
    else:
        run = lambda *c: lax.scan(lambda c, i: (tuple(body(i, *c)), c), c, jnp.arange(N))[0]
    jitted = jax.jit(run)
    for _ in range(2):
        for out, want in zip(jitted(*given), _python(plain, N, *carry), strict=True):
            np.testing.assert_array_equal(np.asarray(out), want)
    for g, c in zip(given, carry):
        np.testing.assert_array_equal(np.asarray(g), c)  # the caller's arrays are as they were


def test_stacked_results_are_states_of_their_time():
    def body(v, i):
        new = v.at[i].set(i * 1.0)
        return new, (v, new, new[::-1])

    last, (before, after, turned) = jax.jit(lambda v: lax.scan(body, v, jnp.arange(N)))(jnp.full(N, -1.0))
    want = np.tril(np.ones((N, N))) * (np.arange(N) + 1) - 1
    np.testing.assert_array_equal(np.asarray(after), want)
    np.testing.assert_array_equal(np.asarray(turned), want[:, ::-1])
    np.testing.assert_array_equal(np.asarray(before), np.vstack([np.full(N, -1.0), want[:-1]]))
    np.testing.assert_array_equal(np.asarray(last), np.arange(N))


def test_one_array_as_two_carries_and_a_constant():
    x = jnp.arange(4.0)
    f = jax.jit(
        lambda x: lax.fori_loop(0, 4, lambda i, c: (c[0].at[i].set(x[i] * 10), c[1].at[i].set(x[3 - i])), (x, x))
    )
    a, b = f(x)
    np.testing.assert_array_equal(np.asarray(a), [0, 10, 20, 30])
    np.testing.assert_array_equal(np.asarray(b), [3, 2, 1, 0])
    np.testing.assert_array_equal(np.asarray(x), [0, 1, 2, 3])


def test_nested_loops():
    def outer(i, v):
        return lax.fori_loop(0, 4, lambda j, v: v.at[i, j].set(i * 10.0 + j), v)

    v = jnp.zeros((3, 4))
    out = jax.jit(lambda v: (lax.fori_loop(0, 3, outer, v), v))(v)
    np.testing.assert_array_equal(np.asarray(out[0]), np.add.outer(np.arange(3) * 10, np.arange(4)))
    np.testing.assert_array_equal(np.asarray(out[1]), 0)


def test_gradient_through_updates():
    f = lambda v: (lax.fori_loop(1, N, lambda i, v: v.at[i].set(v[i - 1] * v[i]), v) ** 2).sum()
    v = np.linspace(0.5, 1.5, N, dtype=np.float32)
    want = np.zeros(N)
    products = np.cumprod(v.astype(np.float64))
    for k in range(N):
        want[k] = sum(2 * products[j] * products[j] / v[k] for j in range(k, N))
    np.testing.assert_allclose(np.asarray(jax.jit(jax.grad(f))(v)), want, rtol=1e-5)
