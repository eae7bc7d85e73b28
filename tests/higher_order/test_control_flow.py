"""scan, while_loop, fori_loop, cond, switch: values against Python loops, derivatives against differences, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import lax
from mpiarray.runtime import eager

F32 = np.float32


def close(got: Any, want: Any, tol: float = 1e-5) -> None:
    got, want = jax.tree.leaves(got), jax.tree.leaves(want, is_leaf=lambda v: isinstance(v, list))
    assert len(got) == len(want)
    for g, w in zip(got, want):
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=tol, atol=tol)


def python_scan(f: Callable[..., Any], carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    rows = []
    for x in xs[::-1] if reverse else xs:
        carry, y = f(carry, x)
        rows.append(y)
    return carry, np.array(rows[::-1] if reverse else rows)


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("jit", [False, True])
def test_scan_is_a_loop(n: int, reverse: bool, jit: bool) -> None:
    step = lambda c, x: (c * 0.5 + x, c - x)
    xs = np.arange(n, dtype=F32) + 1
    run = lambda c, xs: lax.scan(step, c, xs, reverse=reverse)
    got = (jax.jit(run) if jit else run)(F32(3), xs)
    close(got, python_scan(step, 3.0, xs, reverse))
    assert got[1].shape == (n,) and got[1].dtype == F32


def test_scan_of_trees_and_lengths() -> None:
    xs = jnp.arange(3.0)
    carry, ys = lax.scan(
        lambda c, x: ({"n": c["n"] + 1, "s": c["s"] + x["a"] * x["b"][0]}, (c["s"], None)),
        {"n": 0, "s": 0.0},
        {"a": xs, "b": [xs + 1]},
    )
    assert int(carry["n"]) == 3 and float(carry["s"]) == 0 * 1 + 1 * 2 + 2 * 3
    assert ys[1] is None
    close(ys[0], [0.0, 0.0, 2.0])
    close(lax.scan(lambda c, _: (c * 2, c), 1.0, None, length=4), (16.0, [1.0, 2.0, 4.0, 8.0]))
    assert lax.scan(lambda c, x: (c, None), (), jnp.arange(2)) == ((), None)


def test_weak_carries_take_the_type_that_the_body_gives_them() -> None:
    carry, _ = lax.scan(lambda c, x: (c + x, None), 0, jnp.arange(3.0))
    assert carry.dtype == F32 and not carry.weak_type
    assert lax.scan(lambda c, x: (c * jnp.float16(2), None), 1.0, None, length=2)[0].dtype == np.float16
    assert lax.while_loop(lambda c: c < 3, lambda c: c + jnp.float32(1), 0).dtype == F32


def test_while_and_fori() -> None:
    assert [int(v) for v in lax.while_loop(lambda c: c[0] < 100, lambda c: (c[0] * 2, c[1] + 1), (3, 0))] == [192, 6]
    assert float(lax.while_loop(lambda c: c > 0, lambda c: c - 1, jnp.float32(-2))) == -2
    assert int(lax.fori_loop(2, 6, lambda k, c: c * 10 + k, 0)) == 2345
    assert int(jax.jit(lambda n: lax.fori_loop(2, n, lambda k, c: c * 10 + k, 0))(6)) == 2345
    assert int(lax.fori_loop(4, 2, lambda k, c: c + 1, 7)) == 7
    assert int(jax.jit(lambda n: lax.fori_loop(4, n, lambda k, c: c + 1, 7))(2)) == 7
    assert int(lax.fori_loop(np.int32(0), jnp.int32(3), lambda k, c: c + k, jnp.int32(0))) == 3


@pytest.mark.parametrize("jit", [False, True])
def test_cond_and_switch(jit: bool) -> None:
    wrap = jax.jit if jit else lambda f: f
    f = wrap(lambda p, x: lax.cond(p, lambda x: {"a": x + 1}, lambda x: {"a": x * 10}, x))
    for pred, want in ((True, 4.0), (False, 30.0), (2, 4.0), (0, 30.0), (0.0, 30.0), (np.bool_(True), 4.0)):
        assert float(f(pred, F32(3))["a"]) == want
    g = wrap(lambda k, x: lax.switch(k, [lambda x: x, lambda x: x * 10, lambda x: x * 100], x))
    assert [float(g(k, F32(3))) for k in (-4, 0, 1, 2, 9)] == [3.0, 3.0, 30.0, 300.0, 300.0]
    assert float(lax.switch(5, [lambda x: x + 1], F32(3))) == 4.0


def test_only_the_chosen_branch_is_run() -> None:
    seen = []
    tell = lambda name: lambda x: (jax.debug.callback(lambda: seen.append(name)), x)[1]
    jax.block_until_ready(jax.jit(lambda p, x: lax.cond(p, tell("yes"), tell("no"), x))(True, 1.0))
    assert seen == ["yes"]
    jax.block_until_ready(
        lax.scan(lambda c, x: (jax.debug.callback(lambda: seen.append("step")), (c, None))[1], 0.0, jnp.arange(3))
    )
    assert seen == ["yes"] + ["step"] * 3


def test_map_in_batches() -> None:
    xs = jnp.arange(14.0).reshape(7, 2)
    want = np.asarray(xs).sum(1) * 2
    for size in (None, 1, 3, 7, 20):
        seen = []
        got = lax.map(lambda r, seen=seen: (seen.append(r.shape), r.sum() * 2)[1], xs, batch_size=size)
        close(got, want)
        assert set(seen) == {(2,)}
    close(lax.map(lambda t: (t["a"] + t["b"], t["a"]), {"a": xs, "b": xs * 10})[0], np.asarray(xs) * 11)
    close(lax.map(lambda r: r, xs[:0], batch_size=3), np.zeros((0, 2)))


@pytest.mark.parametrize("n", range(9))
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(n: int, reverse: bool) -> None:
    x = np.random.default_rng(n).uniform(0.5, 1.5, (2, n)).astype(F32)
    got = lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x + 1), axis=1, reverse=reverse)
    p, q = np.ones(2), np.zeros(2)
    for k in range(n)[::-1] if reverse else range(n):
        p, q = p * x[:, k], q * x[:, k] + x[:, k] + 1
        close((got[0][:, k], got[1][:, k]), (p, q))
    got = lax.associative_scan(jnp.logical_or, x > 1.2, axis=-1)
    np.testing.assert_array_equal(np.asarray(got), np.logical_or.accumulate(x > 1.2, axis=1))


# -- programs ------------------------------------------------------------------------------------------------


def test_bodies_are_traced_and_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, traced = [], []
    real = eager.compile_for
    monkeypatch.setattr(eager, "compile_for", lambda name, *args: (compiled.append(name), real(name, *args))[1])

    def run(scale: float) -> Any:
        def step(c: Any, x: Any) -> Any:
            traced.append(1)
            return c * 1.0009765625 + x * scale, c

        return lax.scan(step, jnp.float32(0), jnp.arange(50.0))

    run(2.0)
    assert len(traced) == 1, "the body's Python runs once, not at each iteration"
    assert compiled.count("scan") == 1
    run(2.0)
    assert compiled.count("scan") == 1, "an equal loop finds the compiled one"
    run(3.0)
    assert compiled.count("scan") == 2


def test_text_shows_the_bodies() -> None:
    f = lambda p, x: lax.cond(
        p, lambda x: lax.scan(lambda c, v: (jnp.sin(c) * v, c), x, jnp.arange(3.0))[0], lambda x: -x, x
    )
    text = jax.jit(f).lower(True, 1.0).compile().as_text()
    lines = text.splitlines()
    assert sum(" conditional(" in line for line in lines) == 1 and sum(" while(" in line for line in lines) == 1
    assert "branches[0]:" in text and "negate(" in text and "length=3" in text
    assert text.count(" sine(") == 1
    jaxpr = str(jax.make_jaxpr(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))(1.0))
    assert "while[" in jaxpr and "cond_nconsts=0" in jaxpr and "lt" in jaxpr


def test_residuals_that_are_the_same_in_every_iteration_are_not_stacked() -> None:
    w, xs = jnp.eye(3) * 0.5, jnp.ones((7, 3))

    def loss(w: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.tanh(w.T @ c + x), None), jnp.zeros(3), xs)[0].sum()

    text = str(jax.make_jaxpr(jax.grad(loss))(w))
    assert "f32[7,3,3]" not in text and "f32[7,3]" in text
    assert text.count("scan[") == 2


# -- derivatives -----------------------------------------------------------------------------------------------


def _step(c: Any, x: Any) -> Any:
    h, n = c
    return (jnp.sin(h) * x + h.sum() * n, n + 1), h * x


LOOPS: dict[str, Callable[..., Any]] = {
    "scan": lambda a, xs: lax.scan(lambda c, x: (jnp.tanh(c * a + x), c**2), a * 0.3, xs)[1].sum(),
    "reverse": lambda a, xs: (lax.scan(lambda c, x: (c * x + a, c * a), a, xs, reverse=True)[1] ** 2).sum(),
    "integers beside": lambda a, xs: lax.scan(_step, (a, 0), xs)[0][0].sum(),
    "the carry is forgotten": lambda a, xs: lax.scan(lambda c, x: (a * 0 + 2.0, c * c * x), a, xs)[1].sum(),
    "a constant at first": lambda a, xs: (lambda c, ys: c * ys.sum())(
        *lax.scan(lambda c, x: (c + a * x, c * c), jnp.zeros_like(a), xs)
    ).sum(),
    "nested": lambda a, xs: lax.scan(
        lambda c, x: (lax.scan(lambda d, y: (jnp.sin(d) * y + c, None), c * x, xs)[0], None), a, xs
    )[0].sum(),
    "with cond": lambda a, xs: lax.scan(
        lambda c, x: (lax.cond(x > 0.5, lambda c: jnp.sin(c) * a, lambda c: c * x, c), c), a, xs
    )[0].sum(),
    "with switch": lambda a, xs: lax.scan(
        lambda c, k: (lax.switch(k, [jnp.sin, lambda c: c * a, lambda c: c**3], c), None), a, jnp.arange(3)
    )[0].sum(),
    "remat": lambda a, xs: lax.scan(jax.checkpoint(lambda c, x: (jnp.sin(c * a) + x, c)), a, xs)[0].sum(),
    "fori": lambda a, xs: lax.fori_loop(0, 3, lambda k, c: jnp.sin(c) * a + k, a).sum(),
    "map": lambda a, xs: lax.map(lambda x: jnp.sin(x * a).sum(), xs).sum(),
    "associative": lambda a, xs: (lax.associative_scan(jnp.multiply, jnp.sin(xs[:, None] * a + 1)) ** 2).sum(),
    "jit inside": lambda a, xs: lax.scan(jax.jit(lambda c, x: (jnp.cos(c) * x * a, c)), a, xs)[1].sum(),
}


def differences(f: Callable[..., Any], x: np.ndarray, t: np.ndarray, h: float = 1e-6) -> float:
    return (np.asarray(f(x + h * t)) - np.asarray(f(x - h * t))) / (2 * h)


@pytest.mark.parametrize("name", LOOPS)
def test_first_and_second_derivatives(name: str) -> None:
    loop = LOOPS[name]
    with jax.enable_x64(True):
        draw = np.random.default_rng(0)
        a, xs = draw.uniform(0.2, 0.9, 2), draw.uniform(0.1, 1.2, 4)
        ta, txs = draw.standard_normal(2), draw.standard_normal(4)
        slope = differences(lambda v: loop(v, xs), a, ta)
        close(jax.jvp(loop, (a, xs), (ta, np.zeros(4)))[1], slope)
        grads = jax.grad(loop, argnums=(0, 1))(a, xs)
        close(np.vdot(grads[0], ta), slope)
        close(np.vdot(grads[1], txs), differences(lambda v: loop(a, v), xs, txs))
        close(jax.jit(jax.grad(loop))(a, xs), grads[0])
        second = differences(lambda v: jax.grad(loop)(v, xs), a, ta)
        close(jax.jvp(lambda v: jax.grad(loop)(v, xs), (a,), (ta,))[1], second)
        close(jax.grad(lambda v: jnp.vdot(jax.grad(loop)(v, xs), ta))(a), second)
        rows = np.stack([a, a * 0.5])
        close(jax.vmap(jax.grad(loop), (0, None))(rows, xs), np.stack([jax.grad(loop)(r, xs) for r in rows]))


def test_forward_derivatives_of_while() -> None:
    f = lambda x: lax.while_loop(lambda c: c[1] < 5, lambda c: (jnp.sin(c[0]) * x, c[1] + 1), (x, 0))[0]
    with jax.enable_x64(True):
        slope = differences(f, np.float64(0.7), np.float64(1))
        close(jax.jvp(f, (0.7,), (1.0,))[1], slope)
        close(jax.jacfwd(f)(0.7), slope)
        close(jax.linearize(f, 0.7)[1](2.0), 2 * slope)
        close(jax.jvp(jax.jacfwd(f), (0.7,), (1.0,))[1], differences(jax.jacfwd(f), np.float64(0.7), np.float64(1)))


def test_linear_transpose_of_a_loop() -> None:
    f = lambda x: lax.fori_loop(0, 3, lambda k, c: 2 * c * (k + 1), x)
    assert float(jax.linear_transpose(f, jnp.float32(1))(jnp.float32(1))[0]) == 2 * 4 * 6


# -- what is refused ----------------------------------------------------------------------------------------------

X = np.arange(3, dtype=F32)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "no pair": (lambda: lax.scan(lambda c, x: c, 0.0, X), TypeError, ("must be a pair",)),
    "carry dtype": (
        lambda: lax.scan(lambda total, x: (total.astype(jnp.int32), x), F32(0), X),
        TypeError,
        ("scan body function carry input and carry output must have equal types", "total", "float32[]", "int32[]", "the dtypes do not match"),
    ),
    "carry component": (
        lambda: lax.scan(lambda carry, x: ((carry[0], carry[1][None]), x), (0.0, 1.0), X),
        TypeError,
        ("carry[1]", "float32[1]", "the shapes do not match"),
    ),
    "carry structure": (lambda: lax.scan(lambda c, x: ((c, c), x), F32(0), X), TypeError, ("carry", "same pytree structure")),
    "lengths": (lambda: lax.scan(lambda c, x: (c, x), 0.0, (X, np.ones(4))), ValueError, ("different leading axis sizes", "3", "4")),
    "length": (lambda: lax.scan(lambda c, x: (c, x), 0.0, X, length=5), ValueError, ("length", "5", "3")),
    "no length": (lambda: lax.scan(lambda c, x: (c, x), 0.0), ValueError, ("length",)),
    "a scalar": (lambda: lax.scan(lambda c, x: (c, x), 0.0, F32(1)), ValueError, ("no leading axis",)),
    "no array": (lambda: lax.scan(lambda c, x: (c, x), "zero", X), TypeError, ("init", "zero", "not a valid JAX type")),
    "no array comes back": (lambda: lax.scan(lambda c, x: (c, "y"), 0.0, X), TypeError, ("not a valid JAX type",)),
    "unroll": (lambda: lax.scan(lambda c, x: (c, x), 0.0, X, unroll=-1), ValueError, ("unroll",)),
    "while: no bool": (lambda: lax.while_loop(lambda c: c, lambda c: c, F32(0)), TypeError, ("boolean scalar", "float32[]")),
    "while: several": (lambda: lax.while_loop(lambda c: (True, True), lambda c: c, F32(0)), TypeError, ("boolean scalar", "pytree")),
    "while: vector": (lambda: lax.while_loop(lambda c: c > 0, lambda c: c, X), TypeError, ("bool[3]",)),
    "while carry": (
        lambda: lax.while_loop(lambda val: True, lambda val: val[:1], X), TypeError, ("while_loop body function", "val", "float32[3]", "float32[1]"),
    ),
    "fori carry": (
        lambda: lax.fori_loop(0, 3, lambda k, c: c[:1], X), TypeError, ("scan body function", "loop_carry[1]", "float32[3]", "float32[1]"),
    ),
    "fori bounds": (lambda: lax.fori_loop(0.5, 3, lambda k, c: c, X), TypeError, ("fori_loop", "integer", "float32[]")),
    "reverse of while": (
        lambda: jax.grad(lambda x: lax.while_loop(lambda c: c < 10, lambda c: c * 2, x))(F32(1)),
        ValueError,
        ("Reverse-mode differentiation does not work for lax.while_loop", "lax.scan"),
    ),
    "reverse of dynamic fori": (
        lambda: jax.jit(lambda n, x: jax.grad(lambda y: lax.fori_loop(0, n, lambda k, c: c * y, y))(x))(3, F32(1)),
        ValueError,
        ("Reverse-mode",),
    ),
    "pred": (lambda: lax.cond(X, lambda: 1, lambda: 2), TypeError, ("Pred must be a scalar", "(3,)")),
    "branch types": (
        lambda: lax.cond(True, lambda: np.ones(2, F32), lambda: np.ones(3, F32)),
        TypeError,
        ("branches must have equal output types", "float32[2]", "float32[3]"),
    ),
    "branch trees": (lambda: lax.cond(True, lambda: (X, X), lambda: X), TypeError, ("pytree structure", "true_fun", "false_fun")),
    "switch types": (lambda: lax.switch(0, [lambda: 1, lambda: 2, lambda: 2.5]), TypeError, ("branches[2]", "int32[]", "float32[]")),
    "no branch": (lambda: lax.switch(0, []), ValueError, ("branch",)),
    "index": (lambda: lax.switch(1.5, [lambda: 1, lambda: 2]), TypeError, ("integer", "float32[]")),
    "map": (lambda: lax.map(lambda r: r, X, batch_size=0), ValueError, ("batch_size",)),
    "associative sizes": (lambda: lax.associative_scan(jnp.add, (X, X[:2])), ValueError, ("associative_scan", "(3,)", "(2,)")),
    "associative axis": (lambda: lax.associative_scan(jnp.add, X, axis=2), ValueError, ("axis 2", "float32[3]")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_errors_say_who_what_and_why(name: str) -> None:
    call, kind, parts = REFUSED[name]
    with pytest.raises(kind) as found:
        call()
    for part in parts:
        assert part in str(found.value), f"{part!r} is not in: {found.value}"


def test_python_branches_on_loop_values_are_refused() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError):
        lax.scan(lambda c, x: (c + 1 if c > 0 else c, x), 0.0, X)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        leaked = []
        lax.scan(lambda c, x: (leaked.append(c), (c, x))[1], 0.0, X)
        leaked[0] + 1


def test_disable_jit_gives_bodies_arrays() -> None:
    """Indices and carries that were Python numbers can be used as every array can."""
    with jax.disable_jit():
        x = jax.lax.fori_loop(0, 3, lambda i, c: c.at[i].set(c[i + 1] + i), jnp.arange(4.0))
        n = jax.lax.while_loop(lambda v: v[1] < 3, lambda v: (v[0] * 2, v[1].astype(int) + 1), (1.5, 0))
        last, _ = jax.lax.scan(lambda c, t: (c.astype(jnp.float32) + t, c), 0, jnp.arange(3.0))
    assert (list(x), float(n[0]), float(last)) == ([1.0, 3.0, 5.0, 3.0], 12.0, 3.0)


def test_disable_jit_runs_python() -> None:
    seen: list[Any] = []
    with jax.disable_jit():
        close(lax.scan(lambda c, x: (seen.append(float(c)), (c + x, c))[1], jnp.float32(0), X), (3.0, [0.0, 0.0, 1.0]))
        assert lax.cond(jnp.bool_(True), lambda: seen.append("yes") or 1, lambda: seen.append("no") or 2) == 1
        assert int(lax.while_loop(lambda c: c < 3, lambda c: (seen.append(int(c)), c + 1)[1], 1)) == 3
    assert seen == [0.0, 0.0, 1.0, "yes", 1, 2]
