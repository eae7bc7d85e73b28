"""What meets a large array one after the other, and is smaller than it, meets first.

    c * (2 * x)        ->  (2 * c) * x          c repeats a smaller array, or is a number; powers of two
    (x + a) + b        ->  x + (a + b)          sums of cotangents (`add_any`); a and b repeat smaller arrays of one shape
    -x / n, 2 * (x / n)  ->  x / -n, x / (n / 2)  numbers, which meet each other

The slope of a square, and so that of a variance, is 2 * x times what comes from outside, one number for each row or for all: a
pass over the array that the first rule leaves out.  Powers of two round nothing, so that results are the same, unless they leave
the range of the type on the way.  Sums of cotangents have no order that anybody wrote.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, uses_of
from mpiarray.core.value import Literal, literal
from mpiarray.ops.arithmetic import div, mul, neg
from mpiarray.ops.linear import add_any, broadcast_in_dim
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_PAIRED = (mul, add_any)
_WIDE = tuple(map(np.dtype, (np.float32, np.float64, dtypes.bfloat16)))
_ALL = (mul, add_any, div)


def narrow(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such operations on the smaller arrays, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, narrow)
    if sum(e.op in _ALL or e.op is neg for e in jaxpr.eqns) < 2:
        return jaxpr
    uses = uses_of(jaxpr)
    makers: dict[Any, Eqn] = {}
    out: list[Eqn] = []
    for eqn in jaxpr.eqns:
        made = _together(eqn, makers, uses) if eqn.op in _PAIRED else [eqn]
        made = [_divided(e, makers, uses) or e for e in made]
        out += made
        makers.update((v, e) for e in made for v in e.outvars)
    return jaxpr if out == list(jaxpr.eqns) else dead_code(jaxpr.replace(eqns=out))


class _Small(NamedTuple):
    """An operand that is smaller than the result it goes into: what it repeats, and the equation that does so (None: numpy)."""

    source: Atom
    view: Eqn | None

    def goes_with(self, other: _Small) -> bool:
        """Whether both repeat arrays of one shape alike."""
        a, b = (s.view and (s.view.params["broadcast_dimensions"], s.view.outvars[0].aval.shape) for s in (self, other))
        return a == b and self.source.aval.shape == other.source.aval.shape

    def repeated(self, source: Var) -> tuple[Var, list[Eqn]]:
        """Another array of the same shape in this one's place."""
        if self.view is None:
            return source, []
        aval = self.view.outvars[0].aval
        out = Var(ShapedArray(aval.shape, source.aval.dtype, source.aval.weak_type))
        return out, [self.view.replace(invars=(source,), outvars=(out,))]


def _small(v: Atom, result: ShapedArray, makers: dict[Any, Eqn]) -> _Small | None:
    """An operand as such; None if it has the result's size.  Ones of one number are not: they cost nothing."""
    view = makers.get(v)
    if view is not None and view.op is broadcast_in_dim:
        source = view.invars[0]
        smaller = not isinstance(source, Literal) and 1 < source.aval.size < result.size
        return _Small(source, view) if smaller else None
    return _Small(v, None) if v.aval.size < result.size else None


def _together(eqn: Eqn, makers: dict[Any, Eqn], uses: Any) -> list[Eqn]:
    """The equations to stand in an equation's place."""
    result = eqn.outvars[0].aval
    for k in (0, 1) if len(eqn.invars) == 2 and result.ndim else ():
        wide, other = eqn.invars[1 - k], eqn.invars[k]
        inner = None if isinstance(wide, Literal) else makers.get(wide)
        if inner is None or inner.op is not eqn.op or uses[wide] != 1 or inner.outvars[0].aval.shape != result.shape:
            continue
        small = _small(other, result, makers)
        if (
            small is None
            or len(inner.invars) != 2
            or any(a.aval.dtype != result.dtype for a in (*eqn.invars, *inner.invars))
        ):
            continue
        found = (_scaled if eqn.op is mul else _summed)(eqn, inner, small, makers)
        if found is not None:
            return found
    return [eqn]


def _scaled(eqn: Eqn, inner: Eqn, small: _Small, makers: dict[Any, Eqn]) -> list[Eqn] | None:
    """small * (2 * x)"""
    k = next((k for k, v in enumerate(inner.invars) if _is_power(v)), None)
    if k is None or inner.invars[1 - k].aval.shape != eqn.outvars[0].aval.shape:
        return None
    power: Any = inner.invars[k]
    if isinstance(small.source, Literal):
        value = np.multiply(small.source.val, power.val)
        if not np.isfinite(value) or np.divide(value, power.val) != small.source.val:
            return None
        number = literal(value, small.source.aval.dtype, small.source.aval.weak_type)
        return [eqn.replace(invars=(number, inner.invars[1 - k]))]
    scaled = Var(small.source.aval)
    times = eqn.replace(invars=(power, small.source), outvars=(scaled,))
    factor, views = small.repeated(scaled)
    return [times, *views, eqn.replace(invars=(factor, inner.invars[1 - k]))]


def _is_power(v: Atom) -> bool:
    """Whether an operand is a power of two, so near to 1 that products with it do not leave the range for it: of types with a wide one,
    which float16 has not (losses are scaled by 65536 there)."""
    if not isinstance(v, Literal) or v.aval.ndim or v.aval.dtype not in _WIDE:
        return False
    fraction, exponent = math.frexp(abs(float(v.val)))
    return fraction == 0.5 and abs(exponent) <= 4


def _divided(eqn: Eqn, makers: dict[Any, Eqn], uses: Any) -> Eqn | None:
    """A quotient by a number, of what has another sign, or times a power of two, as one quotient; None for anything else."""
    if eqn.op not in (mul, div):
        return None
    first, second = eqn.invars if eqn.op is div else sorted(eqn.invars, key=lambda v: isinstance(v, Literal))
    inner = None if isinstance(first, Literal) else makers.get(first)
    dtype = eqn.outvars[0].aval.dtype
    if inner is None or uses[first] != 1 or not _is_number(second) or dtype not in (np.float32, np.float64):
        return None
    number: Any = second
    if eqn.op is div and inner.op is neg:
        divisor = literal(-number.val, number.aval.dtype, number.aval.weak_type)
    elif eqn.op is mul and inner.op is div and _is_number(inner.invars[1]) and _is_power(number):
        by: Any = inner.invars[1]
        quotient = np.divide(by.val, number.val)
        if not np.isfinite(quotient) or quotient * number.val != by.val:
            return None
        divisor = literal(quotient, by.aval.dtype, by.aval.weak_type)
    else:
        return None
    if inner.invars[0].aval.dtype != dtype or divisor.aval.dtype != dtype:
        return None
    return eqn.replace(
        op=div, invars=(inner.invars[0], divisor), params=inner.params if inner.op is div else eqn.params
    )


def _is_number(v: Atom) -> bool:
    """Whether an operand is a number of ordinary size, whose half and double are exact."""
    return isinstance(v, Literal) and not v.aval.ndim and v.aval.dtype.kind == "f" and 1e-30 < abs(float(v.val)) < 1e30


def _summed(eqn: Eqn, inner: Eqn, small: _Small, makers: dict[Any, Eqn]) -> list[Eqn] | None:
    """(x + a) + small"""
    if isinstance(small.source, Literal) or not small.source.aval.ndim:
        return None
    for k in (0, 1):
        x, a = inner.invars[1 - k], inner.invars[k]
        term = _small(a, eqn.outvars[0].aval, makers)
        if term is None or not small.goes_with(term) or x.aval.shape != eqn.outvars[0].aval.shape:
            continue
        total = Var(small.source.aval)
        both = eqn.replace(invars=(term.source, small.source), outvars=(total,))
        added, views = small.repeated(total)
        return [both, *views, eqn.replace(invars=(x, added))]
    return None
