"""What runs on a tile: the functions of blocks that equations are, their order, and the memory that their results are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpiarray.core.jaxpr import Eqn, Var
from mpiarray.core.value import Literal
from mpiarray.ops.linear import reduce_sum
from mpiarray.ops.reductions import reduce_max, reduce_min
from mpiarray.ops.row_reductions import prepared, sum_of_products, sum_of_tile
from mpiarray.types import dtypes

_BUSY = frozenset((
    np.exp, np.exp2, np.expm1, np.log, np.log2, np.log1p, np.sin, np.cos, np.tan, np.tanh, np.arctan, np.arcsin, np.arccos,
    np.sinh, np.cosh, np.power, np.arctan2, np.logaddexp, np.cbrt,
))  # fmt: skip

_UFUNCS = {reduce_sum.name: "add", reduce_max.name: "maximum", reduce_min.name: "minimum"}


def ufunc_of(eqn: Eqn) -> Any:
    """The ufunc that an equation is; else None."""
    if not eqn.op.elementwise:
        return None
    found = kernel_of(eqn)
    return found if isinstance(found, np.ufunc) and found.nout == 1 and found.nin == len(eqn.invars) else None


def writer_of(eqn: Eqn) -> Callable[..., Any] | None:
    """`f(*blocks, out=...)` where an equation can write into a given array, which may be one of its operands: ufuncs,
    and functions that have such a form as `into`."""
    if not eqn.op.elementwise:
        return None
    found = ufunc_of(eqn)
    return found if found is not None else getattr(kernel_of(eqn), "into", None)


def kernel_of(eqn: Eqn) -> Callable[..., Any]:
    """The function of blocks that an equation without communication is."""
    run = eqn.op.kernel(dtypes.storage(eqn.invars[0].aval.dtype)) if eqn.invars else eqn.op.impl
    assert run is not None, f"{eqn.op.name} has no impl"
    choose = getattr(run, "for_params", None)
    if choose is not None:
        return choose(**eqn.params)
    return partial(run, **eqn.params) if eqn.params else run


def factors_of(eqn: Eqn) -> tuple[Any, Any] | None:
    """The two arrays of one shape whose product an equation is."""
    ufunc = ufunc_of(eqn)
    if ufunc is np.square:
        return eqn.invars[0], eqn.invars[0]
    a, *others = eqn.invars
    same = ufunc is np.multiply and all(v.aval.shape == eqn.outvars[0].aval.shape for v in eqn.invars)
    return (a, others[0]) if same and not any(isinstance(v, Literal) for v in eqn.invars) else None


def squared(eqn: Eqn) -> Any:
    """The array whose square an equation is; else None."""
    factors = factors_of(eqn) if eqn.op.elementwise and eqn.invars else None
    return factors[0] if factors is not None and factors[0] is factors[1] else None


def reducer_of(eqn: Eqn, **changed: Any) -> Callable[..., Any]:
    """The function of blocks that a reduction is; of two blocks where it adds up their product (`with_factors`)."""
    params = {**eqn.params, **changed}
    if len(eqn.invars) == 2:
        return partial(sum_of_products, axes=params["axes"])
    if eqn.op is reduce_sum and eqn.outvars[0].aval.dtype in (np.float32, np.float64):
        x, axes = eqn.invars[0].aval, params["axes"]
        if len(axes) == x.ndim or max(axes) < len(axes):
            return partial(sum_of_tile, axes=axes)
    return partial(eqn.op.kernel(dtypes.storage(eqn.invars[0].aval.dtype)), **params)


def row_reducer_of(eqn: Eqn) -> Callable[..., Any]:
    """The same over last dims, of tiles that have whole rows."""
    x = eqn.invars[0].aval
    ufunc = _UFUNCS.get(eqn.op.name)
    found = ufunc and prepared(ufunc, x.shape, dtypes.storage(x.dtype), eqn.params["axes"], len(eqn.invars))
    return found or reducer_of(eqn)


def with_factors(
    steps: Sequence[Eqn], kept: Collection[Any], is_full: Callable[[Any], bool], axes: Collection[tuple[int, ...]]
) -> list[Eqn]:
    """The steps with each sum over these dims that alone reads a product made a sum of its two factors: one call of BLAS,
    without a temporary."""
    readers: Counter[Any] = Counter(v for e in steps for v in e.invars if not isinstance(v, Literal))
    makers: dict[Any, Eqn] = {e.outvars[0]: e for e in steps}
    joined: dict[Any, Eqn] = {}  # by product
    for eqn in steps:
        if eqn.op is not reduce_sum or eqn.params["axes"] not in axes:
            continue
        (v,) = eqn.invars
        if eqn.outvars[0].aval.dtype in (np.float32, np.float64) and readers[v] == 1 and v not in kept and v in makers:
            factors = factors_of(makers[v]) if makers[v].op.elementwise else None
            if factors is not None and all(map(is_full, factors)):
                joined[v] = eqn.replace(invars=factors)
    sums = {e.outvars[0]: e for e in joined.values()}
    return [sums.get(e.outvars[0], e) for e in steps if e.outvars[0] not in joined]


def comparisons_first(steps: Sequence[Eqn]) -> list[Eqn]:
    """The steps with each one that makes bools of wider values moved to where these are made.

    What reads the values last may then write over them: `maximum(x, 0)` after `x > 0`.
    """
    makers: dict[Any, int] = {e.outvars[0]: k for k, e in enumerate(steps)}

    def place(k: int, eqn: Eqn) -> tuple[int, int]:
        narrows = eqn.outvars[0].aval.dtype == np.bool_ and any(v.aval.dtype != np.bool_ for v in eqn.invars)
        if not narrows or not eqn.op.elementwise:
            return k, 0
        return max((makers.get(v, -1) for v in eqn.invars), default=-1), 1

    order = sorted(range(len(steps)), key=lambda k: (*place(k, steps[k]), k))
    return [steps[k] for k in order]


class Buffers:
    """Which temporary buffer each value of a tile is in: a buffer is free again after its value's last use, and so is an operand
    that nobody needs afterwards (`dead` ones may be results, `lent` ones may not).

    Only values that can be written into a given array have one (`writer_of`); what other functions return lives as long as its
    name, and may be a view of an operand, whose buffer therefore stays.  A writer may write over its own operand.
    A chain of values that each die in making the next, and that ends in a result, is computed in the result's memory.
    """

    def __init__(
        self,
        steps: Sequence[Eqn],
        results: Sequence[Any],
        kept: set[Any],
        dead: Sequence[Any] = (),
        lent: Sequence[Any] = (),
    ):
        self.of: dict[Any, Any] = {}
        self.dtypes: list[Any] = []
        last: dict[Any, int] = {v: k for k, e in enumerate(steps) for v in e.invars if not isinstance(v, Literal)}
        viewed = {v for e in steps if e.op.elementwise and writer_of(e) is None for v in e.invars}
        self.over = self._overwritten(steps, results, dead, last)
        self.in_result = self._chains(steps, results, {*kept, *viewed}, last)
        spare = [v for v in (*dead, *lent) if v in last and v not in self.over.values()]
        free: list[Any] = []  # numbers of buffers, and operands
        for k, eqn in enumerate(steps):
            free += [self.of[v] for v in dict.fromkeys(eqn.invars) if v in self.of and last[v] == k and v not in viewed]
            free += [v for v in spare if last[v] == k]
            (out,) = eqn.outvars
            if out in kept or out in self.in_result or writer_of(eqn) is None:
                continue
            dtype = dtypes.storage(out.aval.dtype)
            found = next((b for b in free if self._dtype(b) == dtype), None)
            if found is None:
                found = len(self.dtypes)
                self.dtypes.append(dtype)
            else:
                free.remove(found)
            self.of[out] = found
        self.itemsizes = [d.itemsize for d in self.dtypes]

    def _dtype(self, place: Any) -> Any:
        return self.dtypes[place] if isinstance(place, int) else dtypes.storage(place.aval.dtype)

    @staticmethod
    def _overwritten(
        steps: Sequence[Eqn], results: Sequence[Any], dead: Sequence[Any], last: dict[Any, int]
    ) -> dict[Any, Any]:
        """For results the operand in whose memory they are: one that nothing reads after the step that makes the result."""
        maker: dict[Any, int] = {e.outvars[0]: k for k, e in enumerate(steps)}
        found: dict[Any, Any] = {}
        for v in dead:
            same = [r for r in results if dtypes.storage(r.aval.dtype) == dtypes.storage(v.aval.dtype)]
            result = next((r for r in same if v in last and r not in found and last[v] <= maker[r]), None)
            if result is not None:
                found[result] = v
        return found

    def _chains(
        self, steps: Sequence[Eqn], results: Sequence[Any], fixed: set[Any], last: dict[Any, int]
    ) -> dict[Any, Any]:
        """Values that may be where a result will be."""
        maker: dict[Any, int] = {e.outvars[0]: k for k, e in enumerate(steps)}
        found: dict[Any, Any] = {}
        for result in results:
            value, since = result, last.get(self.over.get(result), -1)  # before that its memory is an operand
            chain = []
            while value is not None and writer_of(steps[maker[value]]) is not None:
                k, value = maker[value], None
                for v in steps[k].invars:
                    usable = isinstance(v, Var) and v in maker and v not in fixed and v not in found and v not in chain
                    usable = usable and last[v] == k and maker[v] >= since
                    if usable and v.aval.dtype == result.aval.dtype and writer_of(steps[maker[v]]) is not None:
                        chain.append(v)
                        value = v
                        break
            if result not in self.over:
                # what writes there first waits for memory: unless it has more to do for each element than that takes
                busy = [n for n, v in enumerate([result, *chain]) if ufunc_of(steps[maker[v]]) in _BUSY]
                chain = chain[: busy[-1]] if busy else chain
            found.update((v, result) for v in chain)
        return found
