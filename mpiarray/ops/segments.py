"""`jax.ops`: reductions by segment numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.plan import dims_of, spec_from
from mpiarray.core.value import Value, aval_of, literal
from mpiarray.ops.common import check_kind
from mpiarray.ops.gather import scatter
from mpiarray.ops.linear import broadcast_in_dim, convert_element_type
from mpiarray.ops.reductions import highest, lowest
from mpiarray.types.sharding import NamedSharding

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]


def _segments(
    name: str, combine: str, start: Any, data: Any, segment_ids: Any, num_segments: int | None, mode: str | None
) -> Any:
    """Scatter rows into `num_segments` rows that start from the neutral element; ids out of range are dropped.

    Rows that are sharded are reduced where they are; the result's rows are unsharded.
    """
    x, ids = aval_of(data), aval_of(segment_ids)
    check_kind(f"{name} segment_ids", ids.dtype, "i")
    if ids.ndim != 1 or x.ndim < 1 or ids.shape[0] != x.shape[0]:
        raise ValueError(f"{name}: segment_ids {ids.str_short()} must have one entry per row of data {x.str_short()}")
    if num_segments is None:
        if isinstance(segment_ids, Value) and not hasattr(segment_ids, "_value"):
            raise ValueError(f"{name}: num_segments must be given while tracing, since it is a shape")
        known = np.asarray(segment_ids)
        num_segments = int(known.max()) + 1 if known.size else 0
    sharding = None  # the segments are a new dim, unsharded; the other dims stay as they are
    mesh = next((a.sharding.mesh for a in (x, ids) if any(dims_of(a))), None)
    if mesh is not None:
        sharding = NamedSharding(mesh, spec_from([(), *dims_of(x)[1:]]))
    shape = (num_segments, *x.shape[1:])
    out = broadcast_in_dim(literal(start(x.dtype), x.dtype), shape=shape, broadcast_dimensions=(), sharding=sharding)
    index = convert_element_type(segment_ids, new_dtype=np.dtype("int32"), weak_type=False)
    return scatter(
        out, data, index, dims=(0,), batch_dims=0, mode=mode or "fill", combine=combine, out_sharding=sharding
    )


def segment_sum(
    data: Any, segment_ids: Any, num_segments: int | None = None, *, mode: str | None = None, **unused: Any
) -> Any:
    """Sum of the rows of each segment: `out[s] = data[segment_ids == s].sum(0)`; empty segments give 0."""
    return _segments("segment_sum", "add", lambda dtype: 0, data, segment_ids, num_segments, mode)


def segment_prod(
    data: Any, segment_ids: Any, num_segments: int | None = None, *, mode: str | None = None, **unused: Any
) -> Any:
    """Product of the rows of each segment; empty segments give 1."""
    return _segments("segment_prod", "mul", lambda dtype: 1, data, segment_ids, num_segments, mode)


def segment_max(
    data: Any, segment_ids: Any, num_segments: int | None = None, *, mode: str | None = None, **unused: Any
) -> Any:
    """Largest of the rows of each segment; empty segments give the dtype's lowest value."""
    return _segments("segment_max", "max", lowest, data, segment_ids, num_segments, mode)


def segment_min(
    data: Any, segment_ids: Any, num_segments: int | None = None, *, mode: str | None = None, **unused: Any
) -> Any:
    """Smallest of the rows of each segment; empty segments give the dtype's highest value."""
    return _segments("segment_min", "min", highest, data, segment_ids, num_segments, mode)
