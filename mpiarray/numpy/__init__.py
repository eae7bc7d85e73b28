"""numpy's functions on sharded arrays: `import mpiarray.numpy as jnp`."""
