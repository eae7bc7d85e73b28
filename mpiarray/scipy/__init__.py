"""`jax.scipy`: special functions and scipy's linear algebra on sharded arrays.  scipy itself is not needed."""

from mpiarray.scipy import linalg, special, stats

__all__ = ["linalg", "special", "stats"]
