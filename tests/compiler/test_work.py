"""What compiling costs: nothing in the pipeline is worse than linear in the equations of a program.

Work is counted, not timed: the bytecodes that Python runs. Four times the equations may take little more than four times
the work, pass by pass; dicts grow and caches fill, hence the "little".
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.comm import Group
from mpiarray.compiler import pipeline
from mpiarray.compiler.cost import program_cost, program_memory
from mpiarray.compiler.executable import Executable
from mpiarray.compiler.pipeline import explain
from mpiarray.compiler.program import Program
from mpiarray.compiler.text import program_text
from mpiarray.core import device
from mpiarray.core.trace import abstract_mesh
from mpiarray.higher_order.layouts import auto_result_orders, input_orders
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.sharding import NamedSharding

NUMBERS = itertools.count(1.0)  # for bodies that no cache has seen
SMALL, TIMES = 40, 4
SLACK = 1.25  # work may grow by so much more than programs do

Function = Callable[[Any], list[Any]]


def bytecodes(f: Callable[[], Any]) -> tuple[Any, int]:
    """A function's result and how many bytecodes it ran."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        out = f()
    finally:
        sys.settrace(before)
    return out, count


def chain(n: int) -> Function:
    def f(x):
        for _ in range(n):
            x = jnp.sin(x) * 2
        return [x]

    return f


def wide(n: int) -> Function:
    return lambda x: [jnp.cos(x + float(i)) for i in range(n)]


def tree(n: int) -> Function:
    def f(x):
        xs = [jnp.sin(x * float(i)) for i in range(n)]
        while len(xs) > 1:
            xs = [a + b for a, b in zip(xs[::2], xs[1::2])] + xs[len(xs) // 2 * 2 :]
        return xs

    return f


def sums(n: int) -> Function:
    """Independent sums over the mesh, which travel together."""
    return lambda x: [jnp.exp((x * float(i)).sum(0)) for i in range(n)]


def sums_in_a_row(n: int) -> Function:
    def f(x):
        for _ in range(n):
            x = x + x.sum(0)[None]
        return [x]

    return f


def calls(n: int) -> Function:
    inner = jax.jit(lambda x: jnp.sin(x) * 2 + 1)

    def f(x):
        for _ in range(n):
            x = inner(x)
        return [x]

    return f


def calls_within_calls(n: int) -> Function:
    def deeper(inner):
        return jax.jit(lambda x: inner(jnp.sin(x) * 2))

    def f(x):
        made = lambda x: x
        for _ in range(n // 4):
            made = deeper(made)
        return [made(x)]

    return f


def loops(n: int) -> Function:
    def f(x):
        for k in itertools.islice(NUMBERS, n // 4):
            x, _ = lax.scan(lambda c, _, k=k: (jnp.sin(c) * k, None), x, None, length=3)
        return [x]

    return f


def slopes(n: int) -> Function:
    """Reverse mode through a chain and through many readers of one value."""

    def loss(x):
        y = x
        for _ in range(n // 4):
            y = jnp.sin(y) * 2
        return (y + sum(jnp.cos(x * float(i)) for i in range(n // 4))).sum()

    return lambda x: [jax.grad(loss)(x)]


def mapped(n: int) -> Function:
    return lambda x: [jax.vmap(lambda row: chain(n // 2)(row)[0])(x)]


def conflicts(n: int) -> Function:
    """Every other value lies elsewhere, so that each equation has something to choose."""

    def f(x):
        for _ in range(n):
            x = x + lax.with_sharding_constraint(jnp.sin(x), P("y", "x"))
        return [x]

    return f


PROGRAMS = {
    f.__name__: f
    for f in (chain, wide, tree, sums, sums_in_a_row, calls, calls_within_calls, loops, slopes, mapped, conflicts)
}


def work(f: Function, kind: Any) -> dict[str, int]:
    """The bytecodes of everything that happens to a program before it runs."""
    mesh = AbstractMesh((2, 4), ("x", "y"), (kind,) * 2)
    spec = P("x", "y") if kind is AxisType.Explicit else P(None, None)
    aval = ShapedArray((16, 8), np.dtype("float32"), False, NamedSharding(mesh, spec))
    found: dict[str, int] = {}
    with abstract_mesh(mesh):
        jaxpr, count = bytecodes(lambda: trace_to_jaxpr(f, [aval]))
        outs = len(jaxpr.jaxpr.outvars)
        program = Program("program", pipeline.closed(jaxpr), (P("x", "y"),), (None,) * outs, mesh, 8)
        found["trace"] = count
        for step in pipeline.PASSES:
            program, count = bytecodes(lambda step=step, program=program: step(program))
            found[step.__name__] = count
        ids = tuple(range(8))
        readers = {
            "executable": lambda: Executable(program.local, ids, 0),
            "cost": lambda: program_cost(program),
            "memory": lambda: program_memory(program),
            "text": lambda: program_text(program),
            "explain": lambda: explain(program),
            "jaxpr text": lambda: str(jaxpr),
            "input orders": lambda: input_orders(program.jaxpr, [0]),
            "result orders": lambda: auto_result_orders(program.jaxpr, range(outs)),
        }
        for name, read in readers.items():
            found[name] = bytecodes(read)[1]
    return found


@pytest.fixture(autouse=True)
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executables are built for a mesh that this process is alone on."""
    alone = Group(None, 0, (0,))
    monkeypatch.setattr(device.DeviceContext, "group", lambda self, axes, groups=None: alone)
    monkeypatch.setattr(device.DeviceContext, "all_devices", lambda self: alone)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_work_grows_with_the_program(name: str, kind: Any):
    if name == "conflicts" and kind is AxisType.Explicit:
        pytest.skip("on Explicit axes they are errors")
    make = PROGRAMS[name]
    work(make(SMALL), kind)  # imports, and caches of types
    small, large = work(make(SMALL), kind), work(make(TIMES * SMALL), kind)
    if name == "calls_within_calls":
        del large["jaxpr text"]  # indented by depth
    for step, count in large.items():
        before = small[step]
        assert count <= SLACK * TIMES * before + 2000, (
            f"{step}: {before} bytecodes, {count} for {TIMES} times the program"
        )
