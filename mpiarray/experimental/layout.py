"""`jax.experimental.layout`."""

from mpiarray.runtime.layout_constraint import with_layout_constraint
from mpiarray.types.layout import Format, Layout

__all__ = ["Format", "Layout", "with_layout_constraint"]
