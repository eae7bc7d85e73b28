"""`masked`: x where a mask is True, else 0, as one product of integers.

The slopes of `relu`, of maxima and of dropout are `where(mask, slope, 0)`.  Choosing between two arrays takes an array of bits and
three passes; with zeros the elements' bits times the mask, as 0 or 1, are the result, exactly for NaN, infinities and signs
too.  numpy widens the mask piece by piece, so that nothing is made beside the result.  Apart from `select`, whose operation
this stands for in compiled programs (`passes/zeros`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.op import Out, Undefined, define
from mpiarray.core.plan import Plan, replicated
from mpiarray.ops.select import choose
from mpiarray.types import dtypes

_BITS: dict[int, Any] = {1: np.dtype(np.int8), 2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}
_NEVER = Undefined("it only stands in compiled programs, after derivatives are taken")


def is_maskable(dtype: Any) -> bool:
    """Whether the elements of a dtype are as wide as some integer."""
    return not dtypes.is_key(dtype) and dtypes.storage(dtype).itemsize in _BITS


def _masked(mask: Any, x: Any, out: np.ndarray | None = None) -> Any:
    if mask.size != x.size:  # broadcast: parts are copied
        return choose(mask, np.zeros((), x.dtype), x, out)
    bits = _BITS[x.dtype.itemsize]
    if out is None:
        return np.asarray(np.multiply(x.view(bits), mask)).view(x.dtype)
    np.multiply(x.view(bits), mask, out=out.view(bits))
    return out


_masked.into = _masked  # type: ignore[attr-defined]

masked = define(
    "masked",
    type_rule=lambda mask, x: Out(x.shape, x.dtype, x.weak_type),
    plan=lambda avals: Plan((replicated(avals[0].ndim), replicated(avals[1].ndim)), (replicated(avals[1].ndim),)),
    impl=_masked,
    jvp=_NEVER,
    transpose=_NEVER,
    batch=_NEVER,
    hlo_name="select",
    elementwise=True,
    code=lambda b, mask, x: b.select(mask, b.constant(0, x.dtype), x),
)
