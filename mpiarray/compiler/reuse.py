"""Which blocks a step may write over: those that the program made itself, and that nobody can see after the step.

A training step would make new memory for each layer's values twice, before and after the activation, and for the new
parameters.  A step that reads a block for the last time may leave its result there instead.  So may the blocks of
donated arguments be written over, which the caller of the program has made sure that nobody else refers to.

What a step gives may be a view of what it reads: unless it is known to make new memory, its results count as such.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from mpiarray import memory
from mpiarray.compiler import observe
from mpiarray.compiler.cost import nbytes
from mpiarray.core.jaxpr import Eqn, Jaxpr, subjaxprs
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import all_gather, pmax, pmin, psum, psum_many, reduce_scatter
from mpiarray.ops.dot import dot_general
from mpiarray.ops.fused_update import fusion_update
from mpiarray.ops.in_place import OVERWRITING
from mpiarray.ops.inside import update_inside
from mpiarray.ops.manual import all_gather_invariant, psum_invariant, unreduced_psum, unreduced_reduce_scatter
from mpiarray.ops.slicing import dynamic_update_slice
from mpiarray.ops.sum_update import psum_update
from mpiarray.ops.tiles import fusion, ufunc_of
from mpiarray.ops.together import gather_many, scatter_many

_NEW = frozenset(
    (fusion, fusion_update, dot_general, psum, psum_invariant, unreduced_psum, psum_update, pmax, pmin)
    + (all_gather, all_gather_invariant, reduce_scatter, unreduced_reduce_scatter, gather_many)
)
"""Operations whose results are always new memory, row-major where they are large."""
_PARTS = frozenset((psum_many, scatter_many))
"""Those whose results are parts of new memory."""


_FROM_ITSELF = frozenset((dynamic_update_slice, update_inside))
"""Updates whose new values may be a view of what is written over: numpy's assignments take care of it."""


class Dead(NamedTuple):
    """The numbers of an equation's operands whose memory it may use, arguments first: for its results; for what is in between."""

    over: tuple[int, ...] = ()
    lent: tuple[int, ...] = ()


def overwritable(jaxpr: Jaxpr, owned: Collection[int] = ()) -> dict[Eqn, Dead]:
    """What each equation may write over; `owned`: the arguments whose row-major blocks are the program's own.

    A sum that came in a message with others is lent only: a result there would keep the whole message.
    """
    ends = ends_of(jaxpr)
    arguments = {jaxpr.invars[k] for k in owned}
    own: set[Any] = set(arguments)
    parts: set[Any] = set()
    roots: dict[Any, frozenset[Any]] = {}  # whose memory a value may be
    found: dict[Eqn, Dead] = {}
    constant: set[Any] = set(jaxpr.constvars)  # computed once, when a program is prepared
    for k, eqn in enumerate(jaxpr.eqns):
        operands = [v for v in eqn.invars if not isinstance(v, Literal)]
        seen = [v for u in operands for v in roots.get(u, (u,))]
        alone = [seen.count(v) == 1 or (n == 0 and eqn.op in _FROM_ITSELF) for n, v in enumerate(eqn.invars)]
        last = [n for n, v in enumerate(eqn.invars) if v in ends and ends[v] == k and alone[n]]
        over = sorted((n for n in last if eqn.invars[n] in own), key=lambda n: eqn.invars[n] not in arguments)
        lent = [n for n in last if eqn.invars[n] in parts]
        if (over or lent) and (makes_new(eqn) or (eqn.op in OVERWRITING and 0 in over)):
            found[eqn] = Dead(tuple(over), tuple(lent))
        if all(v in constant for v in operands):
            constant.update(eqn.outvars)
        elif eqn.op in _PARTS:
            parts.update(eqn.outvars)
        elif makes_new(eqn):
            own.update(v for v in eqn.outvars if eqn.op in _NEW or _is_aligned(eqn))
        elif eqn.op in OVERWRITING and eqn in found:
            own.update(eqn.outvars)
        elif eqn.op not in OVERWRITING:
            roots.update(dict.fromkeys(eqn.outvars, frozenset((*seen, *operands))))
    return found


def makes_new(eqn: Eqn) -> bool:
    """Whether the results of an equation are new arrays, and no views of operands."""
    return eqn.op in _NEW or eqn.op in _PARTS or ufunc_of(eqn) is not None


def _is_aligned(eqn: Eqn) -> bool:
    """Whether the result of a ufunc is written into row-major memory that the program makes (executable._place)."""
    return ufunc_of(eqn) is not None and nbytes(eqn.outvars[0].aval) >= memory.ALIGNED_FROM and not observe.observing


def ends_of(jaxpr: Jaxpr) -> dict[Any, float]:
    """For each value the equation at which it, and all that may be a view of it, are used for the last time."""
    ends: dict[Any, float] = dict.fromkeys((v for v in jaxpr.outvars if not isinstance(v, Literal)), math.inf)
    for k in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[k]
        until: float = k
        if any(True for _ in subjaxprs(eqn.params)) and eqn.op not in (fusion, fusion_update):
            until = math.inf  # loops may keep a block for the next iteration, and give it back as their result
        elif not makes_new(eqn) and eqn.op not in OVERWRITING:
            until = max((k, *(ends.get(v, k) for v in eqn.outvars)))
        for v in eqn.invars:
            if not isinstance(v, Literal):
                ends[v] = max(ends.get(v, k), until)
    return ends
