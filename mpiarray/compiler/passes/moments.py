"""Variances in one pass: where a block is summed, and then its squared distances from a number that the sum gives.

All elements may be summed, or those of each column (a batch norm).  The mean of all ranks' blocks is not known before all are summed, so that a variance as it is written reads each block twice.
Here both sums of a block become one equation, `moments`, and a few operations on numbers (ops.moments says why this is
exact).  Only linear steps may lie between the sum and the number: where the sum is not finite, neither is the number.
"""

from __future__ import annotations

import math
from typing import Any

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, uses_of
from mpiarray.core.value import Literal
from mpiarray.ops import moments as ops
from mpiarray.ops.arithmetic import div, mul, sub
from mpiarray.ops.collectives import psum
from mpiarray.ops.complex_parts import conj_op, real
from mpiarray.ops.linear import broadcast_in_dim, convert_element_type, reduce_sum, reshape
from mpiarray.ops.manual import psum_invariant, unreduced_psum
from mpiarray.ops.tile_steps import squared
from mpiarray.ops.tiles import CACHE_BYTES
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_SMALLEST = CACHE_BYTES // 4  # bytes of a block
_LINEAR = frozenset((broadcast_in_dim, reshape, convert_element_type, div, mul, psum, psum_invariant, unreduced_psum))
_MOST_COLUMNS = 2048  # a tile has many rows then, and what is done once for each tile and column is little
_MOST_STEPS = 16  # from a sum to the number


def moments(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such pairs of sums as `moments`, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, moments)
    sums: dict[Any, Eqn] = {(e.invars[0], e.params["axes"]): e for e in jaxpr.eqns if _is_sum(e)}
    if not sums:
        return jaxpr
    makers: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    uses = uses_of(jaxpr)
    found: dict[Eqn, tuple[Eqn, Any]] = {}  # sums of squares: the sum of the same elements, the number
    for eqn in jaxpr.eqns:
        if eqn.op is reduce_sum and uses[eqn.invars[0]] == 1:
            pair = _deviations(eqn, makers)
            first = sums.get((pair[0], eqn.params["axes"])) if pair is not None else None
            if pair is not None and first is not None and _follows(pair[1], first.outvars[0], makers):
                found[eqn] = first, pair[1]
    return dead_code(jaxpr.replace(eqns=_rewritten(jaxpr, found))) if found else jaxpr


def _is_sum(eqn: Eqn) -> bool:
    """Whether an equation adds all elements, or those of each of not too many columns, of a large block of floats or complex
    numbers."""
    if eqn.op is not reduce_sum or isinstance(eqn.invars[0], Literal):
        return False
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    kind = dtypes.storage(aval.dtype).kind
    if kind not in "fc" or aval.dtype.itemsize < 4 or aval.size * aval.dtype.itemsize < _SMALLEST:
        return False
    if len(axes) == aval.ndim:
        return True
    columns = math.prod(aval.shape[len(axes) :])
    return kind == "f" and sorted(axes) == list(range(len(axes))) and 0 < columns <= _MOST_COLUMNS and len(axes) > 0


def _deviations(eqn: Eqn, makers: dict[Any, Eqn]) -> tuple[Any, Any] | None:
    """(x, c) of a sum of (x - c)^2, or |x - c|^2, over dims of x, with one number c for all elements that are added."""
    apart = makers.get(_root_of(makers.get(eqn.invars[0]), makers))
    if apart is None or apart.op is not sub:
        return None
    x, c = apart.invars
    shape, dims = c.aval.shape, tuple(range(c.aval.ndim))
    view = makers.get(c)
    if view is not None and view.op is broadcast_in_dim:
        c = view.invars[0]
        shape, dims = c.aval.shape, view.params["broadcast_dimensions"]
    if x.aval.shape != apart.outvars[0].aval.shape or isinstance(x, Literal):
        return None
    columns = {d: n for d, n in enumerate(x.aval.shape) if d not in eqn.params["axes"] and n != 1}
    return (x, c) if {d: n for d, n in zip(dims, shape) if n != 1} == columns else None


def _root_of(eqn: Eqn | None, makers: dict[Any, Eqn]) -> Any:
    """d of an equation that is d^2 of real numbers, or the real part of d times its conjugate."""
    if eqn is None:
        return None
    if eqn.op is real and eqn.invars[0] in makers:
        product = makers[eqn.invars[0]]
        for d, other in (product.invars, product.invars[::-1]) if product.op is mul else ():
            conjugate = makers.get(other)
            if conjugate is not None and conjugate.op is conj_op and conjugate.invars[0] is d:
                return d
        return None
    return squared(eqn) if dtypes.is_float(eqn.outvars[0].aval.dtype) else None


def _follows(v: Any, total: Any, makers: dict[Any, Eqn]) -> bool:
    """Whether linear steps lead from the sum to a number."""
    waiting = [v]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return False
        v = waiting.pop()
        if v is total:
            return True
        if v.aval.size != total.aval.size:
            continue
        eqn = makers.get(v)
        if eqn is not None and eqn.op in _LINEAR:
            waiting += eqn.invars[: 1 if eqn.op is div else 2]
    return False


def _rewritten(jaxpr: Jaxpr, found: dict[Eqn, tuple[Eqn, Any]]) -> list[Eqn]:
    firsts = {first: Var(_vector(first)) for first, _ in found.values()}
    out = []
    for eqn in jaxpr.eqns:
        dtype = eqn.outvars[0].aval.dtype if eqn.outvars else None
        if eqn in firsts:
            all_three = firsts[eqn]
            axes = {"axes": eqn.params["axes"]}
            out.append(eqn.replace(op=ops.moments, outvars=(all_three,), params=axes))
            out.append(eqn.replace(op=ops.moments_sum, invars=(all_three,), params={"dtype": dtype}))
        elif eqn in found:
            first, c = found[eqn]
            params = {"count": math.prod(first.invars[0].aval.shape[d] for d in eqn.params["axes"]), "dtype": dtype}
            out.append(eqn.replace(op=ops.squares_about, invars=(firsts[first], c), params=params))
        else:
            out.append(eqn)
    return out


def _vector(first: Eqn) -> ShapedArray:
    dtype = ops.wide(dtypes.storage(first.invars[0].aval.dtype))
    return ShapedArray((3, *first.outvars[0].aval.shape), dtype)
