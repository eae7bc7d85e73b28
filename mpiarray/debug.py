"""`jax.debug`: drawings of shardings, prints and callbacks in programs."""

from mpiarray.runtime.debug import (
    callback,
    inspect_array_sharding,
    redistribution_plan,
    visualize_array_sharding,
    visualize_sharding,
)
from mpiarray.runtime.debug import print_ as print

__all__ = [
    "callback",
    "inspect_array_sharding",
    "print",
    "redistribution_plan",
    "visualize_array_sharding",
    "visualize_sharding",
]
