"""`unwrap`: phases without jumps."""

from __future__ import annotations

import math
from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.numpy.arithmetic import absolute, add, divide, divmod, remainder, subtract
from mpiarray.numpy.choices import where_op
from mpiarray.numpy.comparison import bitwise_and, equal, greater, less
from mpiarray.numpy.cumulative import cumsum, diff
from mpiarray.numpy.editing import cut
from mpiarray.numpy.manipulation import astype, canonical_axis, concatenate, one
from mpiarray.numpy.promotion import promote_dtypes
from mpiarray.types import dtypes

__all__ = ["unwrap"]


def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * math.pi) -> Any:
    """`p` with multiples of `period` added so that neighbours along `axis` differ by at most half of it.

    Only jumps larger than `discont` (default and least: half the period) are changed.  The axis must be unsharded
    (ShardingTypeError).  Raises ValueError for complex numbers.
    """
    x = one("unwrap", p)
    if dtypes.is_complex(aval_of(x).dtype):
        raise ValueError(f"jnp.unwrap does not support complex inputs, got {aval_of(x).str_short()}.")
    axis = canonical_axis(axis, aval_of(x).ndim, "unwrap")
    x, turn = promote_dtypes(x, period)
    n = aval_of(x).shape[axis]
    if n < 2:
        return x
    if dtypes.is_int(aval_of(x).dtype):
        high, rest = divmod(turn, 2)
        ambiguous = equal(rest, 0)
    else:
        high, ambiguous = divide(turn, 2), True
    low = subtract(0, high)
    steps = diff(x, axis=axis)
    inside = add(remainder(subtract(steps, low), turn), low)
    at_edge = bitwise_and(bitwise_and(equal(inside, low), greater(steps, 0)), ambiguous)
    inside = where_op(at_edge, high, inside)
    change = where_op(less(absolute(steps), high if discont is None else discont), 0, subtract(inside, steps))
    moved = add(cut(x, axis, 1, n), cumsum(change, axis=axis))
    return concatenate([cut(x, axis, 0, 1), astype(moved, aval_of(x).dtype)], axis=axis)
