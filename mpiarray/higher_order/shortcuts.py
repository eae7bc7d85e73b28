"""Collectives in an eager body of `shard_map`, found by one look-up.

What `lax.psum(x, 'x')` comes to, once names, types and parameters are checked, depends on the type of `x` and on the
parameters alone: a few prepared functions of the block, one after another.  The first such call is watched while it
takes the long way; later ones with a block of the same type run what was seen.  Calls that come to anything else (trees,
operations of several operands, axes of `vmap`, other traces) always take the long way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mpiarray.compiler.executable import own_block
from mpiarray.config import config
from mpiarray.core.trace import state
from mpiarray.core.value import Literal
from mpiarray.higher_order.manual_trace import Call, ManualTracer

F = TypeVar("F", bound=Callable[..., Any])

_LIMIT = 4096  # remembered calls per mesh


def remembered(f: F) -> F:
    """A collective `f(x, axis_name, ...)` that takes the short way where it was called so before."""

    @functools.wraps(f)
    def call(x: Any, axis_name: Any, *args: Any, **named: Any) -> Any:
        if type(x) is not ManualTracer:
            return f(x, axis_name, *args, **named)
        trace = x.owner
        if state.trace is not trace or state.mapped or state.abstract_mesh is not trace.mesh:
            return f(x, axis_name, *args, **named)
        if args and type(args[0]) is list:  # the pairs of ppermute
            args = (tuple(args[0]), *args[1:])
        key = (f, x.aval, x.spec, axis_name, args, tuple(named.items()) if named else (), config.jax_enable_x64)
        try:
            found = trace.memory.shortcuts.get(key)
        except TypeError:  # a parameter that does not hash: a list of lists, say
            return f(x, axis_name, *args, **named)
        if found is not None:
            run, aval, spec = found
            return ManualTracer(trace, aval, run(x.block), spec)
        with trace.recording() as calls:
            out = f(x, axis_name, *args, **named)
        if (steps := _chain(x, out, calls)) is not None:
            shortcuts = trace.memory.shortcuts
            if len(shortcuts) >= _LIMIT:
                shortcuts.clear()
            shortcuts[key] = _composed(steps), out.aval, out.spec
        return out

    return call  # type: ignore[return-value]


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


def _composed(steps: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    if len(steps) == 1:
        return steps[0]
    return lambda b: functools.reduce(lambda value, step: step(value), steps, b)
