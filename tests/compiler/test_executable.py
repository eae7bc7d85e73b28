"""Prepared steps: right values for every form of program, constants folded, blocks dropped after their last use."""

from __future__ import annotations

import sys
import weakref

import numpy as np
import pytest

import mpiarray.runtime.eager  # noqa: F401 - defines all ops
from mpiarray.comm.watch import call_site
from mpiarray.compiler import executable as module
from mpiarray.compiler.executable import Executable
from mpiarray.core.op import OPS, Undefined, define
from mpiarray.core.plan import Plan
from mpiarray.core.value import literal
from mpiarray.errors import InternalError
from mpiarray.ops.common import same_plan
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray

F32 = np.dtype("float32")
X = ShapedArray((3,), F32)
A, B = np.array([1.0, 2.0, 4.0], F32), np.array([8.0, 16.0, 32.0], F32)
add, mul, neg, sub = (OPS[n] for n in ("add", "mul", "neg", "sub"))


def made(f, count: int = 1) -> Executable:
    return Executable(trace_to_jaxpr(f, [X] * count), None, 0)


def two(v: float):
    return literal(v, F32)


PROGRAMS = [
    ("nothing", 1, lambda x: [x], lambda a: [a]),
    ("swapped", 2, lambda x, y: [y, x, y], lambda a, b: [b, a, b]),
    ("literal", 1, lambda x: [two(3), x], lambda a: [np.float32(3), a]),
    ("one step", 2, lambda x, y: [sub(x, y)], lambda a, b: [a - b]),
    ("one step, operands swapped", 2, lambda x, y: [sub(y, x)], lambda a, b: [b - a]),
    ("twice the same", 1, lambda x: [mul(x, x)], lambda a: [a * a]),
    ("literal right", 1, lambda x: [sub(x, two(1))], lambda a: [a - 1]),
    ("literal left", 1, lambda x: [sub(two(1), x)], lambda a: [1 - a]),
    ("an unused argument", 3, lambda x, y, z: [sub(x, z)], lambda a, b, c: [a - c]),
    ("a result and an argument", 2, lambda x, y: [sub(x, y), x], lambda a, b: [a - b, a]),
    ("chain", 2, lambda x, y: [neg(add(mul(x, y), x))], lambda a, b: [-(a * b + a)]),
    ("results that others use", 1, lambda x: (lambda y: [y, add(y, x), y])(neg(x)), lambda a: [-a, -a + a, -a]),
    ("several results", 1, lambda x: OPS["split"](neg(x), sizes=(1, 2), axis=0), lambda a: [-a[:1], -a[1:]]),
    ("only constants", 0, lambda: [add(two(1), two(2))], lambda: [np.float32(3)]),
]


@pytest.mark.parametrize(("count", "f", "want"), [p[1:] for p in PROGRAMS], ids=[p[0] for p in PROGRAMS])
def test_programs(count, f, want):
    executable = made(f, count)
    args = [A, B, A + B][:count]
    for _ in range(2):
        got = executable.run(*args)
        for g, w in zip(got, want(*args), strict=True):
            np.testing.assert_array_equal(g, w)


def counted(name: str, calls: list):
    """An op of one operand that tells when it runs."""

    def impl(x):
        calls.append(name)
        return x + 1

    fields = dict.fromkeys(("jvp", "transpose", "batch"), Undefined("an op of this test only"))
    op = define(name, type_rule=OPS["neg"].type_rule, plan=same_plan, impl=impl, **fields)
    del OPS[name]
    return op


def test_constants_are_computed_once():
    calls: list = []
    op = counted("counted", calls)
    c = np.arange(3, dtype=F32)
    executable = made(lambda x: [add(op(add(c, c)), x), op(x)])
    assert calls == ["counted"]
    for _ in range(3):
        np.testing.assert_array_equal(executable.run(A)[0], 2 * c + 1 + A)
    assert len(calls) == 1 + 3


def test_large_constants_are_made_when_they_are_needed(monkeypatch):
    monkeypatch.setattr(module, "_FOLD_LIMIT", 2)
    calls: list = []
    op = counted("counted", calls)
    c = np.arange(3, dtype=F32)
    executable = made(lambda x: [add(op(c), x)])
    assert not calls
    executable.run(A)
    executable.run(A)
    assert len(calls) == 2


def test_effects_are_not_folded():
    calls: list = []
    fields = dict.fromkeys(("jvp", "transpose", "batch"), Undefined("an op of this test only"))
    op = define(
        "tells", type_rule=lambda: (), plan=lambda avals: Plan((), ()), impl=lambda: calls.append(1) or (), multiple_results=True,
        effects=True, **fields,
    )  # fmt: skip
    del OPS["tells"]
    executable = made(lambda x: [op(), x][1:])
    assert not calls
    executable.run(A)
    executable.run(A)
    assert len(calls) == 2


def test_blocks_are_dropped_after_their_last_use():
    alive: list = []
    fields = dict.fromkeys(("jvp", "transpose", "batch"), Undefined("an op of this test only"))

    def impl(x):
        out = x + 1
        alive.append(sum(r() is not None for r in made_blocks))
        made_blocks.append(weakref.ref(out))
        return out

    op = define("tracked", type_rule=OPS["neg"].type_rule, plan=same_plan, impl=impl, **fields)
    del OPS["tracked"]
    made_blocks: list = []

    def f(x):
        for _ in range(6):
            x = op(x)
        return [x]

    out = made(f).run(A)
    np.testing.assert_array_equal(out[0], A + 6)
    assert max(alive) <= 1, f"live blocks at each step: {alive}"


def test_unused_results_of_several_are_dropped():
    made_blocks: list = []
    fields = dict.fromkeys(("jvp", "transpose", "batch"), Undefined("an op of this test only"))

    def impl(x):
        outs = (x + 1, x + 2)
        made_blocks.extend(weakref.ref(o) for o in outs)
        return outs

    def look(x):
        seen.append([r() is not None for r in made_blocks])
        return x * 2

    seen: list = []
    pair = define(
        "pair",
        type_rule=lambda x: [OPS["neg"].type_rule(x)] * 2,
        plan=same_plan,
        impl=impl,
        multiple_results=True,
        **fields,
    )
    watcher = define("watcher", type_rule=OPS["neg"].type_rule, plan=same_plan, impl=look, **fields)
    del OPS["pair"], OPS["watcher"]
    made(lambda x: [watcher(neg(pair(x)[0]))]).run(A)
    assert seen == [[False, False]]


def test_results_do_not_stay_in_the_program():
    executable = made(lambda x: [neg(mul(x, x))])
    (out,) = executable.run(A)
    gone = weakref.ref(out)
    del out
    assert gone() is None


def test_a_rank_outside_has_no_context():
    from tests.ops.pretended_mesh import mesh_of

    executable = Executable(trace_to_jaxpr(lambda x: [neg(x)], [X]), (1, 2), 0)
    with pytest.raises(InternalError, match="rank 0 is not one of the devices"):
        executable.context(mesh_of(("x", 2)))


def test_frames_of_programs_are_the_packages():
    """Messages about who waits where name the user's line, not that of a generated function."""
    seen: list[str] = []
    fields = dict.fromkeys(("jvp", "transpose", "batch"), Undefined("an op of this test only"))
    op = define(
        "sited", type_rule=OPS["neg"].type_rule, plan=same_plan, impl=lambda x: seen.append(site()) or x, **fields
    )
    del OPS["sited"]

    def site() -> str:
        frame = sys._getframe(2)
        assert frame.f_code.co_name == "program"
        return call_site(frame)

    made(lambda x: [op(x)]).run(A)
    assert seen[0].startswith("test_executable.py:")
