"""`psum_update`: a sum over mesh axes, and what follows it element by element, made while the sum is.

    new = p - rate * psum(slope)

Every rank would wait for the whole sum and then compute all of `new`, each the same.  Where a large sum travels around the
ring (`comm.ring`), each element is added up for the last time by one rank, piece by piece in the cache.  That rank may
as well go on with it and send the new value around instead of the sum: of the work after the sum each of n ranks does
one n-th, and neither the sum nor the parameter is read again from memory.

Two ranks send each other whole blocks, up to a size, and both make all of the result, each where it received the other's block:
one message instead of some one after the other, and no waiting for memory that the other one has in its cache.

That holds where all other operands are alike on all ranks of the sum; which they are, the pass `updates` finds out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.comm import collectives as mpi
from mpiarray.comm import ring, stats, watch
from mpiarray.comm.groups import Group
from mpiarray.config import config
from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var
from mpiarray.core.op import Out, Undefined, define
from mpiarray.core.plan import Plan, replicated
from mpiarray.core.value import Literal
from mpiarray.ops.arithmetic import add
from mpiarray.ops.tiles import Tiled
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_NEVER = Undefined("it only stands in compiled programs, after derivatives are taken")


class Update:
    """Elementwise equations as a parameter: of the sum, and of arrays of its shape and scalars, to one array.

    No jaxpr to the passes that look into bodies: it is part of a collective, and stays as it is.
    """

    __slots__ = ("jaxpr",)

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr

    def __repr__(self) -> str:
        return f"({' '.join(e.op.hlo_name for e in self.jaxpr.eqns)})"

    @property
    def result(self) -> ShapedArray:
        return self.jaxpr.outvars[0].aval

    def after_adding(self, count: int) -> Jaxpr:
        """The same on `count` elements side by side, and of what is left to add up: the last two terms are its first operands."""
        shape = self.jaxpr.invars[0].aval.shape
        new: dict[Any, Atom] = {}

        def var(v: Var) -> Var:
            a = v.aval
            return Var(ShapedArray((count,), a.dtype, a.weak_type) if a.shape == shape else a)

        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else new[atom]

        total, *others = self.jaxpr.invars
        new.update((v, var(v)) for v in self.jaxpr.invars)
        come, own = var(total), var(total)
        eqns = [Eqn(add, (come, own), (new[total],), {}, self.jaxpr.eqns[0].mesh)]  # type: ignore[arg-type]
        for e in self.jaxpr.eqns:
            invars = [read(v) for v in e.invars]
            new[e.outvars[0]] = out = var(e.outvars[0])
            eqns.append(e.replace(invars=invars, outvars=(out,)))
        return Jaxpr((), (come, own, *(new[v] for v in others)), [read(v) for v in self.jaxpr.outvars], eqns)  # type: ignore[arg-type]


class _Run:
    """The function of blocks; `over`: the result may be written over the block that is summed.

    Two ranks never do that with parts: half of the block has just been read by the other one, and what the other one sends is
    written there.  Where two cores share no cache, writing what the other one holds is six times slower than the whole transfer,
    and memory that was sent stays there for some steps.  So results are in blocks of their own, of which each rank sends the
    same half every time.
    """

    def __init__(self, group: Group, update: Update, over: bool):
        total = update.jaxpr.invars[0].aval
        self.group, self.update, self.shape, self.dtype = group, update, total.shape, dtypes.storage(total.dtype)
        self.result_dtype = dtypes.storage(update.result.dtype)
        self.over = over and self.result_dtype == self.dtype and group.size > 2
        self.new = (memory.recycled if group.size == 2 else memory.maker)(self.shape, self.result_dtype)
        self.pieces: dict[int, Tiled] = {}
        self.arrays = [v.aval.shape == self.shape for v in update.jaxpr.invars[1:]]

    def __call__(self, x: Any, *others: Any) -> np.ndarray:
        x = np.ascontiguousarray(x)
        if not ring.takes(self.group, "sum", self.dtype, x.size) or self.group.comm is None:
            (out,) = self._after(mpi.all_reduce(self.group, x), *others)
            return out
        run = self._swapped if ring.swaps(self.group, x.nbytes) else self._along
        if stats.active or config.check:
            return watch.run("all_reduce", self.group, x, ("sum",), partial(run, x, others))
        return run(x, others)

    def _swapped(self, x: np.ndarray, others: Sequence[Any]) -> np.ndarray:
        """Each of two ranks receives all of the other's block, and makes all of the result, where it was received."""
        come = self.new() if self.result_dtype == self.dtype else memory.empty(self.shape, self.dtype)
        own, theirs = x.reshape(-1), come.reshape(-1)
        ring.swap(self.group, own, theirs)
        terms = (theirs, own) if self.group.rank else (own, theirs)
        (found,) = self._of_both(*terms, *self._flat(others))
        return come if found is theirs else found.reshape(self.shape)

    @cached_property
    def _of_both(self) -> Tiled:
        count = math.prod(self.shape)
        return Tiled(self.update.after_adding(count), (count,), dead=(0 if self.group.rank else 1,))

    def _flat(self, others: Sequence[Any]) -> list[Any]:
        return [np.ascontiguousarray(b).reshape(-1) if a else b for a, b in zip(self.arrays, others)]

    @cached_property
    def _after(self) -> Tiled:
        return Tiled(self.update.jaxpr, self.shape, dead=(0,))

    def _along(self, x: np.ndarray, others: Sequence[Any]) -> np.ndarray:
        """Piece by piece, as the sums are made."""
        flat = self._flat(others)
        result = x if self.over else self.new()
        target = result.reshape(-1)

        def last(come: np.ndarray, own: np.ndarray, place: slice) -> None:
            operands = [b[place] if a else b for a, b in zip(self.arrays, flat)]
            run = self.pieces.get(own.size) or self._piece(own.size)
            if not self.over:
                run(come, own, *operands, [target[place]])
                return
            (found,) = run(come, own, *operands)
            if found is not own:
                own[...] = found

        ring.all_reduce_with(self.group, x, "sum", result, last)
        return result

    def _piece(self, count: int) -> Tiled:
        jaxpr = self.update.after_adding(count)
        if self.over:
            found = Tiled(jaxpr, (count,), dead=(1,), lent=(0,))
        else:
            found = Tiled(jaxpr, (count,), targets=((slice(0, count),),))
        self.pieces[count] = found
        return found


def _build(
    ctx: DeviceContext, *, axes: tuple[str, ...], axis_index_groups: Any, update: Update, over: bool = False
) -> Callable[..., Any]:
    return _Run(ctx.group(axes, axis_index_groups), update, over)


psum_update = define(
    "psum_update",
    type_rule=lambda x, *others, update, **params: Out(
        update.result.shape, update.result.dtype, update.result.weak_type
    ),
    plan=lambda avals, **params: Plan(tuple(replicated(a.ndim) for a in avals), (replicated(avals[0].ndim),)),
    build=_build,
    jvp=_NEVER,
    transpose=_NEVER,
    batch=_NEVER,
    hlo_name="all-reduce",
)
