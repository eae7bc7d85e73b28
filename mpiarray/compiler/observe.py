"""Programs that tell a trace when each of their steps ran.

A program is prepared once, with or without this: while a trace is recorded, `step` and `program` wrap what they are
given, and at other times they give it back.  So a program that is not traced has no trace of this in it.  The stores of
prepared programs (of eager ops, of jitted functions, of bodies) say with `keep` where they are: a trace starts with empty
ones, and when it ends, the programs prepared before are back in their places.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from mpiarray.comm import timeline
from mpiarray.comm.timeline import Event
from mpiarray.compiler.cost import step_cost
from mpiarray.core.jaxpr import Eqn, subjaxprs

Run = Callable[..., Any]

observing = False
"""Whether what is prepared now will tell a trace; read when programs are prepared, never when they run."""

_keepers: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()
_aside: weakref.WeakKeyDictionary[Any, list[dict[Any, Any]]] = weakref.WeakKeyDictionary()


def keep(owner: Any, *names: str) -> None:
    """Attributes of `owner` are dicts of prepared programs."""
    _keepers[owner] = names


def switch(on: bool) -> None:
    """From now on programs are prepared with wrapped steps, or as usual again; the other kind is put aside or away."""
    global observing
    observing = on
    for owner, names in list(_keepers.items()):
        found = _aside.pop(owner, None)
        if on:
            _aside[owner] = [getattr(owner, name) for name in names]
        for k, name in enumerate(names):
            setattr(owner, name, {} if on or found is None else found[k])


def step(run: Run, eqn: Eqn) -> Run:
    """The function of blocks that an equation is; while a trace is recorded, one that tells when it ran."""
    if not observing:
        return run
    return _timed(run, eqn.op.name, "step", facts_of(eqn))


def program(run: Run | None, name: str) -> Run | None:
    """The function of blocks that a jitted function is on this rank (None: nothing); its steps happen within it."""
    return _timed(run, name, "program", {}) if observing and run is not None else run


def _timed(run: Run, name: str, category: str, facts: dict[str, Any]) -> Run:
    now = timeline.now

    def timed(*blocks: Any) -> Any:
        recording = timeline.active
        if recording is None:
            return run(*blocks)
        start = now()
        result = run(*blocks)
        recording.add(Event(start, now(), name, category, 0, facts))
        return result

    return timed


def facts_of(eqn: Eqn) -> dict[str, Any]:
    """What a trace tells of every run of a step: types, flops, bytes read and written, bytes sent, the user's line."""
    cost = step_cost(eqn)
    facts: dict[str, Any] = {
        "types": f"{', '.join(v.aval.short() for v in eqn.invars)} -> {', '.join(v.aval.short() for v in eqn.outvars)}",
        "flops": int(cost.flops),
        "bytes": int(cost.bytes_accessed),
    }
    if cost.communication_messages:
        facts["bytes received"] = int(cost.communication_bytes)
    inner = [e.op.name for body in subjaxprs(eqn.params) for e in body.eqns]
    if inner:
        facts["of"] = " ".join(inner[:40])
    if eqn.source:
        facts["source"] = eqn.source
    return facts
