"""A group's result that only replaces a box of an array is written there (ops.fused_update)."""

from __future__ import annotations

from typing import Any

from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, uses_of
from mpiarray.core.value import Literal
from mpiarray.ops.boxes import move_boxes_at
from mpiarray.ops.fused_update import fusion_update
from mpiarray.ops.inside import update_inside
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.slicing import dynamic_update_slice, pad
from mpiarray.ops.tiles import REDUCTIONS, fusion


def write(jaxpr: Jaxpr) -> Jaxpr:
    """The program with such updates and their groups as one equation each, here and in the bodies of loops."""
    jaxpr = map_bodies(jaxpr, write)
    makers: dict[Any, Eqn] = {e.outvars[0]: e for e in jaxpr.eqns if e.op is fusion and len(e.outvars) == 1}
    if not makers:
        return jaxpr
    uses = uses_of(jaxpr)
    merged: dict[Eqn, list[Eqn]] = {}
    gone = set()
    for eqn in jaxpr.eqns:
        maker = makers.get(eqn.invars[1]) if _is_update(eqn) else None
        if maker is not None and uses[maker.outvars[0]] == 1 and _is_array(maker):
            merged[eqn] = [_merged(eqn, maker)]
            gone.add(maker)
        maker = makers.get(eqn.invars[0]) if _is_frame(eqn) else None
        if maker is not None and uses[maker.outvars[0]] == 1 and _is_array(maker):
            merged[eqn] = _framed(eqn, maker)
            gone.add(maker)
    return (
        jaxpr.replace(eqns=[m for e in jaxpr.eqns if e not in gone for m in merged.get(e, (e,))]) if merged else jaxpr
    )


def _is_update(eqn: Eqn) -> bool:
    """Whether an equation replaces a box of an array whose place is known."""
    if eqn.op is update_inside:
        return True
    known = len(eqn.invars) > 2 and all(isinstance(v, Literal) for v in eqn.invars[2:])
    whole = eqn.op is dynamic_update_slice or (eqn.op is move_boxes_at and not eqn.params["take"])
    return whole and known and eqn.invars[0].aval.ndim == eqn.outvars[0].aval.ndim and eqn.invars[0].aval.ndim > 0


def _is_frame(eqn: Eqn) -> bool:
    """Whether an equation puts an array between equal elements."""
    return eqn.op is pad and all(low >= 0 <= high and not inner for low, high, inner in eqn.params["padding_config"])


def _framed(eqn: Eqn, maker: Eqn) -> list[Eqn]:
    """The same, as an update of an array of equal elements."""
    (out,) = eqn.outvars
    base = Var(out.aval)
    params: dict[str, Any] = {"shape": out.aval.shape, "broadcast_dimensions": (), "sharding": None}
    starts = tuple(low for low, _, _ in eqn.params["padding_config"])
    return [
        eqn.replace(op=broadcast_in_dim, invars=(eqn.invars[1],), outvars=(base,), params=params),
        eqn.replace(
            op=fusion_update,
            invars=(base, *maker.invars),
            params=dict(maker.params, base=out.aval.shape, starts=starts, moves=None, part=None),
        ),
    ]


def _is_array(maker: Eqn) -> bool:
    """Whether a group's result has its shape, and is no sum; with rows the box might cut them."""
    if maker.params.get("rows"):
        return False
    inner = maker.params["jaxpr"]
    ends = {v for e in inner.eqns if e.op in REDUCTIONS for v in e.outvars}
    return inner.outvars[0].aval.shape == maker.params["shape"] and inner.outvars[0] not in ends


def _merged(eqn: Eqn, maker: Eqn) -> Eqn:
    array, _, *starts = eqn.invars
    part = tuple(eqn.params[k] for k in ("start", "limit", "blocks")) if eqn.op is update_inside else None
    names = ("source_shape", "target_shape", "source", "target")
    moves: Any = tuple(eqn.params[k] for k in names) if eqn.op is move_boxes_at else None
    params = dict(maker.params, base=array.aval.shape, starts=tuple(int(s.val) for s in starts), moves=moves, part=part)  # type: ignore[union-attr]
    return eqn.replace(op=fusion_update, invars=(array, *maker.invars), params=params)
