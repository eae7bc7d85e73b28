"""Small public functions on arrays and settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpiarray.config import config
from mpiarray.core import infer
from mpiarray.core.value import Value
from mpiarray.runtime import eager
from mpiarray.runtime.array import ArrayImpl
from mpiarray.types import tree


def device_get(x: Any) -> Any:
    """The values of a pytree as numpy arrays, the same on every rank.  Collective over the world for sharded arrays."""
    return tree.map(lambda v: np.asarray(v) if isinstance(v, Value) else v, x)


def block_until_ready(x: Any) -> Any:
    """`x`: everything is computed when a call returns."""
    for leaf in tree.leaves(x):
        if isinstance(leaf, ArrayImpl):
            leaf.block_until_ready()
    return x


@contextmanager
def enable_x64(new_val: bool = True) -> Iterator[None]:
    """64-bit types inside the block (`jax_enable_x64`)."""
    with config.override("jax_enable_x64", new_val):
        yield


@contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Jitted functions run eagerly inside the block."""
    with config.override("jax_disable_jit", disable):
        yield


def clear_caches() -> None:
    """Forget compiled eager ops and inferred types."""
    eager._cache.clear()
    infer._cache.clear()


def _initialize(*args: Any, **kwargs: Any) -> None:
    """Accepted and ignored: MPI's launcher has started all processes."""


distributed = SimpleNamespace(initialize=_initialize, shutdown=_initialize, is_initialized=lambda: True)
