"""Choosing elements by conditions and by numbers: where, piecewise, choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.trace import Tracer
from mpiarray.core.value import Value, aval_of
from mpiarray.errors import ConcretizationTypeError
from mpiarray.numpy.arithmetic import remainder
from mpiarray.numpy.choices import clip, where_op
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import one
from mpiarray.numpy.nonzeros import nonzero
from mpiarray.numpy.promotion import broadcast_operands, cast, operands, promote_dtypes
from mpiarray.ops.select import select_n
from mpiarray.types import dtypes

__all__ = ["choose", "piecewise", "where"]


def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """`x` where the condition holds, else `y`, element by element; shapes broadcast.

    Arrays of one shape must have one sharding, the condition's included (ShardingTypeError); scalars and operands
    that are broadcast take the joined one.

    With one argument: `nonzero(condition, size=size, fill_value=fill_value)`.
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if size is not None or fill_value is not None:
        raise ValueError("size and fill_value arguments cannot be used in three-term where function.")
    return where_op(condition, x, y)


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """For each element what the function, or constant, of the last condition that holds gives.

    funclist may have one entry more than condlist, for elements of which no condition holds (default: 0).  Every
    function is called on all of `x` and must work elementwise.  The result has the dtype of `x`.
    """
    x = one("piecewise", x)
    several = aval_of(condlist).ndim > aval_of(x).ndim if isinstance(condlist, (Value, np.ndarray)) else True
    conditions = list(condlist) if several and np.iterable(condlist) else [condlist]
    n = len(conditions)
    if len(funclist) not in (n, n + 1):
        raise ValueError(f"with {n} condition(s), either {n} or {n + 1} functions are expected; got {len(funclist)}")
    functions = list(funclist)
    default = functions.pop() if len(functions) == n + 1 else 0
    aval = aval_of(x)

    def value(f: Callable[..., Any] | Any) -> Any:
        return cast(f(x, *args, **kw) if callable(f) else operands("piecewise", f)[0], aval.dtype, aval.weak_type)

    out = where_op(np.zeros((), bool), x, value(default)) if aval.ndim else as_array(value(default))
    for condition, f in zip(conditions, functions):
        out = where_op(condition, value(f), out)
    return out


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    """For each element of the integer array `a` the element at its place of the choice with that number.

    mode: "raise" (ValueError for numbers that have no choice; `a` must be concrete), "wrap" or "clip".
    """
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.choose is not supported.")
    which = one("choose", a)
    if not dtypes.is_int(aval_of(which).dtype):
        raise ValueError(f"`a` array must be integer typed, got {aval_of(which).str_short()}")
    items = list(choices)
    if not items:
        raise ValueError("jnp.choose: needs at least one choice")
    n = len(items)
    if mode == "raise":
        if isinstance(which, Tracer):
            raise ConcretizationTypeError(
                "Abstract tracer value encountered where concrete value is expected: jnp.choose with "
                "mode='raise' must look at the numbers "
                f"in {aval_of(which).str_short()}. Use mode='wrap' or mode='clip'."
            )
        found = np.asarray(which)
        if found.size and not 0 <= found.min() <= found.max() < n:
            raise ValueError(f"invalid entry in choice array: jnp.choose got numbers that are not from 0 to {n - 1}")
    elif mode == "wrap":
        which = remainder(which, n)
    elif mode == "clip":
        which = clip(which, 0, n - 1)
    else:
        raise ValueError(f"mode={mode!r} not understood. Must be 'raise', 'wrap', or 'clip'")
    cases = promote_dtypes(*operands("choose", *items))
    which, *cases = broadcast_operands("choose", cast(which, np.dtype(np.int32)), *cases)
    out = select_n(which, *cases) if n > 1 else cases[0]
    return as_array(cast(out, aval_of(out).dtype))
