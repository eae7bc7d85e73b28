"""What `fuse` asks about rows: the last dims of a group, over which a reduction is done when a tile of whole rows is.

A reduction of an array of `shape` over its last k dims has the shape R = shape[:-k]; with dims of size 1 put back (what
numpy calls keepdims) it is (*R, 1, ...).  Values of these two shapes are computed for the rows of a tile.
"""

from __future__ import annotations

import math

from mpiarray.core.jaxpr import Eqn
from mpiarray.ops.linear import broadcast_in_dim, reshape, squeeze
from mpiarray.ops.tiles import CACHE_BYTES, COMBINE
from mpiarray.types import dtypes

Shape = tuple[int, ...]

_LARGEST = CACHE_BYTES // 4  # bytes of a row: a tile has at least one, and several arrays


def row_dims(eqn: Eqn) -> int:
    """Over how many dims an equation reduces, if these are the last ones and such a row fits into the cache; else 0."""
    if eqn.op.name not in COMBINE:
        return 0
    aval, k = eqn.invars[0].aval, len(eqn.params["axes"])
    if not 0 < k < aval.ndim or min(eqn.params["axes"]) != aval.ndim - k:
        return 0
    row = math.prod(aval.shape[aval.ndim - k :])
    return k if 1 < row < aval.size and row * dtypes.storage(aval.dtype).itemsize <= _LARGEST else 0


def _kept(shape: Shape, k: int) -> Shape:
    return (*shape[: len(shape) - k], *(1,) * k)


def stays(eqn: Eqn, shape: Shape, k: int) -> bool:
    """Whether an equation makes values of rows of others: elementwise, or only putting dims of size 1 back or away."""
    without, kept = shape[: len(shape) - k], _kept(shape, k)
    if any(dtypes.is_key(a.aval.dtype) for a in (*eqn.invars, *eqn.outvars)):
        return False
    out, first = eqn.outvars[0].aval.shape, eqn.invars[0].aval.shape
    if eqn.op.elementwise:
        return out in (without, kept)
    if eqn.op in (reshape, squeeze):
        return out in (without, kept) and first in (without, kept)
    if eqn.op is broadcast_in_dim:
        return out == kept and _leads(eqn, first, shape, k)
    return eqn.op.name in COMBINE and first == kept and out == without and min(eqn.params["axes"]) == len(without)


def spreads(view: Eqn, shape: Shape, k: int) -> bool:
    """Whether a broadcast repeats values of rows along the rows."""
    return view.outvars[0].aval.shape == shape and _leads(view, view.invars[0].aval.shape, shape, k)


def meets(operand: Shape, shape: Shape, k: int) -> bool:
    """Whether an operand of that shape is a value of rows that numpy broadcasts along them."""
    return operand == _kept(shape, k)


def _leads(view: Eqn, operand: Shape, shape: Shape, k: int) -> bool:
    """Whether the dims of a broadcast's operand are the first ones of the result, and those after them 1."""
    dims = view.params["broadcast_dimensions"]
    return operand in (shape[: len(shape) - k], _kept(shape, k)) and tuple(dims) == tuple(range(len(operand)))
