"""What all ranks do together with host values (`jax.experimental.multihost_utils`).  All are collective over the world."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.runtime.array import ArrayImpl
from mpiarray.types import tree


def sync_global_devices(name: str) -> None:
    """A barrier of all ranks, which must come with the same name: ValueError on all of them otherwise."""
    told = comm.agree(comm.world_group(), name)
    if len(set(told)) > 1:
        raise ValueError(f"sync_global_devices name mismatch: the ranks came with {told}")


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Rank 0's values (or those of the one rank that says `is_source`), as numpy arrays, on every rank."""
    leaves, structure = tree.flatten(in_tree)
    source = comm.rank() == 0 if is_source is None else is_source
    told = comm.agree(comm.world_group(), [np.asarray(x) for x in leaves] if source else None)
    found = [v for v in told if v is not None]
    if len(found) != 1:
        raise ValueError(f"broadcast_one_to_all: one rank must be the source, got {len(found)}")
    return tree.unflatten(structure, found[0])


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Raise AssertionError on all ranks unless all hold equal values."""
    leaves, _ = tree.flatten(in_tree)
    told = comm.agree(comm.world_group(), [np.asarray(x) for x in leaves])
    for r, values in enumerate(told):
        if len(values) != len(told[0]) or not all(
            np.array_equal(a, b, equal_nan=_is_float(a)) for a, b in zip(values, told[0])
        ):
            raise AssertionError(
                f"{fail_message} the values are not the same on each process: rank {r} differs from rank 0".strip()
            )


def _is_float(a: np.ndarray) -> bool:
    return a.dtype.kind in "fc"


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Global arrays as whole numpy arrays; host values of all ranks stacked (concatenated along dim 0 if `tiled`)."""
    return tree.map(lambda x: _gather(x, tiled), in_tree)


def _gather(x: Any, tiled: bool) -> np.ndarray:
    if isinstance(x, ArrayImpl) and x.committed:
        return np.asarray(x)
    told = comm.agree(comm.world_group(), np.asarray(x))
    return np.concatenate([np.atleast_1d(v) for v in told]) if tiled else np.stack(told)
