"""Operations on arrays that repeat smaller ones are done on the smaller ones, which are then repeated.

`f(broadcast(a), broadcast(b)) = broadcast(f(a, b))`, exactly, for functions of elements.  Work becomes less where dims are
repeated; where only dims of size 1 are added (`keepdims`) a value is found to be the same with and without them: a mean that the
user takes, and the one that the variance takes for itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.compiler.passes.reshapes import keeps_all
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, substituted
from mpiarray.core.value import Literal
from mpiarray.ops.linear import broadcast_in_dim, reshape, squeeze
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray


class _View(NamedTuple):
    """What a value repeats, and along which of its dims that lies."""

    source: Atom
    dims: tuple[int, ...]


def small(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such operations before the broadcasts of their operands, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, small)
    if not any(e.op is broadcast_in_dim or e.op is reshape for e in jaxpr.eqns):
        return jaxpr
    views: dict[Any, _View] = {}
    same: dict[Var, Atom] = {}
    out: list[Eqn] = []
    for eqn in jaxpr.eqns:
        invars = substituted(eqn.invars, same)
        eqn = eqn if invars == eqn.invars else eqn.replace(invars=invars)
        if (eqn.op in (reshape, squeeze) or keeps_all(eqn)) and _undoes(eqn, views):
            same[eqn.outvars[0]] = views[eqn.invars[0]].source
            continue
        made = [_from_the_source(eqn, views)] if eqn.op is broadcast_in_dim else _before(eqn, views)
        out += made
        view = _view_of(made[-1])
        if view is not None:
            views[eqn.outvars[0]] = view
    return dead_code(jaxpr.replace(eqns=out, outvars=substituted(jaxpr.outvars, same)))


def _from_the_source(eqn: Eqn, views: dict[Any, _View]) -> Eqn:
    """A broadcast of a broadcast as one."""
    view = views.get(eqn.invars[0])
    if view is None:
        return eqn
    dims = tuple(eqn.params["broadcast_dimensions"][d] for d in view.dims)
    return eqn.replace(invars=(view.source,), params={**eqn.params, "broadcast_dimensions": dims})


def _view_of(eqn: Eqn) -> _View | None:
    if eqn.op is broadcast_in_dim:
        return _View(eqn.invars[0], tuple(eqn.params["broadcast_dimensions"]))
    if eqn.op is not reshape or isinstance(eqn.invars[0], Literal) or eqn.params["dimensions"] is not None:
        return None
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    dims = tuple(d for d, n in enumerate(after) if n != 1)
    return _View(eqn.invars[0], dims) if len(dims) < len(after) and tuple(after[d] for d in dims) == before else None


def _undoes(eqn: Eqn, views: dict[Any, _View]) -> bool:
    """Whether a reshape, or a sum over dims of size 1, takes away the dims of size 1 that a view of the same elements added."""
    x, out = eqn.invars[0], eqn.outvars[0].aval
    view = views.get(x)
    if view is None or (eqn.params.get("dimensions") is not None and eqn.op is reshape):
        return False
    source = view.source.aval
    alike = source.shape == out.shape and source.dtype == out.dtype and source.weak_type == out.weak_type
    return alike and source.size == x.aval.size and not isinstance(view.source, Literal)


def _before(eqn: Eqn, views: dict[Any, _View]) -> list[Eqn]:
    """The operation on what its operands are views of, and the broadcast of that; the equation itself where it has others."""
    if not eqn.op.elementwise or len(eqn.outvars) != 1 or any(dtypes.is_key(v.aval.dtype) for v in eqn.invars):
        return [eqn]
    (result,) = eqn.outvars
    found: dict[tuple[Any, Any], None] = {}
    invars: list[Atom] = []
    for v in eqn.invars:
        view = views.get(v)
        if not v.aval.ndim:
            invars.append(v)
        elif view is None or v.aval.shape != result.aval.shape:
            return [eqn]
        else:
            invars.append(view.source)
            if view.source.aval.ndim:
                found[view.source.aval.shape, view.dims] = None
    if len(found) != 1:
        return [eqn]
    ((shape, dims),) = found
    less = Var(ShapedArray(shape, result.aval.dtype, result.aval.weak_type))
    params = {"shape": result.aval.shape, "broadcast_dimensions": dims, "sharding": None}
    return [
        eqn.replace(invars=tuple(invars), outvars=(less,)),
        eqn.replace(op=broadcast_in_dim, invars=(less,), params=params),
    ]
