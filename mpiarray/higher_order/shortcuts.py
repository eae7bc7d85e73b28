"""Collectives in an eager body of `shard_map`, found by one look-up.

What `lax.psum(x, 'x')` comes to, once names, types and parameters are checked, depends on the type of `x` and on the
parameters alone: a few prepared functions of the block, one after another.  The first such call is watched while it
takes the long way; later ones with a block of the same type run what was seen.  Calls that come to anything else (trees,
operations of several operands, axes of `vmap`, other traces) always take the long way.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from mpiarray.comm import prepared, stats
from mpiarray.compiler.executable import own_block
from mpiarray.config import config
from mpiarray.core.source import compiled
from mpiarray.core.trace import state
from mpiarray.core.value import Literal
from mpiarray.higher_order.manual_trace import Call, ManualTrace, ManualTracer

F = TypeVar("F", bound=Callable[..., Any])

_LIMIT = 4096  # remembered calls per mesh

# With the parameters of the collective: after a long message little of this is in the processor's caches, so that it
# touches few objects.  What is remembered holds for the settings under which it was seen.
_CALL = """
def call(x, axis_name, {signature}):
    if type(x) is ManualTracer:
        trace = x.owner
        if state.trace is trace and not state.mapped and state.abstract_mesh is trace.mesh:
            memory = trace.memory
            key = f, x.aval, x.spec, axis_name, {key}
            if memory.generation == config.generation:
                try:
                    found = memory.shortcuts.get(key)
                except TypeError:  # a parameter that does not hash: a list of lists, say
                    return f(x, axis_name, {passed})
                if found is not None:
                    out = new(ManualTracer)
                    run, out.aval, out.spec = found
                    out.owner, out.block = trace, run(x.block)
                    return out
            return learn(f, key, trace, x, axis_name, {passed})
    return f(x, axis_name, {passed})
"""


def remembered(f: F) -> F:
    """A collective `f(x, axis_name, ...)` that takes the short way where it was called so before."""
    rest = list(inspect.signature(f).parameters.values())[2:]
    keyword = [p for p in rest if p.kind is p.KEYWORD_ONLY]
    positional = [p for p in rest if p.kind is not p.KEYWORD_ONLY]
    default = lambda p: p.name if p.default is p.empty else f"{p.name}={p.default!r}"
    signature = [*map(default, positional), "*", *map(default, keyword)] if keyword else list(map(default, positional))
    hashed = lambda p: f"tuple({p.name}) if type({p.name}) is list else {p.name}" if p.name == "perm" else p.name
    text = _CALL.format(
        signature=", ".join(signature),
        key=", ".join(map(hashed, rest)),
        passed=", ".join([p.name for p in positional] + [f"{p.name}={p.name}" for p in keyword]),
    )
    names: dict[str, Any] = {
        "f": f, "ManualTracer": ManualTracer, "state": state, "config": config, "new": object.__new__, "learn": _learn,
    }  # fmt: skip
    exec(compiled(text, "shortcut"), names)
    return functools.wraps(f)(names["call"])  # type: ignore[return-value]


def _learn(f: Callable[..., Any], key: Any, trace: ManualTrace, x: ManualTracer, *args: Any, **named: Any) -> Any:
    """The long way, watched."""
    memory, generation = trace.memory, config.generation
    with trace.recording() as calls:
        out = f(x, *args, **named)
    if (steps := _chain(x, out, calls)) is None:
        return out
    shortcuts = memory.shortcuts
    if memory.generation != generation or len(shortcuts) >= _LIMIT:
        shortcuts.clear()
        memory.generation = generation
    with contextlib.suppress(TypeError):  # a parameter does not hash
        shortcuts[key] = _composed(steps, x), out.aval, out.spec
    return out


def _chain(x: ManualTracer, out: Any, calls: list[Call]) -> list[Callable[[Any], Any]] | None:
    """The functions that made `out` of `x`, each of the result of the one before and of constants; None if it is no such chain."""
    steps: list[Callable[[Any], Any]] = []
    last: Any = x
    for run, values, result, collective in calls:
        places = [k for k, v in enumerate(values) if v is last]
        if len(places) != 1 or not all(v is last or type(v) is Literal for v in values):
            return None
        step = run if len(values) == 1 else _with_constants(run, values, places[0])
        steps.append(step if collective else _owned(step))  # a collective's block is new and in C order
        last = result
    return steps if steps and last is out else None


def _with_constants(run: Callable[..., Any], values: list[Any], place: int) -> Callable[[Any], Any]:
    blocks = [v.val if type(v) is Literal else None for v in values]
    before, after = blocks[:place], blocks[place + 1 :]
    return lambda b: run(*before, b, *after)


def _owned(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda b: own_block(step(b))


def _composed(steps: list[Callable[[Any], Any]], x: ManualTracer) -> Callable[[Any], Any]:
    if len(steps) == 1:
        return _for_type(steps[0], x)
    return lambda b: functools.reduce(lambda value, step: step(value), steps, b)


def _for_type(run: Callable[[Any], Any], x: ManualTracer) -> Callable[[Any], Any]:
    """A prepared collective for blocks like that of `x` alone, where the type says all about them."""
    aval, block = x.aval, x.block
    if not aval.ndim or type(block) is not np.ndarray or x.owner.sub is not None:
        return run
    if block.shape != aval.shape or block.dtype is not aval.dtype:
        return run
    step = prepared.for_type(run, block.shape, block.dtype, recycled=True)
    if step is None:
        return run

    def call(b: Any) -> Any:
        return step(b) if b.flags.c_contiguous and not stats.active else run(b)

    return call
