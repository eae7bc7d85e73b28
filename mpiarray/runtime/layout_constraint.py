"""`with_layout_constraint`: the memory order of intermediate values."""

from __future__ import annotations

from typing import Any

from mpiarray.core.trace import is_evaluating
from mpiarray.core.value import aval_of
from mpiarray.ops import placement as ops
from mpiarray.runtime.array import ArrayImpl, from_host, relaid
from mpiarray.runtime.placed import placed
from mpiarray.types import tree
from mpiarray.types.layout import Layout


def with_layout_constraint(x: Any, layouts: Any) -> Any:
    """The values in the memory order of a Layout (or of a pytree prefix of them).

    Under jit: an equation, after which later ops are free again.  On arrays: a relaid array.  No communication.
    Raises ValueError for what is no concrete Layout, and for a layout of another rank.
    """
    leaves, structure = tree.flatten(x)
    if isinstance(layouts, Layout):
        found: list[Any] = [layouts] * len(leaves)
    else:
        found = tree.flatten_prefix(
            layouts, x, what="with_layout_constraint", is_leaf=lambda t: not isinstance(t, (tuple, list, dict))
        )
    return tree.unflatten(structure, [_constrain(leaf, layout) for leaf, layout in zip(leaves, found)])


def _constrain(x: Any, layout: Any) -> Any:
    if not isinstance(layout, Layout) or layout is Layout.AUTO:
        raise ValueError(
            f"layouts passed to `with_layout_constraint` must be of type `Layout`. Got {layout!r} of type {type(layout)}"
        )
    out = ops.layout_constraint(x, layout=layout)
    if not is_evaluating() or not isinstance(out, ArrayImpl):
        return out
    concrete = x if isinstance(x, ArrayImpl) else from_host(x)
    where = concrete._placed
    order = tuple(layout.major_to_minor)
    moved = placed(aval_of(out), where.sharding, where.committed, order, True)
    return ArrayImpl(moved, None if concrete._block is None else relaid(concrete._block, order))
