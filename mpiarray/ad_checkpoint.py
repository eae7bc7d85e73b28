"""`jax.ad_checkpoint`: computing values again in the backward pass, and naming those that policies keep."""

from mpiarray.higher_order import checkpoint_policies
from mpiarray.higher_order.checkpoint import checkpoint, checkpoint_name
from mpiarray.higher_order.checkpoint import checkpoint as remat

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies", "remat"]
