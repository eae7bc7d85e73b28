"""`jax.experimental.multihost_utils`."""

from mpiarray.runtime.together import assert_equal, broadcast_one_to_all, process_allgather, sync_global_devices

__all__ = ["assert_equal", "broadcast_one_to_all", "process_allgather", "sync_global_devices"]
