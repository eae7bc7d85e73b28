"""numpy's floating point warnings, off while blocks are computed: infinities and NaNs are values here.

`np.errstate` builds its state at each entry, which costs more than a small op.  numpy keeps that state in a context variable; where
this numpy lets us have it, the state is built once and set and reset around each call.  Else `np.errstate` does the same, slower.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[..., Any]


def _numpys_state() -> tuple[Any, Any] | None:
    """(context variable, the state that ignores everything), None where this numpy has no such things."""
    try:
        umath = importlib.import_module("numpy._core.umath")
        variable = umath._extobj_contextvar
        with np.errstate(all="ignore"):
            return variable, variable.get()
    except (ImportError, AttributeError, LookupError):
        return None


_STATE = _numpys_state()


def _with_errstate(run: Run) -> Run:
    def quiet(*blocks: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(*blocks)

    return quiet


def _with_variable(run: Run) -> Run:
    assert _STATE is not None, "numpy's state was found"
    variable, ignore = _STATE
    set_state, reset = variable.set, variable.reset

    def quiet(*blocks: Any) -> Any:
        token = set_state(ignore)
        try:
            return run(*blocks)
        finally:
            reset(token)

    return quiet


quietly: Callable[[Run], Run] = _with_errstate if _STATE is None else _with_variable
