"""numpy's settings while blocks are computed: no floating point warnings, and small buffers.

Infinities and NaNs are values here.  And where an operand is broadcast, or the elements of a part are not all side by side,
numpy copies operands into buffers of 8192 elements, which takes longer than the operation, unless rows are longer than a
buffer.  With buffers of `_BUFFER` elements an array meets a column, a row or an inner part of another in half the time
(measured: rows from 512 elements on; shorter ones, and casts, take as long as before).

`np.errstate` builds its state at each entry, which costs more than a small op.  numpy keeps that state in a context variable; where
this numpy lets us have it, the state is built once and set and reset around each call.  Else `np.errstate` does the same, slower.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Run = Callable[..., Any]

_BUFFER = 512  # elements; numpy's own is 8192


class State(NamedTuple):
    """`token = set(ignore)` turns warnings off, `reset(token)` puts back what was there."""

    set: Callable[[Any], Any]
    reset: Callable[[Any], Any]
    ignore: Any


def _numpys_state() -> State | None:
    """None where this numpy has no such things."""
    try:
        umath = importlib.import_module("numpy._core.umath")
        variable = umath._extobj_contextvar
        with np.errstate(all="ignore"):
            np.setbufsize(_BUFFER)
            return State(variable.set, variable.reset, variable.get())
    except (ImportError, AttributeError, LookupError):
        return None


STATE = _numpys_state()


def with_errstate(run: Run) -> Run:
    """`run` without warnings, by numpy's public means."""

    def quiet(*blocks: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(*blocks)

    return quiet


def _with_variable(run: Run) -> Run:
    assert STATE is not None, "numpy's state was found"
    set_state, reset, ignore = STATE

    def quiet(*blocks: Any) -> Any:
        token = set_state(ignore)
        try:
            return run(*blocks)
        finally:
            reset(token)

    return quiet


quietly: Callable[[Run], Run] = with_errstate if STATE is None else _with_variable
