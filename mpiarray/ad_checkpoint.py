"""`jax.ad_checkpoint`: computing values again in the backward pass, and naming those that policies keep."""

from mpiarray.higher_order import checkpoint_policies
from mpiarray.higher_order.checkpoint import checkpoint, checkpoint_name
from mpiarray.higher_order.checkpoint import checkpoint as remat
from mpiarray.higher_order.residuals import print_saved_residuals, saved_residuals

__all__ = [
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "print_saved_residuals",
    "remat",
    "saved_residuals",
]
