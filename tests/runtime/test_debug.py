"""Drawings of shardings, prints and callbacks from programs."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, comm
from mpiarray.types.mesh import AbstractMesh
from tests.runtime.on_ranks import grid, line, placed, ranks, same, under, values

EIGHT = AbstractMesh((4, 2), ("X", "Y"))


def test_drawings_of_abstract_meshes(capsys: pytest.CaptureFixture[str]) -> None:
    jax.debug.visualize_sharding((8, 4), jax.NamedSharding(EIGHT, P("X", "Y")))
    assert capsys.readouterr().out == (
        "┌───────┬───────┐\n│ CPU 0 │ CPU 1 │\n├───────┼───────┤\n│ CPU 2 │ CPU 3 │\n├───────┼───────┤\n│ CPU 4 │ CPU 5 │\n├───────┼───────┤\n"
        "│ CPU 6 │ CPU 7 │\n└───────┴───────┘\n"
    )
    jax.debug.visualize_sharding((8,), jax.NamedSharding(EIGHT, P("X")))
    assert capsys.readouterr().out.splitlines()[1] == "│CPU 0,1│CPU 2,3│CPU 4,5│CPU 6,7│"


@pytest.mark.mpi
def test_drawings_of_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    x = placed(values(4 * ranks()), line(), "x")
    with comm.counting() as counts:
        jax.debug.visualize_array_sharding(x)
        drawn = capsys.readouterr().out
    assert counts.total_calls == 0
    assert drawn.splitlines()[1].count("CPU") == ranks()
    for k in range(ranks()):
        assert f"CPU {k}" in drawn
    jax.debug.visualize_array_sharding(placed(values(4, 4), line()))
    assert ",".join(map(str, range(ranks()))) in capsys.readouterr().out
    with pytest.raises(ValueError, match="only works for shapes with 1 and 2 dimensions"):
        jax.debug.visualize_array_sharding(placed(values(2, 2, 2), line()))


@pytest.mark.mpi
def test_drawings_while_tracing(capsys: pytest.CaptureFixture[str]) -> None:
    x = placed(values(4 * ranks()), line(), "x")
    seen = []

    @jax.jit
    def f(x):
        jax.debug.visualize_array_sharding(x)
        jax.debug.inspect_array_sharding(x, callback=seen.append)
        return x * 2

    same(f(x), values(4 * ranks()) * 2)
    assert "CPU" in capsys.readouterr().out
    assert seen[0].spec == P("x")


@pytest.mark.mpi
@under(grid)
def test_prints_of_programs_come_from_the_first_rank(capsys: pytest.CaptureFixture[str]) -> None:
    v = values(4 * ranks())
    x = placed(v, grid(), "x")

    @jax.jit
    def f(x):
        jax.debug.print("sum = {s}, x[0] = {x[0]}", s=x.sum(), x=x)
        return x + 1

    for _ in range(2):
        f(x)
    want = f"sum = {v.sum()}, x[0] = {v[0]}\n" * 2
    assert capsys.readouterr().out == (want if comm.rank() == 0 else "")
    jax.debug.print("{}", x.sum())
    assert capsys.readouterr().out == (f"{v.sum()}\n" if comm.rank() == 0 else "")


@pytest.mark.mpi
@under(line)
def test_callbacks_get_whole_values() -> None:
    v = values(4 * ranks())
    x = placed(v, line(), "x")
    seen = []
    jax.jit(lambda x: (jax.debug.callback(seen.append, x), x)[1])(x)
    assert len(seen) == (comm.rank() == 0)
    for got in seen:
        np.testing.assert_array_equal(got, v)


@pytest.mark.mpi
@under(line)
def test_host_functions_in_programs() -> None:
    v = values(4 * ranks())
    x = placed(v, line(), "x")
    calls = []

    def host(a: np.ndarray) -> np.ndarray:
        calls.append(a.shape)
        return np.sort(a)[::-1]

    f = jax.jit(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2)
    same(f(x), np.sort(v)[::-1] * 2)
    assert calls == [v.shape]
    several = {"a": jax.ShapeDtypeStruct((), np.float32), "b": jax.ShapeDtypeStruct((2,), np.int32)}
    out = jax.jit(lambda x: jax.pure_callback(lambda a: {"a": a.max(), "b": np.arange(2)}, several, x))(x)
    assert float(out["a"]) == v.max()
    same(out["b"], [0, 1])
    with pytest.raises(ValueError, match="returned shape"):
        jax.jit(lambda x: jax.pure_callback(lambda a: a[:1], jax.ShapeDtypeStruct(x.shape, x.dtype), x))(x)


@pytest.mark.mpi
@under(line)
def test_callbacks_run_though_nobody_uses_them() -> None:
    x = placed(values(2 * ranks()), line(), "x")
    seen = []
    f = jax.jit(lambda x: (jax.debug.callback(lambda s: seen.append(float(s)), x.sum()), jnp.sin(x))[1])
    f(x)
    f(x)
    assert seen == ([values(2 * ranks()).sum()] * 2 if comm.rank() == 0 else [])


@pytest.mark.mpi
def test_plans_in_words() -> None:
    x = placed(values(4 * ranks(), 2 * ranks()), line(), "x")
    text = jax.debug.redistribution_plan(x, jax.NamedSharding(line(), P(None, "x")))
    assert isinstance(text, str)
    assert len(text.splitlines()) >= 1


def test_a_callback_may_use_its_array_again():
    buffer = np.zeros(3, np.float32)

    def count(x):
        buffer[...] += 1
        return buffer

    f = jax.jit(lambda x: jax.pure_callback(count, jax.ShapeDtypeStruct((3,), np.float32), x))
    first = f(jnp.zeros(3))
    f(jnp.zeros(3))
    np.testing.assert_array_equal(np.asarray(first), np.ones(3))
