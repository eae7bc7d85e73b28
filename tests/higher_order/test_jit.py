"""jit: when functions are traced, what may be passed and returned, donation, nesting, shardings (spec transforms.md 1)."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from tests.runtime.on_ranks import Auto, close, grid, line, placed, ranks, same, under, values

pytestmark = pytest.mark.mpi


def counted(f: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """`f`, and a list that grows when its Python code runs."""
    calls: list[int] = []

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return f(*args, **kwargs)

    return wrapped, calls


# -- tracing ---------------------------------------------------------------------------------------------


def test_traced_once_for_equal_types() -> None:
    f, calls = counted(lambda x, y: x + y)
    g = jax.jit(f)
    same(g(jnp.ones(3), jnp.ones(3)), [2, 2, 2])
    same(g(jnp.zeros(3), np.ones(3, np.float32)), [1, 1, 1])
    assert len(calls) == 1
    assert g._cache_size() == 1


def test_traced_again_for_other_types() -> None:
    f, calls = counted(lambda x: x * 2)
    g = jax.jit(f)
    for k, x in enumerate((jnp.ones(3), jnp.ones(4), jnp.ones((3, 1)), jnp.ones(3, jnp.int32), 1.0, jnp.float32(1)), 1):
        g(x)
        g(x)
        assert len(calls) == k
    g(jnp.ones(3))
    assert len(calls) == 6
    if ranks() > 1:
        g(placed(np.ones(2 * ranks()), line(), "x"))
        g(placed(np.ones(2 * ranks()), line()))
        assert len(calls) == 8, "shardings are part of Explicit types"
    size = len(calls)
    g(placed(np.ones(4 * ranks()), line(Auto), "x"))
    g(placed(np.ones(4 * ranks()), line(Auto)))
    assert len(calls) == size + 1, "shardings are not part of Auto types"


def test_traced_again_in_another_context() -> None:
    f, calls = counted(lambda x: x + 1)
    g = jax.jit(f)
    x = jnp.ones(3)
    g(x)
    with jax.set_mesh(line()):
        g(x)
        g(x)
    with jax.set_mesh(line(Auto)):
        g(x)
    g(x)
    assert len(calls) == 3
    with jax.enable_x64(True):
        g(np.ones(3))
    assert len(calls) == 4


def test_weak_types_are_types() -> None:
    f, calls = counted(lambda x: x * np.float32(2))
    g = jax.jit(f)
    g(1.0)
    g(2.0)
    g(np.float32(1))
    assert len(calls) == 2


def test_side_effects_happen_while_tracing_only() -> None:
    seen = []

    @jax.jit
    def f(x: Any) -> Any:
        seen.append(str(x))
        return x

    f(jnp.ones(2))
    f(jnp.ones(2))
    assert seen == ["JitTracer(float32[2])"]


def test_caches_can_be_cleared() -> None:
    f, calls = counted(lambda x: x)
    g = jax.jit(f)
    g(1.0)
    g.clear_cache()
    g(1.0)
    assert len(calls) == 2


# -- arguments -------------------------------------------------------------------------------------------


def test_static_arguments() -> None:
    f, calls = counted(lambda x, n, *, mode="a": x * n if mode == "a" else x + n)
    g = jax.jit(f, static_argnums=1, static_argnames="mode")
    assert [float(g(2.0, n)) for n in (3, 3, 4)] == [6, 6, 8]
    assert float(g(2.0, 3, mode="b")) == 5
    assert len(calls) == 3
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        g(2.0, [3])
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        g(2.0, jnp.ones(1))
    h = jax.jit(lambda shape: jnp.zeros(shape), static_argnums=(0,))
    assert h((2, 3)).shape == (2, 3)
    last = jax.jit(lambda x, n: x * n, static_argnums=-1)
    assert float(last(2.0, 5)) == 10
    by_name = jax.jit(lambda x, n: x * n, static_argnames=("n",))
    assert float(by_name(2.0, 3)) == float(by_name(2.0, n=3)) == 6


def test_static_arguments_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="out of range"):
        jax.jit(lambda x: x, static_argnums=1)
    with pytest.raises(ValueError, match="are not arguments"):
        jax.jit(lambda x: x, static_argnames="y")
    with pytest.raises(ValueError, match="both static and donated"):
        jax.jit(lambda x: x, static_argnums=0, donate_argnums=0)
    with pytest.raises(TypeError, match="callable"):
        jax.jit(3)


class Pair(NamedTuple):
    a: Any
    b: Any


def test_trees_and_keywords() -> None:
    @jax.jit
    def f(tree: Any, *rest: Any, scale: Any = 1.0, **more: Any) -> Any:
        return {"sum": tree["p"].a + tree["p"].b, "rest": rest, "more": [scale, more], "none": None}

    out = f({"p": Pair(1.0, np.ones(2)), "unused": [2]}, 5, (6, 7), scale=3, z=jnp.zeros(1))
    same(out["sum"], [2, 2])
    assert int(out["rest"][1][1]) == 7
    assert out["none"] is None
    assert int(out["more"][0]) == 3
    assert isinstance(jax.jit(lambda p: p)(Pair(1, 2)), Pair)


def test_arguments_that_are_no_arrays() -> None:
    g = jax.jit(lambda x, **k: x)
    for args, kwargs, path in (
        (("a",), {}, r"\[0\]"),
        (({"k": [1, "a"]},), {}, r"\['k'\]\[1\]"),
        ((1,), {"w": object()}, r"\['w'\]"),
    ):
        with pytest.raises(TypeError, match=f"Error interpreting argument to .* as an abstract array.*{path}"):
            g(*args, **kwargs)


def test_results_that_are_no_arrays() -> None:
    with pytest.raises(TypeError, match=r"returned a value of type <class 'str'>, which is not a valid JAX type"):
        jax.jit(lambda: "a")()
    assert jax.jit(lambda: None)() is None
    assert float(jax.jit(lambda: 3.0)()) == 3
    assert float(jax.jit(lambda: np.float32(3))()) == 3


def test_decorators_and_methods() -> None:
    @jax.jit
    def f(x: Any) -> Any:
        """Documented."""
        return x

    @functools.partial(jax.jit, static_argnums=0)
    def g(n: int, x: Any) -> Any:
        return x * n

    assert f.__name__ == "f"
    assert f.__doc__ == "Documented."
    assert float(g(3, 2.0)) == 6

    class Model:
        def __init__(self) -> None:
            self.w = jnp.float32(2)

        @functools.partial(jax.jit, static_argnums=0)
        def call(self, x: Any) -> Any:
            return self.w * x

        @jax.jit
        def two(self: Any) -> Any:
            return 2 * self

    assert float(Model().call(4.0)) == 8
    assert float(jax.jit(functools.partial(lambda a, b: a - b, 5.0))(3.0)) == 2


def test_values_are_not_known_while_tracing() -> None:
    errors = jax.errors
    for wrong, error in (
        (lambda x: 1 if x > 0 else 2, errors.TracerBoolConversionError),
        (lambda x: float(x), errors.ConcretizationTypeError),
        (lambda x: x.item(), errors.ConcretizationTypeError),
        (lambda x: range(x.astype(int)), errors.TracerIntegerConversionError),
        (lambda x: np.asarray(x), errors.TracerArrayConversionError),
        (lambda x: np.sin(x), errors.TracerArrayConversionError),
        (lambda x: jnp.zeros(x.astype(int)), TypeError),
        (lambda x: x.sharding, AttributeError),
    ):
        with pytest.raises(error):
            jax.jit(wrong)(2.0)
    with pytest.raises(errors.TracerBoolConversionError, match="static_argnums"):
        jax.jit(lambda x: bool(x))(1.0)


def test_tracers_that_escape() -> None:
    kept = []
    jax.jit(lambda x: (kept.append(x), x)[1])(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        kept[0] + 1
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda y: y + kept[0])(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda y: y)(kept[0])


# -- closures --------------------------------------------------------------------------------------------


def test_closures_over_arrays() -> None:
    v = values(4 * ranks())
    c = placed(v, line(), "x")
    n = np.arange(4.0 * ranks())
    f = jax.jit(lambda x: x * c + n)
    for _ in range(2):
        same(f(placed(v, line(), "x")), v * v + n.astype(np.float32))
    same(f(1.0), v + n.astype(np.float32))


def test_closures_over_arrays_that_are_gone() -> None:
    c = jnp.ones(3)
    f = jax.jit(lambda x: x + c)
    same(f(jnp.ones(3)), [2, 2, 2])
    c.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        f(jnp.ones(3))
    c = jnp.full(3, 5.0)
    same(f(jnp.ones(3)), [6, 6, 6])


def test_a_function_that_is_gone_frees_its_constants() -> None:
    def use() -> weakref.ref[Any]:
        c = jnp.ones(300)
        jax.jit(lambda x: x + c)(1.0)
        return weakref.ref(c)

    gone = use()
    gc.collect()
    assert gone() is None


# -- donation --------------------------------------------------------------------------------------------


def test_donated_arguments_are_deleted() -> None:
    with jax.set_mesh(line()):
        v = values(4 * ranks())
        f = jax.jit(lambda x, y: (x + 1, y.sum()), donate_argnums=0)
        x, y = jax.device_put(v, P("x")), jax.device_put(v, P("x"))
        out, _ = f(x, y)
        assert x.is_deleted()
        assert not y.is_deleted()
        same(out, v + 1)
        with pytest.raises(RuntimeError, match="Array has been deleted with shape=float32"):
            f(x, y)


def test_donated_arguments_that_do_not_fit_stay() -> None:
    with jax.set_mesh(line()):
        x = jax.device_put(values(4 * ranks()), P("x"))
        with pytest.warns(UserWarning, match="Some donated buffers were not usable"):
            jax.jit(lambda x: x.sum(), donate_argnames="x")(x)
        assert not x.is_deleted()
        host = np.ones(3, np.float32)
        same(jax.jit(lambda x: x + 1, donate_argnums=0)(host), [2, 2, 2])
        same(host, [1, 1, 1])
        tree = {"a": jax.device_put(values(2 * ranks()), P("x")), "b": jax.device_put(values(2 * ranks(), 2), P("x"))}
        jax.jit(lambda t: {k: v * 2 for k, v in t.items()}, donate_argnums=(0,))(tree)
        assert all(v.is_deleted() for v in tree.values())


def test_donated_values_are_right() -> None:
    """Reused memory must not change what is read later."""
    with jax.set_mesh(line()):
        v = values(4 * ranks(), 3)
        step = jax.jit(lambda a, b: (b, a + b), donate_argnums=(0, 1))
        a, b = jax.device_put(v, P("x")), jax.device_put(v + 1, P("x"))
        wa, wb = v, v + 1
        for _ in range(5):
            a, b = step(a, b)
            wa, wb = wb, wa + wb
            same(a, wa)
            same(b, wb)
        x = jax.device_put(v, P("x"))
        kept = x.addressable_data(0)
        jax.jit(lambda x: x * 0, donate_argnums=0)(x)
        same(kept, v[3 * 0 + 4 * comm.rank() : 4 * comm.rank() + 4])


# -- nesting ---------------------------------------------------------------------------------------------


def test_nested_functions_are_equations() -> None:
    inner = jax.jit(lambda x: jnp.sin(x) * 2)
    outer = jax.jit(lambda x: inner(x) + inner(x))
    v = values(3)
    close(outer(v), 4 * np.sin(v))
    jaxpr = outer.trace(v).jaxpr
    assert [e.op.name for e in jaxpr.eqns] == ["jit", "jit", "add"]
    flat = jax.jit(lambda x: jax.jit(lambda y: y + 1, inline=True)(x))
    assert [e.op.name for e in flat.trace(v).jaxpr.eqns] == ["add"]


def test_nested_functions_are_traced_once() -> None:
    f, calls = counted(lambda x: x + 1)
    inner = jax.jit(f)
    jax.jit(lambda x: inner(inner(x)))(1.0)
    assert len(calls) == 1


def test_recursion() -> None:
    @functools.partial(jax.jit, static_argnums=1)
    def power(x: Any, n: int) -> Any:
        return x * power(x, n - 1) if n else 1.0

    assert float(power(2.0, 10)) == 1024


def test_closures_over_tracers() -> None:
    @jax.jit
    def f(x: Any) -> Any:
        g = jax.jit(lambda y: x * y + jnp.arange(3.0))
        return g(2.0) + g(x)

    v = np.float32([1, 2, 3])
    same(f(v), v * 2 + np.arange(3) + v * v + np.arange(3))


def test_without_compilation() -> None:
    seen = []

    @jax.jit
    def f(x: Any) -> Any:
        seen.append(x)
        return x * 2 if x.sum() > 0 else x

    with jax.disable_jit():
        same(f(jnp.ones(3)), [2, 2, 2])
        same(f(jnp.ones(3)), [2, 2, 2])
    assert [float(x[0]) for x in seen] == [1.0, 1.0]
    with pytest.raises(jax.errors.TracerBoolConversionError):
        f(jnp.ones(3))


# -- errors ----------------------------------------------------------------------------------------------


def test_errors_of_the_function_come_through_and_leave_nothing_behind() -> None:
    f = jax.jit(lambda x: {}["missing"])
    for _ in range(2):
        with pytest.raises(KeyError, match="missing"):
            f(1.0)
    assert f._cache_size() == 0
    same(jnp.ones(2) + 1, [2, 2])


def test_errors_of_types_name_the_types() -> None:
    with jax.set_mesh(line()), pytest.raises(TypeError, match=r"incompatible shapes.*\(3,\).*\(4,\)"):
        jax.jit(lambda x, y: x + y)(jnp.ones(3), jnp.ones(4))


# -- shardings -------------------------------------------------------------------------------------------


@under(grid)
def test_types_inside_are_those_of_the_arguments() -> None:
    seen = []
    f = jax.jit(lambda x: (seen.append(str(jax.typeof(x))), x.T)[1])
    v = values(4 * ranks(), 2 * ranks())
    out = f(placed(v, grid(), "x", "y"))
    assert seen == [f"float32[{4 * ranks()}@x,{2 * ranks()}@y]"]
    assert out.sharding.spec == P("y", "x")
    same(out, v.T)


@under(grid)
def test_out_shardings() -> None:
    v = values(4 * ranks(), 4 * ranks())
    x = placed(v, grid(), "x", None)
    for spec in (P(), P("y"), P("x", "y"), P(("x", "y")), P(None, "x")):
        for given in (spec, jax.NamedSharding(grid(), spec)):
            out = jax.jit(lambda x: x * 2, out_shardings=given)(x)
            assert out.sharding.spec == spec
            same(out, v * 2)
            for s in out.addressable_shards:
                same(s.data, 2 * v[s.index])
    both = jax.jit(lambda x: {"a": x, "b": x.sum(0)}, out_shardings={"a": P("y"), "b": None})(x)
    assert both["a"].sharding.spec == P("y")
    same(both["b"], v.sum(0))
    with pytest.raises(ValueError, match="pytree"):
        jax.jit(lambda x: (x, x), out_shardings=(P(),))(x)


@under(lambda: grid(Auto))
def test_shardings_on_auto_axes() -> None:
    v = values(4 * ranks(), 4 * ranks())
    for source in (P(), P("x"), P("y", "x"), P(("x", "y"))):
        for target in (P(), P("x"), P(None, "y"), P("y", "x")):
            x = placed(v, grid(Auto), *source)
            out = jax.jit(lambda x: x @ x, out_shardings=target)(x)
            assert out.sharding.spec == target
            same(out, v @ v)
            f = jax.jit(lambda x: x + 1, in_shardings=target, out_shardings=source)
            out = f(v)
            assert out.sharding.spec == source
            same(out, v + 1)


@under(line)
def test_in_shardings() -> None:
    v = values(4 * ranks(), 2)
    x = jax.device_put(v, P("x"))
    f = jax.jit(lambda x: x + 1, in_shardings=P("x"))
    same(f(x), v + 1)
    same(f(v), v + 1)
    if ranks() > 1:
        with pytest.raises(
            ValueError, match="Sharding passed to jit does not match the sharding on the respective arg"
        ):
            f(jax.device_put(v, P()))
    with pytest.raises(ValueError, match="does not support kwargs when in_shardings"):
        jax.jit(lambda x: x, in_shardings=P())(x=v)
    with jax.set_mesh(None), pytest.raises(RuntimeError, match="non-empty mesh"):
        jax.jit(lambda x: x, in_shardings=P("x"))(v)


@pytest.mark.mpi(min_size=2)
def test_ranks_outside_the_mesh_trace_and_get_values() -> None:
    mesh = jax.make_mesh((1,), ("x",))
    f, calls = counted(lambda x: (x * 2).sum())
    with jax.set_mesh(mesh):
        out = jax.jit(f)(jax.device_put(values(4), P("x")))
    assert calls == [1]
    assert float(out) == 2 * values(4).sum()


@pytest.mark.mpi(min_size=2)
def test_incompatible_devices() -> None:
    a, b = (jax.device_put(np.ones(3), d) for d in jax.devices()[:2])
    with pytest.raises(ValueError, match="Received incompatible devices for jitted computation"):
        jax.jit(lambda x, y: x + y)(a, b)
    same(jax.jit(lambda x: x + 1)(b), [2, 2, 2])


def test_results_are_bitwise_those_of_eager_ops() -> None:
    with jax.set_mesh(line()):
        x = jax.device_put(np.linspace(0, 1, 64 * ranks(), dtype=np.float32).reshape(-1, 8), P("x"))
        f = lambda x: jnp.tanh(x * 3 + 1).sum(0) / x.max()
        assert np.asarray(jax.jit(f)(x)).tobytes() == np.asarray(f(x)).tobytes()


def test_outputs_that_are_inputs_are_arrays_of_their_own() -> None:
    x = jnp.ones(3)
    y, z = jax.jit(lambda x: (x, x))(x)
    assert y is not x
    y.delete()
    same(z, [1, 1, 1])
    same(x, [1, 1, 1])


def test_trees_of_arrays_called_again():
    """Later calls take arguments apart by a function that was written for the latest structure: others are told from these."""
    traced = []

    def f(params, x):
        traced.append(1)
        leaves = [k * v for k, v in enumerate(jax.tree.leaves(params))]
        return {"sum": sum(leaves, x), "params": params}

    g = jax.jit(f)
    one, two, three = (jnp.full((3,), float(k)) for k in (1, 2, 3))
    calls = [
        ({"w": one, "b": [two]}, three), ([one, two], three), ({"w": one, "b": [two]}, one), ((one, two), three),
        ({"b": [one, two]}, three), ({"w": one, "b": [np.ones(3, np.float32)]}, three), ({"w": 2.0, "b": [two]}, three),
        ({"w": one, "b": [two], "c": None}, three), ({"w": jnp.arange(3), "b": [two]}, three),
    ]  # fmt: skip
    for _ in range(3):
        for params, x in calls:
            found = g(params, x)
            assert jax.tree.structure(found["params"]) == jax.tree.structure(params)
            np.testing.assert_array_equal(
                found["sum"], sum((k * np.asarray(v) for k, v in enumerate(jax.tree.leaves(params))), np.asarray(x))
            )
    assert len(traced) == len(
        {(str(jax.tree.structure(p)), *map(str, map(jax.typeof, jax.tree.leaves(p)))) for p, _ in calls}
    )
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        g({"w": gone, "b": [two]}, three)
    step = jax.jit(lambda p, x: jax.tree.map(lambda a: a + x, p), donate_argnums=0)
    p = {"w": jnp.ones(3), "b": [jnp.zeros(3)]}
    for _ in range(4):
        committed = p["w"].committed  # others are not donated
        old, p = p, step(p, one)
        assert old["w"].is_deleted() == old["b"][0].is_deleted() == committed
    np.testing.assert_array_equal(p["w"], 5)
    np.testing.assert_array_equal(jax.vmap(lambda x: g({"w": x, "b": [x]}, x)["sum"])(jnp.ones((2, 3))), 2)
