"""`jax_debug_nans`: the error that a NaN becomes, on all ranks that hold the array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.comm.collectives import all_reduce
from mpiarray.comm.groups import device_group
from mpiarray.types import dtypes


def check_nans(name: str, results: Sequence[Any]) -> None:
    """Raise FloatingPointError on every rank of a result's mesh when any of its blocks holds a NaN.  Collective over the mesh."""
    for x in results:
        if not (dtypes.is_float(x.dtype) or dtypes.is_complex(x.dtype)) or x._block is None:
            continue
        bad = bool(np.isnan(x._block).any())
        ids = x._placed.ids
        if ids is not None and len(ids) > 1:
            bad = bool(all_reduce(device_group(ids), np.array(bad), "or"))
        if bad:
            raise FloatingPointError(
                f"invalid value (nan) encountered in {name}: its result {x.aval.str_short()} holds a NaN, and `jax_debug_nans` is set"
            )
