"""Prefix combinations along a dim by a function of your own: what the derivatives of cumulative ops are made of.

It works on values of any trace, so that it can be differentiated and batched in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.ops.common import const_like
from mpiarray.ops.linear import add_any
from mpiarray.ops.slicing import pad, slice_

Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def scan_along(combine: Combine, elems: Sequence[Any], dim: int, reverse: bool) -> list[Any]:
    """All prefix combinations of an associative function: element i combines 0 to i (`reverse`: i to the last).

    By odd-even reduction: neighbours are combined, that half as long list is scanned, the even elements are filled in
    (G. Blelloch, "Prefix sums and their applications", 1990).

    Args:
      combine: maps two equally long lists of arrays to one, elementwise along `dim`.
      elems: arrays of one size along `dim`, which must be unsharded.
    """
    n = aval_of(elems[0]).shape[dim]
    if n < 2:
        return list(elems)
    cut = _Cut(dim, reverse)
    pairs = combine([cut.part(x, 0, n - 1, 2) for x in elems], [cut.part(x, 1, n, 2) for x in elems])
    odd = scan_along(combine, pairs, dim, reverse)
    before = odd if n % 2 else [cut.part(x, 0, n // 2 - 1, 1) for x in odd]
    even = combine(before, [cut.part(x, 2, n, 2) for x in elems]) if n > 2 else [None] * len(elems)
    evens = (n + 1) // 2
    out = []
    for x, e, o in zip(elems, even, odd):
        head = cut.placed(cut.part(x, 0, 1, 1), 0, evens - 1, 0)
        joined = add_any(head, cut.placed(e, 1, 0, 0)) if n > 2 else head
        out.append(add_any(cut.placed(joined, 0, 1 - n % 2, 1), cut.placed(o, 1, n % 2, 1)))
    return out


class _Cut:
    """Slices and pads along one dim, counted from its end when reversed."""

    def __init__(self, dim: int, reverse: bool):
        self.dim, self.reverse = dim, reverse

    def part(self, x: Any, start: int, limit: int, step: int) -> Any:
        shape = aval_of(x).shape
        n, count = shape[self.dim], max(0, -(-(limit - start) // step))
        first = start if not self.reverse else n - 1 - (start + (count - 1) * step)
        starts = [0] * len(shape)
        limits, steps = list(shape), [1] * len(shape)
        starts[self.dim], limits[self.dim], steps[self.dim] = first, first + (count - 1) * step + 1, step
        return slice_(x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(steps))

    def placed(self, x: Any, low: int, high: int, interior: int) -> Any:
        """`x` with zeros put around and between its elements."""
        config = [(0, 0, 0)] * aval_of(x).ndim
        config[self.dim] = (high, low, interior) if self.reverse else (low, high, interior)
        return pad(x, const_like(x, 0), padding_config=tuple(config))
